"""Which node has a client: one at most, by the rows of the engine.

Theory of operation. The rules are those of ``docs/explanation/cluster.md``, where a model has
checked them in all states of small cases; `tests/cluster/test_ownership_model.py` names the steps.
A client whose owner is this node costs the engine nothing when it connects, unless the node may
have been evicted meanwhile: then another one may have had the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.errors import PenstockError
from penstock.broker.extensions import SessionOwner
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.session_rows import Stored
from penstock.plugins.cluster.engine import ClusterEngine, FencedError, Row
from penstock.plugins.redis.calls import heed
from penstock.plugins.redis.errors import StorageError

if TYPE_CHECKING:
    from penstock.plugins.cluster.announcer import Announcer
    from penstock.plugins.cluster.mail_sessions import KeptSessions
    from penstock.plugins.cluster.notes import Notes
    from penstock.plugins.cluster.routes import OtherRoutes

CLAIM_SECONDS: Final = 10.0
"""How long a client that connects waits for the node that has it; by then a dead one is evicted."""
ASK_SECONDS: Final = 2.0
"""The interval at which an owner that does not answer is asked again."""
_LOOK_SECONDS: Final = 0.05
_MOST_AT_ONCE: Final = 100
"""Sessions that are claimed or ended before others have their turn."""

ASK: Final = "ask"
"""A note: let go of a client. Its Client Identifier, the row, the claim that it is for, and whether
its session ends."""
RELEASED: Final = "released"
"""The answer, with the first three of them."""

Release = Callable[..., None]
"""See `LocalClients.release`."""


class NotOwnedError(PenstockError):
    """A client cannot be had, as another node has it or the engine cannot be asked."""


def _unanswered(client_id: str, who: str) -> NotOwnedError:
    return NotOwnedError(f"client {client_id}: no answer from {who} for {CLAIM_SECONDS:g} s")


class _Claim:
    """A claim under way.

    Attributes:
        row: what is claimed.
        clean_start: whether an earlier session of the client ends.
        owner: the row that stands in the way; None while the engine is asked.
        displaced: `owner`, once it has let go; else None.
        asked: nodes that have asked for `row` meanwhile, each with its claim.
        is_over: is set when `owner` has let go, or has ended.
        task: does it.
    """

    __slots__ = ("asked", "clean_start", "displaced", "is_over", "owner", "row", "task")

    def __init__(self, row: Row, *, clean_start: bool) -> None:
        self.row = row
        self.clean_start = clean_start
        self.owner: Row | None = None
        self.displaced: Row | None = None
        self.asked: list[tuple[str, Row]] = []
        self.is_over = asyncio.Event()
        self.task: asyncio.Task[Stored | None] | None = None


class Owners(SessionOwner):
    """Claims clients for this node, and lets go of them.

    Args:
        engine: of this node.
        routes: knows the other members.
        announcer: knows which subscriptions hold everywhere.
        is_certain: says whether this node is a member beyond doubt.
        notes: asks other nodes.
        mail: has the kept sessions of this node.
        release: ends what this node has of a client.
        has_unloaded: is given each client whose kept session this node has no more.

    Attributes:
        owned: the clients that this node has, with the number of each claim.
        unclaimed: clients whose sessions are here, and that `claim_again` is to claim.
        n_taken: clients that another node had.
        n_given: clients that another node has taken.
    """

    def __init__(
        self,
        engine: ClusterEngine,
        routes: OtherRoutes,
        announcer: Announcer,
        is_certain: Callable[[], bool],
        notes: Notes,
        mail: KeptSessions,
        release: Release,
        has_unloaded: Callable[[str], None],
    ) -> None:
        self.owned: dict[str, int] = {}
        self.unclaimed: list[str] = []
        self.n_taken = 0
        self.n_given = 0
        self._announcer = announcer
        self._is_certain = is_certain
        self._engine = engine
        self._routes = routes
        self._notes = notes
        self._mail = mail
        self._release = release
        self._has_unloaded = has_unloaded
        self._claims: dict[str, _Claim] = {}
        self._letting_go: dict[str, dict[tuple[str, Row], list[object]]] = {}
        self._number = 0
        notes.heard[ASK] = self._asked
        notes.heard[RELEASED] = self._released

    # -- claims ------------------------------------------------------------------------------------

    def claim(self, client_id: str, *, clean_start: bool) -> Awaitable[Stored | None] | None:
        """Make this node the owner of a client; see `SessionOwner`."""
        if client_id in self.owned:
            is_on_way = client_id in self._mail.sessions and not self._mail.is_loaded(client_id)
            return None if self._is_certain() and not is_on_way else self._still_own(client_id)
        claim = self._claims.get(client_id)
        if claim is None:
            claim = self._claims[client_id] = _Claim(self._next_row(), clean_start=clean_start)
            claim.task = asyncio.create_task(self._run(client_id, claim))
            claim.task.add_done_callback(heed)  # its client may have gone
        assert claim.task is not None  # noqa: S101 (it is made with the claim)
        return self._wait(client_id, claim.task)

    async def _still_own(self, client_id: str) -> None:
        """Wait until this node is a member beyond doubt: what it has of a client may be of old.

        Raises:
            NotOwnedError: the engine has not answered, or this node's epoch has ended.
        """
        try:
            async with asyncio.timeout(CLAIM_SECONDS):
                while not self._is_certain():  # noqa: ASYNC110 (time is a part of it)
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError as error:
            raise _unanswered(client_id, "the engine") from error
        await asyncio.sleep(0)  # the session may be on its way to the broker
        if client_id not in self.owned:
            raise NotOwnedError(f"client {client_id}: this node was taken for dead")

    async def _wait(self, client_id: str, task: asyncio.Task[Stored | None]) -> Stored | None:
        """Wait for a claim; the session is opened in the step in which this ends.

        Raises:
            NotOwnedError: the client cannot be had, or was asked for meanwhile.
        """
        stored = await asyncio.shield(task)
        if client_id not in self.owned:
            raise NotOwnedError(f"client {client_id}: another node has taken it")
        if stored is None or self._mail.is_loaded(client_id):
            return None
        asyncio.get_running_loop().call_soon(self._opened, client_id)
        return stored

    def _opened(self, client_id: str) -> None:
        """Let go of a session whose client has gone before the broker had it."""
        if client_id in self._mail.sessions and not self._mail.is_loaded(client_id):
            self.unloaded(client_id)

    def routed(self) -> Awaitable[None] | None:
        """Wait until subscriptions hold on every node; see `SessionOwner`."""
        return self._announcer.routed()

    def _next_row(self) -> Row:
        self._number += 1
        return Row(self._engine.node, self._engine.epoch, self._number)

    async def _run(self, client_id: str, claim: _Claim) -> Stored | None:
        """Claim a client; return its session, where it is to be resumed.

        Raises:
            NotOwnedError: it cannot be had.
        """
        try:
            async with asyncio.timeout(CLAIM_SECONDS):
                origin = await self._get(client_id, claim)
                stored = None
                if origin and claim.clean_start:
                    self._mail.discard(client_id, claim.row, origin)
                elif origin and not claim.asked:
                    stored = await self._mail.load(client_id, claim.row)
        except TimeoutError as error:
            owner = "the engine" if claim.owner is None else f"node {claim.owner.node}"
            raise _unanswered(client_id, owner) from error
        except StorageError as error:
            raise NotOwnedError(f"client {client_id}: {error}") from error
        else:
            if claim.asked or claim.row.epoch != self._engine.epoch:
                self._mail.unloaded(client_id)
                raise NotOwnedError(f"client {client_id}: another node has taken it")
            self.owned[client_id] = claim.row.number
            return stored
        finally:
            del self._claims[client_id]
            if client_id not in self.owned:  # else its session would not expire
                self._let_go(client_id, claim.row)
            for node, claimant in claim.asked:
                self._notes.tell(node, RELEASED, client_id, claim.row, claimant)

    async def _get(self, client_id: str, claim: _Claim) -> str:
        """Return the origin of the client's kept session; "" for none.

        Raises:
            NotOwnedError: this node's epoch has ended meanwhile: the client may be elsewhere.
        """
        while not self._is_certain():  # noqa: ASYNC110 (time is a part of it)
            await asyncio.sleep(_LOOK_SECONDS)
        if claim.row.epoch != self._engine.epoch:
            raise NotOwnedError(f"client {client_id}: this node was taken for dead")
        has_waited = False
        while True:
            claim.row = self._next_row()
            found, origin = await self._engine.claim(client_id, claim.row, claim.displaced)
            if found[:2] == claim.row[:2]:
                self.n_taken += has_waited
                return origin
            claim.owner, claim.displaced = found, None
            await self._wait_for(client_id, claim, found)
            claim.owner = None
            has_waited = True

    async def _wait_for(self, client_id: str, claim: _Claim, owner: Row) -> None:
        """Wait until an owner has let go, or has ended."""
        while claim.displaced is None:
            there = self._routes.members.get(owner.node)
            if there is None or there.epoch != owner.epoch:
                if not await self._engine.is_over(owner.node, owner.epoch):
                    # It has just joined. Or its row goes, once nothing counts that it still sends.
                    # Thousands may wait for that: the more there are, the less often each looks.
                    await asyncio.sleep(_LOOK_SECONDS * (1 + len(self._claims) / _MOST_AT_ONCE))
                    return
                claim.displaced = owner
                return
            claim.is_over.clear()
            self._notes.tell(owner.node, ASK, client_id, owner, claim.row, claim.clean_start)
            with suppress(TimeoutError):
                async with asyncio.timeout(ASK_SECONDS):
                    await claim.is_over.wait()

    def left(self, node: str, epoch: int) -> None:
        """Take note that an epoch of a node has ended: nobody waits for it."""
        for claim in self._claims.values():
            if claim.owner is not None and claim.owner[:2] == (node, epoch):
                claim.is_over.set()

    # -- other nodes -------------------------------------------------------------------------------

    def _asked(
        self,
        node: str,
        client_id: str,
        row: list[object],
        claimant: list[object],
        ends: bool,  # noqa: FBT001 (as in the note)
    ) -> None:
        """Let go of a client, where this node has it by that row; answer in any case."""
        asked, by = Row._make(row), Row._make(claimant)
        claim = self._claims.get(client_id)
        if claim is not None and claim.row == asked:
            if (node, by) not in claim.asked:
                claim.asked.append((node, by))
            return
        number = self.owned.get(client_id)
        if asked.epoch == self._engine.epoch and (number is None or number <= asked.number):
            if client_id in self._mail.sessions:
                answers = self._letting_go.setdefault(client_id, {})
                answers[node, by] = row
                if self._mail.is_loaded(client_id):
                    self._release(client_id, ReasonCode.SESSION_TAKEN_OVER, ends=ends)
                else:
                    self.unloaded(client_id)
                return
            if self.owned.pop(client_id, None) is not None:
                self.n_given += 1
            self._release(client_id, ReasonCode.SESSION_TAKEN_OVER)
        self._notes.tell(node, RELEASED, client_id, row, claimant)

    def _released(
        self, node: str, client_id: str, row: list[object], claimant: list[object]
    ) -> None:
        """Take note that an owner has let go."""
        claim, owner, by = self._claims.get(client_id), Row._make(row), Row._make(claimant)
        if claim is not None and (claim.owner, claim.row, node) == (owner, by, owner.node):
            claim.displaced = owner
            claim.is_over.set()

    # -- sessions ----------------------------------------------------------------------------------

    def keeps(self, client_id: str, expiry_interval: float | None) -> bool:
        """Say whether a new session is kept; see `SessionOwner`."""
        number = self.owned.get(client_id)
        if expiry_interval == 0 or number is None:
            return False
        self._mail.begin(client_id, Row(self._engine.node, self._engine.epoch, number))
        return True

    def unloaded(self, client_id: str) -> None:
        """Let go of a kept session that the broker has no more."""
        self._mail.unloaded(client_id)
        self._has_unloaded(client_id)
        self.ended(client_id)

    async def end_kept(self, client_id: str) -> None:
        """End the session of a client that has no connection.

        Raises:
            NotOwnedError: that cannot be done now.
        """
        claim = self.claim(client_id, clean_start=True)
        if claim is not None:
            await claim
        await asyncio.sleep(0)  # the client may have come meanwhile, by the same claim
        if not self._mail.is_loaded(client_id):
            self.ended(client_id)

    def ended(self, client_id: str) -> None:
        """Let go of a client: its session has ended, or waits in the engine."""
        number = self.owned.pop(client_id, None)
        if number is not None:
            self._let_go(client_id, Row(self._engine.node, self._engine.epoch, number))

    def _let_go(self, client_id: str, row: Row) -> None:
        call = self._engine.release(client_id, row)
        call.add_done_callback(partial(self._has_let_go, client_id))

    def _has_let_go(self, client_id: str, call: asyncio.Future[Any]) -> None:
        """Answer who has asked for a kept session; where the engine is away, it asks again."""
        heed(call)
        answers = self._letting_go.pop(client_id, {})
        self.n_given += bool(answers)
        for (node, claimant), row in answers.items():
            self._notes.tell(node, RELEASED, client_id, row, claimant)

    async def claim_again(self) -> None:
        """Claim `unclaimed` sessions; end those that another node has."""
        while self.unclaimed:
            some = self.unclaimed[-_MOST_AT_ONCE:]
            try:
                await asyncio.gather(*map(self._claim_again, some))
            except FencedError:
                return
            except StorageError:
                await asyncio.sleep(ASK_SECONDS)
            else:
                del self.unclaimed[-_MOST_AT_ONCE:]

    async def _claim_again(self, client_id: str) -> None:
        if client_id in self._claims or client_id in self.owned:
            return
        row = self._next_row()
        found, _ = await self._engine.claim(client_id, row, None)
        if client_id in self._claims or client_id in self.owned:
            return  # it has connected meanwhile
        if found == row:
            self.owned[client_id] = row.number
        else:
            self._release(client_id, ReasonCode.SESSION_TAKEN_OVER)

    async def fenced(self, *, keeps_sessions: bool) -> None:
        """Own no client any more; end all sessions, or have clean ones claimed again."""
        clients = list(self.owned)
        self.owned.clear()
        self._letting_go.clear()
        self.unclaimed = []
        if keeps_sessions:
            self.unclaimed = [one for one in clients if one not in self._mail.sessions]
            clients = list(self._mail.sessions)
        for number, client_id in enumerate(clients, 1):
            if client_id in self._mail.sessions:
                self._mail.lost(client_id)
            self._release(client_id, ReasonCode.SERVER_SHUTTING_DOWN)
            if not number % _MOST_AT_ONCE:
                await asyncio.sleep(0)

    async def close(self, *, gives_up: bool) -> None:
        """End what is under way, and give all clients up, unless who inherits from it does so."""
        for client_id in list(self.owned) if gives_up else ():
            self.ended(client_id)
        tasks = [claim.task for claim in self._claims.values() if claim.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
