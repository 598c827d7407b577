from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    Publish,
    Subscribe,
    SubscriptionRequest,
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from tests.helpers.access import Access, finish
from tests.helpers.riddle import Riddle
from tests.helpers.virtual import VirtualBroker, VirtualClient, will

CONTINUE = ReasonCode.CONTINUE_AUTHENTICATION
AGAIN = ReasonCode.REAUTHENTICATE


def asking(
    riddle: Riddle, data: bytes | None = None, limits: Limits | None = None, **options: Any
) -> VirtualClient:
    """Return a client that has sent a CONNECT with the method of a riddle."""
    client = VirtualClient(VirtualBroker(limits, authenticators=[riddle], access=Access()))
    properties: dict[str, Any] = {"authentication_method": riddle.method}
    if data is not None:
        properties["authentication_data"] = data
    client.send(Connect(client_id="c", properties=properties, keep_alive=0, **options))
    finish(client)
    return client


def auth(data: bytes | None = None, code: int = CONTINUE, method: str = "RIDDLE") -> Auth:
    """Return an AUTH."""
    properties: dict[str, Any] = {"authentication_method": method}
    if data is not None:
        properties["authentication_data"] = data
    return Auth(code, properties)


def answer(client: VirtualClient, packet: Auth) -> None:
    """Send an AUTH and wait for whatever takes a wait."""
    client.send(packet)
    finish(client)


def open_client(riddle: Riddle) -> VirtualClient:
    """Return a client that has authenticated."""
    client = asking(riddle, b"because")
    assert client.take(ConnAck).reason_code == 0
    return client


@pytest.mark.mqtt5("4.12.0-2", "4.12.0-3", "4.12.0-5", "3.15.2-1")
@pytest.mark.parametrize("waits", [False, True])
def test_an_exchange_goes_on_by_auth_until_connack(*, waits: bool) -> None:
    """Each challenge and the CONNACK name the method; the last data is the CONNACK's."""
    riddle = Riddle()
    riddle.waits = waits
    client = asking(riddle, username="sent")
    assert client.take(Auth) == auth(b"why")
    answer(client, auth(b"hm"))
    assert client.take(Auth) == auth()
    answer(client, auth(b"because"))
    connack = client.take(ConnAck)
    assert connack.reason_code == 0
    assert connack.properties["authentication_method"] == "RIDDLE"
    assert connack.properties["authentication_data"] == b"well done"
    assert client.session.username == "sphinx"
    assert riddle.attempts[0].username == "sent"


@pytest.mark.mqtt5("4.12.0-5")
def test_an_exchange_may_succeed_at_connect() -> None:
    """Without any AUTH, where CONNECT brought enough."""
    client = asking(Riddle(), b"because")
    assert client.take(ConnAck).properties["authentication_method"] == "RIDDLE"
    assert client.subscribe("t") == 0


def test_the_method_decides_alone() -> None:
    """Access control is not asked who connects, and still is about topics."""
    client = open_client(Riddle())
    access = client.broker.core.access
    assert isinstance(access, Access)
    assert access.attempts == []
    access.refused = {("subscribe", "t")}
    assert client.subscribe("t") == ReasonCode.NOT_AUTHORIZED


def test_without_a_name_from_the_method_that_of_connect_stays() -> None:
    """A method may know no users."""
    riddle = Riddle()
    riddle.username = None
    assert asking(riddle, b"because", username="sent").session.username == "sent"


@pytest.mark.mqtt5("4.12.0-1")
def test_an_unknown_method_is_refused() -> None:
    """With the reason code that says so; the connection closes."""
    client = VirtualClient(VirtualBroker(authenticators=[Riddle()]))
    client.send(Connect(client_id="c", properties={"authentication_method": "SCRAM"}))
    assert client.take(ConnAck).reason_code == ReasonCode.BAD_AUTHENTICATION_METHOD
    assert client.is_lost


@pytest.mark.mqtt5("4.12.0-4", "3.1.4-2")
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(
    ("asked_for", "told"),
    [
        (ReasonCode.NOT_AUTHORIZED, 0x87),
        (ReasonCode.BAD_USER_NAME_OR_PASSWORD, 0x86),
        (ReasonCode.SUCCESS, 0x87),
        (ReasonCode.KEEP_ALIVE_TIMEOUT, 0x87),
    ],
)
def test_who_is_refused_is_told_and_closed(
    asked_for: ReasonCode, told: int, *, waits: bool
) -> None:
    """With the method's reason code where a CONNACK may have it; no session is made."""
    riddle = Riddle()
    riddle.waits = waits
    riddle.reason_code = asked_for
    client = asking(riddle)
    client.take(Auth)
    answer(client, auth(b"nonsense"))
    connack = client.take(ConnAck)
    assert connack.reason_code == told
    assert "authentication_method" not in connack.properties
    assert client.is_lost
    assert client.broker.core.sessions.get("c") is None


@pytest.mark.parametrize("step", ["start", "first", "next"])
def test_a_method_that_raises_lets_nobody_in(step: str) -> None:
    """It is refused, and the fault counted under the method's name."""
    riddle = Riddle()
    riddle.is_broken = step == "start"
    client = asking(riddle, b"crash" if step == "first" else None)
    if step == "next":
        client.take(Auth)
        answer(client, auth(b"crash"))
    assert client.take(ConnAck).reason_code == ReasonCode.NOT_AUTHORIZED
    assert client.is_lost
    assert client.broker.core.counters.extension_errors == {"authenticator RIDDLE": 1}


@pytest.mark.mqtt5("3.1.2-30")
@pytest.mark.parametrize(
    "packet",
    [
        PingReq(),
        Publish("t", b"x"),
        Publish("t", b"x", qos=1, packet_id=1),
        Subscribe(1, (SubscriptionRequest("t", 0),)),
        Connect(client_id="c"),
    ],
    ids=lambda packet: type(packet).__name__,
)
@pytest.mark.parametrize("is_one_chunk", [False, True])
def test_before_connack_nothing_but_auth_and_disconnect_is_taken(
    packet: Any, *, is_one_chunk: bool
) -> None:
    """A protocol error, whether it comes with the CONNECT or later."""
    client = VirtualClient(VirtualBroker(authenticators=[Riddle()]))
    connect = Connect(client_id="c", properties={"authentication_method": "RIDDLE"})
    if is_one_chunk:
        client.send(connect, packet)
    else:
        client.send(connect)
        client.send(packet)
    client.take(Auth)
    assert client.take(ConnAck).reason_code == ReasonCode.PROTOCOL_ERROR
    assert client.is_lost
    assert client.inbox == []


@pytest.mark.mqtt5("3.15.1-1")
@pytest.mark.parametrize("data", [b"\xf1\x00", b"\x00\x00", b"\xf0\x01\x18", b"\xf0\x02\x17\x00"])
@pytest.mark.parametrize("is_open", [False, True])
def test_a_packet_that_is_none_ends_the_connection(data: bytes, *, is_open: bool) -> None:
    """Flags, type, properties or reason code that AUTH does not have; others notice nothing."""
    riddle = Riddle()
    client = open_client(riddle) if is_open else asking(riddle)
    client.take_all(Auth)
    client.send_bytes(data)
    told = client.take(Disconnect) if is_open else client.take(ConnAck)
    assert told.reason_code in (ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR)
    assert client.is_lost


def test_a_client_may_leave_in_the_middle() -> None:
    """Its DISCONNECT closes the connection; there is no session and no will."""
    client = asking(Riddle(), will=will())
    client.take(Auth)
    client.send(Disconnect())
    assert client.is_lost
    assert client.inbox == []
    assert client.broker.core.sessions.get("c") is None


def test_the_time_allowed_for_connect_holds_for_the_whole_exchange() -> None:
    """Who never answers a challenge does not keep a connection."""
    client = asking(Riddle(), limits=Limits(connect_timeout_seconds=5))
    client.broker.advance(4)
    answer(client, auth(b"hm"))
    assert not client.is_lost
    client.broker.advance(2)
    assert client.is_lost


def test_a_step_that_ends_after_its_connection_changes_nothing() -> None:
    """The client has gone while its answer was judged."""
    riddle = Riddle()
    riddle.waits = True
    client = asking(riddle)
    client.send(auth(b"because"))
    client.lose()
    finish(client)
    assert client.broker.core.sessions.get("c") is None


@pytest.mark.mqtt5("4.12.0-6", "4.12.0-7")
@pytest.mark.parametrize("code", [CONTINUE, AGAIN])
def test_auth_is_for_clients_that_named_a_method(code: ReasonCode) -> None:
    """Others get neither AUTH nor a method in their CONNACK, and their AUTH is an error."""
    client = VirtualBroker(authenticators=[Riddle()]).connect()
    assert "authentication_method" not in client.connack.properties
    client.send(auth(None, code))
    assert client.take(Disconnect).reason_code == ReasonCode.PROTOCOL_ERROR
    assert client.is_lost


@pytest.mark.mqtt5("4.12.1-1")
@pytest.mark.parametrize("waits", [False, True])
def test_a_connected_client_may_authenticate_again(*, waits: bool) -> None:
    """By the same steps; the end is an AUTH, and other packets go on in between."""
    riddle = Riddle()
    riddle.waits = waits
    client = open_client(riddle)
    answer(client, auth(None, AGAIN))
    assert client.take(Auth) == auth(b"why")
    client.send(PingReq())
    client.take(PingResp)
    answer(client, auth(b"because"))
    assert client.take(Auth) == auth(b"well done", ReasonCode.SUCCESS)
    answer(client, auth(b"because", AGAIN))
    assert client.take(Auth).reason_code == ReasonCode.SUCCESS
    assert not client.is_lost
    assert len(riddle.attempts) == 3


@pytest.mark.mqtt5("4.12.1-2")
@pytest.mark.parametrize("data", [b"nonsense", b"crash"])
def test_who_fails_to_authenticate_again_is_disconnected(data: bytes) -> None:
    """With a reason code; the will is due, as after any error."""
    riddle = Riddle()
    client = asking(riddle, b"because", will=will("will"))
    client.take(ConnAck)
    watcher = client.broker.connect("watcher")
    watcher.subscribe("will")
    answer(client, auth(data, AGAIN))
    assert client.take(Disconnect).reason_code == ReasonCode.NOT_AUTHORIZED
    assert client.is_lost
    assert watcher.payloads() == [b"gone"]


def test_a_refusal_that_disconnect_has_no_code_for_says_not_authorized() -> None:
    """0x86 is CONNACK's alone."""
    riddle = Riddle()
    client = open_client(riddle)
    riddle.reason_code = ReasonCode.BAD_USER_NAME_OR_PASSWORD
    answer(client, auth(b"nonsense", AGAIN))
    assert client.take(Disconnect).reason_code == ReasonCode.NOT_AUTHORIZED


def test_nobody_becomes_another_user() -> None:
    """What the session holds was granted to the first one (4.12.1)."""
    riddle = Riddle()
    client = open_client(riddle)
    riddle.username = "oedipus"
    answer(client, auth(b"because", AGAIN))
    assert client.take(Disconnect).reason_code == ReasonCode.NOT_AUTHORIZED
    assert client.is_lost


@pytest.mark.mqtt5("4.12.1-1", "4.12.0-5")
@pytest.mark.parametrize("is_open", [False, True])
def test_another_method_than_that_of_connect_is_refused(*, is_open: bool) -> None:
    """With the reason code that says so."""
    riddle = Riddle()
    client = open_client(riddle) if is_open else asking(riddle)
    code = AGAIN if is_open else CONTINUE
    if not is_open:
        client.take(Auth)
    client.send(auth(b"because", code, "OTHER"))
    told = client.take(Disconnect) if is_open else client.take(ConnAck)
    assert told.reason_code == ReasonCode.BAD_AUTHENTICATION_METHOD
    assert client.is_lost


@pytest.mark.mqtt5("4.12.0-3")
@pytest.mark.parametrize(
    ("packet", "is_open"),
    [
        (auth(b"because", AGAIN), False),
        (auth(b"because", ReasonCode.SUCCESS), False),
        (auth(b"because", CONTINUE), True),
        (auth(b"because", ReasonCode.SUCCESS), True),
    ],
)
def test_an_auth_that_nothing_waits_for_is_a_protocol_error(packet: Auth, *, is_open: bool) -> None:
    """Success is the server's word; again is for connected clients, continue for asked ones."""
    riddle = Riddle()
    client = open_client(riddle) if is_open else asking(riddle)
    client.take_all(Auth)
    client.send(packet)
    told = client.take(Disconnect) if is_open else client.take(ConnAck)
    assert told.reason_code == ReasonCode.PROTOCOL_ERROR
    assert client.is_lost


def test_an_auth_without_properties_is_a_protocol_error() -> None:
    """It is whole on the wire, and names no method."""
    client = open_client(Riddle())
    client.send_bytes(b"\xf0\x00")
    assert client.take(Disconnect).reason_code >= 0x80
    assert client.is_lost


def test_others_are_served_while_one_authenticates() -> None:
    """A step that waits suspends its own connection alone."""
    riddle = Riddle()
    riddle.waits = True
    client = VirtualClient(VirtualBroker(authenticators=[riddle]))
    other = client.broker.connect("other")
    other.subscribe("t")
    client.send(Connect(client_id="c", properties={"authentication_method": "RIDDLE"}))
    assert client.connection.client.suspended is not None
    other.publish("t", b"x")
    assert other.payloads() == [b"x"]
    finish(client)
    client.take(Auth)
