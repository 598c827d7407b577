"""A broker puts messages together from parts that a client publishes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.mqtt.enums import PacketType
from penstock.broker.mqtt.packets import PubAck, Publish
from penstock.broker.mqtt.properties import write_properties
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.server import Server
from penstock.edge_proxy.parts import assembler as assembler_module
from penstock.edge_proxy.parts.cutting import Cutter
from penstock.edge_proxy.parts.part_format import Part, Trailer, write_part
from tests.broker.serving import port_of, serving, until
from tests.edge_proxy.parts.test_plugin import parts, plugin_of
from tests.edge_proxy.uplink.test_uplink import take_message
from tests.helpers.wire import WireClient, connected

TOPIC = "penstock-parts/a/b"
ID = bytes(range(16))
PAYLOAD = b"0123456789"
OTHER = b"abcdefghij"


def parts_of(payload: bytes, message_id: bytes = ID, *, qos: int = 1) -> list[Part]:
    """Return the parts of a message, of four bytes each."""
    cutter = Cutter(message_id, len(payload), qos=qos, retain=False, properties=b"\0", part_bytes=4)
    cutter.feed(payload)
    return list(iter(cutter.take, None))


async def publish(
    client: WireClient, *some: Part, topic: str = TOPIC, **properties: Any
) -> list[int]:
    """Publish parts one after another and return the reason codes of their PUBACKs."""
    codes = []
    for part in some:
        packet = Publish(topic, write_part(part), qos=1, packet_id=1, properties=properties)
        await client.send(packet)
        codes.append((await client.take(PubAck)).reason_code)
    return codes


def dropped(server: Server) -> dict[str, int]:
    """Return what the server has dropped."""
    return plugin_of(server).counts.dropped


def plugin(path: Path, **keys: Any) -> dict[str, Any]:
    """Return the plugins of a server."""
    return {"parts": parts(path, "spool", **keys)}


@asynccontextmanager
async def assembling(
    path: Path, *, policy: Mapping[str, Any] = {}, **keys: Any
) -> AsyncIterator[tuple[Server, WireClient, WireClient]]:
    """Run a server with these keys of the plugin, one client that subscribes and another one."""
    async with (
        serving(plugins=plugin(path, **keys), **policy) as server,
        await connected(port_of(server), "near") as near,
        await connected(port_of(server), "far") as far,
    ):
        await near.subscribe("a/#", 2)
        yield server, near, far


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_parts_in_any_order_and_twice_are_one_message(tmp_path: Path, qos: int) -> None:
    """Also those that come after it was published; each is acknowledged."""
    some = parts_of(PAYLOAD, qos=qos) * 2
    random.Random(5).shuffle(some)  # noqa: S311 (no secret)
    async with assembling(tmp_path) as (server, near, far):
        others = parts_of(OTHER, bytes(16), qos=qos)
        for sent, payload in ((some, PAYLOAD), ([*some, *others], OTHER)):
            assert await publish(far, *sent) == [0] * len(sent)
            message = await take_message(near)
            assert (message.topic, message.payload, message.qos) == ("a/b", payload, qos)
        counts = plugin_of(server).counts
        assert (counts.received_parts, counts.repeated_parts) == (6, 9)
        assert counts.assembled_messages == 2


async def test_an_empty_message_comes(tmp_path: Path) -> None:
    """Such as a clear of what is retained."""
    async with (
        serving(plugins=plugin(tmp_path)) as server,
        await connected(port_of(server), "near") as near,
    ):
        await near.subscribe("a/#", 2)
        await near.send(Publish(TOPIC, write_part(parts_of(b"")[0])))
        assert not (await take_message(near)).payload
        assembler = plugin_of(server)._assembler
        assert assembler is not None
        assert assembler.counts.queued == 0
        assert assembler.counts.stored == assembler.counts.matched == 1


async def test_a_restart_in_the_middle_loses_nothing(tmp_path: Path) -> None:
    """What was acknowledged need not come again, before and after a message was published."""
    first, second, third = parts_of(PAYLOAD, qos=2)
    async with assembling(tmp_path) as (_, _, far):
        assert await publish(far, third, first) == [0, 0]
    async with assembling(tmp_path) as (_, near, far):
        assert await publish(far, second) == [0]
        assert (await take_message(near)).payload == PAYLOAD
    async with assembling(tmp_path) as (_, near, far):
        assert await publish(far, first, second, third) == [0] * 3
        assert await publish(far, *parts_of(OTHER, bytes(16))) == [0] * 3
        assert (await take_message(near)).payload == OTHER


@pytest.mark.parametrize("step", ["_publish", "_end"])
async def test_a_kill_beside_the_publishing_leaves_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Whole and not published, or published and not noted: it comes once at QoS 2."""
    keys: dict[str, Any] = {"persistence": {"path": str(tmp_path / "sessions.db")}}
    kept: dict[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 100}}
    async with (
        serving(plugins=plugin(tmp_path), **keys) as server,
        await connected(port_of(server), "near", **kept) as near,
        await connected(port_of(server), "far") as far,
    ):
        await near.subscribe("a/#", 2)
        assembler = plugin_of(server)._assembler
        assert assembler is not None
        monkeypatch.setattr(assembler, step, lambda *_: asyncio.Event().wait())
        first, second, third = parts_of(PAYLOAD, qos=2)
        assert await publish(far, first, second) == [0, 0]
        await far.send(Publish(TOPIC, write_part(third), qos=1, packet_id=9))
        if step == "_end":
            assert (await take_message(near)).payload == PAYLOAD
        else:
            await until(lambda: bool(assembler._whole))  # it is on the disk
    async with (
        serving(plugins=plugin(tmp_path), **keys) as server,
        await connected(port_of(server), "near", **kept) as near,
        await connected(port_of(server), "far") as far,
    ):
        if step == "_publish":
            assert (await take_message(near)).payload == PAYLOAD
        await until(lambda: plugin_of(server).counts.assembled_messages == 1)
        assert await publish(far, third, *parts_of(OTHER, bytes(16))) == [0] * 4
        assert (await take_message(near)).payload == OTHER


async def test_a_wrong_hash_publishes_nothing(tmp_path: Path) -> None:
    """The last part is refused, and so is the message when it comes again."""
    *some, last = parts_of(PAYLOAD)
    last = last._replace(trailer=Trailer(bytes(32), b"\0"))
    async with assembling(tmp_path) as (server, near, far):
        assert await publish(far, *some, last) == [0, 0, 0x99]
        assert await publish(far, *some, last) == [0x99] * 3
        assert dropped(server) == {"hash": 1}
        assert await publish(far, *parts_of(OTHER, bytes(16))) == [0] * 3
        assert (await take_message(near)).payload == OTHER


async def test_what_is_no_part_is_refused(tmp_path: Path) -> None:
    """And what contradicts the parts before; the message is put together all the same."""
    first, second, third = parts_of(PAYLOAD)
    async with assembling(tmp_path) as (server, near, far):
        await far.send(Publish(TOPIC, b"PART but none", qos=1, packet_id=1))
        assert (await far.take(PubAck)).reason_code == 0x99
        assert await publish(far, first) == [0]
        assert await publish(far, second._replace(total_bytes=11)) == [0x99]
        assert await publish(far, second, third) == [0, 0]
        assert (await take_message(near)).payload == PAYLOAD
        assert dropped(server) == {"not_a_part": 1, "mismatch": 1}


@pytest.mark.parametrize("topic", ["$SYS/broker/x", "penstock-parts/a"])
async def test_a_message_may_not_have_any_topic(tmp_path: Path, topic: str) -> None:
    """Not the broker's own, and not that of a part."""
    async with assembling(tmp_path) as (server, _, far):
        topic = f"penstock-parts/{topic}"
        assert await publish(far, *parts_of(PAYLOAD), topic=topic) == [0x90] * 3
        assert dropped(server) == {"topic": 1}


async def test_limits_drop_a_message_as_a_whole(tmp_path: Path) -> None:
    """One that is too large with its first part; one that does not fit gives its space back."""
    keys: dict[str, Any] = {"max_message_bytes": 14, "spool_bytes": 2 * 1_025 + 3 * 128 + 15}
    async with assembling(tmp_path, **keys) as (server, near, far):
        assert await publish(far, *parts_of(bytes(15), b"large" + bytes(11))) == [0x97] * 4
        one, two = parts_of(PAYLOAD), parts_of(OTHER, bytes(16))
        assert await publish(far, *one[:2], *two) == [0, 0, 0, 0x97, 0x97]
        assert dropped(server) == {"too_large": 1, "spool_full": 1}
        assert await publish(far, *one) == [0, 0, 0]
        assert (await take_message(near)).payload == PAYLOAD


async def test_a_message_that_never_gets_whole_is_dropped(tmp_path: Path) -> None:
    """After max_age_seconds; parts that come later are refused, as the others are gone."""
    first, second, _ = parts_of(PAYLOAD)
    async with assembling(tmp_path, max_age_seconds=1) as (server, _, far):
        assert await publish(far, first) == [0]
        await until(lambda: dropped(server) == {"too_old": 1})
        assert await publish(far, second) == [0x83]


async def test_a_message_expires_on_the_disk(tmp_path: Path) -> None:
    """Its interval is that of its parts, which other brokers count down."""
    first, second, third = parts_of(PAYLOAD)
    async with assembling(tmp_path) as (server, near, far):
        assembler = plugin_of(server)._assembler
        assert assembler is not None
        assert await publish(far, first, second, message_expiry_interval=100) == [0, 0]
        time = assembler._time
        assembler._time = lambda: time() + 50
        ((message_id, spooled),) = assembler._messages.items()
        assembler._messages[message_id] = spooled._replace(expires_at=assembler._time() + 40)
        assert await publish(far, third) == [0]
        message = await take_message(near)
        assert 30 <= message.properties["message_expiry_interval"] <= 40
        some = parts_of(OTHER, bytes(16))
        assert await publish(far, *some[:2], message_expiry_interval=10) == [0, 0]
        assembler._time = lambda: time() + 100
        assert await publish(far, some[2]) == [0]
        assert dropped(server) == {"expired": 1}


async def test_a_disk_that_does_not_take_a_part_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The part is refused, as it is not on the disk."""
    async with assembling(tmp_path) as (server, _, far):
        first, second, _ = parts_of(PAYLOAD)
        assert await publish(far, first) == [0]
        (tmp_path / "spool.db").unlink()
        assert await publish(far, second) == [0x97]
        assert dropped(server) == {"disk": 1}
        assert "spool.db was deleted or replaced" in caplog.text


async def test_another_topic_is_another_message(tmp_path: Path) -> None:
    """Who may read parts, and publish elsewhere, spoils nothing by their identifier."""
    first, second, third = parts_of(PAYLOAD)
    bad = third._replace(trailer=Trailer(bytes(32), b"\0"))
    async with assembling(tmp_path) as (_, near, far):
        codes = await publish(far, first, second, bad, topic="penstock-parts/other")
        assert codes == [0, 0, 0x99]
        assert await publish(far, first, second, third) == [0, 0, 0]
        assert (await take_message(near)).payload == PAYLOAD


async def test_a_message_that_there_is_no_room_for_holds_up_its_topic_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is published when there is room, and its topic is told until then."""
    monkeypatch.setattr(assembler_module, "AGAIN_SECONDS", 0.01)
    retained = [part._replace(retain=True) for part in parts_of(PAYLOAD)]
    async with assembling(tmp_path, policy={"limits": {"retained_messages": 1}}) as (_, near, far):
        await near.send(Publish("retained", b"x", retain=True))
        assert await publish(far, *retained) == [0, 0, 0]
        assert await publish(far, *parts_of(b"next", bytes(16))) == [0]
        other = parts_of(OTHER, bytes(16))
        assert await publish(far, *other, topic="penstock-parts/a/c") == [0, 0, 0]
        assert (await take_message(near)).payload == OTHER
        assert "the broker has no room for it, of topic 'a/b'" in caplog.text
        await near.send(Publish("retained", b"", retain=True))
        assert (await take_message(near)).payload == PAYLOAD
        assert (await take_message(near)).payload == b"next"


async def test_a_message_that_cannot_be_read_back_holds_up_nothing(tmp_path: Path) -> None:
    """It is dropped; the disk has lost some of it."""
    async with assembling(tmp_path) as (server, near, far):
        first, second, third = parts_of(PAYLOAD)
        assert await publish(far, first, second) == [0, 0]
        spool = plugin_of(server)._spool
        pieces = spool.pieces
        spool.pieces = lambda number: [(9, 1)] if number == 1 else pieces(number)  # type: ignore[method-assign]
        assert await publish(far, third) == [0x97]
        assert dropped(server) == {"disk": 1}
        assert await publish(far, *parts_of(OTHER, bytes(16))) == [0] * 3
        assert (await take_message(near)).payload == OTHER


async def test_parts_at_qos_0_are_dropped_where_the_disk_is_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else bounds them; each is counted."""
    monkeypatch.setattr(assembler_module, "WAITING_BYTES", 1)
    async with assembling(tmp_path) as (server, _, far):
        frames = [Publish(TOPIC, write_part(part)) for part in parts_of(bytes(400))]
        await far.send(*frames)
        await until(lambda: dropped(server).get("too_many", 0) > 0)
        counts = plugin_of(server)._assembler.counts  # type: ignore[union-attr]
        await until(lambda: counts.matched == 100 and not counts.queued)
        assert counts.stored + counts.dropped["too_many"] == 100


async def test_marks_of_uplinks_are_those_of_the_whole(tmp_path: Path) -> None:
    """They stay with the PUBLISH of a part, where uplinks read and write them."""
    marks = [("penstock-site", "berlin"), ("other", "x"), ("penstock-hops", "2")]
    async with assembling(tmp_path) as (_, near, far):
        assert await publish(far, *parts_of(PAYLOAD), user_property=marks) == [0] * 3
        message = await take_message(near)
        assert message.properties["user_property"] == [marks[0], marks[2]]


@pytest.mark.parametrize(
    ("by_uplink", "told"), [("mallory", "mallory"), ("$uplink/$parts/part", "alice")]
)
async def test_who_publishes_parts_cannot_pretend_to_be_another(
    tmp_path: Path, by_uplink: str, told: str
) -> None:
    """What an uplink has told counts, unless it is the client of the plugin at the other end."""
    *some, last = parts_of(PAYLOAD)
    claim = {"user_property": [("penstock-publisher", "alice"), ("penstock-site", "paris")]}
    assert last.trailer is not None
    properties = write_properties(claim, PacketType.PUBLISH)
    last = last._replace(trailer=last.trailer._replace(properties=properties))
    marks = [("penstock-publisher", by_uplink), ("penstock-site", "berlin")]
    async with assembling(tmp_path) as (_, near, far):
        assert await publish(far, *some, last, user_property=marks) == [0] * 3
        found = (await take_message(near)).properties["user_property"]
        assert sorted(found) == [("penstock-publisher", told), marks[1]]


async def test_a_retained_message_that_comes_again_is_delivered_if_it_is_retained_no_more(
    tmp_path: Path,
) -> None:
    """As by a new subscription after a restart without persistence, before which it was whole.

    A message that is not marked as one that was retained before is never delivered again.
    """
    some = [part._replace(is_kept=True, retain=True) for part in parts_of(PAYLOAD)]
    live = [part._replace(retain=True) for part in parts_of(OTHER, bytes(16))]
    async with assembling(tmp_path) as (server, near, far):
        assert await publish(far, *some, *some) == [0] * 6
        assert (await take_message(near)).payload == PAYLOAD
    async with assembling(tmp_path) as (server, near, far):
        assert await publish(far, some[0]) == [0]
    async with assembling(tmp_path) as (server, near, far):
        assert await publish(far, *some[1:], *some) == [0] * 5
        assert (await take_message(near)).payload == PAYLOAD
        assert await publish(far, *live) == [0] * 3
        assert (await take_message(near)).payload == OTHER
        await far.send(Publish("a/b", b"", retain=True))
        assert not (await take_message(near)).payload
        assert await publish(far, *live) == [0] * 3
        assert plugin_of(server).counts.assembled_messages == 2


def numbered(payload: bytes, number: int, *, is_kept: bool = False) -> list[Part]:
    """Return the parts of a message of one stream, which is retained."""
    message_id = ID[:6] + number.to_bytes(6) + ID[12:]
    return [part._replace(retain=True, is_kept=is_kept) for part in parts_of(payload, message_id)]


async def test_a_lost_part_is_told_as_soon_as_a_later_message_comes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Topic and sender are the same; the first may become whole until its room is needed."""
    first, second, third = (numbered(PAYLOAD, number) for number in (1, 2, 3))
    other_sender = parts_of(OTHER, bytes(16))
    keys: dict[str, Any] = {"spool_bytes": 2_600}
    async with assembling(tmp_path, **keys) as (server, near, far):
        counts = plugin_of(server).counts
        assert await publish(far, first[0]) == [0]
        assert await publish(far, *other_sender) == [0] * 3
        assert await publish(far, *numbered(OTHER, 4), topic="penstock-parts/a/c") == [0] * 3
        assert counts.overtaken_messages == 0
        assert await publish(far, second[1]) == [0]
        assert counts.overtaken_messages == 1
        assert "later one of the same sender" in caplog.text
        assert "topic 'a/b', 4 of 10 bytes" in caplog.text
        assert await publish(far, *first[1:]) == [0, 0]
        assert await publish(far, third[0], third[1], third[2]) == [0] * 3
        assert counts.overtaken_messages == 2
        assert dropped(server) == {}
        for payload in (OTHER, OTHER, PAYLOAD, PAYLOAD):
            assert (await take_message(near)).payload == payload
        assert await publish(far, *numbered(PAYLOAD, 9)[:2], *numbered(OTHER, 10)[:2]) == [0] * 4
        assert dropped(server) == {"incomplete": 1}
        assert await publish(far, second[0]) == [ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR]


async def test_what_is_retained_no_more_at_the_other_end_is_dropped(tmp_path: Path) -> None:
    """It sends no more of it, as another message has taken its place."""
    async with assembling(tmp_path) as (server, _, far):
        assert await publish(far, numbered(PAYLOAD, 8, is_kept=True)[0]) == [0]
        assert await publish(far, *parts_of(OTHER, bytes(16))) == [0] * 3
        assert dropped(server) == {}
        assert await publish(far, *numbered(OTHER, 1)) == [0] * 3
        await until(lambda: dropped(server) == {"replaced": 1})
        assert not plugin_of(server).counts.overtaken_messages
