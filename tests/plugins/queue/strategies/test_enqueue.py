from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.queue.strategies.enqueue import EnqueueController, physical_queue_of
from penstock.plugins.queue.strategies.slowdown_exclusion import SlowdownExclusion


def test_messages_go_to_each_physical_queue_in_turn() -> None:
    """E-Ctrl stores round robin (paper 000), and the turn goes on over calls."""
    controller = EnqueueController[str](3)
    assert controller.deal("abcd") == {0: "ad", 1: "b", 2: "c"}
    assert controller.deal("ef") == {1: "e", 2: "f"}
    assert controller.deal("g") == {0: "g"}


def test_nothing_is_dealt_from_nothing() -> None:
    """An empty group touches no physical queue and no turn."""
    controller = EnqueueController[str](2)
    assert controller.deal([]) == {}
    assert controller.deal("a") == {0: "a"}


def test_messages_of_a_key_stay_together_in_order() -> None:
    """A key has one physical queue, also in another program; others go round robin."""
    by_letter = EnqueueController[str](4, lambda text: text[0] if text[0] != "-" else None)
    first = by_letter.deal(["a1", "b1", "a2", "-1", "-2", "a3"])
    place = physical_queue_of("a", 4)
    assert [text for text in first[place] if text[0] == "a"] == ["a1", "a2", "a3"]
    assert sorted(text for dealt in first.values() for text in dealt) == [
        "-1",
        "-2",
        "a1",
        "a2",
        "a3",
        "b1",
    ]
    assert "-1" in first[0]
    assert "-2" in first[1]
    assert list(by_letter.deal(["a4"])) == [place]


def test_places_of_keys_are_stable() -> None:
    """They are stored: a program that computes others breaks the order of a key."""
    places = {"": 0, "a": 3, "plant/7": 7, "Σ": 5, "\ud800": 0}
    assert {key: physical_queue_of(key, 8) for key in places} == places


@given(st.integers(1, 9), st.lists(st.integers(0, 30), max_size=20), st.booleans())
def test_placement_does_not_depend_on_grouping(n: int, sizes: list[int], by_key: bool) -> None:  # noqa: FBT001 (hypothesis gives it)
    """However messages are grouped, each goes where it would alone, and loads differ by one."""
    key_of = (lambda number: None if number % 2 else str(number % 7)) if by_key else None
    grouped, alone = EnqueueController[int](n, key_of), EnqueueController[int](n, key_of)
    messages = iter(range(sum(sizes)))
    load: Counter[int] = Counter(dict.fromkeys(range(n), 0))
    for size in sizes:
        group = [next(messages) for _ in range(size)]
        places = {one: number for number, dealt in grouped.deal(group).items() for one in dealt}
        for one in group:
            assert alone.deal([one]) == {places[one]: [one]}
            load[places[one]] += 1
    if not by_key:
        assert max(load.values()) - min(load.values()) <= 1


def slow_b() -> SlowdownExclusion[int]:
    """Return an exclusion of number 1 of 0 to 2, whose trial is due after a second."""
    exclusion = SlowdownExclusion(range(3), 0.4, trial_seconds=1.0)
    exclusion.failed(exclusion.send(1, 0.0), 0.0)
    return exclusion


def test_a_slow_physical_queue_is_left_out() -> None:
    """The others get its messages in turn, over calls too (paper 001, 3.3.2.1)."""
    controller = EnqueueController[str](3, exclusion=slow_b())
    assert controller.deal("abc", 0.5) == {0: "ac", 2: "b"}
    assert controller.deal("d", 0.5) == {2: "d"}
    assert controller.deal("", 0.5) == {}


def test_one_message_of_a_call_is_the_trial() -> None:
    """Until its answer is there, no other message follows it."""
    exclusion = slow_b()
    controller = EnqueueController[str](3, exclusion=exclusion)
    assert controller.deal("abc", 1.0) == {1: "a", 0: "b", 2: "c"}
    trial = exclusion.send(1, 1.0)
    assert 1 not in controller.deal("def", 1.0)
    exclusion.answered(trial, 1.1)
    assert set(controller.deal("ghi", 1.1)) == {0, 1, 2}


def test_messages_of_a_key_wait_for_their_slow_physical_queue() -> None:
    """Their order counts more; those without a key go elsewhere, one of them as the trial."""
    letter = next(text for text in "abcdefg" if physical_queue_of(text, 3) == 1)
    controller = EnqueueController[str](3, lambda text: None if text == "-" else text, slow_b())
    assert controller.deal([letter, "-", "-", "-"], 0.5) == {1: [letter], 0: ["-", "-"], 2: ["-"]}
    assert controller.deal([letter, "-", "-"], 1.0) == {1: [letter, "-"], 2: ["-"]}


def test_where_all_are_slow_those_that_answer_get_messages() -> None:
    """One that has not answered at all may be dead; without any answer, all get some."""
    exclusion = SlowdownExclusion(range(3), 0.4, trial_seconds=9.0)
    controller = EnqueueController[str](3, exclusion=exclusion)
    late = [exclusion.send(number, 0.0) for number in range(3) for _ in range(2)]
    exclusion.overdue(0.4)
    assert set(controller.deal("abc", 0.4)) == {0, 1, 2}
    exclusion.answered(late[0], 0.5)
    assert controller.deal("abc", 0.5) == {0: "abc"}


def test_where_all_are_slow_a_trial_takes_the_place_of_no_message() -> None:
    """It is one of those that get messages in any case: each is dealt once."""
    exclusion = SlowdownExclusion(range(3), 0.4, trial_seconds=1.0)
    controller = EnqueueController[str](3, exclusion=exclusion)
    for number in range(3):
        exclusion.failed(exclusion.send(number, 0.0), 0.0)
    dealt = controller.deal("abcdefg", 2.0)
    assert sorted(each for some in dealt.values() for each in some) == list("abcdefg")
