"""The second connection of a client with two lanes: the large messages of both directions.

Theory of operation. It is one more paho client, which no application sees. It has no subscriptions
and no will: the broker sends it the large messages of the first lane's subscriptions, as its
CONNECT asks for. They are handed to the first lane's callbacks. It has no thread: the loop of the
first lane serves both sockets, so that the callbacks run in the thread that the application
expects, one at a time. Only the TCP connection and the handshakes of TLS and WebSocket are made in
a thread, because they block, and alarms must not wait for them.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final, cast

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, LogLevel, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

if TYPE_CHECKING:
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

PROBE_SECONDS: Final = 3.0
"""The same while nothing has told that the broker knows lanes."""

MOST_PROBES: Final = 3
"""Connections that may end without a CONNACK before the broker is taken for one without lanes."""

LANE_IDS: Final = 1 << 16
"""Added to the Packet Identifiers of received messages: those of the first lane may be the same."""

NOWHERE: Final = "penstock/lanes/none"
"""To unsubscribe from this topic changes nothing; the answer comes when the broker has handled what
was sent before."""

_SETTINGS: Final = (  # noqa: SIM905 (a list of one word a line)
    "_userdata _transport _host _port _keepalive _bind_address _connect_timeout _username "
    "_password _proxy _ssl _ssl_context _tls_insecure _websocket_path _websocket_extra_headers "
    "_max_inflight_messages _manual_ack suppress_exceptions"
).split()
"""What is copied from the first lane for each connection."""


def user_properties(properties: Properties | None) -> dict[str, str]:
    """Return the user properties of a packet."""
    return dict(getattr(properties, "UserProperty", ()))


def connect_properties(properties: Properties | None, **told: str) -> Properties:
    """Return a copy of the properties of a CONNECT, with user properties of ours."""
    own = copy.deepcopy(properties or Properties(PacketTypes.CONNECT))
    for name, value in told.items():
        own.UserProperty = (f"penstock-{name.replace('_', '-')}", value)
    return own


def read_connack(client: mqtt.Client) -> tuple[int, dict[str, str], str]:
    """Read the CONNACK that a client has received.

    Returns:
        (reason code, user properties, Client Identifier of the client).
    """
    packet = bytes(client._in_packet["packet"])
    properties = Properties(PacketTypes.CONNACK)
    if client._protocol == mqtt.MQTTv5:
        with contextlib.suppress(Exception):  # paho says what is wrong
            properties.unpack(packet[2:])
    own_id = getattr(properties, "AssignedClientIdentifier", client._client_id.decode())
    return (*packet, 1, 1)[1], user_properties(properties), own_id


def put(client: mqtt.Client, message: mqtt.MQTTMessage) -> None:
    """Publish a message that has a Packet Identifier already, as `paho.mqtt.client` does.

    The caller holds the client's `_out_message_mutex`.
    """
    parts = message.mid, message._topic, message.payload, message.qos, message.retain, message.dup
    if message.qos:
        client._out_messages[message.mid] = message
        most = client._max_inflight_messages
        message.state = mqtt.mqtt_ms_queued
        if most and client._inflight_messages >= most:
            return
        waits_for = (mqtt.mqtt_ms_wait_for_puback, mqtt.mqtt_ms_wait_for_pubrec)
        message.state = waits_for[message.qos - 1]
        client._inflight_messages += 1
    message.info.rc = client._send_publish(*parts, message.info, message.properties)
    if message.info.rc == mqtt.MQTT_ERR_NO_CONN and message.qos:
        client._inflight_messages -= 1
        message.state = mqtt.mqtt_ms_publish


def _of_first(name: str) -> Any:
    """Return the property of a callback for sockets, which paho calls with the client of each."""
    return property(lambda lane: getattr(lane._first(), name, None))


class LargeLane(mqtt.Client):
    """The lane of large messages.

    Attributes:
        is_wanted: the broker knows lanes.
        is_up: the broker has taken it for a lane of the first one, and it is connected.
        is_awaited: large messages are held while it is not up.
        has_left: its DISCONNECT is sent, or about to be.
        held: messages that are to be sent on it, in order; guarded by the lock of both lanes.
    """

    def __init__(self, first: Client, client_id: str) -> None:
        """Prepare a lane that `tend` connects, once `be_lane_of` was called.

        Args:
            first: the first lane, which the application sees.
            client_id: of this lane.
        """
        super().__init__(CallbackAPIVersion.VERSION2, client_id, protocol=mqtt.MQTTv5)
        self._first = weakref.ref(first)
        # One lock for both, as callbacks of one lane publish on the other.
        self._out_message_mutex = first._out_message_mutex
        self._in_callback_mutex = first._in_callback_mutex
        # Makes paho leave all writing to the loop.
        self._thread = threading.current_thread()
        self._first_id = self._told = ""
        self._sent: dict[int, tuple[bytes, int]] = {}
        self._answers: dict[int, bytes] = {}
        self._unsent0: list[Any] = []
        self._dialled: deque[mqtt.SocketLike | Exception] = deque()
        self._is_dialling = False
        self._dial_at = self._delay = self._misc_at = 0.0
        self._patience_ends = 0.0
        self._n_probes = 0 if first.protocol == mqtt.MQTTv5 else MOST_PROBES
        self.is_wanted = self.is_up = self.has_left = False
        self.is_awaited = True
        self.held: list[mqtt.MQTTMessage] = []

    @property
    def first(self) -> Client:
        """The first lane, whose loop calls."""
        return self._first()  # type: ignore[return-value]

    on_socket_open = _of_first("on_socket_open")
    on_socket_close = _of_first("on_socket_close")
    on_socket_register_write = _of_first("on_socket_register_write")
    on_socket_unregister_write = _of_first("on_socket_unregister_write")

    # -- the connection ------------------------------------------------------------------------

    def be_lane_of(self, client_id: str, *, is_clean: bool) -> None:
        """Connect as a lane of the first lane, which is connected.

        Args:
            client_id: of the first lane.
            is_clean: it has asked for a new session.
        """
        if client_id != self._first_id:
            self._clean_start = is_clean
        is_same = client_id == self._first_id and self.first.protocol == mqtt.MQTTv5
        if self._sock is not None and not is_same:  # in MQTT 3.1.1 the broker closes this lane
            self._sock_close()
            self._lost("the first lane has connected", is_reached=False)
        self._first_id = client_id
        self.is_wanted = True
        self._dial_at = 0.0
        self._be_patient(mqtt.time_func())

    def _be_patient(self, now: float) -> None:
        self._patience_ends = now + (PROBE_SECONDS if self._n_probes else PATIENCE_SECONDS)

    def tend(self, now: float) -> None:
        """Do what is due: connect, keep alive, or wait no more."""
        if not self.is_wanted or (self.is_up and now < self._misc_at and not self.held):
            return
        first = self.first
        if self._dialled:
            self._is_dialling = False
            if isinstance(self._dialled[0], Exception):
                self._lost(repr(self._dialled.popleft()), is_reached=False)
            else:
                self._connect()
        if self._sock is not None:
            if now >= self._misc_at:
                self._misc_at = now + 1.0
                self.loop_misc()
        elif now >= self._dial_at and first.is_connected() and not self._is_dialling:
            self._dial()
        if self.is_up or not first.is_connected():
            self._be_patient(now)
        elif self.is_awaited and now >= self._patience_ends:
            self._give_up("it is not there in time")
        first.release()

    def _dial(self) -> None:
        """Open the TCP connection in a thread; `tend` finds it in `_dialled`."""
        for name in _SETTINGS:
            setattr(self, name, getattr(self.first, name))
        self._is_dialling = True
        threading.Thread(target=self._open_socket, name="penstock-lane", daemon=True).start()

    def _open_socket(self) -> None:
        try:
            self._dialled.append(super()._create_socket())
        except Exception as error:  # noqa: BLE001 (whatever it is, the lane is tried again)
            self._dialled.append(error)
        first = self._first()
        if first is not None:
            first.wake()

    def _create_socket(self) -> mqtt.SocketLike:
        """Return the socket that was opened."""
        return cast("mqtt.SocketLike", self._dialled.popleft())

    def _connect(self) -> None:
        told = {"lane_of": self._first_id, "size": "large", "yields": "yes"}
        properties = connect_properties(self.first.lane_properties(), **told)
        expiry = getattr(properties, "SessionExpiryInterval", 0)
        properties.SessionExpiryInterval = max(expiry, SESSION_SECONDS)
        self._connect_properties = properties
        self._keep_unsent0()
        self.reconnect()

    def _keep_unsent0(self) -> None:
        """Keep messages of QoS 0 that paho takes for lost: nothing of them has arrived."""
        for packet in self._out_packet:
            if packet["command"] & 0xF0 == mqtt.PUBLISH and not packet["qos"]:
                packet["pos"], packet["to_process"] = 0, len(packet["packet"])
                self._unsent0.append(packet)
        self._out_packet.clear()

    def _handle_connack(self) -> MQTTErrorCode:
        """Be the large lane, or let it be."""
        code, told, _ = read_connack(self)
        why = ""
        if code:
            why = f"{ReasonCode(PacketTypes.CONNACK, identifier=code)}"
        elif told.get(LANE_OF) != self._first_id:
            why = f"it is taken for a lane of {told.get(LANE_OF)!r}"
        if self._n_probes and (code or LANE_OF not in told):
            self.first.have_no_lane(self._first_id)
        elif why:
            self._sock_close()
            self._lost(why)
            self._give_up(f"refused by the broker: {why}")
        if why:
            return MQTTErrorCode.MQTT_ERR_SUCCESS
        self.first.take_large_above(told)
        self._n_probes = 0
        self._clean_start = False
        self._delay = 0.0
        self.is_up = self.is_awaited = True
        level = logging.WARNING if self._told else logging.INFO
        LOGGER.log(level, "%s: two connections", self._first_id)
        self._told = ""
        rc = super()._handle_connack()
        self._out_packet.extend(self._unsent0)
        self._unsent0.clear()
        return rc

    def on_disconnect(self, *_: Any) -> None:
        """Connect again after a while, unless it has left."""
        self._lost("connection lost")

    def _lost(self, why: str, *, is_reached: bool = True) -> None:
        """Connect again after a while; large messages wait, for some time."""
        if self.has_left:
            self.first.wake()
            return
        first = self.first
        LOGGER.info("%s: the connection for large messages: %s", self._first_id, why)
        self.is_up = False
        for topic in self._answers.values():
            first.left_lane(topic)
        self._answers.clear()
        least, most = first._reconnect_min_delay, first._reconnect_max_delay
        self._delay = min(2 * self._delay or least, most)
        self._dial_at = mqtt.time_func() + self._delay
        if self._n_probes and is_reached:
            self._n_probes -= 1
            if not self._n_probes:
                first.have_no_lane(self._first_id)

    def _give_up(self, why: str) -> None:
        """Let the first lane have all messages until this one is up after all."""
        if why != self._told:
            what = f"the one for large messages, {self._client_id.decode()}, has failed: {why}"
            level = logging.INFO if self._n_probes else logging.WARNING
            LOGGER.log(level, "%s: one connection for all messages: %s", self._first_id, what)
            self._told = why
        self.is_awaited = False
        self.first.take_back(self)

    def leave(self) -> None:
        """Send DISCONNECT behind what is to be sent; the session ends if that of the first does."""
        self.has_left = True
        properties = None
        if not getattr(self.first.lane_properties(), "SessionExpiryInterval", 0):
            properties = Properties(PacketTypes.DISCONNECT)
            properties.SessionExpiryInterval = 0
        self.disconnect(properties=properties)

    def is_busy(self) -> bool:
        """Say whether something that was published is not with the broker."""
        return bool(self.held or self._out_packet or self._out_messages or self._answers)

    def serve(self) -> None:
        """Read and write what can be, without waiting."""
        self.loop_read()
        while self.has_pending():
            self.loop_read()
        if self._out_packet:
            self.loop_write()

    def has_pending(self) -> bool:
        """Say whether TLS or WebSocket have bytes that the socket does not show."""
        return bool(getattr(self._sock, "pending", int)())

    # -- what is published ---------------------------------------------------------------------

    def put(self, message: mqtt.MQTTMessage) -> None:
        """Publish a message; the caller holds the lock of both lanes."""
        self._sent[message.mid] = message._topic, message.qos
        put(self, message)

    def take_all(self) -> tuple[list[mqtt.MQTTMessage], list[Any], list[mqtt.MQTTMessage]]:
        """Take back what the broker may not have.

        Returns:
            (what was not acknowledged, packets of QoS 0 that were not sent, what was held).
        """
        self._keep_unsent0()
        taken = list(self._out_messages.values()), self._unsent0, self.held
        self._out_messages.clear()
        self._sent.clear()
        self._answers.clear()
        self._inflight_messages = 0
        self._unsent0, self.held = [], []
        return taken

    def on_publish(self, _lane: Any, _userdata: Any, mid: int, reason: Any, more: Any) -> None:
        """Tell the application. A message of QoS 0 is sent, but not yet with the broker."""
        topic, qos = self._sent.pop(mid)
        if qos:
            self.first.left_lane(topic)
        else:
            _, answer = self.unsubscribe(NOWHERE)
            if answer is not None:
                self._answers[answer] = topic
        self.first.tell_published(mid, reason, more)

    def on_unsubscribe(self, _lane: Any, _userdata: Any, mid: int, *_: Any) -> None:
        """Note that a message of QoS 0 is with the broker."""
        self.first.left_lane(self._answers.pop(mid, b""))

    def _mid_generate(self) -> int:
        return self.first._mid_generate()

    def _packet_queue(self, *args: Any, **more: Any) -> MQTTErrorCode:
        rc = super()._packet_queue(*args, **more)
        self.first.wake()
        return rc

    # -- what is received, and what else the application is told -------------------------------

    def _handle_on_message(self, message: mqtt.MQTTMessage) -> None:
        if message.qos:
            message.mid += LANE_IDS
        self.first._handle_on_message(message)

    def _send_puback(self, mid: int) -> MQTTErrorCode:
        return super()._send_puback(mid % LANE_IDS)

    def _send_pubcomp(self, mid: int) -> MQTTErrorCode:
        return super()._send_pubcomp(mid % LANE_IDS)

    def _easy_log(self, level: LogLevel, fmt: str, *args: Any) -> None:
        first = self._first()
        if first is not None:
            first._easy_log(level, "large lane: " + fmt, *args)
