"""Room for messages in the outboxes of their subscribers, and publishers that wait for it.

Theory of operation. With `queue_full: reject`, a message of QoS 1 or 2 is routed only if every
outbox in which it must wait at QoS 1 or 2 has room for it, and all outboxes together have.
Otherwise it goes to no subscriber, so that its repetition reaches none of them twice. An MQTT 5
publisher gets reason code 0x97. MQTT 3.1.1 has no such answer: the message is held unacknowledged,
with later ones of the same client behind it, and is routed when there is room. The back-pressure on
such a client is the number of messages that it may send without an acknowledgement. It is still
read from, as it may itself be the subscriber that must make room. A client that has more than
`HELD_BYTES`, or `receive_maximum` messages, held is not read from. A patient client of MQTT 5 is
read from for longer: on the same connection it acknowledges what goes the other way.

An absent subscriber can make no room, so it stops no publisher: what its outbox has no room for is
dropped for it alone. An uplink whose site prefers that to a loss (`when_full: refuse`) is awaited,
for as long as it is full, but not by what it has brought down itself. Only who forwards what others
were told is safe (an uplink, a batch) waits for it like for any other, as all clients are absent
after a restart. One that is connected must not stop its publishers for good. If its outbox has not
fallen to half of its limits within `queue_full_seconds` of the first refusal, it gets what it has
room for and the rest is dropped, until it has fallen so far. The same applies to all outboxes where
the limit of all of them is reached. What another broker has routed waits for a session for
`FORWARDED_SECONDS` at most: all that it has for others waits behind it.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from penstock.broker.counters import count
from penstock.broker.extensions import LOCAL_CLIENT_PREFIX
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.outbox.backlog import DELIVERY_BYTES, LARGE_DELIVERY_BYTES
from penstock.broker.outbox.delivery import NO_QUEUE
from penstock.broker.plugin_guard import is_logged

if TYPE_CHECKING:
    from penstock.broker.link import Link
    from penstock.broker.message import Message
    from penstock.broker.outbox.outbox_limits import OutboxLimits
    from penstock.broker.routing.shared_subscriptions import SharedSubscription
    from penstock.broker.routing.subscriber import Subscriber
    from penstock.broker.routing.topic_tree import Target
    from penstock.broker.sending.core_context import CoreContext
    from penstock.broker.sending.sender import WriteQueue
    from penstock.broker.timers import Timer

HELD_BYTES: Final = 8 * 1024 * 1024
"""Memory of messages that one MQTT 3.1.1 publisher may have held before it is not read from: the
window of 20 messages that most clients have, of 400 KB each."""

PATIENT_HELD_BYTES: Final = 64 * 1024 * 1024
"""`HELD_BYTES` of a patient client of MQTT 5, whose Receive Maximum bounds the number of
messages."""

ALL_HELD_BYTES: Final = 256 * 1024 * 1024
"""Memory of held messages of all publishers together. Above it, a publisher with a single held
message is not
read from, so that many connections do not multiply the limit."""

LOOK_SECONDS: Final = 0.5
"""Seconds from one check of outboxes for room that was not reported, such as after a session's end,
to
the next."""

FORWARDED_SECONDS: Final = 1.0
"""How long a full session holds up what another broker has routed, each time that it fills."""

MOST_RETRIED: Final = 64
"""Publishers that are tried in one turn, as each attempt may fail."""

MOST_LOOKED: Final = 1024
"""Outboxes that are checked for them in one turn, as a message may have very many subscribers."""

HELD_MESSAGE_BYTES: Final = 384
"""Memory that CPython takes for a held message besides the message: its receipt, and places in
queues."""

WIDE_MESSAGES: Final = 512
"""The least queue limit in messages with which a run of small messages surely fits into an outbox
that is less than half full."""

WIDE_BYTES: Final = 2 * 1024 * 1024
"""The least queue limit in bytes with which it does."""

WIDE_DELIVERIES: Final = 256 * 1024
"""The least limit of deliveries in all outboxes together with which a message, or a short run, for
very many subscribers surely fits while they are less than half full."""

WIDE_BACKLOG_BYTES: Final = 2 * WIDE_DELIVERIES * DELIVERY_BYTES
"""The least limit of bytes in all outboxes together with which it does."""

MANY_SESSIONS: Final = 1024
"""With more subscribers than this, the room for a message or a run is computed."""

LOG_SECONDS: Final = 60.0
"""Time between two log lines about messages dropped for one client."""

LOGGED_SESSIONS: Final = 16
"""While no more sessions are full, each is logged; of further ones, each doubling of the number.
Very many lines at once block the loop."""

_NARROW: Final = "narrow limits"
"""Is in `OutboxLimits.over_half` while the room for each message is to be computed."""

_SLACK_BYTES: Final = 1024 * 1024
"""More memory than one message takes besides what counts as its size."""


class Publisher(Protocol):
    """A client whose messages wait for room.

    Attributes:
        is_open: its connection has not ended.
        outgoing: the bytes on their way to it.
        awaiting: the messages, oldest first.
        awaiting_bytes: of these.
    """

    is_open: bool
    outgoing: WriteQueue
    awaiting: deque[Any]
    awaiting_bytes: int


class HeldReceipt(Protocol):
    """The receipt of a held message."""

    @property
    def client(self) -> Publisher:
        """The client that it is owed to."""

    def settle(self, reason_code: int) -> None:
        """Take the answer."""


class Held(NamedTuple):
    """A message that waits for room.

    Attributes:
        receipt: of the message.
        message: authorized.
        route: routes it; returns False where there is still no room.
    """

    receipt: HeldReceipt
    message: Message
    route: Callable[[Any, Message, float], Awaitable[bool]]


@dataclass(slots=True)
class _Drops:
    """The messages that were dropped for one client since the last log line about it.

    Attributes:
        n_messages: dropped messages.
        logged_at: monotonic seconds of that line.
    """

    logged_at: float
    n_messages: int = 0


class QueueCapacity:
    """Knows which outboxes have room and which publishers wait for it, and logs both.

    Attributes:
        rejects: messages of QoS 1 and 2 are refused where there is no room.
        waiting: publishers that have a message held, in the order in which they are tried.
        over_half: while it is empty, small messages surely find room: `OutboxLimits.over_half`
        where
            messages are rejected. It is never empty with limits that are not wide, or where each
            subscriber gets a copy of the payload.
        each_bytes: held bytes of one publisher above which it is not read from.
    """

    def __init__(self, core: CoreContext, *, rejects: bool, seconds: float | None) -> None:
        """Begin with room for all; publishers wait for one session for so many seconds.

        None: as long as it is full.
        """
        self.waiting: dict[Publisher, None] = {}
        self.each_bytes = HELD_BYTES
        self._held_bytes = 0
        self._n_looked = 0
        self._core = core
        self._rules = core.outbox_rules
        self.change(rejects=rejects, seconds=seconds)
        self._full: dict[Subscriber | None, float] = {}
        self._given_up: set[Subscriber | None] = set()
        self._drops_logged_since = -math.inf
        self._n_drops_logged = 0
        self._drops: dict[str, _Drops] = {}
        self._trying: set[Publisher] = set()
        self._timer: Timer | None = None

    def change(self, *, rejects: bool, seconds: float | None) -> None:
        """Take other limits, those of the outboxes' rules included; arguments as at the beginning.

        Publishers that wait are tried again.
        """
        rules = self._rules
        self.rejects, self._seconds = rejects, seconds
        self.over_half: Collection[object] = rules.over_half if rejects else ()
        if rejects and (self._core.copies_payloads or not _are_wide(rules)):
            rules.over_half.add(_NARROW)
        else:
            rules.over_half.discard(_NARROW)
        if self.waiting:
            self._look_at(-math.inf)

    @property
    def n_held(self) -> int:
        """Messages that are held, of all publishers."""
        return sum(len(publisher.awaiting) for publisher in self.waiting)

    def has_much_held(self, publisher: Publisher, *, is_patient: bool) -> bool:
        """Say whether so much is held of a publisher that it is not to be read from."""
        each_bytes = self.each_bytes
        if each_bytes and is_patient:
            each_bytes = PATIENT_HELD_BYTES
        return publisher.awaiting_bytes > each_bytes

    # -- whether there is room --------------------------------------------------------------

    def has_room_for_run(
        self, sessions: Sequence[Subscriber], n_messages: int, n_bytes: int
    ) -> bool:
        """Say whether each of some sessions surely has room for some messages."""
        n_deliveries = n_messages * len(sessions)
        rules = self._rules
        backlog = rules.backlog
        if backlog is not None and (
            backlog.n_messages + n_deliveries > backlog.most_messages
            or backlog.n_bytes + _SLACK_BYTES + n_bytes + n_deliveries * LARGE_DELIVERY_BYTES
            > backlog.most_bytes
        ):
            return False
        for session in sessions:
            outbox = session.outbox.place
            own = outbox.rules if outbox.rules.refuses else rules
            if outbox.n_messages > own.max_messages - n_messages:
                return False
            if outbox.n_bytes > own.max_bytes - n_bytes:
                return False
        return True

    def lacks(
        self,
        message: Message,
        targets: Sequence[Target],
        chosen: Sequence[tuple[SharedSubscription, Target]],
        now: float,
        *,
        can_tell: bool,
        awaits_absent: bool = False,
        is_forwarded: bool = False,
    ) -> str:
        """Return why a QoS 1 or 2 message is to be refused to its publisher; "" if it is not.

        Args:
            message: to be routed at once if it is not refused.
            targets: its subscribers.
            chosen: the chosen members of shared subscriptions.
            now: monotonic seconds.
            can_tell: whether the publisher can be told. If not, a message that will never fit is
                routed, and dropped where there is no room.
            awaits_absent: whether the publisher waits for clients that are away, too: it
                forwards what others were told is safe.
            is_forwarded: whether another broker has routed the message.

        Returns:
            ``queue_full``, ``broker_full`` or "".
        """
        n_targets = len(targets) + len(chosen)
        if not n_targets or (
            not self.over_half
            and n_targets <= MANY_SESSIONS
            and (len(chosen) + 1) * message.size_bytes <= _SLACK_BYTES
        ):
            return ""
        core = self._core
        rules = self._rules
        recipients = [*targets, *(member for _, member in chosen)]
        n_copies = Counter(target.session for target in recipients) if chosen else None
        n_waiting = n_reliable = 0
        is_refused = False
        for target in recipients:
            session = target.session
            if message.publisher and session.client_id == message.publisher:
                own = target.for_own
                if own is None:
                    continue
                target = own  # noqa: PLW2901 (what the loop is about)
            if not message.is_large and session.sends_at_once(min(message.qos, target.qos)):
                continue
            n_waiting += 1
            place = session.outbox.place
            own_rules = place.rules
            if own_rules.refuses and _comes_back(message, session):
                continue
            is_absent = session.client is None and place is session.outbox
            loses = (is_absent and not awaits_absent) or own_rules.is_of_one
            if not target.qos or (loses and not own_rules.refuses):
                continue  # it loses messages where there is no room, also of all together
            n_reliable += 1
            if session.has_room_for(message, 1 if n_copies is None else n_copies[session]):
                continue
            if not can_tell and message.size_bytes > (own_rules if loses else rules).max_bytes:
                continue
            # Note each full session now: if each were noted only after the one before was given up,
            # their waits would add up.
            if self._refuses(session, now, is_forwarded=is_forwarded):
                is_refused = True
        self._n_looked += len(recipients)
        if is_refused:
            return "queue_full"
        backlog = rules.backlog
        if (
            n_reliable
            and backlog is not None
            and not backlog.has_room(message, n_waiting, is_copied=core.copies_payloads)
            and (can_tell or not backlog.is_too_small_for(message))
            and self._refuses(None, now)
        ):
            return "broker_full"
        return ""

    def _refuses(
        self, session: Subscriber | None, now: float, *, is_forwarded: bool = False
    ) -> bool:
        """Note that a session, or the broker, is full; return whether publishers wait for it."""
        since = self._full.get(session)
        if since is None:
            self._full[session] = now
            if is_logged(len(self._full), first=LOGGED_SESSIONS):
                self._core.logger.warning(
                    "%s: full (%s): QoS 1 and 2 messages for it are refused, or wait; "
                    "full sessions: %d",
                    _name(session),
                    self._limits_of(session),
                    len(self._full),
                )
            self._look_at(now + LOOK_SECONDS)
            return True
        waits_on = session is not None and session.outbox.place.rules.refuses
        seconds = math.inf if self._seconds is None else self._seconds
        if is_forwarded:
            seconds = min(seconds, FORWARDED_SECONDS)
        if waits_on or now - since < seconds:
            return True
        if session not in self._given_up:
            self._given_up.add(session)
            if is_logged(len(self._given_up), first=LOGGED_SESSIONS):
                self._core.logger.warning(
                    "%s: not down to half of its limits within %g s (limits.queue_full_seconds): "
                    "messages without room are dropped until it is; sessions in this state: %d",
                    _name(session),
                    seconds,
                    len(self._given_up),
                )
        return False

    def _limits_of(self, session: Subscriber | None) -> str:
        if session is not None and session.outbox.rules.refuses:
            return "the backlog of its uplink, when_full: refuse"
        return self._queue_limits(of_all=session is None)

    def _queue_limits(self, *, of_all: bool) -> str:
        limits = self._core.limits
        kind = "total_queued" if of_all else "queued"
        keys = (f"{kind}_messages", f"{kind}_bytes")
        return ", ".join(f"limits.{key}: {getattr(limits, key)}" for key in keys)

    def _look(self, now: float) -> None:
        """Find out which of the full ones have room again."""
        for session in list(self._full):
            full: object = self._rules.backlog
            if session is not None:
                session.outbox.drop_expired(now)
                full = session.outbox  # it is empty after the session's end
            if full not in self._rules.over_half:
                del self._full[session]
                self._given_up.discard(session)
                if is_logged(len(self._full) + 1, first=LOGGED_SESSIONS):
                    self._core.logger.info(
                        "%s: has room again; still full: %d", _name(session), len(self._full)
                    )

    # -- publishers that wait ---------------------------------------------------------------

    def hold(
        self,
        receipt: HeldReceipt,
        message: Message,
        route: Callable[[Any, Message, float], Awaitable[bool]],
        now: float,
    ) -> None:
        """Hold a message of a client that waits until there is room, behind its earlier ones."""
        publisher = receipt.client
        if not publisher.is_open:
            receipt.settle(ReasonCode.QUOTA_EXCEEDED)  # the client will send it again
            return
        if publisher.awaiting is NO_QUEUE:
            publisher.awaiting = deque()
        publisher.awaiting.append(Held(receipt, message, route))
        self._count_held(publisher, _held_bytes(message))
        self.waiting[publisher] = None
        self._look_at(now + LOOK_SECONDS)
        if publisher.awaiting_bytes > self.each_bytes:
            self._core.turn.touch(publisher.outgoing)

    def _count_held(self, publisher: Publisher, n_bytes: int) -> None:
        publisher.awaiting_bytes += n_bytes
        self._held_bytes += n_bytes
        self.each_bytes = HELD_BYTES if self._held_bytes <= ALL_HELD_BYTES else 0

    def forget(self, publisher: Publisher) -> None:
        """A publisher's connection has ended; the client will repeat unacknowledged messages."""
        self.waiting.pop(publisher, None)
        held, publisher.awaiting = publisher.awaiting, NO_QUEUE
        self._count_held(publisher, -publisher.awaiting_bytes)
        count(self._core.counters.publish_refused, "publisher gone", len(held))
        for receipt, _, _ in held:
            receipt.settle(ReasonCode.QUOTA_EXCEEDED)

    def made(self, session: Subscriber, now: float) -> None:
        """An outbox may have room again: publishers that wait for it are tried in the next turn."""
        if session in self._full or None in self._full:
            self._look_at(now)

    def sink_has_room(self) -> None:
        """A sink has room again: publishers that wait are tried in the next turn."""
        for publisher in self.waiting:
            self._look_at(-math.inf)
            self._core.turn.touch(publisher.outgoing)  # it may be outside of a turn
            break

    def _look_at(self, when: float) -> None:
        if self._timer is not None:
            if self._timer.at <= when:
                return
            self._timer.cancel()
        self._timer = self._core.timers.at(when, self._go_on)

    def _go_on(self, now: float) -> None:
        self._timer = None
        self._look(now)
        core = self._core
        core.turn.steps = self._n_looked = 0
        for publisher in list(self.waiting)[:MOST_RETRIED]:
            if publisher in self._trying:
                continue
            if core.turn.steps >= core.turn.most_steps or self._n_looked >= MOST_LOOKED:
                break
            del self.waiting[publisher]
            self.waiting[publisher] = None  # moved to the end: the next turn begins with the others
            core.run(self._try_again(publisher, now))
        if core.turn.steps and self.waiting:
            self._look_at(now)  # some have found room, so others may
        if self._full or self.waiting:
            self._look_at(now + LOOK_SECONDS)

    async def _try_again(self, publisher: Publisher, now: float) -> None:
        """Route what a publisher has held while there is room; a long queue takes several turns."""
        core = self._core
        queue = publisher.awaiting
        is_routed = True
        self._trying.add(publisher)
        try:
            while queue and core.turn.steps < core.turn.most_steps:
                is_routed = await queue[0].route(queue[0].receipt, queue[0].message, now)
                if publisher.awaiting is not queue:
                    return  # the connection has ended
                if not is_routed:
                    break
                core.turn.steps += 1
                self._count_held(publisher, -_held_bytes(queue.popleft().message))
        finally:
            self._trying.discard(publisher)
        if not queue:
            self.waiting.pop(publisher, None)
        elif is_routed:
            self._look_at(now)
        core.turn.touch(publisher.outgoing)  # it may be read from again

    # -- what is dropped --------------------------------------------------------------------

    def dropped(self, link: Link, reason: str, n_messages: int, now: float) -> None:
        """Log that messages were dropped as there was no room; seldom for the same client.

        The reason is as the ledger has it, and the time approximate.
        """
        drops = self._drops.get(link.client_id)
        if drops is None:
            drops = self._drops[link.client_id] = _Drops(now - LOG_SECONDS)
        drops.n_messages += n_messages
        if now - drops.logged_at < LOG_SECONDS:
            return
        if now - self._drops_logged_since >= LOG_SECONDS:
            self._drops_logged_since = now
            self._n_drops_logged = 0
        self._n_drops_logged += 1
        if not is_logged(self._n_drops_logged, first=LOGGED_SESSIONS):
            return
        drops.logged_at = now
        # What an uplink loses is data that a site was to deliver.
        self._core.logger.log(
            logging.WARNING if _is_of_uplink(link) else logging.INFO,
            "client %s: %d messages for it dropped: %s (%s)",
            link.client_id,
            drops.n_messages,
            reason,
            self._why_dropped(link, reason),
        )
        drops.n_messages = 0

    def _why_dropped(self, link: Link, reason: str) -> str:
        if reason == "not_stored":
            return "the disk does not take them"
        if reason == "too_old":
            return "the max_age_seconds of its uplink's backlog"
        if _is_of_uplink(link) and reason != "broker_full":
            return "the backlog that its uplink may have"
        return self._queue_limits(of_all=reason == "broker_full")

    def session_ended(self, client_id: str) -> None:
        """Forget what was logged about a client."""
        self._drops.pop(client_id, None)


def _is_of_uplink(link: Link) -> bool:
    return link.client_id.startswith(LOCAL_CLIENT_PREFIX)


def _comes_back(message: Message, session: Subscriber) -> bool:
    """Say whether an uplink has brought a message down itself, so that it does not go up again."""
    uplink = session.client_id.rsplit("/", 1)[0]
    return message.publisher.startswith(f"{uplink}/down")


def _are_wide(rules: OutboxLimits) -> bool:
    """Say whether half of each limit is much more than a few small messages."""
    backlog = rules.backlog
    return (
        rules.max_messages >= WIDE_MESSAGES
        and rules.max_bytes >= WIDE_BYTES
        and (
            backlog is None
            or (
                backlog.most_messages >= 2 * WIDE_DELIVERIES
                and backlog.most_bytes >= WIDE_BACKLOG_BYTES
            )
        )
    )


def _held_bytes(message: Message) -> int:
    """Return roughly what a held message takes; a payload in a store counts as well."""
    return max(message.memory_bytes, message.size_bytes) + HELD_MESSAGE_BYTES


def _name(session: Subscriber | None) -> str:
    return "all sessions together" if session is None else f"client {session.client_id}"
