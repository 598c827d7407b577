from __future__ import annotations

import asyncio
import logging
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as stock
import pytest
from paho.mqtt.enums import CallbackAPIVersion

import penstock.lanes.paho as mqtt
from penstock.plugins.console.commands.asking import Console
from tests.helpers.certificates import Authority
from tests.helpers.mosquitto import running_mosquitto
from tests.helpers.paho_client import PahoClient, publish_properties
from tests.helpers.process import SECONDS, BrokerProcess, anonymous_policy, running_broker
from tests.helpers.two_lanes import PICTURE, Application, is_connected, wait_for

ORDERED = [b"0", PICTURE + b"1", b"2", PICTURE + b"3", PICTURE + b"4", b"5"]
"""Payloads of one topic; `Application.payloads` leaves their last characters."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Run a broker for all tests of this file that want no other one."""
    plugins = {"console": {"http": "127.0.0.1:0"}}
    with running_broker(anonymous_policy(plugins), tmp_path_factory.mktemp("broker")) as running:
        yield running


def new_client(client_id: str) -> Any:
    """Return a client of MQTT 5."""
    return mqtt.Client(CallbackAPIVersion.VERSION2, client_id, protocol=mqtt.MQTTv5)


def publish_ordered(client: Any, topic: str, qos: int) -> list[Any]:
    """Publish small and large payloads of one topic."""
    return [client.publish(topic, payload, qos) for payload in ORDERED]


def n_inflight(broker: BrokerProcess, client_id: str) -> int:
    """Return how many messages a client has not acknowledged."""
    found: int = Console(broker.console_url).client(client_id)["ledger"]["inflight"]
    return found


@pytest.mark.parametrize("protocol", [mqtt.MQTTv5, None])
def test_a_topic_keeps_its_order_across_the_lanes(
    protocol: mqtt.MQTTProtocolVersion | None, broker: BrokerProcess
) -> None:
    """Both ways; each message comes once, in one thread; each Packet Identifier is told once."""
    with Application("dash", broker.port, topics="cam/#", protocol=protocol) as app:
        wait_for(lambda: app.is_on_two_lanes)
        infos = []
        for qos in (0, 1, 2):
            infos += publish_ordered(app.client, f"cam/{qos}", qos)
        for info in infos:
            info.wait_for_publish(SECONDS)
        by_topic: dict[str, list[bytes]] = {}
        for _ in infos:
            message = app.message()
            by_topic.setdefault(message.topic, []).append(bytes(message.payload)[-1:])
        order = [payload[-1:] for payload in ORDERED]
        assert by_topic["cam/1"] == by_topic["cam/2"] == order
        # Nobody acknowledges the first large one of QoS 0; all behind it are on its lane.
        assert sorted(by_topic["cam/0"]) == order
        assert by_topic["cam/0"][1:] == order[1:]
        wait_for(lambda: len(app.published) == len(infos))
        assert sorted(app.published) == [info.mid for info in infos]
        assert len(app.threads) == 1
    assert app.disconnects == ["Normal disconnection"]
    assert not app.has_more()


def test_what_is_published_at_once_goes_on_its_lane(broker: BrokerProcess) -> None:
    """Before the CONNACK: large messages are held until it is known whether there are lanes."""
    with PahoClient(broker.port, "watcher") as watcher:
        assert watcher.connect()
        assert watcher.subscribe("at once/#", 1)
        app = Application("early", broker.port, topics="none").connect()
        app.client.publish("at once/cam", PICTURE * 20, 1)
        app.client.publish("at once/alarm", b"a", 1)
        assert [watcher.message().topic[8:] for _ in range(2)] == ["alarm", "cam"]
        app.client.disconnect()
        app.client.loop_stop()


def test_a_subscription_is_there_before_what_is_published_next(broker: BrokerProcess) -> None:
    """On the other connection."""
    with Application("asker", broker.port, topics="none") as app:
        wait_for(lambda: app.is_on_two_lanes)
        for number in range(20):
            app.client.subscribe(f"answer/{number}", 1)
            app.client.publish(f"answer/{number}", PICTURE, 1)
        assert [app.message().topic for _ in range(20)] == [f"answer/{n}" for n in range(20)]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("leave", ["disconnect", "loop_stop"])
def test_what_was_published_before_the_end_is_delivered(
    leave: str, qos: int, broker: BrokerProcess
) -> None:
    """By both lanes, as by one."""
    with PahoClient(broker.port, "watcher") as watcher:
        assert watcher.connect()
        assert watcher.subscribe(f"end/{leave}/{qos}", 2)
        app = Application("leaver", broker.port, topics="none").connect()
        if leave == "disconnect":
            wait_for(lambda: app.is_on_two_lanes)
        publish_ordered(app.client, f"end/{leave}/{qos}", qos)
        getattr(app.client, leave)()
        payloads = watcher.payloads(len(ORDERED))
        assert sorted(payload[-1:] for payload in payloads) == [p[-1:] for p in ORDERED]
        app.client.disconnect()
        app.client.loop_stop()


def test_without_a_loop_everything_goes_by_the_first_connection(broker: BrokerProcess) -> None:
    """Nothing would serve the second one."""
    with PahoClient(broker.port, "watcher") as watcher:
        assert watcher.connect()
        assert watcher.subscribe("loopless", 1)
        client = new_client("loopless")
        client.connect("127.0.0.1", broker.port)
        client.publish("loopless", bytes(20_000))
        client.disconnect()
        assert watcher.payloads(1) == [bytes(20_000)]


def test_a_lane_comes_back_by_itself(broker: BrokerProcess) -> None:
    """Nothing is lost in both directions, and nobody is told."""
    with Application("lone", broker.port, topics="lone/#") as app:
        wait_for(lambda: app.is_on_two_lanes)
        app.cut(app.lane)
        publish_ordered(app.client, "lone/cam", 2)
        assert app.payloads(len(ORDERED)) == [payload[-1:] for payload in ORDERED]
        assert app.is_on_two_lanes
        assert not app.disconnects
        assert len(app.session_present) == 1


@pytest.mark.parametrize("protocol", [mqtt.MQTTv5, None])
def test_the_first_lane_comes_back_as_with_one_connection(
    protocol: mqtt.MQTTProtocolVersion | None, broker: BrokerProcess
) -> None:
    """Its loss and its return are told once; the large lane is there again."""
    options: dict[str, Any] = {"clean_session": False} if protocol is None else {}
    with Application(
        f"first-{protocol}", broker.port, expiry_seconds=60, protocol=protocol, **options
    ) as app:
        wait_for(lambda: app.is_on_two_lanes)
        app.cut(app.client)
        app.wait_until_lost()
        infos = publish_ordered(app.client, "first/cam", 2)
        app.wait_until_connected()
        assert app.session_present == [False, True]
        assert app.payloads(len(ORDERED)) == [payload[-1:] for payload in ORDERED]
        wait_for(lambda: all(info._published for info in infos))
        wait_for(lambda: app.is_on_two_lanes)
        assert len(app.disconnects) == 1


@pytest.mark.parametrize("protocol", [mqtt.MQTTv5, None])
def test_a_client_takes_over_from_one_connection_and_back(
    protocol: mqtt.MQTTProtocolVersion | None, broker: BrokerProcess
) -> None:
    """What waits for its session comes, whatever it has: nothing is lost or comes twice."""
    options: dict[str, Any] = {"clean_session": False} if protocol is None else {}
    protocol_ = mqtt.MQTTv311 if protocol is None else protocol
    topics = f"mover/{protocol}/#"
    number = 0
    for module in (stock, mqtt, stock, mqtt):
        wanted = protocol if module is mqtt else protocol_
        with Application(
            f"mover-{protocol}",
            broker.port,
            topics=topics,
            expiry_seconds=600,
            module=module,
            protocol=wanted,
            **options,
        ) as app:
            assert app.session_present == [number > 0]
            if number:
                assert app.payloads(len(ORDERED)) == [payload[-1:] for payload in ORDERED]
            if module is mqtt:
                wait_for(lambda app=app: app.is_on_two_lanes)  # type: ignore[misc]
            number += 1
        assert not app.has_more()
        with PahoClient(broker.port, "sender") as sender:
            assert sender.connect()
            for payload in ORDERED:
                sender.publish(f"mover/{protocol}/cam", payload)


@pytest.mark.parametrize("modules", [(stock, mqtt), (mqtt, stock)], ids=["to two", "to one"])
@pytest.mark.parametrize("protocol", [mqtt.MQTTv5, None])
def test_a_client_takes_over_from_one_that_is_connected(
    protocol: mqtt.MQTTProtocolVersion | None, modules: tuple[Any, Any], broker: BrokerProcess
) -> None:
    """What that one has not acknowledged comes again, before what is published later."""
    client_id = f"over-{protocol}-{modules[1].__name__}"
    options: dict[str, Any] = {"topics": f"{client_id}/#", "expiry_seconds": 600}
    if protocol is None:
        options["clean_session"] = False
    protocols = {mqtt: protocol, stock: mqtt.MQTTv311 if protocol is None else protocol}
    old, new = (
        Application(
            client_id,
            broker.port,
            module=module,
            protocol=protocols[module],
            manual_ack=module is modules[0],
            reconnect_on_failure=False,
            **options,
        )
        for module in modules
    )
    first, *later = ORDERED[1:]
    with PahoClient(broker.port, "sender") as sender, old:
        assert sender.connect()
        if modules[0] is mqtt:
            wait_for(lambda: old.is_on_two_lanes)
        sender.publish(f"{client_id}/cam", first)
        assert old.payloads(1) == [first[-1:]]
        with new:
            assert new.session_present == [True]
            for payload in later:
                sender.publish(f"{client_id}/cam", payload)
            assert new.payloads(5) == [payload[-1:] for payload in ORDERED[1:]]
        assert not new.has_more()


def test_a_message_with_a_topic_alias_goes_by_the_first_connection(broker: BrokerProcess) -> None:
    """The alias is one of that connection, whatever is published with it."""
    with Application("alias", broker.port, topics="alias/#") as app:
        wait_for(lambda: app.is_on_two_lanes)
        alias = publish_properties(TopicAlias=1)
        app.client.publish("alias/cam", b"0", 1, properties=alias)
        app.client.publish("", PICTURE + b"1", 1, properties=alias)
        assert app.payloads(2) == [b"0", b"1"]
        assert app.is_on_two_lanes


def test_a_killed_program_leaves_its_will_once_and_begins_anew(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """The next one of its Client Identifier has one connection, and gets every message."""
    script = tmp_path / "killed.py"
    script.write_text(
        "import sys, time\n"
        "import penstock.lanes.paho as mqtt\n"
        "client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, 'killed', protocol=mqtt.MQTTv5)\n"
        "client.will_set('will', 'gone', 1)\n"
        f"client.connect('127.0.0.1', {broker.port})\n"
        "client.loop_start()\n"
        "while not client._lane.is_up:\n"
        "    time.sleep(0.01)\n"
        "print('up', flush=True)\n"
        "time.sleep(1000)\n"
    )
    with PahoClient(broker.port, "watcher") as watcher:
        assert watcher.connect()
        assert watcher.subscribe("will", 1)
        with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as killed:
            assert killed.stdout is not None
            assert killed.stdout.readline() == b"up\n"
            killed.kill()
        assert watcher.payloads(1) == [b"gone"]
        with Application("killed", broker.port, topics="cam", module=stock) as app:
            watcher.publish("cam", PICTURE + b"1")
            watcher.publish("will", b"end")
            assert app.payloads(1) == [b"1"]
        assert watcher.payloads(1) == [b"end"]


def test_a_lane_that_the_broker_forgets_is_made_again(broker: BrokerProcess) -> None:
    """Another client has ended its session; what it had goes on."""
    with Application("forgotten", broker.port, topics="forgotten/#") as app:
        wait_for(lambda: app.is_on_two_lanes)
        with PahoClient(broker.port, "forgotten.large-lane") as intruder:
            assert intruder.connect(clean_start=True)
        publish_ordered(app.client, "forgotten/cam", 1)
        assert app.payloads(len(ORDERED)) == [payload[-1:] for payload in ORDERED]
        wait_for(lambda: app.is_on_two_lanes)
        assert not app.disconnects


def test_a_lane_that_is_refused_leaves_one_connection_until_it_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning says why, and one that there are two now."""
    caplog.set_level(logging.WARNING, "penstock.lanes")
    policy = anonymous_policy(limits={"sessions_per_address": 2})
    with running_broker(policy, tmp_path) as broker, PahoClient(broker.port, "other") as other:
        assert other.connect()
        with Application("refused", broker.port, topics="cam") as app:
            publish_ordered(app.client, "cam", 2)
            assert app.payloads(len(ORDERED)) == [payload[-1:] for payload in ORDERED]
            assert not app.is_on_two_lanes
            other.close()
            wait_for(lambda: app.is_on_two_lanes)
            publish_ordered(app.client, "cam", 2)
            assert app.payloads(len(ORDERED)) == [payload[-1:] for payload in ORDERED]
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        (
            "refused: one connection for all messages: the one for large messages, "
            "refused.large-lane, has failed: refused by the broker: Quota exceeded"
        ),
        "refused: two connections",
    ]


def test_a_user_name_in_place_of_the_client_id_leaves_one_connection(tmp_path: Path) -> None:
    """Both lanes would be one client, and end each other."""
    users = tmp_path / "users"
    command = [sys.executable, "-m", "penstock", "passwd", str(users), "ann"]
    subprocess.run(command, input=b"secret\nsecret\n", check=True)
    access = {"password_file": str(users), "username_as_client_id": True}
    policy = {"listeners": {"default": {"bind": "127.0.0.1:0"}}, "plugins": {"access": access}}
    with running_broker(policy, tmp_path) as broker:
        for protocol in (mqtt.MQTTv5, None):
            app = Application("ann's", broker.port, topics="cam", protocol=protocol)
            app.client.username_pw_set("ann", "secret")
            with app:
                publish_ordered(app.client, "cam", 1)
                assert app.payloads(len(ORDERED)) == [payload[-1:] for payload in ORDERED]
                assert not app.is_on_two_lanes
            assert app.disconnects == ["Normal disconnection"]


def test_a_client_id_that_leaves_no_room_has_one_connection(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once which is the longest, and not where one connection is asked for."""
    told = "client id of 65530 bytes; allowed with two: 65524"
    for protocol, n_warnings in ((mqtt.MQTTv311, 0), (mqtt.MQTTv5, 1)):
        with Application("i" * 65_530, broker.port, topics="long", protocol=protocol) as app:
            app.cut(app.client)
            app.wait_until_lost()
            app.wait_until_connected()
            app.client.subscribe("long", 2)
            publish_ordered(app.client, "long", 1)
            assert app.payloads(len(ORDERED)) == [payload[-1:] for payload in ORDERED]
            assert app.lane is None
        assert caplog.text.count(told) == n_warnings


def test_a_program_that_asks_for_mqtt_3_1_1_has_one_connection(broker: BrokerProcess) -> None:
    """Also where its broker has lanes."""
    with Application("old", broker.port, topics="old", protocol=mqtt.MQTTv311) as app:
        publish_ordered(app.client, "old", 1)
        assert app.payloads(len(ORDERED)) == [payload[-1:] for payload in ORDERED]
        assert not is_connected(broker, "old.large-lane")
    with Application("", broker.port, topics="new", protocol=None) as app:
        wait_for(lambda: app.is_on_two_lanes)
        assert app.lane is not None
        assert is_connected(broker, app.lane._client_id.decode())


@pytest.mark.parametrize("protocol", [mqtt.MQTTv5, None])
def test_another_broker_sees_one_connection(
    protocol: mqtt.MQTTProtocolVersion | None, tmp_path: Path
) -> None:
    """In the order of publishing; in MQTT 3.1.1 the second one asks once and is gone."""
    with (
        running_mosquitto(tmp_path) as mosquitto,
        Application("plain", mosquitto.port, topics="cam/#", protocol=protocol) as app,
    ):
        infos = publish_ordered(app.client, "cam/1", 1)
        assert app.payloads(len(ORDERED)) == [payload[-1:] for payload in ORDERED]
        for info in infos:
            info.wait_for_publish(SECONDS)
        assert app.lane is None
        app.cut(app.client)
        app.wait_until_lost()
        app.wait_until_connected()
        publish_ordered(app.client, "cam/1", 1)
        assert app.payloads(len(ORDERED)) == [payload[-1:] for payload in ORDERED]
        assert app.lane is None


def test_both_lanes_count_together_as_queued(broker: BrokerProcess) -> None:
    """`max_queued_messages_set` is the limit of both."""
    client = new_client("queue")
    client.max_queued_messages_set(3)
    client.connect("127.0.0.1", broker.port)
    held = threading.Event()
    client.on_connect = lambda *_: held.wait(SECONDS)
    client.loop_start()
    codes = [client.publish("queue", PICTURE, 1).rc for _ in range(4)]
    assert codes == [0, 0, 0, mqtt.MQTT_ERR_QUEUE_SIZE]
    held.set()
    client.disconnect()
    client.loop_stop()


def test_messages_of_both_lanes_are_acknowledged_by_hand(broker: BrokerProcess) -> None:
    """Their Packet Identifiers are not the same, though both connections begin with one."""
    with Application("hand", broker.port, topics="hand/#", manual_ack=True) as app:
        wait_for(lambda: app.is_on_two_lanes)
        app.client.publish("hand/cam", PICTURE, 1)
        app.client.publish("hand/alarm", b"a", 1)
        messages = [app.message() for _ in range(2)]
        assert len({message.mid for message in messages}) == 2
        assert n_inflight(broker, "hand") == n_inflight(broker, "hand.large-lane") == 1
        for message in messages:
            app.client.ack(message.mid, message.qos)
        wait_for(lambda: n_inflight(broker, "hand") + n_inflight(broker, "hand.large-lane") == 0)


@pytest.mark.parametrize("kind", ["tls", "ws", "unix"])
def test_lanes_use_every_transport(kind: str, tmp_path: Path) -> None:
    """TLS and WebSocket may have bytes that a socket does not show."""
    authority = Authority(tmp_path)
    listeners: dict[str, Any] = {
        "tls": authority.listener_keys(),
        "ws": {"bind": "127.0.0.1:0", "type": "ws"},
        "unix": {"bind": f"unix:{tmp_path}/mqtt.sock"},
        "default": {"bind": "127.0.0.1:0"},
    }
    transport = {"tls": "tcp", "ws": "websockets", "unix": "unix"}[kind]
    with running_broker(anonymous_policy(listeners=listeners), tmp_path) as broker:
        broker.wait_for_log(f"listener {kind}: listening")
        host = f"{tmp_path}/mqtt.sock" if kind == "unix" else "localhost"
        port = broker.ports.get(kind, 1)
        app = Application(kind, port, topics="cam/#", host=host, transport=transport)
        if kind == "tls":
            app.client.tls_set_context(authority.client_context())
        with app:
            wait_for(lambda: app.is_on_two_lanes)
            for number in range(5):
                publish_ordered(app.client, f"cam/{number}", 1)
            by_topic: dict[str, bytes] = {}
            for _ in range(5 * len(ORDERED)):
                message = app.message()
                by_topic[message.topic] = by_topic.get(message.topic, b"") + message.payload[-1:]
            assert by_topic == {f"cam/{number}": b"012345" for number in range(5)}


def test_a_broker_that_restarts_keeps_both_lanes(tmp_path: Path) -> None:
    """Killed, with messages for both."""
    policy = anonymous_policy(
        persistence={"path": str(tmp_path / "sessions.db"), "durability": "normal"}
    )
    with running_broker(policy, tmp_path) as broker:
        app = Application("lasting", broker.port, topics="cam", expiry_seconds=600)
        app.connect()
        app.wait_until_connected()
        wait_for(lambda: app.is_on_two_lanes)
        infos = publish_ordered(app.client, "cam", 2)
        broker.kill()
    policy["listeners"]["default"]["bind"] = f"127.0.0.1:{broker.port}"
    with running_broker(policy, tmp_path):
        assert app.payloads(len(ORDERED)) == [payload[-1:] for payload in ORDERED]
        wait_for(lambda: all(info._published for info in infos))
        wait_for(lambda: app.is_on_two_lanes)
        app.client.disconnect()
        app.client.loop_stop()
    assert not app.has_more()


def test_a_loop_of_the_application_serves_both_lanes(broker: BrokerProcess) -> None:
    """By `select` on the one socket that it knows, as in paho's example."""
    client = new_client("select")
    got: list[str] = []
    client.on_connect = lambda *_: client.subscribe("select/#", 1)
    client.on_subscribe = lambda *_: client.publish("select/cam", PICTURE, 1)
    client.on_message = lambda _c, _u, message: got.append(message.topic)
    ended: list[str] = []
    client.on_disconnect = lambda *told: ended.append(str(told[3]))
    client.connect("127.0.0.1", broker.port)
    while not ended:
        sock = client.socket()
        readable, writable, _ = select.select(
            [sock], [sock] if client.want_write() else [], [], 0.1
        )
        if readable:
            client.loop_read()
        if writable:
            client.loop_write()
        client.loop_misc()
        if len(got) == 1 and client._lane is not None and client._lane.is_up:
            client.publish("select/cam", PICTURE, 1)
            client.publish("select/alarm", b"a", 1)
            got.append("")
        if len(got) == 4:
            client.disconnect()
            got.append("")
    assert sorted(got) == ["", "", "select/alarm", "select/cam", "select/cam"]
    assert ended == ["Normal disconnection"]


async def test_an_event_loop_serves_both_lanes(broker: BrokerProcess) -> None:
    """By the callbacks for sockets, which name the client to call, as in paho's example."""
    loop = asyncio.get_running_loop()
    client = new_client("loop")
    got: asyncio.Queue[str] = asyncio.Queue()
    ended = asyncio.Event()
    client.on_socket_open = lambda c, _u, sock: loop.add_reader(sock, c.loop_read)
    client.on_socket_close = lambda _c, _u, sock: loop.remove_reader(sock)
    client.on_socket_register_write = lambda c, _u, sock: loop.add_writer(sock, c.loop_write)
    client.on_socket_unregister_write = lambda _c, _u, sock: loop.remove_writer(sock)
    client.on_connect = lambda *_: client.subscribe("loop/#", 1)
    client.on_message = lambda _c, _u, message: got.put_nowait(message.topic)
    client.on_disconnect = lambda *_: ended.set()

    async def misc() -> None:
        while client.loop_misc() == mqtt.MQTT_ERR_SUCCESS:  # noqa: ASYNC110 (as paho asks for)
            await asyncio.sleep(0.05)

    client.connect("127.0.0.1", broker.port)
    task = asyncio.create_task(misc())
    while not (client._lane is not None and client._lane.is_up):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    client.publish("loop/cam", PICTURE * 10, 1)
    client.publish("loop/alarm", b"a", 1)
    async with asyncio.timeout(SECONDS):
        assert [await got.get() for _ in range(2)] == ["loop/alarm", "loop/cam"]
        client.disconnect()
        await ended.wait()
        await task


def test_callbacks_of_version_1_have_their_arguments(broker: BrokerProcess) -> None:
    """Those of MQTT 3.1.1, as the program names no version."""
    told: list[tuple[Any, ...]] = []
    published: list[int] = []
    done = threading.Event()

    class Old(mqtt.Client):
        def on_connect(self, _client: Any, _userdata: Any, flags: Any, rc: int) -> None:
            told.append((flags, rc))
            self.subscribe([("old/cam", 1), ("old/alarm", 1)])

        def on_message(self, _client: Any, _userdata: Any, message: Any) -> None:
            told.append((message.topic, len(message.payload)))
            self.disconnect()

    def on_subscribe(_client: Any, _userdata: Any, _mid: int, granted: tuple[int, ...]) -> None:
        told.append(granted)
        client.publish("old/cam", PICTURE, 1)

    def on_disconnect(_client: Any, _userdata: Any, rc: int) -> None:
        told.append((rc,))
        done.set()

    with pytest.deprecated_call():
        client: Any = Old(client_id="version1")
    client.on_subscribe = on_subscribe
    client.on_publish = lambda _c, _u, mid: published.append(mid)
    client.on_disconnect = on_disconnect
    client.connect("127.0.0.1", broker.port)
    client.loop_start()
    assert done.wait(SECONDS)
    client.loop_stop()
    assert told[0] == ({"session present": 0}, 0)
    assert told[1] == (1, 1)
    assert ("old/cam", len(PICTURE)) in told
    assert told[-1] == (0,)
    assert len(published) == 1
