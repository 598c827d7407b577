from __future__ import annotations

import warnings
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from amqtt.contexts import BrokerConfig

from penstock.broker.config.limits import Limits
from penstock.broker.config.listener_config import Listener
from penstock.broker.config.policy import Persistence, load_policy, parse_policy
from penstock.broker.errors import ConfigError


def problems_of(text: str) -> dict[str, tuple[str, str]]:
    """Return path -> (read, allowed) of a policy that must be refused."""
    with pytest.raises(ConfigError) as caught:
        parse_policy(text, "policy.yaml")
    assert caught.value.file == "policy.yaml"
    return {problem.path: (problem.read, problem.allowed) for problem in caught.value.problems}


def test_stock_amqtt_file_needs_nothing() -> None:
    """The file that aMQTT installs gives its listener and its four plugins."""
    policy = load_policy(str(files("amqtt") / "scripts" / "default_broker.yaml"))
    assert policy.listeners == {"default": Listener("default", "0.0.0.0", 1883)}
    assert policy.plugins == {}
    assert policy.amqtt is not None
    assert policy.amqtt["plugins"] == {
        "amqtt.plugins.logging_amqtt.EventLoggerPlugin": {},
        "amqtt.plugins.logging_amqtt.PacketLoggerPlugin": {},
        "amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True},
        "amqtt.plugins.sys.broker.BrokerSysPlugin": {"sys_interval": 20},
    }


def test_empty_file_has_amqtt_defaults() -> None:
    """Without any key aMQTT's listener, default plugins and our limits apply."""
    policy = parse_policy("", "policy.yaml")
    assert policy.listeners["default"].port == 1883
    assert policy.amqtt is not None
    assert "plugins" not in policy.amqtt
    assert policy.limits == Limits()
    assert policy.sys_interval == 10
    assert policy.session_expiry_interval is None


def test_short_names_alone_need_no_amqtt() -> None:
    """A file that names no aMQTT plugin asks for none."""
    policy = parse_policy("plugins: {queue: {a: 1}, probing: }", "policy.yaml")
    assert policy.amqtt is None
    assert list(policy.plugins.items()) == [("queue", {"a": 1}), ("probing", {})]


def test_plugins_as_list_of_names_and_mappings() -> None:
    """The older list form of aMQTT works for dotted and short names alike."""
    policy = parse_policy(
        "plugins:\n- a.b.First\n- queue: {n: 1}\n- a.b.Second: {k: v}\n", "policy.yaml"
    )
    assert policy.plugins == {"queue": {"n": 1}}
    assert policy.amqtt is not None
    assert policy.amqtt["plugins"] == {"a.b.First": {}, "a.b.Second": {"k": "v"}}


def amqtt_reads(text: str) -> Any:
    """Return the configuration that aMQTT itself makes of a policy."""
    amqtt = parse_policy(text, "policy.yaml").amqtt
    assert amqtt is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return BrokerConfig.from_dict(dict(amqtt))


@pytest.mark.parametrize("plugins", ["", "plugins: {queue: }", "plugins:"])
def test_auth_section_takes_plugins_from_entry_points(plugins: str) -> None:
    """With an `auth` section and no dotted name aMQTT loads its entry points."""
    config = amqtt_reads(f"auth: {{plugins: [auth_file]}}\ntopic-check: {{}}\n{plugins}")
    assert config.plugins is None
    assert config.auth == {"plugins": ["auth_file"]}
    assert config.topic_check == {}


def test_amqtt_gets_its_own_keys() -> None:
    """What plugins read of aMQTT's configuration is what stands in the file."""
    config = amqtt_reads(
        "listeners: {lan: {bind: 1884, max-connections: 5}}\nsys_interval: 20\n"
        "timeout-disconnect-delay: 2\nsession-expiry-interval: 60\nplugins: [a.b.C]"
    )
    assert config.listeners["lan"].bind == ":1884"
    assert config.listeners["lan"].max_connections == 5
    assert (config.sys_interval, config.timeout_disconnect_delay) == (20, 2)
    assert config.session_expiry_interval == 60
    assert config.plugins == {"a.b.C": {}}


def test_listener_takes_what_it_does_not_set_from_default() -> None:
    """Keys of `default` hold for every listener that does not set them."""
    policy = parse_policy(
        "listeners:\n"
        "  default: {max-connections: 7, bind: null}\n"
        "  first: {bind: 127.0.0.1:0}\n"
        "  second: {bind: 1884, max_connections: 9}\n",
        "policy.yaml",
    )
    assert policy.listeners == {
        "first": Listener("first", "127.0.0.1", 0, 7),
        "second": Listener("second", None, 1884, 9),
    }


@pytest.mark.parametrize(
    ("text", "path", "read", "allowed"),
    [
        ("listners: {}", "listners", "an unknown key", "perhaps listeners"),
        ("limits: 3", "limits", "3", "a mapping"),
        ("listeners: {default: {typ: tcp}}", "listeners.default.typ", "unknown", "perhaps type"),
        ("listeners: {default: {bind: -1}}", "listeners.default.bind", "-1", "host:port"),
        ("listeners: {default: {bind: null}}", "listeners", "none", "at least one"),
        ("listeners: {a: {bind: 5}, b: {bind: 5}}", "listeners.b.bind", "listener a", "another"),
        ("plugins: [queue, queue]", "plugins.queue", "again", "once"),
        ("plugins: {queue: 7}", "plugins.queue", "7", "a mapping"),
        ("plugins: 7", "plugins", "7", "a mapping or a list"),
        ("session_expiry_interval: soon", "session_expiry_interval", "'soon'", "integer"),
        ("sys-interval: 1\nsys_interval: 2", "sys_interval", "dash", "once"),
        ("- a", "file", "['a']", "a mapping"),
        ("a: [", "line 1, column 5", "flow", "YAML"),
        ("a: 1\na: 2", "a", "lines 1 and 2", "once"),
        ("plugins:\n  q:\n    k: 1\n    k: 1", "plugins.q.k", "lines 3 and 4", "once"),
        ("plugins: {q: [{k: 1, k: 2}]}", "plugins.q[0].k", "lines 1 and 1", "once"),
        ("plugins: {q: {on: 1}}", "plugins.q", "no text in line 1", "quotes"),
        ("plugins: &x {q: *x}", "plugins.q", "alias", "tree"),
        ("a: !!python/name:os.system", "line 1, column 4", "constructor", "YAML"),
    ],
)
def test_wrong_place_is_named_with_what_was_read_and_what_is_allowed(
    text: str, path: str, read: str, allowed: str
) -> None:
    """A wrong key or value names its path, what stands there and what may."""
    problems = problems_of(text)
    assert path in problems, problems
    assert read in problems[path][0]
    assert allowed in problems[path][1]


def test_all_problems_are_told_at_once() -> None:
    """One look at the errors is enough to correct the whole file."""
    problems = problems_of(
        "listeners: {default: {type: external}, b: {bind: 'x:y'}}\n"
        "limits: {nothing: 1}\nplugins: {q: 1}"
    )
    assert set(problems) == {
        "listeners.default.type",
        "listeners.b.type",
        "listeners.b.bind",
        "limits.nothing",
        "plugins.q",
    }


def test_wrong_key_of_default_is_told_once() -> None:
    """What other listeners would inherit is not reported again under their names."""
    problems = problems_of("listeners: {default: {typ: x}, b: {bind: 1884}}")
    assert set(problems) == {"listeners.default.typ"}


@pytest.mark.parametrize(
    ("content", "read"), [(None, "No such file"), (b"\xff\xfe\x00", "no UTF-8")]
)
def test_file_that_cannot_be_read(tmp_path: Path, content: Any, read: str) -> None:
    """A missing or undecodable file is a configuration error that names the file."""
    path = tmp_path / "policy.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_policy(path)
    assert caught.value.file == str(path)
    assert read in caught.value.problems[0].read


def test_without_the_section_nothing_is_kept() -> None:
    """As it always was."""
    assert parse_policy("", "policy.yaml").persistence is None


def test_an_empty_section_is_refused() -> None:
    """Who writes its name wants something kept; nothing says what."""
    with pytest.raises(
        ConfigError, match=r"persistence: read nothing; allowed: its keys, \{\} for"
    ):
        parse_policy("persistence:", "policy.yaml")


def test_the_section_alone_is_durable() -> None:
    """Whoever asks for persistence and no more gets the sure kind."""
    assert parse_policy("persistence: {}", "policy.yaml").persistence == Persistence()
    assert Persistence().durability == "full"


def test_keys_with_dashes_are_read() -> None:
    """As everywhere in the file."""
    text = "persistence: {path: x.db, commit-wait-seconds: 0.01}"
    found = parse_policy(text, "policy.yaml").persistence
    assert found == Persistence(path="x.db", commit_wait_seconds=0.01)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("path", "''"),
        ("durability", "some"),
        ("commit_wait_seconds", "2"),
        ("max_pending_messages", "0"),
        ("max_pending_bytes", "-1"),
        ("file", "x.db"),
    ],
)
def test_wrong_values_are_named(key: str, value: str) -> None:
    """With the key and what was read."""
    with pytest.raises(ConfigError) as caught:
        parse_policy(f"persistence: {{{key}: {value}}}", "policy.yaml")
    (problem,) = caught.value.problems
    assert problem.path == f"persistence.{key}"


def test_two_ways_of_persistence_are_one_too_many() -> None:
    """AMQTT's plugin refuses to load where sessions are: said before, not while running."""
    plugin = "plugins: {amqtt.contrib.persistence.SessionDBPlugin: {}}"
    with pytest.raises(ConfigError) as caught:
        parse_policy(f"persistence: {{}}\n{plugin}", "policy.yaml")
    (problem,) = caught.value.problems
    assert str(problem) == (
        "persistence: read amqtt.contrib.persistence.SessionDBPlugin beside it; "
        "allowed: one of the two"
    )
    assert parse_policy(f"persistence: {{durability: memory}}\n{plugin}", "policy.yaml").amqtt
