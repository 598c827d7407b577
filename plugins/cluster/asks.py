"""What nodes ask each other for operators: the `penstock.plugins.web.nodes.Nodes` of a node.

Theory of operation. A question is a note to each node that is asked, and so is the answer: both are
read however many messages wait. The console bounds what an answer has. Where no answer comes within
a second, or an error, the node is `silent` until it answers again, or has left.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from logging import Logger
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.errors import PenstockError
from penstock.plugins.redis.errors import StorageError
from penstock.plugins.web.nodes import Mailbox as FoundMailbox
from penstock.plugins.web.nodes import Nodes, Part
from penstock.plugins.web.service import RequestError

if TYPE_CHECKING:
    from penstock.plugins.cluster.engine import ClusterEngine
    from penstock.plugins.cluster.mail_routes import Mailbox
    from penstock.plugins.cluster.notes import Notes

QUESTION: Final = "question"
"""A note: the run of the program that asks, the number of the question in that, the name of what
answers, and the arguments of that."""
ANSWER: Final = "answer"
"""A note: run and number of the question, a status as of HTTP, and what is answered."""
ANSWER_SECONDS: Final = 1.0
_OK: Final = 200


class Asks(Nodes):
    """Asks other nodes, and answers them.

    Args:
        engine: of this node.
        notes: carries questions and answers.
        infos: what each other node tells of itself, as JSON.
        machine: what nodes have in common whose metrics are shown together.
        kept: the mailboxes of clients.
        end_kept: ends a session whose client is away.
        begin: does something in the background, by a name.
        logger: gets faults.

    Attributes:
        url: of this node's console; "" for none.
    """

    def __init__(
        self,
        engine: ClusterEngine,
        notes: Notes,
        infos: Mapping[str, str],
        machine: str,
        kept: Mapping[str, Mailbox],
        end_kept: Callable[[str], Awaitable[None]],
        begin: Callable[..., None],
        logger: Logger,
    ) -> None:
        self.node = engine.node
        self.kept = kept
        self.url = ""
        self._engine = engine
        self._notes = notes
        self._infos = infos
        self._machine = machine
        self._end_kept = end_kept
        self._begin = begin
        self._logger = logger
        self._parts: Mapping[str, Part] = {}
        self._tell_joined: Part | None = None
        self._run = secrets.token_hex(8)
        self._heard: dict[tuple[str, str], int] = {}
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[tuple[int, Any]]] = {}
        self._silent: dict[str, str] = {}
        notes.heard[QUESTION] = self._asked
        notes.heard[ANSWER] = self._answered

    # -- other nodes -------------------------------------------------------------------------------

    @property
    def others(self) -> Sequence[str]:
        """The other nodes."""
        return sorted(self._infos)

    @property
    def workers(self) -> Sequence[str]:
        """Those of this machine that have this node's policy file."""
        machines = {node: json.loads(info).get("machine") for node, info in self._infos.items()}
        return sorted(node for node, machine in machines.items() if machine == self._machine)

    @property
    def silent(self) -> Mapping[str, str]:
        """Those that did not answer when they were asked last, each with the reason."""
        return dict(sorted(self._silent.items()))

    async def ask(self, nodes: Iterable[str], part: str, *args: Any) -> dict[str, Any]:
        """Return what nodes answer within a second; see `Nodes`."""
        found = await self._ask(nodes, part, args)
        for node, (status, answer) in found.items():
            if status != _OK:
                self._silent[node] = str(answer).removeprefix(f"node {node}: ")
        return {node: answer for node, (status, answer) in found.items() if status == _OK}

    async def ask_one(self, node: str, part: str, *args: Any) -> Any:
        """Return what a node answers; see `Nodes`."""
        found = await self._ask([node], part, args)
        if node not in found:
            raise RequestError(
                f"node {node}: it does not answer; what was asked for may be done later", 503
            )
        status, answer = found[node]
        if status != _OK:
            raise RequestError(str(answer), status)
        return answer

    async def _ask(
        self, nodes: Iterable[str], part: str, args: Sequence[Any]
    ) -> dict[str, tuple[int, Any]]:
        loop, waiting = asyncio.get_running_loop(), self._waiting
        self._silent = {n: why for n, why in self._silent.items() if n in self._infos}
        asked: dict[str, int] = {}
        for node in nodes:
            number = asked[node] = next(self._numbers)
            waiting[number] = loop.create_future()
            self._notes.tell(node, QUESTION, self._run, number, part, args)
        answers = {node: waiting[number] for node, number in asked.items()}
        try:
            if answers:
                await asyncio.wait(answers.values(), timeout=ANSWER_SECONDS)
        finally:
            for number in asked.values():
                del waiting[number]
        for node, answer in answers.items():
            if answer.done():
                self._silent.pop(node, None)
            else:
                self._silent[node] = "it does not answer"
        return {node: answer.result() for node, answer in answers.items() if answer.done()}

    def _answered(self, _node: str, run: str, number: int, status: int, answer: Any) -> None:
        waiting = self._waiting.get(number) if run == self._run else None
        if waiting is not None and not waiting.done():
            waiting.set_result((status, answer))

    # -- clients -----------------------------------------------------------------------------------

    async def find(self, client_id: str) -> tuple[str, FoundMailbox | None]:
        """Return which node has a client, and its mailbox; see `Nodes`."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                owner, box = await self._engine.find(client_id)
        except (StorageError, TimeoutError) as error:
            raise RequestError(
                f"client: the engine does not say which node has it: {error}", 503
            ) from error
        known = self.kept.get(client_id)
        if box is not None and known is not None:
            box = box._replace(filters=list(known.filters))
        return "" if owner is None else owner.node, box

    async def end_away(self, client_id: str) -> None:
        """End a session whose client has no connection; see `Nodes`."""
        await self._end_kept(client_id)

    # -- answers -----------------------------------------------------------------------------------

    def serve(self, parts: Mapping[str, Part], url: str, joined: Part) -> None:
        """Answer other nodes from now on; see `Nodes`."""
        self._parts, self.url, self._tell_joined = parts, url, joined

    def joined(self, node: str) -> None:
        """Take note of a node that has joined."""
        if self._tell_joined is not None:
            self._begin("joined", self._tell_joined, node)

    def _asked(self, node: str, run: str, number: int, part: str, args: Sequence[Any]) -> None:
        if number > self._heard.get((node, run), 0):  # notes may come again
            self._heard[node, run] = number
            self._begin("answer", self._answer, node, run, number, part, args)

    async def _answer(
        self, node: str, run: str, number: int, part: str, args: Sequence[Any]
    ) -> None:
        answers: Part = self._parts.get(part, self._lacks)
        try:
            status, answer = _OK, await answers(*args)
        except PenstockError as error:
            status, answer = getattr(error, "status", 400), str(error)
        except Exception:
            self._logger.exception("node %s has asked for %s", node, part)
            status, answer = 500, f"node {self.node}: it has failed; its log says why"
        self._notes.tell(node, ANSWER, run, number, status, answer)

    async def _lacks(self, *_: Any) -> None:
        raise RequestError(f"node {self.node}: its policy file has no plugin console", 503)
