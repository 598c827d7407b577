"""What the three connections of an uplink say first, and what they are told."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
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
    Packet,
    Publish,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from penstock.broker.mqtt.reader import read_packet
from penstock.broker.mqtt.reason_codes import ReasonCode, describe_reason_code
from penstock.broker.mqtt.writer import write_packet
from penstock.edge_proxy.uplink.config import UplinkKeys

SESSION_NEVER_EXPIRES: Final = 0xFFFFFFFF

NO_BRIDGES: Final = "no_bridges"
"""Reason of a refusal: the bridge bit makes an unknown protocol level of MQTT 3.1.1's. A CONNECT
without it follows."""

NO_RETAIN: Final = "no_retain"
"""Reason of a refusal: the will is retained, and MQTT 5's reason code says that the cloud's broker
retains nothing. A CONNECT with a will without the flag follows."""

_STATE_RECORD: Final = f"{LOCAL_CLIENT_PREFIX}$state/"
"""Nothing is published below it, and no uplink has such a name."""


class UplinkError(PenstockError):
    """An uplink cannot work as it is configured."""


class UplinkRefusedError(PenstockError):
    """The cloud's broker or the site's has refused the uplink, or has ended it.

    Attributes:
        reason: one word to count it by.
    """

    def __init__(self, reason: str, told: str) -> None:
        super().__init__(told)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """What the three connections say of themselves.

    Attributes:
        up_id: Client Identifier at the site's broker of what subscribes.
        down_id: the same of what publishes.
        own_prefix: what the Client Identifiers begin with of all that publish what this uplink
            brings down, by any address or lane.
        sizes: size class of what goes up; None for both.
        other_lane: Client Identifier of the other lane at the cloud's broker; "" for none.
        client_id: Client Identifier at the cloud's broker.
        version: protocol version towards the cloud, 4 or 5.
        is_bridge: with MQTT 3.1.1: the bridge bit is set in CONNECT.
        username: at the cloud's broker, or None.
        password: the same.
        keep_alive: seconds.
        marker_topic: of its markers in the cloud; None for none.
        state_topic: retained "1" or "0" on both sides; None for none.
        tells_cloud_state: it is on both sides, not at the site alone.
        retains_cloud_state: it is retained in the cloud, too.
        outgoing_retain: what goes up may be retained there.
        tells_publisher: a message that goes up carries its publisher's Client Identifier.
        receive_maximum: QoS 1 and 2 messages from the cloud that the site's broker takes at a time.
        maximum_packet_size: bytes of the largest packet that the site's broker takes.
        cloud_packet_size: the same of the cloud's broker, as configured; None for what it says.
        yields: what comes down yields to the other lane.
        filters_per_subscribe: topic filters of one SUBSCRIBE or UNSUBSCRIBE.
        is_optional: it is a lane that the uplink may do without: what the cloud's broker does not
            let its client publish, the other lane is to have.
    """

    up_id: str
    down_id: str
    own_prefix: str
    sizes: SizeClass | None
    other_lane: str
    client_id: str
    version: int
    is_bridge: bool
    username: str | None
    password: bytes | None
    keep_alive: int
    marker_topic: str | None
    state_topic: str | None
    tells_cloud_state: bool
    tells_publisher: bool
    receive_maximum: int
    maximum_packet_size: int
    cloud_packet_size: int | None = None
    outgoing_retain: bool = True
    retains_cloud_state: bool = True
    yields: bool = False
    filters_per_subscribe: int = 8
    is_optional: bool = False


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
    """Return the CONNECT to the cloud's broker.

    Args:
        settings: of the uplink.
        forgets: the session there ends, and none begins.
    """
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
            if settings.yields:
                properties["user_property"].append((YIELDS_PROPERTY, "yes"))
    connect = Connect(
        settings.client_id,
        protocol_version=settings.version,
        clean_start=forgets,
        keep_alive=settings.keep_alive,
        username=settings.username,
        password=settings.password,
        will=None if forgets else cloud_will(settings),
        properties=properties,
        is_bridge=settings.is_bridge,
    )
    return write_packet(connect, settings.version)


def check_accepted(packet: ConnAck, settings: RelaySettings) -> None:
    """Check that the cloud's broker accepts the connection.

    Raises:
        UplinkRefusedError: it refuses; `NO_BRIDGES` is the reason where that is for the bridge bit,
            `NO_RETAIN` where it is for the retained will.
    """
    if settings.is_bridge and packet.reason_code == ReasonCode.UNSUPPORTED_PROTOCOL_VERSION:
        raise UplinkRefusedError(NO_BRIDGES, "refused: it knows no bridges")
    is_for_retain = packet.reason_code == ReasonCode.RETAIN_NOT_SUPPORTED
    if is_for_retain and has_retained_will(settings):
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
    """Return what a reason code of the cloud's broker for one topic or filter says."""
    told = describe_reason_code(code)
    return (
        f"{told}: the broker's access control (ACL) denies it"
        if code == ReasonCode.NOT_AUTHORIZED
        else told
    )


def will_of(settings: RelaySettings) -> Will | None:
    """Return the will that tells of the end of a connection; None for none."""
    topic = settings.state_topic
    return None if topic is None else Will(topic, b"0", 1, retain=True)


def has_retained_will(settings: RelaySettings) -> bool:
    """Say whether the CONNECT to the cloud's broker has a will that is retained."""
    will = cloud_will(settings)
    return will is not None and will.retain


def cloud_will(settings: RelaySettings) -> Will | None:
    """Return the will for the cloud's broker; None where the site alone is told."""
    will = will_of(settings) if settings.tells_cloud_state else None
    return None if will is None else replace(will, retain=settings.retains_cloud_state)


def state_of(
    settings: RelaySettings, payload: bytes, version: int, *, retain: bool = True
) -> bytes:
    """Return the PUBLISH that tells of a connection; b"" where nothing is to be told.

    Args:
        settings: of the uplink.
        payload: ``1``, ``0``, or nothing for a client that does not come again.
        version: of the connection that it goes to.
        retain: the broker there retains it.
    """
    topic = settings.state_topic
    return b"" if topic is None else write_packet(Publish(topic, payload, retain=retain), version)


def record_of_state(topic: str) -> str:
    """Return the subscription by which a session keeps in mind what its state topic is."""
    return f"{_STATE_RECORD}{topic}"


def recorded_states(filters: Iterable[str]) -> list[str]:
    """Return the state topics that a session keeps in mind, by its subscriptions."""
    return [one.removeprefix(_STATE_RECORD) for one in filters if one.startswith(_STATE_RECORD)]


def cloud_state(settings: RelaySettings, payload: bytes) -> bytes:
    """Return the same for the cloud's broker; b"" where the site alone is told."""
    if not settings.tells_cloud_state:
        return b""
    return state_of(settings, payload, settings.version, retain=settings.retains_cloud_state)


def connect_up(up_id: str, receive_maximum: int) -> bytes:
    """Return the CONNECT of the client that subscribes; MQTT 5, whatever the cloud speaks."""
    properties = {
        "session_expiry_interval": SESSION_NEVER_EXPIRES,
        "receive_maximum": receive_maximum,
    }
    return write_packet(Connect(up_id, clean_start=False, keep_alive=0, properties=properties), 5)


def subscribe_up(
    filters: Mapping[str, int], sizes: SizeClass | None, *, without_retained: Container[str]
) -> bytes:
    """Return the SUBSCRIBE for what goes up; b"" for nothing.

    Args:
        filters: topic filter to QoS.
        sizes: size class of the messages; None for both.
        without_retained: those of them whose retained messages are not sent.
    """
    if not filters:
        return b""
    requests = tuple(
        SubscriptionRequest(name, qos, False, True, 2 if name in without_retained else 0)
        for name, qos in filters.items()
    )
    properties = {"user_property": [(SIZE_PROPERTY, sizes)]} if sizes else {}
    return write_packet(Subscribe(1, requests, properties), MQTT_5)


def read_frame(first_byte: int, frame: bytes, body_at: int, version: int) -> Packet:
    """Return a packet that is no PUBLISH, by all its bytes and where its body begins."""
    return read_packet(first_byte, frame[body_at:], version)


def read_connack(first_byte: int, frame: bytes, body_at: int, version: int) -> ConnAck:
    """Return the first packet of the cloud's broker.

    Raises:
        ProtocolError: it is another than CONNACK.
    """
    packet = read_frame(first_byte, frame, body_at, version)
    if not isinstance(packet, ConnAck):
        raise ProtocolError(f"{packet.packet_type.name} before CONNACK")
    return packet
