"""A plugin's side of an in-process client that waits for the broker's answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar, Final, cast

from penstock.broker.errors import PenstockError
from penstock.broker.mqtt.enums import MQTT_5, PacketType
from penstock.broker.mqtt.packets import ConnAck, Disconnect, Packet
from penstock.broker.mqtt.reader import read_packet
from penstock.broker.mqtt.reason_codes import describe_reason_code
from penstock.broker.mqtt.receive_buffer import read_remaining_length
from penstock.broker.mqtt.writer import write_packet

_ACKNOWLEDGEMENTS: Final = frozenset({0x40, 0x50, 0x70})
"""First bytes of PUBACK, PUBREC and PUBCOMP."""


class LocalProtocol(asyncio.Protocol):
    """One connection; who has subscriptions reads the packets in another way.

    Attributes:
        lost_error: the error with which every expected answer fails when the connection ends.
        version: the protocol version.
        take_run: takes packets that came together, by their first byte, all that came, and where
            they begin; it returns how many bytes it has taken.
    """

    lost_error: ClassVar[type[PenstockError]]
    version: int = MQTT_5

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.session_present = False
        self.is_lost = False
        self._answers: dict[tuple[int, int], asyncio.Future[int]] = {}
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._told = "the connection has ended"
        self._unread = b""
        self.take_run: Callable[[int, bytes, int], int] = lambda *_: 0

    def expect(self, first_byte: int, packet_id: int) -> asyncio.Future[int]:
        """Return what is done with the reason code of an answer.

        It fails with `lost_error` when the connection ends before. It need not be waited for.

        Args:
            first_byte: the first byte of the packet that is the answer.
            packet_id: the Packet Identifier that it has; 0 where it has none.
        """
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if self.is_lost:
            self._fail(answer)
        else:
            self._answers[first_byte, packet_id] = answer
        return answer

    def answered(self, first_byte: int, packet_id: int, code: int) -> None:
        """Take an answer, which may be expected."""
        answer = self._answers.pop((first_byte, packet_id), None)
        if answer is not None and not answer.done():
            answer.set_result(code)

    def take(self, first_byte: int, body: bytes) -> None:
        """Take a packet that is no PUBLISH."""
        if first_byte in _ACKNOWLEDGEMENTS:
            code = body[2] if len(body) > 2 else 0
            self.answered(first_byte, int.from_bytes(body[:2]), code)
        else:
            self._take(first_byte, read_packet(first_byte, body, self.version))

    def _take(self, first_byte: int, packet: Packet) -> None:
        if isinstance(packet, ConnAck | Disconnect) and packet.reason_code:
            self._told = describe_reason_code(packet.reason_code)
            self.transport.close()
        elif isinstance(packet, ConnAck):
            self.session_present = packet.session_present
            self.answered(first_byte, 0, 0)
        elif packet.packet_type == PacketType.PINGRESP:
            self.answered(first_byte, 0, 0)

    def _fail(self, answer: asyncio.Future[int]) -> None:
        if not answer.done():
            answer.set_exception(self.lost_error(self._told))
            answer.exception()  # it may not be waited for

    async def drain(self) -> None:
        """Wait until the broker takes more."""
        await self._can_write.wait()

    def disconnect(self) -> None:
        """End the connection; the session stays."""
        if not self.is_lost:
            self.transport.write(write_packet(Disconnect(), MQTT_5))
            self.transport.close()

    # -- asyncio's -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: Any) -> None:
        """Take packets, which are whole before they are taken; what is no MQTT ends all."""
        data = self._unread + data if self._unread else bytes(data)
        position, end = 0, len(data)
        try:
            while end - position >= 2:
                n_bytes = self.take_run(data[position], data, position)
                if not n_bytes:
                    start, length = read_remaining_length(data, position)
                    if not start or start + length > end:
                        break
                    self.take(data[position], data[start : start + length])
                    n_bytes = start + length - position
                position += n_bytes
        except PenstockError as error:
            self._told = str(error)
            self.transport.abort()
        self._unread = data[position:]

    def pause_writing(self) -> None:
        """Let `drain` wait."""
        self._can_write.clear()

    def resume_writing(self) -> None:
        """Let it go on."""
        self._can_write.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's)
        """Let everything fail that is expected."""
        self.is_lost = True
        self._can_write.set()
        for answer in self._answers.values():
            self._fail(answer)
        self._answers.clear()
