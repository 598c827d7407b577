from __future__ import annotations

import asyncio
import contextlib
import itertools

import pytest

from penstock.broker.mqtt.packets import PingReq, PingResp, Publish
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.network import new_connection as arrival_module
from penstock.broker.network.loop_scheduler import (
    CROWDED_SECONDS,
    FEW_LEAVING,
    GATHER_SECONDS,
    LONG_SECONDS,
    LONGEST_TURNS_SECONDS,
    MOST_TURNS,
    LoopScheduler,
)
from penstock.broker.network.transport import GATHERED_BYTES, LEAST_SLICE_BYTES, MqttProtocol
from penstock.broker.sending.sender import Outlet, WriteQueue
from tests.broker.serving import driver_of, port_of, protocol_of, serving, until
from tests.helpers.wire import connected

MESSAGES = 100
"""Messages of a flood that is handled in three slices or more."""


def numbered(number: int) -> bytes:
    """Return a message of the flood."""
    return write_packet(
        Publish("t", b"%04d" % number + bytes(3 * LEAST_SLICE_BYTES // MESSAGES)), 4
    )


def is_gathering(driver: LoopScheduler) -> bool:
    """Say whether something waits until the loop has looked at all that the network has."""
    return driver._is_gathering


async def test_what_slices_have_for_a_subscriber_is_written_together_and_never_late() -> None:
    """It waits for the next slice, but goes with what anybody else sends, in its order."""
    async with (
        serving() as server,
        await connected(port_of(server), "s", version=4) as subscriber,
        await connected(port_of(server), "p", version=4) as publisher,
        await connected(port_of(server), "q", version=4) as other,
    ):
        await subscriber.subscribe("t")
        await publisher.publish("t", b"known")
        connection = protocol_of(server, "s").connection
        assert connection is not None
        flooding = protocol_of(server, "p")
        flooding.data_received(b"".join(map(numbered, range(MESSAGES))))
        assert connection.outgoing.out
        protocol_of(server, "q").data_received(write_packet(Publish("t", b"other"), 4))
        payloads = [(await subscriber.take(Publish)).payload[:4] for _ in range(MESSAGES + 2)]
        assert payloads.index(b"othe") < MESSAGES
        payloads.remove(b"othe")
        assert payloads == [b"know", *(b"%04d" % number for number in range(MESSAGES))]
        assert (await other.publish("t", b"last")).reason_code == 0


def note_writes(monkeypatch: pytest.MonkeyPatch, outgoing: WriteQueue) -> list[int]:
    """Return a list of how many pieces each write of a connection has."""
    written: list[int] = []
    write_to = WriteQueue.write_to

    def noting(self: WriteQueue, transport: Outlet) -> bool:
        if self is outgoing:
            written.append(len(self.out))
        return write_to(self, transport)

    monkeypatch.setattr(WriteQueue, "write_to", noting)
    return written


async def test_what_many_senders_have_for_a_reader_at_a_time_is_written_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In their order, as soon as the loop has looked at all that has come, or there is much."""
    async with (
        serving() as server,
        await connected(port_of(server), "s", version=4) as subscriber,
        await connected(port_of(server), "p", version=4) as publisher,
    ):
        await subscriber.subscribe("t")
        await publisher.publish("t", b"known")
        connection = protocol_of(server, "s").connection
        assert connection is not None
        driver = driver_of(server)
        await until(lambda: not is_gathering(driver))
        now = driver.clock()
        driver.clock = lambda: now  # so that no chunk takes long
        written = note_writes(monkeypatch, connection.outgoing)
        payloads = [b"%d" % number for number in range(2 * MOST_TURNS + 5)]
        for payload in payloads:
            protocol_of(server, "p").data_received(write_packet(Publish("t", payload), 4))
        assert written == [MOST_TURNS, MOST_TURNS]
        received = [(await subscriber.take(Publish)).payload for _ in range(len(payloads) + 1)]
        assert received == [b"known", *payloads]
        assert written == [MOST_TURNS, MOST_TURNS, 5]


async def test_gathered_chunks_that_take_long_do_not_keep_what_others_have_caused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is written between them."""
    async with (
        serving() as server,
        await connected(port_of(server), "s", version=4) as subscriber,
        await connected(port_of(server), "p", version=4) as publisher,
    ):
        await subscriber.subscribe("t")
        await publisher.publish("t", b"known")
        connection = protocol_of(server, "s").connection
        assert connection is not None
        driver = driver_of(server)
        await until(lambda: not is_gathering(driver))
        written = note_writes(monkeypatch, connection.outgoing)
        clock = driver.clock
        looks = itertools.count()
        driver.clock = lambda: clock() + LONG_SECONDS * next(looks)
        for _ in range(10):
            protocol_of(server, "p").data_received(write_packet(Publish("t", b"x"), 4))
        driver.take_received()
        assert written == [1, 4, 4, 1]


async def test_what_is_gathered_is_not_late() -> None:
    """Chunks that never end do not keep it, and no more connections are written to at a time."""
    async with (
        serving() as server,
        await connected(port_of(server), "s", version=4) as subscriber,
        await connected(port_of(server), "p", version=4) as publisher,
    ):
        await subscriber.subscribe("t")
        await publisher.publish("t", b"known")
        connection = protocol_of(server, "s").connection
        assert connection is not None
        driver = driver_of(server)
        await until(lambda: not is_gathering(driver))
        at = driver.clock()
        packet = write_packet(Publish("t", bytes(GATHERED_BYTES)), 4)  # it is handled at once
        left = []
        for step in (0.0, 0.5, 1.0, 1.5, 2.5):
            driver.clock = lambda: at + step * GATHER_SECONDS  # noqa: B023 (called at once)
            protocol_of(server, "p").data_received(packet)
            left.append(len(connection.outgoing.out))
        assert left == [1, 2, 0, 1, 0]


@pytest.mark.parametrize("n_bytes", [1, GATHERED_BYTES])
async def test_what_is_gathered_is_written_before_anybody_in_line_has_a_turn(
    monkeypatch: pytest.MonkeyPatch, n_bytes: int
) -> None:
    """Else a flood would make a small message late by a slice."""
    async with (
        serving() as server,
        await connected(port_of(server), "s", version=4) as subscriber,
        await connected(port_of(server), "p", version=4) as publisher,
    ):
        await subscriber.subscribe("t")
        await publisher.publish("t", b"known")
        connection = protocol_of(server, "s").connection
        assert connection is not None
        driver = driver_of(server)
        await until(lambda: not is_gathering(driver))
        at_turn: list[list[object]] = []
        flooding = protocol_of(server, "p")
        out_of = connection.outgoing
        monkeypatch.setattr(MqttProtocol, "take_turn", lambda *_: at_turn.append([*out_of.out]))
        driver.later(flooding)
        flooding.data_received(write_packet(Publish("t", bytes(n_bytes)), 4))
        await until(lambda: at_turn)
        assert at_turn == [[]]
        assert (await subscriber.take(Publish)).payload == b"known"
        assert (await subscriber.take(Publish)).payload == bytes(n_bytes)


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


async def test_those_who_wait_get_as_long_as_what_came_meanwhile_took() -> None:
    """Subscribers to very many publishers do not starve behind the first of them."""
    n_subscribers, n_chunks = 2 * MOST_TURNS, 40
    async with serving() as server, contextlib.AsyncExitStack() as stack:
        for number in range(n_subscribers):
            client = await connected(port_of(server), f"c{number}")
            await (await stack.enter_async_context(client)).subscribe("t")
        driver = driver_of(server)

        def n_unwritten() -> int:
            connections = [protocol.connection for protocol in driver.protocols]
            return sum(bool(each.outgoing.out) for each in connections if each is not None)

        await until(lambda: not n_unwritten())
        clock = driver.clock
        looks = itertools.count()
        driver.clock = lambda: clock() + 0.001 * next(looks)  # each look takes a millisecond
        publisher = protocol_of(server, "c0")
        for _ in range(n_chunks):
            publisher.data_received(write_packet(Publish("t", b"data"), 5))
        n_waiting = n_unwritten()
        assert n_waiting >= n_subscribers - MOST_TURNS
        await asyncio.sleep(0)
        assert n_unwritten() <= n_waiting - n_chunks // 5


async def test_gathered_chunks_count_once_for_those_who_wait() -> None:
    """Each connection that wants to be looked at is served while others are gathered."""
    n_chunks = 20
    async with serving() as server, contextlib.AsyncExitStack() as stack:
        for number in range(n_chunks):
            await stack.enter_async_context(await connected(port_of(server), f"c{number}"))
        driver = driver_of(server)
        await until(lambda: not is_gathering(driver))
        clock = driver.clock
        looks = itertools.count()
        driver.clock = lambda: clock() + 0.0001 * next(looks)
        driver._has_turns = True
        driver._seconds_elsewhere = 0.0
        begin = driver.clock()
        for number in range(n_chunks):
            protocol = protocol_of(server, f"c{number}")
            assert protocol.connection is not None
            protocol.connection.outgoing.want_pump()
            protocol.data_received(write_packet(Publish("t", b"x"), 4))
        driver.take_received()
        driver._has_turns = False
        assert 0 < driver._seconds_elsewhere <= driver.clock() - begin


async def test_what_is_gathered_is_handled_before_a_deadline() -> None:
    """A client whose last packet has come is not timed out for want of one."""
    async with (
        serving(sys_interval=0) as server,
        await connected(port_of(server), "c", keep_alive=10) as client,
    ):
        driver = driver_of(server)
        await until(lambda: not is_gathering(driver))
        clock = driver.clock
        protocol_of(server, "c").data_received(write_packet(PingReq(), 5))
        driver.clock = lambda: clock() + 60.0
        driver.timer_due()
        await client.take(PingResp)


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


async def test_clients_that_leave_are_a_crowd_after_a_time_without_few_of_them() -> None:
    """Many at a time are none, nor are few for however long."""
    async with serving() as server:
        driver = driver_of(server)
        for _ in range(FEW_LEAVING):
            driver.leaves(0.0)
        assert not driver.is_crowded(2 * CROWDED_SECONDS)
        driver.leaves(100.0)
        driver.leaves(101.0)
        driver.has_left()
        assert not driver.is_crowded(100.0 + CROWDED_SECONDS - 0.5)
        assert driver.is_crowded(100.0 + CROWDED_SECONDS)
        driver.has_left()
        assert not driver.is_crowded(1000.0)


async def test_connections_that_are_lost_together_end_in_turns() -> None:
    """However long that takes, others are served before all clients of a cut network have ended."""
    n_clients = 3 * MOST_TURNS
    async with serving() as server, contextlib.AsyncExitStack() as stack:
        for number in range(n_clients):
            await stack.enter_async_context(await connected(port_of(server), f"c{number}"))
        counters = server.core.counters
        assert counters.clients_connected == n_clients
        driver = driver_of(server)
        clock = driver.clock
        looks = itertools.count()
        driver.clock = lambda: clock() + 0.01 * next(looks)
        for protocol in list(driver.protocols):
            protocol.abort()
            protocol.connection_lost(None)
        assert counters.clients_connected == n_clients - MOST_TURNS
        await until(lambda: not counters.clients_connected)
        assert not driver.protocols


async def test_connections_that_clients_close_together_are_closed_in_turns() -> None:
    """The loop closes all at once that a round has for it, and each takes the kernel a while."""
    n_clients = 3 * MOST_TURNS
    async with serving() as server, contextlib.AsyncExitStack() as stack:
        for number in range(n_clients):
            await stack.enter_async_context(await connected(port_of(server), f"c{number}"))
        driver = driver_of(server)
        protocols = list(driver.protocols)
        is_later = [protocol.eof_received() for protocol in protocols]
        assert is_later == [False] * MOST_TURNS + [True] * (n_clients - MOST_TURNS)
        closed = []
        for _ in range(3):
            await asyncio.sleep(0)
            closed.append(sum(one.is_closing for one in protocols[MOST_TURNS:]))
        assert closed == [MOST_TURNS, 2 * MOST_TURNS, 2 * MOST_TURNS]
        assert protocols[0].eof_received() is False  # all have left, so that this one may
        for protocol in protocols[:MOST_TURNS]:
            protocol.abort()
        await until(lambda: not driver.protocols)


async def test_a_client_that_is_closed_later_and_reads_nothing_is_dropped_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Something may have been written to it since it left, which would keep it open."""
    monkeypatch.setattr(arrival_module, "CLOSE_TIMEOUT_SECONDS", 0.05)
    async with serving() as server, contextlib.AsyncExitStack() as stack:
        for number in range(MOST_TURNS + 1):
            await stack.enter_async_context(await connected(port_of(server), f"c{number}"))
        driver = driver_of(server)
        protocols = list(driver.protocols)
        *_, last = [protocol.eof_received() for protocol in protocols]
        assert last
        protocols[-1].transport.write(bytes(64 * 1024 * 1024))
        await until(lambda: protocols[-1] not in driver.protocols)


async def test_the_line_is_not_served_for_as_long_as_a_very_long_round_has_taken() -> None:
    """The loop looks at the network again after `LONGEST_TURNS_SECONDS`."""
    n_clients = 2 * MOST_TURNS
    async with serving(sys_interval=0) as server, contextlib.AsyncExitStack() as stack:
        for number in range(n_clients):
            await stack.enter_async_context(await connected(port_of(server), f"c{number}"))
        driver = driver_of(server)
        await until(lambda: not is_gathering(driver))
        clock = driver.clock
        looks = itertools.count()
        driver.clock = lambda: clock() + LONGEST_TURNS_SECONDS / 8 * next(looks)
        for protocol in driver.protocols:
            driver.later(protocol)
        driver._seconds_elsewhere = 1.0
        driver._turns()
        assert sum(protocol.is_in_line for protocol in driver.protocols) > n_clients / 2


async def test_deadlines_that_are_due_together_let_others_be_served_between() -> None:
    """All sessions of a network that was cut may expire at once."""
    ran: list[int] = []
    between: list[int] = []
    n_timers = 3 * MOST_TURNS
    async with serving(sys_interval=0) as server:
        driver = driver_of(server)
        now = driver.clock()
        for number in range(n_timers):
            server.core.timers.at(now, lambda _now, number=number: ran.append(number))  # type: ignore[misc]
        driver.timer_due()
        while len(ran) < n_timers:
            between.append(len(ran))
            await asyncio.sleep(0)
    assert ran == list(range(n_timers))
    assert between[:1] == [MOST_TURNS]
    assert MOST_TURNS * 2 in between
