"""What one session may have waiting and inflight, on a virtual clock."""

from __future__ import annotations

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.message import Message
from penstock.broker.mqtt.packets import Disconnect, PubAck, PubComp, Publish, PubRec
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.outbox.backlog import DELIVERY_BYTES
from tests.helpers.virtual import VirtualBroker, VirtualClient, will

TWICE = Message("t", bytes(10), publisher="p").memory_bytes + 2 * DELIVERY_BYTES
"""What a message of 10 bytes takes that waits for two sessions."""


def flood(broker: VirtualBroker, n_messages: int, *, size: int = 1) -> None:
    """Publish messages to "t" at QoS 1, numbered from 0."""
    publisher = broker.connect("p")
    for number in range(n_messages):
        publisher.publish("t", (b"%d" % number).ljust(size, b"."), qos=1)
    broker.advance(0)
    publisher.finish_sending()


def away(broker: VirtualBroker, version: int = 5) -> None:
    """Subscribe a client to "t" at QoS 1, and take it away for a while."""
    client = back(broker, version)
    client.subscribe("t", 1)
    client.lose()


def back(broker: VirtualBroker, version: int = 5) -> VirtualClient:
    """Return the client, connected again."""
    properties = {"session_expiry_interval": 1000} if version == 5 else {}
    return broker.connect("s", version, clean_start=False, properties=properties)


@pytest.mark.parametrize("version", [4, 5])
def test_no_more_bytes_than_allowed_are_inflight(version: int) -> None:
    """What comes up to the limit goes, what comes at it waits for an acknowledgement."""
    broker = VirtualBroker(Limits(inflight_bytes=10))
    subscriber = broker.connect("s", version)
    subscriber.subscribe("t", 2)
    flood(broker, 4, size=5)
    first, second = subscriber.take_all(Publish)
    assert subscriber.session.inflight.n_bytes == 10
    subscriber.send(PubAck(first.packet_id))
    (third,) = subscriber.take_all(Publish)
    assert third.payload == b"2...."
    subscriber.session.check_invariants()
    subscriber.send(PubAck(second.packet_id), PubAck(third.packet_id))
    assert subscriber.acknowledge() == [b"3...."]
    assert subscriber.session.inflight.n_bytes == 0


def test_a_message_larger_than_the_limit_leaves_alone() -> None:
    """It could never leave otherwise; QoS 2 holds its bytes until PUBCOMP."""
    broker = VirtualBroker(Limits(inflight_bytes=10))
    subscriber = broker.connect("s")
    subscriber.subscribe("t", 2)
    publisher = broker.connect("p")
    for packet_id in (1, 2):
        publisher.publish("t", b"x" * 100, qos=2, packet_id=packet_id)
    (only,) = subscriber.take_all(Publish)
    subscriber.send(PubRec(only.packet_id))
    assert subscriber.take_all(Publish) == []
    subscriber.send(PubComp(only.packet_id))
    assert len(subscriber.take_all(Publish)) == 1


@pytest.mark.parametrize(
    ("limits", "size"), [({"queued_messages": 3}, 1), ({"queued_bytes": 30}, 10)]
)
@pytest.mark.parametrize(
    ("queue_full", "kept", "reason"),
    [("drop_newest", b"012", "queue_full"), ("drop_oldest", b"234", "pushed_out")],
)
def test_a_full_queue_drops_the_newest_or_the_oldest(
    limits: dict[str, int], size: int, queue_full: str, kept: bytes, reason: str
) -> None:
    """As the policy says, by messages as by bytes; the books have the reason."""
    broker = VirtualBroker(Limits(**limits, queue_full=queue_full))  # type: ignore[arg-type]
    away(broker)
    flood(broker, 5, size=size)
    session = broker.session("s")
    assert session.ledger.dropped == {reason: 2}
    assert b"".join(payload[:1] for payload in back(broker).acknowledge()) == kept
    session.check_invariants()


@pytest.mark.parametrize("version", [4, 5])
def test_disconnect_ends_the_session_of_a_client_that_is_away(version: int) -> None:
    """It keeps as many as are allowed; one more, and the client finds no session."""
    limits = Limits(queued_messages=3, queue_full="disconnect")
    for n_messages, session_present in ((3, True), (4, False)):
        broker = VirtualBroker(limits)
        away(broker, version)
        flood(broker, n_messages)
        client = back(broker, version)
        assert client.connack.session_present == session_present
        assert len(client.take_all(Publish)) == (3 if session_present else 0)
        ledger = broker.core.ledger()
        dropped = {} if session_present else {"queue_full": 1, "session_ended": 3}
        assert ledger.dropped == dropped


@pytest.mark.parametrize("version", [4, 5])
def test_disconnect_closes_a_client_that_does_not_keep_up(version: int) -> None:
    """MQTT 5 is told Quota exceeded; its session and will are as after any other loss."""
    broker = VirtualBroker(Limits(queued_messages=3, inflight_messages=1, queue_full="disconnect"))
    watcher = broker.connect("w")
    watcher.subscribe("will")
    properties = {"session_expiry_interval": 1000} if version == 5 else {}
    client = broker.connect("s", version, clean_start=False, properties=properties, will=will())
    client.subscribe("t", 1)
    flood(broker, 4)
    assert not client.is_lost
    flood(broker, 3)
    assert client.is_lost
    assert len(client.take_all(Publish)) == 1
    wanted = [Disconnect(ReasonCode.QUOTA_EXCEEDED)] if version == 5 else []
    assert client.inbox == wanted
    assert watcher.payloads() == [b"gone"]
    again = back(broker, version)
    assert again.connack.session_present
    received = []
    while payloads := again.acknowledge():
        received += payloads
    assert received == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("limits", "kept", "dropped"),
    [
        (
            Limits(total_queued_bytes=2 * TWICE, queue_full="drop_newest"),
            [b"0.........", b"1........."],
            4,
        ),
        (
            Limits(total_queued_messages=4, queue_full="drop_newest"),
            [b"0.........", b"1........."],
            4,
        ),
        (
            Limits(total_queued_bytes=2 * TWICE, queue_full="drop_oldest"),
            [b"2.........", b"3........."],
            0,
        ),
    ],
)
def test_no_more_waits_for_all_sessions_together_than_allowed(
    limits: Limits, kept: list[bytes], dropped: int
) -> None:
    """A payload that waits for many counts once; what finds no room is counted with its reason."""
    broker = VirtualBroker(limits)
    for client_id in ("s", "s2"):
        client = broker.connect(client_id, properties={"session_expiry_interval": 1000})
        client.subscribe("t", 1)
        client.lose()
    flood(broker, 4, size=10)
    ledger = broker.core.ledger()
    assert ledger.dropped.get("broker_full", 0) == dropped
    assert ledger.outstanding() == sum(s.outbox.n_messages for s in broker.core.sessions)
    second = broker.connect("s2", clean_start=False, properties={"session_expiry_interval": 1000})
    assert second.payloads() == kept
    for session in broker.core.sessions:
        session.check_invariants()


def test_what_is_inflight_to_a_client_that_is_away_counts_with_what_waits() -> None:
    """128 MiB of it were kept for each session that a client left behind, however many."""
    broker = VirtualBroker(Limits(total_queued_bytes=100_000))
    backlog = broker.core.outbox_rules.backlog
    assert backlog is not None
    for name in "ab":
        client = broker.connect(name, properties={"session_expiry_interval": 1000})
        client.subscribe(name, 1)
        for number in range(5):
            client.publish(name, bytes(10_000), qos=1, packet_id=number + 1)
        assert backlog.n_messages == (5 if name == "b" else 0)
        client.lose()
    assert backlog.n_messages == 10
    assert backlog.n_bytes > 100_000
    publisher = broker.connect("p")
    publisher.publish("a", b"x", qos=1)
    assert publisher.take(PubAck).reason_code == ReasonCode.SUCCESS
    assert broker.core.counters.publish_refused == {}
    again = broker.connect("a", clean_start=False)
    assert again.session.ledger.dropped == {"broker_full": 1}  # an absent client cannot make room
    assert backlog.n_messages == 5
    assert len(again.acknowledge()) == 5
    again.session.check_invariants()
    broker.advance(2000)
    assert (backlog.n_messages, backlog.n_bytes) == (0, 0)
