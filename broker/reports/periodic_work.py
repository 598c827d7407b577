"""Work that is repeated once in each period, one slice at a time.

Theory of operation. The timer of the next round is set before a slice begins. Where a further slice
follows, that slice's timer replaces it. So an exception from a slice, such as for want of a file
descriptor, ends this round but not the following ones. The exception is counted and logged.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker.timers import Timers


class PeriodicWork:
    """One kind of work, done in rounds of slices."""

    def __init__(
        self,
        timers: Timers,
        begin_round: Callable[[float], None],
        go_on: Callable[[float], float | None],
        on_error: Callable[[Exception], None],
    ) -> None:
        """Prepare the work; `start` or `begin` starts it.

        Args:
            timers: of the broker.
            begin_round: called with `now` at the start of each round, before its first slice.
            go_on: does one slice at `now`; returns when the next slice is due, or None at the end
                of the round.
            on_error: called with an exception that either of them raised.
        """
        self._timers = timers
        self._prepare = begin_round
        self._go_on = go_on
        self._on_error = on_error
        self._period = 0.0
        self._next_round_at = 0.0

    def start(self, at: float, period: float) -> None:
        """Schedule the first round.

        Args:
            at: monotonic seconds.
            period: seconds from the start of one round to the start of the next. A round that takes
                longer is followed by the next one at once.
        """
        self._period = period
        self._timers.at(at, self._begin_round)

    def begin(self, now: float, period: float) -> None:
        """Do the first slice of the first round now; otherwise like `start`."""
        self._period = period
        self._begin_round(now)

    def _begin_round(self, now: float) -> None:
        self._next_round_at = now + self._period
        self._do(self._begin_and_go_on, now)

    def _begin_and_go_on(self, now: float) -> float | None:
        self._prepare(now)
        return self._go_on(now)

    def _slice(self, now: float) -> None:
        self._do(self._go_on, now)

    def _do(self, work: Callable[[float], float | None], now: float) -> None:
        next_round = self._timers.at(max(now, self._next_round_at), self._begin_round)
        try:
            again_at = work(now)
        except Exception as error:  # noqa: BLE001 (this round's fault must not stop the next)
            self._on_error(error)
            return
        if again_at is not None:
            next_round.cancel()
            self._timers.at(again_at, self._slice)
