"""One client and its connection to the broker, without the network.

Theory of operation. The client's CONNECT has the protocol version, and makes the proxy connect to
the broker. From then on, the client's bytes go upstream unchanged (`client_stream`), and the
broker's go downstream through the outbox (`client_side`). When either connection ends, both end.
The broker has no acknowledgement of messages that the client has not acknowledged by then, sent or
withheld, and sends them again to a persistent session.

A CONNECT of MQTT 3.1.1 is passed on unchanged. In one of MQTT 5.0, three properties are the proxy's
(`upstream_connect`). Topic Alias Maximum is left out: the meaning of an alias depends on earlier
packets, so that aliases break where messages overtake each other. Receive Maximum is the proxy's
own, and the proxy observes the client's. Maximum Packet Size is at most the proxy's.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

from penstock.broker.errors import PeerError, ProtocolError
from penstock.broker.link import Link
from penstock.broker.mqtt.enums import ProtocolVersion
from penstock.broker.mqtt.packets import ConnAck, Connect, Disconnect
from penstock.broker.mqtt.reader import may_be_connect, read_packet
from penstock.broker.mqtt.reason_codes import CONNACK_RETURN_CODES, ReasonCode, describe_reason_code
from penstock.broker.mqtt.receive_buffer import (
    ReceiveBuffer,
    packet_too_large,
    read_remaining_length,
)
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.outbox.last_clients import LastClient
from penstock.broker.outbox.outbox import Outbox
from penstock.broker.sending.sender import Buffer
from penstock.edge_proxy.sidecar.client_side import MAX_PACKET_SIZE, ClientSide
from penstock.edge_proxy.sidecar.client_stream import ClientStream
from penstock.edge_proxy.sidecar.direction import Direction
from penstock.edge_proxy.sidecar.identity import ClientIdentity
from penstock.edge_proxy.sidecar.proxy_state import ProxyState, describe

if TYPE_CHECKING:
    from penstock.edge_proxy.sidecar.config import ProxyLimits

_ANY_SIZE: Final = 2**32


class ProxiedClient:
    """One client and its connection to the broker.

    Attributes:
        client: the packets for the client; it exists once `wants_broker`.
        version: protocol version of the CONNECT; before it, 3.1.1.
        peer: address of the client and its port, for the log.
        began_at: monotonic seconds at which it connected to the proxy.
        fileno: file descriptor of the client's socket, or -1; set by `ClientTransport`.
        wants_broker: whether CONNECT has come, so that a connection to the broker is needed.
        is_closing: whether both connections are to be closed once everything was written.
        is_unanswered: whether it is closing because the broker has not answered the CONNECT.
        is_cut_off: whether it is closing because the broker has ended the connection or sent
            something else in place of a CONNACK.
        has_given_up: whether the client has left before the broker had answered its CONNECT.
        has_left: whether the client's connection has ended before the one to the broker.
    """

    def __init__(
        self,
        shared: ProxyState,
        peer: str,
        now: float,
        *,
        listener: str = "",
        refusal: ReasonCode | None = None,
        identity: ClientIdentity | None = None,
        connack_timeout_seconds: float,
    ) -> None:
        """Begin with a client that has just connected to the proxy.

        Args:
            shared: what all clients share.
            peer: address of the client, for the log.
            now: monotonic seconds.
            listener: name of the listener that it has connected to.
            refusal: reason code that answers its CONNECT; None passes the CONNECT to the broker.
            identity: what a CONNECT of MQTT 5 tells the broker about the client; None for nothing.
            connack_timeout_seconds: time from its CONNECT to the broker's CONNACK.
        """
        self._shared = shared
        self._refusal = refusal
        self._identity = identity
        self._connack_timeout_seconds = connack_timeout_seconds
        self._connack_due: float | None = None
        self.peer = peer
        self._limits = shared.limits
        self.version = int(ProtocolVersion.MQTT_3_1_1)
        self._buffer = ReceiveBuffer(shared.limits.connect_bytes)
        self._connect_due: float | None = now + shared.limits.connect_timeout_seconds
        self._to_broker: list[bytes] = []
        self._last_words: list[bytes] = []
        self._has_broker = False
        self._is_accepted = False
        self._is_broker_paused = False
        self._client_maximum = _ANY_SIZE
        self._stream: ClientStream
        self._now = self.began_at = now
        self.client: ClientSide
        self.link = Link("")
        self.link.listener = listener
        self.fileno = -1
        self.wants_broker = False
        self.is_closing = False
        self.is_unanswered = False
        self.is_cut_off = False
        self.has_given_up = False
        self.has_left = False

    # -- what `ClientTransport` calls ------------------------------------------------------------

    def receive_data(self, direction: Direction, chunk: bytes, now: float) -> None:
        """Handle bytes of a direction; a peer's fault never raises here."""
        self._now = now
        if self.is_closing:
            return
        try:
            if direction is Direction.DOWNSTREAM:
                self.client.receive_data(chunk, now)
                if not self._is_accepted:
                    self._look_for_connack(now)
            elif self.wants_broker:
                self._stream.receive_data(chunk, self._to_broker)
            else:
                self._receive_connect(chunk, now)
        except PeerError as error:
            self._peer_failed(direction, error)

    def broker_connected(self) -> None:
        """Note that the connection to the broker is established."""
        self._has_broker = True
        if self.has_left:
            self._end(self._how_it_ended(Direction.UPSTREAM, ""))

    def broker_unreachable(self, reason: str) -> None:
        """Close the client's connection, as there will be none to the broker.

        A CONNACK would be worse: MQTT.js and mosquitto_sub do not connect again after one that
        refuses, and do so after a connection that was closed.
        """
        if not self.is_closing:
            self._end(f"closed: {reason}")

    def connection_lost(self, direction: Direction, now: float, reason: str = "") -> None:
        """Note that a connection has ended.

        A client may send all of its packets and leave at once. Over TLS and WebSocket, its end may
        then be known while the connection to the broker is still being established. What has come
        is passed on before all ends.

        Args:
            direction: UPSTREAM for the client's connection, DOWNSTREAM for the broker's.
            now: monotonic seconds.
            reason: why it ended; "" where it was closed normally.
        """
        self._now = now
        self._note_cut_off(direction)
        if direction is Direction.UPSTREAM:
            self.has_left = not self.is_closing
            if self.has_left and self._has_broker:
                self.has_given_up = self.client.connack is None
            if self.wants_broker and not self._has_broker and not reason:
                return
        # One without a CONNECT is a load balancer's health check, which comes all day.
        level = logging.INFO if self.wants_broker else logging.DEBUG
        self._end(self._how_it_ended(direction, reason), level)

    def _how_it_ended(self, direction: Direction, reason: str) -> str:
        """Return why a connection has ended, for the log; arguments as of `connection_lost`."""
        if not reason and self.wants_broker:
            if self._stream.has_disconnected:
                return "the client has disconnected"
            if self.client.disconnect is not None:
                return f"the broker sent DISCONNECT: {describe_reason_code(self.client.disconnect)}"
        if direction is Direction.DOWNSTREAM and self.client.connack is None:
            return f"the broker has sent no CONNACK: its connection {reason or 'was closed'}"
        ended = f"the {direction.sender}'s connection {reason or 'was closed'}"
        if (
            direction is Direction.UPSTREAM
            and self.wants_broker
            and (self.client.pings.n_unanswered or self.is_broker_silent)
        ):
            return f"{ended}; the broker has not answered its PINGREQ"
        return ended

    def _note_cut_off(self, direction: Direction) -> None:
        if direction is Direction.DOWNSTREAM and not self.is_closing:
            self.is_cut_off = self.client.connack is None

    @property
    def answer(self) -> int | None:
        """Reason code of the broker's CONNACK; None before it."""
        connack = self.client.connack if self.wants_broker else None
        return None if connack is None else connack.reason_code

    @property
    def is_accepted(self) -> bool:
        """Whether the broker has accepted the client."""
        return self._is_accepted

    @property
    def is_broker_silent(self) -> bool:
        """Whether the broker says nothing on this connection, and answers no PINGREQ."""
        return self.wants_broker and self.client.pings.silent_since is not None

    @property
    def is_drained(self) -> bool:
        """Whether the client was sent everything and has acknowledged it."""
        if self.is_closing or not self._is_accepted:
            return True
        return not self.client.n_waiting and not len(self.client.acks)

    def close(
        self, reason_code: ReasonCode, now: float, *, server_reference: str | None = None
    ) -> None:
        """End both connections, and send an MQTT 5 client the reason."""
        self._now = now
        if not self.is_closing:
            self._disconnect(reason_code, server_reference)
            self._end(describe_reason_code(reason_code))

    def data_to_send(self, direction: Direction) -> Sequence[Buffer]:
        """Return and clear the bytes to be written now."""
        if direction is Direction.UPSTREAM:
            to_broker, self._to_broker = self._to_broker, []
            return to_broker
        if self.wants_broker:
            client = self.client
            out = client.data_to_send()
            if client.is_unreadable and not out and not self.is_closing:
                self._payload_lost()
            if out or client.has_rest or client.is_unreadable:
                return out  # nothing may follow a packet that cannot be completed
        last_words, self._last_words = self._last_words, []
        return last_words

    @property
    def has_rest(self) -> bool:
        """Whether something is still to be sent before the client's connection is closed."""
        return self.wants_broker and self.client.has_rest

    def wants_reading(self, direction: Direction) -> bool:
        """Whether to read bytes of a direction."""
        if not self.wants_broker:
            return True
        if direction is Direction.DOWNSTREAM:
            return self.client.wants_reading
        return self._has_broker and not self._is_broker_paused

    def pause_sending(self, direction: Direction) -> None:
        """Note that the transport which sends bytes of a direction is full."""
        if direction is Direction.UPSTREAM:
            self._is_broker_paused = True
        elif self.wants_broker:
            self.client.pause_sending()

    def resume_sending(self, direction: Direction) -> None:
        """Note that the transport which sends bytes of a direction has room again."""
        if direction is Direction.UPSTREAM:
            self._is_broker_paused = False
        elif self.wants_broker:
            self.client.resume_sending()

    def pump(self, unsent_bytes: int, now: float) -> None:
        """Send the client's waiting messages, as far as its connection has room."""
        if not self._is_accepted or self.is_closing:
            return
        self._now = now
        client = self.client
        self.link.unsent_bytes = unsent_bytes
        if not client.wants_pump and not client.refusals:
            return
        try:
            client.pump(now)
        except PeerError as error:
            self._peer_failed(Direction.DOWNSTREAM, error)
        if client.is_unreadable:
            self._payload_lost()
        refusals, client.refusals = client.refusals, []
        self._to_broker += filter(None, map(self._stream.insert, refusals))

    @property
    def has_more(self) -> bool:
        """Whether something can be sent to the client once the rest is written."""
        return bool(self._last_words) or (self.wants_broker and self.client.has_more)

    def next_deadline(self) -> float | None:
        """Return when `handle_timeout` is due, in monotonic seconds; None for never."""
        if self.is_closing:
            return None
        if not self.wants_broker:
            return self._connect_due
        return self.client.next_deadline() if self._is_accepted else self._connack_due

    def handle_timeout(self, now: float) -> None:
        """Do what is due, if anything."""
        self._now = now
        if self.is_closing:
            return
        if not self.wants_broker:
            if self._connect_due is not None and now >= self._connect_due:
                self._end("no CONNECT in time")
            return
        if self._connack_due is not None and now >= self._connack_due:
            self.is_unanswered = True
            self._end(f"closed: no CONNACK in {self._connack_timeout_seconds:g} s")
            return
        self.client.handle_timeout(self.fileno, now)
        pings = self.client.pings
        if pings.silent_since is not None and pings.is_over(now):
            self._disconnect(ReasonCode.SERVER_BUSY)
            self._end(f"the broker has said nothing for {now - pings.silent_since:.0f} s")

    def __str__(self) -> str:
        """Return the client's name for the log."""
        client_id, peer = self.link.client_id, self.peer
        return f"client at {peer}" if client_id in ("", peer) else f"client {client_id} ({peer})"

    @property
    def log_fields(self) -> dict[str, str]:
        """The client's fields of a line of the log."""
        client_id, peer, listener = self.link.client_id, self.peer, self.link.listener
        known = {"address": peer, "listener": listener, "user": self.link.username or ""}
        known["client_id"] = "" if client_id == peer else client_id
        return {name: value for name, value in known.items() if value}

    # -- CONNECT and CONNACK ------------------------------------------------------------------

    def _receive_connect(self, chunk: bytes, now: float) -> None:
        """Collect the CONNECT; bytes that come with it follow it upstream.

        Raises:
            PeerError: this is not a CONNECT.
        """
        data = self._buffer.receive_data(chunk)
        if not data:
            return
        if not may_be_connect(data):  # [MQTT-3.1.0-1]
            raise ProtocolError(f"first byte: read 0x{data[0]:02X}; allowed: 0x10, CONNECT")
        start, length = read_remaining_length(data, 0)
        stop = start + length
        if not start or stop > len(data):
            self._buffer.unread(data, 0)
            return
        if stop > self._limits.connect_bytes:
            raise packet_too_large(stop, self._limits.connect_bytes)
        packet = read_packet(
            data[0], data[start:stop], ProtocolVersion.MQTT_5, self._limits.properties
        )
        connect = cast("Connect", packet)
        self.version = connect.protocol_version
        self._client_maximum = connect.properties.get("maximum_packet_size", _ANY_SIZE)
        self.link.client_id = connect.client_id
        self.link.username = connect.username
        if self._refusal is not None:
            self._refuse(self._refusal)
            self._end(f"refused: {describe_reason_code(self._refusal)}")
            return
        self._shared.introduce(self.link, connect.properties.get("user_property", ()))
        self.client = ClientSide(self._shared, self.link, connect)
        self._stream = ClientStream(
            self.version,
            self._limits.maximum_packet_size,
            self._acknowledged,
            self.client.acknowledged_run,
            self._pinged,
        )
        self.wants_broker = True
        self._shared.running.add(self)
        self._connect_due = None
        self._connack_due = now + self._connack_timeout_seconds
        frame = data[:stop]
        if self._identity is not None:
            connect = self._identity.told_in(connect)
            frame = write_packet(connect, self.version)
        self._to_broker.append(upstream_connect(connect, frame, self._limits))
        self._stream.receive_data(data[stop:], self._to_broker)

    def _acknowledged(self, packet_type: int, packet_id: int, reason_code: int) -> bool:
        return self.client.acknowledged(packet_type, packet_id, reason_code, self._now)

    def _pinged(self) -> None:
        self.client.pinged(self._now)

    def _look_for_connack(self, now: float) -> None:
        """Handle the broker's CONNACK, once it has come."""
        connack = self.client.connack
        if connack is None:
            return
        if connack.reason_code:  # the connection ends here [MQTT-3.2.2-7]
            self._end(f"refused by the broker: {describe_reason_code(connack.reason_code)}")
            return
        # MQTT 3.1.1 does not say which Client Identifier the broker has assigned.
        given = connack.properties.get("assigned_client_identifier")
        self.link.client_id = given or self.link.client_id or self.peer
        self._stream.allow(connack.properties.get("maximum_packet_size", MAX_PACKET_SIZE))
        self._is_accepted = True
        self._shared.by_client_id[self.link.client_id] = self
        self._connack_due = None
        self.client.wants_pump = True
        self.client.samplers.connected(now)

    # -- the end --------------------------------------------------------------------------------

    def _peer_failed(self, direction: Direction, error: PeerError) -> None:
        """End both connections for the fault of one side."""
        self._note_cut_off(direction)
        if direction is Direction.DOWNSTREAM:
            if not self.is_cut_off:  # else it is as if there were no broker
                self._disconnect(ReasonCode.UNSPECIFIED_ERROR)
        elif self._is_accepted:
            self._disconnect(error.reason_code)
        else:
            self._refuse(error.reason_code)
        self._end(f"the {direction.sender} sent: {error}", logging.WARNING)

    def _payload_lost(self) -> None:
        """End: what the client was to get, or is just getting, cannot be read back."""
        self._end("a payload cannot be read back", logging.WARNING)

    def _disconnect(self, reason_code: ReasonCode, server_reference: str | None = None) -> None:
        """Send an accepted MQTT 5 client a DISCONNECT [MQTT-3.14.0-1]."""
        if not self._is_accepted or self.version != ProtocolVersion.MQTT_5:
            return
        properties = {"server_reference": server_reference} if server_reference else {}
        packet = write_packet(Disconnect(reason_code, properties), self.version)
        if len(packet) > self._client_maximum:  # [MQTT-3.1.2-24]
            packet = write_packet(Disconnect(reason_code), self.version)
        self._last_words.append(packet)

    def _refuse(self, reason_code: ReasonCode) -> None:
        """Send the CONNACK of a refusal, where the version has a code for it.

        Before a CONNECT, the version is taken as 3.1.1.
        """
        if self.version == ProtocolVersion.MQTT_5 or reason_code in CONNACK_RETURN_CODES:
            connack = ConnAck(session_present=False, reason_code=reason_code)
            self._last_words.append(write_packet(connack, self.version))

    def _end(self, reason: str, level: int = logging.INFO) -> None:
        """End both connections, once, and log the reason and what became of the messages."""
        if self.is_closing:
            return
        self.is_closing = True
        shared = self._shared
        if self.wants_broker:
            self.client.close()
            self._stream.end()
            shared.running.discard(self)
            shared.ended.add(self.client.ledger)
        account = ""
        if self._is_accepted:
            shared.n_ended += 1
            self._leave()
            account = f"; {describe(self.client.ledger)}"
        fields = self.log_fields if shared.logger.isEnabledFor(level) else None
        shared.logger.log(level, "%s: ended: %s%s", self, reason, account, extra=fields)

    def _leave(self) -> None:
        """Keep a report of the client as one that has gone, without what waited for it."""
        shared, client, link = self._shared, self.client, self.link
        if shared.by_client_id.get(link.client_id) is not self:
            return  # a newer connection of the same client
        del shared.by_client_id[link.client_id]
        outbox = Outbox(link, client.ledger, shared.outbox_rules)
        outbox.last_decision = client.outbox.last_decision
        outbox.recent = client.outbox.recent
        shared.last_clients.add(
            LastClient(
                link.client_id,
                link.username,
                link.listener,
                link,
                outbox,
                client.ledger,
                left_at=self._now,
            )
        )


def upstream_connect(connect: Connect, frame: bytes, limits: ProxyLimits) -> bytes:
    """Return a CONNECT as the broker gets it: `frame` itself for versions before MQTT 5.0."""
    if connect.protocol_version != ProtocolVersion.MQTT_5:
        return frame
    properties = {
        **connect.properties,
        "receive_maximum": limits.upstream_receive_maximum,
        "maximum_packet_size": min(
            connect.properties.get("maximum_packet_size", MAX_PACKET_SIZE),
            limits.maximum_packet_size,
        ),
    }
    if properties["maximum_packet_size"] == MAX_PACKET_SIZE:
        del properties["maximum_packet_size"]
    properties.pop("topic_alias_maximum", None)  # [MQTT-3.1.2-27]
    return write_packet(
        dataclasses.replace(connect, properties=properties), connect.protocol_version
    )
