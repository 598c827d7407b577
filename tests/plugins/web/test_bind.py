from __future__ import annotations

import pytest

from penstock.plugins.web.bind import is_loopback, split_bind


@pytest.mark.parametrize(
    ("bind", "host", "port"),
    [
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("[::1]:8080", "::1", 8080),
        ("queue.local:1", "queue.local", 1),
    ],
)
def test_bind_is_host_and_port(bind: str, host: str, port: int) -> None:
    """Addresses of both families and names are read."""
    assert split_bind(bind) == (host, port)


@pytest.mark.parametrize("bind", ["8080", "::1:80", "localhost:70000", "a b:1", "[x]:1", ":80", ""])
def test_anything_else_is_refused(bind: str) -> None:
    """What is allowed is said; the key and what was read are its reader's to say."""
    with pytest.raises(ValueError, match=r"^HOST:PORT, with a port of 0 to 65535$"):
        split_bind(bind)


@pytest.mark.parametrize(
    ("binds", "ours"),
    [
        (("127.9.9.9:1", "[::1]:80", "localhost:80"), True),
        (("0.0.0.0:80", "[::]:80", "10.0.0.1:80", "localhost.example:80"), False),
    ],
)
def test_loopback_is_reached_from_this_machine_alone(binds: tuple[str, ...], ours: object) -> None:
    """A name may have any address, except for the one that every machine has for itself."""
    assert {is_loopback(bind) for bind in binds} == {ours}
