"""Where runs of QoS 1 and 2 packets begin and end, and what is told of them.

That they do what the plain way does is shown by `test_twins`.
"""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.fast_paths.fast_core import FastCore
from penstock.broker.link import Link
from penstock.broker.mqtt.packets import ConnAck, Connect, PubAck, PubComp, Publish, PubRec, PubRel
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.sessions.broker_state import Core
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


DURABLE: Any = {"clean_start": False, "properties": {"session_expiry_interval": 600}}


def messages(first: int, last: int) -> list[bytes]:
    """Return the payloads of `publishes` with these Packet Identifiers."""
    return [b"%03d" % number for number in range(first, last + 1)]


def durable_pair() -> tuple[DurableBroker, VirtualClient, VirtualClient]:
    """Return a broker that commits when it is asked to, a publisher, and a durable subscriber."""
    broker = DurableBroker(core_class=FastCore)
    publisher, subscriber = a_pair(broker, **DURABLE)
    broker.commits_at_once = False
    return broker, publisher, subscriber


def acknowledge(subscriber: VirtualClient, n_messages: int) -> None:
    """Let a subscriber acknowledge the first of the QoS 1 messages that it has, in one chunk."""
    packets = [packet for packet in subscriber.inbox if isinstance(packet, Publish)][:n_messages]
    for packet in packets:
        subscriber.inbox.remove(packet)
    subscriber.send(*(PubAck(packet.packet_id) for packet in packets))


def test_a_run_that_is_acknowledged_before_its_commit_is_never_written() -> None:
    """Its publisher need not wait for the disk, which others may keep busy."""
    broker, publisher, subscriber = durable_pair()
    broker.commits_at_once = True
    broker.connect("away", **DURABLE).subscribe("away", 1)
    broker.commits_at_once = False
    other = broker.connect("other")
    other.publish("away", qos=1)
    publisher.send_bytes(publishes(5, 1))
    acknowledge(subscriber, 3)
    assert not publisher.inbox
    acknowledge(subscriber, 2)
    assert [packet.packet_id for packet in publisher.take_all(PubAck)] == [1, 2, 3, 4, 5]
    assert not other.take_all(PubAck)
    broker.commit()
    assert len(broker.disk.messages) == 1
    other.take(PubAck)


@pytest.mark.parametrize("made_of", [Core, FastCore])
def test_all_durable_subscribers_have_to_acknowledge_before_a_publisher_need_not_wait(
    made_of: type[Core],
) -> None:
    """What one of them has not acknowledged would be lost with the process."""
    broker = DurableBroker(core_class=made_of)
    publisher, subscriber = a_pair(broker, **DURABLE)
    other = broker.connect("s2", **DURABLE)
    other.subscribe("t", 1)
    broker.commits_at_once = False
    publisher.send_bytes(publishes(3, 1))
    acknowledge(subscriber, 3)
    acknowledge(other, 2)
    if made_of is FastCore:
        assert not publisher.inbox
    acknowledge(other, 1)
    assert len(publisher.take_all(PubAck)) == 3
    assert broker.seal() is None


def test_a_durable_publisher_learns_at_qos_2_what_a_restart_knows() -> None:
    """[MQTT-4.3.3-10]: PUBREC waits for the Packet Identifiers, whoever gets the messages."""
    broker = DurableBroker(core_class=FastCore)
    subscriber = broker.connect("s")
    subscriber.subscribe("t", 2)
    publisher = broker.connect("p", **DURABLE)
    publisher.publish("t", b"first")
    broker.commits_at_once = False
    publisher.send_bytes(publishes(5, 2))
    assert subscriber.payloads() == [b"first", *messages(1, 5)]
    assert not publisher.inbox
    broker.commit()
    assert len(publisher.take_all(PubRec)) == 5
    publisher.send(*(PubRel(packet_id) for packet_id in range(1, 6)))
    assert not publisher.inbox
    broker.commit()
    assert len(publisher.take_all(PubComp)) == 5
    assert not broker.disk.incoming


def test_of_a_run_that_is_partly_acknowledged_the_rest_is_stored() -> None:
    """Before its commit and behind it; in the end nothing is left."""
    broker, publisher, subscriber = durable_pair()
    publisher.send_bytes(publishes(5, 1))
    acknowledge(subscriber, 2)
    broker.commit()
    assert [row.payload for row in broker.disk.messages.values()] == messages(3, 5)
    assert len(publisher.take_all(PubAck)) == 5
    acknowledge(subscriber, 1)
    broker.commit()
    broker = broker.crash()
    again = broker.connect("s", **DURABLE)
    assert again.acknowledge() == messages(4, 5)
    assert not broker.disk.messages


def test_a_run_that_is_acknowledged_while_it_is_written_is_not_waited_for() -> None:
    """The rows are deleted by the next commit."""
    broker, publisher, subscriber = durable_pair()
    publisher.send_bytes(publishes(5, 1))
    broker.seal()
    broker.is_disk_full = True
    assert not broker.write()
    acknowledge(subscriber, 5)
    assert len(publisher.take_all(PubAck)) == 5
    broker.is_disk_full = False
    broker.commit()
    assert not broker.disk.messages
    assert not publisher.inbox


def test_a_stored_run_that_is_acknowledged_in_another_order_leaves_nothing() -> None:
    """Also where two sessions have it, and one of them acknowledges in order."""
    broker, publisher, subscriber = durable_pair()
    broker.commits_at_once = True
    other = broker.connect("s2", **DURABLE)
    other.subscribe("t", 1)
    broker.commits_at_once = False
    publisher.send_bytes(publishes(5, 1))
    broker.commit()
    acknowledge(other, 2)
    ids = [packet.packet_id for packet in subscriber.take_all(Publish)]
    subscriber.send(*map(PubAck, reversed(ids)))
    broker.commit()
    assert len(broker.disk.messages) == 3
    acknowledge(other, 3)
    broker.commit()
    assert not broker.disk.messages


@pytest.mark.parametrize("made_of", [Core, FastCore])
def test_what_a_member_of_a_durable_share_has_for_itself_spares_no_commit(
    made_of: type[Core],
) -> None:
    """Its acknowledgement says nothing of the durable session that has the message, too."""
    broker = DurableBroker(core_class=made_of)
    publisher, _ = a_pair(broker, **DURABLE)
    for client in (broker.connect("d", **DURABLE), broker.connect("m")):
        client.subscribe("$share/g/x", 1)
    member = client
    member.subscribe("t", 1)
    for number in (1, 2):
        publisher.publish("x", qos=1, packet_id=number)
    assert member.session.inflight.journal is not None
    assert len(member.acknowledge()) == 1
    publisher.take_all(PubAck)
    broker.commits_at_once = False
    publisher.send_bytes(publishes(1, 1))
    assert member.acknowledge() == messages(1, 1)
    assert not publisher.inbox
    broker.commit()
    publisher.take(PubAck)


@pytest.mark.parametrize("is_stored", [True, False])
def test_runs_of_several_durable_sessions_are_stored_once(*, is_stored: bool) -> None:
    """One acknowledges in order, one in another order, one is gone: each misses nothing."""
    broker, publisher, subscriber = durable_pair()
    broker.commits_at_once = True
    clients = [subscriber] + [broker.connect(name, **DURABLE) for name in ("s2", "s3")]
    for client in clients[1:]:
        client.subscribe("t", 1)
    broker.commits_at_once = False
    publisher.send_bytes(publishes(5, 1))
    if is_stored:
        broker.commit()
        assert len(broker.disk.messages) == 5
        assert len(broker.disk.deliveries) == 15
    acknowledge(clients[0], 2)
    ids = [packet.packet_id for packet in clients[1].take_all(Publish)]
    clients[1].send(PubAck(ids[4]), PubAck(ids[0]))
    clients[2].lose()
    broker.commit()
    assert len(publisher.take_all(PubAck)) == 5
    assert len(broker.disk.messages) == 5
    assert len(broker.disk.deliveries) == 3 + 3 + 5
    acknowledge(clients[0], 3)
    broker.commit()
    assert len(broker.disk.deliveries) == 3 + 5
    broker = broker.crash()
    assert broker.connect("s", **DURABLE).payloads() == []
    assert broker.connect("s2", **DURABLE).acknowledge() == messages(2, 4)
    assert len(broker.disk.messages) == 5
    assert broker.connect("s3", **DURABLE).acknowledge() == messages(1, 5)
    assert not broker.disk.messages


def test_rows_of_runs_keep_the_order_in_which_messages_came() -> None:
    """[MQTT-4.6.0-1], also where a run is unfolded and a younger message waits."""
    broker = DurableBroker(core_class=FastCore, limits=Limits(inflight_messages=6))
    publisher, subscriber = a_pair(broker, **DURABLE)
    broker.commits_at_once = False
    publisher.publish("t", b"before", qos=1, packet_id=100, properties={"content_type": "x" * 2000})
    publisher.send_bytes(publishes(5, 1))
    publisher.publish("t", b"waits", qos=1, packet_id=101)
    subscriber.send(PubAck(999))  # nothing has that identifier, so all runs are unfolded
    broker.commit()
    wanted = [b"before", *messages(1, 5), b"waits"]
    for _ in range(3):
        rows = [row for _, row in sorted(broker.disk.deliveries.items())]
        assert [broker.disk.messages[row.message,].payload for row in rows] == wanted
        broker = broker.crash()
        again = broker.connect("s", **DURABLE)
        assert again.payloads() == wanted[:6]
        broker.commit()


def test_a_run_of_qos_2_is_stored_before_it_leaves_and_at_each_step() -> None:
    """Whenever the broker ends, each message comes once."""
    broker, publisher, subscriber = durable_pair()
    publisher.send_bytes(publishes(5, 2))
    assert not subscriber.inbox
    assert not publisher.inbox
    broker.commit()
    ids = [packet.packet_id for packet in subscriber.take_all(Publish)]
    assert len(publisher.take_all(PubRec)) == 5
    subscriber.send(*map(PubRec, ids[:3]))
    assert not subscriber.inbox
    broker.commit()
    assert [packet.packet_id for packet in subscriber.take_all(PubRel)] == ids[:3]
    subscriber.send(*map(PubComp, ids[:2]))
    broker.commit()
    broker = broker.crash()
    again = broker.connect("s", **DURABLE)
    assert [packet.packet_id for packet in again.take_all(PubRel)] == ids[2:3]
    assert [packet.payload for packet in again.take_all(Publish)] == messages(4, 5)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_publisher_that_comes_back_repeats_what_waits_for_the_disk(qos: int) -> None:
    """It is answered once the commit is there, and subscribers get nothing twice."""
    broker = DurableBroker(core_class=FastCore)
    broker.connect("s", **DURABLE).subscribe("t", 2)
    broker.connect("p", **DURABLE).publish("t", b"first")
    broker.session("s").client.close(0, None)  # type: ignore[union-attr, arg-type]
    publisher = broker.connect("p", **DURABLE)
    broker.commits_at_once = False
    publisher.send_bytes(publishes(5, qos))
    publisher.lose()
    again = VirtualClient(broker)
    again.send(Connect(client_id="p", keep_alive=0, **DURABLE))
    repeats = bytearray(publishes(3, qos))
    for start in range(0, len(repeats), len(repeats) // 3):
        repeats[start] |= 0x08
    broker.seal()
    broker.write()
    again.take(ConnAck)
    again.send_bytes(bytes(repeats))
    broker.commit()
    answers = again.take_all(PubAck) if qos == 1 else again.take_all(PubRec)
    assert [packet.packet_id for packet in answers] == [1, 2, 3]
    broker.commits_at_once = True
    got = broker.connect("s", **DURABLE).payloads()
    assert got == messages(1, 5)


def test_with_little_room_on_the_disk_each_message_is_asked_about() -> None:
    """A run is refused message by message, as the disk takes them."""
    broker, publisher, _ = durable_pair()
    broker.journal.measured(5_000)
    publisher.send_bytes(publishes(8, 1))
    codes = [packet.reason_code for packet in publisher.take_all(PubAck)]
    broker.commit()
    codes += [packet.reason_code for packet in publisher.take_all(PubAck)]
    assert 0 < codes.count(0) < 8
    assert len(broker.disk.messages) == codes.count(0)


def test_a_publisher_of_runs_keeps_its_receive_maximum() -> None:
    """[MQTT-3.3.4-9]: messages that wait for the disk count, in a run too."""
    broker = DurableBroker(core_class=FastCore, limits=Limits(receive_maximum=8))
    publisher, _ = a_pair(broker, **DURABLE)
    broker.commits_at_once = False
    publisher.send_bytes(publishes(6, 1))
    publisher.send_bytes(publishes(2, 1, 7))
    assert not publisher.is_lost
    publisher.send_bytes(publishes(1, 1, 9))
    assert publisher.is_lost
    broker.commit()
    assert len(broker.disk.messages) == 8


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


def test_a_run_of_retained_messages_is_safe_before_its_acknowledgement() -> None:
    """Who is subscribed gets them without RETAIN at once, who comes later with it."""
    broker = DurableBroker(core_class=FastCore)
    publisher, subscriber = a_pair(broker)
    broker.commits_at_once = False
    data = [
        write_packet(Publish("t", b"%d" % number, qos=1, packet_id=number, retain=True), 5)
        for number in (1, 2, 3)
    ]
    publisher.send_bytes(b"".join(data))
    received = subscriber.take_all(Publish)
    assert [(packet.payload, packet.retain) for packet in received] == [
        (b"1", False),
        (b"2", False),
        (b"3", False),
    ]
    assert not publisher.take_all(PubAck)
    broker.commit()
    assert len(publisher.take_all(PubAck)) == 3
    late = broker.crash().connect("late")
    late.subscribe("t", 1)
    (packet,) = late.take_all(Publish)
    assert (packet.payload, packet.retain) == (b"3", True)


@pytest.mark.parametrize("made_of", [Core, FastCore])
def test_messages_that_are_written_in_any_case_do_not_wait_for_others(made_of: type[Core]) -> None:
    """A commit begins at once for retained messages; what a subscriber may spare the disk waits."""
    broker = DurableBroker(core_class=made_of, limits=Limits(receive_maximum=500))
    publisher, _ = a_pair(broker, properties={"session_expiry_interval": 600})
    broker.commits_at_once = False
    broker.hurried = 0
    publisher.send_bytes(publishes(32, 1))
    assert broker.hurried == 0
    for number in (1, 2):
        retained = Publish(f"t/{number}", b"x", qos=1, packet_id=1000 + number, retain=True)
        publisher.send(retained)
        assert broker.hurried == 1  # what comes until it begins goes with it


@pytest.mark.parametrize("max_messages", [2, 600])
def test_retained_messages_beyond_the_limit_are_refused_each(max_messages: int) -> None:
    """A run has room, or each message of it is looked at by itself."""
    broker = VirtualBroker(Limits(retained_messages=max_messages), core_class=FastCore)
    publisher = broker.connect("p")
    publisher.send(*(Publish(f"t/{n}", b"x", qos=1, packet_id=n, retain=True) for n in range(1, 5)))
    codes = [packet.reason_code for packet in publisher.take_all(PubAck)]
    assert codes == ([0x10, 0x10, 0x97, 0x97] if max_messages == 2 else [0x10] * 4)
    assert broker.core.retained.n_limited == min(max_messages, 4)
