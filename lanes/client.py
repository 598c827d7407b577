"""A paho client with two lanes.

Theory of operation. The application's client is the *first lane*: a paho client with its own client
id, session, will and callbacks. If the CONNACK says that the broker supports lanes, the client
opens a second connection for large messages (`penstock.lanes.large_lane`). If the broker does not,
or if that connection fails, the first lane carries all messages, as without this module.

The messages of a topic use one lane at a time, so that they do not overtake each other. While an
earlier message of its topic is on the large lane, a message goes there, too. A large message is
*held* while an earlier one of its topic may be on the first lane, and while the large lane is being
connected. To learn that the broker has all earlier messages of QoS 0, which it does not
acknowledge, the client sends a *barrier* behind them: an UNSUBSCRIBE that changes nothing.

In MQTT 5, the CONNECT and the CONNACK of the first lane negotiate lanes. A program that names no
version of MQTT gets 3.1.1 from paho. Then the second connection, of MQTT 5, asks once, and closes
if the broker has no lanes.
"""

from __future__ import annotations

import contextlib
import math
import select
import uuid
from collections import Counter
from typing import Any, Final

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, _ConnectionState
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from penstock.lanes import large_lane
from penstock.lanes.large_lane import LOGGER, PATIENCE_SECONDS, LargeLane

LARGE_ABOVE: Final = 10_000
"""The payload length above which a message is large, unless the CONNACK gives another limit."""

SUFFIX: Final = ".large-lane"
"""The end of the large lane's client id; the first lane's id precedes it."""

MOST_ID_BYTES: Final = 65_535
"""The longest client id (MQTT 5.0, 1.5.4). If the large lane's would be longer, there is only
one connection."""

MOST_TOPICS: Final = 1000
"""The number of topics remembered between two barriers. Once it is reached, a message of any topic
may be on the first lane."""

ANY_TOPIC: Final = b"#"
"""The mark for all topics in a set of topics."""

RECEIVED: Final = mqtt.mqtt_ms_wait_for_pubcomp, mqtt.mqtt_ms_resend_pubrel
"""The states of a message of QoS 2 that the broker has received."""

LEAVING: Final = (_ConnectionState.MQTT_CS_DISCONNECTING, _ConnectionState.MQTT_CS_DISCONNECTED)
"""The states of a client after `disconnect`."""


class Client(mqtt.Client):
    """`paho.mqtt.client.Client` with two lanes."""

    def __init__(self, *args: Any, **more: Any) -> None:
        """As `paho.mqtt.client.Client`."""
        super().__init__(*args, **more)
        protocol = more.get("protocol", args[4] if len(args) > 4 else None)
        self.begin(may_have_lanes=protocol in (None, mqtt.MQTTv5))

    def begin(self, *, may_have_lanes: bool) -> None:
        """Begin with one lane."""
        self._lane: LargeLane | None = None
        self._may_have_lanes = may_have_lanes
        if may_have_lanes and not self._client_id and self._protocol != mqtt.MQTTv5:
            # A CONNACK of MQTT 3.1.1 does not contain an assigned client id.
            self._client_id = uuid.uuid4().hex.encode()
        self._large_above: float = math.inf
        self._on_lane: dict[bytes, int] = {}
        self._since_barrier: set[bytes] = set()
        self._before_barrier: set[bytes] = set()
        self._barrier: int | None = None
        self._knows_none = self._is_looping = False
        self._leaving: tuple[float, Any, Any] | None = None

    # -- connection ----------------------------------------------------------------------------

    def connect_async(self, *args: Any, **more: Any) -> None:
        """As `paho.mqtt.client.Client.connect_async`."""
        self._end_lane()
        self._knows_none, self._leaving = False, None
        super().connect_async(*args, **more)

    def _send_connect(self, keepalive: int) -> MQTTErrorCode:
        """Name the large lane, which may follow, in the CONNECT."""
        lane = self._lane or self._new_lane()
        given = self._connect_properties
        if lane is not None and self._protocol == mqtt.MQTTv5:
            size = {"size": "small"} if lane.is_awaited else {}
            lane_id = lane._client_id.decode()
            self._connect_properties = large_lane.connect_properties(given, lane_of=lane_id, **size)
        try:
            return super()._send_connect(keepalive)
        finally:
            self._connect_properties = given

    def _new_lane(self) -> LargeLane | None:
        """Prepare a large lane, if there may be one."""
        if self._may_have_lanes and not (self._knows_none or self._client_mode):
            lane_id = (self._client_id.decode() or uuid.uuid4().hex) + SUFFIX
            self._may_have_lanes = len(lane_id.encode()) <= MOST_ID_BYTES
            if not self._may_have_lanes:
                most = MOST_ID_BYTES - len(SUFFIX)
                what = f"client id of {len(self._client_id)} bytes; allowed with two: {most}"
                LOGGER.warning("one connection for all messages: %s", what)
            else:
                self._lane = LargeLane(self, lane_id)
                self._large_above = LARGE_ABOVE
        return self._lane

    def lane_properties(self) -> Properties:
        """Return the properties that the large lane's CONNECT has in common with this lane's."""
        if self._protocol == mqtt.MQTTv5:
            return large_lane.connect_properties(self._connect_properties)
        properties = large_lane.connect_properties(None, waits="yes")
        properties.SessionExpiryInterval = 0 if self._clean_session else 0xFFFFFFFF
        return properties

    def _handle_connack(self) -> MQTTErrorCode:
        """Read from the CONNACK whether there will be two lanes."""
        code, properties, own_id = large_lane.read_connack(self)
        if self._lane is not None and not code:
            self._since_barrier.clear()
            self._before_barrier.clear()
            self._barrier = None
            if self._protocol != mqtt.MQTTv5 or large_lane.LANE_OF in properties:
                self.take_large_above(properties)
                if self._sockpairR is None:
                    self._sockpairR, self._sockpairW = mqtt._socketpair_compat()
                self._lane.be_lane_of(own_id, is_clean=bool(self._check_clean_session()))
                self.wake()
            else:
                self.have_no_lane(own_id)
        return super()._handle_connack()

    def take_large_above(self, properties: dict[str, str]) -> None:
        """Take the limit of large messages from the user properties of a CONNACK."""
        above = properties.get("penstock-large-above", "")
        self._large_above = int(above) if above.isdecimal() else LARGE_ABOVE

    def have_no_lane(self, own_id: str) -> None:
        """Keep to one connection: the broker has no lanes."""
        LOGGER.info("%s: one connection for all messages: the broker has no lanes", own_id)
        self._knows_none = self._protocol != mqtt.MQTTv5  # do not ask again
        self._end_lane()

    def disconnect(
        self, reasoncode: ReasonCode | None = None, properties: Properties | None = None
    ) -> MQTTErrorCode:
        """As `paho.mqtt.client.Client.disconnect`, after sending what was published before."""
        lane = self._lane
        if lane is None or not lane.is_up or self._sock is None:
            self._end_lane()
            return super().disconnect(reasoncode, properties)
        self._leaving = mqtt.time_func() + PATIENCE_SECONDS, reasoncode, properties
        if self._has_loop() or lane.is_busy():
            self._state = _ConnectionState.MQTT_CS_DISCONNECTING
            self.wake()
        else:
            lane.leave()
            lane.loop_write()
            self._leave(lane)
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _leave(self, lane: LargeLane) -> None:
        """Continue a `disconnect`: the large lane leaves first."""
        if self._leaving is None:
            return
        until, reasoncode, properties = self._leaving
        if lane.is_up and lane._sock is not None:
            # Closing a socket with unread answers discards what it has not sent.
            if not lane.has_left and (not lane.is_busy() or mqtt.time_func() >= until):
                lane.leave()
            return
        self._leaving = None
        self._end_lane()
        super().disconnect(reasoncode, properties)

    def _end_lane(self) -> None:
        """Close the large lane; the first one carries all messages."""
        if self._lane is not None:
            self._lane.has_left = True
            self._lane._sock_close()
            self.take_back(self._lane)
        self._lane = None
        self._large_above = math.inf

    def _has_loop(self) -> bool:
        """Tell whether a loop serves the sockets, as far as can be known."""
        return bool(self._thread or self._is_looping or self._on_socket_register_write)

    def wake(self) -> None:
        """Make the loop serve the large lane soon."""
        # There is no loop, it has been woken often enough, or it has just ended.
        with contextlib.suppress(AttributeError, OSError):
            self._sockpairW.send(mqtt.sockpair_data)  # type: ignore[union-attr]

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
        if self._lane is not None:
            size = len(payload) if isinstance(payload, (bytes, bytearray, str)) else 0
            is_large = size > self._large_above
            if is_large or self._on_lane:
                message = self._hold(is_large, topic, payload, qos, retain, properties)
                if message is not None:
                    return message.info
            if not qos and len(self._since_barrier) < MOST_TOPICS:
                self._since_barrier.add(topic.encode())
        return super().publish(topic, payload, qos, retain, properties)

    def _hold(
        self, is_large: Any, topic: str, payload: Any, qos: int, *more: Any
    ) -> mqtt.MQTTMessage | None:
        """Publish on the large lane, at once or later.

        Returns:
            the message, or None if it is for the first lane.
        """
        encoded, (retain, properties) = topic.encode(), more
        with self._out_message_mutex:
            lane = self._lane
            if lane is None or not (is_large or encoded in self._on_lane):
                return None
            is_open = lane.is_up or (lane.is_awaited and (lane.is_wanted or self._has_loop()))
            if not is_open or hasattr(properties, "TopicAlias") or not 0 <= qos <= 2:
                return None
            if self._sock is None and not qos:
                return None
            self._raise_for_invalid_topic(encoded)
            message = mqtt.MQTTMessage(self._mid_generate(), encoded)
            message.payload = mqtt._encode_payload(payload)
            message.qos, message.retain, message.properties = qos, retain, properties
            n_queued = len(self._out_messages) + len(lane._out_messages) + len(lane.held)
            if qos and 0 < self._max_queued_messages <= n_queued:
                message.info.rc = MQTTErrorCode.MQTT_ERR_QUEUE_SIZE
                return message
            self._on_lane[encoded] = self._on_lane.get(encoded, 0) + 1
            lane.held.append(message)
            self.release()
            if self._sock is None:
                message.info.rc = MQTTErrorCode.MQTT_ERR_NO_CONN
            return message

    def release(self) -> None:
        """Send the held messages that need not wait any longer, each topic in order."""
        with self._out_message_mutex:
            lane = self._lane
            if lane is None or not lane.is_up or not lane.held:
                return
            n_held = Counter(message._topic for message in lane.held)
            must_wait = {topic: self._must_wait(topic, n) for topic, n in n_held.items()}
            held, lane.held = lane.held, []
            for message in held:
                if must_wait[message._topic]:
                    lane.held.append(message)
                else:
                    lane.put(message)
            if lane.held and self._barrier is None and self._sock is not None:
                self._before_barrier, self._since_barrier = self._since_barrier, set()
                _, self._barrier = super().unsubscribe(large_lane.BARRIER)

    def _must_wait(self, topic: bytes, n_held: int) -> bool:
        """Tell whether an earlier message of a topic may be on the first lane."""
        if self._on_lane[topic] > n_held:
            return False  # the earlier one is on the large lane
        for topics in (self._since_barrier, self._before_barrier):
            if topic in topics or ANY_TOPIC in topics or len(topics) == MOST_TOPICS:
                return True
        return any(message._topic == topic for message in self._out_messages.values())

    def _send_subscribe(self, *args: Any, **more: Any) -> Any:
        self._since_barrier.add(ANY_TOPIC)  # what is published next may be for this subscription
        return super()._send_subscribe(*args, **more)

    def _handle_unsuback(self) -> MQTTErrorCode:
        if self._barrier != int.from_bytes(self._in_packet["packet"][:2], "big"):
            return super()._handle_unsuback()
        self._barrier = None
        self._before_barrier.clear()
        self.release()
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def left_lane(self, topic: bytes) -> None:
        """Count a message of the large lane that the broker has received."""
        with self._out_message_mutex:
            n_messages = self._on_lane.pop(topic, 0)
            if n_messages > 1:
                self._on_lane[topic] = n_messages - 1

    def take_back(self, lane: LargeLane) -> None:
        """Publish on this lane what the large one has not delivered.

        After a DISCONNECT, it waits for the next connection, as with one lane.
        """
        with self._out_message_mutex:
            sent, unsent0, held = lane.take_all()
            done = ReasonCode(PacketTypes.PUBACK), Properties(PacketTypes.PUBACK)
            for message in sent:
                if message.state in RECEIVED:
                    message.info._set_as_published()
                    self.tell_published(message.mid, *done)
                elif self._state in LEAVING:
                    message.dup = message.state != mqtt.mqtt_ms_queued
                    message.state = mqtt.mqtt_ms_publish
                    self._out_messages[message.mid] = message
                else:
                    large_lane.put(self, message)
            for packet in unsent0:
                parts = packet["command"], packet["packet"], packet["mid"], 0, packet["info"]
                self._packet_queue(*parts)
            for message in held:
                large_lane.put(self, message)
            self._on_lane.clear()

    def tell_published(self, mid: int, reason: ReasonCode, properties: Properties) -> None:
        """Call the application's `on_publish` for a message of the large lane."""
        callback: Any = self.on_publish
        is_old = self._callback_api_version == CallbackAPIVersion.VERSION1
        if callback:
            callback(self, self._userdata, mid, *(() if is_old else (reason, properties)))

    def _mid_generate(self) -> int:
        mid = super()._mid_generate()
        lane = self._lane
        while lane is not None and (mid in lane._out_messages or mid in self._out_messages):
            mid = super()._mid_generate()
        return mid

    def ack(self, mid: int, qos: int) -> MQTTErrorCode:
        """As `paho.mqtt.client.Client.ack`."""
        if mid < large_lane.LANE_IDS:
            return super().ack(mid, qos)
        lane = self._lane
        return MQTTErrorCode.MQTT_ERR_NO_CONN if lane is None else lane.ack(mid, qos)

    # -- the loop ------------------------------------------------------------------------------

    def _loop(self, timeout: float = 1.0) -> MQTTErrorCode:
        self._is_looping = True
        try:
            while True:
                lane = self._lane
                rc = super()._loop(timeout) if lane is None else self._turn(lane, timeout)
                if rc or lane is None or not self._thread_terminate:
                    return rc
                # As with one lane, the loop continues after `loop_stop` until all is delivered.
                if self._leaving is None and not (lane.is_awaited and lane.is_busy()):
                    return rc
        finally:
            self._is_looping = False

    def _turn(self, lane: LargeLane, timeout: float) -> MQTTErrorCode:
        """Wait for events of both lanes, and serve them."""
        lane.tend(mqtt.time_func())
        self._leave(lane)
        own, other = self._sock, lane._sock
        if own is None or other is None:
            return super()._loop(timeout)
        waker = self._sockpairR or own
        is_pending = getattr(own, "pending", int)() > 0
        writes = [one for one, client in ((own, self), (other, lane)) if client._out_packet]
        try:
            seconds = 0.0 if is_pending or lane.has_pending() else timeout
            readable, writable, _ = select.select([own, other, waker], writes, [], seconds)
        except (TypeError, ValueError, OSError):  # one of them was closed
            return super()._loop(0.0)
        # The rest of paho's `_loop`; small messages come first.
        rc = self.loop_read() if own in readable or is_pending else MQTTErrorCode.MQTT_ERR_SUCCESS
        if self._sockpairR in readable:
            with contextlib.suppress(BlockingIOError):
                waker.recv(10_000)
        if not rc and self._sock is own and (own in writable or waker in readable):
            rc = self.loop_write()
        if not rc and self._sock is own:
            rc = self.loop_misc()
        if other in readable or lane._out_packet or lane.has_pending():
            lane.serve()
        return rc

    # An application's own loop calls these. It may know only the first lane's socket.

    def loop_read(self, max_packets: int = 1) -> MQTTErrorCode:
        """As `paho.mqtt.client.Client.loop_read`."""
        if self._lane is not None and not self._is_looping:
            self._lane.serve()
        return super().loop_read(max_packets)

    def loop_write(self) -> MQTTErrorCode:
        """As `paho.mqtt.client.Client.loop_write`."""
        if self._lane is not None and not self._is_looping and self._lane._out_packet:
            self._lane.loop_write()
        return super().loop_write()

    def loop_misc(self) -> MQTTErrorCode:
        """As `paho.mqtt.client.Client.loop_misc`."""
        lane = self._lane
        if lane is not None and not self._is_looping:
            lane.tend(mqtt.time_func())
            if not self._on_socket_register_write:
                lane.serve()
            self._leave(lane)
        return super().loop_misc()
