"""Kept sessions between the engine and the broker, where either of them fails."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.broker.extensions import Mail, MailRun
from penstock.broker.message import Message
from penstock.broker.session_rows import Changes, DeliveryRow, MessageRow, SessionRow
from penstock.plugins.cluster import mail_sessions
from penstock.plugins.cluster.engine import FencedError, Row
from penstock.plugins.cluster.frames import packet_head
from penstock.plugins.cluster.mail_engine import Commit, Fetched, State
from penstock.plugins.cluster.mail_entries import Entry, Sent, head_of, written
from penstock.plugins.cluster.mail_routes import MailRoutes
from penstock.plugins.cluster.mail_sessions import KeptSessions
from penstock.plugins.cluster.routes import OwnRoutes
from penstock.plugins.redis.errors import StorageError
from tests.plugins.queue.engines.contract.harness import until

OWNER = Row("node", 1, 1)
ENTRY = head_of(""), packet_head(Message("t", b"1", qos=1), 1, 0.0) + b"1"
UNREADABLE = head_of(""), b"what is this?"


class Engine:
    """An engine that fails when it is told to.

    Attributes:
        fails: clients, with what their next commit or fetch fails with.
        commits: number and changes of each commit, by client.
        now_ms: its time.
        waiting: what waits for all clients.
        erased: entries that were removed.
    """

    def __init__(self) -> None:
        self.fails: dict[str, Exception | None] = {}
        self.commits: dict[str, list[tuple[int, list[Any]]]] = {}
        self.waiting: list[Entry] = []
        self.state = State({}, {}, {}, [], [])
        self.now_ms = 10
        self.erased: list[bytes] = []

    async def commit(self, commits: list[Commit]) -> list[list[bytes] | None]:
        """Keep commits."""
        found: list[list[bytes] | None] = []
        for client_id, owner, number, origin, changes in commits:
            assert owner == OWNER
            assert origin
            self.commits.setdefault(client_id, []).append((number, changes))
            fault = self.fails.pop(client_id, self)
            if isinstance(fault, Exception):
                raise fault
            added = [b"9-%d" % at for at in range(changes[::3].count("a"))]
            found.append(None if fault is None else added)
        return found

    async def fetch(
        self, client_id: str, owner: Row, after: bytes, most: int, _most_bytes: int
    ) -> Fetched:
        """Return what waits."""
        assert owner == OWNER
        fault = self.fails.pop(client_id, None)
        if fault is not None:
            raise fault
        found = [one for one in self.waiting if one[0] > after]
        return Fetched(self.now_ms, len(found) > most, found[:most])

    async def load(self, client_id: str, owner: Row) -> State:
        """Return a session."""
        assert (client_id, owner) == ("x", OWNER)
        return self.state

    def erase(
        self, client_id: str, owner: Row, identifiers: Sequence[bytes], n_bytes: int
    ) -> asyncio.Future[Any]:
        """Remove entries."""
        assert (client_id, owner) == ("x", OWNER)
        assert n_bytes
        self.erased += identifiers
        return asyncio.get_running_loop().create_future()


class Clients:
    """A broker's sessions.

    Attributes:
        given: the numbers of messages that were given, by call.
        answers: what the next calls of `deliver` return, or raise.
        takes: what the next calls of `deliver_run` return.
        runs: those of which some messages were taken.
        dropped: clients whose sessions were dropped.
    """

    def __init__(self) -> None:
        self.given: list[list[int]] = []
        self.answers: list[list[DeliveryRow | None] | Exception] = []
        self.takes: list[int | None] = []
        self.runs: list[MailRun] = []
        self.dropped: list[str] = []
        self._row = 100

    def take_rows(self, n_rows: int) -> int:
        """Return numbers of rows."""
        self._row += n_rows
        return self._row - n_rows

    async def deliver(self, client_id: str, mail: Sequence[Mail]) -> list[DeliveryRow | None]:
        """Take messages."""
        assert client_id == "x"
        self.given.append([one.message.row for one in mail])
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def deliver_run(self, client_id: str, run: MailRun) -> int | None:
        """Take a run, as far as the test says; without that none is for this way."""
        assert client_id == "x"
        n_taken = self.takes.pop(0) if self.takes else None
        if n_taken:
            self.runs.append(run)
        return n_taken

    def drop(self, client_id: str, reason_code: int) -> None:
        """Forget a session."""
        assert reason_code
        self.dropped.append(client_id)


class Announcer:
    """Tells nobody."""

    def __init__(self) -> None:
        self.own = OwnRoutes()

    def change_kept(self, name: str, value: str) -> None:
        """Take a change."""


class Node:
    """The kept sessions of a node, with clients `x` and `y`."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.clients = Clients()
        routes = MailRoutes(lambda _: "bucket", lambda *_: None, lambda *_: None)
        self.kept = KeptSessions(
            self.engine,  # type: ignore[arg-type]
            routes,
            Announcer(),  # type: ignore[arg-type]
            self.clients,  # type: ignore[arg-type]
            asyncio.get_running_loop().time,
            logging.getLogger("penstock.cluster"),
        )
        for client_id in ("x", "y"):
            self.kept.begin(client_id, OWNER)


def session(row: int, client_id: str) -> SessionRow:
    """Return the row of a session."""
    return SessionRow(row, client_id, None, "default", 5, 60.0, None, b"12345678", 0)


def delivery(row: int, session_row: int = 1) -> DeliveryRow:
    """Return the row of a delivery at QoS 1."""
    return DeliveryRow(row, session_row, row, 1, False, None, 0, False, "")


async def test_refused_batch_is_the_same_when_it_comes_again() -> None:
    """The engine finds by its number what it has stored already; nothing is forgotten before."""
    node = Node()
    await node.kept.write(Changes(number=1, sessions=[session(1, "x"), session(2, "y")]))
    message = MessageRow(5, "t", b"1", 1, True, 0.0, None, None, "")
    added = Changes(number=2, messages=[message], deliveries=[delivery(5)], incoming=[])
    node.engine.fails["x"] = StorageError("away")
    with pytest.raises(StorageError):
        await node.kept.write(added)
    await node.kept.write(added)
    gone = Changes(number=3)
    gone.gone_deliveries.append(5)
    node.engine.fails["x"] = StorageError("away")
    with pytest.raises(StorageError):
        await node.kept.write(gone)
    await node.kept.write(gone)
    numbers = [number for number, _ in node.engine.commits["x"]]
    assert numbers == [1, 2, 2, 3, 3]
    first, again = (changes for _, changes in node.engine.commits["x"][3:])
    assert first == again == ["I", b"9-0", "", "d", b"9-0", len(ENTRY[1])]
    assert not node.kept.sessions["x"].entries
    assert len(node.engine.commits["y"]) == 1


async def test_messages_that_the_broker_has_added_leave_nothing_when_they_are_gone() -> None:
    """A session that gets retained messages again and again stays as small as it was."""
    node = Node()
    await node.kept.write(Changes(number=1, sessions=[session(1, "x")]))
    message = MessageRow(5, "t", b"1", 1, True, 0.0, None, None, "")
    await node.kept.write(Changes(number=2, messages=[message], deliveries=[delivery(5)]))
    kept = node.kept.sessions["x"]
    assert kept.restored == {b"9-0"}
    gone = Changes(number=3)
    gone.gone_deliveries.append(5)
    await node.kept.write(gone)
    assert (kept.entries, kept.noted, kept.restored) == ({}, set(), set())


async def test_message_without_a_payload_is_not_stored_as_an_empty_one() -> None:
    """Its payload store could not read it back; what becomes of it later changes nothing."""
    node = Node()
    lost = MessageRow(5, "t", None, 1, True, 0.0, None, None, "")
    there = lost._replace(row=6, payload=b"1")
    batch = Changes(number=2, messages=[lost, there], deliveries=[delivery(5), delivery(6)])
    await node.kept.write(Changes(number=1, sessions=[session(1, "x")]))
    await node.kept.write(batch)
    gone = Changes(number=3)
    gone.gone_deliveries.append(5)
    await node.kept.write(gone)
    assert [changes[::3] for _, changes in node.engine.commits["x"][1:]] == [["h", "a"]]
    assert list(node.kept.sessions["x"].entries) == [6]


async def test_session_that_another_node_has_is_dropped_and_the_others_are_stored() -> None:
    """The batch counts as written; what comes of it later is ignored."""
    node = Node()
    node.engine.fails["x"] = None
    batch = Changes(number=1, sessions=[session(1, "x"), session(2, "y")])
    await node.kept.write(batch)
    assert node.clients.dropped == ["x"]
    assert list(node.kept.sessions) == ["y"]
    await node.kept.write(Changes(number=2, gone_subscriptions=[(1, "a"), (2, "a")]))
    assert len(node.engine.commits["x"]) == 1
    assert node.engine.commits["y"][1] == (2, ["F", "a", ""])


@pytest.mark.parametrize(
    ("of_engine", "of_broker"),
    [(StorageError("away"), OSError("disk full")), (LookupError("odd"), TypeError("odd"))],
)
async def test_messages_that_the_broker_does_not_take_are_given_again(
    monkeypatch: pytest.MonkeyPatch, of_engine: Exception, of_broker: Exception
) -> None:
    """The client was not connected, the broker had no room, or the engine was away; or a fault."""
    monkeypatch.setattr(mail_sessions, "RETRY_SECONDS", 0.0)
    node = Node()
    node.engine.waiting = [(b"1-1", *ENTRY), (b"1-2", *UNREADABLE), (b"1-3", *ENTRY)]
    node.engine.fails["x"] = of_engine
    node.clients.answers = [[], of_broker, [delivery(0), None]]
    node.kept.drained("x")
    await until(lambda: len(node.clients.given) == 1)
    node.kept.drained("x")
    await until(lambda: len(node.engine.erased) == 2)
    assert sorted(node.engine.erased) == [b"1-2", b"1-3"]
    (row,) = node.kept.sessions["x"].entries
    assert row == node.clients.given[-1][0]
    assert node.kept.n_fetched == 2
    await node.kept.close()


async def test_message_that_is_being_added_to_the_mailbox_is_not_given_from_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker has it, such as a retained one; the answer to the fetch may be noted first."""
    node, answer = Node(), asyncio.Event()
    commit = node.engine.commit

    async def late(commits: list[Commit]) -> list[list[bytes] | None]:
        found = await commit(commits)
        await answer.wait()
        return found

    await node.kept.write(Changes(number=1, sessions=[session(1, "x")]))
    monkeypatch.setattr(node.engine, "commit", late)
    message = MessageRow(5, "t", b"1", 1, True, 0.0, None, None, "")
    batch = Changes(number=2, messages=[message], deliveries=[delivery(5)])
    writing = asyncio.create_task(node.kept.write(batch))
    node.engine.waiting, node.clients.takes = [(b"9-0", *ENTRY)], [1]
    node.kept.drained("x")
    kept = node.kept.sessions["x"]
    await until(lambda: kept.adding is not None and not kept.has_more)
    answer.set()
    await writing
    await until(lambda: kept.fetching is None)
    assert node.clients.takes == [1]


async def test_messages_of_one_publisher_go_together_as_far_as_the_window_goes() -> None:
    """The rest waits until the client has room; what is no such message goes by itself."""
    node = Node()
    head, packet = ENTRY
    other = head_of("", "$share/g/t"), packet
    qos_0 = head, b"\x30\x05\0\1t\x001"
    kinds = [ENTRY, ENTRY, ENTRY, other, qos_0, qos_0]
    node.engine.waiting = [(b"1-%d" % at, *one) for at, one in enumerate(kinds)]
    node.clients.takes = [2, 0]
    node.kept.drained("x")
    await until(lambda: not node.clients.takes)
    kept = node.kept.sessions["x"]
    (run,) = node.clients.runs
    assert run[1:6] == (3 * packet, 3, 5, 1, "")
    assert [entry[0] for entry in kept.entries.values()] == [b"1-0", b"1-1"]
    node.clients.takes, node.clients.answers = [1], [[delivery(0), None, None]]
    node.kept.drained("x")
    await until(lambda: bool(node.clients.given))
    assert [len(rows) for rows in node.clients.given] == [3]
    await until(lambda: kept.fetching is None)
    gone = Changes(number=3)
    gone.gone_deliveries.extend([run.row, run.row + 1])
    await node.kept.write(gone)
    assert node.engine.commits["x"] == [(3, ["d", b"1-0 1-1", 2 * len(packet)])]
    assert node.engine.erased == [b"1-4", b"1-5"]


async def test_messages_of_qos_0_that_go_together_are_done_with_at_once() -> None:
    """Nobody acknowledges them."""
    node = Node()
    node.engine.waiting = [(b"1-%d" % at, head_of(""), b"\x30\x05\0\1t\x001") for at in range(3)]
    node.clients.takes = [3]
    node.kept.drained("x")
    await until(lambda: len(node.engine.erased) == 3)
    assert not node.kept.sessions["x"].entries


async def test_messages_of_a_server_that_has_taken_over_are_found_though_its_clock_is_behind() -> (
    None
):
    """Their identifiers are lower than those of earlier ones; what the broker has is not read."""
    node = Node()
    node.engine.waiting = [(b"7-0", *ENTRY), (b"9-0", *ENTRY)]
    node.clients.answers = [[delivery(0)] * 2, [delivery(0)]]
    node.kept.drained("x")
    await until(lambda: len(node.clients.given) == 1)
    node.engine.waiting = [(b"7-0", *ENTRY), (b"8-0", *ENTRY)]
    node.engine.now_ms = 8
    node.kept.drained("x")
    node.kept.told("x")
    await until(lambda: len(node.clients.given) == 2)
    assert [len(rows) for rows in node.clients.given] == [2, 1]
    assert {one[0] for one in node.kept.sessions["x"].entries.values()} == {b"7-0", b"8-0", b"9-0"}
    await node.kept.close()


async def test_session_that_another_node_has_is_dropped_when_it_is_read() -> None:
    """The engine refuses."""
    node = Node()
    node.engine.fails["x"] = FencedError("over")
    node.kept.drained("x")
    await until(lambda: node.clients.dropped == ["x"])


async def test_message_that_cannot_be_read_keeps_no_client_out() -> None:
    """It is dropped; all else of the session is there."""
    node = Node()
    options = json.dumps([None, "default", 5, 60.0, "00" * 8])
    values = {b"origin": b"o", b"options": options.encode()}
    sent = written(Sent(0, is_released=False, qos=1), 7, is_released=0)
    entries = [(b"1-2", *ENTRY), (b"1-1", *UNREADABLE)]
    node.engine.state = State(values, {}, {b"1-1": sent, b"1-2": sent}, [3], entries)
    stored = await node.kept.load("x", OWNER)
    assert [(row.qos, row.packet_id) for row in stored.deliveries] == [(1, 7)]
    assert [row.packet_id for row in stored.incoming] == [3]
    assert node.engine.erased == [b"1-1"]
    assert node.kept.n_unreadable == 1


async def test_session_that_is_gone_leaves_nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does one that goes while its changes are on their way."""
    node = Node()
    commit = node.engine.commit

    async def goes(commits: list[Commit]) -> list[list[bytes] | None]:
        node.kept.unloaded("x")
        return await commit(commits)

    await node.kept.write(Changes(number=1, sessions=[session(1, "x")]))
    monkeypatch.setattr(node.engine, "commit", goes)
    message = MessageRow(5, "t", b"1", 1, True, 0.0, None, None, "")
    await node.kept.write(Changes(number=2, messages=[message], deliveries=[delivery(5)]))
    assert not node.kept._rows
    options = json.dumps([None, "default", 5, 60.0, "00" * 8])
    values = {b"origin": b"o", b"options": options.encode()}
    node.engine.state = State(values, {}, {}, [3], [])
    await node.kept.load("x", OWNER)
    assert node.kept.prefixes.keys() == {bytes(8)}
    node.kept.unloaded("x")
    assert not node.kept.prefixes
    assert not node.kept._rows
