"""Filters of sinks, which change while the broker runs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.message import Message
from penstock.broker.mqtt.topics import matches
from penstock.broker.routing.sink_filters import SWEPT_AT_ONCE
from penstock.broker.routing.topic_tree import TopicTree
from tests.broker.routing.test_topic_tree import FILTERS, TOPICS
from tests.helpers.sinks import HoldingSink


class Retaining(HoldingSink):
    """A sink that is offered all that is to be retained."""

    takes_retained = True


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), FILTERS), max_size=12), TOPICS)
def test_plans_have_the_sinks_whose_filters_match(
    changes: list[tuple[int, bool, str]], topic: str
) -> None:
    """Each once, in the order of the sinks, whatever was planned before a change."""
    sinks = [HoldingSink(name=f"{number}") for number in range(3)]
    for sink in sinks:
        sink.topic_filters = ()
    tree = TopicTree(sinks)
    filters: list[set[str]] = [set(), set(), set()]
    for number, is_added, topic_filter in changes:
        tree.plan(topic, topic.encode())
        if is_added:
            filters[number].add(topic_filter)
            tree.add_sink_filter(sinks[number], topic_filter)
        else:
            filters[number].discard(topic_filter)
            tree.remove_sink_filter(sinks[number], topic_filter)
        wanted = [
            sink
            for sink, those in zip(sinks, filters, strict=True)
            if any(matches(each, topic) for each in those)
        ]
        assert list(tree.plan(topic, topic.encode()).sinks) == wanted
    for sink in sinks:
        tree.remove_sink(sink)
    assert tree.plan(topic, topic.encode()).sinks == ()
    assert not tree._sinks._root


def test_a_filter_without_wildcards_makes_its_own_plan_void_alone() -> None:
    """Some hundred filters come and go in a second; also sinks do."""
    sink, other = HoldingSink("a"), HoldingSink("b", name="other")
    tree = TopicTree([sink])
    before = {topic: tree.plan(topic, topic.encode()) for topic in ("a", "b", "c")}
    tree.add_sink_filter(sink, "b")
    assert tree.plan("c", b"c") is before["c"]
    assert tree.plan("b", b"b").sinks == (sink,)
    tree.add_sink(other)
    assert tree.plan("a", b"a") is before["a"]
    assert tree.plan("b", b"b").sinks == (sink, other)
    tree.add_sink_filter(sink, "#")
    assert tree.plan("c", b"c").sinks == (sink,)


def test_a_sink_that_takes_what_is_retained_gets_it_of_any_topic() -> None:
    """Not what is below $SYS, and other messages of its filters alone."""
    one, retaining = HoldingSink("a"), Retaining("b")
    tree = TopicTree([retaining, one])
    for topic, with_retain, without in (
        ("a", (one, retaining), (one,)),
        ("b", (retaining,), (retaining,)),
        ("c", (retaining,), ()),
        ("$SYS/a", (), ()),
    ):
        plan = tree.plan(topic, topic.encode())
        assert plan.of(Message(topic, b"x", retain=True)).sinks == with_retain
        assert plan.of(Message(topic, b"x")).sinks == without
    tree.remove_sink(retaining)
    assert tree.plan("c", b"c").of(Message("c", b"x", retain=True)).sinks == ()


def test_a_sink_with_very_many_filters_leaves_at_once_and_its_filters_by_and_by() -> None:
    """Nobody waits while they are taken off one by one."""
    n_filters = 5 * SWEPT_AT_ONCE
    sink, other = HoldingSink(name="sink"), HoldingSink("t/1", name="other")
    sink.topic_filters = [f"t/{number}" for number in range(n_filters)]
    tree = TopicTree([sink, other])
    assert tree.plan("t/1", b"t/1").sinks == (sink, other)
    tree.remove_sink(sink)
    assert tree.plan("t/1", b"t/1").sinks == (other,)
    assert len(tree._sinks._root["t"]) > 1
    for number in range(2, 6):
        topic = f"t/{number}"
        assert tree.plan(topic, topic.encode()).sinks == ()
    assert list(tree._sinks._root["t"]) == ["1"]
    tree.add_sink(sink)
    tree.remove_sink(sink)
    tree.add_sink(sink)
    assert tree.plan("t/9", b"t/9").sinks == (sink,)
    assert tree.plan("t/1", b"t/1").sinks == (other, sink)
