from __future__ import annotations

import asyncio
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.netem.runs.broker_process import reserved_port
from penstock.plugins.console.commands.asking import Console
from penstock.plugins.console.commands.why import main
from penstock.plugins.web.terminal_escape import printable
from tests.helpers.paho_client import PahoClient
from tests.helpers.process import anonymous_policy, running_broker
from tests.helpers.virtual import VirtualBroker
from tests.plugins.console.running import console

ALL_IS_CONGESTED = {
    "console": {"http": "127.0.0.1:0"},
    "probing": {"probe_period": 0.05},
    "withholding": {"policy": "conservative", "threshold_s": 1_000, "threshold_l": 1e-9},
}
"""No path of this world has an RTT below a nanosecond: every large message is held."""


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """Run a server that answers everything with this; yield its URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


async def ask(client_id: str, *options: str) -> int:
    """Run the command beside the loop; return its status."""
    return await asyncio.to_thread(main, [client_id, *options])


async def test_a_client_is_told_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    """One command, no reading of JSON; a slash behind the URL does no harm."""
    broker = VirtualBroker()
    broker.connect("site 1/dev+7", username="joe")
    async with console(broker) as plugin:
        assert await ask("site 1/dev+7", "--url", plugin.http_url + "/") == 0
    told = capsys.readouterr()
    assert told.out.splitlines()[0] == ("site 1/dev+7: connected, user joe, listener default")
    assert "large messages: none yet" in told.out
    assert told.err == ""


async def test_an_unknown_client_is_told_with_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    """The console has answered, and there is no such client."""
    async with console(VirtualBroker()) as plugin:
        assert await ask("dev\x1b7", "--url", plugin.http_url) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == (
        'penstock why: client: read "dev\\u001b7"; allowed: a client that has a session, or one of '
        "the last that have gone\n"
    )


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8081", "ftp://here", "http://", "http://[::1", "http://here:99999"]
)
def test_what_is_no_url_is_told_with_status_2(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What was read and what is allowed."""
    assert main(["dev7", "--url", url]) == 2
    assert capsys.readouterr().err == (
        f"penstock why: --url: read {url!r}; allowed: http://HOST:PORT or https://HOST:PORT\n"
    )


def test_a_broker_that_does_not_answer_is_told_with_status_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Most often the plugin is not in the policy file."""
    with reserved_port() as port:
        url = f"http://127.0.0.1:{port}"
        assert main(["dev7", "--url", url]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"penstock why: {url}: no answer (Connection refused); allowed: the ")
    assert "plugin console" in told


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (200, b"<html>", "something else answers there"),
        (200, b"[]", "something else answers there"),
        (200, b'{"client_id": "dev7"}', "something else answers there"),
        (404, b"<html>", "something else answers there"),
        (404, b'{"error": "path: read x"}', "404: path: read x"),
        (500, b'{"error": "the server failed"}', "500: the server failed"),
        (503, b"7", "something else answers there"),
    ],
)
def test_what_is_no_console_is_told_with_status_2(
    status: int, body: bytes, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another server may have the port, or the console may have failed."""
    with answering(status, body) as url:
        assert main(["dev7", "--url", url]) == 2
    assert f"penstock why: {url}: {told}" in capsys.readouterr().err


def test_why_a_large_message_is_held_by_a_real_broker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the kernel's RTT over the policy's verdict to the words, on real sockets."""
    with (
        running_broker(anonymous_policy(ALL_IS_CONGESTED), tmp_path) as broker,
        PahoClient(broker.port, "cam/viewer") as viewer,
        PahoClient(broker.port, "camera") as camera,
    ):
        assert viewer.connect()
        assert camera.connect()
        assert viewer.subscribe("pictures/#", 1)
        url = broker.console_url
        while Console(url).client("cam/viewer")["link"]["rtt_latest"] is None:
            camera.publish("pictures/small", b"x")
        camera.publish("pictures/large", bytes(50_000))
        assert main(["cam/viewer", "--url", url]) == 0
    told = capsys.readouterr().out
    assert "cam/viewer: connected, listener default" in told
    assert "congested, above threshold_l" in told
    assert "50,000 bytes on pictures/large, looked at again in " in told
    assert "  because conservative: L_now " in told
    assert " 1 withheld" in told


def test_the_token_of_a_console_comes_from_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it, it says which option is missing."""
    token = tmp_path / "token"
    token.write_text("a-token-of-the-console\n")
    tokens = tmp_path / "tokens"
    tokens.write_text(f"me viewer {token.read_text()}")
    plugins = {"console": {"http": "127.0.0.1:0", "token_file": str(tokens)}}
    with running_broker(anonymous_policy(plugins), tmp_path) as broker:
        url = ("--url", broker.console_url)
        assert main(["c", *url]) == 2
        assert "401: read no token; allowed: --token-file FILE" in capsys.readouterr().err
        assert main(["c", *url, "--token-file", str(token)]) == 1
        assert "a client that has a session" in capsys.readouterr().err
        assert main(["c", *url, "--token-file", str(tmp_path / "none")]) == 2
        assert "none: file: read No such file" in capsys.readouterr().err


def test_what_a_terminal_would_obey_is_escaped() -> None:
    """A text of a client moves no cursor and begins no line; other texts stay as they are."""
    assert printable("a\x1b[2J\nb\u202e") == "a\\x1b[2J\\nb\\u202e"
    assert printable("ä €") == "ä €"
