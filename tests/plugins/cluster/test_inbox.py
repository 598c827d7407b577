"""What a node reads from its inbox reaches its clients once, in order, and is deleted then."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from penstock.broker.counters import count
from penstock.broker.mqtt.packets import Publish
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.server import Server
from penstock.plugins.cluster import forwarder, inbox
from penstock.plugins.cluster.frames import (
    LANE_4,
    LANE_5,
    FrameBuffer,
    Lane,
    packets_of,
)
from penstock.plugins.cluster.inbox import Inbox
from penstock.plugins.cluster.node_sink import Shared
from penstock.plugins.redis.stream_reader import StreamReader
from tests.broker.network.test_in_process import local_clients
from tests.broker.serving import port_of, serving, until
from tests.helpers.wire import connected


class Reader:
    """An inbox of a node, and what it says.

    Attributes:
        inbox: the inbox.
        deleted: IDs of the entries that were deleted.
        refused: messages of shared subscriptions that were refused.
    """

    def __init__(self, server: Server) -> None:
        self.deleted: list[bytes] = []
        self.refused: list[Shared] = []
        self._n_entries = 0
        self.inbox = Inbox(
            local_clients(server),
            self._delete,
            self.refused.append,
            lambda: True,
            logging.getLogger("test"),
        )

    def _delete(self, ids: Sequence[bytes], _n_bytes: int) -> None:
        self.deleted += ids

    def take(self, data: bytes, number: int, *, origin: str = "a", entry_id: bytes = b"") -> bytes:
        """Take an entry and return its ID."""
        self._n_entries += 1
        entry_id = entry_id or b"%d-0" % self._n_entries
        self.inbox.take(entry_id, origin, 1, number, data)
        return entry_id


@contextlib.asynccontextmanager
async def reading() -> AsyncIterator[tuple[Reader, Server]]:
    """Run a broker with an inbox."""
    async with serving() as server:
        reader = Reader(server)
        try:
            yield reader, server
        finally:
            await reader.inbox.close()


def entry(lane: Lane, qos: int, *payloads: bytes) -> bytes:
    """Return the data of an entry with one frame."""
    buffer = FrameBuffer()
    for payload in payloads:
        packet = Publish("t", payload, qos, packet_id=9 if qos else 0)
        buffer.add(lane, qos, 1, write_packet(packet, lane.version))
    return buffer.take()


@pytest.mark.parametrize("lane", [LANE_4, LANE_5])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_an_entry_reaches_subscribers_in_order_and_is_deleted(lane: Lane, qos: int) -> None:
    """Subscribers of both versions get it at its QoS."""
    payloads = [b"%d" % n for n in range(300)]
    async with (
        reading() as (reader, server),
        await connected(port_of(server), "new") as new,
        await connected(port_of(server), "old", version=4) as old,
    ):
        for client in (new, old):
            await client.subscribe("t", 2)
        ids = [reader.take(entry(lane, qos, *payloads), number) for number in (1, 2)]
        for client in (new, old):
            assert await client.messages(600) == [(one, qos) for one in payloads * 2]
        await until(lambda: reader.deleted == ids)
        assert reader.inbox.held_bytes == 0


async def test_what_is_read_again_is_given_once_and_deleted() -> None:
    """A reader that has lost the server begins anew; a call that was repeated may have two."""
    async with (
        reading() as (reader, server),
        await connected(port_of(server), "new") as client,
    ):
        await client.subscribe("t", 1)
        first = reader.take(entry(LANE_5, 1, b"1"), 1)
        reader.take(entry(LANE_5, 1, b"1"), 1, entry_id=first)
        twice = reader.take(entry(LANE_5, 1, b"1"), 1)
        reader.take(entry(LANE_5, 1, b"2"), 1, origin="c")
        reader.take(entry(LANE_5, 1, b"3"), 2)
        assert sorted(await client.messages(3)) == [(b"1", 1), (b"2", 1), (b"3", 1)]
        await until(lambda: len(reader.deleted) == 4)
        assert {first, twice} <= set(reader.deleted)


async def test_entries_of_a_node_that_has_left_are_known_when_they_come_again() -> None:
    """A failover may lose that they were deleted."""
    async with (
        reading() as (reader, server),
        await connected(port_of(server), "new") as client,
    ):
        await client.subscribe("t", 1)
        only = reader.take(entry(LANE_5, 1, b"1"), 5)
        assert await client.messages(1) == [(b"1", 1)]
        await until(lambda: reader.deleted == [only])
        await reader.inbox.forget("a")
        reader.take(entry(LANE_5, 1, b"1"), 5, entry_id=only)
        await until(lambda: reader.deleted == [only, only])
        reader.take(entry(LANE_5, 1, b"2"), 6)
        assert await client.messages(1) == [(b"2", 1)]


async def test_node_that_has_left_is_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start of a broker may have another name."""
    monkeypatch.setattr(inbox, "KNOWN_SECONDS", 0.0)
    monkeypatch.setattr(inbox, "RETRY_SECONDS", 0.0)
    async with reading() as (reader, _):
        only = reader.take(entry(LANE_5, 1, b"x"), 1)
        await until(lambda: reader.deleted == [only])
        await reader.inbox.forget("a")
        await until(lambda: not reader.inbox._last)


async def test_entries_of_an_earlier_epoch_are_not_taken_for_those_of_this_one() -> None:
    """A full client holds one up; an entry of another inbox may have its identifier."""
    stream = Stream()
    async with (
        reading() as (reader, server),
        await connected(port_of(server), "new") as client,
    ):
        await client.subscribe("t", 1)
        reader.take(entry(LANE_5, 1, b"1"), 1, entry_id=b"7-0")
        assert list(reader.inbox._held) == [b"7-0"]
        stream.entries[b"7-0"] = [b"a 1 1", entry(LANE_5, 1, b"2")]
        following = asyncio.create_task(reader.inbox.follow(stream))
        assert await client.messages(2) == [(b"1", 1), (b"2", 1)]
        await until(lambda: reader.deleted == [b"7-0"])
        assert reader.inbox.held_bytes == 0
        following.cancel()


async def test_what_was_just_read_of_a_node_that_leaves_is_given_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would be held and lost: nobody reads it again."""
    monkeypatch.setattr(inbox, "RETRY_SECONDS", 0.0)
    async with (
        reading() as (reader, server),
        await connected(port_of(server), "new") as client,
    ):
        await client.subscribe("t", 1)
        first = reader.take(entry(LANE_5, 1, b"1"), 1)
        await until(lambda: reader.deleted == [first])
        reader.take(entry(LANE_5, 1, b"2"), 2)
        await reader.inbox.forget("a")
        assert await client.messages(2) == [(b"1", 1), (b"2", 1)]


async def test_what_was_refused_is_counted_when_its_node_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A counter only goes up."""
    monkeypatch.setattr(inbox, "RETRY_SECONDS", 0.0)
    async with reading() as (reader, _):
        only = reader.take(entry(LANE_5, 1, b"x"), 1)
        await until(lambda: reader.deleted == [only])
        (one,) = reader.inbox._origins["a"].forwarders.values()
        count(one.refused, "quota_exceeded")
        await reader.inbox.forget("a")
        assert reader.inbox.refused == {"quota_exceeded": 1}


async def test_an_entry_that_cannot_be_read_is_dropped_and_counted() -> None:
    """It would stay in the way for good."""
    async with reading() as (reader, _):
        bad = reader.take(b"\xff" * 20, 1)
        await until(lambda: reader.deleted == [bad])
        assert reader.inbox.dropped == {"unreadable": 1}


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_forwarder_that_loses_its_connection_sends_the_rest_again(
    monkeypatch: pytest.MonkeyPatch, qos: int
) -> None:
    """The broker ends it where it has no memory for a message; nothing is lost, order is kept."""
    monkeypatch.setattr(forwarder, "_RETRY_SECONDS", 0.0)
    async with (
        reading() as (reader, server),
        await connected(port_of(server), "new") as client,
    ):
        await client.subscribe("t", 2)
        ids = [reader.take(entry(LANE_5, qos, b"1", b"2"), 1)]
        assert await client.messages(2) == [(b"1", qos), (b"2", qos)]
        await until(lambda: reader.deleted == ids)
        session = server.core.sessions.get("$uplink/$cluster/a/5")
        assert session is not None
        assert session.client is not None
        session.client.close(ReasonCode.QUOTA_EXCEEDED, None)
        ids.append(reader.take(entry(LANE_5, qos, b"3", b"4"), 2))
        assert await client.messages(2) == [(b"3", qos), (b"4", qos)]
        await until(lambda: reader.deleted == ids)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [4, 5])
async def test_messages_for_a_shared_subscription_go_to_one_member(version: int, qos: int) -> None:
    """And to nobody who has the filter for itself: those get it by another lane."""
    shared, plain = Lane(version, "$share/g/t"), Lane(version)
    async with (
        reading() as (reader, server),
        await connected(port_of(server), "member", version) as member,
        await connected(port_of(server), "other", version) as other,
    ):
        await member.subscribe("$share/g/t", 2)
        await other.subscribe("t", 2)
        ids = [reader.take(entry(shared, qos, b"1", b"2"), 1)]
        assert await member.messages(2) == [(b"1", qos), (b"2", qos)]
        ids.append(reader.take(entry(plain, qos, b"3"), 2))
        assert await other.messages(1) == [(b"3", qos)]
        await until(lambda: sorted(reader.deleted) == ids)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("version", [4, 5])
async def test_messages_that_no_member_can_take_are_given_back_before_they_are_done(
    monkeypatch: pytest.MonkeyPatch, version: int, qos: int
) -> None:
    """The last member may have left just now; the entry is deleted once they are elsewhere."""
    monkeypatch.setattr(forwarder, "_RETRY_SECONDS", 0.0)
    async with reading() as (reader, _):
        only = reader.take(entry(Lane(version, "$share/g/t"), qos, b"1", b"2"), 1)
        await until(lambda: sum(one.n_messages for one in reader.refused) == 2)
        packets = b"".join(one.packets for one in reader.refused)
        assert [packet[-1:] for packet in packets_of(packets)] == [b"1", b"2"]
        assert {one.lane for one in reader.refused} == {Lane(version, "$share/g/t")}
        for one in reader.refused:
            assert not reader.deleted
            one.done(0)
        await until(lambda: reader.deleted == [only])


async def test_forwarders_of_many_shared_subscriptions_end_when_they_are_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is a client with a session."""
    monkeypatch.setattr(inbox, "MOST_FORWARDERS", 3)
    async with (
        reading() as (reader, server),
        await connected(port_of(server), "member") as member,
    ):
        for number in range(1, 11):
            await member.subscribe(f"$share/g{number}/t", 1)
            reader.take(entry(Lane(5, f"$share/g{number}/t"), 1, b"x"), number)
            assert await member.messages(1) == [(b"x", 1)]
            await until(lambda number=number: len(reader.deleted) == number)  # type: ignore[misc]
        await until(lambda: len(list(server.core.sessions)) <= 1 + 3)


class Stream(StreamReader):
    """A reader of a stream that the test has.

    Attributes:
        n_connections: how often it has connected.
        entries: identifiers of entries, with the fields of each.
        on_read: is called at each read.
        fault: what the next read raises; None for nothing.
    """

    def __init__(self) -> None:
        self.n_connections = 1
        self.entries: dict[bytes, list[bytes]] = {}
        self.on_read: Callable[[], None] = lambda: None
        self.fault: Exception | None = None

    async def read(self, after: bytes, most_entries: int) -> list[tuple[bytes, list[bytes]]]:
        """Return the entries behind one."""
        await asyncio.sleep(0)
        self.on_read()
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        behind = [one for one in sorted(self.entries) if one > after]
        return [(one, self.entries[one]) for one in behind[:most_entries]]

    async def close(self) -> None:
        """Nothing."""


async def test_what_is_held_is_limited_and_more_is_read_once_it_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node whose clients are slow leaves what comes in the engine."""
    monkeypatch.setattr(inbox, "MOST_HELD_BYTES", 10)
    monkeypatch.setattr(inbox, "MOST_READ", 1)
    stream = Stream()
    async with (
        reading() as (reader, server),
        await connected(port_of(server), "new") as client,
    ):
        await client.subscribe("t", 1)
        for number in (1, 2):
            data = entry(LANE_5, 1, bytes(100))
            stream.entries[b"%d-0" % number] = [b"a 1 %d" % number, data]
        held: list[int] = []
        stream.on_read = lambda: held.append(reader.inbox.held_bytes)
        following = asyncio.create_task(reader.inbox.follow(stream))
        assert await client.messages(2) == [(bytes(100), 1)] * 2
        assert not any(held)
        following.cancel()


async def test_entries_of_a_server_that_has_taken_over_are_found_whatever_their_identifiers() -> (
    None
):
    """Its clock may be behind that of the server before it, which numbers entries by the time."""
    stream = Stream()
    async with (
        reading() as (reader, server),
        await connected(port_of(server), "new") as client,
    ):
        await client.subscribe("t", 1)
        stream.entries[b"5-0"] = [b"a 1 1", entry(LANE_5, 1, b"1")]
        following = asyncio.create_task(reader.inbox.follow(stream))
        assert await client.messages(1) == [(b"1", 1)]
        stream.entries = {
            b"3-0": [b"a 1 2", entry(LANE_5, 1, b"2")],
            b"6-0": [b"a 1 3", entry(LANE_5, 1, b"3")],
        }
        stream.n_connections = 2
        assert await client.messages(2) == [(b"2", 1), (b"3", 1)]
        following.cancel()


async def test_a_fault_is_no_end_of_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where entries are read nor where they are given to the broker."""
    monkeypatch.setattr(inbox, "RETRY_SECONDS", 0.0)
    stream = Stream()
    async with (
        reading() as (reader, server),
        await connected(port_of(server), "new") as client,
    ):
        await client.subscribe("t", 1)
        stream.entries[b"1-0"] = [b"a 1 1", entry(LANE_5, 1, b"1")]
        following = asyncio.create_task(reader.inbox.follow(stream))
        assert await client.messages(1) == [(b"1", 1)]
        stream.fault = ValueError("what nobody has thought of")
        await until(lambda: stream.fault is None)
        # No packet: it says that it is longer than the frame.
        bad = FrameBuffer()
        bad.add(LANE_5, 1, 1, b"\x32\xff")
        stream.entries[b"2-0"] = [b"a 1 2", bad.take()]
        stream.entries[b"3-0"] = [b"a 1 3", entry(LANE_5, 1, b"2")]
        assert await client.messages(1) == [(b"2", 1)]
        await until(lambda: set(reader.deleted) >= {b"1-0", b"2-0", b"3-0"})
        assert reader.inbox.dropped == {"failed": 1}
        following.cancel()
