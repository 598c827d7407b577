from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import pickle
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import trustme

from penstock.netem.runs.broker_process import reserved_port
from penstock.plugins.queue.batch_format import write_batch, write_deliveries
from penstock.plugins.queue.client import (
    AccessError,
    ConflictError,
    NoAnswerError,
    NotStoredError,
    OtherIncarnationError,
    OutgoingMessage,
    Position,
    QueueClient,
    QueueError,
    RangeGoneError,
    UnknownNameError,
    error_of,
    read_token,
)
from penstock.plugins.queue.wire.frames import Batch, ReceivedMessage
from tests.plugins.queue.running import running_plugin

QUEUES = {
    "work": {"topics": ["a/#"], "physical_queues": 2},
    "log": {"topics": ["a/#"], "physical_queues": 2, "groups": {"reader": {"kind": "offsets"}}},
}


def read_request(stream: BinaryIO) -> bytes:
    """Return one whole request, which may come in several segments; b"" at the end."""
    head = b""
    while (line := stream.readline()) not in (b"", b"\r\n"):
        head += line
    length = re.search(rb"content-length: (\d+)", head.lower())
    return head + stream.read(int(length[1])) if length else head


@contextmanager
def scripted_server(*answers: bytes | None) -> Iterator[tuple[str, list[bytes]]]:
    """Serve one answer a request, each connection until an answer of None closes it.

    Yields:
        (URL, requests as they come).
    """
    requests: list[bytes] = []
    script = iter(answers)

    def serve_connection(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while request := read_request(stream):
                requests.append(request)
                answer = next(script, None)
                if answer is None:
                    return
                connection.sendall(answer)
                if b"Connection: close" in answer or b"X-Close: silently" in answer:
                    return

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            serve_connection(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests
        finally:
            listener.shutdown(socket.SHUT_RDWR)
    thread.join()


@contextmanager
def served(**keys: Any) -> Iterator[str]:
    """Run the plugin, with these keys of the policy file, in a thread; yield its URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    running = running_plugin(**keys)
    try:
        plugin = asyncio.run_coroutine_threadsafe(running.__aenter__(), loop).result()
        try:
            yield f"{plugin.http_url}"
        finally:
            asyncio.run_coroutine_threadsafe(running.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def client() -> Iterator[QueueClient]:
    """Return a client of a server of `QUEUES`."""
    with served(queues=QUEUES) as url, closing(QueueClient(url)) as client:
        yield client


def answer(body: bytes, status: str = "200 OK", more: str = "") -> bytes:
    """Return an HTTP answer."""
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


def test_messages_go_through_the_queue(client: QueueClient) -> None:
    """Enqueue, receive and settle as a back end does them."""
    stored = client.enqueue("work", [("a/1", b"\x00"), ("a/2", b"two")], publisher="me")
    assert stored == (2, [])
    received = client.receive("work", wait_seconds=5)
    received += client.receive("work", wait_seconds=5) if len(received) < 2 else []
    assert sorted((one.topic, one.payload, one.publisher) for one in received) == [
        ("a/1", b"\x00", "me"),
        ("a/2", b"two", "me"),
    ]
    handles = [one.receipt_handle for one in received]
    assert client.settle("work", handles, "extend", seconds=60) == {}
    assert client.settle("work", handles) == {}
    assert client.settle("work", [*handles, "forged"]) == {
        0: "stale",
        1: "stale",
        2: "unknown",
    }
    assert client.receive("work") == []
    assert [queue["messages"] for queue in client.queues()] == [0, 0]


def test_settings_change_by_themselves_and_stored_messages_have_ids(client: QueueClient) -> None:
    """What is left out stays; an id is the place that a receiver is told."""
    client.change_queue("work", {"max_messages": 7})
    client.change_group("work", "default", {"visibility_timeout": 5})
    assert client.change_queue("work", {"n_max": 9})["settings"]["max_messages"] == 7
    (group,) = client.groups_of("work")
    assert group["settings"]["visibility_timeout"] == 5
    enqueued = client.enqueue("work", [("a", b"x")] * 3)
    received = client.receive("work", max_messages=9, min_messages=3, wait_seconds=5)
    places = {f"{one.physical_queue}-{one.offset}" for one in received}
    assert places <= set(enqueued.ids)
    assert len(set(enqueued.ids)) == 3


def test_a_receive_acknowledges_what_the_last_one_has_brought(client: QueueClient) -> None:
    """One request instead of two, until nothing is left."""
    client.enqueue("work", [(f"a/{n}", b"") for n in range(5)])
    found: list[str] = []
    handles: list[str] = []
    while batch := client.receive("work", max_messages=2, acknowledge=handles):
        assert batch.failed == {}
        found += [one.topic for one in batch]
        handles = [one.receipt_handle for one in batch]
    assert sorted(found) == [f"a/{n}" for n in range(5)]
    assert [queue["messages"] for queue in client.queues()] == [0, 0]
    batch = client.receive("work", acknowledge=["forged", *handles])
    assert batch.failed == {
        0: "unknown",
        **dict.fromkeys(range(1, 1 + len(handles)), "stale"),
    }


def test_a_message_that_is_given_back_comes_again_and_may_become_a_dead_letter(
    client: QueueClient,
) -> None:
    """`nack`, `dead` and redrive, and a look at what waits."""

    def receive() -> ReceivedMessage:
        (received,) = client.receive("new", wait_seconds=5, visibility_timeout=600)
        return received

    client.put_queue("failed", {"physical_queues": 1})
    groups = {"default": {"dead_letter_queue": "failed"}}
    client.put_queue("new", {"physical_queues": 1, "groups": groups})
    client.enqueue("new", [("a", b"poison")])
    assert client.settle("new", [receive().receipt_handle], "nack") == {}
    again = receive()
    assert (again.payload, again.receive_count) == (b"poison", 2)
    assert client.settle("new", [again.receipt_handle], "dead") == {}
    (peeked,) = client.peek("failed")
    assert base64.b64decode(peeked["payload"]) == b"poison"
    assert client.peek("new", group="default") == []
    assert client.redrive("failed") == 1
    assert receive().payload == b"poison"


def test_ranges_are_planned_read_and_committed(client: QueueClient) -> None:
    """Positions, ranges and commit as Spark uses them."""
    client.enqueue("log", [(f"a/{n}", b"%d" % n) for n in range(10)])
    start = client.position("log")
    assert dict(start.offsets) == {0: 0, 1: 0}
    end = client.plan("log", start)
    assert end == client.position("log", "latest")
    assert end == Position(start.incarnation, {0: 5, 1: 5})
    assert client.plan("log", end, wait_seconds=0.01) == end
    assert sum(client.plan("log", start, max_messages=4).offsets.values()) == 4
    batch = client.read_range("log", 1, 1, 5, incarnation=start.incarnation)
    assert batch.offset == [1, 2, 3, 4]
    assert len(set(batch.payload)) == 4
    assert client.read_range("log", 1, 1, 5) == batch
    assert client.read_range("log", 1, 1, 5, max_messages=2).offset == [1, 2]
    assert client.read_range("log", 1, 5, 5) == Batch([], [], [], [], [], [], [])
    client.commit("log", "reader", Position(start.incarnation, {0: 5, 1: 3}))
    assert dict(client.position("log").offsets) == {0: 5, 1: 3}
    with pytest.raises(RangeGoneError, match="allowed: 3 or more") as raised:
        client.read_range("log", 1, 1, 5)
    assert (raised.value.status, raised.value.earliest) == (410, 3)
    assert dict(client.seek("log", "reader", "latest").offsets) == {0: 5, 1: 5}


def test_positions_of_a_queue_that_was_deleted_are_refused(client: QueueClient) -> None:
    """A queue of the same name is another one, whatever its offsets are."""
    settings = {"physical_queues": 1, "groups": {"reader": {"kind": "offsets"}}}
    client.put_queue("new", settings)
    client.enqueue("new", [("a", b"1")])
    old = client.position("new", "latest")
    client.delete_queue("new")
    client.put_queue("new", settings)
    client.enqueue("new", [("a", b"2")])
    new = client.position("new").incarnation
    asks: list[Callable[[], object]] = [
        lambda: client.plan("new", old),
        lambda: client.read_range("new", 0, 0, 1, incarnation=old.incarnation),
        lambda: client.commit("new", "reader", old),
    ]
    for ask in asks:
        with pytest.raises(OtherIncarnationError) as raised:
            ask()
        assert (raised.value.status, raised.value.incarnation) == (409, new)


def test_queues_and_groups_are_created_changed_and_deleted(client: QueueClient) -> None:
    """Settings are those of the policy file."""
    client.put_queue("new", {"max_messages": 1})
    with pytest.raises(NotStoredError) as raised:
        client.enqueue("new", [("a", b"1"), ("a", b"2")])
    assert raised.value.status == 429
    assert (raised.value.stored, raised.value.refused) == (1, {1: "queue_full"})
    client.put_queue("new", {"max_messages": 2})
    assert client.enqueue("new", [("a", b"2")]).stored == 1
    client.put_group("new", "late", {"start": "latest"})
    assert client.receive("new", "late") == []
    client.delete_group("new", "late")
    with pytest.raises(UnknownNameError):
        client.group("new", "late")
    assert client.purge("new") == 2
    client.delete_queue("new")
    with pytest.raises(UnknownNameError):
        client.queue("new")


def test_a_message_with_a_known_identifier_is_not_stored_again(
    client: QueueClient,
) -> None:
    """The answer says which it was."""
    message = OutgoingMessage("a", b"1", deduplication_id="17")
    assert client.enqueue("work", [message]) == (1, [])
    assert client.enqueue("work", [("a", b"2"), message]) == (1, [1])


def test_range_longer_than_one_answer_comes_whole(client: QueueClient) -> None:
    """The client asks on until it has the range."""
    for n in range(10):
        client.enqueue("log", [("a", bytes([n]) * 1_000_000)] * 2)
    (n_0, n_1) = client.position("log", "latest").offsets.values()
    batches = client.read_range("log", 0, 0, n_0), client.read_range("log", 1, 0, n_1)
    assert [len(batch.offset) for batch in batches] == [n_0, n_1]
    payloads = batches[0].payload + batches[1].payload
    assert sorted(payload[0] for payload in payloads) == sorted([*range(10)] * 2)


def test_refusal_carries_status_and_reason(client: QueueClient) -> None:
    """What the server says against a request is the error's message."""
    with pytest.raises(UnknownNameError, match=r"404: queue.*no.*log, work"):
        client.position("no")
    with pytest.raises(ConflictError):
        client.receive("log", "reader")


TOKENS = """
tokens:
- name: reader
  token_sha256: {digest}
  roles: {{work: [read]}}
"""


def test_a_token_says_what_a_client_may_do(tmp_path: Path) -> None:
    """No token, a wrong one, and one without the role are refused as `AccessError`."""
    digest = hashlib.sha256(b"the token").hexdigest()
    (tmp_path / "tokens.yaml").write_text(TOKENS.format(digest=digest))
    with served(queues=QUEUES, tokens=str(tmp_path / "tokens.yaml")) as url:

        def status(token: str | None, ask: Callable[[QueueClient], object]) -> int:
            try:
                ask(QueueClient(url, token=token))
            except AccessError as error:
                return error.status
            return 200

        assert status(None, lambda client: client.queue("work")) == 401
        assert status("a token", lambda client: client.queue("work")) == 401
        assert status("the token", lambda client: client.receive("work")) == 200
        assert status("the token", lambda client: client.enqueue("work", [("a", b"")])) == 403
        assert status("the token", lambda client: client.receive("log")) == 403


def test_tls_is_checked_by_the_authority_that_is_named(tmp_path: Path) -> None:
    """A server is believed with `ca_file`, and not without."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    tls = {"certificate": str(tmp_path / "server.pem"), "key": str(tmp_path / "server.pem")}
    with served(queues=QUEUES, http_tls=tls) as url:
        assert url.startswith("https://")
        client = QueueClient(url, ca_file=str(tmp_path / "ca.pem"))
        sent = pickle.loads(pickle.dumps(client))  # noqa: S301 (made here)
        for one in (client, sent):
            assert len(one.queues()) == 2
        with pytest.raises(NoAnswerError, match="certificate verify failed"):
            QueueClient(url).queues()


def test_client_is_shared_by_threads(client: QueueClient) -> None:
    """Each thread has its own connection."""

    def enqueue(number: int) -> int:
        message = ("a", b"%d" % number)
        return sum(client.enqueue("work", [message]).stored for _ in range(20))

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(enqueue, range(4))) == 80
    assert client.queue("work")["messages"] == 80


def test_client_can_be_sent_to_another_process() -> None:
    """Spark pickles what its executors use."""
    made = QueueClient("http://127.0.0.1:1", 5, token="secret")
    client = pickle.loads(pickle.dumps(made))  # noqa: S301 (made here)
    assert (client.url, client.timeout_seconds) == ("http://127.0.0.1:1", 5)
    gone = error_of(410, "gone", {"earliest": 5})
    error = pickle.loads(pickle.dumps(gone))  # noqa: S301 (made here)
    assert isinstance(error, RangeGoneError)
    assert (error.status, error.message, error.earliest) == (410, "gone", 5)


def test_connection_is_kept_and_renewed_when_the_server_has_closed_it() -> None:
    """Requests share a connection; one that was closed meanwhile costs no error."""
    good = answer(b'{"queues": []}')
    closing = answer(b'{"queues": []}', more="Connection: close\r\n")
    with scripted_server(good, closing, good) as (url, requests):
        client = QueueClient(url)
        for _ in range(3):
            assert client.queues() == []
        client.close()
    assert len(requests) == 3


def test_connection_that_breaks_under_a_repeatable_request_is_tried_again() -> None:
    """A kept connection may break as the request is sent; what may be repeated is."""
    good = answer(b'{"queues": []}')
    with scripted_server(good, None, good) as (url, requests):
        client = QueueClient(url)
        client.queues()
        assert client.queues() == []
        client.close()
    assert len(requests) == 3


def test_enqueue_is_not_repeated_by_itself() -> None:
    """Whether a broken enqueue was stored is not known: its caller decides."""
    with scripted_server(answer(b'{"stored": 1}'), None) as (url, requests):
        client = QueueClient(url)
        client.enqueue("q", [("a", b"1")])
        with pytest.raises(QueueError, match="no answer from http") as raised:
            client.enqueue("q", [("a", b"2")])
        assert raised.value.status == 0
        client.close()
    assert len(requests) == 2


def test_enqueue_with_deduplication_identifiers_is_repeated() -> None:
    """The server stores the messages once, however often they come."""
    good = answer(b'{"stored": 1}')
    with scripted_server(good, None, good) as (url, requests):
        client = QueueClient(url)
        for n in (1, 2):
            client.enqueue("q", [OutgoingMessage("a", b"", deduplication_id=str(n))])
        client.close()
    assert len(requests) == 3


def test_a_message_is_sent_with_all_that_it_has() -> None:
    """What is not given is left to the server."""
    message = OutgoingMessage("a", b"x", {"content_type": "text/plain"}, "k", 2.5, "17")
    with scripted_server(answer(b'{"stored": 2, "duplicates": []}')) as (url, requests):
        client = QueueClient(url, token="secret")
        client.enqueue("q", [message, ("b", b"")])
        client.close()
    assert b"\r\nAuthorization: Bearer secret\r\n" in requests[0]
    body = json.loads(requests[0][requests[0].index(b"{") :])
    assert body["messages"] == [
        {
            "topic": "a",
            "payload": "eA==",
            "properties": {"content_type": "text/plain"},
            "key": "k",
            "delay_seconds": 2.5,
            "deduplication_id": "17",
        },
        {"topic": "b", "payload": ""},
    ]


def test_connection_that_was_closed_meanwhile_is_not_used() -> None:
    """Even an enqueue, which is not repeated, goes through after the server has closed."""
    closing = answer(b'{"stored": 1}', more="X-Close: silently\r\n")
    with scripted_server(closing, closing) as (url, requests):
        client = QueueClient(url)
        for _ in range(2):
            assert client.enqueue("q", [("a", b"1")]).stored == 1
            # The end of the stream is there before the next request.
            assert client._requests._local.connection.sock.recv(1, socket.MSG_PEEK) == b""
        client.close()
    assert len(requests) == 2


def test_long_poll_may_take_longer_than_the_timeout(client: QueueClient) -> None:
    """The timeout is on top of what the client asked the server to wait."""
    client.enqueue("work", [("a", b"x")])
    patient = QueueClient(client.url, timeout_seconds=5)
    assert len(patient.receive("work", wait_seconds=7)) == 1
    assert patient._requests._local.connection.sock.gettimeout() == 12


def test_server_that_is_not_there_is_told() -> None:
    """A connection that is refused names the URL."""
    with reserved_port() as port:
        url = f"http://127.0.0.1:{port}"
        with pytest.raises(QueueError, match=f"no answer from {url}: .*refused") as raised:
            QueueClient(url).queues()
    assert raised.value.status == 0


def test_server_that_does_not_answer_is_told() -> None:
    """A request ends with its timeout."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(QueueError, match=r"no answer from http://.*timed out"):
            QueueClient(url, timeout_seconds=0.05).queues()


BATCH = Batch([5], ["a"], [b"x"], [0], [""], [0.0], [""])
DELIVERY = ReceivedMessage("h", 1, 0, 5, "a", b"x", 0, "", 0.0, "")


@pytest.mark.parametrize(
    ("body", "ask"),
    [
        (b"no json", lambda client: client.queues()),
        (b"[]", lambda client: client.queues()),
        (b'{"offsets": []}', lambda client: client.position("q")),
        (b"no frame", lambda client: client.receive("q")),
        (write_batch(BATCH)[:-1], lambda client: client.read_range("q", 0, 0, 9)),
        (write_deliveries([DELIVERY]), lambda client: client.read_range("q", 0, 0, 9)),
    ],
)
def test_answer_that_cannot_be_read_is_told(
    body: bytes, ask: Callable[[QueueClient], object]
) -> None:
    """Something else than a queue on the other end is a `QueueError`, never a strange result."""
    with scripted_server(answer(body)) as (url, _):
        client = QueueClient(url)
        with pytest.raises(QueueError, match="200: answer of /queues"):
            ask(client)
        client.close()


@pytest.mark.parametrize("told", ["no json", "[]", '{"stale": 3}', '{"stale": ["x"]}'])
def test_a_header_that_cannot_be_read_is_told(told: str) -> None:
    """As a body is."""
    with scripted_server(answer(b"", more=f"Penstock-Not-Acknowledged: {told}\r\n")) as (url, _):
        client = QueueClient(url)
        with pytest.raises(QueueError, match="200: answer of /queues"):
            client.receive("q", acknowledge=["h"])
        client.close()


@pytest.mark.parametrize(
    ("body", "told"),
    [(b"<html>Bad Gateway", "<html>Bad Gateway"), (b"[]", "[]"), (b"", "gave no reason")],
)
def test_refusal_of_something_between_is_told(body: bytes, told: str) -> None:
    """A proxy's error is shown as it is."""
    with scripted_server(answer(body, "502 Bad Gateway")) as (url, _):
        client = QueueClient(url)
        with pytest.raises(QueueError) as raised:
            client.queues()
        assert raised.value.status == 502
        assert told in raised.value.message
        client.close()


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://h", "http://", "http://h:port", ""])
def test_wrong_url_is_told(url: str) -> None:
    """A URL without scheme or host is refused when the client is made."""
    with pytest.raises(ValueError, match=r"queue URL: read .*; allowed: http://HOST:PORT"):
        QueueClient(url)


def test_client_keeps_the_path_of_its_url() -> None:
    """The API may stand behind a prefix."""
    with scripted_server(answer(b'{"queues": []}')) as (url, requests):
        client = QueueClient(f"{url}/penstock/")
        client.queues()
        client.close()
    assert requests[0].startswith(b"GET /penstock/queues HTTP/1.1\r\n")


def test_client_loads_nothing_but_the_standard_library() -> None:
    """An executor of Spark needs no broker and no aiohttp."""
    program = (
        "import sys, penstock.plugins.queue.client\n"
        "names = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(names & {'aiohttp', 'broker', 'pydantic', 'uvloop', 'amqtt'}))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert shown.stdout == "[]\n"


def test_a_token_is_the_only_line_of_its_file(tmp_path: Path) -> None:
    """An empty file or a second line is a mistake that is told."""
    file = tmp_path / "token"
    file.write_text("the token\n")
    assert read_token(file) == "the token"
    for text in ("", "a\nb\n", "\u00e9"):
        file.write_text(text)
        with pytest.raises(ValueError, match="allowed: one line, the token in ASCII"):
            read_token(file)


def test_a_request_is_sent_in_one_piece() -> None:
    """So that the server wakes up once for its header and its body."""
    sent: list[bytes] = []
    with scripted_server(answer(b"{}"), answer(b"{}")) as (url, requests):
        client = QueueClient(url)
        client.queue("q")
        connection = client._requests._local.connection

        class Noting:
            """The socket of the connection, which notes what is sent."""

            def __getattr__(self, name: str) -> Any:
                return getattr(sock, name)

            def sendall(self, data: bytes) -> None:
                """Note and send."""
                sent.append(data)
                sock.sendall(data)

        sock, connection.sock = connection.sock, Noting()
        client.put_queue("q", {"max_messages": 1})
        connection.sock = sock
        client.close()
    (whole,) = sent
    head, _, body = whole.partition(b"\r\n\r\n")
    assert (head + b"\r\n" + body, body) == (requests[1], b'{"max_messages": 1}')
