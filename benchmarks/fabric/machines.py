"""Machines on one switch: network namespaces with one interface each, which can be disconnected.

The switch is a bridge in a namespace of its own, so that nothing is changed outside. It adds no
delay; `penstock.netem` has links that do.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final, Self, TypeVar

from penstock.netem.errors import NetemError
from penstock.netem.links.namespaces import (
    FOLDER,
    own_prefix,
    remove_leftovers,
    remove_namespaces,
    require_root,
    run_ip,
)

T = TypeVar("T")

CLONE_NEWNET: Final = 0x40000000
"""The flag of `setns` for a network namespace (sched.h)."""
FIRST_ADDRESS: Final = "10.213.0."
"""The address of the first machine; nothing outside the namespaces sees it."""

_numbers: Final = itertools.count()


class Machines:
    """The machines, which exist within the ``with`` block."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._prefix = f"{own_prefix()}fabric{next(_numbers)}-"
        self._switch = f"{self._prefix}@switch"  # no machine can have this name
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Make them.

        Raises:
            NetemError: networks cannot be made here; the text says why.
        """
        require_root()
        remove_leftovers()
        self._stack.callback(remove_namespaces, self._prefix)
        try:
            run_ip("netns", "add", self._switch)
            run_ip("-netns", self._switch, "link", "add", "switch", "type", "bridge")
            run_ip("-netns", self._switch, "link", "set", "switch", "up")
            for name in self.names:
                self._add(name)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End what runs on them, and remove them."""
        self._stack.close()

    def _add(self, name: str) -> None:
        namespace, port = self.namespace(name), self._port(name)
        run_ip("netns", "add", namespace)
        new = ("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        run_ip("-netns", self._switch, *new)
        run_ip("-netns", self._switch, "link", "set", port, "master", "switch", "up")
        lines = f"link set lo up\naddress add {self.address(name)}/24 dev eth0\nlink set eth0 up\n"
        run_ip("-netns", namespace, "-batch", "-", lines=lines)

    def namespace(self, name: str) -> str:
        """Return the name of a machine's namespace, as for ``ip netns exec``."""
        return self._prefix + name

    def _port(self, name: str) -> str:
        return f"port{self.names.index(name)}"

    def address(self, name: str) -> str:
        """Return the IPv4 address of a machine."""
        return f"{FIRST_ADDRESS}{self.names.index(name) + 1}"

    def command(self, name: str, words: Sequence[str]) -> list[str]:
        """Return the command that runs another one on a machine; it keeps its process id."""
        return ["ip", "netns", "exec", self.namespace(name), *words]

    def cut(self, name: str) -> None:
        """Cut a machine off from all others: packets are lost, and nothing is told."""
        run_ip("-netns", self._switch, "link", "set", self._port(name), "down")

    def join(self, name: str) -> None:
        """End that."""
        run_ip("-netns", self._switch, "link", "set", self._port(name), "up")

    def thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        """Start a thread on a machine; threads that it starts are there, too."""

        def run() -> None:
            self._enter(name)
            work()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def call(self, name: str, work: Callable[[], T]) -> T:
        """Return what a function returns on a machine, or raise what it raises."""
        found: list[T] = []
        raised: list[BaseException] = []

        def run() -> None:
            try:
                found.append(work())
            except BaseException as error:  # noqa: BLE001 (the caller gets it)
                raised.append(error)

        self.thread(name, run).join()
        if raised:
            raise raised[0]
        return found[0]

    def _enter(self, name: str) -> None:
        """Move the calling thread, and sockets that it makes, to a machine."""
        descriptor = os.open(FOLDER / self.namespace(name), os.O_RDONLY)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(descriptor, CLONE_NEWNET) != 0:
                raise NetemError(f"setns: {os.strerror(ctypes.get_errno())}")
        finally:
            os.close(descriptor)
