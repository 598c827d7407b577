from __future__ import annotations

import logging

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.events import Callbacks, ClientConnected
from penstock.broker.mqtt.packets import Disconnect
from penstock.broker.reports.client_log import ClientLog
from penstock.broker.sending.log_fields import fields_of
from tests.helpers.virtual import VirtualBroker

LIMITS = "limits.queued_messages: 2, limits.queued_bytes: 134217728"
LOGGER = logging.getLogger("penstock.test")


def broker_with_log(*callbacks: Callbacks) -> VirtualBroker:
    """Return a broker whose log is written, with room for two messages of a session."""
    limits = Limits(queued_messages=2, queue_full="drop_newest")
    joined = Callbacks.joined([ClientLog(LOGGER).callbacks, *callbacks])
    return VirtualBroker(limits, callbacks=joined)


def offline_subscriber(broker: VirtualBroker, n_messages: int) -> None:
    """Let `s` subscribe and go; then publish to it."""
    subscriber = broker.connect("s", clean_start=False, properties={"session_expiry_interval": 60})
    subscriber.subscribe("t", qos=1)
    subscriber.lose()
    publisher = broker.connect("p")
    for _ in range(n_messages):
        publisher.publish("t", b"x", qos=1)


def test_what_was_dropped_while_a_client_was_away_is_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Five messages for two places: three are told when the client is back, and once."""
    broker = broker_with_log()
    with caplog.at_level(logging.INFO):
        offline_subscriber(broker, 5)
        for _ in range(2):
            broker.connect("s", clean_start=False, properties={"session_expiry_interval": 60})
    assert caplog.messages == [
        f"client s: 1 messages for it dropped: queue_full ({LIMITS})",
        "client s: messages for it dropped while it was away, 3: queue_full 3",
    ]


def test_what_is_dropped_with_a_session_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """A session that expires takes its messages along; a new one begins its own count."""
    broker = broker_with_log()
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            offline_subscriber(broker, 1)
            broker.advance(61)
    line = "client s: messages for it dropped with its session, 1: session_ended 1"
    assert caplog.messages == [line, line]


def test_a_client_that_gets_everything_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """The log is quiet while nothing is wrong."""
    broker = broker_with_log()
    with caplog.at_level(logging.INFO):
        client = broker.connect("c")
        client.subscribe("t")
        client.publish("t", b"x")
        client.lose()
    assert client.payloads() == [b"x"]
    assert caplog.messages == []


def test_debug_says_who_comes_and_goes(caplog: pytest.LogCaptureFixture) -> None:
    """A client that takes over another's session shows as one that goes and one that comes."""
    with caplog.at_level(logging.DEBUG):
        broker = broker_with_log()
        for _ in range(2):
            broker.connect("c", 4, username="ada")
    connected = "client c: connected, user 'ada', protocol level 4, from :0 on listener default"
    assert [record.message for record in caplog.records if record.name == LOGGER.name] == [
        connected,
        "client c: disconnected",
        "client c: session ended",
        connected,
    ]


def test_other_callbacks_are_still_called() -> None:
    """The log stands beside a host of plugins."""
    told: list[ClientConnected] = []
    broker_with_log(Callbacks(client_connected=(told.append,))).connect("c")
    assert [event.session.client_id for event in told] == ["c"]


def test_a_disconnection_has_its_reason_as_a_field(caplog: pytest.LogCaptureFixture) -> None:
    """For the forms of the log that have fields; nothing is wrong with a DISCONNECT."""
    broker = broker_with_log()
    with caplog.at_level(logging.DEBUG):
        broker.connect("s").lose()
        broker.connect("s").send(Disconnect())
    found = [fields_of(one) for one in caplog.records if one.msg == "client %s: disconnected"]
    assert [one.get("reason") for one in found] == ["connection lost", None]
    assert {one["client_id"] for one in found} == {"s"}
