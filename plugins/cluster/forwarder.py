"""The clients in the broker's process that give it what other nodes have routed.

Theory of operation. Each lane of an origin (see `frames`) has one. Messages of QoS 1 and 2 get
Packet Identifiers in their order. The broker acknowledges them in that order [MQTT-4.6.0-2], so
that what comes back is compared with what is due, many packets at a time. Where the connection
ends, as the broker has no memory for a message, what is unacknowledged is sent again on the next
one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from penstock.broker.counters import count
from penstock.broker.errors import PenstockError
from penstock.broker.extensions import LOCAL_CLIENT_PREFIX, LocalClients
from penstock.broker.mqtt.enums import MAX_PACKET_ID, PacketType
from penstock.broker.mqtt.packets import Connect
from penstock.broker.mqtt.reason_codes import describe_reason_code
from penstock.broker.mqtt.short_packets import (
    ALL_PUBACK,
    ALL_PUBCOMP,
    ALL_PUBREC,
    ALL_PUBREL,
    PACKET_BYTES,
    n_equal_packets,
    packets_from,
)
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.network.local_protocol import LocalProtocol
from penstock.plugins.cluster.frames import Lane, packets_of, renumbered
from penstock.plugins.cluster.node_sink import Give, Shared

MOST_UNACKNOWLEDGED: Final = 32_000
"""Messages of QoS 1 and 2: fewer than half of all Packet Identifiers, so that none is in use."""

_RETRY_SECONDS: Final = 0.5
_PUBACK: Final = 0x40
_PUBREC: Final = 0x50
_PUBCOMP: Final = 0x70
_EXPECTED: Final = {_PUBACK: ALL_PUBACK, _PUBREC: ALL_PUBREC, _PUBCOMP: ALL_PUBCOMP}


class ForwarderLostError(PenstockError):
    """The broker has ended the connection of a forwarder."""


class _Sent:
    """Messages of one frame that are on their way, with successive Packet Identifiers.

    Attributes:
        packets: their PUBLISH packets.
        packet_id: the Packet Identifier of the first that is not done.
        n_left: how many are not done.
        n_done: how many are.
        qos: 1 or 2.
        done: is called with a number of messages that the broker has taken.
    """

    __slots__ = ("done", "n_done", "n_left", "packet_id", "packets", "qos")

    def __init__(
        self, packets: bytes, packet_id: int, n_left: int, qos: int, done: Callable[[int], None]
    ) -> None:
        self.packets = packets
        self.packet_id = packet_id
        self.n_left = n_left
        self.n_done = 0
        self.qos = qos
        self.done = done

    def advance(self, n_messages: int) -> None:
        """Note that the oldest messages are done."""
        self.n_left -= n_messages
        self.n_done += n_messages
        self.packet_id = after(self.packet_id, n_messages)

    def first(self) -> bytes:
        """Return the packet of the oldest message that is not done."""
        packets = packets_of(self.packets)
        for _ in range(self.n_done):
            next(packets)
        return next(packets)

    def rest(self) -> bytes:
        """Return the packets that are not done."""
        return b"".join(list(packets_of(self.packets))[self.n_done :])


def after(packet_id: int, n_messages: int) -> int:
    """Return the Packet Identifier that comes so many behind another; 1 follows the last."""
    return (packet_id + n_messages - 1) % MAX_PACKET_ID + 1


class Forwarder:
    """Gives the messages of one lane of an origin to the broker's sessions.

    Args:
        clients: connects local clients.
        origin: name of the node that the messages come from.
        lane: of the messages.
        give: takes messages of a shared subscription that no member here can take.
        refused: counts messages that the broker has refused for good, by reason.
        is_forwarded: see `LocalClients.connect`.

    Attributes:
        n_unacknowledged: messages of QoS 1 and 2 that the broker has not taken.
    """

    def __init__(
        self,
        clients: LocalClients,
        origin: str,
        lane: Lane,
        give: Give,
        refused: dict[str, int],
        *,
        is_forwarded: bool = True,
    ) -> None:
        self.n_unacknowledged = 0
        self.refused = refused
        self.lane = lane
        self.is_forwarded = is_forwarded
        share = f"/{lane.share}" if lane.share else ""
        self.client_id = f"{LOCAL_CLIENT_PREFIX}$cluster/{origin}/{lane.version}{share}"
        self._clients = clients
        self._give = give
        self._client: _Connection | None = None
        self._packet_id = 1
        self._sent: deque[_Sent] = deque()
        self._unreleased: deque[_Sent] = deque()
        self._has_room = asyncio.Event()
        self._is_ready = asyncio.Event()
        self._is_ready.set()
        self._again: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def send(
        self, packets: bytes, qos: int, n_messages: int, done: Callable[[int], None]
    ) -> None:
        """Give packets to the broker, once it takes more.

        Args:
            packets: whole PUBLISH packets of one QoS.
            qos: theirs.
            n_messages: how many; fewer than `MOST_UNACKNOWLEDGED` with QoS 1 and 2.
            done: called with numbers of messages that the broker has taken: those of QoS 0 once
                they are written, the others once they are acknowledged.
        """
        while (wait := self._obstacle(n_messages if qos else 0)) is not None:
            await wait
        if qos:
            self._write(packets, qos, n_messages, done)
        else:
            self._connected().transport.write(packets)
            done(n_messages)

    def _obstacle(self, n_messages: int) -> Awaitable[object] | None:
        """Return what is to be waited for before messages can be sent; None for nothing."""
        if not self._is_ready.is_set():
            return self._is_ready.wait()
        client = self._connected()
        if client.is_paused:
            return client.drain()
        if self.n_unacknowledged + n_messages <= MOST_UNACKNOWLEDGED:
            return None
        self._has_room.clear()
        return self._has_room.wait()

    def _write(
        self, packets: bytes, qos: int, n_messages: int, done: Callable[[int], None]
    ) -> None:
        packet_id = self._packet_id
        self._packet_id = after(packet_id, n_messages)
        packets = renumbered(packets, packet_id)
        self._sent.append(_Sent(packets, packet_id, n_messages, qos, done))
        self.n_unacknowledged += n_messages
        self._connected().transport.write(packets)

    def _connected(self) -> _Connection:
        if self._client is None:
            self._client = _Connection(self)
            self._client.connect(self._clients)
        return self._client

    def close(self) -> None:
        """Disconnect; what is unacknowledged may be lost."""
        self._is_closed = True
        if self._again is not None:
            self._again.cancel()
        if self._client is not None:
            self._client.disconnect()

    # -- what the broker says ------------------------------------------------------------------

    def acknowledged(self, first_byte: int, data: bytes, position: int) -> int:
        """Take acknowledgements that report success, as far as they are in order.

        Returns:
            The bytes of those that were taken.
        """
        due = self._unreleased if first_byte == _PUBCOMP else self._sent
        if not due or first_byte not in _EXPECTED:
            return 0
        sent = due[0]
        packet_id = sent.packet_id
        if sent.qos != (1 if first_byte == _PUBACK else 2):
            return 0
        n_due = min(sent.n_left, MAX_PACKET_ID + 1 - packet_id)
        n_messages = n_equal_packets(_EXPECTED[first_byte], packet_id, n_due, data, position)
        if n_messages:
            self._take(first_byte, due, n_messages)
        return n_messages * PACKET_BYTES

    def answered(self, first_byte: int, packet_id: int, code: int) -> None:
        """Take one acknowledgement, which may refuse the message.

        Raises:
            ForwarderLostError: it is not the one that is due.
        """
        due = self._unreleased if first_byte == _PUBCOMP else self._sent
        if not due or due[0].packet_id != packet_id:
            read = f"{PacketType(first_byte >> 4).name} {packet_id}"
            allowed = due[0].packet_id if due else "none"
            raise ForwarderLostError(f"read {read}; allowed: Packet Identifier {allowed}")
        if code < 0x80 or first_byte == _PUBCOMP:
            self._take(first_byte, due, 1)
            return
        packet = due[0].first() if self.lane.share else b""
        sent = self._advance(due, 1)
        self._free(1)
        if self.lane.share:
            self._give_back(packet, sent, 1)
        else:
            count(self.refused, describe_reason_code(code))
            sent.done(1)

    def _take(self, first_byte: int, due: deque[_Sent], n_messages: int) -> None:
        """Take acknowledgements of the oldest messages, which report success."""
        packet_id = due[0].packet_id
        sent = self._advance(due, n_messages)
        if first_byte == _PUBREC:
            self._unreleased.append(_Sent(b"", packet_id, n_messages, 2, sent.done))
            assert self._client is not None  # noqa: S101 (it has answered)
            self._client.transport.write(packets_from(ALL_PUBREL, packet_id, n_messages))
        else:
            self._free(n_messages)
        if first_byte != _PUBCOMP:
            sent.done(n_messages)

    @staticmethod
    def _advance(due: deque[_Sent], n_messages: int) -> _Sent:
        sent = due[0]
        sent.advance(n_messages)
        if not sent.n_left:
            due.popleft()
        return sent

    def _give_back(self, packets: bytes, sent: _Sent, n_messages: int) -> None:
        """Have messages sent to members of other nodes; they are done once they are there."""

        def done(_reason_code: int) -> None:
            sent.done(n_messages)

        self._give(Shared(self.lane, sent.qos, n_messages, packets, done))

    def _free(self, n_messages: int) -> None:
        self.n_unacknowledged -= n_messages
        self._has_room.set()

    def lost(self, client: _Connection) -> None:
        """Connect again, and send again what is unacknowledged."""
        if client is not self._client or self._is_closed:
            return
        self._client = None
        self._is_ready.clear()
        self._again = asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._send_again)

    def _send_again(self) -> None:
        again, self._sent = self._sent, deque()
        self._unreleased.clear()
        self.n_unacknowledged = 0
        for sent in again:
            if self.lane.share:  # in MQTT 3.1.1 this is how a message is refused
                self._give_back(sent.rest(), sent, sent.n_left)
            else:
                self._write(sent.rest(), sent.qos, sent.n_left, sent.done)
        self._is_ready.set()
        self._has_room.set()


class _Connection(LocalProtocol):
    """One connection of a forwarder."""

    lost_error = ForwarderLostError

    def __init__(self, forwarder: Forwarder) -> None:
        super().__init__()
        self._forwarder = forwarder
        self.version = forwarder.lane.version
        self.take_run = forwarder.acknowledged

    @property
    def is_paused(self) -> bool:
        """Whether the broker takes no more for now."""
        return not self._can_write.is_set()

    def connect(self, clients: LocalClients) -> None:
        """Connect; packets may follow at once."""
        forwarder = self._forwarder
        clients.connect(
            self,
            is_patient=True,
            is_forwarded=forwarder.is_forwarded,
            share=forwarder.lane.share,
        )
        connect = Connect(
            forwarder.client_id, protocol_version=self.version, clean_start=True, keep_alive=0
        )
        self.transport.write(write_packet(connect, self.version))

    def answered(self, first_byte: int, packet_id: int, code: int) -> None:
        """Take an acknowledgement, which may refuse a message."""
        if first_byte in _EXPECTED:
            self._forwarder.answered(first_byte, packet_id, code)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let the forwarder connect again."""
        super().connection_lost(exc)
        self._forwarder.lost(self)
