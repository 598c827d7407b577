"""Whole packets in chunks, however these are cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.config.limits import Limits
from penstock.broker.mqtt.data_types import write_variable_byte_integer
from penstock.broker.mqtt.packets import Connect, Disconnect, PingReq, Publish
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.writer import write_packet
from tests.helpers.effort import examples
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


FRAMES = st.builds(
    lambda form, payload, packet_id: (form, payload, packet_id),
    st.sampled_from((0x30, 0x30, 0x32, 0x31, 0x38, 0x3A, 0x34, 0x36)),
    st.binary(max_size=140),
    st.sampled_from((1, 1, 300, 0)),
)
MUTATIONS = st.lists(
    st.sampled_from(("cut", "cut length", "long length", "byte", "properties")), max_size=2
)


def a_frame(
    version: int, form: tuple[int, bytes, int], mutations: list[str], draw: Callable[[int], int]
) -> bytes:
    """Return a PUBLISH of topic ``t/0``, whole or spoilt; its bytes make up one frame."""
    first_byte, payload, packet_id = form
    body = bytearray(b"\0\x03t/0")
    if first_byte & 0x06:
        body += packet_id.to_bytes(2)
    if version == 5:
        body += b"\0" if "properties" not in mutations else b"\x02\x01\x01"
    body += payload
    if "cut" in mutations:
        del body[draw(len(body)) :]
    if "byte" in mutations and body:
        body[draw(min(9, len(body)))] = draw(256)
    n_bytes = len(body)
    length = write_variable_byte_integer(n_bytes)
    if "long length" in mutations:
        length = length[:-1] + bytes((length[-1] | 0x80, 0))
    frame = bytes((first_byte,)) + length + body
    return frame[:-1] if "cut length" in mutations and len(frame) > 2 else frame


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("is_alone", [True, False])
@settings(max_examples=examples(300), deadline=None)
@given(data=st.data())
def test_a_publish_is_read_alike_on_the_short_ways_and_on_the_long_one(
    version: int, data: st.DataObject, *, is_alone: bool
) -> None:
    """The loops that read a PUBLISH themselves find what `read_publish_head` finds.

    One broker takes lone packets and runs; for the other no plan is fast, so that each packet goes
    the long way. Who subscribes gets the same bytes, and a bad packet ends both connections.
    """
    brokers = VirtualBroker(), VirtualBroker()
    brokers[1].core.fast_plan = lambda *_: None  # type: ignore[method-assign]
    ends = []
    for broker in brokers:
        subscriber = broker.connect("s", version)
        subscriber.subscribe("t/0", 1)
        ends.append((broker.connect("p", version), subscriber))
        ends[-1][0].publish("t/0", b"first")
    for _ in range(3):
        form, mutations = data.draw(FRAMES), data.draw(MUTATIONS)
        frame = a_frame(version, form, mutations, lambda n: data.draw(st.integers(0, n - 1)))
        good = write_packet(Publish("t/0", b"good"), version)
        chunk = frame if is_alone else good + frame
        for publisher, _subscriber in ends:
            publisher.send_bytes(chunk)
        (publisher, subscriber), (other, other_subscriber) = ends
        assert subscriber.received == other_subscriber.received
        assert publisher.received == other.received
        assert publisher.is_lost == other.is_lost
        if publisher.is_lost:
            break
    one, two = (broker.core.counters for broker in brokers)
    assert one.peer_errors == two.peer_errors
    assert one.publish_received == two.publish_received
