from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import pytest

from penstock.broker.mqtt.packets import Publish
from penstock.broker.network.lane_pacer import LanePacer
from penstock.broker.network.pacing import LOOK_SECONDS, Pacing
from penstock.broker.network.tcp_info import TcpInfo
from penstock.broker.server import Server
from tests.broker.serving import port_of, protocol_of, serving, until
from tests.helpers.wire import WireClient, connected

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel paces")

SO_MAX_PACING_RATE = 47
FULL_RATE = -1
LARGE = b"L" * 20_000


async def lane(server: Server, name: str, other: str, yields: str = "") -> WireClient:
    """Connect one of two lanes."""
    told = [("penstock-lane-of", other)] + ([("penstock-yields", yields)] if yields else [])
    properties = {"user_property": told, "session_expiry_interval": 100}
    return await connected(port_of(server), name, clean_start=False, properties=properties)


def pace(server: Server, name: str) -> int:
    """Return what the kernel keeps of a client's pace."""
    sock = protocol_of(server, name).transport.get_extra_info("socket")
    return int(sock.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE))


def is_looking(server: Server, name: str) -> bool:
    """Say whether the broker looks at a client's connection."""
    pacer = server.core.lanes._pacers.get(name)
    assert isinstance(pacer, LanePacer)
    return pacer._timer is not None


async def test_the_lane_that_says_so_is_paced_while_both_are_connected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Alone, it has all messages, and nothing to yield to."""
    monkeypatch.setattr(Pacing, "rest", lambda *_: 50_000.0)  # as after a long queue
    async with serving() as server, await lane(server, "large", "small", "yes") as large:
        assert pace(server, "large") == FULL_RATE
        async with await lane(server, "small", "large"):
            assert pace(server, "large") != FULL_RATE
            assert pace(server, "small") == FULL_RATE
        await until(lambda: pace(server, "large") == FULL_RATE)
        async with await lane(server, "small", "large"):
            assert pace(server, "large") != FULL_RATE
            async with await lane(server, "large", "small") as again:  # takes the session over
                assert pace(server, "large") == FULL_RATE
                del again
        del large


async def test_a_lane_is_looked_at_while_something_is_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel has the pace; a message, or several without a gap, that yield count once."""

    def look(self: Pacing, info: TcpInfo, now: float) -> float:
        del info, now
        self.has_yielded = True
        return 50_000.0

    rests: list[float] = []
    rest = Pacing.rest

    def note_rest(self: Pacing, info: TcpInfo, now: float) -> float | None:
        rests.append(now)
        return rest(self, info, now)

    monkeypatch.setattr(Pacing, "look", look)
    monkeypatch.setattr(Pacing, "rest", note_rest)
    async with (
        serving() as server,
        await lane(server, "large", "small", "yes") as large,
        await lane(server, "small", "large"),
    ):
        await large.subscribe("cam")
        await until(lambda: not is_looking(server, "large"))
        n_before = server.core.counters.lanes_paced
        n_rests = len(rests)
        for n_messages in (1, 2):
            await large.send(Publish("cam", LARGE))
            await large.take(Publish)
            await until(lambda: is_looking(server, "large"))
            await until(lambda: pace(server, "large") == 50_000)
            await until(lambda: not is_looking(server, "large"))
            assert pace(server, "large") != 50_000
            assert server.core.counters.lanes_paced == n_before + n_messages
            assert len(rests) == n_rests + 2 * n_messages  # as it begins, and behind it


async def test_a_client_that_does_not_read_is_seldom_looked_at() -> None:
    """What it costs does not go on at the same rate for as long as it holds out."""
    async with (
        serving() as server,
        await lane(server, "large", "small", "yes") as large,
        await lane(server, "small", "large") as small,
    ):
        await large.subscribe("cam")
        pacer = server.core.lanes._pacers["large"]
        assert isinstance(pacer, LanePacer)
        await until(lambda: pacer._timer is None)
        await small.send(Publish("cam", bytes(8_000_000)))
        await until(lambda: pacer._wait > 2 * LOOK_SECONDS)
        await large.take(Publish)
        await until(lambda: pacer._timer is None)
        assert pacer._wait == LOOK_SECONDS


@pytest.mark.parametrize(("value", "n_ignored"), [("no", 1), ("", 0)])
async def test_a_lane_that_does_not_say_yes_is_not_paced(value: str, n_ignored: int) -> None:
    """What is said otherwise is told and counted."""
    async with (
        serving() as server,
        await lane(server, "large", "small", value),
        await lane(server, "small", "large"),
    ):
        assert pace(server, "large") == FULL_RATE
        assert server.core.counters.user_properties_ignored == n_ignored


async def test_what_the_kernel_does_not_pace_is_left_alone() -> None:
    """Such as a Unix socket."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    with theirs:
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
        yields: list[Any] = []
        pacer = LanePacer(transport, loop, loop.time, lambda: yields.append(1))
        pacer.sent()
        assert pacer._timer is None
        pacer.stop()
        transport.abort()
