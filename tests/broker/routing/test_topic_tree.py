from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.mqtt.topics import matches, matching_nodes
from penstock.broker.routing.topic_tree import Subscription, TopicTree
from penstock.broker.sessions.session import Session
from tests.helpers.sinks import HoldingSink
from tests.helpers.virtual import VirtualBroker

LEVELS = st.sampled_from(["", "a", "b", "$SYS"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = (
    st.lists(st.sampled_from(["", "a", "b", "+", "$SYS"]), min_size=0, max_size=4)
    .flatmap(lambda levels: st.sampled_from(["/".join(levels), "/".join([*levels, "#"])]))
    .filter(bool)
)
BROKER = VirtualBroker()


def session(client_id: str) -> Session:
    """Return a session that nobody connects to."""
    return Session(client_id, BROKER.core)


ONE, OTHER = session("one"), session("other")


def matching(tree: TopicTree, topic: str) -> list[Subscription]:
    """Return every subscription, none of them shared, whose filter matches a topic."""
    found: list[Subscription] = []
    for node in matching_nodes(tree._root, topic):
        held = node.held
        if held is not None:
            found += [held] if isinstance(held, Subscription) else held.values()
    return found


def subscribe(tree: TopicTree, who: Session, topic_filter: str, qos: int = 0) -> bool:
    """Subscribe."""
    return tree.add(Subscription(who, topic_filter, qos))


@given(st.lists(st.tuples(st.booleans(), FILTERS), max_size=10), TOPICS)
def test_a_sessions_own_subscriptions_are_found(
    subscribed: list[tuple[bool, str]], topic: str
) -> None:
    """Those of them that match, and nobody else's."""
    tree = TopicTree()
    for is_one, topic_filter in subscribed:
        subscribe(tree, ONE if is_one else OTHER, topic_filter)
    found = tree.subscriptions_of(ONE, topic)
    assert {s.session for s in found} <= {ONE}
    expected = {f for is_one, f in subscribed if is_one and matches(f, topic)}
    assert sorted(s.topic_filter for s in found) == sorted(expected)


@pytest.mark.mqtt5("4.7.2-1")
@pytest.mark.mqtt311("4.7.2-1")
@given(st.lists(st.tuples(st.booleans(), FILTERS), max_size=10), TOPICS, st.data())
def test_the_tree_matches_as_the_rule_does(
    steps: list[tuple[bool, str]], topic: str, data: st.DataObject
) -> None:
    """[MQTT-4.7.1] and [MQTT-4.7.2-1], with subscriptions coming and going."""
    tree = TopicTree()
    for _, topic_filter in steps:
        subscribe(tree, ONE, topic_filter)
    kept = {topic_filter for _, topic_filter in steps}
    for is_kept, topic_filter in steps:
        if not is_kept and topic_filter in kept and data.draw(st.booleans()):
            assert tree.remove(ONE, topic_filter)
            kept.discard(topic_filter)
    found = sorted(subscription.topic_filter for subscription in matching(tree, topic))
    assert found == sorted(f for f in kept if matches(f, topic))
    assert tree.n_subscriptions == len(kept)
    for topic_filter in kept:
        assert tree.remove(ONE, topic_filter)
    assert tree._root.is_empty()
    assert tree.n_bytes == 0


def test_a_second_subscription_to_a_filter_takes_the_place_of_the_first() -> None:
    """[MQTT-3.8.4-3]."""
    tree = TopicTree()
    assert subscribe(tree, ONE, "a", 0)
    assert not subscribe(tree, ONE, "a", 2)
    assert subscribe(tree, OTHER, "a", 1)
    assert tree.n_subscriptions == 2
    plan = tree.plan("a", b"a")
    assert sorted(target.qos for target in plan.targets) == [1, 2]


@given(st.lists(st.tuples(st.booleans(), st.booleans(), FILTERS), max_size=20), TOPICS)
def test_sessions_come_to_a_filter_and_go(steps: list[tuple[bool, bool, str]], topic: str) -> None:
    """Each session has its own subscription to a filter that several may have."""
    tree = TopicTree()
    kept: set[tuple[Session, str]] = set()
    for is_one, is_added, topic_filter in steps:
        who = ONE if is_one else OTHER
        if is_added:
            assert subscribe(tree, who, topic_filter) == ((who, topic_filter) not in kept)
            kept.add((who, topic_filter))
        else:
            assert tree.remove(who, topic_filter) == ((who, topic_filter) in kept)
            kept.discard((who, topic_filter))
        found = {(found.session, found.topic_filter) for found in matching(tree, topic)}
        assert found == {(who, f) for who, f in kept if matches(f, topic)}
    assert tree.n_subscriptions == len(kept)
    for who, topic_filter in kept:
        assert tree.remove(who, topic_filter)
    assert tree._root.is_empty()


def test_removing_what_is_not_there_says_so() -> None:
    """A filter that nobody has, and one that only another session has."""
    tree = TopicTree()
    subscribe(tree, ONE, "a/b")
    assert not tree.remove(ONE, "a")
    assert not tree.remove(ONE, "a/b/c")
    assert not tree.remove(OTHER, "a/b")
    assert tree.n_subscriptions == 1


def test_overlapping_subscriptions_are_one_delivery_with_all_identifiers() -> None:
    """MQTT 5.0, 3.3.4: the highest QoS and every Subscription Identifier."""
    tree = TopicTree()
    tree.add(Subscription(ONE, "a/#", 1, subscription_id=7, retain_as_published=True))
    tree.add(Subscription(ONE, "a/+", 2, subscription_id=9))
    tree.add(Subscription(ONE, "a/b", 0))
    (target,) = tree.plan("a/b", b"a/b").targets
    assert target.qos == 2
    assert sorted(target.subscription_ids) == [7, 9]
    assert target.retain_as_published
    assert target.for_own is target


@pytest.mark.mqtt5("3.8.3-3")
def test_no_local_counts_only_for_the_subscriptions_that_say_so() -> None:
    """[MQTT-3.8.3-3]: another subscription of the same session still delivers."""
    tree = TopicTree()
    tree.add(Subscription(ONE, "a/#", 2, no_local=True))
    (target,) = tree.plan("a/b", b"a/b").targets
    assert target.for_own is None
    tree.add(Subscription(ONE, "a/b", 1))
    (target,) = tree.plan("a/b", b"a/b").targets
    assert target.qos == 2
    assert target.for_own is not None
    assert target.for_own.qos == 1


def test_a_plan_is_kept_until_a_subscription_makes_it_void() -> None:
    """Without wildcards only the topic's own plan goes, with wildcards all do."""
    voided = []
    tree = TopicTree()
    tree.on_plans_void = lambda: voided.append(1)
    a, b = tree.plan("a", b"a"), tree.plan("b", b"b")
    subscribe(tree, ONE, "a")
    assert tree.plan("b", b"b") is b
    assert tree.plan("a", b"a") is not a
    assert len(tree.plan("a", b"a").targets) == 1
    subscribe(tree, ONE, "c")  # no plan of "c" is kept: nothing to drop
    assert len(voided) == 1
    subscribe(tree, OTHER, "+")
    assert tree.plan("b", b"b") is not b
    assert len(tree.plan("b", b"b").targets) == 1
    tree.remove(OTHER, "+")
    assert tree.plan("b", b"b").targets == []


def test_plans_of_made_up_topics_do_not_pile_up() -> None:
    """A publisher that never repeats a topic costs a bounded cache, however long topics are."""
    limit = 8 * 1024 * 1024
    tree = TopicTree(most_plan_bytes=limit)
    long = "x" * 60_000
    n_topics = 2 * limit // len(long)
    for number in range(n_topics):
        topic = f"{number}/{long}"
        tree.plan(topic, topic.encode())
    assert 0 < sum(2 * len(topic_bytes) for topic_bytes in tree.plans) <= limit


def test_plans_with_many_targets_do_not_pile_up() -> None:
    """Each topic's plan has a target for every subscriber to everything: they count."""
    limit = 1024 * 1024
    tree = TopicTree(most_plan_bytes=limit)
    for number in range(100):
        subscribe(tree, session(f"s{number}"), "#")
    target_bytes = sys.getsizeof(tree.plan("t", b"t").targets[0])
    n_most = 0
    for number in range(limit // (100 * target_bytes) + 10):
        tree.plan(f"t/{number}", b"t/%d" % number)
        n_most = max(n_most, len(tree.plans))
    assert 0 < n_most * 100 * target_bytes <= limit


def test_a_sink_is_in_a_plan_once_and_the_threshold_is_the_gates() -> None:
    """A message that matches several filters of a sink is offered once."""
    sink = HoldingSink("q/#", "q/+")
    tree = TopicTree([sink], lambda topic: 10 if topic.startswith("q") else None)
    assert [found.name for found in tree.plan("q/a", b"q/a").sinks] == ["sink"]
    assert tree.plan("q/a", b"q/a").threshold_s == 10
    assert tree.plan("x", b"x").sinks == ()
    assert tree.plan("x", b"x").threshold_s == sys.maxsize


def test_a_filter_of_many_levels_is_no_trouble() -> None:
    """Matching must not run out of stack."""
    tree = TopicTree()
    subscribe(tree, ONE, "/".join(["+"] * 20_001))
    assert len(list(matching(tree, "/" * 20_000))) == 1
    assert tree.remove(ONE, "/".join(["+"] * 20_001))


@given(st.lists(st.tuples(st.booleans(), FILTERS), max_size=10), TOPICS)
def test_shares_match_as_subscriptions_do(steps: list[tuple[bool, str]], topic: str) -> None:
    """A share stands at its filter while it has a member, and leaves nothing behind."""
    tree = TopicTree()
    members: dict[str, set[Session]] = {}
    for is_one, topic_filter in steps:
        name = f"$share/g/{topic_filter}"
        who = ONE if is_one else OTHER
        assert subscribe(tree, who, name) == (who not in members.setdefault(name, set()))
        members[name].add(who)
        plan = tree.plan(topic, topic.encode())
        assert plan.targets == []
        expected = sorted(m for m in members if matches(m.removeprefix("$share/g/"), topic))
        assert sorted(share.topic_filter for share in plan.shares) == expected
    assert tree.n_subscriptions == sum(map(len, members.values()))
    for name, those in members.items():
        for who in those:
            assert tree.remove(who, name)
            assert not tree.remove(who, name)
    assert not tree.plan(topic, topic.encode()).shares
    assert tree._root.is_empty()
    assert not ONE.shares
