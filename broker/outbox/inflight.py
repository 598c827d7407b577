"""Packet identifiers and what they stand for until they are acknowledged.

Theory of operation. Most clients acknowledge in the order in which messages came to them, and most
messages come in runs. A run that is sent at once gets Packet Identifiers that follow each other,
and is kept as one `_Part`, of which two marks say how far it is received and acknowledged. The
acknowledgements that are due next are then known byte by byte: as many as are found at the
beginning of a chunk are taken by one comparison, whatever their number. Anything else that is
asked of the window first *unfolds* all runs into one `Delivery` for each message, as if they had
been sent one by one. So runs are always younger than what is in `_deliveries`, each message is
unfolded at most once, and the identifiers of runs only go up: they begin anew with a single one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.broker.errors import ProtocolError
from penstock.broker.mqtt.enums import MAX_PACKET_ID
from penstock.broker.mqtt.short_packets import (
    ALL_PUBACK,
    ALL_PUBCOMP,
    ALL_PUBREC,
    PACKET_BYTES,
    n_equal_packets,
)
from penstock.broker.outbox.delivery import NO_QUEUE, Delivery, DeliveryWatcher
from penstock.broker.outbox.message_run import MessageRun

if TYPE_CHECKING:
    from penstock.broker.outbox.backlog import Backlog


@dataclass(eq=False, slots=True)
class _Part:
    """A run on its way: where its Packet Identifiers begin, and how far it has come."""

    run: MessageRun
    first_packet_id: int
    n_released: int = field(default=0, init=False)
    n_finished: int = field(default=0, init=False)


class Inflight:
    """QoS 1 and 2 messages that were sent and not yet acknowledged, oldest first.

    Invariant: a packet identifier is in `_deliveries` or in a part of `_parts` exactly while the
    subscriber owes an acknowledgement for it; those in `_released`, or before a part's mark, owe a
    PUBCOMP, the others a PUBACK or PUBREC. `_unreleased` holds the QoS 2 parts that owe a PUBREC.

    Attributes:
        n_messages: how many there are.
        n_bytes: `size_bytes` of all.
        journal: told of every change; None where nothing of it is stored.
        backlog: counts what is in here while the client is away, from `park` to `unpark`; else
            None: what a client that is there has of messages, it may acknowledge at any time.
    """

    __slots__ = (
        "_deliveries",
        "_last_packet_id",
        "_parts",
        "_released",
        "_unreleased",
        "backlog",
        "journal",
        "n_bytes",
        "n_messages",
    )

    def __init__(self) -> None:
        self._deliveries: dict[int, Delivery] = {}
        self._released: set[int] = set()
        self._parts: deque[_Part] = NO_QUEUE
        self._unreleased: deque[_Part] = NO_QUEUE
        self._last_packet_id = 0
        self.n_messages = 0
        self.n_bytes = 0
        self.journal: DeliveryWatcher | None = None
        self.backlog: Backlog | None = None

    def __len__(self) -> int:
        return self.n_messages

    def __iter__(self) -> Iterator[Delivery]:
        self._unfold()
        return iter(self._deliveries.values())

    def park(self, backlog: Backlog) -> None:
        """Count what is in here with what waits: the client has gone and its session stays."""
        self.backlog = backlog
        for delivery in self:
            backlog.enter(delivery.message)

    def unpark(self) -> None:
        """Count it no more: the client is back, or the session ends."""
        backlog, self.backlog = self.backlog, None
        if backlog is not None:
            for delivery in self:
                backlog.leave(delivery.message)

    # -- one by one -------------------------------------------------------------------------

    def start(self, delivery: Delivery) -> int:
        """Give a delivery the next free packet identifier [MQTT-2.2.1-4] and return it.

        The caller makes sure that fewer than 65,535 are inflight.
        """
        if self._parts:
            self._unfold()
        deliveries = self._deliveries
        packet_id = self._last_packet_id + 1
        if packet_id > MAX_PACKET_ID:
            packet_id = 1
        while packet_id in deliveries:
            packet_id = packet_id + 1 if packet_id < MAX_PACKET_ID else 1
        self._last_packet_id = packet_id
        deliveries[packet_id] = delivery
        delivery.packet_id = packet_id
        self.n_messages += 1
        self.n_bytes += delivery.message.size_bytes
        if self.journal is not None:
            self.journal.changed(delivery)
        return packet_id

    def restore(self, delivery: Delivery, packet_id: int, *, is_released: bool) -> None:
        """Take up a delivery that was inflight when the broker ended, in the order of sending."""
        self._deliveries[packet_id] = delivery
        self._last_packet_id = packet_id
        self.n_messages += 1
        self.n_bytes += delivery.message.size_bytes
        delivery.packet_id = packet_id
        if is_released:
            self._released.add(packet_id)

    def finish(self, packet_id: int, qos: int) -> Delivery | None:
        """Take a PUBACK (`qos` 1) or a PUBCOMP (`qos` 2).

        Returns:
            The delivery, which is inflight no more; None where none has that packet identifier.

        Raises:
            ProtocolError: one has, and something else is owed for it.
        """
        if self._parts:
            self._unfold()
        delivery = self._deliveries.get(packet_id)
        if delivery is None:
            return None
        # [MQTT-4.3.2-3] [MQTT-4.3.3-3] [MQTT-4.3.3-5]
        if delivery.qos != qos or (qos == 2 and packet_id not in self._released):
            raise self._not_owed("PUBACK" if qos == 1 else "PUBCOMP", delivery)
        del self._deliveries[packet_id]
        if self.backlog is not None:
            self.backlog.leave(delivery.message)
        self._released.discard(packet_id)
        self.n_messages -= 1
        self.n_bytes -= delivery.message.size_bytes
        if self.journal is not None:
            self.journal.finished(delivery)
        return delivery

    def drop(self, delivery: Delivery) -> None:
        """Let a delivery go that was given a packet identifier and could not be sent."""
        if delivery.qos == 2:
            self._released.add(delivery.packet_id)
        self.finish(delivery.packet_id, delivery.qos)

    def take_back(self, delivery: Delivery) -> None:
        """Remove an unacknowledged delivery, so that another session may get it."""
        del self._deliveries[delivery.packet_id]
        if self.backlog is not None:
            self.backlog.leave(delivery.message)
        self.n_messages -= 1
        self.n_bytes -= delivery.message.size_bytes
        if self.journal is not None:
            self.journal.changed(delivery)

    def release(self, packet_id: int) -> Delivery | None:
        """Take a PUBREC: from now on a PUBCOMP is owed [MQTT-4.3.3-4].

        Returns:
            The delivery, or None where none has that packet identifier. A PUBREC that comes
            twice is answered by PUBREL twice.

        Raises:
            ProtocolError: one has, of QoS 1.
        """
        if self._parts:
            self._unfold()
        delivery = self._deliveries.get(packet_id)
        if delivery is None:
            return None
        if delivery.qos != 2:
            raise self._not_owed("PUBREC", delivery)
        self._released.add(packet_id)
        if self.journal is not None:
            self.journal.changed(delivery)
        return delivery

    def _not_owed(self, packet_name: str, delivery: Delivery) -> ProtocolError:
        """Return the error for an acknowledgement that cannot be (MQTT 5.0, 4.13.1).

        [MQTT-4.8.0-1] of MQTT 3.1.1.
        """
        packet_id = delivery.packet_id
        owed = "PUBACK"
        if delivery.qos == 2:
            owed = "PUBCOMP" if packet_id in self._released else "PUBREC"
        return ProtocolError(
            f"{packet_name} of packet id {packet_id}; allowed: {owed}, as its message has QoS "
            f"{delivery.qos}"
        )

    @property
    def last_packet_id(self) -> int:
        """The Packet Identifier that was given last; 0 before the first."""
        return self._last_packet_id

    def n_since(self, packet_id: int) -> int:
        """Return how many identifiers were given since one that was `last_packet_id`.

        Those that were passed over, as they were in use, count.
        """
        return (self._last_packet_id - packet_id) % MAX_PACKET_ID

    def holds(self, delivery: Delivery) -> bool:
        """Say whether a delivery that was inflight still is."""
        return self._deliveries.get(delivery.packet_id) is delivery

    def is_released(self, packet_id: int) -> bool:
        """Say whether the PUBREC has come, so that PUBREL is what to send again."""
        if self._parts:
            self._unfold()
        return packet_id in self._released

    def clear(self) -> int:
        """Forget everything and return how many messages were inflight."""
        self.unpark()
        n_messages = self.n_messages
        self._deliveries.clear()
        self._released.clear()
        self._forget_parts()
        self.n_messages = 0
        self.n_bytes = 0
        return n_messages

    # -- in runs ----------------------------------------------------------------------------

    def start_run(self, run: MessageRun) -> int:
        """Give a run the Packet Identifiers that come next, and return the first of them.

        The caller makes sure that there is room for all of it, and no journal.

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
        return first

    def finish_run(self, qos: int, data: bytes, position: int) -> tuple[int, int]:
        """Take the acknowledgements of the oldest run, as far as they are in its order.

        Args:
            qos: 1 for PUBACK, 2 for PUBCOMP.
            data: received bytes.
            position: where the first of the packets begins.

        Returns:
            (first Packet Identifier, how many); (0, 0) where it must be taken by `finish`.
        """
        if not self._parts:
            return 0, 0
        part = self._parts[0]
        run = part.run
        if run.qos != qos:
            return 0, 0
        first = part.first_packet_id + part.n_finished
        if qos == 1 and run.n_messages == 1:  # it went alone, as many do from many publishers
            start = first * PACKET_BYTES
            if not data.startswith(ALL_PUBACK[start : start + PACKET_BYTES], position):
                return first, 0
            self._parts.popleft()
            self.n_messages -= 1
            self.n_bytes -= run.payload_bytes
            return first, 1
        n_due = (run.n_messages if qos == 1 else part.n_released) - part.n_finished
        packets = ALL_PUBACK if qos == 1 else ALL_PUBCOMP
        n_messages = n_equal_packets(packets, first, n_due, data, position)
        n_before = part.n_finished
        part.n_finished = n_finished = n_before + n_messages
        if n_finished == run.n_messages:
            self._parts.popleft()
        self.n_messages -= n_messages
        self.n_bytes -= run.payload_bytes_of(n_before, n_finished)
        return first, n_messages

    def finish_lone(self, packet_id: int) -> bool:
        """Take the PUBACK of the oldest message, if it is that, went alone and is not stored.

        Returns:
            False, and nothing has changed, where it must be taken by `finish_run` or `finish`.
        """
        if not self._parts:
            return False
        part = self._parts[0]
        run = part.run
        if part.first_packet_id != packet_id or run.n_messages != 1 or run.qos != 1:
            return False
        self._parts.popleft()
        self.n_messages -= 1
        self.n_bytes -= run.payload_bytes
        return True

    def release_run(self, data: bytes, position: int) -> tuple[int, int]:
        """Take the PUBRECs of the oldest run that waits for any, as far as they are in its order.

        Args:
            data: received bytes.
            position: where the first of the packets begins.

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
        return first, n_messages

    def _unfold(self) -> None:
        """Make a delivery of each message that is inflight as a part of a run."""
        for part in self._parts:
            run = part.run
            for index in range(part.n_finished, run.n_messages):
                packet_id = part.first_packet_id + index
                delivery = self._deliveries[packet_id] = Delivery(run.message(index), run.qos)
                delivery.packet_id = packet_id
                if index < part.n_released:
                    self._released.add(packet_id)
        self._forget_parts()

    def _forget_parts(self) -> None:
        self._parts.clear()
        self._unreleased.clear()

    def check_invariants(self) -> None:
        """Raise AssertionError where the class's invariants do not hold."""
        n_bytes = sum(delivery.message.size_bytes for delivery in self._deliveries.values())
        n_messages = len(self._deliveries)
        for part in self._parts:
            n_in_part = part.run.n_messages
            n_left = n_in_part - part.n_finished
            assert n_left > 0, "_parts"  # noqa: S101 (this is the check)
            assert part.n_finished <= part.n_released or part.run.qos == 1, "marks"  # noqa: S101
            owes_pubrec = part.run.qos == 2 and part.n_released < n_in_part
            assert (part in self._unreleased) == owes_pubrec, "_unreleased"  # noqa: S101
            ids = range(part.first_packet_id, part.first_packet_id + n_in_part)
            assert self._deliveries.keys().isdisjoint(ids[part.n_finished :]), "ids"  # noqa: S101
            n_messages += n_left
            n_bytes += part.run.payload_bytes_of(part.n_finished, n_in_part)
        assert n_messages == self.n_messages, "n_messages"  # noqa: S101
        assert n_bytes == self.n_bytes, "n_bytes"  # noqa: S101
        assert self._released <= self._deliveries.keys(), "_released"  # noqa: S101
