from __future__ import annotations

import pytest

from penstock.plugins.queue.engines.clock import Boot, Clocks, EngineClock, read_boot
from tests.helpers.clock import Clock


class Machine:
    """A machine whose clocks a test sets.

    Attributes:
        monotonic: its monotonic clock.
        wall: its wall clock.
        since_boot: seconds since its start.
        boot_id: of this start.
    """

    def __init__(self) -> None:
        self.monotonic = Clock()
        self.wall = Clock(1.7e9)
        self.since_boot = 50.0
        self.boot_id = "first"

    def clock(self, stored: str = "", at_least: float = 0.0) -> EngineClock:
        """Return the clock of a new run."""
        clocks = Clocks(self.monotonic, self.wall, lambda: Boot(self.boot_id, self.since_boot))
        return EngineClock(clocks, stored, at_least)


def test_it_begins_at_zero_and_goes_with_monotonic_time() -> None:
    """Whatever wall time does."""
    machine = Machine()
    clock = machine.clock()
    assert clock() == 0.0
    machine.monotonic.now += 7
    machine.wall.now -= 1e9
    assert clock() == 7.0
    assert clock.epoch == pytest.approx(0.7e9 - 1007)


def test_time_between_two_runs_counts_while_the_machine_is_on() -> None:
    """Suspension included, which monotonic time may leave out."""
    machine = Machine()
    first = machine.clock()
    machine.monotonic.now += 100
    machine.since_boot += 100
    stored = first.stored_text()
    machine.since_boot += 30
    machine.monotonic.now += 1
    assert machine.clock(stored)() == pytest.approx(130)


def test_time_with_the_machine_off_does_not_count() -> None:
    """Nobody knows how long it was."""
    machine = Machine()
    machine.monotonic.now += 100
    stored = machine.clock().stored_text()
    machine.boot_id, machine.since_boot, machine.monotonic.now = "second", 3.0, 2.0
    assert machine.clock(stored)() == pytest.approx(0.0)
    machine.boot_id = ""
    assert machine.clock("40.0 99.0 ")() == pytest.approx(40.0)


def test_it_never_goes_back() -> None:
    """Behind what is stored, or behind a message."""
    machine = Machine()
    assert machine.clock("40.0 99.0 first")() == pytest.approx(40.0)
    assert machine.clock("40.0 50.0 first", at_least=60.0)() == pytest.approx(60.0)


def test_the_machine_s_boot_is_read() -> None:
    """Twice the same identifier, and time goes on."""
    first, second = read_boot(), read_boot()
    assert first.boot_id == second.boot_id
    assert first.seconds <= second.seconds
