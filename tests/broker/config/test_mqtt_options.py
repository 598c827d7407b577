"""The section `mqtt` of the policy file."""

from __future__ import annotations

import pytest

from penstock.broker.config.mqtt_options import MqttOptions
from penstock.broker.config.policy import parse_policy
from penstock.broker.errors import ConfigError
from penstock.broker.mqtt.packets import PubAck
from tests.helpers.access import Access
from tests.helpers.virtual import VirtualBroker


def test_without_the_section_everything_is_offered() -> None:
    """Defaults take nothing away."""
    assert parse_policy("", "policy.yaml").mqtt == MqttOptions()


def test_keys_with_dashes_are_read_too() -> None:
    """As everywhere in the file."""
    policy = parse_policy("mqtt: {maximum-qos: 1, allow_mqtt31: false}", "policy.yaml")
    assert policy.mqtt == MqttOptions(maximum_qos=1, allow_mqtt31=False)


@pytest.mark.parametrize(
    ("keys", "path", "allowed"),
    [
        ("topic_alias_maximum: 65536", "mqtt.topic_alias_maximum", "65535"),
        ("outgoing_topic_aliases: -1", "mqtt.outgoing_topic_aliases", "0"),
        ("maximum_qos: 3", "mqtt.maximum_qos", "0, 1 or 2"),
        ("allow_mqtt31: 1", "mqtt.allow_mqtt31", "boolean"),
        ("server_reference: ''", "mqtt.server_reference", "1"),
        ("sizes_by_client: {a: tiny}", "mqtt.sizes_by_client.a", "'small' or 'large'"),
        ("redirect: temporary", "mqtt", "redirect only with a server_reference"),
        ("redirect: sometimes", "mqtt.redirect", "temporary"),
        ("response_information: answers", "mqtt", "response_information with {client_id} in it"),
        ("response_information: '+/{client_id}'", "mqtt", "response_information without +, #"),
        ("lane_takeover_seconds: 0", "mqtt.lane_takeover_seconds", "greater than 0"),
        ("lane_give_up_seconds: 5", "mqtt", "lane_give_up_seconds of at least lane_takeover"),
        ("aliases: 3", "mqtt.aliases", "topic_alias_maximum"),
    ],
)
def test_a_wrong_key_says_where_and_what_is_allowed(keys: str, path: str, allowed: str) -> None:
    """The key's path, and what may stand there."""
    with pytest.raises(ConfigError) as caught:
        parse_policy(f"mqtt: {{{keys}}}", "policy.yaml")
    (problem,) = caught.value.problems
    assert problem.path == path
    assert allowed in problem.allowed


@pytest.mark.parametrize(("reveals", "code"), [(True, 0x87), (False, 0x80)])
def test_refusals_are_revealed_or_not(*, reveals: bool, code: int) -> None:
    """Who may not publish or subscribe is told so, or that it failed; it counts as it is."""
    access = Access()
    access.refused = {("publish", "secret"), ("subscribe", "secret")}
    broker = VirtualBroker(access=access, options=MqttOptions(reveal_refusals=reveals))
    client = broker.connect()
    assert client.subscribe("secret") == code
    for topic in ("secret", "$SYS/x"):
        client.publish(topic, b"data", qos=1)
        answer = client.take(PubAck)
        assert answer.reason_code == code
        assert bool(answer.properties) is reveals
    counters = broker.core.counters
    assert counters.publish_refused == {"not authorized (0x87)": 2}
    assert counters.subscribe_refused == {"not authorized (0x87)": 1}
