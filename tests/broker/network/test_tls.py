from __future__ import annotations

import asyncio
import logging
import re
import ssl
from pathlib import Path
from typing import cast

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.access_control import ConnectAttempt
from penstock.broker.config.listener_config import Tls
from penstock.broker.counters import Counters
from penstock.broker.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    SubscriptionRequest,
)
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.network.admission import Admission, Places
from penstock.broker.network.new_connection import AcceptedConnection, Reception
from penstock.broker.network.tls import (
    SLICE_BYTES,
    TlsFilesError,
    TlsLayer,
    make_context,
    problem_of_certificate,
)
from tests.broker.serving import driver_of, port_of, protocol_of, serving, until
from tests.helpers.access import Access
from tests.helpers.certificates import Authority, CertificateFiles
from tests.helpers.effort import examples
from tests.helpers.streams import StreamClient, WebSocketClient
from tests.helpers.wire import WireClient, connected


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that the clients trust."""
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """One that nobody trusts."""
    return Authority(tmp_path_factory.mktemp("others"))


# -- a connection -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_messages_of_all_sizes_go_both_ways(
    authority: Authority, version: ssl.TLSVersion
) -> None:
    """What TLS cuts into records comes out whole and in order."""
    context = authority.client_context()
    context.minimum_version = context.maximum_version = version
    async with (
        serving(listeners={"default": authority.listener_keys()}) as server,
        await StreamClient.dial_tls(port_of(server), context) as client,
    ):
        assert (await client.connect("c")).reason_code == 0
        await client.subscribe("t")
        for n_bytes in (0, 1, 4096, 16_384, 100_000, 3_000_000):
            payload = bytes(n % 251 for n in range(min(n_bytes, 5000))) * (n_bytes // 5000 or 1)
            await client.send(Publish("t", payload, qos=1, packet_id=1))
            packets = {type(p): p for p in (await client.receive(), await client.receive())}
            assert cast(Publish, packets[Publish]).payload == payload
            assert PubAck in packets


async def test_handshakes_that_begin_together_are_all_answered(authority: Authority) -> None:
    """Also where the bytes of one come in two parts, and where a client has gone meanwhile."""
    context = authority.client_context()
    async with serving(listeners={"default": authority.listener_keys()}) as server:
        gone = [await WireClient.dial(port_of(server)) for _ in range(5)]
        for one in gone:
            await one.send_bytes(b"\x16\x03\x01")
        for one in gone:
            one.close()
        clients = await asyncio.gather(
            *(StreamClient.dial_tls(port_of(server), context) for _ in range(20))
        )
        for number, client in enumerate(clients):
            assert (await client.connect(f"c{number}")).reason_code == 0
            client.close()


async def test_handshake_may_come_byte_by_byte(authority: Authority) -> None:
    """However the network cuts it."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = authority.client_context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    listeners = {"default": authority.listener_keys()}
    async with (
        serving(listeners=listeners) as server,
        await WireClient.dial(port_of(server)) as client,
    ):

        async def exchange() -> None:
            for byte in outgoing.read():
                await client.send_bytes(bytes([byte]))
            incoming.write(await client.read())

        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await exchange()
        tls.write(write_packet(Connect(client_id="c", keep_alive=0), 5))
        received = b""
        while not received.startswith(b"\x20"):
            await exchange()
            try:
                received += tls.read()
            except ssl.SSLWantReadError:
                continue


async def test_client_that_does_not_read_costs_little(authority: Authority) -> None:
    """Nothing more is taken than without TLS, and only a slice of it is encrypted."""
    n_messages, n_bytes = 100, 100_000
    async with serving(
        listeners={"default": {"bind": "127.0.0.1:0"}, "tls": authority.listener_keys()},
        limits={"queued_bytes": 2 * n_messages * n_bytes},
    ) as server:
        reader = asyncio.StreamReader(limit=4096)  # reads no further by itself
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.create_connection(
            lambda: asyncio.StreamReaderProtocol(reader),
            "127.0.0.1",
            port_of(server, "tls"),
            ssl=authority.client_context(),
        )
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        stalled = StreamClient(reader, writer)
        async with stalled, await connected(port_of(server)) as publisher:
            await stalled.connect("stalled", properties={"receive_maximum": n_messages})
            await stalled.subscribe("t", 1)
            for number in range(n_messages):
                await publisher.publish("t", number.to_bytes(2, "big") + bytes(n_bytes - 2))
            layer = protocol_of(server, "stalled").transport
            assert isinstance(layer, TlsLayer)
            high_bytes = server.core.limits.write_high_bytes
            assert high_bytes < layer.get_write_buffer_size() <= high_bytes + 3 * n_bytes
            assert layer.below.get_write_buffer_size() <= high_bytes + 2 * SLICE_BYTES
            for number in range(n_messages):
                packet = await stalled.take(Publish)
                assert int.from_bytes(packet.payload[:2], "big") == number
            await until(lambda: layer.get_write_buffer_size() == 0)


async def test_connection_that_is_closed_sends_what_was_put_before(authority: Authority) -> None:
    """The rest, a DISCONNECT and TLS's own end: a client sees that nothing was cut off."""
    async with (
        serving(listeners={"default": authority.listener_keys()}) as server,
        await StreamClient.dial_tls(port_of(server), authority.client_context()) as client,
    ):
        await client.connect("c")
        await client.subscribe("t")
        bad = b"\x36\x03\x00\x01t"  # QoS 3
        await client.send_bytes(write_packet(Publish("t", bytes(2_000_000)), 5) + bad)
        assert [type(packet) for packet in await client.rest()] == [Publish, Disconnect]


async def test_client_that_says_goodbye_to_tls_is_gone(authority: Authority) -> None:
    """A close_notify ends the connection, as the end of TCP does."""
    async with serving(listeners={"default": authority.listener_keys()}) as server:
        client = await StreamClient.dial_tls(port_of(server), authority.client_context())
        await client.connect("c")
        client.close()
        await until(lambda: not driver_of(server).protocols)
        assert server.core.counters.clients_connected == 0


async def test_kernel_knows_the_path_below_tls(authority: Authority) -> None:
    """A sampler gets the socket of the connection, whatever lies over it."""
    probing = {"sources": ["tcp_info"], "probe_period": 0.05, "max_age_seconds": 60.0}
    listeners = {"default": authority.listener_keys(type="ws")}
    async with serving(listeners=listeners, plugins={"probing": probing}) as server:
        client = await WebSocketClient.dial_websocket(
            port_of(server), ssl=authority.client_context()
        )
        await client.connect("c")
        await client.subscribe("t")
        session = server.core.sessions.get("c")
        assert session is not None
        link = session.link
        await until(lambda: link.rtt_source == "tcp_info")
        client.close()


async def test_alpn_names_mqtt(authority: Authority) -> None:
    """A client that asks for MQTT by ALPN hears that it is spoken here."""
    context = authority.client_context()
    context.set_alpn_protocols(["h2", "mqtt"])
    async with (
        serving(listeners={"default": authority.listener_keys()}) as server,
        await StreamClient.dial_tls(port_of(server), context) as client,
    ):
        assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "mqtt"


# -- without a network ------------------------------------------------------------------------

MARK = 32_768


class Pipe(asyncio.Transport):
    """A transport that sends nothing until it is told to.

    Attributes:
        unsent: what was written and not sent.
        is_closed: it was closed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer: TlsLayer
        self.unsent = b""
        self.is_paused = False
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep it, and pause the protocol above the mark."""
        self.unsent += data
        if len(self.unsent) > MARK and not self.is_paused:
            self.is_paused = True
            self.layer.pause_writing()

    def send(self) -> bytes:
        """Return what was written, and resume the protocol."""
        sent, self.unsent = self.unsent, b""
        if self.is_paused:
            self.is_paused = False
            self.layer.resume_writing()
        return sent

    def get_write_buffer_size(self) -> int:
        """Return what is unsent."""
        return len(self.unsent)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Take them as they are for granted."""
        assert (high, low) == (MARK, 1000)

    def is_closing(self) -> bool:
        """Return whether it was closed."""
        return self.is_closed

    def close(self) -> None:
        """Note it."""
        self.is_closed = True

    def abort(self) -> None:
        """Note it."""
        self.is_closed = True


class Above(asyncio.Protocol):
    """A protocol that notes how it is told to write.

    Attributes:
        told: names of calls, in order.
    """

    def __init__(self) -> None:
        self.told: list[str] = []

    def pause_writing(self) -> None:
        """Note it."""
        self.told.append("pause")

    def resume_writing(self) -> None:
        """Note it."""
        self.told.append("resume")


def shaken_hands(
    authority: Authority, above: asyncio.Protocol
) -> tuple[TlsLayer, Pipe, ssl.SSLObject, ssl.MemoryBIO]:
    """Return a layer that is open, what is below, and its client with what comes in to it."""
    counters = Counters()
    admission = Admission(counters, connections=9, connections_per_address=None)
    logger = logging.getLogger("test")
    reception = Reception(admission, counters, logger, clock=lambda: 0.0, timeout=60.0)
    pipe = Pipe()
    context = make_context(Tls(*authority.issue()), ("mqtt",))
    layer = pipe.layer = TlsLayer(
        above, AcceptedConnection(reception, "default", Places()), context
    )
    layer.connection_made(pipe)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = authority.client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    while True:
        try:
            client.do_handshake()
            break
        except ssl.SSLWantReadError:
            layer.data_received(outgoing.read())
            incoming.write(pipe.send())
    layer.data_received(outgoing.read())
    layer.arrival.leave_layers()
    layer.set_write_buffer_limits(MARK, 1000)
    return layer, pipe, client, incoming


def decrypted(client: ssl.SSLObject) -> bytes:
    """Return everything that a client can read now; b"" at the end of the connection."""
    received = b""
    try:
        while chunk := client.read(100_000):
            received += chunk
    except ssl.SSLWantReadError:
        assert received
    return received


async def test_large_payload_is_encrypted_only_as_fast_as_it_is_sent(authority: Authority) -> None:
    """It waits by reference; what is unsent is known to the byte, and so is when to go on."""
    above = Above()
    layer, pipe, client, incoming = shaken_hands(authority, above)
    payload = bytes(range(256)) * 8000
    layer.writelines([b"header", payload])
    assert above.told == ["pause"]
    n_unsent = layer.get_write_buffer_size()
    assert len(payload) < n_unsent < len(payload) * 1.01
    received = b""
    n_sent = 0
    while layer.get_write_buffer_size():
        assert len(pipe.unsent) < 2 * SLICE_BYTES
        sent = pipe.send()
        n_sent += len(sent)
        incoming.write(sent)
        received += decrypted(client)
    assert received == b"header" + payload
    assert n_sent < len(payload) * 1.01
    assert above.told == ["pause", "resume"]


@settings(max_examples=examples(30))
@given(
    steps=st.lists(
        st.one_of(st.just(0), st.lists(st.integers(1, 200_000), min_size=1, max_size=4)),
        max_size=12,
    )
)
def test_whoever_is_paused_is_resumed(authority: Authority, steps: list[int | list[int]]) -> None:
    """A protocol above that waits is told to go on, whatever the sizes of what it has written."""

    async def run() -> None:
        above = Above()
        layer, pipe, client, incoming = shaken_hands(authority, above)
        n_bytes = 0
        received = b""
        for step in steps:
            if isinstance(step, list):
                layer.writelines([bytes(size) for size in step])
                n_bytes += sum(step)
            else:
                incoming.write(pipe.send())
            is_paused = above.told[-1:] == ["pause"]
            assert is_paused == (layer.get_write_buffer_size() > MARK)
        while layer.get_write_buffer_size():
            incoming.write(pipe.send())
        if n_bytes:
            received += decrypted(client)
        assert len(received) == n_bytes
        assert above.told[-1:] != ["pause"]
        assert above.told == ["pause", "resume"] * (len(above.told) // 2)

    asyncio.run(run())


async def test_close_sends_what_waits_and_says_goodbye(authority: Authority) -> None:
    """A client can tell the end of the connection from one that was cut."""
    layer, pipe, client, incoming = shaken_hands(authority, Above())
    payload = bytes(500_000)
    layer.write(payload)
    layer.close()
    layer.write(b"too late")
    assert layer.is_closing()
    received = b""
    while not pipe.is_closed:
        incoming.write(pipe.send())
        received += decrypted(client)
    incoming.write(pipe.send())
    assert received + decrypted(client) == payload
    assert client.read() == b""


# -- certificates of clients ------------------------------------------------------------------


async def test_certificate_of_a_client_reaches_access_control(authority: Authority) -> None:
    """Its common name, and the TLS connection with all the rest."""
    keys = authority.listener_keys(cafile=authority.cafile, require_certificate=True)
    context = authority.client_context(authority.issue_client("pump-7"))
    async with serving(listeners={"default": keys}) as server:
        access = server.core.access = Access()
        async with await StreamClient.dial_tls(port_of(server), context) as client:
            await client.connect("c")
        attempt: ConnectAttempt = access.attempts[0]
        assert attempt.certificate_name == "pump-7"
        assert attempt.ssl_object.version() == "TLSv1.3"
        assert attempt.ssl_object.getpeercert()["subject"]


@pytest.mark.parametrize("is_required", [True, False])
@pytest.mark.parametrize("shown", ["none", "ours", "foreign"])
async def test_which_certificates_of_clients_count(
    authority: Authority,
    other_authority: Authority,
    caplog: pytest.LogCaptureFixture,
    shown: str,
    *,
    is_required: bool,
) -> None:
    """One of the authority always does, a foreign one never, none only where none is required."""
    caplog.set_level(logging.INFO)
    keys = authority.listener_keys(cafile=authority.cafile, require_certificate=is_required)
    certificates: dict[str, CertificateFiles | None] = {
        "none": None,
        "ours": authority.issue_client("a"),
        "foreign": other_authority.issue_client("b"),
    }
    context = authority.client_context(certificates[shown])
    may_connect = shown == "ours" or (shown == "none" and not is_required)
    async with serving(listeners={"default": keys}) as server:
        client = await StreamClient.dial_tls(port_of(server), context)
        try:
            await client.send(Connect(client_id="c", keep_alive=0))
            answer = await client.receive()
        except OSError:  # the refusal came before the CONNECT had left
            answer = None
        assert isinstance(answer, ConnAck) == may_connect
        client.close()
        refused = server.core.counters.connections_refused
        assert refused == ({} if may_connect else {"tls": 1})
    assert ("no TLS: " in caplog.text) == (not may_connect)


# -- what is no TLS ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (write_packet(Connect(client_id="c"), 5), "no TLS: MQTT without TLS"),
        (b"GET / HTTP/1.1\r\n\r\n", "no TLS: http request"),
        (b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", "no TLS: "),
    ],
)
async def test_what_is_no_tls_is_told_in_one_line(
    authority: Authority, caplog: pytest.LogCaptureFixture, data: bytes, told: str
) -> None:
    """It is cut off and counted; others do not notice."""
    caplog.set_level(logging.INFO)
    async with (
        serving(listeners={"default": authority.listener_keys()}) as server,
        await StreamClient.dial_tls(port_of(server), authority.client_context()) as other,
        await WireClient.dial(port_of(server)) as client,
    ):
        await other.connect("other")
        caplog.clear()
        await client.send_bytes(data)
        await client.rest_bytes()
        await until(lambda: server._reception.admission.n_connections == 1)
        assert server.core.counters.connections_refused == {"tls": 1}
        assert len([line for line in caplog.messages if told in line]) == 1
        assert len(caplog.messages) == 1
        assert re.search(r"^127\.0\.0\.1:\d+ on listener default: ", caplog.messages[0])
        assert (await other.publish("t", b"data")).reason_code < 0x80


@pytest.mark.parametrize("beginning", [b"", b"\x16\x03\x01\x02\x00"])
async def test_handshake_has_as_long_as_a_connect(
    authority: Authority, caplog: pytest.LogCaptureFixture, beginning: bytes
) -> None:
    """Who says nothing, or not enough, is gone after `connect_timeout_seconds`."""
    caplog.set_level(logging.INFO)
    async with (
        serving(
            listeners={"default": authority.listener_keys()},
            limits={"connect_timeout_seconds": 0.05},
        ) as server,
        await WireClient.dial(port_of(server)) as client,
    ):
        await client.send_bytes(beginning)
        assert await client.rest_bytes() == b""
        await until(lambda: server._reception.admission.n_connections == 0)
        assert server.core.counters.connections_refused == {"timeout": 1}
    assert "no CONNECT in time" in caplog.text


async def test_broken_record_ends_the_connection(authority: Authority) -> None:
    """Bytes that were changed on the way are never taken for a packet."""
    async with serving(listeners={"default": authority.listener_keys()}) as server:
        client = await StreamClient.dial_tls(port_of(server), authority.client_context())
        await client.connect("c")
        protocol = protocol_of(server, "c")
        layer = protocol.transport
        assert isinstance(layer, TlsLayer)
        layer.data_received(b"\x17\x03\x03\x00\x20" + bytes(32))
        assert await client.rest() == []
        await until(lambda: not driver_of(server).protocols)
        assert server.core.counters.connections_refused == {"tls": 1}
        client.close()


async def test_subscribe_in_the_same_segment_as_the_end_of_the_handshake(
    authority: Authority,
) -> None:
    """What a client sends at once behind its handshake is handled."""
    async with (
        serving(listeners={"default": authority.listener_keys()}) as server,
        await StreamClient.dial_tls(port_of(server), authority.client_context()) as client,
    ):
        await client.send(
            Connect(client_id="c", keep_alive=0), Subscribe(1, (SubscriptionRequest("t"),))
        )
        await client.take(ConnAck)
        await client.take(SubAck)


# -- files ------------------------------------------------------------------------------------


def wrong_files(authority: Authority, folder: Path) -> dict[str, tuple[Tls, str]]:
    """Return what may be wrong by name: (settings, what the error says)."""
    certfile, keyfile = authority.issue()
    other = authority.issue(file="other")
    garbage = folder / "garbage.pem"
    garbage.write_text("no PEM")
    secret = folder / "secret.key"
    secret.write_text(
        Path(keyfile).read_text().replace("KEY-----\n", "KEY-----\nProc-Type: 4,ENCRYPTED\n", 1)
    )
    rsa_key = folder / "rsa.key"
    rsa_key.write_bytes(
        rsa.generate_private_key(65_537, 2_048).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        )
    )
    missing = str(folder / "missing.pem")
    right = Tls(certfile, keyfile)
    return {
        "missing": (Tls(missing, keyfile), rf"certfile {missing}: No such file"),
        "missing key": (Tls(certfile, missing), rf"keyfile {missing}: No such file"),
        "folder": (Tls(str(folder), keyfile), "Is a directory"),
        "no certificate": (Tls(str(garbage), keyfile), rf"certfile {garbage}: no certificate"),
        "no key": (Tls(certfile, str(garbage)), rf"keyfile {garbage}: no private key"),
        "passphrase": (Tls(certfile, str(secret)), "one with a passphrase"),
        "mismatch": (
            Tls(certfile, other.keyfile),
            rf"keyfile {other.keyfile}: not the key of certfile {certfile}",
        ),
        "key of another type": (
            Tls(certfile, str(rsa_key)),
            rf"keyfile {rsa_key}: not the key of certfile {certfile}",
        ),
        "no authority": (
            Tls(certfile, keyfile, cafile=str(garbage)),
            rf"cafile {garbage}: no certificates",
        ),
        "no authority's text": (Tls(certfile, keyfile, cadata="x"), "cadata: "),
        "ciphers": (
            Tls(right.certfile, right.keyfile, ciphers="none-such"),
            "ciphers: read 'none-such'; allowed: ",
        ),
    }


@pytest.mark.parametrize(
    "name",
    [
        "missing",
        "missing key",
        "folder",
        "no certificate",
        "no key",
        "passphrase",
        "mismatch",
        "key of another type",
        "no authority",
        "no authority's text",
        "ciphers",
    ],
)
def test_wrong_file_is_named(authority: Authority, tmp_path: Path, name: str) -> None:
    """The error says which key of the listener, which file, and what is wrong."""
    tls, told = wrong_files(authority, tmp_path)[name]
    with pytest.raises(TlsFilesError, match=told):
        make_context(tls, ("mqtt",))


@pytest.mark.parametrize("is_expired", [True, False])
def test_certificate_that_has_expired_is_found(authority: Authority, *, is_expired: bool) -> None:
    """Clients would refuse it: better that the broker says so first."""
    tls = Tls(*authority.issue(file="dated", is_expired=is_expired))
    problem = problem_of_certificate(make_context(tls, ("mqtt",)), tls)
    assert problem == ("certificate has expired" if is_expired else None)


def test_minimum_version_and_ciphers_hold(authority: Authority) -> None:
    """An older TLS than the file says is not spoken."""
    files = authority.issue()
    strict = make_context(Tls(*files, minimum_version=1.3, ciphers="ECDHE+AESGCM"), ("mqtt",))
    assert strict.minimum_version == ssl.TLSVersion.TLSv1_3
    older = {cipher["name"] for cipher in strict.get_ciphers() if cipher["protocol"] == "TLSv1.2"}
    assert older
    assert all(name.startswith("ECDHE") for name in older)
    default = make_context(Tls(*files), ("mqtt",))
    assert default.minimum_version == ssl.TLSVersion.TLSv1_2
