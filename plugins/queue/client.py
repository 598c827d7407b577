"""The client of the queue's HTTP API; imports only the standard library.

So a Spark executor needs no broker. The decoder of the batch format is here for the same reason;
`penstock.plugins.queue.batch_format` documents the format and encodes it.
"""

from __future__ import annotations

import base64
import http.client
import json
import select
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

BATCH_CONTENT_TYPE: Final = "application/vnd.penstock.batch"
BATCH_MAGIC: Final = b"PQB1"
BATCH_HEADER: Final = struct.Struct("<4sB3xIQ")
"""Magic, kind, number of messages, bytes of the whole frame; little-endian, as every number."""
KIND_RECORDS: Final = 0
KIND_DELIVERIES: Final = 1


class QueueError(Exception):
    """A request that the queue refused or did not answer.

    Attributes:
        status: HTTP status; 0 where no answer came.
        message: the server's message, or why there was no answer.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}" if status else message)
        self.status = status
        self.message = message

    def __reduce__(self) -> tuple[type[QueueError], tuple[int, str]]:
        return (QueueError, (self.status, self.message))


class Batch(NamedTuple):
    """Messages of one physical queue as parallel lists, each `n_messages` long.

    Attributes:
        offset: offset in the physical queue, ascending.
        topic: Topic Name.
        payload: payload bytes.
        qos: QoS the message was published with.
        publisher: Client Identifier of the publisher; "" where there is none.
        enqueued_at: arrival at the broker, seconds since the Unix epoch.
        properties: MQTT 5 properties as a JSON object, binary values in base64; "" for none.
    """

    offset: list[int]
    topic: list[str]
    payload: list[bytes]
    qos: list[int]
    publisher: list[str]
    enqueued_at: list[float]
    properties: list[str]


class ReceivedMessage(NamedTuple):
    """One dequeued message; delete it by its `receipt_handle` once it is processed.

    Attributes:
        receipt_handle: names this receive of the message; opaque.
        receive_count: how often the message was received since the server started, including this
            time.
        physical_queue: number of its physical queue.
        offset: its offset there.
        topic: Topic Name.
        payload: payload bytes.
        qos: QoS the message was published with.
        publisher: Client Identifier of the publisher; "" where there is none.
        enqueued_at: arrival at the broker, seconds since the Unix epoch.
        properties: MQTT 5 properties as a JSON object; "" for none.
    """

    receipt_handle: str
    receive_count: int
    physical_queue: int
    offset: int
    topic: str
    payload: bytes
    qos: int
    publisher: str
    enqueued_at: float
    properties: str


class _FrameReader:
    """Reads the columns of one frame in their order."""

    def __init__(self, body: bytes, position: int, count: int) -> None:
        self.body = body
        self.position = position
        self.count = count

    def numbers(self, code: str, count: int | None = None) -> tuple[Any, ...]:
        """Read one fixed-width column; `code` is a `struct` format character."""
        column = struct.Struct(f"<{self.count if count is None else count}{code}")
        values = column.unpack_from(self.body, self.position)
        self.position += column.size
        return values

    def slices(self, count: int | None = None) -> list[bytes]:
        """Read a column of byte strings: all lengths, then all bytes."""
        lengths = self.numbers("I", count)
        body = self.body
        ends = accumulate(lengths, initial=self.position)
        values = [body[start:end] for start, end in pairwise(ends)]
        self.position += sum(lengths)
        return values

    def texts(self) -> list[str]:
        """Read a dictionary-coded column: the distinct texts, then an index for each message."""
        (distinct,) = self.numbers("I", 1)
        dictionary = [value.decode() for value in self.slices(distinct)]
        return [dictionary[index] for index in self.numbers("I")]

    def batch(self) -> Batch:
        """Read the columns that every frame has."""
        offset = list(self.numbers("q"))
        enqueued_at = list(self.numbers("d"))
        qos = list(self.numbers("B"))
        topic, publisher, properties = self.texts(), self.texts(), self.texts()
        return Batch(offset, topic, self.slices(), qos, publisher, enqueued_at, properties)


def _frames(body: bytes, kind: int) -> Iterator[tuple[_FrameReader, Batch]]:
    """Yield each frame of `body`, its common columns read.

    Raises:
        ValueError: `body` is not a row of whole frames of this kind.
    """
    position = 0
    while position < len(body):
        try:
            magic, found, count, frame_bytes = BATCH_HEADER.unpack_from(body, position)
            if magic != BATCH_MAGIC or found != kind or position + frame_bytes > len(body):
                raise ValueError(f"no whole frame of kind {kind} at byte {position}")
            reader = _FrameReader(body, position + BATCH_HEADER.size, count)
            yield reader, reader.batch()
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise ValueError(f"broken frame at byte {position}: {error}") from error
        if reader.position != position + frame_bytes:
            raise ValueError(f"broken frame at byte {position}: its columns do not fill it")
        position = reader.position


def read_batch(body: bytes) -> Batch:
    """Return the messages of a row of frames of kind `KIND_RECORDS` as one batch.

    Raises:
        ValueError: `body` is not a row of whole frames.
    """
    batches = [batch for _, batch in _frames(body, KIND_RECORDS)]
    return batches[0] if len(batches) == 1 else join_batches(batches)


def join_batches(batches: Sequence[Batch]) -> Batch:
    """Return one batch with the messages of all, in their order."""
    columns = (
        list(chain.from_iterable(batch[number] for batch in batches))
        for number in range(len(Batch._fields))
    )
    return Batch._make(columns)


def read_deliveries(body: bytes) -> list[ReceivedMessage]:
    """Return the messages of a row of frames of kind `KIND_DELIVERIES`.

    Raises:
        ValueError: `body` is not a row of whole frames.
    """
    deliveries: list[ReceivedMessage] = []
    for reader, batch in _frames(body, KIND_DELIVERIES):
        physical_queue, receive_count = reader.numbers("I"), reader.numbers("I")
        handles = [handle.decode() for handle in reader.slices()]
        columns = (handles, receive_count, physical_queue, *batch)
        deliveries += map(ReceivedMessage._make, zip(*columns, strict=True))
    return deliveries


class QueueClient:
    """Client of the queue's HTTP API on kept-alive connections, one for each thread.

    May be shared by threads and pickled.

    Args:
        url: of the API, such as ``http://127.0.0.1:8080``.
        timeout_seconds: how long to wait for the server, in addition to the wait of a request.
    """

    def __init__(self, url: str, timeout_seconds: float = 30) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"queue URL: read {url!r}; allowed: http://HOST:PORT")
        self.url = url
        self.timeout_seconds = timeout_seconds
        self._is_tls = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port or (443 if self._is_tls else 80)
        self._prefix = parts.path.rstrip("/")
        self._local = threading.local()

    def __reduce__(self) -> tuple[type[QueueClient], tuple[str, float]]:
        return (QueueClient, (self.url, self.timeout_seconds))

    def close(self) -> None:
        """Close this thread's connection; the next request opens a new one."""
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def queues(self) -> list[dict[str, Any]]:
        """Return the logical queues with their figures, as ``GET /queues`` answers.

        Raises:
            QueueError: no answer, or a refusal.
        """
        found: list[dict[str, Any]] = self._ask_json("GET", "/queues")["queues"]
        return found

    def enqueue(
        self, queue: str, messages: Iterable[tuple[str, bytes]], *, publisher: str = ""
    ) -> int:
        """Store messages; when this returns they are durable.

        It is not repeated when the connection breaks: the messages may or may not have been stored
        then.

        Args:
            queue: name of the logical queue.
            messages: (topic, payload) pairs.
            publisher: stored as the publisher.

        Returns:
            How many messages were stored.

        Raises:
            QueueError: the messages may not have been stored.
        """
        rows = [
            {
                "topic": topic,
                "payload": base64.b64encode(payload).decode(),
                "publisher": publisher,
            }
            for topic, payload in messages
        ]
        path = f"/queues/{quote(queue, safe='')}/messages"
        stored: int = self._ask_json("POST", path, {"messages": rows}, repeat=False)["enqueued"]
        return stored

    def dequeue(
        self, queue: str, n_max: int = 10, wait_seconds: float = 0
    ) -> list[ReceivedMessage]:
        """Receive up to `n_max` messages; each is invisible to other receivers for a while.

        Delete each processed message within the queue's visibility timeout, or it is delivered
        again.

        Args:
            queue: name of the logical queue.
            n_max: most messages of the answer (N_max of papers 000 and 001).
            wait_seconds: how long the server may wait for a first message.

        Returns:
            The messages; an empty list where none came in time.

        Raises:
            QueueError: no answer, or a refusal.
        """
        path = f"/queues/{quote(queue, safe='')}/dequeue"
        body = {"n_max": n_max, "wait_seconds": wait_seconds}
        answer = self._ask("POST", path, body, accept=BATCH_CONTENT_TYPE, more_seconds=wait_seconds)
        try:
            return read_deliveries(answer)
        except ValueError as error:
            raise QueueError(200, f"answer of {path}: {error}") from error

    def delete(self, queue: str, receipt_handles: Sequence[str]) -> list[str]:
        """Delete processed messages; repeating it does no harm.

        Returns:
            The handles that named no message: it was deleted before, or received again by another
            client after the visibility timeout.

        Raises:
            QueueError: nothing is known to be deleted.
        """
        path = f"/queues/{quote(queue, safe='')}/delete"
        body = {"receipt_handles": list(receipt_handles)}
        unknown: list[str] = self._ask_json("POST", path, body)["unknown"]
        return unknown

    def offsets(self, queue: str) -> dict[int, tuple[int, int]]:
        """Return (earliest, next) for each physical queue.

        `earliest` is the first existing offset, `next` that of the next message: the range
        ``[earliest, next)`` can be read, repeatedly.

        Raises:
            QueueError: no answer, or a refusal.
        """
        answer = self._ask_json("GET", f"/queues/{quote(queue, safe='')}/offsets")
        return {
            int(number): (offsets["earliest"], offsets["next"])
            for number, offsets in answer["physical_queues"].items()
        }

    def read_range(
        self,
        queue: str,
        physical_queue: int,
        start: int,
        end: int,
        max_messages: int | None = None,
    ) -> Batch:
        """Read the messages of one physical queue with ``start <= offset < end``.

        The same range gives the same messages until it is committed.

        Args:
            queue: name of the logical queue.
            physical_queue: number of the physical queue.
            start: first offset.
            end: the offset after the last.
            max_messages: stop after so many; None for all.

        Raises:
            QueueError: no answer, or a refusal; status 410 where `start` was committed before.
        """
        batches: list[Batch] = []
        missing = end - start if max_messages is None else min(max_messages, end - start)
        while missing > 0 and start < end:
            query = urlencode({"start": start, "end": end, "max_messages": missing})
            path = f"/queues/{quote(queue, safe='')}/physical/{physical_queue}/range?{query}"
            body = self._ask("GET", path, accept=BATCH_CONTENT_TYPE)
            try:
                batch = read_batch(body)
            except ValueError as error:
                raise QueueError(200, f"answer of {path}: {error}") from error
            if not batch.offset:
                break
            batches.append(batch)
            missing -= len(batch.offset)
            start = batch.offset[-1] + 1
        return batches[0] if len(batches) == 1 else join_batches(batches)

    def commit(self, queue: str, offsets: Mapping[int, int]) -> None:
        """Delete everything below the given offset of each physical queue; may be repeated.

        Raises:
            QueueError: nothing is known to be deleted.
        """
        body = {"offsets": {str(number): offset for number, offset in offsets.items()}}
        self._ask_json("POST", f"/queues/{quote(queue, safe='')}/commit", body)

    def _ask_json(self, method: str, path: str, body: Any = None, *, repeat: bool = True) -> Any:
        answer = self._ask(method, path, body, repeat=repeat)
        try:
            return json.loads(answer)
        except ValueError as error:
            raise QueueError(200, f"answer of {path} is no JSON: {error}") from error

    def _ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        accept: str = "application/json",
        more_seconds: float = 0,
        repeat: bool = True,
    ) -> bytes:
        """Send one request and return the answer's body.

        Args:
            method: HTTP method.
            path: path below the URL that the client was made with.
            body: JSON value; None for none.
            accept: content type to ask for.
            more_seconds: how long the request itself may take, in addition to the timeout.
            repeat: whether to repeat the request once where a kept-alive connection broke.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": accept}
        if data is not None:
            headers["Content-Type"] = "application/json"
        timeout = self.timeout_seconds + more_seconds
        while True:
            connection, is_reused = self._connection(timeout)
            try:
                connection.request(method, self._prefix + path, data, headers)
                response = connection.getresponse()
                answer = response.read()
            except (OSError, http.client.HTTPException) as error:
                self.close()
                was_cut = isinstance(error, (ConnectionError, http.client.RemoteDisconnected))
                if is_reused and repeat and was_cut:
                    continue
                reason = str(error) or type(error).__name__
                raise QueueError(0, f"no answer from {self.url}: {reason}") from error
            if response.status == http.HTTPStatus.OK:
                return answer
            raise QueueError(response.status, _refusal(answer))

    def _connection(self, timeout: float) -> tuple[http.client.HTTPConnection, bool]:
        """Return this thread's connection and whether it was used before."""
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is not None and connection.sock is not None:
            # Readable without a request: the server has closed the connection.
            poll = select.poll()
            poll.register(connection.sock, select.POLLIN)
            if not poll.poll(0):
                connection.sock.settimeout(timeout)
                return connection, True
            connection.close()
        kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=timeout)
        self._local.connection = connection
        return connection, False


def _refusal(answer: bytes) -> str:
    """Return the message of an error answer, whatever program sent it."""
    try:
        said = json.loads(answer)["error"]
    except (ValueError, KeyError, TypeError):
        said = answer.decode(errors="replace").strip()
    return str(said) or "the server gave no reason"
