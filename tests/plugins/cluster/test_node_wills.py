"""Which wills are in the engine."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

from penstock.broker.events import ClientConnected, ClientDisconnected
from penstock.broker.mqtt.packets import Will
from penstock.broker.mqtt.properties import read_publish_properties
from penstock.broker.mqtt.publish_head import read_publish_head
from penstock.plugins.cluster.node_wills import NodeWills, read, written
from penstock.plugins.redis.errors import StorageError


class Kept:
    """Wills in the engine, by client."""

    def __init__(self) -> None:
        self.wills: dict[str, bytes] = {}
        self.is_full = False
        self.n_calls = 0

    def keep(self, client_id: str, will: bytes) -> asyncio.Future[Any]:
        """Keep one."""
        self.n_calls += 1
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        if self.is_full:
            future.set_exception(StorageError("full"))
            return future
        self.wills[client_id] = will
        if not will:
            del self.wills[client_id]
        future.set_result(1)
        return future


def session(will: Will | None, client_id: str = "c", *, is_connected: bool = True) -> Any:
    """Return a session."""
    return cast("Any", SimpleNamespace(client_id=client_id, will=will, is_connected=is_connected))


async def test_a_will_is_kept_while_its_client_is_connected() -> None:
    """A client that comes again without one has none; the end of an old connection is no end."""
    engine = Kept()
    wills = NodeWills(engine.keep, {"c": "o"}.__getitem__, logging.getLogger("test"))
    will = Will("t", b"gone")
    wills.connected(ClientConnected(session(will)))
    assert engine.wills == {"c": written(will, "o")}
    wills.disconnected(ClientDisconnected(session(will)))
    assert engine.wills
    engine.wills.clear()
    wills.keep_again()
    assert engine.wills
    wills.connected(ClientConnected(session(None)))
    assert not engine.wills
    wills.connected(ClientConnected(session(will)))
    wills.disconnected(ClientDisconnected(session(will, is_connected=False)))
    assert not engine.wills
    assert not wills.n_kept


async def test_a_delayed_will_is_kept_until_the_session_has_gone() -> None:
    """A session that ends with its connection delays no will."""
    engine = Kept()
    origins = {"c": "o"}
    wills = NodeWills(engine.keep, origins.__getitem__, logging.getLogger("test"))
    will = Will("t", b"gone", properties={"will_delay_interval": 7})
    wills.connected(ClientConnected(session(will)))
    wills.disconnected(ClientDisconnected(session(will, is_connected=False)))
    assert engine.wills
    wills.gone("c")
    assert not engine.wills
    origins["c"] = ""
    wills.connected(ClientConnected(session(will)))
    wills.disconnected(ClientDisconnected(session(will, is_connected=False)))
    assert not engine.wills


async def test_wills_that_the_engine_refuses_are_kept_once_it_takes_one() -> None:
    """An engine that is full is asked for one of many only, once with each beat."""
    engine = Kept()
    wills = NodeWills(engine.keep, lambda _: "", logging.getLogger("test"))
    engine.is_full = True
    for client_id in "cde":
        wills.connected(ClientConnected(session(Will("t", b"gone"), client_id)))
    await asyncio.sleep(0)
    wills.beaten()
    await asyncio.sleep(0)
    assert (engine.n_calls, wills.failure) == (4, "full")
    wills.disconnected(ClientDisconnected(session(None, "d", is_connected=False)))
    engine.wills["d"] = b"an earlier one"
    await asyncio.sleep(0)
    engine.is_full = False
    wills.beaten()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (sorted(engine.wills), wills.failure) == (["c", "e"], "")
    wills.beaten()
    assert engine.n_calls == 8


def test_a_will_is_kept_as_the_packet_that_is_published() -> None:
    """Its delay is not a property of that."""
    will = Will("t", b"gone", 1, True, {"will_delay_interval": 7, "content_type": "x"})
    *others, packet = read(written(will, "origin"))
    assert others == [7, b"origin"]
    assert packet[0] == 0x33
    _, _, at, payload_at = read_publish_head(packet, packet[0], 2, len(packet), 5)
    assert read_publish_properties(packet, at)[0] == {"content_type": "x"}
    assert packet[payload_at:] == b"gone"
