"""Repeats work once in each period, one slice at a time.

Theory of operation. The timer of the next round is set before a slice begins. Where a further slice
follows, that slice's timer replaces it. So an exception from a slice, such as for want of a file
descriptor, ends this round but not the following ones. The exception is counted and logged.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from penstock.broker.timers import Timer, Timers


class PeriodicWork:
    """One kind of work, done in rounds of slices.

    Attributes:
        period: seconds from the start of one round to the start of the next; a change counts from
            the next round on.
    """

    def __init__(
        self,
        timers: Timers,
        work: Callable[[float], Generator[float, float, None]],
        on_error: Callable[[Exception], None],
    ) -> None:
        """Prepare the work; `start` or `begin` starts it.

        Args:
            timers: the timers of the broker.
            work: does one round from `now` on; yields after each slice but the last when the next
                one is due, and is sent the `now` of that one.
            on_error: called with an exception that it raised.
        """
        self._timers = timers
        self._work = work
        self._on_error = on_error
        self._slices: Generator[float, float, None]
        self._timer: Timer | None = None
        self.period = 0.0
        self._next_round_at = 0.0

    def start(self, at: float, period: float) -> None:
        """Schedule the first round.

        Args:
            at: monotonic seconds.
            period: seconds from the start of one round to the start of the next. A round that takes
                longer is followed by the next one at once.
        """
        self.period = period
        self._timer = self._timers.at(at, self._begin_round)

    def begin(self, now: float, period: float) -> None:
        """Do the first slice of the first round now; otherwise like `start`."""
        self.period = period
        self._begin_round(now)

    def stop(self) -> None:
        """Do no more; `start` or `begin` starts it again."""
        if self._timer is not None:
            self._timer.cancel()

    def _begin_round(self, now: float) -> None:
        self._next_round_at = now + self.period
        self._slices = self._work(now)
        self._slice(now, is_first=True)

    def _slice(self, now: float, *, is_first: bool = False) -> None:
        next_round = self._timers.at(max(now, self._next_round_at), self._begin_round)
        self._timer = next_round
        try:
            again_at = next(self._slices) if is_first else self._slices.send(now)
        except StopIteration:
            return
        except Exception as error:  # noqa: BLE001 (this round's fault must not stop the next)
            self._on_error(error)
            return
        next_round.cancel()
        self._timer = self._timers.at(again_at, self._slice)
