"""Handles what each of the three connections of a relay receives, and passes it to the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from penstock.broker.errors import PeerError, ProtocolError
from penstock.broker.extensions import PUBLISHER_PROPERTY
from penstock.broker.message import SITE_PROPERTY
from penstock.broker.mqtt.data_types import read_variable_byte_integer, write_variable_byte_integer
from penstock.broker.mqtt.enums import MQTT_5, PacketType
from penstock.broker.mqtt.packets import ConnAck, Disconnect, Packet, SubAck, UnsubAck
from penstock.broker.mqtt.properties import read_publish_properties, write_properties
from penstock.broker.mqtt.reader import read_packet
from penstock.broker.mqtt.reason_codes import ReasonCode, describe_reason_code
from penstock.broker.mqtt.writer import publish_header
from penstock.edge_proxy.uplink.connecting import UplinkRefusedError, read_connack, refusal_in_words
from penstock.edge_proxy.uplink.packet_stream import Buffer
from penstock.edge_proxy.uplink.suspects import SentItem

if TYPE_CHECKING:
    from penstock.edge_proxy.uplink.packet_relay import PacketRelay

KNOWN_TOPICS: Final = 10_000
"""How many topics have their names on the other side cached."""

_PUBACK: Final = 0x40
_PUBREC: Final = 0x50
_PUBREL: Final = 0x62
_PUBCOMP: Final = 0x70
_RELEASE_BYTES: Final = 4
_NO_PROPERTIES: Final = b"\0"
_HANGS_UP: Final = (
    ": the cloud's broker ends the connection at it; its access control (ACL) may deny the topic"
)
_OWN_MARK: Final = SITE_PROPERTY.encode()[:9]
"""Beginning of the names of all User Properties that uplinks write."""


def short(first_byte: int, packet_id: int) -> bytes:
    """Return a packet that consists of a packet identifier alone."""
    return bytes((first_byte, 2)) + packet_id.to_bytes(2)


def acknowledged(frame: bytes, body_at: int) -> tuple[int, int]:
    """Return packet identifier and reason code of a PUBACK, PUBREC, PUBREL or PUBCOMP.

    Raises:
        ProtocolError: it has no packet identifier.
    """
    if len(frame) < body_at + 2:
        raise ProtocolError("acknowledgement without a packet identifier")
    packet_id = int.from_bytes(frame[body_at : body_at + 2])
    return packet_id, frame[body_at + 2] if len(frame) > body_at + 2 else 0


def read_local(first_byte: int, frame: bytes, body_at: int, version: int) -> Packet:
    """Return a packet of the site's broker that is neither a PUBLISH nor an acknowledgement.

    Raises:
        UplinkRefusedError: the site's broker refuses the client, or has ended its connection.
    """
    packet = read_packet(first_byte, frame[body_at:], version)
    if isinstance(packet, ConnAck | Disconnect) and packet.reason_code:
        told = describe_reason_code(packet.reason_code)
        reason = packet.properties.get("reason_string")
        more = f" ({reason})" if reason else ""
        raise UplinkRefusedError("local", f"ended by the site's own broker: {told}{more}")
    return packet


class TopicNames:
    """The names that topics have on the other side, cached.

    Args:
        rename: returns the other name of a topic; None where the topic does not pass.
    """

    def __init__(self, rename: Callable[[str], str | None]) -> None:
        self._rename = rename
        self._known: dict[bytes, tuple[str, bytes | None]] = {}

    def look_up(self, topic: bytes) -> tuple[str, bytes | None]:
        """Return (a topic as text, its encoded name on the other side or None)."""
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= KNOWN_TOPICS:
                self._known.clear()
            name = topic.decode(errors="replace")
            other = self._rename(name)
            known = self._known[topic] = (name, None if other is None else other.encode())
        return known


class UpReceiver:
    """Handles what the site's broker sends to the client that subscribes.

    Attributes:
        sent: messages of QoS 1 and 2 on their way to the cloud, by packet identifier.
        received: packet identifiers of those in `sent` that have their PUBREC.
        released: PUBRELs on their way, by packet identifier.
        sent_qos0: messages of QoS 0 that were sent since the cloud's broker has last answered a
            PINGREQ, the last one of each topic.
        last_packet_id: packet identifier of the newest message in `sent`.
        freeing: messages that do not pass and whose earlier copy is being released in the cloud, by
            packet identifier: (reason, topic, more for the log).
        lowered: packet identifiers of messages of QoS 2 that went up at QoS 1.
    """

    def __init__(self, relay: PacketRelay) -> None:
        self.relay = relay
        self.sent: dict[int, SentItem] = {}
        self.received: set[int] = set()
        self.released: dict[int, SentItem] = {}
        self.sent_qos0: dict[str, SentItem] = {}
        self.last_packet_id = 0
        self.freeing: dict[int, tuple[str, str, str]] = {}
        self.lowered: set[int] = set()
        self._answer = b""
        self._is_dropping = False
        self._names = TopicNames(relay.remapping.up)

    def packet(self, first_byte: int, frame: bytes, body_at: int) -> None:
        """Handle a packet other than PUBLISH."""
        relay = self.relay
        if first_byte != _PUBREL:
            packet = read_local(first_byte, frame, body_at, MQTT_5)
            if isinstance(packet, SubAck):
                self._subscribed(packet.reason_codes)
            return
        packet_id, _ = acknowledged(frame, body_at)
        if relay.maximum_qos < 2:
            self.lowered.discard(packet_id)
            relay.up.send(short(_PUBCOMP, packet_id))
            return
        sent = self.sent.get(packet_id)
        release = SentItem("release", "" if sent is None else sent.name, packet_id, _RELEASE_BYTES)
        if not relay.suspects.is_idle and relay.suspects.is_aside(release):
            relay.drop("up", "refused", relay.suspects.name_of(release), _HANGS_UP)
            relay.suspects.answered(release)
            relay.up.send(short(_PUBCOMP, packet_id))
            return
        self._release(release, frame if relay.version == MQTT_5 else short(_PUBREL, packet_id))

    def _release(self, release: SentItem, frame: bytes) -> None:
        self.released[release.packet_id] = release
        self.relay.cloud.send(frame)
        self.relay.careful_with(release)

    def _subscribed(self, codes: Sequence[int]) -> None:
        for name, code in zip(self.relay.remapping.up_filters(), codes, strict=False):
            if code >= 0x80:
                self.relay.logger.error(
                    "the site's own broker refuses the subscription to %r: %s",
                    name,
                    describe_reason_code(code),
                )

    def publish(
        self, first_byte: int, topic: bytes, packet_id: int, properties: bytes, payload_bytes: int
    ) -> None:
        """Send a message up under its name in the cloud, or answer it here."""
        relay = self.relay
        name, remote = self._names.look_up(topic)
        reason = told = ""
        changed: bytes | None = _NO_PROPERTIES
        if remote is None:
            reason = "not_mapped"
        else:
            reason, told, changed = self._properties(properties)
        if reason or remote is None or changed is None:
            self._drop(first_byte, packet_id, name, reason, told)
            return
        qos = first_byte >> 1 & 3
        sent_qos = min(qos, relay.maximum_qos)
        is_retained = bool(first_byte & 1) and relay.retain_available
        item = SentItem(
            "message" if sent_qos else "qos0", name, packet_id, payload_bytes, is_retained
        )
        if not relay.suspects.is_idle:
            if relay.suspects.is_aside(item):
                self._drop(first_byte, packet_id, name, "refused", _HANGS_UP)
                if packet_id not in self.freeing:
                    relay.suspects.answered(item)
                return
            is_retained = is_retained and not relay.suspects.is_doubted(item)
        has_flag = is_retained and not relay.suspects.retains_nothing
        header = publish_header(
            remote,
            payload_bytes,
            sent_qos,
            has_flag,
            bool(first_byte & 8) and sent_qos > 0,
            packet_id,
            changed,
            relay.version,
        )
        n_bytes = len(header) + payload_bytes
        if n_bytes > relay.maximum_packet_size:
            told = f", of {n_bytes} bytes; allowed: at most {relay.maximum_packet_size}"
            self._drop(first_byte, packet_id, name, "too_large", told)
            return
        self._is_dropping = False
        self._answer = b""
        if is_retained and not has_flag:
            relay.change("retain_cleared")
        if first_byte & 1 and not relay.retain_available and relay.settings.keys.outgoing_retain:
            relay.change("retain_cleared")
        if sent_qos < qos:
            self._lower(qos, sent_qos, packet_id)
        if sent_qos:
            self.sent[packet_id] = item
            self.last_packet_id = packet_id
        elif name in self.sent_qos0 or len(self.sent_qos0) < KNOWN_TOPICS:
            self.sent_qos0[name] = item
        relay.counts.up_messages += 1
        relay.counts.up_bytes += n_bytes
        relay.cloud.begin(header, payload_bytes)
        relay.careful_with(item, is_answered=bool(sent_qos))

    def _properties(self, encoded: bytes) -> tuple[str, str, bytes | None]:
        """Return the properties that a message has in the cloud.

        Returns:
            (one word why it does not pass, or ""; the same in words; the encoded properties, or
            None for a message that came down by this uplink, which ends here uncounted).
        """
        relay = self.relay
        try:
            properties, _ = read_publish_properties(encoded, 0)
        except PeerError as error:
            return "properties", f": {error}", None
        pairs: list[tuple[str, str]] = list(properties.pop("user_property", ()))
        if pairs and pairs[-1][0] == PUBLISHER_PROPERTY:  # what the site's own broker says
            _, publisher = pairs.pop()
            if publisher.startswith(relay.settings.own_prefix):
                return "", "", None
            is_from_site = any(name == SITE_PROPERTY for name, _ in pairs)
            if not is_from_site:  # of another site's message, who published it there stays
                pairs = [pair for pair in pairs if pair[0] != PUBLISHER_PROPERTY]
                if relay.settings.keys.tells_publisher:
                    pairs.append((PUBLISHER_PROPERTY, publisher))
        if why := relay.loops.why_not_up(pairs):
            return "hops", f": {why}", None
        if relay.version != MQTT_5:
            return "", "", _NO_PROPERTIES
        properties.pop("subscription_identifier", None)
        properties["user_property"] = relay.loops.up(pairs)
        return "", "", write_properties(properties, PacketType.PUBLISH)

    def _lower(self, qos: int, sent_qos: int, packet_id: int) -> None:
        self.relay.change("qos_lowered")
        if sent_qos:
            self.lowered.add(packet_id)
        else:
            self._answer = short(_PUBACK if qos == 1 else _PUBREC, packet_id)

    def _drop(
        self, first_byte: int, packet_id: int, topic: str, reason: str, told: str = ""
    ) -> None:
        """Answer a message that does not pass, once its payload has come."""
        relay = self.relay
        self._is_dropping = True
        self._answer = b""
        qos = first_byte >> 1 & 3
        if qos == 2:
            release = SentItem("release", topic, packet_id, _RELEASE_BYTES)
            if relay.suspects.is_aside(release):
                relay.suspects.answered(release)
            elif first_byte & 8 and relay.maximum_qos == 2:
                self.freeing[packet_id] = reason, topic, told
                self._release(release, short(_PUBREL, packet_id))
                return
        if reason:
            relay.drop("up", reason, topic, told)
        code = bytes((ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR if reason else 0,))
        if qos:
            answer = _PUBACK if qos == 1 else _PUBREC
            self._answer = bytes((answer, 3)) + packet_id.to_bytes(2) + code

    def freed(self, packet_id: int) -> None:
        """Answer a message that does not pass, once the cloud has released its earlier copy."""
        reason, topic, told = self.freeing.pop(packet_id)
        if reason:
            self.relay.drop("up", reason, topic, told)
        self.relay.suspects.answered(SentItem("message", topic, packet_id))
        refused = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        self.relay.up.send(bytes((_PUBREC, 3)) + packet_id.to_bytes(2) + bytes((refused,)))

    def payload(self, piece: Buffer, bytes_left: int) -> None:
        """Pass on a piece of a payload, or skip it."""
        relay = self.relay
        if not self._is_dropping:
            relay.cloud.piece(piece, bytes_left)
            if not bytes_left:
                relay.ping_behind()
        if not bytes_left and self._answer:
            relay.up.send(self._answer)
            self._answer = b""


class DownReceiver:
    """Handles what the site's broker sends to the client that publishes: acknowledgements.

    Attributes:
        topics: topics at the site of unacknowledged messages, by packet identifier.
    """

    def __init__(self, relay: PacketRelay) -> None:
        self.relay = relay
        self.topics: dict[int, str] = {}

    def packet(self, first_byte: int, frame: bytes, body_at: int) -> None:
        """Handle a packet."""
        if first_byte in (_PUBACK, _PUBREC, _PUBCOMP):
            self.relay.cloud.send(frame)
            packet_id, code = acknowledged(frame, body_at)
            self.relay.has_passed = True
            topic = self.topics.pop(packet_id, "")
            if self.relay.version == MQTT_5 and first_byte != _PUBCOMP and code >= 0x80:
                self.relay.drop("down", "refused", topic, f": {describe_reason_code(code)}")
        else:
            packet = read_local(first_byte, frame, body_at, self.relay.version)
            if isinstance(packet, ConnAck):
                self.relay.is_safe = True

    def publish(
        self, first_byte: int, topic: bytes, packet_id: int, properties: bytes, payload_bytes: int
    ) -> None:
        """Ignore a message: the client has no subscription to which one is published."""

    def payload(self, piece: Buffer, bytes_left: int) -> None:
        """Ignore its payload."""


class CloudReceiver:
    """Handles what the cloud's broker sends."""

    def __init__(self, relay: PacketRelay) -> None:
        self.relay = relay
        self._answer = b""
        self._is_dropping = False
        self._marker: bytearray | None = None
        self._marker_topic = (relay.settings.marker_topic or "").encode()
        self._names = TopicNames(relay.remapping.down)

    def packet(self, first_byte: int, frame: bytes, body_at: int) -> None:
        """Handle a packet other than PUBLISH.

        Raises:
            ProtocolError: the packet is not allowed now.
            UplinkRefusedError: the cloud's broker ends the connection.
        """
        relay = self.relay
        if not relay.is_accepted:
            relay.accepted(read_connack(first_byte, frame, body_at, relay.version))
        elif first_byte in (_PUBACK, _PUBREC, _PUBCOMP):
            self._acknowledgement(first_byte, frame, body_at)
        elif first_byte == _PUBREL:
            relay.down.send(frame)
        else:
            self._other(read_packet(first_byte, frame[body_at:], relay.version))

    def _acknowledgement(self, first_byte: int, frame: bytes, body_at: int) -> None:
        relay = self.relay
        up = relay.upward
        packet_id, code = acknowledged(frame, body_at)
        if packet_id in relay.marker_ids:
            relay.marker_ids.discard(packet_id)
            relay.own_answered(relay.settings.marker_topic or "")
            if code >= 0x80:
                relay.markers.append(None)
            return
        item = up.sent.get(packet_id)
        topic = "" if item is None else item.name
        relay.has_answered = relay.has_passed = True
        if first_byte == _PUBREC and code < 0x80:
            up.received.add(packet_id)
        else:
            up.sent.pop(packet_id, None)
            up.received.discard(packet_id)
        if item is not None and first_byte != _PUBCOMP and not relay.suspects.is_idle:
            relay.message_answered(item, code)
        release = up.released.pop(packet_id, None) if first_byte == _PUBCOMP else None
        if release is not None and not relay.suspects.is_idle:
            relay.answered_item(release)
        if code == ReasonCode.NOT_AUTHORIZED and relay.settings.lane.is_optional:
            up.lowered.discard(packet_id)
            relay.not_taken.append((packet_id, topic))
            return
        if code >= 0x80 and first_byte != _PUBCOMP:
            relay.drop("up", "refused", topic, f": {refusal_in_words(code)}")
        if first_byte == _PUBCOMP and packet_id in up.freeing:
            up.freed(packet_id)
        elif first_byte == _PUBACK and packet_id in up.lowered:
            relay.up.send(bytes((_PUBREC, 3)) + packet_id.to_bytes(2) + bytes((code,)))
        else:
            relay.up.send(frame)

    def _other(self, packet: Packet) -> None:
        if isinstance(packet, SubAck | UnsubAck):
            self.relay.answered(packet)
        elif isinstance(packet, Disconnect):
            told = describe_reason_code(packet.reason_code)
            self.relay.disconnect_code = packet.reason_code or ReasonCode.SESSION_TAKEN_OVER
            reason = packet.properties.get("reason_string")
            is_taken = packet.reason_code == ReasonCode.SESSION_TAKEN_OVER
            raise UplinkRefusedError(
                "taken_over" if is_taken else "disconnected",
                f"disconnected: {told}" + (f" ({reason})" if reason else ""),
            )
        elif packet.packet_type == PacketType.PINGRESP:
            self.relay.pong()
        else:
            raise ProtocolError(f"{packet.packet_type.name} from a server")

    def publish(
        self, first_byte: int, topic: bytes, packet_id: int, properties: bytes, payload_bytes: int
    ) -> None:
        """Give a message to the site's broker under its name there, or answer it here.

        Raises:
            ProtocolError: it comes before CONNACK, or has a Topic Alias.
        """
        relay = self.relay
        if not relay.is_accepted:
            raise ProtocolError("PUBLISH before CONNACK")
        if not topic:
            raise ProtocolError("PUBLISH without a topic; allowed: no Topic Alias")
        if first_byte & 1 and topic == self._marker_topic:
            self._marker = bytearray()
            self._is_dropping = True
            self._answer = short(_PUBACK, packet_id) if first_byte & 6 else b""
            return
        name, local = self._names.look_up(topic)
        reason = "" if local is not None else "not_mapped"
        told = ""
        if not reason and relay.version == MQTT_5:
            reason, told, properties = self._marked(properties)
        qos = first_byte >> 1 & 3
        self._answer = b""
        self._is_dropping = bool(reason)
        if reason or local is None:
            relay.drop("down", reason, name, told)
            if qos:  # a PUBREL for it passes: the site's broker answers that it knows none
                self._answer = short(_PUBACK if qos == 1 else _PUBREC, packet_id)
            return
        header = publish_header(
            local,
            payload_bytes,
            qos,
            bool(first_byte & 1),
            bool(first_byte & 8),
            packet_id,
            properties,
            relay.version,
        )
        n_bytes = len(header) + payload_bytes
        if n_bytes > relay.settings.maximum_packet_size:
            self._is_dropping = True
            told = f", of {n_bytes} bytes; allowed: at most {relay.settings.maximum_packet_size}"
            relay.drop("down", "too_large", name, told)
            self._answer = short(_PUBACK if qos == 1 else _PUBREC, packet_id) if qos else b""
            return
        if relay.watches_retained and first_byte & 1:
            relay.retained.append(local.decode())
        if qos:
            relay.downward.topics[packet_id] = local.decode()
        relay.counts.down_messages += 1
        relay.counts.down_bytes += n_bytes
        relay.down.begin(header, payload_bytes)

    def _marked(self, encoded: bytes) -> tuple[str, str, bytes]:
        """Return the properties with which a message comes down.

        Most have no properties of uplinks: then `marks_down` is appended without decoding.

        Returns:
            (one word why it does not come down, or ""; the same in words; the encoded properties).
        """
        relay = self.relay
        if _OWN_MARK not in encoded:
            n_bytes, body_at = read_variable_byte_integer(encoded, 0)
            marks = relay.marks_down
            length = write_variable_byte_integer(n_bytes + len(marks))
            return "", "", b"".join((length, encoded[body_at:], marks))
        try:
            properties, _ = read_publish_properties(encoded, 0)
        except PeerError as error:
            return "properties", f": {error}", encoded
        pairs = properties.get("user_property", ())
        if why := relay.loops.why_not_down(pairs):
            return "hops", f": {why}", encoded
        properties["user_property"] = relay.loops.down(pairs)
        return "", "", write_properties(properties, PacketType.PUBLISH)

    def payload(self, piece: Buffer, bytes_left: int) -> None:
        """Pass on a piece of a payload, or skip it."""
        relay = self.relay
        if self._marker is not None:
            self._marker += piece
            if not bytes_left:
                relay.markers.append(bytes(self._marker))
                self._marker = None
        elif not self._is_dropping:
            relay.down.piece(piece, bytes_left)
        if not bytes_left and self._answer:
            relay.cloud.send(self._answer)
            self._answer = b""
