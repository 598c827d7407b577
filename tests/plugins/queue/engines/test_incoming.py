from __future__ import annotations

import json

import pytest

from penstock.broker.message import Message
from penstock.plugins.queue.engines.contract import NewMessage, QueueSpec
from penstock.plugins.queue.engines.incoming import Incoming, stored_properties
from penstock.plugins.queue.engines.partition import PhysicalQueue
from penstock.plugins.queue.engines.queues import LocalQueue
from penstock.plugins.queue.engines.store import DELAYED, EXPIRES, PhysicalRow, QueueRow
from tests.plugins.queue.running import LostPayload


def incoming() -> Incoming:
    """Return what comes to a physical queue whose next offset is 7."""
    queue = LocalQueue(QueueRow(1, "q", "i", ""), QueueSpec())
    return Incoming(queue, PhysicalQueue(PhysicalRow(1, 1, 0, 0, 7, 0, 0, 0)))


def test_messages_that_need_no_look_of_their_own_are_added_together() -> None:
    """With the same offsets and columns as one by one, behind those that are there."""
    news = [
        NewMessage(Message(f"t/{n}", b"%d" % n, qos=n % 3, arrived_at=float(n), publisher="p"))
        for n in range(9)
    ]
    singly, together = incoming(), incoming()
    offsets = [singly.add(new, 1e9) for new in news]
    assert together.add(news[0], 1e9) == 7
    assert together.add_plain(news[1:], 1e9) == offsets[1:]
    assert together.add_plain([], 1e9) == []
    assert [one[:2] for one in singly.encode(0.0)] == [one[:2] for one in together.encode(0.0)]


@pytest.mark.parametrize(
    "new",
    [
        NewMessage(Message("t", b"x"), b"id"),
        NewMessage(Message("t", b"x"), delay_seconds=0.0),
        NewMessage(Message("t", b"x", properties={"content_type": "x"})),
        NewMessage(Message("t", b"x", retain=True)),
        NewMessage(Message("t", b"x", expires_at=9.0)),
        NewMessage(Message("ü", b"x")),
        NewMessage(Message("t", b"x", publisher="\ud800")),
        NewMessage(Message("t", LostPayload())),  # type: ignore[arg-type]
    ],
)
def test_a_message_that_needs_a_look_of_its_own_is_not_added_with_others(new: NewMessage) -> None:
    """Nor are they: each is looked at."""
    coming = incoming()
    plain = NewMessage(Message("t", b"x"))
    assert coming.add_plain([plain, new, plain], 0.0) is None
    assert list(coming.encode(0.0)) == []


@pytest.mark.parametrize(
    ("new", "properties", "flags"),
    [
        (NewMessage(Message("t", b"")), None, 0),
        (
            NewMessage(Message("t", b"", properties={"message_expiry_interval": 5}, expires_at=5)),
            {"message_expiry_interval": 5},
            EXPIRES,
        ),
        (
            NewMessage(Message("t", b"", arrived_at=10.0, expires_at=15.5)),
            {"message_expiry_interval": 6},
            EXPIRES,
        ),
        (
            NewMessage(
                Message("t", b"", properties={"user_property": [("a", "b")]}), delay_seconds=2.5
            ),
            {"user_property": [["a", "b"], ["penstock-delay", "2.5"]]},
            DELAYED,
        ),
    ],
)
def test_expiry_and_delay_are_stored_as_properties(
    new: NewMessage, properties: dict[str, object] | None, flags: int
) -> None:
    """And their segment is flagged."""
    text = stored_properties(new)
    assert (json.loads(text) if text else None) == properties
    coming = incoming()
    coming.add(new, 0.0)
    ((facts, _, _),) = coming.encode(0.0)
    assert facts.flags == flags


def test_the_retain_flag_of_a_publish_is_stored() -> None:
    """Beside the properties; a message without it and without properties has none."""
    message = Message("t", b"x", retain=True)
    assert json.loads(stored_properties(NewMessage(message))) == {"retain": True}
    assert stored_properties(NewMessage(Message("t", b"x"))) == ""
