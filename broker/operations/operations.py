"""The `Operations` of a broker: what its plugins may show to operators, and do for them."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.broker.errors import PenstockError
from penstock.broker.extensions import LOCAL_CLIENT_PREFIX
from penstock.broker.message import Message
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.size_limit import explained
from penstock.broker.operations.client_rows import (
    report_of,
    row_of,
    subscription_rows,
    waiting_topics,
)
from penstock.broker.operations.draining import drain_clients
from penstock.broker.operations.history import History
from penstock.broker.operations.loop_lag import LoopLag
from penstock.broker.operations.metrics import metrics
from penstock.broker.operations.program import Program
from penstock.broker.operations.retained_rows import content_of, retained_rows
from penstock.broker.operations.tail import Tails
from penstock.broker.process.log_lines import LogLevels
from penstock.broker.reports.totals import Totals

if TYPE_CHECKING:
    from penstock.broker.client_report import ClientReport
    from penstock.broker.counters import Metric
    from penstock.broker.events import Callbacks
    from penstock.broker.operations.tail import OpenTail
    from penstock.broker.operations_contract import (
        Ban,
        BanKind,
        ClientRow,
        Lately,
        Reloaded,
        RetainedContent,
        RetainedRow,
        SubscriptionRow,
        TopicRow,
        UplinkState,
    )
    from penstock.broker.sessions.broker_state import Core
    from penstock.broker.sessions.session import Session

SLICE: Final = 64
"""So many sessions are looked at in one slice, some 0.2 ms with ten subscriptions each."""

Answer = TypeVar("Answer")


class BrokerOperations(LogLevels):
    """The `Operations` that a broker's plugins get.

    What changes something is done in a turn of the driver, so that all that it causes is written.

    Attributes:
        history: what happened to clients lately; None where nobody watches.
        is_draining: no new clients are accepted, and those that are there are disconnected.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin without a broker; `attach` adds its core."""
        self._clock = clock
        self._core: Core
        self._program = Program()
        self._tails: Tails
        self._lag: LoopLag | None = None
        self.history: History | None = None
        self.is_draining = False

    def attach(self, core: Core, program: Program | None = None) -> None:
        """Show and change this core from now on."""
        self._core = core
        self._program = program or self._program
        self._tails = Tails(core)

    def watch(self) -> None:
        """Keep what happened to clients lately, and measure the lag of the loop."""
        if self.history is None:
            self.history = History(self._clock)
            self._lag = LoopLag()

    @property
    def callbacks(self) -> Sequence[Callbacks]:
        """The callbacks that `watch` asks for."""
        return () if self.history is None else (self.history.callbacks,)

    def start(self) -> None:
        """Begin to measure, on the running loop."""
        if self._lag is not None:
            self._lag.start()

    def close(self) -> None:
        """Measure no more, and end all tails."""
        if self._lag is not None:
            self._lag.stop()
        if hasattr(self, "_tails"):
            self._tails.close()

    # -- what is seen -------------------------------------------------------------------------

    def client_ids(self) -> list[str]:
        """Return the Client Identifier of every session, in any order."""
        return self._core.sessions.client_ids()

    def row(self, client_id: str) -> ClientRow | None:
        """Return what a list shows of a client; None where it has no session."""
        session = self._core.sessions.get(client_id)
        return None if session is None else row_of(session, self._clock())

    def report(self, client_id: str) -> ClientReport | None:
        """Return a client's report; None where it has no session and is not remembered."""
        return report_of(self._core, client_id, self._clock())

    def lately(self, client_id: str) -> Sequence[Lately]:
        """Return what happened to a client's last connections, newest first."""
        return () if self.history is None else self.history.of(client_id)

    def proxy(self) -> None:
        """Return nothing: this is a broker."""
        return

    async def metrics(self) -> Sequence[Metric]:
        """Return all figures of the broker and its plugins."""
        totals = Totals(self._core)
        has_more = True
        while has_more:
            has_more = totals.read_some()
            await asyncio.sleep(0)
        return list(
            metrics(
                self._core,
                totals,
                self._program,
                now=self._clock(),
                lag=None if self._lag is None else self._lag.seconds,
                is_draining=self.is_draining,
            )
        )

    async def problems(self) -> Mapping[str, str]:
        """Return what keeps the broker from serving: name to the reason."""
        found = {}
        core, program = self._core, self._program
        if self.is_draining:
            found["draining"] = "clients are being disconnected, and none are accepted"
        elif not program.is_listening():
            found["listeners"] = "not all of them are open"
        journal = core.journal
        if journal is not None and journal.is_failing:
            store = "database" if core.kept is None else "session store"
            found["persistence"] = f"the {store} takes no commits"
        elif journal is not None and journal.is_full:
            found["persistence"] = "the disk has no room for messages"
        for name, plugin in program.plugins.items():
            why = await core.guard.wait_for(plugin, plugin.problem, otherwise="it has failed")
            if why:
                found[name] = why
        return found

    async def topics(self) -> Sequence[TopicRow]:
        """Return what waits by topic and size class."""
        outboxes = (
            None if session.is_unused else session.outbox for session in self._core.sessions
        )
        return await waiting_topics(outboxes, self._clock)

    async def subscriptions(self, client_id: str | None = None) -> Sequence[SubscriptionRow]:
        """Return the subscriptions of a client, or of all."""
        if client_id is not None:
            session = self._core.sessions.get(client_id)
            return [] if session is None else list(subscription_rows(session))
        rows: list[SubscriptionRow] = []
        async for session in self._sessions():
            rows += subscription_rows(session)
        return rows

    async def _sessions(self) -> AsyncIterator[Session]:
        """Yield all sessions, and let other tasks run in between; some may have ended."""
        for number, session in enumerate(self._core.sessions, 1):
            yield session
            if not number % SLICE:
                await asyncio.sleep(0)

    async def retained(self, topic_filter: str = "#") -> Sequence[RetainedRow]:
        """Return the retained messages that match a filter."""
        return await retained_rows(self._core.retained, topic_filter, self._clock)

    def retained_message(self, topic: str) -> RetainedContent | None:
        """Return the retained message of a topic; None where it has none."""
        message = self._core.retained.by_topic.get(topic)
        return None if message is None else content_of(message, self._clock())

    def uplinks(self) -> Sequence[UplinkState]:
        """Return the state of all uplinks."""
        guard = self._core.guard
        return [
            state
            for plugin in self._program.plugins.values()
            for state in guard.call(plugin, plugin.uplink_states, otherwise=())
        ]

    def tail(
        self,
        *,
        topic_filter: str | None = None,
        client_id: str | None = None,
        address: str | None = None,
    ) -> OpenTail:
        """Open a live tail."""
        return self._tails.open(topic_filter, client_id, address)

    # -- what is done -------------------------------------------------------------------------

    def _turn(self, change: Callable[[], Answer]) -> Answer:
        """Change something in a turn of the driver; return what the change returns."""
        answer: Answer | None = self._program.take_turn(change)
        if answer is None:
            raise PenstockError("the broker failed; its log says why")
        return answer

    def _log(self, what: str, *args: object) -> None:
        """Log what was done. Who has asked for it, and the outcome, is logged by who was asked."""
        self._core.logger.debug(f"by an operator: {what}", *args)  # noqa: G004 (fixed texts)

    def disconnect(self, client_id: str, reason: str) -> bool:
        """Disconnect a client; return whether it was connected."""
        _check_foreign(client_id)
        session = self._core.sessions.get(client_id)
        return session is not None and self._turn(lambda: self._disconnect(session, reason))

    def _disconnect(self, session: Session, reason: str) -> bool:
        client = session.client
        if client is None:
            return False
        self._log("client %s: disconnected: %s", session.client_id, reason or "no reason given")
        client.close(ReasonCode.ADMINISTRATIVE_ACTION, self._clock(), **explained(reason))
        return True

    async def ban(
        self, kind: BanKind, value: str, seconds: float, reason: str, by: str = ""
    ) -> int:
        """Let nobody of this name or address connect for a while, and disconnect who is there."""
        bans = self._core.bans
        bans.add(kind, value, seconds, reason, by, self._clock())
        self._log("%s %s: banned for %g s: %s", kind, value, seconds, reason or "no reason given")
        n_disconnected = 0
        async for session in self._sessions():
            client = session.client
            if client is None or client.is_local:
                continue
            names = {
                "client_id": session.client_id,
                "username": session.username,
                "address": client.remote_address,
            }
            if bans.is_of(kind, value, names[kind]):
                n_disconnected += self.disconnect(session.client_id, "")
        return n_disconnected

    def bans(self) -> Sequence[Ban]:
        """Return all bans that have not ended."""
        return self._core.bans.all(self._clock())

    def unban(self, kind: BanKind, value: str) -> bool:
        """End a ban; return whether there was one."""
        was_there = self._core.bans.remove(kind, value)
        if was_there:
            self._log("%s %s: no longer banned", kind, value)
        return was_there

    def end_session(self, client_id: str) -> bool:
        """Disconnect a client and end its session, with all that waits; False for no session."""
        _check_foreign(client_id)
        session = self._core.sessions.get(client_id)
        if session is None:
            return False

        def end() -> bool:
            self._disconnect(session, "its session is ended")
            self._core.sessions.end(session, self._clock())
            self._log("client %s: session ended", client_id)
            return True

        return self._turn(end)

    def release_held(self, client_id: str) -> int:
        """Let what the gate holds for a client leave now; return how many."""
        return self._end_hold(client_id, "released", lambda session: session.outbox.release_held())

    def drop_held(self, client_id: str) -> int:
        """Drop what the gate holds for a client, as ``operator``; return how many."""

        def drop(session: Session) -> int:
            n_dropped = session.outbox.drop_held()
            if n_dropped:
                self._core.room.made(session, self._clock())
            return n_dropped

        return self._end_hold(client_id, "dropped", drop)

    def _end_hold(self, client_id: str, what: str, end: Callable[[Session], int]) -> int:
        session = self._core.sessions.get(client_id)
        if session is None or session.is_unused:  # nothing was ever sent to it
            return 0

        def turn() -> int:
            n_messages = end(session)
            if n_messages:
                self._log("client %s: %d held messages %s", client_id, n_messages, what)
                if session.client is not None:
                    session.outgoing.want_pump()
            return n_messages

        return self._turn(turn)

    def clear_retained(self, topic: str) -> bool:
        """Clear the retained message of a topic; return whether there was one."""
        core = self._core
        if topic not in core.retained.by_topic:
            return False

        def clear() -> bool:
            now = self._clock()
            core.router.publish(Message(topic, b"", retain=True, arrived_at=now), now)
            self._log("retained message of %s: cleared", topic)
            return True

        return self._turn(clear)

    def drain(self, seconds: float) -> None:
        """Accept no new clients, and disconnect those that are there, spread over some seconds.

        Raises:
            PenstockError: the broker starts.
        """
        if self.is_draining:
            return
        program = self._program
        program.stop_listening()
        self.is_draining = True
        self._log("draining: no new clients; those that there are leave within %g s", seconds)
        program.spawn(drain_clients(program, seconds, self._clock))

    async def backup(self, path: str) -> int:
        """Write what is durable to a new directory, while all goes on; return its bytes."""
        try:
            await asyncio.to_thread(os.mkdir, path, 0o700)
        except OSError as error:
            raise PenstockError(
                f"backup: {path}: {error.strerror}; allowed: a new directory in one that exists"
            ) from error
        try:
            n_bytes = await self._copy_to(path)
        except BaseException:
            # A part of a backup must not be taken for one.
            await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
            raise
        self._log("backup of %d bytes written to %s", n_bytes, path)
        return n_bytes

    async def _copy_to(self, path: str) -> int:
        """Copy what is durable into a directory; see `backup`."""
        program, n_bytes = self._program, 0
        if program.state is not None:
            n_bytes += await program.state.backup(path)
        for plugin in program.plugins.values():
            n_bytes += await plugin.backup(path)
        if not n_bytes:
            raise PenstockError(
                "backup: read nothing that is durable; allowed: a policy file with persistence, or "
                "with queues on a disk"
            )
        return n_bytes

    async def reload(self) -> Reloaded:
        """Read all files again, as at SIGHUP."""
        return await self._program.reload()


def _check_foreign(client_id: str) -> None:
    """Check that a client is none of the broker's own, such as an uplink's.

    Raises:
        PenstockError: it is one: without its session, the plugin that has it could not go on.
    """
    if client_id.startswith(LOCAL_CLIENT_PREFIX):
        raise PenstockError(f"client {client_id}: read one of the broker's own; allowed: others")
