from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from benchmarks.fabric.machines import Machines
from tests.helpers.networks import NEEDS_ROOT

pytestmark = NEEDS_ROOT


def reaches(machines: Machines, name: str, seconds: float) -> bool:
    """Say whether a listener of a machine is reached from the machine `a` in time."""
    try:
        machines.call("a", lambda: socket.create_connection((machines.address(name), 9), seconds))
    except TimeoutError:
        return False
    return True


def test_a_machine_that_is_cut_off_is_reached_again() -> None:
    """By all others, which are told nothing meanwhile."""
    with Machines(["a", "b", "c"]) as machines:
        listeners = [
            machines.call(name, lambda: socket.create_server(("", 9))) for name in ("b", "c")
        ]
        assert reaches(machines, "b", 60)
        machines.cut("b")
        assert not reaches(machines, "b", 0.2)
        assert reaches(machines, "c", 60)
        machines.join("b")
        assert reaches(machines, "b", 60)
        for listener in listeners:
            listener.close()


def test_threads_of_a_thread_are_on_its_machine_and_nothing_is_left() -> None:
    """Its process stays where it was; what a function raises is raised."""
    own = Path("/proc/self/ns/net").readlink()

    def namespace() -> Path:
        return Path("/proc/thread-self/ns/net").readlink()

    def of_a_thread() -> Path:
        found: list[Path] = []
        thread = threading.Thread(target=lambda: found.append(namespace()))
        thread.start()
        thread.join()
        return found[0]

    with Machines(["a"]) as machines:
        assert machines.call("a", namespace) == machines.call("a", of_a_thread) != own
        with pytest.raises(ZeroDivisionError):
            machines.call("a", lambda: 1 // 0)
        place = Path("/run/netns") / machines.namespace("a")
        assert place.exists()
    assert namespace() == own
    assert not place.exists()
