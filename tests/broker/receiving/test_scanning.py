"""Whole packets in chunks, however these are cut."""

from __future__ import annotations

from penstock.broker.config.limits import Limits
from penstock.broker.mqtt.packets import Connect, Disconnect, PingReq, Publish
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.writer import write_packet
from tests.helpers.virtual import VirtualBroker, VirtualClient


def test_a_connect_is_bounded_however_large_other_packets_may_be() -> None:
    """A client that nobody knows is closed when it announces more than Limits().connect_bytes."""
    broker = VirtualBroker()
    client = VirtualClient(broker)
    client.send_bytes(b"\x10\xfd\xff\x07")  # a packet of 128 KiB and one byte
    assert client.is_lost
    assert broker.core.counters.peer_errors == {ReasonCode.PACKET_TOO_LARGE: 1}


def test_a_large_packet_may_follow_connect_in_one_chunk() -> None:
    """Once the client is accepted, `maximum_packet_size` holds."""
    broker = VirtualBroker()
    watcher = broker.connect("w")
    watcher.subscribe("t")
    payload = bytes(Limits().control_bytes + 1)
    VirtualClient(broker).send(Connect(client_id="c"), Publish("t", payload))
    assert watcher.payloads() == [payload]


def test_a_length_of_more_than_four_bytes_is_malformed() -> None:
    """[MQTT-1.5.5-1]."""
    client = VirtualBroker().connect("c")
    client.send_bytes(b"\x30\xff\xff\xff\xff\x01")
    assert client.take(Disconnect).reason_code == ReasonCode.MALFORMED_PACKET


def test_counters_count_whole_packets_once() -> None:
    """Bytes and packets, in and out, whatever the chunks."""
    broker = VirtualBroker()
    connect = write_packet(Connect(client_id="c", protocol_version=4), 4)
    ping = write_packet(PingReq(), 4)
    client = VirtualClient(broker, 4)
    for byte in connect + ping:
        client.send_bytes(bytes([byte]))
    counters = broker.core.counters
    assert counters.packets_received == 2
    assert counters.bytes_received == len(connect + ping)
    assert (counters.packets_sent, counters.bytes_sent) == (2, 4 + 2)
