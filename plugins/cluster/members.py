"""The nodes of a cluster: this one joins and says that it lives, and follows what the others do.

Theory of operation. A member beats once a second. Whoever learns that another's beats have stopped
evicts it, once its own beats have been answered for so long that the others had the time to beat,
too: after the engine was away, or another server has taken over, all seem silent. The state of the
engine is read while it changes, and then the stream of changes from where that began (see
`routes`). Each entry names the one before it: who has missed some, as the stream is cut, or a
failover has lost its end, reads the state anew. So does each node that has lost its connection:
another server may have taken over, or the same one may have started again, and changes that were
lost before anybody had read them leave no gap.

A node that hears that its own epoch has ended was taken for dead. It ends its sessions, as others
may have these clients by now, and joins anew. Where the engine has lost its data, all nodes hear
so: they keep their sessions, and claim their clients again.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from logging import Logger
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.plugins.cluster.engine import ALIVE_SECONDS, Beat, ClusterEngine, FencedError
from penstock.plugins.cluster.mail_routes import MARK
from penstock.plugins.cluster.routes import OtherRoutes
from penstock.plugins.redis.errors import EngineStartError, StorageError
from penstock.plugins.redis.stream_reader import FROM_START

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

T = TypeVar("T")

BEAT_SECONDS: Final = 1.0
STEADY_SECONDS: Final = ALIVE_SECONDS + 2.0
"""Beats of this node have been answered in time for so long before it evicts another."""
_LATE_SECONDS: Final = 1.5
_JOIN_SECONDS: Final = ALIVE_SECONDS + 2.0
"""For so long a node that starts waits for the end of a member with its name: it was that itself,
and was killed."""
_RETRY_SECONDS: Final = 0.25
_MOST_ENTRIES: Final = 500


async def _nothing(*_: object) -> None:
    """Nobody listens."""


@dataclass(slots=True)
class Listener:
    """What is called with the news of other nodes; as it is, nothing happens.

    Attributes:
        beaten: the number of this node's newest change that the engine has.
        joined: node and epoch.
        told: a node tells something else of itself.
        left: node and epoch; its routes are over.
        applied: node, its epoch and number: its changes up to there are taken.
        kept: a change of a kept session: name and value, of any node; see `mail_routes`.
        all_kept: is given all that is known of kept sessions, in place of what was there.
        retained: topic, data (b"" for a clear), and whether this node has set it itself.
        all_retained: is given all retained messages, in place of what was there.
        duty: does what has to be done once for an ended member: node and epoch.
        fenced: ends what belongs to the epoch that has ended; its sessions, too, unless it is
            given True: the engine has lost its data.
        joined_anew: this node has another epoch, after `fenced`.
    """

    beaten: Callable[[int], None] = lambda _: None
    joined: Callable[[str, int], None] = lambda *_: None
    told: Callable[[str], None] = lambda _: None
    left: Callable[[str, int], None] = lambda *_: None
    applied: Callable[[str, int, int], None] = lambda *_: None
    kept: Callable[[str, str], None] = lambda *_: None
    all_kept: Callable[[Sequence[tuple[str, str]]], Awaitable[None]] = _nothing
    retained: Callable[[str, bytes, bool], None] = lambda *_: None
    all_retained: Callable[[AsyncIterator[list[tuple[str, bytes]]]], Awaitable[None]] = _nothing
    duty: Callable[[str, int], Awaitable[None]] = _nothing
    fenced: Callable[[bool], Awaitable[None]] = _nothing
    joined_anew: Callable[[], None] = lambda: None


class Members:
    """Joins, beats and follows.

    Args:
        engine: of this node.
        routes: gets the routes of the others.
        listener: gets their news.
        info: what this node tells of itself, as JSON.
        clock: returns monotonic seconds.
        logger: gets what happens to nodes.

    Attributes:
        infos: what each other member tells of itself, as JSON.
        own_number: the number of this node's newest change that was read from the stream.
        n_snapshots: how often the state was read.
        is_steady: whether beats are answered in time.
        failure: why none is taken; "" where they are, or where the engine cannot be reached.
    """

    def __init__(
        self,
        engine: ClusterEngine,
        routes: OtherRoutes,
        listener: Listener,
        info: str,
        clock: Callable[[], float],
        logger: Logger,
    ) -> None:
        self.infos: dict[str, str] = {}
        self.own_number = 0
        self.n_snapshots = 0
        self.is_steady = False
        self.failure = ""
        self._engine = engine
        self._routes = routes
        self._listener = listener
        self._info = info
        self._clock = clock
        self._logger = logger
        self._after = FROM_START
        self._announced = b""
        self._is_behind = False
        self._has_caught_up = asyncio.Event()
        self._has_taken: asyncio.Future[None] | None = None
        self._may_follow = asyncio.Event()
        self._steady_since = self._beaten_at = clock()
        self._n_changes = 0
        self._ahead = 0.0
        self._duties: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None

    # -- this node ---------------------------------------------------------------------------------

    async def join(self) -> None:
        """Become a member whom others do not see yet.

        Raises:
            EngineStartError: another node has this name.
            StorageError: the engine cannot be asked, or refuses.
        """
        give_up_at = self._clock() + _JOIN_SECONDS
        token = secrets.token_hex(8)
        while True:
            engine = self._engine
            known = (there.epoch for there in self._routes.members.values())
            joined = await engine.join(token, 1 + max(engine.epoch, *known, 0))
            if joined.state == "joined":
                break
            if joined.state == "dead":
                await engine.evict(engine.node, joined.epoch)
            elif self._clock() >= give_up_at:
                there = json.loads(joined.info or "{}")
                where = f"process {there.get('process')} on host {there.get('host')}"
                raise EngineStartError(
                    f"node {engine.node} of cluster {engine.cluster}: another broker has this name "
                    f"and lives: {where if there else 'it has just joined'}; allowed: a name of "
                    "its own for each broker (cluster.node)"
                )
            else:
                await asyncio.sleep(_RETRY_SECONDS)
        self.own_number = 0
        self._is_behind = True
        self._announced = b""
        self._has_caught_up.clear()
        self._steady_since = self._beaten_at = self._clock()

    @property
    def is_certain(self) -> bool:
        """Whether this node is a member beyond doubt, and knows what the others have.

        A process that stood still may have been evicted meanwhile.
        """
        is_fresh = self._clock() - self._beaten_at < ALIVE_SECONDS
        return is_fresh and self._has_caught_up.is_set()

    def start(self) -> None:
        """Begin to beat."""
        self._task = asyncio.create_task(self._run(), name="penstock-cluster members")

    async def announce(self) -> None:
        """Follow what others do, and show this node to them; wait until it knows what they have.

        Raises:
            FencedError: this node is no member any more.
        """
        self._may_follow.set()
        announce = partial(self._engine.announce, self._info)
        self._announced = await self._insist("this node waits for its engine", announce)
        self._look_whether_caught_up()
        await self._has_caught_up.wait()

    async def _insist(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask the engine until it answers.

        Raises:
            FencedError: this node is no member any more.
        """
        told = ""
        while True:
            try:
                return await ask()
            except FencedError:
                raise
            except StorageError as error:
                if str(error) != told:  # it may be hours
                    self._logger.warning("%s: %s", what, error)
                told = str(error)
                await asyncio.sleep(BEAT_SECONDS)

    async def tell(self, info: str) -> None:
        """Tell something else of this node.

        Raises:
            StorageError: the engine cannot be asked, or refuses.
        """
        self._info = info
        await self._engine.announce(info)

    async def catch_up(self) -> None:
        """Wait until all is taken that others have changed by now.

        Raises:
            StorageError: the engine cannot be asked.
        """
        last, _ = await self._engine.last_change()
        while order(self._after) < order(last):
            if self._has_taken is None:
                self._has_taken = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._has_taken)

    def _look_whether_caught_up(self) -> None:
        if self._announced and order(self._after) >= order(self._announced):
            self._has_caught_up.set()
        if self._has_taken is not None:
            self._has_taken.set_result(None)
            self._has_taken = None

    async def close(self, heir: str = "") -> None:
        """Leave; may be called again.

        Args:
            heir: the node that does what this one has left to do; "" where that is nothing.
        """
        tasks = list(self._duties.values())
        if self._task is not None:
            tasks.append(self._task)
            self._task = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._engine.epoch and self._engine.failure is None:
            try:
                async with asyncio.timeout(BEAT_SECONDS):
                    await self._engine.leave(heir)
            except (StorageError, TimeoutError) as error:
                self._logger.warning("this node could not leave, and is evicted: %s", error)

    async def _run(self) -> None:
        while True:
            tasks = [asyncio.create_task(self._beat()), asyncio.create_task(self._follow())]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            errors = [task.exception() for task in done]
            if any(isinstance(error, FencedError) for error in errors):
                await self._start_anew()
            else:
                self._logger.error("a fault; the state is read anew", exc_info=errors[0])
                self._is_behind = True
                await asyncio.sleep(BEAT_SECONDS)

    async def _start_anew(self) -> None:
        """Join again after the epoch has ended."""
        self.is_steady = False
        self._has_caught_up.clear()
        try:
            has_forgotten = await self._engine.has_forgotten()
        except StorageError:
            has_forgotten = False
        if has_forgotten:
            self._logger.error("the engine has lost its data: this node joins anew")
        else:
            self._logger.error(
                "this node was taken for dead: it ends the sessions of its clients, and joins anew"
            )
            for duty in self._duties.values():
                duty.cancel()  # they are another node's by now
        await self._listener.fenced(has_forgotten)
        told = ""
        while True:
            try:
                await self.join()
                self._announced = await self._engine.announce(self._info)
                break
            except (StorageError, EngineStartError) as error:
                if str(error) != told:
                    self._logger.warning("this node cannot join: %s", error)
                told = str(error)
                await asyncio.sleep(BEAT_SECONDS)
        self._listener.joined_anew()

    async def _beat(self) -> None:
        """Beat, and evict members that have stopped to.

        Raises:
            FencedError: this node is no member any more.
        """
        while True:
            sent_at = self._clock()
            try:
                beat = await self._engine.beat()
            except FencedError:
                raise
            except StorageError as error:
                self._steady_since = self._clock()
                self.is_steady = False
                if self._engine.failure is None:
                    if not self.failure:
                        self._logger.error("the engine takes no beat of this node: %s", error)  # noqa: TRY400 (a state)
                    self.failure = str(error)
            else:
                if self.failure:
                    self._logger.info("the engine takes beats of this node again")
                    self.failure = ""
                await self._take_beat(beat, sent_at)
            await asyncio.sleep(max(0.0, sent_at + BEAT_SECONDS - self._clock()))

    async def _take_beat(self, beat: Beat, sent_at: float) -> None:
        now = self._clock()
        self._beaten_at = sent_at
        self.is_steady = now - sent_at <= _LATE_SECONDS
        n_changes, self._n_changes = self._n_changes, self._engine.calls.routes.n_changes
        has_changed = n_changes != self._n_changes
        ahead, self._ahead = self._ahead, beat.time - now
        has_stepped = abs(self._ahead - ahead) > _LATE_SECONDS  # all seem silent by such a clock
        if not self.is_steady or has_changed or has_stepped:
            self._steady_since = now
        if has_changed or order(beat.last_change) < order(self._after):
            self._is_behind = True
        self._listener.beaten(beat.number)
        if now - self._steady_since < STEADY_SECONDS:
            return
        for node, epoch in beat.silent:
            try:
                if await self._engine.evict(node, epoch):
                    self._logger.warning("node %s has stopped beating, and is evicted", node)
            except StorageError as error:
                self._logger.warning("node %s cannot be evicted: %s", node, error)

    # -- the others --------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Take what the others do.

        Raises:
            FencedError: this node is no member any more.
        """
        await self._may_follow.wait()
        reader = self._engine.reader(f"{self._engine.base}:changes")
        try:
            while True:
                if self._is_behind:
                    await self._insist("the state cannot be read", self._read_state)
                entries = await reader.read(self._after, _MOST_ENTRIES)
                applied: dict[tuple[str, int], int] = {}
                for identifier, fields in entries:
                    if fields[1] != self._after:
                        self._is_behind = True
                        break
                    await self._take(fields, applied)
                    self._after = identifier
                for (node, epoch), number in applied.items():
                    self._listener.applied(node, epoch, number)
                self._look_whether_caught_up()
                await asyncio.sleep(0)
        finally:
            await reader.close()

    async def _take(self, fields: Sequence[bytes], applied: dict[tuple[str, int], int]) -> None:
        """Take one change; note by node and epoch which one of its routes it was."""
        kind, node, epoch = fields[0], fields[2].decode(), int(fields[3])
        is_own = node == self._engine.node
        if kind == b"routes":
            number = int(fields[5])
            names = [name.decode() for name in fields[6::2]]
            ops = list(zip(names, fields[7::2], strict=True))
            for name, value in ops:
                if name.startswith(MARK):
                    self._listener.kept(name, value.decode())
            if is_own:
                if epoch == self._engine.epoch:
                    self.own_number = number
                return
            counts = [(name, int(value)) for name, value in ops if not name.startswith(MARK)]
            self._routes.changed(node, epoch, counts)
            applied[node, epoch] = number
        elif kind in {b"retained", b"large"}:
            topic, data = fields[6].decode(), fields[7]
            if kind == b"large":
                data = await self._engine.retained_of(topic)
            self._listener.retained(topic, data, is_own)
        elif kind == b"join":
            if not is_own:
                self._joined(node, epoch, fields[7].decode())
        elif kind == b"leave":
            self._left(node, epoch)
            if fields[7].decode() == self._engine.node:
                await self._take_duties()

    def _joined(self, node: str, epoch: int, info: str) -> None:
        self._end_older(node, epoch)
        if self._routes.joined(node, epoch):
            self._logger.info("node %s has joined", node)
            self.infos[node] = info
            self._listener.joined(node, epoch)
        elif self.infos.get(node) != info:
            self.infos[node] = info
            self._listener.told(node)

    def _end_older(self, node: str, epoch: int) -> None:
        there = self._routes.members.get(node)
        if there is not None and there.epoch < epoch:
            self._left(node, there.epoch)

    def _left(self, node: str, epoch: int) -> None:
        """Take the end of a member.

        Raises:
            FencedError: it is this node's own.
        """
        if node == self._engine.node and epoch == self._engine.epoch:
            raise FencedError("this node was evicted")
        if self._routes.left(node, epoch):
            self._logger.info("node %s has left", node)
            self.infos.pop(node, None)
            self._listener.left(node, epoch)

    async def _read_state(self) -> None:
        """Read the state of the engine; changes go on from there.

        Raises:
            FencedError: this node is no member any more.
            StorageError: the engine cannot be asked.
        """
        engine, own = self._engine, self._engine.node
        self._is_behind = False
        self.n_snapshots += 1
        after, numbers = await engine.last_change()
        members = await engine.members()
        epoch, _ = members.pop(own, (0, ""))
        if epoch != engine.epoch or not await engine.has_inbox():
            raise FencedError("this node is no member any more, or has no inbox")
        for node, there in list(self._routes.members.items()):
            if node not in members or members[node][0] != there.epoch:
                self._left(node, there.epoch)
        for node, (epoch, info) in members.items():
            if info:
                routes: dict[str, int] = {}
                async for some in engine.routes_of(node):
                    routes.update(some)
                self._joined(node, epoch, info)
                self._routes.replaced(node, epoch, routes)
        kept = [one async for some in engine.sessions() for one in some]
        await self._listener.all_kept(kept)
        await self._listener.all_retained(engine.retained())
        self.own_number = numbers.get(own, 0)
        self._after = after
        for node, there in self._routes.members.items():
            self._listener.applied(node, there.epoch, numbers.get(node, 0))
        await self._take_duties()
        self._look_whether_caught_up()

    # -- duties ------------------------------------------------------------------------------------

    async def _take_duties(self) -> None:
        """Begin what this node has to do for ended members."""
        for node, epoch in await self._engine.duties():
            if (node, epoch) not in self._duties:
                duty = asyncio.create_task(self._do(node, epoch), name=f"penstock-cluster {node}")
                self._duties[node, epoch] = duty

    async def _do(self, node: str, epoch: int) -> None:
        engine, duty = self._engine, self._listener.duty
        what = f"what node {node} has left is not done yet"
        try:
            for step in (engine.seal, engine.sweep_owners, duty, engine.drop, engine.done):
                await self._insist(what, partial(step, node, epoch))
        finally:
            del self._duties[node, epoch]


def order(identifier: bytes) -> tuple[int, int]:
    """Return what identifiers of entries are compared by."""
    time, _, number = identifier.partition(b"-")
    return int(time), int(number)
