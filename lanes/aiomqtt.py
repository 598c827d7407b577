"""`aiomqtt` with two lanes: ``import penstock.lanes.aiomqtt as aiomqtt`` in place of it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import aiomqtt as _aiomqtt
import aiomqtt.client as _client
import paho.mqtt.client as mqtt
from aiomqtt import *  # noqa: F403 (it stands for that module)

from penstock.lanes.client import Client as _TwoLanes


class _PahoClient(_TwoLanes):
    """The paho client inside aiomqtt's: an event loop serves each lane by itself.

    Attributes:
        event_loop: the event loop of the aiomqtt client.
    """

    event_loop: asyncio.AbstractEventLoop
    loop_read = mqtt.Client.loop_read
    loop_write = mqtt.Client.loop_write

    def wake(self) -> None:
        """Make the event loop serve the large lane soon."""
        with contextlib.suppress(RuntimeError):  # a closed loop
            self.event_loop.call_soon_threadsafe(self.loop_misc)

    def _do_on_disconnect(self, *args: Any, **more: Any) -> None:
        """End the large lane, too: aiomqtt does not call `disconnect` for a lost connection."""
        self._end_lane()
        super()._do_on_disconnect(*args, **more)


class Client(_aiomqtt.Client):  # type: ignore[no-redef]
    """`aiomqtt.Client` with two lanes."""

    def __init__(self, *args: Any, **more: Any) -> None:
        """As `aiomqtt.Client`."""
        super().__init__(*args, **more)
        paho: Any = self._client
        paho.__class__ = _PahoClient  # aiomqtt offers no way to pass a client
        paho.event_loop = self._loop
        asked = more.get("protocol")
        paho.begin(may_have_lanes=asked in (None, _aiomqtt.ProtocolVersion.V5))

    def _on_socket_open(self, client: Any, userdata: Any, sock: Any) -> None:
        _client._set_client_socket_defaults(sock, self._socket_options)
        super()._on_socket_open(client, userdata, sock)


def __getattr__(name: str) -> Any:
    return getattr(_aiomqtt, name)
