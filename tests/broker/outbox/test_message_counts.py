from __future__ import annotations

from penstock.broker.outbox.message_counts import Ledger


def test_outstanding_is_what_was_matched_and_has_not_left() -> None:
    """What is outstanding is matched - delivered - expired - moved - dropped."""
    ledger = Ledger()
    ledger.matched, ledger.delivered, ledger.expired, ledger.moved = 13, 4, 1, 3
    ledger.drop("queue_full", 2)
    ledger.drop("offline")
    ledger.drop("offline", 0)
    assert ledger.outstanding() == 2
    assert ledger.dropped == {"queue_full": 2, "offline": 1}


def test_ledgers_add_up_by_reason() -> None:
    """The broker's account is the sum of its subscribers'."""
    one, other = Ledger(), Ledger()
    one.matched, other.matched = 8, 5
    one.delivered, other.delivered = 1, 2
    one.expired, other.expired = 1, 1
    one.moved, other.moved = 2, 3
    one.withheld_total, other.withheld_total = 4, 2
    one.released_total, other.released_total = 3, 2
    one.drop("offline")
    other.drop("offline")
    other.drop("queue_full")
    one.add(other)
    assert (one.matched, one.delivered, one.expired) == (13, 3, 2)
    assert one.dropped == {"offline": 2, "queue_full": 1}
    assert (one.withheld_total, one.released_total) == (6, 5)
    assert one.moved == 5
    assert one.outstanding() == 0
