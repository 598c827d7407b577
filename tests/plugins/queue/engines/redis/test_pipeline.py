from __future__ import annotations

import asyncio
import logging

import pytest
from redis.exceptions import ResponseError

from penstock.plugins.queue.engines.contract import StorageError
from penstock.plugins.queue.engines.redis.pipeline import Pipeline
from penstock.plugins.queue.engines.redis.server import RedisServer
from tests.helpers.redis_server import shared_redis

LOGGER = logging.getLogger("penstock.queue")


def pipeline() -> Pipeline:
    """Return a pipeline to the shared server."""
    server = RedisServer(port=shared_redis())
    return Pipeline(lambda: server.connect(LOGGER), LOGGER)


async def test_calls_are_answered_in_their_order() -> None:
    """None waits for the other; one that the server refuses fails alone."""
    calls = pipeline()
    await calls.open()
    futures = [calls.call("ECHO", f"{n}") for n in range(100)]
    refused = calls.call("NO SUCH COMMAND")
    behind = calls.call("ECHO", "behind")
    assert await asyncio.gather(*futures) == [b"%d" % n for n in range(100)]
    with pytest.raises(ResponseError, match="unknown command"):
        await refused
    assert await behind == b"behind"
    await calls.close()


async def test_a_caller_that_leaves_takes_no_other_s_answer() -> None:
    """The answer of a cancelled call is passed over."""
    calls = pipeline()
    await calls.open()
    gone, stays = calls.call("ECHO", "gone"), calls.call("ECHO", "stays")
    gone.cancel()
    assert await stays == b"stays"
    await calls.close()


async def test_a_close_waits_for_answers_and_takes_no_more_calls() -> None:
    """It may be called again."""
    calls = pipeline()
    with pytest.raises(StorageError, match="closed"):
        calls.call("PING")
    await calls.open()
    future = calls.call("ECHO", "last")
    await calls.close()
    assert await future == b"last"
    await calls.close()
    with pytest.raises(StorageError, match="closed"):
        calls.call("PING")


async def test_a_connection_that_ends_fails_what_was_sent() -> None:
    """Whether it was carried out is unknown; the next connection takes further calls."""
    calls = pipeline()
    await calls.open()
    own = await calls.call("CLIENT", "ID")
    waiting = calls.call("BLPOP", "test-no-such-list", "0")
    other = pipeline()
    await other.open()
    await other.call("CLIENT", "KILL", "ID", own)
    with pytest.raises(StorageError, match="unknown"):
        await waiting
    assert await calls.call("ECHO", "again") == b"again"
    assert calls.failure is None
    await calls.close()
    await other.close()
