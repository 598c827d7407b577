from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.errors import PenstockError
from penstock.broker.sessions.bans import MOST_BANS, Bans


def test_a_ban_holds_until_its_time_is_over() -> None:
    """And for its own kind of name alone."""
    bans = Bans()
    bans.add("client_id", "c", 10, "why", "ann", now=100)
    assert bans.bans("client_id", "c", 109)
    assert not bans.bans("client_id", "c", 110)
    assert not bans.bans("username", "c", 100)
    assert not bans.bans("username", None, 100)
    assert [ban.seconds for ban in bans.all(104)] == [6]
    assert bans.all(110) == []
    assert not bans.entries


@pytest.mark.parametrize(
    ("banned", "comes"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("192.0.2.1", "::ffff:192.0.2.1"),
        ("2001:db8::1", "2001:db8::ffff"),
    ],
)
def test_an_address_is_banned_in_each_of_its_forms(banned: str, comes: str) -> None:
    """A host has a /64 network of IPv6 to choose addresses from."""
    bans = Bans()
    bans.add("address", banned, 10, "", "", now=0)
    assert bans.bans("address", comes, 1)
    (ban,) = bans.all(1)
    assert bans.remove("address", ban.value)


@pytest.mark.parametrize(
    ("kind", "value", "seconds", "told"),
    [
        ("user", "joe", 10, "kind: read 'user'; allowed: client_id, username, address"),
        ("address", "example.org", 10, "allowed: one of IPv4 or IPv6"),
        ("client_id", "", 10, "of 0 characters"),
        ("client_id", "c", 0, "seconds: read 0; allowed: above 0"),
        ("client_id", "c", 1e12, "allowed: above 0"),
        ("client_id", "c", float("nan"), "allowed: above 0"),
    ],
)
def test_a_ban_of_nobody_is_refused(kind: Any, value: str, seconds: float, told: str) -> None:
    """With what was read and what is allowed."""
    with pytest.raises(PenstockError, match=told):
        Bans().add(kind, value, seconds, "", "", now=0)


def test_there_are_not_more_bans_than_an_operator_can_see() -> None:
    """One that is there may be replaced, and one that is over makes room."""
    bans = Bans()
    for number in range(MOST_BANS):
        bans.add("client_id", str(number), 10, "", "", now=0)
    bans.add("client_id", "0", 20, "", "", now=0)
    with pytest.raises(PenstockError, match="allowed: no more"):
        bans.add("client_id", "more", 10, "", "", now=0)
    bans.add("client_id", "more", 10, "", "", now=11)
