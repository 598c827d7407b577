from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.message import Message
from penstock.broker.mqtt.topics import matches
from penstock.broker.routing.retained import (
    LEVEL_BYTES,
    RETAINED_BYTES,
    TABLE_BYTES,
    RetainedMessages,
)

LEVELS = st.sampled_from(["", "a", "b", "$SYS"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.lists(st.sampled_from(["", "a", "b", "+", "$SYS"]), min_size=1, max_size=4).flatmap(
    lambda levels: st.sampled_from(["/".join(levels), "/".join([*levels, "#"])])
)


def keep(retained: RetainedMessages, topic: str, payload: bytes = b"x") -> None:
    """Retain a payload on a topic."""
    retained.set(Message(topic, payload, retain=True))


def found(retained: RetainedMessages, topic_filter: str, now: float) -> list[Message]:
    """Return what a walk without rest finds."""
    walk = retained.walk(topic_filter)
    messages = []
    while not walk.is_done:
        message = walk.step(now)
        if message is not None:
            messages.append(message)
    return messages


@pytest.mark.mqtt5("4.7.2-1")
@pytest.mark.mqtt311("4.7.2-1")
@given(st.sets(TOPICS, max_size=12), FILTERS.filter(bool))
def test_what_matches_is_what_the_matching_rule_says(topics: set[str], topic_filter: str) -> None:
    """[MQTT-4.7.1] and [MQTT-4.7.2-1] hold for every filter and topic."""
    retained = RetainedMessages()
    for topic in topics:
        keep(retained, topic)
    topics_found = sorted(message.topic for message in found(retained, topic_filter, 0.0))
    assert topics_found == sorted(topic for topic in topics if matches(topic_filter, topic))
    assert retained.may_match(topic_filter) or not topics_found


@pytest.mark.parametrize("topic_filter", ["#", "+/a", "a/b", "a/+", "b/#", "$SYS/a/#"])
def test_filters_that_match_nothing_retained_cost_no_walk(topic_filter: str) -> None:
    """The broker's own messages make none necessary for filters of clients."""
    retained = RetainedMessages()
    keep(retained, "$SYS/broker/uptime")
    assert not retained.may_match(topic_filter)
    assert retained.may_match("$SYS/broker/+")


def test_the_last_message_of_a_topic_is_kept() -> None:
    """[MQTT-3.3.1-5]: a new retained message takes the place of the old one."""
    retained = RetainedMessages()
    keep(retained, "a/b", b"old")
    keep(retained, "a/b", b"new")
    assert [message.payload for message in found(retained, "a/b", 0.0)] == [b"new"]
    assert len(retained) == 1


def test_an_empty_payload_removes_and_leaves_nothing() -> None:
    """[MQTT-3.3.1-6]: it removes the message, and is itself not kept."""
    retained = RetainedMessages()
    keep(retained, "a/b/c")
    keep(retained, "a")
    keep(retained, "a/b/c", b"")
    keep(retained, "never/was", b"")
    assert [message.topic for message in found(retained, "#", 0.0)] == ["a"]
    keep(retained, "a", b"")
    assert not retained._root.children


@pytest.mark.parametrize(("now", "n_found"), [(9.9, 1), (10.0, 0)])
def test_an_expired_message_is_not_found_and_forgotten(now: float, n_found: int) -> None:
    """[MQTT-3.3.2-5]: from its expiry on, a retained message is gone."""
    retained = RetainedMessages()
    retained.set(Message("t", b"x", expires_at=10.0))
    assert len(found(retained, "#", now)) == n_found
    assert len(retained) == n_found


def test_a_topic_of_many_levels_is_no_trouble() -> None:
    """A topic may have 65,535 levels; finding it must not run out of stack."""
    retained = RetainedMessages()
    topic = "/" * 20_000
    keep(retained, topic)
    assert [message.topic for message in found(retained, "#", 0.0)] == [topic]
    assert [message.topic for message in found(retained, "/".join(["+"] * 20_001), 0.0)] == [topic]
    retained.remove(topic)
    assert len(retained) == 0


def bytes_of(messages: list[Message]) -> int:
    """Return what messages and the levels of their topics are to count, each level once."""
    levels = set()
    for message in messages:
        names = tuple(message.topic.split("/"))
        levels |= {names[: n + 1] for n in range(len(names))}
    tables = {names[:-1] for names in levels} - {()}
    n_bytes = sum(RETAINED_BYTES + m.memory_bytes + len(m.topic_bytes) for m in messages)
    return n_bytes + len(levels) * LEVEL_BYTES + len(tables) * TABLE_BYTES


@given(st.lists(st.tuples(TOPICS, st.binary(max_size=2)), max_size=30))
def test_the_limits_hold_whatever_is_kept_and_removed(kept: list[tuple[str, bytes]]) -> None:
    """Both sums are those of what is there, and never above the limits."""
    retained = RetainedMessages(max_messages=3, max_bytes=3000)
    for topic, payload in kept:
        message = Message(topic, payload, retain=True)
        has_room = retained.has_room(message)
        assert retained.set(message) == has_room
        assert (topic in retained.by_topic) == (has_room and bool(payload))
        limited = [m for m in retained.by_topic.values() if not m.topic.startswith("$SYS")]
        assert retained.n_limited == len(limited) <= 3
        assert retained.n_bytes == bytes_of(limited) <= 3000


def test_the_broker_s_own_messages_are_not_limited() -> None:
    """$SYS is there however full it is; the retained message of a topic can always go."""
    retained = RetainedMessages(max_messages=1)
    keep(retained, "a")
    for number in range(3):
        keep(retained, f"$SYS/broker/{number}")
    keep(retained, "b")
    assert sorted(retained.by_topic) == [*(f"$SYS/broker/{n}" for n in range(3)), "a"]
    keep(retained, "a", b"")
    keep(retained, "b")
    assert "b" in retained.by_topic


@given(
    st.lists(TOPICS, max_size=12),
    FILTERS.filter(bool),
    st.lists(st.tuples(st.integers(0, 3), TOPICS, st.booleans()), max_size=12),
)
def test_a_walk_finds_what_was_there_and_still_is_whatever_changes_meanwhile(
    topics: list[str], topic_filter: str, changes: list[tuple[int, str, bool]]
) -> None:
    """Once each, nothing that came later; `ahead` says at any moment what is still to come."""
    retained = RetainedMessages()
    for topic in topics:
        keep(retained, topic)
    expected = {topic for topic in topics if matches(topic_filter, topic)}
    walk = retained.walk(topic_filter)
    seen: list[str] = []

    def step() -> None:
        message = walk.step(0.0)
        if message is not None:
            assert message.payload == b"x"
            seen.append(message.topic)

    for n_steps, topic, is_set in changes:
        for _ in range(n_steps):
            step()
        if is_set:
            keep(retained, topic, b"later")
        else:
            retained.remove(topic)
        if topic not in seen:
            expected.discard(topic)
        to_come = {topic for topic in expected if walk.ahead(topic) is not None}
        assert to_come == expected - set(seen)
    while not walk.is_done:
        step()
    assert sorted(seen) == sorted(expected)
    assert not any(walk.ahead(topic) for topic in topics)


def test_levels_under_sys_are_not_asked_for_as_they_do_not_count() -> None:
    """A bridge's message under $SYS has room where just its own bytes are left."""
    message = Message("$SYS/broker/connection/b/state", b"1", retain=True, publisher="bridge")
    unlimited = RetainedMessages()
    assert unlimited.set(message)
    assert RetainedMessages(max_bytes=unlimited.n_bytes).set(message)


def test_a_prefix_shows_other_forms_of_what_is_retained() -> None:
    """After what is retained below it; those of a message end when another one takes its place."""
    retained = RetainedMessages()

    def forms(message: Message, number: int) -> Iterator[Message]:
        for part in b"ab":
            yield Message(f"parts/{message.topic}", b"%c%d" % (part, number))

    retained.show("parts/", forms)
    keep(retained, "x/1")
    keep(retained, "parts/x/2", b"own")
    keep(retained, "x/3")
    shown = [(message.topic, message.payload) for message in found(retained, "parts/x/+", 0.0)]
    assert shown == [
        ("parts/x/2", b"own"),
        *(("parts/x/1", b"%c1" % part) for part in b"ab"),
        *(("parts/x/3", b"%c3" % part) for part in b"ab"),
    ]
    assert len(found(retained, "x/+", 0.0)) == 2
    assert retained.may_match("parts/x/1")
    assert not any(retained.may_match(name) for name in ("parts/y", "parts/", "y"))
    walk = retained.walk("parts/x/1")
    while walk.step(0.0) is None:
        pass
    keep(retained, "x/1", b"new")
    while not walk.is_done:
        assert walk.step(0.0) is None


def test_cleared_topics_are_kept_in_mind_where_it_is_wanted() -> None:
    """The last ones, with who has cleared them, until another message is retained in them."""
    retained = RetainedMessages()
    keep(retained, "a")
    keep(retained, "a", b"")
    assert not retained.removed
    retained.most_removed = 2
    for topic in ("a", "b", "c"):
        keep(retained, topic)
    number = retained.number
    for topic in ("a", "b", "c"):
        retained.set(Message(topic, b"", retain=True, publisher=f"who of {topic}"))
    assert retained.removed == {"b": (number + 2, "who of b"), "c": (number + 3, "who of c")}
    keep(retained, "c")
    assert list(retained.removed) == ["b"]
