"""From a message to those who get it: the plan of its topic, its targets and its sinks.

A message of a client has been checked and authorized before it comes here; one of the broker's own,
or a will, comes by `Router.publish`. What each target does with it is the subscriber's matter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from penstock.broker.access_control import PUBLISH, RECEIVE, Action, SessionView
from penstock.broker.counters import count
from penstock.broker.events import MessageRetained
from penstock.broker.extensions import NEVER_FITS, MessageSink, Receipt
from penstock.broker.message import Message
from penstock.broker.mqtt.reason_codes import ReasonCode, describe_reason_code
from penstock.broker.payload import Payload
from penstock.broker.plugin_guard import is_logged
from penstock.broker.routing.retained import RetainedMessages
from penstock.broker.routing.shared_subscriptions import SharedSubscription
from penstock.broker.routing.subscriber import Subscriber
from penstock.broker.routing.topic_tree import Plan, Target, TopicTree
from penstock.broker.sending.core_context import CoreContext


class Router:
    """Gives messages to sessions and sinks, and keeps the retained ones."""

    def __init__(
        self,
        shared: CoreContext,
        tree: TopicTree,
        retained: RetainedMessages,
        find: Callable[[str], Subscriber | None],
    ) -> None:
        """Begin without subscribers; `find` returns the session of a client, or None."""
        self._shared = shared
        self._tree = tree
        self._retained = retained
        self._find = find

    def _copy(self, payload: Payload) -> Payload:
        store = self._shared.payload_store
        return self._shared.guard.call(store, store.copy, payload, otherwise=payload)

    def refuse(
        self, client_id: str, topic: str, reason_code: int, reason: str = "", told: str = ""
    ) -> None:
        """Count a client's message that is not routed; log it, per session at growing intervals.

        A client that sends nothing else could fill a disk with lines about it. It is counted as
        `reason`, or by the name of the reason code; `told` stands in its place in the log.
        """
        reason = reason or describe_reason_code(reason_code)
        count(self._shared.counters.publish_refused, reason)
        n_refused = 1
        session = self._find(client_id)
        if session is not None:
            n_refused = session.n_refused = session.n_refused + 1
        if is_logged(n_refused):
            self._shared.logger.info(
                "client %s: publish to %s refused: %s; %d so far",
                client_id,
                topic,
                told or reason,
                n_refused,
            )

    def route(
        self,
        message: Message,
        targets: Sequence[Target],
        chosen: Sequence[tuple[SharedSubscription, Target]],
        now: float,
    ) -> None:
        """Give a message to its subscribers, each with its own payload where the store copies.

        Sinks get it by `store` or `offer`. Of each shared subscription, the chosen member gets it.
        """
        qos = message.qos
        publisher = message.publisher
        copies_payloads = self._shared.copies_payloads
        self._shared.turn.steps += len(targets) + len(chosen)
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
        for share, member in chosen:
            self.deliver_shared(self.for_one(message), share, member, now)

    def reserve(self, message: Message, sinks: Sequence[MessageSink], *, can_tell: bool) -> str:
        """Hold room for a message of QoS 1 or 2 in all of its sinks, or in none.

        If the publisher can be told of a refusal, the sink does not get the message.

        Returns:
            Why one of them refuses it; "" where `store` or `release` is to follow.
        """
        for sink in sinks:
            try:  # in line, as most messages have one sink
                reason = sink.reserve(message)
            except Exception as error:  # noqa: BLE001 (a plugin's fault is not its caller's)
                self._shared.guard.failed(sink.name, error)
                reason = "sink_failed"
            if reason:
                self.release(message, sinks[: sinks.index(sink)])
                if can_tell or reason == NEVER_FITS:
                    self._tell(sink, sink.refuse, message, reason)
                return reason
        return ""

    def _reserve(self, message: Message, sink: MessageSink) -> str:
        return self._shared.guard.call(sink.name, sink.reserve, message, otherwise="sink_failed")

    def _tell(self, sink: MessageSink, tell: Callable[..., None], *args: Any) -> None:
        self._shared.guard.call(sink.name, tell, *args, otherwise=None)

    def release(self, message: Message, sinks: Sequence[MessageSink]) -> None:
        """Give back the room that `reserve` has held: the message is not routed."""
        for sink in sinks:
            self._tell(sink, sink.release, message)

    def store(self, message: Message, sinks: Sequence[MessageSink], receipt: Receipt) -> None:
        """Give a message to sinks that have reserved room for it; each settles the receipt once."""
        for sink in sinks:
            try:
                sink.accept(self.for_one(message), receipt)
            except Exception as error:  # noqa: BLE001 (a plugin's fault is not its caller's)
                self._shared.guard.failed(sink.name, error)
                receipt.settle(0x80)

    def offer(self, message: Message, sinks: Sequence[MessageSink]) -> None:
        """Give a message to those sinks that have room, where no publisher waits for an answer.

        It has QoS 0, is a will, or the broker's own.
        """
        for sink in sinks:
            reason = self._reserve(message, sink)
            if reason:
                self._tell(sink, sink.refuse, message, reason)
            else:
                self._tell(
                    sink, sink.accept, self.for_one(message), _NO_RECEIPT if message.qos else None
                )

    def offer_retained(self, message: Message) -> None:
        """Offer a message that is retained and goes to nobody to sinks that take such messages."""
        self.offer(message, self._tree.plan(message.topic, message.topic_bytes).retaining)

    def deliver_shared(
        self, message: Message, share: SharedSubscription, member: Target, now: float
    ) -> None:
        """Give a message to the member of a shared subscription that was chosen for it.

        It gets no more than its own granted QoS [MQTT-4.8.2-3].
        """
        session = member.session
        if share.n_durable:
            session.keep_for_share()
        session.deliver(
            message,
            min(message.qos, member.qos),
            retain=message.retain and member.retain_as_published,
            subscription_ids=member.subscription_ids,
            now=now,
            share=share.topic_filter,
        )
        if session.outbox.n_messages:
            if share.sizes:
                share.note_holder(session, message)
            else:
                share.holders[session] = False

    @property
    def asks_receivers(self) -> bool:
        """Whether access control has a say in who receives a message."""
        access = self._shared.access
        return access is not None and access.checks_receive

    async def choose_allowed(
        self, share: SharedSubscription, message: Message, now: float
    ) -> Target | None:
        """Return the member that gets a message, of those that access control lets receive it."""
        if not self.asks_receivers:
            return share.choose(message, now)
        refused: set[Subscriber] = set()
        while (member := share.choose(message, now, refused)) is not None:
            session = member.session
            is_allowed = await self.is_allowed(session, message.topic, RECEIVE)
            if is_allowed and self._is_alive(session):
                return member
            refused.add(session)
        return None

    async def allowed_recipients(
        self, plan: Plan, message: Message, now: float
    ) -> tuple[list[Target], list[tuple[SharedSubscription, Target]]]:
        """Return who may receive a message, as far as access control has a say.

        Returns:
            (the targets, the member chosen of each shared subscription), all of sessions that
            have not ended.
        """
        targets = plan.targets
        if self.asks_receivers:
            targets = [
                target
                for target in plan.targets
                if await self.is_allowed(target.session, plan.topic, RECEIVE)
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

    def _is_alive(self, session: Subscriber) -> bool:
        return self._find(session.client_id) is session

    async def is_allowed(self, session: SessionView, topic: str, action: Action) -> bool:
        """Ask access control, if it checks the action; where it raises, the answer is no."""
        access = self._shared.access
        if access is None or not getattr(access, f"checks_{action.name}"):
            return True
        answer = self.ask(session, topic, action)
        return answer if isinstance(answer, bool) else await answer

    def ask(self, session: SessionView, topic: str, action: Action) -> bool | Awaitable[bool]:
        """Ask access control, which checks the action; as `is_allowed`, also without a wait."""
        access = self._shared.access
        assert access is not None  # noqa: S101 (it checks the action)
        name = f"access control, {action.name}"
        answer: bool | Awaitable[bool] = self._shared.guard.ask(
            name, access.authorize, session, topic, action, otherwise=False
        )
        return answer if isinstance(answer, Awaitable) else bool(answer)

    def for_one(self, message: Message) -> Message:
        """Return a message for one subscriber: the message itself, unless the store copies."""
        return message.with_payload(self._copy) if self._shared.copies_payloads else message

    def retain(self, message: Message) -> bool:
        """Keep a message as its topic's retained one, or remove that by an empty payload.

        One beyond the limits is counted, and logged at growing intervals; its topic has no
        retained message then. Whoever can be told is asked to `retained.has_room` first.

        Returns:
            False where it was beyond the limits.
        """
        if not self._retained.set(message):
            self._shared.counters.retained_discarded += 1
            n_messages = self._shared.counters.retained_discarded
            if is_logged(n_messages):
                self._shared.logger.warning(
                    "retained message on %s not kept, %d so far: retained_messages or "
                    "retained_bytes reached",
                    message.topic,
                    n_messages,
                )
            return False
        shared = self._shared
        if shared.callbacks.message_retained:
            shared.guard.tell(shared.callbacks.message_retained, MessageRetained(message))
        return True

    def publish(self, message: Message, now: float, session: SessionView | None = None) -> None:
        """Publish a message without acknowledgement.

        It is the will of a session, which is to be asked about, or the broker's own.
        """
        self._shared.run(self._publish(message, now, session))

    async def _publish(self, message: Message, now: float, session: SessionView | None) -> None:
        if session is not None and not await self.is_allowed(session, message.topic, PUBLISH):
            self.refuse(session.client_id, message.topic, ReasonCode.NOT_AUTHORIZED)
            return
        if message.retain:
            self.retain(message)
        plan = self._tree.plan(message.topic, message.topic_bytes)
        await self._give(message, plan.of(message), now)

    def give(self, message: Message, plan: Plan, now: float) -> None:
        """Give a message of the broker's own to those of a plan that may receive it.

        It is not retained.
        """
        self._shared.run(self._give(message, plan.of(message), now))

    async def _give(self, message: Message, plan: Plan, now: float) -> None:
        targets, chosen = await self.allowed_recipients(plan, message, now)
        self.route(message, targets, chosen, now)
        self.offer(message, plan.sinks)
        self._shared.turn.congested.clear()  # there is no publisher to slow down


class _NoReceipt:
    """The receipt of the broker's own messages, which are not acknowledged."""

    deduplication_id = b""
    is_repeat = False

    def settle(self, reason_code: int) -> None:
        """Take note of nothing: the sink counts what it refuses."""


_NO_RECEIPT = _NoReceipt()
