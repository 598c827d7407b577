"""How fast a client may publish, on a virtual clock."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.config.limits import Limits
from penstock.broker.mqtt.packets import Disconnect, PingReq, PingResp, PubAck, Publish
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.receiving.rate_limit import RateLimit, n_publishes
from tests.helpers.access import Access, finish
from tests.helpers.virtual import VirtualBroker, VirtualClient


def packets(n_messages: int, *, qos: int = 0, version: int = 5, size: int = 1) -> bytes:
    """Return PUBLISH packets to "t", numbered from 0."""
    return b"".join(
        write_packet(
            Publish("t", b"%d" % number + bytes(size), qos=qos, packet_id=number + 1 if qos else 0),
            version,
        )
        for number in range(n_messages)
    )


def numbers(client: VirtualClient) -> list[int]:
    """Return the numbers of the messages that came."""
    return [int(payload.rstrip(b"\0")) for payload in client.payloads()]


def pair(
    version: int = 5, access: Access | None = None, **limits: Any
) -> tuple[VirtualBroker, VirtualClient, VirtualClient]:
    """Return a broker with limits, a publisher, and a subscriber to everything."""
    broker = VirtualBroker(Limits(**limits), access=access)
    subscriber = broker.connect("s", version)
    subscriber.subscribe("#")
    return broker, broker.connect("p", version), subscriber


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_client_over_its_rate_is_slowed_down(version: int, qos: int) -> None:
    """A burst passes, the next message waits its time, nothing is lost or reordered."""
    broker, publisher, subscriber = pair(version, publish_messages_per_second=10)
    publisher.send_bytes(packets(10, qos=qos, version=version))
    assert publisher.is_reading
    assert numbers(subscriber) == list(range(10))
    publisher.send_bytes(packets(3, qos=qos, version=version))
    assert not publisher.is_reading
    assert numbers(subscriber) == []
    broker.advance(0.09)
    assert numbers(subscriber) == []
    broker.advance(0.02)
    assert numbers(subscriber) == [0]
    assert not publisher.is_reading
    broker.advance(0.2)
    assert numbers(subscriber) == [1, 2]
    assert publisher.is_reading
    assert len(publisher.take_all(PubAck)) == (13 if qos else 0)
    assert broker.core.counters.publishers_slowed == 3


def test_bytes_have_a_rate_too() -> None:
    """Bytes of whole PUBLISH packets count; other packets cost nothing, but keep their place."""
    one = len(packets(1, size=94))
    broker, publisher, subscriber = pair(publish_bytes_per_second=2 * one)
    publisher.send(*[PingReq()] * 100)
    publisher.send_bytes(packets(2, size=94))
    publisher.send(*[PingReq()] * 100)
    assert len(publisher.take_all(PingResp)) == 200
    publisher.send_bytes(packets(1, size=94) + write_packet(PingReq(), 5))
    assert numbers(subscriber) == [0, 1]
    assert publisher.inbox == []
    broker.advance(0.51)
    assert numbers(subscriber) == [0]
    assert publisher.inbox == [PingResp()]


def test_a_message_larger_than_the_bucket_is_paid_for_afterwards() -> None:
    """It passes when the bucket is full; the next one waits for both."""
    broker, publisher, subscriber = pair(publish_bytes_per_second=100)
    publisher.publish("t", bytes(1000))
    publisher.publish("t", b"x")
    assert len(subscriber.payloads()) == 1
    broker.advance(9)
    assert subscriber.payloads() == []
    broker.advance(0.2)
    assert subscriber.payloads() == [b"x"]


@pytest.mark.parametrize("version", [4, 5])
def test_a_client_over_its_rate_may_be_disconnected(version: int) -> None:
    """After what was within its rate; MQTT 5 is told Message rate too high."""
    broker, publisher, subscriber = pair(
        version, publish_messages_per_second=5, publish_rate_exceeded="disconnect"
    )
    publisher.send_bytes(packets(5, version=version))
    assert not publisher.is_lost
    broker.advance(1)
    publisher.send_bytes(packets(6, version=version))
    wanted = [ReasonCode.MESSAGE_RATE_TOO_HIGH] if version == 5 else []
    assert [packet.reason_code for packet in publisher.take_all(Disconnect)] == wanted
    assert publisher.inbox == []
    assert publisher.is_lost
    assert numbers(subscriber) == [*range(5), *range(5)]
    assert broker.core.counters.peer_errors == {ReasonCode.MESSAGE_RATE_TOO_HIGH: 1}


def test_what_comes_in_pieces_or_while_it_waits_keeps_its_order() -> None:
    """Chunks that end anywhere, several of them while the client is held."""
    broker, publisher, subscriber = pair(publish_messages_per_second=4)
    data = packets(40)
    for start in range(0, len(data), 7):
        publisher.send_bytes(data[start : start + 7])
    assert numbers(subscriber) == [0, 1, 2, 3]
    broker.advance(4.01)
    assert numbers(subscriber) == list(range(4, 20))
    broker.advance(5.01)
    assert numbers(subscriber) == list(range(20, 40))
    assert publisher.is_reading


def test_access_control_that_waits_costs_no_tokens_twice() -> None:
    """A message that was read and not yet handled when it began is not counted."""
    access = Access()
    broker, publisher, subscriber = pair(access=access, publish_messages_per_second=10)
    access.waits = True
    publisher.send_bytes(packets(12))
    finish(publisher)
    assert numbers(subscriber) == list(range(10))
    for number in (10, 11):
        broker.advance(0.11)
        finish(publisher)
        assert numbers(subscriber) == [number]
    assert publisher.is_reading


def test_a_client_that_leaves_while_it_waits_is_forgotten() -> None:
    """What it sent beyond its rate was never accepted."""
    broker, publisher, subscriber = pair(publish_messages_per_second=1)
    publisher.send_bytes(packets(3))
    publisher.lose()
    broker.advance(10)
    assert numbers(subscriber) == [0]


def test_a_held_client_does_not_lose_its_keep_alive() -> None:
    """Its PINGREQ cannot be heard meanwhile."""
    broker = VirtualBroker(Limits(publish_messages_per_second=0.01))
    publisher = broker.connect("p", keep_alive=10)
    publisher.send_bytes(packets(2) + write_packet(PingReq(), 5))
    broker.advance(90)
    assert not publisher.is_lost
    broker.advance(20)
    assert publisher.take(PingResp)


def test_the_keep_alive_of_a_held_client_counts_by_what_comes_unread() -> None:
    """[MQTT-3.1.2-22]: what has come to the kernel was sent in time."""
    broker = VirtualBroker(Limits(publish_messages_per_second=0.001))
    publisher = broker.connect("p", keep_alive=10)
    publisher.send_bytes(packets(2))
    assert not publisher.is_reading
    broker.advance(10)
    publisher.unheard_since = broker.now
    broker.advance(14)
    assert not publisher.is_lost
    broker.advance(2)
    assert publisher.is_lost


@given(
    st.lists(st.tuples(st.integers(0, 300), st.floats(0, 3)), max_size=30),
    st.floats(1, 50),
    st.floats(10, 1000),
    st.floats(0.1, 3),
)
def test_no_more_than_rate_times_time_plus_a_burst(
    sent: list[tuple[int, float]], messages: float, n_bytes: float, burst: float
) -> None:
    """In any interval from the start, whatever comes when; and after its wait each may go."""
    limits = Limits(
        publish_messages_per_second=messages,
        publish_bytes_per_second=n_bytes,
        publish_burst_seconds=burst,
    )
    rate = RateLimit(limits, 0.0)
    now, n_bytes_taken = 0.0, 0
    for n_taken, (size, pause) in enumerate(sent, 1):
        now += pause
        data = packets(1, size=size)
        if not rate.take(data, now):
            now += rate.wait_seconds * 1.000001
            assert rate.take(data, now) == len(data)
        n_bytes_taken += len(data)
        assert n_taken <= max(1, messages * burst) + messages * now + 1e-3
        assert n_bytes_taken - len(data) <= max(1, n_bytes * burst) + n_bytes * now + 1e-3


def test_whole_publish_packets_are_counted() -> None:
    """Other packets, and one that has only begun, are none."""
    data = packets(3) + write_packet(PingReq(), 5) + packets(2, qos=1, size=300)
    assert n_publishes(data) == 5
    assert n_publishes(data[:-1]) == 4
    assert n_publishes(b"\x30") == 0
    assert n_publishes(b"\x30\xff\xff\xff\xff") == 0


def test_a_client_that_is_closed_over_its_rate_leaves_no_timer() -> None:
    """What it may not publish yet is not waited for when another client takes its session."""
    broker, publisher, _ = pair(publish_messages_per_second=4)
    publisher.send_bytes(packets(40))
    assert broker.core.timers.next_deadline() is not None
    broker.connect("p")
    assert publisher.is_lost
    assert broker.core.timers.next_deadline() is None
