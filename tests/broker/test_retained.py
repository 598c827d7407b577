from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.message import Message
from broker.mqtt.topics import matches
from broker.retained import RetainedMessages

LEVELS = st.sampled_from(["", "a", "b", "$SYS"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.lists(st.sampled_from(["", "a", "b", "+", "$SYS"]), min_size=1, max_size=4).flatmap(
    lambda levels: st.sampled_from(["/".join(levels), "/".join([*levels, "#"])])
)


def keep(retained: RetainedMessages, topic: str, payload: bytes = b"x") -> None:
    """Retain a payload on a topic."""
    retained.set(Message(topic, payload, retain=True))


@pytest.mark.mqtt5("4.7.2-1")
@pytest.mark.mqtt311("4.7.2-1")
@given(st.sets(TOPICS, max_size=12), FILTERS.filter(bool))
def test_what_matches_is_what_the_matching_rule_says(topics: set[str], topic_filter: str) -> None:
    """[MQTT-4.7.1] and [MQTT-4.7.2-1] hold for every filter and topic."""
    retained = RetainedMessages()
    for topic in topics:
        keep(retained, topic)
    found = sorted(message.topic for message in retained.match(topic_filter, 0.0))
    assert found == sorted(topic for topic in topics if matches(topic_filter, topic))


def test_the_last_message_of_a_topic_is_kept() -> None:
    """[MQTT-3.3.1-5]: a new retained message takes the place of the old one."""
    retained = RetainedMessages()
    keep(retained, "a/b", b"old")
    keep(retained, "a/b", b"new")
    assert [message.payload for message in retained.match("a/b", 0.0)] == [b"new"]
    assert len(retained) == 1


def test_an_empty_payload_removes_and_leaves_nothing() -> None:
    """[MQTT-3.3.1-6]: it removes the message, and is itself not kept."""
    retained = RetainedMessages()
    keep(retained, "a/b/c")
    keep(retained, "a")
    keep(retained, "a/b/c", b"")
    keep(retained, "never/was", b"")
    assert [message.topic for message in retained.match("#", 0.0)] == ["a"]
    keep(retained, "a", b"")
    assert not retained._root.children


@pytest.mark.parametrize(("now", "found"), [(9.9, 1), (10.0, 0)])
def test_an_expired_message_is_not_found_and_forgotten(now: float, found: int) -> None:
    """[MQTT-3.3.2-5]: from its expiry on, a retained message is gone."""
    retained = RetainedMessages()
    retained.set(Message("t", b"x", expires_at=10.0))
    assert len(list(retained.match("#", now))) == found
    assert len(retained) == found


def test_a_topic_of_many_levels_is_no_trouble() -> None:
    """A topic may have 65,535 levels; finding it must not run out of stack."""
    retained = RetainedMessages()
    topic = "/" * 20_000
    keep(retained, topic)
    assert [message.topic for message in retained.match("#", 0.0)] == [topic]
    assert [message.topic for message in retained.match("/".join(["+"] * 20_001), 0.0)] == [topic]
    retained.remove(topic)
    assert len(retained) == 0


@given(st.lists(st.tuples(TOPICS, st.binary(max_size=2)), max_size=30))
def test_the_limits_hold_whatever_is_kept_and_removed(kept: list[tuple[str, bytes]]) -> None:
    """Both sums are those of what is there, and never above the limits."""
    retained = RetainedMessages(max_messages=3, max_bytes=1500)
    for topic, payload in kept:
        message = Message(topic, payload, retain=True)
        has_room = retained.has_room(message)
        assert retained.set(message) == has_room
        assert (topic in retained.by_topic) == (has_room and bool(payload))
        limited = [m for m in retained.by_topic.values() if not m.topic.startswith("$SYS")]
        assert retained.n_limited == len(limited) <= 3
        n_bytes = sum(
            m.payload_bytes + len(m.topic) + 256 * len(m.topic.split("/")) for m in limited
        )
        assert retained.n_bytes == n_bytes <= 1500


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
