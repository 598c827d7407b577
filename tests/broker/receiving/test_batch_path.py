"""Runs of packets do what the same packets do one by one."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.config.limits import Limits
from penstock.broker.extensions import DeliveryGate
from penstock.broker.link import Link
from penstock.broker.mqtt.packets import (
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    SubscriptionRequest,
)
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.outbox.delivery import Delivery
from penstock.broker.reports.client_reports import report, subject_of
from tests.helpers.durable import DurableBroker
from tests.helpers.effort import examples
from tests.helpers.samplers import NotingSampler
from tests.helpers.virtual import VirtualBroker, VirtualClient

TOPICS = ("t/0", "t/1", "t/long", "nobody")
PROPERTIES: tuple[dict[str, Any], ...] = (
    {},
    {"content_type": "text/plain", "user_property": [("a", "b")]},
    {"message_expiry_interval": 7},
    {"topic_alias": 1},
    {"response_topic": "r", "correlation_data": b"x" * 1100},
)


class SomeAreLarge(DeliveryGate):
    """A gate for which 300 bytes are many."""

    def threshold_s(self, topic: str) -> int | None:  # noqa: ARG002 (a gate's signature)
        """Return the size above which a message is large."""
        return 300


class Twins:
    """Two brokers that are sent the same: one takes runs, the other packet after packet."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.samplers = NotingSampler(), NotingSampler()
        limits = Limits(receive_maximum=20, inflight_messages=30, inflight_bytes=1500)
        self.brokers = tuple(
            VirtualBroker(limits, samplers=[sampler], gate=SomeAreLarge())
            for sampler in self.samplers
        )
        assert self.brokers[0].core.takes_runs
        self.brokers[1].core.takes_runs = False
        self.clients: dict[str, tuple[VirtualClient, VirtualClient]] = {}
        for name in ("publisher", "both", "all", "some"):
            self.connect(name)
        self.subscribe("both", "t/1", 1)
        self.subscribe("all", "t/#", 2)
        self.subscribe("some", "t/0", 1)

    def connect(self, name: str) -> None:
        """Connect a client to both, with its session if there is one."""
        options: dict[str, Any] = {"clean_start": False}
        if self.version == 5:
            options["properties"] = {"session_expiry_interval": 600, "receive_maximum": 25}
        one, two = (broker.connect(name, self.version, **options) for broker in self.brokers)
        self.clients[name] = one, two

    def subscribe(self, name: str, topic_filter: str, qos: int) -> None:
        """Subscribe a client of both."""
        request = SubscriptionRequest(topic_filter, qos)
        self.send(name, write_packet(Subscribe(1, (request,)), self.version))

    def send(self, name: str, data: bytes) -> None:
        """Let a client send the same to both."""
        for client in self.clients[name]:
            client.send_bytes(data)

    def check(self) -> None:
        """See that nobody can tell the two apart."""
        assert _by_client(self.samplers[0]) == _by_client(self.samplers[1])
        assert _state(self.brokers[0].core.counters) == _state(self.brokers[1].core.counters)
        for one, two in self.clients.values():
            assert (one.is_lost, one.is_reading) == (two.is_lost, two.is_reading)
            for kind in (Publish, PubAck, PubRec, PubRel, PubComp):
                assert _of(one, kind) == _of(two, kind)
            assert len(one.received) == len(two.received)
            if one.is_lost:
                continue
            for client in (one, two):
                client.session.check_invariants()
            assert _state(one.session.ledger) == _state(two.session.ledger)
            assert one.session.incoming == two.session.incoming
            assert len(one.session.inflight) == len(two.session.inflight)
            assert one.session.inflight.n_bytes == two.session.inflight.n_bytes
            assert _waiting(one.session.outbox.waiting()) == _waiting(two.session.outbox.waiting())
            assert report(subject_of(one.session), one.broker.now) == report(
                subject_of(two.session), two.broker.now
            )

    def check_inflight(self) -> None:
        """See that the same is inflight; this ends the runs, so it comes last."""
        for one, two in self.clients.values():
            if not one.is_lost:
                assert _waiting(one.session.inflight) == _waiting(two.session.inflight)


def _state(thing: object) -> dict[str, Any]:
    return {name: getattr(thing, name) for name in type(thing).__slots__}  # type: ignore[attr-defined]


def _by_client(sampler: NotingSampler) -> list[tuple[Any, ...]]:
    return sorted(sampler.told, key=lambda call: str(call[1]))


def _waiting(deliveries: Iterable[Delivery]) -> list[tuple[Any, ...]]:
    """Return all that can be told of some deliveries and their messages."""
    return [
        (
            (delivery.qos, delivery.retain, delivery.subscription_ids, delivery.packet_id),
            (message.topic, message.topic_bytes, message.payload, message.qos, message.retain),
            (message.arrived_at, message.expires_at, message.properties, message.publisher),
            (message.is_large, message.size_bytes, message.memory_bytes),
        )
        for delivery in deliveries
        for message in (delivery.message,)
    ]


def _of(client: VirtualClient, kind: type) -> list[Any]:
    return [packet for packet in client.inbox if isinstance(packet, kind)]


MESSAGES = st.tuples(
    st.integers(0, 9),  # how many alike follow
    st.sampled_from((0, 0, 0, 1, 1, 2, 3)),  # topic
    st.sampled_from((1, 1, 1, 2, 2, 0)),  # QoS
    st.sampled_from((0, 5, 5, 5, 6, 200, 301)),  # bytes
    st.sampled_from((0, 0, 0, 1, 1, 2, 3, 4)),  # properties
    st.sampled_from(("", "", "", "", "", "retain", "dup", "again", "zero")),
)
PUBLISHED = st.tuples(
    st.sampled_from(("publish", "publish one by one")),
    st.sampled_from(("publisher", "both")),
    st.lists(MESSAGES),
)
ANSWERED = st.tuples(
    st.just("answer"),
    st.sampled_from(("both", "all", "some", "publisher")),
    st.integers(0, 40),
    st.sampled_from(
        ("", "", "", "reversed", "bogus", "wrong", "split", "one by one", "one by one", "refused")
    ),
)
OTHER = st.tuples(
    st.sampled_from(("lose", "pause", "resume", "wait", "moment", "moment", "qos")),
    st.sampled_from(("both", "all", "some", "publisher")),
)


class Script:
    """Plays steps on twins, and answers as a client may."""

    def __init__(self, version: int) -> None:
        self.twins = Twins(version)
        self.version = version
        self.next_id = 250

    def play(self, step: tuple[Any, ...]) -> None:
        """Do one thing."""
        name = step[1]
        if any(client.is_lost for client in self.twins.clients[name]):
            self.twins.connect(name)
        if step[0] == "publish":
            self.twins.send(name, b"".join(self._messages(step[2])))
        elif step[0] == "publish one by one":
            self._send_alone(name, self._messages(step[2]))
        elif step[0] == "answer":
            self._answer(*step[1:])
        else:
            for client in self.twins.clients[name]:
                self._other(step[0], client)
            if step[0] == "qos":
                self.twins.subscribe(name, "t/#", 1)
        self.twins.check()

    def _messages(self, messages: list[tuple[Any, ...]]) -> list[bytes]:
        packets = []
        for n_more, topic, qos, n_bytes, properties, oddity in messages:
            for number in range(n_more + 1):
                if qos and oddity != "again":
                    self.next_id = self.next_id % 600 + 1
                packet = Publish(
                    TOPICS[topic],
                    bytes([number]) * n_bytes,
                    qos=qos,
                    retain=oddity == "retain",
                    dup=oddity == "dup" and qos > 0,
                    packet_id=self.next_id if qos else 0,
                    properties=PROPERTIES[properties] if self.version == 5 else {},
                )
                data = write_packet(packet, self.version)
                if oddity == "zero" and number == 5 and qos:
                    data = data.replace(self.next_id.to_bytes(2), b"\0\0", 1)
                packets.append(data)
        return packets

    def _answer(self, name: str, n_packets: int, manner: str) -> None:
        taken = self.twins.clients[name][0].inbox[:n_packets]
        answers: list[Packet] = []
        for packet in taken:
            match packet:
                case Publish(qos=1):
                    is_refused = manner == "refused" and self.version == 5
                    answers.append(PubAck(packet.packet_id, 0x97 if is_refused else 0))
                case Publish(qos=2):
                    answers.append(PubRec(packet.packet_id))
                case PubRec(reason_code=code) if code < 0x80:
                    answers.append(PubRel(packet.packet_id))
                case PubRel():
                    answers.append(PubComp(packet.packet_id))
        for client in self.twins.clients[name]:
            for packet in taken:
                client.inbox.remove(packet)
        if manner == "reversed":
            answers.reverse()
        if manner == "bogus":
            answers.insert(len(answers) // 2, PubAck(999))
        if manner == "wrong" and answers:
            middle = len(answers) // 2
            owed = answers[middle]
            if isinstance(owed, PubAck | PubRec):
                answers[middle] = PubComp(owed.packet_id)
        packets = [write_packet(answer, self.version) for answer in answers]
        if manner in ("one by one", "refused"):
            self._send_alone(name, packets)
            return
        data = b"".join(packets)
        half = len(data) // 2 + 1 if manner == "split" else 0
        for part in (data[:half], data[half:]):
            if part:
                self.twins.send(name, part)

    def _send_alone(self, name: str, packets: list[bytes]) -> None:
        """Send each packet in a chunk of its own, as long as that is possible."""
        for packet in packets:
            if not any(client.is_lost for client in self.twins.clients[name]):
                self.twins.send(name, packet)

    def _other(self, what: str, client: VirtualClient) -> None:
        match what:
            case "lose":
                client.inbox.clear()
                client.lose()
            case "pause":
                client.connection.pause_sending(client.broker.now)
            case "resume":
                client.connection.resume_sending(client.broker.now)
                client.broker.settle()
            case "wait":
                client.broker.advance(0.5)
            case "moment":
                client.broker.advance(0.03)


@pytest.mark.parametrize("version", [4, 5])
@settings(max_examples=examples(60), deadline=None)
@given(steps=st.lists(PUBLISHED | PUBLISHED | ANSWERED | ANSWERED | OTHER, max_size=25))
def test_a_run_does_what_its_packets_do_one_by_one(
    version: int, steps: list[tuple[Any, ...]]
) -> None:
    """Each client gets the same packets, and every account says the same.

    Where a chunk is interrupted, for others to have their turn, the two need not agree.
    """
    script = Script(version)
    for broker in script.twins.brokers:
        broker.core.turn.most_steps = sys.maxsize
    for step in steps:
        script.play(step)
    script.twins.check_inflight()


def publishes(n_messages: int, qos: int, first_packet_id: int = 1) -> bytes:
    """Return PUBLISH packets that may go as a run."""
    return b"".join(
        write_packet(Publish("t", b"%03d" % number, qos=qos, packet_id=number if qos else 0), 5)
        for number in range(first_packet_id, first_packet_id + n_messages)
    )


def a_pair(broker: VirtualBroker, **options: Any) -> tuple[VirtualClient, VirtualClient]:
    """Return a publisher whose topic is known, and its subscriber."""
    subscriber = broker.connect("s", **options)
    subscriber.subscribe("t", 2)
    publisher = broker.connect("p")
    publisher.publish("t", b"first")
    assert subscriber.payloads() == [b"first"]
    return publisher, subscriber


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_durable_session_is_sent_in_a_run_is_safe_before_its_acknowledgement(
    qos: int,
) -> None:
    """A publisher learns that its messages are taken when they are on the disk."""
    broker = DurableBroker()
    publisher, _ = a_pair(broker, properties={"session_expiry_interval": 600})
    broker.commits_at_once = False
    publisher.send_bytes(publishes(5, qos))
    kind = PubAck if qos == 1 else PubRec
    assert not publisher.take_all(kind)
    broker.commit()
    assert len(publisher.take_all(kind)) == 5
    again = broker.crash().connect("s", clean_start=False)
    assert again.payloads() == [b"%03d" % number for number in range(1, 6)]


def test_a_run_is_acknowledged_behind_what_came_before() -> None:
    """[MQTT-4.6.0-2]: PUBACK packets go in the order of the messages, though one waits."""
    broker = DurableBroker()
    publisher, subscriber = a_pair(broker)
    broker.connect("d", properties={"session_expiry_interval": 600}).subscribe("d", 1)
    broker.commits_at_once = False
    publisher.publish("d", qos=1, packet_id=100)
    publisher.send_bytes(publishes(3, 1))
    assert len(subscriber.payloads()) == 3
    assert not publisher.take_all(PubAck)
    broker.commit()
    assert [packet.packet_id for packet in publisher.take_all(PubAck)] == [100, 1, 2, 3]


def test_a_message_of_a_durable_publisher_comes_once_through_a_crash() -> None:
    """[MQTT-4.3.3-10]: its Packet Identifier is stored, in a run too."""
    broker = DurableBroker()
    broker.connect("s").subscribe("t", 2)
    publisher = broker.connect("p", properties={"session_expiry_interval": 600})
    publisher.publish("t", b"first")
    publisher.send_bytes(publishes(5, 2))
    broker = broker.crash()
    subscriber = broker.connect("s")
    subscriber.subscribe("t", 2)
    again = broker.connect("p", clean_start=False)
    again.send_bytes(publishes(6, 2))
    assert subscriber.payloads() == [b"006"]


class SamplerOfRuns(NotingSampler):
    """Notes what it is told of runs."""

    def sent_run(
        self, link: Link, first_packet_id: int, n_packets: int, payload_bytes: int, now: float
    ) -> None:
        """Note it."""
        self.told.append(("sent", link.client_id, first_packet_id, n_packets, payload_bytes, now))

    def acknowledged_run(
        self, link: Link, first_packet_id: int, n_packets: int, now: float
    ) -> bool:
        """Note it, or fail at the last packet."""
        self.told.append(("acknowledged", link.client_id, first_packet_id, n_packets, now))
        if first_packet_id == 4:
            raise RuntimeError("the sampler's own")
        return self.has_news


def test_a_sampler_of_runs_is_told_once_for_many_packets() -> None:
    """What it raises is counted, and no client notices."""
    sampler = SamplerOfRuns()
    broker = VirtualBroker(samplers=[sampler])
    publisher, subscriber = a_pair(broker)
    sampler.told.clear()
    publisher.send_bytes(publishes(5, 1))
    ids = [packet.packet_id for packet in subscriber.take_all(Publish)]
    subscriber.send(*map(PubAck, ids[:3]))
    subscriber.send(*map(PubAck, ids[3:]))
    assert sampler.told == [
        ("sent", "s", 1, 5, 3, 1000.0),
        ("acknowledged", "s", 1, 3, 1000.0),
        ("acknowledged", "s", 4, 2, 1000.0),
    ]
    assert broker.core.counters.extension_errors == {"SamplerOfRuns": 1}
    assert subscriber.session.settle_direct().delivered == 6


class QuietSampler(SamplerOfRuns):
    """Wants to hear of nothing that leaves before a time, and of acknowledgements when it waits."""

    is_sparing = True


@pytest.mark.parametrize("n_packets", [1, 4])
def test_a_sampler_is_spared_what_its_link_says_alone(n_packets: int) -> None:
    """Of runs as of lone packets; beside another, or where it is not sparing, it hears of all."""
    told = []
    for samplers in ([QuietSampler()], [QuietSampler(), NotingSampler()], [SamplerOfRuns()]):
        broker = VirtualBroker(samplers=samplers)
        publisher, subscriber = a_pair(broker)
        link = subscriber.session.link
        samplers[0].told.clear()
        kinds = []
        for first_id, quiet_until, outstanding_since in (
            (11, 1000.1, None),
            (21, 1000.0, None),
            (31, 1000.1, 999.0),
        ):
            link.quiet_until, link.outstanding_since = quiet_until, outstanding_since
            publisher.send_bytes(publishes(n_packets, 1, first_id))
            ids = [packet.packet_id for packet in subscriber.take_all(Publish)]
            assert len(ids) == n_packets
            subscriber.send(*map(PubAck, ids))
            kinds.append([kind for kind, *_ in samplers[0].told])
            samplers[0].told.clear()
        assert subscriber.session.settle_direct().delivered == 1 + 3 * n_packets
        told.append(kinds)
    both = ["sent", "acknowledged"]
    assert told == [[[], ["sent"], ["acknowledged"]], [both] * 3, [both] * 3]


def test_packets_before_a_bad_one_in_a_run_are_taken() -> None:
    """[MQTT-2.2.1-3]: Packet Identifier 0 ends the connection there."""
    broker = VirtualBroker()
    publisher, subscriber = a_pair(broker)
    bad = publishes(2, 1) + publishes(1, 1, 3).replace(b"\x03", b"\0")
    publisher.send_bytes(bad + publishes(3, 1, 4))
    assert subscriber.payloads() == [b"001", b"002"]
    assert publisher.is_lost


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_remaining_length_of_more_bytes_than_needed_does_not_go_on(qos: int) -> None:
    """MQTT 5.0 wants the shortest form of those who are sent it (1.5.5)."""
    broker = VirtualBroker()
    publisher, subscriber = a_pair(broker)
    packet = publishes(1, qos)
    publisher.send_bytes(packet[:1] + bytes([packet[1] | 0x80, 0]) + packet[2:])
    assert subscriber.received.endswith(packet)


def test_no_packet_of_a_run_is_larger_than_allowed() -> None:
    """Each is measured, and the connection ends at the one that is too large."""
    broker = VirtualBroker(Limits(maximum_packet_size=300))
    publisher, subscriber = a_pair(broker)
    large = write_packet(Publish("t", b"x" * 300, qos=1, packet_id=9), 5)
    publisher.send_bytes(publishes(3, 1) + large + publishes(3, 1))
    assert len(subscriber.payloads()) == 3
    assert publisher.is_lost


def test_runs_are_cut_where_the_client_may_send_no_more() -> None:
    """[MQTT-3.3.4-9]: the message above Receive Maximum ends the connection."""
    broker = VirtualBroker(Limits(receive_maximum=10))
    publisher, subscriber = a_pair(broker)
    publisher.send_bytes(publishes(11, 2))
    assert len(subscriber.payloads()) == 10
    assert publisher.is_lost


@pytest.mark.mqtt5("3.3.2-5")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("n_messages", [1, 3])
def test_an_interval_runs_from_the_moment_in_which_a_message_came(
    n_messages: int, qos: int
) -> None:
    """Though messages of an eighth of a second share the number for their arrival."""
    broker = VirtualBroker()
    publisher, subscriber = a_pair(broker)
    subscriber.connection.pause_sending(broker.now)
    for seconds in (0.1, 0.01):
        broker.advance(seconds)
        packets = [
            Publish("t", b"x", qos, packet_id=number, properties={"message_expiry_interval": 1})
            for number in ((0,) * n_messages if not qos else range(1, n_messages + 1))
        ]
        publisher.send_bytes(b"".join(write_packet(packet, 5) for packet in packets))
        publisher.send(*(PubRel(number) for number in range(1, n_messages + 1) if qos == 2))
    messages = [delivery.message for delivery in subscriber.session.outbox.waiting()]
    assert [message.expires_at for message in messages] == [1001.1] * n_messages + (
        [1001.11] * n_messages
    )
    assert len({id(message.arrived_at) for message in messages}) == 1
    assert messages[0].arrived_at == 1000.0
