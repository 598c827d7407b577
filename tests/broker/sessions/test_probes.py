"""Probes that samplers have sent: to whom, when, and what becomes of them."""

from __future__ import annotations

import logging
from typing import Any, Literal

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.broker.config.limits import Limits
from penstock.broker.extensions import LinkSampler
from penstock.broker.link import Link
from penstock.broker.mqtt.packets import Disconnect, PubAck, Publish, Unsubscribe
from penstock.broker.reports.sampling import Sampling
from tests.helpers.access import Access
from tests.helpers.durable import DurableBroker
from tests.helpers.effort import examples
from tests.helpers.gates import SwitchGate
from tests.helpers.virtual import VirtualBroker, VirtualClient

TOPIC = "latency"
PERIOD = 1.0
PROBE = b"p" * 5_000
FOR_EVER = {"session_expiry_interval": 0xFFFFFFFF}


class Listening(LinkSampler):
    """A sampler that notes what it is told.

    Attributes:
        sent_ids: Packet Identifiers of normal deliveries.
        acknowledged_ids: those of acknowledgements.
    """

    period: float | None = PERIOD

    def __init__(self) -> None:
        self.sent_ids: list[int] = []
        self.acknowledged_ids: list[int] = []

    def sent(self, link: Link, packet_id: int, payload_bytes: int, now: float) -> None:
        """Note it."""
        del link, payload_bytes, now
        self.sent_ids.append(packet_id)

    def acknowledged(self, link: Link, packet_id: int, now: float) -> bool:
        """Note it."""
        del link, now
        self.acknowledged_ids.append(packet_id)
        return False


class Probing(Listening, LinkSampler):
    """A sampler that sends probes.

    Attributes:
        probes: (client id, Packet Identifier, monotonic seconds) of those sent.
    """

    probe_topic = TOPIC
    probe_payload = PROBE

    def __init__(self) -> None:
        super().__init__()
        self.probes: list[tuple[str, int, float]] = []

    def probe_sent(self, link: Link, packet_id: int, now: float) -> None:
        """Note it."""
        self.probes.append((link.client_id, packet_id, now))


class Silent(Probing):
    """A sampler that probes, and whose `sample` returns nothing."""

    def sample(self, link: Link, fileno: int, now: float) -> bool:  # noqa: ARG002
        """Return None."""
        return None  # type: ignore[return-value]


def probed(
    kind: type[VirtualBroker] = VirtualBroker, sampler: Probing | None = None, **options: Any
) -> tuple[Any, Probing]:
    """Return a broker with a sampler that probes each second."""
    sampler = Probing() if sampler is None else sampler
    broker = kind(samplers=[sampler], **options)
    Sampling(broker.core, sampler, PERIOD).start(broker.now)
    return broker, sampler


def connect(broker: VirtualBroker, client_id: str = "c", **options: Any) -> VirtualClient:
    """Connect a client."""
    client = broker.connect(client_id, **options)
    setattr(client, "fileno", -1)  # noqa: B010 (the transport has it, the client not)
    return client


def subscriber(broker: VirtualBroker, client_id: str = "c", **options: Any) -> VirtualClient:
    """Connect a client that subscribes to be probed."""
    client = connect(broker, client_id, **options)
    client.subscribe(TOPIC, qos=1)
    return client


def probes(client: VirtualClient) -> list[Publish]:
    """Take the probes off a client's inbox; all are as probes must be."""
    found = [packet for packet in client.take_all(Publish) if packet.payload == PROBE]
    for packet in found:
        assert (packet.topic, packet.qos, packet.retain) == (TOPIC, 1, False)
    return found


def counts(client: VirtualClient) -> tuple[int, int, int]:
    """Return (matched, delivered, inflight) of a client's session, whose account balances."""
    session = client.session
    session.check_invariants()
    return session.ledger.matched, session.ledger.delivered, len(session.inflight)


@pytest.mark.parametrize("version", [4, 5])
def test_a_subscriber_of_the_topic_is_probed_in_each_period(version: int) -> None:
    """One QoS 1 message, acknowledged like any other, and in the account."""
    broker, sampler = probed()
    client = subscriber(broker, version=version)
    for n in range(1, 4):
        broker.advance(PERIOD)
        (probe,) = probes(client)
        assert counts(client) == (n, n - 1, 1)
        client.send(PubAck(probe.packet_id))
        assert counts(client) == (n, n, 0)
    assert [at for _, _, at in sampler.probes] == [1001.0, 1002.0, 1003.0]
    assert sampler.acknowledged_ids == [packet_id for _, packet_id, _ in sampler.probes]
    assert not sampler.sent_ids


def test_a_sampler_that_looks_at_nothing_probes() -> None:
    """Only one that raises is passed over."""
    broker, sampler = probed(sampler=Silent())
    client = subscriber(broker)
    broker.advance(PERIOD)
    assert len(probes(client)) == len(sampler.probes) == 1


def test_only_who_subscribed_by_that_name_at_qos_1_or_2_is_probed() -> None:
    """A probe costs traffic: nobody gets it by a wildcard, a share or QoS 0."""
    broker, sampler = probed()
    wanted = {"at-1": (TOPIC, 1), "at-2": (TOPIC, 2)}
    others = {
        "at-0": (TOPIC, 0),
        "all": ("#", 1),
        "level": ("+", 2),
        "share": (f"$share/g/{TOPIC}", 1),
        "below": (f"{TOPIC}/#", 1),
        "other": ("other", 1),
    }
    clients = {name: connect(broker, name) for name in (*wanted, *others)}
    for name, (topic_filter, qos) in {**wanted, **others}.items():
        clients[name].subscribe(topic_filter, qos=qos)
    broker.advance(PERIOD)
    assert {name for name, client in clients.items() if probes(client)} == set(wanted)
    assert {name for name, _, _ in sampler.probes} == set(wanted)
    clients["at-1"].send(Unsubscribe(1, (TOPIC,)), PubAck(1))
    broker.advance(PERIOD)
    assert not probes(clients["at-1"])


def test_one_probe_at_a_time_is_unanswered() -> None:
    """A dead path gathers none, however long it is dead."""
    broker, _ = probed()
    client = subscriber(broker)
    broker.advance(100 * PERIOD)
    (probe,) = probes(client)
    assert counts(client) == (1, 0, 1)
    client.send(PubAck(probe.packet_id))
    broker.advance(PERIOD)
    assert len(probes(client)) == 1


def test_a_refused_probe_is_answered() -> None:
    """PUBACK with a reason code of failure is an answer, booked as any other."""
    broker, sampler = probed()
    client = subscriber(broker)
    broker.advance(PERIOD)
    client.send(PubAck(probes(client)[0].packet_id, 0x80))
    assert counts(client) == (1, 0, 0)
    assert client.session.ledger.dropped == {"refused": 1}
    broker.advance(PERIOD)
    assert len(sampler.probes) == 2


def test_withheld_messages_do_not_hold_a_probe() -> None:
    """It is no large message, though longer than threshold_s, and passes those of its own topic."""
    broker, _ = probed(gate=SwitchGate())
    client = subscriber(broker)
    connect(broker, "publisher").publish(TOPIC, bytes(200), qos=1)
    assert client.session.outbox.n_withheld == 1
    broker.advance(PERIOD)
    assert len(probes(client)) == 1
    assert client.session.outbox.n_withheld == 1
    assert counts(client)[:2] == (2, 0)


def test_a_probe_waits_for_room_and_goes_first() -> None:
    """It passes what waits: the backlog of a slow path is no part of the RTT of the path."""
    broker, sampler = probed()
    client = subscriber(broker)
    publisher = connect(broker, "publisher")
    client.connection.pause_sending(broker.now)
    for n in range(3):
        publisher.publish(TOPIC, b"%d" % n)
    broker.advance(10.5)
    assert not sampler.probes
    assert counts(client)[0] == 3
    client.connection.resume_sending(broker.now)
    broker.settle()
    assert [packet.payload for packet in client.take_all(Publish)] == [PROBE, b"0", b"1", b"2"]
    assert sampler.probes == [("c", 1, broker.now)]
    assert counts(client) == (4, 3, 1)


@pytest.mark.mqtt5("3.3.4-9")
def test_a_probe_keeps_to_the_clients_receive_maximum() -> None:
    """[MQTT-3.3.4-9]: it is one of the messages that may be unacknowledged."""
    broker, sampler = probed()
    client = subscriber(broker, properties={"receive_maximum": 1})
    publisher = connect(broker, "publisher")
    for n in range(2):
        publisher.publish(TOPIC, b"%d" % n, qos=1)
    broker.advance(2 * PERIOD)
    assert not sampler.probes
    assert client.acknowledge() == [b"0"]
    assert client.acknowledge() == [PROBE]
    assert client.acknowledge() == [b"1"]
    assert counts(client) == (3, 3, 0)


def test_a_probe_that_waits_goes_with_its_connection_and_without_a_trace() -> None:
    """The next connection is probed when its turn comes."""
    broker, sampler = probed()
    client = subscriber(broker, properties=FOR_EVER)
    client.connection.pause_sending(broker.now)
    broker.advance(PERIOD)
    client.lose()
    assert counts(client) == (0, 0, 0)
    again = connect(broker, clean_start=False, properties=FOR_EVER)
    assert not probes(again)
    broker.advance(PERIOD)
    assert len(probes(again)) == 1
    assert len(sampler.probes) == 1


@pytest.mark.mqtt5("4.4.0-1")
def test_an_unanswered_probe_is_repeated_on_the_next_connection() -> None:
    """[MQTT-4.4.0-1]: with its Packet Identifier; none is sent beside it."""
    broker, sampler = probed()
    client = subscriber(broker, properties=FOR_EVER)
    broker.advance(PERIOD)
    (first,) = probes(client)
    client.lose()
    for _ in range(3):
        again = connect(broker, clean_start=False, properties=FOR_EVER)
        broker.advance(10 * PERIOD)
        (repeated,) = probes(again)
        assert (repeated.packet_id, repeated.dup) == (first.packet_id, True)
        assert counts(again) == (1, 0, 1)
        again.lose()
    again = connect(broker, clean_start=False, properties=FOR_EVER)
    again.send(PubAck(first.packet_id))
    broker.advance(PERIOD)
    assert len(sampler.probes) == 2


def test_an_unanswered_probe_ends_with_its_session() -> None:
    """It is dropped and counted, as all that was inflight."""
    broker, _ = probed()
    client = subscriber(broker)
    broker.advance(PERIOD)
    client.lose()
    assert broker.core.ledger().dropped == {"session_ended": 1}
    assert broker.core.ledger().outstanding() == 0


def test_probes_are_not_stored() -> None:
    """A restart has no use for them; the session is there, and is probed again."""
    broker, _ = probed(DurableBroker)
    client = subscriber(broker, properties=FOR_EVER, clean_start=False)
    writes = len(broker.disk.messages), len(broker.disk.deliveries)
    broker.advance(PERIOD)
    assert len(probes(client)) == 1
    assert broker.journal.is_settled
    assert (len(broker.disk.messages), len(broker.disk.deliveries)) == writes == (0, 0)
    broker.disk.check()
    restarted = broker.crash()
    again = connect(restarted, clean_start=False, properties=FOR_EVER)
    assert not probes(again)
    assert counts(again) == (0, 0, 0)


@pytest.mark.mqtt5("3.1.2-24")
def test_a_client_that_takes_no_packet_so_long_is_not_probed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """[MQTT-3.1.2-24]: nothing is dropped for it, period by period; the log tells once."""
    broker, sampler = probed()
    client = subscriber(broker, properties={"maximum_packet_size": len(PROBE)})
    broker.advance(10 * PERIOD)
    assert not sampler.probes
    assert counts(client) == (0, 0, 0)
    (told,) = [r.getMessage() for r in caplog.records if "probes" in r.getMessage()]
    assert told == (
        "client c: gets no probes, as they are longer than its Maximum Packet Size of 5000 bytes: "
        "a probe has 5023; further clients are not named"
    )


def test_a_probe_takes_no_place_in_a_full_outbox() -> None:
    """Neither is a message pushed out for it nor the client disconnected."""
    limits = Limits(queued_messages=1, queue_full="disconnect")
    broker, _ = probed(limits=limits)
    client = subscriber(broker)
    client.connection.pause_sending(broker.now)
    connect(broker, "publisher").publish(TOPIC, b"waits")
    broker.advance(10 * PERIOD)
    assert not client.is_lost
    client.connection.resume_sending(broker.now)
    broker.settle()
    assert len(client.payloads()) == 2


def test_a_probe_is_for_its_subscriber_alone_and_others_may_publish_there() -> None:
    """Whoever publishes on the topic reaches all, and nothing of a probe is retained."""
    broker, sampler = probed()
    client = subscriber(broker)
    reader = connect(broker, "reader")
    reader.subscribe("#", qos=1)
    broker.advance(PERIOD)
    connect(broker, "publisher").publish(TOPIC, b"news", qos=1)
    assert client.acknowledge() == [PROBE, b"news"]
    assert reader.acknowledge() == [b"news"]
    assert counts(client) == (2, 2, 0)
    assert sampler.sent_ids
    assert not connect(broker, "late").subscribe(TOPIC, qos=0)
    assert broker.core.retained.n_bytes == 0


@pytest.mark.mqtt5("3.3.4-3")
def test_a_probe_names_all_subscriptions_that_match() -> None:
    """[MQTT-3.3.4-3]: the identifiers of those by wildcards, too."""
    broker, _ = probed()
    client = connect(broker)
    for number, (topic_filter, qos) in enumerate({TOPIC: 1, "#": 2, "other": 1}.items(), start=1):
        client.subscribe(topic_filter, qos=qos, properties={"subscription_identifier": [number]})
    broker.advance(PERIOD)
    (probe,) = probes(client)
    assert sorted(probe.properties["subscription_identifier"]) == [1, 2]


def test_who_may_not_receive_the_topic_is_not_probed() -> None:
    """Access control is asked each time, as its rules may change."""
    access = Access()
    access.refused.add(("receive", TOPIC, "c"))
    broker, _ = probed(access=access)
    client, other = subscriber(broker), subscriber(broker, "other")
    broker.advance(PERIOD)
    assert not probes(client)
    assert len(probes(other)) == 1
    access.refused.clear()
    broker.advance(PERIOD)
    assert len(probes(client)) == 1


@pytest.mark.parametrize("stays", [True, False])
def test_an_answer_that_takes_its_time_is_waited_for(*, stays: bool) -> None:
    """One question at a time; a client that has gone meanwhile gets nothing, and keeps none."""
    access = Access()
    broker, sampler = probed(access=access)
    client = subscriber(broker, properties=FOR_EVER)
    access.waits = True
    broker.advance(5.5 * PERIOD)
    assert len(broker.waiting) == 1
    assert not sampler.probes
    if not stays:
        client.lose()
        access.waits = False
        connect(broker, clean_start=False, properties=FOR_EVER)
    broker.finish_waiting()
    assert len(sampler.probes) == stays
    assert client.session.probe is None or stays


def test_nobody_to_probe_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """After a round of subscribers none of whom asks for probes; nothing is said of no clients."""
    caplog.set_level(logging.INFO)
    broker, _ = probed()
    broker.advance(3 * PERIOD)
    assert not caplog.records
    connect(broker).subscribe("#", qos=1)
    broker.advance(3 * PERIOD)
    assert [record.getMessage() for record in caplog.records] == [
        "no probes are sent: no client has subscribed to 'latency' by this name, at QoS 1 or 2"
    ]


def test_a_sampler_without_a_topic_sends_no_probes() -> None:
    """Whoever could send some need not."""
    sampler = Probing()
    sampler.probe_topic = None  # type: ignore[assignment]
    broker = VirtualBroker(samplers=[sampler])
    Sampling(broker.core, sampler, PERIOD).start(broker.now)
    client = subscriber(broker)
    broker.advance(3 * PERIOD)
    assert not probes(client)


def test_another_samplers_probe_is_a_delivery_like_any_other() -> None:
    """Only its own sampler knows it as a probe."""
    probing, other = Probing(), Listening()
    broker = VirtualBroker(samplers=[other, probing])
    Sampling(broker.core, probing, PERIOD).start(broker.now)
    client = subscriber(broker)
    broker.advance(PERIOD)
    assert client.acknowledge() == [PROBE]
    assert (other.sent_ids, other.acknowledged_ids) == ([1], [1])


class Probed(RuleBasedStateMachine):
    """Clients that come, go, stall and answer as they like, while they are probed."""

    names = ("a5", "b5", "c4")

    @initialize(
        queued_messages=st.integers(1, 5),
        queue_full=st.sampled_from(["drop_newest", "drop_oldest"]),
    )
    def start(
        self, queued_messages: int, queue_full: Literal["drop_newest", "drop_oldest"]
    ) -> None:
        """Start a broker with small queues; two of the sessions last."""
        limits = Limits(queued_messages=queued_messages, queue_full=queue_full)
        self.broker, self.sampler = probed(gate=SwitchGate(), limits=limits)
        self.clients: dict[str, VirtualClient] = {}
        self.unanswered: dict[str, list[Publish]] = {name: [] for name in self.names}

    @rule(name=st.sampled_from(names), receive_maximum=st.integers(1, 3))
    def comes(self, name: str, receive_maximum: int) -> None:
        """Connect, maybe in place of another connection, and subscribe to be probed."""
        is_5 = name.endswith("5")
        options: dict[str, Any] = {"version": int(name[1]), "clean_start": name != "a5" and is_5}
        if is_5:
            properties = {"receive_maximum": receive_maximum}
            options["properties"] = properties | (FOR_EVER if name == "a5" else {})
        self.unanswered[name].clear()
        client = self.clients[name] = connect(self.broker, name, **options)
        client.subscribe("#", qos=1)
        client.subscribe(TOPIC, qos=1)

    @rule(name=st.sampled_from(names), says_so=st.booleans())
    def goes(self, name: str, *, says_so: bool) -> None:
        """End the connection."""
        client = self.clients.pop(name, None)
        if client is not None and not client.is_lost:
            if says_so:
                client.send(Disconnect())
            client.lose()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def stalls_or_goes_on(self, data: st.DataObject) -> None:
        """The transport has no room any more, or has some again."""
        client = self.clients[data.draw(st.sampled_from(sorted(self.clients)))]
        if client.connection.outgoing.is_paused:
            client.connection.resume_sending(self.broker.now)
        else:
            client.connection.pause_sending(self.broker.now)
        self.broker.settle()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def acknowledges(self, data: st.DataObject) -> None:
        """Answer the oldest that is unanswered."""
        name = data.draw(st.sampled_from(sorted(self.clients)))
        self._read()
        if self.unanswered[name]:
            self.clients[name].send(PubAck(self.unanswered[name].pop(0).packet_id))

    @rule(
        size=st.sampled_from([1, 200]), qos=st.integers(0, 1), topic=st.sampled_from([TOPIC, "t"])
    )
    def publishes(self, size: int, qos: int, topic: str) -> None:
        """Somebody publishes, small or large, also on the topic of probes."""
        publisher = connect(self.broker, "publisher")
        publisher.publish(topic, bytes(size), qos=qos)
        publisher.lose()

    @rule(seconds=st.sampled_from([0.5, 1.0, 7.0]))
    def time_passes(self, seconds: float) -> None:
        """Let it."""
        self.broker.advance(seconds)

    def _read(self) -> None:
        for name, client in self.clients.items():
            self.unanswered[name] += [p for p in client.take_all(Publish) if p.qos]

    @invariant()
    def accounts_balance_and_no_probes_pile_up(self) -> None:
        """T5, and one probe of a session at most is unacknowledged."""
        self._read()
        for session in self.broker.core.sessions:
            session.check_invariants()
            assert sum(d.message.payload == PROBE for d in session.inflight) <= 1
            assert all(d.message.payload != PROBE for d in session.outbox.waiting())
        held = sum(s.outbox.n_messages + len(s.inflight) for s in self.broker.core.sessions)
        assert self.broker.core.ledger().outstanding() == held


Probed.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None
)
TestProbed = Probed.TestCase
