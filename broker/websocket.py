"""WebSocket (RFC 6455) between a transport and MQTT, as section 6 of MQTT has it.

The library `websockets` reads frames, shakes hands, answers pings and closes; it does no I/O. What
is sent does not pass it: a server's frames are not masked, so that a frame is a header of a few
bytes before buffers that go on by reference. One write makes one frame, and MQTT packets need not
keep to frames in either direction [MQTT-6.0.0-2].
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.typing import Origin, Subprotocol

from broker.arrival import Arrival, Layer
from broker.listener_config import Listener

SUBPROTOCOLS: Final = (Subprotocol("mqtt"), Subprotocol("mqttv3.1"))
"""The first that a client offers is chosen [MQTT-6.0.0-4]; the second is what clients before MQTT
3.1.1 ask for."""

MAX_STRANGER_BYTES: Final = 1024 * 1024 + 4096
"""Before a CONNECT is accepted: the longest of them, and its frames."""

MAX_REQUEST_BYTES: Final = 16_384
"""Of the request that asks for a WebSocket: a page's cookies fit."""

MIN_MESSAGE_BYTES: Final = 1024 * 1024
"""A message may hold many packets, each below the limit for one."""

_METHOD: Final = b"GET "
_PONG: Final = 0x80 | Opcode.PONG
_BINARY: Final = 0x80 | Opcode.BINARY

# The library's lines tell each step; ours say what became of the connection.
_LOGGER: Final = logging.getLogger("penstock.websocket")
_LOGGER.setLevel(logging.ERROR)


class WebSocketLayer(Layer):
    """The server's side of one WebSocket connection."""

    def __init__(
        self, above: asyncio.Protocol, arrival: Arrival, listener: Listener, max_bytes: int
    ) -> None:
        """Wait for a connection.

        Args:
            above: the protocol that speaks MQTT.
            arrival: of the connection.
            listener: it comes in on.
            max_bytes: of the largest packet a client may send.
        """
        super().__init__(above, arrival)
        origins = listener.allowed_origins
        self._path = listener.path
        self._protocol = ServerProtocol(
            # A client that names no origin is no page of a browser, which is what this is about.
            origins=None if origins is None else [*map(Origin, origins), None],
            subprotocols=SUBPROTOCOLS,
            max_size=max(max_bytes + 5, MIN_MESSAGE_BYTES),
            logger=_LOGGER,
        )
        self._n_received = 0
        self._beginning = b""
        self._is_closing = False

    # -- reading ------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take in frames, hand on what they hold, answer what needs an answer."""
        if self.below.is_closing():
            return
        if not self.is_open and not self._may_be_request(data):
            return
        if not self.arrival.is_known:
            self._n_received += len(data)
            maximum = MAX_STRANGER_BYTES if self.is_open else MAX_REQUEST_BYTES
            if self._n_received > maximum:
                self._refuse(f"more than {maximum} bytes before a CONNECT was accepted")
                return
        protocol = self._protocol
        protocol.receive_data(data)
        payloads = []
        for event in protocol.events_received():
            if isinstance(event, Request):
                self._answer(event)
            elif isinstance(event, Frame):
                if event.opcode is Opcode.TEXT:  # [MQTT-6.0.0-1]
                    protocol.fail(CloseCode.UNSUPPORTED_DATA, "MQTT travels in binary frames")
                    self.arrival.note("websocket", "closed: a text frame; allowed: binary")
                    break
                if event.opcode in (Opcode.BINARY, Opcode.CONT):
                    payloads.append(event.data)
        if protocol.handshake_exc is not None and not self._is_closing:
            self._refuse_as_no_request()
        elif payloads and not self._is_closing:
            self.above.data_received(
                b"".join(payloads) if len(payloads) > 1 else bytes(payloads[0])
            )
        self._send_answers()

    def _may_be_request(self, data: bytes) -> bool:
        """Refuse at its first bytes what is no request for a WebSocket."""
        if len(self._beginning) < len(_METHOD):
            self._beginning += data[: len(_METHOD)]
            if not _METHOD.startswith(self._beginning[: len(_METHOD)]):
                self._refuse_as_no_request()
                return False
        return True

    def _refuse_as_no_request(self) -> None:
        self._is_closing = True
        response = self._protocol.reject(
            HTTPStatus.BAD_REQUEST, "This is a WebSocket listener for MQTT.\n"
        )
        self.below.write(response.serialize())
        self.arrival.fail("websocket", "no WebSocket: not a GET request of HTTP/1.1")

    def _answer(self, request: Request) -> None:
        protocol = self._protocol
        path = request.path.partition("?")[0]
        if self._path is not None and path != self._path:
            response = protocol.reject(HTTPStatus.NOT_FOUND, f"MQTT is at {self._path}.\n")
        else:
            response = protocol.accept(request)
        protocol.send_response(response)
        if response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            self._send_answers()
            self._n_received = 0
            self.open()
        else:
            self._refuse_request(request, response)

    def _refuse_request(self, request: Request, response: Response) -> None:
        self._send_answers()
        error = self._protocol.handshake_exc
        detail = f"path {request.path}" if error is None else str(error)
        self.arrival.fail("websocket", f"no WebSocket: {response.status_code}: {detail}")

    def _refuse(self, detail: str) -> None:
        if self.is_open:
            self._protocol.fail(CloseCode.MESSAGE_TOO_BIG, detail)
            self._send_answers()
            self.arrival.note("websocket", f"closed: {detail}")
        else:
            self.arrival.fail("websocket", f"no WebSocket: {detail}")

    def _send_answers(self) -> None:
        """Write what the library wants written: the handshake, pongs, its close."""
        protocol = self._protocol
        for data in protocol.data_to_send():
            if not data:  # the end
                if protocol.parser_exc is not None and not self._is_closing and self.is_open:
                    self.arrival.note("websocket", f"closed: {protocol.parser_exc}")
                self._is_closing = True
                self.below.close()
            elif data[0] != _PONG or not self.is_below_paused:
                # Who pings and does not read gets no pongs, of which only the last one matters
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

    def close(self) -> None:
        """Say goodbye behind all that was written; the client's answer ends the connection."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._protocol.state is OPEN:
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
            self._send_answers()
        else:
            self.below.close()

    def abort(self) -> None:
        """Drop the connection without sending what is left."""
        self._is_closing = True
        self.below.abort()


def _header(n_bytes: int) -> bytes:
    """Return the header of a whole binary message [MQTT-6.0.0-1]."""
    if n_bytes < 126:
        return bytes((_BINARY, n_bytes))
    if n_bytes < 65_536:
        return bytes((_BINARY, 126)) + n_bytes.to_bytes(2, "big")
    return bytes((_BINARY, 127)) + n_bytes.to_bytes(8, "big")
