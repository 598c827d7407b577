"""Lanes of an uplink to a cloud's broker, which is Penstock in the same process."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.config.policy import parse_policy
from penstock.broker.mqtt.packets import Publish
from penstock.broker.network.pacing import Pacing
from penstock.broker.server import Server
from penstock.edge_proxy.uplink.lanes import AGAIN_SECONDS, LanesKeys, SecondConnection, lanes_of
from penstock.edge_proxy.uplink.remapping import DownRule, Rule
from penstock.edge_proxy.uplink.uplink import Uplink
from penstock.edge_proxy.upstream import UpstreamError, Upstreams
from penstock.netem.runs.broker_process import reserved_port
from tests.broker.serving import port_of, protocol_of, serving, until
from tests.edge_proxy.uplink.test_uplink import (
    DOWN,
    UP,
    Calm,
    deliver,
    edge_policy,
    site,
    states,
    take_message,
    uplink_of,
)
from tests.helpers.wire import connected

SO_MAX_PACING_RATE = 47


def test_without_keys_there_is_one_lane() -> None:
    """It has all rules, and the names of the uplink."""
    [lane] = lanes_of(None, [Rule("a/#")], [DownRule("b/#")])
    assert (lane.name, lane.up, lane.down) == ("", [Rule("a/#")], [DownRule("b/#")])
    assert lane.of("cloud", "-") == "cloud"


def test_by_topic_each_rule_is_of_one_lane() -> None:
    """By its topics at the site: a filter that holds all of them makes it one of the large lane."""
    keys = LanesKeys("topic", large=["site/cameras/#", "firmware/+"])
    up = [Rule("sensors/#", remote_prefix="r/"), Rule("cameras/1/#", local_prefix="site/")]
    down = [DownRule("firmware/oven"), DownRule("commands/#")]
    keys.check([*up, *down])
    small, large = lanes_of(keys, up, down)
    assert (small.name, small.up, small.down) == ("", [up[0]], [down[1]])
    assert (large.name, large.up, large.down) == ("large", [up[1]], [down[0]])
    assert large.of("cloud", "-") == "cloud-large"


def test_by_size_both_lanes_have_all_rules() -> None:
    """Each for its size class."""
    small, large = lanes_of(LanesKeys("size"), [Rule("a/#")], [DownRule("b/#")])
    assert (small.up, small.down, small.sizes) == ([Rule("a/#")], [DownRule("b/#")], "small")
    assert (large.up, large.down, large.sizes) == (small.up, small.down, "large")


def test_by_default_the_large_lane_is_optional_and_there_is_none_with_mqtt_3_1_1() -> None:
    """Such a broker may drop what the second client publishes, and acknowledges it."""
    keys = LanesKeys()
    small, large = lanes_of(keys, [Rule("a/#")], [DownRule("b/#")])
    assert (small.is_optional, large.is_optional, large.sizes, large.yields) == (
        False,
        True,
        "large",
        True,
    )
    [lane] = lanes_of(keys, [Rule("a/#")], [DownRule("b/#")], is_5=False)
    assert (lane.sizes, lane.is_optional) == (None, False)


def test_a_second_connection_is_refused_by_a_word_or_by_silence_again_and_again() -> None:
    """What a network may have lost is tried again; what the broker says counts at once."""
    second = SecondConnection()
    for _ in range(2):
        second.failed("closed", "it was closed", 1.0)
        second.failed("unreachable", "no route", 1.0)
    assert not second.refused
    second.failed("closed", "it was closed", 1.0)
    assert (second.refused, second.to_tell(), second.to_tell()) == (
        "it was closed",
        "it was closed",
        "",
    )
    assert second.wait_seconds(2.0) == AGAIN_SECONDS - 1.0
    second.other_accepted()
    assert second.wait_seconds(2.0) == 0.0
    second.accepted()
    second.failed("refused", "quota exceeded", 3.0)
    assert second.to_tell() == "quota exceeded"


def test_two_connections_that_end_each_other_in_turn_are_one_client_to_the_broker() -> None:
    """One that ends alone, again and again, is not; nor are both when they end together."""
    second = SecondConnection()
    for _ in range(5):
        second.came_back("", is_mutual=True, now=0.0)
    second.came_back("large", is_mutual=True, now=0.0)
    second.came_back("", is_mutual=False, now=0.0)
    assert not second.refused
    for name in ("", "large", ""):
        second.came_back(name, is_mutual=True, now=0.0)
    assert second.is_other
    second.other_accepted()
    assert second.wait_seconds(1.0) == AGAIN_SECONDS - 1.0


async def test_what_waited_before_a_restart_is_passed_by_small_messages(tmp_path: Path) -> None:
    """With one connection, and no word of withholding; each topic keeps its order."""
    keys: dict[str, Any] = {
        "lanes": None,
        "start": {"when": "never"},
        "policy": {"persistence": {"path": str(tmp_path / "edge.db")}},
    }
    pictures = [b"L" * 20_000, b"after"]
    async with site(1, **keys) as edge, await connected(port_of(edge), "near") as near:
        # The first one leaves for the client that subscribes at each start.
        await deliver(near, Publish("up/first", b"0", qos=1, packet_id=1))
        for payload in pictures:
            await deliver(near, Publish("up/cam", payload, qos=1, packet_id=1))
    async with serving() as cloud, await connected(port_of(cloud), "far") as far:
        await far.subscribe("up/#", 1)
        async with site(1, **keys) as edge, await connected(port_of(edge), "near") as near:
            await deliver(near, Publish("up/alarm", b"1", qos=1, packet_id=1))
        keys["start"] = {"when": "always"}
        async with site(port_of(cloud), **keys):
            got = [(await take_message(far)).payload for _ in range(4)]
    assert got == [b"0", b"1", *pictures]


LANES_BY_TOPIC: dict[str, Any] = {
    "up": [UP, {"filter": "cameras/#"}],
    "down": [DOWN, {"filter": "firmware/#", "when": "always"}],
    "lanes": {"by": "topic", "large": ["cameras/#", "firmware/#"]},
}


async def test_by_topic_each_lane_has_a_connection_with_its_rules() -> None:
    """Both ways; a lane has a client id, sessions and a state topic of its own."""
    async with serving() as cloud, site(port_of(cloud), **LANES_BY_TOPIC) as edge:
        small, large = (uplink_of(edge, name) for name in ("cloud", "cloud/large"))
        await until(lambda: small.counts.connected and large.counts.connected)
        assert (small.client_id, large.client_id) == ("berlin-cloud", "berlin-cloud-large")
        assert large.local_ids == ("$uplink/cloud/up-large", "$uplink/cloud/down-large")
        async with (
            await connected(port_of(cloud), "far") as far,
            await connected(port_of(edge), "near") as near,
        ):
            for name in ("up/#", "cameras/#", "$SYS/broker/connection/+/state"):
                await far.subscribe(name, 1)
            states = {(await far.take(Publish)).topic for _ in (small, large)}
            assert "$SYS/broker/connection/berlin-cloud-large/state" in states
            for name in ("down/#", "firmware/#"):
                await near.subscribe(name, 1)
            for topic, lane in (("up/a", small), ("cameras/a", large)):
                n_before = lane.counts.up_messages
                await deliver(near, Publish(topic, b"x", qos=1, packet_id=1))
                assert (await take_message(far)).topic == topic
                assert lane.counts.up_messages == n_before + 1
            for topic, lane in (("down/a", small), ("firmware/a", large)):
                n_before = lane.counts.down_messages
                await deliver(far, Publish(topic, b"x", qos=1, packet_id=1))
                assert (await take_message(near)).topic == topic
                assert lane.counts.down_messages == n_before + 1


async def test_by_size_a_small_message_passes_a_large_one_of_another_topic_alone() -> None:
    """One of the same topic comes after it, by the other lane, when the cloud has it."""
    async with serving() as cloud, site(port_of(cloud), lanes={"by": "size"}) as edge:
        small, large = (uplink_of(edge, name) for name in ("cloud", "cloud/large"))
        await until(lambda: small.counts.connected and large.counts.connected)
        async with (
            await connected(port_of(cloud), "far") as far,
            await connected(port_of(edge), "near") as near,
        ):
            await far.subscribe("up/#", 1)
            n_before = [lane.counts.up_messages for lane in (small, large)]
            link = large._connection
            assert link is not None
            link.cloud.read(unless="test", wants=False)  # acknowledgements do not come
            await near.send(
                Publish("up/cam", b"x" * 20_000, qos=1, packet_id=1),
                Publish("up/cam", b"after", qos=1, packet_id=2),
                Publish("up/alarm", b"1", qos=1, packet_id=3),
                Publish("up/cam", b"last", qos=0),
            )
            got = [await take_message(far) for _ in range(2)]
            assert {packet.topic for packet in got} == {"up/cam", "up/alarm"}
            session = edge.core.sessions.get("$uplink/cloud/up")
            assert session is not None
            assert session.outbox.why_nothing().endswith("is on the other lane")
            link.cloud.read(unless="test", wants=True)
            assert (await take_message(far)).payload == b"after"
            assert (await take_message(far)).payload == b"last"
            n_after = [lane.counts.up_messages for lane in (small, large)]
            assert [b - a for a, b in zip(n_before, n_after, strict=True)] == [3, 1]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel paces")
@pytest.mark.parametrize("yields", [True, False])
async def test_the_large_lane_yields_in_both_directions_while_both_stand(
    monkeypatch: pytest.MonkeyPatch,
    yields: bool,  # noqa: FBT001 (a parameter)
) -> None:
    """The site's broker paces what goes up, and Penstock in the cloud what comes down."""

    def look(pacing: Pacing, *_: object) -> float:
        pacing.has_yielded = True
        return 50_000.0

    monkeypatch.setattr(Pacing, "look", look)
    monkeypatch.setattr(Pacing, "rest", lambda *_: 50_000.0)  # as after a long queue
    async with (
        serving() as cloud,
        site(port_of(cloud), lanes={"by": "size", "yields": yields}) as edge,
        await connected(port_of(edge), "near") as near,
    ):
        small, large = (uplink_of(edge, name) for name in ("cloud", "cloud/large"))
        await until(lambda: small.counts.connected and large.counts.connected)
        await until(lambda: cloud.core.sessions.get("berlin-cloud-large") is not None)
        assert _paces(cloud, small, large) == (False, False, yields, yields)
        await deliver(near, Publish("up/a", b"x" * 20_000, qos=1, packet_id=1))
        if yields:
            await until(lambda: large.counts.paced == 1)
            await until(lambda: _pace_up(large) == 50_000)
        link = small._connection
        assert link is not None
        monkeypatch.setattr(Uplink, "_wait_seconds", lambda *_: 3600.0)
        link.end("closed", "as the test has it")
        await until(lambda: not small.counts.connected)
        assert _pace_up(large) == -1  # alone, it has all messages


def _pace_up(lane: Uplink) -> int:
    """Return the kernel's pace of what goes up on a lane; -1 for full rate."""
    assert lane._connection is not None
    assert lane._connection.cloud.transport is not None
    sock = lane._connection.cloud.transport.get_extra_info("socket")
    return int(sock.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE))


def _paces(cloud: Server, small: Uplink, large: Uplink) -> tuple[bool, bool, bool, bool]:
    """Say what is paced: small up and down, large up and down."""
    down = [
        protocol_of(cloud, lane.client_id).transport.get_extra_info("socket")
        for lane in (small, large)
    ]
    paces = [sock.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE) for sock in down]
    return _pace_up(small) != -1, paces[0] != -1, _pace_up(large) != -1, paces[1] != -1


async def test_by_size_the_order_of_a_topic_outlives_a_restart_of_the_site(tmp_path: Path) -> None:
    """Nothing leaves before both lanes are known to be of one uplink."""
    keys: dict[str, Any] = {
        "lanes": {"by": "size"},
        "policy": {"persistence": {"path": str(tmp_path / "edge.db")}},
    }
    payloads = [b"L" * 20_000, b"after", b"last"]
    with reserved_port() as dead_port:
        async with site(dead_port, **keys) as edge, await connected(port_of(edge), "near") as near:
            for number, payload in enumerate(payloads, 1):
                await deliver(near, Publish("up/cam", payload, qos=1, packet_id=number))
    async with serving() as cloud, await connected(port_of(cloud), "far") as far:
        await far.subscribe("up/#", 1)
        async with site(port_of(cloud), **keys):
            assert [(await take_message(far)).payload for _ in payloads] == payloads


async def test_a_lane_that_is_configured_no_more_ends_when_nothing_is_left_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits in its sessions passes, both ways, in the order of its topic."""
    calm = Calm(monkeypatch)
    policy = {"persistence": {"path": str(tmp_path / "edge.db")}}
    payloads = [b"L" * 20_000, b"after", b"last"]
    async with serving() as cloud, await connected(port_of(cloud), "far") as far:
        await far.subscribe("up/#", 1)
        kept: Mapping[str, Any] = {
            "clean_start": False,
            "properties": {"session_expiry_interval": 1_000},
        }
        async with (
            site(port_of(cloud), policy=policy, lanes={"by": "size"}) as edge,
            await connected(port_of(edge), "near", **kept) as near,
        ):
            await near.subscribe("down/#", 1)
            await until(lambda: _sizes_asked(cloud) == ["small", "large"])
            assert states(cloud) == {"berlin-cloud": b"1", "berlin-cloud-large": b"1"}
            for lane in (uplink_of(edge, name) for name in ("cloud", "cloud/large")):
                await lane.stop()
            for number, payload in enumerate(payloads, 1):
                await deliver(near, Publish("up/cam", payload, qos=1, packet_id=number))
                await deliver(far, Publish("down/cam", payload, qos=1, packet_id=number))
        async with (
            site(port_of(cloud), policy=policy, lanes=None) as edge,
            await connected(port_of(edge), "near", **kept) as near,
        ):
            for taker in (far, near):
                assert [(await take_message(taker)).payload for _ in payloads] == payloads
            await until(lambda: _sizes_asked(cloud) == [None, "-"])
            calm.has_come = True
            await until(lambda: cloud.core.sessions.get("berlin-cloud-large") is None)
            await until(lambda: edge.core.sessions.get("$uplink/cloud/up-large") is None)
            assert edge.core.sessions.get("$uplink/cloud/down-large") is None
            assert states(cloud) == states(edge) == {"berlin-cloud": b"1"}
            await deliver(far, Publish("down/cam", payloads[0], qos=1, packet_id=9))
            assert (await take_message(near)).payload == payloads[0]


async def test_a_lane_is_tried_again_when_the_other_one_has_connected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own wait may be long after an outage."""
    waits = {"cloud": 0.01, "cloud/large": 3600.0}
    monkeypatch.setattr(Uplink, "_wait_seconds", lambda lane, *_: waits[lane.name])
    async with serving() as cloud, site(port_of(cloud), lanes={"by": "size"}) as edge:
        small, large = (uplink_of(edge, name) for name in ("cloud", "cloud/large"))
        await until(lambda: small.counts.connected and large.counts.connected)
        links = (large._connection, small._connection)
        assert links[0] is not None
        links[0].end("closed", "as the test has it")
        await until(lambda: large.counts.failures)
        assert links[1] is not None
        links[1].end("closed", "as the test has it")
        await until(lambda: large.counts.connections == 2)


def _sizes_asked(cloud: Server, name: str = "down/#") -> list[str | None]:
    """Return the size classes by which both lanes have subscribed; "-" for no subscription."""
    sizes: list[str | None] = []
    for client_id in ("berlin-cloud", "berlin-cloud-large"):
        session = cloud.core.sessions.get(client_id)
        found = None if session is None else session.subscriptions.get(name)
        sizes.append("-" if found is None else found.sizes)
    return sizes


async def test_by_size_what_comes_down_is_divided_in_the_order_of_each_topic() -> None:
    """By Penstock, which keeps the order across the lanes."""
    async with serving() as cloud, site(port_of(cloud), lanes={"by": "size"}) as edge:
        lanes = [uplink_of(edge, name) for name in ("cloud", "cloud/large")]
        await until(lambda: _sizes_asked(cloud) == ["small", "large"])
        async with (
            await connected(port_of(cloud), "far") as far,
            await connected(port_of(edge), "near") as near,
        ):
            await near.subscribe("down/#", 2)
            n_before = [lane.counts.down_messages for lane in lanes]
            payloads = [b"L" * 20_000 if n % 2 else b"%d" % n for n in range(8)]
            await far.send(
                *(
                    Publish(f"down/{'ab'[n % 3 == 0]}", payload, qos=2, packet_id=n + 1)
                    for n, payload in enumerate(payloads)
                )
            )
            got: dict[str, list[Any]] = {"down/a": [], "down/b": []}
            for _ in payloads:
                packet = await near.take(Publish)
                got[packet.topic].append(packet.payload)
            assert got["down/a"] == [one for n, one in enumerate(payloads) if n % 3]
            assert got["down/b"] == payloads[::3]
            n_after = [lane.counts.down_messages for lane in lanes]
            assert [b - a for a, b in zip(n_before, n_after, strict=True)] == [4, 4]


async def test_by_size_all_comes_down_on_one_lane_where_the_cloud_cannot_divide_it() -> None:
    """MQTT 3.1.1 has no User Properties, nor have other brokers these."""
    keys = {"lanes": {"by": "size"}, "version": "3.1.1"}
    async with serving() as cloud, site(port_of(cloud), **keys) as edge:
        large = uplink_of(edge, "cloud/large")
        await until(lambda: large.counts.connected and _sizes_asked(cloud)[0] is None)
        assert _sizes_asked(cloud) == [None, "-"]


async def test_by_size_all_comes_down_on_the_small_lane_while_the_large_one_cannot_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before its first connection, and for what a client subscribes to while it is away."""
    keys: dict[str, Any] = {"lanes": {"by": "size"}, "down": [DOWN, {"filter": "news/#"}]}
    is_reachable = False
    dial = Upstreams.dial

    async def dial_one(self: Upstreams, *args: Any) -> Any:
        if not is_reachable and self is uplink_of(server, "cloud/large").upstreams:
            raise UpstreamError("unreachable, as the test has it")
        return await dial(self, *args)

    async with serving() as cloud:
        server = Server(parse_policy(edge_policy(port_of(cloud), **keys), "edge.yaml"))
        monkeypatch.setattr(Upstreams, "dial", dial_one)
        await server.start()
        try:
            await until(lambda: _sizes_asked(cloud) == [None, "-"])
            is_reachable = True
            await until(lambda: _sizes_asked(cloud) == ["small", "large"])
            is_reachable = False
            large = uplink_of(server, "cloud/large")
            assert large._connection is not None
            large._connection.end("closed", "as the test has it")
            async with (
                await connected(port_of(cloud), "far") as far,
                await connected(port_of(server), "near") as near,
            ):
                await near.subscribe("news/#", 2)
                await until(lambda: _sizes_asked(cloud, "news/#") == [None, "-"])
                await deliver(far, Publish("news/a", b"L" * 20_000, qos=2, packet_id=1))
                assert (await take_message(near)).topic == "news/a"
                is_reachable = True
                await until(lambda: _sizes_asked(cloud, "news/#") == ["small", "large"])
        finally:
            await server.stop()
