"""The plugin `access` on the real broker: its files, its signal and SCRAM on the wire."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scramp import ScramClient

from penstock.broker.mqtt.packets import Auth, ConnAck, Connect, Disconnect, Publish
from penstock.broker.mqtt.reason_codes import ReasonCode
from tests.helpers.certificates import Authority
from tests.helpers.forks import forked_programs
from tests.helpers.paho_client import PahoClient
from tests.helpers.process import ROOT, running_broker
from tests.helpers.wire import WireClient, connected

METHOD = "SCRAM-SHA-256"
REFUSED = ReasonCode.NOT_AUTHORIZED


def passwd(folder: Path, *arguments: str, password: str) -> None:
    """Write a user as an operator does."""
    command = [sys.executable, "-m", "penstock.plugins.access", *arguments]
    with forked_programs():
        subprocess.run(
            command,
            check=True,
            input=password,
            text=True,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )


@pytest.fixture
def policy(tmp_path: Path) -> dict[str, Any]:
    """Return a policy with files of users, each with one user, and topics."""
    passwd(tmp_path, "passwords", "ann", password="a")
    passwd(tmp_path, "--scram", "scram", "bob", password="b")
    (tmp_path / "acl").write_text("user ann\ntopic ann/#\nuser bob\ntopic read ann/#\n")
    files = {"password_file": "passwords", "acl_file": "acl", "scram_file": "scram"}
    return {"listeners": {"default": {"bind": "127.0.0.1:0"}}, "plugins": {"access": files}}


def step(data: str) -> dict[str, Any]:
    """Return the properties of a packet of an exchange."""
    return {"authentication_method": METHOD, "authentication_data": data.encode()}


async def by_scram(client: WireClient, username: str, password: str) -> ConnAck:
    """Connect by SCRAM with the library's client; return the answer."""
    other = ScramClient([METHOD], username, password)
    await client.send(
        Connect(client_id=username, keep_alive=0, properties=step(other.get_client_first()))
    )
    challenge = await client.take(Auth)
    assert challenge.reason_code == ReasonCode.CONTINUE_AUTHENTICATION
    other.set_server_first(challenge.properties["authentication_data"].decode())
    await client.send(Auth(ReasonCode.CONTINUE_AUTHENTICATION, step(other.get_client_final())))
    connack = await client.take(ConnAck)
    if not connack.reason_code:
        other.set_server_final(connack.properties["authentication_data"].decode())
    return connack


async def test_users_topics_and_a_reload(tmp_path: Path, policy: dict[str, Any]) -> None:
    """By password and by SCRAM; new files hold at SIGHUP for clients that stay connected."""
    with running_broker(policy, tmp_path) as broker:
        async with (
            await WireClient.dial(broker.port) as bob,
            await connected(broker.port, "ann", username="ann", password=b"a") as ann,
        ):
            assert (await by_scram(bob, "bob", "b")).reason_code == 0
            await bob.subscribe("#")
            assert (await ann.publish("ann/x", b"1")).reason_code == 0
            assert (await bob.take(Publish)).payload == b"1"
            assert (await ann.publish("new", b"")).reason_code == REFUSED

            (tmp_path / "acl").write_text("topic nonsense nonsense\n")
            broker.process.send_signal(signal.SIGHUP)
            broker.wait_for_log("not reloaded: acl: line 1: read 'topic nonsense nonsense'")
            assert (await ann.publish("ann/x", b"2")).reason_code == 0
            assert (await bob.take(Publish)).payload == b"2"

            (tmp_path / "acl").write_text("user ann\ntopic new\nuser bob\ntopic read new\n")
            passwd(tmp_path, "passwords", "eve", password="e")
            broker.process.send_signal(signal.SIGHUP)
            while (await ann.publish("new", b"3")).reason_code == REFUSED:
                pass
            assert (await bob.take(Publish)).payload == b"3"
            assert (await ann.publish("ann/x", b"")).reason_code == REFUSED
            (await connected(broker.port, "eve", username="eve", password=b"e")).close()

            passwd(tmp_path, "-D", "passwords", "ann", password="")
            passwd(tmp_path, "-D", "scram", "bob", password="")
            broker.process.send_signal(signal.SIGHUP)
            for gone in (ann, bob):
                assert (await gone.take(Disconnect)).reason_code == REFUSED
                assert await gone.receive() is None
            (await connected(broker.port, "eve", username="eve", password=b"e")).close()


async def test_guesses_from_one_address_keep_no_one_else_out(
    tmp_path: Path, policy: dict[str, Any]
) -> None:
    """An address is what the load balancer says; by password and by SCRAM."""
    policy["listeners"]["default"]["proxy_protocol"] = True

    async def dialled(address: str) -> WireClient:
        client = await WireClient.dial(broker.port)
        await client.send_bytes(f"PROXY TCP4 {address} 192.0.2.9 1 2\r\n".encode())
        return client

    async def log_in(address: str, password: bytes) -> int:
        async with await dialled(address) as client:
            return (await client.connect("c", username="ann", password=password)).reason_code

    async def prove(address: str, password: str) -> int:
        async with await dialled(address) as client:
            return (await by_scram(client, "bob", password)).reason_code

    with running_broker(policy, tmp_path) as broker:
        told = [await log_in("192.0.2.1", b"%d" % number) for number in range(10)]
        told += [await prove("192.0.2.1", f"{number}") for number in range(10)]
        for of_ten in (told[:10], told[10:]):
            assert of_ten[:5] == [REFUSED] * 5
            assert ReasonCode.CONNECTION_RATE_EXCEEDED in of_ten  # the waits double
        assert await log_in("192.0.2.2", b"a") == 0
        assert await prove("192.0.2.2", "b") == 0
        broker.wait_for_log("user 'ann': wrong password, from 192.0.2.1:1")
        broker.wait_for_log("user 'bob': wrong password; the next is judged in 1 s")


@pytest.mark.mqtt5("4.12.0-4")
async def test_a_wrong_password_and_a_stranger_are_refused_alike(
    tmp_path: Path, policy: dict[str, Any]
) -> None:
    """After as many packets; then the connection ends."""
    with running_broker(policy, tmp_path) as broker:
        for username in ("bob", "stranger"):
            async with await WireClient.dial(broker.port) as client:
                assert (await by_scram(client, username, "wrong")).reason_code == REFUSED
                assert await client.receive() is None


async def test_who_may_read_a_queue_may_consume_it(policy: dict[str, Any], tmp_path: Path) -> None:
    """`topic read $queue/NAME` is the right; those to the topics of its messages are not asked."""
    (tmp_path / "acl").write_text(
        "user ann\ntopic read #\ntopic read $queue/jobs\ntopic write jobs/#\n"
    )
    queues = {name: {"topics": [f"{name}/#"]} for name in ("jobs", "bills")}
    policy["plugins"]["queue"] = {"engine": "memory", "http": None, "queues": queues}
    ann: dict[str, Any] = {"username": "ann", "password": b"a"}
    with running_broker(policy, tmp_path) as broker:
        async with await connected(broker.port, "ann", **ann) as client:
            assert await client.subscribe("$queue/bills", 1) == REFUSED
            assert await client.subscribe("$queue/jobs/default", 1) == 1
            await client.send(Publish("jobs/1", b"job"))
            assert (await client.take(Publish)).payload == b"job"


@pytest.mark.parametrize(
    ("kind", "name"), [("san_email", "ann@example.org"), ("san_dns", "ann.example")]
)
def test_an_alternative_name_of_a_certificate_is_the_user(
    tmp_path: Path, kind: str, name: str
) -> None:
    """Whatever its common name; a certificate without one of this kind is refused."""
    authority = Authority(tmp_path)
    (tmp_path / "acl").write_text(f"user {name}\ntopic ann/#\n")
    policy = {
        "listeners": {
            "default": authority.listener_keys(cafile=authority.cafile, require_certificate=True)
        },
        "plugins": {"access": {"certificate_username": kind, "acl_file": "acl"}},
    }
    with running_broker(policy, tmp_path) as broker:
        for identity, file, is_known in ((name, "ann", True), ("127.0.0.1", "other", False)):
            files = authority.issue(identity, common_name="eve", file=file)
            with PahoClient(broker.port, file) as client:
                client.paho.tls_set_context(authority.client_context(files))
                assert client.connect() is is_known
                if is_known:
                    assert client.subscribe("#")
                    client.publish("eve/1", b"not allowed", 0)
                    client.publish("ann/1", b"allowed", 0)
                    assert client.message().topic == "ann/1"
