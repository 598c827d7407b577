"""Sessions that outlive their connection go on at any broker, with all that waits for them."""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from penstock.broker.mqtt.packets import (
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.plugins.console.commands.asking import Console
from tests.helpers.cluster import (
    Cluster,
    Publisher,
    Stream,
    Subscriber,
    lasting,
    reached,
    running_brokers,
    until,
    until_away,
)
from tests.helpers.redis_server import shared_redis
from tests.helpers.wire import WireClient, ending


async def back(cluster: Cluster, name: str, client_id: str, *, version: int = 5) -> WireClient:
    """Return a client that has found its session at a broker."""
    client = await WireClient.dial(cluster[name].port, version)
    options = lasting() if version == 5 else {"clean_start": False}
    answer = await client.connect(client_id, **options)
    assert (answer.reason_code, answer.session_present) == (0, True)
    return client


async def leave(client: WireClient) -> None:
    """Disconnect."""
    await client.send(Disconnect())
    await client.rest()


def prefix_of(cluster: Cluster) -> str:
    """Return what the keys of a cluster begin with."""
    return str(cluster.section["redis"]["prefix"])


@pytest.mark.parametrize("version", [4, 5])
async def test_what_waits_for_a_client_is_read_at_another_broker(
    cluster: Cluster, version: int
) -> None:
    """From whatever broker it came, in order; messages of QoS 0 do not wait."""
    name = f"away-{version}"
    options = lasting() if version == 5 else {"clean_start": False}
    async with await cluster.connected("a", name, version=version, **options) as client:
        await client.subscribe(f"{name}/#", 2)
        await leave(client)
    async with (
        await cluster.connected("b", "from-b") as one,
        await cluster.connected("a", "from-a") as other,
    ):
        await one.publish(f"{name}/1", b"1")
        await other.send(Publish(f"{name}/1", b"0", 0))
        await other.publish(f"{name}/1", b"2")
        await one.publish(f"{name}/2", b"3")
        async with await back(cluster, "c", name, version=version) as client:
            assert await client.messages(3) == [(b"1", 1), (b"2", 1), (b"3", 1)]
            await one.publish(f"{name}/2", b"4")
            await other.send(Publish(f"{name}/2", b"5", 0))
            assert await client.messages(2) == [(b"4", 1), (b"5", 0)]


async def test_client_with_a_session_gets_messages_from_all_brokers(cluster: Cluster) -> None:
    """While it is connected: by all of its subscriptions, with their identifiers, each once."""
    async with (
        await cluster.connected("a", "here", **lasting()) as client,
        await cluster.connected("a", "at-a") as one,
        await cluster.connected("b", "at-b") as other,
    ):
        for topic_filter, qos, number in (("here/+", 1, 5), ("here/#", 2, 6)):
            options = {"properties": {"subscription_identifier": [number]}}
            await client.send(Subscribe(1, (SubscriptionRequest(topic_filter, qos),), **options))
            await client.receive()
        for number in range(100):
            await (one, other)[number % 2].publish("here/x", b"%d" % number)
        for number in range(100):
            packet = await client.take(Publish)
            assert bytes(packet.payload) == b"%d" % number
            assert sorted(packet.properties["subscription_identifier"]) == [5, 6]
            await client.send(PubAck(packet.packet_id))


@pytest.mark.parametrize("options", [{}, lasting()], ids=["clean", "lasting"])
async def test_small_messages_pass_large_ones_that_are_withheld(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """However many of them another broker has published before."""
    policy = {"policy": "conservative", "threshold_l": 1e-6, "max_withhold": 600}
    plugins = {"console": {"http": "127.0.0.1:0"}, "probing": {}, "withholding": policy}
    with running_brokers(tmp_path, "a", "b", plugins=plugins) as cluster:
        console = Console(cluster["a"].console_url)
        async with (
            await cluster.connected("a", "reader", **options) as client,
            await cluster.connected("b", "camera") as camera,
        ):
            await client.subscribe("site/#", 1)

            def has_rtt() -> bool:
                return console.get("clients", search="reader")["clients"][0]["rtt"] is not None

            await asyncio.to_thread(until, has_rtt, "an RTT")
            for number in range(40):
                await camera.publish(f"site/picture/{number}", bytes(100_000))
            for alarm in (b"1", b"2"):
                await camera.publish("site/alarm", alarm)
                packet = await client.take(Publish)
                assert (packet.topic, bytes(packet.payload)) == ("site/alarm", alarm)
                await client.send(PubAck(packet.packet_id))


async def test_client_that_goes_elsewhere_without_leaving_is_taken_over(cluster: Cluster) -> None:
    """Its session goes along, and what it has not acknowledged is sent again."""
    async with (
        await cluster.connected("a", "taken", **lasting()) as first,
        await cluster.connected("c", "gives-taken") as publisher,
    ):
        await first.subscribe("taken/#", 2)
        await publisher.publish("taken/1", b"1")
        sent = await first.take(Publish)
        async with await back(cluster, "b", "taken") as second:
            assert ending(await first.rest()) == ReasonCode.SESSION_TAKEN_OVER
            again = await second.take(Publish)
            assert (again.packet_id, again.dup, again.qos) == (sent.packet_id, True, 1)
            await second.send(PubAck(again.packet_id))
            await publisher.publish("taken/2", b"2")
            assert await second.messages(1) == [(b"2", 1)]


async def test_client_with_qos_2_under_way_goes_on_elsewhere(cluster: Cluster) -> None:
    """In both directions: no message comes twice."""
    async with await cluster.connected("a", "twice", **lasting()) as client:
        await client.subscribe("twice/#", 2)
        await client.send(Publish("twice/1", b"1", 2, packet_id=9))
        found = [await client.receive() for _ in range(2)]
        (came,) = [one for one in found if isinstance(one, Publish)]
        assert any(isinstance(one, PubRec) and one.packet_id == 9 for one in found)
        await client.send(PubRec(came.packet_id))
        assert (await client.take(PubRel)).packet_id == came.packet_id
    async with await back(cluster, "b", "twice") as client:
        assert (await client.take(PubRel)).packet_id == came.packet_id
        await client.send(PubComp(came.packet_id))
        await client.send(Publish("twice/1", b"1", 2, dup=True, packet_id=9))
        assert (await client.take(PubRec)).packet_id == 9
        await client.send(PubRel(9))
        assert (await client.take(PubComp)).packet_id == 9
        await client.send(Publish("twice/1", b"2", 2, packet_id=10))
        while not isinstance(packet := await client.receive(), Publish):
            assert isinstance(packet, PubRec)
        assert bytes(packet.payload) == b"2"


async def test_clean_start_ends_the_session_wherever_it_waits(cluster: Cluster) -> None:
    """Nothing is left of it: neither messages nor subscriptions."""
    async with await cluster.connected("a", "anew", **lasting()) as client:
        await client.subscribe("anew/#", 1)
        await leave(client)
    async with await cluster.connected("b", "gives-anew") as publisher:
        await publisher.publish("anew/1", b"1")
        fresh = {**lasting(), "clean_start": True}
        async with await cluster.connected("c", "anew", **fresh) as client:
            await client.subscribe("anew/2", 1)
            await publisher.publish("anew/1", b"2")
            await publisher.publish("anew/2", b"3")
            assert await client.messages(1) == [(b"3", 1)]
            await leave(client)
        async with await back(cluster, "a", "anew") as client:
            await publisher.publish("anew/2", b"4")
            assert await client.messages(1) == [(b"4", 1)]


async def test_session_expires_though_no_broker_has_it(cluster: Cluster) -> None:
    """By the engine's clock; its mailbox and its subscriptions go."""
    async with await cluster.connected("a", "expires", **lasting(1)) as client:
        await client.subscribe("expires/#", 1)
        await leave(client)
    prefix = prefix_of(cluster)
    with Redis(port=shared_redis()) as redis:
        sessions = f"{prefix}:{{cluster:test}}:sessions"
        await reached(lambda: not redis.hexists(sessions, "expires\0expires/#"), "its end")
        assert not [*redis.scan_iter(f"{prefix}:*:s:expires")]
    async with await WireClient.dial(cluster["b"].port) as client:
        assert not (await client.connect("expires", **lasting())).session_present


async def test_session_that_its_client_ends_is_gone_everywhere(cluster: Cluster) -> None:
    """It says so as it leaves."""
    async with await cluster.connected("a", "ends", **lasting()) as client:
        await client.subscribe("ends/#", 1)
        await client.send(Disconnect(properties={"session_expiry_interval": 0}))
        await client.rest()
    async with await WireClient.dial(cluster["b"].port) as client:
        assert not (await client.connect("ends", **lasting())).session_present


async def test_retained_messages_that_were_not_read_go_along(cluster: Cluster) -> None:
    """A new subscription has got them, and its connection has ended before a PUBACK."""
    async with await cluster.connected("b", "retains") as publisher:
        await publisher.send(Publish("kept/1", b"1", 1, retain=True, packet_id=1))
        await publisher.take(PubAck)
    async with await cluster.connected("b", "unread", **lasting()) as client:
        await client.subscribe("kept/#", 1)
        first = await client.take(Publish)
    async with await back(cluster, "a", "unread") as client:
        again = await client.take(Publish)
        assert (again.packet_id, again.retain, bytes(again.payload)) == (
            first.packet_id,
            True,
            b"1",
        )


async def test_away_member_of_a_shared_subscription_gets_what_no_other_can_take(
    cluster: Cluster,
) -> None:
    """One that is connected comes first."""
    share = "$share/crew/shared/#"
    async with await cluster.connected("a", "member", **lasting()) as client:
        await client.subscribe(share, 1)
        await leave(client)
    await until_away(cluster, "member")
    async with await cluster.connected("b", "gives-shared") as publisher:
        await publisher.publish("shared/1", b"1")
        async with await cluster.connected("c", "other-member") as other:
            await other.subscribe(share, 1)
            await publisher.publish("shared/1", b"2")
            assert await other.messages(1) == [(b"2", 1)]
        async with await back(cluster, "c", "member") as client:
            assert await client.messages(1) == [(b"1", 1)]
            await publisher.publish("shared/1", b"3")
            assert await client.messages(1) == [(b"3", 1)]


async def test_many_sessions_get_a_message_each(cluster: Cluster) -> None:
    """They are connected to all brokers, or away."""
    clients = []
    for number in range(60):
        client = await cluster.connected("abc"[number % 3], f"many-{number}", **lasting())
        await client.subscribe("many/#", 1)
        if number % 2:
            await leave(client)
        clients.append(client)
    async with await cluster.connected("b", "gives-many") as publisher:
        await publisher.publish("many/1", b"1")
    for number, client in enumerate(clients):
        if number % 2:
            client = await back(cluster, "bca"[number % 3], f"many-{number}")  # noqa: PLW2901
        assert await client.messages(1) == [(b"1", 1)]
        client.close()


async def test_limits_of_what_waits_hold_for_mailboxes(tmp_path: Path) -> None:
    """Those of the policy; the oldest messages go."""
    limits = {"queued_messages": 5, "queue_full": "drop_oldest"}
    with running_brokers(tmp_path, "a", "b", limits=limits) as brokers:
        async with await brokers.connected("a", "limited", **lasting()) as client:
            await client.subscribe("limited/#", 1)
            await leave(client)
        await until_away(brokers, "limited")
        async with await brokers.connected("b", "gives-limited") as publisher:
            for number in range(12):
                await publisher.publish("limited/x", b"%d" % number)
        async with await back(brokers, "b", "limited") as client:
            assert [payload for payload, _ in await client.messages(5)] == [
                b"%d" % number for number in range(7, 12)
            ]


async def test_publishers_are_held_back_for_a_client_that_acknowledges_nothing(
    tmp_path: Path,
) -> None:
    """At whatever broker they are; they go on once it has room again."""
    limits = {"queued_messages": 5, "queue_full": "reject"}
    with running_brokers(tmp_path, "a", "b", limits=limits) as brokers:
        async with (
            await brokers.connected("a", "stalls", **lasting()) as client,
            await brokers.connected("b", "held-back") as publisher,
        ):
            await client.subscribe("stalls/#", 1)
            codes = [
                (await publisher.publish("stalls/x", b"%d" % number)).reason_code
                for number in range(6)
            ]
            assert codes == [0, 0, 0, 0, 0, ReasonCode.QUOTA_EXCEEDED]
            assert await client.messages(5) == [(b"%d" % number, 1) for number in range(5)]
            while (await publisher.publish("stalls/x", b"6")).reason_code:
                pass
            assert await client.messages(1) == [(b"6", 1)]


@pytest.mark.parametrize("is_away", [False, True])
async def test_delayed_will_is_published_where_its_client_ends_the_session_elsewhere(
    cluster: Cluster, *, is_away: bool
) -> None:
    """By Clean Start, before the delay has passed [MQTT-3.1.2-8]; it was connected, or away."""
    topic = f"clean/{is_away}"
    will = Will(topic, b"gone", qos=1, properties={"will_delay_interval": 600})
    async with await cluster.connected("c", f"watches-{is_away}") as watcher:
        await watcher.subscribe(topic, 1)
        former = await cluster.connected("a", f"clean-{is_away}", will=will, **lasting())
        if is_away:
            former.close()
        async with await cluster.connected("b", f"clean-{is_away}", clean_start=True):
            assert (await watcher.take(Publish)).payload == b"gone"
        former.close()


async def test_delayed_will_is_not_published_where_the_session_goes_on(tmp_path: Path) -> None:
    """Its broker was killed, and the client came back elsewhere in time [MQTT-3.1.3-9]."""
    with running_brokers(tmp_path, "a", "b", "c") as brokers:
        async with await brokers.connected("a", "watches") as watcher:
            await watcher.subscribe("wills/#", 1)
            clients = []
            for name, seconds in (("returns", 4), ("stays", 5)):
                delay = {"will_delay_interval": seconds}
                will = Will(f"wills/{name}", b"gone", qos=1, properties=delay)
                clients.append(await brokers.connected("b", name, will=will, **lasting()))
            brokers["b"].kill()
            async with await back(brokers, "c", "returns"):
                assert (await watcher.take(Publish)).topic == "wills/stays"
            for client in clients:
                client.close()


async def test_session_of_a_broker_that_stood_still_is_at_one_broker(tmp_path: Path) -> None:
    """What the former one still has of it counts for nothing."""
    with running_brokers(tmp_path, "a", "b", "c") as brokers:
        subscriber = Subscriber()
        old = await brokers.connected("b", "frozen", **lasting())
        await old.subscribe("frozen/#", 2)
        stream = Stream("frozen/x", qos=2)
        publishing = asyncio.create_task(stream.run(lambda: brokers["a"].port))
        before = asyncio.create_task(subscriber.run(old))
        await reached(lambda: len(subscriber.came) > 100, "100 messages")
        brokers["b"].process.send_signal(signal.SIGSTOP)
        before.cancel()
        client = await back(brokers, "c", "frozen")
        taking = asyncio.create_task(subscriber.run(client))
        n_came = len(subscriber.came)
        await reached(lambda: len(subscriber.came) > n_came + 50, "messages elsewhere")
        brokers["b"].process.send_signal(signal.SIGCONT)
        await old.rest()
        stream.end()
        await publishing
        await reached(lambda: stream.acknowledged <= {*subscriber.came}, "all messages")
        assert subscriber.came == sorted({*subscriber.came})
        taking.cancel()
        client.close()


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_broker_with_a_session_ends_under_load(
    tmp_path: Path, number: signal.Signals, qos: int
) -> None:
    """Its client finds the session elsewhere: all that was acknowledged comes, in order."""
    with running_brokers(tmp_path, "a", "b", "c") as brokers:
        subscriber = Subscriber()
        client = await brokers.connected("b", "reads", **lasting())
        await client.subscribe("load/#", qos)
        taking = asyncio.create_task(subscriber.run(client))
        stream = Stream("load/x", qos=qos)
        publishing = asyncio.create_task(stream.run(lambda: brokers["a"].port))
        await reached(lambda: len(subscriber.came) > 300, "300 messages")
        brokers["b"].process.send_signal(number)
        await asyncio.gather(taking, return_exceptions=True)
        client.close()
        client = await back(brokers, "c", "reads")
        taking = asyncio.create_task(subscriber.run(client))
        n_sent = stream.n_sent
        await reached(lambda: stream.n_sent >= n_sent + 300, "300 messages after it")
        stream.end()
        await publishing
        await reached(lambda: stream.acknowledged <= {*subscriber.came}, "all messages")
        first = list(dict.fromkeys(subscriber.came))
        assert first == sorted(first)
        if qos == 2:
            assert len(first) == len(subscriber.came)
        taking.cancel()
        client.close()


async def test_broker_of_a_publisher_with_a_session_is_killed(tmp_path: Path) -> None:
    """What it sends again at another broker comes to mailboxes once, and in order."""
    with running_brokers(tmp_path, "a", "b", "c") as brokers:
        subscriber, publisher = Subscriber(), Publisher("exact/x")
        reader = await brokers.connected("b", "reads", **lasting())
        await reader.subscribe("exact/#", 2)
        taking = asyncio.create_task(subscriber.run(reader))
        for name, other in (("a", "c"), ("c", "")):
            client = await brokers.connected(name, "writes", **lasting())
            publishing = asyncio.create_task(publisher.run(client))
            wanted = publisher.n_done + 200
            await reached(partial(publisher.has_done, wanted), "200 messages")
            if other:
                brokers[name].kill()
            else:
                publisher.is_ending = True
            await asyncio.gather(publishing, return_exceptions=True)
            client.close()
        assert publisher.n_done == publisher.n_begun
        await reached(lambda: len(subscriber.came) >= publisher.n_begun, "all messages")
        assert subscriber.came == list(range(publisher.n_begun))
        taking.cancel()
        reader.close()
