"""Run a coroutine here and now; only what has to wait becomes a task.

Most answers of access control need no wait, and a task for each of them would cost more than
the answer. The core therefore calls its own coroutines through `start` and hands the rest of
one that does wait to the driver.
"""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator
from typing import Any


def start(coroutine: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None] | None:
    """Run a coroutine up to its first wait.

    Returns:
        None where it ran to its end; else a coroutine that goes on from there, for the event
        loop to run.

    Raises:
        Exception: whatever the coroutine raised before its first wait.
    """
    try:
        awaited = coroutine.send(None)
    except StopIteration:
        return None
    return _go_on(coroutine, awaited)


async def _go_on(coroutine: Coroutine[Any, Any, None], awaited: Any) -> None:
    await _relay(coroutine, awaited)


@types.coroutine
def _relay(coroutine: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    """Pass what the coroutine waits for to the event loop, and back what that answers."""
    while True:
        try:
            try:
                sent = yield awaited
            except BaseException as error:  # noqa: BLE001 (cancellation too is the coroutine's)
                awaited = coroutine.throw(error)
            else:
                awaited = coroutine.send(sent)
        except StopIteration:
            return


@types.coroutine
def others_turn() -> Generator[Any, Any, None]:
    """Let the event loop see to everybody else, then go on."""
    yield
