"""A link made by the kernel's traffic control: veth pairs and their queueing disciplines.

::

    server  link0 ─ s0 ⇄ d0 ─ u0 ⇄ c0 ─ link0  client
            host     ╰─ wires' namespace ─╯     host

``─`` joins the two ends of a pair. ``⇄`` forwards packets from one device to the other by mirred
actions at the ingress: the wires' namespace has no addresses and routes nothing. Upstream packets
go from the client to c0, out of u0 (the rate's queue), to d0, and out of s0 (netem) to the server.
Downstream packets take the reverse path, out of d0 and c0.

The queue is not on the host's own device: a socket counts packets that wait there as unsent (TCP
small queues) and sends less, as with a slow network card and unlike with a slow link far away. A
mirrored packet is a clone, which no socket owns. The original is dropped in the wires' namespace,
because it is addressed to a device other than the one at which it arrived.

One processor handles the packets of a link, which keeps their order: by default a veth device hands
each packet to the processor that sent it, and packets of two processors overtake each other.
"""

from __future__ import annotations

import os
from typing import Final

from penstock.netem.errors import NetemError
from penstock.netem.links.channel import Counts
from penstock.netem.links.engines import instead_of_tc
from penstock.netem.links.namespaces import run_ip, run_tool
from penstock.netem.links.profiles import Direction, Profile
from penstock.netem.links.schedule import Schedule
from penstock.netem.links.tc_commands import (
    count,
    impairment_words,
    needs_netem,
    rate_words,
    read_shown,
)

MAX_PROCESSORS: Final = 32
"""Processors in one group of a processor mask."""

ALL_IP: Final = "protocol ip u32 match u32 0 0"
PROBES: Final = {
    "sch_netem": "qdisc replace dev lo root netem",
    "sch_tbf": f"qdisc replace dev lo {' '.join(rate_words(Direction()))}",
    "sch_ingress": "qdisc add dev lo ingress",
    "cls_u32": f"filter add dev lo ingress {ALL_IP} classid 1:1",
    "act_mirred": f"filter add dev lo ingress {ALL_IP} action mirred egress mirror dev lo",
}
"""Kernel module to a command of tc that fails without it."""


def run_tc(namespace: str, *arguments: str, lines: str | None = None) -> str:
    """Run `tc` in a named namespace, as `run_tool`."""
    return run_tool("tc", "-netns", namespace, *arguments, lines=lines)


class Wires:
    """The namespace that holds the links of a network, and the capabilities of the kernel.

    Attributes:
        namespace: its name.
    """

    def __init__(self, namespace: str) -> None:
        """Find out what the kernel supports.

        Raises:
            NetemError: the kernel lacks a module that every link needs; the text names it.
        """
        self.namespace = namespace
        self._missing: dict[str, str] = {}
        for module, probe in PROBES.items():
            try:
                run_tc(namespace, *probe.split())
            except NetemError as error:
                self._missing[module] = str(error).rpartition("Error: ")[2].splitlines()[0]
        for module in self._missing:
            if module != "sch_netem":
                raise self._lack(module)

    @property
    def has_netem(self) -> bool:
        """Whether links may do more than limit the rate."""
        return "sch_netem" not in self._missing

    def check(self, profile: Profile) -> None:
        """Check that links can have a profile.

        Raises:
            NetemError: the kernel lacks something, or tc cannot express a value.
        """
        for direction in (profile.upstream, profile.downstream):
            rate_words(direction)
            impairment_words(direction)
            if needs_netem(direction) and not self.has_netem:
                raise self._lack("sch_netem", f"profile {profile.name!r}: ")

    def _lack(self, module: str, place: str = "") -> NetemError:
        return NetemError(
            f"{place}tc: this kernel has no {module} ({self._missing[module]}); {instead_of_tc()}"
        )


class TcLink:
    """A link between two hosts.

    Attributes:
        schedule: when it changes.
    """

    def __init__(
        self, number: int, wires: Wires, hosts: tuple[str, str], profile: Profile, now: float
    ) -> None:
        """Make the devices; those in the hosts are called ``link`` and the number, and are down.

        Args:
            number: unique in the network.
            wires: namespace of the link.
            hosts: namespaces of the server and the client.
            profile: the profile at the beginning.
            now: monotonic seconds.

        Raises:
            NetemError: the kernel cannot make the link.
        """
        wires.check(profile)
        self._wires = wires
        self._server, self._client = f"s{number}", f"c{number}"
        self._upstream, self._downstream = f"u{number}", f"d{number}"
        self._make_devices(f"link{number}", hosts)
        self._set_up(profile, "add")
        self._join()
        self.schedule = Schedule(profile, self._become, now)

    def check(self, profile: Profile) -> None:
        """Check that the link can change to a profile.

        Raises:
            NetemError: the kernel lacks something, or tc cannot express a value.
        """
        self._wires.check(profile)

    def counts(self) -> tuple[Counts, Counts]:
        """Return the packets by outcome: towards the server, and towards the client."""
        # The second discipline is read before the first, so that no packet is counted twice.
        devices = [self._upstream, self._downstream]
        if self._wires.has_netem:
            devices = [self._server, self._client, *devices]
        lines = "".join(f"qdisc show dev {device}\n" for device in devices)
        shown = read_shown(run_tc(self._wires.namespace, "-s", "-j", "-batch", "-", lines=lines))
        upstream, downstream = shown[-2:]
        impaired = shown[:2] if self._wires.has_netem else [None, None]
        return count(upstream, impaired[0]), count(downstream, impaired[1])

    def _make_devices(self, device: str, hosts: tuple[str, str]) -> None:
        wires = self._wires.namespace
        inside = (self._server, self._client, self._upstream, self._downstream)
        lines = [
            f"link add {end} type veth peer name {device} netns {host}"
            for end, host in zip(inside, hosts, strict=False)
        ]
        lines.append(f"link add {self._upstream} type veth peer name {self._downstream}")
        lines += [f"link set {end} up" for end in inside]
        run_ip("-netns", wires, "-batch", "-", lines="\n".join(lines) + "\n")
        mask = self._processor_mask(int(device.removeprefix("link")))
        for namespace, names in ((wires, inside), *((host, (device,)) for host in hosts)):
            files = [f"/sys/class/net/{name}/queues/rx-0/rps_cpus" for name in names]
            # A kernel without receive packet steering has one processor.
            text = "".join(f"! [ -e {file} ] || echo {mask} > {file}\n" for file in files)
            run_ip("netns", "exec", namespace, "sh", "-ec", text)

    @staticmethod
    def _processor_mask(number: int) -> str:
        """Return the mask of one usable processor; links take processors in turn."""
        usable = [each for each in sorted(os.sched_getaffinity(0)) if each < MAX_PROCESSORS] or [0]
        return f"{1 << usable[number % len(usable)]:x}"

    def _join(self) -> None:
        """Forward packets between devices."""
        lines = []
        for come_in, what, go_out in (
            (self._client, "mirror", self._upstream),
            (self._downstream, "redirect", self._server),
            (self._server, "mirror", self._downstream),
            (self._upstream, "redirect", self._client),
        ):
            lines.append(f"qdisc add dev {come_in} ingress")
            action = f"action mirred egress {what} dev {go_out}"
            lines.append(f"filter add dev {come_in} ingress {ALL_IP} {action}")
        run_tc(self._wires.namespace, "-batch", "-", lines="\n".join(lines) + "\n")

    def _become(self, profile: Profile, _now: float) -> None:
        self._set_up(profile, "change")

    def _set_up(self, profile: Profile, verb: str) -> None:
        """Add or change the queueing disciplines; packets in them stay."""
        commands = []
        for direction, rate, impairment in (
            (profile.upstream, self._upstream, self._server),
            (profile.downstream, self._downstream, self._client),
        ):
            commands.append(f"qdisc {verb} dev {rate} {' '.join(rate_words(direction))}\n")
            if self._wires.has_netem:
                words = " ".join(impairment_words(direction))
                commands.append(f"qdisc {verb} dev {impairment} {words}\n")
        run_tc(self._wires.namespace, "-batch", "-", lines="".join(commands))
