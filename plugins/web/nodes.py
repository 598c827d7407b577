"""How a plugin tells the console of other nodes, which are one with this program to operators."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

Part: TypeAlias = Callable[..., Awaitable[Any]]
"""Answers a question of another node: arguments and answer are what JSON has."""


class Mailbox(NamedTuple):
    """What waits for a session outside of all nodes.

    Attributes:
        messages: that wait.
        bytes: of them.
        away_seconds: since when its client has no connection; None while it has one.
        expires_seconds: until the session ends; None where it does not.
        filters: its topic filters.
    """

    messages: int
    bytes: int
    away_seconds: float | None
    expires_seconds: float | None
    filters: Sequence[str] = ()


class Nodes(Protocol):
    """Several programs that work as one; each is a node.

    Attributes:
        node: name of this one.
        kept: clients whose sessions outlive their connection, at whichever node or away.
    """

    node: str
    kept: Collection[str]

    def serve(self, parts: Mapping[str, Part], url: str, joined: Part) -> None:
        """Answer other nodes from now on.

        Args:
            parts: by the name of the question.
            url: of the console; "" where it does not listen.
            joined: is told of each node that joins.
        """

    @property
    def others(self) -> Sequence[str]:
        """The other nodes."""

    @property
    def workers(self) -> Sequence[str]:
        """Those of them that this program's ``/metrics`` tells of as well."""

    @property
    def silent(self) -> Mapping[str, str]:
        """Those that did not answer when they were asked last, each with the reason."""

    async def ask(self, nodes: Iterable[str], part: str, *args: Any) -> dict[str, Any]:
        """Return what nodes answer within a second; see `silent` for the others."""

    async def ask_one(self, node: str, part: str, *args: Any) -> Any:
        """Return what a node answers.

        Raises:
            RequestError: it does not answer, or refuses.
        """

    async def find(self, client_id: str) -> tuple[str, Mailbox | None]:
        """Return which node has a client, "" for none; and its mailbox.

        Raises:
            RequestError: that cannot be found out now.
        """

    async def end_away(self, client_id: str) -> None:
        """End a session whose client has no connection.

        Raises:
            PenstockError: it cannot be done now.
        """


@runtime_checkable
class HasNodes(Protocol):
    """A plugin by which this program is one of several nodes; None where it is not."""

    nodes: Nodes | None
