"""How a plugin has its routes for operators served by the console, which knows who they are."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from aiohttp import web

Role: TypeAlias = Literal["viewer", "admin"]
"""What an operator may do: a viewer reads, an admin acts."""


class Operator(NamedTuple):
    """Who sends a request to the console.

    Attributes:
        name: the user or the name of the token; "" without login.
        role: None where the caller must log in first.
    """

    name: str
    role: Role | None


OPERATOR: Final[web.RequestKey[Operator]] = web.RequestKey("operator")
"""Key of each request that the console passes on: its `Operator`, whose role is not None."""


@runtime_checkable
class ServesOperators(Protocol):
    """A plugin with routes for operators."""

    def operator_routes(self) -> web.Application:
        """Return the routes, to be served below ``/api``; they find out the role by `OPERATOR`.

        The application is another one at each call.
        """
