"""Slowdown exclusion: slow physical queues get no messages (paper 001, 3.3.2.1).

The controller says which physical queue gets a message next, and learns from each answer how quick
its nodes are. A physical queue that has not answered within the *slowdown detection time* is
*excluded*: messages go to the others, without any step of failover. It drives nothing itself::

    attempt = controller.begin(now)
    send the message to attempt.target
    controller.answered(attempt, now)  # when it is stored there
    controller.failed(attempt, now)  # when it was refused, or the connection broke
    for late in controller.overdue(now):  # at next_deadline()
        again = controller.repeat(now, [late.target])  # the same message elsewhere

The paper does not say how a node comes back. Here, an excluded physical queue gets a *trial*: one
message, while all others go elsewhere. If it is answered in time, the physical queue is back. The
first trial is due when the queue has answered everything that it had been sent, or after
`trial_seconds`. Each trial without an answer doubles the time to the next one.

Nor does it say what is done when all are slow, which is too much load and not a failed node. Then
messages go where answers still come and fewest are waited for, and none is repeated: each repeat
would add to the load that makes it late.

Where the caller knows that a node cannot be reached, its physical queues are excluded at once, and
get no trials: these would wait for nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

DEFAULT_SLOWDOWN_DETECTION_TIME: Final = 0.4
"""In seconds. With less, a pause of a healthy node excludes it (paper 001, figure 11)."""
DEFAULT_TRIAL_SECONDS: Final = 1.0
"""The time from the exclusion of a node that does not answer at all to its first trial. A trial
delays one message by the slowdown detection time."""
DEFAULT_MAX_TRIAL_SECONDS: Final = 16.0
"""The longest time between two trials. A node that was away for long gets messages again within
it."""


class Attempt(Generic[T]):
    """A message that was sent to a physical queue.

    Attributes:
        is_trial: the target was excluded, and this finds out whether it still has to be.
    """

    __slots__ = ("_is_done", "_is_overdue", "is_trial", "started_at", "target")

    def __init__(self, target: T, started_at: float, *, is_trial: bool) -> None:
        self.target = target
        self.started_at = started_at
        self.is_trial = is_trial
        self._is_done = False
        self._is_overdue = False


@dataclass(slots=True)
class Exclusion(Generic[T]):
    """Why and how long a physical queue gets no messages.

    Attributes:
        trial_at: when it may be tried again.
        trial_wait: seconds between the last two trials.
        is_silent: it has not answered anything since.
    """

    since: float
    trial_at: float
    trial_wait: float
    trial: Attempt[T] | None = None
    is_silent: bool = True


@dataclass(slots=True)
class EnqueueCounts:
    """What a controller did; all only grow.

    Attributes:
        attempts: messages sent, or parts of many, trials among them.
        trials: those sent to find out whether a physical queue is quick again.
        overdue: attempts that were not answered in time.
        failed: attempts that were refused.
        exclusions: times that a physical queue was excluded.
        inclusions: times that one came back.
    """

    attempts: int = 0
    trials: int = 0
    overdue: int = 0
    failed: int = 0
    exclusions: int = 0
    inclusions: int = 0


class SlowdownExclusion(Generic[T]):
    """Chooses physical queues round robin and leaves out the slow ones.

    Invariants: each attempt that is neither answered nor failed is counted as unanswered once; an
    excluded physical queue has one trial under way at most; `begin` always has an answer.

    Args:
        targets: physical queues, each once, at least one.
        slowdown_detection_time: seconds, above 0.
        trial_seconds: the time until the first trial of a target that does not answer, above 0.
        max_trial_seconds: most between two trials, `trial_seconds` or more.
    """

    def __init__(
        self,
        targets: Sequence[T],
        slowdown_detection_time: float = DEFAULT_SLOWDOWN_DETECTION_TIME,
        trial_seconds: float = DEFAULT_TRIAL_SECONDS,
        max_trial_seconds: float = DEFAULT_MAX_TRIAL_SECONDS,
    ) -> None:
        self._detection_time = slowdown_detection_time
        self._trial_seconds = trial_seconds
        self._max_trial_seconds = max_trial_seconds
        self._targets: tuple[T, ...] = ()
        self._turn = 0
        self._excluded: dict[T, Exclusion[T]] = {}
        self._unanswered: dict[T, int] = {}
        self._unreachable: frozenset[T] = frozenset()
        self._in_time: deque[Attempt[T]] = deque()
        """Attempts that are not overdue, the oldest first; done ones leave when they are first."""
        self.counts = EnqueueCounts()
        self.change_targets(targets)

    @property
    def targets(self) -> Sequence[T]:
        """Physical queues, excluded ones among them."""
        return self._targets

    @property
    def excluded(self) -> dict[T, Exclusion[T]]:
        """Return what is excluded."""
        return dict(self._excluded)

    def change_targets(self, targets: Sequence[T]) -> None:
        """Take other physical queues; what is known of those that stay is kept.

        Raises:
            ValueError: there is none.
        """
        if not targets:
            raise ValueError("targets: read none; allowed: one or more")
        self._targets = tuple(targets)
        self._turn %= len(targets)
        for gone in self._excluded.keys() - set(targets):
            del self._excluded[gone]

    def note_unreachable(self, targets: Collection[T], now: float) -> None:
        """Take note of all that cannot be reached at present: it is excluded, and not tried.

        Args:
            targets: physical queues; none once all can be reached.
            now: seconds, not before the last call's.
        """
        self._unreachable = frozenset(targets)
        for target in self._unreachable.difference(self._excluded).intersection(self._targets):
            self._add(target, now)

    def begin(self, now: float) -> Attempt[T]:
        """Return where a message goes; the caller sends it there.

        It goes to the next physical queue in turn that is not excluded, or whose trial is due.
        Where all are excluded, it goes to one of them, so that a message always has a place to go.
        """
        target = self._next_in_turn(now)
        if target is None:
            target = min(self._targets, key=self._load_of_excluded)
        return self.send(target, now)

    def repeat(self, now: float, tried: Collection[T]) -> Attempt[T] | None:
        """Return where a message goes that was not stored in time.

        Returns:
            None where all are excluded and no trial is due: the caller asks again later, if no
            answer has come.
        """
        target = self._next_in_turn(now, tried)
        if target is None:
            target = next((one for one in tried if one not in self._excluded), None)
        if target is None:
            # There is nothing quicker to do for the message: it may as well be a trial.
            target = self._next_in_turn(now)
        return None if target is None else self.send(target, now)

    def _next_in_turn(self, now: float, tried: Collection[T] = ()) -> T | None:
        """Return the next target that is not excluded; a message's first may be a trial."""
        targets, n, excluded = self._targets, len(self._targets), self._excluded
        for k in range(n):
            place = (self._turn + k) % n
            target = targets[place]
            if (
                target not in tried
                if target not in excluded
                else not tried and self._is_due(target, now)
            ):
                self._turn = (place + 1) % n
                return target
        return None

    def _load_of_excluded(self, target: T) -> tuple[bool, bool, int]:
        is_silent = self._excluded[target].is_silent
        return target in self._unreachable, is_silent, self._unanswered.get(target, 0)

    def usable(self, now: float) -> tuple[Sequence[T], T | None]:
        """Return where many messages may go at once, and what one of them may be the trial of.

        The first are those that are not excluded; where all are, those from which answers still
        come; else those that can be reached; else all. For each part of the messages that is sent,
        `send` is called.
        """
        targets, excluded = self._targets, self._excluded
        if not excluded:
            return targets, None
        quick = [one for one in targets if one not in excluded]
        trial = next((one for one in targets if one in excluded and self._is_due(one, now)), None)
        if quick:
            return quick, trial
        reached = [one for one in targets if one not in self._unreachable] or targets
        return [one for one in reached if not excluded[one].is_silent] or reached, trial

    def _is_due(self, target: T, now: float) -> bool:
        if target in self._unreachable:
            return False
        exclusion = self._excluded[target]
        return exclusion.trial is None and now >= exclusion.trial_at

    def send(self, target: T, now: float) -> Attempt[T]:
        """Take note that a message, or many at once, are sent to a physical queue."""
        exclusion = self._excluded.get(target)
        is_trial = exclusion is not None and self._is_due(target, now)
        attempt = Attempt(target, now, is_trial=is_trial)
        if exclusion is not None and is_trial:
            exclusion.trial = attempt
            self.counts.trials += 1
        self._in_time.append(attempt)
        self._unanswered[target] = self._unanswered.get(target, 0) + 1
        self.counts.attempts += 1
        return attempt

    def answered(self, attempt: Attempt[T], now: float) -> None:
        """Take note that a message is stored where it was sent, however late."""
        if not self._is_first_end(attempt):
            return
        is_quick = now - attempt.started_at <= self._detection_time
        if not is_quick and not attempt._is_overdue:  # noqa: SLF001 - of this module
            self._exclude(attempt, now)
        exclusion = self._excluded.get(attempt.target)
        if exclusion is None:
            return
        exclusion.is_silent = False
        if is_quick and attempt.started_at >= exclusion.since:
            del self._excluded[attempt.target]
            self.counts.inclusions += 1
        elif not self._unanswered.get(attempt.target):
            # It has caught up. One that is always late is not tried all the time.
            wait = self._trial_seconds if attempt.is_trial else 0.0
            exclusion.trial_at = min(exclusion.trial_at, now + wait)
            exclusion.trial_wait = self._trial_seconds

    def failed(self, attempt: Attempt[T], now: float) -> None:
        """Take note that a message was refused; its target is excluded at once."""
        if self._is_first_end(attempt):
            self.counts.failed += 1
            if not attempt._is_overdue:  # noqa: SLF001 - of this module
                self._exclude(attempt, now)

    def _is_first_end(self, attempt: Attempt[T]) -> bool:
        if attempt._is_done:  # noqa: SLF001 - of this module
            return False
        attempt._is_done = True  # noqa: SLF001
        left = self._unanswered[attempt.target] - 1
        if left:
            self._unanswered[attempt.target] = left
        else:
            del self._unanswered[attempt.target]
        return True

    def overdue(self, now: float) -> list[Attempt[T]]:
        """Exclude what has not answered in time; return these attempts, each once, oldest first.

        Whether their messages are stored is unknown: the caller repeats them elsewhere, under the
        same deduplication identifier. `answered` or `failed` may still come.
        """
        late = []
        waiting = self._in_time
        while waiting:
            attempt = waiting[0]
            if not attempt._is_done:  # noqa: SLF001 - of this module
                if now < attempt.started_at + self._detection_time:
                    break
                attempt._is_overdue = True  # noqa: SLF001
                self._exclude(attempt, now)
                late.append(attempt)
            waiting.popleft()
        self.counts.overdue += len(late)
        return late

    def next_deadline(self) -> float | None:
        """Return when `overdue` has something to say at the earliest; None for no attempt."""
        waiting = self._in_time
        while waiting and waiting[0]._is_done:  # noqa: SLF001 - of this module
            waiting.popleft()
        return waiting[0].started_at + self._detection_time if waiting else None

    def _exclude(self, attempt: Attempt[T], now: float) -> None:
        target = attempt.target
        exclusion = self._excluded.get(target)
        if exclusion is None:
            if target in self._targets:
                self._add(target, now)
        elif exclusion.trial is attempt:
            exclusion.trial = None
            exclusion.trial_wait = min(2 * exclusion.trial_wait, self._max_trial_seconds)
            exclusion.trial_at = now + exclusion.trial_wait

    def _add(self, target: T, now: float) -> None:
        wait = self._trial_seconds
        self._excluded[target] = Exclusion(now, now + wait, wait)
        self.counts.exclusions += 1

    def check_invariants(self) -> None:
        """Raise AssertionError where an invariant is broken; for tests."""
        assert all(count > 0 for count in self._unanswered.values())  # noqa: S101
        assert set(self._excluded) <= set(self._targets)  # noqa: S101
        assert all(  # noqa: S101
            self._unanswered.get(target) for target, one in self._excluded.items() if one.trial
        )
