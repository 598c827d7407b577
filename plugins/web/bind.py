"""The addresses of HTTP APIs in policy files."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Final

from pydantic import AfterValidator

_FORM: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:\s]+):(?P<port>[0-9]{1,5})")


def split_bind(bind: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT`` or ``[IPv6]:PORT``.

    Raises:
        ValueError: says what is allowed.
    """
    match = _FORM.fullmatch(bind)
    if match is None or int(match["port"]) > 65_535:
        raise ValueError("HOST:PORT, with a port of 0 to 65535")
    return match["host"].strip("[]"), int(match["port"])


def is_loopback(bind: str) -> bool:
    """Say whether an address that `split_bind` accepts is reached from this machine alone."""
    host, _ = split_bind(bind)
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a host name, which may have any address
        return False


def _checked(bind: str) -> str:
    split_bind(bind)
    return bind


Bind = Annotated[str, AfterValidator(_checked)]
"""A key whose value `split_bind` accepts."""
