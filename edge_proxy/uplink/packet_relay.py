"""The relay of an uplink: two clients back to back, without the network.

Theory of operation. An uplink has three connections. One leads to the cloud's broker. Two are
clients of the site's own broker, in its process: *up* subscribes to what goes up, *down* publishes
what comes down. PUBLISH, PUBACK, PUBREC, PUBREL and PUBCOMP pass the relay with unchanged packet
identifiers:

    site's broker  -- up -->  PUBLISH 7  -->  cloud       cloud  -->  PUBLISH 3  -- down -->  broker
    site's broker  <-- up --  PUBACK 7   <--  cloud       cloud  <--  PUBACK 3   <-- down --  broker

So the relay keeps no state of messages. What waits for the cloud waits in the session of *up*,
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
message that repeats one which the cloud may have is released there first
(`UpReceiver.freeing`): the cloud would take the next message with that identifier for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
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
    connect_up,
    record_of_state,
    refusal_in_words,
    state_of,
    subscribe_up,
    will_of,
)
from penstock.edge_proxy.uplink.counts import UplinkCounts
from penstock.edge_proxy.uplink.packet_stream import Buffer, PacketStream
from penstock.edge_proxy.uplink.packet_writer import PacketWriter
from penstock.edge_proxy.uplink.receivers import CloudReceiver, DownReceiver, UpReceiver
from penstock.edge_proxy.uplink.remapping import Loops, Remapping
from penstock.edge_proxy.uplink.subscriptions import Request
from penstock.edge_proxy.uplink.suspects import SentItem, Suspects

MOST_INFLIGHT: Final = 32_000
"""QoS 1 and 2 messages on their way up. The packet identifiers of SUBSCRIBE are taken as far from
theirs as possible, and these are less than half of all."""


class PacketRelay:
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
        marks_down: encoded User Properties of a message that comes down and had none of uplinks.
        lanes_are_kept: it keeps the order of topics across both lanes.
        has_other_lane: it has a session of the other lane.
        markers: payloads that have come for the marker's topic, not taken yet; None where the cloud
            refuses one.
        retained: topics at the site of retained messages that have come, not taken yet, while
            `watches_retained`.
        watches_retained: they are wanted.
        suspects: what the cloud's broker may have refused by ending a connection.
        busy: the one thing that was sent and is not answered, while `suspects` says to be careful.
        has_answered: the cloud's broker has answered a message or a PINGREQ.
        has_passed: a message has passed in either direction, and was acknowledged.
        disconnect_code: reason code of its DISCONNECT; 0 for none.
        not_taken: (packet identifier, topic) of messages, not handed over yet, that the cloud's
            broker does not let this client publish; of an optional lane alone.
        n_pings: PINGREQs that were sent.
        n_pongs: of these, that were answered.
        answers: of the cloud's broker, not taken yet: (topic filter, reason code), and None as the
            code of a subscription that has ended.
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
        """Begin a connection: CONNECT is in `cloud`.

        Args:
            settings: of the uplink.
            remapping: of its topics.
            loops: recognises messages that go round.
            counts: of the uplink.
            logger: told what does not pass.
            suspects: as the attribute.
            old_filters: subscriptions of *up* of which everything retained went up before.
        """
        self.settings = settings
        self.remapping = remapping
        self.loops = loops.leads_to("")
        self.counts = counts
        self.logger = logger
        self.cloud, self.up, self.down = PacketWriter(), PacketWriter(), PacketWriter()
        self.is_accepted = False
        self.keep_alive = settings.keep_alive
        self.session_present = False
        self.is_safe = False
        self.marks_down = b""
        self.lanes_are_kept = False
        self.has_other_lane = False
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
        self.maximum_packet_size = settings.cloud_packet_size or MAX_REMAINING_LENGTH + 5
        self.maximum_qos = 2
        self.retain_available = True
        self._old_filters = frozenset(old_filters)
        self._asked: dict[int, tuple[str, ...]] = {}
        self.marker_ids: set[int] = set()
        self._own: dict[str, SentItem] = {}
        self._queue: deque[Callable[[], None]] = deque()
        self.n_pings = self.n_pongs = self._fence = 0
        self.upward, self.downward = UpReceiver(self), DownReceiver(self)
        most = settings.maximum_packet_size
        self._from_cloud = PacketStream(CloudReceiver(self), self.version, most)
        self._from_up = PacketStream(self.upward, MQTT_5, MAX_REMAINING_LENGTH + 5)
        self._from_down = PacketStream(self.downward, self.version, MAX_REMAINING_LENGTH + 5)
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
        self.n_pings += 1
        self.cloud.send(write_packet(PingReq(), self.version))

    def subscribe(self, requests: Sequence[Request], marker: bytes | None = None) -> None:
        """Ask the cloud for topics.

        Args:
            requests: each filter once.
            marker: payload that is retained for the marker's topic before, and comes last.
        """
        topic = self.settings.marker_topic
        if marker is not None and topic is not None:
            if self.suspects.is_aside(SentItem("own", topic)):
                self.markers.append(None)
                marker = None
            else:
                self.unsubscribe((topic,))  # else it would come as a live message, too
                self._soon(partial(self._publish_marker, topic, marker))
        at_once = 1 if self.suspects.is_careful else self.settings.filters_per_subscribe
        taken = [request for request in requests if not self._is_aside(request.topic_filter)]
        for sizes in (None, *get_args(SizeClass)):
            of_class = [request for request in taken if request.sizes == sizes]
            for start in range(0, len(of_class), at_once):
                self._soon(partial(self._subscribe, of_class[start : start + at_once], sizes))
        if marker is not None and topic is not None:
            self._soon(partial(self._subscribe_to_marker, topic))

    def _is_aside(self, topic_filter: str) -> bool:
        """Say whether the cloud's broker has ended connections at a filter: it is refused then."""
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
        most = self.maximum_qos  # more would be granted as much, or not answered at all
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
        """Have the cloud retain nothing for the marker's topic, until the next marker."""
        topic = self.settings.marker_topic
        if topic is not None:
            self.unsubscribe((topic,))
            data = write_packet(Publish(topic, b"", retain=True), self.version)
            self._soon(partial(self.cloud.send, data))

    def clear(self, topics: Iterable[str]) -> None:
        """Have the site retain nothing for some topics."""
        for topic in topics:
            self.counts.retained_cleared += 1
            self.down.send(write_packet(Publish(topic, b"", retain=True), self.version))

    def unsubscribe(self, filters: Sequence[str]) -> None:
        """Ask the cloud for topics no more."""
        at_once = self.settings.filters_per_subscribe
        for start in range(0, len(filters), at_once):
            self._soon(partial(self._unsubscribe, tuple(filters[start : start + at_once])))

    def _unsubscribe(self, names: tuple[str, ...]) -> None:
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

    # -- one thing at a time ---------------------------------------------------------------------

    def under_way(self) -> list[SentItem]:
        """Return what was sent and is not answered."""
        if self.suspects.is_careful:
            return [] if self.busy is None else [self.busy]
        up = self.upward
        messages = [one for packet_id, one in up.sent.items() if packet_id not in up.received]
        filters = [SentItem("filter", name) for names in self._asked.values() for name in names]
        releases = up.released.values()
        return [*messages, *releases, *up.sent_qos0.values(), *filters, *self._own.values()]

    def ping_behind(self) -> None:
        """Send the PINGREQ that is to follow what was sent, if one is."""
        if self._fence > self.n_pings:
            self.ping()

    def _soon(self, send: Callable[[], None]) -> None:
        """Send something of the uplink's own: now, or when it is its turn."""
        self._queue.append(send)
        self._go_on()

    def careful_with(self, thing: SentItem, *, is_answered: bool = True) -> None:
        """Send nothing more until a thing that is being sent is answered, where care is needed.

        Args:
            thing: that is being sent.
            is_answered: the cloud's broker has an answer for it; else a PINGREQ is to follow.
        """
        if self.suspects.is_careful:
            self.busy = thing
            self._from_up.is_paused = True
            self._fence = 0 if is_answered else self.n_pings + 1

    def answered_item(self, thing: SentItem) -> None:
        """Note that the cloud's broker has answered something that was sent."""
        self.suspects.answered(thing)
        if self.busy is not None and self.busy.key == thing.key:
            self.busy = None
            self._go_on()

    def message_answered(self, thing: SentItem, code: int) -> None:
        """Take the cloud's answer to a message, which may have been doubted."""
        suspects = self.suspects
        if thing.is_retained and code < 0x80 and suspects.is_doubted(thing):
            suspects.flag_was_refused()
            self.change("retain_cleared")
        self.answered_item(thing)

    def own_answered(self, topic: str) -> None:
        """Take the cloud's answer to a message of the uplink's own."""
        thing = self._own.pop(topic, None)
        if thing is not None:
            self.answered_item(thing)

    def _go_on(self) -> None:
        """Send what has waited for its turn."""
        while self._queue and self.busy is None:
            self._queue.popleft()()
            self.ping_behind()
        if self.busy is None and self._from_up.is_paused:
            self._from_up.go_on()

    def pong(self) -> None:
        """Take a PINGRESP: what was sent before its PINGREQ was taken."""
        self.n_pongs += 1
        self.has_answered = True
        own, self._own = self._own, {}
        qos0, self.upward.sent_qos0 = self.upward.sent_qos0, {}
        if not self.suspects.is_idle and self.busy is None:
            for thing in (*own.values(), *qos0.values()):
                self.suspects.answered(thing)
        elif self.busy is not None and 0 < self._fence <= self.n_pongs:
            self.message_answered(self.busy, 0)

    # -- within ----------------------------------------------------------------------------------

    def _packet_id(self) -> int:
        """Return a packet identifier that no message on its way up has [MQTT-2.2.1-3]."""
        packet_id = (self.upward.last_packet_id + MAX_PACKET_ID // 2) % MAX_PACKET_ID + 1
        taken = (self._asked, self.upward.sent, self.marker_ids)
        while any(packet_id in packet_ids for packet_ids in taken):
            packet_id = packet_id % MAX_PACKET_ID + 1
        return packet_id

    def accepted(self, packet: ConnAck) -> None:
        """Take the CONNACK of the cloud's broker: connect the local clients, and subscribe.

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
        self.retain_available = told_available and self.settings.outgoing_retain
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
        thing = SentItem("own", topic, n_bytes=len(data))

        def send() -> None:
            self._own[topic] = thing
            self.careful_with(thing, is_answered=False)
            self.cloud.send(data)

        if data and not self.suspects.is_aside(thing):
            self._soon(send)

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
        broker of MQTT 3.1.1 is not said to the relay either.
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
        """Count a message that goes up otherwise than it came."""
        count(self.counts.changed, reason)
        if is_logged(self.counts.changed[reason]):
            self.logger.warning("%d messages: %s", self.counts.changed[reason], reason)
