"""The relay of an uplink: it passes packets between three connections, without the network.

Theory of operation. An uplink has three connections. One leads to the cloud's broker. Two belong to
clients of the site's own broker, in its process: *up* subscribes to what goes up, *down* publishes
what comes down. PUBLISH, PUBACK, PUBREC, PUBREL and PUBCOMP pass with unchanged packet identifiers:

    site's broker  -- up -->  PUBLISH 7  -->  cloud       cloud  -->  PUBLISH 3  -- down -->  broker
    site's broker  <-- up --  PUBACK 7   <--  cloud       cloud  <--  PUBACK 3   <-- down --  broker

So the relay keeps no messages. What waits for the cloud waits in the session of *up*, with its
limits, priorities, expiry and persistence. When either end is killed, the sessions on both sides
send again by [MQTT-4.4.0-1] with the same identifiers, and the receiver recognises a repeat at
QoS 2.

Packet identifiers mean the same on both sides only while both sides have their sessions. Where the
cloud has none, the session of *down* is ended by Clean Start, as its identifiers stand for other
messages. The session of *down* begins when the cloud has accepted the first connection. So where
there is none, the sessions of this site are not those that the cloud knows, and the cloud's is
ended first (`forget_session`). That takes a connection of its own, as mosquitto 2.0 does not store
the session of a client that has connected with Clean Start.

The relay answers a message that cannot pass itself, as the other side would have done, and counts
it by its reason. Where the cloud may have an earlier copy of such a message, the copy is released
there first (`UpReceiver.freeing`): the cloud would take the next message with that identifier for
it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from logging import Logger
from typing import Final, get_args

from penstock.broker.counters import count
from penstock.broker.message import LANE_PROPERTY, SITE_PROPERTY, SIZE_PROPERTY, SizeClass
from penstock.broker.mqtt.data_types import read_variable_byte_integer
from penstock.broker.mqtt.enums import MAX_PACKET_ID, MAX_REMAINING_LENGTH, MQTT_5, PacketType
from penstock.broker.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    Publish,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
)
from penstock.broker.mqtt.properties import write_properties
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.plugin_guard import is_logged
from penstock.edge_proxy.uplink.connecting import (
    SESSION_NEVER_EXPIRES,
    RelaySettings,
    check_accepted,
    cloud_state,
    connect_cloud,
    connect_local,
    record_of_state,
    refusal_in_words,
    state_of,
    subscribe_up,
)
from penstock.edge_proxy.uplink.packet_stream import PacketStream, PacketWriter
from penstock.edge_proxy.uplink.receivers import CloudReceiver, DownReceiver, UpReceiver
from penstock.edge_proxy.uplink.remapping import Loops, Remapping
from penstock.edge_proxy.uplink.subscriptions import Request
from penstock.edge_proxy.uplink.suspects import SentItem, Suspects

MOST_INFLIGHT: Final = 32_000
"""The most QoS 1 and 2 messages on their way up: less than half of all packet identifiers, as those
of SUBSCRIBE are chosen as far from theirs as possible."""


@dataclass(eq=False, slots=True)
class UplinkCounts:
    """Counters of one uplink or lane. They start at 0 and only go up, except the two states.

    Attributes:
        connected: a state: 1 while the cloud's broker has accepted the connection, else 0.
        connections: accepted connections.
        taken_over: a state: 1 while the other lane has taken over this one, else 0.
        takeovers: how often the other lane has taken over this one.
        order_given_up: unacknowledged messages of this lane for which later messages of their
            topics do not wait any longer.
        paced: how often this lane has begun to yield to the lane of small messages.
        failures: failed attempts and ended connections, by reason.
        up_messages: PUBLISH packets sent to the cloud, repeats included.
        up_bytes: the bytes of these packets.
        down_messages: PUBLISH packets from the cloud that were passed to the site's broker.
        down_bytes: the bytes of these packets.
        up_dropped: messages that did not go up, by reason (docs/reference/edge.md).
        down_dropped: messages that did not come down, by reason.
        changed: messages that were changed on their way up, by reason.
        subscribe_refused: topic filters that the cloud's broker has refused.
        retained_repeated: retained messages and clears that went up again after an outage.
        retained_cleared: retained messages of the site that were cleared because the cloud's broker
            no longer has them.
    """

    connected: int = 0
    connections: int = 0
    taken_over: int = 0
    takeovers: int = 0
    order_given_up: int = 0
    paced: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    up_messages: int = 0
    up_bytes: int = 0
    down_messages: int = 0
    down_bytes: int = 0
    up_dropped: dict[str, int] = field(default_factory=dict)
    down_dropped: dict[str, int] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)
    subscribe_refused: int = 0
    retained_repeated: int = 0
    retained_cleared: int = 0

    def has_yielded(self) -> None:
        """Count that what goes up has begun to yield."""
        self.paced += 1


class PacketRelay:
    """One connection to the cloud, and the two local ones that belong to it.

    Attributes:
        cloud: the bytes to send to the cloud's broker.
        up: the bytes to send from the local client that subscribes.
        down: the bytes to send from the local client that publishes.
        from_cloud: reads the packets of the cloud's broker.
        from_up: reads the packets of the site's broker for the client that subscribes.
        from_down: reads the packets of the site's broker for the client that publishes.
        is_accepted: whether the cloud's broker has accepted the connection, so that the local
            clients connect.
        keep_alive: the Keep Alive in seconds, from the keys or from the cloud's CONNACK.
        is_safe: whether the site's broker has the session of *down*, and with persistence has it on
            disk. Only then does the uplink subscribe in the cloud: when a site is killed before,
            the cloud's session is ended, with the messages that wait in it.
        marks_down: the encoded User Properties that are added to messages from the cloud without
            those of uplinks.
        lanes_are_kept: whether the cloud's broker keeps the order of topics across both lanes.
        has_other_lane: whether the cloud's broker has a session of the other lane.
        answers: new answers of the cloud's broker: (topic filter, reason code); the code is None
            for a subscription that has ended.
        markers: new payloads from the marker's topic; None stands for a marker that the cloud has
            refused.
        retained: new topics, at the site, of retained messages that have come while
            `watches_retained`.
        not_taken: (packet identifier, topic) of messages that the cloud's broker does not let this
            client publish. The other lane is to send them.
        suspects: what the cloud's broker may have refused by ending a connection.
        busy: the unanswered item, while `suspects` demands that one is sent at a time.
        has_answered: whether the cloud's broker has answered a message or a PINGREQ.
        has_passed: whether a message has passed in either direction and was acknowledged.
        disconnect_code: the reason code of the cloud's DISCONNECT; 0 for none.
    """

    def __init__(
        self,
        settings: RelaySettings,
        remapping: Remapping,
        loops: Loops,
        counts: UplinkCounts,
        logger: Logger,
        *,
        suspects: Suspects,
        old_filters: Sequence[str],
    ) -> None:
        """Begin a connection: CONNECT is in `cloud`."""
        self.settings = settings
        self.remapping = remapping
        self.loops = loops.leads_to("")
        self.counts = counts
        self.logger = logger
        self.cloud, self.up, self.down = PacketWriter(), PacketWriter(), PacketWriter()
        self.is_accepted = self.session_present = self.is_safe = False
        self.lanes_are_kept = self.has_other_lane = False
        self.keep_alive = settings.keys.keep_alive_seconds
        self.marks_down = b""
        self.answers: list[tuple[str, int | None]] = []
        self.not_taken: list[tuple[int, str]] = []
        self.markers: list[bytes | None] = []
        self.retained: list[str] = []
        self.watches_retained = False
        self.suspects = suspects
        self.busy: SentItem | None = None
        self.has_answered = self.has_passed = False
        self.disconnect_code = 0
        self.version = settings.version
        self.maximum_packet_size = settings.keys.maximum_packet_size or MAX_REMAINING_LENGTH + 5
        self.maximum_qos = 2
        self.retain_available = True
        self._old_filters = frozenset(old_filters)
        self._asked: dict[int, tuple[str, ...]] = {}
        self.marker_ids: set[int] = set()
        self._own: dict[str, SentItem] = {}
        self._queue: deque[Callable[[], None]] = deque()
        self.n_pings = self.n_pongs = self._fence = 0
        self.upward, self.downward = UpReceiver(self), DownReceiver(self)
        any_size = MAX_REMAINING_LENGTH + 5
        self.from_cloud = PacketStream(
            CloudReceiver(self), self.version, settings.maximum_packet_size
        )
        self.from_up = PacketStream(self.upward, MQTT_5, any_size)
        self.from_down = PacketStream(self.downward, self.version, any_size)
        self.cloud.send(connect_cloud(settings))

    # -- what is asked of it ---------------------------------------------------------------------

    def ping(self) -> None:
        """Send PINGREQ to the cloud."""
        self.n_pings += 1
        self.cloud.send(write_packet(PingReq(), self.version))

    def subscribe(self, requests: Sequence[Request], marker: bytes | None = None) -> None:
        """Subscribe in the cloud.

        Args:
            requests: each filter once.
            marker: payload that the cloud is to retain in the marker's topic before, and to send
                last; None for no marker.
        """
        topic = self.settings.marker_topic
        if marker is not None and topic is not None:
            if self.suspects.is_aside(SentItem("own", topic)):
                self.markers.append(None)
                marker = None
            else:
                self.unsubscribe((topic,))  # else it would come as a live message, too
                self._soon(partial(self._publish_marker, topic, marker))
        at_once = 1 if self.suspects.is_careful else self.settings.keys.filters_per_subscribe
        taken = [request for request in requests if not self._is_aside(request.topic_filter)]
        for sizes in (None, *get_args(SizeClass)):
            of_class = [request for request in taken if request.sizes == sizes]
            for start in range(0, len(of_class), at_once):
                self._soon(partial(self._subscribe, of_class[start : start + at_once], sizes))
        if marker is not None and topic is not None:
            self._soon(partial(self._subscribe_to_marker, topic))

    def _is_aside(self, topic_filter: str) -> bool:
        """Say whether a filter is set aside: the cloud's broker has ended connections at it."""
        if self.suspects.is_idle or not self.suspects.is_aside(SentItem("filter", topic_filter)):
            return False
        self.answers.append((topic_filter, ReasonCode.UNSPECIFIED_ERROR))
        return True

    def _subscribe_to_marker(self, topic: str) -> None:
        packet_id = self._packet_id()
        self._asked[packet_id] = (topic,)
        own = SubscriptionRequest(topic, min(1, self.maximum_qos), False, False, 0)
        data = write_packet(Subscribe(packet_id, (own,)), self.version)
        self.careful_with(SentItem("own", topic, n_bytes=len(data)))
        self.cloud.send(data)

    def _subscribe(self, requests: Sequence[Request], sizes: SizeClass | None) -> None:
        """Send one SUBSCRIBE."""
        packet_id = self._packet_id()
        self._asked[packet_id] = tuple(request.topic_filter for request in requests)
        is_5 = self.version == MQTT_5
        most = self.maximum_qos  # some brokers do not answer a request for more
        asked = tuple(
            SubscriptionRequest(name, min(qos, most), True, True, 0 if wants_retained else 2)
            if is_5
            else SubscriptionRequest(name, qos, False, False, 0)
            for name, qos, wants_retained, _ in requests
        )
        of_size = {"user_property": [(SIZE_PROPERTY, sizes)]} if sizes else {}
        data = write_packet(Subscribe(packet_id, asked, of_size), self.version)
        self.careful_with(SentItem("filter", requests[0].topic_filter, n_bytes=len(data)))
        self.cloud.send(data)

    def _publish_marker(self, topic: str, payload: bytes) -> None:
        qos = min(1, self.maximum_qos)
        packet_id = self._packet_id() if qos else 0
        if qos:
            self.marker_ids.add(packet_id)
        marker = Publish(topic, payload, qos=qos, retain=True, packet_id=packet_id)
        data = write_packet(marker, self.version)
        self._own[topic] = SentItem("own", topic, n_bytes=len(data))
        self.careful_with(self._own[topic], is_answered=bool(qos))
        self.cloud.send(data)

    def end_marker(self) -> None:
        """Clear the marker's topic in the cloud, until the next marker."""
        topic = self.settings.marker_topic
        if topic is not None:
            self.unsubscribe((topic,))
            data = write_packet(Publish(topic, b"", retain=True), self.version)
            self._soon(partial(self.cloud.send, data))

    def clear(self, topics: Iterable[str]) -> None:
        """Clear retained messages of the site."""
        for topic in topics:
            self.counts.retained_cleared += 1
            self.down.send(write_packet(Publish(topic, b"", retain=True), self.version))

    def unsubscribe(self, filters: Sequence[str]) -> None:
        """Unsubscribe in the cloud."""
        at_once = self.settings.keys.filters_per_subscribe
        for start in range(0, len(filters), at_once):
            self._soon(partial(self._unsubscribe, tuple(filters[start : start + at_once])))

    def _unsubscribe(self, names: tuple[str, ...]) -> None:
        packet_id = self._packet_id()
        self._asked[packet_id] = names
        self.cloud.send(write_packet(Unsubscribe(packet_id, names), self.version))

    def record(self, added: Iterable[str], removed: Iterable[str]) -> None:
        """Store texts in the session of *down*, as subscriptions to which nothing is published."""
        requests = tuple(SubscriptionRequest(name, 0, False, False, 0) for name in added)
        names = tuple(removed)
        if requests:
            self.down.send(write_packet(Subscribe(1, requests), self.version))
        if names:
            self.down.send(write_packet(Unsubscribe(2, names), self.version))

    def disconnect(self, *, for_good: bool = False) -> bool:
        """Send DISCONNECT on all connections.

        Returns:
            False where it cannot be sent to the cloud, as a message is on its way. The cloud then
            publishes the will.
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

    # -- one item at a time ---------------------------------------------------------------------

    def under_way(self) -> list[SentItem]:
        """Return what was sent to the cloud and is not answered."""
        if self.suspects.is_careful:
            return [] if self.busy is None else [self.busy]
        up = self.upward
        messages = [one for packet_id, one in up.sent.items() if packet_id not in up.received]
        filters = [SentItem("filter", name) for names in self._asked.values() for name in names]
        releases = up.released.values()
        return [*messages, *releases, *up.sent_qos0.values(), *filters, *self._own.values()]

    def ping_behind(self) -> None:
        """Send the PINGREQ that is to follow what was sent, where there is no other answer."""
        if self._fence > self.n_pings:
            self.ping()

    def _soon(self, send: Callable[[], None]) -> None:
        """Send a packet of the uplink's own: now, or when `busy` is answered."""
        self._queue.append(send)
        self._go_on()

    def careful_with(self, item: SentItem, *, is_answered: bool = True) -> None:
        """Send nothing more until this is answered, while `suspects` demands one item at a time.

        Args:
            item: what is being sent.
            is_answered: whether the cloud's broker answers it; else a PINGREQ is to follow.
        """
        if self.suspects.is_careful:
            self.busy = item
            self.from_up.is_paused = True
            self._fence = 0 if is_answered else self.n_pings + 1

    def answered_item(self, item: SentItem) -> None:
        """Note that the cloud's broker has answered what was sent."""
        self.suspects.answered(item)
        if self.busy is not None and self.busy.key == item.key:
            self.busy = None
            self._go_on()

    def message_answered(self, item: SentItem, code: int) -> None:
        """Handle the cloud's answer to a message, maybe tried without its RETAIN flag."""
        suspects = self.suspects
        if item.is_retained and code < 0x80 and suspects.is_doubted(item):
            suspects.flag_was_refused()
            self.change("retain_cleared")
        self.answered_item(item)

    def own_answered(self, topic: str) -> None:
        """Handle the cloud's answer to a message of the uplink's own."""
        item = self._own.pop(topic, None)
        if item is not None:
            self.answered_item(item)

    def _go_on(self) -> None:
        """Send what has waited for the answer to `busy`."""
        while self._queue and self.busy is None:
            self._queue.popleft()()
            self.ping_behind()
        if self.busy is None and self.from_up.is_paused:
            self.from_up.go_on()

    def pong(self) -> None:
        """Handle a PINGRESP: the broker has taken what was sent before the PINGREQ."""
        self.n_pongs += 1
        self.has_answered = True
        own, self._own = self._own, {}
        qos0, self.upward.sent_qos0 = self.upward.sent_qos0, {}
        if not self.suspects.is_idle and self.busy is None:
            for item in (*own.values(), *qos0.values()):
                self.suspects.answered(item)
        elif self.busy is not None and 0 < self._fence <= self.n_pongs:
            self.message_answered(self.busy, 0)

    # -- within ----------------------------------------------------------------------------------

    def _packet_id(self) -> int:
        """Return a packet identifier that is not in use towards the cloud [MQTT-2.2.1-3]."""
        packet_id = (self.upward.last_packet_id + MAX_PACKET_ID // 2) % MAX_PACKET_ID + 1
        taken = (self._asked, self.upward.sent, self.marker_ids)
        while any(packet_id in packet_ids for packet_ids in taken):
            packet_id = packet_id % MAX_PACKET_ID + 1
        return packet_id

    def accepted(self, packet: ConnAck) -> None:
        """Handle the CONNACK of the cloud's broker: connect the local clients.

        Raises:
            UplinkRefusedError: it refuses.
        """
        check_accepted(packet, self.settings)
        properties = packet.properties
        self.is_accepted = True
        self.session_present = packet.session_present
        for name, value in properties.get("user_property", ()):
            if name == LANE_PROPERTY:
                self.lanes_are_kept = True
                self.has_other_lane = bool(value)
            elif name == SITE_PROPERTY:
                self.loops = self.loops.leads_to(value)
        marks = write_properties({"user_property": self.loops.down(())}, PacketType.PUBLISH)
        self.marks_down = marks[read_variable_byte_integer(marks, 0)[1] :]
        self.keep_alive = properties.get("server_keep_alive", self.keep_alive)
        told = properties.get("maximum_packet_size", self.maximum_packet_size)
        self.maximum_packet_size = min(told, self.maximum_packet_size)
        self.maximum_qos = properties.get("maximum_qos", 2)
        told_available = bool(properties.get("retain_available", 1))
        self.retain_available = told_available and self.settings.keys.outgoing_retain
        window = min(properties.get("receive_maximum", MAX_PACKET_ID), MOST_INFLIGHT)
        if not properties.get("session_expiry_interval", 1):
            self.logger.warning(
                "the cloud's broker keeps no session: what it has for this site during an outage "
                "is lost"
            )
        self._connect_up(window)
        self._connect_down()
        if self.retain_available or not self.settings.retains_cloud_state:
            self._tell_state()

    def _tell_state(self) -> None:
        """Tell the cloud that the uplink stands."""
        data, topic = cloud_state(self.settings, b"1"), self.settings.state_topic or ""
        item = SentItem("own", topic, n_bytes=len(data))

        def send() -> None:
            self._own[topic] = item
            self.careful_with(item, is_answered=False)
            self.cloud.send(data)

        if data and not self.suspects.is_aside(item):
            self._soon(send)

    def _connect_up(self, window: int) -> None:
        """Connect the client that subscribes; it speaks MQTT 5, whatever the cloud speaks."""
        self.up.send(connect_local(self.settings.up_id, window))
        # What is retained goes up once, and again where the cloud has forgotten the session.
        again = frozenset[str]() if not self.session_present else self._old_filters
        filters = self.remapping.up_filters()
        self.up.send(subscribe_up(filters, self.settings.lane.sizes, without_retained=again))

    def _connect_down(self) -> None:
        """Connect the client that publishes, in the version of the cloud's connection.

        So acknowledgements of both sides have one form, and the site's broker says nothing that a
        broker of MQTT 3.1.1 could not be told.
        """
        is_5 = self.version == MQTT_5
        connect = Connect(
            self.settings.down_id,
            protocol_version=self.version,
            clean_start=not self.session_present,
            keep_alive=0,
            will=self.settings.will(),
            properties={"session_expiry_interval": SESSION_NEVER_EXPIRES} if is_5 else {},
        )
        self.down.send(write_packet(connect, self.version))
        if self.settings.state_topic is not None:
            self.record([record_of_state(self.settings.state_topic)], ())
        self.down.send(state_of(self.settings, b"1", self.version))

    def answered(self, packet: SubAck | UnsubAck) -> None:
        """Handle the cloud's answer to a SUBSCRIBE or UNSUBSCRIBE."""
        filters = self._asked.pop(packet.packet_id, ())
        if isinstance(packet, UnsubAck):
            self.answers += [(name, None) for name in filters]
            return
        if not self.suspects.is_idle:
            for name in filters:
                self.answered_item(
                    SentItem("own" if name == self.settings.marker_topic else "filter", name)
                )
        for name, code in zip(filters, packet.reason_codes, strict=False):
            self.answers.append((name, code))
            if code >= 0x80:
                self.counts.subscribe_refused += 1
                self.logger.error(
                    "the cloud's broker refuses the subscription to %r: %s",
                    name,
                    refusal_in_words(code),
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
        """Count a message that goes up otherwise than it came, and log it at growing intervals."""
        count(self.counts.changed, reason)
        if is_logged(self.counts.changed[reason]):
            self.logger.warning("%d messages: %s", self.counts.changed[reason], reason)
