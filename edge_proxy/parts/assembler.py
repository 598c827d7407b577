"""Puts messages together from their parts, and publishes each whole message once.

Theory of operation. The assembler is a sink of the broker: the broker sends the PUBACK of a part
when the sink settles its receipt, after the part is on the disk. Parts that have come at about the
same time share one transaction. The last receipt of a message is settled after the whole message
was published, so that a client which waits for all PUBACKs of a message may publish a later one of
its topic.

A whole message is published by a client of the broker's own process, in one packet that is read
from the spool piece by piece. Before that, the spool notes its packet identifier. So a repeat after
``kill -9`` has the same one, and at QoS 2 the broker recognises it. The identifier is released
after the spool has noted that the message was delivered. After a kill in between, the next start
releases it. Parts that come later, as their PUBACKs were lost, are recognised by the identifier of
the message.

A message that cannot be put together is dropped as a whole, counted and logged, and its parts are
refused. The parts of a message come behind those of the one before, of the same topic and sender.
So when a part of a later message comes, the missing parts of earlier ones are lost. The log says so
at once. What has come stays for a while, as lanes of an uplink may have given up the order.

Messages are distinguished by topic and identifier: a client that may not publish in a topic cannot
spoil a message of it, although the identifier can be read in each part.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.broker.counters import count
from penstock.broker.errors import MalformedPacketError
from penstock.broker.extensions import PUBLISHER_PROPERTY, MessageSink, Receipt, SinkCounts
from penstock.broker.message import Message
from penstock.broker.mqtt.enums import MQTT_5, PacketType
from penstock.broker.mqtt.properties import read_publish_properties, write_properties
from penstock.broker.mqtt.reason_codes import ReasonCode, describe_reason_code
from penstock.broker.mqtt.topics import validate_topic
from penstock.broker.mqtt.writer import publish_header
from penstock.broker.plugin_guard import is_logged
from penstock.edge_proxy.local_client import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    LocalClient,
    LostError,
    PartPublisher,
)
from penstock.edge_proxy.parts.config import PARTS_CLIENTS
from penstock.edge_proxy.parts.part_format import Part, PartError, read_part
from penstock.edge_proxy.parts.partial_message import PartialMessage, key_of, place_of
from penstock.edge_proxy.parts.parts_context import AGAIN_SECONDS, PartsContext
from penstock.edge_proxy.parts.splitter import MARKS, PART_ID
from penstock.edge_proxy.parts.spool import Ended, Piece, Spooled, SpoolError, SpoolReadError

WHOLE_ID: Final = f"{PARTS_CLIENTS}whole"
"""Client Identifier of the local client that publishes whole messages."""

BATCH_BYTES: Final = 4 * 1024**2
"""Payload bytes that one transaction writes, about."""

MESSAGE_BYTES: Final = 1_024
"""Bytes that a message takes besides its payload, on the disk and in memory."""

PIECE_BYTES: Final = 128
"""Bytes that each piece of a payload takes in addition; a piece may be as short as a byte."""

WAITING_BYTES: Final = 16 * 1024**2
"""Payload bytes that wait to be written, above which parts of QoS 0 are dropped. Other parts are
bounded by what clients may have unacknowledged."""

MOST_AGAIN_SECONDS: Final = 30.0
"""Longest wait between two attempts to publish what the broker has no room for; each wait is twice
as long as the one before."""

REMEMBERED: Final = 100_000
"""How many ended messages are remembered at most, in some 30 MB of memory."""

READ_BYTES: Final = 1_048_576
"""Payload bytes that are read from the spool at a time."""

_HEADER_BYTES: Final = 16
"""Most bytes that a PUBLISH has besides topic, properties and payload."""

SWEEP_SECONDS: Final = 60.0
"""Longest time between two looks for messages that are too old."""

_CODES: Final = {
    "not_a_part": ReasonCode.PAYLOAD_FORMAT_INVALID,
    "too_many": ReasonCode.QUOTA_EXCEEDED,
    "mismatch": ReasonCode.PAYLOAD_FORMAT_INVALID,
    "hash": ReasonCode.PAYLOAD_FORMAT_INVALID,
    "topic": ReasonCode.TOPIC_NAME_INVALID,
    "too_large": ReasonCode.QUOTA_EXCEEDED,  # PUBACK has no Packet too large
    "spool_full": ReasonCode.QUOTA_EXCEEDED,
    "disk": ReasonCode.QUOTA_EXCEEDED,
    "expired": ReasonCode.SUCCESS,
}
"""Reason codes in the PUBACKs of parts by the reason of the drop; others have the general one.

Beside these, a message is dropped as ``replaced`` (its sender has retained another one, which is
whole), ``incomplete`` (a part was lost, and its room was needed), ``too_old`` (no part has come for
`max_age_seconds`) or ``refused`` (the broker refuses the whole message).
"""


class OfferedPart(NamedTuple):
    """A message that was offered to the sink.

    Attributes:
        receipt: its receipt, which is to be settled; None at QoS 0.
    """

    message: Message
    receipt: Receipt | None


class Assembler(MessageSink):
    """The sink for parts."""

    name = "parts"

    def __init__(self, of: PartsContext) -> None:
        self.topic_filters = [f"{of.config.prefix}/{name}" for name in of.config.assemble]
        self.counts = SinkCounts()
        self._config, self._clients, self._spool, self._in_thread, *_ = of
        self._done, self._logger, self._clock = of.counts, of.logger, of.clock
        self._time = of.spool.now
        self._attended = of.spool.attended
        self._publisher = PartPublisher(of.clients, WHOLE_ID)
        self._taken: deque[OfferedPart] = deque()
        self._news = asyncio.Event()
        self._messages: dict[bytes, Spooled] = {}
        self._taken_bytes = 0
        self._waiting: dict[bytes, dict[bytes, None]] = {}
        self._overtaken: dict[bytes, None] = {}
        self._whole: dict[bytes, Receipt | None] = {}
        self._is_whole = asyncio.Event()
        self._not_taken: set[bytes] = set()
        self._ended: dict[bytes, Ended] = {}
        self._last_number = 0
        self._held_bytes = 0
        self._faults: dict[str, int] = {}

    # -- the sink --------------------------------------------------------------------------------

    def accept(self, message: Message, receipt: Receipt | None) -> None:
        """Queue a message that may be a part."""
        self.counts.matched += 1
        if message.publisher == PART_ID:  # the message was cut here
            self._settle(receipt, 0)
            return
        if receipt is None and self._taken_bytes > WAITING_BYTES:
            self._tell_drop("too_many", message.topic, f"; allowed: {WAITING_BYTES} bytes")
            self._settle(None, 0, "too_many")
            return
        self.counts.queued += 1
        self._taken_bytes += message.payload_bytes
        self._taken.append(OfferedPart(message, receipt))
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
        """Read the spool.

        Raises:
            SpoolError: it cannot be read.
        """
        for one in await self._in_thread(self._spool.ended):
            self._ended[one.message_id] = one
        for spooled in await self._in_thread(self._spool.messages):
            partial = spooled.partial
            self._messages[partial.message_id] = spooled
            self._held_bytes += _held_bytes(spooled)
            self._last_number = spooled.number
            if partial.is_whole:
                self._whole[partial.message_id] = None
            else:
                place = place_of(partial.message_id)
                self._waiting.setdefault(place.of, {})[partial.message_id] = None
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
                self._taken_bytes -= n_bytes
            self._news.clear()
            await self._news.wait()

    async def publish(self) -> None:
        """Publish whole messages until cancelled."""
        wait = AGAIN_SECONDS
        while True:
            n_left = len(self._whole)
            try:
                waiting = await self._publish_all()
            except (LostError, SpoolError) as error:
                waiting = f"{error}"
            if not waiting:
                wait = AGAIN_SECONDS
                if not self._whole:
                    self._is_whole.clear()
                    await self._is_whole.wait()
                continue
            self._tell_fault("a whole message waits to be published", waiting)
            wait = AGAIN_SECONDS if len(self._whole) < n_left else wait
            await asyncio.sleep(wait)
            wait = min(2 * wait, MOST_AGAIN_SECONDS)

    async def _publish_all(self) -> str:
        """Publish the whole messages that there is room for, those of a topic in their order.

        Returns:
            Why a message is left; "" for none.

        Raises:
            LostError: the connection to the broker has ended.
            SpoolError: the spool cannot be written.
        """
        full: dict[str, None] = {}
        for message_id in list(self._whole):
            spooled = self._messages[message_id]
            topic = spooled.partial.topic
            receipt, self._whole[message_id] = self._whole[message_id], None
            reason: str | None = ""
            try:
                reason = None if topic in full else await self._publish(spooled)
            except SpoolReadError as error:
                reason = "disk"
                await self._drop(message_id, topic, reason, f": {error}")
            finally:
                if receipt is not None:
                    self._answer(receipt, reason or "")
            if reason is None:
                full[topic] = None
            else:
                del self._whole[message_id]
        return f"the broker has no room for it, of topic {next(iter(full))!r}" if full else ""

    async def sweep(self) -> None:
        """Drop what is too old, periodically, until cancelled."""
        seconds = min(SWEEP_SECONDS, self._config.max_age_seconds / 4)
        while True:
            await asyncio.sleep(seconds)
            now = self._attended()
            for message_id, one in list(self._messages.items()):
                if (
                    message_id not in self._whole
                    and now - one.last_at > self._config.max_age_seconds
                ):
                    await self._drop(message_id, one.partial.topic, "too_old")
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
        self._publisher.close()

    # -- parts -----------------------------------------------------------------------------------

    async def _store(self, batch: Sequence[OfferedPart]) -> None:
        """Store what is new in some parts, and answer them."""
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
            elif spooled is None or not spooled.partial.is_whole or message_id in self._whole:
                self._answer(receipt)
            else:
                if receipt is None:  # at QoS 0, nothing waits for the answer
                    self._answer(None)
                self._whole[message_id] = receipt
                self._is_whole.set()

    async def _take(self, part: Part, taken: OfferedPart, writes: _Writes) -> None:
        """Add a part to its message, and to what is to be written."""
        topic = taken.message.topic[len(self._config.prefix) + 1 :]
        message_id = key_of(part, topic)
        part = part._replace(message_id=message_id)
        ended = self._ended.get(message_id)
        if ended is not None and self._is_wanted_again(part, topic, ended):
            del self._ended[message_id]
            ended = None
        if ended is not None:
            self._done.repeated_parts += 1
            self._answer(taken.receipt, ended.reason)
            return
        known = self._messages.get(message_id)
        if known is not None:
            told = known.partial.mismatch(part, topic)
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
            self._tell_overtaken(message_id)
            self._last_number += 1
            known = Spooled(self._last_number, PartialMessage(part, topic), b"\0", None, 0.0, None)
            self._held_bytes += _held_bytes(known)
        await self._add(part, taken, known, writes)

    def _is_wanted_again(self, part: Part, topic: str, ended: Ended) -> bool:
        """Say whether an ended message that the other end retains is to be put together again.

        Either it was delivered and is not retained here any more, as after a restart without
        persistence. Or it was dropped, and a new subscription brings it from its beginning.
        """
        if not part.is_kept or ended.packet_id is not None:
            return False
        if ended.reason:
            return part.offset == 0
        return not self._clients.retained(topic, WHOLE_ID)

    async def _add(self, part: Part, taken: OfferedPart, known: Spooled, writes: _Writes) -> None:
        """Add a part to the message that it fits."""
        partial = known.partial
        is_new = partial.trailer is None and part.trailer is not None
        held_bytes = _held_bytes(known)
        gaps = partial.add(part)
        if not gaps and not is_new:  # the first one may not be on the disk yet
            self._done.repeated_parts += 1
            writes.answers.append((part.message_id, taken.receipt))
            return
        expires_at = known.expires_at
        if taken.message.expires_at is not None:
            expires_at = self._time() + taken.message.expires_at - self._clock()
        new = known._replace(
            marks=_marks(taken.message), expires_at=expires_at, last_at=self._attended()
        )
        self._messages[part.message_id] = writes.messages[part.message_id] = new
        self._held_bytes += _held_bytes(new) - held_bytes
        if self._held_bytes > self._config.spool_bytes:
            await self._drop_overtaken(part.message_id, writes)
        if self._held_bytes > self._config.spool_bytes:
            told = f"; allowed: {self._config.spool_bytes} bytes in all"
            await self._drop(part.message_id, partial.topic, "spool_full", told)
            writes.forget(part.message_id)
            self._answer(taken.receipt, "spool_full")
            return
        self._done.received_parts += 1
        writes.pieces.extend(
            Piece(known.number, start, part.data[start - part.offset : end - part.offset])
            for start, end in gaps
        )
        writes.answers.append((part.message_id, taken.receipt))

    def _tell_overtaken(self, message_id: bytes) -> None:
        """Count and log earlier messages of which parts are lost, as this later message begins."""
        place = place_of(message_id)
        waiting = self._waiting.setdefault(place.of, {})
        for earlier in [one for one in waiting if place_of(one).number < place.number]:
            del waiting[earlier]
            spooled = self._messages.get(earlier)
            if spooled is None or spooled.partial.is_whole:
                continue
            self._overtaken[earlier] = None
            self._done.overtaken_messages += 1
            if is_logged(n_overtaken := self._done.overtaken_messages):
                partial = spooled.partial
                self._logger.warning(
                    "%d messages in parts are not whole, and a later one of the same sender and "
                    "topic has come: parts of them were lost, most often by a queue that was full "
                    "on the way; the last of topic %r, %d of %d bytes",
                    n_overtaken,
                    partial.topic,
                    partial.received_bytes,
                    partial.total_bytes,
                )
        waiting[message_id] = None

    async def _drop_overtaken(self, message_id: bytes, writes: _Writes) -> None:
        """Make room for a message by dropping messages that have lost parts."""
        for other in list(self._overtaken):
            if self._held_bytes <= self._config.spool_bytes:
                break
            spooled = self._messages.get(other)
            if spooled is not None and other != message_id and not spooled.partial.is_whole:
                await self._drop(other, spooled.partial.topic, "incomplete")
                writes.forget(other)

    def _forget_place(self, message_id: bytes) -> None:
        """Note that a message is delivered or dropped."""
        self._overtaken.pop(message_id, None)
        of = place_of(message_id).of
        waiting = self._waiting.get(of, {})
        waiting.pop(message_id, None)
        if not waiting:
            self._waiting.pop(of, None)

    def _refusal(self, part: Part, topic: str) -> tuple[str, str]:
        """Return (why a message is dropped at its first part, or ""; details for the log)."""
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
            await self._drop(message_id, one.partial.topic, "disk", f": {error}")
        for _, receipt in writes.answers:
            self._answer(receipt, "disk")

    async def _drop(self, message_id: bytes, topic: str, reason: str, told: str = "") -> None:
        """Drop a message with all of its parts."""
        known = self._messages.pop(message_id, None)
        if known is not None:
            self._held_bytes -= _held_bytes(known)
        self._not_taken.discard(message_id)
        self._forget_place(message_id)
        ended = self._ended[message_id] = Ended(message_id, reason, self._attended(), None)
        self._tell_drop(reason, topic, told)
        try:
            await self._in_thread(self._spool.end, None if known is None else known.number, ended)
        except SpoolError as error:
            self._tell_fault("what was dropped stays in the spool until the next start", error)

    def _tell_fault(self, what: str, error: Exception | str) -> None:
        """Log a failure that is retried, at growing intervals."""
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

    async def _publish(self, spooled: Spooled) -> str | None:
        """Publish a whole message, once.

        Returns:
            Why it was dropped, or "" for no reason that its sender is told; None where the broker
            has no room for it.

        Raises:
            LostError: the connection to the broker has ended.
            SpoolError: the spool cannot be read or written.
        """
        partial = spooled.partial
        message_id, topic = partial.message_id, partial.topic
        trailer = partial.trailer
        assert trailer is not None  # noqa: S101 (it is whole)
        is_checked = spooled.packet_id is not None
        is_repeat = is_checked and message_id not in self._not_taken
        if not is_checked and await self._in_thread(self._spool.digest, spooled.number) != (
            trailer.digest
        ):
            await self._drop(message_id, topic, "hash")
            return "hash"
        seconds = None if spooled.expires_at is None else spooled.expires_at - self._time()
        if seconds is not None and seconds <= 0:
            await self._drop(message_id, topic, "expired")
            return ""
        client = await self._client()
        packet_id = spooled.packet_id
        if packet_id is None:
            packet_id = self._new_packet_id()
            self._messages[message_id] = spooled._replace(packet_id=packet_id)
            if partial.qos != 1:  # at QoS 1 it may be published twice
                await self._in_thread(self._spool.publishing, spooled.number, packet_id)
        elif not partial.qos:  # it may have been published
            await self._end(spooled, None)
            return ""
        properties = _of_whole(trailer.properties, spooled.marks, seconds)
        n_bytes = len(properties) + len(topic.encode()) + partial.total_bytes + _HEADER_BYTES
        if n_bytes > self._clients.maximum_packet_size:
            await self._drop(message_id, topic, "too_large", f", of {n_bytes} bytes in one packet")
            return "too_large"
        self._not_taken.discard(message_id)
        code = await self._send(client, spooled, packet_id, properties, is_repeat=is_repeat)
        if code == ReasonCode.QUOTA_EXCEEDED:
            self._not_taken.add(message_id)
            return None
        if code >= 0x80:
            await self._drop(message_id, topic, "refused", f": {describe_reason_code(code)}")
            return "refused"
        await self._end(spooled, packet_id if partial.qos == 2 else None)
        if partial.qos == 2:
            await self._release(client, message_id, packet_id)
        return ""

    def _new_packet_id(self) -> int:
        """Return a packet identifier that no message to be repeated or released has."""
        taken = {one.packet_id for one in self._messages.values()}
        taken |= {one.packet_id for one in self._ended.values()}
        while (packet_id := self._publisher.next_packet_id()) in taken:
            pass
        return packet_id

    async def _client(self) -> LocalClient:
        """Return a connection; on a new one, release what was delivered before."""
        client, is_new = await self._publisher.client()
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
        partial = spooled.partial
        rows = await self._in_thread(self._spool.pieces, spooled.number)
        header = publish_header(
            partial.topic.encode(),
            partial.total_bytes,
            partial.qos,
            partial.retain,
            is_repeat,
            packet_id,
            properties,
            MQTT_5,
        )
        answer = None
        if partial.qos:
            answer = client.expect(PUBACK if partial.qos == 1 else PUBREC, packet_id)
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
        message_id = spooled.partial.message_id
        ended = Ended(message_id, "", self._attended(), packet_id)
        await self._in_thread(self._spool.end, spooled.number, ended)
        self._ended[message_id] = ended
        del self._messages[message_id]
        self._forget_place(message_id)
        self._held_bytes -= _held_bytes(spooled)
        self._done.assembled_messages += 1
        if spooled.partial.retain:
            await self._drop_replaced(message_id, spooled.partial.topic)

    async def _drop_replaced(self, message_id: bytes, topic: str) -> None:
        """Drop unfinished messages that the sender of a retained message had retained before."""
        for earlier in list(self._waiting.get(place_of(message_id).of_kept, ())):
            known = self._messages.get(earlier)
            if earlier != message_id and known is not None and not known.partial.is_whole:
                await self._drop(earlier, topic, "replaced")

    async def _release(self, client: LocalClient, message_id: bytes, packet_id: int) -> None:
        """End the exchange of a message of QoS 2."""
        answer = client.expect(PUBCOMP, packet_id)
        client.acknowledge(PUBREL, packet_id)
        await answer
        await self._in_thread(self._spool.released, message_id)
        self._ended[message_id] = self._ended[message_id]._replace(packet_id=None)


class _Writes(NamedTuple):
    """What is to be stored of a batch of parts.

    Attributes:
        messages: the messages as they are to be stored, by identifier.
        answers: (identifier of the message, receipt) of each part that is stored.
    """

    messages: dict[bytes, Spooled]
    pieces: list[Piece]
    answers: list[tuple[bytes, Receipt | None]]

    def forget(self, message_id: bytes) -> None:
        """Store nothing of a message that is dropped; its parts are answered nevertheless."""
        gone = self.messages.pop(message_id, None)
        if gone is not None:
            self.pieces[:] = [piece for piece in self.pieces if piece.number != gone.number]


def _code_of(reason: str) -> int:
    """Return the reason code for the reason of a drop; 0 for no drop."""
    return int(_CODES.get(reason, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)) if reason else 0


def _held_bytes(spooled: Spooled) -> int:
    """Return how many of the `spool_bytes` a message takes."""
    partial = spooled.partial
    n_bytes = MESSAGE_BYTES + partial.received_bytes + PIECE_BYTES * partial.n_pieces
    if partial.trailer is not None:
        n_bytes += len(partial.trailer.properties)
    return n_bytes + len(spooled.marks)


def _marks(message: Message) -> bytes:
    """Return the properties of a part that belong to the whole message.

    An uplink names the publisher of a part. That is a splitter, or a client that may not pretend to
    be another one.
    """
    pairs = [
        (name, value)
        for name, value in message.properties.get("user_property", ())
        if name in MARKS or (name == PUBLISHER_PROPERTY and value != PART_ID)
    ]
    return write_properties({"user_property": pairs} if pairs else {}, PacketType.PUBLISH)


def _of_whole(properties: bytes, marks: bytes, seconds: float | None) -> bytes:
    """Return the properties with which a whole message is published."""
    found, _ = read_publish_properties(properties, 0)
    more, _ = read_publish_properties(marks, 0)
    own = more.get("user_property", ())
    told = {*MARKS, *(name for name, _ in own)}
    pairs = [pair for pair in found.pop("user_property", ()) if pair[0] not in told]
    pairs += own
    if pairs:
        found["user_property"] = pairs
    if seconds is not None:
        found["message_expiry_interval"] = max(1, int(seconds))
    return write_properties(found, PacketType.PUBLISH)
