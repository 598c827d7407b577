"""Clients get the same answers from mosquitto and from the policy that is made of its file."""

from __future__ import annotations

import getpass
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from penstock.broker.mqtt.packets import Connect, PubAck, Publish
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.netem.runs.broker_process import reserved_port
from tests.helpers.certificates import Authority
from tests.helpers.mosquitto import running_mosquitto
from tests.helpers.process import ROOT, running_broker
from tests.helpers.streams import StreamClient, WebSocketClient
from tests.helpers.wire import WireClient

ACL: Final = """\
topic read public/#

user admin
topic #

user ann
topic ann/#
topic deny ann/sealed
topic read public/#
topic write inbox/+

user bob
topic read ann/#
pattern readwrite by-name/%u/#
pattern write by-id/%c
pattern deny by-name/%u/sealed
pattern read end
"""

PASSWORDS: Final = {"ann": "a", "bob": "b"}
"""The passwords of users that mosquitto_passwd makes; penstock passwd makes ``admin``."""

TOPICS: Final = (
    "public",
    "public/a",
    "ann",
    "ann/a",
    "ann/sealed",
    "inbox/a",
    "inbox/a/b",
    "by-name/ann/a",
    "by-name/ann/sealed",
    "by-name/bob/a",
    "by-id/id-bob",
    "by-id/id-ann",
    "elsewhere",
)

LOGINS: Final = (
    (None, None),
    ("ann", "a"),
    ("bob", "b"),
    ("ann", "b"),
    ("ann", None),
    ("eve", "e"),
    ("", ""),
)
"""User names and passwords that clients try."""


class Ports(NamedTuple):
    """Where both brokers listen, one after the other."""

    plain: int
    tls: int
    websocket: int


def login(username: str | None, password: str | None) -> dict[str, Any]:
    """Return a client's identifier and its login, as CONNECT has them."""
    return {
        "client_id": f"id-{username}",
        "username": username,
        "password": None if password is None else password.encode(),
    }


async def take_until_end(client: WireClient) -> list[str]:
    """Return the topics of a client's messages before the one that ends them."""
    topics = []
    while (message := await client.take(Publish)).topic != "end":
        topics.append(message.topic)
    return [topic for topic in topics if topic in TOPICS]


async def is_refused(client: WireClient, topic: str) -> bool:
    """Publish at QoS 1 and return whether that is refused; messages on the way are passed by."""
    await client.send(Publish(topic, b"", qos=1, packet_id=1))
    while not isinstance(packet := await client.receive(), PubAck):
        assert isinstance(packet, Publish)
    return packet.reason_code >= 0x80


async def what_it_may(client: WireClient, admin: WireClient) -> dict[str, Any]:
    """Return what a connected client may publish and what it receives, by asking for all."""
    granted = await client.subscribe("#")
    refused = [topic for topic in TOPICS if await is_refused(client, topic)]
    await admin.send(Publish("end", b""))
    written = await take_until_end(admin)
    await take_until_end(client)
    for topic in (*TOPICS, "end"):
        await admin.send(Publish(topic, b"to read"))
    read = await take_until_end(client)
    await take_until_end(admin)
    return {"granted": granted, "refused": refused, "written": written, "read": read}


async def answers(ports: Ports, authority: Authority, version: int) -> dict[str, Any]:
    """Ask a broker everything; return its answers by who asked."""
    found: dict[str, Any] = {}
    async with await WireClient.dial(ports.plain, version) as admin:
        assert (await admin.connect(**login("admin", "root"))).reason_code == 0
        await admin.subscribe("#")
        for username, password in LOGINS:
            async with await WireClient.dial(ports.plain, version) as client:
                code = (await client.connect(**login(username, password))).reason_code
                found[f"{username}:{password}"] = code or await what_it_may(client, admin)
        async with await WebSocketClient.dial_websocket(ports.websocket, version=version) as client:
            assert (await client.connect(**login("bob", "b"))).reason_code == 0
            found["bob by WebSocket"] = await what_it_may(client, admin)
        for name in ("ann", "eve"):
            context = authority.client_context(authority.issue_client(name))
            async with await StreamClient.dial_tls(ports.tls, context, version) as client:
                connack = await client.connect(**login("bob", "wrong"))
                found[f"{name} by certificate"] = connack.reason_code or await what_it_may(
                    client, admin
                )
        found["without a certificate"] = await is_taken(ports.tls, authority.client_context())
    return found


async def is_taken(port: int, context: ssl.SSLContext) -> bool:
    """Say whether a client that presents this gets any answer to its CONNECT."""
    try:
        async with await StreamClient.dial_tls(port, context) as client:
            await client.send(Connect(client_id="c", keep_alive=0))
            return bool(await client.read())
    except OSError:
        return False


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Return who issues the certificates of server and clients."""
    return Authority(tmp_path)


def settings(folder: Path, authority: Authority, tls: int, websocket: int) -> str:
    """Return the lines of a mosquitto.conf after its first, plain listener."""
    (folder / "acl").write_text(ACL)
    passwords = folder / "passwords"
    passwords.touch()
    for username, password in PASSWORDS.items():
        kind = ["-H", "sha512"] if username == "bob" else []
        command = ["mosquitto_passwd", *kind, "-b", str(passwords), username, password]
        subprocess.run(command, check=True, capture_output=True)
    command = [sys.executable, "-m", "penstock.plugins.access", str(passwords), "admin"]
    subprocess.run(command, check=True, input="root", text=True, cwd=ROOT)
    certfile, keyfile = authority.issue()
    return (
        f"user {getpass.getuser()}\n"
        f"password_file {passwords}\nacl_file {folder / 'acl'}\n"
        "set_tcp_nodelay true\nsys_interval 0\nmax_queued_messages 500\nmax_inflight_messages 30\n"
        f"listener {tls} 127.0.0.1\n"
        f"cafile {authority.cafile}\ncertfile {certfile}\nkeyfile {keyfile}\n"
        "require_certificate true\nuse_identity_as_username true\n"
        f"listener {websocket} 127.0.0.1\nprotocol websockets\n"
    )


def imported(conf: Path) -> str:
    """Return the policy file made of a mosquitto.conf by the program."""
    command = [sys.executable, "-m", "penstock.broker.import_mosquitto", str(conf)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stderr.count("\n") == 1
    assert ": user " in done.stderr
    return done.stdout


async def test_the_imported_policy_answers_as_mosquitto_does(
    tmp_path: Path, authority: Authority
) -> None:
    """Who connects, what is granted, and each topic both ways, by TCP, TLS and WebSocket."""
    with reserved_port() as plain, reserved_port() as tls, reserved_port() as websocket:
        ports = Ports(plain, tls, websocket)
        lines = settings(tmp_path, authority, tls, websocket)
        with running_mosquitto(tmp_path, lines, plain):
            theirs = {version: await answers(ports, authority, version) for version in (4, 5)}
        conf = tmp_path / f"mosquitto-{plain}" / "mosquitto.conf"
        with running_broker(imported(conf), tmp_path) as broker:
            assert set(broker.ports.values()) == set(ports)
            ours = {version: await answers(ports, authority, version) for version in (4, 5)}
    assert ours == theirs
    for found in theirs.values():
        assert found["ann:b"] == found["eve:e"] == ReasonCode.NOT_AUTHORIZED
        own = ["ann", "ann/a", "inbox/a", "by-name/ann/a"]
        assert found["ann:a"]["written"] == [*own, "by-id/id-ann"]
        assert found["ann by certificate"]["written"] == [*own, "by-id/id-bob"]
        assert found["bob:b"]["read"] == ["ann", "ann/a", "ann/sealed", "by-name/bob/a"]
        assert found["bob by WebSocket"] == found["bob:b"]
        assert not found["without a certificate"]


async def test_the_file_plugins_of_mosquitto_2_1_are_imported(
    tmp_path: Path, authority: Authority
) -> None:
    """Users in Argon2id and topics of one listener, certificates of the other."""
    (tmp_path / "acl").write_text(ACL)
    hashed = Argon2id(salt=bytes(64), length=64, iterations=1, lanes=1, memory_cost=47_104)
    (tmp_path / "passwords").write_text(f"ann:{hashed.derive_phc_encoded(b'a')}\n")
    certfile, keyfile = authority.issue()
    conf = tmp_path / "mosquitto.conf"
    conf.write_text(
        f"user {getpass.getuser()}\n"
        "plugin_load users /usr/lib/mosquitto_password_file.so\n"
        "plugin_load topics /usr/lib/mosquitto_acl_file.so\n"
        "listener 1883 127.0.0.1\n"
        f"plugin_use users\nplugin_opt_password_file {tmp_path / 'passwords'}\n"
        f"plugin_use topics\nplugin_opt_acl_file {tmp_path / 'acl'}\n"
        "listener 1884 127.0.0.1\n"
        "require_certificate true\nuse_identity_as_username true\n"
        f"cafile {authority.cafile}\ncertfile {certfile}\nkeyfile {keyfile}\n"
    )
    policy = imported(conf).replace(":1883", ":0").replace(":1884", ":0")
    with running_broker(policy, tmp_path) as broker:
        plain, tls = broker.ports.values()
        for username, password in LOGINS:
            async with await WireClient.dial(plain) as client:
                code = (await client.connect(**login(username, password))).reason_code
                is_right = (username, password) == ("ann", "a")
                assert code == (0 if is_right else ReasonCode.NOT_AUTHORIZED)
                if is_right:
                    assert not await is_refused(client, "ann/a")
                    assert await is_refused(client, "elsewhere")
        context = authority.client_context(authority.issue_client("eve"))
        async with await StreamClient.dial_tls(tls, context) as client:
            assert (await client.connect(client_id="c")).reason_code == 0
            assert not await is_refused(client, "elsewhere")
        assert not await is_taken(tls, authority.client_context())
