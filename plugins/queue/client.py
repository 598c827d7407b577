"""The client of the queue's HTTP API, with the names that its users need.

It and `wire/` import nothing else but the standard library, so a Spark executor needs no broker.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import quote, urlencode

from penstock.plugins.queue.wire.connection import Requests, read_token
from penstock.plugins.queue.wire.frames import (
    BATCH_CONTENT_TYPE,
    COLUMNS,
    LOOKED_AT_HEADER,
    NEXT_OFFSET_HEADER,
    NOT_ACKNOWLEDGED_HEADER,
    Batch,
    ReceivedMessage,
    join_batches,
    read_batch,
    read_deliveries,
)
from penstock.plugins.queue.wire.refusals import (
    AccessError,
    BusyError,
    ConflictError,
    NoAnswerError,
    NoSpaceError,
    NotStoredError,
    OtherIncarnationError,
    OtherReaderError,
    QueueError,
    RangeGoneError,
    UnavailableError,
    UnknownNameError,
    error_of,
)

__all__ = [
    "DEFAULT_GROUP",
    "LONG_SECONDS",
    "AccessError",
    "Action",
    "Batch",
    "BusyError",
    "ConflictError",
    "Enqueued",
    "NoAnswerError",
    "NoSpaceError",
    "NotStoredError",
    "OtherIncarnationError",
    "OtherReaderError",
    "OutgoingMessage",
    "Plan",
    "Position",
    "QueueClient",
    "QueueError",
    "RangeAnswer",
    "RangeGoneError",
    "Received",
    "ReceivedMessage",
    "UnavailableError",
    "UnknownNameError",
    "error_of",
    "read_token",
]


DEFAULT_GROUP: Final = "default"
"""The group that a queue has where the policy file names none."""

LONG_SECONDS: Final = 3600.0
"""The timeout of requests that go through a whole queue or database, which may have many GB."""

Action: TypeAlias = Literal["ack", "nack", "extend", "dead"]
"""What becomes of a received message; see `QueueClient.settle`."""


class Position(NamedTuple):
    """A place in a logical queue.

    Attributes:
        incarnation: the incarnation of the queue, a UUID. A queue that is deleted and created again
            has another.
        offsets: next offset to be read, by number of physical queue.
    """

    incarnation: str
    offsets: Mapping[int, int]


class Plan(NamedTuple):
    """The next range of one queue for a reader of several.

    Attributes:
        end: the end of the range.
        earliest: first offset that the queue holds, by number of physical queue.
        latest: the offset of the next message to be stored, likewise.
    """

    end: Position
    earliest: Mapping[int, int]
    latest: Mapping[int, int]


class RangeAnswer(NamedTuple):
    """The answer to one request for a range.

    Attributes:
        frames: frames of kind `KIND_RECORDS`, with the columns that were asked for; may be empty.
        next_offset: the offset where to read on; the range's end where all of it was read.
        looked_at: messages of the range below that, with those that match no topic filter.
    """

    frames: bytes
    next_offset: int
    looked_at: int


def is_same_queue(one: str, other: str) -> bool:
    """Say whether two incarnations are of one queue, before and after its server lost messages."""
    return one.partition(".")[0] == other.partition(".")[0]


class OutgoingMessage(NamedTuple):
    """A message for `QueueClient.enqueue`.

    Attributes:
        topic: Topic Name.
        payload: payload bytes.
        properties: MQTT 5 properties by name; None for none.
        key: messages with the same key keep their order in a queue that has keys; None for what the
            queue's `key` says.
        delay_seconds: the time until it can be received; None for the queue's.
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


class _Outcome(NamedTuple):
    stored: int
    duplicates: list[int]


class Enqueued(_Outcome):
    """What became of the messages of one `QueueClient.enqueue`, as (stored, duplicates).

    Attributes:
        stored: how many were stored.
        duplicates: indexes of those that were stored before, by their deduplication identifier.
        ids: the id of each message, ``PHYSICAL_QUEUE-OFFSET``, which are fields of a received one;
            None where it is not known.
    """

    ids: Sequence[str | None] = ()


class Received(list[ReceivedMessage]):
    """What a receive has brought.

    Attributes:
        failed: by index, what is wrong with a handle that the receive was to acknowledge; see
            `QueueClient.settle`.
    """

    failed: Mapping[int, str] = MappingProxyType({})


class QueueClient:
    """Client of the queue's HTTP API on kept-alive connections, one for each thread.

    May be shared by threads and pickled. Every method raises a `QueueError`, by its class, where
    the server refuses or does not answer.

    Args:
        url: the address of the API, such as ``http://127.0.0.1:8080``.
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
        self._requests = Requests(url, timeout_seconds, token=token, ca_file=ca_file)
        self.url = url
        self._token = token
        self._ca_file = ca_file

    @property
    def timeout_seconds(self) -> float:
        """How long to wait for the server, in addition to the wait of a request."""
        return self._requests.timeout_seconds

    def __reduce__(self) -> tuple[Callable[..., QueueClient], tuple[str, float, Any, Any]]:
        return (_client, (self.url, self.timeout_seconds, self._token, self._ca_file))

    def close(self) -> None:
        """Close this thread's connection; the next request opens a new one."""
        self._requests.close()

    # -- queues and groups ---------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        """Return the server's health; an `UnavailableError` says why its storage does not work."""
        return self._requests.ask_json("GET", "/health")

    def queues(self) -> list[dict[str, Any]]:
        """Return the logical queues with their figures, as ``GET /queues`` answers."""
        found: list[dict[str, Any]] = self._requests.ask_json("GET", "/queues")["queues"]
        return found

    def queue(self, queue: str) -> dict[str, Any]:
        """Return one logical queue with its settings, groups and figures."""
        return self._requests.ask_json("GET", _path(queue))

    def put_queue(self, queue: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Create a queue, or give it other settings.

        Args:
            queue: its name.
            settings: keys of a queue in the policy file, such as ``max_messages``; those that are
                left out have their defaults, but topics and tags stay.

        Returns:
            The queue, as `queue` does.
        """
        return self._requests.ask_json("PUT", _path(queue), dict(settings))

    def change_queue(self, queue: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Change settings of a queue; those that are left out stay."""
        return self._requests.ask_json("PATCH", _path(queue), dict(settings))

    def delete_queue(self, queue: str) -> None:
        """Delete a queue with its messages and groups."""
        self._requests.ask_json("DELETE", _path(queue), more_seconds=LONG_SECONDS, repeat=False)

    def group(self, queue: str, group: str) -> dict[str, Any]:
        """Return a group with its settings, position and figures."""
        return self._requests.ask_json("GET", _path(queue, "groups", group))

    def put_group(self, queue: str, group: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Create a group, or give it other settings; see `put_queue`."""
        return self._requests.ask_json("PUT", _path(queue, "groups", group), dict(settings))

    def groups_of(self, queue: str) -> list[dict[str, Any]]:
        """Return the groups of a queue, each as `group` does."""
        found: list[dict[str, Any]] = self._requests.ask_json("GET", _path(queue, "groups"))[
            "groups"
        ]
        return found

    def change_group(self, queue: str, group: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Change settings of a group; those that are left out stay."""
        return self._requests.ask_json("PATCH", _path(queue, "groups", group), dict(settings))

    def delete_group(self, queue: str, group: str) -> None:
        """Delete a group; it holds no messages any more."""
        self._requests.ask_json("DELETE", _path(queue, "groups", group), repeat=False)

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
        answer = self._requests.ask_json("POST", path, {"messages": rows}, repeat=is_repeatable)
        enqueued = Enqueued(answer["stored"], answer.get("duplicates", []))
        enqueued.ids = answer.get("ids", ())
        return enqueued

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
            group: a group of kind `lease`.
            max_messages: most messages of the answer (N_max of papers 000 and 001).
            wait_seconds: how long the server may hold the request until enough has arrived.
            visibility_timeout: seconds; None for the group's.
            min_messages: how many messages are enough, where the queue's `dequeue` is `rds+wake`.
            min_bytes: how many payload bytes are enough, with `rds+wake` as well.
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
            receipt_handles: the handles of the receives.
            action: `ack` when the message is done with, `nack` to make it visible after `seconds`,
                `extend` to keep it invisible for `seconds` from this moment, `dead` to make it a
                dead letter.
            group: the group in which it was received.
            seconds: see `action`.

        Returns:
            By index, what is wrong with a handle that settled nothing: ``stale`` where the message
            was settled or received again since, ``unknown`` where it is of no receive here.
        """
        body = {"action": action, "receipt_handles": list(receipt_handles), "seconds": seconds}
        answer = self._requests.ask_json("POST", _path(queue, "groups", group, "settle"), body)
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
        found: list[dict[str, Any]] = self._requests.ask_json("GET", path)["messages"]
        return found

    # -- positions and ranges ------------------------------------------------------------------

    def position(self, queue: str, at: str | float = "earliest") -> Position:
        """Return a position: `earliest`, `latest`, or by arrival in seconds since the Unix epoch.

        The range between the earliest and the latest can be read, repeatedly.
        """
        path = f"{_path(queue, 'position')}?{urlencode({'at': at})}"
        return _position(self._requests.ask_json("GET", path), path)

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
            start: the begin of the range; None for the earliest offsets.
            max_messages: messages of all physical queues; None for all.
            max_bytes: the most stored bytes, about.
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
        return _position(
            self._requests.ask_json("POST", path, body, more_seconds=wait_seconds), path
        )

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
            starts: the begin of the range, by queue. A physical queue that a start lacks begins at
                its earliest offset.
            until: offsets that the range does not exceed, by queue; None for the end of each
                queue. A physical queue that it lacks is not read.
            max_messages: messages of all queues; None for all.
            max_bytes: the most stored bytes, about.
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
        answer = self._requests.ask_json("POST", "/plan", body, more_seconds=wait_seconds)
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
            columns: some of `COLUMNS`.
            topic_filters: MQTT topic filters; only messages that match one come. Empty for all.
            incarnation: the incarnation that the offsets belong to; None where that is not known.

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
        frames, headers = self._requests.send("GET", path, accept=BATCH_CONTENT_TYPE)
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
            incarnation: the incarnation that the offsets belong to; None where that is not known.

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
            body, _ = self._requests.send("GET", path, accept=BATCH_CONTENT_TYPE)
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

    def commit(self, queue: str, group: str, position: Position, *, reader: str = "") -> None:
        """Tell that a group of kind `offsets` is done with all below a position; may be repeated.

        Args:
            queue: name of the logical queue.
            group: a group of kind `offsets`.
            position: without offsets, nothing moves.
            reader: name of who commits: the group belongs to the first one from then on, and
                commits of others are refused, until a `seek`. "" where it belongs to nobody.

        Raises:
            OtherIncarnationError: the queue was deleted and created again.
            OtherReaderError: the group belongs to another reader.
        """
        body = _position_json(position) | ({"reader": reader} if reader else {})
        self._requests.ask_json("POST", _path(queue, "groups", group, "commit"), body)

    def seek(self, queue: str, group: str, to: str | float) -> Position:
        """Move a group to `earliest`, `latest`, or a time in seconds since the Unix epoch.

        Returns:
            Where it is then.
        """
        path = _path(queue, "groups", group, "seek")
        return _position(self._requests.ask_json("POST", path, {"to": to}), path)

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
            queue: the queue of the dead letters.
            target: queue for all of them; None for the one in which each died.
            max_messages: the most messages; None for all.
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
        answer, headers = self._requests.send(
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
        return self._requests.ask_json("POST", path, body, more_seconds=LONG_SECONDS, repeat=False)


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
