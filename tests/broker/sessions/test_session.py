"""A session's ledger holds whatever happens: a state machine on a virtual clock."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.broker.config.limits import Limits, QueueFull
from penstock.broker.mqtt.packets import (
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Unsubscribe,
)
from tests.helpers.effort import examples
from tests.helpers.gates import SwitchGate
from tests.helpers.virtual import VirtualBroker, VirtualClient

TOPICS = st.sampled_from(["a", "b", "cam/1", "cam/2"])


class SessionMachine(RuleBasedStateMachine):
    """A publisher and a subscriber that does whatever clients do.

    QoS 2 messages reach it exactly once; of each topic and QoS, what comes without DUP comes in
    the order in which it was published.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = SwitchGate(10, is_open=True, most_seconds=5)
        self.number = 0
        self.client: VirtualClient | None = None
        self.unanswered: list[Publish] = []
        self.owed_pubcomp: list[int] = []
        self.received_qos2: dict[int, bytes] = {}
        self.seen_qos2: list[bytes] = []
        self.newest: dict[tuple[str, int], int] = {}

    @initialize(
        queue_full=st.sampled_from(["drop_newest", "drop_oldest", "disconnect"]),
        inflight_bytes=st.sampled_from([30, 10_000]),
    )
    def start(self, *, queue_full: QueueFull, inflight_bytes: int) -> None:
        """A broker with little room, and what it does without any."""
        limits = Limits(
            inflight_messages=3,
            inflight_bytes=inflight_bytes,
            queued_messages=8,
            queued_bytes=200,
            queue_full=queue_full,
        )
        self.broker = VirtualBroker(limits, gate=self.gate)
        self.publisher = self.broker.connect("p", keep_alive=0)

    def read(self) -> None:
        """Take what came, checking order and exactly once."""
        if self.client is None:
            return
        for packet in self.client.take_all(Publish):
            number = int(packet.payload.split(b".")[0])
            if not packet.dup:
                place = (packet.topic, packet.qos)
                assert number > self.newest.get(place, 0)
                self.newest[place] = number
            if packet.qos == 2:
                if packet.packet_id not in self.received_qos2:
                    assert packet.payload not in self.seen_qos2
                    self.seen_qos2.append(packet.payload)
                self.received_qos2[packet.packet_id] = packet.payload
            if packet.qos:
                self.unanswered.append(packet)
        self.owed_pubcomp += [packet.packet_id for packet in self.client.take_all(PubRel)]

    @precondition(lambda self: self.client is None)
    @rule(is_clean=st.booleans(), receive_maximum=st.sampled_from([1, 2, 65_535]))
    def connect(self, *, is_clean: bool, receive_maximum: int) -> None:
        """The subscriber connects."""
        properties: dict[str, Any] = {
            "session_expiry_interval": 60,
            "receive_maximum": receive_maximum,
        }
        self.client = self.broker.connect(
            "s", clean_start=is_clean, keep_alive=0, properties=properties
        )
        if not self.client.connack.session_present:
            self.received_qos2.clear()
        self.read()

    @precondition(lambda self: self.client is not None)
    @rule(topic_filter=st.sampled_from(["a", "+", "cam/#"]), qos=st.integers(0, 2))
    def subscribe(self, topic_filter: str, qos: int) -> None:
        """It subscribes."""
        assert self.client is not None
        self.client.subscribe(topic_filter, qos)

    @precondition(lambda self: self.client is not None)
    @rule(topic_filter=st.sampled_from(["a", "+", "cam/#"]))
    def unsubscribe(self, topic_filter: str) -> None:
        """It unsubscribes, maybe from what it never had."""
        assert self.client is not None
        self.client.send(Unsubscribe(1, (topic_filter,)))

    @rule(
        topic=TOPICS, qos=st.integers(0, 2), is_large=st.booleans(), expiry=st.none() | st.just(2)
    )
    def publish(self, topic: str, qos: int, *, is_large: bool, expiry: int | None) -> None:
        """A message comes."""
        self.number += 1
        payload = b"%d." % self.number + b"x" * (20 if is_large else 0)
        properties = {} if expiry is None else {"message_expiry_interval": expiry}
        self.publisher.publish(topic, payload, qos=qos, properties=properties)
        if qos == 2:
            self.publisher.send(PubRel(1))
        self.publisher.inbox.clear()
        self.broker.advance(0)
        self.read()
        if self.client is not None and self.client.is_lost:  # for its full outbox
            self.forget()

    @precondition(lambda self: bool(self.unanswered))
    @rule(data=st.data(), refuses=st.booleans())
    def answer(self, data: st.DataObject, *, refuses: bool) -> None:
        """The subscriber answers a message, in any order, now and then with a refusal."""
        assert self.client is not None
        packet = self.unanswered.pop(data.draw(st.integers(0, len(self.unanswered) - 1)))
        code = 0x80 if refuses else 0
        if packet.qos == 1:
            self.client.send(PubAck(packet.packet_id, code))
        else:
            if refuses:
                self.received_qos2.pop(packet.packet_id, None)
            self.client.send(PubRec(packet.packet_id, code))
        self.read()

    @precondition(lambda self: bool(self.owed_pubcomp))
    @rule()
    def complete(self) -> None:
        """The subscriber finishes a QoS 2 message."""
        assert self.client is not None
        packet_id = self.owed_pubcomp.pop(0)
        self.received_qos2.pop(packet_id, None)
        self.client.send(PubComp(packet_id))
        self.read()

    @precondition(lambda self: self.client is not None)
    @rule(is_paused=st.booleans())
    def room(self, *, is_paused: bool) -> None:
        """The subscriber's transport fills up or drains."""
        assert self.client is not None
        if is_paused:
            self.client.connection.pause_sending(self.client.broker.now)
        else:
            self.client.connection.resume_sending(self.client.broker.now)
            self.broker.settle()
        self.read()

    @rule(is_open=st.booleans(), seconds=st.floats(0, 4))
    def time(self, *, is_open: bool, seconds: float) -> None:
        """Time passes and the link changes."""
        self.gate.is_open = is_open
        session = self.broker.core.sessions.get("s")
        if session is not None:
            session.link_changed()
        self.broker.settle()
        self.broker.advance(seconds)
        self.read()

    @precondition(lambda self: self.client is not None)
    @rule(says_goodbye=st.booleans(), away=st.sampled_from([0, 1, 61]))
    def leave(self, *, says_goodbye: bool, away: int) -> None:
        """The subscriber goes, for a while or for good."""
        assert self.client is not None
        if says_goodbye:
            self.client.send(Disconnect())
        else:
            self.client.lose()
        self.forget()
        self.broker.advance(away)

    def forget(self) -> None:
        """The subscriber has no connection any more."""
        self.client = None
        self.unanswered.clear()
        self.owed_pubcomp.clear()

    @invariant()
    def books_balance(self) -> None:
        """T5: conservation, per subscriber and for the broker, after every step."""
        outstanding = 0
        for session in self.broker.core.sessions:
            session.check_invariants()
            outstanding += session.ledger.outstanding()
        assert self.broker.core.ledger().outstanding() == outstanding


TestSessionMachine = SessionMachine.TestCase
TestSessionMachine.settings = settings(
    max_examples=examples(120), stateful_step_count=50, deadline=None
)
