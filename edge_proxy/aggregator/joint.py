"""The joint of an uplink: two clients back to back, without the network.

Theory of operation. An uplink has three connections. One leads to the cloud's broker. Two are
clients of the site's own broker, in its process: *up* subscribes to what goes up, *down* publishes
what comes down. PUBLISH, PUBACK, PUBREC, PUBREL and PUBCOMP pass the joint with unchanged packet
identifiers:

    site's broker  -- up -->  PUBLISH 7  -->  cloud       cloud  -->  PUBLISH 3  -- down -->  broker
    site's broker  <-- up --  PUBACK 7   <--  cloud       cloud  <--  PUBACK 3   <-- down --  broker

So the joint keeps no state of messages. What waits for the cloud waits in the session of *up*,
with its limits, priorities, expiry and persistence. When either end is killed, the sessions on both
sides send again by [MQTT-4.4.0-1] with the same identifiers, and the receiver knows a repeat at
QoS 2.

Packet identifiers mean the same on both sides only while both sides have their sessions. Where the
cloud has none, that of *down* is ended by Clean Start, as its identifiers stand for other messages.
The session of *down* begins when the cloud has accepted the first connection. So where there is
none, the sessions of this site are not those that the cloud knows, and the cloud's is ended before
(`connect_cloud`): by a connection of its own, as mosquitto 2.0 does not store the session of a
client that has connected with Clean Start.

What cannot pass is answered here, as the other side would have done, and counted by its reason. A
message that repeats one which the cloud may have is released there first (`_Up.freeing`): the cloud
would take the next message with that identifier for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from logging import Logger
from typing import Final, get_args

from penstock.broker.counters import count
from penstock.broker.errors import PeerError, ProtocolError
from penstock.broker.extensions import PUBLISHER_PROPERTY
from penstock.broker.faults import is_logged
from penstock.broker.message import LANE_PROPERTY, SIZE_PROPERTY, SizeClass
from penstock.broker.mqtt.enums import MAX_PACKET_ID, MAX_REMAINING_LENGTH, MQTT_5, PacketType
from penstock.broker.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    Publish,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
)
from penstock.broker.mqtt.properties import read_publish_properties, write_properties
from penstock.broker.mqtt.reason_codes import ReasonCode, describe_reason_code
from penstock.broker.mqtt.writer import publish_header, write_packet
from penstock.edge_proxy.aggregator.connecting import (
    SESSION_NEVER_EXPIRES,
    JointSettings,
    UplinkRefusedError,
    check_accepted,
    cloud_state,
    connect_cloud,
    connect_up,
    read_connack,
    read_frame,
    record_of_state,
    state_of,
    subscribe_up,
    will_of,
)
from penstock.edge_proxy.aggregator.counts import UplinkCounts
from penstock.edge_proxy.aggregator.outlet import Outlet
from penstock.edge_proxy.aggregator.packet_stream import Buffer, PacketStream
from penstock.edge_proxy.aggregator.remapping import SITE_PROPERTY, Loops, Remapping
from penstock.edge_proxy.aggregator.subscriptions import Request

MOST_INFLIGHT: Final = 32_000
"""QoS 1 and 2 messages on their way up. The packet identifiers of SUBSCRIBE are taken as far from
theirs as possible, and these are less than half of all."""

FILTERS_AT_ONCE: Final = 64
"""Topic filters of one SUBSCRIBE or UNSUBSCRIBE."""

KNOWN_TOPICS: Final = 10_000
"""Topics whose names on the other side are kept."""

_PUBACK: Final = 0x40
_PUBREC: Final = 0x50
_PUBREL: Final = 0x62
_PUBCOMP: Final = 0x70
_NO_PROPERTIES: Final = b"\0"
_OWN_MARK: Final = SITE_PROPERTY.encode()[:9]
"""What the names of all User Properties of uplinks begin with."""


class Joint:
    """One connection to the cloud, and the two local ones that come and go with it.

    Attributes:
        cloud: what is to be written to the cloud's broker.
        up: what is to be written by the local client that subscribes.
        down: what is to be written by the local client that publishes.
        is_accepted: the cloud's broker has accepted the connection: the local clients connect.
        keep_alive: seconds; the cloud's broker may have asked for another than the configured one.
        session_present: the cloud's broker has the session, once it is accepted.
        is_safe: the site's broker has the session of *down*, with persistence on its disk. The
            cloud is asked for messages from then on: a site that is killed before has the cloud's
            session ended, with what waits in it.
        lanes_are_kept: it keeps the order of topics across both lanes.
        has_other_lane: it has a session of the other lane.
        markers: payloads that have come for the marker's topic, not taken yet; None where the cloud
            refuses one.
        retained: topics at the site of retained messages that have come, not taken yet, while
            `watches_retained`.
        watches_retained: they are wanted.
        largest: (bytes, topic at the site) of the largest message that went up; (0, "") for none.
        not_taken: (packet identifier, topic) of messages, not handed over yet, that the cloud's
            broker does not let this client publish; of an optional lane alone.
        answers: of the cloud's broker, not taken yet: (topic filter, reason code), and None as the
            code of a subscription that has ended.
    """

    def __init__(
        self,
        settings: JointSettings,
        remapping: Remapping,
        loops: Loops,
        counts: UplinkCounts,
        logger: Logger,
        *,
        old_filters: Sequence[str],
    ) -> None:
        """Begin a connection: CONNECT is in `cloud`.

        Args:
            settings: of the uplink.
            remapping: of its topics.
            loops: recognises messages that go round.
            counts: of the uplink.
            logger: told what does not pass.
            old_filters: subscriptions of *up* of which everything retained went up before.
        """
        self.settings = settings
        self.remapping = remapping
        self.loops = loops
        self.counts = counts
        self.logger = logger
        self.cloud, self.up, self.down = Outlet(), Outlet(), Outlet()
        self.is_accepted = False
        self.keep_alive = settings.keep_alive
        self.session_present = False
        self.is_safe = False
        self.lanes_are_kept = False
        self.has_other_lane = False
        self.answers: list[tuple[str, int | None]] = []
        self.not_taken: list[tuple[int, str]] = []
        self.markers: list[bytes | None] = []
        self.retained: list[str] = []
        self.watches_retained = False
        self.largest = (0, "")
        self.version = settings.version
        self.maximum_packet_size = settings.cloud_packet_size or MAX_REMAINING_LENGTH + 5
        self.maximum_qos = 2
        self.retain_available = True
        self._old_filters = frozenset(old_filters)
        self._asked: dict[int, tuple[str, ...]] = {}
        self._marker_ids: set[int] = set()
        self._up, self._down, self._cloud = _Up(self), _Down(self), _Cloud(self)
        most = settings.maximum_packet_size
        self._from_cloud = PacketStream(self._cloud, self.version, most)
        self._from_up = PacketStream(self._up, MQTT_5, MAX_REMAINING_LENGTH + 5)
        self._from_down = PacketStream(self._down, self.version, MAX_REMAINING_LENGTH + 5)
        self.cloud.send(connect_cloud(settings))

    # -- what is received ------------------------------------------------------------------------

    @property
    def is_receiving(self) -> bool:
        """Whether a part of a message of the cloud has come, and not all of it."""
        return self._from_cloud.is_in_payload

    def receive_cloud(self, data: Buffer) -> None:
        """Take bytes from the cloud's broker.

        Raises:
            PeerError: it has sent what is not allowed.
            UplinkRefusedError: it has refused or ended the connection.
        """
        self._from_cloud.receive_data(data)

    def receive_up(self, data: Buffer) -> None:
        """Take bytes from the site's broker for the client that subscribes.

        Raises:
            UplinkRefusedError: it has refused or ended the connection.
            PeerError: as `receive_cloud`.
        """
        self._from_up.receive_data(data)

    def receive_down(self, data: Buffer) -> None:
        """Take bytes from the site's broker for the client that publishes.

        Raises:
            UplinkRefusedError: as `receive_up`.
            PeerError: the same.
        """
        self._from_down.receive_data(data)

    # -- what is asked of it ---------------------------------------------------------------------

    def ping(self) -> None:
        """Send PINGREQ to the cloud."""
        self.cloud.send(write_packet(PingReq(), self.version))

    def subscribe(self, requests: Sequence[Request], marker: bytes | None = None) -> None:
        """Ask the cloud for topics.

        Args:
            requests: each filter once.
            marker: payload that is retained for the marker's topic before, and comes last.
        """
        topic = self.settings.marker_topic
        if marker is not None and topic is not None:
            self.unsubscribe((topic,))  # else it would come as a live message, too
            self._publish_marker(topic, marker)
        for sizes in (None, *get_args(SizeClass)):
            of_class = [request for request in requests if request.sizes == sizes]
            for start in range(0, len(of_class), FILTERS_AT_ONCE):
                self._subscribe(of_class[start : start + FILTERS_AT_ONCE], sizes)
        if marker is not None and topic is not None:
            packet_id = self._packet_id()
            self._asked[packet_id] = (topic,)
            own = SubscriptionRequest(topic, 1, False, False, 0)
            self.cloud.send(write_packet(Subscribe(packet_id, (own,)), self.version))

    def _subscribe(self, requests: Sequence[Request], sizes: SizeClass | None) -> None:
        """Send one SUBSCRIBE."""
        packet_id = self._packet_id()
        self._asked[packet_id] = tuple(request.topic_filter for request in requests)
        is_5 = self.version == MQTT_5
        asked = tuple(
            SubscriptionRequest(name, qos, True, True, 0 if wants_retained else 2)
            if is_5
            else SubscriptionRequest(name, qos, False, False, 0)
            for name, qos, wants_retained, _ in requests
        )
        of_size = {"user_property": [(SIZE_PROPERTY, sizes)]} if sizes else {}
        self.cloud.send(write_packet(Subscribe(packet_id, asked, of_size), self.version))

    def _publish_marker(self, topic: str, payload: bytes) -> None:
        qos = min(1, self.maximum_qos)
        packet_id = self._packet_id() if qos else 0
        if qos:
            self._marker_ids.add(packet_id)
        marker = Publish(topic, payload, qos=qos, retain=True, packet_id=packet_id)
        self.cloud.send(write_packet(marker, self.version))

    def end_marker(self) -> None:
        """Have the cloud retain nothing for the marker's topic, until the next marker."""
        topic = self.settings.marker_topic
        if topic is not None:
            self.unsubscribe((topic,))
            self.cloud.send(write_packet(Publish(topic, b"", retain=True), self.version))

    def clear(self, topics: Iterable[str]) -> None:
        """Have the site retain nothing for some topics."""
        for topic in topics:
            self.counts.retained_cleared += 1
            self.down.send(write_packet(Publish(topic, b"", retain=True), self.version))

    def unsubscribe(self, filters: Sequence[str]) -> None:
        """Ask the cloud for topics no more."""
        for start in range(0, len(filters), FILTERS_AT_ONCE):
            names = tuple(filters[start : start + FILTERS_AT_ONCE])
            packet_id = self._packet_id()
            self._asked[packet_id] = names
            self.cloud.send(write_packet(Unsubscribe(packet_id, names), self.version))

    def record(self, added: Iterable[str], removed: Iterable[str]) -> None:
        """Keep texts in the session of *down*, as subscriptions to which nothing is published.

        Args:
            added: valid topic filters.
            removed: such that were added before.
        """
        requests = tuple(SubscriptionRequest(name, 0, False, False, 0) for name in added)
        names = tuple(removed)
        if requests:
            self.down.send(write_packet(Subscribe(1, requests), self.version))
        if names:
            self.down.send(write_packet(Unsubscribe(2, names), self.version))

    def disconnect(self, *, for_good: bool = False) -> bool:
        """Say goodbye on all connections.

        Args:
            for_good: they do not come again: no state of them is retained.

        Returns:
            False where the cloud cannot be told, as a message is on its way: it publishes the will.
        """
        state = b"" if for_good else b"0"
        if self.is_accepted:
            self.down.send(state_of(self.settings, state, self.version))
            self.down.send(write_packet(Disconnect(), self.version))
            self.up.send(write_packet(Disconnect(), MQTT_5))
        if self.cloud.is_in_payload:
            return False
        if self.is_accepted:
            self.cloud.send(cloud_state(self.settings, state))
        self.cloud.send(write_packet(Disconnect(), self.version))
        return True

    # -- within ----------------------------------------------------------------------------------

    def _packet_id(self) -> int:
        """Return a packet identifier that no message on its way up has [MQTT-2.2.1-3]."""
        packet_id = (self._up.last_packet_id + MAX_PACKET_ID // 2) % MAX_PACKET_ID + 1
        taken = (self._asked, self._up.topics, self._marker_ids)
        while any(packet_id in packet_ids for packet_ids in taken):
            packet_id = packet_id % MAX_PACKET_ID + 1
        return packet_id

    def accepted(self, packet: ConnAck) -> None:
        """Take the CONNACK of the cloud's broker: connect the local clients, and subscribe.

        Raises:
            UplinkRefusedError: it refuses.
        """
        check_accepted(packet)
        properties = packet.properties
        self.is_accepted = True
        self.session_present = packet.session_present
        for name, value in properties.get("user_property", ()):
            if name == LANE_PROPERTY:
                self.lanes_are_kept = True
                self.has_other_lane = bool(value)
        self.keep_alive = properties.get("server_keep_alive", self.keep_alive)
        told = properties.get("maximum_packet_size", self.maximum_packet_size)
        self.maximum_packet_size = min(told, self.maximum_packet_size)
        self.maximum_qos = properties.get("maximum_qos", 2)
        told_available = bool(properties.get("retain_available", 1))
        self.retain_available = told_available and self.settings.outgoing_retain
        window = min(properties.get("receive_maximum", MAX_PACKET_ID), MOST_INFLIGHT)
        if not properties.get("session_expiry_interval", 1):
            self.logger.warning(
                "the cloud's broker keeps no session: what it has for this site during an outage "
                "is lost"
            )
        self._connect_up(window)
        self._connect_down()
        if self.retain_available:
            self.cloud.send(cloud_state(self.settings, b"1"))

    def _connect_up(self, window: int) -> None:
        """Let the client that subscribes connect; its version is 5, whatever the cloud's is."""
        self.up.send(connect_up(self.settings.up_id, window))
        # What is retained goes up once, and again where the cloud has forgotten the session.
        again = frozenset[str]() if not self.session_present else self._old_filters
        filters = self.remapping.up_filters()
        self.up.send(subscribe_up(filters, self.settings.sizes, without_retained=again))

    def _connect_down(self) -> None:
        """Let the client that publishes connect, in the version of the cloud's connection.

        Then an acknowledgement of one side is one of the other, and what cannot be said to a
        broker of MQTT 3.1.1 is not said to the joint either.
        """
        is_5 = self.version == MQTT_5
        connect = Connect(
            self.settings.down_id,
            protocol_version=self.version,
            clean_start=not self.session_present,
            keep_alive=0,
            will=will_of(self.settings),
            properties={"session_expiry_interval": SESSION_NEVER_EXPIRES} if is_5 else {},
        )
        self.down.send(write_packet(connect, self.version))
        if self.settings.state_topic is not None:
            self.record([record_of_state(self.settings.state_topic)], ())
        self.down.send(state_of(self.settings, b"1", self.version))

    def answered(self, packet: SubAck | UnsubAck) -> None:
        """Take the cloud's answer to a SUBSCRIBE or UNSUBSCRIBE."""
        filters = self._asked.pop(packet.packet_id, ())
        if isinstance(packet, UnsubAck):
            self.answers += [(name, None) for name in filters]
            return
        for name, code in zip(filters, packet.reason_codes, strict=False):
            self.answers.append((name, code))
            if code >= 0x80:
                self.counts.subscribe_refused += 1
                self.logger.error(
                    "the cloud's broker refuses the subscription to %r: %s",
                    name,
                    describe_reason_code(code),
                )

    def drop(self, direction: str, reason: str, topic: str, told: str = "") -> None:
        """Count a message that does not pass, and log it at growing intervals."""
        dropped = self.counts.up_dropped if direction == "up" else self.counts.down_dropped
        count(dropped, reason)
        if is_logged(dropped[reason]):
            self.logger.warning(
                "%d messages did not go %s (%s), the last of topic %r%s",
                dropped[reason],
                direction,
                reason,
                topic,
                told,
            )

    def change(self, reason: str) -> None:
        """Count a message that goes up otherwise than it came."""
        count(self.counts.changed, reason)
        if is_logged(self.counts.changed[reason]):
            self.logger.warning("%d messages: %s", self.counts.changed[reason], reason)


def _short(first_byte: int, packet_id: int) -> bytes:
    return bytes((first_byte, 2)) + packet_id.to_bytes(2)


def _acknowledged(frame: bytes, body_at: int) -> tuple[int, int]:
    """Return packet identifier and reason code of a PUBACK, PUBREC, PUBREL or PUBCOMP.

    Raises:
        ProtocolError: it has no packet identifier.
    """
    if len(frame) < body_at + 2:
        raise ProtocolError("acknowledgement without a packet identifier")
    packet_id = int.from_bytes(frame[body_at : body_at + 2])
    return packet_id, frame[body_at + 2] if len(frame) > body_at + 2 else 0


class _Local:
    """A local client: its connection to the site's broker."""

    def __init__(self, joint: Joint) -> None:
        self.joint = joint

    def other_packet(self, first_byte: int, frame: bytes, body_at: int, version: int) -> Packet:
        """Take and return a packet that is no acknowledgement.

        Raises:
            UplinkRefusedError: the site's broker refuses the client, or has ended its connection.
        """
        packet = read_frame(first_byte, frame, body_at, version)
        if isinstance(packet, ConnAck | Disconnect) and packet.reason_code:
            told = describe_reason_code(packet.reason_code)
            reason = packet.properties.get("reason_string")
            more = f" ({reason})" if reason else ""
            raise UplinkRefusedError("local", f"ended by the site's own broker: {told}{more}")
        return packet


class _Up(_Local):
    """What the site's broker sends to the client that subscribes.

    Attributes:
        topics: packet identifier of a message on its way to its topic.
        last_packet_id: of the newest of them.
        freeing: packet identifiers of messages that do not pass and are released in the cloud.
        lowered: packet identifiers of messages of QoS 2 that went up at QoS 1.
    """

    def __init__(self, joint: Joint) -> None:
        super().__init__(joint)
        self.topics: dict[int, str] = {}
        self.last_packet_id = 0
        self.freeing: set[int] = set()
        self.lowered: set[int] = set()
        self._answer = b""
        self._is_dropping = False
        self._names: dict[bytes, tuple[str, bytes | None]] = {}

    def packet(self, first_byte: int, frame: bytes, body_at: int) -> None:
        """Take a packet other than PUBLISH."""
        joint = self.joint
        if first_byte != _PUBREL:
            packet = self.other_packet(first_byte, frame, body_at, MQTT_5)
            if isinstance(packet, SubAck):
                self._subscribed(packet.reason_codes)
            return
        packet_id, _ = _acknowledged(frame, body_at)
        if joint.maximum_qos < 2:
            self.lowered.discard(packet_id)
            joint.up.send(_short(_PUBCOMP, packet_id))
        else:
            joint.cloud.send(frame if joint.version == MQTT_5 else _short(_PUBREL, packet_id))

    def _subscribed(self, codes: Sequence[int]) -> None:
        for name, code in zip(self.joint.remapping.up_filters(), codes, strict=False):
            if code >= 0x80:
                self.joint.logger.error(
                    "the site's own broker refuses the subscription to %r: %s",
                    name,
                    describe_reason_code(code),
                )

    def publish(
        self, first_byte: int, topic: bytes, packet_id: int, properties: bytes, payload_bytes: int
    ) -> None:
        """Send a message up under its name there, or answer it here."""
        joint = self.joint
        name, remote = self._renamed(topic)
        reason = told = ""
        changed: bytes | None = _NO_PROPERTIES
        if remote is None:
            reason = "not_mapped"
        else:
            reason, changed = self._properties(properties)
        if reason or remote is None or changed is None:
            self._drop(first_byte, packet_id, name, reason)
            return
        qos = first_byte >> 1 & 3
        sent_qos = min(qos, joint.maximum_qos)
        header = publish_header(
            remote,
            payload_bytes,
            sent_qos,
            bool(first_byte & 1) and joint.retain_available,
            bool(first_byte & 8) and sent_qos > 0,
            packet_id,
            changed,
            joint.version,
        )
        n_bytes = len(header) + payload_bytes
        if n_bytes > joint.maximum_packet_size:
            told = f", of {n_bytes} bytes; allowed: at most {joint.maximum_packet_size}"
            self._drop(first_byte, packet_id, name, "too_large", told)
            return
        self._is_dropping = False
        self._answer = b""
        if first_byte & 1 and not joint.retain_available and joint.settings.outgoing_retain:
            joint.change("retain_cleared")
        if sent_qos < qos:
            self._lower(qos, sent_qos, packet_id)
        if sent_qos:
            self.topics[packet_id] = name
            self.last_packet_id = packet_id
        joint.counts.up_messages += 1
        joint.counts.up_bytes += n_bytes
        if n_bytes > joint.largest[0]:
            joint.largest = n_bytes, name
        joint.cloud.begin(header, payload_bytes)

    def _renamed(self, topic: bytes) -> tuple[str, bytes | None]:
        known = self._names.get(topic)
        if known is None:
            if len(self._names) >= KNOWN_TOPICS:
                self._names.clear()
            name = topic.decode()
            remote = self.joint.remapping.up(name)
            known = self._names[topic] = (name, None if remote is None else remote.encode())
        return known

    def _properties(self, encoded: bytes) -> tuple[str, bytes | None]:
        """Return the properties that a message has in the cloud.

        Returns:
            (why it does not pass, or ""; the encoded properties, or None for a message of the
            cloud's own, which ends here without being counted).
        """
        joint = self.joint
        try:
            properties, _ = read_publish_properties(encoded, 0)
        except PeerError:
            return "properties", None
        pairs: list[tuple[str, str]] = list(properties.pop("user_property", ()))
        if pairs and pairs[-1][0] == PUBLISHER_PROPERTY:  # what the site's own broker says
            _, publisher = pairs.pop()
            if publisher.startswith(joint.settings.own_prefix):
                return "", None
            is_from_site = any(name == SITE_PROPERTY for name, _ in pairs)
            if not is_from_site:  # of another site's message, who published it there stays
                pairs = [pair for pair in pairs if pair[0] != PUBLISHER_PROPERTY]
                if joint.settings.tells_publisher:
                    pairs.append((PUBLISHER_PROPERTY, publisher))
        marked = joint.loops.marked(pairs)
        if marked is None:
            return "hops", None
        if joint.version != MQTT_5:
            return "", _NO_PROPERTIES
        properties.pop("subscription_identifier", None)
        properties["user_property"] = marked
        return "", write_properties(properties, PacketType.PUBLISH)

    def _lower(self, qos: int, sent_qos: int, packet_id: int) -> None:
        self.joint.change("qos_lowered")
        if sent_qos:
            self.lowered.add(packet_id)
        else:
            self._answer = _short(_PUBACK if qos == 1 else _PUBREC, packet_id)

    def _drop(
        self, first_byte: int, packet_id: int, topic: str, reason: str, told: str = ""
    ) -> None:
        """Answer a message that does not pass, once its payload has come."""
        joint = self.joint
        self._is_dropping = True
        self._answer = b""
        if reason:
            joint.drop("up", reason, topic, told)
        code = bytes((ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR if reason else 0,))
        qos = first_byte >> 1 & 3
        if qos == 1:
            self._answer = bytes((_PUBACK, 3)) + packet_id.to_bytes(2) + code
        elif qos:
            self._answer = bytes((_PUBREC, 3)) + packet_id.to_bytes(2) + code
            if first_byte & 8 and joint.maximum_qos == 2:
                self.freeing.add(packet_id)
                joint.cloud.send(_short(_PUBREL, packet_id))
                self._answer = b""

    def payload(self, piece: Buffer, bytes_left: int) -> None:
        """Pass a piece of a payload on, or skip it."""
        if not self._is_dropping:
            self.joint.cloud.piece(piece, bytes_left)
        if not bytes_left and self._answer:
            self.joint.up.send(self._answer)
            self._answer = b""


class _Down(_Local):
    """What the site's broker sends to the client that publishes: acknowledgements."""

    def packet(self, first_byte: int, frame: bytes, body_at: int) -> None:
        """Take a packet."""
        if first_byte in (_PUBACK, _PUBREC, _PUBCOMP):
            self.joint.cloud.send(frame)
            if self.joint.version == MQTT_5 and first_byte != _PUBCOMP:
                _, code = _acknowledged(frame, body_at)
                if code >= 0x80:
                    self.joint.drop("down", "refused", "", f": {describe_reason_code(code)}")
        else:
            packet = self.other_packet(first_byte, frame, body_at, self.joint.version)
            if isinstance(packet, ConnAck):
                self.joint.is_safe = True

    def publish(
        self, first_byte: int, topic: bytes, packet_id: int, properties: bytes, payload_bytes: int
    ) -> None:
        """Skip what the client has not subscribed to: it never comes."""

    def payload(self, piece: Buffer, bytes_left: int) -> None:
        """Skip it."""


class _Cloud:
    """What the cloud's broker sends."""

    def __init__(self, joint: Joint) -> None:
        self.joint = joint
        self._answer = b""
        self._is_dropping = False
        self._marker: bytearray | None = None
        self._marker_topic = (joint.settings.marker_topic or "").encode()
        self._names: dict[bytes, tuple[str, bytes | None]] = {}

    def packet(self, first_byte: int, frame: bytes, body_at: int) -> None:
        """Take a packet other than PUBLISH.

        Raises:
            ProtocolError: it may not come now.
            UplinkRefusedError: the cloud's broker ends the connection.
        """
        joint = self.joint
        if not joint.is_accepted:
            joint.accepted(read_connack(first_byte, frame, body_at, joint.version))
        elif first_byte in (_PUBACK, _PUBREC, _PUBCOMP):
            self._acknowledgement(first_byte, frame, body_at)
        elif first_byte == _PUBREL:
            joint.down.send(frame)
        else:
            self._other(read_frame(first_byte, frame, body_at, joint.version))

    def _acknowledgement(self, first_byte: int, frame: bytes, body_at: int) -> None:
        joint = self.joint
        up = joint._up  # noqa: SLF001 (one joint)
        packet_id, code = _acknowledged(frame, body_at)
        if packet_id in joint._marker_ids:  # noqa: SLF001 (one joint)
            joint._marker_ids.discard(packet_id)  # noqa: SLF001
            if code >= 0x80:
                joint.markers.append(None)
            return
        topic = up.topics.get(packet_id, "")
        if first_byte != _PUBREC or code >= 0x80:
            up.topics.pop(packet_id, None)
        if code == ReasonCode.NOT_AUTHORIZED and joint.settings.is_optional:
            up.lowered.discard(packet_id)
            joint.not_taken.append((packet_id, topic))
            return
        if code >= 0x80 and first_byte != _PUBCOMP:
            joint.drop("up", "refused", topic, f": {describe_reason_code(code)}")
        if first_byte == _PUBCOMP and packet_id in up.freeing:
            up.freeing.discard(packet_id)
            refused = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
            joint.up.send(bytes((_PUBREC, 3)) + packet_id.to_bytes(2) + bytes((refused,)))
        elif first_byte == _PUBACK and packet_id in up.lowered:
            joint.up.send(bytes((_PUBREC, 3)) + packet_id.to_bytes(2) + bytes((code,)))
        else:
            joint.up.send(frame)

    def _other(self, packet: Packet) -> None:
        if isinstance(packet, SubAck | UnsubAck):
            self.joint.answered(packet)
        elif isinstance(packet, Disconnect):
            told = describe_reason_code(packet.reason_code)
            reason = packet.properties.get("reason_string")
            is_taken = packet.reason_code == ReasonCode.SESSION_TAKEN_OVER
            raise UplinkRefusedError(
                "taken_over" if is_taken else "disconnected",
                f"disconnected: {told}" + (f" ({reason})" if reason else ""),
            )
        elif packet.packet_type != PacketType.PINGRESP:
            raise ProtocolError(f"{packet.packet_type.name} from a server")

    def publish(
        self, first_byte: int, topic: bytes, packet_id: int, properties: bytes, payload_bytes: int
    ) -> None:
        """Give a message to the site's broker under its name there, or answer it here.

        Raises:
            ProtocolError: there was no CONNACK yet, or it has a Topic Alias.
        """
        joint = self.joint
        if not joint.is_accepted:
            raise ProtocolError("PUBLISH before CONNACK")
        if not topic:
            raise ProtocolError("PUBLISH without a topic; allowed: no Topic Alias")
        if first_byte & 1 and topic == self._marker_topic:
            self._marker = bytearray()
            self._is_dropping = True
            self._answer = _short(_PUBACK, packet_id) if first_byte & 6 else b""
            return
        name, local = self._renamed(topic)
        reason = "" if local is not None else "not_mapped"
        told = ""
        if not reason and _OWN_MARK in properties and (why := self._why_loop(properties)):
            reason, told = "hops", f": {why}"
        qos = first_byte >> 1 & 3
        self._answer = b""
        self._is_dropping = bool(reason)
        if reason or local is None:
            joint.drop("down", reason, name, told)
            if qos:  # a PUBREL for it passes: the site's broker answers that it knows none
                self._answer = _short(_PUBACK if qos == 1 else _PUBREC, packet_id)
            return
        header = publish_header(
            local,
            payload_bytes,
            qos,
            bool(first_byte & 1),
            bool(first_byte & 8),
            packet_id,
            properties,
            joint.version,
        )
        if joint.watches_retained and first_byte & 1:
            joint.retained.append(local.decode())
        joint.counts.down_messages += 1
        joint.counts.down_bytes += len(header) + payload_bytes
        joint.down.begin(header, payload_bytes)

    def _renamed(self, topic: bytes) -> tuple[str, bytes | None]:
        known = self._names.get(topic)
        if known is None:
            if len(self._names) >= KNOWN_TOPICS:
                self._names.clear()
            name = topic.decode(errors="replace")
            local = self.joint.remapping.down(name)
            known = self._names[topic] = (name, None if local is None else local.encode())
        return known

    def _why_loop(self, encoded: bytes) -> str:
        properties, _ = read_publish_properties(encoded, 0)
        return self.joint.loops.why_loop(properties.get("user_property", ()))

    def payload(self, piece: Buffer, bytes_left: int) -> None:
        """Pass a piece of a payload on, or skip it."""
        joint = self.joint
        if self._marker is not None:
            self._marker += piece
            if not bytes_left:
                joint.markers.append(bytes(self._marker))
                self._marker = None
        elif not self._is_dropping:
            joint.down.piece(piece, bytes_left)
        if not bytes_left and self._answer:
            joint.cloud.send(self._answer)
            self._answer = b""
