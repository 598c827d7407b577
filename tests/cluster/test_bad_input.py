"""What an operator may get wrong is named."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import signal
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import yaml
from redis import Redis

import penstock as penstock_package
from penstock.netem.runs.broker_process import reserved_port
from penstock.plugins.cluster.engine import LIBRARY
from tests.helpers.cluster import Cluster, running_brokers, until
from tests.helpers.commands import penstock
from tests.helpers.paho_client import PahoClient
from tests.helpers.process import BrokerProcess
from tests.helpers.redis_server import running_redis

UPLINK: Final = {
    "site": "berlin",
    "uplinks": {"cloud": {"upstream": {"address": "127.0.0.1:9"}, "down": [{"filter": "#"}]}},
}


def refused(cluster: Cluster, name: str, folder: Path) -> str:
    """Return the log of a broker that does not start: status 2, and no traceback."""
    folder.mkdir(exist_ok=True, parents=True)
    broker = BrokerProcess(cluster.policy(name), folder)
    try:
        assert not broker.port, broker.log
        assert broker.wait() == 2
        assert "Traceback" not in broker.log
        return broker.log
    finally:
        broker.end()


def test_two_brokers_of_one_name(tmp_path: Path) -> None:
    """The second is told, and the first goes on."""
    with running_brokers(tmp_path, "a") as cluster:
        log = refused(cluster, "a", tmp_path / "other")
        pid = cluster["a"].process.pid
        told = f"node a of cluster test: another broker has this name and lives: process {pid} on "
        assert told in log
        with cluster.client("a", subscribes="x") as client:
            client.publish("x", b"1", 1)
            assert client.payloads(1) == [b"1"]


def test_a_wrong_password(tmp_path: Path) -> None:
    """Named with the server, at the start."""
    with running_redis(tmp_path / "redis", "requirepass right") as redis:
        (tmp_path / "password").write_text("wrong\n")
        (tmp_path / "password").chmod(0o600)
        section = {
            "server": f"127.0.0.1:{redis.port}",
            "password_file": str(tmp_path / "password"),
        }
        log = refused(Cluster(tmp_path, section), "a", tmp_path / "a")
        assert f"127.0.0.1:{redis.port}" in log
        assert "password" in log.lower() or "WRONGPASS" in log


def test_an_engine_that_forgets(tmp_path: Path) -> None:
    """A server that evicts keys would lose clients, filters and messages."""
    with running_redis(tmp_path / "redis", "maxmemory 100mb", "maxmemory-policy allkeys-lru") as r:
        section = {"server": f"127.0.0.1:{r.port}"}
        log = refused(Cluster(tmp_path, section), "a", tmp_path / "a")
        assert "noeviction" in log


@pytest.mark.parametrize(
    ("settings", "kind", "told"),
    [
        (["replicaof 127.0.0.1 1"], "server", "allowed: master"),
        (["maxmemory 1mb", "maxmemory-policy noeviction"], "server", "maxmemory"),
        (["cluster-enabled yes"], "cluster", "allowed: 16384"),
        (["cluster-enabled yes"], "server", "cluster_enabled: 1"),
    ],
    ids=["a replica", "full", "a cluster that is down", "of a cluster"],
)
def test_an_engine_that_takes_nothing(
    tmp_path: Path, settings: list[str], kind: str, told: str
) -> None:
    """Named with what was read and what is allowed."""
    with reserved_port() as bus_port:
        if settings == ["cluster-enabled yes"]:
            settings = [*settings, f"cluster-port {bus_port}"]
        with running_redis(tmp_path / "redis", *settings) as redis:
            address = f"127.0.0.1:{redis.port}"
            section = {kind: address if kind == "server" else [address]}
            log = refused(Cluster(tmp_path, section), "a", tmp_path / "a")
    assert address in log
    assert told in log


@pytest.mark.parametrize(
    ("keys", "plugins", "told"),
    [
        ({"persistence": {"path": "sessions.db"}}, {}, "persistence: read sessions.db"),
        (
            {},
            {"amqtt.contrib.persistence.SessionDBPlugin": {}},
            "plugins.amqtt.contrib.persistence.SessionDBPlugin: read ",
        ),
        ({}, {"queue": {"queues": {"jobs": {}}}}, "plugins.queue.engine: read sqlite, and other"),
        ({}, {"parts": {}}, "plugins.parts: read other brokers"),
        ({}, {"uplink": UPLINK}, "plugins.uplink.uplinks.cloud.down[0].when: read subscribed"),
    ],
    ids=["a database", "that of aMQTT", "queues in a file", "parts", "an uplink that follows"],
)
def test_what_brokers_cannot_share(
    tmp_path: Path, keys: dict[str, Any], plugins: dict[str, Any], told: str
) -> None:
    """Named at the check, as at the start."""
    cluster = Cluster(tmp_path, {"server": "127.0.0.1:1"}, plugins=plugins, **keys)
    assert told in refused(cluster, "a", tmp_path / "a")
    done = penstock("check", str(tmp_path / "a" / "policy.yaml"))
    assert done.status == 2
    assert told in done.err


def body_of(url: str) -> str:
    """Return what is answered, whatever the status is."""
    try:
        with urlopen(url, timeout=10) as answer:  # noqa: S310
            return bytes(answer.read()).decode()
    except HTTPError as error:
        return error.read().decode()


def test_what_changes_at_the_engine_while_it_is_used(tmp_path: Path) -> None:
    """Each change is named, in the log and to who asks; the broker goes on where it is undone."""
    (tmp_path / "password").write_text("right\n")
    with (
        running_redis(tmp_path / "redis", "user penstock on >right ~* &* +@all") as redis,
        Redis(port=redis.port) as admin,
    ):
        section = {"server": f"127.0.0.1:{redis.port}", "user": "penstock"}
        section |= {"password_file": str(tmp_path / "password")}
        console = {"console": {"http": "127.0.0.1:0"}}
        with running_brokers(tmp_path, "a", redis=section, plugins=console) as cluster:
            broker = cluster["a"]
            ready = f"{broker.console_url}/readyz"
            for right, told in {
                "fcall": "takes no beat of this node: the Redis server refuses: this user has no",
                "xread": f"127.0.0.1:{redis.port} refuses XREAD ",
                "xadd": f"127.0.0.1:{redis.port} refuses FCALL {LIBRARY.prefix}change: ",
            }.items():
                with cluster.client("a") as client:
                    admin.acl_setuser("penstock", enabled=True, commands=[f"-{right}"])
                    client.subscribe(right)
                    broker.wait_for_log(told)
                if right == "fcall":
                    until(lambda: "permissions to run the 'fcall'" in body_of(ready))
                admin.acl_setuser("penstock", enabled=True, commands=[f"+{right}"])
                until(lambda: "not ready" not in body_of(ready), right)
            admin.config_set("maxmemory-policy", "allkeys-lru")
            broker.wait_for_log("read allkeys-lru; allowed: noeviction")
            admin.config_set("maxmemory-policy", "noeviction")
            broker.wait_for_log("the engine stores again")

            admin.execute_command("ACL", "SETUSER", "penstock", "resetpass", ">other")
            admin.execute_command("CLIENT", "KILL", "USER", "penstock")
            broker.wait_for_log("invalid username-password pair")
            (tmp_path / "password").write_text("other\n")
            broker.wait_for_log("connected to the Redis server")


def test_functions_that_somebody_removes(tmp_path: Path) -> None:
    """They are loaded again, and nothing is refused meanwhile."""
    with (
        running_redis(tmp_path / "redis") as redis,
        Redis(port=redis.port) as admin,
        running_brokers(tmp_path, "a", "b", redis={"server": f"127.0.0.1:{redis.port}"}) as cluster,
        cluster.client("b", subscribes="x") as reader,
        cluster.client("a") as writer,
    ):
        for number in range(5):
            admin.function_flush()
            writer.publish("x", b"%d" % number, 1)
            assert reader.payloads(1) == [b"%d" % number]
        assert "Function not found" in cluster["a"].log


def test_brokers_whose_policies_differ_are_warned(tmp_path: Path) -> None:
    """With the keys: clients would have other rights, or other limits, at each. Reloads count."""
    differs = "node {} has other values than this one in its policy file: limits"
    with running_brokers(tmp_path, "a") as cluster:
        cluster._keys = {"limits": {"queued_messages": 7}}
        cluster.start("b")
        cluster["b"].wait_for_log(differs.format("a"))
        (tmp_path / "a" / "policy.yaml").write_text(yaml.safe_dump(cluster.policy("a")))
        cluster["a"].process.send_signal(signal.SIGHUP)
        status = ["cluster", "status", "-c", str(tmp_path / "a" / "policy.yaml")]
        until(lambda: "policy files" not in penstock(*status).out, "what the reload has changed")
        cluster.start("c")
        until(lambda: cluster["c"].log.count("has joined") == 2, "the others")
        assert "has other values" not in cluster["c"].log

        cluster._keys = {"limits": {"queued_messages": 8}}
        (tmp_path / "c" / "policy.yaml").write_text(yaml.safe_dump(cluster.policy("c")))
        cluster["c"].process.send_signal(signal.SIGHUP)
        for name, others in {"a": "c", "b": "c", "c": "ab"}.items():
            for other in others:
                cluster[name].wait_for_log(differs.format(other))


def test_brokers_whose_users_or_topics_differ_are_warned(tmp_path: Path) -> None:
    """A user of one broker alone is let in or not, as the load balancer has it."""
    files = {"password_file": "passwords", "acl_file": "topics"}
    rules = files | {"listeners": {"default": files | {"acl_file": "of-default"}}}
    for name in "ab":
        (tmp_path / name).mkdir()
        for file in ("passwords", "topics", "of-default"):
            (tmp_path / name / file).write_text("# empty\n")
            (tmp_path / name / file).chmod(0o600)
    with running_brokers(tmp_path, "a", "b", plugins={"access": rules}) as cluster:
        status = ["cluster", "status", "-c", str(tmp_path / "a" / "policy.yaml")]
        assert "differ" not in penstock(*status).out
        for file, told in {
            "passwords": "plugins.access.listeners.default.password_file, "
            "plugins.access.password_file",
            "topics": "plugins.access.acl_file",
            "of-default": "plugins.access.listeners.default.acl_file",
        }.items():
            (tmp_path / "b" / file).write_text("# another\n")
            cluster["b"].process.send_signal(signal.SIGHUP)
            for name, other in ("ab", "ba"):
                cluster[name].wait_for_log(f"node {other} has other files than this one: {told}\n")
            assert "the files of users and topics" in penstock(*status).out
            (tmp_path / "a" / file).write_text("# another\n")
            cluster["a"].process.send_signal(signal.SIGHUP)
            until(lambda: "differ" not in penstock(*status).out, "what the reload has changed")
        assert "has other values" not in cluster["a"].log


def test_what_belongs_to_one_broker_may_differ(tmp_path: Path) -> None:
    """Addresses, and an uplink: two that are alike would pass each message twice, and are named."""
    rule = {"filter": "down/#", "when": "always"}
    uplink = {"upstream": {"address": "127.0.0.1:9"}, "down": [rule]}
    uplinks = {"uplink": {"site": "berlin", "uplinks": {"cloud": uplink}}}
    with running_brokers(tmp_path, "a", plugins={"console": {"http": "127.0.0.1:0"}}) as cluster:
        cluster.plugins = {"console": {"http": "localhost:0"}, **uplinks}
        cluster.start("b")
        cluster["a"].wait_for_log("node b has joined")
        status = ["cluster", "status", "-c", str(tmp_path / "a" / "policy.yaml")]
        assert "policy files" not in penstock(*status).out
        cluster.start("c")
        cluster["c"].wait_for_log("node b has plugins.uplink as this one has it")
        cluster["b"].wait_for_log("node c has plugins.uplink as this one has it")
        for name in "abc":
            assert "has other values" not in cluster[name].log


def test_brokers_of_two_versions_are_warned(tmp_path: Path) -> None:
    """With both; an upgrade goes on all the same, also to other functions at the engine.

    A broker that runs while the next one is installed loads the functions that it has begun with.
    """
    installed = importlib.metadata.distribution("penstock-mqtt")
    version = installed.version
    other = tmp_path / "penstock_mqtt-9.9.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Name: penstock-mqtt\nVersion: 9.9\n")
    (other / "entry_points.txt").write_text(installed.read_text("entry_points.txt") or "")
    functions = penstock_in(tmp_path) / "plugins" / "cluster" / "library.lua"
    functions.write_text(f"{functions.read_text()}-- what 9.9 does better\n")
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    with (
        running_redis(tmp_path / "redis") as redis,
        Redis(port=redis.port) as admin,
        running_brokers(tmp_path, "a", redis={"server": f"127.0.0.1:{redis.port}"}) as cluster,
    ):
        (tmp_path / "b").mkdir()
        environment = os.environ | {"PYTHONPATH": path}
        newer = BrokerProcess(cluster.policy("b"), tmp_path / "b", is_forked=False, env=environment)
        try:
            newer.wait_for_log(f"node a has version {version}, and this one 9.9")
            cluster["a"].wait_for_log(f"node b has version 9.9, and this one {version}")
            assert len(admin.function_list()) == 2
            with PahoClient(newer.port) as there, cluster.client("a", subscribes="a") as here:
                assert there.connect()
                there.subscribe("b", 1)
                for is_reloaded in (False, True):
                    if is_reloaded:
                        functions.write_text("what comes after 9.9")
                        admin.function_flush()
                    there.publish("a", b"from b", 1)
                    here.publish("b", b"from a", 1)
                    assert [here.payloads(1), there.payloads(1)] == [[b"from b"], [b"from a"]]
        finally:
            newer.end()


def penstock_in(folder: Path) -> Path:
    """Make a package whose plugin `cluster` is a copy; return the package."""
    own, package = Path(penstock_package.__file__).parent, folder / "penstock"
    (package / "plugins").mkdir(parents=True)
    for part in (own, own / "plugins"):
        for each in part.iterdir():
            place = package / each.relative_to(own)
            if each.name == "cluster":
                shutil.copytree(each, place)
            elif not place.exists():
                place.symlink_to(each.resolve())
    return package


def test_functions_of_a_version_that_does_not_go_together(tmp_path: Path) -> None:
    """The start ends before anything is changed, and says how to go on."""
    with running_redis(tmp_path / "redis") as redis, Redis(port=redis.port) as admin:
        code = "redis.register_function('penstock_cluster_0_f', function() return 1 end)"
        admin.function_load(f"#!lua name=penstock_cluster_0_1234\n{code}")
        cluster = Cluster(tmp_path, {"server": f"127.0.0.1:{redis.port}"})
        assert (
            "read penstock_cluster_0_1234; allowed: penstock_cluster_1_*. Another version of "
            "Penstock uses this server. FUNCTION DELETE"
        ) in refused(cluster, "a", tmp_path / "a")
        assert admin.dbsize() == 0
