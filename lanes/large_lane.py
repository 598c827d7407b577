"""The second connection of a client with two lanes: large messages of both directions.

Theory of operation. The large lane is a second paho client, which the application does not see. It
has no subscriptions and no will: its CONNECT asks the broker for the large messages of the first
lane's subscriptions. It passes them to the first lane's callbacks. It has no thread: the first
lane's loop serves both sockets, so that the callbacks run one at a time, in the thread that the
application expects. Only the TCP connection and the handshakes of TLS and WebSocket are made in a
thread, because they block and alarms must not wait for them.
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
"""A user property. In the CONNECT it is the Client Identifier of the other lane; in the CONNACK it
is the same if that client has a session, and empty if it has none yet."""

SESSION_SECONDS: Final = 120
"""The least time for which the lane's session outlives its connection, so that the broker can
send again what was lost with the connection."""

PATIENCE_SECONDS: Final = 10.0
"""The time for which large messages wait for this lane before the first one carries them: as
long as they wait in the broker (`lane_takeover_seconds`)."""

PROBE_SECONDS: Final = 3.0
"""The time for which large messages wait while it is unknown whether the broker has lanes."""

MOST_PROBES: Final = 3
"""The number of connections without a CONNACK after which the broker is considered to have no
lanes."""

LANE_IDS: Final = 1 << 16
"""A number that is added to the Packet Identifiers of received messages, to distinguish them
from those of the first lane."""

BARRIER: Final = "penstock/lanes/none"
"""The topic of barriers. A barrier is an UNSUBSCRIBE from this topic: it changes nothing, and
the broker answers it after it has handled all earlier packets."""

_SETTINGS: Final = (  # noqa: SIM905 (a list of one word a line)
    "_userdata _transport _host _port _keepalive _bind_address _connect_timeout _username "
    "_password _proxy _ssl _ssl_context _tls_insecure _websocket_path _websocket_extra_headers "
    "_max_inflight_messages _manual_ack suppress_exceptions"
).split()
"""The attributes that are copied from the first lane before each connection."""


def user_properties(properties: Properties | None) -> dict[str, str]:
    """Return the user properties of a packet."""
    return dict(getattr(properties, "UserProperty", ()))


def connect_properties(properties: Properties | None, **user: str) -> Properties:
    """Return a copy of the properties of a CONNECT, with Penstock's user properties added."""
    own = copy.deepcopy(properties or Properties(PacketTypes.CONNECT))
    for name, value in user.items():
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
        with contextlib.suppress(Exception):  # paho reports what is wrong
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
    """Return a property with the first lane's callback for sockets."""
    return property(lambda lane: getattr(lane._first(), name, None))


class LargeLane(mqtt.Client):
    """The lane of large messages.

    Attributes:
        is_wanted: whether the first lane is connected to a broker that may have lanes.
        is_up: whether it is connected and the broker has accepted it as the first one's lane.
        is_awaited: whether large messages are held while it is not up.
        has_left: whether its DISCONNECT has been sent, or is about to be.
        held: the messages to be sent on it, in order; the lock of both lanes guards them.
    """

    def __init__(self, first: Client, client_id: str) -> None:
        """Prepare a lane, which `tend` connects after `be_lane_of`."""
        super().__init__(CallbackAPIVersion.VERSION2, client_id, protocol=mqtt.MQTTv5)
        self._first = weakref.ref(first)
        # Both share one lock, as callbacks of one lane publish on the other.
        self._out_message_mutex = first._out_message_mutex
        self._in_callback_mutex = first._in_callback_mutex
        # Makes paho leave all writing to the loop.
        self._thread = threading.current_thread()
        self._first_id = self._reported = ""
        self._sent: dict[int, tuple[bytes, int]] = {}
        self._barriers: dict[int, bytes] = {}
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
        """The first lane, whose loop serves this one."""
        return self._first()  # type: ignore[return-value]

    on_socket_open = _of_first("on_socket_open")
    on_socket_close = _of_first("on_socket_close")
    on_socket_register_write = _of_first("on_socket_register_write")
    on_socket_unregister_write = _of_first("on_socket_unregister_write")

    # -- the connection ------------------------------------------------------------------------

    def be_lane_of(self, client_id: str, *, is_clean: bool) -> None:
        """Connect as the lane of the first one, which has connected."""
        if client_id != self._first_id:
            self._clean_start = is_clean
        is_same = client_id == self._first_id and self.first.protocol == mqtt.MQTTv5
        if self._sock is not None and not is_same:  # with MQTT 3.1.1 the broker closes this lane
            self._sock_close()
            self._lost("the first lane has connected", is_reached=False)
        self._first_id = client_id
        self.is_wanted = True
        self._dial_at = 0.0
        self._be_patient(mqtt.time_func())

    def _be_patient(self, now: float) -> None:
        self._patience_ends = now + (PROBE_SECONDS if self._n_probes else PATIENCE_SECONDS)

    def tend(self, now: float) -> None:
        """Connect, keep the connection alive, or give up waiting, as is due."""
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
        except Exception as error:  # noqa: BLE001 (after any error the lane tries again)
            self._dialled.append(error)
        first = self._first()
        if first is not None:
            first.wake()

    def _create_socket(self) -> mqtt.SocketLike:
        """Return the socket that the thread has opened."""
        return cast("mqtt.SocketLike", self._dialled.popleft())

    def _connect(self) -> None:
        user = {"lane_of": self._first_id, "size": "large", "yields": "yes"}
        properties = connect_properties(self.first.lane_properties(), **user)
        expiry = getattr(properties, "SessionExpiryInterval", 0)
        properties.SessionExpiryInterval = max(expiry, SESSION_SECONDS)
        self._connect_properties = properties
        self._keep_unsent0()
        try:
            self.reconnect()
        except (AttributeError, OSError):
            if not self.has_left:  # else `disconnect` has closed the socket in another thread
                raise
        if self.has_left:
            self._sock_close()

    def _keep_unsent0(self) -> None:
        """Keep unsent messages of QoS 0, which paho would drop: the broker has not got them."""
        for packet in self._out_packet:
            if packet["command"] & 0xF0 == mqtt.PUBLISH and not packet["qos"]:
                packet["pos"], packet["to_process"] = 0, len(packet["packet"])
                self._unsent0.append(packet)
        self._out_packet.clear()

    def _handle_connack(self) -> MQTTErrorCode:
        """Become the large lane, if the broker agrees."""
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
        level = logging.WARNING if self._reported else logging.INFO
        LOGGER.log(level, "%s: two connections", self._first_id)
        self._reported = ""
        rc = super()._handle_connack()
        self._out_packet.extend(self._unsent0)
        self._unsent0.clear()
        return rc

    def on_disconnect(self, *_: Any) -> None:
        """Connect again after a delay, unless it has left."""
        self._lost("connection lost")

    def _lost(self, why: str, *, is_reached: bool = True) -> None:
        """Connect again after a delay; large messages wait for a time."""
        if self.has_left:
            self.first.wake()
            return
        first = self.first
        LOGGER.info("%s: the connection for large messages: %s", self._first_id, why)
        self.is_up = False
        for topic in self._barriers.values():
            first.left_lane(topic)
        self._barriers.clear()
        least, most = first._reconnect_min_delay, first._reconnect_max_delay
        self._delay = min(2 * self._delay or least, most)
        self._dial_at = mqtt.time_func() + self._delay
        if self._n_probes and is_reached:
            self._n_probes -= 1
            if not self._n_probes:
                first.have_no_lane(self._first_id)

    def _give_up(self, why: str) -> None:
        """Let the first lane carry all messages until this one is up."""
        if why != self._reported:
            what = f"the one for large messages, {self._client_id.decode()}, has failed: {why}"
            level = logging.INFO if self._n_probes else logging.WARNING
            LOGGER.log(level, "%s: one connection for all messages: %s", self._first_id, what)
            self._reported = why
        self.is_awaited = False
        self.first.take_back(self)

    def leave(self) -> None:
        """Send DISCONNECT behind what is unsent; the session ends if that of the first one does."""
        self.has_left = True
        properties = None
        if not getattr(self.first.lane_properties(), "SessionExpiryInterval", 0):
            properties = Properties(PacketTypes.DISCONNECT)
            properties.SessionExpiryInterval = 0
        self.disconnect(properties=properties)

    def is_busy(self) -> bool:
        """Tell whether the broker has not yet received all that was published."""
        return bool(self.held or self._out_packet or self._out_messages or self._barriers)

    def serve(self) -> None:
        """Read and write what is possible without waiting."""
        self.loop_read()
        while self.has_pending():
            self.loop_read()
        if self._out_packet:
            self.loop_write()

    def has_pending(self) -> bool:
        """Tell whether TLS or WebSocket have bytes that `select` does not show."""
        return bool(getattr(self._sock, "pending", int)())

    # -- publishing ----------------------------------------------------------------------------

    def put(self, message: mqtt.MQTTMessage) -> None:
        """Publish a message; the caller holds the lock of both lanes."""
        self._sent[message.mid] = message._topic, message.qos
        put(self, message)

    def take_all(self) -> tuple[list[mqtt.MQTTMessage], list[Any], list[mqtt.MQTTMessage]]:
        """Take back what the broker may not have received.

        Returns:
            (unacknowledged messages, unsent packets of QoS 0, held messages).
        """
        self._keep_unsent0()
        taken = list(self._out_messages.values()), self._unsent0, self.held
        self._out_messages.clear()
        self._sent.clear()
        self._barriers.clear()
        self._inflight_messages = 0
        self._unsent0, self.held = [], []
        return taken

    def on_publish(self, _lane: Any, _userdata: Any, mid: int, reason: Any, more: Any) -> None:
        """Tell the application. The broker may not have received a message of QoS 0 yet."""
        topic, qos = self._sent.pop(mid)
        if qos:
            self.first.left_lane(topic)
        else:
            _, barrier = self.unsubscribe(BARRIER)
            if barrier is not None:
                self._barriers[barrier] = topic
        self.first.tell_published(mid, reason, more)

    def on_unsubscribe(self, _lane: Any, _userdata: Any, mid: int, *_: Any) -> None:
        """Note that the broker has received a message of QoS 0."""
        self.first.left_lane(self._barriers.pop(mid, b""))

    def _mid_generate(self) -> int:
        return self.first._mid_generate()

    def _packet_queue(self, *args: Any, **more: Any) -> MQTTErrorCode:
        rc = super()._packet_queue(*args, **more)
        self.first.wake()
        return rc

    # -- receiving and logging -----------------------------------------------------------------

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
