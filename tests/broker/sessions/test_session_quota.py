"""Limits of sessions, on a virtual clock: n are made, n + 1 is refused, who has one comes back."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.mqtt.packets import ConnAck, Connect
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.sessions.session_quota import SessionQuota
from tests.helpers.durable import DurableBroker
from tests.helpers.virtual import VirtualBroker, VirtualClient

UNAVAILABLE = ReasonCode.SERVER_UNAVAILABLE
"""As which return code 3 of MQTT 3.1.1 is read."""

KEPT = {"session_expiry_interval": 1000}


def connect(
    broker: VirtualBroker,
    client_id: str,
    *,
    version: int = 5,
    username: str | None = None,
    address: str = "",
    **options: Any,
) -> tuple[VirtualClient, ConnAck]:
    """Connect a client that keeps its session; return it with the answer."""
    client = VirtualClient(broker, version)
    client.connection.client.remote_address = address
    options.setdefault("clean_start", False)
    properties = KEPT if version == 5 else {}
    client.send(
        Connect(
            client_id=client_id,
            protocol_version=version,
            username=username,
            properties=properties,
            **options,
        )
    )
    return client, client.take(ConnAck)


def leave(broker: VirtualBroker, client_id: str, **options: Any) -> ConnAck:
    """Connect a client and lose it; return the answer that it got."""
    client, connack = connect(broker, client_id, **options)
    if not client.is_lost:
        client.lose()
    return connack


@pytest.mark.parametrize(
    ("version", "code"), [(5, ReasonCode.QUOTA_EXCEEDED), (4, UNAVAILABLE), (3, UNAVAILABLE)]
)
def test_above_the_limit_a_client_gets_no_new_session(
    version: int, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """One client left 20,000 of them in 5 s. The refusal is told, counted and logged."""
    caplog.set_level(logging.INFO)
    broker = VirtualBroker(Limits(sessions=2))
    assert [leave(broker, name, version=version).reason_code for name in "ab"] == [0, 0]
    client, connack = connect(broker, "c", version=version)
    assert connack.reason_code == code
    assert client.is_lost
    assert len(broker.core.sessions) == 2
    assert broker.core.counters.connections_refused == {"sessions": 1}
    assert "client c: refused, allowed: 2 sessions" in caplog.text
    if version == 5:
        assert connack.properties == {"reason_string": "allowed: 2 sessions"}


@pytest.mark.parametrize("clean_start", [False, True])
def test_who_has_a_session_is_let_in(*, clean_start: bool) -> None:
    """Also to begin anew, as that ends the old one, and while it is connected."""
    broker = VirtualBroker(Limits(sessions=1))
    leave(broker, "a")
    assert connect(broker, "a", clean_start=clean_start)[1].reason_code == 0
    assert connect(broker, "a", clean_start=clean_start)[1].reason_code == 0
    assert leave(broker, "b").reason_code == ReasonCode.QUOTA_EXCEEDED


def test_the_end_of_a_session_makes_room() -> None:
    """Its expiry as well as a clean session's own end."""
    broker = VirtualBroker(Limits(sessions=1, sessions_per_user=1, sessions_per_address=1))
    options: dict[str, Any] = {"username": "joe", "address": "192.0.2.1"}
    leave(broker, "a", **options)
    broker.advance(1001)
    assert leave(broker, "b", version=4, clean_start=True, **options).reason_code == 0
    assert leave(broker, "c", **options).reason_code == 0


def test_a_user_has_so_many_sessions_and_no_more() -> None:
    """Other users have theirs; clients without a user name are no user."""
    broker = VirtualBroker(Limits(sessions_per_user=1))
    assert leave(broker, "a", username="joe").reason_code == 0
    refused = leave(broker, "b", username="joe")
    assert refused.reason_code == ReasonCode.QUOTA_EXCEEDED
    assert refused.properties == {"reason_string": "allowed: 1 sessions of a user"}
    assert leave(broker, "b", username="ann").reason_code == 0
    assert leave(broker, "c").reason_code == leave(broker, "d").reason_code == 0
    assert broker.core.counters.connections_refused == {"user_sessions": 1}


@pytest.mark.parametrize(
    ("first", "same", "other"),
    [("192.0.2.1", "192.0.2.1", "192.0.2.2"), ("2001:db8::1", "2001:db8::2:3", "2001:db8:0:1::1")],
)
def test_an_address_has_so_many_sessions_and_no_more(first: str, same: str, other: str) -> None:
    """A network of IPv6 is one host's."""
    broker = VirtualBroker(Limits(sessions_per_address=1))
    assert leave(broker, "a", address=first).reason_code == 0
    assert leave(broker, "b", address=same).reason_code == ReasonCode.QUOTA_EXCEEDED
    assert leave(broker, "b", address=other).reason_code == 0
    assert leave(broker, "c", address="").reason_code == leave(broker, "d").reason_code == 0
    assert broker.core.counters.connections_refused == {"address_sessions": 1}


def test_a_session_counts_where_its_client_came_from_last() -> None:
    """A client that moves on makes room behind it, and is let in wherever it comes."""
    broker = VirtualBroker(Limits(sessions_per_user=1, sessions_per_address=1))
    for client_id, username, address in (("a", "joe", "192.0.2.1"), ("b", "ann", "192.0.2.2")):
        leave(broker, client_id, username=username, address=address)
    assert leave(broker, "a", username="ann", address="192.0.2.2").reason_code == 0
    quota = broker.core.sessions.quota
    assert quota.of_user == {"ann": 2}
    assert quota.of_address == {"192.0.2.2": 2}
    assert leave(broker, "c", username="joe", address="192.0.2.1").reason_code == 0
    broker.advance(1001)
    assert (quota.of_user, quota.of_address) == ({}, {})


def test_nothing_is_counted_that_has_no_limit() -> None:
    """A table of a million users takes memory, too."""
    broker = VirtualBroker()
    leave(broker, "a", username="joe", address="192.0.2.1")
    quota = broker.core.sessions.quota
    assert (quota.of_user, quota.of_address) == ({}, {})
    assert SessionQuota(Limits()).refusal(10**9, "joe", "192.0.2.1") == ("", "")


def test_a_restart_brings_back_more_than_the_limit() -> None:
    """They count: their clients are let in, and no other until there are fewer."""
    broker = DurableBroker()
    for client_id in "abc":
        leave(broker, client_id, username="joe", address="192.0.2.1")
    limits = Limits(sessions=2, sessions_per_user=2, sessions_per_address=2)
    broker = DurableBroker(broker.disk, limits=limits, now=broker.now)
    assert len(broker.core.sessions) == 3
    assert broker.core.sessions.quota.of_user == {"joe": 3}
    assert leave(broker, "d").reason_code == ReasonCode.QUOTA_EXCEEDED
    for client_id in "abc":
        assert leave(broker, client_id, username="joe", address="192.0.2.1").reason_code == 0
    assert broker.core.sessions.quota.of_address == {"192.0.2.1": 3}
