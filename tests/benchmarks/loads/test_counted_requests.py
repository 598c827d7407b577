from __future__ import annotations

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from benchmarks.loads.counted_requests import RequestCounter


class Echo(BaseHTTPRequestHandler):
    """Answers with what it was sent."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_each_request_counts_once_however_long_it_is() -> None:
    """Over several connections, the bytes unchanged both ways."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        counter = RequestCounter(server.server_port)
        with counter.running():
            for n_bytes in (1, 3_000_000):
                client = http.client.HTTPConnection(urlsplit(counter.url).netloc)
                for _ in range(3):
                    body = b"x" * n_bytes
                    client.request("POST", "/", body)
                    assert client.getresponse().read() == body
                client.close()
        server.shutdown()
    assert counter.requests == 6
