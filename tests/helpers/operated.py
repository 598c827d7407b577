"""A real broker with a console, an operator, and a viewer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from penstock.plugins.access.password_hash import make_hash
from tests.helpers.process import BrokerProcess, running_broker

OPERATOR: Final = ("ines", "water under the bridge")
VIEWER: Final = ("vera", "only looking")

HOLDING: Final[Mapping[str, Any]] = {
    "probing": {"probe_period": 0.05},
    "withholding": {
        "policy": "conservative",
        "threshold_s": 1_000,
        "threshold_l": 1e-9,
        "max_withhold": 3_600,
    },
}
"""Plugins that hold every large message: no path of this world has an RTT below a nanosecond."""

FAST_HASH: Final = 1_000
"""Iterations; that a hash is slow is no subject here."""


def console_policy(
    folder: Path,
    plugins: Mapping[str, Any] | None = None,
    *,
    http: str = "127.0.0.1:0",
    **keys: Any,
) -> dict[str, Any]:
    """Return a policy with a console and its users; clients need no name.

    Args:
        folder: the broker's folder, in which the users are written.
        plugins: further plugins.
        http: the console's address.
        keys: further keys of the top level.
    """
    lines = [
        f"{name}:{make_hash(password.encode(), b'twelve bytes', FAST_HASH)}\n"
        for name, password in (OPERATOR, VIEWER)
    ]
    passwords = folder / "passwords"
    passwords.write_text("".join(lines))
    passwords.chmod(0o600)
    return {
        "listeners": {"default": {"bind": "127.0.0.1:0"}},
        "plugins": {
            "access": {"password_file": "passwords", "allow_anonymous": True},
            "console": {"http": http, "admins": [OPERATOR[0]], "viewers": [VIEWER[0]]},
            **(plugins or {}),
        },
        **keys,
    }


@contextmanager
def operated_broker(
    folder: Path, plugins: Mapping[str, Any] | None = None, **keys: Any
) -> Iterator[BrokerProcess]:
    """Run a broker with a console for a block; the arguments are those of `console_policy`."""
    with running_broker(console_policy(folder, plugins, **keys), folder) as broker:
        yield broker
