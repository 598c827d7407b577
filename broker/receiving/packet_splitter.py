"""Packets in received bytes: passed on in runs, or handled one by one.

Theory of operation. Most of what a busy broker receives are QoS 0 PUBLISH packets for subscribers
that need no more than a copy of the very bytes. `scan` goes over the bytes once, where they are. It
looks the topic of such a packet up in `Core.fast_plans`, and makes a *run* of neighbours that go to
the same subscribers: one slice of the bytes, given to each of them (`pass_on`). Those of one topic
and size are found by their equal beginnings, at 0.1 us a packet, where a look-up takes 0.7. Runs of
QoS 1 and 2 are for `penstock.broker.receiving.batch_path`. All the rest goes packet by packet.

What takes many steps is not done at once: a packet that goes its own way is one, and so is each
delivery that is no mere copy (`Turn.steps`). After `Turn.most_steps` the scan ends, between two
packets, and goes on when the others have had their turn.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.errors import PeerError, ProtocolError
from penstock.broker.events import PacketReceived
from penstock.broker.mqtt.enums import MQTT_5, PUBLISH, PacketType
from penstock.broker.mqtt.reader import answer_version, may_be_connect
from penstock.broker.mqtt.receive_buffer import packet_too_large, read_remaining_length
from penstock.broker.receiving import control_packets
from penstock.broker.receiving.acknowledging import TAKE_ACKNOWLEDGEMENT
from penstock.broker.receiving.authenticating import check_packet_type
from penstock.broker.receiving.batch_path import TAKE_RUN
from penstock.broker.receiving.publishing import are_direct, pass_on, receive_publish

if TYPE_CHECKING:
    from penstock.broker.sessions.client import Client
    from penstock.broker.sessions.session import Session

_CONNECT_BYTE: Final = PacketType.CONNECT << 4

_HEAD_OF_CONNECT_BYTES: Final = 7
"""Of a CONNECT's variable header, up to the protocol version."""


def scan(client: Client, data: bytes, now: float) -> int:  # noqa: PLR0915 (hot: one loop)
    """Handle each whole packet in `data`, as far as the steps go.

    Args:
        client: they came from; neither closing nor suspended.
        data: received bytes, at least one; a packet begins at the first.
        now: monotonic seconds.

    Returns:
        Where the rest begins: a packet that is not whole yet; or, where the connection is now
        suspended or closing, or `Turn.steps` has come to `Turn.most_steps`, one that is left.

    Raises:
        PeerError: a packet is malformed or not allowed; those before it are handled.
    """
    core = client.core
    counters = core.counters
    fast_plans = core.fast_plans[client.version] if client.is_open else {}
    take_run = TAKE_RUN if client.is_open and core.takes_runs and core.catch_up is None else {}
    offset = 1 if client.version == MQTT_5 else 0
    maximum = client.maximum_packet_size
    if not client.is_open:
        if not may_be_connect(data) and client.authentication is None:  # [MQTT-3.1.0-1]
            # Said at the first byte: who speaks another protocol is not waited for.
            raise ProtocolError("the first packet is not CONNECT")
        maximum = min(maximum, core.limits.connect_bytes, core.limits.control_bytes)
    end = len(data)
    position = 0
    n_packets = 0
    run_sessions: tuple[Session, ...] = ()
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
                raise _too_large(client, data, start, stop - position, maximum)
            if stop > end:
                if first_byte >> 4 != PUBLISH:
                    core.limits.check_control_bytes(stop - position)
                break
            # As `read_publish_head`, which takes 0.4 us; this takes 0.15, and the next packet that
            # is like it 0.1 (row `qos0_mixed` of the benchmarks).
            if first_byte == 0x30 and length > 2:
                topic_end = start + 2 + ((data[start] << 8) | data[start + 1])
                plan = fast_plans.get(data[start + 2 : topic_end])
                payload_bytes = stop - topic_end - offset
                if (
                    plan is not None
                    and data[start - 1]  # a Remaining Length in its shortest form [MQTT-1.5.5-1]
                    and 0 <= payload_bytes <= plan.threshold_s
                    and not (offset and data[topic_end])
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
                    begin = data[position : topic_end + offset]
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
            if first_byte in take_run:
                stop_of_run = take_run[first_byte](client, data, position, start, stop, now)
                if stop_of_run:
                    position = stop_of_run
                    if turn.steps + n_packets >= most_steps:
                        break
                    continue
            n_packets += 1
            _handle(client, first_byte, data, position, start, stop, now)
            position = stop
            if (
                turn.steps + n_packets >= most_steps
                or client.is_closing
                or client.suspended is not None
            ):
                break
            if not fast_plans and client.is_open:
                fast_plans = core.fast_plans[client.version]
                offset = 1 if client.version == MQTT_5 else 0
                maximum = client.maximum_packet_size
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


def _too_large(
    client: Client, data: bytes, start: int, n_bytes: int, maximum: int
) -> ProtocolError:
    """Return the error for a packet that is too large; a CONNECT is answered where it can be.

    Args:
        client: it came from.
        data: received bytes.
        start: where its variable header begins, in which a CONNECT names its version.
        n_bytes: of the whole packet.
        maximum: what is allowed.
    """
    head = data[start : start + _HEAD_OF_CONNECT_BYTES]
    is_connect = not client.is_open and client.authentication is None
    if is_connect and len(head) == _HEAD_OF_CONNECT_BYTES:
        client.set_version(answer_version(head))
        client.is_answered = True
    return packet_too_large(n_bytes, maximum)


def _handle(
    client: Client,
    first_byte: int,
    data: bytes,
    position: int,
    start: int,
    stop: int,
    now: float,
) -> None:
    """Handle one whole packet.

    Raises:
        PeerError: it is malformed or not allowed.
    """
    core = client.core
    packet_type = first_byte >> 4
    if not client.is_open:
        if client.authentication is None:
            head = data[start : min(stop, start + _HEAD_OF_CONNECT_BYTES)]
            client.set_version(answer_version(head))
            client.is_answered = first_byte == _CONNECT_BYTE
        else:
            check_packet_type(packet_type)
    if core.callbacks.packet_received:
        session = client.session if client.is_open else None
        chunk = memoryview(data)[position:stop]
        event = PacketReceived(session, first_byte, stop - position, (chunk,))
        core.guard.tell(core.callbacks.packet_received, event)
    if packet_type == PUBLISH:
        core.counters.publish_received += 1
        receive_publish(client, data, first_byte, start, stop, now)
        if core.catch_up is not None:
            _let_catch_up(client, core.catch_up())
    elif stop - start == 2 and (take := TAKE_ACKNOWLEDGEMENT.get(first_byte)) is not None:
        take(client, (data[start] << 8) | data[start + 1], now)
    else:
        core.limits.check_control_bytes(stop - position)
        control_packets.receive(client, first_byte, data[start:stop], now)
        if core.catch_up is not None:
            _let_catch_up(client, core.catch_up())


def _let_catch_up(client: Client, wait: Coroutine[Any, Any, None] | None) -> None:
    """Receive nothing more until the callbacks have caught up with this client's events."""
    if wait is None:
        return
    if client.suspended is not None or client.is_closing:
        wait.close()
        return
    client.suspended = wait
    client.core.turn.touch(client.outgoing)
