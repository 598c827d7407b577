"""A session that other brokers may have: this one has to have it before it opens it."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest

from penstock.broker.errors import PenstockError
from penstock.broker.extensions import SessionOwner
from penstock.broker.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from tests.helpers.access import Later, finish
from tests.helpers.virtual import VirtualBroker, VirtualClient


class Owner(SessionOwner):
    """An owner whose answers the test gives.

    Attributes:
        claims: what it was asked.
        n_waits: so many of its answers take a wait.
        error: what it raises; None for nothing.
        n_routed: how many SUBSCRIBEs have asked.
    """

    def __init__(self) -> None:
        self.claims: list[tuple[str, bool]] = []
        self.n_waits = 0
        self.error: Exception | None = None
        self.n_routed = 0

    def claim(self, client_id: str, *, clean_start: bool) -> Awaitable[None] | None:
        """Answer at once, or after a wait."""
        self.claims.append((client_id, clean_start))
        return self._answer()

    def routed(self) -> Awaitable[None] | None:
        """Answer at once, or after a wait."""
        self.n_routed += 1
        return self._answer()

    def _answer(self) -> Awaitable[None] | None:
        if self.n_waits:
            self.n_waits -= 1
            return self._wait()
        if self.error is not None:
            raise self.error
        return None

    async def _wait(self) -> None:
        await Later(None)
        if self.error is not None:
            raise self.error


def connecting(broker: VirtualBroker, version: int = 5) -> VirtualClient:
    """Return a client that has sent its CONNECT."""
    client = VirtualClient(broker, version)
    client.send(Connect(client_id="c", protocol_version=version, clean_start=True, keep_alive=0))
    return client


def test_an_owner_is_asked_before_a_session_is_opened() -> None:
    """Without a wait where it has it; not about the broker's own clients."""
    owner = Owner()
    broker = VirtualBroker(session_owner=owner)
    broker.connect("a", properties={"session_expiry_interval": 60})
    broker.connect("b", 4, clean_start=False)
    broker.connect("$uplink/x", is_forwarded=True)
    assert owner.claims == [("a", True), ("b", False)]


def test_a_session_is_opened_once_the_claim_is_answered() -> None:
    """Nothing is there before. It is asked again after a wait, as another broker may have come."""
    owner = Owner()
    owner.n_waits = 2
    broker = VirtualBroker(session_owner=owner)
    client = connecting(broker)
    assert not client.inbox
    assert broker.core.sessions.get("c") is None
    finish(client)
    assert client.take(ConnAck).reason_code == 0
    assert len(owner.claims) == 3
    owner.n_waits = 1
    gone = connecting(broker)
    gone.lose()
    finish(gone)
    assert client.session.client is client.connection.client


def test_the_time_for_a_connect_is_not_that_of_its_claim() -> None:
    """The CONNECT has come: its client is answered, and the log does not say that none came."""
    owner = Owner()
    owner.n_waits = 1
    owner.error = PenstockError("the engine is away")
    broker = VirtualBroker(session_owner=owner)
    client = connecting(broker)
    broker.advance(60.0)
    finish(client)
    assert client.take(ConnAck).reason_code == ReasonCode.SERVER_UNAVAILABLE
    assert broker.core.counters.connections_refused == {"session_owner": 1}


@pytest.mark.parametrize("waits", [0, 1])
@pytest.mark.parametrize("version", [4, 5])
def test_a_client_whose_session_is_elsewhere_is_refused(waits: int, version: int) -> None:
    """It is told why; a fault of the owner is logged, and counted."""
    owner = Owner()
    broker = VirtualBroker(session_owner=owner)
    for error in (PenstockError("the engine is away"), RuntimeError("a fault")):
        owner.n_waits = waits
        owner.error = error
        client = connecting(broker, version)
        finish(client)
        connack = client.take(ConnAck)
        assert connack.reason_code == ReasonCode.SERVER_UNAVAILABLE
        if version == 5:
            told = connack.properties.get("reason_string", "")
            assert told == ("the engine is away" if isinstance(error, PenstockError) else "")
        assert client.is_lost
    assert broker.core.counters.connections_refused == {"session_owner": 2}
    assert broker.core.counters.extension_errors == {"session owner": 1}
    assert broker.core.sessions.get("c") is None


def test_suback_waits_until_subscriptions_hold_everywhere() -> None:
    """What is published meanwhile comes; a SUBSCRIBE that is refused whole asks nobody."""
    owner = Owner()
    broker = VirtualBroker(session_owner=owner)
    client, publisher = broker.connect("c"), broker.connect("p")
    owner.n_waits = 1
    client.send(Subscribe(1, (SubscriptionRequest("t", 0),)))
    publisher.publish("t", b"x")
    assert client.payloads() == [b"x"]
    assert not client.inbox
    owner.error = PenstockError("the engine is away")
    finish(client)
    assert client.take(SubAck).reason_codes == (0,)
    client.send(Subscribe(2, (SubscriptionRequest("$share/g", 0),)))
    assert owner.n_routed == 1


@pytest.mark.parametrize(("delay", "is_published"), [(0, True), (30, False)])
def test_a_client_that_is_let_go_leaves_its_will_as_when_it_is_taken_over(
    delay: int,
    is_published: bool,  # noqa: FBT001 (of a table)
) -> None:
    """One that is delayed is not published: the client is back, at another broker."""
    broker = VirtualBroker()
    observer = broker.connect("o")
    observer.subscribe("will")
    properties = {"will_delay_interval": delay}
    client = broker.connect(
        "c",
        clean_start=False,
        properties={"session_expiry_interval": 60},
        will=Will("will", b"gone", properties=properties),
    )
    broker.core.sessions.release("c", ReasonCode.SESSION_TAKEN_OVER, broker.now)
    broker.settle()
    assert client.take(Disconnect).reason_code == ReasonCode.SESSION_TAKEN_OVER
    assert broker.core.sessions.get("c") is None
    broker.advance(100)
    assert observer.payloads() == [b"gone"] * is_published
