"""The schedule of the slow link and of the published messages. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final

TICK_SECONDS: Final = 0.5
"""The time between two looks at the machine, each of some thirty small messages."""

PICTURE_SECONDS: Final = 2.5
"""The time between two pictures."""

PICTURE_BEFORE_SECONDS: Final = 1.0
PICTURE_AFTER_SECONDS: Final = 1.2
"""The time before and after the link turns bad in which no picture is published. A picture whose
transmission has begun cannot be overtaken: the result of one that is under way at the change, or
that leaves before any message has met the bad link, would be chance alone."""

GOOD_SHARE: Final = 0.3
"""The share of the time for which the link is good, before and after the bad time."""

MIN_SECONDS: Final = 10.0
"""The least length of a demo: with a shorter one, the bad time would be over before a picture
delayed other messages."""

MAX_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """The schedule of a demo: when the link is bad."""

    seconds: float

    @property
    def bad_from(self) -> float:
        """Seconds after the start at which the link turns bad."""
        return GOOD_SHARE * self.seconds

    @property
    def bad_until(self) -> float:
        """Seconds after the start at which it is good again."""
        return (1 - GOOD_SHARE) * self.seconds

    def ticks(self) -> Iterator[float]:
        """Yield the seconds after the start at which to look at the machine."""
        return (number * TICK_SECONDS for number in count())

    def picture_slots(self) -> Iterator[float]:
        """Yield the seconds after the start at which a picture may be published."""
        anchor = self.bad_from + PICTURE_AFTER_SECONDS
        return (anchor % PICTURE_SECONDS + number * PICTURE_SECONDS for number in count())

    def is_time_for_picture(self, elapsed: float, turned_bad: float | None) -> bool:
        """Say whether a picture may be published, also where the program is late."""
        if turned_bad is None:
            return elapsed < self.bad_from - PICTURE_BEFORE_SECONDS
        return elapsed >= turned_bad + PICTURE_AFTER_SECONDS

    def profile(self, elapsed: float) -> str:
        """Return the name of the link's profile after so many seconds."""
        return "bad" if self.bad_from <= elapsed < self.bad_until else "good"
