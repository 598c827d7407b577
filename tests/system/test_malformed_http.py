"""What no HTTP client sends: each API refuses it, and the log tells of no fault of the broker."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

import pytest

from tests.helpers.process import SECONDS, BrokerProcess, anonymous_policy, running_broker

BAD: Final = (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\x7f", b"%ff", b"a" * 7_000, b'"\\', b"=?;,")

HEADERS: Final = (
    *("Accept", "Accept-Encoding", "Authorization", "Connection", "Content-Encoding", "Cookie"),
    *("Content-Type", "Expect", "Host", "If-None-Match", "Origin", "Range", "Upgrade", "X-Other"),
    *("X-Amz-Target", "X-Amz-Date", "X-Amz-Content-Sha256", "X-Forwarded-For"),
)

PATHS: Final = {
    "queue API": (
        *("GET /queues", "GET /nowhere", "GET /%ff", "GET /queues/%ff", "PUT /queues/work"),
        *("POST /queues/work/messages", "POST /queues/work/groups/default/receive", "PATCH /"),
        *("GET /queues/work/peek?max_messages=%ff", "PUT /batches/q/1", "POST /backup"),
    ),
    "console API": (
        "GET /api/clients",
        "GET /api/clients/%ff",
        "GET /%ff",
        "GET /api/clients?after=%ff",
        "POST /",
    ),
    "Amazon SQS": ("POST /", "GET /?Action=%ff", "POST /000000000000/work", "GET /%ff"),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Return a broker with every HTTP API, one for all tests."""
    queue = {"http": "127.0.0.1:0", "sqs": "127.0.0.1:0", "queues": {"work": {}}}
    plugins = {"queue": queue, "console": {"http": "127.0.0.1:0"}}
    folder = tmp_path_factory.mktemp("b")
    with running_broker(anonymous_policy(plugins), folder) as running:
        yield running
        assert running.stop() == 0


def status_of(url: str, asked: str, name: str, value: bytes) -> int:
    """Return the status of the answer to a request with such a header."""
    method, path = asked.split(" ")
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=SECONDS)
    try:
        connection.putrequest(method, path, skip_host=name == "Host", skip_accept_encoding=True)
        connection.putheader("Content-Length", "2")
        connection._buffer.append(name.encode() + b": " + value)  # type: ignore[attr-defined]
        connection.endheaders(b"{}")
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("api", PATHS)
def test_no_header_is_a_fault_of_the_broker(api: str, broker: BrokerProcess) -> None:
    """Whatever bytes it has, and whichever path it comes to."""
    found = re.search(rf"{api} listens on (http://\S+)", broker.log)
    assert found, broker.log
    faults = [
        (asked, name, value[:10])
        for asked in PATHS[api]
        for name in HEADERS
        for value in BAD
        if status_of(found[1], asked, name, value) >= 500
    ]
    assert faults == []
    assert "Traceback" not in broker.log
    assert " ERROR " not in broker.log
