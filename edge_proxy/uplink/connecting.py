"""The first packets of the three connections of an uplink, and the answers to them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.broker.errors import PenstockError, ProtocolError
from penstock.broker.extensions import LOCAL_CLIENT_PREFIX
from penstock.broker.message import (
    LANE_PROPERTY,
    SIZE_PROPERTY,
    WAITS_PROPERTY,
    YIELDS_PROPERTY,
    SizeClass,
)
from penstock.broker.mqtt.enums import MQTT_5
from penstock.broker.mqtt.packets import (
    ConnAck,
    Connect,
    Publish,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from penstock.broker.mqtt.reader import read_packet
from penstock.broker.mqtt.reason_codes import ReasonCode, describe_reason_code
from penstock.broker.mqtt.writer import write_packet
from penstock.edge_proxy.uplink.config import UplinkKeys
from penstock.edge_proxy.uplink.lanes import Lane

SESSION_NEVER_EXPIRES: Final = 0xFFFFFFFF
"""Session Expiry Interval of all sessions of an uplink (MQTT 5.0, 3.1.2.11.2)."""

NO_BRIDGES: Final = "no_bridges"
"""Reason of a refusal: the broker takes the bridge bit for an unknown protocol level. The uplink
connects again without it."""

NO_RETAIN: Final = "no_retain"
"""Reason of a refusal: the will is retained, and the broker says by MQTT 5's reason code that it
retains nothing. The uplink connects again with a will that is not retained."""

_STATE_RECORD: Final = f"{LOCAL_CLIENT_PREFIX}$state/"
"""Begins the topic filters by which a session remembers its state topic. Nothing is published below
it, and no uplink has such a name."""


class UplinkError(PenstockError):
    """An uplink cannot work as it is configured."""


class UplinkRefusedError(PenstockError):
    """The cloud's broker or the site's has refused the uplink, or has ended it."""

    def __init__(self, reason: str, told: str) -> None:
        super().__init__(told)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """Settings of the three connections of an uplink, or of one of its lanes.

    Attributes:
        up_id: the Client Identifier, at the site's broker, of the client that subscribes.
        down_id: the Client Identifier there of the client that publishes.
        own_prefix: the prefix of the Client Identifiers of all clients that publish what this
            uplink receives, for any address or lane.
        client_id: the Client Identifier at the cloud's broker.
        version: the protocol version towards the cloud, 4 or 5.
        password: the password at the cloud's broker, or None.
        marker_topic: the topic of the markers in the cloud; None for no markers.
        state_topic: the topic that is retained as "1" or "0" on both sides; None for no such topic.
        maximum_packet_size: the bytes of the largest packet that the site's broker accepts.
        is_bridge: whether the CONNECT of MQTT 3.1.1 has the bridge bit.
        other_lane: the Client Identifier of the other lane at the cloud's broker; "" for none.
        retains_cloud_state: whether the state is retained in the cloud.
    """

    keys: UplinkKeys
    lane: Lane
    up_id: str
    down_id: str
    own_prefix: str
    client_id: str
    version: int
    password: bytes | None
    marker_topic: str | None
    state_topic: str | None
    receive_maximum: int
    maximum_packet_size: int
    is_bridge: bool = False
    other_lane: str = ""
    retains_cloud_state: bool = True

    @property
    def tells_cloud_state(self) -> bool:
        """Whether the state is published in the cloud, not at the site alone."""
        return self.keys.outgoing_retain and not self.keys.notifications_local_only

    def will(self, *, retain: bool = True) -> Will | None:
        """Return the will that tells of the end of a connection, or None."""
        return None if self.state_topic is None else Will(self.state_topic, b"0", 1, retain=retain)

    def cloud_will(self) -> Will | None:
        """Return the will for the cloud's broker; None where only the site is told."""
        return self.will(retain=self.retains_cloud_state) if self.tells_cloud_state else None

    @property
    def has_retained_will(self) -> bool:
        """Whether the CONNECT to the cloud's broker has a will that is retained."""
        return self.retains_cloud_state and self.cloud_will() is not None


def read_password(name: str, keys: UplinkKeys) -> bytes | None:
    """Return the password of an uplink, from its file if it has one.

    Raises:
        UplinkError: the file cannot be read, or is empty.
    """
    if keys.password_file is None:
        return None if keys.password is None else keys.password.encode()
    what = f"uplink {name}: password_file {keys.password_file}"
    try:
        lines = Path(keys.password_file).read_bytes().splitlines()
    except OSError as error:
        raise UplinkError(f"{what}: {error.strerror or error}") from error
    if not lines or not lines[0]:
        raise UplinkError(f"{what}: read nothing; allowed: the password in its first line")
    return lines[0]


def connect_cloud(settings: RelaySettings, *, forgets: bool = False) -> bytes:
    """Return the CONNECT to the cloud's broker."""
    properties: dict[str, Any] = {}
    if settings.version == MQTT_5 and not forgets:
        properties = {
            "session_expiry_interval": SESSION_NEVER_EXPIRES,
            "receive_maximum": settings.receive_maximum,
            "maximum_packet_size": settings.maximum_packet_size,
        }
        properties["user_property"] = [(WAITS_PROPERTY, "yes")]
        if settings.other_lane:
            properties["user_property"].append((LANE_PROPERTY, settings.other_lane))
            if settings.lane.yields:
                properties["user_property"].append((YIELDS_PROPERTY, "yes"))
    connect = Connect(
        settings.client_id,
        protocol_version=settings.version,
        clean_start=forgets,
        keep_alive=settings.keys.keep_alive_seconds,
        username=settings.keys.username,
        password=settings.password,
        will=None if forgets else settings.cloud_will(),
        properties=properties,
        is_bridge=settings.is_bridge,
    )
    return write_packet(connect, settings.version)


def read_connack(first_byte: int, frame: bytes, body_at: int, version: int) -> ConnAck:
    """Return the first packet of the cloud's broker.

    Raises:
        ProtocolError: it is not a CONNACK.
    """
    packet = read_packet(first_byte, frame[body_at:], version)
    if not isinstance(packet, ConnAck):
        raise ProtocolError(f"{packet.packet_type.name} before CONNACK")
    return packet


def check_accepted(packet: ConnAck, settings: RelaySettings) -> None:
    """Check that the cloud's broker accepts the connection.

    Raises:
        UplinkRefusedError: it refuses. The reason is `NO_BRIDGES` or `NO_RETAIN` where a CONNECT
            without the bridge bit or the retained will may be accepted.
    """
    if settings.is_bridge and packet.reason_code == ReasonCode.UNSUPPORTED_PROTOCOL_VERSION:
        raise UplinkRefusedError(NO_BRIDGES, "refused: it knows no bridges")
    if packet.reason_code == ReasonCode.RETAIN_NOT_SUPPORTED and settings.has_retained_will:
        raise UplinkRefusedError(NO_RETAIN, "refused: it retains nothing")
    if packet.reason_code:
        told = describe_reason_code(packet.reason_code)
        reason = packet.properties.get("reason_string")
        more = f" ({reason})" if reason else ""
        elsewhere = packet.properties.get("server_reference")
        if elsewhere:
            more += f"; it names another server: {elsewhere}"
        raise UplinkRefusedError("refused", f"refused: {told}{more}")


def refusal_in_words(code: int) -> str:
    """Return the meaning of a reason code by which the cloud refuses one topic or filter."""
    told = describe_reason_code(code)
    denied = f"{told}: the broker's access control (ACL) denies it"
    return denied if code == ReasonCode.NOT_AUTHORIZED else told


def state_of(
    settings: RelaySettings, payload: bytes, version: int, *, retain: bool = True
) -> bytes:
    """Return the PUBLISH that tells the state of a connection; b"" where there is no state topic.

    Args:
        settings: of the connection.
        payload: ``1``, ``0``, or nothing for a client that does not come again.
        version: protocol version of the connection on which it is sent.
        retain: the broker is to retain it.
    """
    topic = settings.state_topic
    return b"" if topic is None else write_packet(Publish(topic, payload, retain=retain), version)


def cloud_state(settings: RelaySettings, payload: bytes) -> bytes:
    """Return the PUBLISH of the state for the cloud's broker; b"" where only the site is told."""
    if not settings.tells_cloud_state:
        return b""
    return state_of(settings, payload, settings.version, retain=settings.retains_cloud_state)


def record_of_state(topic: str) -> str:
    """Return the topic filter by which a session remembers its state topic."""
    return f"{_STATE_RECORD}{topic}"


def recorded_states(filters: Iterable[str]) -> list[str]:
    """Return the state topics that a session remembers by its subscriptions."""
    return [one.removeprefix(_STATE_RECORD) for one in filters if one.startswith(_STATE_RECORD)]


def connect_local(client_id: str, receive_maximum: int) -> bytes:
    """Return the CONNECT of a local client that continues its session, in MQTT 5."""
    properties = {
        "session_expiry_interval": SESSION_NEVER_EXPIRES,
        "receive_maximum": receive_maximum,
    }
    connect = Connect(client_id, clean_start=False, keep_alive=0, properties=properties)
    return write_packet(connect, MQTT_5)


def subscribe_up(
    filters: Mapping[str, int], sizes: SizeClass | None, *, without_retained: Container[str]
) -> bytes:
    """Return the SUBSCRIBE for what goes up; b"" where there are no filters.

    Args:
        filters: topic filter to QoS.
        sizes: size class of the messages; None for both.
        without_retained: filters whose retained messages are not to be sent.
    """
    if not filters:
        return b""
    requests = tuple(
        SubscriptionRequest(name, qos, False, True, 2 if name in without_retained else 0)
        for name, qos in filters.items()
    )
    properties = {"user_property": [(SIZE_PROPERTY, sizes)]} if sizes else {}
    return write_packet(Subscribe(1, requests, properties), MQTT_5)
