"""The clock of a database: seconds that never step, over all runs of the programs.

While a program runs, they are monotonic seconds. Between two runs on a machine that was not
restarted, the time since its boot tells how long that was, whatever became of the wall clock. After
a restart of the machine only the wall clock could tell, which may be wrong. A storage either goes
on from where its clock was last stored, or takes the wall clock's word where that is plausible:
time never goes back, and a clock that stood before this program was written tells nothing.

There are two kinds of deadlines. Time always counts for what a publisher has said of a message.
For what waits for a client, it does not count while the storage was closed, as nobody could come
then: `away` says how much that is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

SURELY_PAST: Final = 1_760_000_000.0
"""Seconds since the Unix epoch, in October 2025. A wall clock that is behind it is wrong."""


class Boot(NamedTuple):
    """A moment since the machine's start.

    Attributes:
        boot_id: another one after each start; "" where the system has none.
        seconds: seconds since the machine's start, the time in suspension included.
    """

    boot_id: str
    seconds: float


def read_boot() -> Boot:
    """Return this moment."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return Boot(boot_id, time.clock_gettime(time.CLOCK_BOOTTIME))
    except (OSError, AttributeError):
        return Boot("", 0.0)


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of the machine, which tests replace.

    Attributes:
        monotonic: seconds, as in `Message.arrived_at`.
        wall: seconds since the Unix epoch; may step.
        boot: the machine's start and the seconds since.
    """

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    boot: Callable[[], Boot] = read_boot


class StorageClock:
    """Seconds of one storage's life.

    Args:
        clocks: the clocks of the machine.
        stored: text that `stored_text` returned in an earlier run; "" for none.
        at_least: seconds that were certainly reached when the storage was open.
        is_off_counted: whether the time for which the machine was off counts, as far as the wall
            clock tells it.

    Attributes:
        shift: added to monotonic seconds to get the storage's.
        away: seconds of its life for which no program had it open.
    """

    def __init__(
        self,
        clocks: Clocks,
        stored: str = "",
        at_least: float = 0.0,
        *,
        is_off_counted: bool = False,
    ) -> None:
        self._clocks = clocks
        seconds, self.away = at_least, 0.0
        if stored:
            last = _Last.read(stored)
            seconds = max(last.seconds + last.passed(clocks, is_off_counted), at_least)
            self.away = last.away + seconds - max(last.seconds, at_least)
        self.shift = seconds - clocks.monotonic()

    def __call__(self) -> float:
        """Return the storage's seconds."""
        return self._clocks.monotonic() + self.shift

    @property
    def epoch(self) -> float:
        """Seconds to add to monotonic ones, to get those since the Unix epoch at this moment."""
        return self._clocks.wall() - self._clocks.monotonic()

    def stored_text(self) -> str:
        """Return what the next run needs to go on."""
        boot = self._clocks.boot()
        return f"{self()!r} {boot.seconds!r} {boot.boot_id} {self._clocks.wall()!r} {self.away!r}"


class _Last(NamedTuple):
    """The moment at which a clock was stored.

    Attributes:
        seconds: the seconds of the clock.
        boot: the moment since the machine's start.
        wall: seconds since the Unix epoch.
        away: `StorageClock.away` at that moment.
    """

    seconds: float
    boot: Boot
    wall: float
    away: float

    @classmethod
    def read(cls, stored: str) -> _Last:
        seconds, boot_seconds, boot_id, wall, away = stored.split(" ")
        return cls(float(seconds), Boot(boot_id, float(boot_seconds)), float(wall), float(away))

    def passed(self, clocks: Clocks, is_off_counted: bool) -> float:  # noqa: FBT001
        """Return the seconds since then."""
        boot = clocks.boot()
        if boot.boot_id and boot.boot_id == self.boot.boot_id:
            return max(0.0, boot.seconds - self.boot.seconds)
        if is_off_counted and self.wall >= SURELY_PAST:
            return max(0.0, clocks.wall() - self.wall)
        return 0.0
