"""The client's bytes after CONNECT, which pass unchanged and are followed packet by packet.

Theory of operation. A packet is passed on as its bytes arrive and is not collected, so that a large
message of the client takes no memory here and is not delayed. Only the first bytes of a PUBACK,
PUBREC or PUBCOMP are parsed, to find the message that it finishes. PINGREQ and DISCONNECT are
noted. The proxy inserts packets of its own only between two packets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from penstock.broker.errors import MalformedPacketError, ProtocolError
from penstock.broker.mqtt.enums import PacketType, ProtocolVersion
from penstock.broker.mqtt.receive_buffer import packet_too_large, read_remaining_length
from penstock.broker.mqtt.short_packets import end_of_equal_heads
from penstock.edge_proxy.sidecar.direction import Direction, check_first_byte

OnAcknowledgement: TypeAlias = Callable[[int, int, int], bool]
"""Called with (packet type, packet id, reason code); returns whether the packet is passed on."""

OnAcknowledgements: TypeAlias = Callable[[bytes, int], int]
"""Called with (received bytes, offset of a PUBACK). It handles this one and others behind it, which
are passed on, and returns the offset of their end. It returns the offset of the first one where
`OnAcknowledgement` is to be called for it."""

OnPing: TypeAlias = Callable[[], None]
"""Called for each PINGREQ that is passed on."""

_PUBLISH: Final = frozenset((0x30, 0x31, 0x32, 0x33, 0x34, 0x35))
"""First bytes of PUBLISH packets without DUP."""

_PUBACK: Final = 0x40
_PINGREQ: Final = 0xC0
_DISCONNECT: Final = 0xE0
_ACKNOWLEDGEMENTS: Final = frozenset({PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBCOMP})
_LOOKED_AT_BYTES: Final = 3
"""Bytes of the packet id and the reason code; properties may follow."""


class ClientStream:
    """Follows the packets of one client.

    Invariant: the passed-on bytes end within a packet exactly while `_rest_bytes` is above 0 and
    the packet is not being discarded.
    """

    __slots__ = (
        "_insertions",
        "_is_discarding",
        "_maximum_packet_size",
        "_on_acknowledgement",
        "_on_acknowledgements",
        "_on_ping",
        "_rest_bytes",
        "_tail",
        "_version",
        "has_disconnected",
    )

    def __init__(
        self,
        version: int,
        maximum_packet_size: int,
        on_acknowledgement: OnAcknowledgement,
        on_acknowledgements: OnAcknowledgements,
        on_ping: OnPing,
    ) -> None:
        """Begin between two packets.

        Args:
            version: protocol version of the client's CONNECT.
            maximum_packet_size: bytes of the largest packet to pass on; see `allow`.
            on_acknowledgement: is called for each PUBACK, PUBREC and PUBCOMP.
            on_acknowledgements: is called for PUBACK packets before `on_acknowledgement`.
            on_ping: is called for each PINGREQ.
        """
        self._version = version
        self._maximum_packet_size = maximum_packet_size
        self._on_acknowledgement = on_acknowledgement
        self._on_acknowledgements = on_acknowledgements
        self._on_ping = on_ping
        self._insertions: list[bytes] = []
        self._is_discarding = False
        self._rest_bytes = 0
        self._tail = b""
        self.has_disconnected = False

    def allow(self, maximum_packet_size: int) -> None:
        """Lower the size of the largest packet to pass on, if this is less than before."""
        self._maximum_packet_size = min(self._maximum_packet_size, maximum_packet_size)

    def insert(self, frame: bytes) -> bytes:
        """Return a packet of the proxy's own if it may be sent now; else keep it and return b""."""
        if self._rest_bytes and not self._is_discarding:
            self._insertions.append(frame)
            return b""
        return frame

    def end(self) -> None:
        """Drop the callbacks, which breaks the reference cycle with their owner."""
        self._on_acknowledgement = _pass_nothing
        self._on_acknowledgements = _take_none
        self._on_ping = _tell_nobody

    def receive_data(self, chunk: bytes, out: list[bytes]) -> None:
        """Handle bytes from the client, and append to `out` what is to be passed on.

        Raises:
            MalformedPacketError: a packet cannot be parsed.
            ProtocolError: a packet is too large, or not allowed here. The bytes before it are
                passed on.
        """
        data = self._tail + chunk if self._tail else chunk
        self._tail = b""
        end = len(data)
        begin = position = 0
        try:
            while position < end:
                if self._rest_bytes:
                    position = self._skip(position, end)
                    if self._is_discarding:
                        begin = position
                        self._is_discarding = self._rest_bytes > 0
                    elif not self._rest_bytes and self._insertions:
                        out += data[begin:position], *self._insertions
                        self._insertions.clear()
                        begin = position
                    continue
                run_end = self._pass_run(data, position)
                if run_end != position:
                    position = run_end
                    continue
                start, length = self._read_header(data, position)
                is_looked_at = data[position] >> 4 in _ACKNOWLEDGEMENTS
                looked_at_bytes = min(length, _LOOKED_AT_BYTES) if is_looked_at else 0
                if not start or start + looked_at_bytes > end:
                    self._tail = data[position:]
                    break
                if is_looked_at and not self._passes(data, position, start, length):
                    out.append(data[begin:position])
                    begin = start
                    self._is_discarding = True
                if data[position] == _PINGREQ:
                    self._on_ping()
                elif data[position] == _DISCONNECT:
                    self.has_disconnected = True
                self._rest_bytes = length
                position = start
        finally:
            if begin < position and not self._is_discarding:
                out.append(data[begin:position])

    def _pass_run(self, data: bytes, position: int) -> int:
        """Pass on several whole packets of one kind at once; return the offset of their end.

        Unusual and wrong packets are left to `_read_header`.
        """
        if data[position] == _PUBACK:
            return self._on_acknowledgements(data, position)
        end = len(data)
        maximum = self._maximum_packet_size
        while end - position >= 2 and data[position] in _PUBLISH:
            start, length = position + 2, data[position + 1]
            if length > 0x7F:
                start, length = read_remaining_length(data, position)
            stop = start + length
            if not start or stop > end or stop - position > maximum:
                break
            head = data[position:start]
            position = end_of_equal_heads(data, head, stop, stop - position, end)
        return position

    def _skip(self, position: int, end: int) -> int:
        """Return the offset after the available bytes of the packet."""
        n_bytes = min(self._rest_bytes, end - position)
        self._rest_bytes -= n_bytes
        return position + n_bytes

    def _read_header(self, data: bytes, position: int) -> tuple[int, int]:
        """Return (offset of the body, its length); (0, 0) while bytes are missing."""
        first_byte = data[position]
        check_first_byte(first_byte, Direction.UPSTREAM, self._version)
        if first_byte >> 4 == PacketType.CONNECT:
            raise ProtocolError("a second CONNECT [MQTT-3.1.0-2]")
        start, length = read_remaining_length(data, position)
        if start and start + length - position > self._maximum_packet_size:
            raise packet_too_large(start + length - position, self._maximum_packet_size)
        return start, length

    def _passes(self, data: bytes, position: int, start: int, length: int) -> bool:
        """Return whether an acknowledgement, whose first bytes are there, is passed on."""
        packet_type = data[position] >> 4
        is_mqtt_5 = self._version == ProtocolVersion.MQTT_5
        if length < 2 or (length > 2 and not is_mqtt_5):
            raise MalformedPacketError(
                f"{PacketType(packet_type).name} of {length} bytes; allowed: "
                + ("2 or more" if is_mqtt_5 else "2")
            )
        packet_id = int.from_bytes(data[start : start + 2])
        return self._on_acknowledgement(
            packet_type, packet_id, data[start + 2] if length > 2 else 0
        )


def _pass_nothing(_packet_type: int, _packet_id: int, _reason_code: int) -> bool:
    return False


def _take_none(_data: bytes, position: int) -> int:
    return position


def _tell_nobody() -> None:
    pass
