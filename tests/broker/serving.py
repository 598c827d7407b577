"""A broker on real sockets inside the test's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from penstock.broker.config.policy import parse_policy
from penstock.broker.network.loop_scheduler import LoopScheduler
from penstock.broker.network.new_connection import AcceptedConnection, Layer
from penstock.broker.network.transport import MqttProtocol
from penstock.broker.operations.operations import BrokerOperations
from penstock.broker.receiving.connection import Connection
from penstock.broker.sending.sender import Sender, WriteQueue
from penstock.broker.sending.throttle import Throttle
from penstock.broker.server import Server
from penstock.broker.sessions.client import Client
from penstock.broker.sessions.session import Session
from tests.helpers.process import SECONDS, anonymous_policy


def make_server(**keys: Any) -> Server:
    """Return a server that is not running; see `anonymous_policy` for the keys."""
    return Server(parse_policy(anonymous_policy(**keys), "policy.yaml"))


@contextlib.asynccontextmanager
async def serving(**keys: Any) -> AsyncIterator[Server]:
    """Run a server for a block, which may stop it itself."""
    server = make_server(**keys)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def port_of(server: Server, listener: str = "default") -> int:
    """Return the port of a listener."""
    return server.addresses[listener][1]


def driver_of(server: Server) -> LoopScheduler:
    """Return what drives the server's core."""
    return server._driver


def protocol_of(server: Server, client_id: str) -> MqttProtocol:
    """Return the network connection of a client that is connected."""
    session = server.core.sessions.get(client_id)
    assert session is not None
    assert session.client is not None
    protocol = session.client.outgoing.served
    assert isinstance(protocol, MqttProtocol)
    return protocol


def objects_of_connections() -> Counter[str]:
    """Return how many objects of connections there are, by the names of their classes.

    An idle one has one of each kind but layers.
    """
    of_client = (Connection, Client, Sender, WriteQueue, Throttle, Session)
    kinds = (AcceptedConnection, Layer, MqttProtocol, *of_client)
    return Counter(type(each).__name__ for each in gc.get_objects() if isinstance(each, kinds))


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Free what is in circles before the block, and nothing of the kind within it."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until a condition holds."""
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 (what is waited for tells nobody)
            await asyncio.sleep(0.005)


def operations_of(server: Server) -> BrokerOperations:
    """Return what the server's plugins get to show it to operators and change it."""
    return server._operations
