"""A connection's life on a virtual clock: deadlines, closing, suspension."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.broker.config.limits import Limits
from penstock.broker.mqtt.packets import Connect, Disconnect, PingReq, PingResp, Publish
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.timers import Timer
from tests.helpers.effort import examples
from tests.helpers.sinks import HoldingSink
from tests.helpers.virtual import VirtualBroker, VirtualClient


def test_a_client_that_sends_no_connect_in_time_is_closed() -> None:
    """A network connection without CONNECT must not stay for ever."""
    broker = VirtualBroker(Limits(connect_timeout_seconds=5.0))
    silent, slow = VirtualClient(broker), VirtualClient(broker)
    slow.send_bytes(b"\x10")
    broker.advance(4.9)
    assert not silent.is_lost
    broker.advance(0.2)
    assert silent.is_lost
    assert slow.is_lost
    assert broker.core.timers.next_deadline() is None


@pytest.mark.mqtt5("3.1.0-1")
@pytest.mark.mqtt311("3.1.0-1")
@pytest.mark.parametrize(
    "first", [b"GET / HTTP/1.1", b"\x16\x03\x01", b"\xc0", b"\x30\xff\xff\xff\x7f"]
)
def test_a_first_packet_that_is_no_connect_is_not_waited_for(first: bytes) -> None:
    """[MQTT-3.1.0-1]: its first byte is enough to close, without an answer."""
    broker = VirtualBroker()
    client = VirtualClient(broker)
    client.send_bytes(first)
    assert client.is_lost
    assert not client.inbox
    assert broker.core.counters.peer_errors == {ReasonCode.PROTOCOL_ERROR: 1}


@pytest.mark.mqtt5("3.1.2-22")
@pytest.mark.mqtt311("3.1.2-24")
@pytest.mark.parametrize("version", [4, 5])
def test_a_silent_client_is_closed_after_one_and_a_half_keep_alives(version: int) -> None:
    """[MQTT-3.1.2-22]: any packet starts the time anew."""
    broker = VirtualBroker(keep_alive_grace=1.0)
    client = broker.connect("c", version, keep_alive=10)
    broker.advance(15)
    client.send(PingReq())
    client.take(PingResp)
    broker.advance(15.9)
    assert not client.is_lost
    broker.advance(0.2)
    assert client.is_lost
    if version == 5:
        assert client.take(Disconnect).reason_code == ReasonCode.KEEP_ALIVE_TIMEOUT


@pytest.mark.mqtt5("3.1.2-22")
@pytest.mark.parametrize("connect_timeout", [1.0, 600.0])
def test_the_time_for_connect_neither_ends_nor_delays_a_keep_alive(
    connect_timeout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[MQTT-3.1.2-22]: one timer serves both where the first comes no later."""
    broker = VirtualBroker(Limits(connect_timeout_seconds=connect_timeout))
    due: list[float] = []
    at = broker.core.timers.at

    def note(when: float, action: Callable[[float], None]) -> Timer:
        due.append(when - broker.now)
        return at(when, action)

    monkeypatch.setattr(broker.core.timers, "at", note)
    client = broker.connect("c", keep_alive=10)
    assert due == ([connect_timeout] if connect_timeout < 15 else [connect_timeout, 15.0])
    broker.advance(14.9)
    assert not client.is_lost
    broker.advance(0.2)
    assert client.is_lost


def test_keep_alive_0_is_no_deadline() -> None:
    """[MQTT-3.1.2-22] is for keep alives above 0."""
    broker = VirtualBroker()
    client = broker.connect("c", keep_alive=0)
    broker.advance(1e6)
    assert not client.is_lost


def test_nothing_is_handled_after_the_connection_has_closed() -> None:
    """What a client sends behind its own error or DISCONNECT does not count."""
    broker = VirtualBroker()
    watcher = broker.connect("w")
    watcher.subscribe("#")
    client = broker.connect("c")
    client.send(Disconnect(), Publish("t", b"x"))
    client.send(Publish("t", b"y"))
    assert watcher.payloads() == []
    assert broker.core.counters.clients_connected == 1


@pytest.mark.mqtt5("3.2.2-15")
def test_a_packet_larger_than_allowed_is_refused_at_its_announcement() -> None:
    """0x95 as soon as the length is known, before its bytes fill memory."""
    broker = VirtualBroker(Limits(maximum_packet_size=1000))
    client = broker.connect("c")
    client.publish("t", b"x" * 900)
    client.send_bytes(b"\x30\xf4\x07")
    assert client.take(Disconnect).reason_code == ReasonCode.PACKET_TOO_LARGE
    whole = broker.connect("d")
    whole.publish("t", b"x" * 2000)
    assert whole.take(Disconnect).reason_code == ReasonCode.PACKET_TOO_LARGE


@pytest.mark.mqtt5("3.1.2-24", "3.1.2-25")
def test_a_client_gets_no_packet_larger_than_it_takes() -> None:
    """[MQTT-3.1.2-24], [MQTT-3.1.2-25]: such a message is dropped for it, as if delivered."""
    broker = VirtualBroker()
    small = broker.connect("small", properties={"maximum_packet_size": 50})
    large = broker.connect("large")
    for client in (small, large):
        client.subscribe("t", 2)
    publisher = broker.connect("p")
    for number in (0, 10):  # the second run takes the fast path
        for qos in (0, 1, 2):
            publisher.publish("t", b"x" * 60, qos=qos, packet_id=qos and number + qos)
        publisher.publish("t", b"fits")
    assert set(small.payloads()) == {b"fits"}
    assert len(large.payloads()) == 8
    assert small.session.ledger.dropped == {"packet_too_large": 6}
    small.session.check_invariants()


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    data=st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.sampled_from(
                [
                    write_packet(PingReq(), 5),
                    write_packet(Publish("t", b"abc"), 5),
                    write_packet(Publish("t", b"abc", qos=1, packet_id=7), 5),
                    write_packet(Publish("t", b"abc", qos=2, packet_id=8), 5),
                    write_packet(Connect(client_id="c"), 5),
                ]
            ),
        ),
        max_size=12,
    ).map(b"".join),
    connects_first=st.booleans(),
    cut=st.integers(1, 60),
)
def test_no_bytes_can_break_the_broker(data: bytes, cut: int, *, connects_first: bool) -> None:
    """T7: whatever a peer sends, only its own connection ends, and the books balance."""
    broker = VirtualBroker()
    watcher = broker.connect("w")
    watcher.subscribe("#", 2)
    client = broker.connect("c") if connects_first else VirtualClient(broker)
    for start in range(0, len(data), cut):
        client.send_bytes(data[start : start + cut])
    watcher.inbox.clear()
    broker.connect("other").publish("t", b"still here")
    assert watcher.payloads() == [b"still here"]
    for session in broker.core.sessions:
        session.check_invariants()


def test_a_client_that_is_not_read_from_is_not_silent() -> None:
    """Its PINGREQ may wait in the network: only what it could have said counts."""
    broker = VirtualBroker(Limits(receive_maximum=1), sinks=[HoldingSink("q")])
    client = broker.connect("c", 4, keep_alive=10)
    client.publish("q", b"x", qos=1)
    assert not client.is_reading
    broker.advance(100)
    assert not client.is_lost
    client.connection.client.receipts[0].settle(0)
    broker.settle()
    assert client.is_reading
    broker.advance(15)
    assert client.is_lost


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
