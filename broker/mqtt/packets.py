"""The Control Packets of MQTT 3.1.1 and 5.0 as objects, without their bytes.

One set of classes serves all versions; MQTT 3.1 has what MQTT 3.1.1 has. What MQTT 3.1.1 lacks
has its default there: no properties, reason code 0, no subscription options but QoS. Reason codes
are those of MQTT 5.0; reader and writer translate the return codes of an MQTT 3.1.1 CONNACK and
SUBACK.

A packet id of 0 stands for none [MQTT-2.2.1-2].

PUBLISH and its answers, and the first and last packets of a connection, are immutable by agreement
and not frozen: there is one for each message or client, and a frozen one takes three times as long
to build.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from penstock.broker.mqtt.enums import PacketType, ProtocolVersion


@dataclass(frozen=True, slots=True)
class Will:
    """The Will Message of a CONNECT.

    Attributes:
        topic: Will Topic, a valid Topic Name.
        payload: Will Payload, at most 65,535 bytes.
        qos: Will QoS.
        retain: Will Retain.
        properties: Will Properties, ``will_delay_interval`` in seconds among them.
    """

    topic: str
    payload: bytes = field(default=b"", repr=False)
    qos: int = 0
    retain: bool = False
    properties: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Connect:
    """A client asks for a connection (section 3.1).

    Attributes:
        client_id: Client Identifier; "" asks the server to assign one. MQTT 3.1.1 allows this with
            `clean_start` only [MQTT-3.1.3-8], which the server checks.
        protocol_version: 3 (MQTT 3.1), 4 (MQTT 3.1.1) or 5.
        clean_start: Clean Start, or Clean Session in MQTT 3.1.1.
        keep_alive: seconds, 0 to 65,535; 0 turns it off.
        username: User Name, or None.
        password: Password, or None; in MQTT 3.1.1 only together with a user name.
        will: the Will Message, or None.
        is_bridge: the client is another broker's bridge: the highest bit of its protocol level is
            set, as mosquitto and others do below MQTT 5.0.
    """

    packet_type: ClassVar = PacketType.CONNECT

    client_id: str = ""
    protocol_version: int = ProtocolVersion.MQTT_5
    clean_start: bool = True
    keep_alive: int = 60
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)
    will: Will | None = None
    properties: dict[str, Any] = field(default_factory=dict)
    is_bridge: bool = False


@dataclass(slots=True)
class ConnAck:
    """The server's answer to CONNECT (section 3.2).

    Attributes:
        session_present: Session Present; False whenever the reason code is not 0
            [MQTT-3.2.2-6].
        reason_code: MQTT 5.0 reason code, with MQTT 3.1.1 as well.
    """

    packet_type: ClassVar = PacketType.CONNACK

    session_present: bool = False
    reason_code: int = 0
    properties: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Publish:
    """An Application Message (section 3.3).

    Attributes:
        topic: Topic Name; "" where a Topic Alias replaces it.
        payload: the Application Message's payload.
        qos: 0, 1 or 2.
        retain: RETAIN.
        dup: DUP; always False with QoS 0 [MQTT-3.3.1-2].
        packet_id: 1 to 65,535, or 0 with QoS 0.
    """

    packet_type: ClassVar = PacketType.PUBLISH

    topic: str
    payload: bytes = field(default=b"", repr=False)
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class PubAck:
    """The answer to a PUBLISH of QoS 1 (section 3.4)."""

    packet_type: ClassVar = PacketType.PUBACK

    packet_id: int
    reason_code: int = 0
    properties: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class PubRec:
    """The answer to a PUBLISH of QoS 2 (section 3.5)."""

    packet_type: ClassVar = PacketType.PUBREC

    packet_id: int
    reason_code: int = 0
    properties: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class PubRel:
    """The answer to a PUBREC (section 3.6)."""

    packet_type: ClassVar = PacketType.PUBREL

    packet_id: int
    reason_code: int = 0
    properties: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class PubComp:
    """The answer to a PUBREL (section 3.7)."""

    packet_type: ClassVar = PacketType.PUBCOMP

    packet_id: int
    reason_code: int = 0
    properties: dict[str, Any] = field(default_factory=dict)


class SubscriptionRequest(NamedTuple):
    """A Topic Filter and its Subscription Options (3.8.3.1); MQTT 3.1.1 has only the QoS.

    A tuple, as one SUBSCRIBE may have thousands: it is built in a third of the time.

    Attributes:
        topic_filter: the Topic Filter as sent, ``$share/NAME/`` included.
        qos: Maximum QoS.
        no_local: do not send back what this client publishes.
        retain_as_published: keep the RETAIN flag that messages were published with.
        retain_handling: retained messages are sent 0: at each SUBSCRIBE, 1: for a new subscription,
            2: never.
    """

    topic_filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A client asks for subscriptions, at least one [MQTT-3.8.3-2] (section 3.8)."""

    packet_type: ClassVar = PacketType.SUBSCRIBE

    packet_id: int
    subscriptions: tuple[SubscriptionRequest, ...]
    properties: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubAck:
    """The answer to SUBSCRIBE: a reason code for each subscription, in order (section 3.9)."""

    packet_type: ClassVar = PacketType.SUBACK

    packet_id: int
    reason_codes: tuple[int, ...]
    properties: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """A client ends subscriptions, at least one [MQTT-3.10.3-2] (section 3.10)."""

    packet_type: ClassVar = PacketType.UNSUBSCRIBE

    packet_id: int
    topic_filters: tuple[str, ...]
    properties: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UnsubAck:
    """The answer to UNSUBSCRIBE: a reason code for each filter, in order (section 3.11).

    MQTT 3.1.1 sends no codes: the tuple is then empty.
    """

    packet_type: ClassVar = PacketType.UNSUBACK

    packet_id: int
    reason_codes: tuple[int, ...] = ()
    properties: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PingReq:
    """A client asks for a PINGRESP (section 3.12)."""

    packet_type: ClassVar = PacketType.PINGREQ


@dataclass(frozen=True, slots=True)
class PingResp:
    """The answer to PINGREQ (section 3.13)."""

    packet_type: ClassVar = PacketType.PINGRESP


@dataclass(slots=True)
class Disconnect:
    """The last packet of a connection (section 3.14); in MQTT 3.1.1 without a reason."""

    packet_type: ClassVar = PacketType.DISCONNECT

    reason_code: int = 0
    properties: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Auth:
    """A step of extended authentication (section 3.15); MQTT 5.0 only."""

    packet_type: ClassVar = PacketType.AUTH

    reason_code: int = 0
    properties: dict[str, Any] = field(default_factory=dict)


Packet: TypeAlias = (
    Connect
    | ConnAck
    | Publish
    | PubAck
    | PubRec
    | PubRel
    | PubComp
    | Subscribe
    | SubAck
    | Unsubscribe
    | UnsubAck
    | PingReq
    | PingResp
    | Disconnect
    | Auth
)

_ACKNOWLEDGING = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
_RELEASING = frozenset({0x00, 0x92})

REASON_CODES: Final[dict[PacketType, frozenset[int]]] = {
    PacketType.CONNACK: frozenset(
        {0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, *range(0x9A, 0x9E), 0x9F}
    ),
    PacketType.PUBACK: _ACKNOWLEDGING,
    PacketType.PUBREC: _ACKNOWLEDGING,
    PacketType.PUBREL: _RELEASING,
    PacketType.PUBCOMP: _RELEASING,
    PacketType.SUBACK: frozenset(
        {0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2}
    ),
    PacketType.UNSUBACK: frozenset({0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91}),
    PacketType.DISCONNECT: frozenset(
        {0x00, 0x04, *range(0x80, 0x84), 0x87, 0x89, *range(0x8B, 0x91), *range(0x93, 0xA3)}
    ),
    PacketType.AUTH: frozenset({0x00, 0x18, 0x19}),
}
"""The reason codes that MQTT 5.0 defines for each packet (section 2.4)."""
