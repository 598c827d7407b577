from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.config.policy import Policy, parse_policy
from penstock.broker.errors import ConfigError
from penstock.broker.import_mosquitto.conf_file import parse_lines
from penstock.broker.import_mosquitto.directives import DIRECTIVES, Loosens, Place, is_secret
from penstock.broker.import_mosquitto.translate import UNBOUNDED_BYTES, Note, translate

LISTENER = "listener 1883\n"
TLS = "certfile cert\nkeyfile key\n"


def translated(text: str) -> tuple[dict[str, Any], list[Note]]:
    """Return the policy that a mosquitto.conf becomes, and its notes.

    What mosquitto has no room for it drops, whatever its file says; so does each policy.
    """
    policy, notes, _ = translate(parse_lines(text, "m.conf"), "host")
    assert policy["limits"].pop("queue_full") == "drop_newest"
    if not policy["limits"]:
        del policy["limits"]
    return policy, notes


def keys(text: str) -> dict[str, Any]:
    """Return the keys of the policy, which the broker takes, of a file that needs no note."""
    policy, notes = translated(text)
    assert not notes
    checked(policy)
    return policy


def checked(policy: dict[str, Any]) -> Policy:
    """Return the policy as the broker reads it."""
    return parse_policy(policy, "policy.yaml")


def notes_of(text: str) -> list[str]:
    """Return the notes as text."""
    return [str(note) for note in translated(text)[1]]


def problems_of(text: str) -> list[tuple[str, str, str]]:
    """Return (path, read, allowed) of a file that must be refused."""
    with pytest.raises(ConfigError) as caught:
        translated(text)
    return [(problem.path, problem.read, problem.allowed) for problem in caught.value.problems]


# -- listeners --------------------------------------------------------------------------------


def test_an_empty_file_serves_its_own_machine() -> None:
    """Everybody on it may connect, as in mosquitto 2.0."""
    assert keys("") == {
        "listeners": {"mqtt-1883": {"bind": "localhost:1883"}},
        "plugins": {"access": {"allow_anonymous": True}},
    }


def test_with_a_listener_nobody_connects_unless_told() -> None:
    """Mosquitto 2.0's default; the listener is on all interfaces."""
    assert keys(LISTENER) == {
        "listeners": {"mqtt-1883": {"bind": ":1883"}},
        "plugins": {"access": {}},
    }


@pytest.mark.parametrize(
    ("text", "listeners"),
    [
        ("port 1884\n", {"mqtt-1884": {"bind": ":1884"}}),
        ("bind_address 127.0.0.1\n", {"mqtt-1883": {"bind": "127.0.0.1:1883"}}),
        ("listener 1885 ::1\n", {"mqtt-1885": {"bind": "[::1]:1885"}}),
        ("listener 1885\nsocket_domain ipv6\n", {"mqtt-1885": {"bind": "[::]:1885"}}),
        ("listener 1885\nsocket_domain ipv4\n", {"mqtt-1885": {"bind": "0.0.0.0:1885"}}),
        ("listener 0 /run/m.sock\n", {"mqtt-unix": {"bind": "unix:/run/m.sock"}}),
        (
            "listener 9001\nprotocol websockets\n",
            {"websockets-9001": {"type": "ws", "bind": ":9001"}},
        ),
        (
            "listener 1885\nmax_connections 10\nlistener 1886\nmax_connections -1\n",
            {
                "mqtt-1885": {"bind": ":1885", "max_connections": 10, "when_full": "refuse"},
                "mqtt-1886": {"bind": ":1886"},
            },
        ),
        (
            "listener 1885 127.0.0.1\nlistener 1885 127.0.0.2\nport 1883\n",
            {
                "mqtt-1883": {"bind": ":1883"},
                "mqtt-1885": {"bind": "127.0.0.1:1885"},
                "mqtt-1885-2": {"bind": "127.0.0.2:1885"},
            },
        ),
    ],
)
def test_listeners_listen_where_they_did(text: str, listeners: dict[str, Any]) -> None:
    """By port, address or socket, and with as many connections."""
    assert keys(text)["listeners"] == listeners


def test_tls_keeps_its_files_and_versions() -> None:
    """Files that are not on this machine are the broker's to refuse."""
    text = (
        "listener 8883\ncafile ca\ncapath cas\ncertfile cert\nkeyfile key\nciphers HIGH\n"
        "crlfile crl\nrequire_certificate true\ntls_version tlsv1.3\n"
    )
    policy, notes = translated(text)
    assert not notes
    assert policy["listeners"]["mqtt-8883"] == {
        "bind": ":8883",
        "ssl": True,
        "cafile": "ca",
        "capath": "cas",
        "crlfile": "crl",
        "certfile": "cert",
        "keyfile": "key",
        "ciphers": "HIGH",
        "require_certificate": True,
        "tls_minimum_version": 1.3,
    }


def test_tls_1_1_becomes_1_2() -> None:
    """It is told."""
    text = "listener 8883\ncertfile cert\nkeyfile key\ntls_version tlsv1.1\n"
    policy, notes = translated(text)
    assert policy["listeners"]["mqtt-8883"]["tls_minimum_version"] == 1.2
    assert [note.line.number for note in notes] == [4]


@pytest.mark.parametrize(
    "name", [name for name, known in DIRECTIVES.items() if known.loosens is Loosens.LISTENER]
)
def test_a_listener_that_would_be_more_open_is_left_out(name: str) -> None:
    """The others stay; the note says why."""
    value = "true" if DIRECTIVES[name].values else "x"
    policy, notes = translated(f"{LISTENER}listener 1884\n{name} {value}\n")
    assert list(policy["listeners"]) == ["mqtt-1883"]
    assert [note.line.name for note in notes] == [name]
    assert ": the listener is left out; " in str(notes[0])


@pytest.mark.parametrize(
    ("lines", "name", "why"),
    [
        ("protocol http_api", "protocol", "no listener of MQTT; plugins.console.http and"),
        (
            "accept_protocol_versions 5",
            "accept_protocol_versions",
            "clients of MQTT 3.1.1 and 5 would both be accepted",
        ),
        (
            "enable_proxy_protocol 2\nrequire_certificate true",
            "require_certificate",
            "a certificate that a load balancer has seen cannot be required",
        ),
    ],
)
def test_a_value_without_counterpart_leaves_the_listener_out(
    lines: str, name: str, why: str
) -> None:
    """Others of the same directive have one."""
    policy, (note,) = translated(f"{LISTENER}listener 1884\n{lines}\n")
    assert list(policy["listeners"]) == ["mqtt-1883"]
    assert note.line.name == name
    assert note.text.startswith(why)


def test_what_a_load_balancer_says_is_heard() -> None:
    """Its PROXY protocol, and with version 2 the user in the client's certificate."""
    for version, rules in ((1, {}), (2, {"certificate_username": "cn"})):
        text = f"listener 1884\nenable_proxy_protocol {version}\nuse_identity_as_username true\n"
        policy = keys(text)
        assert policy["listeners"] == {"mqtt-1884": {"bind": ":1884", "proxy_protocol": True}}
        access = policy["plugins"]["access"]
        assert access.get("listeners", {"mqtt-1884": {}})["mqtt-1884"] == rules


def test_only_pages_of_the_web_sites_named_connect() -> None:
    """Each line names one more."""
    origins = "websockets_origin https://a.example\nwebsockets_origin https://b.example\n"
    policy = keys(f"listener 9001\nprotocol websockets\n{origins}{LISTENER}")
    assert policy["listeners"] == {
        "websockets-9001": {
            "type": "ws",
            "allowed_origins": ["https://a.example", "https://b.example"],
            "bind": ":9001",
        },
        "mqtt-1883": {"bind": ":1883"},
    }


@pytest.mark.parametrize("line", ["protocol mqtt", "max_connections -1", "maximum_qos 2"])
def test_a_default_above_the_first_listener_makes_none(line: str) -> None:
    """As in mosquitto 2.0; the file of Home Assistant's mosquitto begins so."""
    policy, (note,) = translated(f"{line}\nlistener 1884\n")
    assert policy["listeners"] == {"mqtt-1884": {"bind": ":1884"}}
    assert str(note).startswith(f"line 1: {line}: mosquitto 2.1 serves port 1883")
    policy, _ = translated(f"{line}\nmax_connections 5\nlistener 1884\n")
    assert list(policy["listeners"]) == ["mqtt-1883", "mqtt-1884"]


def test_where_no_listener_is_left_nothing_is_written() -> None:
    """A policy without listeners would have one on every interface."""
    (problem,) = problems_of("listener 1883\nmount_point m/\n")
    assert problem[:2] == ("line 2, mount_point", "m/")
    assert problem[2].startswith("one listener without it; its clients would see")


# -- users and topics -------------------------------------------------------------------------


def test_files_of_users_and_topics_are_kept() -> None:
    """For all listeners, wherever the lines stand."""
    text = f"allow_anonymous true\n{LISTENER}password_file p\nacl_file a\nlistener 1884\n"
    assert keys(text)["plugins"] == {
        "access": {"allow_anonymous": True, "password_file": "p", "acl_file": "a"}
    }


def test_per_listener_settings_are_each_listeners_own() -> None:
    """What stands above the first listener is the default one's, which then is there."""
    text = (
        "per_listener_settings true\nallow_anonymous true\nport 1883\n"
        "listener 1884\npassword_file p\nlistener 1885\n"
    )
    assert keys(text)["plugins"] == {
        "access": {
            "listeners": {
                "mqtt-1883": {"allow_anonymous": True},
                "mqtt-1884": {"password_file": "p"},
                "mqtt-1885": {},
            }
        }
    }


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        (f"{TLS}use_identity_as_username true", {"certificate_username": "cn"}),
        (f"{TLS}use_subject_as_username true", {"certificate_username": "subject"}),
        (
            f"{TLS}use_subject_as_username true\nuse_identity_as_username true",
            {"certificate_username": "cn"},
        ),
        ("use_username_as_clientid true", {"username_as_client_id": True}),
    ],
)
def test_what_a_listener_makes_of_names_is_its_own(line: str, rules: dict[str, Any]) -> None:
    """The files of all listeners count there too."""
    text = f"password_file p\n{LISTENER}listener 1884\n{line}\n"
    policy, notes = translated(text)
    assert not notes
    assert policy["plugins"]["access"] == {
        "password_file": "p",
        "listeners": {"mqtt-1884": {"password_file": "p", **rules}},
    }


def test_anonymity_may_be_one_listeners_own() -> None:
    """Without per_listener_settings."""
    text = f"allow_anonymous true\n{LISTENER}listener_allow_anonymous false\nlistener 1884\n"
    assert keys(text)["plugins"] == {
        "access": {"allow_anonymous": True, "listeners": {"mqtt-1883": {}}}
    }


def test_a_plugin_that_keeps_sessions_decides_nothing_about_clients() -> None:
    """Its database does not come along, which is told."""
    text = f"{LISTENER}allow_anonymous true\nglobal_plugin /lib/mosquitto_persist_sqlite.so\n"
    policy, (note,) = translated(text)
    assert policy["persistence"]["path"] == "penstock-sessions.db"
    assert policy["plugins"] == {"access": {"allow_anonymous": True}}
    assert note.text.startswith("persistence does it")


USERS = "/usr/lib/mosquitto_password_file.so"
TOPICS = "/usr/lib/mosquitto_acl_file.so"


@pytest.mark.parametrize("directive", ["global_plugin", "plugin", "auth_plugin"])
def test_plugins_that_read_files_become_the_files_of_all_listeners(directive: str) -> None:
    """Mosquitto 2.1 has its password_file and acl_file as plugins, too, which do the same."""
    text = (
        f"{LISTENER}{directive} {USERS}\nplugin_opt_password_file p\n"
        f"{directive} {TOPICS}\nauth_opt_acl_file a\nlistener 1884\n"
    )
    policy, notes = translated(text)
    assert not notes
    assert policy["plugins"] == {"access": {"password_file": "p", "acl_file": "a"}}


def test_a_plugin_that_reads_a_file_may_be_used_by_some_listeners() -> None:
    """Named where it is loaded, used where it is wanted; its option stands behind either."""
    text = (
        f"plugin_load users {USERS}\nplugin_load topics {TOPICS}\nplugin_opt_acl_file a\n"
        "listener 1883\nplugin_use users\nplugin_opt_password_file p\nplugin_use topics\n"
        "listener 1884\nplugin_use users\nlistener 1885\nlistener_allow_anonymous true\n"
    )
    policy, notes = translated(text)
    assert not notes
    assert policy["plugins"]["access"] == {
        "listeners": {
            "mqtt-1883": {"password_file": "p", "acl_file": "a"},
            "mqtt-1884": {"password_file": "p"},
            "mqtt-1885": {"allow_anonymous": True},
        }
    }


def test_per_listener_settings_make_a_plugin_one_listeners_own() -> None:
    """Except for a global_plugin."""
    text = (
        f"per_listener_settings true\nglobal_plugin {TOPICS}\nplugin_opt_acl_file a\n"
        f"{LISTENER}plugin {USERS}\nplugin_opt_password_file p\nlistener 1884\n"
    )
    assert keys(text)["plugins"]["access"] == {
        "listeners": {
            "mqtt-1883": {"password_file": "p", "acl_file": "a"},
            "mqtt-1884": {"acl_file": "a"},
        }
    }


def test_two_files_of_one_kind_let_nobody_in() -> None:
    """Mosquitto asks both in an order of its own; here one counts."""
    text = f"password_file q\n{LISTENER}global_plugin {USERS}\nplugin_opt_password_file p\n"
    policy, notes = translated(text)
    assert policy["plugins"] == {"access": {}}
    (note,) = map(str, notes)
    assert note.startswith("lines 1, 4: password_file, plugin_opt_password_file: no client is let")
    assert note.endswith("; a listener has one password_file; these are several")
    assert keys(text.replace(" q", " p"))["plugins"] == {"access": {"password_file": "p"}}


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (f"plugin {USERS}\n", ("line 2, plugin", USERS, "plugin_opt_password_file with")),
        (
            f"plugin {TOPICS}\nplugin_opt_acl_fil a\n",
            ("line 3, plugin_opt_acl_fil", "acl_fil", "plugin_opt_acl_file"),
        ),
        ("plugin_use users\n", ("line 2, plugin_use", "users", "the name of a plugin_load")),
    ],
)
def test_mistakes_in_the_lines_of_such_plugins_are_told(
    lines: str, problem: tuple[str, str, str]
) -> None:
    """As mosquitto does, which does not start."""
    (found,) = problems_of(f"{LISTENER}{lines}")
    assert found[:2] == problem[:2]
    assert found[2].startswith(problem[2])


def test_a_plugin_that_reads_topics_may_have_no_file() -> None:
    """It allows everything then, as no acl_file does."""
    assert keys(f"{LISTENER}plugin {TOPICS}\n")["plugins"] == {"access": {}}


def test_without_tls_there_is_no_certificate_to_name_a_user() -> None:
    """Mosquitto passes over the directive; so does the policy, where it would refuse everybody."""
    assert keys(f"{LISTENER}use_identity_as_username true\n")["plugins"] == {"access": {}}


@pytest.mark.parametrize(
    "line",
    [
        "plugin /lib/dynsec.so",
        "auth_plugin /lib/a.so",
        "global_plugin /lib/a.so",
        "plugin_load name /lib/a.so",
        "plugin_load mosquitto_persist_sqlite.so /lib/a.so",
        "plugin /lib/mosquitto_persist_sqlite.so/a.so",
        "clientid_prefixes x-",
    ],
)
def test_where_something_else_decided_nobody_connects(line: str) -> None:
    """Until somebody has decided again."""
    text = f"{LISTENER}allow_anonymous true\npassword_file p\n{line}\n"
    policy, notes = translated(text)
    assert policy["plugins"] == {"access": {}}
    assert len(notes) == 1


@pytest.mark.parametrize("option", ["auth_opt_pg_host", "plugin_opt_mode"])
def test_options_of_a_plugin_may_be_one_listeners_own(option: str) -> None:
    """Named as everywhere, and no client is let in."""
    text = f"per_listener_settings true\n{LISTENER}plugin /x.so\n{option} x\n"
    policy, notes = translated(text)
    assert [str(note).partition(": ")[0] for note in notes] == ["lines 3 to 4"]
    assert f": plugin, {option}: no client is let in; mosquitto's plugins are" in str(notes[0])
    assert policy["plugins"] == {"access": {}}


def test_per_listener_settings_must_come_first() -> None:
    """As in mosquitto."""
    assert problems_of("allow_anonymous true\nper_listener_settings true\n") == [
        ("line 2, per_listener_settings", "after allow_anonymous", "before all security settings")
    ]


# -- the broker -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("max_packet_size 1000", {"limits": {"maximum_packet_size": 1000}}),
        ("max_packet_size 2000000000", {"limits": {"maximum_packet_size": 268_435_455}}),
        ("message_size_limit 1000", {"limits": {"payload_bytes": 1000}}),
        ("message_size_limit 0", {}),
        ("global_max_connections 70", {"limits": {"connections": 70}}),
        ("global_max_clients 80", {"limits": {"sessions": 80, "sessions_per_address": 80}}),
        ("global_max_clients -1\nglobal_max_connections 0", {}),
        ("max_connections -5", {}),
        ("max_inflight_messages 20", {"limits": {"inflight_messages": 20}}),
        ("max_inflight_bytes 2000", {"limits": {"inflight_bytes": 2000}}),
        ("max_queued_messages 50", {"limits": {"queued_messages": 50}}),
        ("max_queued_bytes 5000", {"limits": {"queued_bytes": 5000}}),
        ("max_keepalive 65535", {"limits": {"maximum_keep_alive": 65_535}}),
        ("sys_interval 0", {"sys_interval": 0}),
        ("persistent_client_expiration 90s", {"session_expiry_interval": 90}),
        ("persistent_client_expiration 2h", {"session_expiry_interval": 7_200}),
        ("persistent_client_expiration 2d", {"session_expiry_interval": 172_800}),
        ("persistent_client_expiration 1w", {"session_expiry_interval": 604_800}),
        ("persistent_client_expiration 1m", {"session_expiry_interval": 2_592_000}),
        ("persistent_client_expiration 1y", {"session_expiry_interval": 31_536_000}),
        ("persistence false", {}),
        ("persistence true", {"persistence": {"path": "penstock-sessions.db"}}),
        ("retained_persistence 1", {"persistence": {"path": "penstock-sessions.db"}}),
        ("retain_expiry_interval 5", {}),
        ("retry_interval 20", {}),
        ("allow_zero_length_clientid false", {"mqtt": {"allow_empty_client_id": False}}),
        ("allow_zero_length_clientid true", {}),
        ("accept_protocol_versions 4, 5", {"mqtt": {"allow_mqtt31": False}}),
        ("accept_protocol_versions 3,4,5", {}),
        ("maximum_qos 1", {"mqtt": {"maximum_qos": 1}}),
        ("max_topic_alias_broker 0", {"mqtt": {"outgoing_topic_aliases": 0}}),
        ("enable_control_api false", {}),
        (
            "persistence true\npersistence_location /var/lib/mosquitto/",
            {"persistence": {"path": "/var/lib/mosquitto/penstock-sessions.db"}},
        ),
        ("retain_available false", {"mqtt": {"retain_available": False}}),
        ("retain_available true", {}),
        ("max_qos 1", {"mqtt": {"maximum_qos": 1}}),
        ("max_topic_alias 5", {"mqtt": {"topic_alias_maximum": 5}}),
        ("set_tcp_nodelay true", {}),
        ("queue_qos0_messages false", {}),
    ],
)
def test_settings_keep_their_meaning(line: str, expected: dict[str, Any]) -> None:
    """Each under the policy file's own key."""
    policy = keys(f"{LISTENER}{line}\n")
    for key, value in expected.items():
        if isinstance(value, dict):
            assert value.items() <= policy[key].items()
        else:
            assert policy[key] == value
    assert set(policy) == {"listeners", "plugins", *expected}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("max_inflight_messages 0", {"inflight_messages": 65_535}),
        ("max_queued_bytes 0", {"queued_bytes": UNBOUNDED_BYTES}),
        ("max_packet_size 100", {"maximum_packet_size": 256, "payload_bytes": 100}),
        ("max_keepalive 60", {"maximum_keep_alive": 60}),
    ],
)
def test_what_is_only_nearly_the_same_is_told(line: str, expected: dict[str, int]) -> None:
    """With the key that it has become."""
    policy, notes = translated(f"{LISTENER}{line}\n")
    checked(policy)
    assert policy["limits"] == expected
    assert len(notes) == 1


def test_what_is_one_for_all_listeners_takes_the_stricter_qos() -> None:
    """And more topic aliases, which refuse nobody; both are told."""
    text = f"{LISTENER}max_qos 1\nmax_topic_alias 5\nlistener 1884\n"
    policy, notes = translated(text)
    assert policy["mqtt"] == {"maximum_qos": 1, "topic_alias_maximum": 10}
    assert [note.line.name for note in notes] == ["max_qos", "max_topic_alias"]


@pytest.mark.parametrize(
    ("name", "directive"),
    [
        (name, known)
        for name, known in DIRECTIVES.items()
        if known.note and known.place is not Place.LISTENER
    ],
)
def test_each_directive_without_a_counterpart_is_named(name: str, directive: Any) -> None:
    """With its line, why, and what comes nearest."""
    words = [word for word in directive.values if word not in directive.same]
    value = words[0] if words else "1"
    name = name.replace("*", "x")
    above = "connection b\naddress a\n" if directive.place is Place.BRIDGE else "\n\n"
    told = notes_of(f"{above}{LISTENER}{name} {value}\n")[-1]
    shown = "..." if is_secret(name) else value
    closed = "" if directive.loosens is Loosens.NOTHING else f"{directive.loosens.value}; "
    assert told == f"line 4: {name} {shown}: {closed}{directive.note}"


@pytest.mark.parametrize(
    "name",
    [
        "auth_opt_pg_uri",
        "bridge_psk",
        "local_password",
        "password",  # without a user name it does not count
        "plugin_opt_key",
        "remote_password",
        "tls_engine_kpass_sha1",
    ],
)
def test_no_secret_stands_in_a_note(name: str) -> None:
    """A policy file and a terminal have other readers than mosquitto.conf."""
    notes = "\n".join(notes_of(f"connection b\naddress a\ntopic t\n{LISTENER}{name} s3cret\n"))
    assert f"{name} ...: " in notes
    assert "s3cret" not in notes


def test_what_is_to_say_of_many_lines_is_said_once() -> None:
    """A file may have many of them, not next to each other."""
    text = f"user m\npid_file /m\n{LISTENER}log_type all\nuser n\nlog_dest stderr\n"
    first, second = notes_of(text)
    assert first.startswith("lines 1 to 2, 5: user, pid_file: the service manager does it")
    assert second.startswith("lines 4, 6: log_type, log_dest: the log goes to standard error")


def test_what_is_off_for_one_listener_is_off_for_all() -> None:
    """And told."""
    text = (
        "per_listener_settings true\nlistener 1883\nallow_zero_length_clientid false\n"
        "accept_protocol_versions 4,5\nlistener 1884\n"
    )
    policy, notes = translated(text)
    assert policy["mqtt"] == {"allow_mqtt31": False, "allow_empty_client_id": False}
    assert [note.line.number for note in notes] == [3, 4]


def test_notes_stand_in_the_order_of_the_lines() -> None:
    """So that the file can be read beside them."""
    lines = "max_queued_messages 0\nuser m\nlistener 1\nmount_point m/\n"
    text = f"log_type all\n{LISTENER}{lines}"
    numbers = [note.line.number for note in translated(text)[1]]
    assert numbers == [1, 3, 4, 6]


# -- mistakes ---------------------------------------------------------------------------------


def test_every_mistake_is_told() -> None:
    """By line and directive, with what was read and what is allowed."""
    text = (
        "lisener 1883\nlistener x\nlistener 0\nlistener 65536 a\nmax_qos 3\npersistence\n"
        "persistent_client_expiration 14\nauto_id_prefix a\nauto_id_prefix b\n"
    )
    problems = problems_of(text)
    assert [path for path, _, _ in problems] == [
        "line 1, lisener",
        "line 2, listener",
        "line 3, listener",
        "line 4, listener",
        "line 5, max_qos",
        "line 6, persistence",
        "line 7, persistent_client_expiration",
        "line 9, auto_id_prefix",
    ]
    assert problems[0][2] == "a directive of mosquitto.conf(5) (perhaps listener)"
    assert problems[5] == ("line 6, persistence", "nothing", "true or false")
    assert problems[7] == ("line 9, auto_id_prefix", "again, after line 8", "once")


def test_a_listener_has_an_address_and_perhaps_a_comment() -> None:
    """As mosquitto reads the line."""
    text = "listener 1883 127.0.0.1 # here\nlistener 1884 # everywhere\n"
    binds = [listener["bind"] for listener in keys(text)["listeners"].values()]
    assert binds == ["127.0.0.1:1883", ":1884"]


def test_what_may_be_given_again() -> None:
    """The last one counts, as in mosquitto."""
    text = f"{LISTENER}password_file a\npassword_file b\n"
    assert keys(text)["plugins"] == {"access": {"password_file": "b"}}
    text = (
        f"{LISTENER}allow_anonymous true\nallow_anonymous false\nsys_interval 1\nsys_interval 2\n"
    )
    assert keys(text)["sys_interval"] == 2
    assert keys(text)["plugins"] == {"access": {}}


@pytest.mark.parametrize(
    "line", ["ann:$7$101$c2FsdA==$c2VjcmV0", "ann:secret", "$argon2id$x", "-----BEGIN", "a" * 65]
)
def test_a_file_of_another_kind_is_not_shown(line: str) -> None:
    """It may be one of passwords; one line is enough to tell."""
    (problem,) = problems_of(f"{line}\n{line}\nlisener 1\n")
    assert problem[:2] == ("line 1", "a line of another kind of file, which is not shown")
    assert problem[2].startswith("a directive of mosquitto.conf(5), such as listener")
