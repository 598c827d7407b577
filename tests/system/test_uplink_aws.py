"""An uplink to a broker with the limits of AWS IoT Core, as docs/how-to/edge-clouds.md has it.

The limits are those of the service's quotas and of its page about MQTT: it takes 8 topic filters in
a SUBSCRIBE, QoS 0 and 1, topics of 8 levels and 256 bytes, messages of 128 KiB, client ids of 128
bytes, one CONNECT a second from a client id, and closes the connection at anything else; topics
that begin with ``$`` are its own. Its policies name the client ids that may connect. On port 443 it
speaks MQTT with who offers the protocol ``x-amzn-mqtt-ca``.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import yaml

from penstock.broker.config.policy import parse_policy
from penstock.broker.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from penstock.broker.mqtt.topics import matches
from penstock.broker.server import Server
from tests.broker.serving import until
from tests.edge_proxy.uplink.test_uplink import deliver, take_message
from tests.helpers.certificates import Authority
from tests.helpers.process import ROOT, anonymous_policy
from tests.helpers.scripted import Peer
from tests.helpers.wire import connected
from tests.system.test_uplink_lanes import lanes_of

PROTOCOL: Final = "x-amzn-mqtt-ca"
MOST_FILTERS, MOST_LEVELS, MOST_TOPIC_BYTES, MOST_CLIENT_ID_BYTES = 8, 8, 256, 128
MOST_PACKET_BYTES: Final = 149_504
CONNACK: Final[dict[str, Any]] = {
    "maximum_qos": 1,
    "receive_maximum": 100,
    "maximum_packet_size": MOST_PACKET_BYTES,
    "session_expiry_interval": 604_800,
    "shared_subscription_available": 1,
    "subscription_identifier_available": 0,
    "topic_alias_maximum": 8,
}


class Closed(Exception):  # noqa: N818 (it is what the broker does)
    """The broker closes a connection, for a reason."""


class Limited:
    """A broker of MQTT 5 that closes the connection at what is beyond its limits.

    Attributes:
        allowed: the client id that its policy allows.
        port: where it listens.
        closed: why it has closed connections.
        published: what it was sent.
        filters: that it has granted.
    """

    def __init__(self, allowed: str) -> None:
        self.allowed = allowed
        self.port = 0
        self.closed: list[str] = []
        self.published: list[Publish] = []
        self.filters: dict[str, int] = {}
        self._peer: Peer | None = None
        self._connected_at = -10.0

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        peer = Peer(reader, writer)
        try:
            self._check_protocol(writer)
            while True:
                self._handle(peer, await peer.receive())
        except Closed as error:
            self.closed.append(str(error))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            await peer.close()

    def _handle(self, peer: Peer, packet: Packet) -> None:
        match packet:
            case Connect():
                self._connect(peer, packet)
            case Publish():
                self._check_topic(packet.topic)
                if packet.qos == 2:
                    raise Closed("QoS 2")
                self.published.append(packet)
                if packet.qos:
                    peer.send(PubAck(packet.packet_id))
            case Subscribe():
                if len(packet.subscriptions) > MOST_FILTERS:
                    raise Closed(f"{len(packet.subscriptions)} filters")
                for request in packet.subscriptions:
                    self._check_topic(request.topic_filter)
                    if request.qos == 2:
                        return  # it does not answer
                    self.filters[request.topic_filter] = request.qos
                codes = tuple(request.qos for request in packet.subscriptions)
                peer.send(SubAck(packet.packet_id, codes))
            case Unsubscribe():
                if len(packet.topic_filters) > MOST_FILTERS:
                    raise Closed(f"{len(packet.topic_filters)} filters")
                for name in packet.topic_filters:
                    self.filters.pop(name, None)
                peer.send(UnsubAck(packet.packet_id, (0,) * len(packet.topic_filters)))
            case PingReq():
                peer.send(PingResp())
            case PubAck() | Disconnect():
                pass
            case _:
                raise Closed(type(packet).__name__)

    def _connect(self, peer: Peer, packet: Connect) -> None:
        if len(packet.client_id.encode()) > MOST_CLIENT_ID_BYTES:
            raise Closed("client id too long")
        if packet.client_id != self.allowed:
            raise Closed(f"client id {packet.client_id} not allowed")
        if packet.will is not None:
            self._check_topic(packet.will.topic)
        now = time.monotonic()
        if now < self._connected_at + 1.0:
            raise Closed("CONNECT within a second")
        self._connected_at = now
        self._peer = peer
        peer.send(ConnAck(session_present=not packet.clean_start, properties=CONNACK))

    @staticmethod
    def _check_protocol(writer: asyncio.StreamWriter) -> None:
        chosen = writer.get_extra_info("ssl_object").selected_alpn_protocol()
        if chosen != PROTOCOL:
            raise Closed(f"ALPN {chosen}")

    @staticmethod
    def _check_topic(topic: str) -> None:
        if topic.startswith("$"):
            raise Closed(f"reserved topic {topic}")
        if topic.count("/") >= MOST_LEVELS or len(topic.encode()) > MOST_TOPIC_BYTES:
            raise Closed(f"topic {topic}")

    def publish(self, topic: str, payload: bytes) -> None:
        """Send a message to the client, if it has subscribed to it."""
        assert self._peer is not None
        if any(matches(name, topic) for name in self.filters):
            self._peer.send(Publish(topic, payload, qos=1, packet_id=1))


@contextlib.asynccontextmanager
async def running_broker(folder: Path) -> AsyncIterator[tuple[Limited, str]]:
    """Run the broker for a block; yield it, and the file of its authority."""
    authority = Authority(folder)
    certificate = authority.issue()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    context.set_alpn_protocols([PROTOCOL])
    broker = Limited("berlin")
    server = await asyncio.start_server(broker.accept, "127.0.0.1", 0, ssl=context)
    broker.port = server.sockets[0].getsockname()[1]
    async with server:
        yield broker, authority.cafile


def keys_of_the_page() -> dict[str, Any]:
    """Return the keys of the uplink that docs/how-to/edge-clouds.md has."""
    page = (ROOT / "docs" / "how-to" / "edge-clouds.md").read_text()
    text = page[page.index("## AWS IoT") :]
    found = re.search(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found
    policy = yaml.safe_load(found[1])
    keys: dict[str, Any] = policy["plugins"]["uplink"]["uplinks"]["aws"]
    return keys


async def test_an_uplink_to_a_broker_with_the_limits_of_aws_iot(tmp_path: Path) -> None:
    """Twenty filters come down, messages of QoS 2 go up, and a second connection is refused."""
    async with running_broker(tmp_path) as (broker, cafile):
        keys = keys_of_the_page()
        tls = keys["upstream"]["tls"]
        keys["upstream"] = {
            "address": f"localhost:{broker.port}",
            "tls": {"cafile": cafile, "alpn": tls["alpn"]},
        }
        plugins = {"uplink": {"site": "plant", "uplinks": {"aws": keys}}}
        edge = Server(parse_policy(anonymous_policy(plugins), "edge.yaml"))
        await edge.start()
        try:
            small, large = lanes_of(edge)
            near = await connected(edge.addresses["default"][1], "near")
            for number in range(20):
                await near.subscribe(f"commands/{number}/+", 2)
            await until(lambda: small.counts.connected and large.counts.taken_over)
            await until(lambda: len(broker.filters) == 20)
            for qos in (0, 1, 2):
                await deliver(near, Publish("sensors/a", b"%d" % qos, qos, packet_id=qos))
            await deliver(near, Publish("sensors/picture", b"p" * 50_000, 1, packet_id=1))
            await deliver(near, Publish("sensors/picture", b"p" * 200_000, 1, packet_id=1))
            await deliver(near, Publish("sensors/1/2/3/4/5/6/7/8/9", b"deep", 1, packet_id=1))
            await deliver(near, Publish("sensors/b", b"last", 1, packet_id=1))
            await until(lambda: any(one.payload == b"last" for one in broker.published))
            payloads = {bytes(one.payload) for one in broker.published}
            assert {b"0", b"1", b"2", b"p" * 50_000, b"last"} <= payloads
            assert small.counts.up_dropped == {"too_large": 1, "refused": 1}
            broker.publish("sites/berlin/commands/7/stop", b"now")
            message = await take_message(near)
            assert (message.topic, message.payload) == ("commands/7/stop", b"now")
            assert set(broker.closed) <= {
                "client id berlin-large not allowed",
                "CONNECT within a second",
                "topic sites/berlin/sensors/1/2/3/4/5/6/7/8/9",
            }
        finally:
            await edge.stop()
