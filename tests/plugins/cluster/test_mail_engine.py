"""What the engine has of sessions that outlive their connection, on a real server."""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from penstock.broker.errors import PenstockError
from penstock.plugins.cluster.engine import ClusterEngine, FencedError, Row
from penstock.plugins.cluster.mail_engine import (
    FROM_START,
    IF_CONNECTED,
    IF_THERE,
    MailEngine,
    Posted,
)
from penstock.plugins.redis.calls import plain
from penstock.plugins.redis.errors import StorageFullError
from penstock.plugins.redis.server import RedisServer
from tests.helpers.redis_server import running_redis, shared_redis

LOGGER = logging.getLogger("penstock.cluster")
X = "client x"


def server() -> RedisServer:
    """Return a server with keys of its own."""
    return RedisServer("127.0.0.1", shared_redis(), prefix=f"test-{uuid.uuid4().hex}")


@asynccontextmanager
async def joined(
    at: RedisServer, name: str, limits: tuple[int, int, str] = (10, 1000, "drop_newest")
) -> AsyncIterator[MailEngine]:
    """Return the calls of a member for a block."""
    engine = ClusterEngine(at, "test", name, LOGGER)
    await engine.open()
    await engine.join(name)
    try:
        yield MailEngine(engine, lambda: limits)
    finally:
        await engine.close()


async def claimed(mail: MailEngine, number: int = 1, displaced: Row | None = None) -> Row:
    """Claim the client for a node."""
    own = Row(mail.engine.node, mail.engine.epoch, number)
    found, _ = await mail.engine.claim(X, own, displaced)
    assert found == own
    return own


async def kept(mail: MailEngine, expiry: str = "", origin: str = "o1") -> Row:
    """Claim the client, and begin a session."""
    own = await claimed(mail)
    await mail.commit(X, own, 1, origin, ["s", "expiry", expiry, "f", "a/+", "1"])
    return own


def bucket(mail: MailEngine) -> str:
    """Return the common beginning of the client's keys."""
    return mail.engine.bucket(X)


async def posted(mail: MailEngine, *messages: bytes, qos: int = 1, token: bytes = b"") -> Posted:
    """Put messages into the client's mailbox."""
    words: list[Any] = []
    for message in messages or (b"",):
        words += [message, qos, token, 1, X]
    _, *found = await plain(mail.post(bucket(mail), words))
    return Posted.read(found[0])


async def values(mail: MailEngine, own: Row) -> list[bytes]:
    """Return what is in the mailbox."""
    fetched = await mail.fetch(X, own, FROM_START, 100, 1000)
    return [value for _, value in fetched.entries]


async def released(mail: MailEngine, own: Row) -> None:
    """Let go of the client."""
    await plain(mail.engine.release(X, own))


async def test_messages_wait_for_a_session_in_their_order() -> None:
    """Whoever puts them there; who has no session gets none."""
    at = server()
    async with joined(at, "a") as a, joined(at, "b") as b:
        assert await posted(a, b"0", b"0") == Posted(X, -1, 0, 2, 0, True, None)
        assert await posted(a) == Posted(X, -1, 0, 0, 0, True, None)
        own = await kept(a)
        await posted(a, b"1")
        await posted(b, b"2", b"3")
        assert await posted(a, b"4") == Posted(X, 4, 4, 0, 0, False, None)
        assert await values(a, own) == [b"1", b"2", b"3", b"4"]
        assert (await a.load(X, own)).filters == {b"a/+": b"1"}


async def test_repeated_post_changes_nothing() -> None:
    """A post is repeated where its answer was lost."""
    async with joined(server(), "a") as a:
        own = await kept(a)
        words = (a.engine.node, a.engine.epoch, 1, *a.limits(), b"1", 1, "", 1, X)
        for _ in range(2):
            await plain(a.engine.calls.call("post", (bucket(a),), *words))
        assert await values(a, own) == [b"1"]


async def test_message_that_its_publisher_repeats_is_there_once() -> None:
    """Through whatever node it comes again; once it is forgotten, its identifier is another's."""
    at = server()
    async with joined(at, "a") as a, joined(at, "b") as b:
        own = await kept(a)
        await posted(a, b"1", token=b"+id")
        await posted(b, b"1", token=b"?id")
        await posted(b, b"2", token=b"?other")
        assert await values(a, own) == [b"1", b"2"]
        await plain(b.unsee(bucket(b), b"id"))
        await posted(b, b"3", token=b"?id")
        assert await values(a, own) == [b"1", b"2", b"3"]


async def test_message_that_another_client_can_have_is_refused_where_this_one_has_gone() -> None:
    """Its session has ended, or it has no connection and a message is for one that has."""
    async with joined(server(), "a") as a:
        words = [b"1", 1, IF_CONNECTED, 1, X, b"2", 1, b"", 1, "other", b"3", 2, IF_THERE, 1, X]

        async def refused(number: int) -> bytes:
            call = "a", a.engine.epoch, number, *a.limits(), *words
            answer: bytes = (await plain(a.engine.calls.call("post", (bucket(a),), *call)))[0]
            return answer

        assert await refused(1) == b"1,3"
        own = await kept(a)
        assert await refused(1) == b"1,3"  # a repeat: the answer was lost
        assert await values(a, own) == []
        assert await refused(2) == b""
        await released(a, own)
        assert await refused(3) == b"1"
        assert await values(a, await claimed(a, 2)) == [b"1", b"3", b"3"]
        assert [await refused(number) for number in (1, 2, 3)] == [b"1,3", b"", b"1"]


async def test_large_messages_are_fetched_one_by_one() -> None:
    """Not a hundred at a time: the bytes of one answer are limited, but for a single message."""
    async with joined(server(), "a", (1000, 10**6, "drop_newest")) as a:
        own, after, sizes = await kept(a), FROM_START, []
        for size in [5] * 30 + [600] * 3 + [2000] + [5] * 4:
            await posted(a, bytes(size))
        while True:
            found = await a.fetch(X, own, after, 20, 1000)
            sizes.append([len(value) for _, value in found.entries])
            if not found.has_more:
                break
            after = found.entries[-1][0]
        assert sizes == [[5] * 20, [5] * 10 + [600], [600], [600], [2000], [5] * 4]


async def test_owner_is_named_once_until_it_has_fetched() -> None:
    """It is told of the first message alone, however many come before it looks."""
    async with joined(server(), "a") as a:
        own = await kept(a)
        owners = [(await posted(a, b"%d" % n)).owner for n in range(3)]
        assert owners == [own, None, None]
        assert len(await values(a, own)) == 3
        assert (await posted(a, b"3")).owner == own


async def test_session_goes_on_at_another_node() -> None:
    """With its subscriptions, messages, and identifiers; the former owner is refused."""
    at = server()
    async with joined(at, "a") as a, joined(at, "b") as b:
        own = await kept(a)
        await posted(a, b"1", b"2", b"3")
        first, second, _ = (await a.fetch(X, own, FROM_START, 10, 1000)).entries
        changes = ["i", second[0], b"sent", "d", first[0], 1, "n", 7, "", "n", 8, "", "N", 8, ""]
        await a.commit(X, own, 2, "o1", changes)
        await released(a, own)
        assert (await posted(b, b"4", b"")) == Posted(X, 3, 3, 0, 0, True, None)
        new = await claimed(b)
        state = await b.load(X, new)
        assert state.values[b"origin"] == b"o1"
        assert b"away" not in state.values
        assert (state.sent, state.incoming) == ({second[0]: b"sent"}, [7])
        assert await b.entries(X, [first[0], second[0]]) == [second]
        assert await values(b, new) == [b"2", b"3", b"4"]
        for call in (
            a.fetch(X, own, FROM_START, 1, 1000),
            a.load(X, own),
            a.commit(X, own, 3, "o1", []),
        ):
            with pytest.raises(FencedError):
                await call


async def test_repeated_commit_answers_with_what_it_has_added() -> None:
    """And adds nothing more."""
    async with joined(server(), "a") as a:
        own = await kept(a)
        added = [await a.commit(X, own, 2, "o1", ["a", b"1", b"s", "a", b"2", ""]) for _ in "ab"]
        assert added[0] == added[1]
        assert await values(a, own) == [b"1", b"2"]
        assert (await a.load(X, own)).sent == {added[0][0]: b"s"}


async def test_messages_of_qos_0_are_for_sessions_with_a_connection() -> None:
    """They do not wait for one that is away, and are counted there."""
    async with joined(server(), "a") as a:
        own = await kept(a)
        assert (await posted(a, b"1", qos=0)).n_offline == 0
        await released(a, own)
        assert (await posted(a, b"2", b"3", qos=0)).n_offline == 2
        assert await values(a, await claimed(a, 2)) == [b"1"]


@pytest.mark.parametrize(
    ("mode", "left", "n_dropped"),
    [("drop_newest", b"012", 2), ("drop_oldest", b"234", 2), ("reject", b"01234", 0)],
)
async def test_more_messages_than_allowed(mode: str, left: bytes, n_dropped: int) -> None:
    """The limit of messages, as the policy has it; with `reject` the publishers are held back."""
    async with joined(server(), "a", (3, 1000, mode)) as a:
        own = await kept(a)
        found = await posted(a, b"0", b"1", b"2", b"3", b"4")
        assert found[1:4] == (len(left), len(left), n_dropped)
        assert b"".join(await values(a, own)) == left


async def test_what_the_owner_has_read_is_not_dropped() -> None:
    """It may be on its way to the client."""
    async with joined(server(), "a", (100, 6, "drop_oldest")) as a:
        own = await kept(a)
        await posted(a, b"00", b"11", b"22")
        await a.fetch(X, own, FROM_START, 1, 1000)
        await posted(a, b"33")
        assert await values(a, own) == [b"00", b"22", b"33"]


async def test_what_was_read_and_not_sent_may_be_dropped_once_the_client_is_away() -> None:
    """Messages with a Packet Identifier stay."""
    async with joined(server(), "a", (3, 1000, "drop_oldest")) as a:
        own = await kept(a)
        await posted(a, b"0", b"1", b"2")
        first, *_ = (await a.fetch(X, own, FROM_START, 3, 1000)).entries
        await a.commit(X, own, 2, "o1", ["i", first[0], b"sent"])
        await released(a, own)
        await posted(a, b"3")
        assert await values(a, await claimed(a, 2)) == [b"0", b"2", b"3"]


async def test_too_many_for_a_client_that_is_away_are_dropped() -> None:
    """Nobody is held back for it, also with `reject`."""
    async with joined(server(), "a", (2, 1000, "reject")) as a:
        await released(a, await kept(a))
        found = await posted(a, b"0", b"1", b"2")
        assert found[1:4] == (2, 2, 1)
        assert found.is_away


async def test_session_expires_by_the_clock_of_the_engine() -> None:
    """From when it was let go of; its name stays until all know of the end."""
    async with joined(server(), "a") as a:
        own = await kept(a, "60")
        await posted(a, b"1")
        assert await a.expire(bucket(a)) == []
        await released(a, own)
        assert await a.expire(bucket(a)) == []
        with Redis(port=shared_redis()) as redis:
            redis.zadd(f"{bucket(a)}:x", {f"o1 {X}": 1})
        ended = [("o1", X)]
        assert await a.expire(bucket(a)) == ended
        assert await a.expire(bucket(a)) == ended
        await a.forget(bucket(a), ended)
        assert await a.expire(bucket(a)) == []
        assert await posted(a, b"2") == Posted(X, -1, 0, 1, 0, True, None)


async def test_expired_session_that_was_not_ended_yet_is_not_found() -> None:
    """A client that comes too late begins anew."""
    async with joined(server(), "a") as a:
        await released(a, await kept(a, "0"))
        own = Row("a", a.engine.epoch, 2)
        assert await a.engine.claim(X, own, None) == (own, "")
        assert await a.expire(bucket(a)) == [("o1", X)]


async def test_session_of_a_client_that_is_back_does_not_expire() -> None:
    """Its owner says when it ends."""
    async with joined(server(), "a") as a:
        await released(a, await kept(a, "60"))
        with Redis(port=shared_redis()) as redis:
            assert redis.zcard(f"{bucket(a)}:x") == 1
            await claimed(a, 2)
            assert redis.zcard(f"{bucket(a)}:x") == 0


async def test_new_session_ends_an_earlier_one_of_the_client() -> None:
    """With all that it had."""
    async with joined(server(), "a") as a:
        own = await kept(a)
        await posted(a, b"1")
        await a.commit(X, own, 2, "o2", ["f", "b", "2"])
        assert await values(a, own) == []
        assert (await a.load(X, own)).filters == {b"b": b"2"}
        await a.finish(X, own, "o1")
        assert (await a.load(X, own)).filters == {b"b": b"2"}
        await a.finish(X, own, "o2")
        assert (await a.load(X, own)).values == {}


async def test_sessions_of_a_dead_node_wait_for_their_clients() -> None:
    """Its other clients are forgotten. What it has read may have been sent."""
    at = server()
    async with joined(at, "a") as a, joined(at, "b") as b:
        own = await kept(a, "60")
        await posted(a, b"1", b"2")
        (entry,) = (await a.fetch(X, own, FROM_START, 1, 1000)).entries
        await b.engine.sweep_owners("a", a.engine.epoch)
        new = await claimed(b)
        assert (await b.load(X, new)).values[b"dup"] == entry[0]
        with Redis(port=shared_redis()) as redis:
            assert redis.zcard(f"{bucket(b)}:x") == 0


async def test_what_a_dead_node_still_posts_is_refused() -> None:
    """Its publisher may have sent it again through another node, with QoS 2."""
    at = server()
    async with joined(at, "a") as a, joined(at, "b") as b:
        own = await kept(b)
        await b.engine.sweep_owners("a", a.engine.epoch)
        await posted(b, b"1", token=b"?id")
        with pytest.raises(PenstockError, match="fenced"):
            await plain(a.post(bucket(a), [b"1", 2, b"+id", 1, X]))
        with pytest.raises(PenstockError, match="fenced"):
            await plain(a.unsee(bucket(a), b"id"))
        await posted(b, b"1", token=b"?id")
        assert await values(b, own) == [b"1"]
        await b.engine.sweep_owners("b", b.engine.epoch - 1)  # an epoch before this one
        await posted(b, b"2")
        assert await values(b, own) == [b"1", b"2"]


async def test_owner_that_died_is_displaced_before_its_sessions_are_given_up() -> None:
    """The claim alone finds out that it did not let go."""
    at = server()
    async with joined(at, "a") as a, joined(at, "b") as b:
        own = await kept(a, "60")
        await posted(a, b"1")
        (entry,) = (await a.fetch(X, own, FROM_START, 1, 1000)).entries
        new = await claimed(b, displaced=own)
        assert (await b.load(X, new)).values[b"dup"] == entry[0]
        await b.engine.sweep_owners("a", a.engine.epoch)
        assert await values(b, new) == [b"1"]


async def test_what_waits_is_read_while_the_memory_of_the_engine_is_full(tmp_path: Path) -> None:
    """Else mailboxes that have filled it could not be emptied; what is new is refused."""
    with (
        running_redis(tmp_path, "maxmemory-policy noeviction") as full,
        Redis(port=full.port) as redis,
    ):
        async with joined(RedisServer("127.0.0.1", full.port), "a") as a:
            await released(a, await kept(a))
            await posted(a, b"1")
            redis.config_set("maxmemory", 1)
            own = await claimed(a, 2)
            assert (await a.load(X, own)).filters == {b"a/+": b"1"}
            (entry,) = (await a.fetch(X, own, FROM_START, 1, 1000)).entries
            await a.commit(X, own, 2, "o1", ["i", entry[0], b"sent"])
            await a.commit(X, own, 3, "o1", ["d", entry[0], 1])
            assert await values(a, own) == []
            with pytest.raises(StorageFullError):
                await posted(a, b"3")
            redis.config_set("maxmemory", 0)


async def test_session_that_a_failover_has_lost_is_not_made_of_its_later_changes() -> None:
    """Without its subscriptions it would be none, and in the way of the next one."""
    async with joined(server(), "a") as a:
        own = await kept(a)
        with Redis(port=shared_redis()) as redis:
            redis.delete(f"{bucket(a)}:s:{X}", f"{bucket(a)}:f:{X}")
            with pytest.raises(FencedError):
                await a.commit(X, own, 2, "o1", ["n", 7, ""])
            assert not redis.exists(f"{bucket(a)}:s:{X}", f"{bucket(a)}:n:{X}")
