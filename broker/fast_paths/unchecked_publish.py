"""A PUBLISH about which no plugin has to be asked: it is routed and acknowledged at once.

The plain way is a coroutine, as access control may have to wait, and books a receipt for each QoS 1
and 2 message. Here nobody has to wait: where the message needs no journal, sink or earlier receipt,
its acknowledgement follows the router's call, and no receipt is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.broker.extensions import NEVER_FITS
from penstock.broker.message import Message
from penstock.broker.mqtt.packets import PubAck, PubRec
from penstock.broker.receiving.publishing import (
    DUP,
    book_receipt,
    check_receive_maximum,
    problem_of,
    refuse_full,
    reserve,
    route_held,
    settle_when_safe,
    take_publish,
    taken,
)

if TYPE_CHECKING:
    from penstock.broker.fast_paths.fast_connection import FastClient
    from penstock.broker.routing.shared_subscriptions import SharedSubscription
    from penstock.broker.routing.topic_tree import Plan, Target
    from penstock.broker.sessions.client import PublishReceipt


def take_judged(
    client: FastClient, plan: Plan, message: Message, packet_id: int, first_byte: int, now: float
) -> None:
    """Take a message where access control was asked before, or ask it; as `take_unchecked`."""
    topic_bytes = plan.topic_bytes
    fast = client.fast_plans.get(topic_bytes) or client.core.fast_plan(topic_bytes, client)
    allowed = fast.allowed
    if (
        allowed is None
        or message.payload_bytes > allowed.most_bytes
        or (message.retain and allowed.retaining)
    ):
        return client.run(take_publish(client, plan, message, packet_id, first_byte, now))
    return take_unchecked(client, allowed, message, packet_id, first_byte, now)


def take_unchecked(
    client: FastClient, plan: Plan, message: Message, packet_id: int, first_byte: int, now: float
) -> None:
    """Route a message and see to its acknowledgement; it does what `take_publish` does.

    The message is checked, and not routed yet; the plan is of its topic and size class.
    """
    core = client.core
    if message.qos == 0:
        chosen = core.choose_members(plan, message, now) if plan.shares else ()
        if chosen is None:
            return client.run(take_publish(client, plan, message, packet_id, first_byte, now))
        if message.retain and not client.is_forwarded:
            core.router.retain(message)
        core.router.route(message, plan.targets, chosen, now)
        if plan.sinks:
            core.router.offer(message, plan.sinks)
        if core.turn.congested:
            client.throttle.wait_for_congested(now)
        return None
    if client.awaiting or problem_of(client, plan, message):
        return client.run(take_publish(client, plan, message, packet_id, first_byte, now))
    if message.qos == 2 or client.receipts:  # before a member of a share has had its turn
        check_receive_maximum(client)
    journal = core.journal
    n_changes = journal.n_changes if journal is not None else 0
    chosen = core.choose_members(plan, message, now) if plan.shares else ()
    if chosen is None:
        return client.run(take_publish(client, plan, message, packet_id, first_byte, now))
    if plan.sinks or client.receipts or (first_byte & DUP and core.sinks):  # one may know it
        receipt = book_receipt(client, packet_id, message.qos, 1, is_repeat=bool(first_byte & DUP))
        return _take_booked(receipt, plan, message, chosen, n_changes, now)
    if core.room.rejects:
        waits = client.waits_for_room
        full = core.room.lacks(
            message,
            plan.targets,
            chosen,
            now,
            can_tell=not waits,
            awaits_absent=client.forwards,
            is_forwarded=client.is_forwarded,
        )
        if full:
            is_repeat = bool(first_byte & DUP)
            receipt = book_receipt(client, packet_id, message.qos, 1, is_repeat=is_repeat)
            if waits:
                return core.room.hold(receipt, message, route_held, now)
            return refuse_full(receipt, plan.topic, full)
    if message.retain and not client.is_forwarded:
        core.router.retain(message)
    core.router.route(message, plan.targets, chosen, now)
    if journal is not None and (
        journal.n_changes != n_changes or (message.qos == 2 and client.session.journal is not None)
    ):
        receipt = book_receipt(client, packet_id, message.qos, 1)
        receipt.reason_code = taken(client, plan)
        settle_when_safe(receipt, n_changes, plan, message)
    else:
        if message.qos == 2:
            client.session.incoming[packet_id] = None
        if plan.targets or plan.shares:
            client.sender.send_receipt(0x40 if message.qos == 1 else 0x50, packet_id)
        else:
            kind = PubAck if message.qos == 1 else PubRec
            client.sender.send_packet(kind(packet_id, taken(client, plan)))
    if core.turn.congested:
        client.throttle.wait_for_congested(now)
    return None


def _take_booked(
    receipt: PublishReceipt,
    plan: Plan,
    message: Message,
    chosen: Sequence[tuple[SharedSubscription, Target]],
    n_changes: int,
    now: float,
) -> None:
    """Route a message that sinks get, or whose acknowledgement has to wait for earlier ones.

    One answer of its receipt is missing; `n_changes` were noted in the journal so far.
    """
    client = receipt.client
    core = client.core
    full = reserve(receipt, message, plan, plan.targets, chosen, now)
    if full and client.waits_for_room and full != NEVER_FITS:
        return core.room.hold(receipt, message, route_held, now)
    if full:
        return refuse_full(receipt, plan.topic, full)
    if message.retain and not client.is_forwarded:
        core.router.retain(message)
    receipt.sinks = plan.sinks
    receipt.wait_for(len(plan.sinks))
    receipt.reason_code = taken(client, plan)
    if not receipt.was_routed:
        receipt.was_routed = True
        if plan.targets or chosen:
            core.router.route(message, plan.targets, chosen, now)
    core.router.store(message, plan.sinks, receipt)
    settle_when_safe(receipt, n_changes, plan, message)
    if core.turn.congested:
        client.throttle.wait_for_congested(now)
    return None
