"""Paper 001's baseline on the queue: what is its own in it."""

from __future__ import annotations

import sys

import pytest

from benchmarks.fabric.hashing import HashingController, main
from penstock.broker.message import Message
from penstock.plugins.queue import append_buffer
from penstock.plugins.queue.engines.contract import NewMessage
from penstock.plugins.queue.strategies.slowdown_exclusion import SlowdownExclusion


def entry(topic: str) -> append_buffer.Entry:
    """Return a message that is to be stored."""
    return NewMessage(Message(topic, b"")), None


def test_a_topic_has_one_physical_queue_however_slow_that_is() -> None:
    """And all physical queues have some topics."""
    exclusion = SlowdownExclusion(range(4))
    controller = HashingController[append_buffer.Entry](4, None, exclusion)
    entries = [entry(f"t/{n}") for n in range(100)]
    dealt = controller.deal(entries)
    assert sorted(dealt) == [0, 1, 2, 3]
    assert sum(map(len, dealt.values())) == 100
    exclusion.failed(exclusion.send(0, 0.0), 0.0)
    assert controller.deal(entries) == dealt


def test_a_module_runs_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its own arguments."""
    monkeypatch.setattr(append_buffer, "EnqueueController", object)
    monkeypatch.setattr(sys, "argv", ["hashing", "json.tool", "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert vars(append_buffer)["EnqueueController"] is HashingController
