from __future__ import annotations

import math

import pytest

from penstock.models.kernels.closed_forms import (
    LightLoad,
    OnOff,
    UnstableError,
    check_stable,
    in_turn_response,
    mm1_lifetime,
    mm1_response,
    mm1k,
    mmn_waiting,
    onoff_k,
    onoff_response,
)

ALWAYS = OnOff(1e9, 1e-9)


def test_mm1() -> None:
    """1 / (mu - lambda)."""
    assert mm1_response(20, 32) == pytest.approx(1 / 12)


def test_mm1k_drops_what_finds_it_full() -> None:
    """One place: Erlang's loss formula, and a response of one service."""
    found = mm1k(20, 32, 1)
    assert found.loss_ratio == pytest.approx(20 / 52)
    assert found.response == pytest.approx(1 / 32)


def test_many_places_are_as_none() -> None:
    """M/M/1/K and ON/OFF with K come to the forms without K."""
    server = OnOff(2, 2)
    assert mm1k(20, 32, 200).response == pytest.approx(mm1_response(20, 32))
    assert onoff_k(2, 8, server, 500).response == pytest.approx(onoff_response(2, 8, server))


def test_a_server_that_is_always_on_is_an_mm1() -> None:
    """Both ON/OFF forms."""
    assert onoff_response(20, 32, ALWAYS) == pytest.approx(mm1_response(20, 32))
    assert onoff_k(20, 32, ALWAYS, 4).loss_ratio == pytest.approx(mm1k(20, 32, 4).loss_ratio)


def test_an_idle_on_off_queue_waits_for_the_server_alone() -> None:
    """A message that comes while it is off waits T_OFF, being memoryless."""
    assert onoff_response(1e-9, 1e9, OnOff(50, 30)) == pytest.approx(30 * 30 / 80)


def test_a_lifetime_loses_as_a_dam_overflows() -> None:
    """All at 0 s, none at a long one; above rho 1 at least what is too much."""
    assert mm1_lifetime(20, 32, 1e-12) == pytest.approx(1)
    assert mm1_lifetime(20, 32, 10) == pytest.approx(0, abs=1e-12)
    assert mm1_lifetime(64, 32, 10) == pytest.approx(0.5)


def test_light_load_with_one_peer() -> None:
    """The share that comes while it is on, and what waits no longer than the time."""
    path = LightLoad((OnOff(40, 40),), 0.5)
    assert path.within(0) == pytest.approx(0.25)
    assert path.within(10) == pytest.approx(0.5 * (1 - 0.5 * math.exp(-10 / 40)))
    assert LightLoad((), 0.5).within(0) == 0.5


@pytest.mark.parametrize("off_seconds", [15.0, 40.0, 40.0001])
def test_light_load_with_two_peers(off_seconds: float) -> None:
    """All arrive in time, and at once those that come while both are on; equal times too."""
    path = LightLoad((OnOff(40, 40), OnOff(15, off_seconds)))
    assert path.within(0) == pytest.approx(0.5 * 15 / (15 + off_seconds))
    assert path.within(2000) == pytest.approx(1)
    near = LightLoad((OnOff(40, 40), OnOff(15, off_seconds + 1e-4)))
    assert path.within(10) == pytest.approx(near.within(10), rel=1e-4)


def test_a_queue_that_overflows_is_named() -> None:
    """With what comes, what it serves, and rho."""
    with pytest.raises(UnstableError, match=r"transmission overflows: 40 .* 32/s.* rho is 1.25"):
        check_stable("transmission", 40, 32)
    with pytest.raises(UnstableError, match="ON/OFF queue overflows"):
        onoff_response(20, 32, OnOff(50, 30))


@pytest.mark.parametrize(
    ("on", "off", "name"), [(0, 1, "on"), (1, math.inf, "off"), (1, -1, "off")]
)
def test_impossible_times_name_themselves(on: float, off: float, name: str) -> None:
    """What was read, and what is allowed."""
    with pytest.raises(ValueError, match=rf"{name}_seconds: read .*; allowed: a finite number"):
        OnOff(on, off)


def test_mmn() -> None:
    """One server is an M/M/1; two by Erlang's C, 2 rho^2 / (1 + rho)."""
    assert mmn_waiting(20, 32, 1) == pytest.approx(mm1_response(20, 32) - 1 / 32)
    assert mmn_waiting(30, 20, 2) == pytest.approx(2 * 0.75**2 / 1.75 / 10)
    with pytest.raises(UnstableError, match="M/M/N overflows"):
        mmn_waiting(40, 20, 2)


def test_messages_in_turn() -> None:
    """Alone, a message takes one service; with a mean of one before it, gamma + E1(1) + ... ."""
    assert in_turn_response(1e-9, 10) == pytest.approx(0.1)
    ein, served = 0.5772156649 + 0.2193839344, 1 - math.exp(-1)
    assert in_turn_response(10, 10) == pytest.approx(0.1 * (ein + served), rel=1e-4)
