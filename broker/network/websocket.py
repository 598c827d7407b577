"""WebSocket (RFC 6455) between a transport and MQTT, as section 6 of MQTT describes.

The library `websockets`, which does no I/O, does the handshake, answers pings, joins fragments and
closes. Almost every frame is a whole binary message, and these do not pass through it. Received
ones are parsed here, in a tenth of the time that its parser takes; the library gets all other
frames, each whole. Sent frames are not masked, so that a frame is a header of a few bytes before
buffers that are passed on by reference. One write makes one frame, and MQTT packets need not align
with frames in either direction [MQTT-6.0.0-2].
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final

from websockets.exceptions import SecurityError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import MAX_LINE_LENGTH, MAX_NUM_HEADERS, Request
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.typing import Origin, Subprotocol

from penstock.broker.config.listener_config import Listener
from penstock.broker.network.new_connection import AcceptedConnection, Layer

try:
    from websockets.speedups import apply_mask
except ImportError:  # on a platform for which it is not compiled
    from websockets.utils import apply_mask

SUBPROTOCOLS: Final = (Subprotocol("mqtt"), Subprotocol("mqttv3.1"))
"""The first of these that a client offers is chosen [MQTT-6.0.0-4]; clients older than MQTT 3.1.1
offer the second."""

MAX_STRANGER_BYTES: Final = 1024 * 1024 + 4096
"""Before a CONNECT is accepted, so much may be received: the longest CONNECT with its frames."""

MAX_REQUEST_BYTES: Final = 16_384
"""The request for a WebSocket may be so long, enough for a page's cookies."""

MIN_MESSAGE_BYTES: Final = 1024 * 1024
"""The limit of a message is at least this: it may hold many packets, each below the limit for one.
"""

_METHOD: Final = b"GET "
_REQUEST_END: Final = b"\r\n\r\n"

_PONG: Final = 0x80 | Opcode.PONG
_BINARY: Final = 0x80 | Opcode.BINARY
_MASKED: Final = 0x80
_RESERVED_BITS: Final = 0x70
_FIRST_CONTROL_OPCODE: Final = Opcode.CLOSE
_MAX_CONTROL_BYTES: Final = 125
_OPCODES: Final = frozenset(Opcode)

# The library logs each step; our own lines give the outcome.
_LOGGER: Final = logging.getLogger("penstock.websocket")
_LOGGER.setLevel(logging.ERROR)


class WebSocketLayer(Layer):
    """The server's side of one WebSocket connection."""

    def __init__(
        self,
        above: asyncio.Protocol,
        arrival: AcceptedConnection,
        listener: Listener,
        max_bytes: int,
    ) -> None:
        """Prepare for a connection."""
        super().__init__(above, arrival)
        origins = listener.allowed_origins
        self._path = listener.path
        self._protocol = ServerProtocol(
            # The check is against pages in browsers; a client without an origin is none.
            origins=None if origins is None else [*map(Origin, origins), None],
            subprotocols=SUBPROTOCOLS,
            max_size=None,  # checked here, before a message is read
            logger=_LOGGER,
        )
        self._max_message_bytes = max(max_bytes + 5, MIN_MESSAGE_BYTES)
        self._n_received = 0
        self._partial: list[bytes] = []
        self._n_partial = 0
        self._n_needed = 0
        self._is_closing = False

    # -- reading ------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse frames, pass on what they hold, answer those that need an answer."""
        if self.below.is_closing():
            return
        if not self.arrival.is_known:
            self._n_received += len(data)
            maximum = MAX_STRANGER_BYTES if self.is_open else MAX_REQUEST_BYTES
            if self._n_received > maximum:
                self._refuse(f"more than {maximum} bytes before a CONNECT was accepted")
                return
        self._partial.append(data)
        self._n_partial += len(data)
        if self._n_partial < self._n_needed:
            self._tell_held()
            return
        if len(self._partial) > 1:
            data = b"".join(self._partial)
        if not self.is_open:
            data = self._shake_hands(data)
        if self.is_open:
            payloads = self._frames(data)
            if payloads and not self._is_closing:
                self.above.data_received(b"".join(payloads) if len(payloads) > 1 else payloads[0])
            self._tell_held()
            self._send_answers()

    def _tell_held(self) -> None:
        """Report the bytes kept here, which count among the received bytes of all connections."""
        connection = self.arrival.connection
        if connection is not None:
            connection.held_in_layer(self._n_partial)

    def _keep(self, rest: bytes, n_needed: int) -> None:
        """Keep what cannot be parsed yet."""
        self._partial = [rest] if rest else []
        self._n_partial = len(rest)
        self._n_needed = n_needed

    def _shake_hands(self, data: bytes) -> bytes:
        """Answer the request for a WebSocket, once it is complete; return what follows it."""
        if not _METHOD.startswith(data[: len(_METHOD)]):  # refused at the first bytes
            self._refuse_as_no_request()
            return b""
        head, end, rest = data.partition(_REQUEST_END)
        self._keep(rest if end else data, 0)
        if not end:
            return b""
        protocol = self._protocol
        protocol.receive_data(head + end)
        requests = protocol.events_received()
        if not requests or not isinstance(requests[0], Request):
            self._refuse_as_no_request(protocol.handshake_exc)
            return b""
        self._answer(requests[0])
        return rest

    def _refuse_as_no_request(self, error: Exception | None = None) -> None:
        """Answer what is not understood, by the library's error, and what is no request at all."""
        self._is_closing = True
        status = HTTPStatus.BAD_REQUEST
        text, detail = "This is a WebSocket listener for MQTT.", "not a GET request of HTTP/1.1"
        cause = None if error is None else error.__cause__ or error
        if isinstance(cause, SecurityError):
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            text = (
                f"Allowed: {MAX_NUM_HEADERS} headers, each of {MAX_LINE_LENGTH} bytes; such as a "
                "shorter cookie."
            )
            detail = f"{status.value}: {cause}; {text[0].lower()}{text[1:-1]}"
        elif cause is not None:
            detail = f"not a GET request of HTTP/1.1: {cause}"
        self.below.write(self._protocol.reject(status, f"{text}\n").serialize())
        self.arrival.fail("websocket", f"no WebSocket: {detail}")

    def _answer(self, request: Request) -> None:
        protocol = self._protocol
        path = request.path.partition("?")[0]
        if self._path is not None and path != self._path:
            response = protocol.reject(HTTPStatus.NOT_FOUND, f"MQTT is at {self._path}.\n")
        else:
            response = protocol.accept(request)
        protocol.send_response(response)
        self._send_answers()
        if response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            self._n_received = 0
            self.open()
        else:
            error = protocol.handshake_exc
            detail = f"path {request.path}" if error is None else str(error)
            self.arrival.fail("websocket", f"no WebSocket: {response.status_code}: {detail}")

    def _frames(self, data: bytes) -> list[bytes]:
        """Parse every complete frame; return what the binary ones hold, and keep the rest."""
        protocol = self._protocol
        payloads: list[bytes] = []
        end = len(data)
        position = 0
        n_needed = 2
        while end - position >= 2 and not protocol.eof_sent:
            first, second = data[position], data[position + 1]
            length = second & ~_MASKED
            start = position + 6  # behind header and mask
            if length > _MAX_CONTROL_BYTES:
                start += 2 if length == 126 else 8
                if end < start - 4:
                    n_needed = start - 4 - position
                    break
                length = int.from_bytes(data[position + 2 : start - 4], "big")
            problem = self._problem_of_frame(first, second, length)
            if problem is not None:
                protocol.fail(*problem)
                self.arrival.note("websocket", f"closed: {problem[1]}")
                break
            stop = start + length
            if stop > end:
                n_needed = stop - position
                break
            if first == _BINARY and protocol.cur_size is None:
                payloads.append(apply_mask(data[start:stop], data[start - 4 : start]))
            else:
                protocol.receive_data(data[position:stop])
                payloads += [
                    bytes(event.data)
                    for event in protocol.events_received()
                    if isinstance(event, Frame) and event.opcode in (Opcode.BINARY, Opcode.CONT)
                ]
            position = stop
        self._keep(data[position:], n_needed)
        return payloads

    def _problem_of_frame(
        self, first: int, second: int, length: int
    ) -> tuple[CloseCode, str] | None:
        """Return code and reason to close with for a frame's header; None if it is allowed."""
        if not second & _MASKED:
            return CloseCode.PROTOCOL_ERROR, "a frame without a mask"
        if length > self._max_message_bytes - (self._protocol.cur_size or 0):
            return (
                CloseCode.MESSAGE_TOO_BIG,
                f"a message of {length} bytes or more; allowed: {self._max_message_bytes}",
            )
        if first == _BINARY:
            return None
        opcode = first & 0x0F
        if opcode == Opcode.TEXT:  # [MQTT-6.0.0-1]
            return CloseCode.UNSUPPORTED_DATA, "a text frame; allowed: binary"
        if opcode >= _FIRST_CONTROL_OPCODE and length > _MAX_CONTROL_BYTES:
            return CloseCode.PROTOCOL_ERROR, "a control frame of more than 125 bytes"
        if first & _RESERVED_BITS or opcode not in _OPCODES:
            return CloseCode.PROTOCOL_ERROR, f"a frame that begins with 0x{first:02X}"
        return None

    def _refuse(self, detail: str) -> None:
        if self.is_open:
            self._protocol.fail(CloseCode.MESSAGE_TOO_BIG, detail)
            self._send_answers()
            self.arrival.note("websocket", f"closed: {detail}")
        else:
            self.arrival.fail("websocket", f"no WebSocket: {detail}")

    def _send_answers(self) -> None:
        """Write what the library has to send: the handshake, pongs, its close frame."""
        protocol = self._protocol
        for data in protocol.data_to_send():
            if not data:  # the end
                _drop_traces(protocol)
                if protocol.parser_exc is not None and not self._is_closing and self.is_open:
                    self.arrival.note("websocket", f"closed: {protocol.parser_exc}")
                self._is_closing = True
                self.arrival.end_in_time()
                self.below.close()
            elif data[0] != _PONG or not self.is_below_paused:
                # A client that pings and does not read gets no pongs; only the last one matters
                # (RFC 6455, 5.5.3).
                self.below.write(data)

    # -- writing ------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send some bytes as one message."""
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Send some buffers as one message."""
        if self._is_closing or self._protocol.state is not OPEN:
            return
        buffers = list(list_of_data)
        self.below.writelines([_header(sum(map(len, buffers))), *buffers])

    # -- the end ------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        """Return whether nothing more can be written."""
        return self._is_closing or self.below.is_closing()

    def can_write_eof(self) -> bool:
        """Return False: `close` waits for the client's close frame."""
        return False

    def close(self) -> None:
        """Send a close frame behind all that was written; the client's answer ends it."""
        if self._is_closing:
            return
        self._is_closing = True
        is_begun = self._protocol.state is not OPEN  # by the client, or for its fault
        if not is_begun:
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
        self._send_answers()
        if is_begun:
            self.below.close()

    def abort(self) -> None:
        """Drop the connection without sending the rest."""
        self._is_closing = True
        self.below.abort()


def _drop_traces(protocol: ServerProtocol) -> None:
    """Cut the tracebacks off the errors that the library keeps.

    Their frames hold the library's protocol, the connection and all newly received bytes until the
    next cycle collection, which runs when the broker is idle.
    """
    errors: list[BaseException | None] = [protocol.handshake_exc, protocol.parser_exc]
    while errors:
        error = errors.pop()
        if error is not None:
            error.__traceback__ = None
            errors += (error.__cause__, error.__context__)


def _header(n_bytes: int) -> bytes:
    """Return the header of a whole binary message [MQTT-6.0.0-1]."""
    if n_bytes < 126:
        return bytes((_BINARY, n_bytes))
    if n_bytes < 65_536:
        return bytes((_BINARY, 126)) + n_bytes.to_bytes(2, "big")
    return bytes((_BINARY, 127)) + n_bytes.to_bytes(8, "big")
