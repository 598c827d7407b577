"""The features that the broker does not offer: CONNACK names them, and their use is refused.

The options are those under `mqtt` of the policy file. MQTT 3.1.1 has no words for most of it: a
packet of such a client that needs what is not there ends its connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.broker.errors import ProtocolError
from penstock.broker.mqtt.enums import MQTT_3_1
from penstock.broker.mqtt.packets import Connect, Subscribe
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.topics import SHARE_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.config.mqtt_options import MqttOptions

_REDIRECTIONS: Final = {
    "temporary": ReasonCode.USE_ANOTHER_SERVER,
    "permanent": ReasonCode.SERVER_MOVED,
}


def connack_properties(
    options: MqttOptions, client_id: str, packet: Connect
) -> dict[str, int | str]:
    """Return the CONNACK properties that say what is offered (MQTT 5.0, 3.2.2.3).

    What is offered whole is left out, as the specification has it.
    """
    properties: dict[str, int | str] = {}
    if options.topic_alias_maximum:
        properties["topic_alias_maximum"] = options.topic_alias_maximum
    if options.maximum_qos < 2:
        properties["maximum_qos"] = options.maximum_qos  # [MQTT-3.2.2-9]
    for name, is_available in (
        ("retain_available", options.retain_available),
        ("wildcard_subscription_available", options.wildcard_subscription_available),
        ("subscription_identifier_available", options.subscription_identifiers_available),
        ("shared_subscription_available", options.shared_subscription_available),
    ):
        if not is_available:
            properties[name] = 0
    information = options.response_information_for(client_id)
    if information and packet.properties.get("request_response_information"):
        properties["response_information"] = information  # [MQTT-3.1.2-28]
    return properties


def redirection(options: MqttOptions) -> ReasonCode | None:
    """Return why every client is sent to another server, or None where none is."""
    return None if options.redirect is None else _REDIRECTIONS[options.redirect]


def check_connect(options: MqttOptions, packet: Connect) -> None:
    """Check that the broker offers what a CONNECT needs.

    Raises:
        ProtocolError: unsupported protocol version; QoS not supported [MQTT-3.2.2-12], retain
            not supported [MQTT-3.2.2-13] or payload format invalid, of its Will.
    """
    if packet.protocol_version == MQTT_3_1 and not options.allow_mqtt31:
        raise ProtocolError(
            "CONNECT: MQTT 3.1; allowed: MQTT 3.1.1 and 5.0",
            ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
        )
    will = packet.will
    if will is None:
        return
    _check_qos_and_retain(options, "CONNECT: Will", will.qos, is_retained=will.retain)
    if options.check_payload_format and not _has_its_format(will.properties, will.payload):
        raise ProtocolError(
            "CONNECT: Will Payload is not UTF-8, as its Payload Format Indicator says",
            ReasonCode.PAYLOAD_FORMAT_INVALID,
        )


def is_restricted(options: MqttOptions) -> bool:
    """Say whether a PUBLISH must be looked at by `check_publish` and `is_payload_valid`."""
    return options.maximum_qos < 2 or not options.retain_available or options.check_payload_format


def check_publish(options: MqttOptions, first_byte: int) -> None:
    """Check that the broker offers what a PUBLISH needs.

    Raises:
        ProtocolError: QoS not supported [MQTT-3.2.2-11], retain not supported [MQTT-3.2.2-14].
    """
    qos = (first_byte >> 1) & 3
    _check_qos_and_retain(options, "PUBLISH:", qos, is_retained=bool(first_byte & 1))


def _check_qos_and_retain(options: MqttOptions, where: str, qos: int, *, is_retained: bool) -> None:
    if qos > options.maximum_qos:
        raise ProtocolError(
            f"{where} QoS {qos}; allowed: at most {options.maximum_qos}",
            ReasonCode.QOS_NOT_SUPPORTED,
        )
    if is_retained and not options.retain_available:
        raise ProtocolError(
            f"{where} RETAIN; allowed: no retained messages", ReasonCode.RETAIN_NOT_SUPPORTED
        )


def is_payload_valid(
    options: MqttOptions, properties: Mapping[str, Any] | None, payload: bytes
) -> bool:
    """Say whether a payload is what its Payload Format Indicator says (3.3.2.3.2), if asked to."""
    return not options.check_payload_format or _has_its_format(properties or {}, payload)


def check_subscribe(options: MqttOptions, packet: Subscribe) -> None:
    """Check that the broker offers what a SUBSCRIBE of MQTT 5 needs.

    Raises:
        ProtocolError: subscription identifiers not supported (3.2.2.3.12), wildcard
            subscriptions not supported (3.2.2.3.11), shared subscriptions not supported
            (3.2.2.3.13).
    """
    if (
        not options.subscription_identifiers_available
        and "subscription_identifier" in packet.properties
    ):
        raise ProtocolError(
            "SUBSCRIBE: Subscription Identifier; allowed: none",
            ReasonCode.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,
        )
    for request in packet.subscriptions:
        code = refusal_of_filter(options, request.topic_filter)
        if code is not None:
            is_share = code == ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
            allowed = "no $share/" if is_share else "no + and no #"
            raise ProtocolError(f"SUBSCRIBE: {request.topic_filter!r}; allowed: {allowed}", code)


def refusal_of_filter(options: MqttOptions, topic_filter: str) -> ReasonCode | None:
    """Return why no client may subscribe to a filter of this form, or None where one may."""
    if not options.wildcard_subscription_available and ("+" in topic_filter or "#" in topic_filter):
        return ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED
    if not options.shared_subscription_available and topic_filter.startswith(SHARE_PREFIX):
        return ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
    return None


def _has_its_format(properties: Mapping[str, Any], payload: bytes) -> bool:
    if not properties.get("payload_format_indicator"):
        return True
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True
