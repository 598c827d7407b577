from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.errors import ConfigError
from penstock.broker.import_mosquitto.conf_file import parse_lines
from penstock.broker.import_mosquitto.translate import Translation, translate
from penstock.broker.import_mosquitto.uplinks import (
    read_addresses,
    read_restart,
    read_topic,
    site_name,
)

ABOVE = "listener 1883\nconnection cloud\naddress a.example\ntopic t out 1\n"


def translated(text: str) -> Translation:
    """Return what becomes of a mosquitto.conf on a machine of the name ``berlin``."""
    return translate(parse_lines(text, "m.conf"), "berlin")


def uplink(lines: str) -> dict[str, Any]:
    """Return the keys of an uplink that one bridge has become."""
    uplinks = translated(f"{ABOVE}{lines}\n").policy["plugins"]["uplink"]["uplinks"]
    [(name, keys)] = uplinks.items()
    assert name == "cloud"
    return dict(keys)


def refused(text: str) -> str:
    """Return why a file is refused."""
    with pytest.raises(ConfigError) as caught:
        translated(text)
    return str(caught.value)


def test_a_bridge_is_an_uplink_with_mosquittos_defaults() -> None:
    """MQTT 3.1.1 with the bridge bit, port 1883, and the client id of host and name."""
    policy, notes, passwords = translated(ABOVE)
    assert policy["plugins"]["uplink"] == {
        "site": "berlin",
        "uplinks": {
            "cloud": {
                "upstream": {"address": "a.example:1883"},
                "client_id": "berlin.cloud",
                "adopts_session": True,
                "version": "3.1.1",
                "up": [{"filter": "t", "qos": 1, "local_prefix": "", "remote_prefix": ""}],
                "clear_retained": False,
                "backlog": {"when_full": "drop_newest"},
            }
        },
    }
    assert [str(note) for note in notes] == [
        (
            "line 2: connection cloud: what waits for the client berlin.cloud in the cloud is "
            "taken over; delete adopts_session after the move"
        )
    ]
    assert not passwords


@pytest.mark.parametrize(
    ("lines", "is_told"),
    [
        ("topic t in 2", True),
        ("topic t both 2", True),
        ("topic t out 2", False),
        ("topic t in 1", False),
        ("topic t in 2\ncleansession true", False),
    ],
)
def test_messages_that_no_session_would_bring_again_are_told(lines: str, is_told: bool) -> None:  # noqa: FBT001
    """Between PUBREC and PUBREL only mosquitto has them."""
    _, notes, _ = translated(f"connection cloud\naddress a.example\n{lines}")
    assert any("QoS 1 there for the move" in str(note) for note in notes) is is_told


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a/#", (("up",), "a/#", 0, "", "")),
        ("a in", (("down",), "a", 0, "", "")),
        ("a BOTH 2 l/ r/", (("up", "down"), "a", 2, "l/", "r/")),
        ('a out 1 "" r/', (("up",), "a", 1, "", "r/")),
        ("a out 1 l/ # a comment", (("up",), "a", 1, "l/", "")),
        ("a out # a comment", (("up",), "a", 0, "", "")),
        ('"" in 1 l/a r/a', (("down",), "", 1, "l/a", "r/a")),
        ('"a b/#" out 2', (("up",), "a b/#", 2, "", "")),
    ],
)
def test_topics_are_read_as_mosquitto_reads_them(text: str, expected: tuple[Any, ...]) -> None:
    """Pattern, direction, QoS, and a prefix of each side."""
    assert tuple(read_topic(text)) == expected


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("a up", "out, in or both"),
        ("a out 3", "QoS of 0, 1 or 2"),
        ('"" out 1 l', "a local and a remote prefix"),
        ("a/#/b out", "topic filters"),
        ("a out 1 +/ r/", "without + and #"),
        ('"a out', "quotation mark"),
    ],
)
def test_a_topic_that_mosquitto_refuses_is_refused(text: str, allowed: str) -> None:
    """With its line and what is allowed."""
    told = refused(f"connection c\naddress a\ntopic {text}\n")
    assert "line 3, topic: read" in told
    assert allowed in told


def test_both_directions_are_a_rule_each_and_all_of_it_comes_down() -> None:
    """As mosquitto subscribes in the cloud whether a client of the site has or not."""
    keys = uplink("topic x/# both 2 l/ r/")
    rule = {"filter": "x/#", "qos": 2, "local_prefix": "l/", "remote_prefix": "r/"}
    assert keys["up"][1:] == [rule]
    assert keys["down"] == [{**rule, "when": "always"}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", ["a:1883"]),
        ("a:1884 b # c", ["a:1884", "b:1883"]),
        ("a a:1883", ["a:1883"]),
        ("2001:db8::1:8883", ["[2001:db8::1]:8883"]),
        ("[::1]:8883", ["[::1]:8883"]),
    ],
)
def test_addresses_have_ports(text: str, expected: list[str]) -> None:
    """1883 without one, also with TLS; the last colon precedes it."""
    assert read_addresses(text) == expected


def test_several_addresses_are_tried_in_their_order() -> None:
    """A wrong port is named."""
    text = "connection c\naddresses a b:8883\ntopic t\n"
    [keys] = translated(text).policy["plugins"]["uplink"]["uplinks"].values()
    assert keys["upstream"] == {"addresses": ["a:1883", "b:8883"]}
    assert "port of 1 to 65535" in refused("connection c\naddress a:0\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20", {"min_seconds": 20, "max_seconds": 20}),
        ("0 30", {"min_seconds": 1, "max_seconds": 30}),
        ("9999 9999", {"min_seconds": 3600, "max_seconds": 7200}),
        ("5 30 60", {"min_seconds": 5, "max_seconds": 30, "stable_seconds": 60}),
    ],
)
def test_waits_between_attempts(text: str, expected: dict[str, int]) -> None:
    """A constant, or a base and a cap, within mosquitto's bounds."""
    assert read_restart(text) == expected


@pytest.mark.parametrize("value", ["soon", "30 5"])
def test_other_waits_are_refused(value: str) -> None:
    """As by mosquitto."""
    told = refused(f"connection c\naddress a\nrestart_timeout {value}\n")
    assert f"line 3, restart_timeout: read {value}" in told


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("clientid old", {"client_id": "old"}),
        ("remote_clientid new", {"client_id": "new"}),
        ("keepalive_interval 1", {"keep_alive_seconds": 5}),
        ("bridge_max_packet_size 100000", {"maximum_packet_size": 100_000}),
        ("bridge_max_packet_size 0", {}),
        ("try_private false", {"bridge_bit": False}),
        ("bridge_outgoing_retain false", {"outgoing_retain": False}),
        ("bridge_outgoing_retain true", {}),
        ("bridge_protocol_version mqttv50", {"version": "5", "tells_publisher": False}),
        ("notifications false", {"notifications": False}),
        ("notifications_local_only true", {"notifications_local_only": True}),
        ("notification_topic a/state", {"notification_topic": "a/state"}),
        ("username ann", {"username": "ann"}),
        ("restart_timeout 7", {"reconnect": {"min_seconds": 7, "max_seconds": 7}}),
        ("max_queued_messages 9", {}),
        (
            "start_type lazy",
            {"start": {"when": "on_demand", "threshold_messages": 10, "idle_seconds": 60}},
        ),
        (
            "start_type lazy\nthreshold 3\nidle_timeout 9",
            {"start": {"when": "on_demand", "threshold_messages": 3, "idle_seconds": 9}},
        ),
        ("threshold 3\nidle_timeout 9\nbridge_attempt_unsubscribe false", {}),
    ],
)
def test_settings_of_a_bridge_keep_their_meaning(lines: str, expected: dict[str, Any]) -> None:
    """Each under a key of the uplink; no other key changes."""
    assert uplink(lines) == uplink("") | expected
    assert len(translated(f"{ABOVE}{lines}\n").notes) == 1


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("bridge_cafile ca", {"cafile": "ca"}),
        (
            (
                "bridge_capath cas\nbridge_certfile crt\nbridge_keyfile key\n"
                "bridge_tls_version tlsv1.3"
            ),
            {"capath": "cas", "certfile": "crt", "keyfile": "key", "minimum_version": 1.3},
        ),
        ("bridge_tls_use_os_certs true", {}),
        (
            "bridge_cafile ca\nbridge_alpn x-amzn-mqtt-ca",
            {"cafile": "ca", "alpn": ["x-amzn-mqtt-ca"]},
        ),
    ],
)
def test_tls_of_a_bridge(lines: str, expected: dict[str, Any]) -> None:
    """Its files and least version; the port stays."""
    assert uplink(lines)["upstream"] == {"address": "a.example:1883", "tls": expected}


def test_a_password_goes_to_a_file_of_its_own() -> None:
    """The policy file has its name alone."""
    policy, notes, passwords = translated(f"{ABOVE}username ann\npassword s3cret\n")
    assert policy["plugins"]["uplink"]["uplinks"]["cloud"]["password_file"] == "cloud.password"
    assert passwords["cloud"].value == "s3cret"
    assert "s3cret" not in f"{policy}{[str(note) for note in notes]}"


@pytest.mark.parametrize(
    ("lines", "line", "why"),
    [
        ("remote_password s3cret", "remote_password ...", "only with a remote_username"),
        ("bridge_certfile crt", "bridge_certfile crt", "mosquitto has no TLS for it"),
        ("bridge_protocol_version mqttv31", "bridge_protocol_version mqttv31", "is 3.1.1"),
        ("bridge_cafile c\nbridge_tls_version tlsv1.1", "bridge_tls_version tlsv1.1", "broken"),
        ("start_type once", "start_type once", "connects again"),
        ("notification_topic $SYS/x", "notification_topic $SYS/x", "it is that of the client id"),
        ("notification_topic a/#", "notification_topic a/#", "it is that of the client id"),
    ],
)
def test_what_an_uplink_does_otherwise_is_told(lines: str, line: str, why: str) -> None:
    """With the line of the bridge."""
    note = str(translated(f"{ABOVE}{lines}\n").notes[-1])
    assert f": {line}: " in note
    assert why in note


def test_a_clean_session_is_not_adopted() -> None:
    """Nothing waits in the cloud; from then on something does, which is told."""
    [note] = translated(f"{ABOVE}cleansession true\n").notes
    assert "the session in the cloud outlives" in str(note)
    assert "adopts_session" not in uplink("cleansession true")


@pytest.mark.parametrize("line", ["bridge_psk 12", "bridge_identity i", "bridge_require_ocsp true"])
def test_a_bridge_that_would_be_less_protected_is_left_out(line: str) -> None:
    """It would send its password in plain text."""
    policy, [note], _ = translated(f"{ABOVE}{line}\n")
    assert "uplink" not in policy["plugins"]
    assert ": the bridge is left out; " in str(note)


def test_a_bridge_without_topics_is_left_out() -> None:
    """An uplink has to have some."""
    policy, [note], _ = translated("connection c\naddress a\n")
    assert "uplink" not in policy["plugins"]
    assert "no topic" in str(note)


def test_names_that_an_uplink_cannot_have_are_changed() -> None:
    """The client id in the cloud is that of mosquitto."""
    text = "connection a/b\naddress a\ntopic t\nconnection a+b\naddress b\ntopic t\n"
    uplinks = translated(text).policy["plugins"]["uplink"]["uplinks"]
    assert {name: keys["client_id"] for name, keys in uplinks.items()} == {
        "a-b": "berlin.a/b",
        "a-b-2": "berlin.a+b",
    }
    assert (site_name("ä b"), site_name(""), len(site_name("x" * 99))) == ("--b", "site", 64)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("topic a\n", "line 1, topic: read no bridge above it"),
        ("connection c\ntopic a\n", "line 1, connection: read c without address"),
        ("connection c\naddress a\nconnection c\naddress b\n", "line 3, connection: read c, as in"),
        ("connection c\naddress a\naddresses b\n", "line 3, addresses: read again"),
    ],
)
def test_a_bridge_that_mosquitto_refuses_is_refused(text: str, told: str) -> None:
    """Named by its line."""
    assert told in refused(text)
