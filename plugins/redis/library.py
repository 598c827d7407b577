"""A library of functions that servers run: its version, and how it is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ResponseError

from penstock.plugins.redis.errors import EngineStartError
from penstock.plugins.redis.login import ask_directly


@dataclass(frozen=True, slots=True)
class Library:
    """The functions of one plugin, which stand in the file ``library.lua`` of its folder.

    Attributes:
        family: the beginning of the library's name, whatever its version; it ends with ``_``.
        version: the version of the functions and of the keys; a release that changes either has
            another one.
        stored: functions whose effects replicas must have, whoever calls them.
    """

    family: str
    version: int
    package: str
    stored: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """Return the name of the library on a server."""
        return f"{self.family}{self.version}"

    @property
    def prefix(self) -> str:
        """Return the beginning of each function's name: names are unique on a server."""
        return f"{self.name}_"

    def source(self) -> str:
        """Return the library as the server loads it.

        It is read once: an upgrade on the disk must not keep a running program from its servers.
        """
        return _source(self)

    async def load(self, connection: AbstractConnection, server: str) -> None:
        """Load the library where it is missing.

        Raises:
            EngineStartError: there is one of another version, or one with other code.
        """
        own, code = self.name, self.source()
        listed = await ask_directly(
            connection, "FUNCTION", "LIST", "LIBRARYNAME", f"{self.family}*", "WITHCODE"
        )
        there = {}
        for one in listed:
            fields = dict(zip(one[::2], one[1::2], strict=True))
            there[fields[b"library_name"].decode()] = fields[b"library_code"].decode()
        others = sorted(set(there) - {own})
        if others:
            raise EngineStartError(
                f"function library of server {server}: read {', '.join(others)}; allowed: {own}. "
                "Another version of Penstock uses this server. FUNCTION DELETE removes its library "
                "where no program of that version runs any more"
            )
        if own not in there:
            try:
                await ask_directly(connection, "FUNCTION", "LOAD", code)
            except ResponseError as error:  # another program may have been faster
                if "already exists" not in str(error):
                    raise
        elif there[own] != code:
            raise EngineStartError(
                f"function library of server {server}: read {own} with other code; allowed: that "
                f"of this version. FUNCTION DELETE {own} removes it where no other program "
                "uses it"
            )


@cache
def _source(library: Library) -> str:
    code = files(library.package).joinpath("library.lua").read_text(encoding="utf-8")
    return f"#!lua name={library.name}\nlocal PREFIX = '{library.prefix}'\n{code}"
