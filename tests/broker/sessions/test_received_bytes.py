"""What all connections together may hold of packets that are not whole yet."""

from __future__ import annotations

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.mqtt.packets import ConnAck, Connect, Disconnect, Publish
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.writer import write_packet
from tests.helpers.virtual import VirtualBroker, VirtualClient

LIMIT = 100_000


def half_sent(client: VirtualClient, n_bytes: int) -> None:
    """Send so many bytes of a PUBLISH that has twice as many."""
    packet = write_packet(Publish("t", bytes(2 * n_bytes)), client.version)
    for start in range(0, n_bytes, 10_000):
        client.send_bytes(packet[start : min(n_bytes, start + 10_000)])


def clients(broker: VirtualBroker, n: int, version: int = 5) -> list[VirtualClient]:
    """Return connected clients."""
    return [broker.connect(f"c{number}", version) for number in range(n)]


@pytest.mark.parametrize("version", [4, 5])
def test_above_the_limit_the_largest_is_closed(version: int) -> None:
    """1,000 clients that stop in the middle of packets of 256 MB must not fill the memory."""
    broker = VirtualBroker(Limits(total_received_bytes=LIMIT))
    small, large, last = clients(broker, 3, version)
    half_sent(small, 30_000)
    half_sent(large, 50_000)
    assert broker.core.received.n_bytes == 80_000
    half_sent(last, 30_000)
    assert (small.is_lost, large.is_lost, last.is_lost) == (False, True, False)
    assert broker.core.received.n_bytes == 60_000
    assert broker.core.counters.peer_errors == {ReasonCode.QUOTA_EXCEEDED: 1}
    told = [packet.reason_code for packet in large.take_all(Disconnect)]
    assert told == ([ReasonCode.QUOTA_EXCEEDED] if version == 5 else [])


def test_who_is_not_let_in_yet_goes_first() -> None:
    """A stranger's half of a CONNECT does not cost a client its message."""
    broker = VirtualBroker(Limits(total_received_bytes=LIMIT, connect_bytes=LIMIT))
    (known,) = clients(broker, 1)
    half_sent(known, 70_000)
    stranger = VirtualClient(broker)
    packet = write_packet(Connect(client_id="s", password=bytes(60_000)), 5)
    stranger.send_bytes(packet[:25_000])
    assert not stranger.is_lost
    stranger.send_bytes(packet[25_000:35_000])
    assert (known.is_lost, stranger.is_lost) == (False, True)
    assert stranger.take_all(ConnAck) == []


def test_a_packet_that_is_whole_gives_back_what_it_took() -> None:
    """As does the end of its connection; small rests do not count."""
    broker = VirtualBroker(Limits(total_received_bytes=LIMIT))
    sender, lost, little = clients(broker, 3)
    sender.subscribe("t")
    packet = write_packet(Publish("t", bytes(60_000)), 5)
    for _ in range(3):
        sender.send_bytes(packet[:50_000])
        assert broker.core.received.n_bytes == 50_000
        sender.send_bytes(packet[50_000:])
        assert broker.core.received.n_bytes == 0
    assert sender.payloads() == [bytes(60_000)] * 3
    half_sent(lost, 20_000)
    lost.lose()
    half_sent(little, 1_000)
    assert broker.core.received.n_bytes == 0
    assert not sender.is_lost


def test_topic_aliases_count_as_well() -> None:
    """64 of them may stand for topics of 65,535 bytes each, on every connection."""
    broker = VirtualBroker(Limits(total_received_bytes=LIMIT))
    one, other = clients(broker, 2)
    for alias in (1, 2, 2):
        one.publish("t" * 20_000, properties={"topic_alias": alias})
    assert broker.core.received.n_bytes == 40_000
    half_sent(other, 50_000)
    assert not one.is_lost
    one.publish("t" * 20_000, properties={"topic_alias": 3})
    assert (one.is_lost, other.is_lost) == (True, False)
    assert broker.core.received.n_bytes == 50_000
