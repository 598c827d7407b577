from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.queue.strategies.slowdown_exclusion import (
    Attempt,
    EnqueueCounts,
    SlowdownExclusion,
)

DETECTION = 0.4


def exclude(controller: SlowdownExclusion[str], target: str, now: float) -> list[Attempt[str]]:
    """Send messages until one has gone to a target that does not answer; return what did."""
    while True:
        attempt = controller.begin(now)
        if attempt.target == target:
            break
        controller.answered(attempt, now)
    return controller.overdue(now + DETECTION)


def test_round_robin_over_all() -> None:
    """While all are quick, each gets every nth message."""
    controller = SlowdownExclusion("ABC")
    attempts = [controller.begin(0.0) for _ in range(6)]
    assert [one.target for one in attempts] == list("ABCABC")
    assert not any(one.is_trial for one in attempts)


def test_a_slow_one_is_left_out_after_the_detection_time() -> None:
    """Its message is named once, to be repeated elsewhere; a moment earlier it is not."""
    controller = SlowdownExclusion("ABC", DETECTION)
    hung = controller.begin(1.0)
    assert controller.next_deadline() == 1.4
    assert controller.overdue(1.39) == []
    assert controller.overdue(1.4) == [hung]
    assert controller.overdue(1.4) == []
    assert controller.next_deadline() is None
    assert [controller.begin(1.4).target for _ in range(4)] == list("BCBC")
    assert list(controller.excluded) == ["A"]


def test_a_late_answer_excludes_without_a_look_at_the_clock() -> None:
    """Where the caller was too busy to ask for what is overdue; a trial ends in the same way."""
    controller = SlowdownExclusion("AB", DETECTION, trial_seconds=1.0)
    controller.answered(controller.begin(0.0), 0.5)
    assert list(controller.excluded) == ["A"]
    trial = [controller.begin(0.5) for _ in range(2)][1]
    controller.answered(trial, 1.0)
    assert trial.is_trial
    assert (controller.excluded["A"].trial, controller.excluded["A"].trial_at) == (None, 2.0)


def test_a_refused_message_excludes_at_once() -> None:
    """A broken connection needs no detection time."""
    controller = SlowdownExclusion("AB")
    controller.failed(controller.begin(0.0), 0.0)
    assert [controller.begin(0.0).target for _ in range(3)] == list("BBB")


def test_a_trial_that_is_quick_brings_it_back() -> None:
    """One message at a time, after the trial time; then all turns are its own again."""
    controller = SlowdownExclusion("AB", DETECTION, trial_seconds=1.0)
    exclude(controller, "A", 0.0)
    assert [controller.begin(1.3).target for _ in range(2)] == ["B", "B"]
    trial = controller.begin(1.4)
    assert (trial.target, trial.is_trial) == ("A", True)
    assert [controller.begin(1.4).target for _ in range(2)] == ["B", "B"]
    controller.answered(trial, 1.5)
    assert controller.excluded == {}
    assert {controller.begin(1.5).target for _ in range(2)} == {"A", "B"}


def test_trials_without_an_answer_become_rare() -> None:
    """1, 2, 4 seconds and no more between two, so that few messages wait for a dead node."""
    controller = SlowdownExclusion("AB", DETECTION, trial_seconds=1.0, max_trial_seconds=4.0)
    exclude(controller, "A", 0.0)
    now, waits = DETECTION, []
    for _ in range(4):
        wait = controller.excluded["A"].trial_at - now
        waits.append(round(wait, 6))
        now += wait
        trial = exclude(controller, "A", now)
        assert [one.is_trial for one in trial] == [True]
        now += DETECTION
    assert waits == [1.0, 2.0, 4.0, 4.0]


def test_what_cannot_be_reached_is_left_out_at_once_and_not_tried() -> None:
    """A trial would wait for nothing; it comes when the node can be reached again."""
    controller = SlowdownExclusion("ABC", DETECTION, trial_seconds=1.0)
    controller.note_unreachable("A", 0.0)
    assert [controller.begin(now).target for now in (0.0, 0.1, 99.0)] == list("BCB")
    assert (list(controller.usable(99.0)[0]), controller.usable(99.0)[1]) == (["B", "C"], None)
    for target in "BC":
        exclude(controller, target, 99.0)
    assert list(controller.usable(99.0)[0]) == ["B", "C"]  # slow ones are better than none
    controller.note_unreachable("", 99.0)
    assert controller.usable(99.0)[1] == "A"
    assert controller.begin(99.0).is_trial
    controller.check_invariants()


def test_a_node_that_has_caught_up_is_tried_at_once() -> None:
    """After a pause it answers all that it was sent; only then it is quick again."""
    controller = SlowdownExclusion("AB", DETECTION, trial_seconds=60.0)
    early, other, late = (controller.begin(now) for now in (0.0, 0.0, 0.3))
    controller.answered(other, 0.0)
    controller.overdue(0.4)
    controller.answered(early, 0.5)
    assert controller.begin(0.5).target == "B"
    controller.answered(late, 0.5)
    assert controller.begin(0.5).target == "A"


def test_a_node_that_is_always_late_is_not_tried_all_the_time() -> None:
    """A late answer of a trial is no reason for the next one at once."""
    controller = SlowdownExclusion("AB", DETECTION, trial_seconds=1.0)
    controller.answered(exclude(controller, "A", 0.0)[0], 0.5)
    (trial,) = exclude(controller, "A", 0.5)
    assert trial.is_trial
    controller.answered(trial, 1.0)
    assert controller.excluded["A"].trial_at == 2.0


def test_a_message_is_repeated_where_it_was_not() -> None:
    """Never as a trial: it has waited once, and shall not wait for a node that may be slow."""
    controller = SlowdownExclusion("ABC", DETECTION, trial_seconds=1.0)
    exclude(controller, "A", 0.0)
    assert [one and one.target for one in (controller.repeat(5.0, "A"),) * 2] == ["B", "B"]
    again = controller.repeat(5.0, "B")
    assert again is not None
    assert again.target == "C"
    assert controller.begin(5.0).target == "A"


def test_nothing_is_repeated_while_all_are_slow() -> None:
    """It would add to the load; where the first place is quick again, it goes there."""
    controller = SlowdownExclusion("AB", DETECTION, trial_seconds=1.0)
    (late,) = exclude(controller, "A", 0.0)
    exclude(controller, "B", 0.0)
    assert controller.repeat(0.5, "A") is None
    controller.answered(late, 0.5)
    trial = controller.begin(0.5)
    controller.answered(trial, 0.6)
    again = controller.repeat(0.6, "A")
    assert again is not None
    assert (again.target, again.is_trial) == ("A", False)


def test_a_message_that_was_not_stored_is_a_trial_where_all_are_slow() -> None:
    """Without it, nothing would find out that a node is back while no new message comes."""
    controller = SlowdownExclusion("AB", DETECTION, trial_seconds=1.0)
    exclude(controller, "A", 0.0)
    exclude(controller, "B", 0.0)
    assert controller.repeat(1.3, "A") is None
    trials = [controller.repeat(1.4, "A") for _ in range(3)]
    assert [one and (one.target, one.is_trial) for one in trials] == [
        ("A", True),
        ("B", True),
        None,
    ]


def test_while_all_are_slow_messages_go_where_answers_come() -> None:
    """To the one of them that has least to answer; a silent one may be dead."""
    controller = SlowdownExclusion("ABC", DETECTION, trial_seconds=60.0)
    sent = {one.target: one for one in [controller.begin(0.0) for _ in range(9)]}
    assert len(controller.overdue(0.4)) == 9
    controller.answered(sent["B"], 0.5)
    assert [controller.begin(0.5).target for _ in range(2)] == ["B", "B"]
    controller.answered(sent["C"], 0.5)
    assert [controller.begin(0.5).target for _ in range(4)] == ["C", "C", "B", "C"]


def test_nodes_come_and_go() -> None:
    """What is known of those that stay is kept; the last answers of others do no harm."""
    controller = SlowdownExclusion("AB", DETECTION)
    (gone,) = exclude(controller, "A", 0.0)
    (slow,) = exclude(controller, "B", 0.0)
    controller.change_targets("BC")
    controller.answered(gone, 1.0)
    assert list(controller.excluded) == ["B"]
    assert [controller.begin(0.5).target for _ in range(2)] == ["C", "C"]
    controller.failed(slow, 0.6)
    with pytest.raises(ValueError, match="targets: read none; allowed: one or more"):
        controller.change_targets([])


def test_what_happened_is_counted() -> None:
    """Each attempt ends once, however often its end is told."""
    controller = SlowdownExclusion("A", DETECTION, trial_seconds=1.0)
    late = controller.begin(0.0)
    controller.overdue(0.4)
    trial = controller.begin(1.4)
    controller.answered(trial, 1.5)
    controller.answered(trial, 1.5)
    controller.failed(controller.begin(1.5), 1.5)
    controller.failed(late, 1.6)
    assert controller.counts == EnqueueCounts(
        attempts=3, trials=1, overdue=1, failed=2, exclusions=2, inclusions=1
    )


@given(st.integers(1, 9), st.data())
def test_the_others_share_evenly(n: int, data: st.DataObject) -> None:
    """With k of n excluded, the counts of the others differ by one at most; k may be all."""
    targets = range(n)
    slow = data.draw(st.sets(st.sampled_from(targets), max_size=n))
    controller = SlowdownExclusion(targets, DETECTION)
    for attempt in [controller.begin(0.0) for _ in targets]:
        if attempt.target not in slow:
            controller.answered(attempt, 0.0)
    controller.overdue(0.4)
    load = Counter(controller.begin(0.5).target for _ in range(data.draw(st.integers(0, 40))))
    quick = set(targets) - slow
    if quick:
        assert set(load) <= quick
        counts = [load[target] for target in quick]
        assert max(counts) - min(counts) <= 1


@given(st.data())
def test_whatever_happens_a_message_has_a_place_and_an_excluded_one_is_tried(
    data: st.DataObject,
) -> None:
    """The invariants hold, and after the longest time between trials each has been tried."""
    targets = "ABCDE"
    controller = SlowdownExclusion(targets, DETECTION, trial_seconds=1.0, max_trial_seconds=4.0)
    now, waiting = 0.0, list[Attempt[str]]()
    for _ in range(data.draw(st.integers(0, 60))):
        now += data.draw(st.sampled_from([0.0, 0.1, 0.4, 2.0]))
        step = data.draw(st.sampled_from(["begin", "repeat", "answered", "failed", "overdue"]))
        if step == "begin":
            waiting.append(controller.begin(now))
        elif step == "repeat":
            tried = data.draw(st.sets(st.sampled_from(targets), min_size=1))
            attempt = controller.repeat(now, tried)
            quick = set(targets) - controller.excluded.keys()
            assert quick or attempt is None or attempt.is_trial
            if attempt is not None:
                assert attempt.is_trial or attempt.target in (quick - tried or quick)
                waiting.append(attempt)
        elif step == "overdue":
            assert all(one.started_at + DETECTION <= now for one in controller.overdue(now))
        elif waiting:
            ended = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            getattr(controller, step)(ended, now)
        controller.check_invariants()
    controller.overdue(now + DETECTION)
    now += DETECTION + 4.0
    assert {one for one, exclusion in controller.excluded.items() if exclusion.trial is None} <= {
        controller.begin(now).target for _ in range(10)
    }
