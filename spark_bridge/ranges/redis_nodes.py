"""Reads ranges of messages from the Redis servers that keep them, without a gateway.

Theory of operation. Keys begin with the incarnation of a queue and a physical queue, which a range
names. So a task only needs the server that has them. It reads two hashes, which map offsets to
messages, and the state of the physical queue, by commands without a function: `HMGET` takes a
quarter of the time. As a message never changes, a range is always read in the same way.

The task first requests what the server keeps beside some thousands of messages, which has their
sizes. Then it requests messages, some MiB in a piece. It requests the next piece before it hands
over this one, so that server and task work at the same time.

Each request includes `ROLE`: a server that is not the master any more may lack messages that the
master has, which must not be taken for lost. Any other failure of the server counts as no answer:
the server is looked for again when the caller repeats the request.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from redis.connection import Connection
from redis.crc import key_slot
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    RedisError,
    ResponseError,
)

from penstock.broker.mqtt.topics import matches
from penstock.plugins.queue.client import NoAnswerError, error_of
from penstock.plugins.queue.engines.contract import EngineStartError
from penstock.plugins.queue.engines.redis.messages import part_key
from penstock.plugins.redis.discovery import RedisSentinels
from penstock.plugins.redis.login import Address, Login, named
from penstock.plugins.redis.pipeline import NOT_CARRIED_OUT
from penstock.plugins.redis.server import RedisServer
from penstock.spark_bridge.errors import OptionError, QueueUnavailableError
from penstock.spark_bridge.offsets import Range
from penstock.spark_bridge.options import RedisOptions, SourceOptions
from penstock.spark_bridge.ranges.gateway import Piece
from penstock.spark_bridge.ranges.redis_rows import RedisRows, sizes_of, topic_of
from penstock.spark_bridge.rows import RowOrigin, to_record_batch
from penstock.spark_bridge.schema import wire_columns

COMMAND_MESSAGES: Final = 1_000
"""The messages of one command. Other commands wait while the server handles it, a millisecond
for 1 KB each."""
PIECE_MESSAGES: Final = 4_000
PIECE_BYTES: Final = 4 * 1024 * 1024
"""The most payload bytes of a piece, unless one message alone is longer."""
AHEAD_MESSAGES: Final = 20_000
"""The number of messages whose sizes are requested at a time."""
READ_BYTES: Final = 256 * 1024
ANSWER_SECONDS: Final = 5.0
"""The longest wait for more of an answer, seconds, after which another server is looked for."""

_OF_BODY: Final = frozenset({"payload", "qos", "publisher", "properties"})
"""The columns of a range that need the messages themselves."""
_GONE: Final = 410
_OTHER: Final = 409
_BAD: Final = 400
_CONFLICTS: Final = (AuthenticationError, NoPermissionError)


@dataclass(frozen=True, slots=True)
class _Cut:
    """Some messages whose sizes are known.

    Attributes:
        offsets: offsets of the messages that match.
        infos: the server's information about each of them.
        next_offset: the offset at which to read on.
        looked_at: the number of messages below that offset, including those that do not match.
    """

    offsets: Sequence[int]
    infos: Sequence[bytes]
    next_offset: int
    looked_at: int


class RedisRanges:
    """Reads ranges of queues of the engine `redis`."""

    def __init__(self, options: SourceOptions, redis: RedisOptions) -> None:
        self._options = options
        self._redis = redis
        self._server = _server(redis)
        self._finder = self._server.finder()
        self._has_bodies = not _OF_BODY.isdisjoint(wire_columns(options.columns))
        self._connection: Connection | None = None
        self._address: Address = ("", 0)
        self._pieces: Iterator[Piece] | None = None
        self._at: tuple[Range, int] | None = None

    def close(self) -> None:
        """Close the connection."""
        self._pieces = self._at = None
        if self._connection is not None:
            self._connection.disconnect()
            self._connection = None

    def read(self, wanted: Range, start: int, origin: RowOrigin) -> Piece:
        """Return some thousands of messages."""
        try:
            if self._pieces is None or self._at != (wanted, start):
                self.close()
                self._connection = self._connect(wanted)
                self._pieces = self._read(self._connection, wanted, start, origin)
            piece = next(self._pieces)
        except (RedisError, OSError, EngineStartError) as error:
            self.close()
            raise self._meaning(wanted.queue, error) from error
        except BaseException:
            self.close()
            raise
        self._at = (wanted, piece.next_offset)
        return piece

    # -- the server --------------------------------------------------------------------------------

    def _connect(self, wanted: Range) -> Connection:
        """Return a connection to the server that has a physical queue."""
        self._check_files()
        self._address = ("", 0)
        ranges = asyncio.run(self._finder.find())
        slot = key_slot(self._key(wanted).encode()) if self._finder.is_cluster else 0
        self._address = next(address for first, last, address in ranges if first <= slot <= last)
        seconds = min(self._options.timeout_seconds, ANSWER_SECONDS)
        connection = self._server.login.blocking_connection(
            self._address, self._server.db, seconds, READ_BYTES
        )
        connection.connect()
        return connection

    def _check_files(self) -> None:
        redis = self._redis
        for name, path in (
            ("redisPasswordFile", redis.password_file),
            ("redisSentinelPasswordFile", redis.sentinel_password_file),
            ("redisCaFile", redis.ca_file),
            ("redisCertificateFile", redis.certificate_file),
            ("redisKeyFile", redis.key_file),
        ):
            try:
                if path:
                    Path(path).open("rb").close()
            except OSError as error:
                raise OptionError(
                    f"option {name!r}: {error}; allowed: a file where executors run"
                ) from error

    def _meaning(self, queue: str, error: Exception) -> Exception:
        """Return what an error of the server means to the caller."""
        where = f"Redis server {named(self._address)}: " if self._address[0] else ""
        may_pass = not isinstance(error, ResponseError) or isinstance(
            error, (*NOT_CARRIED_OUT, BusyLoadingError)
        )
        if may_pass and not isinstance(error, _CONFLICTS):
            return NoAnswerError(0, f"{where}{error}")
        return QueueUnavailableError(f"queue {queue!r}: {where}{error}")

    # -- reading -----------------------------------------------------------------------------------

    def _key(self, wanted: Range) -> str:
        return part_key(self._server.prefix, wanted.incarnation, wanted.physical_queue)

    def _read(
        self, connection: Connection, wanted: Range, start: int, origin: RowOrigin
    ) -> Iterator[Piece]:
        """Yield pieces up to the range's end."""
        base = self._key(wanted)
        cuts = self._cuts(connection, wanted, start)
        ahead = next(cuts, None)
        self._ask(connection, base, ahead)
        while ahead is not None:
            cut = ahead
            bodies = self._take(connection, wanted, cut)
            ahead = next(cuts, None)
            self._ask(connection, base, ahead)
            yield self._piece(cut, bodies, origin)

    def _cuts(self, connection: Connection, wanted: Range, start: int) -> Iterator[_Cut]:
        """Yield what is to be read, a piece at a time."""
        base = self._key(wanted)
        while start < wanted.end:
            past = min(wanted.end, start + AHEAD_MESSAGES)
            offsets = range(start, past)
            connection.send_packed_command(
                [_state_command(base), *_commands(f"{base}:i", offsets)], check_health=False
            )
            earliest = self._check_state(connection, wanted)
            infos = _answers(connection, len(offsets))
            if start < earliest:
                raise error_of(_GONE, f"offset {start} is below {earliest}", {"earliest": earliest})
            yield from self._cut(offsets, infos)
            start = past

    def _cut(self, offsets: range, infos: Sequence[bytes | None]) -> Iterator[_Cut]:
        """Yield cuts of a limited size; one without messages where none matches."""
        there: Sequence[int] = offsets
        told = [info for info in infos if info is not None]
        if len(told) < len(infos):
            pairs = zip(offsets, infos, strict=True)
            there = [offset for offset, info in pairs if info is not None]
        taken = there
        if self._options.topic_filters:
            taken, told = self._matching(there, told)
        ends = list(accumulate(sizes_of(told), initial=0))
        first, begin, is_over = 0, offsets.start, False
        while not is_over:
            past = bisect_right(ends, ends[first] + PIECE_BYTES) - 1
            past = max(first + 1, min(past, first + PIECE_MESSAGES))
            is_over = past >= len(taken)
            next_offset = offsets.stop if is_over else taken[past]
            looked_at = bisect_left(there, next_offset) - bisect_left(there, begin)
            yield _Cut(taken[first:past], told[first:past], next_offset, looked_at)
            first, begin = past, next_offset

    def _matching(
        self, offsets: Sequence[int], infos: Sequence[bytes]
    ) -> tuple[list[int], list[bytes]]:
        """Return messages that match a topic filter."""
        filters = self._options.topic_filters
        is_wanted: dict[bytes, bool] = {}
        taken: list[int] = []
        told: list[bytes] = []
        for offset, info in zip(offsets, infos, strict=True):
            topic = topic_of(info)
            if topic not in is_wanted:
                is_wanted[topic] = any(matches(one, topic.decode()) for one in filters)
            if is_wanted[topic]:
                taken.append(offset)
                told.append(info)
        return taken, told

    def _ask(self, connection: Connection, base: str, cut: _Cut | None) -> None:
        if cut is not None and self._has_bodies and cut.offsets:
            connection.send_packed_command(
                [_state_command(base), *_commands(f"{base}:d", cut.offsets)], check_health=False
            )

    def _take(
        self, connection: Connection, wanted: Range, cut: _Cut
    ) -> Sequence[bytes | None] | None:
        """Return what was asked for."""
        if not self._has_bodies or not cut.offsets:
            return None
        self._check_state(connection, wanted)
        return _answers(connection, len(cut.offsets))

    def _piece(self, cut: _Cut, bodies: Sequence[bytes | None] | None, origin: RowOrigin) -> Piece:
        offsets, infos, looked_at = cut.offsets, cut.infos, cut.looked_at
        there: list[bytes] | None = None
        if bodies is not None:
            there = [one for one in bodies if one is not None]
            if len(there) < len(bodies):  # they have left since
                rows = zip(offsets, infos, bodies, strict=True)
                kept = [(offset, info) for offset, info, body in rows if body is not None]
                offsets = [offset for offset, _ in kept]
                infos = [info for _, info in kept]
                looked_at -= len(bodies) - len(there)
        batch = None
        if offsets:
            rows_there = RedisRows(offsets, infos, there)
            batch = to_record_batch(rows_there, self._options.columns, origin)
        return Piece(batch, cut.next_offset, looked_at)

    def _check_state(self, connection: Connection, wanted: Range) -> int:
        """Return the earliest offset of a physical queue.

        Raises:
            QueueError: it has not got the range.
        """
        role = _answer(connection)
        next_offset, earliest = _answer(connection)
        if role[0] != b"master":
            raise NoAnswerError(0, f"Redis server {named(self._address)}: it is no master")
        number = wanted.physical_queue
        if next_offset is None:
            raise error_of(
                _OTHER,
                f"Redis server {named(self._address)} has no physical queue {number} of "
                f"incarnation {wanted.incarnation}: the queue was deleted, or the server has lost "
                "its data",
                {"incarnation": "", "queue": wanted.queue},
            )
        if int(float(next_offset)) < wanted.end:
            raise error_of(
                _BAD,
                f"physical queue {number} ends at offset {int(float(next_offset))} on Redis server "
                f"{named(self._address)}, the range at {wanted.end}: the server has lost messages",
            )
        return int(float(earliest))


def _server(redis: RedisOptions) -> RedisServer:
    """Return what the options say, as the engine has it."""

    def login(user: str, password_file: str) -> Login:
        files = (redis.ca_file, redis.certificate_file, redis.key_file)
        return Login(user or None, password_file or None, *(file or None for file in files))

    host, port = redis.server or ("", 0)
    sentinels = None
    if redis.sentinels:
        own = login(redis.sentinel_user, redis.sentinel_password_file)
        sentinels = RedisSentinels(redis.sentinels, redis.master, own)
    return RedisServer(
        host,
        port,
        db=redis.db,
        prefix=redis.prefix,
        login=login(redis.user, redis.password_file),
        sentinels=sentinels,
        cluster=redis.cluster,
    )


def _packed(*words: str) -> bytes:
    """Return a command as the protocol has it."""
    head = f"*{len(words)}\r\n"
    return (head + "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)).encode()


def _state_command(base: str) -> bytes:
    return _packed("ROLE") + _packed("HMGET", f"{base}:s", "next", "earliest")


def _commands(key: str, offsets: Sequence[int]) -> Iterator[bytes]:
    """Yield commands that get fields of a hash, written at once: a format is five times as fast."""
    name = _packed("HMGET", key).split(b"\r\n", 1)[1]
    for first in range(0, len(offsets), COMMAND_MESSAGES):
        some = offsets[first : first + COMMAND_MESSAGES]
        n = len(some)
        digits = len(str(some[0]))
        if digits == len(str(some[-1])):
            fields = (f"${digits}\r\n%d\r\n" * n) % tuple(some)
        else:
            fields = "".join(f"${len(str(one))}\r\n{one}\r\n" for one in some)
        yield b"*%d\r\n%s%s" % (n + 2, name, fields.encode())


def _answer(connection: Connection) -> Any:
    return connection.read_response(disable_decoding=True)


def _answers(connection: Connection, n: int) -> list[bytes | None]:
    """Return the values of so many fields."""
    values: list[bytes | None] = []
    while len(values) < n:
        values += _answer(connection)
    return values
