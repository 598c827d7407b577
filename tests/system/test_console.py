"""The console of a real broker: what it shows is what happened, and it stays within its bounds."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from tests.helpers.commands import penstock
from tests.helpers.paho_client import MQTT_3_1_1, PahoClient
from tests.helpers.process import SECONDS, BrokerProcess, anonymous_policy, running_broker

ADMIN = {"console": {"http": "127.0.0.1:0", "anonymous": "admin"}}


def send(broker: BrokerProcess, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Return status and body of an answer of the console."""
    connection = http.client.HTTPConnection(urlsplit(broker.console_url).netloc, timeout=SECONDS)
    with contextlib.closing(connection):
        data = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        is_json = answer.headers["Content-Type"].startswith("application/json")
        return answer.status, json.loads(text) if is_json else text


def ask(broker: BrokerProcess, method: str, path: str, body: Any = None) -> Any:
    """Return the body of an answer that is no error."""
    status, answer = send(broker, method, path, body)
    assert status == 200, answer
    return answer


def metrics(broker: BrokerProcess) -> dict[str, float]:
    """Return the samples of ``/metrics`` by name and labels, as they are written."""
    lines = ask(broker, "GET", "/metrics").splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


def eventually(find: Callable[[], Any]) -> Any:
    """Wait until something is found; a test that fails waits for long."""
    done = threading.Event()
    for _ in range(int(SECONDS / 0.05)):
        with contextlib.suppress(AssertionError, KeyError, IndexError, TypeError):
            if found := find():
                return found
        done.wait(0.05)
    return find()


def test_overview_metrics_and_sys_tell_the_same_of_a_known_load(tmp_path: Path) -> None:
    """300 messages to two subscribers, three of them retained: the same numbers on every way."""
    policy = anonymous_policy(ADMIN, sys_interval=1)
    with (
        running_broker(policy, tmp_path) as broker,
        PahoClient(broker.port, "one") as one,
        PahoClient(broker.port, "two", MQTT_3_1_1) as two,
        PahoClient(broker.port, "publisher") as publisher,
        PahoClient(broker.port, "watcher") as watcher,
    ):
        for client in (one, two, publisher, watcher):
            assert client.connect()
        assert one.subscribe("load/#", 1)
        assert two.subscribe("load/#", 0)
        for n in range(300):
            publisher.publish(f"load/{n % 3}", b"x" * 100, 1, retain=n >= 297)
        for client in (one, two):
            client.payloads(300)

        def settled() -> Any:
            found = ask(broker, "GET", "/api/overview")
            return found if found["messages"]["delivered"] == 600 else None

        overview = eventually(settled)
        assert overview["messages"]["matched"] == 600
        assert overview["messages"]["inflight"] == overview["messages"]["queued"] == 0
        assert overview["clients"]["connected"] == overview["clients"]["sessions"] == 4
        assert overview["problems"] == overview["dropped"] == {}
        told = eventually(lambda: m if (m := metrics(broker)) else None)
        assert told["penstock_messages_delivered_total"] == 600
        assert told["penstock_received_messages_total"] == 300
        assert told["penstock_clients_connected"] == 4
        rows = {row["client_id"]: row for row in ask(broker, "GET", "/api/clients")["clients"]}
        assert sum(row["delivered"] for row in rows.values()) == 600
        assert (rows["one"]["version"], rows["two"]["version"]) == ("5.0", "3.1.1")
        assert rows["one"]["address"].startswith("127.0.0.1")
        awaited = {"messages/publish/received": b"300", "clients/connected": b"4"}
        for topic in awaited:
            assert watcher.subscribe(f"$SYS/broker/{topic}", 0)
        while awaited:  # $SYS follows within a second
            message = watcher.message()
            topic = message.topic.removeprefix("$SYS/broker/")
            if awaited.get(topic) == message.payload:
                del awaited[topic]
        retained = ask(broker, "GET", "/api/retained?filter=load/%23")
        assert [(row["topic"], row["bytes"]) for row in retained["retained"]] == [
            (f"load/{n}", 100) for n in range(3)
        ]


def test_an_operator_disconnects_bans_and_clears(tmp_path: Path) -> None:
    """Each action has its effect on real clients, and a line in the log."""
    with (
        running_broker(anonymous_policy(ADMIN), tmp_path) as broker,
        PahoClient(broker.port, "a/b") as client,
        PahoClient(broker.port, "publisher") as publisher,
    ):
        assert client.connect()
        assert publisher.connect()
        publisher.publish("kept", b"text", 1, retain=True)
        found = eventually(lambda: ask(broker, "GET", "/api/retained/kept"))
        assert (found["text"], found["bytes"]) == ("text", 4)
        assert ask(broker, "DELETE", "/api/retained/kept") == {"cleared": True}
        assert send(broker, "GET", "/api/retained/kept")[0] == 404
        path = f"/api/clients/{quote('a/b', safe='')}"
        found = ask(broker, "GET", path)
        assert found["row"]["is_connected"]
        assert found["why"][0] == "a/b: connected, listener default"
        assert [one["kind"] for one in found["lately"]] == ["connected"]
        done = ask(broker, "POST", f"{path}/disconnect", {"reason": "of a test"})
        assert done == {"disconnected": True}
        client.disconnected()
        client.close()
        ban = {"kind": "client_id", "value": "a/b", "seconds": 600, "reason": "a test"}
        ask(broker, "POST", "/api/bans", ban)
        assert [one["value"] for one in ask(broker, "GET", "/api/bans")["bans"]] == ["a/b"]
        with PahoClient(broker.port, "a/b") as banned:
            assert not banned.connect()
        ask(broker, "DELETE", f"/api/bans/client_id/{quote('a/b', safe='')}")
        with PahoClient(broker.port, "a/b") as back:
            assert back.connect()
            assert ask(broker, "DELETE", path) == {"ended": True}
            back.disconnected()
        for wrong in ({"kind": "user"}, {"kind": "address", "value": "x", "seconds": 1}, {"x": 1}):
            assert send(broker, "POST", "/api/bans", wrong)[0] == 400
        broker.wait_for_match(r"audit: .* POST /api/bans address x for 1 s: 400: ban: read address")
        broker.wait_for_match(r"audit: user \(no login\) from 127.0.0.1: DELETE /api/clients/a%2Fb")


def stream(broker: BrokerProcess, query: str = "") -> socket.socket:
    """Open a live tail, and wait until it has begun."""
    parts = urlsplit(broker.console_url)
    found = socket.create_connection((str(parts.hostname), int(parts.port or 0)), SECONDS)
    found.sendall(f"GET /api/tail{query} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
    return found


def read_until(connection: socket.socket, wanted: bytes, end: bytes = b"") -> bytes:
    """Read until a text has come, and another one after it, or to the end."""
    data = b""
    while wanted not in data or end not in data.partition(wanted)[2]:
        more = connection.recv(65_536)
        if not more:
            break
        data += more
    return data


def test_a_page_that_watches_sees_what_happens_and_the_end(tmp_path: Path) -> None:
    """Records without payloads; a stop does not wait for who watches."""
    with (
        running_broker(anonymous_policy(ADMIN), tmp_path) as broker,
        stream(broker, "?filter=seen/%23") as watching,
        PahoClient(broker.port, "publisher") as publisher,
    ):
        assert b"text/event-stream" in read_until(watching, b"\r\n\r\n")
        assert publisher.connect()
        publisher.publish("unseen/1", b"no", 1)
        publisher.publish("seen/1", b"a secret", 1)
        seen = read_until(watching, b'"seen/1"', b"\n\n")
        assert b"secret" not in seen
        assert b"unseen" not in seen
        records = [json.loads(line) for line in re.findall(rb"data: (\{.*\"kind.*\})", seen)]
        published = [one for one in records if one["kind"] == "publish"]
        assert [(one["client_id"], one["bytes"]) for one in published] == [("publisher", 8)]
        assert broker.stop() == 0
        assert b"event: end" in read_until(watching, b"event: end")


def test_too_many_who_watch_are_refused(tmp_path: Path) -> None:
    """16 streams may be open; one that leaves makes room."""
    with (
        running_broker(anonymous_policy(ADMIN), tmp_path) as broker,
        contextlib.ExitStack() as all_,
    ):
        streams = [all_.enter_context(stream(broker)) for _ in range(16)]
        for one in streams:
            assert b"200 OK" in read_until(one, b"\r\n\r\n")
        with stream(broker) as refused:
            assert b"503" in read_until(refused, b"\r\n\r\n")
        streams[0].close()

        def has_room() -> bool:
            with stream(broker) as another:
                return b"200 OK" in read_until(another, b"\r\n\r\n")

        assert eventually(has_room)


def test_many_slow_clients_of_http_leave_room(tmp_path: Path) -> None:
    """Whatever they leave unfinished, who asks is answered all the same; MQTT is not touched."""
    with (
        running_broker(anonymous_policy(ADMIN), tmp_path) as broker,
        PahoClient(broker.port, "client") as client,
        contextlib.ExitStack() as all_,
    ):
        assert client.connect()
        parts = urlsplit(broker.console_url)
        address = (str(parts.hostname), int(parts.port or 0))
        head = b"POST /api/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n"
        for begun in (b"", b"GET /healthz HTT", head):
            opened = [
                all_.enter_context(socket.create_connection(address, SECONDS)) for _ in range(334)
            ]
            for connection in opened:
                with contextlib.suppress(OSError):  # it was closed to make room
                    connection.sendall(begun)
        for connection in opened:
            with contextlib.suppress(OSError):
                connection.recv(1)  # its request is looked at
        for _ in range(3):
            assert ask(broker, "GET", "/healthz") == {"status": "ok"}
        assert client.subscribe("t", 1)


@contextlib.contextmanager
def flood(broker: BrokerProcess) -> Iterator[None]:
    """Have the broker relay more than it can."""
    stop = threading.Event()

    def publish() -> None:
        with PahoClient(broker.port) as publisher:
            assert publisher.connect()
            while not stop.is_set():
                publisher.paho.publish("flood", b"x" * 2_000, 0).wait_for_publish(SECONDS)

    threads = [threading.Thread(target=publish) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(SECONDS)


def test_an_overloaded_broker_still_answers(tmp_path: Path) -> None:
    """Page, metrics and health come while messages come as fast as they can."""
    with (
        running_broker(anonymous_policy(ADMIN), tmp_path) as broker,
        PahoClient(broker.port, "subscriber") as subscriber,
    ):
        assert subscriber.connect()
        assert subscriber.subscribe("flood", 0)
        with flood(broker):
            subscriber.message()
            for path in ("/healthz", "/readyz", "/api/overview", "/api/clients?sort=delivered"):
                assert ask(broker, "GET", path)
            assert metrics(broker)["penstock_received_messages_total"] > 0


def test_queues_are_managed_beside_clients(tmp_path: Path) -> None:
    """The routes of the queue's own API, with the console's roles."""
    queue = {"engine": "memory", "http": None, "queues": {"work": {"topics": ["a"]}}}
    with (
        running_broker(anonymous_policy(ADMIN | {"queue": queue}), tmp_path) as broker,
        PahoClient(broker.port, "publisher") as publisher,
    ):
        assert publisher.connect()
        publisher.publish("a", b"text", 1)
        shown = eventually(lambda: ask(broker, "GET", "/api/queues/work/peek")["messages"])
        assert shown[0]["topic"] == "a"
        listed = ask(broker, "GET", "/api/overview")["queues"]
        assert listed == [{"name": "work", "messages": 1, "lag": 1, "dead_letters": 0}]
        assert ask(broker, "POST", "/api/queues/work/purge", {}) == {"removed": 1}
        assert send(broker, "GET", "/api/stages")[0] == 404


def test_ready_says_why_not(tmp_path: Path) -> None:
    """A broker that drains is alive and not ready."""
    with running_broker(anonymous_policy(ADMIN), tmp_path) as broker:
        assert ask(broker, "GET", "/readyz") == {"status": "ready"}
        ask(broker, "POST", "/api/drain", {"seconds": 0})
        status, found = send(broker, "GET", "/readyz")
        assert (status, "draining" in found["problems"]) == (503, True)
        assert ask(broker, "GET", "/healthz") == {"status": "ok"}


def test_without_a_login_no_files_are_written(tmp_path: Path) -> None:
    """Also where everybody on the machine may act: the broker may be run by root."""
    with running_broker(anonymous_policy(ADMIN), tmp_path) as broker:
        status, told = send(broker, "POST", "/api/backup", {"path": str(tmp_path / "copy")})
    assert (status, told["error"][:11]) == (403, "login: read")
    assert not (tmp_path / "copy").exists()


def uplink(port: int) -> dict[str, Any]:
    """Return the settings of an uplink to a cloud."""
    cloud = {"upstream": {"address": f"127.0.0.1:{port}"}, "up": [{"filter": "site/#"}]}
    return {"uplink": {"site": "here", "uplinks": {"cloud": cloud}}}


def test_the_brokers_own_clients_are_in_no_figure_of_clients(tmp_path: Path) -> None:
    """One client beside those of an uplink: metrics, `$SYS`, overview and top tell of one."""
    edge = tmp_path / "edge"
    edge.mkdir()
    with (
        running_broker(anonymous_policy(), tmp_path) as cloud,
        running_broker(
            anonymous_policy(ADMIN | uplink(cloud.port), sys_interval=1), edge
        ) as broker,
        PahoClient(broker.port, "stock") as stock,
    ):
        assert stock.connect()
        own = 'penstock_listener_clients{listener="$local"}'
        told = eventually(lambda: found if (found := metrics(broker))[own] else None)
        names = ("clients_connected", "clients_connected_maximum", "sessions")
        assert [told[f"penstock_{name}"] for name in names] == [1, 1, 1]
        found = ask(broker, "GET", "/api/overview")["clients"]
        assert found == {"connected": 1, "sessions": 1, "maximum": 1}
        done = penstock("top", "--once", "--url", broker.console_url)
        assert ": 1 connected, 1 sessions\n" in done.out
        awaited = dict.fromkeys(("connected", "active", "maximum", "total"), b"1")
        awaited |= {"disconnected": b"0", "inactive": b"0"}
        for name in awaited:
            assert stock.subscribe(f"$SYS/broker/clients/{name}", 0)
        while awaited:  # $SYS follows within a second
            message = stock.message()
            name = message.topic.removeprefix("$SYS/broker/clients/")
            if awaited.get(name) == message.payload:
                del awaited[name]


def test_an_edge_broker_shows_its_uplinks(tmp_path: Path) -> None:
    """One whose cloud is not there says why; list, overview and metrics agree."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with running_broker(anonymous_policy(ADMIN | uplink(port)), tmp_path) as broker:
        me = ask(broker, "GET", "/api/me")
        assert (me["kind"], "uplinks" in me["has"]) == ("edge", True)

        def told() -> Any:
            (found,) = ask(broker, "GET", "/api/uplinks")["uplinks"]
            return found if found["lanes"][0]["why"] else None

        found = eventually(told)
        assert (found["name"], found["is_connected"]) == ("cloud", False)
        assert [lane["name"] for lane in found["lanes"]] == ["small", "large"]
        assert ask(broker, "GET", "/api/overview")["uplinks"][0]["name"] == "cloud"
        assert any('uplink="cloud"' in name for name in metrics(broker))
