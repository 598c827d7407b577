"""One message to be delivered to one subscriber, and the shared empty queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Final, Protocol

from penstock.broker.extensions import LinkSampler
from penstock.broker.link import Link
from penstock.broker.message import Message, Storable


class _NoQueue(deque[Any]):
    """An empty queue that stays empty, as one object stands for the queues of all clients."""

    def append(self, _item: object) -> None:
        """Ignore the item."""
        raise RuntimeError("NO_QUEUE takes nothing: put a queue in its place")

    appendleft = extend = extendleft = append


NO_QUEUE: Final = _NoQueue()
"""Stands for a client's queue that was never used: an empty deque takes 760 bytes, and an idle
client would have five. Nothing can be put into it; code that queues something first replaces it by
a new deque."""


@dataclass(eq=False, repr=False, slots=True)
class Delivery(Storable):
    """One message to be delivered to one subscriber.

    Attributes:
        subscription_ids: Subscription Identifiers to send (MQTT 5.0, 3.3.2.3.8).
        packet_id: set once it is inflight; 0 before and for QoS 0.
        withheld_since: monotonic seconds from which it has been withheld, moved forward by the time
            for which its client was away; None before.
        after: for a delivery that is large for its subscriber: the last item in the ready place of
            its QoS when it came, or `NOTHING_BEFORE`; None for a small one. The outbox that takes
            it asks the gate once, and records the answer here.
        sequence: order of arrival in its outbox; equal for those that came one after the other to
            the same ready place.
        share: topic filter of the shared subscription by which it came, or "".
        is_waiting: whether it is in an outbox.
        is_stored: whether the journal of a durable session stores it; the same for all of a class.
        is_leased: whether a source wants to know what becomes of it; the same for all of a class.
        is_repeat: whether it may have been sent before it was inflight; the same for all of a
            class.
    """

    is_stored: ClassVar[bool] = True
    is_leased: ClassVar[bool] = False
    is_repeat: ClassVar[bool] = False

    message: Message
    qos: int
    _: KW_ONLY
    retain: bool = False
    subscription_ids: tuple[int, ...] = ()
    share: str = ""
    packet_id: int = field(default=0, init=False)
    withheld_since: float | None = field(default=None, init=False)
    after: Delivery | None = field(default=None, init=False)
    sequence: int = field(default=0, init=False)
    is_waiting: bool = field(default=False, init=False)
    row_start: int = field(default=0, init=False)
    row_index: int = field(default=0, init=False)

    @property
    def link_bytes(self) -> int:
        """Approximate bytes on the link: a message without a payload has at least a topic."""
        return len(self.message.topic_bytes) + self.message.payload_bytes

    def tell_sent(self, sampler: LinkSampler, link: Link, now: float) -> None:
        """Tell a sampler that the delivery was handed to the connection, at QoS 1 or 2."""
        sampler.sent(link, self.packet_id, self.message.payload_bytes, now)


class Run(Protocol):
    """Messages of QoS 1 or 2 that came together: `penstock.broker.fast_paths.message_run`.

    Attributes:
        qos: of all.
        messages: those of which a `Message` was made, by their place in the run; None for none.
        row: the number that the row of its first message has, or would have; 0 while it has none.
    """

    n_messages: int
    payload_bytes: int
    qos: int
    messages: dict[int, Message] | None
    row: int
    parts: list[RunPart]

    def rows(self, first: int, epoch: float) -> Iterable[tuple[object, ...]]:
        """Return the rows of its messages, as `penstock.broker.session_rows.MessageRow`.

        Any thread may call this.

        Args:
            first: the place of the first message that is wanted.
            epoch: seconds of the database's clock at which the monotonic clock was 0.
        """


class RunPart(Protocol):
    """A run that was sent to one subscriber: `penstock.broker.fast_paths.run_window`.

    Attributes:
        first_packet_id: the Packet Identifier of the first one.
        n_released: so many of them have their PUBREC.
        row: the number that the row of its first delivery has, or would have; 0 while it has none.
        deliveries: what it was unfolded into, from `n_finished` on; None while it was not.
    """

    first_packet_id: int
    n_released: int
    n_finished: int
    row: int
    deliveries: list[Delivery] | None

    @property
    def run(self) -> Run:
        """The messages."""


class DeliveryWatcher(Protocol):
    """Is told of the QoS 1 and 2 deliveries of one session: the journal, where they are stored."""

    def changed(self, delivery: Delivery) -> None:
        """Note that a delivery has come to the session, has been sent, or has left it."""

    def finished(self, delivery: Delivery) -> None:
        """Note that a delivery was acknowledged."""

    def ended(self, *, has_expired: bool) -> None:
        """Note that the session ends, with its messages still in their places."""

    def unstored(self) -> Collection[Delivery]:
        """Return what has come to any session since the last commit, in that order."""


NOTHING_BEFORE: Final = Delivery(Message("", b""), 0)
"""Value of `after` for a large delivery that waits for nothing before it."""


class Repeat(Delivery):
    """A delivery that waited when the last process ended, and may have been sent since its commit.

    It is sent with DUP [MQTT-3.3.1-1], under a new packet identifier: the one that it may have had
    is not known.
    """

    is_repeat: ClassVar[bool] = True

    __slots__ = ()


def by_sequence(delivery: Delivery) -> int:
    """Sort key of deliveries: their order of arrival."""
    return delivery.sequence


def first_of(
    ready0: deque[Delivery], ready: deque[Delivery], *, has_quota: bool
) -> deque[Delivery] | None:
    """Return which of two ready places yields the next message, or None."""
    if not ready or not has_quota:
        return ready0 or None
    if not ready0 or ready[0].sequence < ready0[0].sequence:
        return ready
    return ready0


def take_ready(
    ready: deque[Delivery], is_wanted: Callable[[Delivery], bool], n_messages: int
) -> dict[Delivery, Delivery | None]:
    """Take messages out of a ready place, wherever they are in it.

    Returns:
        Each message that was taken, in order of arrival, to the last remaining one before it; None
        where there is none.
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
