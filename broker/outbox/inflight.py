"""Packet Identifiers, and the deliveries that they stand for until these are acknowledged.

`penstock.broker.fast_paths.run_window` extends this window: messages that it sends in runs are no
deliveries until something here asks for one of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from penstock.broker.errors import ProtocolError
from penstock.broker.mqtt.enums import MAX_PACKET_ID
from penstock.broker.outbox.delivery import NO_QUEUE, Delivery, DeliveryWatcher, RunPart

if TYPE_CHECKING:
    from penstock.broker.outbox.backlog import Backlog


class Inflight:
    """QoS 1 and 2 messages that were sent and not yet acknowledged, oldest first.

    Invariant: a Packet Identifier is in `_deliveries` exactly while the subscriber owes an
    acknowledgement for it. Those in `_released` owe a PUBCOMP, the others a PUBACK or PUBREC.

    Attributes:
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
        "backlog",
        "journal",
        "n_bytes",
        "n_messages",
    )

    def __init__(self) -> None:
        self._deliveries: dict[int, Delivery] = {}
        self._released: set[int] = set()
        self._parts: deque[Any] = NO_QUEUE  # runs, which only `RunWindow` has
        self._last_packet_id = 0
        self.n_messages = 0
        self.n_bytes = 0
        self.journal: DeliveryWatcher | None = None
        self.backlog: Backlog | None = None

    def __len__(self) -> int:
        return self.n_messages

    def __iter__(self) -> Iterator[Delivery]:
        if self._parts:
            self.unfold()
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

    def start(self, delivery: Delivery) -> int:
        """Give a delivery the next free packet identifier [MQTT-2.2.1-4] and return it.

        The caller makes sure that fewer than 65,535 are inflight.
        """
        if self._parts:
            self.unfold()
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
            self.unfold()
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
            self.unfold()
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
            self.unfold()
        return packet_id in self._released

    def clear(self) -> int:
        """Forget everything and return how many messages were inflight."""
        self.unpark()
        n_messages = self.n_messages
        self._deliveries.clear()
        self._released.clear()
        self._forget_runs()
        self.n_messages = 0
        self.n_bytes = 0
        return n_messages

    def fold_lone(self) -> Sequence[tuple[RunPart, Any]]:
        """Make a run of each message that the journal has not noted; here there is none."""
        return ()

    def unfold(self) -> None:
        """Make a delivery of each message that was sent in a run; see `RunWindow`."""

    def _forget_runs(self) -> None:
        """Forget the messages that were sent in runs."""

    def check_invariants(self) -> None:
        """Raise AssertionError where the class's invariants do not hold."""
        n_bytes = sum(delivery.message.size_bytes for delivery in self._deliveries.values())
        assert len(self._deliveries) == self.n_messages, "n_messages"  # noqa: S101 (the check)
        assert n_bytes == self.n_bytes, "n_bytes"  # noqa: S101
        assert self._released <= self._deliveries.keys(), "_released"  # noqa: S101
