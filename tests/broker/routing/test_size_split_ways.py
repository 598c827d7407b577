"""Subscriptions of one size class on every way that a message may take, against a model of them.

The model knows the rule alone: which subscriptions match, of which class a message is for their
client, and who is connected. The broker is one with its fast ways, one that takes packet after
packet, and one whose access control is asked about each message.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from penstock.broker.config.mqtt_options import MqttOptions
from penstock.broker.fast_paths.fast_core import FastCore
from penstock.broker.mqtt.packets import (
    ConnAck,
    Connect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
)
from penstock.broker.mqtt.topics import matches, parse_share
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.sessions.broker_state import Core
from tests.broker.routing.test_size_class_targets import Gate, asking
from tests.helpers.access import Access, finish
from tests.helpers.durable import DurableBroker
from tests.helpers.effort import examples
from tests.helpers.shares import check_books
from tests.helpers.virtual import VirtualClient, will

NAMES = ("a5", "b5", "c4", "small4", "d5", "e4")
"""Client ids with their versions; the first four have sessions that last."""
LASTING = frozenset(NAMES[:4])
TOPICS = ("t/1", "t/2")
FILTERS = ("t/1", "t/+", "#", "$share/s/t/#", "$share/s/t/1")
SIZES = (10, 11, 100, 101)
CLASSES = (None, "small", "large")

PEERS = st.integers(0, len(NAMES) - 1)
"""Which of those that are there, or away: the number modulo theirs."""

SUBSCRIPTION = st.tuples(
    st.sampled_from(FILTERS),
    st.integers(0, 2),
    st.sampled_from(CLASSES),
    st.sampled_from((False, False, True)),  # No Local
    st.integers(0, 2),  # Retain Handling
    st.sampled_from((False, False, True)),  # with an identifier
)


@dataclass
class Granted:
    """A subscription of the model."""

    qos: int
    sizes: str | None
    no_local: bool
    number: int


@dataclass
class Peer:
    """A client of the model."""

    name: str
    client: VirtualClient | None = None
    listener: str = "default"
    granted: dict[str, Granted] = field(default_factory=dict)
    waiting: list[bytes] = field(default_factory=list)
    will: bytes | None = None

    @property
    def version(self) -> int:
        """The version of MQTT."""
        return int(self.name[-1])

    def takes(self, sizes: str | None, payload: bytes) -> bool:
        """The rule."""
        is_large = len(payload) > (100 if self.listener == "wide" else 10)
        return sizes is None or is_large == (sizes == "large")


class Ways(RuleBasedStateMachine):
    """Publishes to subscriptions of all kinds, and counts who gets what."""

    extensions: dict[str, Any] = {}  # noqa: RUF012 (of the machine's kind)
    core_class: type[Core] = FastCore

    def __init__(self) -> None:
        super().__init__()
        options = MqttOptions(sizes_by_client={"small*": "small"})
        self.broker = DurableBroker(
            core_class=self.core_class, gate=Gate(), options=options, **self.extensions
        )
        self.peers = {name: Peer(name) for name in NAMES}
        self.retained: dict[str, tuple[bytes, str, int]] = {}
        self.of_shares: dict[tuple[str, bytes], set[str]] = {}
        self.number = 0
        self.expected: Counter[tuple[str, bytes, tuple[int, ...]]] = Counter()
        self.shared_now: dict[tuple[str, bytes], set[str]] = {}

    @initialize(subscriptions=st.lists(st.tuples(PEERS, SUBSCRIPTION), max_size=12))
    def begin(self, subscriptions: list[tuple[int, tuple[Any, ...]]]) -> None:
        """Connect all clients, and subscribe."""
        for _ in NAMES:
            self.connect(0, "default", None)
        for number, subscription in subscriptions:
            self.subscribe(number, subscription)

    # -- what happens

    def _peer(self, number: int, *, is_there: bool = True) -> Peer | None:
        """Return one of the clients that are connected, or are not; None where there is none."""
        found = [peer for peer in self.peers.values() if (peer.client is not None) == is_there]
        return found[number % len(found)] if found else None

    @rule(
        number=PEERS,
        listener=st.sampled_from(("default", "default", "wide")),
        will_bytes=st.sampled_from((None, None, *SIZES)),
    )
    def connect(self, number: int, listener: str, will_bytes: int | None) -> None:
        """Connect, with the session if there is one."""
        peer = self._peer(number, is_there=False)
        if peer is None:
            return
        name = peer.name
        peer.listener = listener
        peer.will = None if will_bytes is None else self._payload(will_bytes)
        client = peer.client = VirtualClient(self.broker, peer.version)
        client.connection.client.listener = listener
        is_lasting = name in LASTING
        properties = {"session_expiry_interval": 0xFFFFFFFF} if is_lasting else {}
        client.send(
            Connect(
                client_id=name,
                protocol_version=peer.version,
                clean_start=not is_lasting,
                keep_alive=0,
                will=None if peer.will is None else will("t/1", peer.will, qos=1),
                properties=properties if peer.version == 5 else {},
            )
        )
        client.connack = client.take(ConnAck)
        for payload in peer.waiting:
            self.expected[name, payload, ()] += 1
        peer.waiting.clear()
        self._check()

    @rule(number=PEERS)
    def lose(self, number: int) -> None:
        """Lose the connection."""
        peer = self._peer(number)
        if peer is None or peer.client is None:
            return
        name = peer.name
        client, peer.client = peer.client, None
        if name not in LASTING:
            peer.granted.clear()
        if peer.will is not None:
            self._publish(peer, "t/1", peer.will, 1)
        client.lose()
        self._check()

    @rule(number=PEERS, subscription=SUBSCRIPTION)
    def subscribe(self, number: int, subscription: tuple[Any, ...]) -> None:
        """Subscribe, anew or again."""
        peer = self._peer(number)
        if peer is None or peer.client is None:
            return
        name = peer.name
        topic_filter, qos, sizes, no_local, retain_handling, has_number = subscription
        is_shared = bool(parse_share(topic_filter).share_name)
        no_local = no_local and peer.version == 5 and not is_shared
        properties: dict[str, Any] = {}
        number = 0
        if peer.version == 5:
            if has_number:
                number = FILTERS.index(topic_filter) + 1
                properties = {"subscription_identifier": [number]}
            if sizes is not None:
                properties |= asking(sizes)
        else:
            sizes = "small" if name.startswith("small") else None
            retain_handling = 0
        is_new = topic_filter not in peer.granted
        granted = peer.granted[topic_filter] = Granted(qos, sizes, no_local, number)
        request = SubscriptionRequest(topic_filter, qos, no_local, retain_handling=retain_handling)
        if not is_shared and (retain_handling == 0 or (retain_handling == 1 and is_new)):
            for topic, (payload, publisher, _) in self.retained.items():
                is_own = no_local and publisher == name
                if matches(topic_filter, topic) and peer.takes(sizes, payload) and not is_own:
                    self.expected[name, payload, (granted.number,) if number else ()] += 1
        peer.client.send(Subscribe(1, (request,), properties))
        self._check()

    @rule(number=PEERS, topic_filter=st.sampled_from(FILTERS))
    def unsubscribe(self, number: int, topic_filter: str) -> None:
        """End a subscription."""
        peer = self._peer(number)
        if peer is None or peer.client is None or not peer.granted.pop(topic_filter, None):
            return
        peer.client.send(Unsubscribe(1, (topic_filter,)))
        self._check()

    @rule(
        number=PEERS,
        messages=st.lists(
            st.tuples(
                st.sampled_from(TOPICS),
                st.sampled_from(SIZES),
                st.integers(0, 2),
                st.sampled_from((False, False, False, True)),
                st.integers(1, 3),
            ),
            min_size=1,
            max_size=6,
        ),
        is_one_chunk=st.booleans(),
    )
    def publish(
        self,
        number: int,
        messages: list[tuple[str, int, int, bool, int]],
        is_one_chunk: bool,  # noqa: FBT001 (hypothesis gives it by name)
    ) -> None:
        """Publish some messages, in one chunk or each in its own."""
        peer = self._peer(number)
        if peer is None or peer.client is None:
            return
        packets = []
        for topic, n_bytes, qos, retain, n_messages in messages:
            for _ in range(n_messages):
                payload = self._payload(n_bytes)
                if retain:
                    self.retained[topic] = payload, peer.name, qos
                self._publish(peer, topic, payload, qos)
                packet = Publish(
                    topic, payload, qos=qos, retain=retain, packet_id=self.number if qos else 0
                )
                packets.append(write_packet(packet, peer.version))
        for data in [b"".join(packets)] if is_one_chunk else packets:
            peer.client.send_bytes(data)
            finish(peer.client)
        self._check()

    @rule()
    def restart(self) -> None:
        """End the broker without a word, and start it again on its disk."""
        was_there = [peer for peer in self.peers.values() if peer.client is not None]
        for peer in self.peers.values():
            peer.client = None
            if peer.name not in LASTING:
                peer.granted.clear()
        for peer in was_there:
            if peer.will is not None:
                self._publish(peer, "t/1", peer.will, 1)
        self.broker = self.broker.crash()
        self._check()

    # -- the model

    def _payload(self, n_bytes: int) -> bytes:
        self.number += 1
        return b"%05d" % self.number + b"." * (n_bytes - 5)

    def _publish(self, publisher: Peer, topic: str, payload: bytes, qos: int) -> None:
        for peer in self.peers.values():
            found = [
                granted
                for topic_filter, granted in peer.granted.items()
                if matches(topic_filter, topic)
                and not parse_share(topic_filter).share_name
                and peer.takes(granted.sizes, payload)
                and not (granted.no_local and peer is publisher)
            ]
            if not found:
                continue
            if peer.client is not None:
                numbers = tuple(sorted(granted.number for granted in found if granted.number))
                self.expected[peer.name, payload, numbers] += 1
            elif qos and any(granted.qos for granted in found):
                peer.waiting.append(payload)
        for share in FILTERS:
            parts = parse_share(share)
            if not parts.share_name or not matches(parts.topic_filter, topic):
                continue
            takers = self._takers(share, payload)
            connected = {peer.name for peer in takers if peer.client is not None}
            if connected:
                self.shared_now[share, payload] = connected
            elif qos and any(peer.granted[share].qos for peer in takers):
                self.of_shares[share, payload] = {peer.name for peer in takers}

    def _takers(self, share: str, payload: bytes) -> list[Peer]:
        return [
            peer
            for peer in self.peers.values()
            if share in peer.granted and peer.takes(peer.granted[share].sizes, payload)
        ]

    def _check(self) -> None:
        """See that each client has got what the model says, and nothing else."""
        got = self._receive()
        for (name, payload, numbers), n in list(got.items()):
            # What waited for a client has the identifiers of when it was published.
            kept = name, payload, ()
            if self.expected[name, payload, numbers] < n and self.expected[kept]:
                self.expected[kept] -= n
                del got[name, payload, numbers]
        rest = got - self.expected
        missing = self.expected - got
        assert not missing, missing
        by_share = [(name, payload) for name, payload, _ in rest.elements()]
        while by_share:  # who can have it of one share alone comes first
            by_share.sort(key=lambda one: len(self._shares_of(*one)), reverse=True)
            name, payload = by_share.pop()
            shares = self._shares_of(name, payload)
            assert shares, f"{name} has got {payload!r}"
            if self.shared_now.pop((shares[0], payload), None) is None:
                del self.of_shares[shares[0], payload]
        assert not self.shared_now, self.shared_now
        for share, payload in self.of_shares:
            able = [peer.name for peer in self._takers(share, payload) if peer.client is not None]
            assert not able, (share, payload, able)
        self.expected.clear()
        check_books(self.broker)

    def _shares_of(self, name: str, payload: bytes) -> list[str]:
        """Return the shares by which a client may have got a message."""
        shares = []
        for share in FILTERS:
            able = {peer.name for peer in self._takers(share, payload)}
            may = self.shared_now.get((share, payload))
            if may is None and (share, payload) in self.of_shares:
                may = self.of_shares[share, payload] | able
            if may is not None and name in may:
                shares.append(share)
        return shares

    def _receive(self) -> Counter[tuple[str, bytes, tuple[int, ...]]]:
        """Let every client take and answer all there is; return what each has got."""
        got: Counter[tuple[str, bytes, tuple[int, ...]]] = Counter()
        clients = [(peer.name, peer.client) for peer in self.peers.values() if peer.client]
        while any(client.inbox for _, client in clients):
            for name, client in clients:
                inbox, client.inbox = client.inbox, []
                for packet in inbox:
                    match packet:
                        case Publish(qos=qos, packet_id=packet_id):
                            numbers = packet.properties.get("subscription_identifier", ())
                            got[name, packet.payload, tuple(sorted(numbers))] += 1
                            if qos:
                                kind = PubAck if qos == 1 else PubRec
                                client.send(kind(packet_id))
                        case PubRec(packet_id):
                            client.send(PubRel(packet_id))
                        case PubRel(packet_id):
                            client.send(PubComp(packet_id))
        return got


class OneByOne(Ways):
    """A broker without fast paths."""

    core_class = Core


class Asked(Ways):
    """A broker whose access control is asked about each message."""

    @property
    def extensions(self) -> dict[str, Any]:  # type: ignore[override]
        """An access control that has a say."""
        return {"access": Access()}


TestWays = Ways.TestCase
TestOneByOne = OneByOne.TestCase
TestAsked = Asked.TestCase
SETTINGS = settings(max_examples=examples(60), stateful_step_count=20, deadline=None)
TestWays.settings = TestOneByOne.settings = TestAsked.settings = SETTINGS
