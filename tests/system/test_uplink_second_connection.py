"""The second connection of an uplink by default: to any broker, and where one does not take it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from pathlib import Path
from typing import Any

import pytest

from penstock.edge_proxy.uplink import lanes as lanes_module
from penstock.edge_proxy.uplink.uplink import Uplink
from penstock.netem.runs.broker_process import reserved_port
from tests.broker.serving import serving, until
from tests.edge_proxy.uplink.test_partnership import (
    IN_ORDER,
    pass_all,
    running_edge,
    sessions,
    taker_of,
    told_of,
)
from tests.helpers.mosquitto import running_mosquitto
from tests.helpers.wire import connected
from tests.system.test_uplink_lanes import (
    N_MESSAGES,
    cut_all,
    edge_of,
    lanes_of,
    publish_all,
    take_all,
)


async def test_any_broker_of_mqtt_5_gets_large_messages_on_a_second_connection(
    tmp_path: Path,
) -> None:
    """What comes down from mosquitto comes by the first one; it is no fault."""
    with running_mosquitto(tmp_path) as mosquitto:
        async with running_edge(mosquitto.port, down=[{"filter": "down/#"}]) as edge:
            small, large = lanes_of(edge)
            await until(lambda: small.counts.connected and large.counts.connected)
            assert await pass_all(edge, await taker_of(mosquitto.port)) == IN_ORDER
            assert small.counts.up_messages
            assert large.counts.up_messages
            near = await connected(edge.addresses["default"][1], "near")
            await near.subscribe("down/#", 1)
            far = await connected(mosquitto.port, "far")
            while not small.counts.down_messages:
                await far.publish("down/a", b"x" * 20_000)
            assert not large.counts.down_messages
            assert not told_of(edge, "$uplink/cloud/up")


async def test_what_the_second_client_may_not_publish_goes_by_the_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker may tell clients apart by their ids: mosquitto's ``pattern`` with ``%c``."""
    (tmp_path / "acl").write_text("topic read #\npattern write %c/#\n")
    with running_mosquitto(tmp_path, f"user root\nacl_file {tmp_path / 'acl'}") as mosquitto:
        edge = edge_of(mosquitto.port, up=[{"filter": "up/#", "remote_prefix": "berlin-cloud/"}])
        await edge.start()
        try:
            _, large = lanes_of(edge)
            await until(lambda: large.counts.connected)
            taker = await connected(mosquitto.port, "taker")
            await taker.subscribe("#", 2)
            got = await pass_all(edge, taker)
            assert got == {f"berlin-cloud/{topic}": numbers for topic, numbers in IN_ORDER.items()}
            assert large.counts.up_dropped == {}
            await until(lambda: not large.counts.connected)
            assert caplog.text.count("one connection to") == 1
            assert "it may not publish to 'up/mixed/" in caplog.text
        finally:
            await edge.stop()


async def test_a_broker_that_takes_both_connections_for_one_client_has_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As mosquitto does with ``use_username_as_clientid``."""
    with running_mosquitto(tmp_path, "use_username_as_clientid true") as mosquitto:
        async with running_edge(mosquitto.port, username="berlin") as edge:
            small, large = lanes_of(edge)
            await until(lambda: small.counts.connected and large.counts.taken_over)
            taker = await connected(mosquitto.port, "taker", username="taker")
            await taker.subscribe("up/#", 2)
            assert await pass_all(edge, taker) == IN_ORDER
            assert large.counts.connections <= lanes_module.MUTUAL_IN_A_ROW
            assert "use_username_as_clientid" in caplog.text


def cloud_of(
    kind: str, port: int, folder: Path, n_sessions: int
) -> contextlib.AbstractAsyncContextManager[Any]:
    """Return a broker on a port: ``penstock``, one that is ``full``, or ``mosquitto``."""
    listeners = {"default": {"bind": f"127.0.0.1:{port}"}}
    if kind == "mosquitto":
        stack = contextlib.AsyncExitStack()
        stack.enter_context(running_mosquitto(folder, "user root\nmax_queued_messages 0", port))
        return stack
    keys = {"limits": sessions(n_sessions)} if kind == "full" else {}
    return serving(listeners=listeners, **keys)


@pytest.mark.parametrize(
    ("before", "after"), list(itertools.permutations(["penstock", "mosquitto", "full"], 2))
)
async def test_a_cloud_that_is_replaced_between_two_connections_loses_nothing(
    before: str, after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With messages of both sizes that wait at that moment, and some that were on their way."""
    topics = ["up/mixed/a", "up/large/b"]
    with reserved_port() as port:
        async with running_edge(port) as edge:
            small, large = lanes_of(edge)
            near = await connected(edge.addresses["default"][1], "near")
            async with cloud_of(before, port, tmp_path, 1):
                await until(lambda: small.counts.connected)
                await until(lambda: large.counts.connected or large.counts.taken_over)
                for lane in (small, large):  # what goes up now is not acknowledged
                    if lane._connection is not None and lane.counts.connected:
                        lane._connection.cloud.read(unless="test", wants=False)
                await publish_all(near, topics)
                await until(lambda: small.counts.up_messages)
                await until(lambda: large.counts.up_messages or large.counts.taken_over)
                is_back = asyncio.Event()
                for lane in (small, large):
                    _let_dial_after(lane, is_back, monkeypatch)
            cut_all([small, large])  # which have not read the end
            async with cloud_of(after, port, tmp_path, 2):
                taker = await taker_of(port)
                is_back.set()
                got = await take_all(taker, len(topics), lambda: None)
                assert got == {topic: list(range(N_MESSAGES)) for topic in topics}
                await until(lambda: large.counts.connected != (after == "full"))


def _let_dial_after(lane: Uplink, event: asyncio.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    dial = lane.upstreams.dial

    async def dial_later(*args: Any) -> Any:
        await event.wait()
        return await dial(*args)

    monkeypatch.setattr(lane.upstreams, "dial", dial_later)


@pytest.mark.parametrize("kind", ["mosquitto", "penstock"])
async def test_rules_of_both_directions_have_two_connections_where_nothing_comes_back(
    kind: str, tmp_path: Path
) -> None:
    """No Local holds for one client; Penstock knows that both lanes are one."""
    both = [{"filter": "up/#", "when": "always"}]
    with reserved_port() as port:
        async with cloud_of(kind, port, tmp_path, 9), running_edge(port, down=both) as edge:
            small, large = lanes_of(edge)
            await until(lambda: large.counts.connected or large.counts.taken_over)
            assert bool(large.counts.connected) == (kind == "penstock")
            assert ("topics in common" in told_of(edge, small.up_id)) == (kind == "mosquitto")
            await until(lambda: small.subscriptions.has("up/#"))
            assert await pass_all(edge, await taker_of(port)) == IN_ORDER
            for lane in (small, large):
                assert (lane.counts.down_messages, lane.counts.down_dropped) == (0, {})
