"""Where runs of QoS 1 and 2 packets begin and end, and what is told of them.

That they do what the plain way does is shown by `test_twins`.
"""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.fast_paths.fast_core import FastCore
from penstock.broker.link import Link
from penstock.broker.mqtt.packets import (
    PubAck,
    Publish,
    PubRec,
    PubRel,
)
from penstock.broker.mqtt.writer import write_packet
from tests.helpers.durable import DurableBroker
from tests.helpers.samplers import NotingSampler
from tests.helpers.virtual import VirtualBroker, VirtualClient


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
    broker = DurableBroker(core_class=FastCore)
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
    broker = DurableBroker(core_class=FastCore)
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
    broker = DurableBroker(core_class=FastCore)
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
    broker = VirtualBroker(core_class=FastCore, samplers=[sampler])
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
    """Runs count as lone packets do; beside another, or if not sparing, it hears of all."""
    told = []
    for samplers in ([QuietSampler()], [QuietSampler(), NotingSampler()], [SamplerOfRuns()]):
        broker = VirtualBroker(core_class=FastCore, samplers=samplers)
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
    broker = VirtualBroker(core_class=FastCore)
    publisher, subscriber = a_pair(broker)
    bad = publishes(2, 1) + publishes(1, 1, 3).replace(b"\x03", b"\0")
    publisher.send_bytes(bad + publishes(3, 1, 4))
    assert subscriber.payloads() == [b"001", b"002"]
    assert publisher.is_lost


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_remaining_length_of_more_bytes_than_needed_does_not_go_on(qos: int) -> None:
    """MQTT 5.0 wants the shortest form of those who are sent it (1.5.5)."""
    broker = VirtualBroker(core_class=FastCore)
    publisher, subscriber = a_pair(broker)
    packet = publishes(1, qos)
    publisher.send_bytes(packet[:1] + bytes([packet[1] | 0x80, 0]) + packet[2:])
    assert subscriber.received.endswith(packet)


def test_no_packet_of_a_run_is_larger_than_allowed() -> None:
    """Each is measured, and the connection ends at the one that is too large."""
    broker = VirtualBroker(Limits(maximum_packet_size=300), core_class=FastCore)
    publisher, subscriber = a_pair(broker)
    large = write_packet(Publish("t", b"x" * 300, qos=1, packet_id=9), 5)
    publisher.send_bytes(publishes(3, 1) + large + publishes(3, 1))
    assert len(subscriber.payloads()) == 3
    assert publisher.is_lost


def test_runs_are_cut_where_the_client_may_send_no_more() -> None:
    """[MQTT-3.3.4-9]: the message above Receive Maximum ends the connection."""
    broker = VirtualBroker(Limits(receive_maximum=10), core_class=FastCore)
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
    broker = VirtualBroker(core_class=FastCore)
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
