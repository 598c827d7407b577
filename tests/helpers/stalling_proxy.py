"""A proxy before an HTTP server that stops answering at a chosen request."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class StallingProxy:
    """Forwards requests, and holds one of them for ever.

    Args:
        target: the server's URL.

    Attributes:
        url: where the proxy listens.
    """

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target).netloc
        self._lock = threading.Lock()
        self._path_part = ""
        self._left = 0
        self._stalled = threading.Event()
        self._ended = threading.Event()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                proxy._forward(self)

            def do_POST(self) -> None:
                proxy._forward(self)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def stall_at(self, path_part: str, nth: int) -> None:
        """Hold the `nth` request from now on whose path has this part, and all later ones."""
        with self._lock:
            self._path_part, self._left = path_part, nth
            self._stalled.clear()

    def go_on(self) -> None:
        """Forward everything again."""
        with self._lock:
            self._path_part = ""

    def wait_for_stall(self, seconds: float) -> bool:
        """Wait until a request is held; return whether one is."""
        return self._stalled.wait(seconds)

    def end(self) -> None:
        """Let go of what is held, unanswered."""
        self._ended.set()

    def _forward(self, request: BaseHTTPRequestHandler) -> None:
        if self._is_held(request.path):
            self._stalled.set()
            self._ended.wait()
            request.close_connection = True
            return
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        connection = http.client.HTTPConnection(self._target)
        headers = {name: request.headers[name] for name in ("Accept", "Content-Type")}
        given = {name: value for name, value in headers.items() if value}
        connection.request(request.command, request.path, body or None, given)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        request.send_response(answer.status)
        request.send_header("Content-Type", answer.headers["Content-Type"])
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    def _is_held(self, path: str) -> bool:
        with self._lock:
            if not self._path_part or self._path_part not in path:
                return False
            self._left -= 1
            return self._left <= 0


@contextlib.contextmanager
def stalling_proxy(target: str) -> Iterator[StallingProxy]:
    """Run a proxy before the server at the URL `target`."""
    proxy = StallingProxy(target)
    thread = threading.Thread(target=proxy.server.serve_forever, name="stalling proxy")
    thread.start()
    try:
        yield proxy
    finally:
        proxy.end()
        proxy.server.shutdown()
        thread.join()
        proxy.server.server_close()
