"""Whatever packets a client sends, in whatever order: who has not authenticated gets nothing."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PubAck,
    Publish,
    PubRel,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
)
from tests.helpers.access import finish
from tests.helpers.effort import examples
from tests.helpers.riddle import Riddle
from tests.helpers.virtual import VirtualBroker, VirtualClient

METHODS = st.sampled_from(["RIDDLE", "RIDDLE", "OTHER"])
DATA = st.sampled_from([None, b"hm", b"because", b"because", b"wrong", b"crash"])


def properties(method: str | None, data: bytes | None) -> dict[str, Any]:
    """Return the two properties of authentication."""
    named = {} if method is None else {"authentication_method": method}
    return named if data is None or method is None else named | {"authentication_data": data}


def connect(method: str | None, data: bytes | None) -> Connect:
    """Return a CONNECT."""
    return Connect(client_id="c", keep_alive=0, properties=properties(method, data))


PACKETS: st.SearchStrategy[Packet] = st.one_of(
    st.builds(connect, st.none() | METHODS, DATA),
    st.builds(
        lambda code, method, data: Auth(code, properties(method, data)),
        st.sampled_from([0x18, 0x18, 0x18, 0x19, 0x00]),
        METHODS,
        DATA,
    ),
    st.sampled_from(
        [
            PingReq(),
            Disconnect(),
            Publish("t", b"x", qos=1, packet_id=1),
            PubAck(7),
            PubRel(7),
            Subscribe(2, (SubscriptionRequest("t", 1),)),
            Unsubscribe(3, ("t",)),
        ]
    ),
)


@settings(max_examples=examples(200), deadline=None)
@given(
    first=st.builds(connect, METHODS, DATA),
    chunks=st.lists(st.lists(PACKETS, min_size=1, max_size=3), max_size=6),
    waits=st.booleans(),
)
def test_nothing_but_auth_comes_before_the_connack(
    first: Connect, chunks: list[list[Packet]], *, waits: bool
) -> None:
    """And a session is there for who was let in alone; another client notices nothing."""
    riddle = Riddle()
    riddle.waits = waits
    broker = VirtualBroker(authenticators=[riddle])
    other = broker.connect("other")
    other.subscribe("t")
    client = VirtualClient(broker)
    sent: list[list[Packet]] = [[first], *chunks]
    for packets in sent:
        client.send(*packets)
        finish(client)
    connacks = [packet for packet in client.inbox if isinstance(packet, ConnAck)]
    is_let_in = bool(connacks) and connacks[0].reason_code == 0
    before = client.inbox[: client.inbox.index(connacks[0])] if connacks else client.inbox
    assert all(isinstance(packet, Auth) and packet.reason_code == 0x18 for packet in before)
    assert len(connacks) <= 1
    if not is_let_in:
        assert "c" not in {session.client_id for session in broker.core.sessions}
        assert other.payloads() == []
        assert client.is_lost or client.inbox == [] or isinstance(client.inbox[-1], Auth)
    assert not other.is_lost
    other.publish("t", b"still here")
    assert other.payloads()[-1] == b"still here"
