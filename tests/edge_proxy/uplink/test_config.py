from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.errors import ConfigError
from penstock.edge_proxy.uplink.config import UplinkConfig
from penstock.edge_proxy.uplink.lanes import LanesKeys
from penstock.edge_proxy.uplink.remapping import Rule
from penstock.edge_proxy.upstream_config import UpstreamKeys

ONE = {"upstream": {"address": "cloud"}, "up": [{"filter": "#"}]}


def read(**keys: Any) -> UplinkConfig:
    """Return the configuration of one uplink."""
    mapping = {"site": "berlin", "uplinks": {"cloud": ONE | keys}}
    return validate_config(UplinkConfig, mapping, "edge.yaml", "plugins.uplink")


def test_an_address_and_a_rule_are_enough() -> None:
    """All else has defaults."""
    keys = read().uplinks["cloud"]
    assert keys.upstream == UpstreamKeys("cloud")
    assert (keys.version, keys.up, keys.down) == ("5", [Rule("#")], [])
    assert keys.lanes == read(lanes="auto").uplinks["cloud"].lanes == LanesKeys()


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"up": []}, "topics under up, down or both"),
        ({"upstream": {"address": "cloud:0"}}, "port of 1 to 65535"),
        ({"password": "a", "password_file": "b"}, "one of password and password_file"),
        ({"password": "a", "version": "3.1.1"}, "a username beside the password"),
        ({"version": "4"}, "'5' or '3.1.1'"),
        ({"notification_topic": "$SYS/broker/uptime"}, r"below \$SYS/broker/connection/"),
        ({"notification_topic": "a/#"}, "a topic name"),
        ({"reconnect": {"min_seconds": 9.0, "max_seconds": 1.0}}, "min_seconds of at most"),
        ({"keep_alive_seconds": 1}, "greater than or equal to 5"),
        ({"parts_prefix": "a/"}, "without a / at its end"),
        (
            {"up": [{"filter": "a/#", "parts": True}, {"filter": "+/b"}]},
            r"a/# and \+/b have some in common",
        ),
        ({"speed": 1}, "speed"),
        ({"lanes": {"by": "colour"}}, "lanes.by"),
        ({"lanes": "two"}, "auto, null for one connection, or a mapping"),
        ({"lanes": {"large": ["#"]}}, "filters under large only beside by: topic, not by: auto"),
        ({"client_id": ""}, "a client id of 1 to 65000 bytes"),
        ({"lanes": {"by": "topic"}}, "topic filters of the site under large"),
        ({"lanes": {"give_up_seconds": 1.0}}, "give_up_seconds of at least takeover_seconds"),
        ({"lanes": {"by": "size", "large": ["#"]}}, "filters under large only beside by: topic"),
        ({"lanes": {"by": "topic", "large": ["a/#/b"]}}, "'a/#/b'; allowed: a topic filter"),
        ({"lanes": {"by": "topic", "large": ["$share/a/b"]}}, "not below"),
        ({"lanes": {"by": "topic", "large": ["a/#"]}}, "'a/#' holds a part of the rule '#'"),
        ({"lanes": {"by": "topic", "large": ["#"]}}, "a rule for each lane"),
    ],
)
def test_a_wrong_key_is_named(keys: dict[str, Any], told: str) -> None:
    """With its place, what was read and what is allowed."""
    with pytest.raises(ConfigError, match=told) as raised:
        read(**keys)
    assert "plugins.uplink.uplinks.cloud" in str(raised.value)


@pytest.mark.parametrize(
    ("mapping", "told"),
    [
        ({"site": "berlin", "uplinks": {}}, "one uplink or more"),
        ({"site": "berlin", "uplinks": {"a/b": ONE}}, "letters, digits"),
        ({"site": "a b", "uplinks": {"a": ONE}}, "plugins.uplink.site"),
    ],
)
def test_names_are_checked(mapping: dict[str, Any], told: str) -> None:
    """They stand in client ids and topics."""
    with pytest.raises(ConfigError, match=told):
        validate_config(UplinkConfig, mapping, "edge.yaml", "plugins.uplink")


def test_a_version_may_be_a_number() -> None:
    """YAML reads 5 as one."""
    assert read(version=5).uplinks["cloud"].version == "5"
