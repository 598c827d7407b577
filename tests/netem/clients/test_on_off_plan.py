from __future__ import annotations

import math
from pathlib import Path

from penstock.netem.clients.on_off_plan import (
    ALWAYS,
    Answered,
    Arrived,
    OnOffClientsPlan,
    OnOffPublisher,
    OnOffRecords,
    OnOffSubscriber,
    Sent,
    Worked,
)


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Times without end and messages without a lifetime, too."""
    publisher = OnOffPublisher("p", "t", [(0.0, 1.0), (2.0, math.inf)], [0.5, 0.7])
    subscriber = OnOffSubscriber("s", ["t"], list(ALWAYS), False, 1)
    plan = OnOffClientsPlan(1883, 9.0, [publisher], [subscriber])
    plan.write(tmp_path / "plan")
    found = OnOffClientsPlan.read(tmp_path / "plan")
    assert [[*each] for each in publisher.on] == found.publishers[0].on  # type: ignore[comparison-overlap]
    assert found.publishers[0].lifetime == math.inf
    assert found.subscribers[0].receive_maximum == 1
    assert (found.port, found.end_seconds) == (1883, 9.0)


def test_a_message_without_services_takes_no_time() -> None:
    """Each has its own lifetime from its creation."""
    plan = OnOffPublisher("p", "t", list(ALWAYS), [0.5, 0.7], lifetime=2.0)
    assert plan.service(1) == 0.0
    assert plan.deadline(1) == 2.7
    assert OnOffPublisher("p", "t", [], [0.5], [0.1]).service(0) == 0.1


def test_records_of_several_hosts_are_one(tmp_path: Path) -> None:
    """In the form in which they were made."""
    for host in ("a", "b"):
        records = OnOffRecords(
            [Sent(0, 1, 0.5, math.inf)],
            [Answered(0, 1, 0.6, 0)],
            [Arrived(0, 0, 1, 0.6, False, -1.0)],
            [Worked(0, 0, 1, 0.7)],
            [0.1, 0.3],
        )
        records.write(tmp_path / host)
    found = OnOffRecords()
    assert found.late_seconds() == 0.0
    for host in ("a", "b"):
        found.add(tmp_path / host)
    assert found.sent == [Sent(0, 1, 0.5, math.inf)] * 2
    assert found.arrived[1].asked_at == -1.0
    assert found.worked[1] == Worked(0, 0, 1, 0.7)
    assert found.late_seconds(0.5) == 0.3
