from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.plugins.probing.loopback import Loopback


@pytest.fixture
def loopback() -> Iterator[Loopback]:
    """Yield a connection; a test may close either end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        subscriber = socket.create_connection(listener.getsockname())
        broker, _ = listener.accept()
    with broker, subscriber:
        yield Loopback(broker, subscriber)
