"""One message on its way to one subscriber, and the queue that stands for none."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Final

from penstock.broker.extensions import LinkSampler
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.broker.records import Storable


class _NoQueue(deque[Any]):
    """An empty queue that stays empty: what is put into the one of all clients would be lost."""

    def append(self, _item: object) -> None:
        """Take nothing."""
        raise RuntimeError("NO_QUEUE takes nothing: put a queue in its place")

    appendleft = extend = extendleft = append


NO_QUEUE: Final = _NoQueue()
"""What stands for a client's queue while nothing was ever in it: an empty one takes 760 bytes, and
of a client that is idle there would be five. Nothing can be put into it: who has something to
queue puts a new one in its place."""


class Delivery(Storable):
    """One message on its way to one subscriber.

    Attributes:
        message: what is delivered.
        qos: granted for this delivery.
        retain: RETAIN flag of the outgoing PUBLISH.
        subscription_ids: Subscription Identifiers to send (MQTT 5.0, 3.3.2.3.8).
        packet_id: set once it is inflight; 0 before and for QoS 0.
        withheld_since: monotonic seconds from which it has been withheld, moved on by the time that
            its client was away; None before.
        after: of one that is large for its subscriber: what stood last in the ready place of its
            QoS when it came, or `NOTHING_BEFORE`. None of a small one. The outbox that takes it
            asks the gate once, and says so here.
        sequence: order of arrival in its outbox; the same for those that came one after the other
            to the same ready place.
        share: topic filter of the shared subscription by which it came, or "".
        is_waiting: in an outbox now.
        is_stored: whether the journal of a durable session stores it; so for all of a class.
        is_repeat: whether it may have been sent before it was inflight; so for all of a class.
    """

    is_stored: ClassVar[bool] = True
    is_repeat: ClassVar[bool] = False

    __slots__ = (
        "after",
        "is_waiting",
        "message",
        "packet_id",
        "qos",
        "retain",
        "sequence",
        "share",
        "subscription_ids",
        "withheld_since",
    )

    def __init__(
        self,
        message: Message,
        qos: int,
        *,
        retain: bool = False,
        subscription_ids: tuple[int, ...] = (),
        share: str = "",
    ) -> None:
        self.message = message
        self.qos = qos
        self.retain = retain
        self.subscription_ids = subscription_ids
        self.packet_id = 0
        self.withheld_since: float | None = None
        self.after: Delivery | None = None
        self.sequence = 0
        self.share = share
        self.is_waiting = False
        self.row_start = self.row_index = 0

    @property
    def link_bytes(self) -> int:
        """About what it takes of the link: messages without a payload have at least a topic."""
        return len(self.message.topic_bytes) + self.message.payload_bytes

    def tell_sent(self, sampler: LinkSampler, link: Link, now: float) -> None:
        """Tell a sampler that it was handed to the connection, at QoS 1 or 2."""
        sampler.sent(link, self.packet_id, self.message.payload_bytes, now)


NOTHING_BEFORE: Final = Delivery(Message("", b""), 0)
"""What a large delivery goes after that waits for nothing before it."""


class Repeat(Delivery):
    """A delivery that waited when the process before ended, and may have left since its commit.

    It has DUP when it is sent [MQTT-3.3.1-1], under a packet identifier of its own: the one that it
    may have had is not known.
    """

    is_repeat: ClassVar[bool] = True

    __slots__ = ()


def by_sequence(delivery: Delivery) -> int:
    """Return what deliveries are sorted by: their order of arrival."""
    return delivery.sequence


def first_of(
    ready0: deque[Delivery], ready: deque[Delivery], *, has_quota: bool
) -> deque[Delivery] | None:
    """Return which of two ready places is to yield the next message, or None.

    Args:
        ready0: of QoS 0.
        ready: of QoS 1 and 2.
        has_quota: whether one more QoS 1 or 2 message may be inflight.
    """
    if not ready or not has_quota:
        return ready0 or None
    if not ready0 or ready[0].sequence < ready0[0].sequence:
        return ready
    return ready0


def take_ready(
    ready: deque[Delivery], is_wanted: Callable[[Delivery], bool], n_messages: int
) -> dict[Delivery, Delivery | None]:
    """Take messages out of a ready place, wherever they stand in it.

    Args:
        ready: the place.
        is_wanted: says of a message whether it goes.
        n_messages: how many at most.

    Returns:
        Each message that was taken, in order of arrival, to the last one before it that stays;
        None where none does.
    """
    taken: dict[Delivery, Delivery | None] = {}
    passed: list[Delivery] = []
    while ready and len(taken) < n_messages:
        delivery = ready.popleft()
        if is_wanted(delivery):
            taken[delivery] = passed[-1] if passed else None
        else:
            passed.append(delivery)
    if passed:
        ready.extendleft(reversed(passed))
    return taken
