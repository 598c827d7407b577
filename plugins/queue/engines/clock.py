"""The engine's clock: seconds that never step.

While the program runs, they are monotonic seconds. Between two runs on a machine that was not
restarted, the time since its boot tells how long that was. After a restart of the machine the clock
goes on from where it was last stored: how long the machine was off is unknown, as its wall clock
may be wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Boot(NamedTuple):
    """A moment since the machine's start.

    Attributes:
        boot_id: another one after each start; "" where the system has none.
        seconds: since then, the time in suspension included.
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


class EngineClock:
    """Seconds of one storage's life.

    Args:
        clocks: of the machine.
        stored: text that `stored_text` returned in an earlier run; "" for none.
        at_least: seconds that were certainly reached.

    Attributes:
        shift: added to monotonic seconds to get the engine's.
    """

    def __init__(self, clocks: Clocks, stored: str = "", at_least: float = 0.0) -> None:
        self._clocks = clocks
        self.shift = max(_base(clocks.boot(), stored), at_least) - clocks.monotonic()

    def __call__(self) -> float:
        """Return the engine's seconds."""
        return self._clocks.monotonic() + self.shift

    @property
    def epoch(self) -> float:
        """Seconds to add to monotonic ones, to get those since the Unix epoch at this moment."""
        return self._clocks.wall() - self._clocks.monotonic()

    def stored_text(self) -> str:
        """Return what the next run needs to go on."""
        boot = self._clocks.boot()
        return f"{self()!r} {boot.seconds!r} {boot.boot_id}"


def _base(boot: Boot, stored: str) -> float:
    """Return the seconds at which the clock begins."""
    if not stored:
        return 0.0
    seconds, boot_seconds, boot_id = stored.split(" ", 2)
    if boot.boot_id and boot_id == boot.boot_id:
        return float(seconds) + max(0.0, boot.seconds - float(boot_seconds))
    return float(seconds)
