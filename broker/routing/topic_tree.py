"""The subscriptions that match a topic: a trie of filters and a cached plan for each topic.

Theory of operation. The trie holds each topic filter once, level by level. Walking it costs
time, so what it finds for a topic is kept as a `Plan`; a PUBLISH on a topic that was seen
before costs one dictionary look-up by the bytes that came in. A subscription without
wildcards makes only its own topic's plan void, one with wildcards makes all plans void.

To add or remove a subscription takes as many steps as its filter has levels, however many filters
there are. A walk for a topic visits those nodes whose levels so far match: at most two for each
one before them, and never more than there are filters on each level.

A shared subscription stands in the trie at its filter, once for all of its members: plans name
the share, which chooses a member for each message, so that members come and go without a plan
made void.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.broker.extensions import MessageSink
from penstock.broker.message import Message, SizeClass
from penstock.broker.mqtt.topics import SHARE_PREFIX, matching_nodes, parse_share
from penstock.broker.routing.shared_subscriptions import SharedSubscription
from penstock.broker.routing.sink_filters import SinkFilters
from penstock.broker.routing.size_class_targets import SizeClassTargets

if TYPE_CHECKING:
    from penstock.broker.outbox.outbox_limits import OutboxLimits
    from penstock.broker.routing.subscriber import Subscriber

PLAN_BLOCKS: Final = 4
"""Small memory blocks of CPython that the plan of a topic without subscribers takes."""

_PLAN_BYTES: Final = 512
_TARGET_BYTES: Final = 90
"""Memory that CPython takes for a plan, and for each of its targets, with its fast plan."""


SUBSCRIPTION_BYTES: Final = 280
"""Memory that CPython takes for a subscription beside its topic filter and the levels of that."""

SHARE_BYTES: Final = 960
"""Memory that a shared subscription takes beside the subscriptions of its members."""

LEVEL_BYTES: Final = 96
"""Memory that a level of a filter takes beside its text, once for all filters that begin with
it."""

TABLE_BYTES: Final = 128
"""Memory that the table of next levels of a level takes. A level without next ones has none."""


_STRING_BYTES: Final = 56
_LEVEL_AND_TABLE_BYTES: Final = LEVEL_BYTES + TABLE_BYTES
_LEVEL_ALONE_BYTES: Final = _STRING_BYTES + _LEVEL_AND_TABLE_BYTES
_EMPTY_BYTES: Final = sys.getsizeof("")


def most_bytes(topic_filters: Sequence[str]) -> int:
    """Return more than what subscriptions to so many filters are counted for, in little time."""
    text = "/".join(topic_filters)
    n_levels = text.count("/") + 1
    n_filters = len(topic_filters)
    most = SUBSCRIPTION_BYTES + 2 * (_STRING_BYTES + _EMPTY_BYTES)
    return n_filters * most + 8 * len(text) + n_levels * (_LEVEL_ALONE_BYTES + _STRING_BYTES)


def _text_bytes(text: str) -> int:
    """Return what a text takes of the memory; in a third of the time of `sys.getsizeof`."""
    return _EMPTY_BYTES + len(text) if text.isascii() else sys.getsizeof(text)


@dataclass(slots=True, eq=False)
class Subscription:
    """One session's subscription to one topic filter.

    Attributes:
        session: who subscribed.
        topic_filter: as given, ``$share/NAME/`` included.
        qos: granted QoS, the most that is delivered.
        no_local: not for messages that this session published itself (MQTT 5.0, 3.8.3.1).
        retain_as_published: keep the RETAIN flag (MQTT 5.0, 3.8.3.1).
        subscription_id: Subscription Identifier, or 0 for none.
        sizes: the size class of the messages that it takes; None for both.
    """

    session: Subscriber
    topic_filter: str
    qos: int
    _: KW_ONLY
    no_local: bool = False
    retain_as_published: bool = False
    subscription_id: int = 0
    sizes: SizeClass | None = None


class Target:
    """All subscriptions of one session that match one topic, merged into one delivery.

    MQTT 5.0 lets a server send one copy with the highest QoS and every Subscription
    Identifier (3.3.4); that is what Penstock does, in MQTT 3.1.1 too [MQTT-3.3.5-1].

    Attributes:
        session: who gets the message.
        qos: the highest granted QoS.
        retain_as_published: True where any of the subscriptions asks for it.
        subscription_ids: of all subscriptions that have one.
    """

    __slots__ = (
        "_has_no_local",
        "_without_no_local",
        "qos",
        "retain_as_published",
        "session",
        "subscription_ids",
    )

    def __init__(self, session: Subscriber, subscriptions: Sequence[Subscription]) -> None:
        self.session = session
        self._without_no_local: Target | None = None
        self.subscription_ids: tuple[int, ...]
        if len(subscriptions) == 1:  # as nearly always
            (only,) = subscriptions
            self.qos = only.qos
            self.retain_as_published = only.retain_as_published
            self.subscription_ids = (only.subscription_id,) if only.subscription_id else ()
            self._has_no_local = only.no_local
            return
        self.qos = max(s.qos for s in subscriptions)
        self.retain_as_published = any(s.retain_as_published for s in subscriptions)
        self.subscription_ids = tuple(s.subscription_id for s in subscriptions if s.subscription_id)
        others = [s for s in subscriptions if not s.no_local]
        self._has_no_local = len(others) < len(subscriptions)
        if self._has_no_local and others:
            self._without_no_local = Target(session, others)

    @property
    def for_own(self) -> Target | None:
        """What the session gets of its own messages, None for nothing [MQTT-3.8.3-3].

        That is without the subscriptions that say No Local; the target itself where none says so.
        """
        return self._without_no_local if self._has_no_local else self


class Member(Target):
    """A session's subscription in a share.

    Attributes:
        answers: topic to whether access control lets the session receive it, where the answer
            lasts; who keeps an answer here empties all of them when the plans are dropped.
    """

    __slots__ = ("answers",)

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription.session, (subscription,))
        self.answers: dict[str, bool] = {}


def _target_of(session: Subscriber, subscriptions: Sequence[Subscription]) -> Target | None:
    return Target(session, subscriptions) if subscriptions else None


@dataclass(slots=True, eq=False)
class Plan:
    """The recipients of the messages of one topic.

    Attributes:
        topic: Topic Name.
        topic_bytes: the same, UTF-8 encoded.
        targets: one for each session with a matching subscription of its own.
        shares: the shared subscriptions that match; each adds one delivery.
        sinks: every sink with a matching topic filter.
        threshold_s: payload bytes above which a message is large; `sys.maxsize` for never.
        most_bytes: payload bytes up to which all this holds: a longer message is too large for the
            broker, or `of` says who gets it.
        split: who gets a longer one, where a subscription of one size class matches; else None.
        retaining: sinks that `of` adds for a message with RETAIN, where they are not in `sinks`.
    """

    topic: str
    topic_bytes: bytes
    targets: list[Target]
    shares: tuple[SharedSubscription, ...]
    sinks: tuple[MessageSink, ...]
    threshold_s: int
    most_bytes: int = sys.maxsize
    split: SizeClassTargets | None = None
    retaining: tuple[MessageSink, ...] = ()

    def of(self, message: Message) -> Plan:
        """Return the plan for one message of this topic.

        That is itself, except above `most_bytes`, and for what sinks are to retain.
        """
        plan = self
        if self.split is not None and message.payload_bytes > self.most_bytes:
            targets, shares, sinks = self.split.of(message)
            plan = Plan(self.topic, self.topic_bytes, targets, shares, sinks, self.threshold_s)
        if self.retaining and message.retain:
            more = [sink for sink in self.retaining if sink not in plan.sinks]
            plan = replace(plan, sinks=(*plan.sinks, *more))
        return plan

    def of_sessions(self) -> Plan:
        """Return the plan without shared subscriptions and sinks, of what was forwarded."""
        if not (self.shares or self.sinks or self.retaining):
            return self
        return replace(self, shares=(), sinks=(), retaining=(), split=None)

    def of_share(self, topic_filter: str) -> Plan:
        """Return the plan of what was forwarded for one member of a shared subscription."""
        shares = tuple(share for share in self.shares if share.topic_filter == topic_filter)
        return replace(self, targets=[], shares=shares, sinks=(), retaining=(), split=None)

    def size_bytes(self) -> int:
        """Return about what the plan takes of the memory."""
        n_topic_bytes = 2 * len(self.topic_bytes)
        n_targets = len(self.targets) + len(self.shares)
        if self.split is not None:
            n_targets += self.split.n_targets
        return _PLAN_BYTES + n_topic_bytes + _TARGET_BYTES * n_targets


class _Node(dict[str, "_Node"]):
    """One topic level: a table of the next ones. Who makes one sets its two attributes.

    Most filters are one session's and end a branch of their own. So a node is its table, which
    takes memory only when there is a next level, and one subscription needs no table at all.

    Attributes:
        held: the subscription to the filter that ends here, one for each session where there
            are several, or None.
        shares: the shared subscriptions to that filter, by their names, or None.
    """

    __slots__ = ("held", "shares")

    held: Subscription | dict[Subscriber, Subscription] | None
    shares: dict[str, SharedSubscription] | None

    def hold(self, subscription: Subscription) -> bool:
        """Add or replace a session's subscription; return True where it had none."""
        session = subscription.session
        held = self.held
        if held is None:
            self.held = subscription
            return True
        if isinstance(held, Subscription):
            if held.session is session:
                self.held = subscription
                return False
            held = self.held = {held.session: held}
        is_new = session not in held
        held[session] = subscription
        return is_new

    def let_go(self, session: Subscriber) -> bool:
        """Remove a session's subscription; return False where there was none."""
        held = self.held
        if isinstance(held, Subscription):
            if held.session is not session:
                return False
            self.held = None
            return True
        if not held or session not in held:
            return False
        del held[session]
        if not held:
            self.held = None
        return True

    def is_empty(self) -> bool:
        return not self and self.held is None and not self.shares


def _new_node() -> _Node:
    node = _Node()
    node.held = node.shares = None
    return node


class TopicTree:
    """All subscriptions of a broker, and the plans made from them.

    Attributes:
        plans: topic bytes to plan; the router looks in here first.
        shares: the shared subscriptions that have members, by ``$share/{ShareName}/{filter}``.
        n_subscriptions: subscriptions of all sessions, memberships of shares among them.
        n_bytes: about what they take of the memory.
        on_plans_void: called after plans were dropped, so that what was derived from them can
            be dropped too.
    """

    def __init__(
        self,
        sinks: Iterable[MessageSink] = (),
        threshold_s: Callable[[str], int | None] | None = None,
        *,
        rules: OutboxLimits | None = None,
        most_plan_bytes: int = sys.maxsize,
        most_payload_bytes: int = sys.maxsize,
    ) -> None:
        """Make a tree without subscriptions.

        Args:
            sinks: the first ones, as by `add_sink`.
            threshold_s: the gate's question of the same name; None for "nothing is large".
            rules: say of which size class a message is; None where no subscription has one.
            most_plan_bytes: memory that all plans may take; a publisher that makes up topics must
                not fill it.
            most_payload_bytes: of a message that the broker takes.
        """
        self._rules = rules
        self._most_payload_bytes = most_payload_bytes
        self._root = _new_node()
        self._sinks = SinkFilters()
        self._has_sizes = False
        self._threshold_s = threshold_s
        self.plans: dict[bytes, Plan] = {}
        self._plan_bytes = 0
        self._most_plan_bytes = most_plan_bytes
        self.shares: dict[str, SharedSubscription] = {}
        self.n_subscriptions = 0
        self.n_bytes = 0
        self.on_plans_void: Callable[[], None] = lambda: None
        for sink in sinks:
            self.add_sink(sink)

    def change(self, most_plan_bytes: int, most_payload_bytes: int) -> None:
        """Have other limits, as at the beginning, and ask anew which messages are large."""
        self._most_plan_bytes = most_plan_bytes
        self._most_payload_bytes = most_payload_bytes
        self.void_plans()

    def add(self, subscription: Subscription) -> bool:
        """Add or replace a session's subscription to a filter [MQTT-3.8.4-3].

        Returns:
            True where the session had no subscription to this filter before.
        """
        topic_filter = subscription.topic_filter
        if topic_filter[0] == "$" and topic_filter.startswith(SHARE_PREFIX):
            if subscription.sizes:
                self._has_sizes = True
            return self._join(subscription, parse_share(topic_filter).topic_filter)
        return self.add_each(subscription.session, (subscription,))[0]

    def add_each(self, session: Subscriber, subscriptions: Iterable[Subscription]) -> list[bool]:
        """Add or replace several of one session's subscriptions, none of them shared; as `add`."""
        are_new: list[bool] = []
        n_new = n_levels = n_text_bytes = 0
        for subscription in subscriptions:
            topic_filter = subscription.topic_filter
            if subscription.sizes:
                self._has_sizes = True
            levels = topic_filter.split("/")
            node = self._node(levels)
            is_new = True
            if node.held is None:  # as nearly always; as `hold`, with a call less
                node.held = subscription
            else:
                is_new = node.hold(subscription)
            are_new.append(is_new)
            if is_new:
                n_new += 1
                n_levels += len(levels)
                n_text_bytes += _text_bytes(topic_filter)
            if self.plans:
                self._make_void(topic_filter)
        self._count(session, n_new, n_levels, n_text_bytes)
        return are_new

    def _join(self, subscription: Subscription, topic_filter: str) -> bool:
        """Make a session a member of a shared subscription, or renew its membership."""
        name = subscription.topic_filter
        share = self.shares.get(name)
        if share is None:
            share = self.shares[name] = SharedSubscription(name)
            self.n_bytes += SHARE_BYTES
            node = self._node(topic_filter.split("/"))
            if node.shares is None:
                node.shares = {}
            node.shares[name] = share
            self._make_void(topic_filter)
        was_split = bool(share.sizes)
        is_new = share.join(Member(subscription), subscription.sizes)
        if is_new:
            self._count(subscription.session, 1, name.count("/") + 1, _text_bytes(name))
        if was_split or share.sizes:
            self._make_void(topic_filter)  # a plan names those shares that take its messages
        return is_new

    def _count(self, session: Subscriber, n: int, n_levels: int, n_text_bytes: int) -> None:
        """Count subscriptions more, or less where all numbers are negative.

        For their session, what they take of the memory if no other shares a level with it. Levels
        and text bytes are those of all of their filters.
        """
        self.n_subscriptions += n
        self.n_bytes += n * SUBSCRIPTION_BYTES + n_text_bytes
        # The levels are strings of their own.
        session.subscription_bytes += (
            n * SUBSCRIPTION_BYTES + 2 * n_text_bytes + n_levels * _LEVEL_ALONE_BYTES
        )

    def _node(self, levels: Iterable[str]) -> _Node:
        """Return the node of a filter, made where there is none."""
        node = self._root
        n_bytes = 0
        for level in levels:
            child = node.get(level)
            if child is None:
                n_bytes += LEVEL_BYTES if node else _LEVEL_AND_TABLE_BYTES
                # As `_text_bytes`, with a call less.
                n_bytes += _EMPTY_BYTES + len(level) if level.isascii() else sys.getsizeof(level)
                child = node[level] = _Node()
                child.held = child.shares = None
            node = child
        self.n_bytes += n_bytes
        return node

    def remove(self, session: Subscriber, topic_filter: str) -> bool:
        """Remove a session's subscription; return False where there was none."""
        name = topic_filter
        share: SharedSubscription | None = None
        if name.startswith(SHARE_PREFIX):
            topic_filter = parse_share(name).topic_filter
            share = self.shares.get(name)
            was_split = share is not None and bool(share.sizes)
            if share is None or not share.leave(session):
                return False
            self._count(session, -1, -name.count("/") - 1, -_text_bytes(name))
            if share.members:
                if was_split:
                    self._make_void(topic_filter)
                return True
            del self.shares[name]
            self.n_bytes -= SHARE_BYTES
        node = stays = self._root  # the last node on the way that is there for others too
        cut = depth = 0
        levels = topic_filter.split("/")
        for depth, level in enumerate(levels):
            child = node.get(level)
            if child is None:
                return False
            if len(node) > 1 or node.held is not None or node.shares or node is self._root:
                stays, cut = node, depth
            node = child
        if share is not None and node.shares:
            del node.shares[name]
        elif node.let_go(session):
            self._count(session, -1, -len(levels), -_text_bytes(name))
        else:
            return False
        if node.is_empty():  # with it goes all that leads to it alone
            del stays[levels[cut]]
            n_tables = depth - cut if stays else depth - cut + 1
            self.n_bytes -= n_tables * TABLE_BYTES
            self.n_bytes -= sum(LEVEL_BYTES + _text_bytes(level) for level in levels[cut:])
        self._make_void(topic_filter)
        return True

    def add_sink(self, sink: MessageSink) -> None:
        """Route what matches its topic filters to a sink, too."""
        self._sinks.add_sink(sink)
        self._has_sizes |= self._sinks.has_sizes
        self._sink_changed(sink, sink.topic_filters)

    def remove_sink(self, sink: MessageSink) -> None:
        """Route nothing more to a sink."""
        self._sink_changed(sink, self._sinks.remove_sink(sink))

    def _sink_changed(self, sink: MessageSink, topic_filters: Iterable[str] | None) -> None:
        """Drop the plans that may have a sink, or are to have it.

        The filters are all that the sink has; None for very many.
        """
        if topic_filters is None or sink.takes_retained:
            self.void_plans()
            return
        for topic_filter in topic_filters:
            self._make_void(topic_filter)

    def add_sink_filter(self, sink: MessageSink, topic_filter: str) -> None:
        """Route what matches one more filter to a sink that was added."""
        if self._sinks.add(sink, topic_filter):
            self._make_void(topic_filter)

    def remove_sink_filter(self, sink: MessageSink, topic_filter: str) -> None:
        """Route what matches a filter alone to a sink no more."""
        if self._sinks.remove(sink, topic_filter):
            self._make_void(topic_filter)

    def void_plans(self) -> None:
        """Drop every plan: something that plans depend on has changed.

        What was derived from plans is there only while they are: of a run of such changes, the
        first alone has work to do.
        """
        if not self.plans:
            return
        self.plans.clear()
        self._plan_bytes = 0
        self.on_plans_void()

    def _make_void(self, topic_filter: str) -> None:
        if "+" in topic_filter or "#" in topic_filter:
            self.void_plans()
        elif (plan := self.plans.pop(topic_filter.encode(), None)) is not None:
            self._plan_bytes -= plan.size_bytes()
            self.on_plans_void()

    def plan(self, topic: str, topic_bytes: bytes) -> Plan:
        """Return the plan of a valid topic, from the cache or newly made."""
        plan = self.plans.get(topic_bytes)
        if plan is not None:
            return plan
        plan = self.fresh_plan(topic, topic_bytes)
        if self._plan_bytes + plan.size_bytes() > self._most_plan_bytes:
            self.void_plans()
        self._plan_bytes += plan.size_bytes()
        self.plans[topic_bytes] = plan
        return plan

    def fresh_plan(self, topic: str, topic_bytes: bytes) -> Plan:
        """Return the plan of a valid topic for one use: for messages of very many topics."""
        by_session: dict[Subscriber, list[Subscription]] = {}
        shares: list[SharedSubscription] = []
        for node in matching_nodes(self._root, topic):
            if node.shares:
                shares += node.shares.values()
            held = node.held
            if held is None:
                continue
            if isinstance(held, Subscription):
                held = {held.session: held}
            for session, subscription in held.items():  # of which there may be very many
                found = by_session.get(session)
                if found is None:
                    by_session[session] = [subscription]
                else:
                    found.append(subscription)
        threshold_s = self._threshold_s(topic) if self._threshold_s is not None else None
        plan = Plan(
            topic,
            topic_bytes,
            [],
            tuple(shares),
            self._sinks.matching(topic),
            sys.maxsize if threshold_s is None else threshold_s,
            self._most_payload_bytes,
            retaining=() if topic.startswith("$SYS") else self._sinks.retaining,
        )
        if not self._has_sizes or not self._split(plan, by_session):
            plan.targets = [Target(session, found) for session, found in by_session.items()]
        return plan

    def _split(self, plan: Plan, by_session: Mapping[Subscriber, Sequence[Subscription]]) -> bool:
        """Split a plan by size where anything that matches takes one class; say whether it does.

        The plan has all shares and sinks that match, and no targets yet.
        """
        rules = self._rules
        sized = {k: v for k, v in by_session.items() if any(each.sizes for each in v)}
        has_sizes = any(share.sizes for share in plan.shares)
        has_sizes |= any(sink.sizes for sink in plan.sinks)
        if rules is None or not (sized or has_sizes):
            return False
        targets = [Target(k, v) for k, v in by_session.items() if k not in sized]
        pairs = [
            (
                session,
                _target_of(session, [each for each in found if each.sizes != "large"]),
                _target_of(session, [each for each in found if each.sizes != "small"]),
            )
            for session, found in sized.items()
        ]
        plan.split = SizeClassTargets(rules, targets, pairs, plan.shares, plan.sinks)
        plan.targets, plan.shares, plan.sinks = plan.split.of_small()
        default = rules.default_threshold_s
        plan.most_bytes = min(plan.most_bytes, plan.threshold_s if default is None else default)
        return True

    def levels_below(self, prefix: str) -> list[str]:
        """Return the next level of every filter that begins with the levels of `prefix`.

        Each once; a wildcard is a level like others, and stands for none in `prefix`.
        """
        node = self._root
        for level in prefix.split("/"):
            below = node.get(level)
            if below is None:
                return []
            node = below
        return list(node)

    def subscriptions_of(self, session: Subscriber, topic: str) -> list[Subscription]:
        """Return a session's own subscriptions, none of them shared, that match a topic.

        It takes as long as to find who else gets the topic, however many the session has.
        """
        found: list[Subscription] = []
        for node in matching_nodes(self._root, topic):
            held = node.held
            own = held.get(session) if isinstance(held, dict) else held
            if own is not None and own.session is session:
                found.append(own)
        return found
