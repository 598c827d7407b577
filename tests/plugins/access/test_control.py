from __future__ import annotations

import asyncio
import base64
import logging
import os
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from scramp import ScramClient

from penstock.broker.access_control import NOT_JUDGED, Accepted, Admittance, ConnectAttempt
from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.config.policy import parse_policy
from penstock.broker.errors import ConfigError
from penstock.broker.extensions import PluginContext
from penstock.broker.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    Publish,
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.receiving.connecting import close_if_revoked
from penstock.broker.server import Server
from penstock.plugins.access import control as control_module
from penstock.plugins.access.config import AccessConfig, Rules
from penstock.plugins.access.control import MAX_COST_AT_ONCE, AccessPlugin
from penstock.plugins.access.password_hash import Argon2Hash, StoredPassword, make_hash, verify
from penstock.plugins.access.scram import METHOD, make_credentials
from tests.broker.serving import port_of
from tests.helpers.process import anonymous_policy, running_broker
from tests.helpers.two_lanes import PICTURE, Application, wait_for
from tests.helpers.virtual import VirtualBroker, VirtualClient
from tests.helpers.wire import WireClient, connected

REFUSED = ReasonCode.NOT_AUTHORIZED


class Files:
    """The plugin's files, in a folder of their own.

    Attributes:
        passwords: its `password_file`: ann with the password ``a``, bob with ``b``.
        acl: its `acl_file`: ann may do all below ``ann``, everybody may read ``news``.
        scram: its `scram_file`: ann with the password ``a``.
    """

    def __init__(self, folder: Path) -> None:
        self.passwords = folder / "passwords"
        self.acl = folder / "acl"
        self.scram = folder / "scram"
        self.write_passwords(10)
        self.acl.write_text("user ann\ntopic ann/#\npattern read news\n")
        self.scram.write_text(f"ann:{make_credentials('a', b'salt of 16 bytes')}\n")

    def write_passwords(self, iterations: int) -> None:
        """Write the passwords with hashes of so many iterations."""
        hashes = {
            user: make_hash(user[:1].encode(), b"salt", iterations) for user in ("ann", "bob")
        }
        self.passwords.write_text("".join(f"{user}:{made}\n" for user, made in hashes.items()))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Return files that stand."""
    return Files(tmp_path)


async def plugin_of(**keys: Any) -> AccessPlugin:
    """Return a started plugin with these keys of a policy file, of a broker with one listener."""
    config = validate_config(AccessConfig, keys, "policy.yaml", "plugins.access")
    context = PluginContext(logging.getLogger("test"), "policy.yaml", lambda: 0.0, ("default",))
    plugin = AccessPlugin(config, context)
    await plugin.start()
    return plugin


async def broker_of(**keys: Any) -> VirtualBroker:
    """Return a broker with a started plugin."""
    plugin = await plugin_of(**keys)
    return VirtualBroker(access=plugin.access, authenticators=plugin.authenticators)


def connect(broker: VirtualBroker, client_id: str = "c", **options: Any) -> int:
    """Connect a client; return the reason code."""
    return broker.connect(client_id, **options).connack.reason_code


def attempt(
    username: str | None = None, password: bytes | None = None, **told: Any
) -> ConnectAttempt:
    """Return what the plugin is told of a CONNECT."""
    return ConnectAttempt(
        client_id="c",
        username=username,
        password=password,
        protocol_version=5,
        clean_start=True,
        keep_alive=0,
        will=None,
        remote_address=told.pop("remote_address", ""),
        remote_port=0,
        listener=told.pop("listener", "default"),
        **told,
    )


async def answer(
    plugin: AccessPlugin, username: str | None = None, password: bytes | None = None, **told: Any
) -> Admittance:
    """Return what the plugin says of a CONNECT."""
    said = plugin.access.authenticate(attempt(username, password, **told))
    return await said if isinstance(said, Awaitable) else said


def verdict(said: Admittance) -> bool | None:
    """Return whether an answer lets a client in, or None where it leaves it to others."""
    return None if said is None else bool(said)


@asynccontextmanager
async def serving(**keys: Any) -> AsyncIterator[Server]:
    """Run a broker with this plugin, and with no others unless they are named."""
    plugins = keys.pop("others", {}) | {"access": keys}
    policy = {"listeners": {"default": {"bind": "127.0.0.1:0"}}, "plugins": plugins}
    server = Server(parse_policy(policy, "policy.yaml"))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def echo_of(client: WireClient) -> bytes:
    """Return what a client gets back of a message of its own."""
    await client.subscribe("t")
    return await echo(client, "t", b"x")


async def echo(client: WireClient, topic: str, payload: bytes) -> bytes:
    """Publish at QoS 0 to a topic that the client subscribes to, and return what comes."""
    await client.send(Publish(topic, payload))
    return bytes((await client.take(Publish)).payload)


# -- who connects -----------------------------------------------------------------------------


async def test_by_default_nobody_connects() -> None:
    """With a user name or without."""
    broker = await broker_of()
    assert connect(broker) == REFUSED
    assert connect(broker, username="ann", password=b"a") == REFUSED


async def test_clients_without_a_name_connect_where_that_is_allowed(files: Files) -> None:
    """Only those: a name that the file does not know is refused."""
    broker = await broker_of(allow_anonymous=True, password_file=str(files.passwords))
    assert connect(broker) == 0
    assert connect(broker, username="", password=b"") == 0
    assert connect(broker, username="eve", password=b"e") == REFUSED


async def test_where_no_file_names_users_any_name_is_as_good_as_none(files: Files) -> None:
    """As with mosquitto; a file of SCRAM's users names some."""
    assert connect(await broker_of(allow_anonymous=True), username="eve") == 0
    broker = await broker_of(allow_anonymous=True, scram_file=str(files.scram))
    assert connect(broker, username="ann") == REFUSED
    assert connect(broker) == 0


@pytest.mark.parametrize("iterations", [10, MAX_COST_AT_ONCE + 1])
@pytest.mark.parametrize(
    ("username", "password", "said"),
    [
        ("ann", b"a", True),
        ("bob", b"b", True),
        ("ann", b"b", False),
        ("ann", b"", False),
        ("ann", None, False),
        ("eve", b"a", None),
        ("", b"", None),
        (None, None, None),
    ],
)
async def test_the_password_file_decides_on_its_users(
    files: Files,
    username: str | None,
    password: bytes | None,
    iterations: int,
    *,
    said: bool | None,
) -> None:
    """All others are left to other sources; the same in a thread."""
    files.write_passwords(iterations)
    plugin = await plugin_of(password_file=str(files.passwords))
    assert verdict(await answer(plugin, username, password)) is said
    await plugin.close()


async def test_a_login_that_takes_long_holds_up_nobody(files: Files) -> None:
    """The broker serves others while a thread verifies it."""
    files.write_passwords(100_000)
    async with (
        serving(allow_anonymous=True, password_file=str(files.passwords)) as server,
        await connected(port_of(server)) as other,
        await WireClient.dial(port_of(server)) as client,
    ):
        await client.send(Connect(client_id="c", username="ann", password=b"a"))
        await other.subscribe("t")
        assert (await echo(other, "t", b"x")) == b"x"
        assert (await client.take(ConnAck)).reason_code == 0


async def test_a_fleet_that_comes_back_is_known_again(files: Files) -> None:
    """A password that was right needs no thread, until the file is read anew; a wrong one does."""
    files.write_passwords(MAX_COST_AT_ONCE + 1)
    plugin = await plugin_of(password_file=str(files.passwords))
    ask = plugin.access.authenticate
    ann, wrong = attempt("ann", b"a"), attempt("ann", b"x")
    for asked, said in ((wrong, False), (ann, True), (wrong, False)):
        waited = ask(asked)
        assert isinstance(waited, Awaitable)
        assert verdict(await waited) is said
    assert isinstance(ask(ann), Accepted)
    other = ask(attempt("bob", b"a"))
    assert isinstance(other, Awaitable)
    assert verdict(await other) is False
    files.passwords.write_text(f"ann:{make_hash(b'new', b'salt', MAX_COST_AT_ONCE + 1)}\n")
    (await plugin.reload(plugin.config)).apply()
    waited = ask(ann)
    assert isinstance(waited, Awaitable)
    assert verdict(await waited) is False
    await plugin.close()


async def test_a_password_that_was_right_is_hashed_once(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the hash is a cheap one, too, until the file is read anew."""
    files.write_passwords(1)
    plugin = await plugin_of(password_file=str(files.passwords))
    hashed = []

    def noted(password: bytes, stored: StoredPassword) -> bool:
        hashed.append(password)
        return verify(password, stored)

    monkeypatch.setattr(control_module, "verify", noted)
    for password, is_right in ((b"x", False), (b"a", True), (b"a", True), (b"x", False)):
        assert verdict(await answer(plugin, "ann", password)) is is_right
    assert hashed == [b"x", b"a", b"x"]
    (await plugin.reload(plugin.config)).apply()
    assert verdict(await answer(plugin, "ann", b"a")) is True
    assert hashed == [b"x", b"a", b"x", b"a"]
    await plugin.close()


async def test_a_password_that_nobody_wants_judged_any_more_costs_no_thread(files: Files) -> None:
    """While it waited for one, others of its address have failed too often."""
    files.write_passwords(MAX_COST_AT_ONCE + 1)
    plugin = await plugin_of(password_file=str(files.passwords))
    assert await answer(plugin, "bob", b"b", is_wanted=lambda: False) == NOT_JUDGED
    assert verdict(await answer(plugin, "bob", b"b", is_wanted=lambda: True)) is True
    await plugin.close()


async def test_a_byte_order_mark_is_no_part_of_a_name(files: Files) -> None:
    """Editors of Windows begin a file with one: its first user is a user like others."""
    files.write_passwords(1)
    for file in (files.passwords, files.acl):
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    plugin = await plugin_of(password_file=str(files.passwords), acl_file=str(files.acl))
    assert verdict(await answer(plugin, "ann", b"a")) is True
    await plugin.close()


async def test_the_time_of_an_answer_does_not_tell_who_is_in_the_file(files: Files) -> None:
    """A stranger's password costs what some user's does, of hashes old and new."""
    old, new = (make_hash(b"x", b"salt", iterations) for iterations in (101, 1000))
    files.passwords.write_text(f"ann:{old}\nbob:{new}\n")
    scope = (await plugin_of(password_file=str(files.passwords))).access.scope_of("default")
    names = [f"stranger {number}" for number in range(50)]
    decoys = [scope.decoy(name) for name in names]
    assert {decoy.cost for decoy in decoys if decoy} == {101, 1000}
    assert decoys == [scope.decoy(name) for name in names]


async def test_a_user_of_mosquitto_2_1_logs_in(files: Files) -> None:
    """A stranger's password is hashed by Argon2id, too, so that the time does not tell."""
    hashed = "$argon2id$v=19$m=64,t=1,p=1$c2FsdHNhbHQ$"
    digest = Argon2Hash(19, 64, 1, 1, b"saltsalt", bytes(32)).digest_of(b"a")
    digits = base64.b64encode(digest).decode().rstrip("=")
    files.passwords.write_text(f"ann:{hashed}{digits}\n")
    plugin = await plugin_of(password_file=str(files.passwords))
    assert verdict(await answer(plugin, "ann", b"a")) is True
    assert verdict(await answer(plugin, "ann", b"b")) is False
    decoy = plugin.access.scope_of("default").decoy("eve")
    assert decoy == Argon2Hash(19, 64, 1, 1, b"saltsalt", bytes(32))
    await plugin.close()


async def test_the_user_name_may_stand_for_the_client_identifier(files: Files) -> None:
    """Nobody takes over another user's session; who has no name is refused."""
    keys = {"password_file": str(files.passwords), "scram_file": str(files.scram)}
    broker = await broker_of(username_as_client_id=True, allow_anonymous=True, **keys)
    ann = broker.connect("bob", username="ann", password=b"a")
    assert ann.session.client_id == "ann"
    assert connect(broker, "bob", username="bob", password=b"b") == 0
    assert not ann.is_lost
    assert connect(broker, "anybody") == REFUSED
    assert scram(broker, "x", "a").take(ConnAck).reason_code == 0
    assert ann.is_lost


class Tls:
    """A TLS connection, as far as the plugin looks at it."""

    def __init__(self, *names: tuple[str, str]) -> None:
        self._names = names

    def getpeercert(self) -> dict[str, Any]:
        """Return the client's certificate; empty without one."""
        return {"subject": tuple((name,) for name in self._names)} if self._names else {}


async def test_a_certificate_may_name_the_user(files: Files) -> None:
    """Without a password, by its common name; a client without one is refused."""
    keys = {"password_file": str(files.passwords), "allow_anonymous": True}
    plugin = await plugin_of(certificate_username="cn", **keys)
    assert await answer(plugin, "eve", b"", certificate_name="ann") == Accepted("ann")
    assert await answer(plugin, "ann", b"a") is False
    assert await answer(plugin) is False


async def test_the_whole_subject_may_be_the_user() -> None:
    """Where the TLS connection is the broker's own; a client without one is refused."""
    plugin = await plugin_of(certificate_username="subject", username_as_client_id=True)
    certified = Tls(("organizationName", "Example"), ("commonName", "ann"))
    subject = "CN=ann,O=Example"
    assert await answer(plugin, ssl_object=certified) == Accepted(subject, subject)
    for other in (None, Tls()):
        assert await answer(plugin, "ann", ssl_object=other, certificate_name="ann") is False


async def test_a_listener_may_have_rules_of_its_own(files: Files) -> None:
    """None of those for all listeners holds there."""
    plugin = await plugin_of(
        password_file=str(files.passwords),
        acl_file=str(files.acl),
        listeners={"default": {"allow_anonymous": True}},
    )
    assert await answer(plugin, listener="default") is True
    assert await answer(plugin, listener="other") is None
    assert await answer(plugin, "ann", b"x", listener="default") is True
    assert verdict(await answer(plugin, "ann", b"a", listener="other")) is True
    broker = VirtualBroker(access=plugin.access)
    client = broker.connect()
    client.publish("any", b"x", qos=1)
    assert client.take(PubAck).reason_code < 0x80
    client = broker.connect("of the other listener")
    client.session.listener = "other"
    client.publish("any", b"x", qos=1)
    assert client.take(PubAck).reason_code == REFUSED


# -- SCRAM ------------------------------------------------------------------------------------


def scram(
    broker: VirtualBroker, client_id: str, password: str, certificate_name: str | None = None
) -> VirtualClient:
    """Return a client of the user ann that has gone through SCRAM; its answer is in the inbox."""
    client = VirtualClient(broker)
    client.connection.client.certificate_name = certificate_name
    other = ScramClient([METHOD], "ann", password)
    properties: dict[str, Any] = {"authentication_method": METHOD}
    first = properties | {"authentication_data": other.get_client_first().encode()}
    client.send(Connect(client_id=client_id, keep_alive=0, properties=first))
    if client.inbox and isinstance(client.inbox[0], Auth):
        other.set_server_first(client.take(Auth).properties["authentication_data"].decode())
        last = properties | {"authentication_data": other.get_client_final().encode()}
        client.send(Auth(ReasonCode.CONTINUE_AUTHENTICATION, last))
    if isinstance(client.inbox[0], ConnAck) and not client.inbox[0].reason_code:
        other.set_server_final(client.inbox[0].properties["authentication_data"].decode())
    return client


async def test_users_of_scram_connect_without_sending_a_password(files: Files) -> None:
    """By AUTH; the ACL file knows them by the same name."""
    broker = await broker_of(scram_file=str(files.scram), acl_file=str(files.acl))
    client = scram(broker, "c", "a")
    assert client.take(ConnAck).reason_code == 0
    assert client.session.username == "ann"
    for topic, is_refused in (("ann/x", False), ("other", True)):
        client.publish(topic, b"x", qos=1)
        assert (client.take(PubAck).reason_code == REFUSED) is is_refused


async def test_a_wrong_password_of_scram_is_refused(files: Files) -> None:
    """With 0x87."""
    client = scram(await broker_of(scram_file=str(files.scram)), "c", "b")
    assert client.take(ConnAck).reason_code == REFUSED
    assert client.is_lost


@pytest.mark.parametrize(
    ("certificate_name", "is_in"), [("ann", True), ("eve", False), (None, False)]
)
async def test_scram_does_not_stand_in_for_a_certificate(
    files: Files, certificate_name: str | None, *, is_in: bool
) -> None:
    """Where certificates name users, a client must have one, and be the same user by both."""
    broker = await broker_of(scram_file=str(files.scram), certificate_username="cn")
    client = scram(broker, "c", "a", certificate_name)
    assert client.take(ConnAck).reason_code == (0 if is_in else REFUSED)


async def test_scram_is_offered_where_a_file_is_named(files: Files) -> None:
    """Elsewhere there is no such method, or no such user."""
    assert scram(await broker_of(), "c", "a").take(ConnAck).reason_code == (
        ReasonCode.BAD_AUTHENTICATION_METHOD
    )
    broker = await broker_of(scram_file=str(files.scram), listeners={"default": {}})
    assert scram(broker, "c", "a").take(ConnAck).reason_code == REFUSED


# -- topics -----------------------------------------------------------------------------------


async def test_the_acl_file_judges_each_message(files: Files) -> None:
    """To publish, and to receive; to subscribe is always allowed."""
    keys = {"password_file": str(files.passwords), "acl_file": str(files.acl)}
    broker = await broker_of(allow_anonymous=True, **keys)
    ann = broker.connect("a", username="ann", password=b"a")
    bob = broker.connect("b", username="bob", password=b"b")
    assert bob.subscribe("#") == 0
    for topic, is_refused in (("ann/x", False), ("news", True), ("bob/x", True)):
        ann.publish(topic, topic.encode(), qos=1)
        assert (ann.take(PubAck).reason_code == REFUSED) is is_refused
    assert ann.subscribe("ann/#") == 0
    ann.publish("ann/y", b"y")
    assert ann.payloads() == [b"y"]
    assert bob.payloads() == []


async def test_without_an_acl_file_no_message_is_looked_at() -> None:
    """The fast ways through the broker stay open."""
    assert (await broker_of(allow_anonymous=True)).core.is_plain


# -- files ------------------------------------------------------------------------------------


async def test_a_reload_holds_for_clients_that_are_connected(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    """New rules at once; a client stays whose line of the password file is as it was."""
    keys = {"password_file": str(files.passwords), "acl_file": str(files.acl)}
    async with (
        serving(**keys) as server,
        await connected(port_of(server), username="ann", password=b"a") as client,
    ):
        await client.subscribe("#")
        assert (await client.publish("new", b"1")).reason_code == REFUSED
        files.acl.write_text("user ann\ntopic new\n")
        with files.passwords.open("a") as passwords:
            passwords.write(f"eve:{make_hash(b'e', b'salt', 10)}\n")
        with caplog.at_level(logging.INFO):
            await server.reload()
        keys_read = [f"plugins.access.{key} {name}" for key, name in keys.items()]
        assert f"reloaded: {', '.join(keys_read)}; changed: no keys" in caplog.messages
        assert (await echo(client, "new", b"2")) == b"2"
        await (await connected(port_of(server), username="eve", password=b"e")).send(Disconnect())


@pytest.mark.parametrize("has_others", [False, True])
@pytest.mark.parametrize("revoked", ["write", "read"])
async def test_what_a_reload_takes_away_is_refused_from_then_on(
    files: Files, tmp_path: Path, revoked: str, *, has_others: bool
) -> None:
    """Though it was allowed before, and whatever other plugins have a say."""
    others: dict[str, Any] = {
        "parts": {"spool": str(tmp_path / "spool")},
        "amqtt.plugins.topic_checking.TopicTabooPlugin": None,
    }
    keys = {"password_file": str(files.passwords), "acl_file": str(files.acl)}
    rules = "user ann\ntopic write t\ntopic write kept\nuser bob\ntopic read t\ntopic read kept\n"
    files.acl.write_text(rules)
    async with (
        serving(**keys, others=others if has_others else {}) as server,
        await connected(port_of(server), "a", username="ann", password=b"a") as ann,
        await connected(port_of(server), "b", username="bob", password=b"b") as bob,
    ):
        await bob.subscribe("#", 1)
        await ann.send(Publish("t", b"0"))
        assert (await ann.publish("t", b"1")).reason_code == 0
        assert [(await bob.take(Publish)).payload for _ in range(2)] == [b"0", b"1"]
        files.acl.write_text(rules.replace(f"topic {revoked} t\n", ""))
        await server.reload()
        await ann.send(Publish("t", b"2"))
        code = (await ann.publish("t", b"3")).reason_code
        assert code == (REFUSED if revoked == "write" else 0)
        await ann.publish("kept", b"4")
        assert (await bob.take(Publish)).payload == b"4"


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("revoked", ["write", "read"])
async def test_rules_that_change_while_runs_are_under_way(
    files: Files, revoked: str, qos: int
) -> None:
    """There is one message from which on none gets through; other topics miss none."""
    rules = "user ann\ntopic write t\ntopic write kept\nuser bob\ntopic read t\ntopic read kept\n"
    files.acl.write_text(rules)
    got: dict[str, list[int]] = {"t": [], "kept": []}
    codes: list[int] = []
    n_chunks = 0

    async def receive(bob: WireClient) -> None:
        while True:
            packet = await bob.take(Publish)
            if not packet.payload:
                return
            got[packet.topic].append(int(packet.payload))
            if qos:
                await bob.send(PubAck(packet.packet_id))

    async def publish(ann: WireClient, chunk: int) -> None:
        numbers = range(20 * chunk, 20 * chunk + 20)
        topics = ["t"] * 19 + ["kept"]
        await ann.send(
            *(
                Publish(topic, b"%d" % number, qos=qos, packet_id=qos * (number % 20 + 1))
                for topic, number in zip(topics, numbers, strict=True)
            ),
            PingReq(),
        )
        answers = [await ann.take(PubAck) for _ in range(20 * qos)]
        codes.extend(answer.reason_code for answer in answers[:-1])
        await ann.take(PingResp)

    async with (
        serving(password_file=str(files.passwords), acl_file=str(files.acl)) as server,
        await connected(port_of(server), "a", username="ann", password=b"a") as ann,
        await connected(port_of(server), "b", username="bob", password=b"b") as bob,
        asyncio.timeout(60),
    ):
        await bob.subscribe("#", qos)
        reading = asyncio.create_task(receive(bob))
        for n_chunks in range(100):
            await publish(ann, n_chunks)
        files.acl.write_text(rules.replace(f"topic {revoked} t\n", ""))
        reloading = asyncio.create_task(server.reload())
        while not reloading.done():
            n_chunks += 1
            await publish(ann, n_chunks)
        n_before = 20 * (n_chunks + 1)
        for _ in range(100):
            n_chunks += 1
            await publish(ann, n_chunks)
        await ann.send(Publish("kept", b""))
        await reading
    assert got["kept"] == list(range(19, 20 * (n_chunks + 1), 20))
    sent = [number for number in range(20 * (n_chunks + 1)) if number % 20 != 19]
    assert got["t"] == sent[: len(got["t"])]
    assert 19 * 100 <= len(got["t"]) <= n_before
    if qos:
        n_allowed = len(got["t"]) if revoked == "write" else len(sent)
        assert codes == [0] * n_allowed + [REFUSED] * (len(sent) - n_allowed)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("changed", [b"", b"new"])
async def test_a_user_who_may_no_longer_connect_is_disconnected_at_a_reload(
    files: Files, caplog: pytest.LogCaptureFixture, changed: bytes, version: int
) -> None:
    """One taken out of the file, or whose password is another; with 0x87 in MQTT 5, and a line."""
    async with (
        serving(password_file=str(files.passwords)) as server,
        await connected(port_of(server), "a", version, username="ann", password=b"a") as ann,
        await connected(port_of(server), "b", version, username="bob", password=b"b") as bob,
    ):
        lines = files.passwords.read_text().splitlines()[1:]
        if changed:
            lines.append(f"ann:{make_hash(changed, b'salt', 10)}")
        files.passwords.write_text("\n".join(lines))
        caplog.set_level(logging.INFO)
        await server.reload()
        if version == 5:
            assert (await ann.take(Disconnect)).reason_code == REFUSED
        assert await ann.receive() is None
        assert (await echo_of(bob)) == b"x"
        assert server.core.counters.revoked == 1
        async with await WireClient.dial(port_of(server), version=version) as other:
            again = await other.connect("a", username="ann", password=b"a")
            assert again.reason_code == REFUSED
    assert "disconnected: its user may no longer connect" in caplog.text
    assert f"{'wrong password' if changed else 'unknown user'}, from" in caplog.text


async def test_a_reload_while_a_password_is_verified_counts(files: Files) -> None:
    """By what the file says as the client is let in, not as it said when the thread began."""
    files.write_passwords(MAX_COST_AT_ONCE + 1)
    plugin = await plugin_of(password_file=str(files.passwords))
    waiting = answer(plugin, "ann", b"a")
    task = asyncio.create_task(waiting)
    await asyncio.sleep(0)
    files.passwords.write_text("")
    (await plugin.reload(plugin.config)).apply()
    said = await task
    assert isinstance(said, Accepted)
    assert said.holds is not None
    assert not said.holds()
    await plugin.close()


@pytest.mark.parametrize(("user", "stays"), [("ann", True), ("eve", False)])
async def test_a_user_of_scram_stays_as_long_as_the_file_has_it(
    files: Files, user: str, *, stays: bool
) -> None:
    """With the same credentials."""
    plugin = await plugin_of(scram_file=str(files.scram))
    broker = VirtualBroker(access=plugin.access, authenticators=plugin.authenticators)
    client = scram(broker, "c", "a")
    assert client.take(ConnAck).reason_code == 0
    files.scram.write_text(files.scram.read_text().replace("ann", user))
    (await plugin.reload(plugin.config)).apply()
    close_if_revoked(client.connection.client, broker.now)
    broker.settle()
    assert client.is_lost is not stays


async def test_a_wrong_file_at_reload_changes_nothing(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even what the other file says; the log names the line."""
    keys = {"password_file": str(files.passwords), "acl_file": str(files.acl)}
    async with (
        serving(**keys) as server,
        await connected(port_of(server), username="ann", password=b"a") as client,
    ):
        files.passwords.write_text("")
        files.acl.write_text("topic #\nnonsense\n")
        await server.reload()
        told = f"not reloaded: {files.acl}: line 2: read 'nonsense'; allowed:"
        assert told in caplog.text
        assert (await client.publish("new", b"1")).reason_code == REFUSED
        (await connected(port_of(server), username="bob", password=b"b")).close()


@pytest.mark.parametrize("key", ["password_file", "acl_file", "scram_file"])
async def test_a_file_that_cannot_be_used_ends_the_start(tmp_path: Path, key: str) -> None:
    """The key that names it, its name and what is wrong with it are told."""
    file = tmp_path / "file"
    told = rf"policy\.yaml: plugins\.access\.{key}: read {file}: No such file"
    with pytest.raises(ConfigError, match=told):
        await plugin_of(**{key: str(file)})
    told = rf"policy\.yaml: plugins\.access\.listeners\.default\.{key}: read {file}: No such file"
    with pytest.raises(ConfigError, match=told):
        await plugin_of(listeners={"default": {key: str(file)}})
    os.mkfifo(file)
    with pytest.raises(ConfigError, match=rf"{key}: read {file}: Not a regular file"):
        await plugin_of(**{key: str(file)})
    file.unlink()
    file.write_bytes(b"ab\xff")
    with pytest.raises(ConfigError, match=r"line 1: read no UTF-8"):
        await plugin_of(**{key: str(file)})
    file.write_text("nonsense")
    with pytest.raises(ConfigError, match=r"line 1: read"):
        await plugin_of(**{key: str(file)})


async def test_rules_for_a_listener_that_is_not_there_are_refused() -> None:
    """They would silently hold for nobody."""
    with pytest.raises(ConfigError, match=r"listeners\.defualt: .*perhaps default"):
        await plugin_of(listeners={"defualt": {}})


async def test_guesses_from_one_address_hold_up_no_other(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client of each address is next for a thread; an IPv6 network counts as one address."""
    monkeypatch.setattr(control_module, "VERIFYING_THREADS", 1)
    files.write_passwords(MAX_COST_AT_ONCE + 1)
    plugin = await plugin_of(password_file=str(files.passwords))
    order: list[str] = []

    async def log_in(address: str) -> None:
        await answer(plugin, "ann", b"guess", remote_address=address)
        order.append(address)

    strangers = [f"2001:db8::{number}" for number in range(1, 6)]
    await asyncio.gather(*map(log_in, [*strangers, "192.0.2.1"]))
    assert order.index("192.0.2.1") == 2
    await plugin.close()


async def test_a_comment_may_be_in_any_encoding(files: Files) -> None:
    """As in mosquitto, which does not read it."""
    for file in (files.passwords, files.acl, files.scram):
        file.write_bytes(b"# f\xfcr alle\n" + file.read_bytes())
    await (
        await plugin_of(
            password_file=str(files.passwords), acl_file=str(files.acl), scram_file=str(files.scram)
        )
    ).close()


async def test_files_of_passwords_that_everybody_can_read_are_told(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their hashes can be tried at leisure; that of topics has no secret."""
    told: list[tuple[str, str]] = []
    monkeypatch.setattr(
        control_module, "warn_of_readers", lambda key, file: told.append((key, str(file)))
    )
    keys = {"password_file": str(files.passwords), "acl_file": str(files.acl)}
    plugin = await plugin_of(**keys, listeners={"default": {"scram_file": str(files.scram)}})
    assert told == [
        ("plugins.access.password_file", str(files.passwords)),
        ("plugins.access.listeners.default.scram_file", str(files.scram)),
    ]
    await plugin.close()


def test_both_lanes_have_the_rights_of_the_first_client_id(tmp_path: Path) -> None:
    """A rule with `%c` stands for it; what it denies is denied on the large lane, too."""
    (tmp_path / "acl").write_text("topic read #\npattern write %c/#\n")
    access = {"acl_file": str(tmp_path / "acl")}
    with (
        running_broker(anonymous_policy({"access": access}), tmp_path) as broker,
        Application("cam", broker.port) as cam,
        Application("dashboard", broker.port, topics="+/pictures") as dashboard,
    ):
        wait_for(lambda: cam.is_on_two_lanes)
        cam.client.publish("other/pictures", PICTURE + b"denied", 1).wait_for_publish()
        cam.client.publish("cam/pictures", PICTURE + b"1", 1)
        cam.client.publish("cam/pictures", b"2", 1)
        assert dashboard.payloads(2) == [b"1", b"2"]


def read(**keys: Any) -> AccessConfig:
    """Return the configuration that these keys of a policy file make."""
    return validate_config(AccessConfig, keys, "policy.yaml", "plugins.access")


def test_a_listeners_rules_stand_alone() -> None:
    """Nothing is taken from the keys above."""
    config = read(password_file="p", listeners={"inner": {"allow_anonymous": True}})
    assert config.listeners == {"inner": Rules(allow_anonymous=True)}
    assert [rules.password_file for rules in config.all_rules()] == ["p", None]


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"passwords": "p"}, "plugins.access.passwords"),
        ({"password_file": ""}, "plugins.access.password_file"),
        ({"certificate_username": "dn"}, "plugins.access.certificate_username"),
        ({"listeners": {"a": {"acl": "x"}}}, "plugins.access.listeners.a.acl"),
        ({"listeners": {"a": {"listeners": {}}}}, "plugins.access.listeners.a.listeners"),
    ],
)
def test_wrong_keys_and_values_are_named(keys: dict[str, Any], path: str) -> None:
    """By their place in the file."""
    with pytest.raises(ConfigError) as caught:
        read(**keys)
    assert [problem.path for problem in caught.value.problems] == [path]
