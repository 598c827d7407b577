"""What a node takes for another one, and when its publishers are acknowledged."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker.errors import PenstockError
from penstock.broker.extensions import SinkRun
from penstock.broker.message import OF_MQTT_3, Message
from penstock.plugins.cluster import node_sink
from penstock.plugins.cluster.frames import LANE_4, LANE_5, Lane, read_frames
from penstock.plugins.cluster.node_sink import (
    MOST_INBOX_BYTES,
    MOST_PUTS,
    NodeSink,
    Shared,
)
from tests.broker.serving import until

SHARED = Lane(5, "$share/g/t")


class Engine:
    """Holds what is put until the test answers.

    Attributes:
        entries: what was put, and what is done with the answer.
        given: messages that must go elsewhere.
    """

    def __init__(self) -> None:
        self.entries: list[tuple[bytes, asyncio.Future[int]]] = []
        self.given: list[Shared] = []

    def give(self, shared: Shared) -> None:
        """Keep messages."""
        self.given.append(shared)

    def put(self, data: bytes) -> asyncio.Future[int]:
        """Keep an entry."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.entries.append((data, future))
        return future

    async def answer(self, n_bytes: int = 0) -> bytes:
        """Answer for the oldest entry and return it."""
        data, future = self.entries.pop(0)
        future.set_result(n_bytes)
        await turns()
        return data


class Answer:
    """A receipt.

    Attributes:
        codes: the reason codes that it was settled with.
    """

    def __init__(self, deduplication_id: bytes = b"", *, is_repeat: bool = False) -> None:
        self.deduplication_id = deduplication_id
        self.is_repeat = is_repeat
        self.codes: list[int] = []

    def settle(self, reason_code: int) -> None:
        """Keep it."""
        self.codes.append(reason_code)


async def turns() -> None:
    """Let the loop do what was scheduled, and what that schedules."""
    for _ in range(5):
        await asyncio.sleep(0)


def sink_of(engine: Engine) -> NodeSink:
    """Return a sink."""
    loop = asyncio.get_running_loop()
    return NodeSink("b", engine.put, engine.give, loop, loop.time)


def take(sink: NodeSink, message: Message) -> Answer:
    """Offer a message of QoS 1 as the broker does, and return its receipt."""
    answer = Answer()
    assert sink.reserve(message) == ""
    sink.accept(message, answer)
    return answer


def check(sink: NodeSink) -> None:
    """Check the ledger."""
    counts = sink.counts
    assert counts.matched == counts.stored + counts.queued + sum(counts.dropped.values())


async def test_what_comes_in_one_turn_is_one_entry_and_acknowledged_with_it() -> None:
    """One call of the engine for many publishers."""
    engine = Engine()
    sink = sink_of(engine)
    run = SinkRun(b"\x32\x06\x00\x01t\x00\x09x" * 2, 2, 4, 1)
    assert sink.reserve_run(2, len(run.packets))
    answers = [take(sink, Message("t", b"1", qos=1)), Answer()]
    sink.accept_run(run, answers[1])
    sink.accept_run(SinkRun(b"\x30\x04\x00\x01tx", 1, 4, 0), None)
    await turns()
    assert len(engine.entries) == 1
    assert [answer.codes for answer in answers] == [[], []]
    check(sink)
    finishing = asyncio.create_task(sink.finish())
    await turns()
    assert not finishing.done()
    frames = list(read_frames(await engine.answer()))
    assert [(frame.lane, frame.qos, frame.n_messages) for frame in frames] == [
        (LANE_5, 1, 1),
        (LANE_4, 1, 2),
        (LANE_4, 0, 1),
    ]
    assert [answer.codes for answer in answers] == [[0], [0]]
    assert (sink.counts.stored, sink.counts.queued, sink.bytes_on_way) == (4, 0, 0)
    await finishing


async def test_what_comes_one_by_one_stays_with_the_runs_of_its_publisher() -> None:
    """A retained message of a client of MQTT 3.1.1 is not passed by the client's next one."""
    engine = Engine()
    sink = sink_of(engine)
    old = Message("t", b"1", qos=1, retain=True)
    old.properties = OF_MQTT_3
    take(sink, old)
    sink.accept_run(SinkRun(b"\x32\x06\x00\x01t\x00\x09x", 1, 4, 1), Answer())
    sink.accept_shared(Shared(SHARED, 1, 1, b"packet", lambda _: None))
    await turns()
    frames = list(read_frames(await engine.answer()))
    assert [(frame.lane, frame.n_messages) for frame in frames] == [(LANE_4, 2), (SHARED, 1)]
    assert frames[0].body.startswith(b"\x33\x06\x00\x01t\x00\x011")


async def test_while_entries_are_on_their_way_the_next_one_collects() -> None:
    """So an engine that is slow gets fewer and larger ones."""
    engine = Engine()
    sink = sink_of(engine)
    answers = []
    for _ in range(3 * MOST_PUTS):
        answers.append(take(sink, Message("t", b"1", qos=1)))
        await turns()
    assert len(engine.entries) == MOST_PUTS
    await engine.answer()
    (frame,) = read_frames(engine.entries[-1][0])
    assert frame.n_messages == 2 * MOST_PUTS
    while engine.entries:
        await engine.answer()
    assert [answer.codes for answer in answers] == [[0]] * len(answers)
    check(sink)


async def test_an_engine_that_is_away_holds_publishers_back_and_qos_0_is_dropped() -> None:
    """Memory is bounded; what was dropped is counted; whoever waits is told of room."""
    engine = Engine()
    sink = sink_of(engine)
    rooms: list[str] = []
    sink.on_room = lambda: rooms.append("room")
    answer = take(sink, Message("t", bytes(NodeSink.most_bytes), qos=1))
    await turns()
    message = Message("t", b"1", qos=1)
    assert sink.reserve(message) == "engine_away"
    assert not sink.reserve_run(1, 8)
    sink.accept_run(SinkRun(b"\x30\x04\x00\x01tx" * 3, 3, 4, 0), None)
    assert sink.counts.dropped == {"engine_away": 3}
    assert not rooms
    await engine.answer()
    assert answer.codes == [0]
    assert rooms == ["room"]
    assert sink.reserve(message) == ""
    sink.release(message)
    assert sink.bytes_on_way == 0
    check(sink)


async def test_an_inbox_that_is_not_read_takes_no_more_until_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a node that hangs would fill the engine's memory."""
    monkeypatch.setattr(node_sink, "LOOK_AGAIN_SECONDS", 0.0)
    engine = Engine()
    sink = sink_of(engine)
    rooms: list[str] = []
    sink.on_room = lambda: rooms.append("room")
    take(sink, Message("t", b"1", qos=1))
    await turns()
    await engine.answer(MOST_INBOX_BYTES + 1)
    assert sink.reserve(Message("t", b"1", qos=1)) == "inbox_full"
    for n_bytes in (MOST_INBOX_BYTES + 1, 0):
        assert not rooms
        await until(lambda: engine.entries)
        assert await engine.answer(n_bytes) == b""
    assert rooms == ["room"]
    assert sink.reserve(Message("t", b"1", qos=1)) == ""


async def test_what_the_engine_refuses_is_refused_to_its_publisher() -> None:
    """An engine that is full or read-only says why."""
    engine = Engine()
    sink = sink_of(engine)
    answer = take(sink, Message("t", b"1", qos=1))
    await turns()
    engine.entries.pop()[1].set_exception(PenstockError("OOM"))
    await turns()
    assert answer.codes == [0x97]
    assert sink.failure == "OOM"
    assert sink.counts.dropped == {"not_stored": 1}
    check(sink)


async def test_what_a_node_that_has_left_was_to_get_is_for_nobody() -> None:
    """Its sessions have ended: publishers are not kept waiting."""
    engine = Engine()
    sink = sink_of(engine)
    answers = [take(sink, Message("t", b"1", qos=1)) for _ in range(2)]
    await turns()
    answers.append(take(sink, Message("t", b"1", qos=1)))
    sink.close()
    answers.append(take(sink, Message("t", b"1", qos=1)))
    assert [answer.codes for answer in answers] == [[], [], [0], [0]]
    engine.entries.pop()[1].set_exception(PenstockError("closed"))
    await turns()
    assert [answer.codes for answer in answers] == [[0]] * 4
    assert sink.counts.dropped == {"node_left": 4}
    assert sink.bytes_on_way == 0
    check(sink)


@pytest.mark.parametrize("told_first", ["plugin", "engine"])
async def test_a_message_for_one_member_goes_elsewhere_when_its_node_has_left(
    told_first: str,
) -> None:
    """Other nodes have members, too; its publisher is acknowledged when it is there."""
    engine = Engine()
    sink = sink_of(engine)
    answers = [Answer(), take(sink, Message("t", b"1", qos=1))]
    shared = Shared(SHARED, 1, 3, b"packets", answers[0].settle)
    sink.accept_shared(shared)
    await turns()
    if told_first == "plugin":
        sink.close()
    engine.entries.pop()[1].set_exception(PenstockError("PENSTOCK gone"))
    await turns()
    if told_first == "engine":
        assert not any(answer.codes for answer in answers)
        sink.close()
    assert engine.given == [shared]
    assert [answer.codes for answer in answers] == [[], [0]]
    check(sink)


async def test_what_an_engine_that_has_lost_its_data_was_to_give_is_refused() -> None:
    """The node lives, and its sessions with it: nothing is acknowledged that they do not get."""
    engine = Engine()
    sink = sink_of(engine)
    answers = [take(sink, Message("t", b"1", qos=1))]
    await turns()
    engine.entries.pop()[1].set_exception(PenstockError("PENSTOCK gone"))
    await turns()
    answers.append(take(sink, Message("t", b"2", qos=1)))
    sink.engine_has_forgotten()
    answers.append(take(sink, Message("t", b"3", qos=1)))
    await turns()
    engine.entries.pop()[1].set_exception(PenstockError("PENSTOCK gone"))
    await turns()
    sink.close()
    assert [answer.codes for answer in answers] == [[0x97]] * 3
    assert sink.bytes_on_way == 0
    check(sink)


async def test_next_epoch_sends_nothing_of_the_one_before() -> None:
    """Its publishers are disconnected, and send it again elsewhere."""
    engine = Engine()
    sink = sink_of(engine)
    answer = take(sink, Message("t", b"1", qos=2))
    sink.drop()
    assert answer.codes == [0x8B]
    await turns()
    assert not engine.entries
    assert sink.bytes_on_way == 0
    check(sink)
