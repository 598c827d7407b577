from __future__ import annotations

import asyncio
import contextlib
import itertools

import pytest

from broker.driver import MOST_TURNS
from broker.mqtt.packets import Publish
from broker.mqtt.writer import write_packet
from tests.broker.serving import driver_of, port_of, protocol_of, serving, until
from tests.helpers.wire import connected


async def test_subscribers_who_must_wait_for_a_turn_get_their_message() -> None:
    """A message for more clients than are served at a time goes to all of them."""
    n_subscribers = 2 * MOST_TURNS + 1
    async with serving() as server, contextlib.AsyncExitStack() as stack:
        subscribers = [
            await stack.enter_async_context(await connected(port_of(server), f"c{number}"))
            for number in range(n_subscribers)
        ]
        for subscriber in subscribers:
            await subscriber.subscribe("t")
        await subscribers[-1].send(Publish("t", b"data"))
        for subscriber in subscribers:
            assert (await subscriber.take(Publish)).payload == b"data"


async def test_the_line_gets_as_long_as_what_came_meanwhile_took() -> None:
    """Subscribers to very many publishers do not starve behind the first of them."""
    n_subscribers, n_chunks = 2 * MOST_TURNS, 40
    async with serving() as server, contextlib.AsyncExitStack() as stack:
        for number in range(n_subscribers):
            client = await connected(port_of(server), f"c{number}")
            await (await stack.enter_async_context(client)).subscribe("t")
        driver = driver_of(server)

        def n_in_line() -> int:
            return sum(protocol.is_in_line for protocol in driver.protocols)

        await until(lambda: not n_in_line())
        clock = driver.clock
        looks = itertools.count()
        driver.clock = lambda: clock() + 0.001 * next(looks)  # each look takes a millisecond
        publisher = protocol_of(server, "c0")
        for _ in range(n_chunks):
            publisher.data_received(write_packet(Publish("t", b"data"), 5))
        n_waiting = n_in_line()
        assert n_waiting >= n_subscribers - MOST_TURNS
        await asyncio.sleep(0)
        assert n_in_line() <= n_waiting - n_chunks // 5


async def test_deadline_that_is_due_before_the_next_one_is_kept() -> None:
    """The driver sleeps until the earliest deadline, also where that was set last."""
    ran: list[str] = []
    async with serving(sys_interval=0) as server:
        driver = driver_of(server)
        timers = server.core.timers
        now = driver.clock()
        timers.at(now + 3600.0, lambda _now: ran.append("late"))
        driver.settle(now)
        timers.at(now + 0.02, lambda _now: ran.append("early"))
        driver.settle(now)
        await until(lambda: ran)
    assert ran == ["early"]


async def test_task_of_the_core_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A plugin's fault in the background is not lost and stops nothing."""

    async def fail() -> None:
        await asyncio.sleep(0)
        raise RuntimeError("a fault")

    async with serving() as server:
        server.core.spawn(fail())
        await until(lambda: "a task of the core failed" in caplog.text)
        async with await connected(port_of(server)):
            pass
    assert "RuntimeError: a fault" in caplog.text
