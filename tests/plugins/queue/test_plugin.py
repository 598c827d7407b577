from __future__ import annotations

import asyncio
import socket
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.broker.config.policy import parse_policy
from penstock.broker.errors import ConfigError
from penstock.broker.extensions import NEVER_FITS, Consumer, MessageSink, PluginContext
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.plugin_loader import load_plugins
from penstock.plugins.queue import plugin as sink_module
from penstock.plugins.queue.engines.contract import Health, QueueSpec, StorageError
from penstock.plugins.queue.logical_queue import ReceiveRequest
from penstock.plugins.queue.plugin import QueuePlugin
from penstock.plugins.queue.wire.frames import ReceivedMessage
from penstock.plugins.web.service import HttpStartError
from tests.helpers.certificates import Authority
from tests.helpers.clock import Clock
from tests.plugins.queue.running import (
    LOGGER,
    LONG_SECONDS,
    Receipts,
    message,
    put,
    queue_config,
    running_plugin,
    sys_topics,
    until,
)
from tests.plugins.queue.sqs.script import new_client

QUEUES = {
    "telemetry": {"topics": ["plant/+/temperature", "plant/#"], "physical_queues": 2},
    "pictures": {"topics": ["camera/#"]},
}


async def received(plugin: QueuePlugin, queue: str, wait: float = 0.0) -> list[ReceivedMessage]:
    """Receive from the group `default`."""
    return await plugin.service.queue(queue).receive("default", ReceiveRequest(10, wait))


def sinks(plugin: QueuePlugin) -> dict[str, MessageSink]:
    """Return the plugin's route targets by name."""
    return {sink.name: sink for sink in plugin.sinks}


class Routes:
    """Takes note of sinks that come and go.

    Attributes:
        names: with their topic filters.
    """

    def __init__(self) -> None:
        self.names: list[tuple[str, str, list[str]]] = []

    def add(self, sink: MessageSink) -> None:
        """Note one that comes."""
        self.names.append(("+", sink.name, list(sink.topic_filters)))

    def remove(self, sink: MessageSink) -> None:
        """Note one that goes."""
        self.names.append(("-", sink.name, list(sink.topic_filters)))


async def test_what_strategies_do_is_among_the_figures_of_the_broker() -> None:
    """By queue, group and strategy, whose `+` would be a wildcard in a topic of `$SYS`."""
    async with running_plugin(queues={"telemetry": {}}) as plugin:
        assert "telemetry/default/rds-wake/held" not in sys_topics(plugin)
        assert sys_topics(plugin)["telemetry/depth_messages"] == "0"
        await put(plugin.service, b"a", queue="telemetry")
        waiting = asyncio.create_task(received(plugin, "telemetry", LONG_SECONDS))
        again = asyncio.create_task(received(plugin, "telemetry", LONG_SECONDS))
        await until(lambda: sys_topics(plugin).get("telemetry/default/rds-wake/held") == "1")
        figures = sys_topics(plugin)
        assert figures["telemetry/default/waiting_requests"] == "1"
        assert figures["telemetry/default/rds-wake/requests"] == "2"
        assert figures["telemetry/default/rds-wake/hit_dequeues"] == "1"
        assert figures["telemetry/default/rds-wake/messages"] == "1"
        assert figures["telemetry/default/lag_messages"] == "1"
        assert not any("+" in name for name in figures)
        plugin.service.close_requests()
        await asyncio.gather(waiting, again)


async def test_an_engine_that_stores_nothing_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A program that is not ready gets no new clients; queues in memory have no backup."""
    async with running_plugin(queues={"telemetry": {}}) as plugin:
        assert await plugin.problem() == ""
        assert await plugin.backup(str(tmp_path)) == 0

        async def probe() -> Health:
            return Health("the disk is full")

        monkeypatch.setattr(plugin.engine, "probe", probe)
        assert await plugin.problem() == "the disk is full"


async def test_policy_file_brings_a_sink_for_each_queue() -> None:
    """The plugin is found by its short name and offers one route target a logical queue."""
    policy = parse_policy(
        """
        plugins:
          queue:
            engine: memory
            http: null
            queues:
              telemetry: {topics: [plant/+/temperature, plant/#]}
              pictures: {topics: [camera/#], sizes: large}
        """,
        "policy.yaml",
    )
    loaded = load_plugins(policy)
    (plugin,) = loaded.plugins
    assert isinstance(plugin, QueuePlugin)
    assert {sink.name: (list(sink.topic_filters), sink.sizes) for sink in loaded.sinks} == {
        "queue.telemetry": (["plant/+/temperature", "plant/#"], None),
        "queue.pictures": (["camera/#"], "large"),
    }


async def test_published_message_is_acknowledged_when_it_is_stored(tmp_path: Path) -> None:
    """The receipt is settled after the commit, and the message can be received."""
    path = str(tmp_path / "queue.db")
    async with running_plugin(engine="sqlite", path=path, queues=QUEUES) as plugin:
        receipts = Receipts()
        sink = sinks(plugin)["queue.telemetry"]
        offered = message(b"21.5", "plant/1/temperature", qos=1)
        assert sink.reserve(offered) == ""
        sink.accept(offered, receipts)
        assert (sink.counts.matched, sink.counts.queued, receipts.codes) == (1, 1, [])
        await until(partial(receipts.have, [ReasonCode.SUCCESS]))
        assert (sink.counts.stored, sink.counts.queued) == (1, 0)
        (one,) = await received(plugin, "telemetry", LONG_SECONDS)
        assert (one.topic, one.payload) == ("plant/1/temperature", b"21.5")
        assert await received(plugin, "pictures") == []


async def test_a_message_that_never_fits_is_told_from_a_full_queue() -> None:
    """Nobody has to wait with it."""
    async with running_plugin(queues={"q": {"max_bytes": 10}}) as plugin:
        (sink,) = plugin.sinks
        await put(plugin.service, b"x" * 6)
        assert sink.reserve(message(b"x" * 10)) == "queue_full"
        assert sink.reserve(message(b"x" * 11)) == NEVER_FITS
        sink.refuse(message(), NEVER_FITS)
        assert sink.counts.dropped == {NEVER_FITS: 1}


async def test_publishers_are_told_of_room_that_one_of_them_can_use() -> None:
    """Not of some bytes that are left where each refused message is longer."""
    async with running_plugin(queues={"q": {"max_bytes": 10}}) as plugin:
        (sink,) = plugin.sinks
        told: list[bool] = []
        sink.on_room = lambda: told.append(True)
        await put(plugin.service, b"x" * 6)
        assert sink.reserve(message(b"x" * 9)) == "queue_full"
        assert sink.reserve(message(b"x" * 5)) == "queue_full"
        await plugin.service.maintain()
        assert told == []
        await plugin.engine.purge("q")
        await plugin.service.maintain()
        assert told == [True]


async def test_queues_of_requests_are_fed_by_the_broker() -> None:
    """Sinks come and go with the queues; one whose topics change comes anew."""
    routes = Routes()
    context = PluginContext(LOGGER, "policy.yaml", Clock(), sink_routes=cast("Any", routes))
    plugin = QueuePlugin(queue_config(http=None, queues=QUEUES), context)
    await plugin.start()
    try:
        assert routes.names == []
        await plugin.service.create("new", QueueSpec(topics=("a/#",)))
        sink = sinks(plugin)["queue.new"]
        sink.reserve(message())
        sink.accept(message(b"1", "a/b"), None)
        assert [one.payload for one in await received(plugin, "new", LONG_SECONDS)] == [b"1"]
        await plugin.service.change("new", QueueSpec(topics=("a/#",), max_messages=5))
        assert sinks(plugin)["queue.new"] is sink
        await plugin.service.change("new", QueueSpec(topics=("b",)))
        await plugin.service.delete("new")
        assert routes.names == [
            ("+", "queue.new", ["a/#"]),
            ("-", "queue.new", ["a/#"]),
            ("+", "queue.new", ["b"]),
            ("-", "queue.new", ["b"]),
        ]
    finally:
        await plugin.close()


async def test_queue_of_a_request_is_fed_after_a_restart(tmp_path: Path) -> None:
    """What was created at run time is routed to as soon as the engine is open."""
    path = str(tmp_path / "queue.db")
    async with running_plugin(engine="sqlite", path=path) as plugin:
        await plugin.service.create("new", QueueSpec(topics=("a/#",)))
    routes = Routes()
    context = PluginContext(LOGGER, "policy.yaml", Clock(), sink_routes=cast("Any", routes))
    again = QueuePlugin(queue_config(engine="sqlite", path=path, http=None), context)
    await again.start()
    assert routes.names == [("+", "queue.new", ["a/#"])]
    await again.close()


async def test_close_stores_what_was_accepted(tmp_path: Path) -> None:
    """A publisher whose message was accepted before the close gets its answer."""
    path = str(tmp_path / "queue.db")
    receipts = Receipts()
    keys = {"engine": "sqlite", "path": path, "queues": QUEUES, "commit_wait_seconds": 1}
    async with running_plugin(**keys) as plugin:
        for _ in range(20):
            offered = message()
            plugin.sinks[0].reserve(offered)
            plugin.sinks[0].accept(offered, receipts)
    assert receipts.codes == [ReasonCode.SUCCESS] * 20
    assert plugin.sinks[0].counts.stored == 20
    await plugin.close()


async def test_pending_limits_reach_the_sinks() -> None:
    """`max_pending_messages` and `max_pending_bytes` hold over all queues."""
    keys = {"queues": QUEUES, "commit_wait_seconds": 1}
    async with running_plugin(**keys, max_pending_messages=1) as plugin:
        assert [sink.reserve(message()) for sink in plugin.sinks] == ["", "pending_full"]
    async with running_plugin(**keys, max_pending_bytes=10) as plugin:
        assert [sink.reserve(message(bytes(8))) for sink in plugin.sinks] == ["", "pending_full"]


async def test_commit_bounds_reach_the_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """`commit_max_messages` ends the wait that `commit_wait_seconds` allows."""
    keys = {"queues": QUEUES, "commit_wait_seconds": 1, "commit_max_messages": 2}
    async with running_plugin(**keys) as plugin:
        appended: list[int] = []
        append = plugin.engine.append

        def note(queue: str, number: int, messages: Any, *more: Any) -> asyncio.Future[Any]:
            appended.append(len(messages))
            return append(queue, number, messages, *more)

        monkeypatch.setattr(plugin.engine, "append", note)
        for _ in range(2):
            offered = message()
            plugin.sinks[1].reserve(offered)
            plugin.sinks[1].accept(offered, None)
        assert appended == [1, 1]


async def test_maintenance_survives_every_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Retention goes on after errors of the storage, which are logged once, and after others."""
    monkeypatch.setattr(sink_module, "MAINTAIN_SECONDS", 0.001)
    errors = [StorageError("disk gone")] * 3 + [RuntimeError("odd")]
    async with running_plugin(queues={"q": {"retention_seconds": 3600.0}}) as plugin:
        calls = 0
        maintain = plugin.engine.maintain

        async def fail_first() -> None:
            nonlocal calls
            calls += 1
            if errors:
                raise errors.pop(0)
            await maintain()

        monkeypatch.setattr(plugin.engine, "maintain", fail_first)
        await until(lambda: calls >= 6)
    assert caplog.text.count("disk gone") == 1
    assert "odd" in caplog.text


@pytest.mark.parametrize("way", ["refuse", "ignore"])
async def test_attributes_of_sqs_without_effect_are_refused_or_kept(way: str) -> None:
    """As the policy file says."""
    async with running_plugin(sqs="127.0.0.1:0", sqs_unsupported=way) as plugin:

        def work() -> str:
            client = new_client(f"{plugin.sqs_url}")
            try:
                url = client.create_queue(
                    QueueName="new", Attributes={"KmsMasterKeyId": "alias/aws/sqs"}
                )["QueueUrl"]
            except client.exceptions.UnsupportedOperation:
                return "refuse"
            shown = client.get_queue_attributes(QueueUrl=url, AttributeNames=["KmsMasterKeyId"])
            assert shown["Attributes"] == {"KmsMasterKeyId": "alias/aws/sqs"}
            return "ignore"

        assert await asyncio.to_thread(work) == way


class FullConsumer:
    """A client without room."""

    client_id = "c"

    def room(self) -> int:
        """Return none."""
        return 0

    def find_lost(self) -> None:
        """Find none."""


async def test_a_connected_consumer_keeps_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it has no room at present; without one, a group expires."""
    monkeypatch.setattr(sink_module, "MAINTAIN_SECONDS", 0.001)
    expiring = {"group_expiry_seconds": 0.1}
    queues = {"q": {"groups": {"default": expiring, "other": expiring}}}
    async with running_plugin(queues=queues) as plugin:
        (source,) = plugin.sources
        feed = source.open("$queue/q", cast("Consumer", FullConsumer()))
        await until(lambda: "other" not in plugin.engine.outline("q").groups)
        assert "default" in plugin.engine.outline("q").groups
        feed.stop()
        await until(lambda: "default" not in plugin.engine.outline("q").groups)


async def test_old_messages_leave_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue with `retention_seconds` is cleaned, and publishers that wait for room are told."""
    monkeypatch.setattr(sink_module, "MAINTAIN_SECONDS", 0.001)
    keys = {"topics": ["plant/#"], "retention_seconds": 0.02, "max_messages": 1}
    async with running_plugin(queues={"telemetry": keys}) as plugin:
        (sink,) = plugin.sinks
        offered = message(arrived_at=plugin.context.clock())
        answers: list[str] = []
        sink.on_room = lambda: answers.append(sink.reserve(offered))  # as a broker does
        assert sink.reserve(offered) == ""
        sink.accept(offered, None)
        assert sink.reserve(offered) == "queue_full"
        await until(lambda: plugin.engine.snapshot("telemetry").removed.get("retention") == 1)
        await until(lambda: "" in answers)


async def test_address_in_use_is_told_and_frees_everything(tmp_path: Path) -> None:
    """A port that is taken ends the start with what to change; the file is free again."""
    path = str(tmp_path / "queue.db")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        for key in ("http", "sqs"):
            told = f"plugins.queue.{key}: read {bind}; allowed: an"
            with pytest.raises(HttpStartError, match=told):
                async with running_plugin(engine="sqlite", path=path, **{key: bind}):
                    pass
    async with running_plugin(engine="sqlite", path=path):
        pass


async def test_without_addresses_nothing_listens() -> None:
    """`http: null` and `sqs: null` open no socket."""
    async with running_plugin(http=None) as plugin:
        assert (plugin.http_url, plugin.sqs_url, plugin.open_files) == (None, None, 0)


async def test_both_protocols_listen_where_they_are_told() -> None:
    """The URLs name the ports that were bound, in a form that clients take."""
    async with running_plugin(http="[::1]:0", sqs="127.0.0.1:0") as plugin:
        assert plugin.http_url is not None
        assert plugin.sqs_url is not None
        assert plugin.http_url.startswith("http://[::1]:")
        assert plugin.sqs_url.startswith("http://127.0.0.1:")
        assert not plugin.http_url.endswith(":0")


@pytest.mark.parametrize("key", ["http", "sqs"])
def test_other_machines_need_tokens(key: str) -> None:
    """An address that other machines reach ends the start where callers need no token."""
    with pytest.raises(ConfigError, match=rf"plugins.queue.{key}: read 0.0.0.0:0; allowed: an add"):
        QueuePlugin.alone(queue_config(**{key: "0.0.0.0:0"}), LOGGER, "policy.yaml")


async def test_tokens_and_certificate_are_read_again(tmp_path: Path) -> None:
    """At SIGHUP a new token counts, and what was read is told."""
    tokens = tmp_path / "tokens.yaml"
    entry = "- {name: a, token_sha256: '%s', roles: {'*': [read]}}\n"
    tokens.write_text("tokens:\n" + entry % ("0" * 64))
    certificate = Authority(tmp_path).issue()
    tls = {"certificate": certificate.certfile, "key": certificate.keyfile}
    async with running_plugin(tokens=str(tokens), http="0.0.0.0:0", http_tls=tls) as plugin:
        assert plugin.http_url is not None
        assert plugin.http_url.startswith("https://")
        told = await plugin.reload(plugin.config)
        assert told.read == [f"tokens {tokens}", f"certificate {certificate.certfile}"]
        tokens.write_text("tokens: []")
        with pytest.raises(ConfigError):
            await plugin.reload(plugin.config)


def test_plugin_is_made_without_a_running_loop() -> None:
    """The broker makes plugins before its loop runs."""
    plugin = QueuePlugin.alone(queue_config(), LOGGER, "policy.yaml")
    assert [sink.name for sink in plugin.sinks] == ["queue.q"]


async def test_files_of_redis_are_named_at_the_start(tmp_path: Path) -> None:
    """The error of a connection names the server alone."""
    missing = str(tmp_path / "missing.pem")
    redis = {"server": "127.0.0.1:1", "tls": {"ca": missing}}
    with pytest.raises(ConfigError, match=f"plugins.queue.redis: read cafile {missing}: No such"):
        async with running_plugin(engine="redis", redis=redis, queues=QUEUES):
            pytest.fail("it has started")
