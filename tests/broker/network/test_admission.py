from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.counters import Counters
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.network import admission as admission_module
from penstock.broker.network.admission import MAX_REFUSED, Admission, Place, Places


def make(connections: int = 1000, per_address: int | None = None) -> tuple[Admission, Counters]:
    """Return an admission and where it counts."""
    counters = Counters()
    admission = Admission(counters, connections=connections, connections_per_address=per_address)
    return admission, counters


def enter(admission: Admission, listener: Places) -> Place:
    """Return a place, which there must be."""
    place = admission.enter(listener)
    assert place is not None
    return place


def test_places_go_in_the_order_of_arrival_to_those_who_still_wait() -> None:
    """Who gives up its wait frees no place; who leaves gives its place to the next."""
    admission, _ = make()
    listener = Places(1)
    first, second, third = (enter(admission, listener) for _ in range(3))
    assert [place.is_waiting for place in (first, second, third)] == [False, True, True]
    turns: list[str] = []
    second.on_turn = lambda: turns.append("second")
    third.on_turn = lambda: turns.append("third")
    second.leave()
    first.leave()
    assert turns == ["third"]
    assert not third.is_waiting
    fourth = enter(admission, listener)
    assert fourth.is_waiting
    fourth.leave()
    third.leave()
    assert not enter(admission, listener).is_waiting


def test_turn_that_comes_before_anybody_listens_is_kept() -> None:
    """A client still in its TLS handshake when its turn comes finds that it has a place."""
    admission, _ = make()
    listener = Places(1)
    first, second = enter(admission, listener), enter(admission, listener)
    first.leave()
    assert not second.is_waiting


@pytest.mark.parametrize("max_connections", [0, -1])
def test_no_limit_of_connections(max_connections: int) -> None:
    """0, and as with aMQTT anything below, lets everybody in."""
    admission, _ = make()
    listener = Places(max_connections)
    places = [enter(admission, listener) for _ in range(3)]
    assert not any(place.is_waiting or place.refusal for place in places)
    for place in places:
        place.leave()
    assert admission.n_connections == 0


def test_above_the_limit_of_all_a_client_is_told() -> None:
    """Server busy; a place that is given back is free for the next."""
    admission, counters = make(connections=2)
    listener = Places()
    places = [enter(admission, listener) for _ in range(3)]
    assert [place.refusal for place in places] == [None, None, ReasonCode.SERVER_BUSY]
    assert counters.connections_refused == {"all": 1}
    places[0].leave()
    places[0].leave()
    assert enter(admission, listener).refusal is None
    assert enter(admission, listener).refusal == ReasonCode.SERVER_BUSY


def test_listener_that_does_not_let_wait_refuses() -> None:
    """`when_full: refuse`."""
    admission, counters = make()
    listener = Places(1, waits=False)
    first, second = enter(admission, listener), enter(admission, listener)
    assert (first.refusal, second.refusal) == (None, ReasonCode.SERVER_BUSY)
    assert counters.connections_refused == {"listener": 1}
    second.leave()
    first.leave()
    assert enter(admission, listener).refusal is None


def test_above_the_limit_of_an_address_a_client_is_told() -> None:
    """Quota exceeded, for that address alone; its place on the listener is free for others."""
    admission, counters = make(per_address=1)
    listener = Places(2)
    first, second, other = (enter(admission, listener) for _ in range(3))
    assert other.is_waiting
    assert first.came_from("192.0.2.1")
    assert second.came_from("192.0.2.1")
    assert second.refusal == ReasonCode.QUOTA_EXCEEDED
    assert not other.is_waiting
    assert other.came_from("192.0.2.2")
    assert other.refusal is None
    assert counters.connections_refused == {"address": 1}
    first.leave()
    second.leave()
    again = enter(admission, listener)
    again.came_from("192.0.2.1")
    assert again.refusal is None


def test_waiting_client_of_an_address_above_its_limit_waits_no_more() -> None:
    """It is refused at once, and no turn comes to it."""
    admission, _ = make(per_address=1)
    listener = Places(1)
    first, second, third = (enter(admission, listener) for _ in range(3))
    for place in (first, second):
        place.came_from("192.0.2.1")
    assert second.refusal == ReasonCode.QUOTA_EXCEEDED
    first.leave()
    assert not third.is_waiting


def test_only_so_many_hear_why() -> None:
    """The rest of a flood is cut off: refusals must not fill the memory."""
    admission, counters = make(connections=1, per_address=1)
    listener = Places()
    enter(admission, listener)
    refused = [admission.enter(listener) for _ in range(MAX_REFUSED + 10)]
    assert [place is None for place in refused] == [False] * MAX_REFUSED + [True] * 10
    assert counters.connections_refused == {"all": MAX_REFUSED + 10, "cut_off": 10}
    assert admission.n_connections == MAX_REFUSED + 1
    assert refused[0] is not None
    refused[0].leave()
    assert admission.enter(listener) is not None


def test_flood_of_one_address_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit also holds for an address that a proxy has told."""
    monkeypatch.setattr(admission_module, "MAX_REFUSED", 1)
    admission, counters = make(per_address=1)
    places = [enter(admission, Places()) for _ in range(3)]
    assert [place.came_from("::1") for place in places] == [True, True, False]
    assert counters.connections_refused == {"address": 2, "cut_off": 1}
    for place in places:
        place.leave()
    assert admission.n_connections == 0


def test_unknown_address_counts_for_none() -> None:
    """A Unix socket has none."""
    admission, _ = make(per_address=1)
    for _ in range(3):
        place = enter(admission, Places())
        assert place.came_from("")
        assert place.refusal is None


@given(
    steps=st.lists(st.tuples(st.sampled_from("elalewl"), st.integers(0, 5)), max_size=60),
    n_all=st.integers(1, 4),
    n_room=st.integers(1, 3),
    waits=st.booleans(),
)
def test_whatever_comes_and_goes_everything_is_given_back(
    steps: list[tuple[str, int]], n_all: int, n_room: int, *, waits: bool
) -> None:
    """No limit is passed, and at the end all places are free."""
    admission, _ = make(connections=n_all, per_address=2)
    listener = Places(n_room, waits=waits)
    places: list[Place] = []
    for step, number in steps:
        if step == "e":
            place = admission.enter(listener)
            if place is not None:
                places.append(place)
        elif places and step == "a":
            places[number % len(places)].came_from(f"192.0.2.{number}")
        elif places:
            places.pop(number % len(places)).leave()
        taken = [place for place in places if place.refusal is None]
        assert len(taken) <= n_all
        assert len([place for place in taken if not place.is_waiting]) <= n_room
        if any(place.is_waiting for place in taken):
            assert len([place for place in taken if not place.is_waiting]) == n_room
    for place in places:
        place.leave()
    assert admission.n_connections == 0
    assert enter(admission, listener).refusal is None


def test_a_limit_that_changes_lets_those_in_who_wait_and_keeps_those_who_are_there() -> None:
    """Connections of before a limit count for it."""
    admission, _ = make()
    listener = Places()
    first, second = enter(admission, listener), enter(admission, listener)
    listener.change(1, waits=True)
    third, fourth = enter(admission, listener), enter(admission, listener)
    first.leave()
    assert third.is_waiting
    second.leave()
    assert [third.is_waiting, fourth.is_waiting] == [False, True]
    listener.change(2, waits=False)
    assert not fourth.is_waiting
    assert enter(admission, listener).refusal == ReasonCode.SERVER_BUSY
    listener.change(0, waits=True)
    assert enter(admission, listener).refusal is None


def test_limits_of_all_and_of_an_address_change() -> None:
    """An address counts from its first limit on."""
    admission, _ = make(1)
    listener = Places()
    first = enter(admission, listener)
    assert first.came_from("192.0.2.1")
    assert enter(admission, listener).refusal == ReasonCode.SERVER_BUSY
    admission.change(10, 1)
    second, third = enter(admission, listener), enter(admission, listener)
    assert second.came_from("192.0.2.1")
    assert third.came_from("192.0.2.1")
    assert (second.refusal, third.refusal) == (None, ReasonCode.QUOTA_EXCEEDED)
    for place in (first, second, third):
        place.leave()
