"""Limits on what one client may use of the broker, each with its default and the reason for it.

These are the keys under `limits` of the policy file. No honest client reaches a default, and the
defaults bound the cost of one client.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass as checked_dataclass

from penstock.broker.config.key_types import (
    STRICT,
    PerSecond,
    Positive,
    PositiveSize,
    Rate,
    Seconds,
    Size,
    show_size,
)
from penstock.broker.errors import ProtocolError
from penstock.broker.mqtt.enums import MAX_REMAINING_LENGTH, MAX_STRING_BYTES
from penstock.broker.mqtt.reason_codes import ReasonCode

# Five bytes short of the longest packet there is: clients such as paho take a larger Maximum
# Packet Size for a protocol error.
_MAX_PACKET_SIZE: Final = MAX_REMAINING_LENGTH

_MEMORY_PER_SESSION: Final = 32 * 1024
_MEMORY_PER_BYTE: Final = {
    "total_received_bytes": 8,
    "total_subscription_bytes": 8,
    "total_will_bytes": 16,
    "total_queued_bytes": 4,
    "retained_bytes": 8,
}
"""For each byte of these limits, the machine has so many bytes of memory."""

OF_MEMORY: Final = ("sessions", "sessions_per_address", *_MEMORY_PER_BYTE)
"""These limits are a share of the machine's memory unless the policy file sets them."""

_MOST_PLAN_BYTES: Final = 128 * 1024 * 1024
"""Room for the plans of 200,000 topics with one subscriber each, or of 1,400 with a thousand each.
"""

_LEAST_PLAN_BYTES: Final = 8 * 1024 * 1024
"""Room for the plans of 13,000 topics with one subscriber each, also where the limits on queued or
retained bytes are low: few bytes may belong to many topics."""

_PLANS_PER_BYTE: Final = 16

_UNWANTED: Final = re.compile(
    "[\x01-\x1f\x7f-\x9f\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
    + "]"
)
"""Characters that a string of MQTT should not have (MQTT 5.0, 1.5.4)."""

QueueFull = Literal["reject", "drop_newest", "drop_oldest", "disconnect"]


@checked_dataclass(frozen=True, slots=True, config=STRICT)
class Limits:
    """Limits on what one client may use of the broker; the keys under `limits`.

    Attributes:
        connections: network connections at a time. None: as many as files may be open, less a
            reserve.
        connections_per_address: the same of one address, or IPv6 network of 64 bits.
        sessions: sessions, with or without a connection. Further clients are refused (0x97, return
            code 3 in MQTT 3.1.1). None: one for each 32 KiB of the machine's memory.
        sessions_per_user: sessions of one user name.
        sessions_per_address: sessions of clients last seen at one address. None: half of
            `sessions`.
        total_received_bytes: bytes of incomplete packets and topics with an alias. Above it, the
            connection with the most is closed (0x97), those before CONNECT first. None: an eighth
            of the machine's memory.
        maximum_packet_size: bytes of a client's largest packet.
        control_bytes: bytes of the largest packet other than PUBLISH; a larger one closes the
            connection (0x97).
        connect_bytes: bytes of the largest CONNECT, and of AUTH before CONNACK. A larger one is
            refused (0x95; in MQTT 3.1.1 without CONNACK).
        properties: User Properties of a packet, or will. More close the connection (0x97).
        properties_bytes: bytes of properties of a PUBLISH. More close the connection (0x97).
        payload_bytes: bytes of the largest payload. A larger PUBLISH is acknowledged (in MQTT 5
            with 0x97) and not routed; a larger will is refused with its CONNECT (0x95, return code
            5 in MQTT 3.1.1). None: what fits in a packet.
        topic_bytes: bytes of the longest topic or filter.
        topic_levels: levels of the deepest topic or filter; ``a/b`` has two.
        topic_control_characters: allow control characters and noncharacters in topics (MQTT 5.0,
            1.5.4).
        subscriptions: subscriptions of one session.
        subscription_bytes: bytes of memory of one session's subscriptions; further ones are refused
            (0x97).
        total_subscription_bytes: the same for all sessions; what filters share counts once. None:
            an eighth of the machine's memory.
        total_will_bytes: bytes of memory of all wills. Further clients with a will are refused
            (0x97, return code 3 in MQTT 3.1.1). None: a sixteenth of the machine's memory.
        receive_maximum: QoS 1 and 2 messages that an MQTT 5 client may have unacknowledged.
        inflight_messages: QoS 1 and 2 messages that a subscriber may leave unacknowledged, if it
            asks for no fewer.
        inflight_bytes: payload bytes of such messages; a single message may have more.
        queued_messages: messages that may wait for one session.
        queued_bytes: payload bytes, and long properties, that may wait for one session. A message
            counts for each.
        total_queued_messages: messages that may wait for all sessions together.
        total_queued_bytes: bytes of memory of all messages that wait, or are inflight to
            disconnected clients, with 144 bytes for each session. None: a quarter of the machine's
            memory.
        queue_full: what happens at these limits. ``reject`` refuses a message of QoS 1 or 2 to its
            publisher (0x97), or does not acknowledge it until there is room (MQTT 3.1.1), and drops
            others; ``drop_newest``; ``drop_oldest``, QoS 0 first; ``disconnect`` the subscriber
            (0x97), or end its session.
        queue_full_seconds: with ``reject``, how long publishers wait for one session, before
            messages are dropped until half of its limits is free.
        publish_messages_per_second: messages that one connection may publish in a second.
        publish_bytes_per_second: the same in bytes of PUBLISH packets.
        publish_burst_seconds: what a silent client may publish at once, in seconds of either rate.
        publish_rate_exceeded: ``slow_down``, or ``disconnect`` the client (0x96).
        retained_messages: retained messages. A further one is refused at QoS 1 and 2 in MQTT 5
            (0x97), else routed and not retained.
        retained_bytes: bytes of memory of retained messages and their topics. None: an eighth of
            the machine's memory.
        plugin_events: calls of aMQTT plugins at a time for events of clients. Clients that cause
            more wait for up to a second.
        connect_timeout_seconds: time from the network connection to a complete CONNECT.
        login_failures: wrong passwords of one address for one user before it waits: 1 s, then twice
            as long after each further one.
        login_failures_per_address: the same of an address for all users; one attempt comes back
            each second.
        login_failures_per_user: the same for a user from all addresses; above it, a new address has
            one attempt.
        login_backoff_seconds: the longest of these waits.
        maximum_keep_alive: seconds of Keep Alive for a client that asks for more, or none.
        write_high_bytes: unsent bytes of a connection above which no more messages are moved to it.
            A small message waits for all of them.
        write_low_bytes: unsent bytes below which messages are moved again.
    """

    connections: Positive | None = None
    connections_per_address: Positive | None = None
    sessions: Positive | None = None
    sessions_per_user: Positive | None = None
    sessions_per_address: Positive | None = None
    total_received_bytes: PositiveSize | None = None
    maximum_packet_size: Annotated[Size, Field(ge=256, le=_MAX_PACKET_SIZE)] = _MAX_PACKET_SIZE
    control_bytes: Annotated[Size, Field(ge=256, le=_MAX_PACKET_SIZE)] = 1024 * 1024
    connect_bytes: Annotated[Size, Field(ge=256, le=_MAX_PACKET_SIZE)] = 128 * 1024
    properties: Positive = 256
    properties_bytes: Annotated[Size, Field(ge=256, le=_MAX_PACKET_SIZE)] = 128 * 1024
    payload_bytes: Annotated[Size, Field(ge=1, le=_MAX_PACKET_SIZE)] | None = None
    topic_bytes: Annotated[Size, Field(ge=1, le=MAX_STRING_BYTES)] = MAX_STRING_BYTES
    topic_levels: Annotated[int, Field(ge=1, le=MAX_STRING_BYTES + 1)] = 128
    topic_control_characters: bool = False
    subscriptions: Positive = 10_000
    subscription_bytes: PositiveSize = 32 * 1024 * 1024
    total_subscription_bytes: PositiveSize | None = None
    total_will_bytes: PositiveSize | None = None
    receive_maximum: Annotated[int, Field(ge=1, le=65_535)] = 1_000
    inflight_messages: Annotated[int, Field(ge=1, le=65_535)] = 1_000
    inflight_bytes: PositiveSize = 128 * 1024 * 1024
    queued_messages: Positive = 100_000
    queued_bytes: PositiveSize = 128 * 1024 * 1024
    total_queued_messages: Positive | None = None
    total_queued_bytes: PositiveSize | None = None
    queue_full: QueueFull = "reject"
    queue_full_seconds: Seconds | None = 60.0
    publish_messages_per_second: PerSecond | None = None
    publish_bytes_per_second: Annotated[Rate, Field(gt=0)] | None = None
    publish_burst_seconds: Seconds = 1.0
    publish_rate_exceeded: Literal["slow_down", "disconnect"] = "slow_down"
    retained_messages: Annotated[int, Field(ge=0)] = 500_000
    retained_bytes: Annotated[Size, Field(ge=0)] | None = None
    plugin_events: Positive = 1_000
    connect_timeout_seconds: Seconds = 10.0
    login_failures: Positive | None = 5
    login_failures_per_address: Positive | None = 50
    login_failures_per_user: Positive | None = 100
    login_backoff_seconds: Annotated[float, Field(ge=1)] = 60.0
    maximum_keep_alive: Annotated[int, Field(ge=1, le=65_535)] | None = None
    write_high_bytes: PositiveSize = 32 * 1024
    write_low_bytes: Annotated[Size, Field(ge=0)] = 8 * 1024

    def chosen_by_memory(self) -> list[str]:
        """Return the names of the limits that `for_memory` has to set."""
        return [name for name in OF_MEMORY if getattr(self, name) is None]

    def shown(self, name: str) -> str:
        """Return the value of a limit for the log, a size with its unit."""
        value = getattr(self, name)
        return show_size(value) if name.endswith("_bytes") else str(value)

    def for_memory(self, memory_bytes: int) -> Limits:
        """Return the limits with a number for each that is a share of the machine's memory."""
        sessions = self.sessions or max(1, memory_bytes // _MEMORY_PER_SESSION)
        shares: dict[str, Any] = {
            "sessions": sessions,
            "sessions_per_address": max(1, sessions // 2),
        }
        shares |= {name: memory_bytes // part for name, part in _MEMORY_PER_BYTE.items()}
        return replace(self, **{name: shares[name] for name in self.chosen_by_memory()})

    def __post_init__(self) -> None:
        """Check the values against each other."""
        if self.write_low_bytes >= self.write_high_bytes:
            raise ValueError("write_low_bytes less than write_high_bytes")

    @property
    def plan_bytes(self) -> int:
        """Bytes of memory that the plans of topics may take (`penstock.broker.routing.topic_tree`).

        A publisher that uses ever new topics fills it, in addition to queued and retained messages.
        A sixteenth of their limits keeps the sum near the limit that is set. Above it, all plans
        are discarded and made again when they are needed.
        """
        of_queued, of_retained = self.total_queued_bytes, self.retained_bytes
        most = min(_MOST_PLAN_BYTES, (of_queued or sys.maxsize) // _PLANS_PER_BYTE)
        most = min(most, (of_retained or sys.maxsize) // _PLANS_PER_BYTE)
        return max(most, _LEAST_PLAN_BYTES)

    @property
    def has_publish_rate(self) -> bool:
        """Say whether the rate at which one client may publish is limited."""
        return (
            self.publish_messages_per_second is not None
            or self.publish_bytes_per_second is not None
        )

    @property
    def most_payload_bytes(self) -> int:
        """Bytes of the largest payload that a client may send."""
        return _MAX_PACKET_SIZE if self.payload_bytes is None else self.payload_bytes

    def check_control_bytes(self, n_bytes: int) -> None:
        """Check the size of a packet other than PUBLISH.

        Raises:
            ProtocolError: quota exceeded; the packet may still be within Maximum Packet Size.
        """
        _check_bytes("packet", n_bytes, self.control_bytes)

    def check_properties_bytes(self, n_bytes: int) -> None:
        """Check the size of the properties of a PUBLISH.

        Raises:
            ProtocolError: quota exceeded.
        """
        _check_bytes("properties of PUBLISH", n_bytes, self.properties_bytes)

    def topic_problem(self, topic: str) -> str:
        """Say why a Topic Name or Topic Filter is beyond the limits; "" where it is not.

        Args:
            topic: valid; for a Shared Subscription, the filter without its ``$share/NAME/``.
        """
        n_bytes = len(topic) if topic.isascii() else len(topic.encode())
        if n_bytes > self.topic_bytes:
            return f"topic of {n_bytes} bytes; allowed: at most {self.topic_bytes}"
        n_levels = topic.count("/") + 1
        if n_levels > self.topic_levels:
            return f"topic of {n_levels} levels; allowed: at most {self.topic_levels}"
        return self.character_problem(topic)

    def character_problem(self, topic: str) -> str:
        """Say which character a topic, or the name of a share, must not have; "" for none."""
        if self.topic_control_characters or topic.isprintable():
            return ""
        found = _UNWANTED.search(topic)
        if found is None:
            return ""
        return (
            f"topic with U+{ord(found[0]):04X}; allowed: no control characters and no noncharacters"
        )


def _check_bytes(kind: str, n_bytes: int, most_bytes: int) -> None:
    if n_bytes > most_bytes:
        raise ProtocolError(
            f"{kind} of {n_bytes} bytes; allowed: at most {most_bytes}", ReasonCode.QUOTA_EXCEEDED
        )
