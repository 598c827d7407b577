from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from amqtt.contexts import Action
from amqtt.plugins.authentication import AnonymousAuthPlugin
from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin
from amqtt.plugins.sys.broker import BrokerSysPlugin
from amqtt.session import Session
from pwdlib import PasswordHash
from pwdlib.hashers.argon2 import Argon2Hasher

from penstock.broker.access_control import Accepted, ConnectAttempt
from penstock.broker.amqtt_host.host import AmqttHost
from penstock.broker.amqtt_host.sessions import HostedSession
from penstock.broker.config.policy import parse_policy
from penstock.broker.events import Callbacks
from penstock.broker.message import Message
from penstock.broker.mqtt.packets import (
    Disconnect,
    PingReq,
    Publish,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
    Will,
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.sessions.access import SeveralSources
from tests.broker.amqtt_host.hosting import (
    ACL,
    ANONYMOUS,
    EVENT_LOGGER,
    FILE,
    SYS,
    TABOO,
    AsksElsewhere,
    Broken,
    BrokenLater,
    Broker,
    Client,
    PacketRecorder,
    Raises,
    Recorder,
    SaysNo,
    SaysNone,
    named,
)
from tests.helpers.access import Access


class AsksForTopics(BaseTopicPlugin):
    """Notes what it is asked and lets topics through that begin with ``open``."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.asked: list[tuple[str, str, Action]] = []

    async def topic_filtering(
        self, *, session: Any = None, topic: str | None = None, action: Action | None = None
    ) -> bool | None:
        """Note the question and answer it."""
        assert topic is not None
        assert action is not None
        self.asked.append((session.client_id, topic, action))
        if topic == "fails":
            raise RuntimeError("no answer")
        return None if topic == "unknown" else topic.startswith("open")


def attempt(client_id: str = "c") -> ConnectAttempt:
    """Return a CONNECT without credentials."""
    return ConnectAttempt(client_id, None, None, 4, True, 0, None, "", 0, "default")


# -- authentication -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plugins", "is_connected"),
    [
        ([AnonymousAuthPlugin], True),
        ([AnonymousAuthPlugin, SaysNone], True),
        ([AnonymousAuthPlugin, SaysNo], False),
        ([SaysNone], False),
        ([AnonymousAuthPlugin, Raises], False),
    ],
)
async def test_client_connects_where_somebody_says_true_and_nobody_false(
    plugins: list[type[Any]],
    is_connected: bool,  # noqa: FBT001 (a parameter of the test)
) -> None:
    """The rule of aMQTT: None abstains, one True is needed, one False is enough."""
    broker = Broker({named(Recorder): None} | {named(cls): None for cls in plugins})
    client = await broker.connect()
    assert client.is_connected is is_connected
    code = ReasonCode.SUCCESS if is_connected else ReasonCode.NOT_AUTHORIZED
    assert client.return_code() == code


async def test_plugin_that_fails_to_authenticate_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its name stands in the log and in the counters."""
    broker = Broker({ANONYMOUS: None, named(Raises): None})
    await broker.connect("who")
    assert broker.core.counters.extension_errors == {"Raises.authenticate": 1}
    assert "Raises.authenticate failed: RuntimeError('who')" in caplog.text


async def test_where_nothing_authenticates_clients_are_let_in() -> None:
    """The broker then listens on this machine alone; beside another plugin it is that one's say."""
    assert (await Broker({named(Recorder): None}).connect()).is_connected
    policy = parse_policy({"plugins": {named(Recorder): None}}, "policy.yaml")
    host = AmqttHost(policy, is_alone=False)
    assert host.authenticate(attempt()) is None
    host.manager.forget()


@pytest.mark.parametrize(
    ("text", "authenticates", "lets_anybody_in"),
    [
        ("", False, False),
        ("limits: {}", False, False),
        ("topic-check: {enabled: true}", False, False),
        (f"plugins: {{{SYS}: null}}", False, False),
        ("auth: {allow-anonymous: true}", True, True),
        ("auth: {allow-anonymous: false}", True, False),
        (f"plugins: [{ANONYMOUS}]", True, True),
        (f"plugins: {{{ANONYMOUS}: {{allow_anonymous: false}}}}", False, False),
        (f"plugins: {{{FILE}: null}}", True, False),
    ],
)
async def test_what_the_file_itself_says_of_authentication(
    text: str, *, authenticates: bool, lets_anybody_in: bool
) -> None:
    """AMQTT's default plugins let everybody in; nobody asked for it in so many words."""
    host = AmqttHost(parse_policy(text, "policy.yaml"))
    host.manager.forget()
    assert (host.authenticates, host.lets_anybody_in) == (authenticates, lets_anybody_in)


@pytest.mark.parametrize("is_alone", [True, False])
async def test_who_is_let_in_beside_other_plugins_is_told(
    caplog: pytest.LogCaptureFixture, *, is_alone: bool
) -> None:
    """AMQTT's anonymous plugin makes another one's list of users worth nothing."""
    with caplog.at_level(logging.WARNING):
        AmqttHost(
            parse_policy({"plugins": {ANONYMOUS: None}}, "policy.yaml"), is_alone=is_alone
        ).manager.forget()
    assert ("AnonymousAuthPlugin lets in clients" in caplog.text) != is_alone


async def test_answer_of_plugins_that_cannot_wait_is_there_at_once() -> None:
    """No task is made for aMQTT's anonymous authentication."""
    broker = Broker({ANONYMOUS: None})
    assert broker.host.authenticate(attempt()) is True


async def test_plugin_that_has_to_wait_is_waited_for() -> None:
    """The connection is answered when the plugin has answered."""
    broker = Broker({named(AsksElsewhere): None})
    good = await broker.connect("1", username="good one", password=b"")
    bad = await broker.connect("2", username="bad one", password=b"")
    assert (good.is_connected, bad.is_connected) == (True, False)


async def test_password_file(tmp_path: Path) -> None:
    """The stock plugin checks names and Argon2 hashes of its file."""
    hasher = PasswordHash((Argon2Hasher(time_cost=1, memory_cost=8, parallelism=1),))
    path = tmp_path / "passwords"
    path.write_text(f"# users\nuser:{hasher.hash('secret')}\n")
    broker = Broker({FILE: {"password-file": str(path)}})
    for username, password, is_connected in (
        ("user", b"secret", True),
        ("user", b"wrong", False),
        ("user", None, False),
        ("other", b"secret", False),
        (None, None, False),
    ):
        client = await broker.connect("c", username=username, password=password)
        assert client.is_connected is is_connected, (username, password)


# -- topic filtering ----------------------------------------------------------------------------


async def test_topic_plugins_are_asked_for_publish_subscribe_and_receive() -> None:
    """A refused publish, subscription or delivery does not happen; others do."""
    broker = Broker({ANONYMOUS: None, named(AsksForTopics): None})
    subscriber = await broker.connect("s")
    await subscriber.send(
        Subscribe(1, (SubscriptionRequest("open/#"), SubscriptionRequest("closed")))
    )
    (suback,) = [p for p in subscriber.received() if isinstance(p, SubAck)]
    assert suback.reason_codes[0] == 0
    assert suback.reason_codes[1] >= 0x80
    publisher = await broker.connect("p")
    await publisher.send(Publish("open/1", b"1"))
    await publisher.send(Publish("closed", b"2"))
    assert subscriber.published() == [("open/1", b"1")]
    assert broker.plugin(AsksForTopics).asked == [
        ("s", "open/#", Action.SUBSCRIBE),
        ("s", "closed", Action.SUBSCRIBE),
        ("p", "open/1", Action.PUBLISH),
        ("s", "open/1", Action.RECEIVE),
        ("p", "closed", Action.PUBLISH),
    ]


@pytest.mark.parametrize("topic", ["fails", "unknown"])
async def test_topic_plugin_that_gives_no_answer_refuses(topic: str) -> None:
    """None counts as a refusal, as in aMQTT's broker; an error does too and is counted."""
    broker = Broker({ANONYMOUS: None, named(AsksForTopics): None})
    client = await broker.connect()
    await client.send(Subscribe(1, (SubscriptionRequest(topic),)))
    assert not broker.core.tree.n_subscriptions
    n_errors = broker.core.counters.extension_errors.get("AsksForTopics.topic_filtering", 0)
    assert n_errors == (topic == "fails")


async def test_topic_plugin_that_has_to_wait_is_waited_for() -> None:
    """Publishing goes on in order after the plugin has answered."""
    broker = Broker({named(AsksElsewhere): None})
    client = await broker.connect("c", username="good", password=b"")
    await client.send(Subscribe(1, (SubscriptionRequest("good/#"),)))
    await client.send(Publish("bad/1", b"1"))
    await client.send(Publish("good/2", b"2"))
    await client.send(Publish("good/3", b"3"))
    assert client.published() == [("good/2", b"2"), ("good/3", b"3")]


async def test_taboo_topics_are_for_admin_alone() -> None:
    """The stock plugin keeps everybody else from its three topics."""
    broker = Broker({ANONYMOUS: None, TABOO: None})
    admin = await broker.connect("admin", username="admin")
    await admin.send(Subscribe(1, (SubscriptionRequest("prohibited"),)))
    user = await broker.connect("user", username="user")
    await user.send(Publish("prohibited", b"no"))
    await admin.send(Publish("prohibited", b"yes"))
    assert admin.published() == [("prohibited", b"yes")]


async def test_access_control_list() -> None:
    """The stock plugin knows users and anonymous ones, each with topics to use."""
    acl = {
        "acl": {"u": ["a/#"], "anonymous": ["b"]},
        "publish_acl": {"u": ["a/+"], "anonymous": ["b"]},
    }
    broker = Broker({ANONYMOUS: None, ACL: acl})
    user = await broker.connect("u", username="u")
    await user.send(Subscribe(1, (SubscriptionRequest("a/#"), SubscriptionRequest("b"))))
    nobody = await broker.connect("n")
    await nobody.send(Subscribe(1, (SubscriptionRequest("b"),)))
    for topic in ("a/1", "a/1/2", "b"):
        await user.send(Publish(topic, b"u"))
        await nobody.send(Publish(topic, b"n"))
    assert user.published() == [("a/1", b"u")]
    assert nobody.published() == [("b", b"n")]


@pytest.mark.parametrize(
    ("plugins", "checks"),
    [
        ({ANONYMOUS: None}, (False, False, False)),
        ({ANONYMOUS: None, TABOO: None}, (True, True, True)),
        ({ANONYMOUS: None, ACL: {"acl": {"u": ["a"]}}}, (False, True, False)),
        ({ANONYMOUS: None, ACL: {"publish_acl": {"u": ["a"]}}}, (True, True, False)),
    ],
)
async def test_what_nobody_refuses_is_not_asked_for(
    plugins: dict[str, Any], checks: tuple[bool, bool, bool]
) -> None:
    """Without a topic plugin that could refuse it, a message is not checked at all."""
    host = Broker(plugins).host
    assert (host.checks_publish, host.checks_subscribe, host.checks_receive) == checks


# -- events -------------------------------------------------------------------------------------


async def test_plugin_hears_of_a_client_from_connect_to_disconnect() -> None:
    """A plugin written against aMQTT's documentation gets every event with its arguments."""
    broker = Broker({ANONYMOUS: None, named(Recorder): None})
    recorder = broker.plugin(Recorder)
    client = await broker.connect("c", username="user")
    session = recorder.told("connected")["client_session"]
    assert recorder.told("connected")["client_id"] == "c"
    assert (session.username, session.remote_address) == ("user", "192.0.2.1")
    assert session.is_anonymous
    assert session.transitions.is_connected()

    await client.send(Subscribe(1, (SubscriptionRequest("t", 1),)))
    assert recorder.told("subscribed") == {"client_id": "c", "topic": "t", "qos": 1}
    await client.send(Publish("t", b"data", qos=1, retain=True, packet_id=7))
    for event in ("received", "broadcast"):
        assert recorder.told(event)["client_id"] == "c"
        message = recorder.told(event)["message"]
        assert (message.topic, message.data, message.qos) == ("t", b"data", 1)
    retained = recorder.told("retained")
    assert retained["client_id"] is None
    assert retained["retained_message"].source_session is session
    await client.send(Unsubscribe(2, ("t",)))
    assert recorder.told("unsubscribed") == {"client_id": "c", "topic": "t"}
    await client.send(Disconnect())
    assert recorder.told("disconnected") == {"client_id": "c", "client_session": session}
    assert session.transitions.is_disconnected()
    assert recorder.names() == [
        "connected",
        "subscribed",
        "received",
        "broadcast",
        "retained",
        "unsubscribed",
        "disconnected",
    ]


async def test_message_that_is_refused_is_received_and_not_broadcast() -> None:
    """The two events differ in what a topic plugin says."""
    broker = Broker({ANONYMOUS: None, TABOO: None, named(Recorder): None})
    client = await broker.connect("c", username="user")
    await client.send(Publish("prohibited", b"data"))
    assert broker.plugin(Recorder).names() == ["connected", "received"]


@pytest.mark.parametrize("version", [3, 4, 5])
async def test_packets_are_told_in_the_shape_of_amqtt(version: int) -> None:
    """A plugin that asks for packets gets each one with its session."""
    broker = Broker({ANONYMOUS: None, named(PacketRecorder): None})
    client = await broker.connect("c", protocol_version=version)
    await client.send(Publish("t", b"data", properties={"user_property": [("a", "b")]}))
    await client.send(PingReq())
    client.received()
    packets = broker.plugin(PacketRecorder).packets
    kinds = [(where, type(packet).__name__) for where, packet, _ in packets]
    assert ("in", "PublishPacket") in kinds
    assert ("in", "PingReqPacket") in kinds
    assert ("out", "PingRespPacket") in kinds
    publish, session = next(
        (packet, session) for _, packet, session in packets if type(packet).__name__[:3] == "Pub"
    )
    assert (publish.topic_name, publish.data) == ("t", b"data")
    assert session.client_id == "c"


async def test_events_that_no_plugin_handles_have_no_callback() -> None:
    """Hosting costs nothing for what no plugin wants to hear."""
    told = Broker({ANONYMOUS: None, EVENT_LOGGER: None}).host.callbacks
    kept = (told.client_connected, told.client_disconnected, told.session_ended)
    assert all(kept)
    assert Callbacks(*kept) == told


async def test_no_session_is_shown_where_everybody_is_let_in_unseen(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The answer is that of the plugin, which looks at nothing of a client."""
    broker = Broker({ANONYMOUS: None})
    assert broker.host.callbacks == Callbacks()
    assert await broker.plugin(AnonymousAuthPlugin).authenticate(session=HostedSession("c"))
    assert (
        broker.host.authenticate(attempt("c")._replace(username="ada", password=b"wrong")) is True
    )
    assert Broker({ANONYMOUS: {"allow_anonymous": False}}).host.authenticate(attempt("c")) is False
    with caplog.at_level(logging.DEBUG):  # it says whom it lets in, and why
        assert Broker({ANONYMOUS: None}).host.callbacks != Callbacks()


class LetsNobodyIn(AnonymousAuthPlugin):
    """An operator's own plugin, by the name of what it is made from."""

    async def authenticate(self, *, session: Session) -> bool:  # noqa: ARG002
        """Refuse."""
        return False


async def test_a_plugin_made_from_the_one_for_everybody_is_asked() -> None:
    """Its answers are its own."""
    broker = Broker({named(LetsNobodyIn): None})
    assert broker.host.authenticate(attempt("c")) is False


async def test_stock_plugins_leave_the_broker_its_short_way() -> None:
    """With aMQTT's own list no message is looked at by anybody."""
    broker = Broker(None)
    assert broker.core.is_plain
    assert broker.host.has_sys_plugin
    assert not Broker({ANONYMOUS: None}).host.has_sys_plugin


@pytest.mark.parametrize("cls", [Broken, BrokenLater])
async def test_plugin_that_fails_at_an_event_is_named(
    cls: type[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Its error is logged and counted; the client and the other plugins notice nothing."""
    broker = Broker({named(cls): None, ANONYMOUS: None, named(Recorder): None})
    client = await broker.connect()
    await broker.host.post_shutdown()
    name = f"{cls.__name__}.on_broker_client_connected"
    assert broker.core.counters.extension_errors == {name: 1}
    assert f"extension {name} failed" in caplog.text
    assert client.is_connected
    assert "connected" in broker.plugin(Recorder).names()


# -- sessions -----------------------------------------------------------------------------------


async def test_persistent_session_keeps_what_plugins_note_in_it() -> None:
    """A client that comes back has the same session, with the credentials it brings now."""
    broker = Broker({named(AsksElsewhere): None, named(Recorder): None})
    keys: dict[str, Any] = {"clean_start": False, "password": b""}
    first = await broker.connect("c", username="good 1", **keys)
    session = broker.plugin(Recorder).told("connected")["client_session"]
    assert session.parent == 0
    first.lose()
    await broker.connect("c", username="good 2", will=Will("w"), **keys)
    again = broker.plugin(Recorder).told("connected")["client_session"]
    assert again is session
    assert again.parent == 1
    assert again.username == "good 2"
    assert again.will_topic == "w"
    assert again.attributes == {"asked": 2}


async def test_a_will_is_no_longer_kept_than_by_the_broker() -> None:
    """Which bounds the memory of all wills: neither of who has gone, nor of who is not let in."""
    broker = Broker({named(AsksElsewhere): None, named(Recorder): None})
    keys: dict[str, Any] = {"clean_start": False, "password": b"", "username": "good"}
    client = await broker.connect("c", will=Will("w", b"gone"), **keys)
    session = broker.plugin(Recorder).told("connected")["client_session"]
    assert session.will_message == b"gone"
    client.lose()
    assert session.will_message is None
    assert session.will_topic == "w"


async def test_attempt_that_fails_leaves_the_session_alone() -> None:
    """Who cannot log in does not change what plugins know of the client that could."""
    broker = Broker({named(AsksElsewhere): None, named(Recorder): None})
    keys: dict[str, Any] = {"clean_start": False, "password": b""}
    client = await broker.connect("c", username="good", **keys)
    await broker.connect("c", username="bad", **keys)
    session = broker.plugin(Recorder).told("connected")["client_session"]
    assert (session.username, session.attributes) == ("good", {"asked": 1})
    assert client.is_connected


async def test_clean_session_begins_anew() -> None:
    """What a plugin noted of an ended session is not found in the next one."""
    broker = Broker({named(AsksElsewhere): None, named(Recorder): None})
    for _ in range(2):
        client = await broker.connect("c", username="good", password=b"", clean_start=True)
        session = broker.plugin(Recorder).told("connected")["client_session"]
        assert session.attributes == {"asked": 1}
        client.lose()


async def test_takeover_ends_connected() -> None:
    """A second connection of a client disconnects the first and is then connected."""
    broker = Broker({ANONYMOUS: None, named(Recorder): None})
    await broker.connect("c", clean_start=False)
    await broker.connect("c", clean_start=False)
    recorder = broker.plugin(Recorder)
    assert recorder.names() == ["connected", "disconnected", "connected"]
    assert recorder.told("connected")["client_session"].transitions.is_connected()


async def test_sessions_that_have_ended_are_forgotten() -> None:
    """A stream of clients that come and go leaves nothing behind."""
    broker = Broker({ANONYMOUS: None, EVENT_LOGGER: None})
    for number in range(100):
        (await broker.connect(f"c{number}")).lose()
    assert len(broker.host._sessions) <= 20


async def test_clients_that_never_open_are_forgotten() -> None:
    """Attempts that were allowed and broke off do not pile up."""
    broker = Broker({ANONYMOUS: None, EVENT_LOGGER: None})
    for number in range(1_100):
        assert broker.host.authenticate(attempt(f"c{number}"))
    assert len(broker.host._admitted) == 1_000


async def test_publisher_that_is_gone_is_no_source() -> None:
    """A will's retained message comes after its session; it has no source then."""
    broker = Broker({ANONYMOUS: None, named(Recorder): None})
    broker.core.router.retain(Message("t", b"x", retain=True, publisher="gone"))
    told = broker.plugin(Recorder).told("retained")
    assert told["retained_message"].source_session is None


# -- life ---------------------------------------------------------------------------------------


async def test_events_of_the_broker_come_in_order() -> None:
    """A plugin hears of start and end, and is closed last."""
    broker = Broker({ANONYMOUS: None, named(Recorder): None})
    await broker.host.pre_start()
    await broker.host.post_start()
    await broker.host.pre_shutdown()
    await broker.host.post_shutdown()
    assert broker.plugin(Recorder).names() == [
        "pre_start",
        "post_start",
        "pre_shutdown",
        "post_shutdown",
        "close",
    ]


async def test_plugin_that_fails_before_the_broker_is_there_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without counters yet, the log alone says it."""
    broker = Broker({named(BrokenLater): None})
    broker.host._core = None
    broker.host._failed("BrokenLater.close", RuntimeError("early"))
    assert "plugin BrokenLater.close failed: RuntimeError('early')" in caplog.text


async def test_sys_topics_of_amqtt() -> None:
    """The stock plugin publishes the broker's own counts and retains its version."""
    broker = Broker({ANONYMOUS: None, SYS: {"sys_interval": 1}})
    await broker.host.pre_start()
    await broker.host.post_start()
    client = await broker.connect()
    await client.send(Subscribe(1, (SubscriptionRequest("$SYS/broker/#"),)))
    assert [topic for topic, _ in client.published()] == ["$SYS/broker/version"]
    counters = broker.core.counters
    sent = counters.packets_sent
    broker.plugin(BrokerSysPlugin).broadcast_dollar_sys_topics()
    # The plugin makes a task for each topic.
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
    figures = dict(client.published())
    assert figures["$SYS/broker/messages/received"] == b"2"
    assert figures["$SYS/broker/messages/sent"] == str(sent).encode()
    assert figures["$SYS/broker/load/bytes/received"] == str(counters.bytes_received).encode()
    assert figures["$SYS/broker/clients/connected"] == b"1"
    assert figures["$SYS/broker/messages/subscriptions/count"] == b"1"
    assert figures["$SYS/broker/messages/retained/count"] == b"1"
    await broker.host.pre_shutdown()


# -- another user's session ---------------------------------------------------------------------


async def test_who_takes_up_a_session_is_judged_by_its_own_name() -> None:
    """Neither a subscription nor a waiting message of its earlier user is for the next one."""
    broker = Broker({ANONYMOUS: None, TABOO: None})
    publisher = await broker.connect("p", username="admin")
    keys: dict[str, Any] = {"clean_start": False, "username": "admin"}
    admin = await broker.connect("c", **keys)
    requests = SubscriptionRequest("prohibited", 1), SubscriptionRequest("open", 1)
    await admin.send(Subscribe(1, requests))
    admin.lose()
    for topic in ("prohibited", "open"):
        await publisher.send(Publish(topic, b"1", qos=1, packet_id=1))
    user = await broker.connect("c", **keys | {"username": "user"})
    for topic in ("prohibited", "open"):
        await publisher.send(Publish(topic, b"2"))
    assert user.published() == [("open", b"1"), ("open", b"2")]


@pytest.mark.parametrize("last", ["admin", "user"])
async def test_a_name_that_a_plugin_gives_holds_from_then_on(last: str) -> None:
    """For what is published, and for what is received, whatever was answered before."""
    broker = Broker({ANONYMOUS: None, TABOO: None})
    publisher = await broker.connect("p", username="admin")
    first = "user" if last == "admin" else "admin"
    client = await broker.connect("c", username=first)
    session = broker.host.hosted(client.connection.client.session)
    await client.send(Subscribe(1, (SubscriptionRequest("#"),)))
    for name in (first, last):
        session.username = name
        for one in (client, publisher):
            await one.send(Publish("prohibited", name.encode()))
        assert client.published() == [("prohibited", name.encode())] * (2 * (name == "admin"))


class KnowsAdmin(BaseAuthPlugin):
    """Lets admin in, and knows nobody else."""

    async def authenticate(self, *, session: Any) -> bool | None:
        """Answer for one user name."""
        return True if session.username == "admin" else None


async def test_a_client_that_did_not_get_in_gives_its_name_to_nobody() -> None:
    """Not to a user whom another source lets in, with the same Client Identifier."""
    broker = Broker({named(KnowsAdmin): None, TABOO: None})
    others = Access(publish=False, subscribe=False, receive=False)
    broker.core.access = SeveralSources([broker.host, others])
    others.is_open = False
    assert not (await broker.connect("c", username="admin")).is_connected
    others.is_open = True
    user = await broker.connect("c", username="user")
    await user.send(Subscribe(1, (SubscriptionRequest("prohibited"),)))
    assert refusals(user) == [(0x80,)]


async def test_a_client_that_gets_another_name_is_judged_by_that() -> None:
    """As by that of its certificate; CONNECT may claim any."""
    broker = Broker({ANONYMOUS: None, TABOO: None})
    others = Access(publish=False, subscribe=False, receive=False)
    broker.core.access = SeveralSources([broker.host, others])
    others.answer = Accepted("user")
    user = await broker.connect("c", username="admin")
    await user.send(Subscribe(1, (SubscriptionRequest("prohibited"),)))
    assert refusals(user) == [(0x80,)]


def refusals(client: Client) -> list[tuple[int, ...]]:
    """Return the reason codes of each SUBACK that has come."""
    return [packet.reason_codes for packet in client.received() if isinstance(packet, SubAck)]
