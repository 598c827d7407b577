"""Runs a coroutine at once; only one that has to wait becomes a task.

Most answers of access control need no wait, and a task for each would cost more than the answer.
The core therefore calls its own coroutines through `start`, and passes the rest of one that waits
to the driver.
"""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator
from typing import Any


def start(coroutine: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None] | None:
    """Run a coroutine up to its first wait.

    Returns:
        None where it ran to its end; otherwise a coroutine with the rest, for the event loop.

    Raises:
        Exception: what the coroutine raised before its first wait.
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
    """Pass what the coroutine waits for to the event loop, and the answers back."""
    while True:
        try:
            try:
                sent = yield awaited
            except BaseException as error:  # noqa: BLE001 (the coroutine gets cancellations, too)
                awaited = coroutine.throw(error)
            else:
                awaited = coroutine.send(sent)
        except StopIteration:
            return


@types.coroutine
def others_turn() -> Generator[Any, Any, None]:
    """Let the event loop run everything else once, then go on."""
    yield
