"""Which node gets a message of a shared subscription."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import cast
from unittest.mock import Mock

import pytest

from penstock.broker.errors import PenstockError
from penstock.broker.extensions import MessageSink, SinkRun
from penstock.broker.message import Message
from penstock.plugins.cluster import shared
from penstock.plugins.cluster.frames import Lane, read_frames
from penstock.plugins.cluster.node_sink import MOST_INBOX_BYTES, NodeSink, Shared
from penstock.plugins.cluster.shared import Groups, GroupSink
from tests.broker.serving import until
from tests.plugins.cluster.test_node_sink import Answer, Engine, turns

SHARE = "$share/g/t/+"


class Sinks:
    """The sinks of a broker."""

    def __init__(self) -> None:
        self.added: list[MessageSink] = []

    def add(self, sink: MessageSink) -> None:
        """Take one in."""
        assert sink.topic_filters == ["t/+"]
        self.added.append(sink)

    def remove(self, sink: MessageSink) -> None:
        """Let one go."""
        self.added.remove(sink)

    def add_filter(self, sink: MessageSink, topic_filter: str) -> None:
        """Nothing: shared subscriptions have one filter."""

    remove_filter = add_filter


class Cluster:
    """The groups of the node "a", with the engines of its sinks.

    Attributes:
        engines: of each node.
        groups: the groups.
        sinks: those of the broker.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.engines = {node: Engine() for node in "abc"}
        self.nodes = {
            node: NodeSink(node, engine.put, engine.give, loop, loop.time)
            for node, engine in self.engines.items()
        }
        self.sinks = Sinks()
        self.groups = Groups("a", self.nodes, self.sinks, loop.time)

    async def got(self) -> Counter[str]:
        """Return how many messages each node has got since the last time."""
        await turns()
        found: Counter[str] = Counter()
        for node, engine in self.engines.items():
            while engine.entries:
                for frame in read_frames(await engine.answer()):
                    assert frame.lane == Lane(5, SHARE)
                    found[node] += frame.n_messages
        return found


def publish(cluster: Cluster, n_messages: int) -> list[Answer]:
    """Publish messages at the node."""
    answers = []
    for _ in range(n_messages):
        message = Message("t/1", b"x", qos=1)
        for sink in cluster.sinks.added:
            assert sink.reserve(message) == ""
            answers.append(Answer())
            sink.accept(message, answers[-1])
    return answers


async def test_nodes_get_messages_in_proportion_to_their_members() -> None:
    """Spread evenly; the publisher is acknowledged when the node's inbox has the message."""
    cluster = Cluster()
    cluster.groups.change(SHARE, "b", 1)
    cluster.groups.change(SHARE, "c", 3)
    answers = publish(cluster, 8)
    assert not any(answer.codes for answer in answers)
    assert await cluster.got() == {"b": 2, "c": 6}
    assert [answer.codes for answer in answers] == [[0]] * 8
    (group,) = cluster.sinks.added
    assert (group.counts.matched, group.counts.stored) == (8, 8)


async def test_message_whose_payload_cannot_be_read_back_is_refused_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its publisher is told; nothing is sent to a member."""
    cluster = Cluster()
    cluster.groups.change(SHARE, "b", 1)
    monkeypatch.setattr(Message, "read_payload", Mock(side_effect=OSError(5, "input/output")))
    (answer,) = publish(cluster, 1)
    cluster.sinks.added[0].accept(Message("t/1", b"x"), None)
    assert answer.codes == [0x80]
    assert not await cluster.got()
    (group,) = cluster.sinks.added
    assert (group.counts.matched, group.counts.dropped) == (2, {"payload_lost": 2})


async def test_members_that_have_gone_take_no_memory() -> None:
    """Mailboxes come and go with their sessions, while the group stays."""
    cluster = Cluster()
    cluster.groups.change(SHARE, "b", 1)
    cluster.groups.change(SHARE, "c", 1)
    publish(cluster, 3)
    cluster.groups.change(SHARE, "c", 0)
    (group,) = cast("list[GroupSink]", cluster.sinks.added)
    assert [name for _, name in group._turns] == ["b"]


async def test_a_node_with_members_of_its_own_gives_nothing_away() -> None:
    """Its broker chooses among them."""
    cluster = Cluster()
    cluster.groups.change(SHARE, "b", 1)
    cluster.groups.change(SHARE, "a", 2)
    assert not cluster.sinks.added
    cluster.groups.change(SHARE, "a", 0)
    publish(cluster, 1)
    assert await cluster.got() == {"b": 1}
    cluster.groups.left("b")
    assert not cluster.sinks.added


async def test_a_node_without_room_is_passed_over_while_another_has_some() -> None:
    """With no room anywhere the publisher waits."""
    cluster = Cluster()
    cluster.groups.change(SHARE, "b", 1)
    cluster.groups.change(SHARE, "c", 1)
    cluster.nodes["b"].inbox_bytes = MOST_INBOX_BYTES + 1
    publish(cluster, 4)
    assert await cluster.got() == {"c": 4}
    cluster.nodes["c"].inbox_bytes = MOST_INBOX_BYTES + 1
    (group,) = cluster.sinks.added
    assert group.reserve(Message("t/1", b"x", qos=1)) == "inbox_full"


class Box:
    """A mailbox as a member.

    Attributes:
        lack: why it has no room.
        n_looks: how often it was asked, of all boxes.
        n_taken: messages that it has taken.
    """

    n_looks = 0

    def __init__(self) -> None:
        self.lack = ""
        self.n_taken = 0

    def lacks(self) -> str:
        """Say why there is no room."""
        Box.n_looks += 1
        return self.lack

    def accept_shared(self, shared: Shared) -> None:
        """Take messages."""
        self.n_taken += shared.n_messages


@pytest.mark.parametrize("n_away", [0, 990, 1000])
def test_a_message_costs_the_same_however_many_members_there_are(n_away: int) -> None:
    """Those that are away get none while another is there; one that is back has its turns again."""
    boxes = {f"{number:04}": Box() for number in range(1000)}
    group = GroupSink(SHARE, boxes, lambda: 0.0)
    for number, name in enumerate(boxes):
        group.join(name, 1)
        boxes[name].lack = shared.AWAY if number < n_away else ""
    message = Message("t/1", b"x", qos=1)

    def publish(n_messages: int) -> set[str]:
        before = {name: box.n_taken for name, box in boxes.items()}
        for _ in range(n_messages):
            assert group.reserve(message) == ""
            group.accept(message, None)
        return {name for name, box in boxes.items() if box.n_taken > before[name]}

    publish(1)  # it finds out who is away
    Box.n_looks = 0
    came = publish(1000)
    assert Box.n_looks <= 4000
    assert len(came) == (1000 - n_away or n_away)
    boxes["0000"].lack = ""
    publish(1000)
    assert "0000" in publish(1100 - n_away)


async def test_a_run_goes_to_one_node_and_counts_as_so_many_turns() -> None:
    """It stays a run for that node's members."""
    cluster = Cluster()
    cluster.groups.change(SHARE, "b", 1)
    cluster.groups.change(SHARE, "c", 1)
    (sink,) = cluster.sinks.added
    answer = Answer()
    for n_messages in (10, 4, 4, 4):
        assert sink.reserve_run(n_messages, 5)
        sink.accept_run(SinkRun(b"packets", n_messages, 5, 1), answer)
    assert await cluster.got() == {"b": 10, "c": 12}
    assert answer.codes == [0] * 4
    assert (sink.counts.matched, sink.counts.stored) == (22, 22)
    for node in "bc":
        cluster.nodes[node].inbox_bytes = MOST_INBOX_BYTES + 1
    assert not sink.reserve_run(1, 5)
    sink.accept_run(SinkRun(b"packets", 7, 5, 0), None)
    assert sink.counts.dropped == {"inbox_full": 7}


def returned(done: Callable[[int], None]) -> Shared:
    """Return messages that a node could not deliver."""
    return Shared(Lane(5, SHARE), 1, 2, b"packets", done)


@pytest.mark.parametrize("n_own", [0, 2])
async def test_a_returned_message_goes_to_another_member(
    monkeypatch: pytest.MonkeyPatch, n_own: int
) -> None:
    """The own ones among them; it is done when it is stored."""
    monkeypatch.setattr(shared, "RETRY_SECONDS", 0.0)
    cluster = Cluster()
    cluster.groups.change(SHARE, "a" if n_own else "c", 1)
    done: list[int] = []
    cluster.groups.give_back(returned(done.append))
    engine = cluster.engines["a" if n_own else "c"]
    await until(lambda: engine.entries)
    assert not done
    engine.entries.pop()[1].set_exception(PenstockError("OOM"))
    await until(lambda: engine.entries)
    assert not done
    assert await cluster.got() == {"a" if n_own else "c": 2}
    assert done == [0]
    assert cluster.groups.n_returned == 4


async def test_a_returned_message_that_nobody_subscribes_to_any_more_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And counted."""
    monkeypatch.setattr(shared, "RETRY_SECONDS", 0.0)
    cluster = Cluster()
    done: list[int] = []
    cluster.groups.give_back(returned(done.append))
    await until(lambda: done)
    assert done == [0]
    assert cluster.groups.dropped == {"no_member": 2}
