"""Recipients of a message that is not small for everybody: subscriptions of one size class.

Theory of operation. A topic's cached plan names who gets small messages, so the fast ways need to
know nothing of size classes: they take no message above the plan's threshold. Where a subscription
of one class matches, the plan has a split beside it. For a message above the least threshold of any
subscriber, the split asks for each session with such subscriptions to which class the message
belongs there, as a threshold may depend on the subscriber's listener.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.broker.link import Link

if TYPE_CHECKING:
    from penstock.broker.extensions import MessageSink
    from penstock.broker.message import Message
    from penstock.broker.outbox.outbox_limits import OutboxLimits
    from penstock.broker.routing.shared_subscriptions import SharedSubscription
    from penstock.broker.routing.subscriber import Subscriber
    from penstock.broker.routing.topic_tree import Target

_OF_SINKS: Final = Link("")
"""The link of every sink. It has no listener, so the general threshold counts."""

Recipients: TypeAlias = (
    "tuple[list[Target], tuple[SharedSubscription, ...], tuple[MessageSink, ...]]"
)
"""The recipients of a message: (targets, shared subscriptions, sinks)."""


class SizeClassTargets:
    """All who match a topic to which somebody has subscribed for one size class.

    Attributes:
        targets: of sessions that take both classes.
        by_session: (session, what it gets of small messages, what it gets of large ones) of each
            session with a subscription of one class; None for nothing.
        shares: the shared subscriptions that match.
        sinks: every sink with a matching topic filter.
    """

    __slots__ = ("_rules", "by_session", "shares", "sinks", "targets")

    def __init__(
        self,
        rules: OutboxLimits,
        targets: Sequence[Target],
        by_session: Sequence[tuple[Subscriber, Target | None, Target | None]],
        shares: Sequence[SharedSubscription],
        sinks: Sequence[MessageSink],
    ) -> None:
        self._rules = rules
        self.targets = targets
        self.by_session = by_session
        self.shares = shares
        self.sinks = sinks

    @property
    def n_targets(self) -> int:
        """Targets that it refers to beside those of the plan."""
        return len(self.targets) + 2 * len(self.by_session)

    def of_small(self) -> Recipients:
        """Return who gets a message that is small for every subscriber."""
        small = [target for _, target, _ in self.by_session if target is not None]
        return (
            [*self.targets, *small],
            tuple(share for share in self.shares if share.takes_small()),
            tuple(sink for sink in self.sinks if sink.sizes != "large"),
        )

    def of(self, message: Message) -> Recipients:
        """Return who gets a message."""
        targets = list(self.targets)
        for session, small, large in self.by_session:
            target = large if session.outbox.takes("large", message) else small
            if target is not None:
                targets.append(target)
        return (
            targets,
            tuple(share for share in self.shares if share.has_taker(message)),
            tuple(sink for sink in self.sinks if self._is_for(sink, message)),
        )

    def _is_for(self, sink: MessageSink, message: Message) -> bool:
        return sink.sizes is None or self._rules.is_of(sink.sizes, message, _OF_SINKS)
