"""The packet ids of one proxied client: the acknowledgements that the client still owes the broker.

Packet ids pass through the proxy unchanged, because each client has a connection of its own to the
broker. The map records where a message is: it *waits* in the outbox, or it was *sent* and the
client has not finished it. The broker gets an acknowledgement only after the client has sent it,
and the client can send it only for a message that was sent.
"""

from __future__ import annotations

from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import repeat
from struct import unpack
from typing import Final

from penstock.broker.errors import ProtocolError
from penstock.broker.mqtt.enums import PacketType
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.outbox.delivery import Delivery


class Outcome(Enum):
    """The effect of a client's acknowledgement on a message.

    Attributes:
        UNKNOWN: no such message came on this connection; the broker may know it.
        HELD: the message was not sent yet; the broker must not get the acknowledgement.
        RECEIVED: a QoS 2 message has arrived; PUBREL and PUBCOMP follow.
        REFUSED: the client answered with a reason code of 0x80 or above.
    """

    UNKNOWN = "unknown"
    HELD = "held"
    RECEIVED = "received"
    DELIVERED = "delivered"
    REFUSED = "refused"


_SPARE_EXPIRIES: Final = 64
"""How many expiry times of messages that have left are kept beside those that wait."""

_RECEIVED: Final = 3
"""Stands for the QoS of a message of QoS 2 whose PUBREC has come."""


class AckMap:
    """Packet id to message, from its PUBLISH until the client has finished with it.

    Invariants: `n_waiting` messages are in the outbox, `n_inflight` others were sent, and no packet
    id is in both places. The map does not keep a message that was sent: the broker can repeat it.

    Attributes:
        waiting_bytes: bytes for which the messages in the outbox count towards limits.
    """

    __slots__ = ("_expiring", "_repeats", "_sent", "_waiting", "waiting_bytes")

    def __init__(self) -> None:
        self._waiting: dict[int, Delivery] = {}
        self._sent: dict[int, int] = {}  # packet id to QoS, or `_RECEIVED`
        self._repeats: set[int] = set()  # of those that wait: sent with DUP by the broker
        # (when, packet id), a heap: of those that wait and may expire, and of some that have left.
        self._expiring: list[tuple[float, int]] = []
        self.waiting_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sent)

    @property
    def n_waiting(self) -> int:
        """Messages that wait in the outbox."""
        return len(self._waiting)

    @property
    def n_inflight(self) -> int:
        """Messages that were sent to the client and not finished by it."""
        return len(self._sent)

    def is_repeat(self, packet_id: int, *, is_dup: bool) -> bool:
        """Say whether a QoS 1 or 2 PUBLISH repeats a message that is already in transfer.

        TCP loses nothing, so the repetition need not be sent.

        Raises:
            ProtocolError: the packet id is in use and this is no repetition [MQTT-2.2.1-4].
        """
        if packet_id not in self._sent and packet_id not in self._waiting:
            return False
        if not is_dup:
            raise ProtocolError(
                f"PUBLISH with packet id {packet_id}, which is not acknowledged yet",
                ReasonCode.PACKET_IDENTIFIER_IN_USE,
            )
        return True

    def pass_on(self, packet_id: int, qos: int) -> None:
        """Record a QoS 1 or 2 PUBLISH, which is no repeat, as sent."""
        self._sent[packet_id] = qos

    def pass_run_on(self, packet_ids: bytes | bytearray, qos: int) -> bool:
        """Record several messages of a QoS as sent, by their packet ids of two bytes each.

        Returns:
            False where a packet id is 0, in use, or comes twice; then nothing has changed.
        """
        new = dict.fromkeys(_numbers(packet_ids), qos)
        if (
            0 in new
            or len(new) != len(packet_ids) // 2
            or not self._sent.keys().isdisjoint(new)
            or (self._waiting and not self._waiting.keys().isdisjoint(new))
        ):
            return False
        self._sent.update(new)
        return True

    def hold(self, delivery: Delivery, *, is_dup: bool) -> None:
        """Record a QoS 1 or 2 PUBLISH, which is no repeat, as waiting in the outbox."""
        self._waiting[delivery.packet_id] = delivery
        self.waiting_bytes += delivery.message.size_bytes
        if is_dup:
            self._repeats.add(delivery.packet_id)
        expires_at = delivery.message.expires_at
        if expires_at is not None:
            if len(self._expiring) > 2 * len(self._waiting) + _SPARE_EXPIRIES:
                self._drop_old_expiries()
            heappush(self._expiring, (expires_at, delivery.packet_id))

    def _drop_old_expiries(self) -> None:
        """Forget the times of messages that have left."""
        waiting = [(d.message.expires_at, d.packet_id) for d in self._waiting.values()]
        self._expiring = [(at, packet_id) for at, packet_id in waiting if at is not None]
        heapify(self._expiring)

    def sent(self, packet_id: int) -> bool:
        """Record a waiting message as sent; return whether the broker had sent it with DUP."""
        delivery = self._forget(packet_id)
        self._sent[packet_id] = delivery.qos
        is_dup = packet_id in self._repeats
        self._repeats.discard(packet_id)
        return is_dup

    def _forget(self, packet_id: int) -> Delivery:
        delivery = self._waiting.pop(packet_id)
        self.waiting_bytes -= delivery.message.size_bytes
        return delivery

    def acknowledge(self, packet_type: int, packet_id: int, reason_code: int) -> Outcome:
        """Handle a PUBACK, PUBREC or PUBCOMP of the client.

        One for another QoS than the message's, and a PUBCOMP before the PUBREC, are left to the
        broker to judge.
        """
        qos = self._sent.get(packet_id)
        if qos is None:
            return Outcome.HELD if packet_id in self._waiting else Outcome.UNKNOWN
        if (packet_type == PacketType.PUBACK) != (qos == 1):
            return Outcome.UNKNOWN
        is_refused = reason_code >= 0x80
        if packet_type == PacketType.PUBREC and not is_refused:
            self._sent[packet_id] = _RECEIVED
            return Outcome.RECEIVED
        if packet_type == PacketType.PUBCOMP and qos != _RECEIVED:
            return Outcome.UNKNOWN
        del self._sent[packet_id]
        if packet_type == PacketType.PUBCOMP:
            # Its only reason code of 0x80 or above says that the message was finished before.
            return Outcome.DELIVERED
        return Outcome.REFUSED if is_refused else Outcome.DELIVERED

    def finish_run(self, packet_ids: bytes | bytearray) -> int:
        """Handle PUBACK packets of success, by their packet ids of two bytes each.

        Returns:
            How many of the first ones have finished a message; the next one has not.
        """
        sent = self._sent
        numbers = _numbers(packet_ids)
        found = list(map(sent.pop, numbers, repeat(0)))
        n_finished = found.count(1)
        if n_finished < len(found):
            n_finished = next(i for i, qos in enumerate(found) if qos != 1)
            behind = zip(numbers[n_finished:], found[n_finished:], strict=True)
            sent.update((packet_id, qos) for packet_id, qos in behind if qos)
        return n_finished

    def take_expired(self, now: float) -> list[Delivery]:
        """Forget and return the messages that have expired while they wait."""
        expired = []
        while self._expiring and self._expiring[0][0] <= now:
            _, packet_id = heappop(self._expiring)
            delivery = self._waiting.get(packet_id)
            if delivery is not None and delivery.message.is_expired(now):  # else it has left
                self._forget(packet_id)
                self._repeats.discard(packet_id)
                expired.append(delivery)
        return expired


def _numbers(packet_ids: bytes | bytearray) -> tuple[int, ...]:
    """Return Packet Identifiers of two bytes each as numbers."""
    return unpack(f">{len(packet_ids) // 2}H", packet_ids)
