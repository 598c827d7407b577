from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.broker.amqtt_host import calls as calls_module
from penstock.broker.amqtt_host.calls import PluginCalls
from penstock.broker.amqtt_host.handlers import Handler


class Faults:
    """Collects what handlers raised."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def dropped(self, name: str) -> None:
        """Note an event that a handler is not told of."""
        self.names.append(f"{name} dropped")

    def __call__(self, name: str, error: Exception) -> None:
        """Note a fault."""
        self.names.append(f"{name}: {error}")


@pytest.fixture
def faults() -> Faults:
    """Return a collector of faults."""
    return Faults()


@pytest.fixture
def calls(faults: Faults) -> PluginCalls:
    """Return calls that report to `faults`."""
    return PluginCalls(logging.getLogger("test"), faults, faults.dropped, max_events=3)


def handler(
    call: Callable[..., Coroutine[Any, Any, Any]], *, can_wait: bool = False, is_slow: bool = False
) -> Handler:
    """Return a handler named after its function."""
    return Handler(call.__name__, None, call, can_wait, is_slow)


async def true() -> bool:
    """Answer at once."""
    return True


async def later() -> str:
    """Answer after a wait."""
    await asyncio.sleep(0)
    return "later"


async def fails() -> None:
    """Raise at once."""
    raise ValueError("at once")


async def fails_later() -> None:
    """Raise after a wait."""
    await asyncio.sleep(0)
    raise ValueError("later")


async def never() -> None:
    """Wait for ever."""
    await asyncio.get_running_loop().create_future()


def test_answers_that_need_no_wait_need_no_event_loop(calls: PluginCalls, faults: Faults) -> None:
    """They are there at once, without a task; a handler that raises has said False."""
    assert calls.ask([handler(true), handler(fails)], {}) == [True, False]
    assert faults.names == ["fails: at once"]


async def test_answers_that_may_wait_come_in_order(calls: PluginCalls, faults: Faults) -> None:
    """All are asked at the same time and answer in the order of the plugins."""
    answers = calls.ask(
        [handler(later, can_wait=True), handler(true), handler(fails_later, can_wait=True)], {}
    )
    assert not isinstance(answers, list)
    assert await answers == ["later", True, False]
    assert faults.names == ["fails_later: later"]


async def test_slow_answers_come_from_a_thread(calls: PluginCalls) -> None:
    """What keeps the processor busy does not hold up the event loop's thread."""

    async def where() -> int:
        return threading.get_ident()

    answers = calls.ask([handler(where, is_slow=True)], {})
    assert not isinstance(answers, list)
    assert await answers != [threading.get_ident()]


async def test_handlers_that_cannot_wait_have_run_when_fire_returns(calls: PluginCalls) -> None:
    """No task is made for them."""
    seen = []

    async def note(number: int) -> None:
        seen.append(number)

    calls.fire([handler(note), handler(note)], {"number": 7})
    assert len(asyncio.all_tasks()) == 1
    assert seen == [7, 7]


async def test_faults_are_reported_and_keep_no_other_handler_from_running(
    calls: PluginCalls, faults: Faults
) -> None:
    """A handler that raises, at once or later, is named; the next ones run."""
    seen = []

    async def note() -> None:
        seen.append(1)

    calls.fire([handler(fails), handler(fails_later, can_wait=True), handler(note)], {})
    assert seen == [1]
    assert "fails_later" in [task.get_name() for task in asyncio.all_tasks()]
    await calls.finish()
    assert faults.names == ["fails: at once", "fails_later: later"]


async def test_handler_with_another_signature_is_reported(
    calls: PluginCalls, faults: Faults
) -> None:
    """A handler that does not take what an event tells is a fault like any other."""
    calls.fire([handler(true)], {"client_id": "c"})
    assert "unexpected keyword argument 'client_id'" in faults.names[0]


async def test_fire_and_wait_waits_for_all(calls: PluginCalls) -> None:
    """It returns after the last handler has come to its end."""
    seen = []

    async def note() -> None:
        await asyncio.sleep(0)
        seen.append(1)

    await calls.fire_and_wait([handler(note, can_wait=True)] * 2, None)
    assert seen == [1, 1]


async def test_handler_that_does_not_end_is_cancelled_and_named(
    calls: PluginCalls, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of the broker does not wait for ever."""
    await calls.fire_and_wait([handler(never, can_wait=True)], 0.01)
    assert "never: cancelled after 0.01 s" in caplog.text


async def test_finish_leaves_nothing_running(
    calls: PluginCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks that were started and are still at work are cancelled in the end."""
    monkeypatch.setattr(calls_module, "SHUTDOWN_SECONDS", 0.01)
    before = asyncio.all_tasks()
    calls.fire([handler(never, can_wait=True)], {})
    (task,) = asyncio.all_tasks() - before
    await calls.finish()
    assert task.cancelled()


class Slow:
    """A handler whose events end when the test says so."""

    def __init__(self) -> None:
        self._may_end = asyncio.Semaphore(0)
        self._has_ended = asyncio.Semaphore(0)

    async def event(self) -> None:
        """Wait for the test."""
        await self._may_end.acquire()
        self._has_ended.release()

    async def finish(self, n_events: int = 1) -> None:
        """Let events end, and what is called after each of them be called."""
        for _ in range(n_events):
            self._may_end.release()
            await self._has_ended.acquire()
        await asyncio.sleep(0)


async def test_clients_wait_while_too_many_events_are_at_work(calls: PluginCalls) -> None:
    """As many as are allowed pass; then whoever causes more waits for one to end."""
    slow = Slow()
    for _ in range(3):
        assert calls.catch_up() is None
        calls.fire([handler(slow.event, can_wait=True)], {})
    waiting = []
    for _ in range(2):
        wait = calls.catch_up()
        assert wait is not None
        waiting.append(asyncio.ensure_future(wait))
    await slow.finish()
    await asyncio.gather(*waiting)
    assert calls.catch_up() is None
    await slow.finish(2)
    await calls.finish()


async def test_nobody_waits_for_a_plugin_that_is_stuck(
    calls: PluginCalls, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one wait in vain, until it moves again; then its events are bounded all the same."""
    monkeypatch.setattr(calls_module, "MAX_WAIT_SECONDS", 0.01)
    slow = Slow()
    for _ in range(3):
        calls.fire([handler(slow.event, can_wait=True)], {})
    wait = calls.catch_up()
    assert wait is not None
    await wait
    assert calls.catch_up() is None
    for _ in range(3 * calls_module.N_STUCK - 3):
        calls.fire([handler(slow.event, can_wait=True)], {})
    assert faults.names == []
    calls.fire([handler(slow.event, can_wait=True), handler(true)], {})
    assert faults.names == ["event dropped"]
    await slow.finish()
    wait = calls.catch_up()
    assert wait is not None
    wait.close()
    await slow.finish(3 * calls_module.N_STUCK - 1)
    await calls.finish()
    assert calls.catch_up() is None
