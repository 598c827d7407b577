"""Any bytes from any clients: no exception comes out of the core, and its books balance.

An input is two bytes that set the broker up and then steps of a few bytes each: a client
connects, sends a packet that is right, sends bytes that may be anything, leaves, gets room or
loses it; time passes; the disk takes what has changed, or the broker ends and starts again.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.broker.config.limits import Limits, QueueFull
from penstock.broker.config.mqtt_options import MqttOptions
from penstock.broker.errors import PeerError
from penstock.broker.extensions import DeliveryGate, Verdict
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.broker.mqtt.packets import (
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
    Will,
)
from penstock.broker.mqtt.writer import write_packet
from tests.helpers.access import Access, finish
from tests.helpers.durable import DurableBroker
from tests.helpers.virtual import VirtualBroker, VirtualClient

MAX_STEPS: Final = 200
"""Most steps of one input: longer inputs find little more."""

TOPICS: Final = ("a", "a/b", "big", "$SYS/x", "c/" * 8, "ä")
FILTERS: Final = ("a", "a/+", "#", "+/b", "$share/g/a/#", "$SYS/#", "c/" * 8, "big")
QUEUE_FULL: Final[tuple[QueueFull, ...]] = ("drop_newest", "drop_oldest", "disconnect")


class Gate(DeliveryGate):
    """Messages on "big" are large above 4 bytes and are withheld for 2 seconds."""

    def threshold_s(self, topic: str) -> int | None:
        """Return 4 for that topic."""
        return 4 if topic == "big" else None

    def decide(self, message: Message, link: Link, sojourn: float, now: float) -> Verdict:
        """Let it go after its time."""
        del message, link
        return Verdict(sojourn >= 2, now + 2 - sojourn, "fuzz")


class Peer(VirtualClient):
    """A client that reads in whatever version the broker has come to answer in."""

    def serve(self, now: float) -> None:
        """Do what the driver does."""
        self.version = self.connection.client.version
        super().serve(now)


class Bytes:
    """What is left of an input."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def __bool__(self) -> bool:
        return self._position < len(self._data)

    def one(self, below: int = 256) -> int:
        """Take a number from 0 on; 0 where nothing is left."""
        if not self:
            return 0
        self._position += 1
        return self._data[self._position - 1] % below

    def some(self, n_bytes: int) -> bytes:
        """Take so many bytes, or what is left."""
        start = self._position
        self._position = min(len(self._data), start + n_bytes)
        return self._data[start : self._position]


class Run:
    """One broker with up to four clients."""

    def __init__(self, setup: int, more: int) -> None:
        limits = Limits(
            maximum_packet_size=2048,
            topic_bytes=100,
            topic_levels=6,
            subscriptions=4,
            receive_maximum=3,
            inflight_messages=3,
            inflight_bytes=100,
            queued_messages=8,
            queued_bytes=300,
            queue_full=QUEUE_FULL[setup % 3],
            retained_messages=3,
            retained_bytes=3000,
            publish_messages_per_second=5 if setup & 4 else None,
            publish_bytes_per_second=500 if setup & 8 else None,
            publish_rate_exceeded="disconnect" if setup & 16 else "slow_down",
        )
        access = Access() if setup & 32 else None
        options = MqttOptions(
            topic_alias_maximum=2,
            outgoing_topic_aliases=2,
            maximum_qos=1 if more & 1 else 2,
            wildcard_subscription_available=not more & 2,
            retain_available=not more & 4,
            check_payload_format=bool(more & 8),
        )
        extensions: dict[str, Any] = {"gate": Gate(), "access": access, "options": options}
        self.broker: VirtualBroker
        if more & 16:
            self.broker = DurableBroker(limits=limits, max_pending_messages=4, **extensions)
            self.broker.commits_at_once = not more & 32
        else:
            self.broker = VirtualBroker(limits, **extensions)
        if access is not None:
            access.waits = bool(setup & 64)
            access.refused = {("publish", "a/b"), ("subscribe", "+/b"), ("receive", "ä")}
        self.peers: list[Peer] = []

    def step(self, data: Bytes) -> None:
        """Do one thing."""
        what = data.one(14)
        if what == 0 or not self.peers:
            self._connect(data)
            return
        peer = self.peers[data.one(len(self.peers))]
        if what <= 5:
            peer.send_bytes(written(data, 3 + data.one(3)))
        elif what == 6:
            peer.send_bytes(data.some(1 + data.one(64)))
        elif what == 7:
            sent = bytearray(written(data, peer.version))
            sent[data.one(len(sent))] = data.one()
            peer.send_bytes(bytes(sent))
        elif what == 8:
            self._room(peer)
        elif what == 9:
            finish(peer)
            self.broker.finish_waiting()
        elif what == 10:
            self.broker.advance(data.one() / 16)
        elif what == 11:
            peer.lose()
        elif isinstance(self.broker, DurableBroker):
            self._disk(self.broker, data)
        peer.inbox.clear()

    def _disk(self, broker: DurableBroker, data: Bytes) -> None:
        kind = data.one(4)
        if kind == 0:
            broker.commits_at_once = False
            broker.is_disk_full = not broker.is_disk_full
        elif kind == 1:
            suspended = [peer.connection.client.suspended for peer in self.peers]
            for rest in (*suspended, *broker.waiting):
                if rest is not None:
                    rest.close()  # as it ends with the process
            self.peers.clear()
            self.broker = broker.crash(down_seconds=data.one() / 16)
        else:
            broker.commit()

    def _connect(self, data: Bytes) -> None:
        for gone in self.peers[:-3]:
            gone.lose()
            finish(gone)
        peer = Peer(self.broker)
        self.peers = [*self.peers[-3:], peer]
        version = 3 + data.one(3)
        flags = data.one()
        properties = {"session_expiry_interval": flags & 15} if version == 5 else {}
        if version == 5 and flags & 64:
            properties["receive_maximum"] = 1
        if version == 5 and flags & 128:
            properties["maximum_packet_size"] = 30
        if version == 5:
            properties["topic_alias_maximum"] = data.one(3)
        will = Will(TOPICS[flags % 6], b"will", qos=flags % 3, retain=bool(flags & 16))
        peer.send_bytes(
            write_packet(
                Connect(
                    client_id="xyz"[data.one(3)],
                    protocol_version=version,
                    clean_start=bool(flags & 1),
                    keep_alive=flags & 7,
                    will=will if flags & 32 else None,
                    properties=properties,
                ),
                version,
            )
        )

    def _room(self, peer: Peer) -> None:
        if not peer.connection.outgoing.is_paused:
            peer.connection.pause_sending(self.broker.now)
        else:
            peer.connection.resume_sending(self.broker.now)
            self.broker.settle()

    def check(self) -> None:
        """Raise AssertionError where the broker's books do not balance."""
        core = self.broker.core
        outstanding = n_subscriptions = 0
        for session in core.sessions:
            session.check_invariants()
            outstanding += session.ledger.outstanding()
            n_subscriptions += len(session.subscriptions)
            assert len(session.subscriptions) <= core.limits.subscriptions
        assert core.ledger().outstanding() == outstanding, "the broker's ledger"
        assert core.retained.n_limited <= core.limits.retained_messages
        connected = sum(session.is_connected for session in core.sessions)
        assert core.counters.clients_connected == connected
        for peer in self.peers:
            client = peer.connection.client
            if client.is_open:
                assert core.sessions.get(client.session.client_id) is client.session
                assert client.session.client is client


def packet(data: Bytes, version: int) -> Packet:
    """Return a packet that a client of a version may send at some time or other."""
    is_5 = version == 5
    kind, packet_id, number = data.one(11), 1 + data.one(4), data.one()
    if kind <= 2:
        qos = number % 3
        properties: dict[str, Any] = {}
        if is_5 and number & 64:
            properties = publish_properties(data.one())
        topic = TOPICS[data.one(len(TOPICS))]
        return Publish(
            "" if "topic_alias" in properties and number & 8 else topic,
            bytes(data.one(40)),
            qos=qos,
            packet_id=packet_id if qos else 0,
            retain=bool(number & 16),
            dup=bool(number & 32 and qos),
            properties=properties,
        )
    if kind == 3:
        options = data.one()
        request = SubscriptionRequest(
            FILTERS[number % len(FILTERS)],
            options & 1 | (options & 2 if not options & 1 else 0),
            no_local=is_5 and bool(options & 4),
            retain_as_published=is_5 and bool(options & 8),
            retain_handling=(options >> 4) % 3 if is_5 else 0,
        )
        identifier = {"subscription_identifier": [1 + packet_id]} if is_5 and options & 64 else {}
        return Subscribe(packet_id, (request,), identifier)
    if kind == 4:
        return Unsubscribe(packet_id, (FILTERS[number % len(FILTERS)],))
    reason_code = 0x80 if is_5 and number & 128 else 0
    if kind == 5:
        return PubAck(packet_id, reason_code)
    if kind == 6:
        return PubRec(packet_id, reason_code)
    if kind == 7:
        return PubRel(packet_id)
    if kind == 8:
        return PubComp(packet_id)
    return PingReq() if kind == 9 else Disconnect(4 if is_5 and number & 1 else 0)


def publish_properties(flags: int) -> dict[str, Any]:
    """Return some properties of a PUBLISH."""
    properties: dict[str, Any] = {}
    if flags & 1:
        properties["message_expiry_interval"] = flags >> 6
    if flags & 2:
        properties["topic_alias"] = 1 + (flags >> 5)
    if flags & 4:
        properties["user_property"] = [("k", "v" * (flags >> 4))] * 2
    if flags & 8:
        properties["payload_format_indicator"] = 1
    if flags & 16:
        properties |= {"response_topic": "a", "correlation_data": b"c"}
    return properties


def written(data: Bytes, version: int) -> bytes:
    """Return a packet's bytes; a PINGREQ where a version has no such packet."""
    try:
        return write_packet(packet(data, version), version)
    except (PeerError, ValueError):  # the codec does not let us write it
        return b"\xc0\x00"


def run(data: bytes) -> None:
    """Do the steps of an input, with a look at the books after each."""
    if not data:
        return
    left = Bytes(data[1:])
    one = Run(data[0], left.one())
    for _ in range(MAX_STEPS):
        if not left:
            break
        one.step(left)
        one.check()
    for peer in one.peers:
        peer.lose()
        finish(peer)
    one.broker.finish_waiting()
    one.broker.advance(100)
    one.check()
