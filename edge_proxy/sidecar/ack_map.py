"""The packet ids of one pair: the acknowledgements that the client still owes the broker.

Packet ids pass through the proxy unchanged, because each client has a connection of its own to the
broker. The map records where a message is: it *waits* in the outbox, or it was *sent* and the
client has not finished it. The broker sees an acknowledgement only after the client sent it, and
the client can send it only for a message that was sent.
"""

from __future__ import annotations

from enum import Enum

from penstock.broker.errors import ProtocolError
from penstock.broker.mqtt.enums import PacketType
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.outbox.delivery import Delivery


class Outcome(Enum):
    """The effect of a client's acknowledgement on a message.

    Attributes:
        UNKNOWN: no such message came on this connection; the broker may know it.
        HELD: the message has not been sent yet; the broker must not see the acknowledgement.
        RECEIVED: a QoS 2 message has arrived; PUBREL and PUBCOMP follow.
        DELIVERED: the client has accepted it.
        REFUSED: the client answered with a reason code of 0x80 or above.
    """

    UNKNOWN = "unknown"
    HELD = "held"
    RECEIVED = "received"
    DELIVERED = "delivered"
    REFUSED = "refused"


class _Owed:
    """One QoS 1 or 2 message; `waiting` is its delivery until it was sent, then None."""

    __slots__ = ("is_dup", "is_received", "qos", "waiting")

    def __init__(self, qos: int, *, is_dup: bool) -> None:
        self.qos = qos
        self.is_dup = is_dup
        self.is_received = False
        self.waiting: Delivery | None = None


class AckMap:
    """Packet id to message, from its PUBLISH until the client has finished with it.

    Invariants: `n_waiting` messages are in the outbox, the other ``len(self) - n_waiting`` are
    inflight. There is no reference to a message that was sent: the broker keeps it for a
    repetition.

    Attributes:
        n_waiting: messages that wait in the outbox.
        waiting_bytes: what they count towards limits.
    """

    __slots__ = ("_owed", "n_waiting", "waiting_bytes")

    def __init__(self) -> None:
        self._owed: dict[int, _Owed] = {}
        self.n_waiting = 0
        self.waiting_bytes = 0

    def __len__(self) -> int:
        return len(self._owed)

    @property
    def n_inflight(self) -> int:
        """Messages that were sent to the client and not finished by it."""
        return len(self._owed) - self.n_waiting

    def is_repeat(self, packet_id: int, *, is_dup: bool) -> bool:
        """Say whether a QoS 1 or 2 PUBLISH repeats a message that is already in transfer.

        TCP loses nothing, so the repetition need not be sent.

        Raises:
            ProtocolError: the packet id is in use and this is no repetition [MQTT-2.2.1-4].
        """
        if packet_id not in self._owed:
            return False
        if not is_dup:
            raise ProtocolError(
                f"PUBLISH with packet id {packet_id}, which is not acknowledged yet",
                ReasonCode.PACKET_IDENTIFIER_IN_USE,
            )
        return True

    def expect(self, packet_id: int, qos: int, *, is_dup: bool) -> None:
        """Record a QoS 1 or 2 PUBLISH from the broker, which is no repeat."""
        self._owed[packet_id] = _Owed(qos, is_dup=is_dup)

    def hold(self, delivery: Delivery) -> None:
        """Record that an expected message waits in the outbox."""
        self._owed[delivery.packet_id].waiting = delivery
        self.n_waiting += 1
        self.waiting_bytes += delivery.message.size_bytes

    def sent(self, packet_id: int) -> bool:
        """A message that waited is being sent; return whether the broker has repeated it (DUP)."""
        owed = self._owed[packet_id]
        delivery = owed.waiting
        assert delivery is not None  # noqa: S101 (it waited)
        owed.waiting = None
        self.n_waiting -= 1
        self.waiting_bytes -= delivery.message.size_bytes
        return owed.is_dup

    def acknowledge(self, packet_type: int, packet_id: int, reason_code: int) -> Outcome:
        """Take a PUBACK, PUBREC or PUBCOMP of the client.

        The broker judges an acknowledgement for another QoS than the message's, and a PUBCOMP
        before the PUBREC.
        """
        owed = self._owed.get(packet_id)
        if owed is None:
            return Outcome.UNKNOWN
        if owed.waiting is not None:
            return Outcome.HELD
        if (packet_type == PacketType.PUBACK) != (owed.qos == 1):
            return Outcome.UNKNOWN
        is_refused = reason_code >= 0x80
        if packet_type == PacketType.PUBREC and not is_refused:
            owed.is_received = True
            return Outcome.RECEIVED
        if packet_type == PacketType.PUBCOMP and not owed.is_received:
            return Outcome.UNKNOWN
        del self._owed[packet_id]
        if packet_type == PacketType.PUBCOMP:
            # Its only reason code of 0x80 or above says that the message was finished before.
            return Outcome.DELIVERED
        return Outcome.REFUSED if is_refused else Outcome.DELIVERED

    def take_expired(self, now: float) -> list[Delivery]:
        """Forget and return the messages that have expired while they wait."""
        expired = [
            delivery
            for owed in self._owed.values()
            if (delivery := owed.waiting) is not None and delivery.message.is_expired(now)
        ]
        for delivery in expired:
            del self._owed[delivery.packet_id]
            self.waiting_bytes -= delivery.message.size_bytes
        self.n_waiting -= len(expired)
        return expired
