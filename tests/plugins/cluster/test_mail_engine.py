"""What the engine has of sessions that outlive their connection, on a real server."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from penstock.broker.errors import PenstockError
from penstock.broker.mqtt.data_types import write_variable_byte_integer
from penstock.netem.runs.broker_process import reserved_port
from penstock.plugins.cluster.engine import ClusterEngine, FencedError, Row
from penstock.plugins.cluster.mail_engine import (
    IF_CONNECTED,
    IF_THERE,
    Commit,
    Fetched,
    MailEngine,
    Posted,
)
from penstock.plugins.redis.calls import heed, plain
from penstock.plugins.redis.errors import StorageFullError
from penstock.plugins.redis.pipeline import Patience
from penstock.plugins.redis.server import RedisServer
from penstock.plugins.redis.stream_reader import FROM_START
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
    await commit(mail, own, 1, origin, "s", "expiry", expiry, "f", "a/+", "1")
    return own


def bucket(mail: MailEngine) -> str:
    """Return the common beginning of the client's keys."""
    return mail.engine.bucket(X)


def run(*messages: bytes) -> bytes:
    """Return packets of so many bytes, and two more for each."""
    return b"".join(
        b"\x30" + write_variable_byte_integer(len(message)) + message for message in messages
    )


async def posted(
    mail: MailEngine, *messages: bytes, qos: int = 1, token: bytes = b"", to: Sequence[str] = (X,)
) -> Posted:
    """Put messages into mailboxes, each as a packet that came by itself."""
    words: list[Any] = []
    for message in messages or (b"",):
        words += [b"head", run(message) if message else b"", qos, token, len(to), *to]
    _, *found = await plain(mail.post(bucket(mail), words))
    return Posted.read(found[0])


async def values(mail: MailEngine, own: Row, client_id: str = X) -> list[bytes]:
    """Return what is in the mailbox."""
    fetched = await mail.fetch(client_id, own, FROM_START, 100, 10_000)
    return [packet[2:] for _, _, packet in fetched.entries]


async def commit(
    mail: MailEngine, own: Row, number: int, origin: str, *changes: Any
) -> list[bytes]:
    """Change the client's session; raise FencedError where another node has it."""
    (found,) = await mail.commit([Commit(X, own, number, origin, [*changes])])
    if found is None:
        raise FencedError("over")
    return found


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
        assert await posted(a, b"4") == Posted(X, 4, 12, 0, 0, False, None)
        assert await values(a, own) == [b"1", b"2", b"3", b"4"]
        assert (await a.load(X, own)).filters == {b"a/+": b"1"}


async def test_repeated_post_changes_nothing() -> None:
    """A post is repeated where its answer was lost."""
    async with joined(server(), "a") as a:
        own = await kept(a)
        words = (a.engine.node, a.engine.epoch, 1, *a.limits(), b"head", run(b"1"), 1, "", 1, X)
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


async def test_messages_that_are_never_released_fill_no_server() -> None:
    """Clients that leave without PUBREL leave some. The newest are told from their repeats."""
    at, n = server(), 100_000
    async with joined(at, "a") as a:
        own = await kept(a)
        with Redis(port=shared_redis()) as redis:
            now = int(time.time() * 1000)
            redis.zadd(key := f"{bucket(a)}:d", {f"{number:06}": now for number in range(n)})
            await posted(a, b"1", token=b"+newest")
            assert redis.zcard(key) == n
        for token in (b"?000000", b"?newest", b"?%06d" % (n - 1)):
            await posted(a, token[-1:], token=token)
        assert await values(a, own) == [b"1", b"0"]


async def test_message_that_another_client_can_have_is_refused_where_this_one_has_gone() -> None:
    """Its session has ended, or it has no connection and a message is for one that has."""
    async with joined(server(), "a") as a:
        words = [b"head", run(b"1"), 1, IF_CONNECTED, 1, X, b"head", run(b"2"), 1, b"", 1, "other"]
        words += [b"head", run(b"3", b"4"), 2, IF_THERE, 1, X]

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
        assert await values(a, await claimed(a, 2)) == [b"1", b"3", b"4", b"3", b"4"]
        assert [await refused(number) for number in (1, 2, 3)] == [b"1,3", b"", b"1"]


async def test_large_messages_are_fetched_one_by_one() -> None:
    """Not a hundred at a time: the bytes of one answer are limited, but for a single message."""
    async with joined(server(), "a", (1000, 10**6, "drop_newest")) as a:
        own, after, sizes = await kept(a), FROM_START, []
        for size in [5] * 30 + [600] * 3 + [2000] + [5] * 4:
            await posted(a, bytes(size), to=[X, "other"])  # which has no session
        while True:
            found = await a.fetch(X, own, after, 20, 1000)
            sizes.append([len(packet) for _, _, packet in found.entries])
            if not found.has_more:
                break
            after = found.entries[-1][0]
        assert sizes == [[7] * 20, [7] * 10 + [603], [603], [603], [2003], [7] * 4]


async def test_messages_go_from_the_beginning_or_from_the_midst_of_a_mailbox() -> None:
    """In whatever order the client acknowledges them."""
    async with joined(server(), "a") as a:
        own = await kept(a)
        await posted(a, b"0", b"1", b"2", b"3", b"4", b"5")
        ids = [entry[0] for entry in (await a.fetch(X, own, FROM_START, 9, 1000)).entries]
        removals = ([0, 1], [3], [4, 2], [5])
        left = (b"2345", b"245", b"5", b"")
        for number, (gone, rest) in enumerate(zip(removals, left, strict=True), 2):
            await commit(
                a, own, number, "o1", "d", b" ".join(ids[at] for at in gone), 3 * len(gone)
            )
            assert b"".join(await values(a, own)) == rest
            counted = (await a.load(X, own)).values
            assert counted[b"bytes"] == b"%d" % (3 * int(counted[b"messages"]))
            assert int(counted[b"messages"]) == len(rest)


async def test_what_others_can_have_is_left_by_a_session_that_ends() -> None:
    """But what was sent at QoS 2 [MQTT-4.8.2-5]; it is there until it is forgotten."""
    async with joined(server(), "a") as a:
        own = await kept(a)
        await posted(a, b"1", b"2", b"3", token=IF_CONNECTED)
        one, two, _ = (await a.fetch(X, own, FROM_START, 10, 1000)).entries
        for number, (entry, qos) in enumerate(((one, 1), (two, 2)), 2):
            sent = json.dumps((number, False, qos, False, None)).encode()
            await commit(a, own, number, "o1", "i", entry[0], sent)
        await plain(a.finish(X, own, "o1"))
        left = await a.left_by(bucket(a), "o1", X)
        assert [(head, packet[2:]) for _, head, packet in left] == [
            (b"head", b"1"),
            (b"head", b"3"),
        ]
        await a.forget(bucket(a), [("o1", X)])
        assert not await a.left_by(bucket(a), "o1", X)


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
        first, second, _ = (await a.fetch(X, own, FROM_START, 10, 10_000)).entries
        changes = ["i", second[0], b"sent", "d", first[0], 3, "n", 7, "", "n", 8, "", "N", 8, ""]
        await commit(a, own, 2, "o1", *changes)
        await released(a, own)
        assert (await posted(b, b"4", b"")) == Posted(X, 3, 9, 0, 0, True, None)
        new = await claimed(b)
        state = await b.load(X, new)
        assert state.values[b"origin"] == b"o1"
        assert b"away" not in state.values
        assert (state.sent, state.incoming) == ({second[0]: b"sent"}, [7])
        assert state.entries == [second]
        assert await values(b, new) == [b"2", b"3", b"4"]
        for call in (
            a.fetch(X, own, FROM_START, 1, 10_000),
            a.load(X, own),
            commit(a, own, 3, "o1"),
        ):
            with pytest.raises(FencedError):
                await call


async def test_repeated_commit_answers_with_what_it_has_added() -> None:
    """And adds nothing more."""
    async with joined(server(), "a") as a:
        own = await kept(a)
        changes = ["h", b"head", "", "a", run(b"1"), b"s", "a", run(b"2"), ""]
        added = [await commit(a, own, 2, "o1", *changes) for _ in "ab"]
        assert added[0] == added[1]
        assert await values(a, own) == [b"1", b"2"]
        assert (await a.load(X, own)).sent == {added[0][0]: b"s"}


async def test_nothing_is_sent_that_a_failover_has_lost() -> None:
    """The session is loaded anew; what was noted before is changed, and nothing else is."""
    async with joined(server(), "a") as a:
        own = await kept(a)
        await posted(a, b"1", b"2")
        first, second = (await a.fetch(X, own, FROM_START, 10, 10_000)).entries
        await commit(a, own, 2, "o1", "i", first[0], b"sent")
        key = f":q:{X}"
        await plain(a.engine.command(bucket(a), "XDEL", key, first[0], second[0]))
        await commit(a, own, 3, "o1", "i", first[0], b"released")
        with pytest.raises(FencedError):
            await commit(a, own, 4, "o1", "n", 7, "", "i", second[0], b"sent")
        state = await a.load(X, own)
        assert (state.sent, state.incoming) == ({first[0]: b"released"}, [])


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
        assert found[1:4] == (len(left), 3 * len(left), n_dropped)
        assert b"".join(await values(a, own)) == left


async def test_what_the_owner_has_read_is_not_dropped() -> None:
    """It may be on its way to the client."""
    async with joined(server(), "a", (100, 12, "drop_oldest")) as a:
        own = await kept(a)
        await posted(a, b"00", b"11", b"22")
        await a.fetch(X, own, FROM_START, 1, 10_000)
        await posted(a, b"33")
        assert await values(a, own) == [b"00", b"22", b"33"]


@pytest.mark.parametrize("has_died", [False, True])
async def test_what_was_read_and_not_sent_may_be_dropped_once_the_client_is_away(
    *, has_died: bool
) -> None:
    """Or its node is. Messages with a Packet Identifier stay."""
    at = server()
    async with joined(at, "a", (3, 1000, "drop_oldest")) as a, joined(at, "b") as b:
        own = await kept(a)
        await posted(a, b"0", b"1", b"2")
        first, *_ = (await a.fetch(X, own, FROM_START, 3, 10_000)).entries
        await commit(a, own, 2, "o1", "i", first[0], b"sent")
        if has_died:
            await b.engine.sweep_owners("a", own.epoch)
        else:
            await released(a, own)
        b.limits = a.limits
        await posted(b, b"3")
        assert await values(b, await claimed(b, 2)) == [b"0", b"2", b"3"]


async def test_too_many_for_a_client_that_is_away_are_dropped() -> None:
    """Nobody is held back for it, also with `reject`."""
    async with joined(server(), "a", (2, 1000, "reject")) as a:
        await released(a, await kept(a))
        found = await posted(a, b"0", b"1", b"2")
        assert found[1:4] == (2, 6, 1)
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
        assert await a.forget(bucket(a), ended) == 1
        assert await a.forget(bucket(a), ended) == 0
        assert await a.expire(bucket(a)) == []
        assert await posted(a, b"2") == Posted(X, -1, 0, 1, 0, True, None)


async def test_what_had_waited_for_sessions_that_end_is_counted_once() -> None:
    """Whoever ends them; what its node has read of one is counted there."""
    async with joined(server(), "a") as a:
        own = await kept(a)
        await posted(a, b"1", b"2", b"3")
        first = (await a.fetch(X, own, FROM_START, 1, 1000)).entries[0][0]
        await a.finish(X, own, "o1", first)
        await commit(a, own, 2, "o2", "s", "expiry", "")
        await posted(a, b"4")
        await commit(a, own, 3, "o3", "s", "expiry", "")
        await posted(a, b"5", b"6", b"7")
        await a.finish(X, own, "o3")
        ended = await a.expire(bucket(a))
        assert ended == [("o1", X), ("o2", X), ("o3", X)]
        assert await a.forget(bucket(a), ended) == 2 + 1 + 3


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
        await commit(a, own, 2, "o2", "f", "b", "2")
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
        (entry,) = (await a.fetch(X, own, FROM_START, 1, 10_000)).entries
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
            await posted(a, b"1", qos=2, token=b"+id")
        with pytest.raises(PenstockError, match="fenced"):
            await plain(a.unsee(bucket(a), b"id"))
        await posted(b, b"1", token=b"?id")
        assert await values(b, own) == [b"1"]
        await b.engine.sweep_owners("b", b.engine.epoch - 1)  # an epoch before this one
        await posted(b, b"2")
        assert await values(b, own) == [b"1", b"2"]


async def test_what_was_refused_to_a_dead_node_is_forgotten() -> None:
    """Each start of a container may have a name of its own."""
    at = server()
    async with joined(at, "a") as a, joined(at, "b") as b:
        await plain(a.post(bucket(a), [b"head", run(b"1"), 1, IF_THERE, 1, X]))
        with Redis(port=shared_redis()) as redis:
            assert redis.hkeys(f"{bucket(a)}:last") == [b"a", b"x a"]
            await b.engine.sweep_owners("a", a.engine.epoch)
            assert redis.hkeys(f"{bucket(a)}:last") == [b"a"]


async def test_owner_that_died_is_displaced_before_its_sessions_are_given_up() -> None:
    """The claim alone finds out that it did not let go."""
    at = server()
    async with joined(at, "a") as a, joined(at, "b") as b:
        own = await kept(a, "60")
        await posted(a, b"1")
        (entry,) = (await a.fetch(X, own, FROM_START, 1, 10_000)).entries
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
            (entry,) = (await a.fetch(X, own, FROM_START, 1, 10_000)).entries
            await commit(a, own, 2, "o1", "i", entry[0], b"sent")
            await commit(a, own, 3, "o1", "I", entry[0], "", "d", entry[0], 3)
            assert (await a.load(X, own)).sent == {}
            assert await values(a, own) == []
            await a.unsee(bucket(a), b"id")  # else its publisher waits for PUBCOMP
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
                await commit(a, own, 2, "o1", "n", 7, "")
            assert not redis.exists(f"{bucket(a)}:s:{X}", f"{bucket(a)}:n:{X}")


@pytest.mark.parametrize(
    ("mode", "left"), [("drop_newest", b"012"), ("drop_oldest", b"234"), ("reject", b"01234")]
)
async def test_messages_of_a_run_are_taken_one_by_one(mode: str, left: bytes) -> None:
    """The limits of a mailbox are what they are for messages that came by themselves."""
    async with joined(server(), "a", (3, 1000, mode)) as a:
        own = await kept(a)
        words = [b"head", run(b"0", b"1", b"2", b"3", b"4"), 1, b"", 1, X]
        _, found = await plain(a.post(bucket(a), words))
        assert found[1:4] == [len(left), 3 * len(left), 5 - len(left)]
        assert b"".join(await values(a, own)) == left


LARGE = b"x" * 1000


class Shared:
    """Mailboxes of several clients of one bucket, which have large messages.

    Attributes:
        own: the owner of the first two clients by name; the others are away.
    """

    def __init__(self, mail: MailEngine) -> None:
        found = (f"client {n}" for n in count())
        self.clients = [X, *islice((c for c in found if mail.engine.bucket(c) == bucket(mail)), 3)]
        self.own: dict[str, Row] = {}
        self._mail = mail

    async def begin(self) -> None:
        """Begin the sessions."""
        engine = self._mail.engine
        for number, client_id in enumerate(self.clients, 1):
            own = self.own[client_id] = Row(engine.node, engine.epoch, number)
            await engine.claim(client_id, own, None)
            changes = ["s", "expiry", "0", "f", "a/+", "1"]
            await self._mail.commit([Commit(client_id, own, 1, "o", changes)])

    def copies(self) -> list[tuple[int, int]]:
        """Return the bytes of each packet that stands by itself, and how many have it."""
        with Redis(port=shared_redis()) as redis:
            found = [redis.hgetall(key) for key in redis.keys(f"{bucket(self._mail)}:p:*")]
        return sorted((len(one[b"packet"]), int(one[b"mailboxes"])) for one in found)


async def test_what_was_delivered_is_removed_however_long_the_engine_was_away(
    tmp_path: Path,
) -> None:
    """Else a message of QoS 0 would come again, and an inbox stay full."""
    lasts = "appendonly yes", "appendfsync always"
    with reserved_port() as port:
        at = RedisServer("127.0.0.1", port, patience=Patience(retry_seconds=0.2))
        async with AsyncExitStack() as stack:
            with running_redis(tmp_path, *lasts, port=port):
                mail = await stack.enter_async_context(joined(at, "a"))
                engine, own = mail.engine, await kept(mail)
                await posted(mail, b"1", qos=0)
                await plain(engine.put("a", engine.epoch, b"frames"))
                (entry,) = (await mail.fetch(X, own, FROM_START, 1, 10_000)).entries
                reader = engine.inbox_reader()
                ((in_inbox, _),) = await reader.read(FROM_START, 1)
                await reader.close()
            removing = [
                mail.erase(X, own, [entry[0]], len(entry[2])),
                engine.delete([in_inbox], len(b"frames")),
            ]
            await asyncio.sleep(1)
            with running_redis(tmp_path, *lasts, port=port):
                assert await asyncio.gather(*removing) == [1, 0]
                assert await values(mail, own) == []


async def test_what_waits_for_replicas_is_not_refused_for_what_is_forgotten(tmp_path: Path) -> None:
    """The server takes calls again between the two; a later post would be another matter."""
    with running_redis(tmp_path) as redis, Redis(port=redis.port) as admin:
        async with joined(RedisServer("127.0.0.1", redis.port), "a") as a:
            own = await kept(a)
            admin.config_set("min-replicas-to-write", 1)
            words = [b"head", run(b"1"), 2, b"+id", 1, X]
            posting = a.post(bucket(a), words)
            changing = "CONFIG", "SET", "min-replicas-to-write", 0
            a.engine.calls.routes.call(bucket(a), *changing).add_done_callback(heed)
            assert await a.unsee(bucket(a), b"another") == 0
            assert (await posting)[0] == b""
            assert await values(a, own) == [b"1"]


async def test_large_message_for_several_mailboxes_is_there_once() -> None:
    """Until the last of them has it no more, however that comes; small ones are in each."""
    async with joined(server(), "a", (3, 100_000, "drop_oldest")) as a:
        shared = Shared(a)
        await shared.begin()
        first, second, third, fourth = shared.clients
        await posted(a, LARGE, b"small", to=shared.clients)
        assert shared.copies() == [(1003, 4)]
        for client_id, own in shared.own.items():
            assert await values(a, own, client_id) == [b"\x07" + LARGE, b"small"]
        entries = (await a.fetch(first, shared.own[first], FROM_START, 9, 10_000)).entries
        ids = b" ".join(entry[0] for entry in entries)
        changes = ["d", ids, sum(len(entry[2]) for entry in entries)]
        for _ in range(2):  # a repeat
            await a.commit([Commit(first, shared.own[first], 2, "o", changes)])
        assert shared.copies() == [(1003, 3)]
        (entry, *_) = (await a.fetch(second, shared.own[second], FROM_START, 1, 10_000)).entries
        for _ in range(2):
            await plain(a.erase(second, shared.own[second], [entry[0]], len(entry[2])))
        assert shared.copies() == [(1003, 2)]
        await plain(a.engine.release(third, shared.own[third]))
        await posted(a, b"1", b"2", b"3", to=[third])  # it drops the oldest one
        assert shared.copies() == [(1003, 1)]
        await plain(a.finish(fourth, shared.own[fourth], "o"))
        assert shared.copies() == []
        for client_id, own in list(shared.own.items())[:2]:
            found = await a.fetch(client_id, own, FROM_START, 9, 10_000)
            counted = (await a.load(client_id, own)).values
            assert int(counted[b"messages"]) == len(found.entries)
            assert int(counted[b"bytes"]) == sum(len(entry[2]) for entry in found.entries)


async def test_ended_sessions_leave_no_large_message_behind() -> None:
    """By their expiry, by another session of the client, or as a client comes too late."""
    async with joined(server(), "a", (10, 100_000, "reject")) as a:
        shared = Shared(a)
        await shared.begin()
        first, second, third, fourth = shared.clients
        await posted(a, *[LARGE] * 3, to=shared.clients)
        state = await a.load(first, shared.own[first])
        assert state.values[b"shared"] == b"3"
        await a.commit([Commit(first, shared.own[first], 2, "new", ["s", "expiry", "0"])])
        assert shared.copies() == [(1003, 3)] * 3
        for client_id in (second, third):
            await plain(a.engine.release(client_id, shared.own[client_id]))
        await a.engine.claim(second, shared.own[second]._replace(number=9), None)
        await a.expire(bucket(a))
        assert shared.copies() == [(1003, 1)] * 3
        (entry, *_) = (await a.fetch(fourth, shared.own[fourth], FROM_START, 1, 10_000)).entries
        changes = ["i", entry[0], b"sent"]
        await a.commit([Commit(fourth, shared.own[fourth], 2, "o", changes)])
        assert (await a.load(fourth, shared.own[fourth])).entries == [entry]
        assert len(entry[2]) == len(LARGE) + 3


async def test_sessions_that_share_many_messages_do_not_expire_in_one_call() -> None:
    """The engine does nothing else meanwhile, and nodes that do not beat are taken for dead."""
    async with joined(server(), "a", (100_000, 1_000_000_000, "reject")) as a:
        shared = Shared(a)
        await shared.begin()
        for _ in range(21):
            await posted(a, *[LARGE] * 250, to=shared.clients)
        for client_id, own in shared.own.items():
            await plain(a.engine.release(client_id, own))
        assert [len(await a.expire(bucket(a))) for _ in range(5)] == [1, 2, 3, 4, 4]
        assert shared.copies() == []


async def test_what_is_fetched_in_one_turn_is_one_call() -> None:
    """Its bytes are limited; a session that another node has keeps no others from theirs."""
    async with joined(server(), "a", (100, 100_000, "reject")) as a:
        shared = Shared(a)
        await shared.begin()
        first, second, third, _ = shared.clients
        await posted(a, LARGE, b"small", to=shared.clients)
        other = shared.own[third]._replace(number=99)
        with Redis(port=shared_redis()) as redis:
            before = redis.info("commandstats")["cmdstat_fcall"]["calls"]
            calls = [
                a.fetch(first, shared.own[first], FROM_START, 10, 1010),
                a.fetch(third, other, FROM_START, 10, 1010),
                a.fetch(second, shared.own[second], FROM_START, 10, 1010),
            ]
            found = await asyncio.gather(*calls, return_exceptions=True)
            assert redis.info("commandstats")["cmdstat_fcall"]["calls"] == before + 1
        assert isinstance(found.pop(1), FencedError)
        taken = [(len(one.entries), one.has_more) for one in found if isinstance(one, Fetched)]
        assert taken == [(2, False), (1, True)]


async def test_session_that_another_node_has_keeps_no_others_from_their_changes() -> None:
    """All of a bucket are changed by one call."""
    async with joined(server(), "a") as a:
        shared = Shared(a)
        await shared.begin()
        first, second, *_ = shared.clients
        other = shared.own[first]._replace(number=99)
        commits = [
            Commit(first, other, 2, "o", ["f", "b", "2"]),
            Commit(second, shared.own[second], 2, "o", ["h", b"head", "", "a", run(b"1"), ""]),
        ]
        found = await a.commit(commits)
        assert found[0] is None
        assert found == [
            None,
            [(await a.fetch(second, shared.own[second], b"0", 1, 10_000)).entries[0][0]],
        ]
