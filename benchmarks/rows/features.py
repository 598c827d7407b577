"""How fast are a broker's features that one publisher and one subscriber do not show?

Shared subscriptions and retained messages: the load of `qos1_1to1`, to a group of ten that share
the subscription, or with each message retained. Reading what is retained: a client subscribes to
10,000 topics of which each has a message, over and over. WebSocket: `qos1_1to1` in frames. Wills:
64 clients with a will connect and vanish without a DISCONNECT, until a reader has all their wills.

What Penstock keeps on the disk by default, and mosquitto in memory, has two rows: both in memory,
and each as it comes.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Final

from benchmarks.loads import wire
from benchmarks.loads.shared import SharedLoad
from benchmarks.loads.windowed import WindowedPlan
from benchmarks.peers import Options, RunningPeer
from benchmarks.rows.acknowledged import INFLIGHT_MESSAGES, measure_windowed
from benchmarks.rows.many_clients import AT_A_TIME
from benchmarks.rows.rates import Meter, measure_run
from benchmarks.rows.row import Measurement, Row, Scale, Target

MEMBERS: Final = 10
RETAINED_TOPICS: Final = 100
RETAINED_MESSAGES: Final = 10_000
PAYLOAD_BYTES: Final = 64
LEAST_ROUNDS: Final = 2
VANISH: Final = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: the connection is reset, and this machine's ports do not run out."""

ONE_TO_ONE: Final = WindowedPlan(1, 100, PAYLOAD_BYTES, qos=1)
RETAINED: Final = replace(ONE_TO_ONE, is_retained=True, topics=RETAINED_TOPICS)


def measure_shared(peer: RunningPeer, scale: Scale) -> Measurement:
    """Return messages per second to a group."""
    with SharedLoad(peer.access, replace(ONE_TO_ONE, version=5, members=MEMBERS)) as load:
        return measure_run(load, peer, scale)


def measure_retained_reading(peer: RunningPeer, scale: Scale) -> Measurement:
    """Return retained messages per second to a client that subscribes."""
    generator = random.Random(0)  # noqa: S311 - payloads, not secrets
    count = min(RETAINED_MESSAGES, scale.filters)
    topics = [f"bench/retained/{number % 100}/{number}" for number in range(count)]
    packets = [
        wire.publish_packet(topic, generator.randbytes(PAYLOAD_BYTES), is_retained=True)
        for topic in topics
    ]
    meter, rounds = Meter(peer), 0
    with ExitStack() as stack:
        publisher = stack.enter_context(wire.open_client(peer.port, "bench-publisher"))
        publisher.sendall(b"".join(packets) + wire.PINGREQ)
        wire.expect(publisher, wire.PINGRESP)
        due, size = sorted(packets), sum(map(len, packets))
        while rounds < LEAST_ROUNDS or meter.elapsed_seconds < scale.seconds:
            with wire.open_client(peer.port, f"bench-late-{rounds}") as sock:
                with meter:
                    wire.subscribe(sock, "bench/retained/#", 0)
                    data = wire.receive_exactly(sock, size)
                if sorted(wire.whole_packets(data)[0]) != due:
                    raise wire.WireError("a client read other messages than those retained")
            rounds += 1
        publisher.sendall(
            b"".join(wire.publish_packet(each, b"", is_retained=True) for each in topics)
        )
        publisher.sendall(wire.PINGREQ)
        wire.expect(publisher, wire.PINGRESP)
    details = {"rounds": rounds, **meter.details(rounds * count)}
    return Measurement(rounds * count / meter.elapsed_seconds, details=details)


def measure_wills(peer: RunningPeer, scale: Scale) -> Measurement:
    """Return wills per second, of clients that connect and vanish."""
    wills = [(f"bench/will/{number}", b"%064d" % number) for number in range(AT_A_TIME)]
    connects = [
        wire.connect_packet(f"bench-will-{number}", will=will) for number, will in enumerate(wills)
    ]
    due = sorted(wire.publish_packet(*will) for will in wills)
    count, deadline = 0, time.monotonic() + scale.seconds
    with wire.open_client(peer.port, "bench-reader") as reader, Meter(peer) as meter:
        wire.subscribe(reader, "bench/will/+", 0)
        while not count or time.monotonic() < deadline:
            socks = []
            for packet in connects:
                socks.append(wire.open_connection(peer.port))
                socks[-1].sendall(packet)
            for sock in socks:
                wire.read_connack(sock)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, VANISH)
                sock.close()
            read = wire.receive_exactly(reader, sum(map(len, due)))
            if sorted(wire.whole_packets(read)[0]) != due:
                raise wire.WireError("the reader got other wills than those of the clients")
            count += len(due)
    details = {"wills": count, **meter.details(count)}
    return Measurement(count / meter.elapsed_seconds, details=details)


_row: Final = partial(Row, group="features", unit="delivered/s", target=Target(least_ratio=1))

ROWS: Final = (
    _row(
        name="shared",
        title="QoS 1, 64 B, window 100, 1 to a group of 10 that share a subscription",
        measure=measure_shared,
        options=Options(inflight_messages=INFLIGHT_MESSAGES),
        is_v5=True,
    ),
    _row(
        name="shared_acl",
        title="the same with users and an ACL file",
        measure=measure_shared,
        options=Options(has_acl=True, inflight_messages=INFLIGHT_MESSAGES),
        is_v5=True,
    ),
    _row(
        name="retained",
        title="QoS 1, 64 B, window 100, 1 to 1, each message retained, on 100 topics, in memory",
        measure=partial(measure_windowed, plan=RETAINED),
        options=Options(is_in_memory=True, inflight_messages=INFLIGHT_MESSAGES),
    ),
    _row(
        name="retained_kept",
        title=("the same, by Penstock acknowledged when it is on the disk, by mosquitto in memory"),
        measure=partial(measure_windowed, plan=RETAINED),
        options=Options(inflight_messages=INFLIGHT_MESSAGES),
    ),
    _row(
        name="retained_reading",
        title="subscribing to 10,000 topics with a retained message of 64 B each",
        measure=measure_retained_reading,
    ),
    _row(
        name="wills",
        title="clients with a will connect and vanish, 64 at a time; wills in memory",
        unit="wills/s",
        measure=measure_wills,
        options=Options(is_in_memory=True),
    ),
    _row(
        name="wills_kept",
        title="the same, by Penstock with the wills on the disk, by mosquitto in memory",
        unit="wills/s",
        measure=measure_wills,
    ),
    _row(
        name="websocket",
        title="QoS 1, 64 B, window 100, 1 to 1, over WebSocket",
        measure=partial(measure_windowed, plan=ONE_TO_ONE),
        options=Options(is_websocket=True, inflight_messages=INFLIGHT_MESSAGES),
    ),
)
