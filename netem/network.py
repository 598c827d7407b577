"""Networks of this machine's own: hosts with real TCP, and links that delay, lose and limit.

::

    with Network(seed=1) as network:
        cloud, edge = network.host("cloud"), network.host("edge")
        link = network.link(cloud, edge, GOOD)
        broker = cloud.popen(["mosquitto", "-c", "mosquitto.conf"])
        client = edge.popen(["mosquitto_sub", "-h", link.server_address, "-t", "#"])
        link.switch(LOSSY)

A host is a network namespace: processes in it see its devices, addresses and ports alone. A link
is a TUN device in either host, and a forwarder in user space between them (`netem.forwarder`):
it needs root and /dev/net/tun, and nothing that a kernel may have been built without.

A program may choose the congestion control of a socket itself (TCP_CONGESTION); a host has one
for all others.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, Self

from netem.changes import Changes
from netem.channel import Counts
from netem.congestion_control import set_congestion_control
from netem.errors import NetemError
from netem.messages import ANSWER, REQUEST, Add, Answer, Follow, Switch, Tell
from netem.namespaces import (
    own_prefix,
    remove_leftovers,
    remove_namespaces,
    require_root,
    run_ip,
)
from netem.profiles import Profile

DEFAULT_CONGESTION_CONTROL: Final = "cubic"
"""Linux's own default, whatever this machine's is: runs can be compared."""

DEVICE_QUEUE_PACKETS: Final = 2_000
"""What a host may have given to a device that the forwarder has not taken yet: a TUN device does
not hold a sender up as a wire would, it drops; this is a full window of fast TCP."""

STOP_SECONDS: Final = 5.0
"""What a process gets to end after SIGTERM."""

FOLDER: Final = Path(__file__).resolve().parent.parent
"""Where the package is: the forwarder runs the same."""

_networks: Final = itertools.count()
_devices: Final = itertools.count()


class Host:
    """A host of a network; made by `Network.host`.

    Attributes:
        name: as it was given.
        namespace: name of its network namespace, as for ``ip netns exec``.
    """

    def __init__(self, name: str, namespace: str) -> None:
        self.name = name
        self.namespace = namespace
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

        It is sent SIGTERM at the end of the network if it still runs then, and killed soon after.

        Args:
            command: program and arguments.
            cwd: its working directory; None for this process's.
            env: its environment; None for this process's.
            stdin: as for `subprocess.Popen`; nothing by default.
            stdout: as for `subprocess.Popen`.
            stderr: as for `subprocess.Popen`.
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
        """Run a short command on this host and return what it printed.

        Raises:
            NetemError: it failed; the text holds its words.
        """
        return run_ip("netns", "exec", self.namespace, *command)

    def end_processes(self) -> None:
        """End what `popen` has started."""
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
        server_address: IPv4 address of the first host on it.
        client_address: that of the second.
    """

    def __init__(
        self, number: int, server_address: str, client_address: str, forwarder: _Forwarder
    ) -> None:
        self.server_address = server_address
        self.client_address = client_address
        self._number = number
        self._forwarder = forwarder

    def switch(self, profile: Profile) -> None:
        """Become another link now, and stay so; what is under way keeps its time of arrival."""
        self._forwarder.ask(Switch(self._number, profile))

    def follow(self, changes: Changes, begin_at: float | None = None) -> None:
        """Change as a plan says, from now on.

        Args:
            changes: what and when.
            begin_at: `time.monotonic` of the plan's beginning, for links that are to change
                together; None for now.
        """
        at = time.monotonic() if begin_at is None else begin_at
        self._forwarder.ask(Follow(self._number, changes, at))

    def log(self) -> list[tuple[float, str]]:
        """Return `time.monotonic` and the profile's name for each change, the first included."""
        return self._forwarder.ask(Tell(self._number)).log

    def counts(self) -> tuple[Counts, Counts]:
        """Return what became of the packets: towards the server, and towards the client."""
        answer = self._forwarder.ask(Tell(self._number))
        return answer.upstream or Counts(), answer.downstream or Counts()


class Network:
    """Hosts and links, as long as the context lasts.

    When it ends, by whatever way, its processes, devices and namespaces end with it: if this
    process was killed, the forwarder sees to that, and if that was killed too, whoever next makes
    a network on this machine.
    """

    def __init__(
        self, *, seed: int = 0, congestion_control: str = DEFAULT_CONGESTION_CONTROL
    ) -> None:
        """Make a description; nothing happens before the context is entered.

        Args:
            seed: of the links' chance: which packets are lost, and how late they are.
            congestion_control: of hosts that name no other.
        """
        self._seed = seed
        self._congestion_control = congestion_control
        self._prefix = f"{own_prefix()}{next(_networks)}-"
        self._hosts: dict[str, Host] = {}
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
            remove_namespaces(self._prefix)
            if self._forwarder is not None:
                self._forwarder.close()

    @property
    def forwarder_pid(self) -> int:
        """Process id of the forwarder: what a measurement of processor time asks for."""
        return self._running().pid

    def host(self, name: str, *, congestion_control: str | None = None) -> Host:
        """Make a host.

        Args:
            name: of letters, digits, dots, dashes and underscores; one of a kind in the network.
            congestion_control: for TCP; None for the network's.

        Raises:
            NetemError: there is such a host, or no such congestion control.
        """
        if name in self._hosts:
            raise NetemError(f"host: read {name!r}; allowed: a name that no other host has")
        if not name or not all(each.isalnum() or each in "-_." for each in name):
            raise NetemError(f"host: read {name!r}; allowed: letters, digits, '.', '-' and '_'")
        self._running()
        namespace = self._prefix + name
        run_ip("netns", "add", namespace)
        host = self._hosts[name] = Host(name, namespace)
        run_ip("-netns", namespace, "link", "set", "lo", "up")
        self._set_up_tcp(host, congestion_control or self._congestion_control)
        return host

    def link(self, server: Host, client: Host, profile: Profile) -> Link:
        """Join two hosts.

        Args:
            server: upstream is towards it.
            client: downstream is towards it.
            profile: the link to begin with.

        Raises:
            NetemError: the devices cannot be had.
        """
        number = next(self._links)
        forwarder = self._running()
        # Until they are moved, the devices are seen by the whole machine: 15 bytes, no two alike.
        devices = (f"pnst{os.getpid()}.{next(_devices)}", f"pnst{os.getpid()}.{next(_devices)}")
        forwarder.ask(Add(number, devices, profile, f"{self._seed} {number}"))
        # RFC 2544's addresses for tests of networks, which nobody routes: four for each link.
        base = (198 << 24) + (18 << 16) + 4 * number
        addresses = tuple(_dotted(base + n) for n in (1, 2))
        for host, device, (own, peer) in zip(
            (server, client), devices, (addresses, addresses[::-1]), strict=True
        ):
            run_ip("link", "set", device, "netns", host.namespace, "name", f"link{number}")
            run_ip(
                *("-netns", host.namespace, "-batch", "-"),
                lines=f"address add {own} peer {peer} dev link{number}\n"
                f"link set link{number} txqueuelen {DEVICE_QUEUE_PACKETS} up\n",
            )
        return Link(number, addresses[0], addresses[1], forwarder)

    def _running(self) -> _Forwarder:
        if self._forwarder is None:
            raise NetemError("the network is not up: enter its context first")
        return self._forwarder

    def _set_up_tcp(self, host: Host, congestion_control: str) -> None:
        # What a namespace's processes see under /proc/sys/net is the namespace's own.
        settings = {
            # No neighbour discovery among the packets that are counted.
            "net/ipv6/conf/all/disable_ipv6": "1",
            "net/ipv6/conf/default/disable_ipv6": "1",
            # A connection does not begin with what an earlier one has learned of the link.
            "net/ipv4/tcp_no_metrics_save": "1",
        }
        lines = [
            f"! [ -e /proc/sys/{key} ] || echo {value} > /proc/sys/{key}"
            for key, value in settings.items()
        ]
        host.run(["sh", "-ec", "\n".join(lines)])
        set_congestion_control(congestion_control, host.run)


class _Forwarder:
    """The forwarder of a network, seen from outside."""

    def __init__(self, prefix: str) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "netem.forwarder", prefix],
            env=os.environ | {"PYTHONPATH": str(FOLDER)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.pid = self._process.pid

    def ask(self, request: Add | Switch | Follow | Tell) -> Answer:
        """Return the answer to a request.

        Raises:
            NetemError: it was not done, or the forwarder has ended.
        """
        requests, answers = self._process.stdin, self._process.stdout
        if requests is None or answers is None:
            raise NetemError("the forwarder has no pipes")
        try:
            requests.write(REQUEST.dump_json(request) + b"\n")
            requests.flush()
        except OSError as error:
            raise NetemError("the forwarder has ended") from error
        line = answers.readline()
        if not line:
            raise NetemError("the forwarder has ended")
        answer = ANSWER.validate_json(line)
        if answer.error is not None:
            raise NetemError(f"{request.do}: {answer.error}")
        return answer

    def close(self) -> None:
        """End it; what is under way is lost."""
        with contextlib.suppress(OSError):
            self._process.communicate()


def _dotted(address: int) -> str:
    return ".".join(str(byte) for byte in address.to_bytes(4, "big"))
