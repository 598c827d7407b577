"""An application on `penstock.lanes.paho`, which notes what it is told."""

from __future__ import annotations

import queue
import threading
from types import TracebackType
from typing import Any, Final, Self

import penstock.lanes.paho as mqtt
from tests.helpers.process import SECONDS

PICTURE: Final = bytes(1_000_000)


class Program:
    """An application that subscribes when it is connected; it disconnects at the end of a block.

    Attributes:
        client: its client.
        threads: in which its callbacks were called.
    """

    def __init__(self, client_id: str, port: int, **options: Any) -> None:
        """Make a client that connects in the block."""
        self.threads: set[threading.Thread] = set()
        self._port = port
        self._told: queue.Queue[tuple[str, Any]] = queue.Queue()
        options.setdefault("protocol", mqtt.MQTTv5)
        self.client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id, **options)
        self.client.on_connect = lambda client, *_: client.subscribe("#", 2)
        self.client.on_subscribe = lambda *_: self._note("subscribed", None)
        self.client.on_message = lambda _c, _u, message: self._note(
            "message", (message.topic, bytes(message.payload))
        )

    def _note(self, what: str, told: Any) -> None:
        self.threads.add(threading.current_thread())
        self._told.put((what, told))

    def __enter__(self) -> Self:
        self.client.connect("127.0.0.1", self._port)
        self.client.loop_start()
        assert self.next() == ("subscribed", None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def next(self) -> tuple[str, Any]:
        """Return what it is told next."""
        return self._told.get(timeout=SECONDS)

    def messages(self, n_messages: int) -> list[tuple[str, bytes]]:
        """Return the next messages: (topic, payload)."""
        return [
            told for what, told in (self.next() for _ in range(n_messages)) if what == "message"
        ]

    def is_on_two_lanes(self) -> bool:
        """Say whether the large lane is up."""
        lane: Any = self.client._lane  # type: ignore[attr-defined]
        return lane is not None and lane.is_up
