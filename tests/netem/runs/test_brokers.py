from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from penstock.netem.errors import NetemError
from penstock.netem.runs.broker_process import ANONYMOUS, find_program
from penstock.netem.runs.brokers import (
    amqtt_policy,
    console_address,
    laid_over,
    penstock_policy,
    prepare,
    version,
)
from penstock.netem.runs.scenario import Broker


def test_settings_are_laid_over_key_by_key() -> None:
    """What the scenario does not name stays as it was; lists and values are replaced."""
    below = {"a": {"b": 1, "c": [1, 2]}, "d": 1}
    assert laid_over(below, {"a": {"c": [3]}, "d": {"e": 2}}) == {
        "a": {"b": 1, "c": [3]},
        "d": {"e": 2},
    }
    assert below == {"a": {"b": 1, "c": [1, 2]}, "d": 1}


def test_penstock_is_configured_as_the_scenario_says(tmp_path: Path) -> None:
    """Over a policy that listens everywhere and withholds, in a file of its own."""
    settings = {"plugins": {"withholding": {"policy": "historic"}}}
    command = prepare(Broker("penstock", settings=settings), tmp_path)
    policy = yaml.safe_load((tmp_path / "broker.yaml").read_text())
    assert command[-1] == str(tmp_path / "broker.yaml")
    assert policy == penstock_policy(settings)
    assert policy["listeners"]["default"]["bind"] == "0.0.0.0:1883"
    assert policy["plugins"]["withholding"] == {"policy": "historic"}
    assert {"probing", "console"} <= policy["plugins"].keys()


def test_mosquitto_gets_its_lines_behind_those_of_the_runner(tmp_path: Path) -> None:
    """No limit of queued messages, unless the scenario sets one."""
    command = prepare(Broker("mosquitto", lines=["max_queued_messages 10"]), tmp_path)
    lines = Path(command[-1]).read_text().splitlines()
    assert lines[0] == "listener 1883 0.0.0.0"
    assert lines.index("max_queued_messages 0") < lines.index("max_queued_messages 10")


def test_amqtt_has_its_settings(tmp_path: Path) -> None:
    """Its own keys, for everybody."""
    prepare(Broker("amqtt", settings={"timeout_disconnect_delay": 2}), tmp_path)
    policy = yaml.safe_load((tmp_path / "broker.yaml").read_text())
    assert policy == amqtt_policy({"timeout_disconnect_delay": 2})


def test_a_command_may_name_its_directory(tmp_path: Path) -> None:
    """Any broker can be compared; a program is found wherever it is."""
    command = prepare(Broker("command", command=["true", "-d", "{directory}/x"]), tmp_path)
    assert command == [find_program("true"), "-d", f"{tmp_path}/x"]
    with pytest.raises(NetemError, match="no-such-broker is not installed"):
        prepare(Broker("command", command=["no-such-broker"]), tmp_path)


def test_each_broker_has_a_version() -> None:
    """What a result is of."""
    assert version(Broker("penstock")).startswith("penstock ")
    assert version(Broker("amqtt")).startswith("amqtt 0")
    assert version(Broker("mosquitto")).startswith("mosquitto 2")
    assert version(Broker("command", command=["emqx", "start"])) == "emqx start"


def test_penstock_alone_is_asked_what_it_withholds() -> None:
    """Where its console is; nowhere, where the scenario has none."""
    assert console_address(Broker("penstock")) == "127.0.0.1:8081"
    other = Broker("penstock", settings={"plugins": {"console": {"http": "127.0.0.1:9"}}})
    assert console_address(other) == "127.0.0.1:9"
    assert console_address(Broker("mosquitto")) is None
    for plugins in (None, [ANONYMOUS], {"console": None}):
        assert console_address(Broker("penstock", settings={"plugins": plugins})) is None
    listed = Broker("penstock", settings={"plugins": [{"console": {"http": "[::1]:9"}}, ANONYMOUS]})
    assert console_address(listed) == "[::1]:9"
