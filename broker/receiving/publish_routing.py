"""An authorized PUBLISH on its way to those who get it, at once or when there is room for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.broker.events import MessageRouted
from penstock.broker.extensions import NEVER_FITS
from penstock.broker.message import Message
from penstock.broker.mqtt.enums import MQTT_5
from penstock.broker.mqtt.reason_codes import SUCCESS, ReasonCode
from penstock.broker.receiving.pending_acknowledgements import book_receipt
from penstock.broker.routing.shared_subscriptions import choose_members
from penstock.broker.routing.topic_tree import Plan
from penstock.broker.sessions.client import PublishReceipt

if TYPE_CHECKING:
    from penstock.broker.routing.shared_subscriptions import SharedSubscription
    from penstock.broker.routing.topic_tree import Target
    from penstock.broker.sessions.client import Client


async def route_allowed(
    client: Client,
    receipt: PublishReceipt | None,
    plan: Plan,
    message: Message,
    now: float,
) -> str:
    """Route an authorized message to those who may receive it, and settle its receipt.

    A retained message is kept before access control decides about its receivers: a client that
    subscribes meanwhile gets it as a retained message. Room for it is therefore checked before.

    Args:
        client: on which it came; the receipt's, if the client has come back.
        receipt: of a QoS 1 or 2 message, with one answer missing.
        plan: of its topic.
        message: to be routed.
        now: monotonic seconds.

    Returns:
        Why there is no room for it: nothing has been done. "" where it was routed.
    """
    core = client.core
    router = core.router
    if receipt is None:
        if message.retain:
            _tell_routed(client, message)
            router.retain(message)
        targets, chosen = await router.allowed_recipients(plan, message, now)
        if not message.retain:
            _tell_routed(client, message)
        router.route(message, targets, chosen, now)
        router.offer(message, plan.sinks)
        client.throttle.wait_for_congested(now)
        return ""
    n_changes = core.journal.n_changes if core.journal is not None else 0
    if message.retain:
        chosen = choose_members(message, plan.shares, now)
        full = reserve(receipt, message, plan, plan.targets, chosen, now)
        if full:
            return full
        _tell_routed(client, message)
        router.retain(message)
    is_routed = False
    try:
        targets, chosen = await router.allowed_recipients(plan, message, now)
        if receipt.is_settled:
            return ""  # the publisher has gone meanwhile, and comes again with the message
        is_routed = True
    finally:
        if message.retain and not is_routed:
            router.release(message, plan.sinks)
    if not message.retain:
        full = reserve(receipt, message, plan, targets, chosen, now)
        if full:
            return full
        _tell_routed(client, message)
    receipt.sinks = plan.sinks
    receipt.wait_for(len(plan.sinks))
    receipt.reason_code = taken(receipt.client, plan)
    if not receipt.was_routed:
        receipt.was_routed = True
        router.route(message, targets, chosen, now)
    router.store(message, plan.sinks, receipt)
    client.throttle.wait_for_congested(now)
    settle_when_safe(receipt, n_changes, plan, message)
    return ""


def reserve(
    receipt: PublishReceipt,
    message: Message,
    plan: Plan,
    targets: Sequence[Target],
    chosen: Sequence[tuple[SharedSubscription, Target]],
    now: float,
) -> str:
    """Check for room in all outboxes, and hold it in all sinks.

    Args:
        receipt: of the message.
        message: of QoS 1 or 2.
        plan: of its topic.
        targets: those of the plan that may receive it.
        chosen: the chosen members of shared subscriptions.
        now: monotonic seconds.

    Returns:
        Why there is no room; "" where `Router.store` is to follow.
    """
    core = receipt.client.core
    can_tell = not receipt.client.waits_for_room
    if (targets or chosen) and core.room.rejects and not receipt.was_routed:
        forwards = receipt.client.forwards
        full = core.room.lacks(
            message, targets, chosen, now, can_tell=can_tell, awaits_absent=forwards
        )
        if full:
            return full
    return core.router.reserve(message, plan.sinks, can_tell=can_tell)


def hold(client: Client, message: Message, packet_id: int, now: float, *, is_repeat: bool) -> None:
    """Hold a message of a client that cannot be told until there is room for it."""
    receipt = book_receipt(client, packet_id, message.qos, 1, is_repeat=is_repeat)
    client.core.room.hold(receipt, message, route_held, now)


async def route_held(receipt: PublishReceipt, message: Message, now: float) -> bool:
    """Route a message that was held for want of room, or of a disk; return False if it has to wait.

    Args:
        receipt: of the message.
        message: authorized when it came.
        now: monotonic seconds.
    """
    client = receipt.client
    core = client.core
    session = client.session
    plan = core.tree.plan(message.topic, message.topic_bytes).of(message)
    journal = core.journal
    expires_at = message.expires_at
    if expires_at is not None and now >= expires_at:
        core.router.refuse(session.client_id, message.topic, ReasonCode.SUCCESS, "expired")
        receipt.settle(ReasonCode.SUCCESS)
        return True
    if journal is not None and journal.must_refuse(session, plan, message):
        if client.is_patient:
            return False
        core.router.refuse(session.client_id, message.topic, ReasonCode.QUOTA_EXCEEDED)
        receipt.settle(ReasonCode.QUOTA_EXCEEDED)
        return True
    full = await route_allowed(client, receipt, plan, message, now)
    if full != NEVER_FITS:
        return not full
    core.router.refuse(session.client_id, message.topic, ReasonCode.QUOTA_EXCEEDED, full)
    is_told = receipt.client.version == MQTT_5
    receipt.settle(ReasonCode.QUOTA_EXCEEDED if is_told else ReasonCode.SUCCESS)
    return True


def _tell_routed(client: Client, message: Message) -> None:
    callbacks = client.core.callbacks.message_routed
    if callbacks:
        client.core.guard.tell(callbacks, MessageRouted(client.session, message))


def settle_when_safe(receipt: PublishReceipt, n_changes: int, plan: Plan, message: Message) -> None:
    """Give the receipt of a routed message the broker's own answer, after the commit if any.

    The packet identifier of a QoS 2 message is stored in the commit of the message itself, so
    that its repeat is known for one after any end of the process. Where a sink has a say, only
    when that is settled: the sink must get the message again if it may have lost it.

    Args:
        receipt: one of whose answers is missing.
        n_changes: changes in the journal before the message was routed.
        plan: where the message went.
        message: which was routed.
    """
    client = receipt.client
    journal = client.core.journal
    if journal is None:
        return receipt.settle(SUCCESS)
    of_session = client.session.journal
    if receipt.qos == 2 and not plan.sinks and of_session is not None:
        receipt.is_stored = True
        of_session.incoming_changed(receipt.packet_id)
    if journal.n_changes == n_changes:
        return receipt.settle(SUCCESS)
    return journal.settle_after(receipt, message.payload_bytes, client)


def taken(client: Client, plan: Plan) -> int:
    """Return the reason code of a message that is accepted (MQTT 5.0, 3.4.2.1)."""
    if plan.targets or plan.shares or plan.sinks or client.version != MQTT_5:
        return SUCCESS
    return ReasonCode.NO_MATCHING_SUBSCRIBERS
