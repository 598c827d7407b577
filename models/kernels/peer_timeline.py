"""The timeline of a peer: when it is on, and how long a server has worked by then."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.models.kernels.closed_forms import OnOff

Times: TypeAlias = NDArray[np.float64]
"""Times in seconds, of shape ``(n,)``."""


class Timeline:
    """The intervals in which a peer is on, ascending and disjoint.

    The last interval has no end, so that all waiting messages are served.

    Attributes:
        starts: the starts of the intervals, seconds.
        ends: the ends of the intervals, seconds; the last is infinite.
    """

    def __init__(self, starts: Times, ends: Times) -> None:
        self.starts = starts
        self.ends = ends
        lengths = ends[:-1] - starts[:-1]
        self._worked = np.concatenate(([0.0], np.cumsum(lengths)))

    @classmethod
    def draw(cls, peer: OnOff, horizon: float, rng: np.random.Generator) -> Timeline:
        """Draw a peer's times on and off.

        Args:
            peer: the mean times of the peer; at time 0 it is in its steady state.
            horizon: the time in seconds after which the peer stays on as soon as it is on.
            rng: the source of random values.
        """
        is_on = rng.random() < peer.on_ratio
        n_cycles = int(horizon / (peer.on_seconds + peer.off_seconds) * 1.2) + 50
        lengths = rng.exponential((peer.on_seconds, peer.off_seconds), (n_cycles, 2)).ravel()
        if not is_on:
            lengths = lengths[1:]
        bounds = np.concatenate(([0.0], np.cumsum(lengths)))
        first_on = 0 if is_on else 1
        starts, ends = bounds[first_on::2], bounds[first_on + 1 :: 2]
        last = min(int(np.searchsorted(starts, horizon)), len(ends) - 1)
        ends = ends[: last + 1].copy()
        ends[-1] = math.inf
        return cls(starts[: last + 1], ends)

    @classmethod
    def together(cls, timelines: Sequence[Timeline]) -> Timeline:
        """Return when all of several are on; one at least."""
        if len(timelines) == 1:
            return timelines[0]
        starts = np.concatenate([each.starts for each in timelines])
        ends = np.concatenate([each.ends for each in timelines])
        times = np.concatenate((starts, ends))
        steps = np.concatenate((np.ones(len(starts)), -np.ones(len(ends))))
        order = np.argsort(times, kind="stable")
        times = times[order]
        begins = np.flatnonzero(np.cumsum(steps[order]) == len(timelines))
        return cls(times[begins], times[begins + 1])

    def worked(self, times: Times) -> Times:
        """Return how long it has been on by each time, seconds."""
        last = np.searchsorted(self.starts, times, side="right") - 1
        inside = np.minimum(times, self.ends[last]) - self.starts[last]
        return np.where(last < 0, 0.0, self._worked[last] + inside)

    def when(self, worked: Times) -> Times:
        """Return the time at which it has been on for so long; `worked` turned round."""
        last = np.maximum(np.searchsorted(self._worked, worked, side="left") - 1, 0)
        return self.starts[last] + (worked - self._worked[last])

    def is_on(self, times: Times) -> NDArray[np.bool_]:
        """Say of each time whether it is on."""
        last = np.searchsorted(self.starts, times, side="right") - 1
        return (last >= 0) & (times < self.ends[last])
