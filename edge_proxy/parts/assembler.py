"""Puts messages together from their parts, and publishes each whole, once.

Theory of operation. The assembler is a sink of the broker: the PUBACK of a part is sent when the
sink has settled its receipt, and that is after the part is on the disk. Parts that have come at
about the same time share one transaction. The last receipt of a message is settled after the whole
message was published, so that whoever waits for all PUBACKs of a message may publish a later one of
its topic.

A whole message is published by a client of the broker's own process, in one packet that is read
from the spool piece by piece. Before that, the spool notes its packet identifier. So a repeat after
``kill -9`` has the same one, and at QoS 2 the broker knows it. The identifier is released after the
spool has noted that the message was delivered; until then the next start releases it again. Parts
that come after that, as their PUBACKs were lost, are known by the identifier of the message.

What cannot be put together is dropped as a whole, counted and logged, and its parts are refused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from logging import Logger
from typing import Any, Final, NamedTuple

from penstock.broker.counters import count
from penstock.broker.errors import MalformedPacketError
from penstock.broker.extensions import LocalClients, MessageSink, Receipt, SinkCounts
from penstock.broker.faults import is_logged
from penstock.broker.message import Message
from penstock.broker.mqtt.enums import MQTT_5, PacketType
from penstock.broker.mqtt.properties import read_publish_properties, write_properties
from penstock.broker.mqtt.reason_codes import ReasonCode, describe_reason_code
from penstock.broker.mqtt.topics import validate_topic
from penstock.broker.mqtt.writer import publish_header
from penstock.edge_proxy.parts.assembly import Assembly
from penstock.edge_proxy.parts.config import PARTS_CLIENTS, PartsConfig
from penstock.edge_proxy.parts.counts import PartsCounts
from penstock.edge_proxy.parts.local_client import (
    AGAIN_SECONDS,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    Courier,
    LocalClient,
    LostError,
)
from penstock.edge_proxy.parts.part import Part, PartError, read_part
from penstock.edge_proxy.parts.splitter import MARKS, PART_ID
from penstock.edge_proxy.parts.spool import Ended, Piece, Spool, Spooled, SpoolError

WHOLE_ID: Final = f"{PARTS_CLIENTS}whole"
"""Client Identifier of what publishes the messages that were put together."""

BATCH_BYTES: Final = 4 * 1024**2
"""Payload bytes that are written in one transaction."""

MESSAGE_BYTES: Final = 1_024
"""What a message takes besides its payload, on the disk and in memory."""

REMEMBERED: Final = 100_000
"""Messages that are remembered at most, some 30 MB of memory."""

READ_BYTES: Final = 1_048_576
"""Payload bytes that are read from the spool at a time."""

_HEADER_BYTES: Final = 16
"""What a PUBLISH has besides topic, properties and payload, at most."""

SWEEP_SECONDS: Final = 60.0
"""Between two looks at messages that are too old."""

_CODES: Final = {
    "not_a_part": ReasonCode.PAYLOAD_FORMAT_INVALID,
    "mismatch": ReasonCode.PAYLOAD_FORMAT_INVALID,
    "hash": ReasonCode.PAYLOAD_FORMAT_INVALID,
    "topic": ReasonCode.TOPIC_NAME_INVALID,
    "too_large": ReasonCode.QUOTA_EXCEEDED,  # PUBACK has no Packet too large
    "spool_full": ReasonCode.QUOTA_EXCEEDED,
    "disk": ReasonCode.QUOTA_EXCEEDED,
    "expired": ReasonCode.SUCCESS,
}
"""Reason of a drop to the reason code of its parts' PUBACKs, where it is no general one."""


class Taken(NamedTuple):
    """A message that was offered to the sink.

    Attributes:
        message: a part, maybe.
        receipt: to be settled; None at QoS 0.
    """

    message: Message
    receipt: Receipt | None


class Assembler(MessageSink):
    """The sink.

    Args:
        config: of the plugin.
        clients: of the broker.
        spool: to be opened before `prepare`.
        in_thread: calls a function of the spool in its thread.
        counts: of the plugin.
        logger: of the plugin.
        clock: monotonic seconds.
        wall: seconds since 1970.
    """

    name = "parts"

    def __init__(
        self,
        config: PartsConfig,
        clients: LocalClients,
        spool: Spool,
        in_thread: Callable[..., Any],
        counts: PartsCounts,
        logger: Logger,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self.topic_filters = [f"{config.prefix}/{name}" for name in config.assemble]
        self.counts = SinkCounts()
        self._config = config
        self._clients = clients
        self._spool = spool
        self._in_thread = in_thread
        self._done = counts
        self._logger = logger
        self._clock = clock
        self._wall = wall
        self._courier = Courier(clients, WHOLE_ID)
        self._taken: deque[Taken] = deque()
        self._news = asyncio.Event()
        self._messages: dict[bytes, Spooled] = {}
        self._whole: deque[tuple[bytes, Receipt | None]] = deque()
        self._is_whole = asyncio.Event()
        self._ended: dict[bytes, Ended] = {}
        self._last_number = 0
        self._held_bytes = 0
        self._faults: dict[str, int] = {}

    # -- the sink --------------------------------------------------------------------------------

    def accept(self, message: Message, receipt: Receipt | None) -> None:
        """Take what may be a part."""
        self.counts.matched += 1
        if message.publisher == PART_ID:  # it was cut here
            self._settle(receipt, 0)
            return
        self.counts.queued += 1
        self._taken.append(Taken(message, receipt))
        self._news.set()

    def _settle(self, receipt: Receipt | None, code: int, reason: str = "") -> None:
        if reason:
            count(self.counts.dropped, reason)
        else:
            self.counts.stored += 1
        if receipt is not None:
            receipt.settle(code)

    def _answer(self, receipt: Receipt | None, reason: str = "") -> None:
        """Answer a part that was queued."""
        self.counts.queued -= 1
        self._settle(receipt, _code_of(reason), reason)

    # -- begin and end ---------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Read what the spool has.

        Raises:
            SpoolError: it cannot be read.
        """
        for one in await self._in_thread(self._spool.ended):
            self._ended[one.message_id] = one
        for spooled in await self._in_thread(self._spool.messages):
            assembly = spooled.assembly
            self._messages[assembly.message_id] = spooled
            self._held_bytes += MESSAGE_BYTES + assembly.received_bytes
            self._last_number = spooled.number
            if assembly.is_whole:
                self._whole.append((assembly.message_id, None))
        if self._messages:
            self._logger.info(
                "%d messages are in the spool, of which %d are whole",
                len(self._messages),
                len(self._whole),
            )
        if self._whole:
            self._is_whole.set()

    async def store(self) -> None:
        """Write parts to the spool until cancelled."""
        while True:
            while self._taken:
                batch, n_bytes = [], 0
                while self._taken and n_bytes < BATCH_BYTES:
                    batch.append(self._taken.popleft())
                    n_bytes += batch[-1].message.payload_bytes
                await self._store(batch)
            self._news.clear()
            await self._news.wait()

    async def publish(self) -> None:
        """Publish whole messages until cancelled."""
        while True:
            while self._whole:
                message_id, receipt = self._whole[0]
                answer = _Answer(self, receipt)
                try:
                    await self._publish(self._messages[message_id], answer)
                except (LostError, SpoolError) as error:
                    answer.give()
                    self._tell_fault("a whole message waits to be published", error)
                    self._whole[0] = message_id, None
                    await asyncio.sleep(AGAIN_SECONDS)
                    continue
                self._whole.popleft()
                answer.give()
            self._is_whole.clear()
            await self._is_whole.wait()

    async def sweep(self) -> None:
        """Drop what is too old, again and again, until cancelled."""
        seconds = min(SWEEP_SECONDS, self._config.max_age_seconds / 4)
        while True:
            await asyncio.sleep(seconds)
            now = self._wall()
            whole = {message_id for message_id, _ in self._whole}
            for message_id, one in list(self._messages.items()):
                if message_id not in whole and now - one.last_at > self._config.max_age_seconds:
                    await self._drop(message_id, one.assembly.topic, "too_old")
            oldest = now - self._config.remember_seconds
            n_too_many = len(self._ended) - REMEMBERED
            for n, (message_id, ended) in enumerate(list(self._ended.items())):
                if (ended.at < oldest or n < n_too_many) and ended.packet_id is None:
                    del self._ended[message_id]
            try:
                await self._in_thread(self._spool.forget, oldest, REMEMBERED)
            except SpoolError as error:
                self._tell_fault("unused space of the spool is kept", error)

    def close(self) -> None:
        """End the connection; the session stays."""
        self._courier.close()

    # -- parts -----------------------------------------------------------------------------------

    async def _store(self, batch: Sequence[Taken]) -> None:
        """Take parts, write what is new of them, and answer them."""
        writes = _Writes({}, [], [])
        for taken in batch:
            try:
                payload = taken.message.payload
                data = payload if isinstance(payload, bytes) else payload.read()
                part = read_part(data)
            except (PartError, OSError) as error:
                self._tell_drop("not_a_part", taken.message.topic, f": {error}")
                self._answer(taken.receipt, "not_a_part")
                continue
            await self._take(part, taken, writes)
        try:
            if writes.messages:
                await self._in_thread(
                    self._spool.store, list(writes.messages.values()), writes.pieces
                )
        except SpoolError as error:
            await self._not_stored(writes, error)
            return
        for message_id, receipt in writes.answers:
            spooled = self._messages.get(message_id)
            if message_id in self._ended:
                self._answer(receipt, self._ended[message_id].reason)
            elif (
                spooled is None
                or not spooled.assembly.is_whole
                or any(known == message_id for known, _ in self._whole)
            ):
                self._answer(receipt)
            else:
                if receipt is None:  # at QoS 0, nothing waits for the answer
                    self._answer(None)
                self._whole.append((message_id, receipt))
                self._is_whole.set()

    async def _take(self, part: Part, taken: Taken, writes: _Writes) -> None:
        """Add a part to its message, and to what is to be written."""
        message_id = part.message_id
        topic = taken.message.topic[len(self._config.prefix) + 1 :]
        ended = self._ended.get(message_id)
        if ended is not None:
            self._done.repeated_parts += 1
            self._answer(taken.receipt, ended.reason)
            return
        known = self._messages.get(message_id)
        if known is not None:
            told = known.assembly.mismatch(part, topic)
            if told:
                self._tell_drop("mismatch", topic, f": {told}")
                self._answer(taken.receipt, "mismatch")
                return
        else:
            reason, told = self._refusal(part, topic)
            if reason:
                await self._drop(message_id, topic, reason, told)
                self._answer(taken.receipt, reason)
                return
            self._last_number += 1
            known = Spooled(self._last_number, Assembly(part, topic), b"\0", None, 0.0, None)
            self._held_bytes += MESSAGE_BYTES
        await self._add(part, taken, known, writes)

    async def _add(self, part: Part, taken: Taken, known: Spooled, writes: _Writes) -> None:
        """Add a part that fits to its message."""
        assembly = known.assembly
        is_new = assembly.trailer is None and part.trailer is not None
        gaps = assembly.add(part)
        if not gaps and not is_new:  # the first one may not be on the disk yet
            self._done.repeated_parts += 1
            writes.answers.append((part.message_id, taken.receipt))
            return
        expires_at = known.expires_at
        if taken.message.expires_at is not None:
            expires_at = self._wall() + taken.message.expires_at - self._clock()
        self._messages[part.message_id] = writes.messages[part.message_id] = known._replace(
            marks=_marks(taken.message), expires_at=expires_at, last_at=self._wall()
        )
        self._held_bytes += sum(gap.end - gap.start for gap in gaps)
        if self._held_bytes > self._config.spool_bytes:
            told = f"; allowed: {self._config.spool_bytes} bytes in all"
            await self._drop(part.message_id, assembly.topic, "spool_full", told)
            writes.forget(part.message_id)
            self._answer(taken.receipt, "spool_full")
            return
        self._done.received_parts += 1
        writes.pieces.extend(
            Piece(known.number, start, part.data[start - part.offset : end - part.offset])
            for start, end in gaps
        )
        writes.answers.append((part.message_id, taken.receipt))

    def _refusal(self, part: Part, topic: str) -> tuple[str, str]:
        """Return (why a message is dropped with its first part, or ""; more of it for the log)."""
        try:
            validate_topic(topic)
        except MalformedPacketError as error:
            return "topic", f": {error.args[0]}"
        if topic.startswith(("$", f"{self._config.prefix}/")):
            return "topic", f"; allowed: one that is not below $ or {self._config.prefix}"
        most = min(self._config.max_message_bytes, self._clients.maximum_packet_size)
        if part.total_bytes > most:
            return "too_large", f", of {part.total_bytes} bytes; allowed: at most {most}"
        return "", ""

    async def _not_stored(self, writes: _Writes, error: SpoolError) -> None:
        """Drop the messages of parts that could not be written; refuse the parts."""
        for message_id, one in writes.messages.items():
            await self._drop(message_id, one.assembly.topic, "disk", f": {error}")
        for _, receipt in writes.answers:
            self._answer(receipt, "disk")

    async def _drop(self, message_id: bytes, topic: str, reason: str, told: str = "") -> None:
        """Drop a message with all of its parts."""
        known = self._messages.pop(message_id, None)
        if known is not None:
            self._held_bytes -= MESSAGE_BYTES + known.assembly.received_bytes
        ended = self._ended[message_id] = Ended(message_id, reason, self._wall(), None)
        self._tell_drop(reason, topic, told)
        try:
            await self._in_thread(self._spool.end, None if known is None else known.number, ended)
        except SpoolError as error:
            self._tell_fault("what was dropped stays in the spool until the next start", error)

    def _tell_fault(self, what: str, error: Exception) -> None:
        """Log what is tried again, at growing intervals."""
        count(self._faults, what)
        if is_logged(n_faults := self._faults[what]):
            self._logger.error("%s (%d times): %s", what, n_faults, error)

    def _tell_drop(self, reason: str, topic: str, told: str) -> None:
        """Count a message that is dropped, and log it at growing intervals."""
        count(self._done.dropped, reason)
        if is_logged(n_dropped := self._done.dropped[reason]):
            self._logger.warning(
                "%d messages in parts were dropped (%s), the last of topic %r%s",
                n_dropped,
                reason,
                topic,
                told,
            )

    # -- whole messages --------------------------------------------------------------------------

    async def _publish(self, spooled: Spooled, answer: _Answer) -> None:
        """Publish a whole message, once.

        Raises:
            LostError: the connection to the broker has ended.
            SpoolError: the spool cannot be read or written.
        """
        assembly = spooled.assembly
        message_id, topic = assembly.message_id, assembly.topic
        trailer = assembly.trailer
        assert trailer is not None  # noqa: S101 (it is whole)
        is_repeat = spooled.packet_id is not None
        if not is_repeat and await self._in_thread(self._spool.digest, spooled.number) != (
            trailer.digest
        ):
            await self._drop(message_id, topic, "hash")
            answer.reason = "hash"
            return
        seconds = None if spooled.expires_at is None else spooled.expires_at - self._wall()
        if seconds is not None and seconds <= 0:
            await self._drop(message_id, topic, "expired")
            return
        client = await self._client()
        packet_id = spooled.packet_id
        if packet_id is None:
            packet_id = self._new_packet_id()
            if assembly.qos != 1:  # which may be published twice
                self._messages[message_id] = spooled._replace(packet_id=packet_id)
                await self._in_thread(self._spool.publishing, spooled.number, packet_id)
        elif not assembly.qos:  # it may have been published
            await self._end(spooled, None)
            return
        properties = _of_whole(trailer.properties, spooled.marks, seconds)
        n_bytes = len(properties) + len(topic.encode()) + assembly.total_bytes + _HEADER_BYTES
        if n_bytes > self._clients.maximum_packet_size:
            answer.reason = "too_large"
            await self._drop(message_id, topic, "too_large", f", of {n_bytes} bytes in one packet")
            return
        code = await self._send(client, spooled, packet_id, properties, is_repeat=is_repeat)
        while code == ReasonCode.QUOTA_EXCEEDED:
            answer.give()
            await asyncio.sleep(AGAIN_SECONDS)
            code = await self._send(client, spooled, packet_id, properties, is_repeat=False)
        if code >= 0x80:
            answer.reason = "refused"
            await self._drop(message_id, topic, "refused", f": {describe_reason_code(code)}")
            return
        await self._end(spooled, packet_id if assembly.qos == 2 else None)
        if assembly.qos == 2:
            await self._release(client, message_id, packet_id)

    def _new_packet_id(self) -> int:
        """Return a packet identifier that no message has which may be sent again or released."""
        taken = {one.packet_id for one in self._messages.values()}
        taken |= {one.packet_id for one in self._ended.values()}
        while (packet_id := self._courier.next_packet_id()) in taken:
            pass
        return packet_id

    async def _client(self) -> LocalClient:
        """Return a connection, on which what was delivered is released."""
        client, is_new = await self._courier.client()
        if is_new:
            for ended in list(self._ended.values()):
                if ended.packet_id is not None:
                    await self._release(client, ended.message_id, ended.packet_id)
        return client

    async def _send(
        self,
        client: LocalClient,
        spooled: Spooled,
        packet_id: int,
        properties: bytes,
        *,
        is_repeat: bool,
    ) -> int:
        """Send the PUBLISH of a whole message and return the reason code of its answer."""
        assembly = spooled.assembly
        rows = await self._in_thread(self._spool.pieces, spooled.number)
        header = publish_header(
            assembly.topic.encode(),
            assembly.total_bytes,
            assembly.qos,
            assembly.retain,
            is_repeat,
            packet_id,
            properties,
            MQTT_5,
        )
        answer = None
        if assembly.qos:
            answer = client.expect(PUBACK if assembly.qos == 1 else PUBREC, packet_id)
        client.transport.write(header)
        some: list[int] = []
        n_bytes = 0
        for index, (row, piece_bytes) in enumerate(rows, 1):
            some.append(row)
            n_bytes += piece_bytes
            if n_bytes >= READ_BYTES or index == len(rows):
                try:
                    data = await self._in_thread(self._spool.read, some)
                except SpoolError:
                    client.transport.abort()  # a PUBLISH that is not whole
                    raise
                client.transport.write(data)
                await client.drain()
                some, n_bytes = [], 0
        if answer is not None:
            return await answer
        await client.ping()
        return 0

    async def _end(self, spooled: Spooled, packet_id: int | None) -> None:
        """Note that a message was delivered."""
        message_id = spooled.assembly.message_id
        ended = Ended(message_id, "", self._wall(), packet_id)
        await self._in_thread(self._spool.end, spooled.number, ended)
        self._ended[message_id] = ended
        del self._messages[message_id]
        self._held_bytes -= MESSAGE_BYTES + spooled.assembly.received_bytes
        self._done.assembled_messages += 1

    async def _release(self, client: LocalClient, message_id: bytes, packet_id: int) -> None:
        """End the exchange of a message of QoS 2."""
        answer = client.expect(PUBCOMP, packet_id)
        client.acknowledge(PUBREL, packet_id)
        await answer
        await self._in_thread(self._spool.released, message_id)
        self._ended[message_id] = self._ended[message_id]._replace(packet_id=None)


class _Writes(NamedTuple):
    """What comes of some parts.

    Attributes:
        messages: by their identifiers, as they are to be stored.
        pieces: to be stored.
        answers: (identifier of the message, receipt) of each part that is stored.
    """

    messages: dict[bytes, Spooled]
    pieces: list[Piece]
    answers: list[tuple[bytes, Receipt | None]]

    def forget(self, message_id: bytes) -> None:
        """Store nothing of a message that is dropped; its parts are answered all the same."""
        gone = self.messages.pop(message_id, None)
        if gone is not None:
            self.pieces[:] = [piece for piece in self.pieces if piece.number != gone.number]


class _Answer:
    """The answer to the last part of a message, given once.

    Attributes:
        reason: why the message was dropped; "" for nothing.
    """

    def __init__(self, assembler: Assembler, receipt: Receipt | None) -> None:
        self.reason = ""
        self._assembler = assembler
        self._receipt = receipt
        self._is_owed = receipt is not None

    def give(self) -> None:
        """Answer it now; may be called again."""
        if self._is_owed:
            self._is_owed = False
            self._assembler._answer(self._receipt, self.reason)  # noqa: SLF001 (of one file)


def _code_of(reason: str) -> int:
    """Return the reason code that tells of a drop; 0 where the part is acknowledged."""
    return int(_CODES.get(reason, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)) if reason else 0


def _marks(message: Message) -> bytes:
    """Return the properties of a part that are those of the whole message."""
    pairs = [pair for pair in message.properties.get("user_property", ()) if pair[0] in MARKS]
    return write_properties({"user_property": pairs} if pairs else {}, PacketType.PUBLISH)


def _of_whole(properties: bytes, marks: bytes, seconds: float | None) -> bytes:
    """Return the properties with which a whole message is published.

    Args:
        properties: that the last part has told.
        marks: of the parts.
        seconds: until the message expires; None for never.
    """
    found, _ = read_publish_properties(properties, 0)
    more, _ = read_publish_properties(marks, 0)
    pairs = [*found.get("user_property", ()), *more.get("user_property", ())]
    if pairs:
        found["user_property"] = pairs
    if seconds is not None:
        found["message_expiry_interval"] = max(1, int(seconds))
    return write_properties(found, PacketType.PUBLISH)
