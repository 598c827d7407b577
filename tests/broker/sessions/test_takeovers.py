from __future__ import annotations

from penstock.broker.sessions.registry import FIGHT_SECONDS, MOST_CLIENTS, Takeovers


def test_takeovers_one_after_the_other_are_a_fight() -> None:
    """The third tells how long it has gone on, and who has been thrown out."""
    takeovers = Takeovers()
    assert takeovers.add("s", "10.0.0.1:5", 100.0) == ""
    assert takeovers.add("s", "10.0.0.2:6", 101.0) == ""
    assert takeovers.add("other", "10.0.0.9:1", 101.5) == ""
    assert takeovers.add("s", "10.0.0.1:5", 102.5) == (
        "its connection was taken over 3 times in 2.5 s, of 10.0.0.1:5 and 10.0.0.2:6: two clients "
        "may have this client id"
    )
    assert "3 times in 2 s" in takeovers.add("s", "10.0.0.2:7", 103.0)


def test_a_client_that_comes_back_now_and_then_fights_nobody() -> None:
    """Its link was cut, and the broker had not noticed."""
    takeovers = Takeovers()
    for number in range(10):
        assert takeovers.add("s", "10.0.0.1:5", number * FIGHT_SECONDS / 2) == ""


def test_no_more_clients_are_counted_than_there_is_room_for() -> None:
    """Clients make up their ids."""
    takeovers = Takeovers()
    for _ in range(2):
        takeovers.add("s", "10.0.0.1:5", 0.0)
    for number in range(MOST_CLIENTS):
        takeovers.add(str(number), "10.0.0.1:5", 1.0)
    assert takeovers.add("s", "10.0.0.1:5", 2.0) == ""
