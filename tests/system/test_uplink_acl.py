"""An uplink to a broker whose ACL denies a topic, and what the log says of it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from penstock.broker.mqtt.packets import (
    ConnAck,
    Connect,
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
)
from tests.broker.serving import port_of, until
from tests.edge_proxy.uplink.test_uplink import deliver, site, stands, take_message, uplink_of
from tests.helpers.mosquitto import running_mosquitto
from tests.helpers.scripted import Peer
from tests.helpers.wire import connected


class Closing:
    """A broker that closes the connection at a topic that its ACL denies, and says no word.

    Attributes:
        at: the packet at which it closes: ``PUBLISH``, and ``PUBREL`` for a message that it does
            not know; or ``PUBREL``.
        payloads: that it was sent in allowed topics.
        n_closed: connections that it has closed.
    """

    def __init__(self, at: str, version: str) -> None:
        self.at = at
        self.payloads: list[bytes] = []
        self.n_closed = 0
        self._version = 5 if version == "5" else 4
        self._released: set[int] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        peer = Peer(reader, writer, self._version)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while self._takes(peer, await peer.receive()):
                pass
            self.n_closed += 1
        await peer.close()

    def _takes(self, peer: Peer, packet: Packet) -> bool:
        """Answer a packet; return whether the connection goes on."""
        match packet:
            case Connect():
                peer.send(ConnAck(session_present=not packet.clean_start))
            case Publish():
                is_allowed = "denied" not in packet.topic
                if is_allowed and packet.qos:
                    self.payloads.append(bytes(packet.payload))
                elif not is_allowed and self.at == "PUBLISH":
                    return False
                if packet.qos == 2:
                    self._released.add(packet.packet_id)
                    peer.send(PubRec(packet.packet_id))
                elif packet.qos:
                    peer.send(PubAck(packet.packet_id))
                if not is_allowed:
                    self._released.discard(packet.packet_id)
            case PubRel():
                if packet.packet_id not in self._released:
                    return False
                peer.send(PubComp(packet.packet_id))
            case Subscribe():
                peer.send(SubAck(packet.packet_id, (1,) * len(packet.subscriptions)))
            case PingReq():
                peer.send(PingResp())
            case _:
                pass
        return True


@pytest.mark.parametrize("version", ["5", "3.1.1"])
@pytest.mark.parametrize("at", ["PUBLISH", "PUBREL"])
async def test_a_topic_of_qos_2_that_the_acl_denies_ends_no_uplink_for_good(
    at: str, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker hangs up at the message, or at its release: that is set aside, and told."""
    broker = Closing(at, version)
    server = await asyncio.start_server(broker.accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, site(port, version=version, lanes=None) as edge:
        await stands(edge)
        async with await connected(port_of(edge), "near") as near:
            await deliver(near, Publish("up/denied", b"no", qos=2, packet_id=1))
            for n in range(3):
                await deliver(near, Publish("up/allowed", b"%d" % n, qos=2, packet_id=2))
            await until(lambda: {b"0", b"1", b"2"} <= set(broker.payloads))
            uplink = uplink_of(edge)
            await until(lambda: not edge.core.sessions.get(uplink.up_id).inflight)  # type: ignore[union-attr]
            n_closed = broker.n_closed
            await deliver(near, Publish("up/allowed", b"last", qos=2, packet_id=2))
            await until(lambda: b"last" in broker.payloads)
            assert broker.n_closed == n_closed
            assert uplink.counts.up_dropped == {"refused": 1}
    assert "'up/denied'" in caplog.text
    assert "its access control (ACL)" in caplog.text


async def test_the_log_says_that_the_acl_denies_a_topic(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A real mosquitto of MQTT 5 says so by a reason code."""
    acl = tmp_path / "acl"
    acl.write_text("topic readwrite up/allowed\ntopic readwrite penstock/#\ntopic read up/#\n")
    with running_mosquitto(tmp_path, f"acl_file {acl}\nuser root") as cloud:
        async with (
            site(cloud.port, lanes=None) as edge,
            await connected(cloud.port, "far") as far,
            await connected(port_of(edge), "near") as near,
        ):
            await far.subscribe("up/#", 2)
            await stands(edge)
            await deliver(near, Publish("up/denied", b"no", qos=2, packet_id=1))
            await deliver(near, Publish("up/allowed", b"yes", qos=2, packet_id=2))
            assert (await take_message(far)).payload == b"yes"
            assert uplink_of(edge).counts.up_dropped == {"refused": 1}
    assert "topic 'up/denied': not authorized (0x87): the broker's access control (ACL)" in (
        caplog.text
    )
