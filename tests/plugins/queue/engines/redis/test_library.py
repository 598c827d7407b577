from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from penstock.plugins.queue.engines.redis.functions import LIBRARY
from tests.helpers.effort import examples
from tests.helpers.redis_server import running_redis, shared_redis

RECEIVERS: Final = ("1", "2")
READERS: Final = "3"
ORDERED: Final = "4"
ANY: Final = 1 << 40
HEAD: Final = struct.Struct("<ddddIBH")


class New(NamedTuple):
    """A message on its way into a queue."""

    size: int = 1
    key: str | None = None
    topic: str = "t"
    identifier: str = ""
    age: float = 0.0
    delay: float = -1.0
    interval: float = -1.0

    def words(self) -> list[Any]:
        """Return the arguments of the function."""
        flags = 1 | (0 if self.key is None else 2)
        head = struct.pack("<ddddIB", self.age, self.delay, self.interval, 9.0, self.size, flags)
        # What stands before the payload may be longer than the server notes beside a message.
        body = bytes(self.size + (7 if self.topic == "t" else 200))
        return [head, self.key or "", self.topic, self.identifier, body]


class Store:
    """A physical queue whose functions are called for many messages at once, or for each.

    Args:
        client: of the server.
        is_each: whether a call concerns one message.
        is_ordered: whether there is a group whose messages of one key wait for each other. It gets
            more by a call for many messages.
    """

    def __init__(self, client: Redis, *, is_each: bool, is_ordered: bool = False) -> None:
        self._client = client
        self._is_each = is_each
        self._base = f"test-{uuid.uuid4().hex}"
        self._n_calls = 0
        self.now = 100.0
        receivers = (*RECEIVERS, ORDERED) if is_ordered else RECEIVERS
        self.receives: dict[str, list[tuple[int, int, int]]] = {gid: [] for gid in receivers}
        self.call("create")
        groups: list[Any] = []
        for gid in receivers:
            groups += (gid, "l", int(gid == ORDERED), "earliest", 0)
        self.call("add_groups", *groups, READERS, "o", "0", "earliest", 0)

    def call(self, function: str, *words: Any) -> Any:
        """Call a function; return its answer."""
        name = LIBRARY.prefix + function
        return self._client.fcall(name, 2, self._base, f"{self._base}:ids", repr(self.now), *words)

    def _numbered(self, function: str, *words: Any) -> Any:
        """Call a function twice, as after a lost connection; return the answer, which is the same.

        A repeated receive tells of its messages by their offsets.
        """
        self._n_calls += 1
        call = (function, "program", self._n_calls, *words)
        _, *answer = told = self.call(*call)
        _, *again = self.call(*call)
        if function == "lease":
            *answer, rows, dead = answer
            *again, same_rows, same_dead = again
            assert sorted(_rows(same_rows)) == sorted(_rows(rows))
            assert sorted(_rows(same_dead)) == sorted(_rows(dead))
            if not rows and not dead:  # such an answer need not be kept
                return told
        assert again == answer
        return told

    def append(self, news: list[New], limit: int | None = None, *, keeps_last: bool) -> list[int]:
        """Store messages; return their offsets."""
        offsets: list[int] = []
        for some in [[new] for new in news] if self._is_each else [news]:
            words = [word for new in some for word in new.words()]
            most = "" if limit is None else limit
            keeps = int(keeps_last)
            offsets += self._numbered("append", 1, "9.0", "0.0", keeps, most, "", "", *words)[1]
        return offsets

    def lease(self, gid: str, most: int, filters: str, max_receives: int) -> list[Any]:
        """Receive messages; return all that is known of them but their nonces."""
        found: list[Any] = []
        for _ in range(most if self._is_each else 1):
            n = 1 if self._is_each else most
            words = (n, ANY, "5.0", max_receives, filters, "7.0")
            _, nonce, _, _, _, rows, dead = self._numbered("lease", gid, *words)
            for row in (*_rows(rows), *_rows(dead)):
                self.receives[gid].append((row[0], row[1], nonce))
                found.append(row)
            if not rows:
                break
        return sorted(found)

    def settle(self, gid: str, action: str, seconds: float, which: list[int]) -> list[int]:
        """Settle receives by their numbers; return the indexes of stale ones."""
        known = self.receives[gid]
        wanted = [known[at % len(known)] for at in which if known]
        if action not in ("ack", "dead"):  # an extension by no time ends with its call
            wanted = list(dict.fromkeys(wanted))
        stale: list[int] = []
        calls = [[one] for one in wanted] if self._is_each else [wanted] if wanted else []
        for first, some in enumerate(calls):
            words = [word for offset, count, nonce in some for word in (count, nonce, 1, offset)]
            answer = self._numbered("settle", gid, 0, action, repr(seconds), *words)
            stale += [first + at for at in answer[1]]
        return stale

    def commit(self, offset: int) -> None:
        """Move the reading group, all at once or a message at a time."""
        end = min(offset, self.call("look")[0][1])
        for at in range(0 if self._is_each else end, end + 1):
            self.call("commit", READERS, at)

    def drain(self) -> None:
        """Receive and settle all that there is; what is first of its key has others wait for it."""
        self.now += 100
        for gid, known in self.receives.items():
            known.clear()
            while self.lease(gid, 1, "", 0) + self.lease(gid, 50, "", 0):
                self.settle(gid, "ack", 0.0, list(range(len(known))))
                known.clear()
        self.commit(ANY)

    def state(self) -> dict[str, Any]:
        """Return all keys but the answers that are kept, without nonces."""
        found: dict[str, Any] = {}
        for key in self._client.scan_iter(f"{self._base}*", count=10_000):
            name = key.decode().removeprefix(self._base)
            if name.startswith(":c:"):
                continue
            if self._client.type(key) == b"hash":
                found[name] = self._client.hgetall(key)
            else:
                found[name] = self._client.zrange(key, 0, -1, withscores=True)
        del found[":s"][b"nonce"]
        found[":g"] = sorted(self.call("look")[0][9])  # the fields of a record have no order
        for gid in self.receives:
            counts = found.get(f":{gid}:h", {})
            found[f":{gid}:h"] = {at: one.split()[0] for at, one in counts.items()}
        return found

    def check_invariants(self) -> None:
        """See that the keys agree with each other."""
        found = self.state()

        def offsets(name: str) -> set[int]:
            return {int(one[0] if isinstance(one, tuple) else one) for one in found.get(name, ())}

        infos = {int(at): info for at, info in found.get(":i", {}).items()}
        there = set(infos)
        heads = {at: HEAD.unpack_from(info) for at, info in infos.items()}
        keys = {
            at: infos[at][HEAD.size : HEAD.size + head[6]]
            for at, head in heads.items()
            if head[5] & 1
        }
        known = {name: int(value) for name, value in found[":s"].items() if name != b"clock"}
        first, past = known[b"earliest"], known[b"next"]
        assert first in there or first == past
        assert sorted([*there, *offsets(":o")]) == list(range(first, past))
        assert offsets(":d") == there
        assert known[b"messages"] == len(there)
        assert known[b"bytes"] == sum(head[4] for head in heads.values())
        assert known[b"stored"] == sum(map(len, (*infos.values(), *found.get(":d", {}).values())))
        assert offsets(":w") == offsets(":wo") <= there
        assert all(keys.get(int(at)) == key for key, at in found.get(":k", {}).items())
        undone = set()
        for name, _, n_waiting, *_ in found[":g"]:
            gid = name.decode()
            below = offsets(f":{gid}:u")
            n_behind = n_waiting - len(below)
            undone |= below | set(sorted(there)[len(there) - n_behind :])
            places = [offsets(f":{gid}:{place}") for place in "vld"]
            placed = set().union(*places)
            assert len(placed) == sum(map(len, places))
            assert placed | offsets(f":{gid}:h") <= below <= there
            if gid == ORDERED:
                lanes = sorted((keys[at], at) for at in below if at in keys)
                assert found.get(":4:q", []) == [(b"%s\0%016d" % lane, 0.0) for lane in lanes]
                following = {at for (last, _), (key, at) in pairwise(lanes) if key == last}
                assert below - following <= placed
            else:
                assert placed == below
        assert undone == there


def _rows(flat: list[Any]) -> list[list[Any]]:
    return [flat[at : at + 4] for at in range(0, len(flat), 4)]


@pytest.fixture(scope="module")
def client() -> Iterator[Redis]:
    """Yield a client of a server with the library."""
    with Redis(port=shared_redis()) as found:
        if not found.function_list(library=LIBRARY.name):
            found.function_load(LIBRARY.source())
        yield found


SECONDS: Final = st.sampled_from([0.0, 1.0, 6.0])
NEWS: Final = st.lists(
    st.builds(
        New,
        size=st.integers(0, 3),
        key=st.sampled_from([None, "a", "b"]),
        topic=st.sampled_from(["t", "t/x"]),
        identifier=st.sampled_from(["", "i", "j"]),
        age=SECONDS,
        delay=st.sampled_from([-1.0, 3.0]),
        interval=st.sampled_from([-1.0, 4.0]),
    ),
    min_size=3,
    max_size=8,
)


def steps_of(groups: Sequence[str], *others: st.SearchStrategy[Any]) -> Any:
    """Return a strategy of steps, for some groups of receivers."""
    group = st.sampled_from(groups)
    lease = st.tuples(
        st.just("lease"),
        group,
        st.sampled_from([1, 5, 100]),
        st.sampled_from(["", '["t"]']),
        st.integers(0, 2),
    )
    settle = st.tuples(
        st.just("settle"),
        group,
        st.sampled_from(["ack", "ack", "ack", "dead", "nack", "extend", "undo"]),
        SECONDS,
        st.one_of(st.lists(st.integers(0, 99), max_size=12), st.just(list(range(20)))),
    )
    step = st.one_of(
        st.tuples(st.just("append"), NEWS),
        st.tuples(st.just("append"), st.just([New()] * 70)),
        lease,
        settle,
        st.tuples(st.just("commit"), st.integers(0, 150)),
        st.tuples(st.just("wait"), SECONDS),
        *others,
    )
    return st.lists(step, min_size=3, max_size=8)


OFFSET: Final = st.integers(0, 40)
OTHERS: Final = (
    st.tuples(st.just("cut_below"), OFFSET, st.just("0.0")),
    st.tuples(st.just("cut_below"), st.just(""), SECONDS),
    st.tuples(st.just("remove"), OFFSET, OFFSET, OFFSET),
    st.tuples(st.just("seek"), st.sampled_from([*RECEIVERS, ORDERED]), OFFSET, st.just(0)),
)


@pytest.mark.parametrize(("limit", "keeps_last"), [(None, False), (6, False), (None, True)])
@settings(max_examples=examples(15))
@given(news=NEWS, steps=steps_of([ORDERED, *RECEIVERS], *OTHERS))
def test_keys_agree_whatever_is_called(
    client: Redis,
    limit: int | None,
    keeps_last: bool,  # noqa: FBT001 (a parameter)
    news: list[New],
    steps: list[Any],
) -> None:
    """Nothing is left of what has gone, and nothing is stuck that no receive comes to."""
    store = Store(client, is_each=False, is_ordered=True)
    begin = [("append", news), *(("lease", gid, 5, "", 0) for gid in (*RECEIVERS, ORDERED))]
    for name, *words in [*begin, *steps]:
        if name == "wait":
            store.now += words[0]
        elif name == "append":
            store.append(words[0], limit, keeps_last=keeps_last)
        elif name in ("lease", "settle", "commit"):
            getattr(store, name)(*words)
        else:
            store.call(name, *words)
        store.check_invariants()
    store.drain()
    assert store.state()[":s"][b"messages"] == b"0"


@pytest.mark.parametrize(("limit", "keeps_last"), [(None, False), (6, False), (None, True)])
@settings(max_examples=examples(15))
@given(news=NEWS, steps=steps_of(RECEIVERS))
def test_a_call_for_many_messages_is_as_many_calls(
    client: Redis,
    limit: int | None,
    keeps_last: bool,  # noqa: FBT001 (a parameter)
    news: list[New],
    steps: list[Any],
) -> None:
    """Its answers and what the keys hold afterwards are those of a call for each message."""
    stores = [Store(client, is_each=is_each) for is_each in (False, True)]
    begin = [("append", news), *(("lease", gid, 5, "", 0) for gid in RECEIVERS)]
    for name, *words in [*begin, *steps]:
        answers: list[Any] = []
        for store in stores:
            if name == "wait":
                store.now += words[0]
            elif name == "append":
                answers.append(store.append(words[0], limit, keeps_last=keeps_last))
            else:
                answers.append(getattr(store, name)(*words))
        assert answers[:1] == answers[1:]
        assert stores[0].state() == stores[1].state()


def test_a_call_may_concern_thousands_of_messages(client: Redis) -> None:
    """More than one command takes: all are stored, received, settled, and gone."""
    store = Store(client, is_each=False)
    n = 9_000
    news = [New(topic=topic) for topic in ("t", "t/x")] * (n // 2)
    assert store.append(news, keeps_last=False) == list(range(n))
    for gid in RECEIVERS:
        assert len(store.lease(gid, n, "", 0)) == 5_000  # that one call looks at
        assert len(store.lease(gid, n, "", 0)) == 4_000
        assert store.settle(gid, "ack", 0.0, list(range(n))) == []
    more = store.call("commit", READERS, n)[1]
    while more >= 0:
        more = store.call("sweep", more, n)[1]
    state = store.state()[":s"]
    assert (state[b"earliest"], state[b"messages"], state[b"stored"]) == (b"9000", b"0", b"0")


def test_a_repeated_call_writes_again(tmp_path: Path) -> None:
    """Else a WAIT on a new connection would not wait for what an earlier one has written."""
    with running_redis(tmp_path) as process, Redis(port=process.port) as client:
        client.function_load(LIBRARY.source())
        store = Store(client, is_each=False)
        words = ("program", 1, 1, "9.0", "0.0", 0, "", "", "", *New().words())
        assert store.call("append", *words)[1] == [0]
        n_writes = client.info("persistence")["rdb_changes_since_last_save"]
        assert store.call("append", *words)[1] == [0]
        assert client.info("persistence")["rdb_changes_since_last_save"] > n_writes


def test_holes_behind_the_earliest_message_cost_nothing(client: Redis) -> None:
    """They may be thousands: none is looked at while the earliest message stays."""

    def looks() -> int:
        told = client.info("commandstats").get("cmdstat_zrangebyscore", {"calls": 0})
        return int(told["calls"])

    store = Store(client, is_each=False)
    store.append([New(), New(key="a")], keeps_last=True)
    before = looks()
    store.append([New(key="a")] * 20, keeps_last=True)
    assert looks() == before


def test_a_repeated_receive_tells_dead_letters_from_messages(client: Redis) -> None:
    """Those that were received as often as is allowed are not received once more."""
    store = Store(client, is_each=False)
    store.append([New(), New()], keeps_last=False)
    store.lease("1", 2, "", 1)
    store.now += 6
    store.append([New()], keeps_last=False)
    assert [row[:2] for row in store.lease("1", 4, "", 1)] == [[0, 1], [1, 1], [2, 1]]
