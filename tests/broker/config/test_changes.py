"""What changes live between two configurations, and what needs a restart."""

from __future__ import annotations

import logging
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.config.changes import InForce, compare, flatten, is_live, show_keys
from penstock.broker.config.limits import Limits
from penstock.broker.config.policy import LIVE, PolicyKeys, parse_policy

LISTENERS = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.fixed_dictionaries(
        {"bind": st.sampled_from(["127.0.0.1:0", "127.0.0.1:1883", "unix:/tmp/s"])},
        optional={"max_connections": st.integers(0, 5), "sizes": st.sampled_from(["small", None])},
    ),
    min_size=1,
    max_size=1,
)
POLICIES = st.fixed_dictionaries(
    {"listeners": LISTENERS},
    optional={
        "limits": st.fixed_dictionaries(
            {},
            optional={
                "queued_messages": st.integers(1, 9),
                "queue_full": st.sampled_from(["reject", "drop_oldest"]),
                "plugin_events": st.integers(1, 9),
                "payload_bytes": st.none() | st.integers(1, 9),
            },
        ),
        "mqtt": st.fixed_dictionaries(
            {},
            optional={
                "maximum_qos": st.integers(0, 2),
                "topic_alias_maximum": st.integers(0, 9),
                "sizes_by_client": st.dictionaries(
                    st.sampled_from(["x.*", "y"]), st.sampled_from(["small", "large", None])
                ),
            },
        ),
        "persistence": st.fixed_dictionaries({}, optional={"path": st.sampled_from(["p", "q"])}),
        "sys_interval": st.integers(0, 3),
        "session_expiry_interval": st.none() | st.integers(0, 3),
        "log": st.fixed_dictionaries({}, optional={"level": st.sampled_from(["debug", "info"])}),
        "plugins": st.just({}) | st.just({"amqtt.plugins.sys.broker.BrokerSysPlugin": None}),
    },
)
"""Policy files with keys of each kind, of which some change live."""


@given(POLICIES, POLICIES)
@settings(deadline=None)
def test_to_go_back_changes_the_same_keys_and_leaves_what_was_there(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    """Whatever the two files have; what needs a restart is named until it is as at the start."""
    before, after = (parse_policy(file, "policy.yaml").values() for file in (one, other))
    there = compare(before, after, LIVE)
    back = compare(there.in_force, before, LIVE)
    assert back.in_force == before
    assert (set(back.live), back.needs_restart) == (set(there.live), ())
    again = compare(there.in_force, after, LIVE)
    assert (again.live, set(again.needs_restart)) == ((), set(there.needs_restart))
    for key in there.live:
        assert there.in_force.get(key) == after.get(key)


@pytest.mark.parametrize(
    ("key", "is_live_"),
    [
        ("limits.queued_messages", True),
        ("limits.plugin_events", False),
        ("listeners.tls.certfile", True),
        ("listeners.tls.unsent_bytes", False),
        ("mqtt.maximum_qos", True),
        ("mqtt.topic_alias_maximum", False),
        ("persistence.path", False),
        ("log.level", True),
        ("plugins.amqtt.x.Y.key", False),
    ],
)
def test_which_keys_change_live(key: str, *, is_live_: bool) -> None:
    """The longest beginning of a key that the table has decides; ``*`` stands for any name."""
    assert is_live(tuple(key.split(".")), LIVE) is is_live_


def test_every_limit_is_named_by_its_key() -> None:
    """So that an operator finds it in the file."""
    flat = flatten(Limits(), ("limits",))
    is_set = {field.name for field in fields(Limits) if getattr(Limits(), field.name) is not None}
    assert {key[1] for key in flat} == is_set


def test_what_stands_below_a_changed_key_is_not_named_again() -> None:
    """A plugin that has come is one change."""
    keys = [("plugins", "queue"), ("plugins", "queue", "path"), ("limits", "connections")]
    assert show_keys(keys) == ["limits.connections", "plugins.queue"]


def test_nothing_and_none_are_the_same() -> None:
    """A key that is set to null is as one that is not there."""
    first = parse_policy({"session_expiry_interval": None, "limits": {"sessions": None}}, "p")
    second = parse_policy({}, "p")
    assert first.values() == second.values()


@pytest.mark.parametrize("section", [key.name for key in fields(PolicyKeys)])
def test_no_section_of_the_file_changes_unseen(section: str) -> None:
    """Else an operator would take it for changed."""
    values: dict[str, Any] = {
        "listeners": {"other": {"bind": 1}},
        "limits": {"sessions": 1},
        "mqtt": {"maximum_qos": 0},
        "plugins": {"amqtt.x.Y": None},
        "auth": {"allow-anonymous": True},
        "topic_check": {"enabled": True},
        "persistence": {},
        "log": {"level": "debug"},
    }
    before, after = (
        parse_policy(file, "p").values() for file in ({}, {section: values.get(section, 1)})
    )
    compared = compare(before, after, LIVE)
    assert {key[0] for key in (*compared.live, *compared.needs_restart)} == {section}


def test_what_failed_after_all_is_tried_again() -> None:
    """The rest counts."""
    before = {("plugins", "queue", "queues", "a", "max_messages"): 1, ("sys_interval",): 1}
    after = {("plugins", "queue", "queues", "a", "max_messages"): 2, ("sys_interval",): 2}
    live = {("sys_interval",): True, ("plugins", "queue", "queues"): True}
    in_force = InForce("policy.yaml", before, logging.getLogger("test"))
    changes = compare(in_force.values, after, live)
    answer = in_force.take(changes, [], {"plugins.queue": "no room"})
    assert (answer.changed, answer.failed) == (["sys_interval"], {"plugins.queue": "no room"})
    again = compare(in_force.values, after, live)
    assert show_keys(again.live) == ["plugins.queue.queues.a.max_messages"]
    in_force.take(again, [], {})
    assert in_force.values == after


def test_the_account_of_a_reload_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """With all that an operator has to know."""
    caplog.set_level(logging.INFO)
    in_force = InForce("policy.yaml", {("a",): 1, ("b",): 1}, logging.getLogger("test"))
    wanted: dict[tuple[str, ...], int] = {("a",): 2, ("b",): 2}
    in_force.take(compare(in_force.values, wanted, {("a",): True}), ["b file"], {})
    in_force.refuse({"limits.sessions": "read 0; allowed: 1 or more"})
    assert caplog.messages == [
        "reloaded: b file; changed: a; needs a restart: b",
        "not reloaded: limits.sessions: read 0; allowed: 1 or more; nothing has changed",
    ]
