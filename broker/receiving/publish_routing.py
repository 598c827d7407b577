"""An authorized PUBLISH on its way to those who get it, at once or when there is room for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.events import MessageRouted
from penstock.broker.message import Message
from penstock.broker.mqtt.enums import MQTT_5
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.receiving.receipts import book_receipt
from penstock.broker.routing.shared_subscriptions import choose_members
from penstock.broker.routing.topic_tree import Plan
from penstock.broker.sessions.client import PublishReceipt

if TYPE_CHECKING:
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
    room = core.room if receipt is not None and core.room.rejects else None
    is_5 = receipt is not None and receipt.client.version == MQTT_5
    n_changes = core.journal.n_changes if core.journal is not None else 0
    if message.retain:
        if room is not None:
            chosen = choose_members(message, plan.shares, now)
            full = room.lacks(message, plan.targets, chosen, now, can_tell=is_5)
            if full:
                return full
        _tell_routed(client, message)
        core.router.retain(message)
    targets, chosen = await core.router.allowed_recipients(plan, message, now)
    if receipt is not None and receipt.is_settled:
        return ""  # the publisher has gone meanwhile, and comes again with the message
    if not message.retain:
        if room is not None:
            full = room.lacks(message, targets, chosen, now, can_tell=is_5)
            if full:
                return full
        _tell_routed(client, message)
    if receipt is not None:
        receipt.wait_for(len(plan.sinks))
        receipt.reason_code = taken(receipt.client, plan)
    core.router.route(message, targets, chosen, plan.sinks, receipt, now)
    client.throttle.wait_for_congested(now)
    if receipt is not None:
        settle_when_safe(receipt, n_changes, plan, message)
    return ""


def hold(client: Client, message: Message, packet_id: int, now: float) -> None:
    """Hold a message of an MQTT 3.1.1 client until there is room for it."""
    receipt = book_receipt(client, packet_id, message.qos, 1)
    client.core.room.hold(receipt, message, route_held, now)


async def route_held(receipt: PublishReceipt, message: Message, now: float) -> bool:
    """Route a message that was held for want of room; return False where there is still none.

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
    if journal is not None and journal.must_refuse(session, plan, message):
        core.router.refuse(session.client_id, message.topic, ReasonCode.QUOTA_EXCEEDED)
        receipt.settle(ReasonCode.QUOTA_EXCEEDED)
        return True
    return not await route_allowed(client, receipt, plan, message, now)


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
        return receipt.settle(ReasonCode.SUCCESS)
    of_session = client.session.journal
    if receipt.qos == 2 and not plan.sinks and of_session is not None:
        receipt.is_stored = True
        of_session.incoming_changed(receipt.packet_id)
    if journal.n_changes == n_changes:
        return receipt.settle(ReasonCode.SUCCESS)
    return journal.settle_after(receipt, message.payload_bytes, client)


def taken(client: Client, plan: Plan) -> int:
    """Return the reason code of a message that is accepted (MQTT 5.0, 3.4.2.1)."""
    if plan.targets or plan.shares or plan.sinks or client.version != MQTT_5:
        return ReasonCode.SUCCESS
    return ReasonCode.NO_MATCHING_SUBSCRIBERS
