from __future__ import annotations

import pytest

from penstock.broker.durable.storage_clock import Boot, Clocks, StorageClock, read_boot
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

    def clock(self, stored: str = "", at_least: float = 0.0, **options: bool) -> StorageClock:
        """Return the clock of a new run."""
        clocks = Clocks(self.monotonic, self.wall, lambda: Boot(self.boot_id, self.since_boot))
        return StorageClock(clocks, stored, at_least, **options)

    def passes(self, seconds: float) -> None:
        """Let time pass while the machine runs."""
        self.monotonic.now += seconds
        self.wall.now += seconds
        self.since_boot += seconds

    def restarts(self, off_seconds: float) -> None:
        """Be off, and start again."""
        self.boot_id, self.since_boot, self.monotonic.now = f"{self.boot_id}+", 1.0, 5.0
        self.wall.now += off_seconds


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
    assert machine.clock("40.0 99.0  0.0 0.0")() == pytest.approx(40.0)


def test_it_never_goes_back() -> None:
    """Behind what is stored, or behind a message."""
    machine = Machine()
    assert machine.clock("40.0 99.0 first 0.0 0.0")() == pytest.approx(40.0)
    assert machine.clock("40.0 50.0 first 0.0 0.0", at_least=60.0)() == pytest.approx(60.0)


def test_away_is_the_time_between_runs() -> None:
    """The clock adds the times between all runs, and stands still while one runs."""
    machine = Machine()
    clock = machine.clock()
    for away in (30.0, 60.0):
        machine.passes(10)
        stored = clock.stored_text()
        machine.passes(30)
        clock = machine.clock(stored)
        machine.passes(5)
        assert clock.away == pytest.approx(away)
    assert clock() == pytest.approx(10 + 30 + 5 + 10 + 30 + 5)
    assert machine.clock(clock.stored_text(), at_least=clock() + 7).away == pytest.approx(60)


@pytest.mark.parametrize(
    ("before", "step", "passed"),
    [(1.8e9, 3600.0, 3600.0), (1.8e9, -3600.0, 0.0), (0.0, 1.8e9, 0.0)],
    ids=["right", "set back", "without a battery"],
)
def test_the_wall_clock_may_tell_for_how_long_the_machine_was_off(
    before: float, step: float, passed: float
) -> None:
    """As far as it can be true; all of that is time away."""
    machine = Machine()
    machine.wall.now = before
    clock = machine.clock()
    machine.passes(10)
    stored = clock.stored_text()
    machine.restarts(step)
    assert machine.clock(stored)() == pytest.approx(10)
    counted = machine.clock(stored, is_off_counted=True)
    assert counted() == pytest.approx(10 + passed)
    assert counted.away == pytest.approx(passed)


def test_the_machine_s_boot_is_read() -> None:
    """Twice the same identifier, and time goes on."""
    first, second = read_boot(), read_boot()
    assert first.boot_id == second.boot_id
    assert first.seconds <= second.seconds
