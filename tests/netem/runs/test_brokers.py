from __future__ import annotations

import re
import subprocess
from importlib.metadata import EntryPoint, distributions
from pathlib import Path

import pytest
import yaml

from penstock.edge_proxy.sidecar.config import load_proxy_config
from penstock.netem.errors import NetemError
from penstock.netem.oracle import OraclePlugin
from penstock.netem.runs.broker_process import ANONYMOUS, find_program, version_of
from penstock.netem.runs.brokers import (
    BEHIND_SIDECAR,
    CONSOLE,
    amqtt_policy,
    console_address,
    laid_over,
    penstock_policy,
    prepare,
    prepare_balancer,
    prepare_edge,
    prepare_sidecar,
    version,
)
from penstock.netem.runs.scenario import Broker, Edges


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


def test_the_oracle_has_its_gate_in_place_of_withholding(tmp_path: Path) -> None:
    """A broker that starts in its directory finds the plugin; a broker has one gate."""
    settings = {"plugins": {"oracle": {"exposure": 1.0}}}
    command = prepare(Broker("oracle", settings=settings), tmp_path)
    assert command[-1] == str(tmp_path / "broker.yaml")
    policy = yaml.safe_load((tmp_path / "broker.yaml").read_text())
    assert policy["plugins"]["oracle"] == {"exposure": 1.0}
    assert "withholding" not in policy["plugins"]
    (offered,) = entry_points_in(tmp_path)
    assert offered.name == "oracle"
    assert offered.load() is OraclePlugin


def entry_points_in(folder: Path) -> list[EntryPoint]:
    """Return what distributions in a folder offer to Penstock."""
    return [
        point
        for each in distributions(path=[str(folder)])
        for point in each.entry_points.select(group="penstock.plugins")
    ]


def test_a_load_balancer_passes_bytes_to_the_broker(tmp_path: Path) -> None:
    """HAProxy finds no mistake in its file."""
    program, *arguments = prepare_balancer(tmp_path)
    checked = subprocess.run(
        [program, "-c", *arguments], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    text = (tmp_path / "haproxy.cfg").read_text()
    assert "mode tcp" in text
    assert "bind :1885" in text
    assert "server broker 127.0.0.1:1883" in text
    assert re.fullmatch(r"\d+\.\d+\.\S+", version_of("haproxy"))


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


def test_a_broker_behind_a_sidecar_leaves_it_the_port_of_clients(tmp_path: Path) -> None:
    """The sidecar finds it on the loopback interface."""
    broker = Broker("mosquitto", sidecar={"limits": {"queued_messages": 7}})
    command = prepare(broker, tmp_path)
    assert Path(command[-1]).read_text().startswith("listener 1884 127.0.0.1\n")
    policies = (penstock_policy({}, BEHIND_SIDECAR), amqtt_policy({}, BEHIND_SIDECAR))
    binds = {each["listeners"]["default"]["bind"] for each in policies}
    assert binds == {"127.0.0.1:1884"}
    command = prepare_sidecar(broker.sidecar or {}, tmp_path)
    assert command[1:-2] == ["-m", "penstock", "proxy"]
    config = load_proxy_config(command[-1])
    assert [str(each) for each in config.keys.upstream.read_addresses()] == ["127.0.0.1:1884"]
    assert config.keys.limits.queued_messages == 7
    assert console_address(broker) == CONSOLE
    assert version(broker).startswith("mosquitto 2")
    assert " behind a sidecar, penstock " in version(broker)


def test_an_edge_broker_has_an_uplink_to_the_broker_behind_it(tmp_path: Path) -> None:
    """For all topics, unless the scenario names others; marks stand for host and address."""
    uplink = {"up": [{"filter": "up/#", "remote_prefix": "{host}/"}], "client_id": "at-{broker}"}
    settings = {"plugins": {"uplink": {"uplinks": {"cloud": uplink}}}}
    edges = Edges(["site"], settings=settings)
    command = prepare_edge(edges, "site", "198.19.0.1", tmp_path)
    assert command[1:-1] == ["-m", "penstock", "proxy", "--mode", "edge", "-c"]
    policy = yaml.safe_load(Path(command[-1]).read_text())
    assert policy["plugins"]["uplink"] == {
        "site": "site",
        "uplinks": {
            "cloud": {
                "upstream": {"address": "198.19.0.1:1883"},
                "up": [{"filter": "up/#", "remote_prefix": "site/"}],
                "down": [{"filter": "#"}],
                "client_id": "at-198.19.0.1",
                "lanes": None,
            }
        },
    }
    assert version(Broker("mosquitto", edges=edges)).count("penstock") == 1


def test_a_bridge_of_mosquitto_begins_with_the_address_of_its_broker(tmp_path: Path) -> None:
    """Its topics, and further connections, are the scenario's."""
    lines = ["topic up/# out 2", "connection two", "address {broker}:1883"]
    edges = Edges(["site"], "mosquitto", lines=lines)
    command = prepare_edge(edges, "site", "198.19.0.1", tmp_path)
    assert Path(command[-1]).read_text().splitlines()[-7:] == [
        *("connection cloud", "address 198.19.0.1:1883", "remote_clientid site"),
        *("cleansession false", "topic up/# out 2", "connection two", "address 198.19.0.1:1883"),
    ]
