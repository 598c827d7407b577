"""The inflight window of a session that is sent messages in runs.

Theory of operation. Most clients acknowledge in the order in which messages came to them, and most
messages come in runs. A run that is sent at once gets Packet Identifiers that follow each other. It
is kept as one `_Part`, of which two marks say how far it is received and acknowledged; a lone
message is its own part. The acknowledgements that are due next are then known byte by byte: as many
as are found at the beginning of a chunk are taken by one comparison, whatever their number. Whoever
asks the window for anything else first *unfolds* all runs into one `Delivery` for each message, as
if they had been sent one by one; a journal that has noted or stored the run then has them. So runs
are always younger than what is in `_deliveries`, each
message is unfolded at most once, and the identifiers of runs only go up: they begin anew with a
single one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from penstock.broker.fast_paths.message_run import LoneMessage, MessageRun, read_lone, run_of_lone
from penstock.broker.mqtt.enums import MAX_PACKET_ID
from penstock.broker.mqtt.short_packets import (
    ALL_PUBACK,
    ALL_PUBCOMP,
    ALL_PUBREC,
    PACKET_BYTES,
    n_equal_packets,
)
from penstock.broker.outbox.delivery import NO_QUEUE, Delivery, DeliveryWatcher, RunPart
from penstock.broker.outbox.inflight import Inflight

if TYPE_CHECKING:
    from penstock.broker.sessions.client import PublishReceipt


class RunWatcher(DeliveryWatcher, Protocol):
    """Is told of the runs of one session: the journal, where they are stored.

    It is not told of a lone message, but of what the message's publisher is owed.
    """

    def may_go_alone(self) -> bool:
        """Say whether a message may be sent that is not noted yet."""

    def lone_sent(self, receipt: PublishReceipt) -> None:
        """Note that a lone message was sent."""

    def lone_finished(self, receipt: PublishReceipt) -> None:
        """Note that a lone message was acknowledged, and let its publisher know."""

    def note_lone(self) -> None:
        """Note each lone message as a run of one: something comes behind them."""

    def run_sent(self, part: RunPart) -> None:
        """Note that a run was sent."""

    def run_released(self, part: RunPart) -> None:
        """Note that PUBRECs of a run have come."""

    def run_finished(self, part: RunPart, n_before: int) -> None:
        """Note that messages of a run were acknowledged, from this one of it on."""

    def run_unfolded(self, part: RunPart) -> None:
        """Note that the rest of a run was made into deliveries."""


@dataclass(eq=False, slots=True)
class _Part:
    """A run on its way: where its Packet Identifiers begin, and how far it has come."""

    run: MessageRun
    first_packet_id: int
    n_released: int = field(default=0, init=False)
    n_finished: int = field(default=0, init=False)
    row: int = field(default=0, init=False)
    deliveries: list[Delivery] | None = field(default=None, init=False)


class RunWindow(Inflight):
    """QoS 1 and 2 messages that were sent and not yet acknowledged, single ones and runs.

    Invariant: a Packet Identifier is in `_deliveries` or in a part of `_parts` exactly while the
    subscriber owes an acknowledgement for it; those in `_released`, or before a part's mark, owe a
    PUBCOMP, the others a PUBACK or PUBREC. `_unreleased` holds the QoS 2 parts that owe a PUBREC.

    Attributes:
        journal: told of every change; None where nothing of it is stored.
    """

    journal: RunWatcher | None

    __slots__ = ("_unreleased",)

    def __init__(self) -> None:
        super().__init__()
        self._parts: deque[_Part | LoneMessage] = NO_QUEUE
        self._unreleased: deque[_Part] = NO_QUEUE

    def start_lone(
        self,
        data: bytes,
        payload_bytes: int,
        topic: tuple[str, bytes],
        publisher: str,
        arrived_at: float,
        receipt: PublishReceipt | None = None,
    ) -> int:
        """Give a message that goes by itself the Packet Identifier that comes next; return that.

        The caller makes sure that there is room, and tells the journal, if there is one. The
        arguments are as in `LoneMessage`.

        Returns:
            0 where `start` must find one: identifiers begin anew, or it is still in use.
        """
        packet_id = self._last_packet_id + 1
        if packet_id > MAX_PACKET_ID or packet_id in self._deliveries:
            return 0
        if self._parts is NO_QUEUE:
            self._parts = deque()
        self._parts.append((packet_id, payload_bytes, data, topic, publisher, arrived_at, receipt))
        self._last_packet_id = packet_id
        self.n_messages += 1
        self.n_bytes += payload_bytes
        return packet_id

    def start_run(self, run: MessageRun) -> int:
        """Give a run the Packet Identifiers that come next, and return the first of them.

        The caller makes sure that there is room for all of it.

        Returns:
            0 where they do not follow each other: they begin anew, or one is still in use.
        """
        n_messages = run.n_messages
        first = self._last_packet_id + 1
        last = self._last_packet_id + n_messages
        if last > MAX_PACKET_ID:
            return 0
        if self._deliveries and not self._deliveries.keys().isdisjoint(range(first, last + 1)):
            return 0
        part = _Part(run, first)
        if self._parts is NO_QUEUE:
            self._parts = deque()
        self._parts.append(part)
        if run.qos == 2:
            if self._unreleased is NO_QUEUE:
                self._unreleased = deque()
            self._unreleased.append(part)
        self.n_messages += n_messages
        self._last_packet_id = last
        self.n_bytes += run.payload_bytes
        if self.journal is not None:
            self.journal.run_sent(part)
        return first

    def finish_run(self, qos: int, data: bytes, position: int) -> tuple[int, int]:
        """Take the PUBACKs or PUBCOMPs of the oldest run, as far as they are in its order.

        Returns:
            (first Packet Identifier, how many); (0, 0) where it must be taken by `finish`.
        """
        if not self._parts:
            return 0, 0
        part = self._parts[0]
        if isinstance(part, tuple):
            first = part[0] if qos == 1 else 0
            start = first * PACKET_BYTES
            is_next = data.startswith(ALL_PUBACK[start : start + PACKET_BYTES], position)
            return first, int(is_next and self.finish_alone(first))
        run = part.run
        if run.qos != qos:
            return 0, 0
        first = part.first_packet_id + part.n_finished
        n_due = (run.n_messages if qos == 1 else part.n_released) - part.n_finished
        packets = ALL_PUBACK if qos == 1 else ALL_PUBCOMP
        n_messages = n_equal_packets(packets, first, n_due, data, position)
        n_before = part.n_finished
        part.n_finished = n_finished = n_before + n_messages
        if n_finished == run.n_messages:
            self._parts.popleft()
        self.n_messages -= n_messages
        self.n_bytes -= run.payload_bytes_of(n_before, n_finished)
        if self.journal is not None and n_messages:
            self.journal.run_finished(part, n_before)
        return first, n_messages

    def finish_alone(self, packet_id: int) -> bool:
        """Take the PUBACK of the oldest message, if it is that and went alone.

        Returns:
            False, and nothing has changed, where it must be taken by `finish_run` or `finish`.
        """
        parts = self._parts
        if not parts:
            return False
        part = parts[0]
        if isinstance(part, tuple):
            first, n_bytes = part[0], part[1]
        else:  # it went to several subscribers, or is stored
            first, n_bytes = part.first_packet_id, part.run.payload_bytes
            if part.run.n_messages != 1 or part.run.qos != 1:
                return False
        if first != packet_id:
            return False
        parts.popleft()
        self.n_messages -= 1
        self.n_bytes -= n_bytes
        if self.journal is not None:
            if not isinstance(part, tuple):
                part.n_finished = 1
                self.journal.run_finished(part, 0)
            elif part[6] is not None:
                self.journal.lone_finished(part[6])
        return True

    def fold_lone(self) -> list[tuple[_Part, PublishReceipt]]:
        """Make a run of one of each lone message that the journal knows.

        Returns:
            What stands for them in the window, in order, with what their publishers are owed.
        """
        found = []
        for index, part in enumerate(self._parts):
            if isinstance(part, tuple) and part[6] is not None:
                self._parts[index] = folded = _Part(run_of_lone(part), part[0])
                found.append((folded, part[6]))
        return found

    def release_run(self, data: bytes, position: int) -> tuple[int, int]:
        """Take the PUBRECs of the oldest run that waits for any, as far as they are in its order.

        Returns:
            (first Packet Identifier, how many); (0, 0) where it must be taken by `release`.
        """
        if not self._unreleased:
            return 0, 0
        part = self._unreleased[0]
        n_due = part.run.n_messages - part.n_released
        first = part.first_packet_id + part.n_released
        n_messages = n_equal_packets(ALL_PUBREC, first, n_due, data, position)
        part.n_released += n_messages
        if n_messages == n_due:
            self._unreleased.popleft()
        if self.journal is not None and n_messages:
            self.journal.run_released(part)
        return first, n_messages

    def unfold(self) -> None:
        """Make a delivery of each message that is inflight as a part of a run."""
        if self._parts and self.journal is not None:
            self.journal.note_lone()
        for part in self._parts:
            if isinstance(part, tuple):
                packet_id = part[0]
                delivery = self._deliveries[packet_id] = Delivery(read_lone(part), 1)
                delivery.packet_id = packet_id
                continue
            run = part.run
            part.deliveries = []
            for index in range(part.n_finished, run.n_messages):
                packet_id = part.first_packet_id + index
                delivery = Delivery(run.message(index), run.qos, share=run.share)
                self._deliveries[packet_id] = delivery
                delivery.packet_id = packet_id
                part.deliveries.append(delivery)
                if index < part.n_released:
                    self._released.add(packet_id)
            if self.journal is not None:
                self.journal.run_unfolded(part)
        self._forget_runs()

    def _forget_runs(self) -> None:
        self._parts.clear()
        self._unreleased.clear()

    def check_invariants(self) -> None:
        """Raise AssertionError where the class's invariants do not hold."""
        n_messages = n_bytes = 0
        for part in self._parts:
            if isinstance(part, tuple):
                ids, n_more = range(part[0], part[0] + 1), part[1]
            else:
                n_in_part = part.run.n_messages
                assert part.n_finished < n_in_part, "_parts"  # noqa: S101 (this is the check)
                assert part.n_finished <= part.n_released or part.run.qos == 1, "marks"  # noqa: S101
                owes_pubrec = part.run.qos == 2 and part.n_released < n_in_part
                assert (part in self._unreleased) == owes_pubrec, "_unreleased"  # noqa: S101
                first = part.first_packet_id
                ids = range(first + part.n_finished, first + n_in_part)
                n_more = part.run.payload_bytes_of(part.n_finished, n_in_part)
            assert self._deliveries.keys().isdisjoint(ids), "ids"  # noqa: S101
            n_messages += len(ids)
            n_bytes += n_more
        of_single = self._deliveries.values()
        n_bytes += sum(delivery.message.size_bytes for delivery in of_single)
        assert n_messages + len(of_single) == self.n_messages, "n_messages"  # noqa: S101
        assert n_bytes == self.n_bytes, "n_bytes"  # noqa: S101
        assert self._released <= self._deliveries.keys(), "_released"  # noqa: S101
