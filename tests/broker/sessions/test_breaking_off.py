"""A large message whose sending is broken off: who gets what, and when it is not done."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from penstock.broker.events import Callbacks, PacketSent
from penstock.broker.message import Message
from penstock.broker.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel, Unsubscribe
from penstock.broker.payload import SENT_PIECE_BYTES
from penstock.broker.reports.client_reports import report, subject_of
from penstock.broker.reports.sys_topics import SysTopics
from penstock.broker.sessions.breaking_off import LEAST_EXPIRY_SECONDS, LOOK_SECONDS, RETURN_SECONDS
from tests.helpers.durable import DurableBroker
from tests.helpers.effort import examples
from tests.helpers.half_sent import AFTER, Gate, Path
from tests.helpers.held_machine import FOR_EVER, MANY_PIECES, HeldMachine, large
from tests.helpers.shelf import Shelf
from tests.helpers.virtual import will


@pytest.mark.parametrize("version", [4, 5])
def test_small_messages_pass_a_large_one_that_is_broken_off(version: int) -> None:
    """The connection ends in the middle of it; on the next one they come first, then it."""
    path = Path(version=version)
    path.publish_large("cam", "L")
    path.publish("alarm", "a")
    assert path.names() == []
    assert path.break_off()
    assert path.client.inbox == []  # no part of it, and no DISCONNECT in its middle
    assert len(path.client.received) < MANY_PIECES
    session = path.broker.session("s")
    session.check_invariants()
    assert (session.outbox.n_messages, len(session.inflight)) == (2, 0)
    path.publish("alarm", "b")
    assert path.connect().connack.session_present
    assert path.names() == ["a", "b"]
    assert session.outbox.why_nothing() == "withheld: the path is bad"
    path.turn_good()
    (sent,) = path.client.take_all(Publish)
    assert (sent.payload, sent.dup) == (large("L", MANY_PIECES), False)
    path.client.send(PubAck(sent.packet_id))
    assert session.ledger.delivered == 3
    session.check_invariants()


def test_what_was_whole_before_is_sent_again_and_comes_first() -> None:
    """[MQTT-4.4.0-1]: it may have been received; what was broken off cannot have been."""
    path = Path()
    path.publish("alarm", "0")
    path.publish_large("cam", "L")
    path.publish("alarm", "1")
    (first,) = path.client.take_all(Publish)
    assert path.break_off()
    again, second = path.connect().take_all(Publish)
    assert (again.payload, again.dup, again.packet_id) == (b"0", True, first.packet_id)
    assert (second.payload, second.dup) == (b"1", False)


def test_qos_2_comes_once() -> None:
    """[MQTT-4.3.3-2]: it is a message that was never sent; its Packet Identifier is free."""
    path = Path(qos=2)
    path.publish_large("cam", "L", qos=2)
    path.publish("alarm", "a")
    assert path.break_off()
    path.connect()
    assert path.names() == ["a"]
    path.turn_good()
    (sent,) = path.client.take_all(Publish)
    path.client.send(PubRec(sent.packet_id))
    path.client.take_all(PubRel)
    path.client.send(PubComp(sent.packet_id))
    path.connect()
    assert path.client.inbox == []
    assert path.broker.session("s").ledger.delivered == 2


@pytest.mark.parametrize("keeps_topics", [True, False])
def test_order_of_its_topic_is_kept(*, keeps_topics: bool) -> None:
    """[MQTT-4.6.0-6]: what came after it on its topic waits for it again, large and small."""
    path = Path(Gate(keeps_topics=keeps_topics))
    path.publish_large("cam", "L0")
    for name in ("s1", "s2"):
        path.publish("cam", name)
    path.publish("alarm", "a")
    path.publish_large("cam", "L3")
    path.publish("cam", "s4")
    assert path.break_off()
    path.publish("cam", "s5")
    path.connect()
    before = ["a"] if keeps_topics else ["s1", "s2", "a", "s4", "s5"]
    assert path.names() == before
    path.broker.session("s").check_invariants()
    path.turn_good()
    assert path.names() == (["L0", "s1", "s2", "L3", "s4", "s5"] if keeps_topics else ["L0", "L3"])


def test_message_that_is_broken_off_goes_before_other_large_ones() -> None:
    """Large messages leave in order of arrival."""
    path = Path()
    path.publish_large("cam", "L0")
    path.publish_large("other", "L1")
    path.publish("alarm", "a")
    assert path.break_off()
    path.connect()
    path.turn_good()
    assert path.names() == ["a", "L0", "L1"]


def test_message_can_be_broken_off_again() -> None:
    """Whether that is wise is for the gate to say."""
    path = Path()
    path.publish_large("cam", "L")
    for number in range(3):
        path.publish("alarm", f"a{number}")
        assert path.break_off()
        path.connect().room_bytes = MANY_PIECES // 2
        path.client.take_all(Publish)
        path.turn_good()
    session = path.broker.session("s")
    assert path.broker.core.counters.broken_off == 3
    assert path.broker.core.breaking is not None
    assert path.broker.core.breaking.n_broken_off(session) == 3
    assert session.ledger.withheld_total >= session.ledger.released_total
    session.check_invariants()


@pytest.mark.parametrize(
    "options",
    [
        {"properties": {}},
        {"properties": {"session_expiry_interval": int(LEAST_EXPIRY_SECONDS) - 1}},
        {"version": 4, "clean_start": True},
        {"will": will()},
        {"will": will(properties={"will_delay_interval": int(RETURN_SECONDS) - 1})},
        {"version": 4, "will": will()},
        {"qos": 0},
    ],
)
def test_nothing_is_broken_off_where_something_would_be_lost(options: dict[str, Any]) -> None:
    """A session that ends with its connection, a will that is published, a message of QoS 0."""
    path = Path(**options)
    path.publish_large("cam", "L")
    path.publish("alarm", "a")
    assert not path.break_off()
    path.client.room_bytes = None
    path.client.connection.resume_sending(path.broker.now)
    path.broker.settle()
    assert path.names() == ["L", "a"]


@pytest.mark.parametrize(
    "options",
    [
        {"properties": {"session_expiry_interval": int(LEAST_EXPIRY_SECONDS)}},
        {"will": will(properties={"will_delay_interval": int(RETURN_SECONDS)})},
        {"version": 3},
    ],
)
def test_sessions_that_last_and_wills_that_wait_allow_it(options: dict[str, Any]) -> None:
    """[MQTT-3.1.3-9]: the client is back before its will is due."""
    path = Path(**options)
    watcher = path.broker.connect("w")
    watcher.subscribe("will")
    path.publish_large("cam", "L")
    path.publish("alarm", "a")
    assert path.break_off()
    path.broker.advance(RETURN_SECONDS / 2)
    path.connect()
    path.broker.advance(2 * RETURN_SECONDS)
    assert watcher.payloads() == []


def test_nothing_is_broken_off_for_what_waits_behind_it_anyway() -> None:
    """Small messages of its own topic would wait all the same, and large ones are no reason."""
    path = Path()
    path.publish_large("cam", "L0")
    assert not path.break_off()
    path.publish("cam", "s")
    path.publish_large("other", "L1")
    assert not path.break_off()
    assert path.gate.asked == []


def test_message_with_priority_is_not_broken_off() -> None:
    """Its topic leaves before all others, large or small."""
    path = Path(Gate(first="alarm"))
    path.publish_large("alarm", "L")
    path.publish("other", "o")
    assert not path.break_off()


def test_message_with_priority_is_a_reason() -> None:
    """It waits behind what has begun as any other does."""
    path = Path(Gate(first="alarm"))
    path.publish_large("cam", "L")
    path.publish("alarm", "a")
    assert path.break_off()
    path.connect()
    assert path.names() == ["a"]
    path.turn_good()
    assert path.names() == ["L"]


def test_message_that_the_transport_has_whole_is_not_broken_off() -> None:
    """The broker cannot tell then how much of it the client has."""
    path = Path()
    path.client.room_bytes = MANY_PIECES
    path.publish_large("cam", "L")
    path.publish("alarm", "a")
    assert not path.break_off()
    assert path.names() == ["L"]


@pytest.mark.parametrize("qos", [1, 2])
def test_message_that_went_whole_is_not_broken_off_for_the_next_one(qos: int) -> None:
    """[MQTT-4.3.3-2]: it is inflight. What is stuck behind it is of QoS 0, from a store."""
    path = Path(qos=qos)
    path.client.room_bytes = None
    path.publish_large("cam", "L", qos=qos)
    (sent,) = path.client.take_all(Publish)
    path.client.room_bytes = 1
    session = path.broker.session("s")
    message = Message("film", Shelf(large("F", 5 * MANY_PIECES)), is_large=True)
    session.deliver(message, 0, retain=False, subscription_ids=(), now=path.broker.now)
    path.broker.settle()
    path.publish("alarm", "a")
    path.gate.breaks = True
    path.broker.now += 2 * LOOK_SECONDS  # something comes before the timer that is due
    session.outgoing.want_pump()
    path.broker.settle()
    path.broker.advance(2 * LOOK_SECONDS)
    assert not path.client.is_lost
    assert sent.packet_id in {delivery.packet_id for delivery in session.inflight}


@pytest.mark.parametrize(("qos", "is_lost"), [(1, True), (2, False)])
def test_message_of_a_shared_subscription_stays_with_its_client_at_qos_2(
    qos: int, *, is_lost: bool
) -> None:
    """[MQTT-4.8.2-4]: at QoS 1 another member may get it, at QoS 2 none may once it has begun."""
    path = Path(qos=qos)
    path.client.subscribe("$share/group/jobs", qos=qos)
    path.client.room_bytes = MANY_PIECES // 2
    path.client.send(Unsubscribe(2, ("#",)))
    path.client.subscribe("alarm", qos=qos)
    path.publish_large("jobs", "L", qos=qos)
    path.publish("alarm", "a")
    assert path.break_off() is is_lost
    path.gate.is_good = True
    other = path.broker.connect("other", clean_start=False, properties=FOR_EVER)
    other.subscribe("$share/group/jobs", qos=qos)
    assert other.payloads() == ([large("L", MANY_PIECES)] if is_lost else [])


def test_message_of_few_bytes_is_not_broken_off() -> None:
    """The transport has it at once."""
    path = Path()
    path.client.room_bytes = 1
    path.publish("cam", "L", n_bytes=SENT_PIECE_BYTES)
    path.publish("alarm", "a")
    assert not path.break_off()


def test_message_that_is_repeated_is_not_broken_off() -> None:
    """[MQTT-4.4.0-1]: the client may have had it; it keeps its Packet Identifier."""
    path = Path()
    path.client.room_bytes = None
    path.publish_large("cam", "L")
    path.client.lose()
    path.options["properties"] = FOR_EVER | {"receive_maximum": 1}
    path.connect().connection.pause_sending(path.broker.now)
    path.publish("alarm", "a")
    assert not path.break_off()


def test_message_that_was_answered_before_it_was_whole_is_not_broken_off() -> None:
    """A client that does so says that it has it; it is not sent again."""
    path = Path()
    path.publish_large("cam", "L")
    path.publish("alarm", "a")
    path.client.send(PubAck(1))
    assert not path.break_off()
    assert path.broker.session("s").ledger.delivered == 1


def test_gate_is_told_how_a_message_gets_on() -> None:
    """Bytes gone and left, the rate of the last seconds, and what would be repeated."""
    path = Path()
    path.publish("alarm", "0123456789")
    path.publish_large("cam", "L")
    path.publish("alarm", "a")
    path.client.unsent_bytes = 1000
    path.broker.advance(AFTER + 2 * LOOK_SECONDS)
    before = path.gate.asked[-1]
    assert before.message.topic == "cam"
    assert before.sent_bytes + before.left_bytes == MANY_PIECES
    assert before.repeated_bytes == 10
    assert before.bytes_per_second == 0
    path.client.room_bytes = SENT_PIECE_BYTES
    path.client.connection.resume_sending(path.broker.now)
    path.broker.settle()
    path.broker.advance(LOOK_SECONDS)
    now = path.gate.asked[-1]
    gone = now.sent_bytes - before.sent_bytes
    assert gone == SENT_PIECE_BYTES
    assert now.seconds == pytest.approx(before.seconds + LOOK_SECONDS)
    assert now.bytes_per_second == pytest.approx(gone / AFTER)
    path.broker.advance(2 * AFTER)
    assert path.gate.asked[-1].bytes_per_second == 0


def test_gate_that_fails_breaks_nothing_off() -> None:
    """It is counted, and the message goes on."""
    path = Path()
    path.gate.fails = True
    path.publish_large("cam", "L")
    path.publish("alarm", "a")
    assert not path.break_off()
    assert path.broker.core.counters.extension_errors["Gate"] > 0


def test_without_a_wish_to_break_off_nothing_is_kept() -> None:
    """A gate that never does costs nothing."""
    gate = Gate()
    gate.break_off_after = None  # type: ignore[assignment]
    path = Path(gate)
    assert path.broker.core.breaking is None
    path.publish_large("cam", "L")
    path.publish("alarm", "a")
    assert not path.break_off()


def test_payload_of_a_store_can_be_broken_off() -> None:
    """It is read piece by piece anyway; the next time it is read from its beginning."""
    path = Path()
    data = large("L", 5 * MANY_PIECES)
    session = path.broker.session("s")
    message = Message("cam", Shelf(data), qos=1, is_large=True)
    session.deliver(message, 1, retain=False, subscription_ids=(), now=path.broker.now)
    path.broker.settle()
    path.publish("alarm", "a")
    assert path.break_off()
    path.connect()
    assert path.names() == ["a"]
    path.turn_good()
    assert path.names() == ["L"]


def test_callbacks_see_the_payload_as_one() -> None:
    """`PacketSent` has bytes, whatever way they go."""
    events: list[PacketSent] = []
    path = Path(extensions={"callbacks": Callbacks(packet_sent=(events.append,))})
    path.publish_large("cam", "L")
    assert events[-1].chunks[1] == large("L", MANY_PIECES)


def test_restart_finds_it_waiting() -> None:
    """It is stored as a message that was not sent: it is not repeated, but asked about anew."""
    path = Path(broker=DurableBroker)
    path.publish_large("cam", "L")
    path.publish("alarm", "a")
    assert path.break_off()
    assert isinstance(path.broker, DurableBroker)
    rows = path.broker.disk.deliveries.values()
    assert [row.packet_id for row in rows] == [0, 0]
    path.broker = path.broker.crash()
    path.connect()
    assert path.names() == ["a"]


def test_log_says_whose_connection_was_closed_and_why(caplog: pytest.LogCaptureFixture) -> None:
    """An operator sees it without asking."""
    caplog.set_level("INFO")
    path = Path()
    path.publish_large("cam", "L")
    path.publish("alarm", "a")
    assert path.break_off()
    (line,) = [r.getMessage() for r in caplog.records if "broken off" in r.getMessage()]
    assert line.startswith("client s: connection closed with ")
    assert line.endswith(" of 60000 bytes on cam unsent; broken off: it takes too long")
    decision = path.broker.session("s").outbox.last_decision
    assert decision is not None
    assert decision.verdict.reason == "broken off: it takes too long"


def test_reports_and_figures_count_it() -> None:
    """For one client, and for the broker."""
    path = Path()
    path.publish_large("cam", "L")
    path.publish("alarm", "a")
    assert path.break_off()
    figures = report(subject_of(path.broker.session("s")), path.broker.now).withholding
    assert (figures.broken_off_total, figures.withheld_total, figures.withheld) == (1, 1, 1)
    watcher = path.broker.connect("w")
    watcher.subscribe("$SYS/broker/penstock/withholding/#")
    SysTopics(path.broker.core, "0", 0.0).start(path.broker.now, 10.0)
    path.broker.settle()
    found = {
        packet.topic.rpartition("/")[2]: packet.payload for packet in watcher.take_all(Publish)
    }
    assert found["broken_off_total"] == b"1"


def test_session_that_ends_is_forgotten() -> None:
    """Nothing is kept for who is gone."""
    path = Path()
    path.publish_large("cam", "L")
    path.publish("alarm", "a")
    assert path.break_off()
    session = path.broker.session("s")
    path.broker.core.sessions.end(session, path.broker.now)
    breaking = path.broker.core.breaking
    assert breaking is not None
    assert not breaking.awaits(session)
    assert breaking.n_broken_off(session) == 0
    path.broker.advance(2 * RETURN_SECONDS)
    assert path.broker.core.ledger().outstanding() == 0


class BreakingMachine(HeldMachine):
    """Messages are broken off at any time: nothing is lost, QoS 2 comes once, in order."""

    large_bytes = MANY_PIECES

    @initialize(keeps_topics=st.booleans(), version=st.sampled_from([4, 5]))
    def make(self, *, keeps_topics: bool, version: int) -> None:
        """On a path that is good at first."""
        self.begin(Gate(keeps_topics=keeps_topics), version)

    def turn(self, *, is_good: bool) -> None:
        """Tell the gate."""
        self.gate.is_good = is_good
        self.broker.session("s").link_changed()
        self.broker.settle()

    @rule(
        n_bytes=st.integers(1, MANY_PIECES),
        qos=st.sampled_from([1, 2]),
        seconds=st.floats(2 * LOOK_SECONDS, 4 * LOOK_SECONDS),
    )
    def break_off(self, n_bytes: int, qos: int, seconds: float) -> None:
        """A large message begins, gets stuck, and may be broken off for what waits behind it."""
        self.turn(is_good=True)
        self.clog(n_bytes)
        self.publish("a", qos, is_large=True)
        self.publish("b", qos, is_large=False)
        self.gate.breaks = True
        self.broker.advance(seconds)
        self.gate.breaks = False


TestBreakingMachine = BreakingMachine.TestCase
TestBreakingMachine.settings = settings(
    max_examples=examples(100), stateful_step_count=40, deadline=None
)
