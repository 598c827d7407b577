"""Brokers that may end at any moment: a kept session loses nothing, wherever its client goes on."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from penstock.broker.mqtt.packets import (
    ConnAck,
    Connect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    UnsubAck,
    Unsubscribe,
)
from penstock.broker.mqtt.topics import matches
from tests.helpers.durable import keep
from tests.helpers.effort import examples
from tests.helpers.kept import Mailboxes, Node
from tests.helpers.virtual import VirtualBroker, VirtualClient

TOPICS = ("t/1", "t/2")
N_NODES = 3


class Subscriber:
    """A correct client, which remembers what it has received.

    Attributes:
        client: its connection, or None.
        got: the first receipt of each message, and QoS 2 messages as often as it took them.
        received: packet identifiers of QoS 2 messages that are not released.
    """

    def __init__(self) -> None:
        self.client: VirtualClient | None = None
        self.got: list[bytes] = []
        self.received: set[int] = set()

    def take(self, client: VirtualClient) -> None:
        """Take the oldest packet, and answer it."""
        answer = self._answer(client.inbox.pop(0))
        if answer is not None:
            client.send(answer)

    def _answer(self, packet: Packet) -> Packet | None:
        if isinstance(packet, PubRel):
            self.received.discard(packet.packet_id)
            return PubComp(packet.packet_id)
        if isinstance(packet, ConnAck):
            assert packet.session_present
            return None
        assert isinstance(packet, Publish)
        if packet.qos == 1:
            if packet.payload not in self.got:
                self.got.append(packet.payload)
            return PubAck(packet.packet_id)
        if packet.packet_id not in self.received:
            self.received.add(packet.packet_id)
            self.got.append(packet.payload)
        return PubRec(packet.packet_id)


class Wandering(RuleBasedStateMachine):
    """A subscriber goes from broker to broker, while messages wait and brokers end."""

    def __init__(self) -> None:
        super().__init__()
        self.boxes = Mailboxes()
        self.nodes = [Node(self.boxes) for _ in range(N_NODES)]
        self.peer = Subscriber()
        self.put: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.n_put = 0
        client = self.peer.client = self.nodes[0].connect("s", **keep())
        client.subscribe("t/#", 2)

    @rule(topic=st.sampled_from(TOPICS), qos=st.sampled_from((1, 2)), n_messages=st.integers(1, 5))
    def publish(self, topic: str, qos: int, n_messages: int) -> None:
        """Messages are stored in the mailbox, whoever has the session."""
        for _ in range(n_messages):
            self.n_put += 1
            payload = b"%d" % self.n_put
            self.put[topic, qos].append(payload)
            self.boxes.put("s", topic, payload, qos)

    @precondition(lambda self: self.peer.client is not None and self.peer.client.inbox)
    @rule(n_packets=st.integers(1, 4))
    def take(self, n_packets: int) -> None:
        """The client reads some packets."""
        client = self.peer.client
        assert client is not None
        for _ in range(min(n_packets, len(client.inbox))):
            self.peer.take(client)

    @precondition(lambda self: self.peer.client is not None)
    @rule()
    def lose(self) -> None:
        """The client's connection ends."""
        client, self.peer.client = self.peer.client, None
        assert client is not None
        client.lose()

    @rule(place=st.integers(0, N_NODES - 1), receive_maximum=st.sampled_from((1, 3, 65_535)))
    def connect(self, place: int, receive_maximum: int) -> None:
        """The client comes to a broker; one that has its session lets go of it before."""
        for node in self.nodes:
            node.is_refusing = False
            node.settle()
        client = self.peer.client = VirtualClient(self.nodes[place])
        options = keep()
        options["properties"]["receive_maximum"] = receive_maximum
        client.send(Connect(client_id="s", keep_alive=0, **options))
        assert client.inbox, "no CONNACK"

    @rule(place=st.integers(0, N_NODES - 1), gives_runs=st.booleans())
    def die(self, place: int, gives_runs: bool) -> None:  # noqa: FBT001 (of a rule)
        """A broker ends, and another one takes its place."""
        node = self.nodes[place]
        node.die()
        self.nodes[place] = Node(self.boxes)
        self.nodes[place].gives_runs = gives_runs
        if self.peer.client is not None and self.peer.client.broker is node:
            self.peer.client = None

    @rule(place=st.integers(0, N_NODES - 1), refuses=st.booleans())
    def refuse(self, place: int, refuses: bool) -> None:  # noqa: FBT001 (of a rule)
        """The store takes no commits of a broker, or does again."""
        self.nodes[place].is_refusing = refuses
        self.nodes[place].settle()

    def teardown(self) -> None:
        """In the end all has come: at QoS 2 once, and of each topic and QoS in order."""
        self.connect(0, 65_535)
        client = self.peer.client
        assert client is not None
        while client.inbox:
            self.peer.take(client)
        self.nodes[0].session("s").check_invariants()
        for payloads in self.put.values():
            assert [payload for payload in self.peer.got if payload in payloads] == payloads
        assert not self.boxes["s"].entries
        assert not self.boxes["s"].inflight


TestWandering = Wandering.TestCase
TestWandering.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


FILTERS = ("t/#", "t/+", "t/1", "$share/g/t/2")
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from(TOPICS), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("subscribe"), st.sampled_from(FILTERS), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("unsubscribe"), st.sampled_from(FILTERS)),
        st.tuples(st.just("take"), st.integers(1, 5)),
        st.tuples(st.just("lose")),
        st.tuples(st.just("connect"), st.sampled_from((1, 2, 65_535))),
    ),
    max_size=40,
)


class Twin:
    """A subscriber of one broker, which does what its twin at another broker does."""

    def __init__(
        self, broker: VirtualBroker, boxes: Mailboxes | None, *, has_identifiers: bool
    ) -> None:
        self.broker = broker
        self.has_identifiers = has_identifiers
        self.boxes = boxes
        self.publisher = broker.connect("p")
        self.got: list[object] = []
        self.client: VirtualClient | None = None
        self.published: list[bytes] = []
        self.filters: dict[str, int] = {}
        self.connect(65_535)

    def connect(self, receive_maximum: int) -> None:
        """Come, or come back."""
        properties = {"session_expiry_interval": 3600, "receive_maximum": receive_maximum}
        self.client = self.broker.connect("s", clean_start=False, properties=properties)

    def lose(self) -> None:
        """Be gone."""
        if self.client is not None:
            self.client.lose()
            self.client = None

    def subscribe(self, topic_filter: str, qos: int, retain_as_published: bool) -> None:  # noqa: FBT001
        """Subscribe, maybe with an identifier of the filter's own."""
        if self.client is not None:
            properties = {"subscription_identifier": [FILTERS.index(topic_filter) + 1]}
            if not self.has_identifiers:
                properties = {}
            options = {"retain_as_published": retain_as_published, "retain_handling": 2}
            self.client.subscribe(topic_filter, qos, properties=properties, **options)
            self.filters[topic_filter] = qos

    def unsubscribe(self, topic_filter: str) -> None:
        """Unsubscribe, with nothing on its way: it may be sent or not."""
        if self.client is not None:
            self.take(10_000)
            self.client.send(Unsubscribe(2, (topic_filter,)))
            self.client.take(UnsubAck)
            self.filters.pop(topic_filter, None)

    def publish(self, topic: str, qos: int, retain: bool) -> None:  # noqa: FBT001
        """Have something published for it."""
        payload = b"%d" % len(self.published)
        self.published.append(payload)
        if self.boxes is None:
            self.publisher.publish(topic, payload, qos=qos, retain=retain)
            if qos == 2:
                self.publisher.send(PubRel(1))
            self.publisher.inbox.clear()
            return
        share = FILTERS[3]
        own = [one for one in self.filters if one != share and matches(one, topic)]
        of_share = [share] if topic == "t/2" and share in self.filters else []
        for found, name in ((own, ""), (of_share, share)):
            granted = max((self.filters[one] for one in found), default=-1)
            # Nothing of QoS 0 waits for a client that is away.
            if granted >= 0 and (self.client is not None or min(qos, granted)):
                self.boxes.put("s", topic, payload, qos, retain=retain, share=name)

    def take(self, n_packets: int) -> None:
        """Read and answer packets, oldest first."""
        client = self.client
        if client is None:
            return
        while n_packets and client.inbox:
            n_packets -= 1
            packet = client.inbox.pop(0)
            if isinstance(packet, PubRel):
                client.send(PubComp(packet.packet_id))
            elif isinstance(packet, Publish):
                ids = sorted(packet.properties.get("subscription_identifier", ()))
                self.got.append((packet.payload, packet.qos, packet.retain, ids, packet.dup))
                if packet.qos:
                    answer = PubAck if packet.qos == 1 else PubRec
                    client.send(answer(packet.packet_id))


@given(steps=_STEPS, ids=st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_a_kept_session_is_as_one_of_the_broker_s_own(
    steps: list[tuple[Any, ...]],
    ids: bool,  # noqa: FBT001 (of a property)
) -> None:
    """Its client gets the same, in the same order, with the same flags and identifiers.

    Without identifiers of subscriptions some of what waits leaves in runs.
    """
    boxes = Mailboxes()
    kept = Twin(Node(boxes), boxes, has_identifiers=ids)
    own = Twin(VirtualBroker(), None, has_identifiers=ids)
    for name, *arguments in steps:
        for twin in (kept, own):
            if name == "connect" and twin.client is not None:
                twin.lose()
            getattr(twin, name)(*arguments)
    for twin in (kept, own):
        twin.lose()
        twin.connect(65_535)
        twin.take(10_000)
    assert kept.got == own.got
    assert not boxes["s"].entries
