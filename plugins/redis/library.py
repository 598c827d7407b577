"""A library of functions that servers run: its version, and how it is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ResponseError

from penstock.plugins.redis.errors import EngineStartError
from penstock.plugins.redis.login import ask_directly


@dataclass(frozen=True, slots=True)
class Library:
    """The functions of one plugin, which stand in the file ``library.lua`` of its folder.

    Programs of several releases can use one server at once: each has the functions that it came
    with, under a name of their own, as long as `version` is the same.

    Attributes:
        family: the beginning of the library's name, whatever its version; it ends with ``_``.
        version: of the keys, and of what programs write into them. A release whose functions or
            programs do not go together with those of the one before has another one.
        stored: functions whose effects replicas must have, whoever calls them.
    """

    family: str
    version: int
    package: str
    stored: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """Return the name of the library on a server: other code has another name."""
        digest = sha256(_text(self.package).encode()).hexdigest()
        return f"{self._names}{digest[:12]}"

    @property
    def _names(self) -> str:
        """Return how the names of all begin that go together with this one."""
        return f"{self.family}{self.version}_"

    @property
    def prefix(self) -> str:
        """Return the beginning of each function's name: names are unique on a server."""
        return f"{self.name}_"

    def source(self) -> str:
        """Return the library as the server loads it."""
        return f"#!lua name={self.name}\nlocal PREFIX = '{self.prefix}'\n{_text(self.package)}"

    async def load(self, connection: AbstractConnection, server: str) -> None:
        """Load the library where it is missing.

        Raises:
            EngineStartError: there is one of another version.
        """
        pattern = f"{self.family}*"
        listed = await ask_directly(connection, "FUNCTION", "LIST", "LIBRARYNAME", pattern)
        there = {dict(zip(one[::2], one[1::2], strict=True))[b"library_name"] for one in listed}
        names = {name.decode() for name in there}
        others = sorted(name for name in names if not name.startswith(self._names))
        if others:
            raise EngineStartError(
                f"function library of server {server}: read {', '.join(others)}; allowed: "
                f"{self._names}*. Another version of Penstock uses this server. FUNCTION DELETE "
                "removes its library where no program of that version runs any more"
            )
        if self.name not in names:
            try:
                await ask_directly(connection, "FUNCTION", "LOAD", self.source())
            except ResponseError as error:  # another program may have been faster
                if "already exists" not in str(error):
                    raise


@cache
def _text(package: str) -> str:
    """Return the text of a library.

    It is read once: an upgrade on the disk must not keep a running program from its servers.
    """
    return files(package).joinpath("library.lua").read_text(encoding="utf-8")
