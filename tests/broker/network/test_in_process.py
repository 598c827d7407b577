"""Clients in the broker's own process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.broker.errors import PenstockError
from penstock.broker.events import Callbacks, MessageRetained
from penstock.broker.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
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
)
from penstock.broker.mqtt.reader import read_packet
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.receive_buffer import ReceiveBuffer
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.network.in_process import InProcessClients, MemoryTransport
from penstock.broker.server import Server
from tests.broker.serving import driver_of, port_of, serving, until
from tests.helpers.frames import frames_of
from tests.helpers.process import SECONDS
from tests.helpers.wire import WireClient, connected


class _LocalClient(asyncio.Protocol):
    """A client in the broker's process.

    Attributes:
        transport: of its connection.
        packets: what it has received and nobody has taken.
        lost: set when the connection has ended.
    """

    def __init__(self) -> None:
        self.transport: Any = None
        self.packets: asyncio.Queue[Packet] = asyncio.Queue()
        self.lost = asyncio.Event()
        self._buffer = ReceiveBuffer(10_000_000)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        frames = frames_of(self._buffer, self._buffer.receive_data(bytes(data)))
        for first_byte, body in frames:
            self.packets.put_nowait(read_packet(first_byte, body, 5))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's)
        self.lost.set()

    def send(self, *packets: Packet) -> None:
        """Send packets."""
        self.transport.writelines([write_packet(packet, 5) for packet in packets])

    async def take(self, kind: type[Any]) -> Any:
        """Return the next packet, which must be of this kind."""
        async with asyncio.timeout(SECONDS):
            packet = await self.packets.get()
        assert isinstance(packet, kind), packet
        return packet


def local_clients(server: Server) -> InProcessClients:
    """Return what connects clients within a server's process."""
    driver = driver_of(server)
    return InProcessClients(driver, lambda: server._reception)


async def joined(server: Server, *, tells_publisher: bool = False) -> _LocalClient:
    """Return a local client that is connected and has subscribed to everything."""
    client = _LocalClient()
    local_clients(server).connect(client, tells_publisher=tells_publisher)
    request = SubscriptionRequest("#", 1)
    client.send(Connect("$uplink/a", clean_start=False, keep_alive=0), Subscribe(1, (request,)))
    assert (await client.take(ConnAck)).reason_code == 0
    await client.take(SubAck)
    return client


async def test_a_local_client_publishes_and_receives() -> None:
    """As any other client; a large payload goes through, too."""
    async with serving() as server, await connected(port_of(server), "other") as other:
        local = await joined(server)
        await other.subscribe("a", 1)
        payload = b"p" * 300_000
        await other.publish("b", payload)
        message = await local.take(Publish)
        assert (message.topic, message.payload) == ("b", payload)
        assert message.properties == {}
        local.send(PubAck(message.packet_id), Publish("a", payload, 1, packet_id=4))
        assert await local.take(Publish) == Publish(
            "a", payload, 1, packet_id=message.packet_id + 1
        )
        assert await local.take(PubAck) == PubAck(4)
        assert (await other.take(Publish)).payload == payload


async def test_a_client_that_is_told_gets_the_publisher_behind_other_properties() -> None:
    """Also of a message that passes others as it came."""
    async with serving() as server, await connected(port_of(server), "sensor") as sensor:
        local = await joined(server, tells_publisher=True)
        await sensor.send(Publish("a", b"x"), Publish("a", b"y"))
        await sensor.publish("b", b"z")
        for _ in range(3):
            message = await local.take(Publish)
            assert message.properties == {"user_property": [("penstock-publisher", "sensor")]}
        await sensor.send(Publish("c", b"", properties={"user_property": [("k", "v")]}))
        message = await local.take(Publish)
        assert message.properties["user_property"][-2:] == [
            ("k", "v"),
            ("penstock-publisher", "sensor"),
        ]


@pytest.mark.parametrize("is_forwarded", [False, True])
async def test_the_rate_of_one_publisher_is_not_that_of_all_of_another_broker(
    *, is_forwarded: bool
) -> None:
    """They come on one connection; each was limited where it is connected."""
    limits = {"publish_messages_per_second": 1, "publish_rate_exceeded": "disconnect"}
    async with serving(limits=limits) as server, await connected(port_of(server), "other") as other:
        await other.subscribe("t")
        client = _LocalClient()
        local_clients(server).connect(client, is_forwarded=is_forwarded)
        client.send(Connect("$uplink/x", keep_alive=0), *[Publish("t", b"x")] * 100)
        if is_forwarded:
            for _ in range(100):
                await other.take(Publish)
        else:
            await client.lost.wait()


async def test_messages_of_a_relay_have_the_qos_that_it_names() -> None:
    """Though it publishes at QoS 2; the last user property says so, and nobody else sees it."""
    async with serving() as server, await connected(port_of(server), "other") as other:
        await other.subscribe("a", 2)
        relay = _LocalClient()
        local_clients(server).connect(relay)
        relay.send(Connect("$uplink/$relay/x", clean_start=False, keep_alive=0))
        await relay.take(ConnAck)
        pairs = [("k", "v"), ("penstock-qos", "1")]
        relay.send(
            *(
                Publish("a", b"x", 2, packet_id=n, properties={"user_property": pairs})
                for n in (1, 2)
            ),
            *(Publish("a", b"y", 2, packet_id=n) for n in (3, 4)),
        )
        for expected in ((1, {"user_property": [("k", "v")]}),) * 2 + ((2, {}),) * 2:
            message = await other.take(Publish)
            assert (message.qos, message.properties) == expected
        assert [(await relay.take(PubRec)).packet_id for _ in range(4)] == [1, 2, 3, 4]
        relay.send(Publish("a", b"x", 2, dup=True, packet_id=1), PubRel(1))
        assert await relay.take(PubRec) == PubRec(1)
        assert await relay.take(PubComp) == PubComp(1)


async def test_only_a_relay_names_another_qos() -> None:
    """To all others it is a user property as any."""
    async with serving() as server, await connected(port_of(server), "sensor") as sensor:
        local = await joined(server)
        properties = {"user_property": [("penstock-qos", "0")]}
        await sensor.send(Publish("a", b"x", 1, packet_id=1, properties=properties))
        message = await local.take(Publish)
        assert (message.qos, message.properties) == (1, properties)


async def test_client_ids_of_local_clients_are_refused_to_all_others() -> None:
    """Nobody takes the session over, nor makes one."""
    async with serving() as server:
        local = await joined(server)
        async with await WireClient.dial(port_of(server)) as other:
            assert (
                await other.connect("$uplink/a")
            ).reason_code == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        assert not local.lost.is_set()


async def test_a_local_client_takes_nobodys_place_and_never_expires() -> None:
    """Limits of connections and sessions are for others."""
    limits = {"connections": 1, "sessions": 1, "maximum_keep_alive": 5}
    async with (
        serving(limits=limits, session_expiry_interval=1) as server,
        await connected(port_of(server), "other"),
    ):
        await joined(server)
        session = server.core.sessions.get("$uplink/a")
        assert session is not None
        assert session.expiry_interval is None
        assert session.client is not None
        assert session.client.timer is None


async def test_a_local_client_is_in_no_figure_of_clients() -> None:
    """Neither connected nor away, nor once its session has ended; no limit counts it."""
    async with serving(limits={"sessions": 1}) as server:
        core = server.core
        local = await joined(server)

        def figures() -> tuple[int, int, int]:
            counters = core.counters
            most = counters.clients_connected_maximum
            return counters.clients_connected, most, core.sessions.n_of_clients

        assert figures() == (0, 0, 0)
        async with await connected(port_of(server), "other"):
            assert figures() == (1, 1, 1)
            local.transport.abort()
            await local.lost.wait()
            await until(lambda: core.sessions.get("$uplink/a").client is None)  # type: ignore[union-attr]
            assert figures() == (1, 1, 1)
            local_clients(server).end_sessions(lambda _: True)
            assert (*figures(), len(core.sessions)) == (1, 1, 1, 1)
        await until(lambda: figures() == (0, 1, 0))


async def test_sessions_that_are_not_configured_any_more_end() -> None:
    """Messages would wait in them without end."""
    async with serving() as server:
        await joined(server)
        clients = local_clients(server)
        assert clients.subscriptions("$uplink/a") == ["#"]
        assert clients.end_sessions(lambda client_id: client_id == "$uplink/b") == []
        assert clients.end_sessions(lambda _: True) == ["$uplink/a"]
        assert clients.subscriptions("$uplink/a") is None


async def test_what_waits_for_a_lane_moves_as_soon_as_it_is_taken_over() -> None:
    """Nothing else has to happen in the broker for that."""
    async with serving() as server, await connected(port_of(server), "publisher") as publisher:
        clients = local_clients(server)
        one, other = _LocalClient(), _LocalClient()
        for number, client in enumerate((one, other)):
            clients.connect(client)
            client.send(Connect(f"$uplink/{number}", clean_start=False))
            await client.take(ConnAck)
        one.send(Subscribe(1, (SubscriptionRequest("x", 1, False, False, 0),)))
        await one.take(SubAck)
        clients.keep_order("$uplink/0", "$uplink/1")
        one.transport.abort()
        await one.lost.wait()
        await publisher.send(Publish("x", b"1", qos=1, packet_id=1))
        await publisher.take(PubAck)
        driver = driver_of(server)
        await until(lambda: driver.timer_at > 0.0)
        clients.take_over("$uplink/0", is_away=True)
        assert driver.timer_at <= (driver.core.timers.next_deadline() or 0.0)
        assert (await other.take(Publish)).payload == b"1"


async def test_a_stop_of_the_broker_ends_local_clients() -> None:
    """They are told as others are."""
    async with serving() as server:
        local = await joined(server)
        await server.stop()
        async with asyncio.timeout(SECONDS):
            await local.lost.wait()


class _End(asyncio.Protocol):
    """What one end of a connection is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def data_received(self, data: bytes) -> None:
        self.told.append(bytes(data))

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append(exc)


def pair() -> tuple[MemoryTransport, _End, MemoryTransport, _End]:
    """Return two ends and their protocols."""
    loop = asyncio.get_running_loop()
    a, b = MemoryTransport(loop, {"socket": "s"}), MemoryTransport(loop, {})
    a.other, b.other = b, a
    protocols = _End(), _End()
    a.protocol, b.protocol = protocols
    return a, protocols[0], b, protocols[1]


async def turns() -> None:
    """Let the loop call what is due."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_an_end_that_does_not_read_pauses_the_other() -> None:
    """Nothing is handed over while somebody writes, and nothing beyond the marks for long."""
    a, of_a, b, of_b = pair()
    assert a.get_extra_info("socket") == "s"
    a.set_write_buffer_limits(10, 4)
    b.pause_reading()
    a.writelines([b"12345", b"", b"6789"])
    assert of_a.told == []
    a.write(b"ab")
    await turns()
    assert (of_a.told, of_b.told, a.get_write_buffer_size()) == (["pause"], [], 11)
    b.resume_reading()
    assert of_b.told == []
    await turns()
    assert (of_a.told, of_b.told) == (["pause", "resume"], [b"123456789ab"])


async def test_a_closed_end_still_hands_over_what_was_written() -> None:
    """Both ends are told that it has ended; what is written to a closed one is dropped."""
    a, of_a, b, of_b = pair()
    a.write(b"last")
    a.close()
    b.write(b"never read")
    a.write(b"too late")
    await turns()
    assert (of_a.told, of_b.told) == ([None], [b"last", None])
    assert a.is_closing()
    assert b.is_closing()


async def test_an_aborted_connection_drops_what_was_not_received() -> None:
    """At once, on both sides, also where one does not read."""
    a, of_a, b, of_b = pair()
    b.pause_reading()
    a.write(b"lost")
    a.abort()
    await turns()
    assert (of_a.told, of_b.told) == ([None], [None])


async def test_what_another_broker_retains_is_taken_over_and_walked() -> None:
    """Those who have subscribed get none of it; callbacks and later subscribers do."""
    async with serving() as server, await connected(port_of(server), "early") as early:
        await early.subscribe("#", 1)
        clients, core = local_clients(server), driver_of(server).core
        told: list[MessageRetained] = []
        core.tell(Callbacks(message_retained=(told.append,)))
        lasting = {"message_expiry_interval": 60, "user_property": [("k", "v")]}
        for topic, version, properties in (("a", 4, {}), ("$b/c", 5, lasting), ("d", 5, {})):
            packet = write_packet(
                Publish(topic, b"x", 1, packet_id=7, properties=properties), version
            )
            assert clients.set_retained(packet, version, publisher="p", age=50.0)
        assert clients.set_retained(write_packet(Publish("d"), 4), 4)
        walked = {message.topic: message for message in clients.walk_retained()}
        assert set(walked) == {"a", "$b/c"}
        assert (walked["a"].payload, walked["a"].qos, walked["a"].publisher) == (b"x", 1, "p")
        assert [event.message.topic for event in told] == ["a", "$b/c", "d", "d"]
        await early.send(PingReq())
        await early.take(PingResp)
        async with await connected(port_of(server), "late") as late:
            await late.subscribe("$b/#", 1)
            message = await late.take(Publish)
        assert message.retain
        assert message.properties["user_property"] == [("k", "v")]
        assert 0 < message.properties["message_expiry_interval"] <= 10


async def test_a_retained_message_that_is_no_packet_is_refused() -> None:
    """What is wrong with it is said."""
    async with serving() as server:
        clients = local_clients(server)
        good = write_packet(Publish("a", b"x"), 4)
        for bad in (b"", good[:-1], good + b"x", b"\xc0\0", b"\x30\x03\0\x01#"):
            with pytest.raises(PenstockError):
                clients.set_retained(bad, 4)
        alias = write_packet(Publish("a", b"x", properties={"topic_alias": 1}), 5)
        with pytest.raises(PenstockError, match="Topic Alias"):
            clients.set_retained(alias, 5)


async def test_a_client_is_let_go_to_another_broker() -> None:
    """It is told so; its session ends."""
    async with serving() as server, await connected(port_of(server), "roamer") as roamer:
        local_clients(server).release("nobody", ReasonCode.SESSION_TAKEN_OVER)
        local_clients(server).release("roamer", ReasonCode.SESSION_TAKEN_OVER)
        assert (await roamer.take(Disconnect)).reason_code == ReasonCode.SESSION_TAKEN_OVER
        assert driver_of(server).core.sessions.get("roamer") is None
