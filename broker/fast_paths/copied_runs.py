"""QoS 0 PUBLISH packets that come together for the same subscribers, copied as they came.

Theory of operation. Most of what a busy broker receives are QoS 0 PUBLISH packets for subscribers
that need no more than a copy of the very bytes. `receive_in_runs` goes over the bytes once, where
they are. It looks the topic of such a packet up in `FastClient.fast_plans`, and makes a *run* of
neighbours that go to the same subscribers: one slice of the bytes, which each of them is given by
`pass_on`. Packets of one topic and size are found by their equal beginnings, at 0.1 us a packet,
where a look-up takes 0.7. Runs of QoS 1 and 2 are for
`penstock.broker.fast_paths.acknowledged_runs`. Any other packet is handled as
`penstock.broker.receiving.connection.receive_packets` does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.broker.errors import PeerError
from penstock.broker.fast_paths.acknowledged_runs import TAKE_RUN, may_go_on
from penstock.broker.fast_paths.fast_core import are_direct
from penstock.broker.fast_paths.shared_runs import Group
from penstock.broker.fast_paths.sink_runs import sinks_of
from penstock.broker.mqtt.enums import MQTT_5, PUBLISH
from penstock.broker.mqtt.properties import read_publish_properties
from penstock.broker.mqtt.publish_head import read_publish_head
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.receive_buffer import packet_too_large, read_remaining_length
from penstock.broker.receiving.connection import receive_packet, receive_packets
from penstock.broker.receiving.publishing import new_message

if TYPE_CHECKING:
    from penstock.broker.fast_paths.fast_connection import FastClient
    from penstock.broker.fast_paths.fast_core import FastSession


def receive_in_runs(  # noqa: PLR0915 (hot: one loop)
    client: FastClient, data: bytes, now: float
) -> int:
    """Handle each whole packet in `data`, as far as the steps go, in runs where that is possible.

    It does for an accepted client what `penstock.broker.receiving.connection.receive_packets` does.
    """
    if not client.is_open:
        return receive_packets(client, data, now)
    core = client.core
    counters = core.counters
    version = client.version
    fast_plans = client.fast_plans
    offset = 1 if version == MQTT_5 else 0
    maximum = client.maximum_packet_size
    end = len(data)
    position = 0
    n_packets = 0
    run_sessions: tuple[FastSession, ...] = ()
    run_start = run_end = run_messages = run_largest = 0
    problem: PeerError | None = None
    turn = core.turn
    most_steps = turn.most_steps
    turn.steps = 0
    try:
        while end - position >= 2:
            first_byte = data[position]
            length = data[position + 1]
            start = position + 2
            if length > 0x7F:
                start, length = read_remaining_length(data, position)
                if not start:
                    break
            stop = start + length
            if stop - position > maximum:
                raise packet_too_large(stop - position, maximum)
            if stop > end:
                if first_byte >> 4 != PUBLISH:
                    core.limits.check_control_bytes(stop - position)
                break
            # As `read_publish_head`, which takes 0.4 us; this takes 0.15, and the next packet that
            # is like it 0.1 (row `qos0_mixed` of the benchmarks).
            if first_byte == 0x30 and length > 2:
                topic_end = start + 2 + ((data[start] << 8) | data[start + 1])
                plan = fast_plans.get(data[start + 2 : topic_end])
                if plan is None:
                    is_whole = topic_end <= stop
                    plan = core.fast_plan(data[start + 2 : topic_end] if is_whole else b"", client)
                payload_at = topic_end + offset
                if offset and payload_at <= stop and data[topic_end] and plan.threshold_s >= 0:
                    payload_at = _end_of_properties(client, data, start, stop)
                if (
                    data[start - 1]  # a Remaining Length in its shortest form [MQTT-1.5.5-1]
                    and 0 <= stop - payload_at <= plan.threshold_s
                ):
                    if not run_messages or plan.sessions is not run_sessions or position >= run_end:
                        if run_messages:
                            run = data[run_start:position]
                            taken = pass_on(
                                client, run_sessions, run, run_messages, run_largest, now
                            )
                            if turn.steps >= most_steps:
                                position = run_start + taken
                                run_messages = 0
                                break
                        run_sessions = plan.sessions
                        run_start = position
                        run_messages = run_largest = 0
                        run_end = end
                        if not are_direct(run_sessions):  # each message is a step at least
                            run_end = min(end, position + most_steps * (stop - position))
                    size = stop - position
                    begin = data[position:payload_at]
                    while stop + size <= run_end and data.startswith(begin, stop):
                        stop += size
                    run_messages += (stop - position) // size
                    run_largest = max(run_largest, size)
                    position = stop
                    continue
            if run_messages:
                run = data[run_start:position]
                taken = pass_on(client, run_sessions, run, run_messages, run_largest, now)
                run_messages = 0
                if turn.steps >= most_steps:
                    position = run_start + taken
                    break
            if first_byte in TAKE_RUN:
                stop_of_run = TAKE_RUN[first_byte](client, data, position, start, stop, now)
                if stop_of_run:
                    position = stop_of_run
                    if turn.steps + n_packets >= most_steps:
                        break
                    continue
            n_packets += 1
            receive_packet(client, data, position, start, stop, now)
            position = stop
            if (
                turn.steps + n_packets >= most_steps
                or client.is_closing
                or client.suspended is not None
            ):
                break
    except PeerError as error:
        problem = error
    if run_messages:  # what came before a bad packet counts
        run = data[run_start:position]
        taken = pass_on(client, run_sessions, run, run_messages, run_largest, now)
        if taken < len(run):
            position = run_start + taken
            problem = None  # it is found again, behind the rest
    counters.packets_received += n_packets
    counters.bytes_received += position
    if problem is not None:
        try:
            raise problem
        finally:
            problem = None  # or it and this frame, with all of `data`, would hold each other
    turn.steps += n_packets
    return position


def _end_of_properties(client: FastClient, data: bytes, start: int, stop: int) -> int:
    """Return where the properties of a PUBLISH end, or a place behind it if they may not go on."""
    try:
        _, _, properties_at, payload_at = read_publish_head(data, 0x30, start, stop, MQTT_5)
        if may_go_on(client, data[properties_at:payload_at]):
            return payload_at
    except PeerError:
        pass  # the plain way meets it, too
    return stop + 1


def pass_on(
    client: FastClient,
    sessions: Sequence[FastSession],
    run: bytes,
    n_messages: int,
    largest: int,
    now: float,
) -> int:
    """Copy a run of QoS 0 PUBLISH packets to the subscribers that all of them have.

    Args:
        client: the publisher's.
        sessions: who gets every packet of the run.
        run: whole packets, one after the other, with properties that may go on if with any.
        n_messages: how many.
        largest: bytes of the largest of them.
        now: monotonic seconds.

    Returns:
        Bytes of the packets that are done, at least one: fewer than all where some subscribers
        cannot just be given a copy, and all of it would be too many steps at once.
    """
    core = client.core
    if not sessions and isinstance(sessions, Group):
        return _pass_to_group(client, sessions, run, n_messages, largest, now)
    direct: list[FastSession] = []
    waiting: list[FastSession] = []
    for session in sessions:
        if session.is_direct and largest <= session.outgoing.copy_maximum:
            direct.append(session)
        else:
            waiting.append(session)
    if waiting:
        run, n_messages = _pass_to_waiting(client, waiting, run, n_messages, now)
    n_bytes = len(run)
    for session in direct:
        outgoing = session.outgoing
        outgoing.out.append(run)
        outgoing.out_bytes += n_bytes
        if not outgoing.is_touched:
            core.turn.write_soon(outgoing)
        session.n_direct += n_messages
    counters = core.counters
    counters.packets_received += n_messages
    counters.publish_received += n_messages
    counters.packets_sent += n_messages * len(direct)
    counters.publish_sent += n_messages * len(direct)
    if waiting:
        client.throttle.wait_for_congested(now)
    return n_bytes


def _pass_to_group(
    client: FastClient, group: Group, run: bytes, n_messages: int, largest: int, now: float
) -> int:
    """Give each packet of a run to one member of a shared subscription; see `pass_on`."""
    core = client.core
    turn = core.turn
    counters = core.counters
    if group.prepare(0, n_messages, len(run), largest):
        group.copy(run, n_messages)
        counters.packets_received += n_messages
        counters.publish_received += n_messages
        counters.packets_sent += n_messages
        counters.publish_sent += n_messages
        return len(run)
    position = 0
    while position < len(run):
        start, length = read_remaining_length(run, position)
        counters.packets_received += 1
        turn.steps += 1
        receive_packet(client, run, position, start, start + length, now)
        position = start + length
        if client.is_closing or client.suspended is not None:
            turn.steps = turn.most_steps  # what follows waits
        if turn.steps >= turn.most_steps:  # asked here: single chunks add to those of earlier ones
            break
    return position


def _pass_to_waiting(
    client: FastClient, waiting: list[FastSession], run: bytes, n_messages: int, now: float
) -> tuple[bytes, int]:
    """Give a run to sinks, and to sessions that cannot just be given a copy; as `_deliver_run`."""
    sinks = sinks_of(waiting)
    if sinks is None:
        return _deliver_run(client, waiting, run, now)
    if len(waiting) > 1:
        run, n_messages = _deliver_run(client, waiting[:-1], run, now)
    sinks.accept(client, run, n_messages)
    return run, n_messages


def _deliver_run(
    client: FastClient, sessions: Sequence[FastSession], run: bytes, now: float
) -> tuple[bytes, int]:
    """Deliver a run one by one, as far as the steps go; return what was, and how many."""
    core = client.core
    end = len(run)
    position = 0
    n_messages = 0
    while position < end:
        start, length = read_remaining_length(run, position)
        position = start + length
        topic_end, _, properties_at, payload_at = read_publish_head(
            run, 0x30, start, position, client.version
        )
        properties = None
        if payload_at - properties_at > 1:
            properties, _ = read_publish_properties(run, properties_at, core.limits.properties)
        topic_bytes = run[start + 2 : topic_end]
        plan = core.tree.plan(topic_bytes.decode(), topic_bytes)
        message = new_message(client, plan, run[payload_at:position], 0x30, properties, now)
        n_messages += 1
        core.turn.steps += len(sessions)
        if message is None:
            core.router.refuse(client.session.client_id, plan.topic, ReasonCode.QUOTA_EXCEEDED)
        else:
            for session in sessions:
                own = core.router.for_one(message) if core.copies_payloads else message
                session.deliver(own, 0, retain=False, subscription_ids=(), now=now)
        if core.turn.steps >= core.turn.most_steps:
            break
    return run[:position], n_messages
