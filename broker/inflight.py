"""Packet identifiers and what they stand for until they are acknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from broker.mqtt.enums import MAX_PACKET_ID
from broker.outbox import Delivery

if TYPE_CHECKING:
    from broker.session_journal import DeliveryJournal


class Inflight:
    """QoS 1 and 2 messages that were sent and not yet acknowledged, oldest first.

    Invariant: a packet identifier is in `_deliveries` exactly while the subscriber owes an
    acknowledgement for it; those in `_released` owe a PUBCOMP, the others a PUBACK or PUBREC.

    Attributes:
        n_bytes: `size_bytes` of all messages.
        journal: told of every change; None where nothing of it is stored.
    """

    __slots__ = ("_deliveries", "_last_packet_id", "_released", "journal", "n_bytes")

    def __init__(self) -> None:
        self._deliveries: dict[int, Delivery] = {}
        self._released: set[int] = set()
        self._last_packet_id = 0
        self.n_bytes = 0
        self.journal: DeliveryJournal | None = None

    def __len__(self) -> int:
        return len(self._deliveries)

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self._deliveries.values())

    def start(self, delivery: Delivery) -> int:
        """Give a delivery the next free packet identifier [MQTT-2.2.1-4] and return it.

        The caller makes sure that fewer than 65,535 are inflight.
        """
        deliveries = self._deliveries
        packet_id = self._last_packet_id + 1
        if packet_id > MAX_PACKET_ID:
            packet_id = 1
        while packet_id in deliveries:
            packet_id = packet_id + 1 if packet_id < MAX_PACKET_ID else 1
        self._last_packet_id = packet_id
        deliveries[packet_id] = delivery
        delivery.packet_id = packet_id
        self.n_bytes += delivery.message.size_bytes
        if self.journal is not None:
            self.journal.changed(delivery)
        return packet_id

    def restore(self, delivery: Delivery, packet_id: int, *, is_released: bool) -> None:
        """Take up a delivery that was inflight when the broker ended, in the order of sending."""
        self._deliveries[packet_id] = delivery
        self._last_packet_id = packet_id
        self.n_bytes += delivery.message.size_bytes
        delivery.packet_id = packet_id
        if is_released:
            self._released.add(packet_id)

    def finish(self, packet_id: int, qos: int) -> Delivery | None:
        """Take a PUBACK (`qos` 1), a PUBCOMP or a PUBREC of refusal (`qos` 2).

        Returns:
            The delivery, which is inflight no more; None where none of that QoS was.
        """
        delivery = self._deliveries.get(packet_id)
        if delivery is None or delivery.qos != qos:
            return None
        del self._deliveries[packet_id]
        self._released.discard(packet_id)
        self.n_bytes -= delivery.message.size_bytes
        if self.journal is not None:
            self.journal.finished(delivery)
        return delivery

    def release(self, packet_id: int) -> Delivery | None:
        """Take a PUBREC: from now on a PUBCOMP is owed [MQTT-4.3.3-4].

        Returns:
            The delivery, or None where no QoS 2 message has that packet identifier. A PUBREC
            that comes twice is answered by PUBREL twice.
        """
        delivery = self._deliveries.get(packet_id)
        if delivery is None or delivery.qos != 2:
            return None
        self._released.add(packet_id)
        if self.journal is not None:
            self.journal.changed(delivery)
        return delivery

    def holds(self, delivery: Delivery) -> bool:
        """Say whether a delivery that was inflight still is."""
        return self._deliveries.get(delivery.packet_id) is delivery

    def is_released(self, packet_id: int) -> bool:
        """Say whether the PUBREC has come, so that PUBREL is what to send again."""
        return packet_id in self._released

    def clear(self) -> int:
        """Forget everything and return how many messages were inflight."""
        n_messages = len(self._deliveries)
        self._deliveries.clear()
        self._released.clear()
        self.n_bytes = 0
        return n_messages

    def check_invariants(self) -> None:
        """Raise AssertionError where the class's invariants do not hold."""
        n_bytes = sum(delivery.message.size_bytes for delivery in self)
        assert n_bytes == self.n_bytes, "n_bytes"  # noqa: S101 (this is the check)
        assert self._released <= self._deliveries.keys(), "_released"  # noqa: S101
