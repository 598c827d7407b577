"""A broker's core with fast paths: which topics' messages may be copied as they came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from penstock.broker.errors import PeerError
from penstock.broker.fast_paths.run_window import RunWindow
from penstock.broker.fast_paths.unchecked_publish import take_unchecked
from penstock.broker.mqtt.enums import MAX_REMAINING_LENGTH, MQTT_5
from penstock.broker.mqtt.topics import read_topic
from penstock.broker.payload import PIECE_BYTES, STORED_ABOVE_BYTES
from penstock.broker.sessions.broker_state import Core
from penstock.broker.sessions.session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.broker.config.limits import Limits
    from penstock.broker.routing.topic_tree import Plan

    class FastSession(Session):
        """A session of a `FastCore`: its inflight window takes runs."""

        inflight: RunWindow


class FastPlan:
    """The plan of a topic whose messages can be copied to connections as they came.

    Attributes:
        threshold_s: payload bytes above which the plan does not apply, because a gate or a limit
            has to check the message.
        sessions: the sessions that get each message, all in the publisher's form of PUBLISH; plans
            with the same sessions share one tuple object.
        least_qos: the least QoS that was granted to any of them; 0 for none.
        topic: Topic Name, as text and in UTF-8.
    """

    __slots__ = ("least_qos", "sessions", "threshold_s", "topic")

    def __init__(
        self,
        threshold_s: int,
        sessions: tuple[FastSession, ...],
        least_qos: int,
        topic: tuple[str, bytes],
    ) -> None:
        self.threshold_s = threshold_s
        self.sessions = sessions
        self.least_qos = least_qos
        self.topic = topic


NOT_FAST: Final = FastPlan(-1, (), 0, ("", b""))
"""The plan of a topic whose messages take the plain way: no message is small enough for it."""


def are_direct(sessions: Sequence[FastSession]) -> bool:
    """Say whether all of them can just be given a copy of what comes for them."""
    for session in sessions:
        if not session.is_direct or not session.outgoing.copy_maximum:
            return False
    return True


class FastCore(Core):
    """One broker without its sockets, with fast paths.

    Attributes:
        fast_plans: protocol version to topic bytes to plan, `NOT_FAST` among them. All of them are
            dropped when the topic tree drops a plan.
        takes_runs: packets of QoS 1 and 2 may be handled in runs.
        copy_maximum: bytes of the largest packet that is passed on as it was received, past the
            payload store. That is any packet where payloads are kept by reference; else it is the
            size up to which the store is not used, or the size that is read in one piece.
    """

    new_inflight = RunWindow

    def __init__(self, limits: Limits, **keys: Any) -> None:
        """Make a broker without clients; arguments are as those of `Core`."""
        super().__init__(limits, **keys)
        self.takes_runs = self.is_plain and not self.is_restricted
        if self.is_plain:
            self.take_unchecked = take_unchecked
        self.copy_maximum = STORED_ABOVE_BYTES if self.copies_payloads else PIECE_BYTES
        if self.is_by_reference:
            self.copy_maximum = MAX_REMAINING_LENGTH + 5
        # A PUBLISH of MQTT 3.1 has the form of one of MQTT 3.1.1.
        of_mqtt_3: dict[bytes, FastPlan] = {}
        self.fast_plans: dict[int, dict[bytes, FastPlan]] = {3: of_mqtt_3, 4: of_mqtt_3, 5: {}}
        self._audiences: dict[tuple[FastSession, ...], tuple[FastSession, ...]] = {}
        self.tree.on_plans_void = self._drop_fast_plans

    def _drop_fast_plans(self) -> None:
        self._audiences.clear()
        for plans in self.fast_plans.values():
            plans.clear()

    def fast_plan(self, topic_bytes: bytes, version: int) -> FastPlan:
        """Return the plan of a topic that `fast_plans` has none for, and keep it there.

        A topic that is to be refused gets none, as the plain way finds out what to answer.

        Args:
            topic_bytes: Topic Name, as it came.
            version: protocol version of the publisher.
        """
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
        fast = self.fast_plans[version][topic_bytes] = self._fast_plan_of(plan, version)
        return fast

    def _fast_plan_of(self, plan: Plan, version: int) -> FastPlan:
        """Return what stands for a plan for publishers of a version."""
        if plan.sinks or plan.shares:
            return NOT_FAST
        is_5 = version == MQTT_5
        for target in plan.targets:
            if (
                (target.session.version == MQTT_5) != is_5
                or target.subscription_ids
                or target.for_own is not target
            ):
                return NOT_FAST
        sessions = tuple(cast("FastSession", target.session) for target in plan.targets)
        return FastPlan(
            min(plan.threshold_s, plan.most_bytes),
            self._audiences.setdefault(sessions, sessions),
            min((target.qos for target in plan.targets), default=0),
            (plan.topic, plan.topic_bytes),
        )
