from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from broker.amqtt_host import calls as calls_module
from broker.amqtt_host.calls import PluginCalls
from broker.amqtt_host.handlers import Handler


class Faults:
    """Collects what handlers raised."""

    def __init__(self) -> None:
        self.names: list[str] = []

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
    return PluginCalls(logging.getLogger("test"), faults)


def handler(
    call: Callable[..., Coroutine[Any, Any, Any]],
    *,
    can_wait: bool = False,
    is_slow: bool = False,
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

    assert calls.fire([handler(note), handler(note)], {"number": 7}) == []
    assert seen == [7, 7]


async def test_faults_are_reported_and_keep_no_other_handler_from_running(
    calls: PluginCalls, faults: Faults
) -> None:
    """A handler that raises, at once or later, is named; the next ones run."""
    seen = []

    async def note() -> None:
        seen.append(1)

    tasks = calls.fire([handler(fails), handler(fails_later, can_wait=True), handler(note)], {})
    assert seen == [1]
    assert [task.get_name() for task in tasks] == ["fails_later"]
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
    (task,) = calls.fire([handler(never, can_wait=True)], {})
    await calls.finish()
    assert task.cancelled()
