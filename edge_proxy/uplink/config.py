"""The keys of the plugin ``uplink`` in a policy file."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import field
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, field_validator
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
"""Where an uplink publishes its markers, in the cloud."""

STATE_TOPIC: Final = "$SYS/broker/connection/{client_id}/state"
"""Where bridges of mosquitto announce themselves."""

_LONGEST_CLIENT_ID: Final = 65_000
"""Its topics and the client id of its second connection are longer, and have 65,535 at most."""

_NAME_ALLOWED: Final = "letters, digits, '-', '_' and '.'"


@checked_dataclass(frozen=True, slots=True, config=STRICT)
class ReconnectKeys:
    """When an uplink connects again; the keys under `reconnect`.

    The wait doubles from attempt to attempt. Each is shortened by up to a half, at random, so that
    many sites do not come back at the same moment.

    Attributes:
        min_seconds: the first wait.
        max_seconds: the longest wait. A minute is short beside an outage that has lasted so long.
        stable_seconds: a connection that has stood for so long, or on which a message has passed,
            begins anew with the first wait. One that another client takes over again and again ends
            earlier.
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
        messages: that may wait; None: `limits.queued_messages` of the policy file.
        bytes: payload bytes that may wait; None: `limits.queued_bytes`.
        max_age_seconds: what has waited for longer is dropped; None: nothing is.
        when_full: at a limit, what has waited longest is dropped, or what comes: publishers are
            neither refused nor slowed down for it. Or what comes is refused to its publisher, with
            MQTT 3.1.1 unacknowledged until there is room: nothing is lost, and publishers wait for
            as long as the cloud is away.
    """

    messages: Positive | None = None
    bytes: PositiveSize | None = None
    max_age_seconds: Seconds | None = None
    when_full: Literal["drop_oldest", "drop_newest", "refuse"] = "drop_oldest"


@checked_dataclass(frozen=True, slots=True, config=STRICT)
class UplinkKeys:
    """One uplink; the keys under its name.

    Attributes:
        upstream: the cloud's broker, as a sidecar's. With several addresses, packet identifiers are
            those of one broker: the uplink has a session *down* for each.
        client_id: Client Identifier there; None for ``SITE-NAME``. No other client may have it.
        adopts_session: the session that the cloud's broker has for this Client Identifier is kept
            although the sessions of this site are new, with what waits there: for the move from
            another client, which must have had no message of QoS 2 on its way up. False: it is
            ended first.
        username: there, or None.
        password: there, or None; better in a file.
        password_file: file whose first line is the password, or None.
        version: protocol version. 3.1.1 has no User Properties: neither publishers nor sites are
            told, and loops are not recognised.
        bridge_bit: with version 3.1.1, the uplink says that it is a bridge, which mosquitto and
            Penstock understand: it is not sent its own messages, and retained ones as such. Where
            a broker refuses that, by return code 1, the uplink connects without it.
        keep_alive_seconds: the largest silence on the connection. A link that is lost without a
            word is noticed after 1.5 times as long at most.
        maximum_packet_size: bytes of the largest packet that the cloud's broker takes, where it
            does not tell, as in MQTT 3.1.1. A larger message does not go up. None: what it tells.
        reconnect: when it connects again.
        start: what makes it connect.
        times: at which times of the day it may stand, and how fast it sends.
        backlog: what may wait for the cloud.
        up: topics that go up.
        down: topics that come down.
        lanes: two connections in place of one, or ``auto`` for the defaults; None: one.
        filters_per_subscribe: topic filters of one SUBSCRIBE or UNSUBSCRIBE. AWS IoT ends the
            connection at more than 8; other brokers take more.
        linger_seconds: for which the cloud is still asked for what the last client of the site has
            given up, under a rule with ``when: subscribed``.
        outgoing_retain: what goes up retained is retained in the cloud. False: nothing is, for a
            broker of MQTT 3.1.1 that refuses retained messages; one of 5 says that it does.
        clear_retained: what the site retains and the cloud's broker retains no more is cleared when
            retained messages are asked for again. It takes a topic of the uplink's own in the
            cloud, and a broker that sends retained messages in the order of the filters.
        marker_topic: that topic; None for ``penstock/uplink/CLIENT_ID``.
        refresh_retained_seconds: after an outage of so long, retained messages are asked for again
            although the cloud's broker has the session: changes of QoS 0 are lost. None: never.
        max_hops: most uplinks that a message may go up, one after another.
        tells_publisher: a message that goes up has the Client Identifier of its publisher in the
            User Property ``penstock-publisher``.
        notifications: the topic ``notification_topic`` is retained as 1 while the uplink stands and
            0 while it does not, at the site and in the cloud.
        notifications_local_only: at the site alone.
        notification_topic: None for mosquitto's, ``$SYS/broker/connection/CLIENT_ID/state``.
        leaves: the uplink is to end: nothing new goes up or comes down. What is left in its
            sessions passes, then they end and its state topic is cleared, on both sides.
        parts_prefix: precedes the topics of what passes in parts; that of the plugin ``parts`` at
            both ends.
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

    @field_validator("notification_topic")
    @classmethod
    def _check_topic(cls, topic: str | None) -> str | None:
        if topic is not None:
            try:
                validate_topic(topic)
            except MalformedPacketError as error:
                raise ValueError(f"a topic name ({error.args[0]})") from error
            if topic.startswith("$") and not topic.startswith("$SYS/broker/connection/"):
                raise ValueError("a topic below $SYS/broker/connection/, or one not below $")
        return topic

    @field_validator("marker_topic")
    @classmethod
    def _check_marker_topic(cls, topic: str | None) -> str | None:
        if topic is not None:
            try:
                validate_topic(topic)
            except MalformedPacketError as error:
                raise ValueError(f"a topic name ({error.args[0]})") from error
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
        site: name of this site, which no other has: a message that comes back to the site where it
            went up first is recognised by it.
        uplinks: name of an uplink to its keys.
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
