from __future__ import annotations

import asyncio
import pickle
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

import pytest

from penstock.netem.runs.broker_process import reserved_port
from penstock.plugins.queue.batch_format import write_batch, write_deliveries
from penstock.plugins.queue.client import Batch, QueueClient, QueueError, ReceivedMessage
from tests.plugins.queue.running import running_plugin

QUEUES = {
    "work": {"topics": ["a/#"], "physical_queues": 2, "sleep_time": 0.005},
    "log": {"topics": ["a/#"], "physical_queues": 2, "readers": "offsets"},
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


def answer(body: bytes, status: str = "200 OK", more: str = "") -> bytes:
    """Return an HTTP answer."""
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


async def test_messages_go_through_the_queue() -> None:
    """Enqueue, dequeue and delete as a back end does them."""
    async with running_plugin(queues=QUEUES) as plugin:
        assert plugin.http_url is not None
        client = QueueClient(plugin.http_url)

        def work() -> None:
            stored = client.enqueue("work", [("a/1", b"\x00"), ("a/2", b"two")], publisher="me")
            assert stored == 2
            received = client.dequeue("work", n_max=10, wait_seconds=5)
            assert sorted((one.topic, one.payload, one.publisher) for one in received) == [
                ("a/1", b"\x00", "me"),
                ("a/2", b"two", "me"),
            ]
            handles = [one.receipt_handle for one in received]
            assert client.delete("work", handles) == []
            assert client.delete("work", handles) == handles
            assert client.dequeue("work") == []
            assert [queue["messages"] for queue in client.queues()] == [0, 0]

        await asyncio.to_thread(work)


async def test_ranges_are_read_and_committed() -> None:
    """Offsets, ranges and commit as Spark uses them."""
    async with running_plugin(queues=QUEUES) as plugin:
        assert plugin.http_url is not None
        client = QueueClient(plugin.http_url)

        def work() -> None:
            client.enqueue("log", [(f"a/{n}", b"%d" % n) for n in range(10)])
            assert client.offsets("log") == {0: (0, 5), 1: (0, 5)}
            batch = client.read_range("log", 1, 1, 5)
            assert batch.offset == [1, 2, 3, 4]
            assert batch.payload == [b"3", b"5", b"7", b"9"]
            assert client.read_range("log", 1, 1, 5) == batch
            assert client.read_range("log", 1, 1, 5, max_messages=2).offset == [1, 2]
            assert client.read_range("log", 1, 5, 5) == Batch([], [], [], [], [], [], [])
            client.commit("log", {0: 5, 1: 3})
            assert client.offsets("log") == {0: (5, 5), 1: (3, 5)}
            with pytest.raises(QueueError, match="allowed: 3 or more") as raised:
                client.read_range("log", 1, 1, 5)
            assert raised.value.status == 410

        await asyncio.to_thread(work)


async def test_range_longer_than_one_answer_comes_whole() -> None:
    """The client asks on until it has the range."""
    async with running_plugin(queues=QUEUES) as plugin:
        assert plugin.http_url is not None
        client = QueueClient(plugin.http_url)

        def work() -> None:
            for n in range(10):
                client.enqueue("log", [("a", bytes([n]) * 1_000_000)] * 2)
            batch = client.read_range("log", 0, 0, 10)
            assert [payload[0] for payload in batch.payload] == list(range(10))
            assert batch.offset == list(range(10))

        await asyncio.to_thread(work)


async def test_refusal_carries_status_and_reason() -> None:
    """What the server says against a request is the error's message."""
    async with running_plugin(queues=QUEUES) as plugin:
        assert plugin.http_url is not None
        client = QueueClient(plugin.http_url)
        with pytest.raises(QueueError, match='404: queue: read "no"; allowed: log, work') as raised:
            await asyncio.to_thread(client.offsets, "no")
        assert (raised.value.status, raised.value.message[:5]) == (404, "queue")


async def test_client_is_shared_by_threads() -> None:
    """Each thread has its own connection."""
    async with running_plugin(queues=QUEUES) as plugin:
        assert plugin.http_url is not None
        client = QueueClient(plugin.http_url)

        def enqueue(number: int) -> int:
            return sum(client.enqueue("work", [("a", b"%d" % number)]) for _ in range(20))

        stored = await asyncio.gather(*(asyncio.to_thread(enqueue, n) for n in range(4)))
        assert sum(stored) == 80
        assert plugin.queues["work"].figures()["messages"] == 80


def test_client_can_be_sent_to_another_process() -> None:
    """Spark pickles what its executors use."""
    client = pickle.loads(pickle.dumps(QueueClient("http://127.0.0.1:1", 5)))  # noqa: S301 (made here)
    assert (client.url, client.timeout_seconds) == ("http://127.0.0.1:1", 5)
    error = pickle.loads(pickle.dumps(QueueError(410, "gone")))  # noqa: S301 (made here)
    assert (error.status, error.message) == (410, "gone")


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
    with scripted_server(answer(b'{"enqueued": 1}'), None) as (url, requests):
        client = QueueClient(url)
        client.enqueue("q", [("a", b"1")])
        with pytest.raises(QueueError, match="no answer from http") as raised:
            client.enqueue("q", [("a", b"2")])
        assert raised.value.status == 0
        client.close()
    assert len(requests) == 2


def test_connection_that_was_closed_meanwhile_is_not_used() -> None:
    """Even an enqueue, which is not repeated, goes through after the server has closed."""
    closing = answer(b'{"enqueued": 1}', more="X-Close: silently\r\n")
    with scripted_server(closing, closing) as (url, requests):
        client = QueueClient(url)
        for _ in range(2):
            assert client.enqueue("q", [("a", b"1")]) == 1
            # The end of the stream is there before the next request.
            assert client._local.connection.sock.recv(1, socket.MSG_PEEK) == b""
        client.close()
    assert len(requests) == 2


async def test_long_poll_may_take_longer_than_the_timeout() -> None:
    """The timeout is on top of what the client asked the server to wait."""
    async with running_plugin(queues=QUEUES) as plugin:
        assert plugin.http_url is not None
        client = QueueClient(plugin.http_url, timeout_seconds=5)

        def work() -> float:
            client.enqueue("work", [("a", b"x")])
            assert len(client.dequeue("work", wait_seconds=7)) == 1
            timeout: float = client._local.connection.sock.gettimeout()
            return timeout

        assert await asyncio.to_thread(work) == 12


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
        (b"no frame", lambda client: client.dequeue("q")),
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


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://h", "http://", ""])
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
