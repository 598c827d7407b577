"""The keys of the plugin ``uplink`` in a policy file."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import field
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass as checked_dataclass

from penstock.broker.config.key_types import STRICT, Positive, PositiveSize, Seconds, Size
from penstock.broker.errors import MalformedPacketError
from penstock.broker.mqtt.topics import validate_topic
from penstock.edge_proxy.parts.config import DEFAULT_PREFIX, check_prefix
from penstock.edge_proxy.uplink.filters import intersection
from penstock.edge_proxy.uplink.lanes import LanesKeys
from penstock.edge_proxy.uplink.remapping import DownRule, Rule
from penstock.edge_proxy.uplink.schedule_and_budget import StartKeys, TimesKeys
from penstock.edge_proxy.upstream_config import UpstreamKeys

MARKER_TOPIC: Final = "penstock/uplink/{client_id}"
"""Topic in the cloud in which an uplink publishes its markers."""

STATE_TOPIC: Final = "$SYS/broker/connection/{client_id}/state"
"""Topic in which mosquitto's bridges announce their state."""

_LONGEST_CLIENT_ID: Final = 65_000
"""Bytes of the longest `client_id`. Topics and the second client id of the uplink are longer, and
have 65,535 at most."""

_NAME_ALLOWED: Final = "letters, digits, '-', '_' and '.'"


@checked_dataclass(frozen=True, slots=True, config=STRICT)
class ReconnectKeys:
    """Waits before an uplink connects again; the keys under `reconnect`.

    The wait doubles from attempt to attempt. Each wait is shortened by up to a half, at random, so
    that many sites do not come back at the same moment.

    Attributes:
        min_seconds: the first wait.
        max_seconds: the longest wait.
        stable_seconds: after a connection of this length, or with a message, the first wait applies
            again.
    """

    min_seconds: Seconds = 1.0
    max_seconds: Seconds = 60.0
    stable_seconds: Seconds = 30.0

    def __post_init__(self) -> None:
        """Check the values against each other."""
        if self.min_seconds > self.max_seconds:
            raise ValueError("min_seconds of at most max_seconds")


@checked_dataclass(frozen=True, slots=True, config=STRICT)
class BacklogKeys:
    """What may wait for the cloud; the keys under `backlog`.

    Attributes:
        messages: messages that may wait; None for `limits.queued_messages` of the policy file.
        bytes: payload bytes that may wait; None for `limits.queued_bytes`.
        max_age_seconds: messages that have waited longer are dropped.
        when_full: ``drop_oldest`` or ``drop_newest``, unseen by publishers; ``refuse`` the new
            message to its publisher, or do not acknowledge it until there is room (MQTT 3.1.1).
    """

    messages: Positive | None = None
    bytes: PositiveSize | None = None
    max_age_seconds: Seconds | None = None
    when_full: Literal["drop_oldest", "drop_newest", "refuse"] = "drop_oldest"


@checked_dataclass(frozen=True, slots=True, config=STRICT)
class UplinkKeys:
    """One uplink; the keys under its name.

    Attributes:
        upstream: the cloud's broker.
        client_id: Client Identifier in the cloud, of this client alone; None for ``SITE-NAME``.
        adopts_session: keep the cloud's session of this Client Identifier, to move from another
            client, which must have had no QoS 2 message on its way up. False ends it first.
        username: user name in the cloud.
        password: password there; better in a file.
        password_file: file whose first line is the password.
        version: protocol version. 3.1.1 has no User Properties: publishers and sites are not named,
            loops not recognised.
        bridge_bit: with 3.1.1, CONNECT says that the client is a bridge: mosquitto and Penstock
            send it none of its own messages, and keep RETAIN. A broker that refuses it gets a
            CONNECT without it.
        keep_alive_seconds: Keep Alive. A silent loss is noticed after 1.5 times as long at most.
        maximum_packet_size: bytes of the largest packet for the cloud's broker; larger messages do
            not go up. None: what its CONNACK says.
        reconnect: waits between attempts.
        start: what makes it connect.
        times: when it may be connected, and how fast it sends.
        backlog: what may wait for the cloud.
        up: rules of what goes up.
        down: rules of what comes down.
        lanes: two connections, or ``auto`` for the defaults; null for one.
        filters_per_subscribe: topic filters of one SUBSCRIBE or UNSUBSCRIBE; AWS IoT takes 8 at
            most.
        linger_seconds: with `when: subscribed`, how long a subscription in the cloud outlives the
            site's last.
        outgoing_retain: what goes up retained is retained in the cloud. False is for a broker of
            3.1.1 that refuses it.
        clear_retained: when retained messages are asked for again, clear at the site what the cloud
            has no more. It takes a topic of its own, and a broker that sends retained messages in
            the order of the filters.
        marker_topic: that topic; null for ``penstock/uplink/CLIENT_ID``.
        refresh_retained_seconds: after an outage of this length, ask for retained messages again,
            as changes of QoS 0 are lost.
        max_hops: how many uplinks a message may go up in turn.
        tells_publisher: a message that goes up names its publisher's Client Identifier in the User
            Property ``penstock-publisher``.
        notifications: keep `notification_topic` retained, at the site and in the cloud: 1 while the
            uplink is connected, else 0.
        notifications_local_only: it is published at the site alone.
        notification_topic: null for mosquitto's, ``$SYS/broker/connection/CLIENT_ID/state``.
        leaves: end the uplink: what is left in its sessions passes, then they end and the state
            topic is cleared.
        parts_prefix: first level of topics of parts, as in the plugin `parts` at both ends.
    """

    upstream: UpstreamKeys
    client_id: str | None = None
    adopts_session: bool = False
    username: str | None = None
    password: Annotated[str | None, Field(repr=False)] = None
    password_file: str | None = None
    version: Literal["5", "3.1.1"] = "5"
    bridge_bit: bool = True
    keep_alive_seconds: Annotated[int, Field(ge=5, le=65_535)] = 60
    maximum_packet_size: Annotated[Size, Field(ge=20)] | None = None
    reconnect: ReconnectKeys = field(default_factory=ReconnectKeys)
    start: StartKeys = field(default_factory=StartKeys)
    times: TimesKeys = field(default_factory=TimesKeys)
    backlog: BacklogKeys = field(default_factory=BacklogKeys)
    up: list[Rule] = field(default_factory=list)
    down: list[DownRule] = field(default_factory=list)
    lanes: LanesKeys | None = field(default_factory=LanesKeys)
    filters_per_subscribe: Positive = 8
    linger_seconds: Seconds = 30.0
    outgoing_retain: bool = True
    clear_retained: bool = True
    marker_topic: str | None = None
    refresh_retained_seconds: Annotated[float, Field(ge=0)] | None = 60.0
    max_hops: Positive = 8
    tells_publisher: bool = True
    notifications: bool = True
    notifications_local_only: bool = False
    notification_topic: str | None = None
    leaves: bool = False
    parts_prefix: Annotated[str, AfterValidator(check_prefix)] = DEFAULT_PREFIX

    @field_validator("version", mode="before")
    @classmethod
    def _read_version(cls, version: Any) -> Any:
        return str(version) if isinstance(version, int) else version

    @field_validator("client_id")
    @classmethod
    def _check_client_id(cls, client_id: str | None) -> str | None:
        if client_id is not None and not 0 < len(client_id.encode()) <= _LONGEST_CLIENT_ID:
            raise ValueError(f"a client id of 1 to {_LONGEST_CLIENT_ID} bytes")
        return client_id

    @field_validator("lanes", mode="before")
    @classmethod
    def _read_lanes(cls, lanes: Any) -> Any:
        if isinstance(lanes, str) and lanes != "auto":
            raise ValueError("auto, null for one connection, or a mapping with the keys of lanes")
        return {} if lanes == "auto" else lanes

    @field_validator("notification_topic", "marker_topic")
    @classmethod
    def _check_topic(cls, topic: str | None, info: ValidationInfo) -> str | None:
        if topic is None:
            return None
        try:
            validate_topic(topic)
        except MalformedPacketError as error:
            raise ValueError(f"a topic name ({error.args[0]})") from error
        is_hidden = topic.startswith("$") and not topic.startswith("$SYS/broker/connection/")
        if is_hidden and info.field_name == "notification_topic":
            raise ValueError("a topic below $SYS/broker/connection/, or one not below $")
        return topic

    def __post_init__(self) -> None:
        """Check the values against each other."""
        if not self.up and not self.down:
            raise ValueError("topics under up, down or both")
        if self.lanes is not None:
            self.lanes.check([*self.up, *self.down])
        for rules in (self.up, self.down):
            _check_apart(rules)
        if self.password is not None and self.password_file is not None:
            raise ValueError("one of password and password_file")
        has_password = self.password is not None or self.password_file is not None
        if has_password and self.username is None and self.version != "5":
            raise ValueError("a username beside the password, in MQTT 3.1.1")


def _check_apart(rules: Sequence[Rule]) -> None:
    """Check that no message can pass whole and in parts.

    Raises:
        ValueError: a rule with `parts` and one without match the same topics.
    """
    for one, other in itertools.product(rules, rules):
        if one.parts and not other.parts and intersection(one.local_filter, other.local_filter):
            raise ValueError(
                "rules with parts that match no topics of rules without: "
                f"{one.local_filter} and {other.local_filter} have some in common"
            )


@checked_dataclass(frozen=True, slots=True, config=STRICT)
class UplinkConfig:
    """The keys under `plugins.uplink`.

    Attributes:
        site: name of this site, which no other site has; by it, messages that come back are
            recognised.
        uplinks: keys of each uplink, by its name.
    """

    site: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    uplinks: dict[str, UplinkKeys]

    @field_validator("uplinks")
    @classmethod
    def _check_names(cls, uplinks: dict[str, UplinkKeys]) -> dict[str, UplinkKeys]:
        if not uplinks:
            raise ValueError("one uplink or more")
        for name in uplinks:
            if not name or not all(each.isalnum() or each in "-_." for each in name):
                raise ValueError(f"names of {_NAME_ALLOWED}")
        return uplinks
