"""The second connection of a client with two lanes: the large messages of both directions.

Theory of operation. It is one more paho client, which no application sees. It has no subscriptions
and no will: the broker sends it the large messages of the first lane's subscriptions, as its
CONNECT asks for. They are handed to the first lane's callbacks. It has no thread: the loop of the
first lane serves both sockets, so that the callbacks run in the thread that the application
expects, one at a time. Only the TCP connection and the handshakes of TLS and WebSocket are made in
a thread, because they block, and alarms must not wait for them.
"""

from __future__ import annotations

import copy
import logging
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, LogLevel, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

if TYPE_CHECKING:
    from paho.mqtt.reasoncodes import ReasonCode

    from penstock.lanes.client import Client

LOGGER: Final = logging.getLogger("penstock.lanes")

LANE_OF: Final = "penstock-lane-of"
"""User property: in CONNECT the Client Identifier of the other lane; in CONNACK the same where that
client has a session, and empty where it has none yet."""

SESSION_SECONDS: Final = 120
"""The least time for which the session outlives the connection, so that the broker sends again what
was lost with it."""

PATIENCE_SECONDS: Final = 10.0
"""For so long large messages wait for this lane before they go on the first one: as long as the
broker lets them wait for it (`lane_takeover_seconds`)."""

LANE_IDS: Final = 1 << 16
"""Added to the Packet Identifiers of received messages: those of the first lane may be the same."""

NOWHERE: Final = "penstock/lanes/none"
"""To unsubscribe from this topic changes nothing; the answer comes when the broker has handled what
was sent before."""

_SETTINGS: Final = (
    "_transport",
    "_host",
    "_port",
    "_keepalive",
    "_bind_address",
    "_connect_timeout",
    "_username",
    "_password",
    "_proxy",
    "_ssl",
    "_ssl_context",
    "_tls_insecure",
    "_websocket_path",
    "_websocket_extra_headers",
    "_max_inflight_messages",
    "_manual_ack",
    "suppress_exceptions",
)
"""What is copied from the first lane for each connection."""


def new_properties(packet_type: int) -> Properties:
    """Return no properties, for one type of packet."""
    return Properties(packet_type)  # type: ignore[no-untyped-call]


def user_properties(properties: Properties | None) -> dict[str, str]:
    """Return the user properties of a packet."""
    return dict(getattr(properties, "UserProperty", ()))


def connect_properties(properties: Properties | None, **told: str) -> Properties:
    """Return a copy of the properties of a CONNECT, with user properties of ours."""
    own = copy.deepcopy(properties or new_properties(PacketTypes.CONNECT))
    for name, value in told.items():
        own.UserProperty = (f"penstock-{name.replace('_', '-')}", value)
    return own


def put(client: mqtt.Client, message: mqtt.MQTTMessage) -> None:
    """Publish a message that has a Packet Identifier already; as `paho.mqtt.client.Client.publish`.

    The caller holds the client's `_out_message_mutex`.
    """
    if message.qos:
        client._out_messages[message.mid] = message
        most = client._max_inflight_messages
        if most and client._inflight_messages >= most:
            message.state = mqtt.mqtt_ms_queued
            return
        client._inflight_messages += 1
        is_once = message.qos == 1
        message.state = mqtt.mqtt_ms_wait_for_puback if is_once else mqtt.mqtt_ms_wait_for_pubrec
    rc = client._send_publish(
        message.mid,
        message._topic,
        message.payload,
        message.qos,
        message.retain,
        message.dup,
        message.info,
        message.properties,
    )
    message.info.rc = rc
    if rc == mqtt.MQTT_ERR_NO_CONN and message.qos:
        client._inflight_messages -= 1
        message.state = mqtt.mqtt_ms_publish


class LargeLane(mqtt.Client):
    """The lane of large messages.

    All methods are called by the loop of the first lane, but for `put`.

    Attributes:
        is_up: the broker has taken it for a lane of the first one, and it is connected.
        is_awaited: large messages wait for it while it is not up.
        has_left: its DISCONNECT is sent, or about to be.
    """

    def __init__(self, first: Client, client_id: str, *, is_clean: bool) -> None:
        """Prepare a lane that `tend` connects.

        Args:
            first: the first lane, which the application sees.
            client_id: of this lane.
            is_clean: a session that this lane has is to end.
        """
        super().__init__(CallbackAPIVersion.VERSION2, client_id, protocol=mqtt.MQTTv5)
        self._first = weakref.ref(first)
        # One lock for both, as callbacks of one lane publish on the other.
        self._out_message_mutex = first._out_message_mutex
        self._in_callback_mutex = first._in_callback_mutex
        # Makes paho leave all writing to the loop.
        self._thread = threading.current_thread()
        self._clean_start = is_clean
        self._first_id = ""
        self._sent: dict[int, tuple[bytes, int]] = {}
        self._answers: dict[int, bytes] = {}
        self._unsent0: list[Any] = []
        self._dialled: deque[mqtt.SocketLike | Exception] = deque()
        self._is_dialling = False
        self._dial_at = 0.0
        self._delay = 0.0
        self._misc_at = 0.0
        self._patience_ends = mqtt.time_func() + PATIENCE_SECONDS
        self._told = ""
        self.is_up = False
        self.is_awaited = True
        self.has_left = False

    @property
    def first(self) -> Client:
        """The first lane."""
        first = self._first()
        assert first is not None  # noqa: S101 (its loop calls)
        return first

    # -- the connection ------------------------------------------------------------------------

    def be_lane_of(self, client_id: str) -> None:
        """Name the first lane in the CONNECT; connect again where that is another one."""
        if client_id != self._first_id and self._sock is not None:
            self._sock_close()
            self._lost("the first lane has another client id")
        self._first_id = client_id
        self._dial_at = 0.0

    def tend(self, now: float) -> None:
        """Do what is due: connect, keep alive, or wait no more."""
        first = self.first
        if self._dialled:
            self._is_dialling = False
            dialled = self._dialled.popleft()
            if isinstance(dialled, Exception):
                self._lost(str(dialled) or repr(dialled))
            else:
                self._dialled.append(dialled)
                self._connect()
        if self._sock is not None:
            if now >= self._misc_at:
                self._misc_at = now + 1.0
                self.loop_misc()
        elif (
            now >= self._dial_at
            and first.is_connected()
            and not (self._is_dialling or self.has_left)
        ):
            self._dial()
        if self.is_up or not first.is_connected():
            self._patience_ends = now + PATIENCE_SECONDS
        elif self.is_awaited and now >= self._patience_ends:
            self._refused(f"no connection for {PATIENCE_SECONDS:g} s")

    def _dial(self) -> None:
        """Open the TCP connection in a thread; `tend` finds it in `_dialled`."""
        for name in _SETTINGS:
            setattr(self, name, getattr(self.first, name))
        self._is_dialling = True
        name = f"paho-mqtt-lane-{self._client_id.decode()}"
        threading.Thread(target=self._open_socket, name=name, daemon=True).start()

    def _open_socket(self) -> None:
        try:
            self._dialled.append(super()._create_socket())
        except Exception as error:  # noqa: BLE001 (whatever it is, the lane is tried again)
            self._dialled.append(error)
        first = self._first()
        if first is not None:
            first.wake()

    def _create_socket(self) -> mqtt.SocketLike:
        """Return the socket that was opened for `reconnect`."""
        opened = self._dialled.popleft()
        assert not isinstance(opened, Exception)  # noqa: S101 (`tend` has looked)
        return opened

    def _connect(self) -> None:
        first = self.first
        properties = connect_properties(
            first.asked_properties, lane_of=self._first_id, size="large", yields="yes"
        )
        expiry = getattr(properties, "SessionExpiryInterval", 0)
        properties.SessionExpiryInterval = max(expiry, SESSION_SECONDS)
        self._connect_properties = properties
        # paho takes messages of QoS 0 that were not sent for lost. Nothing of them has arrived.
        self._keep_unsent0()
        self.reconnect()

    def _keep_unsent0(self) -> None:
        for packet in self._out_packet:
            if packet["command"] & 0xF0 == mqtt.PUBLISH and not packet["qos"]:
                packet["pos"], packet["to_process"] = 0, len(packet["packet"])
                self._unsent0.append(packet)
        self._out_packet.clear()

    def on_connect(
        self, _lane: Any, _userdata: Any, _flags: Any, reason: Any, properties: Any
    ) -> None:
        """Take the CONNACK: be the large lane, or let it be."""
        lane_of = user_properties(properties).get(LANE_OF)
        if reason.is_failure:
            self._sock_close()
            self._refused(f"the broker refuses it: {reason}")
        elif lane_of != self._first_id:
            self._sock_close()
            self._refused(f"the broker takes it for a lane of {lane_of!r}")
        else:
            self._clean_start = False
            self._delay = 0.0
            self.is_up = self.is_awaited = True
            for packet in self._unsent0:
                self._out_packet.append(packet)
            self._unsent0.clear()
            if self._told:
                LOGGER.warning("%s: two connections again", self._first_id)
                self._told = ""
            self.first.lane_is_up()

    def on_disconnect(self, *_: Any) -> None:
        """Connect again after a while, unless it has left."""
        if self.has_left:
            self.first.wake()
        else:
            self._lost("connection lost")

    def _lost(self, why: str) -> None:
        """Connect again after a while; large messages wait, for some time."""
        first = self.first
        LOGGER.info("%s: the connection for large messages: %s", self._first_id, why)
        self.is_up = False
        for topic in self._answers.values():
            first.left_lane(topic)
        self._answers.clear()
        least, most = first._reconnect_min_delay, first._reconnect_max_delay
        self._delay = min(2 * self._delay or least, most)
        self._dial_at = mqtt.time_func() + self._delay

    def _refused(self, why: str) -> None:
        """Let the first lane have all messages until this one is up after all."""
        self._lost(why)
        if why != self._told:
            self._told = why
            LOGGER.warning(
                "%s: one connection for all messages: the one for large messages, %s: %s",
                self._first_id,
                self._client_id.decode(),
                why,
            )
        self.is_awaited = False
        self.first.lane_is_refused()

    def leave(self) -> None:
        """Send DISCONNECT behind what is to be sent; the session ends if that of the first does."""
        self.has_left = True
        properties = None
        if not getattr(self.first.asked_properties, "SessionExpiryInterval", 0):
            properties = new_properties(PacketTypes.DISCONNECT)
            properties.SessionExpiryInterval = 0
        self.disconnect(properties=properties)

    def serve(self) -> None:
        """Read and write what can be, without waiting."""
        if self._sock is not None:
            self.loop_read()
        while self._sock is not None and self.has_pending():
            self.loop_read()
        if self._sock is not None and self.want_write():
            self.loop_write()

    def has_pending(self) -> bool:
        """Say whether TLS or WebSocket have bytes that the socket does not show."""
        pending = getattr(self._sock, "pending", None)
        return pending is not None and pending() > 0

    # -- what is published ---------------------------------------------------------------------

    def put(self, message: mqtt.MQTTMessage) -> None:
        """Publish a message; the caller holds the lock of both lanes."""
        self._sent[message.mid] = message._topic, message.qos
        put(self, message)

    def take_all(self) -> list[mqtt.MQTTMessage]:
        """Take back what was not acknowledged, and of QoS 0 what was not sent."""
        self._keep_unsent0()
        taken = list(self._out_messages.values())
        self._out_messages.clear()
        self._inflight_messages = 0
        self._sent.clear()
        self._answers.clear()
        return taken

    def take_unsent0(self) -> list[Any]:
        """Take back packets of QoS 0; after `take_all`."""
        taken, self._unsent0 = self._unsent0, []
        return taken

    def on_publish(
        self, _lane: Any, _userdata: Any, mid: int, reason: ReasonCode, properties: Properties
    ) -> None:
        """Tell the application; a message of QoS 0 is sent, not yet with the broker."""
        topic, qos = self._sent.pop(mid)
        first = self.first
        if qos:
            first.left_lane(topic)
        else:
            _, answer = self.unsubscribe(NOWHERE)
            if answer is not None:
                self._answers[answer] = topic
        first.tell_published(mid, reason, properties)

    def on_unsubscribe(self, _lane: Any, _userdata: Any, mid: int, *_: Any) -> None:
        """A message of QoS 0 is with the broker."""
        topic = self._answers.pop(mid, None)
        if topic is not None:
            self.first.left_lane(topic)

    def _mid_generate(self) -> int:
        return self.first._mid_generate()

    def _packet_queue(self, *args: Any, **more: Any) -> MQTTErrorCode:
        rc = super()._packet_queue(*args, **more)
        self.first.wake()
        return rc

    # -- what is received ----------------------------------------------------------------------

    def _handle_on_message(self, message: mqtt.MQTTMessage) -> None:
        if message.qos:
            message.mid += LANE_IDS
        self.first._handle_on_message(message)

    def _send_puback(self, mid: int) -> MQTTErrorCode:
        return super()._send_puback(mid % LANE_IDS)

    def _send_pubcomp(self, mid: int) -> MQTTErrorCode:
        return super()._send_pubcomp(mid % LANE_IDS)

    # -- what else the application is told -----------------------------------------------------

    def _easy_log(self, level: LogLevel, fmt: str, *args: Any) -> None:
        first = self._first()
        if first is not None:
            first._easy_log(level, "large lane: " + fmt, *args)

    def on_socket_open(self, _lane: Any, _userdata: Any, sock: mqtt.SocketLike) -> None:
        """Tell the application's own event loop."""
        self._tell_loop("on_socket_open", sock)

    def on_socket_close(self, _lane: Any, _userdata: Any, sock: mqtt.SocketLike) -> None:
        """Tell the application's own event loop."""
        self._tell_loop("on_socket_close", sock)

    def on_socket_register_write(self, _lane: Any, _userdata: Any, sock: mqtt.SocketLike) -> None:
        """Tell the application's own event loop."""
        self._tell_loop("on_socket_register_write", sock)

    def on_socket_unregister_write(self, _lane: Any, _userdata: Any, sock: mqtt.SocketLike) -> None:
        """Tell the application's own event loop."""
        self._tell_loop("on_socket_unregister_write", sock)

    def _tell_loop(self, name: str, sock: mqtt.SocketLike) -> None:
        first = self._first()
        if first is None:
            return
        callback: Any = getattr(first, name)
        if callback:  # with this client: it is to be called when its socket is ready
            callback(self, first.user_data_get(), sock)
