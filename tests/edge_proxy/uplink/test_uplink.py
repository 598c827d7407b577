"""A site's broker with an uplink to a cloud's broker, which is Penstock in the same process."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.config.policy import parse_policy
from penstock.broker.mqtt.packets import (
    ConnAck,
    Connect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Unsubscribe,
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.server import Server
from penstock.edge_proxy.uplink import uplink as uplink_module
from penstock.edge_proxy.uplink.connecting import UplinkError, read_password
from penstock.edge_proxy.uplink.plugin import UplinkPlugin
from penstock.edge_proxy.uplink.receivers import DownReceiver
from penstock.edge_proxy.uplink.uplink import Uplink
from penstock.netem.runs.broker_process import reserved_port
from penstock.plugins.queue.publishing.row_publisher import RowPublisher, relay_id
from tests.broker.network.test_in_process import local_clients
from tests.broker.serving import make_server, port_of, serving, until
from tests.helpers.certificates import Authority
from tests.helpers.process import anonymous_policy
from tests.helpers.scripted import ScriptedBroker
from tests.helpers.wire import WireClient, connected

SO_MAX_PACING_RATE = 47
UP = {"filter": "up/#"}
DOWN = {"filter": "down/#", "when": "always"}


def uplink_of(server: Server, name: str = "cloud") -> Uplink:
    """Return an uplink of a server."""
    for plugin in server._plugins.plugins:
        if isinstance(plugin, UplinkPlugin):
            return next(uplink for uplink in plugin.uplinks if uplink.name == name)
    raise AssertionError("no uplink")


def edge_policy(
    port: int, *, policy: Mapping[str, Any] | None = None, **keys: Any
) -> dict[str, Any]:
    """Return a policy file of a site whose uplink leads to a port of this machine.

    Args:
        port: of the cloud's broker.
        policy: further keys of the file.
        keys: of the uplink.
    """
    uplink = {
        "upstream": {"address": f"127.0.0.1:{port}"},
        "up": [UP],
        "down": [DOWN],
        "reconnect": {"min_seconds": 0.01, "max_seconds": 0.05},
        **keys,
    }
    return anonymous_policy(
        {"uplink": {"site": "berlin", "uplinks": {"cloud": uplink}}}, **(policy or {})
    )


@contextlib.asynccontextmanager
async def site(port: int, *plugins: Mapping[str, Any], **keys: Any) -> AsyncIterator[Server]:
    """Run a site's broker for a block, with further plugins."""
    policy = edge_policy(port, **keys)
    for plugin in plugins:
        policy["plugins"] |= plugin
    server = Server(parse_policy(policy, "edge.yaml"))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def stands(server: Server, name: str = "cloud") -> None:
    """Wait until the uplink is connected, and the cloud has subscribed."""
    uplink = uplink_of(server, name)
    await until(lambda: uplink.counts.connected)


async def deliver(client: WireClient, packet: Publish) -> None:
    """Publish and take all acknowledgements."""
    await client.send(packet)
    if packet.qos == 1:
        assert (await client.take(PubAck)).reason_code < 0x80
    elif packet.qos == 2:
        assert (await client.take(PubRec)).reason_code < 0x80
        await client.send(PubRel(packet.packet_id))
        await client.take(PubComp)


async def take_message(client: WireClient) -> Publish:
    """Take a PUBLISH and acknowledge it."""
    packet = await client.take(Publish)
    if packet.qos == 1:
        await client.send(PubAck(packet.packet_id))
    elif packet.qos == 2:
        await client.send(PubRec(packet.packet_id))
        await client.take(PubRel)
        await client.send(PubComp(packet.packet_id))
    return packet


@pytest.mark.parametrize("version", ["5", "3.1.1"])
async def test_messages_go_up_and_come_down_at_every_qos(version: str) -> None:
    """What local clients publish reaches the cloud's, and the other way, with its QoS."""
    async with serving() as cloud, site(port_of(cloud), version=version) as edge:
        await stands(edge)
        async with (
            await connected(port_of(cloud), "far") as far,
            await connected(port_of(edge), "near") as near,
        ):
            await far.subscribe("up/#", 2)
            await near.subscribe("down/#", 2)
            for qos in (0, 1, 2):
                await deliver(
                    near, Publish("up/a", b"%d" % qos, qos=qos, packet_id=7 if qos else 0)
                )
                message = await take_message(far)
                assert (message.topic, message.payload, message.qos) == ("up/a", b"%d" % qos, qos)
                await deliver(
                    far, Publish("down/b", b"%d" % qos, qos=qos, packet_id=9 if qos else 0)
                )
                message = await take_message(near)
                assert (message.topic, message.payload, message.qos) == ("down/b", b"%d" % qos, qos)


async def test_the_cloud_is_asked_for_what_local_clients_subscribe_to() -> None:
    """As far as a rule covers it, with the prefixes of each side, and no longer than they do."""
    rule = {"filter": "#", "local_prefix": "site/", "remote_prefix": "berlin/"}
    async with serving() as cloud, site(port_of(cloud), down=[rule], linger_seconds=0.01) as edge:
        await stands(edge)
        async with (
            await connected(port_of(cloud), "far") as far,
            await connected(port_of(edge), "near") as near,
        ):
            session = cloud.core.sessions.get("berlin-cloud")
            assert session is not None
            assert not session.subscriptions
            await near.subscribe("site/a/+", 1)
            await until(lambda: "berlin/a/+" in session.subscriptions)
            await deliver(far, Publish("berlin/a/b", b"x", qos=1, packet_id=1))
            assert (await take_message(near)).topic == "site/a/b"
            await near.send(Unsubscribe(2, ("site/a/+",)))
            await until(lambda: not session.subscriptions)


async def test_a_restart_of_the_site_knows_what_the_cloud_was_asked_for(tmp_path: Path) -> None:
    """A filter that nobody wants any more is given up, though another process had asked for it."""
    keys = {"persistence": {"path": str(tmp_path / "edge.db")}}
    a, b = ([{"filter": name, "when": "always"}] for name in ("a/#", "b/#"))
    async with serving() as cloud:
        async with site(port_of(cloud), policy=keys, down=a, lanes=None) as edge:
            uplink = uplink_of(edge)
            records = uplink.local_clients.subscriptions
            await until(lambda: "$uplink/cloud/2/a/#" in (records(uplink.down_id) or ()))
        session = cloud.core.sessions.get("berlin-cloud")
        assert session is not None
        assert list(session.subscriptions) == ["a/#"]
        async with site(port_of(cloud), policy=keys, down=b, lanes=None):
            await until(lambda: list(session.subscriptions) == ["b/#"])


async def test_what_waits_for_the_cloud_has_limits_and_its_publishers_none() -> None:
    """At a limit the oldest goes, and no publisher is refused; what waits arrives later."""
    backlog = {"messages": 2}
    async with serving() as cloud:
        port = port_of(cloud)
        await cloud.stop()
        async with (
            site(port, backlog=backlog) as edge,
            await connected(port_of(edge), "near") as near,
        ):
            for n in range(4):
                await deliver(near, Publish("up/a", b"%d" % n, qos=1, packet_id=1))
            session = edge.core.sessions.get("$uplink/cloud/up")
            assert session is not None
            assert [one.message.payload for one in session.outbox.waiting()] == [b"2", b"3"]
            assert session.ledger.dropped == {"pushed_out": 2}


async def test_what_waits_for_too_long_is_dropped() -> None:
    """It is counted as such."""
    async with serving() as cloud:
        port = port_of(cloud)
        await cloud.stop()
        keys = {"max_age_seconds": 0.01}
        async with site(port, backlog=keys) as edge, await connected(port_of(edge), "near") as near:
            await deliver(near, Publish("up/a", b"x", qos=1, packet_id=1))
            session = edge.core.sessions.get("$uplink/cloud/up")
            assert session is not None
            await until(lambda: session.ledger.dropped == {"too_old": 1})


async def test_the_site_tells_what_its_uplink_has_done() -> None:
    """Below $SYS, and its state where bridges tell theirs, on both sides."""
    state = "$SYS/broker/connection/berlin-cloud/state"
    async with serving() as cloud, site(port_of(cloud), policy={"sys_interval": 0.05}) as edge:
        await stands(edge)
        async with (
            await connected(port_of(cloud), "far") as far,
            await connected(port_of(edge), "near") as near,
        ):
            await far.subscribe(state)
            await near.subscribe(state)
            assert (await far.take(Publish)).payload == b"1"
            assert (await near.take(Publish)).payload == b"1"
            await near.subscribe("$SYS/broker/penstock/uplink/cloud/connected")
            while (await near.take(Publish)).payload != b"1":
                pass
            await edge.stop()
            assert (await far.take(Publish)).payload == b"0"


async def test_sessions_of_an_uplink_that_is_gone_end(tmp_path: Path) -> None:
    """Else they would wait for it without end."""
    keys = {"persistence": {"path": str(tmp_path / "edge.db")}}
    async with serving() as cloud:
        async with site(port_of(cloud), policy=keys) as edge:
            await stands(edge)
            assert edge.core.sessions.get("$uplink/cloud/up") is not None
        async with serving(**keys) as other:
            assert other.core.sessions.client_ids() == []


async def test_the_state_of_an_uplink_that_is_gone_is_cleared_at_the_site(tmp_path: Path) -> None:
    """So is the topic that an uplink had before: nothing would change either any more."""
    keys = {"persistence": {"path": str(tmp_path / "edge.db")}}
    async with serving() as cloud:
        port = port_of(cloud)
        async with site(port, policy=keys, notification_topic="state/a") as edge:
            await stands(edge)
        for others in ({}, {"state/a": b"of a client"}):
            async with site(port, policy=keys, notification_topic="state/b") as edge:
                await stands(edge)
                await until(lambda: _retained(edge) == {"state/b": b"1", **others})  # noqa: B023 (awaited here)
                async with await connected(port_of(edge), "near") as near:
                    own = Publish("state/a", b"of a client", qos=1, retain=True, packet_id=1)
                    await deliver(near, own)
        policy = edge_policy(port, policy=keys)
        uplinks = policy["plugins"]["uplink"]["uplinks"]
        uplinks["new"] = uplinks.pop("cloud")
        edge = Server(parse_policy(policy, "edge.yaml"))
        await edge.start()
        try:
            assert _retained(edge) == {"state/a": b"of a client"}
            await until(lambda: edge.core.sessions.get("$uplink/cloud/down") is None)
        finally:
            await edge.stop()


class Calm:
    """Says that uplinks that leave are never quiet, and then that they are soon."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_come = False
        is_quiet = Uplink._is_quiet
        monkeypatch.setattr(uplink_module, "QUIET_SECONDS", 0.01)
        monkeypatch.setattr(
            Uplink, "_is_quiet", lambda uplink, now: is_quiet(uplink, now) and self.has_come
        )


@pytest.mark.parametrize("lanes", [None, {"by": "size"}])
async def test_an_uplink_that_leaves_ends_on_both_sides_when_nothing_is_left_in_it(
    lanes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits in its sessions passes both ways; then its state is cleared, too."""
    calm = Calm(monkeypatch)
    policy = {"persistence": {"path": str(tmp_path / "edge.db")}}
    kept: Mapping[str, Any] = {
        "clean_start": False,
        "properties": {"session_expiry_interval": 1_000},
    }
    payloads = [b"L" * 20_000, b"after"]
    async with serving() as cloud, await connected(port_of(cloud), "far") as far:
        await far.subscribe("up/#", 1)
        async with (
            site(port_of(cloud), policy=policy, lanes=lanes) as edge,
            await connected(port_of(edge), "near", **kept) as near,
        ):
            await near.subscribe("down/#", 1)
            plugin = next(one for one in edge._plugins.plugins if isinstance(one, UplinkPlugin))
            for lane in plugin.uplinks:
                await until(lambda: asked(cloud, lane.client_id) == ["down/#"])  # noqa: B023
            for lane in plugin.uplinks:
                await lane.stop()
            for number, payload in enumerate(payloads, 1):
                await deliver(near, Publish("up/cam", payload, qos=1, packet_id=number))
                await deliver(far, Publish("down/cam", payload, qos=1, packet_id=number))
        leaving = {"policy": policy, "lanes": lanes, "leaves": True}
        async with (
            site(port_of(cloud), **leaving, start={"when": "on_demand"}) as edge,
            await connected(port_of(edge), "near", **kept) as near,
        ):
            for taker in (far, near):
                assert [(await take_message(taker)).payload for _ in payloads] == payloads
            calm.has_come = True
            await until(lambda: edge.core.sessions.client_ids() == ["near"])
            await until(lambda: cloud.core.sessions.client_ids() == ["far"])
            await until(lambda: states(cloud) == states(edge) == {})
        # A site that has forgotten its sessions ends those of the cloud.
        async with site(port_of(cloud), lanes=lanes) as edge:
            await until(lambda: len(states(cloud)) == (2 if lanes else 1))
        async with site(port_of(cloud), lanes=lanes, leaves=True) as edge:
            await until(lambda: cloud.core.sessions.client_ids() == ["far"])
            await until(lambda: not states(cloud))
            assert edge.core.sessions.client_ids() == []


async def test_local_clients_of_other_plugins_stay(tmp_path: Path) -> None:
    """Their names begin with another character than those of uplinks."""
    keys = {"persistence": {"path": str(tmp_path / "edge.db")}}
    async with serving() as cloud:
        async with site(port_of(cloud), policy=keys) as edge:
            await stands(edge)
            await RowPublisher("").connect(local_clients(edge), clean_start=True)
        async with site(port_of(cloud), policy=keys) as edge:
            assert edge.core.sessions.get(relay_id("")) is not None


async def test_an_uplink_with_the_client_id_of_another_is_told() -> None:
    """Each takes the connection over; both would go on without end."""
    async with serving() as cloud, site(port_of(cloud)) as edge:
        await stands(edge)
        uplink = uplink_of(edge)
        async with await connected(port_of(cloud), "berlin-cloud"):
            await until(lambda: uplink.counts.failures.get("taken_over"))


async def test_a_refused_uplink_tries_again() -> None:
    """It says why."""
    async with (
        serving(limits={"sessions": 1}) as cloud,
        await connected(port_of(cloud), "only"),
        site(port_of(cloud)) as edge,
    ):
        uplink = uplink_of(edge)
        await until(lambda: uplink.counts.failures.get("refused", 0) > 1)


@pytest.mark.parametrize("adopts_session", [False, True])
async def test_a_cloud_that_speaks_no_mqtt_and_hangs_up_is_tried_again(
    *, adopts_session: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the session there was to be ended first."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    with reserved_port() as port:
        server = await asyncio.start_server(answer, "127.0.0.1", port)
        async with server, site(port, adopts_session=adopts_session) as edge:
            await until(lambda: sum(uplink_of(edge).counts.failures.values()) > 2)
            assert f"uplink cloud: 127.0.0.1:{port}: " in caplog.text
            assert "the next attempt in" in caplog.text
            server.close()
            await until(lambda: "connection refused" in caplog.text)
            assert f"uplink cloud: 127.0.0.1:{port}: connection refused; the next" in caplog.text


async def test_the_password_is_in_its_file(tmp_path: Path) -> None:
    """Its first line; a file that cannot be read ends the start."""
    file = tmp_path / "password"
    with pytest.raises(UplinkError, match="password_file"):
        async with site(1, username="u", password_file=str(file)):
            pass
    file.write_text("secret\nnot read")
    async with (
        serving() as cloud,
        site(port_of(cloud), username="u", password_file=str(file)) as edge,
    ):
        await stands(edge)
        uplink = uplink_of(edge)
        assert read_password(uplink.name, uplink.keys) == b"secret"
        session = cloud.core.sessions.get("berlin-cloud")
        assert session is not None
        assert session.username == "u"


async def test_an_uplink_on_demand_stands_only_while_something_is_to_go_up() -> None:
    """It connects when enough messages wait, and disconnects when none has passed for a while."""
    start = {"when": "on_demand", "threshold_messages": 2, "idle_seconds": 0.05}
    async with (
        serving() as cloud,
        site(port_of(cloud), start=start) as edge,
        await connected(port_of(edge), "near") as near,
        await connected(port_of(cloud), "far") as far,
    ):
        counts = uplink_of(edge).counts
        await far.subscribe("up/#", 1)
        await deliver(near, Publish("up/a", b"1", qos=1, packet_id=1))
        assert counts.connections == 0
        await deliver(near, Publish("up/a", b"2", qos=1, packet_id=1))
        assert [(await take_message(far)).payload for _ in range(2)] == [b"1", b"2"]
        await until(lambda: not counts.connected)
        assert (counts.connections, counts.failures) == (1, {})


@contextlib.asynccontextmanager
async def held_back(port: int, n_bytes: int) -> AsyncIterator[tuple[int, asyncio.Event]]:
    """Forward connections to a port; what comes from there after so many bytes does not pass.

    Yields:
        Where it listens, and an event that is set when something was held back.
    """
    is_held = asyncio.Event()

    async def pass_on(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most: int = 1 << 40
    ) -> None:
        while data := await reader.read(min(65_536, most)):
            writer.write(data)
            most -= len(data)
            if most <= 0:
                is_held.set()
                return

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.closing(writer), contextlib.closing(far_writer):
            await asyncio.gather(pass_on(reader, far_writer), pass_on(far_reader, writer, n_bytes))

    server = await asyncio.start_server(forward, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], is_held


async def test_an_uplink_on_demand_stays_for_a_message_that_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A long one takes more than `idle_seconds` on a slow link; cut off, it would begin again."""
    start = {"when": "on_demand", "threshold_messages": 1, "idle_seconds": 3600}
    async with (
        serving() as cloud,
        held_back(port_of(cloud), 100_000) as (port, is_held),
        site(port, start=start, lanes=None) as edge,
        await connected(port_of(edge), "near") as near,
        await connected(port_of(cloud), "far") as far,
    ):
        await near.subscribe("down/#", 1)
        await deliver(near, Publish("up/a", b"1", qos=1, packet_id=1))
        await until(lambda: asked(cloud) == ["down/#"])
        await deliver(far, Publish("down/cam", b"L" * 200_000, qos=1, packet_id=1))
        await is_held.wait()
        uplink = uplink_of(edge)
        await until(lambda: uplink.is_receiving and not uplink.n_waiting)
        for _ in range(2):
            now = uplink.clock() + 7200
            monkeypatch.setattr(uplink, "clock", lambda now=now: now)
            assert uplink.look()[0] == ""
        await uplink.stop()
        assert not uplink.is_receiving, "nothing comes on a connection that has ended"


async def test_an_uplink_stands_only_at_its_times() -> None:
    """What is to go up waits for them."""
    now = datetime.now().astimezone()
    later = [f"{(now.hour + n) % 24:02}:00" for n in (2, 3)]
    times = {"windows": [{"begin": later[0], "end": later[1]}]}
    async with (
        serving() as cloud,
        site(port_of(cloud), times=times) as edge,
        await connected(port_of(edge), "near") as near,
    ):
        uplink = uplink_of(edge)
        await deliver(near, Publish("up/a", b"1", qos=1, packet_id=1))
        assert uplink.n_waiting == 1
        assert uplink.look()[0] == "it is outside of its times"
        assert uplink.counts.connections == 0


async def test_what_goes_up_keeps_to_the_rate_of_the_time() -> None:
    """Bytes beyond those of a second wait for their turn; none is lost."""
    window = {"begin": "00:00", "end": "24:00", "max_bytes_per_second": 100_000}
    async with (
        serving() as cloud,
        site(port_of(cloud), times={"windows": [window]}) as edge,
        await connected(port_of(edge), "near") as near,
        await connected(port_of(cloud), "far") as far,
    ):
        await stands(edge)
        budget = uplink_of(edge).budget
        assert budget.bytes_per_second == 100_000
        await far.subscribe("up/#", 1)
        await deliver(near, Publish("up/a", b"x" * 120_000, qos=1, packet_id=1))
        await deliver(near, Publish("up/a", b"2", qos=1, packet_id=1))
        assert (await take_message(far)).payload == b"x" * 120_000
        assert (await take_message(far)).payload == b"2"


async def test_a_new_site_ends_what_the_cloud_knows_of_packet_identifiers() -> None:
    """A message of an earlier life was not released: the next one with its identifier is another.

    The session that the uplink keeps is not one that has begun by Clean Start: mosquitto would not
    store it.
    """
    async with serving() as cloud, await connected(port_of(cloud), "far") as far:
        await far.subscribe("up/#", 2)
        forever = {"session_expiry_interval": 0xFFFFFFFF}
        old = await connected(port_of(cloud), "berlin-cloud", properties=forever)
        await old.send(Publish("up/a", b"old", qos=2, packet_id=1))
        await old.take(PubRec)
        old.close()
        assert (await take_message(far)).payload == b"old"
        async with site(port_of(cloud)) as edge, await connected(port_of(edge), "near") as near:
            await stands(edge)
            await deliver(near, Publish("up/a", b"new", qos=2, packet_id=1))
            assert (await take_message(far)).payload == b"new"


async def test_a_new_site_may_adopt_what_waits_for_it_in_the_cloud() -> None:
    """It waits in the session of another client that had the same Client Identifier."""
    async with serving() as cloud, await connected(port_of(cloud), "far") as far:
        forever = {"session_expiry_interval": 0xFFFFFFFF}
        old = await connected(port_of(cloud), "berlin-cloud", properties=forever)
        await old.subscribe("down/#", 2)
        old.close()
        await deliver(far, Publish("down/a", b"waits", qos=2, packet_id=1))
        start = {"when": "on_demand", "threshold_messages": 1}
        async with (
            site(port_of(cloud), adopts_session=True, start=start) as edge,
            await connected(port_of(edge), "near") as near,
        ):
            await near.subscribe("down/#", 2)
            await deliver(near, Publish("up/a", b"connect", qos=1, packet_id=1))
            assert (await take_message(near)).payload == b"waits"


async def test_an_uplink_over_tls(tmp_path: Path) -> None:
    """The cloud's certificate is checked."""
    authority = Authority(tmp_path)
    certfile, keyfile = authority.issue()
    listener = {"bind": "127.0.0.1:0", "ssl": True, "certfile": certfile, "keyfile": keyfile}
    async with serving(listeners={"default": listener}) as cloud:
        upstream = {"address": f"localhost:{port_of(cloud)}", "tls": {"cafile": authority.cafile}}
        async with site(0, upstream=upstream) as edge:
            await stands(edge)
            [plugin] = [one for one in edge._plugins.plugins if isinstance(one, UplinkPlugin)]
            found = await plugin.reload(plugin.config)
            assert found.read == [f"uplinks.cloud.upstream.cafile {authority.cafile}"]
        upstream["tls"] = {"server_name": "other", "cafile": authority.cafile}
        async with site(0, upstream=upstream) as edge:
            counts = uplink_of(edge).counts
            await until(lambda: counts.failures.get("unreachable"))


async def test_an_uplink_goes_to_the_next_address_with_sessions_of_its_own() -> None:
    """What the first broker knows of packet identifiers is forgotten when the second is there."""
    async with serving() as first, serving() as second:
        addresses = [f"127.0.0.1:{port_of(broker)}" for broker in (first, second)]
        async with (
            site(0, upstream={"addresses": addresses}) as edge,
            await connected(port_of(edge), "near") as near,
            await connected(port_of(second), "far") as far,
        ):
            await stands(edge)
            sessions = edge.core.sessions
            down_ids = [f"$uplink/cloud/down/{address}" for address in addresses]
            await far.subscribe("up/#", 1)
            await until(lambda: sessions.get(down_ids[0]) is not None)
            await first.stop()
            await deliver(near, Publish("up/a", b"x", qos=1, packet_id=1))
            assert (await take_message(far)).payload == b"x"
            assert sessions.get(down_ids[0]) is None
            assert sessions.get(down_ids[1]) is not None


async def test_an_outage_keeps_what_is_acknowledged_and_local_traffic(tmp_path: Path) -> None:
    """It goes up in order when the cloud is back, each message of QoS 2 once."""
    keys = {"persistence": {"path": str(tmp_path / "cloud.db")}}
    session: dict[str, Any] = {"properties": {"session_expiry_interval": 0xFFFFFFFF}}
    async with serving(**keys) as cloud:
        port = port_of(cloud)
        far = await connected(port, "far", **session)
        await far.subscribe("up/#", 2)
        far.close()
        async with site(port) as edge, await connected(port_of(edge), "near") as near:
            await stands(edge)
            await cloud.stop()
            async with await connected(port_of(edge), "local") as local:
                await local.subscribe("up/#", 0)
                for n in range(10):
                    await deliver(near, Publish("up/a", b"%d" % n, qos=2, packet_id=n + 1))
                    assert (await local.take(Publish)).payload == b"%d" % n
            listener = {"default": {"bind": f"127.0.0.1:{port}"}}
            async with serving(listeners=listener, **keys):
                far = await connected(port, "far", clean_start=False, **session)
                got = [(await far.take(Publish)).payload for _ in range(10)]
                far.close()
            assert got == [b"%d" % n for n in range(10)]


async def test_retained_messages_outlive_an_outage_and_end_with_the_cloud_s() -> None:
    """The site serves them without the cloud; what was cleared meanwhile is cleared."""
    keys = {"down": [{"filter": "down/#", "remote_prefix": "r/"}], "refresh_retained_seconds": 0}
    with reserved_port() as port:
        listeners = {"default": {"bind": f"127.0.0.1:{port}"}}
        cloud = make_server(listeners=listeners)
        await cloud.start()
        async with site(port, **keys) as edge, await connected(port_of(edge), "near") as near:
            await stands(edge)
            async with await connected(port, "far") as far:
                for name in "ab":
                    await deliver(
                        far, Publish(f"r/down/{name}", b"1", qos=1, retain=True, packet_id=1)
                    )
            await near.subscribe("down/#", 1)
            for _ in "ab":
                assert (await take_message(near)).payload == b"1"
            await cloud.stop()
            await until(lambda: not uplink_of(edge).counts.connected)
            async with await connected(port_of(edge), "late") as late:
                await late.subscribe("down/#", 1)
                assert {(await take_message(late)).topic for _ in "ab"} == {"down/a", "down/b"}
            async with serving(listeners=listeners), await connected(port, "far") as far:
                await deliver(far, Publish("r/down/b", b"2", qos=1, retain=True, packet_id=1))
                await until(lambda: _retained(edge) == {"down/b": b"2"})
                assert uplink_of(edge).counts.retained_cleared


async def test_the_cloud_is_asked_when_the_session_that_publishes_is_safe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A site that is killed before has its session in the cloud ended: nothing may wait there."""
    held: list[Callable[[], None]] = []
    packet = DownReceiver.packet
    monkeypatch.setattr(DownReceiver, "packet", lambda *args: held.append(lambda: packet(*args)))
    async with serving() as cloud, site(port_of(cloud)) as edge:
        await until(lambda: held)  # the CONNACK of the site's broker
        uplink = uplink_of(edge)
        uplink.want_subscriptions()
        async with await connected(port_of(edge), "near") as near:
            await deliver(near, Publish("up/a", b"x", qos=1, packet_id=1))
            await until(lambda: uplink.counts.up_messages)
        assert not asked(cloud)
        monkeypatch.setattr(DownReceiver, "packet", packet)
        held[0]()
        assert uplink._connection is not None
        uplink._connection.receive(uplink._connection._down, b"")
        await until(lambda: asked(cloud) == ["down/#"])


@pytest.mark.parametrize("hours", [-10, 10])
async def test_clocks_that_are_hours_apart_change_no_interval(
    monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """What expires, and what has waited for too long, is judged by the time that has passed."""
    properties = {"message_expiry_interval": 100}
    kept = {"backlog": {"max_age_seconds": 1_000.0}}
    async with serving() as cloud, await connected(port_of(cloud), "far") as far:
        await far.subscribe("up/#", 1)
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + 3_600 * hours)
        async with (
            site(port_of(cloud), **kept) as edge,
            await connected(port_of(edge), "near") as near,
        ):
            monkeypatch.setattr(time, "time", real)  # of the cloud from here on
            await stands(edge)
            uplink = uplink_of(edge)
            await near.subscribe("down/#", 1)
            await until(lambda: asked(cloud) == ["down/#"])
            for sender, taker, topic in ((far, near, "down/x"), (near, far, "up/x")):
                await deliver(
                    sender, Publish(topic, b"x", qos=1, packet_id=1, properties=properties)
                )
                came = await take_message(taker)
                assert 0 < came.properties["message_expiry_interval"] <= 100
            assert not uplink.counts.failures


def asked(cloud: Server, client_id: str = "berlin-cloud") -> list[str]:
    """Return what the cloud was asked for by one lane."""
    session = cloud.core.sessions.get(client_id)
    return [] if session is None else list(session.subscriptions)


def _retained(server: Server) -> dict[str, Any]:
    """Return the payloads of what is retained at a site, by topic, but the broker's own."""
    return {
        topic: message.payload
        for topic, message in server.core.retained.by_topic.items()
        if not topic.startswith("$")
    }


def states(server: Server) -> dict[str, bytes]:
    """Return what is retained of connections, by their client ids."""
    topics = server.core.retained.by_topic.items()
    return {
        topic.split("/")[3]: message.read_payload()
        for topic, message in topics
        if topic.startswith("$SYS/broker/connection/")
    }


async def test_the_bridge_bit_falls_back_to_an_ordinary_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At return code 1, at once and for later connections, as a bridge of mosquitto does."""
    refused = ConnAck(reason_code=ReasonCode.UNSUPPORTED_PROTOCOL_VERSION)
    reconnect = {"min_seconds": 3600.0, "max_seconds": 3600.0}
    bits = []
    async with (
        ScriptedBroker() as cloud,
        site(cloud.port, version="3.1.1", reconnect=reconnect) as edge,
    ):
        for answer in (refused, ConnAck(), ConnAck()):
            peer = await cloud.connected()
            peer.version = 4
            connect = await peer.receive()
            assert isinstance(connect, Connect)
            bits.append(connect.is_bridge)
            peer.send(answer)
            if answer is refused:
                await peer.close()
        await stands(edge)
        assert bits == [True, False, False]
        assert uplink_of(edge).counts.failures == {}
    assert caplog.text.count("refuses the bridge bit (return code 1)") == 1
