"""Features that were built side by side, at work together: what must hold whatever meets whatever.

Clients of all versions with sessions that last and that do not, own and shared subscriptions,
topic aliases, retained messages, message expiry, withholding, access control that takes its time,
limits of queues and rates, transports without room, takeovers, a slow disk, a process that ends.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.broker.config.limits import Limits
from penstock.broker.config.mqtt_options import MqttOptions
from penstock.broker.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
)
from tests.helpers.access import Access, finish
from tests.helpers.durable import DurableBroker
from tests.helpers.effort import examples
from tests.helpers.gates import SwitchGate
from tests.helpers.virtual import VirtualClient, will

OWN = ("own/1", "own/2")
SHARED = ("job/1", "job/2")
OWN_FILTER = "own/#"
SHARE = "$share/workers/job/#"
NAMES = ("a5", "b5", "c4", "d4", "e3", "f5")
"""Client identifiers, each with its version; `a5` and `c4` keep their sessions."""
LASTING = frozenset({"a5", "c4"})
LARGE = b"L" * 50


class Peer:
    """A correct client; of its own state, what a session that lasts needs outlives the broker."""

    def __init__(self, name: str, repeated: set[bytes]) -> None:
        self.name = name
        self.repeated = repeated
        self.version = int(name[1])
        self.is_lasting = name in LASTING
        self.client: VirtualClient | None = None
        self.aliases: dict[int, str] = {}
        self.newest: dict[tuple[str, str, int], int] = {}
        self.incoming: set[int] = set()
        self.unacknowledged: dict[int, Publish] = {}
        self.released: set[int] = set()
        self.accepted: list[Publish] = []
        self.got: list[tuple[str, int, bytes]] = []
        self.is_accepted = False
        self._n_ids = 0

    @property
    def is_ready(self) -> bool:
        """Whether it is connected, with its CONNACK."""
        return self.is_accepted and self.client is not None and not self.client.is_lost

    def connect(self, broker: DurableBroker, receive_maximum: int, n_aliases: int) -> None:
        """Connect anew, maybe in place of another connection."""
        before = self.client
        client = self.client = VirtualClient(broker, self.version)
        self.is_accepted = False
        self.aliases.clear()
        self.newest.clear()
        if not self.is_lasting:
            self.incoming.clear()
        properties: dict[str, Any] = {}
        if self.version == 5:
            properties = {"receive_maximum": receive_maximum, "topic_alias_maximum": n_aliases}
            if self.is_lasting:
                properties["session_expiry_interval"] = 0xFFFFFFFF
        client.send(
            Connect(
                client_id=self.name,
                protocol_version=self.version,
                clean_start=not self.is_lasting,
                keep_alive=0,
                will=will("own/1", b"0:will"),
                properties=properties,
            )
        )
        if before is not None:
            finish(before)

    def send(self, *packets: Packet) -> None:
        """Send, where there is a connection."""
        if self.client is not None and not self.client.is_lost:
            self.client.send(*packets)

    def new_id(self) -> int:
        """Return a packet identifier that is free."""
        while True:
            self._n_ids = self._n_ids % 20 + 1
            if self._n_ids not in self.unacknowledged and self._n_ids not in self.released:
                return self._n_ids

    def take(self) -> None:
        """Handle what has come."""
        while self.client is not None and self.client.inbox:
            packet = self.client.inbox.pop(0)
            if not self.is_accepted:
                assert isinstance(packet, ConnAck), f"{packet} before CONNACK"
                assert packet.reason_code == 0
                self.is_accepted = True
                self._repeat(session_present=packet.session_present)
                continue
            assert not isinstance(packet, ConnAck)
            self._take(packet)

    def _repeat(self, *, session_present: bool) -> None:
        if not session_present:
            self.released.clear()
            self.incoming.clear()
            self.unacknowledged.clear()  # the broker does not know them from new ones
        self.send(*map(PubRel, sorted(self.released)))
        for sent in list(self.unacknowledged.values()):
            self.repeated.add(sent.payload)
            self.send(dataclasses.replace(sent, dup=True))

    def _take(self, packet: Packet) -> None:
        match packet:
            case Publish():
                self._got(packet)
            case PubRel():
                self.incoming.discard(packet.packet_id)
                self.send(PubComp(packet.packet_id))
            case PubAck() | PubRec():
                sent = self.unacknowledged.pop(packet.packet_id, None)
                if sent is not None and packet.reason_code < 0x80:
                    self.accepted.append(sent)
                if isinstance(packet, PubRec) and packet.reason_code < 0x80:
                    self.released.add(packet.packet_id)
                    self.send(PubRel(packet.packet_id))
            case PubComp():
                self.released.discard(packet.packet_id)

    def _got(self, packet: Publish) -> None:
        alias = packet.properties.get("topic_alias")
        topic = packet.topic
        if alias:
            topic = self.aliases[alias] = topic or self.aliases[alias]
        number, _, publisher = packet.payload.rstrip(b"L").partition(b":")
        is_new = True
        if packet.qos == 2:
            is_new = packet.packet_id not in self.incoming
            self.incoming.add(packet.packet_id)
            self.send(PubRec(packet.packet_id))
        elif packet.qos:
            self.send(PubAck(packet.packet_id))
        if not is_new:
            return
        self.got.append((topic, packet.qos, packet.payload))
        is_first = not (packet.dup or packet.retain or packet.payload in self.repeated)
        if topic in OWN and is_first and publisher != b"will":
            key = (topic, publisher.decode(), packet.qos)
            assert self.newest.get(key, 0) < int(number), "out of order"
            self.newest[key] = int(number)


class Mixed(RuleBasedStateMachine):
    """Everything at once."""

    @initialize(
        window=st.sampled_from([1, 3, 1000]),
        n_queued=st.sampled_from([4, 1000, 1000]),
        queue_full=st.sampled_from(["drop_newest", "drop_oldest", "disconnect"]),
        rate=st.sampled_from([None, None, 2.0]),
        has_gate=st.booleans(),
        has_access=st.booleans(),
    )
    def start(
        self,
        window: int,
        n_queued: int,
        queue_full: Any,
        rate: float | None,
        *,
        has_gate: bool,
        has_access: bool,
    ) -> None:
        """Start the broker; those with lasting sessions subscribe before all else."""
        self.is_lossy = n_queued < 1000
        self.access = Access() if has_access else None
        self.broker = DurableBroker(
            limits=Limits(
                inflight_messages=window,
                queued_messages=n_queued,
                queue_full=queue_full,
                publish_messages_per_second=rate,
            ),
            options=MqttOptions(),
            max_pending_messages=5,
            gate=SwitchGate(40, most_seconds=1) if has_gate else None,
            access=self.access,
        )
        repeated: set[bytes] = set()
        self.peers = {name: Peer(name, repeated) for name in NAMES}
        self.number = 0
        for name in LASTING:
            peer = self.peers[name]
            peer.connect(self.broker, 10, 2)
            self.settle()
            peer.send(
                Subscribe(1, (SubscriptionRequest(OWN_FILTER, 2), SubscriptionRequest(SHARE, 2)))
            )
            self.settle()
        self.broker.commits_at_once = False

    def settle(self) -> None:
        """Let access control answer and clients handle what has come."""
        for _ in range(10):
            for peer in self.peers.values():
                if peer.client is not None:
                    finish(peer.client)
                peer.take()
            self.broker.finish_waiting()

    @rule(
        name=st.sampled_from(NAMES),
        receive_maximum=st.sampled_from([1, 2, 100]),
        n_aliases=st.sampled_from([0, 1, 5]),
    )
    def connect(self, name: str, receive_maximum: int, n_aliases: int) -> None:
        """A client connects, or takes its session over."""
        self.peers[name].connect(self.broker, receive_maximum, n_aliases)
        self.peers[name].take()

    @rule(
        name=st.sampled_from(NAMES),
        qos=st.integers(0, 2),
        to_share=st.booleans(),
        is_wanted=st.sampled_from([True, True, False]),
    )
    def subscribe(self, name: str, qos: int, *, to_share: bool, is_wanted: bool) -> None:
        """A client subscribes; those without lasting sessions also unsubscribe."""
        peer = self.peers[name]
        topic_filter = SHARE if to_share else OWN_FILTER
        if not peer.is_ready or peer.is_lasting:
            return
        if is_wanted:
            peer.send(Subscribe(30, (SubscriptionRequest(topic_filter, qos),)))
        else:
            peer.send(Unsubscribe(30, (topic_filter,)))
        peer.take()

    @rule(
        name=st.sampled_from(NAMES),
        topic=st.sampled_from(OWN + SHARED),
        qos=st.integers(0, 2),
        n_messages=st.integers(1, 4),
        expiry=st.sampled_from([None, None, 1]),
        retain=st.sampled_from([False, False, True]),
        is_large=st.booleans(),
    )
    def publish(
        self,
        name: str,
        topic: str,
        qos: int,
        n_messages: int,
        expiry: int | None,
        *,
        retain: bool,
        is_large: bool,
    ) -> None:
        """A client publishes, in one chunk."""
        peer = self.peers[name]
        if not peer.is_ready:
            return
        packets = []
        for _ in range(n_messages):
            if qos and len(peer.unacknowledged) + len(peer.released) >= 10:
                break
            self.number += 1
            payload = b"%d:%s" % (self.number, name.encode())
            packet = Publish(
                topic,
                payload + (LARGE if is_large else b""),
                qos,
                retain,
                packet_id=peer.new_id() if qos else 0,
                properties={"message_expiry_interval": expiry}
                if expiry and peer.version == 5
                else {},
            )
            if qos:
                peer.unacknowledged[packet.packet_id] = packet
            packets.append(packet)
        peer.send(*packets)
        peer.take()

    @rule(name=st.sampled_from(NAMES), is_paused=st.booleans())
    def room(self, name: str, *, is_paused: bool) -> None:
        """A transport fills up, or drains."""
        peer = self.peers[name]
        if peer.client is None or peer.client.is_lost:
            return
        if is_paused:
            peer.client.connection.pause_sending(self.broker.now)
        else:
            peer.client.connection.resume_sending(self.broker.now)
        self.broker.settle()
        peer.take()

    @rule(name=st.sampled_from(NAMES), says_why=st.booleans())
    def leave(self, name: str, *, says_why: bool) -> None:
        """A connection ends."""
        peer = self.peers[name]
        if peer.client is not None and not peer.client.is_lost:
            if says_why:
                peer.send(Disconnect())
            else:
                peer.client.lose()

    @rule(waits=st.booleans())
    def access_waits(self, *, waits: bool) -> None:
        """Access control takes its time, or not."""
        if self.access is not None:
            self.access.waits = waits

    @rule()
    def answer(self) -> None:
        """Access control has answered everybody."""
        self.settle()

    @rule(seconds=st.sampled_from([0.0, 0.5, 2.0]))
    def time(self, seconds: float) -> None:
        """Messages expire, gates open, publishers may publish again."""
        self.broker.advance(seconds)
        for peer in self.peers.values():
            peer.take()

    @rule(is_done=st.booleans())
    def commit(self, *, is_done: bool) -> None:
        """A commit begins, or all is committed."""
        if is_done:
            self.broker.commit()
        else:
            self.broker.seal()
        for peer in self.peers.values():
            peer.take()

    @rule(is_written=st.booleans())
    def crash(self, *, is_written: bool) -> None:
        """The process ends, before or after the commit that is under way."""
        batch = self.broker.journal.sealed
        if batch is not None and is_written:
            self.broker.disk.write(batch)
        for peer in self.peers.values():
            if peer.client is not None:
                peer.client.is_lost = True
                if peer.client.connection.client.suspended is not None:
                    peer.client.connection.client.suspended.close()
                peer.client = None
        for rest in self.broker.waiting:
            rest.close()
        if self.access is not None:
            self.access.waits = False
        self.broker = self.broker.crash()
        self.broker.commits_at_once = False

    @invariant()
    def books_balance(self) -> None:
        """T5: conservation, per subscriber and for the broker, after every step."""
        if not hasattr(self, "broker"):
            return
        outstanding = 0
        for session in self.broker.core.sessions:
            session.check_invariants()
            outstanding += session.ledger.outstanding()
        assert self.broker.core.ledger().outstanding() == outstanding

    def teardown(self) -> None:
        """All comes to rest: nothing accepted is missing, and nothing is left behind."""
        if not hasattr(self, "broker"):
            return
        broker = self.broker
        if self.access is not None:
            self.access.waits = False
        for name in NAMES:
            if name not in LASTING and self.peers[name].client is not None:
                self.peers[name].send(Disconnect())
        self.settle()
        for _ in range(100):
            for name in sorted(LASTING):
                peer = self.peers[name]
                if peer.client is None or peer.client.is_lost:
                    peer.connect(broker, 100, 0)
                if peer.client is not None:
                    peer.client.connection.resume_sending(broker.now)
            broker.settle()
            self.settle()
            broker.commit()
            broker.advance(3)
            self.settle()
            is_idle = not any(p.unacknowledged or p.released for p in self.peers.values())
            if is_idle and not broker.core.ledger().outstanding():
                break
        broker.commit()
        self._check_messages()
        self._check_rest()

    def _check_messages(self) -> None:
        accepted = [sent for peer in self.peers.values() for sent in peer.accepted]
        sure = [sent.payload for sent in accepted if not sent.properties and sent.topic in OWN]
        jobs = [
            sent.payload
            for sent in accepted
            if not sent.properties and sent.topic in SHARED and sent.qos == 1
        ]
        for name in LASTING:
            got = [payload for topic, qos, payload in self.peers[name].got if topic in OWN]
            if not self.is_lossy:
                assert set(sure) <= set(got), f"{name} lacks {set(sure) - set(got)}"
            twice = [
                payload for topic, qos, payload in self.peers[name].got if topic in OWN and qos == 2
            ]
            retained = {sent.payload for sent in accepted if sent.retain}
            once = [payload for payload in twice if payload not in retained]
            assert len(set(once)) == len(once), "QoS 2 came twice"
        if not self.is_lossy:
            done = {payload for peer in self.peers.values() for _, _, payload in peer.got}
            assert set(jobs) <= done, f"jobs lost: {set(jobs) - done}"

    def _check_rest(self) -> None:
        broker = self.broker
        assert not broker.disk.deliveries
        core = broker.core
        for session in list(core.sessions):
            if session.client is not None:
                session.client.detach(broker.now)
            core.sessions.end(session, broker.now)
        broker.finish_waiting()
        broker.commit()
        assert core.ledger().outstanding() == 0
        assert core.timers.next_deadline() is None or core.retained.by_topic
        assert not core.tree.shares
        assert not core.turn.congested
        assert core.counters.clients_connected == 0
        disk = broker.disk
        assert not disk.sessions
        assert not disk.deliveries
        assert not disk.incoming
        assert not disk.wills


TestMixed: Any = Mixed.TestCase
TestMixed.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
