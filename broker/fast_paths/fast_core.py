"""A broker's core with fast paths: which topics' messages may be copied as they came."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.broker.access_control import PUBLISH, RECEIVE, Action
from penstock.broker.errors import PeerError
from penstock.broker.fast_paths.mail_runs import take_mail_run
from penstock.broker.fast_paths.run_window import RunWindow
from penstock.broker.fast_paths.shared_runs import Group
from penstock.broker.fast_paths.sink_runs import RunSinks
from penstock.broker.fast_paths.unchecked_publish import take_judged, take_unchecked
from penstock.broker.mqtt.enums import MAX_REMAINING_LENGTH, MQTT_5
from penstock.broker.mqtt.topics import read_topic
from penstock.broker.payload import PIECE_BYTES, STORED_ABOVE_BYTES
from penstock.broker.routing.shared_subscriptions import choose_members
from penstock.broker.sessions.broker_state import Core
from penstock.broker.sessions.session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.broker.access_control import SessionView
    from penstock.broker.config.limits import Limits
    from penstock.broker.events import Callbacks
    from penstock.broker.extensions import MailRun, MessageSink
    from penstock.broker.fast_paths.fast_connection import FastClient
    from penstock.broker.message import Message
    from penstock.broker.routing.shared_subscriptions import SharedSubscription
    from penstock.broker.routing.subscriber import Subscriber
    from penstock.broker.routing.topic_tree import Member, Plan, Target

    class FastSession(Session):
        """A session of a `FastCore`: its inflight window takes runs."""

        inflight: RunWindow


class FastPlan:
    """The plan of a topic whose messages can be copied to connections as they came.

    Attributes:
        threshold_s: payload bytes above which the plan does not apply, because a gate or a limit
            has to check the message.
        sessions: the sessions that get each message, all in the publisher's form of PUBLISH; plans
            with the same sessions share one tuple object. A `Group`, of which one session gets each
            message, is told from it by being empty. The last may be `RunSinks`.
        least_qos: the least QoS that was granted to any of them, and that the broker offers; 0 for
            none.
        topic: Topic Name, as text and in UTF-8.
        takes_retained: whether messages with RETAIN leave without it, to sessions.
        allowed: the plan of the topic with those targets alone that access control lets receive
            its messages; None where it has to be asked about each message, or refuses the
            publisher.
    """

    __slots__ = ("allowed", "least_qos", "sessions", "takes_retained", "threshold_s", "topic")

    def __init__(
        self,
        threshold_s: int,
        sessions: tuple[FastSession, ...],
        least_qos: int,
        topic: tuple[str, bytes],
        allowed: Plan | None,
    ) -> None:
        self.threshold_s = threshold_s
        self.sessions = sessions
        self.least_qos = least_qos
        self.topic = topic
        self.allowed = allowed
        self.takes_retained = allowed is not None and not (
            allowed.shares
            or allowed.sinks
            or allowed.retaining
            or any(target.retain_as_published for target in allowed.targets)
        )


NOT_FAST: Final = FastPlan(-1, (), 0, ("", b""), None)
"""The plan of a topic whose messages take the plain way: no message is small enough for it."""

MOST_JUDGED: Final = 65_536
"""So many topics of all publishers together are remembered as judged, of some 100 bytes each, or
250 where each publisher has one."""


def are_direct(sessions: Sequence[FastSession]) -> bool:
    """Say whether all of them can just be given a copy of what comes for them."""
    for session in sessions:
        if not session.is_direct or not session.outgoing.copy_maximum:
            return isinstance(session, RunSinks)  # the last: all sessions are direct
    return True


class FastCore(Core):
    """One broker without its sockets, with fast paths.

    Access control whose answers last is asked when a plan is made: who may receive a topic's
    messages is a part of the topic's plan; each client has a table of its own with the topics that
    it may publish to, and each member of a shared subscription one of those that it may receive.
    All tables are emptied when the topic tree drops a plan, which it does when rules,
    subscriptions, or the names of a subscriber change.

    Attributes:
        fast_plans: protocol version to topic bytes to plan, `NOT_FAST` among them.
        forwarded_plans: the same for clients whose messages another broker has routed.
        has_fast_paths: no plugin has to be asked or told about single messages or packets. While a
            callback is there that came later (`tell`), they are not taken all the same.
        copy_maximum: bytes of the largest packet that is passed on as it was received, past the
            payload store. That is any packet where payloads are kept by reference; else it is the
            size up to which the store is not used, or the size that is read in one piece.
    """

    new_inflight = RunWindow

    def __init__(self, limits: Limits, **keys: Any) -> None:
        """Make a broker without clients; arguments are as those of `Core`."""
        super().__init__(limits, **keys)
        access = self.access
        self._asks_publishers = access is not None and access.checks_publish
        self._is_asked = self._asks_publishers or self.router.asks_receivers
        self.has_fast_paths = self.is_plain and (
            access is None or not self._is_asked or access.answers_last
        )
        self._choose_unchecked()
        if access is not None:
            access.watch(self.tree.void_plans)
        self.copy_maximum = STORED_ABOVE_BYTES if self.copies_payloads else PIECE_BYTES
        if self.is_by_reference:
            self.copy_maximum = MAX_REMAINING_LENGTH + 5
        # A PUBLISH of MQTT 3.1 has the form of one of MQTT 3.1.1.
        of_mqtt_3: dict[bytes, FastPlan] = {}
        self.fast_plans: dict[int, dict[bytes, FastPlan]] = {3: of_mqtt_3, 4: of_mqtt_3, 5: {}}
        forwarded_of_3: dict[bytes, FastPlan] = {}
        self.forwarded_plans = {3: forwarded_of_3, 4: forwarded_of_3, 5: {}}
        self._run_sinks: dict[tuple[MessageSink, ...], RunSinks] = {}
        self._audiences: dict[tuple[FastSession, ...], tuple[FastSession, ...]] = {}
        self._groups: dict[tuple[SharedSubscription, int], Group] = {}
        self._judged: dict[int, dict[Any, Any]] = {}  # by `id`
        self._n_judged = 0
        self._n_drops = 0
        self.tree.on_plans_void = self._drop_fast_plans

    def _choose_unchecked(self) -> None:
        """Take messages unchecked where nobody has to be asked or told about single ones."""
        self.take_unchecked = None
        if self.has_fast_paths and self.is_plain:
            self.take_unchecked = take_judged if self._is_asked else take_unchecked

    def tell(self, callbacks: Callbacks) -> None:
        """Tell these callbacks of events; while they look at messages, no fast path is taken."""
        super().tell(callbacks)
        self._choose_unchecked()
        self.tree.void_plans()

    def _drop_fast_plans(self) -> None:
        self._n_drops += 1
        self._audiences.clear()
        self._groups.clear()
        self._run_sinks.clear()
        for plans in (*self.fast_plans.values(), *self.forwarded_plans.values()):
            plans.clear()
        self._drop_judged()

    def _drop_judged(self) -> None:
        for plans in self._judged.values():
            plans.clear()
        self._judged.clear()
        self._n_judged = 0

    def plans_of(self, client: FastClient) -> dict[bytes, FastPlan]:
        """Return the table of plans for a publisher: topic bytes to plan."""
        if client.is_forwarded and not client.share:
            return self.forwarded_plans[client.version]
        return {} if client.share or self._asks_publishers else self.fast_plans[client.version]

    def fast_plan(self, topic_bytes: bytes, client: FastClient) -> FastPlan:
        """Return the plan of a topic that a client's table has none for, and keep it there.

        A topic that is to be refused gets none, as the plain way finds out what to answer.
        """
        if client.is_forwarded:
            return self._new_fast_plan(topic_bytes, client)
        plans = self.fast_plans[client.version]
        plan = plans.get(topic_bytes) or self._new_fast_plan(topic_bytes, client)
        topic, topic_bytes = plan.topic  # the bytes of the plan, not a copy for each publisher
        if not self._asks_publishers or not topic_bytes:
            return plan
        n_drops = self._n_drops
        if self._may(client.session, topic, PUBLISH) is not True:
            plan = NOT_FAST
        if n_drops != self._n_drops:  # the rules changed while access control was asked
            return NOT_FAST
        self._remember(client.fast_plans, topic_bytes, plan)
        return plan

    def _remember(self, judged: dict[Any, Any], topic: object, answer: object) -> None:
        """Keep what was found out of a topic in the table of a client or a member."""
        if self._n_judged >= MOST_JUDGED:
            self._drop_judged()
        if not judged:
            self._judged[id(judged)] = judged
        judged[topic] = answer
        self._n_judged += 1

    def forget_judged(self, judged: dict[Any, Any]) -> None:
        """Keep no longer what was found out for a client that has gone."""
        if self._judged.pop(id(judged), None) is not None:
            self._n_judged -= len(judged)

    def may_receive(self, member: Member, plan: Plan) -> bool | None:
        """Say whether a member of a shared subscription may receive a topic's messages.

        Returns:
            None where the plain way is to ask for it.
        """
        if not self.router.asks_receivers:
            return True
        answer = member.answers.get(plan.topic)
        if answer is None:
            n_drops = self._n_drops
            answer = self._may(member.session, plan.topic, RECEIVE)
            if answer is None or n_drops != self._n_drops:  # or the rules changed meanwhile
                return None
            self._remember(member.answers, plan.topic, answer)
        return answer

    def choose_members(
        self, plan: Plan, message: Message, now: float
    ) -> list[tuple[SharedSubscription, Member]] | None:
        """Return the members that get a message, as `Router.allowed_recipients` chooses them.

        Returns:
            None, and nobody has had their turn, where the plain way is to ask who may receive it.
        """
        if not self.router.asks_receivers:
            return choose_members(message, plan.shares, now)
        turns = [share.turn for share in plan.shares]
        chosen: list[tuple[SharedSubscription, Member]] = []
        for share in plan.shares:
            refused: set[Subscriber] = set()
            while (member := share.choose(message, now, refused)) is not None:
                is_allowed = self.may_receive(member, plan)
                if is_allowed is None:
                    for each, turn in zip(plan.shares, turns, strict=True):
                        each.turn = turn
                    return None
                if is_allowed:
                    chosen.append((share, member))
                    break
                refused.add(member.session)
        return chosen

    def _may(self, session: SessionView, topic: str, action: Action) -> bool | None:
        """Return the answer of access control; None where the plain way is to ask for it."""
        assert self.access is not None  # noqa: S101 (for the type checker)
        try:
            answer = self.access.authorize(session, topic, action)
        except Exception:  # noqa: BLE001 (a plugin's; the plain way meets it, too, and counts it)
            return None
        return answer if isinstance(answer, bool) else None

    def take_mail_run(self, session: Session, mail: MailRun, now: float) -> int | None:
        """Send a kept session messages that waited for it; see `LocalClients.deliver_run`."""
        if not (self.has_fast_paths and self.is_plain):
            return None

        def may_get(topic: str) -> bool:
            is_asked = self.router.asks_receivers
            return not is_asked or self._may(session, topic, RECEIVE) is True

        return take_mail_run(self, session, mail, may_get, now)

    def _new_fast_plan(self, topic_bytes: bytes, client: FastClient) -> FastPlan:
        if not topic_bytes or topic_bytes.startswith(b"$SYS"):
            return NOT_FAST
        plan = self.tree.plans.get(topic_bytes)
        if plan is None:
            try:
                topic = read_topic(topic_bytes)
            except PeerError:
                return NOT_FAST
            if self.limits.topic_problem(topic):
                return NOT_FAST
            plan = self.tree.plan(topic, topic_bytes)
        n_drops = self._n_drops
        is_forwarded, version = client.is_forwarded, client.version
        if client.share:
            plan = plan.of_share(client.share)
            if not plan.shares:
                return NOT_FAST
        elif is_forwarded:
            plan = plan.of_sessions()
        fast = self._fast_plan_of(plan, version)
        if n_drops != self._n_drops:  # the rules changed while access control was asked
            return NOT_FAST
        if is_forwarded:
            fast.takes_retained = False
        if client.share:
            self._remember(client.fast_plans, plan.topic_bytes, fast)
        else:
            (self.forwarded_plans if is_forwarded else self.fast_plans)[version][
                plan.topic_bytes
            ] = fast
        return fast

    def _fast_plan_of(self, plan: Plan, version: int) -> FastPlan:
        """Return what stands for a plan for publishers of a version."""
        topic = (plan.topic, plan.topic_bytes)
        allowed = self._allowed(plan)
        if not self.is_plain:  # a callback that came later looks at each message
            return FastPlan(-1, (), 0, topic, allowed)
        if allowed is not None and _is_group(allowed):
            threshold_s = min(allowed.threshold_s, allowed.most_bytes)
            group = self._group(allowed, version)
            return FastPlan(threshold_s, group, self.options.maximum_qos, topic, allowed)
        if allowed is None or not self._are_copies(allowed, version):
            return FastPlan(-1, (), 0, topic, allowed)
        sessions = tuple(cast("FastSession", target.session) for target in allowed.targets)
        least_qos = min((target.qos for target in allowed.targets), default=0)
        if allowed.sinks:
            run_sinks = self._run_sinks.setdefault(allowed.sinks, RunSinks(self, allowed.sinks))
            # The repeat of a QoS 2 message is to be known after a crash if its sinks have it.
            most_qos = 1 if self.journal is not None else 2
            least_qos = min(least_qos, most_qos) if sessions else most_qos
            sessions = (*sessions, cast("FastSession", run_sinks))
        # A restored session may have been granted more than is offered now.
        return FastPlan(
            min(plan.threshold_s, plan.most_bytes),
            self._audiences.setdefault(sessions, sessions),
            min(least_qos, self.options.maximum_qos),
            topic,
            allowed,
        )

    def _are_copies(self, plan: Plan, version: int) -> bool:
        """Say whether each recipient can be given the very bytes that a publisher sends."""
        if plan.shares or not self.run_sinks.issuperset(plan.sinks):
            return False
        is_5 = version == MQTT_5
        for target in plan.targets:
            if (
                (target.session.version == MQTT_5) != is_5
                or target.subscription_ids
                or target.for_own is not target
            ):
                return False
        return True

    def _group(self, plan: Plan, version: int) -> Group:
        """Return the group of a plan: one for all topics, where all members may receive them."""
        if self.router.asks_receivers:
            return Group.of(self, plan, version)
        key = plan.shares[0], version
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group.of(self, plan, version)
        return group

    def _allowed(self, plan: Plan) -> Plan | None:
        """Return a plan with those targets alone that may receive its topic.

        Returns:
            None where neither a target nor a share may: that the topic has subscribers is told to
            the publisher anyway.
        """
        if not self.router.asks_receivers:
            return plan
        targets: list[Target] = []
        for target in plan.targets:
            answer = self._may(target.session, plan.topic, RECEIVE)
            if answer is None:
                return None
            if answer:
                targets.append(target)
        if len(targets) == len(plan.targets):
            return plan
        if not (targets or plan.shares):
            return None
        return replace(plan, targets=targets)


def _is_group(plan: Plan) -> bool:
    """Say whether the members of one shared subscription are the only recipients of a plan."""
    return len(plan.shares) == 1 and not plan.targets and not plan.sinks
