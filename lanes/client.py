"""A client with two lanes.

Theory of operation. The application's client is the *first lane*: a paho client with its own client
id, session, will and callbacks. Where the CONNACK says that the broker knows lanes, a second
connection for large messages follows (`penstock.lanes.large_lane`). Where it does not, or where
that connection fails, the first lane has all messages, as without this module.

A topic is on one lane at a time, so that its messages do not overtake each other. What is published
to a topic goes on the large lane while an earlier message of it is there. A large message is *held*
while an earlier one of its topic is on the first lane, and while the second connection is being
made.
"""

from __future__ import annotations

import contextlib
import math
import select
import uuid
from collections import deque
from typing import Any, Final

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, _ConnectionState
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from penstock.lanes.large_lane import (
    LANE_OF,
    LOGGER,
    NOWHERE,
    LargeLane,
    connect_properties,
    new_properties,
    put,
)
from penstock.lanes.large_lane import user_properties as told_in

LARGE_ABOVE: Final = 10_000
"""Payload bytes above which a message is large, until the broker has said otherwise."""

SUFFIX: Final = ".large-lane"
"""Of the large lane's client id."""

MOST_CLIENT_ID_BYTES: Final = 65_535
"""MQTT 5.0, 1.5.4."""

_LEAVING: Final = (_ConnectionState.MQTT_CS_DISCONNECTING, _ConnectionState.MQTT_CS_DISCONNECTED)

MOST_TOPICS: Final = 1000
"""Of the messages of QoS 0 that may be on their way on the first lane: with more, any may be."""


class Client(mqtt.Client):
    """`paho.mqtt.client.Client` with two lanes.

    Attributes:
        asked_properties: of the CONNECT, as the application gave them.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        """As `paho.mqtt.client.Client`."""
        self._lane: LargeLane | None = None  # paho's constructor writes a log
        super().__init__(*args, **more)
        self.begin()

    def begin(self) -> None:
        """Begin with one lane."""
        self._lane = None
        self.asked_properties: Properties | None = None
        self._large_id = ""
        self._large_above: float = math.inf
        self._is_decided = True
        self._held: dict[bytes, deque[mqtt.MQTTMessage]] = {}
        self._on_lane: dict[bytes, int] = {}
        self._recent: set[bytes] = set()
        self._asked: set[bytes] = set()
        self._answer: int | None = None
        self._is_looping = False
        self._leaving: tuple[Any, Any] | None = None

    # -- connection ----------------------------------------------------------------------------

    def connect_async(
        self,
        host: str,
        port: int = 1883,
        keepalive: int = 60,
        bind_address: str = "",
        bind_port: int = 0,
        clean_start: mqtt.CleanStartOption = mqtt.MQTT_CLEAN_START_FIRST_ONLY,
        properties: Properties | None = None,
    ) -> None:
        """As `paho.mqtt.client.Client.connect_async`."""
        self._end_lane()
        self.asked_properties = properties
        own_id = self._client_id.decode()
        self._large_id = (own_id or uuid.uuid4().hex) + SUFFIX
        is_too_long = len(self._large_id.encode()) > MOST_CLIENT_ID_BYTES
        self._is_decided = self._protocol != mqtt.MQTTv5 or is_too_long
        self._large_above = math.inf if self._is_decided else LARGE_ABOVE
        if is_too_long:
            LOGGER.warning(
                "one connection for all messages: client id of %d bytes; allowed with two: %d",
                len(self._client_id),
                MOST_CLIENT_ID_BYTES - len(SUFFIX),
            )
        elif not self._is_decided:
            properties = connect_properties(properties, lane_of=self._large_id)
        super().connect_async(
            host, port, keepalive, bind_address, bind_port, clean_start, properties
        )

    def _handle_connack(self) -> MQTTErrorCode:
        if self._protocol == mqtt.MQTTv5:
            packet = bytes(self._in_packet["packet"])
            if len(packet) > 2 and packet[1] == 0:
                properties = new_properties(PacketTypes.CONNACK)
                with contextlib.suppress(Exception):  # paho says what is wrong
                    properties.unpack(packet[2:])  # type: ignore[no-untyped-call]
                self._connected(properties)
        return super()._handle_connack()

    def _connected(self, properties: Properties) -> None:
        """See in the CONNACK whether there are to be two lanes."""
        told = told_in(properties)
        own_id = getattr(properties, "AssignedClientIdentifier", self._client_id.decode())
        self._recent.clear()
        self._asked.clear()
        self._answer = None
        self._is_decided = True
        if LANE_OF not in told:
            LOGGER.info("%s: one connection for all messages: the broker has no lanes", own_id)
            self._end_lane()
            self._large_above = math.inf
            return
        above = told.get("penstock-large-above", "")
        self._large_above = int(above) if above.isdecimal() else LARGE_ABOVE
        if self._lane is None:
            if self._sockpairR is None:
                self._sockpairR, self._sockpairW = mqtt._socketpair_compat()
            self._lane = LargeLane(self, self._large_id, is_clean=self._check_clean_session())
        self._lane.be_lane_of(own_id)

    def disconnect(
        self, reasoncode: ReasonCode | None = None, properties: Properties | None = None
    ) -> MQTTErrorCode:
        """As `paho.mqtt.client.Client.disconnect`; what is published before goes first."""
        lane = self._lane
        if lane is None or not lane.is_up or self._sock is None:
            self._end_lane()
            return super().disconnect(reasoncode, properties)
        is_served = self._has_loop() or self._held or lane.want_write()
        if not is_served:
            lane.leave()
            lane.loop_write()
            rc = super().disconnect(reasoncode, properties)
            self._end_lane()
            return rc
        self._leaving = reasoncode, properties
        self._state = _ConnectionState.MQTT_CS_DISCONNECTING
        self.wake()
        return mqtt.MQTT_ERR_SUCCESS

    def _leave(self, lane: LargeLane, leaving: tuple[Any, Any]) -> None:
        """Go on with `disconnect`: the large lane first."""
        if lane.is_up and not lane.has_left:
            if not self._held:
                lane.leave()
        elif lane._sock is None:
            self._leaving = None
            super().disconnect(*leaving)
            self._end_lane()

    def _end_lane(self) -> None:
        """Have one connection; what the other one has not delivered is to go on this one."""
        lane, self._lane = self._lane, None
        with self._out_message_mutex:
            self._take_back(lane)
        if lane is not None:
            lane.has_left = True
            lane._sock_close()

    # -- what the large lane says --------------------------------------------------------------

    def wake(self) -> None:
        """Have the loop look at the large lane."""
        writer = self._sockpairW
        if writer is not None:
            with contextlib.suppress(BlockingIOError):
                writer.send(mqtt.sockpair_data)

    def lane_is_up(self) -> None:
        """Publish on the large lane what was held for it."""
        self._release()

    def lane_is_refused(self) -> None:
        """Publish all on this lane."""
        with self._out_message_mutex:
            self._take_back(self._lane)

    def left_lane(self, topic: bytes) -> None:
        """Note that the broker has a message that was on the large lane."""
        with self._out_message_mutex:
            n_messages = self._on_lane.pop(topic, 0)
            if n_messages > 1:
                self._on_lane[topic] = n_messages - 1

    def tell_published(self, mid: int, reason: ReasonCode, properties: Properties) -> None:
        """Tell the application that a message of the large lane is published."""
        callback: Any = self.on_publish
        if callback and self._callback_api_version == CallbackAPIVersion.VERSION1:
            callback(self, self._userdata, mid)
        elif callback:
            callback(self, self._userdata, mid, reason, properties)

    # -- publishing ----------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        payload: mqtt.PayloadType = None,
        qos: int = 0,
        retain: bool = False,  # noqa: FBT001, FBT002 (paho's)
        properties: Properties | None = None,
    ) -> mqtt.MQTTMessageInfo:
        """As `paho.mqtt.client.Client.publish`."""
        above = self._large_above
        if above != math.inf:
            kind = type(payload)
            size = 0
            if kind is bytes or kind is bytearray:
                size = len(payload)  # type: ignore[arg-type]
            elif kind is str:
                size = len(payload)  # type: ignore[arg-type]
                if size <= above < 4 * size:
                    size = len(payload.encode())  # type: ignore[union-attr]
            if size > above or self._on_lane:
                info = self._publish_large(topic, payload, qos, retain, properties, size > above)
                if info is not None:
                    return info
            if not qos:
                self._note(topic)
        return super().publish(topic, payload, qos, retain, properties)

    def _note(self, topic: str) -> None:
        """Note a message of QoS 0 that is on its way on the first lane."""
        if len(self._recent) < MOST_TOPICS:
            self._recent.add(topic.encode())

    def _publish_large(
        self,
        topic: str,
        payload: mqtt.PayloadType,
        qos: int,
        retain: bool,  # noqa: FBT001 (paho's)
        properties: Properties | None,
        is_large: bool,  # noqa: FBT001
    ) -> mqtt.MQTTMessageInfo | None:
        """Publish a message on the large lane, or hold it; None where it is for the first lane."""
        encoded = topic.encode()
        if not encoded or hasattr(properties, "TopicAlias") or not 0 <= qos <= 2:
            return None
        with self._out_message_mutex:
            lane = self._lane
            if not is_large and encoded not in self._on_lane:
                return None
            if not (lane.is_awaited if lane is not None else self._is_awaited()):
                return None
            if self._sock is None and not qos:
                return None
            self._raise_for_invalid_topic(encoded)
            message = mqtt.MQTTMessage(self._mid_generate(), encoded)
            message.timestamp = mqtt.time_func()
            message.payload = mqtt._encode_payload(payload)
            message.qos = qos
            message.retain = retain
            message.properties = properties
            n_queued = len(self._out_messages) + sum(map(len, self._held.values()))
            n_queued += 0 if lane is None else len(lane._out_messages)
            if qos and 0 < self._max_queued_messages <= n_queued:
                message.info.rc = mqtt.MQTT_ERR_QUEUE_SIZE
                return message.info
            self._on_lane[encoded] = self._on_lane.get(encoded, 0) + 1
            is_free = encoded not in self._held and (
                self._on_lane[encoded] > 1 or not self._may_be_here(encoded)
            )
            if lane is not None and lane.is_up and is_free:
                lane.put(message)
            else:
                self._held.setdefault(encoded, deque()).append(message)
                self._ask()
            if self._sock is None:
                message.info.rc = mqtt.MQTT_ERR_NO_CONN
            return message.info

    def _is_awaited(self) -> bool:
        """Say whether there may be a large lane soon, and a loop that connects it."""
        return not self._is_decided and self._has_loop()

    def _has_loop(self) -> bool:
        """Say whether something serves the sockets, as far as can be known."""
        return (
            self._thread is not None
            or self._is_looping
            or self._on_socket_register_write is not None
        )

    def _may_be_here(self, topic: bytes) -> bool:
        """Say whether the broker may be without a message that was sent on this lane."""
        for topics in (self._recent, self._asked):
            if topic in topics or len(topics) == MOST_TOPICS:
                return True
        return any(message._topic == topic for message in self._out_messages.values())

    def _ask(self) -> None:
        """Have the broker answer when it has handled what was sent on this lane."""
        lane = self._lane
        if lane is not None and lane.is_up and self._answer is None and self._sock is not None:
            self._asked, self._recent = self._recent, set()
            _, self._answer = super().unsubscribe(NOWHERE)

    def _handle_unsuback(self) -> MQTTErrorCode:
        if self._answer != int.from_bytes(self._in_packet["packet"][:2], "big"):
            return super()._handle_unsuback()
        self._answer = None
        self._asked.clear()
        self._release()
        return mqtt.MQTT_ERR_SUCCESS

    def _release(self) -> None:
        """Publish on the large lane what need not be held any more."""
        with self._out_message_mutex:
            lane = self._lane
            for topic in list(self._held):
                if lane is not None and lane.is_up and not self._may_be_here(topic):
                    for message in self._held.pop(topic):
                        lane.put(message)
            if self._held:
                self._ask()

    def _take_back(self, lane: LargeLane | None) -> None:
        """Publish on this lane what is held, and what the large lane has not delivered.

        What was sent there before a DISCONNECT waits for the next connection, as with one lane.
        """
        taken = [] if lane is None else lane.take_all()
        for message in taken:
            if message.qos == 2 and message.state in (
                mqtt.mqtt_ms_wait_for_pubcomp,
                mqtt.mqtt_ms_resend_pubrel,
            ):  # the broker has it
                message.info._set_as_published()
                self.tell_published(
                    message.mid, ReasonCode(PacketTypes.PUBACK), new_properties(PacketTypes.PUBACK)
                )
            elif self._state in _LEAVING:
                message.dup = message.state != mqtt.mqtt_ms_queued
                message.state = mqtt.mqtt_ms_publish
                self._out_messages[message.mid] = message
            else:
                put(self, message)
        for packet in [] if lane is None else lane.take_unsent0():
            self._packet_queue(
                packet["command"], packet["packet"], packet["mid"], 0, packet["info"]
            )
        held, self._held = self._held, {}
        self._on_lane.clear()
        for messages in held.values():
            for message in messages:
                put(self, message)

    def _mid_generate(self) -> int:
        mid = super()._mid_generate()
        lane = self._lane
        while lane is not None and (mid in lane._out_messages or mid in self._out_messages):
            mid = super()._mid_generate()
        return mid

    # -- the loop ------------------------------------------------------------------------------

    def _loop(self, timeout: float = 1.0) -> MQTTErrorCode:
        self._is_looping = True
        try:
            while True:
                rc = super()._loop(timeout) if self._lane is None else self._turn(timeout)
                lane = self._lane
                if rc or lane is None or not self._thread_terminate or not lane.is_up:
                    return rc
                if self._out_packet or self._out_messages:
                    return rc
                if not (self._held or lane._out_packet or lane._out_messages):
                    return rc  # as with one lane, what is published is delivered first
        finally:
            self._is_looping = False

    def _turn(self, timeout: float) -> MQTTErrorCode:
        """Serve both lanes, when there is something for one of them."""
        lane = self._tend()
        own, other = self._sock, None if lane is None else lane._sock
        if lane is None or own is None or other is None:
            return super()._loop(timeout)
        if lane.has_pending() or getattr(own, "pending", int)() > 0:
            timeout = 0.0
        reads = [own, other] if self._sockpairR is None else [own, other, self._sockpairR]
        writes = [one for one, client in ((own, self), (other, lane)) if client._out_packet]
        try:
            readable, writable, _ = select.select(reads, writes, [], timeout)
        except (TypeError, ValueError, OSError):  # one of them was closed
            return super()._loop(0.0)
        rc = super()._loop(0.0)
        if other in readable or other in writable or lane.has_pending() or lane._out_packet:
            lane.serve()
        return rc

    def _tend(self) -> LargeLane | None:
        """Do what is due on the large lane, and return it."""
        lane = self._lane
        if lane is None:
            return None
        lane.tend(mqtt.time_func())
        if self._held and self._answer is None:
            self._release()
        if self._leaving is not None:
            self._leave(lane, self._leaving)
        return self._lane

    def loop_read(self, max_packets: int = 1) -> MQTTErrorCode:
        """As `paho.mqtt.client.Client.loop_read`."""
        if self._lane is not None and not self._is_looping:
            self._lane.serve()
        return super().loop_read(max_packets)

    def loop_write(self) -> MQTTErrorCode:
        """As `paho.mqtt.client.Client.loop_write`."""
        lane = self._lane
        if lane is not None and not self._is_looping and lane._out_packet:
            lane.loop_write()
        return super().loop_write()

    def loop_misc(self) -> MQTTErrorCode:
        """As `paho.mqtt.client.Client.loop_misc`."""
        if self._lane is not None and not self._is_looping:
            lane = self._tend()
            if lane is not None and self._on_socket_register_write is None:
                lane.serve()
        return super().loop_misc()

    def ack(self, mid: int, qos: int) -> MQTTErrorCode:
        """As `paho.mqtt.client.Client.ack`."""
        if mid >= 1 << 16:
            lane = self._lane
            return mqtt.MQTT_ERR_NO_CONN if lane is None else lane.ack(mid, qos)
        return super().ack(mid, qos)
