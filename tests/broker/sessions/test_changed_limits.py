"""Limits and options that change while clients are connected, on a virtual clock."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.config.limits import Limits
from penstock.broker.config.mqtt_options import MqttOptions
from penstock.broker.mqtt.packets import PubAck
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.sessions.broker_state import Core
from tests.broker.sessions.test_session_quota import connect, leave
from tests.helpers.virtual import VirtualBroker

LIMITS = st.builds(
    Limits,
    queued_messages=st.sampled_from([1, 3, 10, 100_000]),
    queued_bytes=st.sampled_from([1, 100, 1 << 30]),
    total_queued_messages=st.sampled_from([2, 1 << 20]),
    total_queued_bytes=st.sampled_from([1_000, 1 << 30]),
    queue_full=st.sampled_from(["reject", "drop_newest", "drop_oldest"]),
    retained_messages=st.integers(0, 3),
    payload_bytes=st.sampled_from([1, 50, None]),
    sessions_per_user=st.sampled_from([None, 2]),
    total_received_bytes=st.sampled_from([None, 1_000]),
    publish_messages_per_second=st.sampled_from([None, 5]),
)
OPTIONS = st.builds(MqttOptions, maximum_qos=st.integers(0, 2), check_payload_format=st.booleans())


def change(core: Core, limits: Limits, options: MqttOptions | None = None) -> None:
    """Change a core's limits and options, and all that follows."""
    core.change(
        limits,
        options or core.options,
        session_expiry_limit=None,
        keep_alive_grace=0.0,
        sizes_by_listener={},
    )
    for _ in core.look_at_sessions():
        pass


def settings_of(core: Core) -> dict[str, Any]:
    """Return what decides about messages and clients."""
    rules, room = core.outbox_rules, core.room
    assert rules.backlog is not None
    return {
        "limits": core.limits,
        "options": core.options,
        "rules": (rules.max_messages, rules.half_bytes, rules.drops_oldest),
        "backlog": (rules.backlog.most_messages, rules.backlog.most_bytes),
        "over_half": {str(each) for each in rules.over_half},
        "room": (room.rejects, bool(room.over_half), room._seconds),
        "retained": (core.retained.max_messages, core.retained.max_bytes),
        "payload": core.most_payload_bytes,
        "received": core.received.most_bytes,
        "is_restricted": core.is_restricted,
    }


@given(LIMITS, LIMITS, OPTIONS, OPTIONS)
def test_limits_that_are_changed_back_are_as_they_were(
    one: Limits, other: Limits, options: MqttOptions, other_options: MqttOptions
) -> None:
    """Whatever was between; and what a core has changed to is as if it had begun with it."""
    core = VirtualBroker(one, options=options).core
    before = settings_of(core)
    change(core, other, other_options)
    assert settings_of(core) == settings_of(VirtualBroker(other, options=other_options).core)
    change(core, one, options)
    assert settings_of(core) == before


@pytest.mark.parametrize("has_rate_first", [True, False])
def test_a_publish_rate_counts_for_connected_clients(*, has_rate_first: bool) -> None:
    """Also that it is gone."""
    without, limited = Limits(), Limits(publish_messages_per_second=2)
    broker = VirtualBroker(limited if has_rate_first else without)
    reader, publisher = broker.connect("reader"), broker.connect("publisher")
    reader.subscribe("t")

    change(broker.core, without if has_rate_first else limited)
    for client in (reader, publisher):
        client.connection.limits_changed(broker.now)
    for _ in range(10):
        publisher.publish("t", b"x")
    assert (len(reader.payloads()) == 10) is has_rate_first


def test_a_lower_limit_refuses_until_it_is_high_again() -> None:
    """What waits stays; messages of before are not dropped."""
    broker = VirtualBroker(Limits(total_queued_bytes=1 << 30))
    reader, publisher = broker.connect("reader"), broker.connect("publisher")
    reader.subscribe("t", qos=1)
    reader.connection.pause_sending(broker.now)

    def code() -> int:
        publisher.publish("t", b"x", qos=1, packet_id=1)
        return publisher.take(PubAck).reason_code

    assert [code() for _ in range(4)] == [0] * 4
    change(broker.core, Limits(queued_messages=2, total_queued_bytes=1 << 30))
    assert code() == ReasonCode.QUOTA_EXCEEDED
    session = broker.core.sessions.get("reader")
    assert session is not None
    session.outbox.check_invariants()
    change(broker.core, Limits(total_queued_bytes=1 << 30))
    assert code() == 0
    session.outbox.check_invariants()


def test_sessions_that_are_there_count_for_a_new_limit() -> None:
    """Connected or away, for their user and for the address of those that are connected."""
    broker = VirtualBroker(Limits(sessions_per_user=None, sessions_per_address=None))
    connect(broker, "1", username="ada", address="10.0.0.1")
    leave(broker, "2", username="ada", address="10.0.0.2")
    change(broker.core, Limits(sessions_per_user=2, sessions_per_address=1))
    answers = [
        connect(broker, client_id, username=username, address=address)[1].reason_code
        for client_id, username, address in (
            ("3", "ada", "10.0.0.3"),
            ("4", "bob", "10.0.0.1"),
            ("5", "bob", "10.0.0.2"),
            ("1", "ada", "10.0.0.1"),
        )
    ]
    assert answers == [ReasonCode.QUOTA_EXCEEDED, ReasonCode.QUOTA_EXCEEDED, 0, 0]
