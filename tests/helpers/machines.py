"""The machines of a cluster as network namespaces, whose cables can be cut."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, TypeAlias

from penstock.netem.links.namespaces import (
    enter,
    own_prefix,
    remove_leftovers,
    remove_namespaces,
    run_ip,
)

Cable: TypeAlias = Literal["clients", "engine"]

_HOSTS: Final[dict[Cable, int]] = {"clients": 1, "engine": 5}
"""The address of each cable's end at the hub, behind 198.18.MACHINE; that of its other end follows.
Addresses are RFC 2544's, as those of `penstock.netem.links.network`."""
_NOBODY: Final = "02:00:00:00:00:01"


class Machines:
    """Machines, each with a cable to the clients and one to the other servers of the engine.

    Both cables lead to the hub, which is a machine as well, and has the clients. What is sent into
    a cable that is cut is gone without a word, at both ends.

    Attributes:
        doors: the address of each machine for clients.
        addresses: the address of each for the engine's servers.
    """

    def __init__(self, hub: str, *names: str) -> None:
        self._hub = hub
        self._numbers = {name: number for number, name in enumerate(names, 1)}
        self._prefix = f"{own_prefix()}cluster-"
        self.doors = {hub: "198.18.0.1"}
        self.addresses = {hub: "198.18.0.1"}
        for name, number in self._numbers.items():
            self.doors[name] = f"198.18.{number}.{_HOSTS['clients'] + 1}"
            self.addresses[name] = f"198.18.{number}.{_HOSTS['engine'] + 1}"

    def wrapper(self, name: str) -> list[str]:
        """Return the command that runs another one on a machine."""
        return ["ip", "netns", "exec", self._prefix + name]

    def _ip(self, name: str, words: str) -> None:
        run_ip("-n", self._prefix + name, *words.split())

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Make the machines for a block, in which this thread, and those it starts, is the hub's.

        Raises:
            NetemError: they cannot be made.
        """
        remove_leftovers()
        try:
            for name in self.addresses:
                run_ip("netns", "add", self._prefix + name)
                self._ip(name, "link set lo up")
            self._ip(self._hub, f"addr add {self.addresses[self._hub]}/32 dev lo")
            for name, number in self._numbers.items():
                for cable, host in _HOSTS.items():
                    end = f"{cable}{number}"
                    peer = f"{cable} netns {self._prefix + name}"
                    self._ip(self._hub, f"link add {end} type veth peer name {peer}")
                    self._ip(self._hub, f"addr add 198.18.{number}.{host}/30 dev {end}")
                    self._ip(self._hub, f"link set {end} up")
                    self._ip(name, f"addr add 198.18.{number}.{host + 1}/30 dev {cable}")
                    self._ip(name, f"link set {cable} up")
                self._ip(name, f"route add default via 198.18.{number}.{_HOSTS['engine']}")
            enter(self._prefix + self._hub)
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
            yield
        finally:
            remove_namespaces(self._prefix)

    def cut(self, name: str, *cables: Cable) -> None:
        """Cut cables of a machine: each end sends to a card that is not there."""
        self._change(name, cables, f"neigh replace {{}} dev {{}} lladdr {_NOBODY} nud permanent")

    def join(self, name: str, *cables: Cable) -> None:
        """Mend cables of a machine."""
        self._change(name, cables, "neigh del {} dev {}")

    def _change(self, name: str, cables: tuple[Cable, ...], words: str) -> None:
        number = self._numbers[name]
        for cable in cables:
            host = _HOSTS[cable]
            self._ip(self._hub, words.format(f"198.18.{number}.{host + 1}", f"{cable}{number}"))
            self._ip(name, words.format(f"198.18.{number}.{host}", cable))
