"""A large message in parts, between real processes over links that break."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.mqtt.packets import PubComp, Publish, PubRel
from penstock.netem.runs.broker_process import reserved_port
from tests.broker.serving import until
from tests.edge_proxy.uplink.test_uplink import deliver, take_message
from tests.helpers.metered_link import MeteredLink, metered_link
from tests.helpers.mosquitto import running_mosquitto
from tests.helpers.process import BrokerProcess, anonymous_policy, running_broker
from tests.helpers.wire import WireClient, connected

PART_BYTES = 4_096
PAYLOAD = random.Random(5).randbytes(400_000)  # noqa: S311 (no secret)
A_FIFTH = len(PAYLOAD) // 5
KEPT: Mapping[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 1_000}}


class Broker:
    """A broker that is killed and started again, on the same port and files."""

    def __init__(self, folder: Path, port: int, plugins: Mapping[str, Any]) -> None:
        folder.mkdir()
        self._folder = folder
        self._policy = {
            **anonymous_policy(dict(plugins)),
            "listeners": {"default": {"bind": f"127.0.0.1:{port}"}},
            "persistence": {"path": "sessions.db"},
        }
        self.port = port
        self._running = contextlib.ExitStack()
        self._process: BrokerProcess | None = None

    async def start(self) -> None:
        """Start it."""
        running = running_broker(self._policy, self._folder)
        self._process = await asyncio.to_thread(self._running.enter_context, running)

    async def kill(self) -> None:
        """End it, as the kernel does when memory is short."""
        assert self._process is not None
        await asyncio.to_thread(self._process.kill)
        self._running.close()

    async def wait_for_log(self, text: str) -> None:
        """Wait until a text stands in the log of the present process."""
        assert self._process is not None
        await asyncio.to_thread(self._process.wait_for_log, text)

    def close(self) -> None:
        """End it."""
        self._running.close()


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    """Two ports, of the cloud and of the site."""
    with reserved_port() as cloud, reserved_port() as site:
        yield cloud, site


@contextlib.asynccontextmanager
async def running(
    folder: Path, ports: tuple[int, int]
) -> AsyncIterator[tuple[Broker, Broker, MeteredLink]]:
    """Run a cloud's broker, a site's, and a link between them that carries 20 kB."""
    async with metered_link(ports[0]) as link:
        uplink = {
            "upstream": {"address": f"127.0.0.1:{link.port}"},
            "down": [{"filter": "firmware/#", "parts": True, "when": "always"}],
            "reconnect": {"min_seconds": 0.01, "max_seconds": 0.1},
        }
        plugins: dict[str, Any] = {"parts": {"split": ["firmware/#"], "part_bytes": PART_BYTES}}
        cloud = Broker(folder / "cloud", ports[0], plugins)
        plugins = {"parts": {}, "uplink": {"site": "berlin", "uplinks": {"cloud": uplink}}}
        site = Broker(folder / "site", ports[1], plugins)
        link.allow(20_000)
        try:
            await cloud.start()
            await site.start()
            # Nothing promises what is published before the site has subscribed.
            await until(lambda: link.n_subscribed == 2)  # on both connections
            yield cloud, site, link
        finally:
            cloud.close()
            site.close()


async def subscriber(site: Broker) -> WireClient:
    """Return a client of the site that keeps its session."""
    return await connected(site.port, "near", **KEPT)


async def test_a_link_that_is_cut_again_and_again_carries_a_message(
    tmp_path: Path, ports: tuple[int, int]
) -> None:
    """No connection carries more than a fifth of it; what was acknowledged is not repeated."""
    async with (
        running(tmp_path, ports) as (cloud, site, link),
        await subscriber(site) as near,
        await connected(cloud.port, "far") as far,
    ):
        await near.subscribe("firmware/#", 2)
        await deliver(far, Publish("firmware/x", PAYLOAD, qos=2, packet_id=1))
        n_cuts = 0
        message = asyncio.ensure_future(take_message(near))
        while not message.done():
            link.allow(A_FIFTH)
            n_acknowledged = link.n_acknowledged + 15  # of 17 parts or more
            used_up = asyncio.ensure_future(link.is_used_up(n_acknowledged))
            await asyncio.wait((message, used_up), return_when=asyncio.FIRST_COMPLETED)
            used_up.cancel()
            if not message.done():
                link.cut()
                n_cuts += 1
        assert (await message).payload == PAYLOAD
        assert n_cuts >= 4
        assert link.n_connections > n_cuts
        assert link.passed_bytes < 2 * len(PAYLOAD)


async def test_kills_of_both_ends_leave_one_message(tmp_path: Path, ports: tuple[int, int]) -> None:
    """The message has QoS 2: nothing that was acknowledged is lost, and nothing comes twice."""
    async with running(tmp_path, ports) as (cloud, site, link):
        async with await subscriber(site) as near, await connected(cloud.port, "far") as far:
            await near.subscribe("firmware/#", 2)
            await deliver(far, Publish("firmware/x", PAYLOAD, qos=2, packet_id=1))
        for victim in (cloud, site, cloud):
            link.allow(A_FIFTH)
            await link.is_used_up()
            await victim.kill()
            link.allow(20_000)  # for what a connection begins with
            await victim.start()
            await site.wait_for_log("uplink cloud: connected")
        link.allow(10 * len(PAYLOAD))
        async with await subscriber(site) as near:
            assert (await take_message(near)).payload == PAYLOAD
        await site.kill()
        await site.start()
        async with await subscriber(site) as near, await connected(cloud.port, "far") as far:
            await deliver(far, Publish("firmware/x", b"end", qos=2, packet_id=1))
            packet = await near.receive()
            if isinstance(packet, PubRel):  # the last PUBCOMP may have been lost in the kill
                await near.send(PubComp(packet.packet_id))
                packet = await near.receive()
            assert isinstance(packet, Publish)
            assert packet.payload == b"end"


async def test_parts_pass_a_mosquitto(tmp_path: Path, ports: tuple[int, int]) -> None:
    """From one site to another, in MQTT 5 and 3.1.1; it knows nothing of them."""
    sites = []
    rule = {"filter": "firmware/#", "parts": True}
    with running_mosquitto(tmp_path) as mosquitto:
        for name, version, port in zip(("berlin", "paris"), ("5", "3.1.1"), ports, strict=True):
            uplink = {
                "upstream": {"address": f"127.0.0.1:{mosquitto.port}"},
                "version": version,
                "up" if name == "berlin" else "down": [rule],
            }
            plugins = {
                "parts": {"split": ["firmware/#"] if name == "berlin" else []},
                "uplink": {"site": name, "uplinks": {"cloud": uplink}},
            }
            sites.append(Broker(tmp_path / name, port, plugins))
        berlin, paris = sites
        try:
            for site in sites:
                await site.start()
                await site.wait_for_log("uplink cloud: connected")
            async with (
                await subscriber(paris) as near,
                await connected(berlin.port, "far") as far,
                await connected(mosquitto.port, "witness") as witness,
            ):
                await near.subscribe("firmware/#", 2)
                await witness.subscribe("$SYS/broker/subscriptions/count")
                while int((await take_message(witness)).payload) < 2:
                    pass
                await deliver(far, Publish("firmware/x", PAYLOAD, qos=2, packet_id=1))
                message = await take_message(near)
                assert (message.payload, message.qos) == (PAYLOAD, 2)
        finally:
            for site in sites:
                site.close()
