"""The client of the queue's HTTP API; imports only the standard library.

So a Spark executor needs no broker. The decoder of the batch format is here for the same reason;
`penstock.plugins.queue.batch_format` documents the format and encodes it.
"""

from __future__ import annotations

import base64
import http.client
import json
import select
import ssl
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise, repeat
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote, urlencode, urlsplit

_T = TypeVar("_T")

BATCH_CONTENT_TYPE: Final = "application/vnd.penstock.batch"
BATCH_MAGIC: Final = b"PQB1"
BATCH_HEADER: Final = struct.Struct("<4sBB2xIQ")
"""Magic, kind, bit map of the columns that are left out, number of messages, bytes of the whole
frame; little-endian, as every number."""
COLUMNS: Final = (
    "enqueued_at",
    "qos",
    "topic",
    "publisher",
    "properties",
    "payload",
    "payload_bytes",
)
"""Columns of a range that a reader may leave out, in the order of the header's bits from 1 on;
``payload_bytes`` are the lengths, which come along with payloads. The offset always comes."""

NEXT_OFFSET_HEADER: Final = "Penstock-Next-Offset"
"""Of the answer to a range: the offset from which it is read on."""
LOOKED_AT_HEADER: Final = "Penstock-Messages"
"""Of the same: messages below that offset, those that the topic filter left out included."""
NOT_ACKNOWLEDGED_HEADER: Final = "Penstock-Not-Acknowledged"
"""Of an answer with messages: JSON, by reason the indexes of the handles that a receive could not
acknowledge. There is none where it has acknowledged all."""

KIND_RECORDS: Final = 0
KIND_DELIVERIES: Final = 1

DEFAULT_GROUP: Final = "default"
"""The group that a queue has where the policy file names none."""

LONG_SECONDS: Final = 3600.0
"""For what goes through a whole queue or database, of many GB on a slow disk."""

Action: TypeAlias = Literal["ack", "nack", "extend", "dead"]
"""What becomes of a received message; see `QueueClient.settle`."""


class QueueError(Exception):
    """A request that the queue refused or did not answer; the subclasses say which by status.

    Attributes:
        status: HTTP status; 0 where no answer came.
        message: the server's message, or why there was no answer.
        answer: the JSON object of the refusal; empty where there was none.
    """

    def __init__(self, status: int, message: str, answer: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{status}: {message}" if status else message)
        self.status = status
        self.message = message
        self.answer = dict(answer or {})

    def __reduce__(self) -> tuple[type[QueueError], tuple[int, str, dict[str, Any]]]:
        return (type(self), (self.status, self.message, self.answer))


class NoAnswerError(QueueError):
    """Nobody answered: no connection, a broken one, or no answer in time."""


class AccessError(QueueError):
    """Status 401 or 403: no valid token, or one without the role that the request needs."""


class UnknownNameError(QueueError):
    """Status 404: no such queue or group."""


class ConflictError(QueueError):
    """Status 409: what the request wants stands against what exists.

    It exists with other settings, the group is of the other kind, or the queue to be deleted is the
    dead letter queue of a group.
    """


class OtherIncarnationError(ConflictError):
    """Status 409: the position is of a queue that was deleted; one of its name was created since.

    Attributes:
        queue: its name.
        incarnation: of the queue that exists.
    """

    @property
    def queue(self) -> str:
        """The name of the queue."""
        return str(self.answer.get("queue", ""))

    @property
    def incarnation(self) -> str:
        """The incarnation of the queue that exists."""
        return str(self.answer["incarnation"])


class RangeGoneError(QueueError):
    """Status 410: the range begins below the earliest offset.

    Attributes:
        earliest: first offset that can be read; None where the server does not say.
    """

    @property
    def earliest(self) -> int | None:
        """The first offset that can be read; None where the server does not say."""
        earliest = self.answer.get("earliest")
        return earliest if isinstance(earliest, int) else None


class BusyError(QueueError):
    """Status 429: too many requests wait, too much is leased, or the queue is full."""


class UnavailableError(QueueError):
    """Status 500 or above: the server or its storage cannot do it at the moment."""


class NoSpaceError(UnavailableError):
    """Status 507: the storage is full."""


class NotStoredError(QueueError):
    """Messages that were refused, while others of the request may have been stored.

    Attributes:
        stored: how many were stored.
        duplicates: indexes of messages that were stored before.
        refused: reason by index of each message that is not stored.
    """

    @property
    def stored(self) -> int:
        """How many were stored."""
        return int(self.answer.get("stored", 0))

    @property
    def duplicates(self) -> list[int]:
        """Indexes of messages that were stored before."""
        return list(self.answer.get("duplicates", []))

    @property
    def refused(self) -> dict[int, str]:
        """The reason for each message that is not stored, by index."""
        return {int(index): reason for index, reason in self.answer["refused"].items()}


_BY_STATUS: Final[Mapping[int, type[QueueError]]] = {
    401: AccessError,
    403: AccessError,
    404: UnknownNameError,
    409: ConflictError,
    410: RangeGoneError,
    429: BusyError,
    507: NoSpaceError,
}


def error_of(status: int, message: str, answer: Mapping[str, Any] | None = None) -> QueueError:
    """Return the error of a refusal, of the class that belongs to it.

    Args:
        status: HTTP status; 0 for no answer.
        message: why.
        answer: the JSON object of the refusal.
    """
    kind = _BY_STATUS.get(status, UnavailableError if status >= _SERVER_ERRORS else QueueError)
    if status == 0:
        kind = NoAnswerError
    elif answer and isinstance(answer.get("refused"), dict) and answer["refused"]:
        kind = NotStoredError
    elif kind is ConflictError and answer and "incarnation" in answer:
        kind = OtherIncarnationError
    return kind(status, message, answer)


_SERVER_ERRORS: Final = 500


class Position(NamedTuple):
    """A place in a logical queue.

    Attributes:
        incarnation: of the queue, a UUID. A queue that is deleted and created again has another.
        offsets: next offset to be read, by number of physical queue.
    """

    incarnation: str
    offsets: Mapping[int, int]


class Plan(NamedTuple):
    """The next range of one queue for a reader of several.

    Attributes:
        end: where the range ends.
        earliest: first offset that the queue holds, by number of physical queue.
        latest: the offset of the next message to be stored, likewise.
    """

    end: Position
    earliest: Mapping[int, int]
    latest: Mapping[int, int]


class RangeAnswer(NamedTuple):
    """The answer to one request for a range.

    Attributes:
        frames: of kind `KIND_RECORDS`, with the columns that were asked for; may be empty.
        next_offset: where to read on; the range's end where all of it was read.
        looked_at: messages of the range below that, with those that match no topic filter.
    """

    frames: bytes
    next_offset: int
    looked_at: int


def is_same_incarnation(one: str, other: str) -> bool:
    """Say whether two incarnations are of one queue.

    Positions in a queue of an upgraded database may have it without dashes.
    """
    return one == other or one.replace("-", "") == other.replace("-", "")


class OutgoingMessage(NamedTuple):
    """A message for `QueueClient.enqueue`.

    Attributes:
        topic: Topic Name.
        payload: payload bytes.
        properties: MQTT 5 properties by name; None for none.
        key: messages with the same key keep their order in a queue that has keys; None for what the
            queue's `key` says.
        delay_seconds: until it can be received; None for the queue's.
        deduplication_id: a second message with the same text is not stored within the queue's
            window; "" for none.
        qos: 0, 1 or 2, as readers are told; None for 1.
    """

    topic: str
    payload: bytes
    properties: Mapping[str, Any] | None = None
    key: str | None = None
    delay_seconds: float | None = None
    deduplication_id: str = ""
    qos: int | None = None


class Enqueued(NamedTuple):
    """What became of the messages of one `QueueClient.enqueue`.

    Attributes:
        stored: how many were stored.
        duplicates: indexes of those that were stored before, by their deduplication identifier.
    """

    stored: int
    duplicates: list[int]


RETAIN: Final = "retain"
"""Beside the properties of a message that was published with the RETAIN flag: true. No publisher
can set it there."""

PUBLISHED_AT_PROPERTY: Final = "penstock-published-at"
"""User property in which a publisher may tell when it published: seconds since the Unix epoch."""

DEAD_LETTER: Final = "dead_letter"
"""Beside the properties of a dead letter: an object with ``queue``, ``physical_queue``, ``group``,
``reason`` (``max_receives`` or ``dead``) and ``receives``. No publisher can set it."""


class Batch(NamedTuple):
    """Messages of one physical queue as parallel lists, each `n_messages` long.

    Attributes:
        offset: offset in the physical queue, ascending.
        topic: Topic Name.
        payload: payload bytes.
        qos: QoS the message was published with.
        publisher: Client Identifier of the publisher; "" where there is none.
        enqueued_at: arrival at the broker, seconds since the Unix epoch.
        properties: MQTT 5 properties as a JSON object, binary values in base64; "" for none. Those
            of a dead letter have `DEAD_LETTER`.
    """

    offset: list[int]
    topic: list[str]
    payload: list[bytes]
    qos: list[int]
    publisher: list[str]
    enqueued_at: list[float]
    properties: list[str]


class ReceivedMessage(NamedTuple):
    """One received message; settle it by its `receipt_handle` once it is processed.

    Attributes:
        receipt_handle: names this receive of the message; opaque.
        receive_count: how often the group has received the message, including this time.
        physical_queue: number of its physical queue.
        offset: its offset there.
        topic: Topic Name.
        payload: payload bytes.
        qos: QoS the message was published with.
        publisher: Client Identifier of the publisher; "" where there is none.
        enqueued_at: arrival at the broker, seconds since the Unix epoch.
        properties: as of `Batch`.
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


class Received(list[ReceivedMessage]):
    """What a receive has brought.

    Attributes:
        failed: by index, what is wrong with a handle that the receive was to acknowledge; see
            `QueueClient.settle`.
    """

    failed: Mapping[int, str] = MappingProxyType({})


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

    def dictionary(self) -> tuple[list[str], tuple[int, ...]]:
        """Read a dictionary-coded column: the distinct texts, and an index for each message."""
        (distinct,) = self.numbers("I", 1)
        if distinct > self.count:
            raise ValueError(f"{distinct} distinct texts in a frame of {self.count} messages")
        return [value.decode() for value in self.slices(distinct)], self.numbers("I")

    def texts(self) -> list[str]:
        """Read a dictionary-coded column as the text of each message."""
        dictionary, indexes = self.dictionary()
        return [dictionary[index] for index in indexes]

    def batch(self) -> Batch:
        """Read the columns that every frame has."""
        offset = list(self.numbers("q"))
        enqueued_at = list(self.numbers("d"))
        qos = list(self.numbers("B"))
        topic, publisher, properties = self.texts(), self.texts(), self.texts()
        return Batch(offset, topic, self.slices(), qos, publisher, enqueued_at, properties)

    def offsets(self) -> tuple[int, ...]:
        """Check the columns that every frame has, and return the offsets.

        Accepts what `batch` accepts, without making an object for each message.
        """
        offset = self.numbers("q")
        self.position += 9 * self.count  # times and QoS
        for _ in range(3):
            dictionary, indexes = self.dictionary()
            if max(indexes, default=-1) >= len(dictionary):
                raise IndexError("a text that the dictionary does not have")
        payload_bytes = self.numbers("I")
        self.position += sum(payload_bytes)
        return offset


def _frames(
    body: bytes, kind: int, read: Callable[[_FrameReader], _T]
) -> Iterator[tuple[_FrameReader, _T]]:
    """Yield each frame of `body`, its common columns read.

    Args:
        body: frames.
        kind: of all of them.
        read: reads these columns.

    Raises:
        ValueError: `body` is not a row of whole frames of this kind.
    """
    position = 0
    while position < len(body):
        try:
            magic, found, left_out, count, frame_bytes = BATCH_HEADER.unpack_from(body, position)
            if magic != BATCH_MAGIC or found != kind or position + frame_bytes > len(body):
                raise ValueError(f"no whole frame of kind {kind} at byte {position}")
            if left_out:
                raise ValueError(f"the frame at byte {position} leaves out columns")
            reader = _FrameReader(body, position + BATCH_HEADER.size, count)
            yield reader, read(reader)
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
    batches = [batch for _, batch in _frames(body, KIND_RECORDS, _FrameReader.batch)]
    return batches[0] if len(batches) == 1 else join_batches(batches)


def read_offsets(body: bytes) -> list[int]:
    """Return the offsets of a row of frames of kind `KIND_RECORDS`.

    Raises:
        ValueError: `read_batch` would not read `body`.
    """
    read = _frames(body, KIND_RECORDS, _FrameReader.offsets)
    return [offset for _, offsets in read for offset in offsets]


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
    for reader, batch in _frames(body, KIND_DELIVERIES, _FrameReader.batch):
        physical_queue, receive_count = reader.numbers("I"), reader.numbers("I")
        handles = [handle.decode() for handle in reader.slices()]
        columns = (handles, receive_count, physical_queue, *batch)
        deliveries += received_messages(zip(*columns, strict=True))
    return deliveries


def received_messages(rows: Iterable[tuple[Any, ...]]) -> Iterator[ReceivedMessage]:
    """Return rows of `ReceivedMessage`'s fields as such, without a call in Python for each."""
    return map(tuple.__new__, repeat(ReceivedMessage), rows)


def read_token(path: str | Path) -> str:
    """Return the bearer token in a file: its only line.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is empty, or holds more than one line.
    """
    lines = Path(path).read_text(encoding="utf-8").strip().splitlines()
    if len(lines) != 1 or not lines[0].isascii() or not lines[0].isprintable():
        raise ValueError(f"{path}: read {len(lines)} lines; allowed: one line, the token in ASCII")
    return lines[0]


class _AtOnce(http.client.HTTPConnection):
    """A connection that sends the header and the body of a request together.

    `http.client` sends them one after the other, so that the server wakes up twice.
    """

    _held: list[bytes] | None = None

    def request_at_once(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> None:
        """Send a request; see `http.client.HTTPConnection.request`."""
        held: list[bytes] = []
        self._held = held
        try:
            self.request(method, path, body, headers)
        finally:
            self._held = None
        self.send(b"".join(held))

    def send(self, data: Any) -> None:
        """Send bytes, or hold them while a request is put together."""
        if self._held is None:
            super().send(data)
        else:
            self._held.append(data)


class _AtOnceTls(_AtOnce, http.client.HTTPSConnection):
    """The same over TLS."""


class QueueClient:
    """Client of the queue's HTTP API on kept-alive connections, one for each thread.

    May be shared by threads and pickled. Every method raises a `QueueError`, by its class, where
    the server refuses or does not answer.

    Args:
        url: of the API, such as ``http://127.0.0.1:8080``.
        timeout_seconds: how long to wait for the server, in addition to the wait of a request.
        token: bearer token; None where the server asks for none.
        ca_file: PEM file of the certificate authority of an ``https`` server; None for those of the
            system.
    """

    def __init__(
        self,
        url: str,
        timeout_seconds: float = 30,
        *,
        token: str | None = None,
        ca_file: str | None = None,
    ) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urlsplit(""), None, None
        if parts.scheme not in ("http", "https") or not host:
            raise ValueError(f"queue URL: read {url!r}; allowed: http://HOST:PORT")
        self.url = url
        self.timeout_seconds = timeout_seconds
        self._token = token
        self._ca_file = ca_file
        self._tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        self._host = host
        self._port = port or (80 if self._tls is None else 443)
        self._prefix = parts.path.rstrip("/")
        self._local = threading.local()

    def __reduce__(self) -> tuple[Callable[..., QueueClient], tuple[str, float, Any, Any]]:
        return (_client, (self.url, self.timeout_seconds, self._token, self._ca_file))

    def close(self) -> None:
        """Close this thread's connection; the next request opens a new one."""
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    # -- queues and groups ---------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        """Return the server's health; an `UnavailableError` says why its storage does not work."""
        return self._ask_json("GET", "/health")

    def queues(self) -> list[dict[str, Any]]:
        """Return the logical queues with their figures, as ``GET /queues`` answers."""
        found: list[dict[str, Any]] = self._ask_json("GET", "/queues")["queues"]
        return found

    def queue(self, queue: str) -> dict[str, Any]:
        """Return one logical queue with its settings, groups and figures."""
        return self._ask_json("GET", _path(queue))

    def put_queue(self, queue: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Create a queue, or give it other settings.

        Args:
            queue: its name.
            settings: keys of a queue in the policy file, such as ``max_messages``; those that are
                left out have their defaults.

        Returns:
            The queue, as `queue` does.
        """
        return self._ask_json("PUT", _path(queue), dict(settings))

    def delete_queue(self, queue: str) -> None:
        """Delete a queue with its messages and groups."""
        self._ask_json("DELETE", _path(queue), more_seconds=LONG_SECONDS, repeat=False)

    def group(self, queue: str, group: str) -> dict[str, Any]:
        """Return a group with its settings, position and figures."""
        return self._ask_json("GET", _path(queue, "groups", group))

    def put_group(self, queue: str, group: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Create a group, or give it other settings; see `put_queue`."""
        return self._ask_json("PUT", _path(queue, "groups", group), dict(settings))

    def delete_group(self, queue: str, group: str) -> None:
        """Delete a group; it holds no messages any more."""
        self._ask_json("DELETE", _path(queue, "groups", group), repeat=False)

    # -- messages ------------------------------------------------------------------------------

    def enqueue(
        self,
        queue: str,
        messages: Iterable[OutgoingMessage | tuple[str, bytes]],
        *,
        publisher: str = "",
    ) -> Enqueued:
        """Store messages; when this returns they are durable.

        Where the connection breaks, the messages may or may not have been stored. The request is
        repeated if each message has a deduplication identifier, else not.

        Args:
            queue: name of the logical queue.
            messages: `OutgoingMessage` or (topic, payload) pairs.
            publisher: stored as the publisher where the server asks for no token; with a token, its
                name is.

        Raises:
            NotStoredError: says which were stored.
            QueueError: none are known to be stored.
        """
        rows = [_row(OutgoingMessage(*message), publisher) for message in messages]
        path = _path(queue, "messages")
        is_repeatable = all("deduplication_id" in row for row in rows)
        answer = self._ask_json("POST", path, {"messages": rows}, repeat=is_repeatable)
        return Enqueued(answer["stored"], answer.get("duplicates", []))

    def receive(
        self,
        queue: str,
        group: str = DEFAULT_GROUP,
        *,
        max_messages: int = 10,
        wait_seconds: float = 0,
        visibility_timeout: float | None = None,
        min_messages: int = 1,
        min_bytes: int = 0,
        acknowledge: Sequence[str] = (),
    ) -> Received:
        """Receive messages; each is invisible to other receivers of the group for a while.

        Settle each processed message within the visibility timeout, or it is delivered again. What
        the last receive has brought may be acknowledged with the next one: this takes one request
        where `settle` and `receive` take two. It is done before the server waits for messages; when
        this raises, the messages may or may not be acknowledged, and the handles can be used again.

        Args:
            queue: name of the logical queue.
            group: of kind `lease`.
            max_messages: most messages of the answer (N_max of papers 000 and 001).
            wait_seconds: how long the server may hold the request until enough has arrived.
            visibility_timeout: seconds; None for the group's.
            min_messages: how many messages are enough, where the queue's `dequeue` is `rds+wake`.
            min_bytes: how many payload bytes are enough, the same.
            acknowledge: receipt handles of processed messages of this group, at most 1,000.

        Returns:
            The messages; an empty list where none came in time. `Received.failed` says what could
            not be acknowledged.
        """
        body: dict[str, Any] = {"max_messages": max_messages, "wait_seconds": wait_seconds}
        if visibility_timeout is not None:
            body["visibility_timeout"] = visibility_timeout
        if min_messages != 1:
            body["min_messages"] = min_messages
        if min_bytes:
            body["min_bytes"] = min_bytes
        if acknowledge:
            body["acknowledge"] = list(acknowledge)
        path = _path(queue, "groups", group, "receive")
        return self._ask_deliveries(path, body, wait_seconds)

    def settle(
        self,
        queue: str,
        receipt_handles: Sequence[str],
        action: Action = "ack",
        *,
        group: str = DEFAULT_GROUP,
        seconds: float = 0,
    ) -> dict[int, str]:
        """Settle received messages; repeating it does no harm.

        Args:
            queue: name of the logical queue.
            receipt_handles: of the receives.
            action: `ack` when the message is done with, `nack` to make it visible after `seconds`,
                `extend` to keep it invisible for `seconds` from this moment, `dead` to make it a
                dead letter.
            group: in which it was received.
            seconds: see `action`.

        Returns:
            By index, what is wrong with a handle that settled nothing: ``stale`` where the message
            was settled or received again since, ``unknown`` where it is of no receive here.
        """
        body = {"action": action, "receipt_handles": list(receipt_handles), "seconds": seconds}
        answer = self._ask_json("POST", _path(queue, "groups", group, "settle"), body)
        return {int(index): reason for index, reason in answer["failed"].items()}

    def peek(
        self, queue: str, *, group: str | None = None, max_messages: int = 10
    ) -> list[dict[str, Any]]:
        """Return waiting messages as JSON values, payloads in base64; nothing changes.

        Args:
            queue: name of the logical queue.
            group: whose messages; None for all that the queue holds.
            max_messages: most messages of the answer.
        """
        query: dict[str, Any] = {"max_messages": max_messages}
        if group is not None:
            query["group"] = group
        path = f"{_path(queue, 'peek')}?{urlencode(query)}"
        found: list[dict[str, Any]] = self._ask_json("GET", path)["messages"]
        return found

    # -- positions and ranges ------------------------------------------------------------------

    def position(self, queue: str, at: str | float = "earliest") -> Position:
        """Return a position: `earliest`, `latest`, or by arrival in seconds since the Unix epoch.

        The range between the earliest and the latest can be read, repeatedly.
        """
        path = f"{_path(queue, 'position')}?{urlencode({'at': at})}"
        return _position(self._ask_json("GET", path), path)

    def plan(
        self,
        queue: str,
        start: Position | None = None,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        wait_seconds: float = 0,
    ) -> Position:
        """Return the end of the next range for a reader.

        Args:
            queue: name of the logical queue.
            start: where it begins; None for the earliest offsets.
            max_messages: messages of all physical queues; None for all.
            max_bytes: the same in stored bytes, about.
            wait_seconds: how long the server may hold the request while nothing is there.

        Returns:
            A position, equal to `start` where nothing is there.

        Raises:
            OtherIncarnationError: the queue was deleted and created again.
        """
        body: dict[str, Any] = {"wait_seconds": wait_seconds}
        if start is not None:
            body |= _position_json(start)
        if max_messages is not None:
            body["max_messages"] = max_messages
        if max_bytes is not None:
            body["max_bytes"] = max_bytes
        path = _path(queue, "plan")
        return _position(self._ask_json("POST", path, body, more_seconds=wait_seconds), path)

    def plan_queues(
        self,
        starts: Mapping[str, Position],
        *,
        until: Mapping[str, Mapping[int, int]] | None = None,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        wait_seconds: float = 0,
    ) -> dict[str, Plan]:
        """Return the end of the next range of several queues, which share the limits.

        Args:
            starts: where the range begins, by queue. A physical queue that a start lacks begins at
                its earliest offset.
            until: offsets that the range does not exceed, by queue; None for the end of each
                queue. A physical queue that it lacks is not read.
            max_messages: messages of all queues; None for all.
            max_bytes: the same in stored bytes, about.
            wait_seconds: how long the server may hold the request while no queue has messages.

        Returns:
            The plan of each queue.

        Raises:
            OtherIncarnationError: a queue was deleted and created again; the error names it.
        """
        queues: dict[str, Any] = {queue: _position_json(at) for queue, at in starts.items()}
        for queue, ends in (until or {}).items():
            queues[queue]["until"] = {str(number): end for number, end in ends.items()}
        body: dict[str, Any] = {"queues": queues, "wait_seconds": wait_seconds}
        if max_messages is not None:
            body["max_messages"] = max_messages
        if max_bytes is not None:
            body["max_bytes"] = max_bytes
        answer = self._ask_json("POST", "/plan", body, more_seconds=wait_seconds)
        try:
            return {queue: _plan(answer["queues"][queue]) for queue in starts}
        except (KeyError, TypeError, AttributeError) as error:
            raise QueueError(200, "answer of /plan has no plans") from error

    def read_columns(
        self,
        queue: str,
        physical_queue: int,
        start: int,
        end: int,
        columns: Sequence[str] = COLUMNS,
        *,
        topic_filters: Sequence[str] = (),
        incarnation: str | None = None,
    ) -> RangeAnswer:
        """Read a part of a range, with some of its columns, in one request.

        Args:
            queue: name of the logical queue.
            physical_queue: number of the physical queue.
            start: first offset.
            end: the offset after the last.
            columns: of `COLUMNS`.
            topic_filters: MQTT topic filters; only messages that match one come. Empty for all.
            incarnation: of the queue that the offsets are of; None where that is not known.

        Raises:
            RangeGoneError: `start` has left the queue.
            OtherIncarnationError: the queue was deleted and created again.
        """
        query: list[tuple[str, Any]] = [("start", start), ("end", end)]
        query.append(("columns", ",".join(columns)))
        query += [("topic_filter", one) for one in topic_filters]
        if incarnation is not None:
            query.append(("incarnation", incarnation))
        path = f"{_path(queue, 'physical', str(physical_queue), 'range')}?{urlencode(query)}"
        frames, headers = self._send("GET", path, accept=BATCH_CONTENT_TYPE)
        try:
            next_offset, looked_at = headers[NEXT_OFFSET_HEADER], headers[LOOKED_AT_HEADER]
            return RangeAnswer(frames, int(next_offset), int(looked_at))
        except (TypeError, ValueError) as error:
            raise QueueError(200, f"answer of {path} lacks {NEXT_OFFSET_HEADER}") from error

    def read_range(
        self,
        queue: str,
        physical_queue: int,
        start: int,
        end: int,
        max_messages: int | None = None,
        *,
        incarnation: str | None = None,
    ) -> Batch:
        """Read the messages of one physical queue with ``start <= offset < end``.

        The same range gives the same messages until it is committed.

        Args:
            queue: name of the logical queue.
            physical_queue: number of the physical queue.
            start: first offset.
            end: the offset after the last.
            max_messages: stop after so many; None for all.
            incarnation: of the queue that the offsets are of; None where that is not known.

        Raises:
            RangeGoneError: `start` has left the queue.
            OtherIncarnationError: the queue was deleted and created again.
        """
        batches: list[Batch] = []
        missing = end - start if max_messages is None else min(max_messages, end - start)
        while missing > 0 and start < end:
            query = {"start": start, "end": end, "max_messages": missing}
            known = {} if incarnation is None else {"incarnation": incarnation}
            path = _path(queue, "physical", str(physical_queue), "range")
            path = f"{path}?{urlencode(query | known)}"
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

    def commit(self, queue: str, group: str, position: Position) -> None:
        """Tell that a group of kind `offsets` is done with all below a position; may be repeated.

        Raises:
            OtherIncarnationError: the queue was deleted and created again.
        """
        self._ask_json("POST", _path(queue, "groups", group, "commit"), _position_json(position))

    def seek(self, queue: str, group: str, to: str | float) -> Position:
        """Move a group to `earliest`, `latest`, or a time in seconds since the Unix epoch.

        Returns:
            Where it is then.
        """
        path = _path(queue, "groups", group, "seek")
        return _position(self._ask_json("POST", path, {"to": to}), path)

    # -- operation -----------------------------------------------------------------------------

    def purge(self, queue: str) -> int:
        """Remove all messages of a queue; return how many."""
        removed: int = self._ask_long(_path(queue, "purge"), {})["removed"]
        return removed

    def redrive(
        self, queue: str, *, target: str | None = None, max_messages: int | None = None
    ) -> int:
        """Move dead letters back; return how many.

        Args:
            queue: of the dead letters.
            target: queue for all of them; None for the one in which each died.
            max_messages: at most; None for all.
        """
        body: dict[str, Any] = {}
        if target is not None:
            body["target"] = target
        if max_messages is not None:
            body["max_messages"] = max_messages
        moved: int = self._ask_long(_path(queue, "redrive"), body)["moved"]
        return moved

    def compact(self) -> int:
        """Give all unused space of the storage back; return the bytes that it takes less."""
        freed: int = self._ask_long("/compact", {})["freed_bytes"]
        return freed

    def backup(self, path: str) -> int:
        """Write a copy of the storage to a new file on the server; return its bytes."""
        written: int = self._ask_long("/backup", {"path": path})["bytes"]
        return written

    # -- requests ------------------------------------------------------------------------------

    def _ask_deliveries(self, path: str, body: Mapping[str, Any], wait_seconds: float) -> Received:
        answer, headers = self._send(
            "POST", path, body, accept=BATCH_CONTENT_TYPE, more_seconds=wait_seconds
        )
        try:
            found = Received(read_deliveries(answer))
            if NOT_ACKNOWLEDGED_HEADER in headers:
                told = json.loads(headers[NOT_ACKNOWLEDGED_HEADER])
                found.failed = {int(one): why for why, some in told.items() for one in some}
        except (ValueError, TypeError, AttributeError) as error:
            raise QueueError(200, f"answer of {path}: {error}") from error
        return found

    def _ask_long(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Ask for what may take long; it is not repeated when the connection breaks."""
        return self._ask_json("POST", path, body, more_seconds=LONG_SECONDS, repeat=False)

    def _ask_json(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        more_seconds: float = 0,
        repeat: bool = True,
    ) -> dict[str, Any]:
        answer = self._ask(method, path, body, more_seconds=more_seconds, repeat=repeat)
        try:
            value = json.loads(answer)
        except ValueError as error:
            raise QueueError(200, f"answer of {path} is no JSON: {error}") from error
        if not isinstance(value, dict):
            raise QueueError(200, f"answer of {path} is no JSON object")
        return value

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
        """Send one request and return the answer's body; see `_send`."""
        return self._send(
            method, path, body, accept=accept, more_seconds=more_seconds, repeat=repeat
        )[0]

    def _send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        accept: str = "application/json",
        more_seconds: float = 0,
        repeat: bool = True,
    ) -> tuple[bytes, http.client.HTTPMessage]:
        """Send one request and return the answer's body and headers.

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
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        if data is not None:
            headers["Content-Type"] = "application/json"
        timeout = self.timeout_seconds + more_seconds
        while True:
            connection, is_reused = self._connection(timeout)
            try:
                connection.request_at_once(method, self._prefix + path, data, headers)
                response = connection.getresponse()
                answer = response.read()
            except (OSError, http.client.HTTPException) as error:
                self.close()
                was_cut = isinstance(error, (ConnectionError, http.client.RemoteDisconnected))
                if is_reused and repeat and was_cut:
                    continue
                reason = str(error) or type(error).__name__
                raise NoAnswerError(0, f"no answer from {self.url}: {reason}") from error
            if response.status == http.HTTPStatus.OK:
                return answer, response.headers
            raise _refusal(response.status, answer)

    def _connection(self, timeout: float) -> tuple[_AtOnce, bool]:
        """Return this thread's connection and whether it was used before."""
        connection: _AtOnce | None = getattr(self._local, "connection", None)
        if connection is not None and connection.sock is not None:
            # Readable without a request: the server has closed the connection.
            poll = select.poll()
            poll.register(connection.sock, select.POLLIN)
            if not poll.poll(0):
                connection.sock.settimeout(timeout)
                return connection, True
            connection.close()
        if self._tls is None:
            connection = _AtOnce(self._host, self._port, timeout=timeout)
        else:
            connection = _AtOnceTls(self._host, self._port, timeout=timeout, context=self._tls)
        self._local.connection = connection
        return connection, False


def _client(
    url: str, timeout_seconds: float, token: str | None, ca_file: str | None
) -> QueueClient:
    """Make a client again that was pickled."""
    return QueueClient(url, timeout_seconds, token=token, ca_file=ca_file)


def _path(queue: str, *parts: str) -> str:
    return "/".join(["/queues", *(quote(part, safe="") for part in (queue, *parts))])


def _row(message: OutgoingMessage, publisher: str) -> dict[str, Any]:
    """Return a message as JSON value; what it has not is left out."""
    payload = base64.b64encode(message.payload).decode()
    optional = {
        "publisher": publisher or None,
        "properties": message.properties and dict(message.properties),
        "key": message.key,
        "delay_seconds": message.delay_seconds,
        "deduplication_id": message.deduplication_id or None,
        "qos": message.qos,
    }
    given = {name: value for name, value in optional.items() if value is not None}
    return {"topic": message.topic, "payload": payload} | given


def _position_json(position: Position) -> dict[str, Any]:
    offsets = {str(number): offset for number, offset in position.offsets.items()}
    return {"incarnation": position.incarnation, "offsets": offsets}


def _position(answer: Mapping[str, Any], path: str) -> Position:
    try:
        offsets = {int(number): int(offset) for number, offset in answer["offsets"].items()}
        return Position(str(answer["incarnation"]), offsets)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise QueueError(200, f"answer of {path} is no position") from error


def _plan(answer: Mapping[str, Any]) -> Plan:
    earliest, latest = (
        {int(number): int(offset) for number, offset in answer[key].items()}
        for key in ("earliest", "latest")
    )
    return Plan(_position(answer, "/plan"), earliest, latest)


def _refusal(status: int, answer: bytes) -> QueueError:
    """Return the error of a refusal, whatever program sent it."""
    said: dict[str, Any] = {}
    try:
        read = json.loads(answer)
        message = str(read["error"])
        said = read
    except (ValueError, KeyError, TypeError):
        message = answer.decode(errors="replace").strip()
    return error_of(status, message or "the server gave no reason", said)
