"""The library of functions that servers run: its version, and how it is loaded."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ResponseError

from penstock.plugins.queue.engines.contract import EngineStartError
from penstock.plugins.queue.engines.redis.login import ask_directly

VERSION: Final = 1
"""The version of the functions and of the keys; a release that changes either has another one."""
FAMILY: Final = "penstock_queue_"
LIBRARY: Final = f"{FAMILY}{VERSION}"
PREFIX: Final = f"{LIBRARY}_"
"""The prefix of each function's name, because names are unique on a server, not in a library."""


@cache
def source() -> str:
    """Return the library as the server loads it.

    It is read once: an upgrade on the disk must not keep a running program from its servers.
    """
    code = files(__package__).joinpath("library.lua").read_text(encoding="utf-8")
    return f"#!lua name={LIBRARY}\nlocal PREFIX = '{PREFIX}'\n{code}"


async def load(connection: AbstractConnection, server: str) -> None:
    """Load the library where it is missing.

    Raises:
        EngineStartError: there is one of another version, or one with other code.
    """
    code = source()
    listed = await ask_directly(
        connection, "FUNCTION", "LIST", "LIBRARYNAME", f"{FAMILY}*", "WITHCODE"
    )
    there = {}
    for one in listed:
        fields = dict(zip(one[::2], one[1::2], strict=True))
        there[fields[b"library_name"].decode()] = fields[b"library_code"].decode()
    others = sorted(set(there) - {LIBRARY})
    if others:
        raise EngineStartError(
            f"function library of server {server}: read {', '.join(others)}; allowed: {LIBRARY}. "
            "Another version of Penstock uses this server. FUNCTION DELETE removes its library "
            "where no program of that version runs any more"
        )
    if LIBRARY not in there:
        try:
            await ask_directly(connection, "FUNCTION", "LOAD", code)
        except ResponseError as error:  # another program may have been faster
            if "already exists" not in str(error):
                raise
    elif there[LIBRARY] != code:
        raise EngineStartError(
            f"function library of server {server}: read {LIBRARY} with other code; allowed: that "
            f"of this version. FUNCTION DELETE {LIBRARY} removes it where no other program "
            "uses it"
        )
