"""Fast paths do what the plain way does.

Two brokers, one with fast paths and one without, are sent the same. Afterwards nobody can tell the
two apart: not by the bytes that clients get, and not by counters, ledgers, sessions or the disk.
Each fast path has a mixture of packets that it takes.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.config.limits import Limits
from penstock.broker.extensions import DeliveryGate
from penstock.broker.fast_paths.fast_core import FastCore
from penstock.broker.message import Message
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
from penstock.broker.operations.tail import OpenTail, Tails
from penstock.broker.outbox.delivery import Delivery
from penstock.broker.reports.client_reports import report, subject_of
from penstock.broker.sessions.broker_state import Core
from tests.helpers.access import Access
from tests.helpers.durable import DurableBroker
from tests.helpers.effort import examples
from tests.helpers.samplers import NotingSampler
from tests.helpers.sinks import HoldingSink, RunSink
from tests.helpers.virtual import VirtualBroker, VirtualClient

PROPERTIES: tuple[dict[str, Any], ...] = (
    {},
    {"content_type": "text/plain", "user_property": [("a", "b")]},
    {"message_expiry_interval": 7},
    {"message_expiry_interval": 0},
    {"topic_alias": 1},
    {"response_topic": "r", "correlation_data": b"x" * 1100},
)


@dataclass(frozen=True)
class Mixture:
    """What clients send, so that much of it takes one of the fast paths.

    Attributes:
        topics: from which those of messages are drawn.
        qos: from which that of a message is drawn.
        manners: how the packets of a step are sent: in one chunk, in chunks that are cut somewhere,
            or each alone.
        queued_messages: the limit of each outbox where there is a journal. Where runs meet a full
            outbox, what is dropped or refused depends on how many packets a turn has handled.
        is_durable: there are a journal, a sink, and subscriptions that no packet can be copied to.
        is_judged: access control has a say in who may publish and receive what; its rules change.
        is_shared: three clients share the topics below ``work``.
        is_forwarded: another broker has routed what ``publisher`` sends.
        sink_filters: of a sink that takes runs; none for a sink that takes none.
        sink_room: messages for which it has room.
    """

    topics: tuple[str, ...]
    qos: tuple[int, ...]
    manners: tuple[str, ...]
    is_durable: bool = False
    is_judged: bool = False
    is_shared: bool = False
    queued_messages: int = 1000
    is_forwarded: bool = False
    sink_filters: tuple[str, ...] = ()
    sink_room: int = 1000


class Rules(Access):
    """Access control whose answers last until its rules change."""

    answers_last = True


MIXTURES = {
    "single_packet": Mixture(("t/0", "t/0", "t/1", "t/long", "nobody"), (0, 1, 1, 2), ("alone",)),
    "copied_runs": Mixture(
        ("t/0", "t/0", "t/1", "t/long", "nobody"), (0, 0, 0, 0, 1, 2), ("whole", "cut", "cut")
    ),
    "acknowledged_runs": Mixture(
        ("t/0", "t/0", "t/0", "t/1", "t/long", "nobody"),
        (1, 1, 1, 2, 2, 0),
        ("whole", "whole", "cut", "alone"),
    ),
    "durable_single_packet": Mixture(
        ("t/0", "t/0", "t/1", "away"), (0, 1, 1, 1, 2), ("alone",), is_durable=True
    ),
    "durable_acknowledged_runs": Mixture(
        ("t/0", "t/0", "t/0", "t/1", "t/long", "away", "nobody"),
        (1, 1, 1, 2, 2, 2, 0),
        ("whole", "whole", "whole", "cut"),
        is_durable=True,
    ),
    "unchecked_publish": Mixture(
        ("mixed", "mixed", "mixed", "share", "sink", "away", "nobody"),
        (0, 1, 1, 2, 2),
        ("whole", "cut", "alone"),
        is_durable=True,
        queued_messages=8,
    ),
    "shared": Mixture(
        ("work/1", "work/1", "work/2", "t/0", "nobody"),
        (0, 1, 1, 1, 2),
        ("whole", "whole", "cut", "alone"),
        is_shared=True,
    ),
    "shared, judged": Mixture(
        ("work/1", "work/1", "work/2", "t/0"),
        (0, 1, 1, 1, 2),
        ("whole", "whole", "cut", "alone"),
        is_judged=True,
        is_shared=True,
    ),
    "sink alone": Mixture(
        ("t/0", "t/0", "t/1", "sink", "nobody"),
        (0, 1, 1, 2),
        ("alone",),
        sink_filters=("sink", "t/0", "t/1"),
    ),
    "sink runs": Mixture(
        ("t/0", "t/0", "t/0", "t/1", "t/long", "sink", "sink"),
        (0, 0, 1, 1, 2),
        ("whole", "whole", "cut"),
        sink_filters=("sink", "t/#"),
    ),
    "sink without room": Mixture(
        ("t/0", "t/0", "t/1", "sink", "sink"),
        (0, 1, 1, 2),
        ("whole", "cut", "alone"),
        sink_filters=("sink", "t/0"),
        sink_room=8,
    ),
    "durable sink runs": Mixture(
        ("t/0", "t/0", "away", "sink", "sink", "share"),
        (0, 1, 1, 2),
        ("whole", "whole", "cut", "alone"),
        is_durable=True,
        is_judged=True,
        sink_filters=("sink", "t/0", "away"),
    ),
    "forwarded": Mixture(
        ("t/0", "t/0", "t/0", "t/1", "work/1", "sink", "nobody"),
        (0, 1, 1, 2),
        ("whole", "whole", "cut", "alone"),
        is_forwarded=True,
        is_judged=True,
        is_shared=True,
        sink_filters=("sink", "t/0"),
    ),
    "forwarded, durable": Mixture(
        ("t/0", "mixed", "mixed", "share", "sink", "away", "nobody"),
        (0, 1, 1, 2),
        ("whole", "cut", "alone"),
        is_durable=True,
        is_forwarded=True,
        queued_messages=8,
    ),
    "judged alone": Mixture(
        ("t/0", "t/0", "t/1", "t/long", "nobody"), (0, 1, 1, 2), ("alone",), is_judged=True
    ),
    "judged runs": Mixture(
        ("t/0", "t/0", "t/0", "t/1", "nobody"), (0, 1, 2), ("whole", "cut"), is_judged=True
    ),
    "judged, unchecked": Mixture(
        ("t/0", "mixed", "mixed", "share", "sink", "away", "nobody"),
        (0, 1, 1, 2, 2),
        ("whole", "cut", "alone"),
        is_durable=True,
        is_judged=True,
    ),
}


class SomeAreLarge(DeliveryGate):
    """A gate for which 300 bytes are many."""

    def threshold_s(self, topic: str) -> int | None:  # noqa: ARG002 (a gate's signature)
        """Return the size above which a message is large."""
        return 300


class Twins:
    """Two brokers that are sent the same: one has fast paths, the other has none."""

    def __init__(self, version: int, mixture: Mixture) -> None:
        self.version = version
        is_durable = mixture.is_durable
        self.is_forwarded = mixture.is_forwarded
        self.rules = (Rules(), Rules()) if mixture.is_judged else (None, None)
        self.samplers = NotingSampler(), NotingSampler()
        self.sinks: tuple[HoldingSink, HoldingSink] = HoldingSink("sink"), HoldingSink("sink")
        filters, room = mixture.sink_filters, mixture.sink_room
        if filters:
            self.sinks = RunSink(*filters, room=room), RunSink(*filters, room=room)
        limits = Limits(receive_maximum=20, inflight_messages=30, inflight_bytes=1500)
        if is_durable:
            limits = Limits(
                receive_maximum=20,
                inflight_messages=5,
                queued_messages=mixture.queued_messages,
                queue_full="reject",
            )
        self.brokers: tuple[VirtualBroker, ...] = tuple(
            DurableBroker(
                limits=limits, core_class=core, sinks=[sink], gate=SomeAreLarge(), access=rules
            )
            if is_durable
            else VirtualBroker(
                limits,
                core_class=core,
                samplers=[sampler],
                sinks=[sink] if filters else [],
                gate=SomeAreLarge(),
                access=rules,
            )
            for core, sampler, sink, rules in zip(
                (FastCore, Core), self.samplers, self.sinks, self.rules, strict=True
            )
        )
        self._interrupt_nothing()
        self.tail: OpenTail | None = None
        self.clients: dict[str, tuple[VirtualClient, VirtualClient]] = {}
        for name in ("publisher", "both", "all", "some"):
            self.connect(name)
        self.subscribe("both", "t/1", 1)
        self.subscribe("all", "t/#", 2)
        self.subscribe("some", "t/0", 1)
        if mixture.is_shared:
            for name, qos in ("both", 1), ("all", 2), ("some", 2):
                self.subscribe(name, "$share/g/work/+", qos)
        if is_durable:
            self.subscribe("both", "mixed", 1, no_local=version == 5)
            self.subscribe("all", "mixed", 2, retain_as_published=version == 5)
            self.subscribe("some", "$share/g/share", 2)
            self.subscribe("all", "$share/g/share", 1)
            self.connect("other version")
            self.subscribe("other version", "mixed", 1)
            self.connect("away")
            self.subscribe("away", "away", 1)
            for client in self.clients.pop("away"):
                client.lose()

    def connect(self, name: str) -> None:
        """Connect a client to both, with its session if there is one."""
        version = 9 - self.version if name == "other version" else self.version
        options: dict[str, Any] = {"clean_start": False}
        if version == 5:
            options["properties"] = {"session_expiry_interval": 600, "receive_maximum": 25}
        if self.is_forwarded and name == "publisher":
            options["is_forwarded"] = True
        one, two = (broker.connect(name, version, **options) for broker in self.brokers)
        self.clients[name] = one, two

    def subscribe(self, name: str, topic_filter: str, qos: int, **options: bool) -> None:
        """Subscribe a client of both."""
        request = SubscriptionRequest(topic_filter, qos, **options)
        self.send(name, write_packet(Subscribe(1, (request,)), self.clients[name][0].version))

    def crash(self) -> None:
        """End both brokers without a word; they start again on their disks, and all connect."""
        self.tail = None
        for sink in self.sinks:
            sink.receipts.clear()
        self.brokers = tuple(
            broker.crash() for broker in self.brokers if isinstance(broker, DurableBroker)
        )
        self._interrupt_nothing()
        for name in self.clients:
            self.connect(name)

    def _interrupt_nothing(self) -> None:
        """Have chunks handled whole: where others had their turn, the two need not agree."""
        for broker in self.brokers:
            broker.core.turn.most_steps = sys.maxsize

    def send(self, name: str, data: bytes) -> None:
        """Let a client send the same to both."""
        for client in self.clients[name]:
            client.send_bytes(data)

    def open_or_close_tail(self) -> None:
        """Have somebody watch the one with fast paths, which leaves them meanwhile, or end that."""
        if self.tail is None:
            self.tail = Tails(self.brokers[0].core).open(None, None, None)
        else:
            self.tail.close()
            self.tail = None

    def change_rules(self, rules: set[tuple[str, ...]]) -> None:
        """Refuse other things from now on."""
        for access in self.rules:
            if access is not None:
                access.refused = rules
                access.rules_changed()

    def check(self) -> None:
        """See that nobody can tell the two apart."""
        assert _by_client(self.samplers[0]) == _by_client(self.samplers[1])
        assert _state(self.brokers[0].core.counters) == _state(self.brokers[1].core.counters)
        assert _retained(self.brokers[0].core) == _retained(self.brokers[1].core)
        assert _of_sink(self.sinks[0]) == _of_sink(self.sinks[1])
        assert _on_disk(self.brokers[0]) == _on_disk(self.brokers[1])
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
            assert _incoming(one) == _incoming(two)
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


def _retained(core: Core) -> tuple[Any, ...]:
    retained = core.retained
    messages = [_told(message) for message in retained.by_topic.values()]
    return messages, retained.n_bytes, retained.n_limited, retained.level_bytes


def _of_sink(sink: HoldingSink) -> list[Any]:
    return [(message.topic, message.payload, message.qos) for message in sink.messages]


def _on_disk(broker: VirtualBroker) -> list[Any]:
    if not isinstance(broker, DurableBroker):
        return []
    disk = broker.disk
    deliveries = [
        (row._replace(row=0, message=0), disk.messages[row.message,]._replace(row=0))
        for _, row in sorted(disk.deliveries.items(), key=lambda item: (item[1].session, item[0]))
    ]
    return [deliveries, sorted(disk.incoming), len(disk.messages), len(disk.retained)]


def _incoming(client: VirtualClient) -> list[int]:
    return list(client.session.incoming)


def _waiting(deliveries: Iterable[Delivery]) -> list[tuple[Any, ...]]:
    """Return all that can be told of some deliveries and their messages."""
    return [
        (
            (delivery.qos, delivery.retain, delivery.subscription_ids, delivery.packet_id),
            delivery.share,
            _told(delivery.message),
        )
        for delivery in deliveries
    ]


def _told(message: Message) -> tuple[Any, ...]:
    return (
        (message.topic, message.topic_bytes, message.payload, message.qos, message.retain),
        (message.arrived_at, message.expires_at, message.properties, message.publisher),
        (message.is_large, message.size_bytes, message.memory_bytes),
    )


def _of(client: VirtualClient, kind: type) -> list[Any]:
    return [packet for packet in client.inbox if isinstance(packet, kind)]


ODDITIES = st.sampled_from(("", "", "", "", "", "", "retain", "dup", "again", "zero"))
ANSWERED = st.tuples(
    st.just("answer"),
    st.sampled_from(("both", "all", "some", "publisher")),
    st.integers(0, 40),
    st.sampled_from(
        ("", "", "", "reversed", "bogus", "wrong", "split", "alone", "alone", "refused")
    ),
)
OTHER = st.tuples(
    st.sampled_from(("lose", "pause", "resume", "wait", "moment", "moment", "qos", "tail")),
    st.sampled_from(("both", "all", "some", "publisher")),
)


def published(mixture: Mixture) -> st.SearchStrategy[tuple[Any, ...]]:
    """Return how a client publishes some messages."""
    message = st.tuples(
        st.integers(0, 9),  # how many alike follow
        st.sampled_from(mixture.topics),
        st.sampled_from(mixture.qos),
        st.sampled_from((0, 5, 5, 5, 6, 200, 301)),  # bytes
        st.sampled_from((0, 0, 0, 1, 1, 2, 3, 4, 5)),  # properties
        ODDITIES,
    )
    return st.tuples(
        st.just("publish"),
        st.sampled_from(("publisher", "both")),
        st.lists(message),
        st.sampled_from(mixture.manners),
        st.lists(st.integers(1, 3000), max_size=4),  # where chunks are cut
    )


def refusal_of(mixture: Mixture) -> st.SearchStrategy[tuple[str, ...]]:
    """Return what may be refused: an action on a topic to one client."""
    return st.tuples(
        st.sampled_from(("publish", "receive", "receive")),
        st.sampled_from(mixture.topics),
        st.sampled_from(("publisher", "both", "all", "some")),
    )


def steps_of(mixture: Mixture) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    """Return what happens to the twins."""
    other: st.SearchStrategy[tuple[Any, ...]] = OTHER
    if mixture.sink_filters:
        whom = st.sampled_from(("settle", "settle", "refuse"))
        other |= st.tuples(whom, st.just("publisher"))
    if mixture.is_durable:
        whom = st.sampled_from(("commit", "settle", "settle", "refuse", "crash"))
        other |= st.tuples(whom, st.just("publisher"))
    publish = published(mixture)
    if mixture.is_judged:
        other |= st.tuples(st.just("rules"), st.just("publisher"), st.sets(refusal_of(mixture)))
    return st.lists(publish | publish | ANSWERED | ANSWERED | other, max_size=25)


class Script:
    """Plays steps on twins, and answers as a client may."""

    def __init__(self, version: int, mixture: Mixture) -> None:
        self.twins = Twins(version, mixture)
        self.version = version
        self.next_id = 250
        self.commits_at_once = True

    def play(self, step: tuple[Any, ...]) -> None:
        """Do one thing."""
        name = step[1]
        if any(client.is_lost for client in self.twins.clients[name]):
            self._commit(at_once=True)  # or CONNACK would wait
            self.twins.connect(name)
        match step[0]:
            case "publish":
                _, _, messages, manner, cuts = step
                self._send(name, self._messages(messages), manner, cuts)
            case "answer":
                self._answer(*step[1:])
            case "qos":
                self.twins.subscribe(name, "t/#", 1)
            case "settle" | "refuse":
                for sink, broker in zip(self.twins.sinks, self.twins.brokers, strict=True):
                    if isinstance(
                        sink, RunSink
                    ):  # the receipt of a run is that of all its messages
                        sink.settle_all(0x97 if step[0] == "refuse" else 0)
                        broker.settle()
                        continue
                    sink.receipts = [each for each in sink.receipts if each is not None]
                    if sink.receipts:
                        sink.settle(0x97 if step[0] == "refuse" else 0)
                        broker.settle()
            case "commit":
                self._commit(at_once=not self.commits_at_once)
            case "rules":
                self.twins.change_rules(step[2])
            case "tail":
                self.twins.open_or_close_tail()
            case "crash":
                self.commits_at_once = True
                self.twins.crash()
            case what:
                for client in self.twins.clients[name]:
                    self._other(what, client)
        self.twins.check()

    def _commit(self, *, at_once: bool) -> None:
        """Commit what has changed, and from now on whatever changes, or nothing."""
        self.commits_at_once = at_once
        for broker in self.twins.brokers:
            if isinstance(broker, DurableBroker):
                broker.commits_at_once = at_once
                broker.commit()

    def _messages(self, messages: list[tuple[Any, ...]]) -> list[bytes]:
        packets = []
        for n_more, topic, qos, n_bytes, properties, oddity in messages:
            for number in range(n_more + 1):
                if qos and oddity != "again":
                    self.next_id = self.next_id % 600 + 1
                packet = Publish(
                    topic,
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
        if manner in ("alone", "refused"):
            self._send(name, packets, "alone", [])
        else:
            half = sum(map(len, packets)) // 2 + 1
            self._send(name, packets, "cut", [half] if manner == "split" else [])

    def _send(self, name: str, packets: list[bytes], manner: str, cuts: list[int]) -> None:
        """Send packets in chunks, as long as that is possible."""
        data = b"".join(packets)
        chunks = [data]
        if manner == "alone":
            chunks = packets
        elif manner == "cut":
            edges = [0, *sorted({cut for cut in cuts if cut < len(data)}), len(data)]
            chunks = [data[start:stop] for start, stop in itertools.pairwise(edges)]
        for chunk in chunks:
            if chunk and not any(client.is_lost for client in self.twins.clients[name]):
                self.twins.send(name, chunk)

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
@pytest.mark.parametrize("fast_path", MIXTURES)
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_a_fast_path_does_what_the_plain_way_does(
    fast_path: str, version: int, data: st.DataObject
) -> None:
    """Each client gets the same packets, and every account says the same."""
    mixture = MIXTURES[fast_path]
    script = Script(version, mixture)
    for step in data.draw(steps_of(mixture)):
        script.play(step)
    script.twins.check_inflight()
