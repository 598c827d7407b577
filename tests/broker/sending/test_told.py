from __future__ import annotations

from penstock.broker.sending.told import MOST_CAUSES, Told


def test_one_line_about_a_cause_is_due_in_each_period() -> None:
    """A cause that comes again and again is told of once an hour; another one at once."""
    told = Told(3600)
    assert told.is_due("a", 10.0)
    assert not told.is_due("a", 3609.0)
    assert told.is_due("b", 3609.0)
    assert told.is_due("a", 3610.0)
    assert not told.is_due("a", 3611.0)


def test_no_more_causes_are_remembered_than_there_is_room_for() -> None:
    """Clients make up their ids: the cause told of first is forgotten, so that it is due again."""
    told = Told(3600)
    for number in range(MOST_CAUSES + 1):
        assert told.is_due(str(number), 10.0)
    assert told.is_due("0", 10.0)
    assert not told.is_due(str(MOST_CAUSES), 10.0)
