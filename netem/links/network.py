"""Emulated networks on this machine: hosts with real TCP, and links with delay, loss and rate.

::

    with Network(seed=1) as network:
        cloud, edge = network.host("cloud"), network.host("edge")
        link = network.link(cloud, edge, GOOD)
        broker = cloud.popen(["mosquitto", "-c", "mosquitto.conf"])
        client = edge.popen(["mosquitto_sub", "-h", link.server_address, "-t", "#"])
        link.switch(LOSSY)

A host is a network namespace: processes in it see its devices, addresses and ports alone. A link is
a TUN device in each host and a forwarder in user space between them
(`penstock.netem.links.forwarder`). It needs root and /dev/net/tun, and no optional kernel module.

Two hosts with a link between them reach each other by their `Host.address`. `Network.route` makes
hosts forward packets, so that all connected hosts reach each other.

A host's congestion control applies to all TCP connections of its processes, but for those over a
link with one of its own: routes over that link name it (`congctl` of ip-route), and connections
that a program accepts follow their routes too. A program may choose another for a socket
(TCP_CONGESTION); without privileges, the machine must allow it to everyone.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from pathlib import Path
from typing import IO, Any, Final, Self

from penstock.netem.errors import NetemError, RunError
from penstock.netem.links.channel import Counts
from penstock.netem.links.congestion_control import check_congestion_control, set_congestion_control
from penstock.netem.links.device_drops import DEVICE_PREFIX, DeviceDrops, device_drops
from penstock.netem.links.forwarder_messages import (
    AddLink,
    Answer,
    FollowPlan,
    Lateness,
    ReadCounts,
    ReadLateness,
    Request,
    SwitchLink,
)
from penstock.netem.links.link_variation import Changes
from penstock.netem.links.namespaces import (
    own_prefix,
    remove_leftovers,
    remove_namespaces,
    require_root,
    run_ip,
)
from penstock.netem.links.profiles import Profile
from penstock.netem.links.routes import End, first_ends

DEFAULT_CONGESTION_CONTROL: Final = "cubic"
"""Linux's default, whatever the default of this machine is, so that runs can be compared."""

DEVICE_QUEUE_PACKETS: Final = 20_000
"""The most packets that wait in a device for the forwarder. A TUN device drops packets where a wire
would hold the sender back, so the queue takes a full window of each of a hundred fast connections.
With a tenth of it, 1 MB to each of 77 subscribers half a second away took half as long again."""

STOP_SECONDS: Final = 5.0
"""How long a process may take to end after SIGTERM."""

CLOSE_SECONDS: Final = 30.0
"""How long the forwarder may take to remove namespaces and end after its last request."""

# RFC 2544's addresses for tests of networks, which are not routed: the lower half is for links,
# four for each, the upper half for hosts.
FIRST_LINK_ADDRESS: Final = (198 << 24) + (18 << 16)
FIRST_HOST_ADDRESS: Final = (198 << 24) + (19 << 16)
HOSTS: Final = "198.19.0.0/16"
MAX_HOSTS: Final = (1 << 16) - 1
MAX_LINKS: Final = 1 << 14

FOLDER: Final = Path(__file__).absolute().parents[3]
"""The folder of the package, from which the forwarder is started too."""

_networks: Final = itertools.count()
_devices: Final = itertools.count()


class Host:
    """A host of a network; made by `Network.host`.

    Attributes:
        namespace: the name of its network namespace, as for ``ip netns exec``.
        address: its IPv4 address for hosts that share a link with it, and after `Network.route` for
            all connected hosts.
    """

    def __init__(self, name: str, namespace: str, address: str) -> None:
        self.name = name
        self.namespace = namespace
        self.address = address
        self._processes: list[subprocess.Popen[Any]] = []

    def popen(
        self,
        command: Sequence[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[Any] | None = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a process on this host.

        If it still runs at the end of the network, it gets SIGTERM, and soon after SIGKILL.
        """
        # `ip` becomes the command, so that the process id is the command's.
        process = subprocess.Popen(  # noqa: S603 - that is what it is for
            ["ip", "netns", "exec", self.namespace, *command],  # noqa: S607 - it differs
            cwd=cwd,
            env=env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )
        self._processes.append(process)
        return process

    def run(self, command: list[str]) -> str:
        """Run a short command on this host and return its standard output.

        Raises:
            NetemError: the command failed; the text holds its standard error.
        """
        return run_ip("netns", "exec", self.namespace, *command)

    def device_drops(self) -> dict[str, DeviceDrops]:
        """Return the packets that the devices of its links dropped, by `Link.device`."""
        return device_drops(self.run)

    def end_processes(self) -> None:
        """End the processes that `popen` started."""
        running = [process for process in self._processes if process.poll() is None]
        for process in running:
            process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for process in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()


class Link:
    """A link between two hosts; made by `Network.link`.

    Attributes:
        server_address: the IPv4 address of the first host on this link.
        client_address: the IPv4 address of the second host.
    """

    def __init__(
        self, number: int, server_address: str, client_address: str, forwarder: _Forwarder
    ) -> None:
        self.server_address = server_address
        self.client_address = client_address
        self.device = f"{DEVICE_PREFIX}{number}"
        self._number = number
        self._forwarder = forwarder

    def switch(self, profile: Profile) -> None:
        """Change to a profile and drop the plan; packets under way keep their time of arrival."""
        self._forwarder.ask(SwitchLink(self._number, profile))

    def follow(self, changes: Changes, begin_at: float | None = None) -> None:
        """Follow a plan.

        Args:
            changes: the plan.
            begin_at: the `time.monotonic` of the plan's beginning, for links that change together;
                None for the time of the call.
        """
        at = time.monotonic() if begin_at is None else begin_at
        self._forwarder.ask(FollowPlan(self._number, changes, at))

    def log(self) -> list[tuple[float, str]]:
        """Return `time.monotonic` and the profile's name for each change, the first included."""
        return self._forwarder.ask(ReadCounts(self._number)).log

    def counts(self) -> tuple[Counts, Counts]:
        """Return the packets by outcome: towards the server, and towards the client."""
        answer = self._forwarder.ask(ReadCounts(self._number))
        return answer.upstream or Counts(), answer.downstream or Counts()


class Network:
    """Hosts and links, which exist as long as the context.

    The end of the context ends its processes and removes its devices and namespaces. If this
    process was killed, the forwarder does that. If the forwarder was killed too, the next program
    that makes a network on this machine does.
    """

    def __init__(
        self, *, seed: int = 0, congestion_control: str = DEFAULT_CONGESTION_CONTROL
    ) -> None:
        """Describe a network; entering the context makes it."""
        self._seed = seed
        self._congestion_control = congestion_control
        self._prefix = f"{own_prefix()}{next(_networks)}-"
        self._hosts: dict[str, Host] = {}
        self._ends: dict[str, list[End]] = {}
        self._is_routed = True
        self._links = itertools.count()
        self._forwarder: _Forwarder | None = None

    def __enter__(self) -> Self:
        """Start the forwarder.

        Raises:
            NetemError: networks cannot be made here; the text says why.
        """
        require_root()
        remove_leftovers()
        self._forwarder = _Forwarder(self._prefix)
        return self

    def __exit__(self, *_: object) -> None:
        """Take everything down."""
        try:
            for host in self._hosts.values():
                host.end_processes()
        finally:
            # The forwarder ends first, so that it changes no link that is being taken down.
            if self._forwarder is not None:
                self._forwarder.close()
            remove_namespaces(self._prefix)

    @property
    def forwarder_pid(self) -> int:
        """Process id of the forwarder, for measurements of its processor time."""
        return self._running().pid

    def lateness(self) -> Lateness:
        """Return how late packets were, and the greatest lateness since the last call."""
        return self._running().ask(ReadLateness()).lateness or Lateness()

    def check(self) -> None:
        """Check that links are carried.

        Raises:
            RunError: the forwarder has ended.
        """
        self._running().check()

    def host(self, name: str, *, congestion_control: str | None = None) -> Host:
        """Make a host.

        Args:
            name: letters, digits, dots, dashes and underscores; unique in the network.
            congestion_control: the congestion control of TCP; None for the network's.

        Raises:
            NetemError: the name is taken, or the congestion control is unknown.
        """
        if name in self._hosts:
            raise NetemError(f"host: read {name!r}; allowed: a name that no other host has")
        if not name or not all(each.isalnum() or each in "-_." for each in name):
            raise NetemError(f"host: read {name!r}; allowed: letters, digits, '.', '-' and '_'")
        if len(self._hosts) == MAX_HOSTS:
            raise NetemError(f"host: read one more; allowed: {MAX_HOSTS}")
        self._running()
        namespace = self._prefix + name
        address = _dotted(FIRST_HOST_ADDRESS + len(self._hosts) + 1)
        run_ip("netns", "add", namespace)
        host = self._hosts[name] = Host(name, namespace, address)
        self._ends[name] = []
        run_ip(
            *("-netns", namespace, "-batch", "-"),
            lines=f"address add {address} dev lo\nlink set lo up\n",
        )
        _set_up_namespace(namespace)
        set_congestion_control(congestion_control or self._congestion_control, host.run)
        return host

    def link(
        self, server: Host, client: Host, profile: Profile, *, congestion_control: str | None = None
    ) -> Link:
        """Join two hosts.

        Args:
            server: the host in the direction ``upstream``.
            client: the host in the direction ``downstream``.
            profile: the profile at the beginning.
            congestion_control: the congestion control of the TCP connections whose packets
                leave either host by this link; None for that of the host.

        Raises:
            NetemError: both hosts are the same, the devices cannot be made, or the congestion
                control is unknown.
        """
        if server is client:
            raise NetemError(f"link: read {server.name!r} twice; allowed: two hosts")
        if congestion_control is not None:
            check_congestion_control(congestion_control)
        number = next(self._links)
        if number == MAX_LINKS:
            raise NetemError(f"link: read one more; allowed: {MAX_LINKS}")
        forwarder = self._running()
        device = f"{DEVICE_PREFIX}{number}"
        hosts = (server, client)
        self._add_devices(number, hosts, profile)
        base = FIRST_LINK_ADDRESS + 4 * number
        addresses = tuple(_dotted(base + n) for n in (1, 2))
        for host, peer, (own, other) in zip(
            hosts, hosts[::-1], (addresses, addresses[::-1]), strict=True
        ):
            end = End(device, peer.name, other, congestion_control)
            self._ends[host.name].append(end)
            self._set_up_end(host, own, end, peer)
        self._is_routed = False
        return Link(number, addresses[0], addresses[1], forwarder)

    def address(self, source: Host, destination: Host) -> str:
        """Return the address by which one host reaches another, directly or over other hosts.

        Raises:
            NetemError: no links connect them.
        """
        ends = self._ends[source.name]
        if source is destination or any(end.peer == destination.name for end in ends):
            return destination.address
        if destination.name not in first_ends(source.name, self._ends):
            raise NetemError(
                f"no links connect host {source.name!r} with host {destination.name!r}"
            )
        if not self._is_routed:
            self.route()
        return destination.address

    def route(self) -> None:
        """Set up routes over the fewest links between all connected hosts.

        Call it after the last link was made; it may be repeated after further links. Of several
        paths with the fewest links, the one over the links made first is used.

        Raises:
            NetemError: the kernel refuses a route.
        """
        for name, ends in self._ends.items():
            host = self._hosts[name]
            if len(ends) == 1:
                # A host with a single link needs a single route.
                lines = [_route("replace", HOSTS, ends[0], host)]
            else:
                firsts = first_ends(name, self._ends)
                lines = [
                    _route("replace", self._hosts[far].address, end, host)
                    for far, end in firsts.items()
                    if far != end.peer
                ]
                host.run(["sh", "-ec", "echo 1 > /proc/sys/net/ipv4/ip_forward"])
            run_ip("-netns", host.namespace, "-batch", "-", lines="".join(lines))
        self._is_routed = True

    def _add_devices(self, number: int, hosts: tuple[Host, Host], profile: Profile) -> None:
        """Make the devices of a link, and move them to its hosts."""
        # Until they are moved, the devices share the machine's names: 15 bytes, and unique.
        devices = (f"pnst{os.getpid()}.{next(_devices)}", f"pnst{os.getpid()}.{next(_devices)}")
        self._running().ask(AddLink(number, devices, profile, f"{self._seed} {number}"))
        run_ip(
            *("-batch", "-"),
            lines="".join(
                f"link set {device} netns {host.namespace} name link{number}\n"
                for host, device in zip(hosts, devices, strict=True)
            ),
        )

    def _set_up_end(self, host: Host, own_address: str, end: End, peer: Host) -> None:
        """Give a host its address on a link, and the route to the other host."""
        device = end.device
        lines = [
            f"address add {own_address} peer {end.peer_address} dev {device}",
            f"link set {device} txqueuelen {DEVICE_QUEUE_PACKETS}",
            f"link set {device} up",
            # Of several links between two hosts, the route uses the first.
            _route("append", peer.address, end, host),
        ]
        run_ip("-netns", host.namespace, "-batch", "-", lines="\n".join(lines))

    def _running(self) -> _Forwarder:
        if self._forwarder is None:
            raise NetemError("the network is not up: enter its context first")
        return self._forwarder


class _Forwarder:
    """The forwarder's process and the requests to it."""

    def __init__(self, prefix: str) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-m", "penstock.netem.links.forwarder", prefix],
                env=os.environ | {"PYTHONPATH": str(FOLDER)},
                stdin=theirs.fileno(),
            )
        self.pid = self._process.pid

    def ask(self, request: Request) -> Answer:
        """Return the answer to a request.

        Raises:
            NetemError: the request failed.
            RunError: the forwarder has ended.
        """
        try:
            self._connection.send(request)
            answer: Answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise RunError("the forwarder has ended") from error
        if answer.error is not None:
            raise NetemError(answer.error)
        return answer

    def check(self) -> None:
        """Check that it runs.

        Raises:
            RunError: it has ended; its errors are on standard error.
        """
        status = self._process.poll()
        if status is not None:
            raise RunError(f"the forwarder has ended with status {status}")

    def close(self) -> None:
        """End it, or kill it if it does not end; packets under way are lost."""
        self._connection.close()
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _set_up_namespace(namespace: str) -> None:
    # A process sees its namespace's own settings under /proc/sys/net.
    settings = {
        # No neighbour discovery among the packets that are counted.
        "net/ipv6/conf/all/disable_ipv6": "1",
        "net/ipv6/conf/default/disable_ipv6": "1",
        # If two paths have the same length, the two directions may take different paths.
        "net/ipv4/conf/all/rp_filter": "0",
        "net/ipv4/conf/default/rp_filter": "0",
        # A connection does not start with cached metrics of an earlier connection.
        "net/ipv4/tcp_no_metrics_save": "1",
    }
    lines = [
        f"! [ -e /proc/sys/{key} ] || echo {value} > /proc/sys/{key}"
        for key, value in settings.items()
    ]
    run_ip("netns", "exec", namespace, "sh", "-ec", "\n".join(lines))


def _route(verb: str, destination: str, end: End, host: Host) -> str:
    """Return the command for a route by a link, with the host's own address as the source."""
    way = f"via {end.peer_address} dev {end.device} src {host.address}"
    if end.congestion_control is not None:
        way += f" congctl {end.congestion_control}"
    return f"route {verb} {destination} {way}\n"


def _dotted(address: int) -> str:
    return ".".join(str(byte) for byte in address.to_bytes(4, "big"))
