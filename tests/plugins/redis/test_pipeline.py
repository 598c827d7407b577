from __future__ import annotations

import asyncio
import logging
import signal
import time
import uuid
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from penstock.netem.runs.broker_process import reserved_port
from penstock.plugins.queue.engines.contract import StorageError
from penstock.plugins.redis.pipeline import Call, Patience, Silence
from penstock.plugins.redis.routes import Range, Routes
from penstock.plugins.redis.server import RedisServer
from tests.helpers.redis_server import running_redis, shared_redis
from tests.plugins.queue.engines.contract.harness import UNTIL_SECONDS, until

LOGGER = logging.getLogger("penstock.queue")


def routes(port: int, patience: Patience | None = None) -> Routes:
    """Return routes to a server, each of whose calls goes through one pipeline."""
    server = RedisServer(port=port, patience=patience or Patience())
    return Routes(
        server.finder(), lambda address: server.connect(LOGGER, address), server.patience, LOGGER
    )


async def test_calls_are_answered_in_their_order() -> None:
    """None waits for the other; one that the server refuses fails alone."""
    calls = routes(shared_redis())
    await calls.open()
    futures = [calls.call("k", "ECHO", f"{n}") for n in range(100)]
    refused = calls.call("k", "NO SUCH COMMAND")
    behind = calls.call("k", "ECHO", "behind")
    assert await asyncio.gather(*futures) == [b"%d" % n for n in range(100)]
    with pytest.raises(ResponseError, match="unknown command"):
        await refused
    assert await behind == b"behind"
    await calls.close()


async def test_a_call_for_many_messages_leaves_at_once_and_overtakes_none() -> None:
    """The server has it before this step of the loop ends, unless others wait before it."""
    calls = routes(shared_redis())
    await calls.open()
    key = f"test-pipeline-{uuid.uuid4().hex}"
    await calls.call(key, "DEL", key)
    with Redis(port=shared_redis()) as other:
        first = calls.call(key, "RPUSH", key, *["0"] * 60)
        give_up_at = time.monotonic() + 10.0
        while other.llen(key) != 60:
            assert time.monotonic() < give_up_at
        behind = []
        for number in range(1, 60):
            n_words = 60 if number % 3 else 1
            behind.append(calls.call(key, "RPUSH", key, *[number] * n_words))
        assert await first == 60
        assert await asyncio.gather(*behind) == sorted(one.result() for one in behind)
        found = [int(one) for one in other.lrange(key, 0, -1)]
        assert found == sorted(found)
        other.delete(key)
    await calls.close()


async def test_a_caller_that_leaves_takes_no_other_s_answer() -> None:
    """The answer of a cancelled call is passed over."""
    calls = routes(shared_redis())
    await calls.open()
    gone, stays = calls.call("k", "ECHO", "gone"), calls.call("k", "ECHO", "stays")
    gone.cancel()
    assert await stays == b"stays"
    await calls.close()


async def test_a_close_waits_for_answers_and_takes_no_more_calls() -> None:
    """It may be called again."""
    calls = routes(shared_redis())
    with pytest.raises(StorageError, match="closed"):
        await calls.call("k", "PING")
    await calls.open()
    future = calls.call("k", "ECHO", "last")
    await calls.close()
    assert await future == b"last"
    await calls.close()
    with pytest.raises(StorageError, match="closed"):
        await calls.call("k", "PING")


async def test_a_connection_that_ends_has_its_calls_repeated_in_their_order() -> None:
    """Those without an answer go out once more before what came later."""
    calls, other = routes(shared_redis()), routes(shared_redis())
    await calls.open()
    await other.open()
    own = await calls.call("k", "CLIENT", "ID")
    key = f"test-pipeline-{own}"
    waiting = calls.call(key, "BLPOP", key, "0")
    behind = [calls.call(key, "RPUSH", key, f"{n}") for n in range(3)]
    assert await other.call("k", "CLIENT", "KILL", "ID", own) == 1
    # The list is empty until the first call has its answer: it waits again.
    assert await other.call(key, "RPUSH", key, "first") == 1
    assert await waiting == [key.encode(), b"first"]
    assert await asyncio.gather(*behind) == [1, 2, 3]
    assert await other.call(key, "LPOP", key, "9") == [b"0", b"1", b"2"]
    assert calls.failure is None
    await calls.close()
    await other.close()


async def test_a_server_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    """A frozen server's calls fail in time; the connection is made again when it goes on."""
    with running_redis(tmp_path) as process:
        calls = routes(process.port, Patience(timeout_seconds=0.2, retry_seconds=0.4))
        await calls.open()
        process.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(StorageError, match=r"no answer for 0\.2 s; whether the call was"):
                await calls.call("k", "PING")
            assert "no answer" in (calls.failure or "")
        finally:
            process.process.send_signal(signal.SIGCONT)
        await until(lambda: calls.failure is None)
        assert await calls.call("k", "ECHO", "again") == b"again"
        await calls.close()


async def test_a_call_that_was_never_sent_fails_without_a_doubt(tmp_path: Path) -> None:
    """What came while there was no server was not carried out."""
    with reserved_port() as port:
        with running_redis(tmp_path, port=port):
            calls = routes(port, Patience(retry_seconds=0.2))
            await calls.open()
        await until(lambda: calls.failure is not None)
        with pytest.raises(StorageError) as told:
            await calls.call("k", "PING")
        assert "unknown" not in str(told.value)
        await calls.close()


async def test_a_server_that_takes_no_calls_says_why(tmp_path: Path) -> None:
    """Such as one that somebody has made a replica."""
    with running_redis(tmp_path) as process, Redis(port=process.port) as admin:
        calls = routes(process.port, Patience(retry_seconds=0.2))
        await calls.open()
        admin.replicaof("127.0.0.1", 1)
        with pytest.raises(StorageError, match=r"takes no calls: You can't write against a read"):
            await calls.call("k", "SET", "k", "1")
        await calls.close()


async def test_a_call_that_is_kept_outlasts_the_others_while_there_is_no_server(
    tmp_path: Path,
) -> None:
    """What others were told is safe by then, or wait for, must not fail as time goes by."""
    with reserved_port() as port:
        with running_redis(tmp_path, port=port):
            calls = routes(port, Patience(retry_seconds=0.2))
            await calls.open()
        await until(lambda: calls.failure is not None)
        kept = calls.call("k", "ECHO", "kept", is_kept=True)
        with pytest.raises(StorageError):
            await calls.call("k", "PING")
        assert not kept.done()
        with running_redis(tmp_path, port=port):
            assert await kept == b"kept"
            await calls.close()


async def test_what_is_stored_waits_for_replicas(tmp_path: Path) -> None:
    """Without one it fails by name, with its outcome, unless it is kept; others are answered."""
    with running_redis(tmp_path / "master") as master:
        calls = routes(master.port, Patience(min_replicas=1, replication_seconds=0.05))
        await calls.open()
        alone = calls.call("k", "SET", "k", "1", is_stored=True)
        assert await calls.call("k", "GET", "k") == b"1"
        with pytest.raises(StorageError, match="read 0; allowed: 1 or more, as min_replicas"):
            await alone
        kept = calls.call("k", "SET", "k", "3", is_stored=True, is_kept=True)
        with pytest.raises(StorageError, match="read 0"):
            await calls.call("k", "SET", "k", "1", is_stored=True)
        assert not kept.done()
        with running_redis(tmp_path / "first", f"replicaof 127.0.0.1 {master.port}"):
            assert await kept == b"OK"
        await calls.close()
        calls = routes(master.port, Patience(min_replicas=1, replication_seconds=60))
        await calls.open()
        stored = calls.call("k", "SET", "k", "2", is_stored=True)
        with running_redis(tmp_path / "replica", f"replicaof 127.0.0.1 {master.port}"):
            assert await stored == b"OK"
        await calls.close()


class _Found:
    """A finder that a test tells where the master is."""

    is_cluster = False

    def __init__(self, port: int) -> None:
        self.port = port

    async def find(self) -> list[Range]:
        """Return the only server."""
        return [(0, 0, ("127.0.0.1", self.port))]


async def test_master_that_others_have_replaced_is_left_while_it_answers(tmp_path: Path) -> None:
    """It has no replicas any more: what is kept goes to the one that has them."""
    with (
        running_redis(tmp_path / "old") as old,
        running_redis(tmp_path / "new") as new,
        running_redis(tmp_path / "replica", f"replicaof 127.0.0.1 {new.port}"),
    ):
        finder = _Found(old.port)
        server = RedisServer(patience=Patience(min_replicas=1, replication_seconds=0.1))
        calls = Routes(
            finder, lambda address: server.connect(LOGGER, address), server.patience, LOGGER
        )
        await calls.open()
        finder.port = new.port
        kept = calls.call("k", "SET", "k", "1", is_stored=True, is_kept=True)
        async with asyncio.timeout(UNTIL_SECONDS):
            assert await kept == b"OK"
        assert calls.addresses == [("127.0.0.1", new.port)]
        await calls.close()


async def test_a_silent_server_is_away_until_it_answers() -> None:
    """Whoever wants to know is told of both."""
    calls = routes(shared_redis(), Patience(slowdown_detection_time=0.02))
    other = routes(shared_redis())
    told: list[bool] = []
    calls.on_away = lambda: told.append(calls.has_away)
    calls.on_return = lambda: told.append(calls.has_away)
    await calls.open()
    await other.open()
    key = f"test-silent-{await calls.call('k', 'CLIENT', 'ID')}"
    waiting = calls.call(key, "BLPOP", key, "0")
    await until(lambda: calls.is_away(key))
    assert calls.failure is None
    await other.call(key, "RPUSH", key, "a")
    assert await waiting == [key.encode(), b"a"]
    assert not calls.is_away(key)
    assert told == [True, False] * (len(told) // 2)  # a busy machine may have more
    await calls.close()
    await other.close()


def looks_until_silent(silence: Silence, call: Call) -> int:
    """Look at a server that answers nothing until it is silent; return how often."""
    silence.look(call)
    n_looks = 1
    while not silence.look(call):
        n_looks += 1
    return n_looks


async def test_a_server_that_is_always_slow_is_not_left_out_for_ever() -> None:
    """Each time, it may take twice as long; until it is quick once."""
    silence = Silence(Patience(300.0, slowdown_detection_time=0.4))
    loop = asyncio.get_running_loop()
    found = []
    for n in range(4):
        call = Call(("PING",), 0, n, loop, is_stored=False)
        found.append(looks_until_silent(silence, call))
        assert silence.is_silent
        assert silence.answered(call, call.made_at + 4.0)
        assert not silence.is_silent
    assert found == [4, 8, 16, 32]
    call = Call(("PING",), 0, 9, loop, is_stored=False)
    assert not silence.answered(call, call.made_at + 0.1)
    assert looks_until_silent(silence, call) == 4


async def test_a_silent_server_is_given_up_in_time() -> None:
    """However patient it is waited for."""
    silence = Silence(Patience(1.0, slowdown_detection_time=0.4))
    call = Call(("PING",), 0, 1, asyncio.get_running_loop(), is_stored=False)
    assert looks_until_silent(silence, call) == 4
    assert [silence.look(call) for _ in range(5)] == [False] * 5
    with pytest.raises(TimeoutError, match="no answer for 1 s"):
        silence.look(call)
