"""JWT and HTTP authentication by aMQTT's own plugins, with real tokens and a real server."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import jwt
import pytest
import yaml

from tests.helpers.paho_client import PahoClient
from tests.helpers.process import ROOT, BrokerProcess, running_broker

KEY: Final = "a-secret-of-32-bytes-or-more-for-HS256"
PAGE: Final = ROOT / "docs" / "how-to" / "access.md"


def example(plugin: str) -> dict[str, Any]:
    """Return the plugins of the page's example that names a plugin."""
    blocks = PAGE.read_text().split("```yaml\n")[1:]
    found = next(block.split("```")[0] for block in blocks if plugin in block)
    plugins: dict[str, Any] = yaml.safe_load(found)["plugins"]
    return plugins


def policy(plugins: dict[str, Any]) -> dict[str, Any]:
    """Return a policy with these plugins, by which failed logins cause no wait."""
    listeners = {"default": {"bind": "127.0.0.1:0"}}
    return {"listeners": listeners, "plugins": plugins, "limits": {"login_failures": 100}}


def can_connect(broker: BrokerProcess, username: str, password: str) -> bool:
    """Say whether the broker lets a user in."""
    with PahoClient(broker.port, username) as client:
        return client.connect(username, password)


def received(client: PahoClient) -> tuple[str, bytes]:
    """Return a client's next message."""
    message = client.message()
    return message.topic, bytes(message.payload)


def token(user: str = "ann", key: str = KEY, lives: float = 600, **claims: Any) -> str:
    """Return a token of a user."""
    return jwt.encode({"sub": user, "exp": time.time() + lives, **claims}, key, "HS256")


def test_a_token_is_a_password_and_says_which_topics(tmp_path: Path) -> None:
    """Only a valid one of this user; others, and those that nobody has signed, are refused."""
    plugins = example("UserAuthJwtPlugin")
    for keys in plugins.values():
        keys["secret_key"] = KEY
    unsigned = jwt.encode({"sub": "ann"}, "", "none")
    with running_broker(policy(plugins), tmp_path) as broker:
        for wrong in (
            token("eve"),
            token(key="another-secret-of-32-bytes-or-more"),
            token(lives=-60),
            unsigned,
            "no token",
            "",
        ):
            assert not can_connect(broker, "ann", wrong)
        rights: dict[str, Any] = {"pub": ["ann/#"], "sub_topics": ["news/#"], "recv": ["news/#"]}
        with (
            PahoClient(broker.port, "reader") as reader,
            PahoClient(broker.port, "sender") as sender,
        ):
            assert reader.connect("ann", token(**rights))
            assert sender.connect("bob", token("bob", pub=["news/1"]))
            assert reader.subscribe("news/#", 1)
            assert not reader.subscribe("secret", 1)
            sender.publish("news/2", b"not allowed", 0)
            sender.publish("news/1", b"allowed", 0)
            assert received(reader) == ("news/1", b"allowed")


class Users(BaseHTTPRequestHandler):
    """An HTTP server that knows ann, who may publish and subscribe below her name."""

    def do_POST(self) -> None:
        """Answer a question of the broker."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/user":
            is_good = (asked["username"], asked["password"]) == ("ann", "secret")
        else:
            is_good = asked["topic"].startswith(f"{asked['username']}/")
        body = json.dumps({"ok": is_good}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextlib.contextmanager
def users() -> Iterator[int]:
    """Run the server for a block; return its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Users) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def test_an_http_server_is_asked_who_may_connect_and_what(tmp_path: Path) -> None:
    """By its answers in JSON; once it is gone, nobody new is let in."""
    plugins = example("UserAuthHttpPlugin")
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(users())
        for keys in plugins.values():
            keys |= {"host": "127.0.0.1", "port": port, "with_tls": False}
        broker = stack.enter_context(running_broker(policy(plugins), tmp_path))
        assert not can_connect(broker, "ann", "wrong")
        assert not can_connect(broker, "eve", "secret")
        with PahoClient(broker.port, "c") as client:
            assert client.connect("ann", "secret")
            assert client.subscribe("ann/#", 1)
            assert not client.subscribe("eve/#", 1)
            client.publish("eve/1", b"not allowed", 0)
            client.publish("ann/1", b"allowed", 0)
            assert received(client) == ("ann/1", b"allowed")
    with running_broker(policy(plugins), tmp_path) as broker:
        assert not can_connect(broker, "ann", "secret")
        assert "UserAuthHttpPlugin.authenticate failed" in broker.lines_with("ERROR", 1)[0]


@pytest.mark.parametrize("plugin", ["UserAuthJwtPlugin", "UserAuthHttpPlugin"])
def test_the_example_stands_alone(plugin: str) -> None:
    """No plugin beside it lets in whom it refuses."""
    assert all(name.startswith("amqtt.contrib.") for name in example(plugin))
