from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.errors import ConfigError
from penstock.broker.import_mosquitto.conf_file import Line, parse_lines, read_conf
from penstock.broker.import_mosquitto.directives import (
    DIRECTIVES,
    Loosens,
    find,
    is_mosquitto_conf,
    problem_of,
    value_of,
)

MANUAL = """
acl_file address addresses allow_anonymous allow_duplicate_messages allow_zero_length_clientid
auth_opt_* auth_plugin auth_plugin_deny_special_chars auto_id_prefix autosave_interval
autosave_on_changes bind_address bind_interface bridge_alpn bridge_attempt_unsubscribe
bridge_bind_address bridge_cafile bridge_capath bridge_certfile bridge_identity bridge_insecure
bridge_keyfile bridge_max_packet_size bridge_outgoing_retain bridge_protocol_version bridge_psk
bridge_require_ocsp bridge_tls_version cafile capath certfile check_retain_source ciphers
ciphers_tls1.3 cleansession clientid clientid_prefixes connection connection_messages crlfile
dhparamfile http_dir idle_timeout include_dir keepalive_interval keyfile listener
local_cleansession local_clientid local_password local_username log_dest log_facility
log_timestamp log_timestamp_format log_type max_connections max_inflight_bytes
max_inflight_messages max_keepalive max_packet_size max_qos max_queued_bytes
max_queued_messages max_topic_alias memory_limit message_size_limit mount_point
notification_topic notifications notifications_local_only password password_file
per_listener_settings persistence persistence_file persistence_location
persistent_client_expiration pid_file port protocol psk_file psk_hint queue_qos0_messages
remote_clientid remote_password remote_username require_certificate restart_timeout
retain_available round_robin set_tcp_nodelay socket_domain start_type sys_interval threshold
tls_engine tls_engine_kpass_sha1 tls_keyform tls_version topic try_private
upgrade_outgoing_qos use_identity_as_username use_subject_as_username
use_username_as_clientid user username websockets_headers_size websockets_log_level
accept_protocol_versions bridge_ciphers bridge_ciphers_tls1.3 bridge_max_topic_alias
bridge_outgoing_retain bridge_receive_maximum bridge_reload_type bridge_session_expiry_interval
bridge_tcp_keepalive bridge_tcp_user_timeout bridge_tls_use_os_certs
disable_client_cert_date_checks enable_control_api enable_proxy_protocol global_max_clients
global_max_connections global_plugin listener_allow_anonymous listener_auto_id_prefix
max_topic_alias_broker maximum_qos packet_buffer_size plugin_load plugin_use
proxy_protocol_v2_require_tls retain_expiry_interval retained_persistence retry_interval
websockets_origin
"""
"""Every directive that the broker of mosquitto 2.0.20 or 2.1.2 takes, documented or not."""


@pytest.mark.parametrize("name", MANUAL.split())
def test_every_directive_of_the_manual_is_known(name: str) -> None:
    """And says what it applies to; what is closed for want of it has a note."""
    directive = find(name.replace("*", "x"))
    assert directive is not None
    assert directive.note or directive.loosens is Loosens.NOTHING


def test_others_are_not() -> None:
    """A slip is no directive; a prefix alone neither."""
    for name in ("prot", "", "auth_opt_", "auth_opt_*", "plugin_opt", "Port"):
        assert find(name) is None
    assert find("plugin_opt_config_file") is DIRECTIVES["plugin_opt_*"]


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("allow_anonymous", "true", ""),
        ("allow_anonymous", "yes", "true or false"),
        ("allow_anonymous", "", "true or false"),
        ("max_qos", "2", ""),
        ("max_qos", "3", "a whole number from 0 to 2"),
        ("max_qos", "two", "a whole number from 0 to 2"),
        ("max_connections", "-1", ""),
        ("max_connections", "-2", ""),
        ("max_connections", "many", "a whole number from -1 to 2147483647"),
        ("max_queued_messages", "-1", ""),
        ("allow_anonymous", "1 # for all", ""),
        ("sys_interval", "5 # seconds", ""),
        ("sys_interval", "-5", "a whole number from 0 to 65535"),
        ("memory_limit", "8589934592", ""),
        ("max_packet_size", "19", "a whole number from 20 to 2147483647"),
        ("protocol", "mqttsn", "mqtt or websockets or http_api"),
        ("password_file", "", "a value"),
        ("password_file", "/etc/passwords", ""),
    ],
)
def test_values_are_those_of_the_manual(name: str, value: str, allowed: str) -> None:
    """What may stand there is told; of one word, what follows on the line is passed over."""
    assert problem_of(DIRECTIVES[name], value_of(DIRECTIVES[name], value)) == allowed


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        (b"listener 1883\npassword_file p\n", True),
        (b"# f\xfcr alle\nlistener 1883\nlisener 2\nuser a\n", True),
        (b"listeners:\n  default:\n    bind: 127.0.0.1:1883\n", False),
        (b"- listener\n- user: a\n", False),
        (b"", False),
        (b"\xff\n", False),
    ],
)
def test_a_mosquitto_conf_is_known_by_its_lines(
    text: bytes, is_one: object, tmp_path: Path
) -> None:
    """Whatever its name is, and with a mistake in it, too."""
    file = tmp_path / "file"
    file.write_bytes(text)
    assert is_mosquitto_conf(str(file)) is is_one
    assert not is_mosquitto_conf(str(tmp_path))
    assert not is_mosquitto_conf("x" * 300)  # which cannot be looked at, as in another's directory


def test_a_line_is_a_name_and_what_follows() -> None:
    """Blanks around the value are no part of it; comments and empty lines say nothing."""
    text = "# comment\n\nport 1883\n  topic  # both 2 \r\npersistence\n"
    assert parse_lines(text, "f") == [
        Line("f", 3, "port", "1883"),
        Line("f", 4, "topic", "# both 2"),
        Line("f", 5, "persistence", ""),
    ]


def test_included_files_come_in_mosquittos_order(tmp_path: Path) -> None:
    """Where the directive stands, by name, A before a before B; other files are left alone."""
    folder = tmp_path / "conf.d"
    folder.mkdir()
    for name in ("b.conf", "A.conf", "01.conf", "a.conf", "B.conf", "00.conf"):
        (folder / name).write_text(f"user {name}\n")
    (folder / "c.txt").write_text("user c\n")
    main = tmp_path / "mosquitto.conf"
    main.write_text(f"user before\ninclude_dir {folder}\nuser after\n")
    values = [line.value for line in read_conf(main) if line.name == "user"]
    between = ["00.conf", "01.conf", "A.conf", "a.conf", "B.conf", "b.conf"]
    assert values == ["before", *between, "after"]


def test_a_byte_order_mark_is_no_directive(tmp_path: Path) -> None:
    """Editors of Windows begin a file with one."""
    main = tmp_path / "mosquitto.conf"
    main.write_bytes(b"\xef\xbb\xbfuser a\r\n")
    assert [(line.name, line.value) for line in read_conf(main)] == [("user", "a")]


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    """The file or folder, and where it was asked for."""
    main = tmp_path / "mosquitto.conf"
    with pytest.raises(ConfigError, match=r"mosquitto\.conf: file: read No such file"):
        read_conf(main)
    main.write_text(f"\ninclude_dir {tmp_path / 'none'}\n")
    with pytest.raises(ConfigError, match=r"line 2, include_dir .*none: read No such file"):
        read_conf(main)
    main.write_bytes(b"\nuser \xff")
    with pytest.raises(ConfigError, match=r"line 2: read no UTF-8"):
        read_conf(main)


def test_an_included_file_includes_nothing(tmp_path: Path) -> None:
    """As in mosquitto."""
    folder = tmp_path / "conf.d"
    folder.mkdir()
    (folder / "a.conf").write_text(f"include_dir {folder}\n")
    main = tmp_path / "mosquitto.conf"
    main.write_text(f"include_dir {folder}\n")
    with pytest.raises(
        ConfigError, match=r"a\.conf: line 1: read include_dir; allowed: in the main"
    ):
        read_conf(main)


def test_a_comment_may_be_in_any_encoding(tmp_path: Path) -> None:
    """Mosquitto does not read it; files of twenty years ago are in Latin-1."""
    folder = tmp_path / "conf.d"
    folder.mkdir()
    (folder / "a.conf").write_bytes(b"user b\n#\xfcber\r\n")
    main = tmp_path / "mosquitto.conf"
    main.write_bytes(b"\xef\xbb\xbf# f\xfcr alle\nuser a\n#\xff\ninclude_dir %b" % bytes(folder))
    assert [(line.number, line.value) for line in read_conf(main) if line.name == "user"] == [
        (2, "a"),
        (1, "b"),
    ]
