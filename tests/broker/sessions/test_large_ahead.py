from __future__ import annotations

import logging
from typing import Any

import pytest

from penstock.broker.client_report import SmallWaitFigures
from penstock.broker.mqtt.packets import PubAck, PubComp, Publish, PubRec
from penstock.broker.reports.client_reports import report, subject_of
from tests.helpers.gates import SwitchGate
from tests.helpers.virtual import VirtualBroker, VirtualClient

LARGE = b"L" * 200


def joined(**options: Any) -> tuple[VirtualBroker, VirtualClient, VirtualClient]:
    """Return a broker whose gate holds nothing, a subscriber to all at QoS 2, and a publisher."""
    broker = VirtualBroker(gate=SwitchGate(is_open=True))
    client = broker.connect("s", **options)
    client.subscribe("#", 2)
    return broker, client, broker.connect("p")


def told(broker: VirtualBroker) -> SmallWaitFigures | None:
    """Return what is reported of the subscriber's small messages."""
    return report(subject_of(broker.session("s")), broker.now).withholding.small_waits


def packet_ids(client: VirtualClient) -> list[int]:
    """Take the packet identifiers of what has come, oldest first."""
    return [packet.packet_id for packet in client.take_all(Publish)]


@pytest.mark.parametrize("qos", [0, 1])
def test_small_messages_wait_until_the_large_one_before_them_is_acknowledged(qos: int) -> None:
    """A picture takes eight seconds; an alarm in each of them waits for the rest of it."""
    broker, client, publisher = joined()
    publisher.publish("cam", LARGE, qos=1)
    (large,) = packet_ids(client)
    for _ in range(8):
        broker.advance(1.0)
        publisher.publish("alarm", b"a", qos=qos)
    assert told(broker) is None
    broker.advance(0.25)
    client.send(PubAck(large))
    waits = told(broker)
    assert waits is not None
    assert waits.messages == 8
    assert waits.mean_seconds == pytest.approx(3.75, abs=0.25)
    for packet_id in packet_ids(client):
        if packet_id:
            client.send(PubAck(packet_id))
    publisher.publish("alarm", b"a", qos=qos)
    again = told(broker)
    assert again is not None
    assert again.messages == 8


def test_what_a_round_trip_takes_is_no_wait() -> None:
    """A far client on a good link acknowledges after a round trip, whatever was before it."""
    broker, client, publisher = joined()
    broker.session("s").link.rtt_latest = 2.0
    publisher.publish("cam", LARGE, qos=1)
    (large,) = packet_ids(client)
    for _ in range(8):
        publisher.publish("alarm", b"a", qos=1)
        broker.advance(0.25)
    client.send(PubAck(large))
    assert told(broker) is None


def test_at_qos_2_the_second_round_trip_is_no_wait_either() -> None:
    """PUBCOMP comes two round trips after PUBLISH; the client has had the message after one."""
    broker, client, publisher = joined()
    broker.session("s").link.rtt_min = 0.5
    publisher.publish("cam", LARGE, qos=2)
    publisher.publish("alarm", b"a")
    large, _ = packet_ids(client)
    broker.advance(3.5)
    client.send(PubRec(large))
    broker.advance(0.5)
    client.send(PubComp(large))
    waits = told(broker)
    assert waits is not None
    assert waits.messages == 1
    assert waits.mean_seconds == pytest.approx(3.0, abs=0.25)


def test_a_small_message_waits_for_the_last_large_one_before_it() -> None:
    """An alarm between two pictures on their way waits for the first alone."""
    broker, client, publisher = joined()
    publisher.publish("cam/1", LARGE, qos=1)
    broker.advance(1.0)
    publisher.publish("alarm", b"between")
    broker.advance(1.0)
    publisher.publish("cam/2", LARGE, qos=1)
    broker.advance(1.0)
    publisher.publish("alarm", b"after")
    first, _, second, _ = packet_ids(client)
    broker.advance(1.0)
    client.send(PubAck(first))
    waits = told(broker)
    assert waits is not None
    assert (waits.messages, round(waits.mean_seconds)) == (1, 3)
    broker.advance(4.0)
    client.send(PubAck(second))
    waits = told(broker)
    assert waits is not None
    assert (waits.messages, round(waits.mean_seconds)) == (2, 4)


def test_a_later_acknowledgement_tells_that_a_large_message_has_arrived() -> None:
    """A client may process a picture for long, and acknowledge alarms meanwhile: none waits."""
    broker, client, publisher = joined()
    publisher.publish("cam", LARGE, qos=1)
    (large,) = packet_ids(client)
    for _ in range(8):
        publisher.publish("alarm", b"a", qos=1)
        broker.advance(0.05)
        client.send(PubAck(packet_ids(client)[0]))
        broker.advance(0.95)
    client.send(PubAck(large))
    assert told(broker) is None


def test_a_large_message_of_qos_0_has_arrived_when_a_later_one_is_acknowledged() -> None:
    """Behind a relay nothing else tells that it has: the kernel has sent it at once."""
    broker, client, publisher = joined()
    publisher.publish("cam", LARGE)
    for _ in range(4):
        publisher.publish("alarm", b"a", qos=1)
        broker.advance(1.0)
    _, first, *_ = packet_ids(client)
    client.send(PubAck(first))
    broker.advance(0.5)
    waits = told(broker)
    assert waits is not None
    assert waits.messages == 4
    assert waits.mean_seconds == pytest.approx(2.5, abs=0.25)


def test_without_any_acknowledgement_it_has_arrived_when_the_kernel_has_taken_it() -> None:
    """At QoS 0 on a direct connection that is what there is to tell by."""
    broker, client, publisher = joined()
    client.unsent_bytes = 100_000
    publisher.publish("cam", LARGE)
    for _ in range(4):
        publisher.publish("alarm", b"a")
        broker.advance(1.0)
    client.unsent_bytes = 0
    broker.advance(1.0)
    publisher.publish("alarm", b"not behind it")
    broker.advance(5.0)
    waits = told(broker)
    assert waits is not None
    assert waits.messages == 4
    assert waits.mean_seconds == pytest.approx(2.5, abs=0.25)


def test_a_large_message_of_qos_0_waits_for_those_before_it() -> None:
    """The kernel has sent it to a relay, where the unacknowledged one is before it."""
    broker, client, publisher = joined()
    publisher.publish("cam/1", LARGE, qos=1)
    publisher.publish("cam/2", LARGE)
    publisher.publish("alarm", b"a")
    large, *_ = packet_ids(client)
    broker.advance(4.0)
    client.send(PubAck(large))
    broker.advance(0.25)
    waits = told(broker)
    assert waits is not None
    assert (waits.messages, round(waits.mean_seconds)) == (1, 4)


def test_on_a_good_link_nothing_is_told() -> None:
    """Waits that nobody notices would hide those that count."""
    broker, client, publisher = joined()
    for _ in range(50):
        publisher.publish("cam", LARGE, qos=1)
        publisher.publish("alarm", b"a", qos=1)
        broker.advance(0.05)
        for packet_id in packet_ids(client):
            client.send(PubAck(packet_id))
        broker.advance(1.0)
    assert told(broker) is None


def test_a_connection_that_ends_first_tells_nothing() -> None:
    """The path itself may have been gone, with one connection or two; sent again, it counts."""
    expiry: dict[str, Any] = {"properties": {"session_expiry_interval": 1000}, "clean_start": False}
    broker, client, publisher = joined(**expiry)
    publisher.publish("cam", LARGE, qos=1)
    publisher.publish("alarm", b"a", qos=1)
    broker.advance(20.0)
    client.lose()
    client = broker.connect("s", **expiry)
    (large, small) = packet_ids(client)
    broker.advance(1.0)
    publisher.publish("alarm", b"b", qos=1)
    broker.advance(2.0)
    client.send(PubAck(large), PubAck(small))
    waits = told(broker)
    assert waits is not None
    assert (waits.messages, round(waits.mean_seconds)) == (1, 2)


def test_figures_are_of_the_last_minutes() -> None:
    """What was long ago says nothing of the present: the window is forgotten in its turn."""
    broker, client, publisher = joined()
    seen = []
    for _ in range(4):
        publisher.publish("cam", LARGE, qos=1)
        publisher.publish("alarm", b"a")
        broker.advance(4.0)
        client.send(PubAck(packet_ids(client)[0]))
        seen.append(told(broker))
        broker.advance(200.0)
    assert [waits.messages for waits in seen if waits] == [1, 2, 3, 2]
    assert all(waits.since_seconds <= 620 for waits in seen if waits)
    broker.advance(700.0)
    assert told(broker) is None


@pytest.mark.parametrize("n_small", [9, 10])
def test_the_log_tells_once_an_hour_what_two_lanes_would_gain(
    n_small: int, caplog: pytest.LogCaptureFixture
) -> None:
    """From ten messages on, and only while the mean is worth a line."""
    broker, client, publisher = joined()
    caplog.set_level(logging.INFO)
    lines = []
    for wait in (0.25, 4.0, 4.0, 4000.0):
        publisher.publish("cam", LARGE, qos=1)
        for _ in range(n_small):
            publisher.publish("alarm", b"a")
        broker.advance(wait)
        client.send(PubAck(packet_ids(client)[0]))
        lines.append(caplog.messages)
        caplog.clear()
        broker.advance(1000.0)
    if n_small < 10:
        assert lines == [[], [], [], []]
        return
    assert lines[0] == lines[2] == []
    assert lines[1] == [
        (
            "client s: 10 small messages waited 3.9 s on average behind large ones; with two lanes "
            "they would not: docs/how-to/lanes.md"
        )
    ]
    assert len(lines[3]) == 1


def test_a_client_that_has_lanes_is_told_nothing() -> None:
    """Its small messages do not share a connection with large ones, or it knows what it does."""
    broker = VirtualBroker(gate=SwitchGate(is_open=True))
    clients = []
    for one, other in (("s", "l"), ("l", "s")):
        names = {"user_property": [("penstock-lane-of", other)], "session_expiry_interval": 99}
        clients.append(broker.connect(one, properties=names, clean_start=False))
    clients[0].subscribe("#", 1)
    publisher = broker.connect("p")
    publisher.publish("cam", LARGE, qos=1)
    publisher.publish("alarm", b"a", qos=1)
    broker.advance(4.0)
    client = clients[0]
    client.send(*(PubAck(packet_id) for packet_id in packet_ids(client)))
    assert told(broker) is None
