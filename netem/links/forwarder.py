"""The process that forwards the packets of a network's links between pairs of TUN devices.

`penstock.netem.links.network` starts it with one end of a connection as its standard input, over
which requests and answers pass. It ends with that connection, however the other program ended, and
takes the network down: its devices close with its file descriptors, and it removes the namespaces
and ends the processes in them.

It carries whole IP packets of at most `MTU_BYTES`, without segmentation offload, so that a loss is
that of one packet, as on a wire.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import heapq
import os
import random
import select
import signal
import struct
import sys
import time
from itertools import count
from math import inf
from multiprocessing.connection import Connection
from typing import Final

from penstock.netem.links.channel import Channel, Counts
from penstock.netem.links.forwarder_messages import (
    LATE_SECONDS,
    AddLink,
    Answer,
    FollowPlan,
    Lateness,
    ReadCounts,
    ReadLateness,
    Request,
    SwitchLink,
)
from penstock.netem.links.namespaces import remove_namespaces
from penstock.netem.links.profiles import Direction, Profile
from penstock.netem.links.schedule import Schedule

MTU_BYTES: Final = 1500
"""The MTU of the devices: that of Ethernet, and the kernel's default for TUN."""

TUNSETIFF: Final = 0x400454CA
IFF_TUN: Final = 0x0001
IFF_NO_PI: Final = 0x1000
"""Constants from linux/if_tun.h. Without packet information, a read returns an IP packet alone."""

PACKETS_AT_A_TIME: Final = 64
"""The most packets that are read from one device at a time, before the other devices are served."""


def open_tun(name: str) -> int:
    """Make a TUN device in this process's network namespace.

    Returns:
        A non-blocking file descriptor; the device is removed when it is closed.

    Raises:
        OSError: TUN devices are not permitted or not available.
    """
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        request = struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI)
        fcntl.ioctl(descriptor, TUNSETIFF, request)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class ForwardedDirection:
    """One direction of a link: a channel between two devices.

    Attributes:
        channel: the channel, which delays, drops and reorders packets.
        wakes_at: the time of its timer, monotonic seconds; infinite for none.
    """

    __slots__ = ("_destination", "_source", "channel", "wakes_at")

    def __init__(self, source: int, destination: int, direction: Direction, seed: str) -> None:
        self._source = source
        self._destination = destination
        self.channel = Channel(direction, random.Random(seed))  # noqa: S311 - no secret
        self.wakes_at = inf

    def carry(self) -> bool:
        """Read the packets that wait at the source; return whether the device still exists."""
        source, destination, channel = self._source, self._destination, self.channel
        read, write = os.read, os.write
        try:
            if channel.is_open:
                counts = channel.counts
                for _ in range(PACKETS_AT_A_TIME):
                    packet = read(source, MTU_BYTES)
                    counts.taken += 1
                    counts.delivered += 1
                    counts.carried_bytes += len(packet)
                    try:
                        write(destination, packet)
                    except OSError:  # as in `deliver`
                        counts.refused += 1
            else:
                for _ in range(PACKETS_AT_A_TIME):
                    channel.take(read(source, MTU_BYTES), time.monotonic())
        except BlockingIOError:
            return True
        except OSError as error:
            # EBADFD: the namespace is gone, and the device with it. EIO: it is not up.
            return error.errno != errno.EBADFD
        return True

    def deliver(self, now: float) -> None:
        """Write the packets that have arrived to the destination; packets it refuses are lost."""
        for packet in self.channel.due(now):
            try:
                os.write(self._destination, packet)
            except OSError:  # the device is down, or the host is out of memory
                self.channel.counts.refused += 1


class ForwardedLink:
    """A link with its two directions and the schedule of their changes.

    Attributes:
        upstream: the way from the client's device to the server's.
        downstream: the way from the server's device to the client's.
    """

    def __init__(self, server: int, client: int, profile: Profile, seed: str) -> None:
        self.upstream = ForwardedDirection(client, server, profile.upstream, f"{seed} upstream")
        self.downstream = ForwardedDirection(
            server, client, profile.downstream, f"{seed} downstream"
        )
        self.schedule = Schedule(profile, self._become, time.monotonic())

    def counts(self) -> tuple[Counts, Counts]:
        """Return the packets by outcome: towards the server, and towards the client."""
        return self.upstream.channel.counts, self.downstream.channel.counts

    def _become(self, profile: Profile, now: float) -> None:
        self.upstream.channel.change(profile.upstream, now)
        self.downstream.channel.change(profile.downstream, now)


class Forwarder:
    """The forwarder, which serves links and requests on one thread."""

    def __init__(self, network: Connection) -> None:
        """Make one without links."""
        self._network = network
        self._links: dict[int, ForwardedLink] = {}
        self._ways: dict[int, ForwardedDirection] = {}
        self._timers: list[tuple[float, int, ForwardedDirection | tuple[ForwardedLink, int]]] = []
        self._number = count()
        self._lateness = Lateness()
        self._poller = select.epoll()
        self._poller.register(network, select.EPOLLIN)

    def run(self) -> None:
        """Forward until the connection is closed."""
        poller, ways, timers = self._poller, self._ways, self._timers
        while True:
            events = poller.poll(max(0.0, timers[0][0] - time.monotonic()) if timers else None)
            for descriptor, _ in events:
                way = ways.get(descriptor)
                if way is None:
                    if not self._serve_request():
                        return
                elif way.carry():
                    self._arm(way)
                else:
                    poller.unregister(descriptor)
                    del ways[descriptor]
            self._fire()

    def _fire(self) -> None:
        """Run the timers that are due."""
        timers = self._timers
        now = time.monotonic()
        while timers and timers[0][0] <= now:
            at, _, what = heapq.heappop(timers)
            if isinstance(what, tuple):
                link, plan = what
                if link.schedule.plan == plan:
                    self._step(link, now)
            elif what.wakes_at == at:  # otherwise an earlier timer replaced this one
                what.wakes_at = inf
                self._note_lateness(now - at)
                what.deliver(now)
                self._arm(what)

    def _note_lateness(self, seconds: float) -> None:
        lateness = self._lateness
        lateness.deliveries += 1
        lateness.late_deliveries += seconds > LATE_SECONDS
        lateness.most_seconds = max(lateness.most_seconds, seconds)

    def _arm(self, way: ForwardedDirection) -> None:
        at = way.channel.next_event
        if at < way.wakes_at:
            way.wakes_at = at
            heapq.heappush(self._timers, (at, next(self._number), way))

    def _step(self, link: ForwardedLink, now: float) -> None:
        at = link.schedule.step(now)
        # Packets that wait for a slow rate may become due earlier.
        self._arm(link.upstream)
        self._arm(link.downstream)
        if at < inf:
            heapq.heappush(self._timers, (at, next(self._number), (link, link.schedule.plan)))

    def _serve_request(self) -> bool:
        """Answer a request that has come; return whether more may follow."""
        try:
            request: Request = self._network.recv()
            self._network.send(self._answer(request))
        except (EOFError, OSError):
            return False
        return True

    def _answer(self, request: Request) -> Answer:
        try:
            return self._do(request)
        except (KeyError, OSError) as error:
            return Answer(error=f"link: {error}")

    def _do(self, request: Request) -> Answer:
        now = time.monotonic()
        match request:
            case AddLink():
                self._add(request)
            case SwitchLink():
                link = self._links[request.link]
                link.schedule.switch(request.profile, now)
                self._step(link, now)
            case FollowPlan():
                link = self._links[request.link]
                link.schedule.follow(request.changes.steps(), request.begin_at)
                self._step(link, now)
            case ReadCounts():
                link = self._links[request.link]
                upstream, downstream = link.counts()
                return Answer(log=link.schedule.log, upstream=upstream, downstream=downstream)
            case ReadLateness():
                lateness = dataclasses.replace(self._lateness)
                self._lateness.most_seconds = 0.0
                return Answer(lateness=lateness)
        return Answer()

    def _add(self, request: AddLink) -> None:
        server = open_tun(request.devices[0])
        try:
            client = open_tun(request.devices[1])
        except OSError:
            os.close(server)
            raise
        link = ForwardedLink(server, client, request.profile, request.seed)
        self._links[request.link] = link
        for source, way in ((client, link.upstream), (server, link.downstream)):
            self._ways[source] = way
            self._poller.register(source, select.EPOLLIN)


def main() -> None:
    """Forward until the connection is closed, then remove the namespaces of the network.

    The only argument is the prefix of the names of its namespaces.
    """
    # Signals of a terminal reach all of its processes. This process must outlive the program that
    # it serves, to remove what that program leaves.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    try:
        Forwarder(Connection(0)).run()
    finally:
        remove_namespaces(sys.argv[1])


if __name__ == "__main__":
    main()
