from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiomqtt
import pytest
from aiomqtt import ProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from penstock.broker.mqtt.packets import (
    ConnAck,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.netem.links.profiles import OPEN, Direction, Profile
from penstock.netem.links.relay import Relay
from tests.helpers.mosquitto import Mosquitto, running_mosquitto
from tests.helpers.open_files import check_flood, limit_of_files
from tests.helpers.process import SECONDS
from tests.helpers.scripted import Peer, ScriptedBroker, accepted_client, open_client
from tests.helpers.sidecar import SidecarProcess, before, running_sidecar

VERSIONS = pytest.mark.parametrize("version", [4, 5])
PAHO_VERSIONS = {4: ProtocolVersion.V311, 5: ProtocolVersion.V5}

LARGE = b"L" * 100_000

SLOW = Profile("slow", Direction(0.1), Direction(0.1))
"""A link whose round trip is four times the threshold_l of the test that uses it."""

ALWAYS_CONGESTED = {
    # No round trip is as short as a microsecond, so whatever is large stays here.
    "withholding": {"policy": "conservative", "threshold_l": 1e-6, "max_withhold": 3600.0},
    "probing": {"sources": ["puback"], "max_age_seconds": 3600.0},
}


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """One mosquitto for the tests that do not change it."""
    with running_mosquitto(tmp_path_factory.mktemp("mosquitto")) as broker:
        yield broker


def client(port: int, client_id: str, version: int = 5, **options: Any) -> aiomqtt.Client:
    """Return an aiomqtt client, which speaks through paho."""
    return aiomqtt.Client(
        "127.0.0.1",
        port,
        identifier=client_id,
        protocol=PAHO_VERSIONS[version],
        timeout=SECONDS,
        **options,
    )


def with_properties(packet_type: int, **values: Any) -> Any:
    """Return paho's properties of a packet."""
    properties: Any = Properties(packet_type)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(properties, name, value)
    return properties


async def arrival(subscriber: aiomqtt.Client) -> aiomqtt.Message:
    """Return the next message."""
    async with asyncio.timeout(SECONDS):
        return await anext(aiter(subscriber.messages))


async def topics(subscriber: aiomqtt.Client, n_messages: int) -> list[str]:
    """Return the topics of the next messages."""
    return [str((await arrival(subscriber)).topic) for _ in range(n_messages)]


async def acknowledged(subscriber: aiomqtt.Client) -> None:
    """Wait until the proxy has every acknowledgement sent so far: SUBACK comes after them."""
    await subscriber.subscribe("nothing")


@VERSIONS
def test_mosquittos_own_clients_work_through_the_proxy(
    version: int, mosquitto: Mosquitto, tmp_path: Path
) -> None:
    """mosquitto_sub and mosquitto_pub, QoS 0, 1 and 2; the account is right at the end."""
    with running_sidecar(before(mosquitto.port), tmp_path) as proxy:
        common = ["-p", str(proxy.port), "-V", {4: "311", 5: "5"}[version]]

        def publish(topic: str, *options: str, payload: bytes = b"") -> None:
            command = ["mosquitto_pub", *common, "-t", f"own/{topic}", *options]
            subprocess.run(command, check=True, timeout=SECONDS, input=payload)

        publish("ready", "-r", "-m", "ready")
        command = ["mosquitto_sub", *common, "-t", "own/#", "-q", "2", "-C", "5", "-v", "-i", "s"]
        command += ["-W", str(SECONDS)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as subscriber:
            assert subscriber.stdout is not None
            assert subscriber.stdout.readline() == "own/ready ready\n"
            for qos in "012":
                publish(qos, "-q", qos, "-m", qos)
            publish("large", "-q", "1", "-s", payload=LARGE)
            messages = subscriber.communicate(timeout=SECONDS)[0].splitlines()
        # At QoS 2 a message is shown once it is released: another may be faster.
        expected = ["own/0 0", "own/1 1", "own/2 2", f"own/large {LARGE.decode()}"]
        assert sorted(messages) == expected
        assert "delivered 5, expired 0, dropped 0, left" in proxy.wait_for_account("s")
        assert proxy.stop() == 0
    assert "served 6 clients: messages matched 5, delivered 5" in proxy.log


@VERSIONS
@pytest.mark.parametrize("policy", ["conservative", "none"])
async def test_a_large_message_waits_for_a_slow_link_and_small_ones_pass(
    policy: str, version: int, mosquitto: Mosquitto, tmp_path: Path
) -> None:
    """What arrives first tells: with the policy the later small one, without it the large one."""
    plugins = {
        "withholding": {"policy": policy, "threshold_l": 0.05, "max_withhold": 3600.0},
        "probing": {"sources": ["puback"], "max_age_seconds": 3600.0},
    }
    with running_sidecar(before(mosquitto.port, plugins=plugins), tmp_path) as proxy:
        relay = Relay("127.0.0.1", proxy.port, OPEN)
        await relay.start()
        async with (
            client(relay.address[1], "slow", version) as slow,
            client(mosquitto.port, "publisher") as publisher,
        ):
            await slow.subscribe([("small", 1), ("large", 1)])
            relay.switch(SLOW)
            await publisher.publish("small", qos=1)
            assert await topics(slow, 1) == ["small"]
            await acknowledged(slow)
            await publisher.publish("large", LARGE, qos=1)
            await publisher.publish("small", qos=1)
            first, *rest = await topics(slow, 1 if policy == "conservative" else 2)
            if policy == "none":
                assert [first, *rest] == ["large", "small"]
            else:
                assert first == "small"
                relay.switch(OPEN)
                message = None
                while message is None or str(message.topic) == "small":
                    await acknowledged(slow)
                    await publisher.publish("small", qos=1)
                    message = await arrival(slow)
                assert message.payload == LARGE
            await acknowledged(slow)
        account = await asyncio.to_thread(proxy.wait_for_account, "slow")
        await relay.close()
        assert proxy.stop() == 0
    n_withheld = 1 if policy == "conservative" else 0
    assert account.endswith(f" left to the broker 0; withheld {n_withheld}, released {n_withheld}")


async def test_the_kernels_rtt_of_the_clients_connection_is_enough(
    mosquitto: Mosquitto, tmp_path: Path
) -> None:
    """With `tcp_info` alone, and QoS 0 alone, a large message is withheld once there is an RTT."""
    plugins = {
        "withholding": ALWAYS_CONGESTED["withholding"],
        "probing": {"sources": ["tcp_info"], "probe_period": 0.05, "max_age_seconds": 3600.0},
    }
    with running_sidecar(before(mosquitto.port, plugins=plugins), tmp_path) as proxy:
        async with (
            client(mosquitto.port, "publisher") as publisher,
            client(proxy.port, "subscriber") as subscriber,
        ):
            await subscriber.subscribe("kernel/#")
            came = ["kernel/large"]
            while "kernel/large" in came:
                await publisher.publish("kernel/large", LARGE)
                came = []
                for small in ("kernel/next", "kernel/last"):  # the next may pass the large one
                    await publisher.publish(small)
                    while small not in came:
                        came += await topics(subscriber, 1)
        await asyncio.to_thread(proxy.wait_for_account, "subscriber")
    assert "dropped 1 (connection_lost 1), left to the broker 0; withheld 1" in proxy.log


async def test_a_will_is_sent_for_a_client_that_is_lost(
    mosquitto: Mosquitto, tmp_path: Path
) -> None:
    """The broker sees a connection that ends without DISCONNECT, as it is."""
    with running_sidecar(before(mosquitto.port), tmp_path) as proxy:
        async with client(mosquitto.port, "heir") as heir:
            await heir.subscribe("wills/#")
            will = aiomqtt.Will("wills/polite", b"gone")
            async with client(proxy.port, "polite", will=will):
                pass
            will_of_lost = Will("wills/lost", b"gone")
            lost = await accepted_client(proxy.port, client_id="lost", will=will_of_lost)
            lost.writer.transport.abort()
            assert await topics(heir, 1) == ["wills/lost"]


@contextlib.asynccontextmanager
async def congested(
    folder: Path,
    broker: Mosquitto,
    version: int = 5,
    limits: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[tuple[SidecarProcess, aiomqtt.Client, aiomqtt.Client]]:
    """Yield a proxy that withholds, its subscriber to `#`, and a publisher beside the proxy."""
    config = before(broker.port, plugins=ALWAYS_CONGESTED, limits=limits or {})
    with running_sidecar(config, folder) as proxy:
        async with (
            client(broker.port, "publisher") as publisher,
            client(proxy.port, "subscriber", version, **options) as subscriber,
        ):
            await subscriber.subscribe([("small/#", 1), ("large/#", 1)])
            await publisher.publish("small/first", qos=1)
            assert await topics(subscriber, 1) == ["small/first"]
            await acknowledged(subscriber)
            yield proxy, subscriber, publisher
        await asyncio.to_thread(proxy.wait_for_account, "subscriber")


async def test_what_is_withheld_when_the_client_goes_comes_again(tmp_path: Path) -> None:
    """The broker has seen no acknowledgement: a persistent session gets it as a repeat."""
    session = with_properties(PacketTypes.CONNECT, SessionExpiryInterval=3600)
    with running_mosquitto(tmp_path) as broker:
        async with congested(tmp_path, broker, clean_start=False, properties=session) as (
            proxy,
            subscriber,
            publisher,
        ):
            await publisher.publish("large", LARGE, qos=1)
            await publisher.publish("small", qos=1)
            assert await topics(subscriber, 1) == ["small"]
            await acknowledged(subscriber)
        assert "messages matched 3, delivered 2, expired 0, dropped 0, left to the broker 1" in (
            proxy.log
        )
        again = await open_client(
            ("127.0.0.1", broker.port), 5, client_id="subscriber", clean_start=False
        )
        connack, repeated = await again.receive(), await again.receive()
        await again.close()
    assert isinstance(connack, ConnAck)
    assert connack.session_present
    assert isinstance(repeated, Publish)
    assert (repeated.topic, repeated.payload, repeated.dup) == ("large", LARGE, True)


async def test_what_expires_here_frees_its_place_in_the_brokers_window(tmp_path: Path) -> None:
    """One message may be inflight; the withheld one expires, and the next one comes."""
    expiry = with_properties(PacketTypes.PUBLISH, MessageExpiryInterval=1)
    window = {"upstream_receive_maximum": 1}
    with running_mosquitto(tmp_path) as broker:
        async with congested(tmp_path, broker, limits=window) as (proxy, subscriber, publisher):
            await publisher.publish("large", LARGE, qos=1, properties=expiry)
            await publisher.publish("small/next", qos=1)
            assert await topics(subscriber, 1) == ["small/next"]
            await acknowledged(subscriber)
        assert "delivered 2, expired 1, dropped 0, left to the broker 0" in proxy.log


async def test_withheld_messages_fill_the_brokers_window_and_qos_0_still_passes(
    tmp_path: Path,
) -> None:
    """In MQTT 3.1.1 the broker's inflight limit bounds what is withheld at QoS 1."""
    with running_mosquitto(tmp_path, "max_inflight_messages 2\n") as broker:
        async with congested(tmp_path, broker, 4) as (proxy, subscriber, publisher):
            for number in range(4):
                await publisher.publish(f"large/{number}", LARGE, qos=1)
            await publisher.publish("small/behind", qos=1)
            await publisher.publish("small/qos0", qos=0)
            assert await topics(subscriber, 1) == ["small/qos0"]
        assert "messages matched 4, delivered 2, expired 0, dropped 0, left to the broker 2" in (
            proxy.log
        )
        assert "withheld 2, released 0" in proxy.log


@VERSIONS
async def test_a_whole_window_of_large_messages_is_withheld_and_pingresp_comes(
    version: int, tmp_path: Path
) -> None:
    """Twenty of 1 MB, mosquitto's own window; in MQTT 5 a further message of QoS 1 comes, too.

    Without PINGRESP, paho closes the connection after its keep alive.
    """
    payload = bytes(1_000_000)
    with (
        running_mosquitto(tmp_path) as broker,
        running_sidecar(before(broker.port, plugins=ALWAYS_CONGESTED), tmp_path) as proxy,
    ):
        async with client(broker.port, "publisher") as publisher:
            peer = await accepted_client(proxy.port, version, client_id="raw")
            peer.send(Subscribe(1, (SubscriptionRequest("window/#", 1),)))
            assert isinstance(await peer.receive(), SubAck)
            await publisher.publish("window/first", qos=1)
            assert await peer.receive() == Publish("window/first", qos=1, packet_id=1)
            peer.send(PubAck(1))
            for number in range(20):
                await publisher.publish(f"window/{number}", payload, qos=1)
            peer.send(PingReq())
            assert await peer.receive() == PingResp()
            await publisher.publish("window/last", qos=1 if version == 5 else 0)
            last = await peer.receive()
            assert isinstance(last, Publish)
            assert last.topic == "window/last"
            await peer.close()
        account = await asyncio.to_thread(proxy.wait_for_account, "raw")
    assert account.endswith("withheld 20, released 0")


@VERSIONS
async def test_nothing_waits_behind_a_withheld_message(
    version: int, mosquitto: Mosquitto, tmp_path: Path
) -> None:
    """SUBACK, PUBACK, the whole of QoS 2 and PINGRESP pass while a message is withheld."""
    with running_sidecar(before(mosquitto.port, plugins=ALWAYS_CONGESTED), tmp_path) as proxy:
        peer = await accepted_client(proxy.port, version, client_id="raw")
        peer.send(Subscribe(1, (SubscriptionRequest("raw/#", 2),)))
        assert isinstance(await peer.receive(), SubAck)
        peer.send(Publish("raw/first", b"1", qos=1, packet_id=2))
        received = [await peer.receive(), await peer.receive()]
        (first,) = [packet for packet in received if isinstance(packet, Publish)]
        peer.send(PubAck(first.packet_id), Publish("raw/large", LARGE, qos=1, packet_id=3))
        assert await peer.receive() == PubAck(3)
        peer.send(PingReq(), Publish("raw/small", b"2", qos=2, packet_id=4))
        kinds: set[type] = set()
        while not kinds >= {PingResp, PubRec, PubComp, Publish}:
            packet = await peer.receive()
            kinds.add(type(packet))
            if isinstance(packet, PubRec):
                peer.send(PubRel(packet.packet_id))
            elif isinstance(packet, PubRel):
                peer.send(PubComp(packet.packet_id))
            elif isinstance(packet, Publish):
                assert (packet.topic, packet.qos) == ("raw/small", 2)
                peer.send(PubRec(packet.packet_id))
        await peer.close()


@VERSIONS
async def test_a_client_without_a_broker(version: int, tmp_path: Path) -> None:
    """While it is connected it loses its connection at once; afterwards each that it opens."""
    with (
        running_mosquitto(tmp_path) as broker,
        running_sidecar(before(broker.port), tmp_path) as proxy,
    ):
        peer = await accepted_client(proxy.port, version, client_id="raw")
        broker.process.kill()
        broker.process.wait()  # only then does nobody listen
        assert await peer.receive_end() == b""
        refused = await open_client(("127.0.0.1", proxy.port), version)
        assert await refused.receive_end() == b""
        assert proxy.stop() == 0
    assert "client raw (127.0.0.1:" in proxy.log
    assert f"no connection to 127.0.0.1:{broker.port}: " in proxy.log


async def test_a_malformed_packet_harms_no_other_client(
    mosquitto: Mosquitto, tmp_path: Path
) -> None:
    """The client that sent it is told why and closed; the log names it."""
    with running_sidecar(before(mosquitto.port), tmp_path) as proxy:
        bad = await accepted_client(proxy.port, client_id="raw")
        good = await accepted_client(proxy.port)
        bad.writer.write(b"\x36\x00")
        assert await bad.receive_end() == b"\xe0\x01\x81"
        good.send(PingReq())
        assert await good.receive() == PingResp()
        assert proxy.stop() == 0
    assert re.search(r"client raw \(.*ended: the client sent: malformed packet", proxy.log)


async def connected(port: int, n_clients: int, version: int = 5) -> list[Peer]:
    """Return clients that the broker has accepted."""
    return [
        await accepted_client(port, version, client_id=f"many{number}")
        for number in range(n_clients)
    ]


async def test_a_low_soft_limit_of_files_is_raised(mosquitto: Mosquitto, tmp_path: Path) -> None:
    """A shell's limit of 64 does not keep the 25th client out, where the system allows more."""
    limits = limit_of_files(64, 512)
    with running_sidecar(before(mosquitto.port), tmp_path, preexec_fn=limits) as proxy:
        peers = await connected(proxy.port, 60)
        peers[-1].send(PingReq())
        assert await peers[-1].receive() == PingResp()
        for peer in peers:
            await peer.close()


@VERSIONS
async def test_more_clients_than_there_are_files_for_are_told(
    version: int, mosquitto: Mosquitto, tmp_path: Path
) -> None:
    """At two files each; those that are there stay, and one that leaves makes room."""
    limits = limit_of_files(200, 200)
    with running_sidecar(before(mosquitto.port), tmp_path, preexec_fn=limits) as proxy:
        peers = await connected(proxy.port, 50, version)
        refused = await open_client(("127.0.0.1", proxy.port), version)
        expected = {4: ReasonCode.SERVER_UNAVAILABLE, 5: ReasonCode.SERVER_BUSY}[version]
        assert await refused.receive() == ConnAck(reason_code=expected)
        assert await refused.receive_end() == b""
        peers[0].send(PingReq())
        assert await peers[0].receive() == PingResp()
        await peers.pop().close()
        proxy.wait_for_account("many49")
        peers += await connected(proxy.port, 1, version)
        for peer in peers:
            await peer.close()
        assert proxy.stop() == 0
    assert "connections refused: all 1" in proxy.log


async def test_the_proxy_serves_again_after_a_moment_without_free_files(
    mosquitto: Mosquitto, tmp_path: Path
) -> None:
    """Clients that are there are served meanwhile, and others afterwards."""
    limits = limit_of_files(40, 40)
    with running_sidecar(before(mosquitto.port), tmp_path, preexec_fn=limits) as proxy:
        await check_flood(proxy.port)


@VERSIONS
async def test_a_broker_that_accepts_and_says_nothing(version: int, tmp_path: Path) -> None:
    """Both connections end at the deadline; the client is told nothing, so that it tries again."""
    async with ScriptedBroker() as broker:
        upstream = {"address": f"127.0.0.1:{broker.port}", "connack_timeout_seconds": 1.0}
        with running_sidecar(before(broker.port, upstream=upstream), tmp_path) as proxy:
            peer = await open_client(("127.0.0.1", proxy.port), version, client_id="c")
            silent = await broker.connected()
            assert await peer.receive_end() == b""
            assert await silent.receive_end() != b""  # the CONNECT, then the end
            proxy.wait_for_match(r"client c \(.*ended: closed: no CONNACK in 1 s")
