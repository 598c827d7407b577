"""A reload of the whole policy file, while clients are connected to the real broker."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from penstock.broker.mqtt.packets import Disconnect, PubAck, Publish
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.plugins.queue.client import QueueClient
from tests.helpers.certificates import Authority
from tests.helpers.process import BrokerProcess, anonymous_policy, running_broker
from tests.helpers.sidecar import before, running_sidecar
from tests.helpers.wire import connected

N_RUNS: Final = 1_000
RUN: Final = 20
RUNS_EACH: Final = 25
"""Runs from one reload to the next."""


def ask_to_reload(broker: BrokerProcess, folder: Path, policy: dict[str, Any]) -> None:
    """Put a policy file in the place of the last one, and send SIGHUP."""
    (folder / "newer.yaml").write_text(yaml.safe_dump(policy))
    (folder / "newer.yaml").replace(folder / "policy.yaml")
    broker.process.send_signal(signal.SIGHUP)


async def reload(broker: BrokerProcess, folder: Path, policy: dict[str, Any]) -> str:
    """Reload a policy file, and return the line of the log about it."""
    n_before = len(broker.lines_with("reloaded: "))
    ask_to_reload(broker, folder, policy)
    found = await asyncio.to_thread(broker.lines_with, "reloaded: ", n_before + 1)
    return found[-1]


async def test_a_lower_threshold_holds_the_next_message(tmp_path: Path) -> None:
    """What was small for a connected client is large, and waits; a small one passes it."""
    withholding = {
        "policy": "conservative",
        "threshold_s": "1 MB",
        "threshold_l": 1e-9,  # each path is congested
        "max_withhold": 600,
    }
    policy = anonymous_policy({"probing": None, "withholding": withholding})
    with running_broker(policy, tmp_path) as broker:
        async with (
            await connected(broker.port, "reader") as reader,
            await connected(broker.port, "publisher") as publisher,
        ):
            await reader.subscribe("#", 1)

            async def received(topic: str, n_bytes: int) -> str:
                await publisher.publish(topic, bytes(n_bytes))
                await publisher.publish("small", b"")
                packet = await reader.take(Publish)
                await reader.send(PubAck(packet.packet_id))
                return packet.topic

            assert await received("picture", 5_000) == "picture"
            second = await reader.take(Publish)
            await reader.send(PubAck(second.packet_id))
            withholding["threshold_s"] = "1 kB"
            line = await reload(broker, tmp_path, policy)
            assert line.endswith("changed: plugins.withholding.threshold_s")
            assert await received("picture", 5_000) == "small"
            withholding["policy"] = "none"
            await reload(broker, tmp_path, policy)
            assert (await reader.take(Publish)).topic == "picture"


async def test_a_lower_queue_limit_refuses_the_next_message(tmp_path: Path) -> None:
    """And a higher one takes it."""
    policy = anonymous_policy(limits={"queued_messages": 100})
    with running_broker(policy, tmp_path) as broker:
        async with (
            await connected(broker.port, "reader", properties={"receive_maximum": 1}) as reader,
            await connected(broker.port, "publisher") as publisher,
        ):
            await reader.subscribe("#", 1)
            for _ in range(5):
                assert not (await publisher.publish("t", b"x")).reason_code
            policy["limits"]["queued_messages"] = 4
            assert "limits.queued_messages" in await reload(broker, tmp_path, policy)
            refused = await publisher.publish("t", b"x")
            assert refused.reason_code == ReasonCode.QUOTA_EXCEEDED
            policy["limits"]["queued_messages"] = 5
            await reload(broker, tmp_path, policy)
            assert not (await publisher.publish("t", b"x")).reason_code


async def test_listeners_come_and_go(tmp_path: Path) -> None:
    """A new one is served; clients of a closed one are told, all others stay."""
    policy = anonymous_policy()
    listeners = policy["listeners"]
    listeners["second"] = {"bind": "127.0.0.1:0"}
    with running_broker(policy, tmp_path) as broker:
        await asyncio.to_thread(broker.wait_for_log, "listener second: listening")
        async with (
            await connected(broker.port, "stays") as stays,
            await connected(broker.ports["second"], "goes") as goes,
        ):
            del listeners["second"]
            listeners["third"] = {"bind": "127.0.0.1:0", "max_connections": 1}
            line = await reload(broker, tmp_path, policy)
            assert line.endswith("changed: listeners.second, listeners.third")
            assert (await goes.take(Disconnect)).reason_code == ReasonCode.ADMINISTRATIVE_ACTION
            assert await goes.receive() is None
            with pytest.raises(ConnectionRefusedError):
                await connected(broker.ports["second"], "late")
            async with await connected(broker.ports["third"], "new") as new:
                assert (await new.publish("t", b"x")).reason_code < 0x80
            assert (await stays.publish("t", b"x")).reason_code < 0x80
        assert "on listener second): disconnected: listener second was closed" in broker.log


async def test_a_wrong_file_changes_nothing_and_says_why(tmp_path: Path) -> None:
    """Each mistake is named: of the file, of a plugin's keys, of TLS, of an address in use."""
    authority = Authority(tmp_path)
    policy = anonymous_policy({"withholding": None, "probing": None})
    with running_broker(policy, tmp_path) as broker:
        broken = tmp_path / "broken.pem"
        broken.write_text("no certificate")
        tls = authority.listener_keys() | {"certfile": str(broken), "bind": "127.0.0.1:0"}
        good = {"limits": {"payload_bytes": 1}}
        taken = {"default": {"bind": "127.0.0.1:0"}, "taken": {"bind": f"127.0.0.1:{broker.port}"}}
        for keys, told in (
            ({"limits": {"payload_bytes": 0}}, "limits.payload_bytes: read 0"),
            ({"plugins": policy["plugins"] | {"probing": {"probe_period": 0}}}, "probe_period"),
            ({"plugins": policy["plugins"] | {"memory": {"x": 1}}}, "plugins.memory.x: read an"),
            ({"plugins": policy["plugins"] | {"memry": None}}, "plugins.memry: read an unknown"),
            ({"listeners": policy["listeners"] | {"tls": tls}}, f"certfile {broken}"),
            ({"listeners": taken}, "listeners.taken.bind: "),
        ):
            line = await reload(broker, tmp_path, policy | good | keys)
            assert "not reloaded: " in line
            assert told in line
            assert line.endswith("; nothing has changed")
        for text, told in (("limits: [", "line 1, column 10"), ("", "file: read nothing")):
            (tmp_path / "policy.yaml").write_text(text)
            broker.process.send_signal(signal.SIGHUP)
            await asyncio.to_thread(broker.wait_for_log, f"not reloaded: {told}")
        async with await connected(broker.port, "c") as client:
            assert (await client.publish("t", b"longer")).reason_code < 0x80
            await reload(broker, tmp_path, policy | good)
            refused = await client.publish("t", b"longer")
            assert refused.reason_code == ReasonCode.QUOTA_EXCEEDED


async def test_what_needs_a_restart_is_named_until_the_file_is_as_it_was(tmp_path: Path) -> None:
    """Key by key; the rest of the same file changes."""
    policy = anonymous_policy({"memory": None}, log={"level": "info"})
    with running_broker(policy, tmp_path) as broker:
        changed = policy | {
            "persistence": {"path": "p.db"},
            "log": {"level": "debug"},
            "plugins": policy["plugins"] | {"probing": None},
        }
        for _ in range(2):
            line = await reload(broker, tmp_path, changed)
            assert line.endswith("needs a restart: persistence, plugins.probing")
    assert "changed: log.level" in broker.log


async def test_new_queues_are_fed_and_others_get_their_settings(tmp_path: Path) -> None:
    """Those that are gone from the file are kept, and named."""
    queues: dict[str, Any] = {"first": {"topics": ["a/#"]}, "gone": {}}
    queue = {"engine": "memory", "http": "127.0.0.1:0", "queues": queues}
    policy = anonymous_policy({"queue": queue})
    with running_broker(policy, tmp_path) as broker:
        del queues["gone"]
        queues["first"]["max_messages"] = 1
        queues["second"] = {
            "topics": ["b/#"],
            "groups": {"g": {"dead_letter_queue": "dead", "max_receives": 1}},
        }
        queues["dead"] = {}
        line = await reload(broker, tmp_path, policy)
        assert "plugins.queue.queues.first.max_messages" in line
        assert "failed" not in line
        assert "needs a restart: plugins.queue.queues.gone." in line
        async with await connected(broker.port, "c") as client:
            codes = [(await client.publish(t, b"x")).reason_code for t in ("a/1", "b/1", "a/2")]
            assert codes == [0, 0, ReasonCode.QUOTA_EXCEEDED]
        found = await asyncio.to_thread(QueueClient(broker.queue_url).queue, "second")
        assert found["messages"] == 1


async def test_a_proxy_reloads_its_file(tmp_path: Path) -> None:
    """A lower threshold holds the next message of a connected client, and a listener comes."""
    withholding = {
        "policy": "conservative",
        "threshold_s": "1 MB",
        "threshold_l": 1e-9,
        "max_withhold": 600,
    }
    with running_broker(anonymous_policy(), tmp_path) as broker:
        keys = before(
            broker.port, plugins={"probing": {"probe_period": 0.1}, "withholding": withholding}
        )
        with running_sidecar(keys, tmp_path) as proxy:
            async with (
                await connected(proxy.port, "reader") as reader,
                await connected(broker.port, "publisher") as publisher,
            ):
                await reader.subscribe("#", 1)
                await publisher.publish("small", b"")
                packet = await reader.take(Publish)
                await reader.send(PubAck(packet.packet_id))
                withholding["threshold_s"] = "1 kB"
                listeners = {"default": keys.pop("listener"), "new": {"bind": "127.0.0.1:0"}}
                (tmp_path / "proxy.yaml").write_text(
                    yaml.safe_dump(keys | {"listeners": listeners})
                )
                proxy.process.send_signal(signal.SIGHUP)
                (line,) = await asyncio.to_thread(proxy.lines_with, "reloaded: ", 1)
                assert line.endswith("changed: listeners.new, plugins.withholding.threshold_s")
                await publisher.publish("picture", bytes(5_000))
                await publisher.publish("small", b"")
                assert (await reader.take(Publish)).topic == "small"


async def test_runs_under_way_lose_nothing_while_the_file_is_reloaded(tmp_path: Path) -> None:
    """Each message arrives once and in order, whatever limits change meanwhile."""
    policies = [
        anonymous_policy({"withholding": {"threshold_s": size}, "probing": None}, limits=limits)
        for size, limits in (("10 kB", {}), ("1 kB", {"queued_messages": 50_000}))
    ]
    with running_broker(policies[0], tmp_path) as broker:
        async with (
            await connected(broker.port, "reader", keep_alive=0) as reader,
            await connected(broker.port, "publisher", keep_alive=0) as publisher,
        ):
            await reader.subscribe("t", 1)

            async def publish() -> None:
                for run in range(N_RUNS):
                    if run % RUNS_EACH == 0:
                        ask_to_reload(broker, tmp_path, policies[run // RUNS_EACH % 2])
                    packets = [
                        Publish("t", b"%d" % (run * RUN + n), qos=1, packet_id=n + 1)
                        for n in range(RUN)
                    ]
                    await publisher.send(*packets)
                    for _ in range(RUN):
                        assert not (await publisher.take(PubAck)).reason_code

            async def receive() -> list[int]:
                numbers = []
                for _ in range(N_RUNS * RUN):
                    packet = await reader.take(Publish)
                    numbers.append(int(packet.payload))
                    await reader.send(PubAck(packet.packet_id))
                return numbers

            _, numbers = await asyncio.gather(publish(), receive())
            assert numbers == list(range(N_RUNS * RUN))
            assert "changed: limits.queued_messages" in broker.lines_with("reloaded: ", 2)[1]
        assert "not reloaded: " not in broker.log
