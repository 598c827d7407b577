"""A chunk that is not handled all at once has the effect that it has as one."""

from __future__ import annotations

import itertools
import sys
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.config.limits import Limits
from penstock.broker.mqtt.packets import PingReq, PingResp, PubAck, Publish, PubRec
from penstock.broker.mqtt.writer import write_packet
from tests.helpers.effort import examples
from tests.helpers.virtual import VirtualBroker, VirtualClient

BAD = (b"", b"\x36\x03\x00\x01t", b"\x30\xff\xff\xff\xff")
"""What follows good packets: nothing, QoS 3, a Remaining Length that does not end."""

MESSAGES = st.lists(
    st.tuples(
        st.sampled_from(("a", "a", "a", "b", "nobody")),
        st.sampled_from((0, 0, 0, 1, 2)),
        st.sampled_from((3, 3, 3, 40)),
    ),
    max_size=40,
)


def chunk_of(messages: list[tuple[str, int, int]]) -> bytes:
    """Return PUBLISH packets that are numbered."""
    packets = [
        Publish(topic, b"%03d" % number + bytes(size), qos=qos, packet_id=number if qos else 0)
        for number, (topic, qos, size) in enumerate(messages, 1)
    ]
    return b"".join(write_packet(packet, 5) for packet in packets)


def finish(broker: VirtualBroker, clients: list[VirtualClient]) -> dict[str, list[tuple[Any, ...]]]:
    """Let every subscriber read and acknowledge all; return what came, by client."""
    came: dict[str, list[tuple[Any, ...]]] = {}
    for client in clients:
        client.connection.resume_sending(broker.now)
    broker.settle()
    broker.advance(5)
    for client in clients:
        own = came[client.session.client_id] = []
        while packets := client.take_all(Publish):
            for packet in packets:
                own.append((packet.topic, packet.qos, packet.payload))
                if packet.qos == 1:
                    client.send(PubAck(packet.packet_id))
                elif packet.qos == 2:
                    client.send(PubRec(packet.packet_id))
        client.session.check_invariants()
    return came


def play(
    data: bytes, cuts: list[int], most_steps: int, paused: set[str]
) -> tuple[dict[str, list[tuple[Any, ...]]], list[Any]]:
    """Publish a chunk in parts; return what came to the subscribers, and what was answered."""
    broker = VirtualBroker(Limits(receive_maximum=100))
    subscribers = []
    for name, topic_filter, qos in (("zero", "a", 0), ("all", "#", 2), ("one", "b", 1)):
        subscriber = broker.connect(name)
        subscriber.subscribe(topic_filter, qos)
        subscribers.append(subscriber)
    publisher = broker.connect("p")
    for topic in ("a", "b"):  # so that it is known
        publisher.publish(topic, b"first")
    for subscriber in subscribers:
        subscriber.inbox.clear()
        if subscriber.session.client_id in paused:
            subscriber.connection.pause_sending(broker.now)
    broker.core.turn.most_steps = most_steps
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, stop in itertools.pairwise(edges):
        publisher.send_bytes(data[start:stop])
    came = finish(broker, subscribers)
    ledger = broker.core.ledger()
    answered = [(type(packet), getattr(packet, "packet_id", 0)) for packet in publisher.inbox]
    counters = broker.core.counters
    return came, [
        answered,
        publisher.is_lost,
        ledger.matched,
        ledger.delivered,
        ledger.outstanding(),
        counters.packets_received - sum(len(packets) for packets in came.values()),
        counters.publish_received,
    ]


def by_topic(packets: list[tuple[Any, ...]]) -> dict[tuple[Any, ...], list[bytes]]:
    """Return payloads by topic and QoS: only these have an order."""
    payloads: dict[tuple[Any, ...], list[bytes]] = {}
    for topic, qos, payload in packets:
        payloads.setdefault((topic, qos), []).append(payload)
    return payloads


@settings(max_examples=examples(150), deadline=None)
@given(
    messages=MESSAGES,
    cuts=st.lists(st.integers(0, 4000), max_size=6),
    most_steps=st.integers(1, 8),
    paused=st.sets(st.sampled_from(("zero", "all", "one"))),
    bad=st.sampled_from(BAD),
)
def test_slices_and_turns_change_nothing(
    messages: list[tuple[str, int, int]],
    cuts: list[int],
    most_steps: int,
    paused: set[str],
    bad: bytes,
) -> None:
    """Who gets what in which order, the answers and every account are those of one chunk."""
    data = chunk_of(messages) + bad
    came, accounts = play(data, cuts, most_steps, paused)
    came_at_once, accounts_at_once = play(data, [], sys.maxsize, paused)
    assert {name: by_topic(packets) for name, packets in came.items()} == {
        name: by_topic(packets) for name, packets in came_at_once.items()
    }
    assert accounts == accounts_at_once


def test_the_others_have_their_turn_within_a_chunk() -> None:
    """A chunk for a subscriber without room is put off; the publisher is not read from then."""
    broker = VirtualBroker()
    subscriber = broker.connect("s")
    subscriber.subscribe("t")
    publisher = broker.connect("p")
    publisher.publish("t", b"first")
    subscriber.stall()
    n_messages = 3 * broker.core.turn.most_steps
    broker.core.turn.is_running = True
    data = write_packet(Publish("t", b"data"), 5) * n_messages
    publisher.connection.receive_data(data, broker.now)
    outbox = subscriber.session.outbox
    n_turns = 0
    while outbox.n_messages < n_messages:
        n_turns += 1
        assert 0 < outbox.n_messages <= n_turns * broker.core.turn.most_steps
        assert publisher.connection.wants_turn
        assert not publisher.connection.client.wants_reading
        publisher.connection.go_on(broker.now)
    assert n_turns >= 2
    assert not publisher.connection.wants_turn
    assert publisher.connection.client.wants_reading


def test_what_is_put_off_waits_for_a_throttled_publisher() -> None:
    """Nothing more goes to a subscriber that the publisher waits for, whatever came already."""
    broker = VirtualBroker()
    subscriber = broker.connect("s")
    subscriber.subscribe("t")
    publisher = broker.connect("p")
    publisher.publish("t", b"first")
    assert subscriber.payloads() == [b"first"]
    subscriber.connection.pause_sending(broker.now)
    publisher.send_bytes(write_packet(Publish("t", b"data"), 5) * 200)
    assert subscriber.session.outbox.n_messages == broker.core.turn.most_steps
    assert not publisher.connection.wants_turn
    publisher.send(PingReq())
    assert not publisher.take_all(PingResp)
    subscriber.connection.resume_sending(broker.now)
    broker.settle()
    assert len(subscriber.payloads()) == 200
    assert len(publisher.take_all(PingResp)) == 1


def test_deliveries_to_shared_subscriptions_are_steps_as_others_are() -> None:
    """One message may be for very many groups of workers: the next one waits for its turn."""
    broker = VirtualBroker()
    worker = broker.connect("w")
    for number in range(broker.core.turn.most_steps):
        worker.subscribe(f"$share/{number}/t")
    publisher = broker.connect("p").connection
    packet = write_packet(Publish("t", b"x"), 5)
    publisher.receive_data(packet * 2, broker.now)
    assert publisher.has_backlog
    broker.settle()
    assert len(worker.payloads()) == 2 * broker.core.turn.most_steps
