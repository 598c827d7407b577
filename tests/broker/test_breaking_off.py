"""A large message whose sending is broken off: who gets what, and when it is not done."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from broker.breaking_off import LEAST_EXPIRY_SECONDS, LOOK_SECONDS, RETURN_SECONDS
from broker.events import Listeners, PacketSent
from broker.extensions import BreakingGate, OrderingGate, Transfer, Verdict
from broker.link import Link
from broker.message import Message
from broker.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from broker.outbox_rules import OpenGate
from broker.payload import SENT_PIECE_BYTES
from broker.reporting import report
from broker.sys_topics import SysTopics
from tests.helpers.durable import DurableBroker
from tests.helpers.held_machine import FOR_EVER, LARGE, MANY_PIECES, HeldMachine, large
from tests.helpers.shelf import Shelf
from tests.helpers.virtual import VirtualBroker, VirtualClient, will

AFTER = 3.0


class Gate(OpenGate, OrderingGate, BreakingGate):
    """Lets large messages go while the path is good, and breaks them off when it is told to.

    Attributes:
        is_good: the path is.
        breaks: what it is asked about is broken off.
        fails: it raises instead.
        asked: every question that was answered by no.
    """

    break_off_after = AFTER

    def __init__(self, *, keeps_topics: bool = True, first: str = "") -> None:
        self.keeps_topics = keeps_topics
        self.has_first = bool(first)
        self._first = first
        self.is_good = True
        self.breaks = self.fails = False
        self.asked: list[Transfer] = []

    def threshold_s(self, topic: str) -> int | None:
        """Return the same for every topic."""
        del topic
        return LARGE

    def is_first(self, topic: str) -> bool:
        """Say whether it is the one topic."""
        return topic == self._first

    def decide(self, message: Message, link: Link, sojourn: float, now: float) -> Verdict:
        """Answer by the path."""
        del message, link, sojourn
        return Verdict(self.is_good, now + 1000.0, "the path is bad")

    def breaks_off(self, transfer: Transfer, link: Link, now: float) -> str:
        """Answer as the test has set."""
        del link, now
        if self.fails:
            raise ValueError("a fault")
        if self.breaks:
            self.is_good = False
            return "it takes too long"
        self.asked.append(transfer)
        return ""


class Path:
    """A broker, a subscriber whose transport has room for half of a large message, a publisher."""

    def __init__(
        self,
        gate: Gate | None = None,
        *,
        version: int = 5,
        qos: int = 1,
        broker: type[VirtualBroker] = VirtualBroker,
        extensions: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.gate = gate or Gate()
        self.broker = broker(gate=self.gate, **(extensions or {}))
        self.publisher = self.broker.connect("p")
        options.setdefault("clean_start", False)
        if version == 5:
            options.setdefault("properties", FOR_EVER)
        self.options = options
        self.version = version
        self.client = self.connect()
        self.client.subscribe("#", qos=qos)
        self.client.room_bytes = MANY_PIECES // 2

    def connect(self) -> VirtualClient:
        """Come back, over a transport that has room for all."""
        self.client = self.broker.connect("s", self.version, **self.options)
        return self.client

    def publish(self, topic: str, name: str, *, qos: int = 1, n_bytes: int = 0) -> None:
        """Publish a message of that name, of at least so many bytes."""
        self.publisher.publish(topic, large(name, n_bytes), qos=qos)
        if qos == 2:
            self.publisher.send(PubRel(1))

    def publish_large(self, topic: str, name: str, *, qos: int = 1) -> None:
        """Publish one that leaves in pieces."""
        self.publish(topic, name, qos=qos, n_bytes=MANY_PIECES)

    def break_off(self) -> bool:
        """Let the gate want it for some looks; return whether the connection was closed."""
        self.broker.advance(LOOK_SECONDS)
        self.gate.breaks = True
        self.broker.advance(2 * LOOK_SECONDS)
        self.gate.breaks = False
        return self.client.is_lost

    def turn_good(self) -> None:
        """Let the path become good."""
        self.gate.is_good = True
        self.broker.session("s").link_changed()
        self.broker.settle()

    def names(self) -> list[str]:
        """Take what has come, answer what is of QoS 1, and return the names."""
        return [payload.rstrip(b".").decode() for payload in self.client.acknowledge()]


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


def test_what_is_of_qos_0_waits_for_the_client_to_come_back() -> None:
    """MQTT 5.0, 4.1: a server may keep it; what waited behind is not lost, nor what comes."""
    path = Path()
    path.publish_large("cam", "L")
    path.publish("alarm", "a", qos=0)
    assert path.break_off()
    path.publish("alarm", "b", qos=0)
    path.broker.advance(RETURN_SECONDS - 2 * LOOK_SECONDS)
    path.connect()
    assert path.names() == ["a", "b"]
    path.broker.advance(2 * RETURN_SECONDS)
    path.client.lose()
    path.publish("alarm", "c", qos=0)
    path.connect()
    assert path.names() == []
    assert path.broker.session("s").ledger.dropped == {"offline": 1}


def test_what_is_of_qos_0_is_dropped_where_the_client_does_not_come_back() -> None:
    """It is counted, and what comes from then on is for nobody."""
    path = Path()
    path.publish_large("cam", "L")
    path.publish("alarm", "a", qos=0)
    assert path.break_off()
    path.broker.advance(RETURN_SECONDS)
    path.publish("alarm", "b", qos=0)
    ledger = path.broker.session("s").ledger
    assert ledger.dropped == {"connection_lost": 1, "offline": 1}
    path.broker.session("s").check_invariants()


def test_next_loss_of_the_connection_is_as_any_other() -> None:
    """What waits at QoS 0 is dropped then, though the client was expected back a moment ago."""
    path = Path()
    path.publish_large("cam", "L")
    path.publish("alarm", "a")
    assert path.break_off()
    path.connect().connection.pause_sending(path.broker.now)
    path.publish("alarm", "b", qos=0)
    path.client.lose()
    path.publish("alarm", "c", qos=0)
    assert path.broker.session("s").ledger.dropped == {"connection_lost": 1, "offline": 1}


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


def test_listeners_see_the_payload_as_one() -> None:
    """`PacketSent` has bytes, whatever way they go."""
    events: list[PacketSent] = []
    path = Path(extensions={"listeners": Listeners(packet_sent=(events.append,))})
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
    figures = report(path.broker.session("s"), path.broker.now).withholding
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
TestBreakingMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
