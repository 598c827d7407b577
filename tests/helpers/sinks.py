"""Message sinks whose answers a test gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from penstock.broker.extensions import NEVER_FITS, MessageSink, Receipt, SinkCounts, SinkRun
from penstock.broker.message import Message
from penstock.broker.mqtt.packets import Publish
from penstock.broker.mqtt.reader import read_packet
from penstock.broker.mqtt.receive_buffer import ReceiveBuffer
from tests.helpers.frames import frames_of

RECEIVE_BUFFER: Final = ReceiveBuffer(268_435_460)
"""Holds nothing: runs are of whole packets."""


class HoldingSink(MessageSink):
    """A sink that answers for a message when the test lets it.

    Attributes:
        messages: the messages that it was given.
        receipts: the unsettled receipts, oldest first; None for a message of QoS 0.
        error: the exception that is raised for each message; None for no fault.
    """

    def __init__(self, *topic_filters: str, name: str = "sink") -> None:
        self.name = name
        self.topic_filters: Sequence[str] = topic_filters or ("q/#",)
        self.counts = SinkCounts()
        self.messages: list[Message] = []
        self.receipts: list[Receipt | None] = []
        self.error: Exception | None = None

    def accept(self, message: Message, receipt: Receipt | None) -> None:
        """Keep both until the test settles."""
        if self.error is not None:
            raise self.error
        self.messages.append(message)
        self.receipts.append(receipt)

    def settle(self, reason_code: int = 0) -> None:
        """Answer for the oldest message that is not answered."""
        receipt = self.receipts.pop(0)
        assert receipt is not None
        receipt.settle(reason_code)


class LimitedSink(HoldingSink):
    """A sink with room for some messages.

    Attributes:
        room: the number of messages that it has room for, besides those that it holds.
        reserved: the number of messages for which room is reserved.
        max_bytes: the length of the largest payload that it ever accepts.
    """

    def __init__(self, *topic_filters: str, name: str = "sink", room: int = 0) -> None:
        super().__init__(*topic_filters, name=name)
        self.room = room
        self.reserved: list[Message] = []
        self.max_bytes = 1000

    def reserve(self, message: Message) -> str:
        """Hold room, if there is any."""
        if self.error is not None:
            raise self.error
        if len(message.payload) > self.max_bytes:
            return NEVER_FITS
        if not self.room:
            return "queue_full"
        self.room -= 1
        self.reserved.append(message)
        return ""

    def release(self, message: Message) -> None:
        """Give it back."""
        self.reserved.remove(message)
        self.room += 1

    def accept(self, message: Message, receipt: Receipt | None) -> None:
        """Take a message for which room was held."""
        self.reserved.remove(message)
        super().accept(message, receipt)

    def make_room(self, n_messages: int = 1) -> None:
        """Have room for more messages."""
        self.room += n_messages
        self.on_room()


class RunSink(LimitedSink):
    """A sink that takes runs, with room for some messages until they are settled.

    Attributes:
        n_runs: the number of runs that it was given.
    """

    def __init__(self, *topic_filters: str, name: str = "sink", room: int = 1000) -> None:
        super().__init__(*topic_filters, name=name, room=room)
        self.n_runs = 0
        self._most = room

    def reserve_run(self, n_messages: int, n_bytes: int) -> bool:
        """Hold room, if there is enough."""
        assert n_bytes
        if self.error is not None:
            raise self.error
        if self.room < n_messages:
            return False
        self.room -= n_messages
        return True

    def release_run(self, n_messages: int, n_bytes: int) -> None:
        """Give it back."""
        assert n_bytes
        self.room += n_messages

    def accept_run(self, run: SinkRun, receipt: Receipt | None) -> None:
        """Take messages, those of QoS 0 as far as there is room."""
        if self.error is not None:
            raise self.error
        self.n_runs += 1
        packets = [
            read_packet(first_byte, body, run.version)
            for first_byte, body in frames_of(RECEIVE_BUFFER, run.packets)
        ]
        assert len(packets) == run.n_messages
        for packet in packets:
            assert isinstance(packet, Publish)
            assert (packet.qos, packet.dup, packet.retain) == (run.qos, False, False)
            assert (receipt is None) == (run.qos == 0)
            if receipt is None:
                if not self.room:
                    self.refuse(Message(packet.topic, packet.payload), "queue_full")
                    continue
                self.room -= 1
            self.messages.append(Message(packet.topic, packet.payload, qos=packet.qos))
        self.receipts.append(receipt)

    def settle_all(self, reason_code: int = 0) -> None:
        """Answer for all messages, and have room again."""
        receipts, self.receipts = self.receipts, []
        self.make_room(self._most - self.room)
        for receipt in receipts:
            if receipt is not None:
                receipt.settle(reason_code)


class StoringSink(MessageSink):
    """A sink whose commits, with deduplication identifiers, are in the test's hands.

    Its storage outlives the broker.

    Attributes:
        stored: the stored payloads, oldest first.
        known: the known deduplication identifiers.
        waiting: the operations of the next commit, oldest first.
        is_failing: whether commits fail.
    """

    def __init__(self, *topic_filters: str, name: str = "sink") -> None:
        self.name = name
        self.topic_filters = topic_filters or ("q/#",)
        self.counts = SinkCounts()
        self.stored: list[bytes] = []
        self.known: set[bytes] = set()
        self.waiting: list[Callable[[], Callable[[], None]]] = []
        self.is_failing = False

    def accept(self, message: Message, receipt: Receipt | None) -> None:
        """Store it in the next commit, unless it is a repeat of one that is stored."""
        assert receipt is not None
        identifier, is_repeat = receipt.deduplication_id, receipt.is_repeat
        payload = message.read_payload()

        def store() -> Callable[[], None]:
            if self.is_failing:
                return lambda: receipt.settle(0x80)
            if not (is_repeat and identifier in self.known):
                self.stored.append(payload)
            if identifier:
                self.known.add(identifier)
            return lambda: receipt.settle(0)

        self.waiting.append(store)

    def forget(self, deduplication_id: bytes, done: Callable[[bool], None]) -> None:
        """Forget it in the next commit."""

        def drop() -> Callable[[], None]:
            if not self.is_failing:
                self.known.discard(deduplication_id)
            has_forgotten = not self.is_failing
            return lambda: done(has_forgotten)

        self.waiting.append(drop)

    def commit(self, *, is_killed: bool = False) -> None:
        """Do what waits; the broker learns of it unless it is killed first."""
        waiting, self.waiting = self.waiting, []
        told = [change() for change in waiting]
        for tell in () if is_killed else told:
            tell()
