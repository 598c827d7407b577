"""Shared subscriptions: which member of a group gets a message (MQTT 5.0, 4.8.2).

Theory of operation. A shared subscription is one ShareName with one topic filter; each message
that matches goes to one of its members. They take turns, and a member's turn is skipped while
it cannot send at once: its connection is paused, its inflight window full, something waits for
it already, or the message is large and would be withheld from it. Where no member can, the
connected one with the least to do gets the message; where none is connected, the one with the
least waiting for it, as only a session of QoS 1 or 2 keeps what comes while its client is away.

A member that holds messages which it cannot send is noted in `holders`;
`penstock.broker.sessions.redelivery` moves these to members that can.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from penstock.broker.message import Message, SizeClass
    from penstock.broker.routing.subscriber import Subscriber
    from penstock.broker.routing.topic_tree import Member


MOST_ASKED: Final = 16
"""Members of which the gate is asked about one message, some 10 us each: there may be thousands."""


Refusal: TypeAlias = "bool | dict[tuple[str, SizeClass | None], Subscriber]"
"""The members that have searched a holder in vain: False for none, True for one whose path the gate
found congested. Else it holds nothing of the size class of some members: one of them by the
listener and the class."""


@dataclass(slots=True, eq=False)
class SharedSubscription:
    """The members of one shared subscription, and whose turn it is.

    Attributes:
        topic_filter: ``$share/{ShareName}/{filter}`` as subscribed.
        members: one target for each session, in the order in which they joined.
        holders: sessions that may hold waiting messages of this share, in the order in which
            members search them; True where the last search by a member found no message that it
            could send. A session that holds none may be among them.
        n_durable: members whose session outlives the process.
        sizes: the size class of each member that takes one class of messages alone.
        turn: the place in `members` of the one whose turn it is; behind the last for the first.
    """

    topic_filter: str
    members: list[Member] = field(default_factory=list, init=False)
    holders: dict[Subscriber, Refusal] = field(default_factory=dict, init=False)
    n_durable: int = field(default=0, init=False)
    sizes: dict[Subscriber, SizeClass] = field(default_factory=dict, init=False)
    turn: int = field(default=0, init=False)

    def join(self, target: Member, sizes: SizeClass | None = None) -> bool:
        """Take a member in, or replace what it subscribed with.

        Returns:
            True where its session was no member.
        """
        self.sizes.pop(target.session, None)
        if sizes is not None:
            self.sizes[target.session] = sizes
        old = self.member_of(target.session)
        if old is not None:
            self.members[self.members.index(old)] = target
            return False
        self.members.append(target)
        self.n_durable += target.session.is_durable
        target.session.shares = (*target.session.shares, self)
        return True

    def leave(self, session: Subscriber) -> bool:
        """Let a member go; return False where the session was none.

        What waits for it stays where it is: see `penstock.broker.sessions.redelivery`.
        """
        member = self.member_of(session)
        if member is None:
            return False
        self.members.remove(member)
        self.n_durable -= session.is_durable
        self.holders.pop(session, None)
        self.sizes.pop(session, None)
        session.shares = tuple(share for share in session.shares if share is not self)
        return True

    def choose(
        self, message: Message, now: float, refused: Collection[Subscriber] = ()
    ) -> Member | None:
        """Say who gets a message, and give the turn to the next.

        Returns:
            The member; None where each is among the refused, or takes the other size class alone.
        """
        members = self.members
        n_members = len(members)
        turn = self.turn
        n_asked = 0
        sizes = self.sizes
        for _ in range(n_members):
            if turn >= n_members:
                turn = 0
            member = members[turn]
            turn += 1
            session = member.session
            if (
                session.sends_at_once(min(message.qos, member.qos))
                and session not in refused
                and (not sizes or self.takes(session, message))
            ):
                if not message.is_large or session.outbox.lets(message, now):
                    self.turn = turn
                    return member
                n_asked += 1
                if n_asked == MOST_ASKED:
                    break
        return self._choose_least_busy(message, refused)

    def _choose_least_busy(
        self, message: Message, refused: Collection[Subscriber]
    ) -> Member | None:
        """Return the member whose outbox is to keep a message for now; equals in turn."""
        members = self.members
        n_members = len(members)
        turns = [(self.turn + step) % n_members for step in range(n_members)]
        allowed = [turn for turn in turns if members[turn].session not in refused]
        if self.sizes:
            allowed = [turn for turn in allowed if self.takes(members[turn].session, message)]
        if not allowed:
            return None
        best = min(allowed, key=lambda turn: _busyness(members[turn], message))
        self.turn = best + 1
        return members[best]

    def note_holder(self, session: Subscriber, message: Message) -> None:
        """Note that a session holds a message, where members take one size class alone.

        Members that have searched it in vain and do not take the message need not search it again:
        its backlog may be long, and there may be no other member that takes it.
        """
        refusal = self.holders.get(session)
        if isinstance(refusal, dict):
            self.holders[session] = {
                (listener, sizes): member
                for (listener, sizes), member in refusal.items()
                if self.sizes.get(member) == sizes
                and member.listener == listener
                and not self.takes(member, message)
            }
        else:
            self.holders[session] = False

    def takes(self, session: Subscriber, message: Message) -> bool:
        """Say whether a message is of the size class that a member takes."""
        return session.outbox.takes(self.sizes.get(session), message)

    def has_taker(self, message: Message) -> bool:
        """Say whether any member takes messages of this one's size class."""
        sizes = self.sizes
        return len(sizes) < len(self.members) or any(self.takes(s, message) for s in sizes)

    def takes_small(self) -> bool:
        """Say whether any member takes messages that are small for every subscriber."""
        return len(self.sizes) < len(self.members) or "small" in self.sizes.values()

    def member_of(self, session: Subscriber) -> Member | None:
        """Return the member that a session is, or None."""
        for member in self.members:
            if member.session is session:
                return member
        return None

    def has_connected_member(self) -> bool:
        """Say whether a member is there to take what another one cannot send."""
        return any(member.session.client is not None for member in self.members)


def choose_members(
    message: Message, shares: Sequence[SharedSubscription], now: float
) -> list[tuple[SharedSubscription, Member]]:
    """Return the member of each shared subscription that gets a message."""
    chosen = [(share, share.choose(message, now)) for share in shares]
    return [(share, member) for share, member in chosen if member is not None]


def _busyness(member: Member, message: Message) -> tuple[bool, int, bool, int]:
    """Return what to choose the least of: (full, away, cannot send or keep, messages ahead)."""
    session = member.session
    outbox = session.outbox
    n_messages = outbox.n_messages + len(session.inflight)
    is_full = not session.has_room_for(message)
    if session.client is None:
        return is_full, 1, member.qos == 0, n_messages
    return is_full, 0, session.outgoing.is_paused or outbox.look_again_at is not None, n_messages
