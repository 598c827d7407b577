"""Section 3.15: what an AUTH of the broker may hold; its exchange is the authenticators' tests."""

from __future__ import annotations

import pytest

from penstock.broker.access_control import (
    Accepted,
    AuthExchange,
    AuthStep,
    Challenge,
    ConnectAttempt,
)
from penstock.broker.mqtt.packets import Auth, ConnAck, Connect
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.writer import write_packet
from tests.conformance.clients import answer
from tests.helpers.virtual import VirtualBroker, VirtualClient


class Knock(AuthExchange):
    """An authenticator that lets in who answers at all."""

    method = "KNOCK"

    def start(self, attempt: ConnectAttempt) -> AuthExchange:
        """Begin."""
        del attempt
        return self

    def step(self, data: bytes | None) -> AuthStep:
        """Ask once."""
        return Accepted() if data else Challenge(b"who?")


@pytest.mark.mqtt5("3.15.2-2", "3.15.2-3")
def test_auth_fits_into_the_smallest_packet() -> None:
    """It holds its code, its method and its data, and no word that would take room."""
    properties = {"authentication_method": "KNOCK", "authentication_data": b"who?"}
    challenge = Auth(ReasonCode.CONTINUE_AUTHENTICATION, properties)
    size = len(write_packet(challenge, 5))
    client = VirtualClient(VirtualBroker(authenticators=[Knock()]))
    wish = {"authentication_method": "KNOCK", "maximum_packet_size": size}
    came = answer(client, Connect(client_id="c", properties=wish))
    assert came == write_packet(challenge, 5)


@pytest.mark.mqtt5("4.12.0-5")
def test_connack_and_auth_carry_the_method_of_connect() -> None:
    """From the first challenge to the end of the exchange."""
    client = VirtualClient(VirtualBroker(authenticators=[Knock()]))
    wish = {"authentication_method": "KNOCK"}
    client.send(Connect(client_id="c", properties=wish, keep_alive=0))
    assert client.take(Auth).properties["authentication_method"] == "KNOCK"
    reply = {"authentication_method": "KNOCK", "authentication_data": b"me"}
    client.send(Auth(ReasonCode.CONTINUE_AUTHENTICATION, reply))
    connack = client.take(ConnAck)
    assert (connack.reason_code, connack.properties["authentication_method"]) == (0, "KNOCK")
