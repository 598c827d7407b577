"""What goes into mailboxes: by buckets, with the answer of all of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.exceptions import ResponseError

from penstock.broker.extensions import SinkRun
from penstock.broker.message import Message
from penstock.plugins.cluster import mail_sink
from penstock.plugins.cluster.engine import Row
from penstock.plugins.cluster.frames import Lane
from penstock.plugins.cluster.mail_engine import IF_CONNECTED, IF_THERE, Posted
from penstock.plugins.cluster.mail_entries import head_of
from penstock.plugins.cluster.mail_routes import MailRoutes
from penstock.plugins.cluster.mail_sink import MailSink
from penstock.plugins.cluster.node_sink import Shared
from penstock.plugins.redis.errors import StorageError
from tests.plugins.cluster.test_node_sink import Answer


class Engine:
    """Keeps the calls, which the test answers.

    Attributes:
        posts: bucket, words and future of each call that has no answer.
        unseen: identifiers that were forgotten, with their buckets.
    """

    def __init__(self) -> None:
        self.posts: list[tuple[str, list[Any], asyncio.Future[Any]]] = []
        self.unseen: list[tuple[str, bytes]] = []

    def limits(self) -> tuple[int, int, str]:
        """Return the limits of a mailbox."""
        return (10, 1000, "reject")

    def post(self, bucket: str, words: list[Any]) -> asyncio.Future[Any]:
        """Keep a call."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.posts.append((bucket, words, future))
        return future

    def unsee(self, bucket: str, deduplication_id: bytes) -> asyncio.Future[Any]:
        """Keep a call, and answer it."""
        self.unseen.append((bucket, deduplication_id))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_result(1)
        return future

    async def answer(
        self, *found: list[Any], error: Exception | None = None, refused: bytes = b""
    ) -> None:
        """Answer the oldest call."""
        await asyncio.sleep(0)
        _, _, future = self.posts.pop(0)
        if error is None:
            future.set_result([refused, *found])
        else:
            future.set_exception(error)
        await asyncio.sleep(0)


class Sink:
    """A sink with sessions `x1`, `x2` and `y1`, which all want topic `t`.

    Attributes:
        told: mailboxes whose owners were told.
        given: messages of shared subscriptions that came back.
        n_room: how often the sink has said that it has room again.
        ahead: seconds by which its clock has gone on.
    """

    def __init__(self) -> None:
        self.engine = Engine()
        self.told: list[str] = []
        self.given: list[Shared] = []
        self.n_room = 0
        self.ahead = 0.0
        self.sink = MailSink(
            self.engine,  # type: ignore[arg-type]
            lambda posted: self.told.append(posted.client_id),
            self.given.append,
            lambda: asyncio.get_running_loop().time() + self.ahead,
            lambda: None,
        )
        self.sink.on_room = self._has_room
        self.sink.routes = MailRoutes(
            lambda client_id: client_id[0], lambda *_: None, lambda *_: None
        )
        for client_id in ("x1", "x2", "y1"):
            self.sink.routes.set(client_id, "t", "o")

    def _has_room(self) -> None:
        self.n_room += 1

    def send(self, receipt: Answer | None = None, qos: int = 1) -> str:
        """Route a message; return why there is no room."""
        message = Message("t", b"1", qos=qos)
        reason = self.sink.reserve(message)
        if not reason:
            self.sink.accept(message, receipt)
        return reason


def run_of(*topics: str, qos: int = 1) -> SinkRun:
    """Return a run with a message for each topic."""
    packets = b"".join(bytes((0x30 | qos << 1, 6)) + b"\0\1%b\0\7-" % t.encode() for t in topics)
    return SinkRun(packets, len(topics), 4, qos, "publisher")


def full(client_id: str, n: int, owner: str = "") -> list[Any]:
    """Return the engine's answer about a mailbox with so many messages."""
    return [client_id.encode(), n, n, 0, 0, 0, owner.encode()]


async def test_each_bucket_gets_one_call_for_all_its_mailboxes() -> None:
    """The receipt is settled once all have answered; what comes meanwhile goes together."""
    sink, receipt = Sink(), Answer()
    sink.send(receipt)
    await asyncio.sleep(0)
    assert [bucket for bucket, _, _ in sink.engine.posts] == ["x", "y"]
    packet = b"\x32\x07\0\1t\0\1\x001"
    assert sink.engine.posts[0][1] == [head_of(""), packet, 1, b"", 2, "x1", "x2"]
    sink.send()
    sink.send()
    await sink.engine.answer(full("x1", 1, "node 1 1"), full("x2", 1))
    assert (sink.told, receipt.codes) == (["x1"], [])
    await sink.engine.answer(full("y1", 1))
    assert receipt.codes == [0]
    assert [len(words) for _, words, _ in sink.engine.posts] == [14, 12]
    for _ in range(2):
        await sink.engine.answer()
    assert (sink.sink.counts.stored, sink.sink.counts.queued, sink.sink.bytes_on_way) == (3, 0, 0)
    await sink.sink.finish()


async def test_run_goes_as_it_came_to_the_mailboxes_of_each_of_its_topics() -> None:
    """It is counted and acknowledged once; a full mailbox has its messages looked at one by one."""
    sink, receipt = Sink(), Answer()
    sink.sink.routes.set("y2", "u", "o")
    run = run_of("t", "t", "u", "u", "u", "t")
    assert sink.sink.reserve_run(6, len(run.packets))
    sink.sink.accept_run(run, receipt)
    sink.sink.accept_run(run_of("u", qos=0), None)
    await asyncio.sleep(0)
    (_, words, _), (_, others, _) = sink.engine.posts
    head = head_of("publisher", version=4)
    assert words[:7] == [head, run.packets[:16], 1, b"", 2, "x1", "x2"]
    assert words[7:9] == [head, run.packets[40:]]
    packets = [run.packets[:16], run.packets[16:40], run.packets[40:], run_of("u", qos=0).packets]
    assert others[1::6] == packets
    await sink.engine.answer()
    assert receipt.codes == []
    await sink.engine.answer(full("y1", 10))
    assert receipt.codes == [0]
    assert (sink.sink.counts.stored, sink.sink.counts.matched, sink.sink.bytes_on_way) == (7, 7, 0)
    assert not sink.sink.reserve_run(1, 8)
    sink.sink.bytes_on_way = mail_sink.MailSink.most_bytes
    sink.sink.accept_run(run_of("t", "t", qos=0), None)
    assert sink.sink.counts.dropped == {"engine_away": 2}


async def test_no_call_makes_more_copies_than_a_thousand() -> None:
    """The engine does nothing else meanwhile; each mailbox gets its messages in their order."""
    sink, receipt = Sink(), Answer()
    for number in range(1200):
        sink.sink.routes.set(f"z{number}", "u", "o")
    run = run_of("u", "u", "u")
    assert sink.sink.reserve_run(3, len(run.packets))
    sink.sink.accept_run(run, receipt)
    await asyncio.sleep(0)
    got: dict[str, bytes] = {}
    while sink.engine.posts:
        _, words, _ = sink.engine.posts[0]
        n_copies = 0
        while words:
            _, packets, _, _, n_clients, *words = words
            n_copies += n_clients * len(packets) // 8
            for client_id in words[:n_clients]:
                got[client_id] = got.get(client_id, b"") + packets
            words = words[n_clients:]
        assert n_copies <= 2 * mail_sink.MOST_POST_COPIES
        assert receipt.codes == []
        await sink.engine.answer()
    assert receipt.codes == [0]
    assert len(got) == 1200
    assert set(got.values()) == {run.packets}


async def test_messages_of_a_shared_subscription_go_to_one_mailbox_together() -> None:
    """In the form of their publisher's version; the outcome is told once."""
    sink, codes = Sink(), list[int]()
    run = run_of("t", "t")
    shared = Shared(Lane(4, "$share/g/t"), 1, 2, run.packets, codes.append)
    sink.sink.accept_shared(sink.sink.routes.boxes["x2"], shared)
    await asyncio.sleep(0)
    ((_, words, _),) = sink.engine.posts
    assert words == [head_of("", "$share/g/t", 4), run.packets, 1, IF_CONNECTED, 1, "x2"]
    await sink.engine.answer(error=StorageError("no server"))
    assert codes == [0x97]
    assert (sink.sink.counts.dropped, sink.sink.bytes_on_way) == ({"not_stored": 2}, 0)


async def test_messages_of_a_share_come_back_whose_member_has_gone() -> None:
    """The publisher is acknowledged once another member has them."""
    sink, codes = Sink(), list[int]()
    box, run = sink.sink.routes.boxes["x1"], run_of("t", "t", "t")
    shared = Shared(Lane(4, "$share/g/t"), 1, 3, run.packets, codes.append)
    sink.sink.accept_shared(box, shared)
    await sink.engine.answer([b"x1", 1, 1, 0, 0, 1, b""], refused=b"1")
    assert sink.given == [shared]
    assert sink.sink.counts.dropped == {"member_left": 3}
    assert (sink.sink.counts.stored, sink.sink.bytes_on_way, codes) == (0, 0, [])
    sink.sink.accept_shared(box, shared)
    await asyncio.sleep(0)
    assert sink.engine.posts[0][1][3] == IF_THERE  # it is known to be away
    await sink.engine.answer()
    assert codes == [0]


async def test_publisher_is_refused_where_a_bucket_could_not_store() -> None:
    """Whatever the others have answered."""
    sink, receipt = Sink(), Answer()
    sink.send(receipt)
    await sink.engine.answer(error=StorageError("no server"))
    await sink.engine.answer()
    assert receipt.codes == [0x97]
    assert sink.sink.counts.dropped == {"not_stored": 1}


async def test_publishers_wait_while_the_engine_does_not_answer() -> None:
    """They are told when there is room again."""
    sink = Sink()
    sink.sink.bytes_on_way = mail_sink.MailSink.most_bytes
    assert sink.send() == "engine_away"
    sink.sink.bytes_on_way = 0
    sink.send()
    for _ in range(2):
        await sink.engine.answer()
    assert sink.n_room


async def test_publishers_wait_for_a_full_mailbox_until_it_is_half_empty() -> None:
    """It is looked at while they do; messages of QoS 0 are not held back."""
    sink = Sink()
    sink.send()
    await sink.engine.answer(full("x1", 10))
    await sink.engine.answer()
    assert sink.send() == "queue_full"
    assert sink.send(qos=0) == ""
    for _ in range(2):
        await sink.engine.answer()
    sink.sink._look_again()
    await sink.engine.answer(full("x1", 6))
    assert sink.send() == "queue_full"
    sink.sink._look_again()
    await sink.engine.answer(full("x1", 5))
    assert sink.send() == ""
    sink.sink.close()


async def test_full_mailbox_is_asked_about_once_however_long_the_engine_is_away() -> None:
    """What collects meanwhile would fill the memory, and be one long call in the end."""
    sink = Sink()
    sink.send()
    await sink.engine.answer(full("x1", 10))
    await sink.engine.answer()
    for _ in range(5):
        sink.sink._look_again()
        await asyncio.sleep(0)
    await sink.engine.answer(full("x1", 10))
    assert not sink.engine.posts
    sink.sink._look_again()
    await sink.engine.answer(full("x1", 0))
    assert sink.send() == ""
    sink.sink.close()


async def test_runs_go_again_once_a_mailbox_has_room_that_nobody_publishes_to() -> None:
    """It is looked at as well while other messages come."""
    sink = Sink()
    sink.send()
    await sink.engine.answer(full("x1", 10))
    await sink.engine.answer()
    assert not sink.sink.reserve_run(1, 8)
    assert sink.sink._look is not None
    sink.sink._look_again()
    await sink.engine.answer(full("x1", 0))
    assert sink.sink.reserve_run(1, 8)
    sink.sink.close()


async def test_qos_2_message_is_told_from_its_repeats_until_it_is_forgotten() -> None:
    """By all buckets that have it; and by all there are, where another node may have stored it."""
    sink, done = Sink(), list[bool]()
    sink.sink.routes.set("y1", "t", "-o")
    sink.send(Answer(b"id"), qos=2)
    sink.send(Answer(b"other", is_repeat=True), qos=2)
    await asyncio.sleep(0)
    sink.sink.routes.set("y1", "t", "o")
    ((_, words, _),) = sink.engine.posts
    assert words[3::7] == [b"+id", b"?other"]
    sink.sink.prefixes = {b"elsewhere": 0.0}
    for one in (b"id", b"other", b"never seen", b"elsewhere\0\1"):
        sink.sink.forget(one, done.append)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert done == [True, True, True, True]
    assert sorted(sink.engine.unseen) == [
        ("x", b"elsewhere\0\1"),
        ("x", b"id"),
        ("x", b"other"),
        ("y", b"elsewhere\0\1"),
        ("y", b"other"),
    ]


async def test_message_of_another_node_is_forgotten_by_all_buckets() -> None:
    """Also where an earlier one with its Packet Identifier was stored here, in some of them."""
    sink, done = Sink(), list[bool]()
    loop = asyncio.get_running_loop()
    sink.sink.routes.set("y1", "t", "-o")
    sink.send(Answer(b"session\0\1"), qos=2)
    sink.sink.prefixes = {b"session": loop.time() + 1}
    sink.ahead = 2.0
    sink.send(Answer(b"session\0\2"), qos=2)
    sink.sink.routes.set("y1", "t", "o")
    for number in (b"\1", b"\2"):
        sink.sink.forget(b"session\0" + number, done.append)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert done == [True, True]
    assert sorted(sink.engine.unseen) == [
        ("x", b"session\0\1"),
        ("x", b"session\0\2"),
        ("y", b"session\0\1"),
    ]


async def test_publishers_that_never_release_a_message_leave_nothing_for_ever() -> None:
    """The engine has forgotten it as well, and is not asked for it."""
    sink, done = Sink(), list[bool]()
    sink.send(Answer(b"left"), qos=2)
    sink.ahead = mail_sink.KNOWN_SECONDS + 1
    sink.send(Answer(b"id"), qos=2)
    for deduplication_id in (b"left", b"id"):
        sink.sink.forget(deduplication_id, done.append)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert done == [True, True]
    assert {each for _, each in sink.engine.unseen} == {b"id"}


async def test_messages_that_are_never_released_take_no_more_memory_than_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where one is released after all, every bucket forgets it; so for as long as they know any."""
    monkeypatch.setattr(mail_sink, "MOST_KNOWN", 2)
    sink, done = Sink(), list[bool]()
    sink.sink.routes.set("y1", "t", "-o")
    for number in range(4):
        sink.send(Answer(b"%d" % number), qos=2)
    sink.sink.routes.set("y1", "t", "o")
    assert list(sink.sink._seen) == [b"2", b"3"]
    sink.sink.forget(b"1", done.append)
    sink.ahead = mail_sink.KNOWN_SECONDS + 1
    sink.sink.forget(b"0", done.append)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert done == [True, True]
    assert sorted(sink.engine.unseen) == [("x", b"1"), ("y", b"1")]


def test_answer_of_the_engine_is_read() -> None:
    """With the owner that is to be told."""
    posted = Posted.read([b"x", 1, 2, 3, 4, 1, b"node 4 5"])
    assert posted[3:] == (3, 4, True, Row("node", 4, 5))


async def test_what_nobody_has_stored_is_counted_and_not_acknowledged_at_the_end() -> None:
    """A session that has just ended has no mailbox; a sink that is closed stores nothing."""
    sink = Sink()
    receipt, late = Answer(), Answer()
    sink.send(receipt)
    await sink.engine.answer([b"x1", -1, 0, 1, 0, 1, b""], [b"x2", 5, 50, 1, 2, 1, b""])
    await sink.engine.answer()
    assert receipt.codes == [0]
    assert sink.sink.lost == {"no_session": 1, "queue_full": 1, "offline": 2}
    sink.sink.close()
    sink.send(late)
    assert late.codes[0] >= 0x80
    assert sink.sink.counts.dropped == {"not_stored": 1}


async def test_next_epoch_sends_nothing_of_the_one_before() -> None:
    """Its publishers are disconnected, and send it again elsewhere."""
    sink, receipts = Sink(), [Answer() for _ in range(3)]
    sink.send(receipts[0])
    await asyncio.sleep(0)
    sink.send(receipts[1])  # waits for the answers
    sink.sink.drop()
    assert [receipt.codes for receipt in receipts] == [[], [0x8B], []]
    for _ in range(2):
        await sink.engine.answer(error=ResponseError("PENSTOCK fenced"))
    assert receipts[0].codes == [0x8B]
    sink.send(receipts[2])
    await asyncio.sleep(0)
    assert [len(words) for _, words, _ in sink.engine.posts] == [7, 6]
    for _ in range(2):
        await sink.engine.answer()
    assert receipts[2].codes == [0]
    assert (sink.sink.counts.stored, sink.sink.counts.queued, sink.sink.bytes_on_way) == (1, 0, 0)
