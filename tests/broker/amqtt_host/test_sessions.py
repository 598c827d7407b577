from __future__ import annotations

import logging
import pickle
from asyncio import Queue

import pytest
from amqtt.session import ApplicationMessage, OutgoingApplicationMessage
from amqtt.session import Session as AmqttSession

from penstock.broker.access_control import ConnectAttempt
from penstock.broker.amqtt_host.sessions import HostedSession, session_of_attempt
from penstock.broker.config.limits import Limits
from penstock.broker.config.mqtt_options import MqttOptions
from penstock.broker.message import Message
from penstock.broker.sessions.broker_state import Core


def attempt_of(password: bytes | None = b"secret", keep_alive: int = 30) -> ConnectAttempt:
    """Return what a client with every field sent."""
    return ConnectAttempt(
        client_id="c",
        username="user",
        password=password,
        protocol_version=4,
        clean_start=False,
        keep_alive=keep_alive,
        will=Message("will/topic", b"gone", qos=1, retain=True),
        remote_address="192.0.2.1",
        remote_port=999,
        listener="default",
        ssl_object="tls",
    )


def test_hosted_session_has_what_amqtts_has() -> None:
    """Every attribute of aMQTT's own session is there, with the same value at the beginning."""
    theirs = AmqttSession()
    ours = HostedSession("c")
    assert isinstance(ours, AmqttSession)
    for name, value in vars(theirs).items():
        if name in {"transitions", "client_id"}:
            continue
        if isinstance(value, Queue):
            assert getattr(ours, name).empty()
        else:
            assert getattr(ours, name) == value, name


def test_containers_are_made_once() -> None:
    """A queue that a plugin asks for twice is the same queue."""
    session = HostedSession("c")
    assert session.retained_messages is session.retained_messages
    assert session.attributes is session.attributes
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = session.no_such_name


def test_sessions_share_nothing() -> None:
    """What a plugin notes of one client is not seen in another's session."""
    one, other = HostedSession("one"), HostedSession("other")
    one.attributes["k"] = 1
    one.inflight_out[1] = OutgoingApplicationMessage(1, "t", 1, b"", retain=False)
    assert other.attributes == {}
    assert not other.inflight_out


def test_state_goes_with_the_connection() -> None:
    """The words of aMQTT's state machine are new, connected and disconnected."""
    session = HostedSession("c")
    assert session.transitions.is_new()
    session.connected()
    assert session.transitions.state == "connected"
    assert session.transitions.is_connected()
    assert isinstance(session.last_connect_time, int)
    session.disconnected()
    assert session.transitions.is_disconnected()
    assert isinstance(session.last_disconnect_time, int)
    session.connected()
    assert session.__dict__["last_disconnect_time"] is None
    assert "state=connected" in repr(session)


def test_sessions_are_equal_by_client_id() -> None:
    """Sessions of one client compare equal, as in aMQTT."""
    assert HostedSession("c") == HostedSession("c")
    assert HostedSession("c") != HostedSession("d")


def test_attempt_becomes_a_session_as_amqtt_makes_it() -> None:
    """Authentication plugins find the client's credentials, will and address."""
    session = session_of_attempt(attempt_of(), keep_alive_grace=2)
    assert session.client_id == "c"
    assert (session.username, session.password) == ("user", "secret")
    assert (session.remote_address, session.remote_port) == ("192.0.2.1", 999)
    assert session.clean_session is False
    assert session.keep_alive == 32
    assert session.ssl_object == "tls"
    assert session.will_flag
    assert (session.will_topic, session.will_message) == ("will/topic", b"gone")
    assert (session.will_qos, session.will_retain) == (1, True)


def test_keep_alive_of_none_gets_no_grace() -> None:
    """A client that asks for no keep-alive is not given one."""
    assert session_of_attempt(attempt_of(keep_alive=0), keep_alive_grace=2).keep_alive == 0


@pytest.mark.parametrize(("password", "text"), [(None, None), (b"\xff", "b'\\xff'")])
def test_password_that_is_no_text(password: bytes | None, text: str | None) -> None:
    """A password that is not UTF-8 reads as aMQTT reads it."""
    assert session_of_attempt(attempt_of(password), 0).password == text


def test_new_connection_brings_its_own_will_and_credentials() -> None:
    """A session that goes on takes what the newest CONNECT said, and keeps its identity."""
    session = HostedSession("c")
    session.username = "before"
    session.parent = 1
    session.take_over(session_of_attempt(attempt_of(), 0))
    assert session.username == "user"
    assert session.will_topic == "will/topic"
    assert session.parent == 1


def test_counts_are_the_brokers() -> None:
    """The figures that aMQTT's `$SYS` plugin adds up are those of the real session."""
    core = Core(
        Limits(),
        logger=logging.getLogger("test"),
        wake=lambda: None,
        spawn=lambda coroutine: coroutine.close(),
        options=MqttOptions(),
        new_client_id=lambda: "x",
    )
    hosted = HostedSession("c")
    assert hosted.inflight_in_count == hosted.inflight_out_count == 0
    assert hosted.retained_messages_count == 0
    hosted.session = session = core.sessions.create("c")
    message = Message("t", b"p", qos=1)
    session.deliver(message, 1, retain=False, subscription_ids=(), now=0.0)
    session.incoming[7] = None
    assert hosted.retained_messages_count == 1
    assert hosted.inflight_in_count == 1


def test_pickled_session_leaves_the_broker_behind() -> None:
    """A plugin may pickle a session; sockets and the broker's own parts stay out."""
    session = session_of_attempt(attempt_of(), 0)
    session.retained_messages.put_nowait(ApplicationMessage(1, "t", 1, b"", retain=False))
    copy = pickle.loads(pickle.dumps(session))  # noqa: S301 (made just now)
    assert copy == session
    assert copy.username == "user"
    assert copy.ssl_object is None
    assert copy.retained_messages.empty()
