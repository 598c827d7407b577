"""The schedule of a link: its planned and past changes. Pure: the caller has the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import Final, TypeAlias

from penstock.netem.links.profiles import Profile

MAX_LOG: Final = 100_000
"""The most changes of one link that are kept; the newest are kept."""

Steps: TypeAlias = Iterator[tuple[float, Profile]]
Become: TypeAlias = Callable[[Profile, float], None]
"""A function that changes a link; its arguments are the new profile and the time in monotonic
seconds."""


class Schedule:
    """The changes of one link.

    Attributes:
        log: (monotonic seconds, name of the profile) of each change, oldest first.
        plan: the number of calls of `follow` and `switch`; a timer of an older plan is void.
    """

    def __init__(self, profile: Profile, become: Become, now: float) -> None:
        """Make a schedule without a plan."""
        self.log = [(now, profile.name)]
        self.plan = 0
        self._become = become
        self._steps: Steps = iter(())
        self._begin_at = 0.0
        self._next: tuple[float, Profile] | None = None

    def switch(self, profile: Profile, now: float) -> None:
        """Change to a profile and drop the plan."""
        self.plan += 1
        self._next = None
        self._become(profile, now)
        self._note(profile, now)

    def follow(self, steps: Steps, begin_at: float) -> None:
        """Follow a plan whose times count from `begin_at`; the caller must call `step` next."""
        self.plan += 1
        self._steps, self._begin_at = steps, begin_at
        self._next = next(steps, None)

    def step(self, now: float) -> float:
        """Apply the changes that are due; return the time of the next one, infinite for none.

        If several are due, all are logged and the link changes to the last: nothing could pass
        during the others.
        """
        due = None
        while self._next is not None and self._begin_at + self._next[0] <= now:
            due = self._next[1]
            self._note(due, now)
            self._next = next(self._steps, None)
        if due is not None:
            self._become(due, now)
        return inf if self._next is None else self._begin_at + self._next[0]

    def _note(self, profile: Profile, now: float) -> None:
        self.log.append((now, profile.name))
        del self.log[:-MAX_LOG]
