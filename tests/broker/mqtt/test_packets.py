from __future__ import annotations

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode as PahoReasonCode

from penstock.broker.mqtt.enums import PacketType
from penstock.broker.mqtt.packets import REASON_CODES, Connect, Publish, SubscriptionRequest, Will
from penstock.broker.mqtt.reason_codes import (
    CONNACK_RETURN_CODES,
    SUBACK_FAILURE_3_1_1,
    ReasonCode,
    describe_reason_code,
)


def test_subscriptions_cannot_be_changed() -> None:
    """A subscription is kept by the session and the tree: neither changes the other's."""
    subscription = SubscriptionRequest("a")
    with pytest.raises(AttributeError):
        subscription.qos = 1  # type: ignore[misc]  # what the test is about


def test_secrets_and_payloads_stay_out_of_logs() -> None:
    """The text of a packet has neither password nor payload."""
    texts = [
        repr(Connect(username="u", password=b"hidden", will=Will("t", b"hidden"))),
        repr(Publish("t", b"hidden")),
    ]
    assert all("hidden" not in text and "'t'" in text for text in texts)


@pytest.mark.parametrize("packet_type", list(REASON_CODES))
def test_reason_codes_of_each_packet_are_those_that_a_client_knows(packet_type: PacketType) -> None:
    """Our sets are those that paho-mqtt has of section 2.4."""
    known = {
        code
        for code, names in PahoReasonCode(PacketTypes.CONNACK).names.items()
        if any(packet_type in packet_types for packet_types in names.values())
    }
    if packet_type == PacketType.CONNACK:
        # The Will Payload may be found not to have its format (Table 3-1); paho lacks it.
        known.add(0x99)
    assert REASON_CODES[packet_type] == known


def test_codes_are_those_that_a_client_knows() -> None:
    """Our list is the one that paho-mqtt, which is not ours, has of section 2.4."""
    known = set(PahoReasonCode(PacketTypes.CONNACK).names)
    assert {int(code) for code in ReasonCode} == known


def test_description_names_the_code_in_words_and_hexadecimal() -> None:
    """Logs are read by people."""
    assert describe_reason_code(0x97) == "quota exceeded (0x97)"
    assert describe_reason_code(0x7F) == "unknown (0x7F)"


def test_return_codes_of_3_1_1_are_one_to_five_for_refusals() -> None:
    """Every refusal that MQTT 3.1.1 can say is one of its five return codes (3.2.2.3)."""
    refusals = {code: answer for code, answer in CONNACK_RETURN_CODES.items() if code}
    assert set(refusals.values()) == {1, 2, 3, 4, 5}
    assert all(code >= 0x80 for code in refusals)
    assert CONNACK_RETURN_CODES[0] == 0
    assert SUBACK_FAILURE_3_1_1 == 0x80
