"""Brokers that may end at any moment: a kept session loses nothing, wherever its client goes on."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import settings
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
)
from tests.helpers.durable import keep
from tests.helpers.effort import examples
from tests.helpers.kept import Mailboxes, Node
from tests.helpers.virtual import VirtualClient

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

    @rule(place=st.integers(0, N_NODES - 1))
    def die(self, place: int) -> None:
        """A broker ends, and another one takes its place."""
        node = self.nodes[place]
        node.die()
        self.nodes[place] = Node(self.boxes)
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
