"""What all connections of one broker share, and the routing of messages.

The core has no clock and does no I/O. A driver calls it with bytes and `now`; what it wants
written stands in the connections it has touched, which the driver takes by `take_touched`.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.broker import run_now
from penstock.broker.access_control import (
    PUBLISH,
    RECEIVE,
    AccessControl,
    Action,
    Authenticator,
    SessionView,
)
from penstock.broker.config.capabilities import is_restricted
from penstock.broker.contracts import overridden
from penstock.broker.counters import Counters, count
from penstock.broker.events import Callbacks, MessageRetained
from penstock.broker.extensions import (
    DeliveryGate,
    LinkSampler,
    MessageSink,
    PayloadStore,
    Receipt,
)
from penstock.broker.faults import Guard
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.broker.mqtt.enums import MAX_REMAINING_LENGTH, ProtocolVersion
from penstock.broker.mqtt.reason_codes import ReasonCode, describe_reason_code
from penstock.broker.outbox.backlog import Backlog
from penstock.broker.outbox.ledger import Ledger
from penstock.broker.outbox.rules import OutboxRules
from penstock.broker.payload import PIECE_BYTES, STORED_ABOVE_BYTES, Payload
from penstock.broker.quotas.login_backoff import LoginBackoff
from penstock.broker.quotas.received_bytes import ReceivedBytes
from penstock.broker.quotas.room import Room
from penstock.broker.routing.retained import RetainedMessages
from penstock.broker.routing.topic_tree import Plan, Target, TopicTree
from penstock.broker.sessions.breaking_off import BreakingOff
from penstock.broker.sessions.registry import SessionRegistry
from penstock.broker.sessions.turn import Turn
from penstock.broker.timers import Timers

if TYPE_CHECKING:
    from penstock.broker.config.limits import Limits
    from penstock.broker.config.mqtt_options import MqttOptions
    from penstock.broker.durable.journal import Journal
    from penstock.broker.routing.shared_subscriptions import SharedSubscription
    from penstock.broker.sessions.session import Session


ARRIVAL_SECONDS: Final = 0.125
"""Messages that come in the same eighth of a second share one number for it: of a backlog of
100,000, whose chunks had 2,000 of their own, each page of these kept a MiB from going back to the
system. An eighth is exact as a binary number."""


class FastPlan:
    """A plan whose messages need nothing but to be copied to connections.

    Attributes:
        threshold_s: payload bytes above which the plan does not hold, as a gate or a limit is to
            look at the message.
        sessions: who gets each message, all with the publisher's form of PUBLISH; plans with the
            same sessions have the very same tuple.
        least_qos: the least QoS that was granted to any of them; 0 for none.
        topic: Topic Name, as text and in UTF-8.
    """

    __slots__ = ("least_qos", "sessions", "threshold_s", "topic")

    def __init__(self, plan: Plan, sessions: tuple[Session, ...], most_payload_bytes: int) -> None:
        self.threshold_s = min(plan.threshold_s, most_payload_bytes)
        self.sessions = sessions
        self.least_qos = min((target.qos for target in plan.targets), default=0)
        self.topic = plan.topic, plan.topic_bytes


class Core:
    """One broker without its sockets.

    Attributes:
        limits: what one client may take.
        most_payload_bytes: of a message from a client.
        options: what of the protocol the broker offers.
        tree: all subscriptions.
        retained: all retained messages.
        sessions: all sessions.
        received: what all connections hold of packets that are not whole yet.
        outbox_rules: what holds for the outboxes of all sessions.
        timers: all deadlines; the driver runs them.
        authenticators: methods of enhanced authentication, by name.
        counters: what was done so far.
        guard: for each call into a plugin.
        logins: who has failed to log in too often.
        ended: the ledgers of sessions that are gone, added up.
        fast_plans: protocol version to topic bytes to `FastPlan`; emptied with the plans.
        breaking: breaks the sending of large messages off; None where the gate does not.
        turn: of the driver, and what it has caused so far.
        journal: told of what must outlive the process; None where nothing must.
        room: who has room for messages, and who waits for it.
        timing: the samplers that take note of what is sent and acknowledged.
        spares: the only one of them is sparing (`LinkSampler.is_sparing`).
        is_by_reference: payloads are in memory, each once.
        copies_payloads: each subscriber has a payload of its own.
        on_sys_subscribed: told of each filter below ``$`` to which what is retained is due; None
            where nobody publishes on demand.
        catch_up: returns what a client that causes events is to wait for, or None where the
            callbacks keep up; None where no callback falls behind.
        is_restricted: each PUBLISH is checked for what the broker does not offer.
        takes_runs: QoS 1 and 2 packets may be handled in runs (`penstock.broker.receiving.runs`).
        copy_maximum: bytes of the largest packet that may go on as it came, past the payload store:
            any size by reference, one that is read at once, or one whose payload is never copied.
        is_plain: no callback and no access control looks at single messages or packets.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        options: MqttOptions,
        logger: logging.Logger,
        wake: Callable[[], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        new_client_id: Callable[[], str],
        gate: DeliveryGate | None = None,
        samplers: Sequence[LinkSampler] = (),
        payload_store: PayloadStore | None = None,
        sinks: Sequence[MessageSink] = (),
        access: AccessControl | None = None,
        authenticators: Sequence[Authenticator] = (),
        callbacks: Callbacks | None = None,
        session_expiry_limit: float | None = None,
        keep_alive_grace: float = 0.0,
    ) -> None:
        """Make a broker without clients.

        Args:
            limits: from the policy file.
            options: from the policy file.
            logger: for what an operator should know.
            wake: called when a connection was touched outside of a turn of the driver.
            spawn: takes a coroutine that has to wait; the driver runs it as a task.
            new_client_id: makes a Client Identifier that nobody has.
            gate: None for no withholding.
            samplers: write what they learn of each subscriber's path.
            payload_store: None for payloads by reference.
            sinks: route targets that are not sessions.
            access: None lets everybody do everything.
            authenticators: methods of enhanced authentication, each with its own name.
            callbacks: of events.
            session_expiry_limit: seconds; the most that a session outlives its connection.
            keep_alive_grace: seconds added to the time after which a silent client is gone.
        """
        self.limits = limits
        self.most_payload_bytes = limits.most_payload_bytes
        self.options = options
        self.logger = logger
        self.gate = DeliveryGate() if gate is None else gate
        self.samplers = tuple(samplers)
        self.timing = tuple(sampler for sampler in samplers if _times_packets(sampler))
        self.spares = len(self.timing) == 1 and self.timing[0].is_sparing
        store = self.payload_store = PayloadStore() if payload_store is None else payload_store
        self.copies_payloads = overridden(store.copy, PayloadStore.copy) is not None
        keeps = overridden(store.keep, PayloadStore.keep)
        self.is_by_reference = keeps is None and not self.copies_payloads
        self.sinks = tuple(sinks)
        self.access = access
        self.authenticators = {offered.method: offered for offered in authenticators}
        self.callbacks = callbacks or Callbacks()
        self.new_client_id = new_client_id
        self.session_expiry_limit = session_expiry_limit
        self.keep_alive_grace = keep_alive_grace
        self.spawn = spawn
        self.timers = Timers()
        self.counters = Counters()
        self.guard = Guard(logger, self.counters.extension_errors)
        self.logins = LoginBackoff(limits)
        self.ended = Ledger()
        self.retained = RetainedMessages(
            limits.retained_messages,
            sys.maxsize if limits.retained_bytes is None else limits.retained_bytes,
            timers=self.timers,
        )
        self.tree = TopicTree(self.sinks, self.threshold_s, most_plan_bytes=limits.plan_bytes)
        self.tree.on_plans_void = self._void_fast_plans
        self.sessions = SessionRegistry(self)
        self.received = ReceivedBytes(limits.total_received_bytes or sys.maxsize)
        self.outbox_rules = OutboxRules(
            self.gate,
            self.guard,
            max_messages=limits.queued_messages,
            max_bytes=limits.queued_bytes,
            drops_oldest=limits.queue_full == "drop_oldest",
            backlog=Backlog.of(limits.total_queued_messages, limits.total_queued_bytes),
        )
        self.room = Room(
            self, rejects=limits.queue_full == "reject", seconds=limits.queue_full_seconds
        )
        self.outbox_rules.on_dropped = self.room.dropped
        # A PUBLISH of MQTT 3.1 is one of MQTT 3.1.1.
        fast_plans_3: dict[bytes, FastPlan] = {}
        self.fast_plans: dict[int, dict[bytes, FastPlan]] = {
            3: fast_plans_3,
            4: fast_plans_3,
            5: {},
        }
        self._audiences: dict[tuple[Session, ...], tuple[Session, ...]] = {}
        self.is_plain = self._is_plain()
        self.on_sys_subscribed: Callable[[str], None] | None = None
        self.catch_up: Callable[[], Coroutine[Any, Any, None] | None] | None = None
        self.is_restricted = is_restricted(options)
        self.takes_runs = self.is_plain and not self.is_restricted
        self.copy_maximum = STORED_ABOVE_BYTES if self.copies_payloads else PIECE_BYTES
        if self.is_by_reference:
            self.copy_maximum = MAX_REMAINING_LENGTH + 5
        self.breaking = BreakingOff.of(self)
        self.turn = Turn(wake)
        self.journal: Journal | None = None
        self._arrived_at = -math.inf

    def _is_plain(self) -> bool:
        told = self.callbacks
        if told.packet_received or told.packet_sent or told.message_received:
            return False
        if told.message_routed:
            return False
        access = self.access
        return access is None or not (access.checks_publish or access.checks_receive)

    def arrived_at(self, now: float, sinks: Sequence[MessageSink] = ()) -> float:
        """Return what is noted as the arrival time of a message that comes now.

        Args:
            now: monotonic seconds.
            sinks: that get the message; with any of them, the time is exact.

        Returns:
            When the eighth of a second began that it is, the same object for all of it. That
            depends on the time alone, so it is the same on every way that a message may take.
        """
        if sinks:
            return now
        if now - self._arrived_at >= ARRIVAL_SECONDS:
            self._arrived_at = now - now % ARRIVAL_SECONDS
        return self._arrived_at

    def _void_fast_plans(self) -> None:
        self._audiences.clear()
        for plans in self.fast_plans.values():
            plans.clear()

    def fast_plan(self, plan: Plan, version: int) -> None:
        """Note a plan as fast for publishers of a version, if it is."""
        if not self.is_plain or plan.sinks or plan.shares:
            return
        if plan.topic_bytes in self.fast_plans[version]:
            return
        is_5 = version == ProtocolVersion.MQTT_5
        for target in plan.targets:
            if (
                (target.session.version == ProtocolVersion.MQTT_5) != is_5
                or target.subscription_ids
                or target.for_own is not target
            ):
                return
        sessions = tuple(target.session for target in plan.targets)
        sessions = self._audiences.setdefault(sessions, sessions)
        self.fast_plans[version][plan.topic_bytes] = FastPlan(
            plan, sessions, self.most_payload_bytes
        )

    def threshold_s(self, topic: str) -> int | None:
        """Ask the gate above how many payload bytes a topic's messages are large; None: none is."""
        return self.guard.call(self.gate, self.gate.threshold_s, topic, otherwise=None)

    def _copy(self, payload: Payload) -> Payload:
        store = self.payload_store
        return self.guard.call(store, store.copy, payload, otherwise=payload)

    def forget(self, link: Link) -> None:
        """Let gate and samplers drop what they keep for a session that has ended."""
        self.guard.call(self.gate, self.gate.forget, link, otherwise=None)
        self.guard.tell_each(self.samplers, lambda sampler: sampler.forget(link))

    def refuse(self, client_id: str, topic: str, reason_code: int, reason: str = "") -> None:
        """Count a client's message that is not routed, and log it: of one session ever less often.

        A client that sends nothing else could fill a disk with lines about it. It is counted as
        `reason`, or by the name of the reason code.
        """
        reason = reason or describe_reason_code(reason_code)
        count(self.counters.publish_refused, reason)
        n_refused = 1
        session = self.sessions.get(client_id)
        if session is not None:
            n_refused = session.n_refused = session.n_refused + 1
        if not n_refused & (n_refused - 1):
            self.logger.info(
                "client %s: publish to %s refused: %s; %d so far",
                client_id,
                topic,
                reason,
                n_refused,
            )

    def route(
        self,
        message: Message,
        targets: Sequence[Target],
        chosen: Sequence[tuple[SharedSubscription, Target]],
        sinks: Sequence[MessageSink],
        receipt: Receipt | None,
        now: float,
    ) -> None:
        """Give a message to all who get it, each with a payload of its own where the store copies.

        Args:
            message: what to deliver.
            targets: sessions, with what they subscribed.
            chosen: shared subscriptions, each with the member that gets the message.
            sinks: each settles `receipt` once.
            receipt: for the publisher of a QoS 1 or 2 message; None for QoS 0.
            now: monotonic seconds.
        """
        qos = message.qos
        publisher = message.publisher
        copies_payloads = self.copies_payloads
        self.turn.steps += len(targets) + len(chosen)
        for target in targets:
            session = target.session
            if publisher and session.client_id == publisher:
                own = target.for_own
                if own is None:
                    continue
                target = own  # noqa: PLW2901 (what the loop is about)
            session.deliver(
                self.for_one(message) if copies_payloads else message,
                min(qos, target.qos),
                retain=message.retain and target.retain_as_published,
                subscription_ids=target.subscription_ids,
                now=now,
            )
        for sink in sinks:
            copy = self.for_one(message)
            taken = self.guard.call(sink.name, sink.accept, copy, receipt, otherwise=False)
            if taken is False and receipt is not None:
                receipt.settle(0x80)
        for share, member in chosen:
            self.deliver_shared(self.for_one(message), share, member, now)

    def deliver_shared(
        self, message: Message, share: SharedSubscription, member: Target, now: float
    ) -> None:
        """Give a message to the member of a shared subscription that was chosen for it.

        It gets no more than its own granted QoS [MQTT-4.8.2-3].
        """
        session = member.session
        journal = self.journal
        if share.n_durable and session.journal is None and journal is not None:
            journal.keep_for_share(session)
        session.deliver(
            message,
            min(message.qos, member.qos),
            retain=message.retain and member.retain_as_published,
            subscription_ids=member.subscription_ids,
            now=now,
            share=share.topic_filter,
        )
        if session.outbox.n_messages:
            share.holders[session] = False

    async def choose_allowed(
        self, share: SharedSubscription, message: Message, now: float
    ) -> Target | None:
        """Return the member that gets a message, of those that access control lets receive it."""
        access = self.access
        if access is None or not access.checks_receive:
            return share.choose(message, now)
        refused: set[Session] = set()
        while (member := share.choose(message, now, refused)) is not None:
            session = member.session
            is_allowed = await self.is_allowed(access, session, message.topic, RECEIVE)
            if is_allowed and self._is_alive(session):
                return member
            refused.add(session)
        return None

    async def allowed_recipients(
        self, plan: Plan, message: Message, now: float
    ) -> tuple[list[Target], list[tuple[SharedSubscription, Target]]]:
        """Return who may receive a message, as far as access control has a say.

        Args:
            plan: of the message's topic.
            message: to be delivered.
            now: monotonic seconds.

        Returns:
            (the targets, the member chosen of each shared subscription), all of sessions that
            have not ended.
        """
        access = self.access
        targets = plan.targets
        if access is not None and access.checks_receive:
            targets = [
                target
                for target in plan.targets
                if await self.is_allowed(access, target.session, plan.topic, RECEIVE)
            ]
        chosen: dict[SharedSubscription, Target] = {}
        to_choose = list(plan.shares)
        while to_choose:
            for share in to_choose:
                member = await self.choose_allowed(share, message, now)
                if member is not None:
                    chosen[share] = member
                else:
                    chosen.pop(share, None)
            # Others may have ended while this one was asked about.
            to_choose = [share for share, m in chosen.items() if not self._is_alive(m.session)]
        if targets is not plan.targets:
            targets = [target for target in targets if self._is_alive(target.session)]
        return targets, list(chosen.items())

    def _is_alive(self, session: Session) -> bool:
        return self.sessions.get(session.client_id) is session

    async def is_allowed(
        self, access: AccessControl, session: SessionView, topic: str, action: Action
    ) -> bool:
        """Ask access control; where it raises, the answer is no."""
        name = f"access control, {action.name}"
        answer: bool = await self.guard.wait_for(
            name, access.authorize, session, topic, action, otherwise=False
        )
        return answer

    def for_one(self, message: Message) -> Message:
        """Return a message for one subscriber: the message itself, unless the store copies."""
        return message.with_payload(self._copy) if self.copies_payloads else message

    def keep(self, data: bytes) -> Payload:
        """Return what stands for a payload, from the store if it is one for that.

        Raises:
            OSError: the store cannot keep it.
        """
        return data if len(data) <= STORED_ABOVE_BYTES else self.payload_store.keep(data)

    def retain(self, message: Message) -> None:
        """Keep a message as its topic's retained one, or remove that by an empty payload.

        One beyond the limits is counted and logged, ever less often, and its topic has no
        retained message then. Whoever can be told is asked to `retained.has_room` first.
        """
        if not self.retained.set(message):
            self.counters.retained_discarded += 1
            n_messages = self.counters.retained_discarded
            if not n_messages & (n_messages - 1):
                self.logger.warning(
                    "retained message on %s not kept, %d so far: retained_messages or "
                    "retained_bytes reached",
                    message.topic,
                    n_messages,
                )
            return
        if self.callbacks.message_retained:
            self.guard.tell(self.callbacks.message_retained, MessageRetained(message))

    def publish(self, message: Message, now: float, session: SessionView | None = None) -> None:
        """Publish a message that nobody waits to see acknowledged.

        Args:
            message: the broker's own, or a client's will.
            now: monotonic seconds.
            session: whose will it is, to be asked about; None for the broker's own.
        """
        rest = run_now.start(self._publish(message, now, session))
        if rest is not None:
            self.spawn(rest)

    async def _publish(self, message: Message, now: float, session: SessionView | None) -> None:
        access = self.access
        if (
            session is not None
            and access is not None
            and access.checks_publish
            and not await self.is_allowed(access, session, message.topic, PUBLISH)
        ):
            self.refuse(session.client_id, message.topic, ReasonCode.NOT_AUTHORIZED)
            return
        if message.retain:
            self.retain(message)
        await self._give(message, self.tree.plan(message.topic, message.topic_bytes), now)

    def give(self, message: Message, plan: Plan, now: float) -> None:
        """Give a message of the broker's own to those of a plan that may receive it.

        Args:
            message: not to be retained.
            plan: of its topic.
            now: monotonic seconds.
        """
        rest = run_now.start(self._give(message, plan, now))
        if rest is not None:
            self.spawn(rest)

    async def _give(self, message: Message, plan: Plan, now: float) -> None:
        targets, chosen = await self.allowed_recipients(plan, message, now)
        receipt = _NO_RECEIPT if message.qos else None
        self.route(message, targets, chosen, plan.sinks, receipt, now)
        self.turn.congested.clear()  # there is no publisher to slow down

    def ledger(self) -> Ledger:
        """Return the broker's account: all sessions, gone and present, added up."""
        total = Ledger()
        total.add(self.ended)
        for session in self.sessions:
            total.add(session.settle_direct())
        return total


def _times_packets(sampler: LinkSampler) -> bool:
    """Say whether a sampler takes note of anything that is sent or acknowledged."""
    told = (
        overridden(sampler.sent, LinkSampler.sent),
        overridden(sampler.sent_run, LinkSampler.sent_run),
        overridden(sampler.acknowledged, LinkSampler.acknowledged),
        overridden(sampler.acknowledged_run, LinkSampler.acknowledged_run),
        overridden(sampler.probe_sent, LinkSampler.probe_sent),
    )
    return any(told)


class _NoReceipt:
    """What the broker's own messages get: nobody waits for their acknowledgement."""

    def settle(self, reason_code: int) -> None:
        """Take note of nothing: the sink counts what it refuses."""


_NO_RECEIPT = _NoReceipt()
