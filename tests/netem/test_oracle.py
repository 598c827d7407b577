from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest

from penstock.broker.extensions import PluginContext
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.netem.oracle import (
    EXPOSURE_SECONDS,
    LOOK_SECONDS,
    MOST_HOLD_SECONDS,
    OracleConfig,
    OraclePlugin,
    seconds_to_send,
    throughput,
)
from penstock.netem.oracle_file import ToldLink, ToldState, read_told, write_told

GOOD = ToldState(0.0, 2.5e6, 0.0, 0.04)
SLOW = ToldState(100.0, 1e5, 0.0, 0.04)
LOSSY = ToldState(100.0, 2.5e6, 0.2, 0.2)
DEAD = ToldState(100.0, 2.5e6, 1.0, 0.04)
MEGABYTE = Message("pictures/1", bytes(1_000_000), qos=1)


def plugin(folder: Path, told: dict[str, ToldLink]) -> OraclePlugin:
    """Return one that was told something."""
    write_told(folder / "told.json", told)
    context = PluginContext(logging.getLogger("test"), "policy.yaml", lambda: 0.0)
    return OraclePlugin(OracleConfig(told=str(folder / "told.json")), context)


def one(folder: Path, *states: ToldState, congestion_control: str = "cubic") -> OraclePlugin:
    """Return one with a single subscriber, ``sub``."""
    return plugin(folder, {"sub": ToldLink("cloud-a", congestion_control, states)})


def test_the_throughput_equation_is_that_of_rfc_5348() -> None:
    """Its section 3.1, counted by hand: 1,448 bytes at 1 % and 100 ms."""
    per_packet = 0.1 * math.sqrt(2 * 0.01 / 3)
    per_packet += 0.4 * 3 * math.sqrt(3 * 0.01 / 8) * 0.01 * (1 + 32 * 0.01**2)
    assert throughput(0.01, 0.1) == pytest.approx(1448 / per_packet)
    assert throughput(0.2, 0.2) == pytest.approx(3_900, rel=0.05)


@pytest.mark.parametrize(
    ("state", "congestion_control", "sharing", "seconds"),
    [
        (GOOD, "cubic", 1, 0.4 + 0.04),
        (GOOD, "cubic", 2, 0.8 + 0.04),
        (SLOW, "bbr", 1, 10.0 + 0.04),
        # Of 690.6 packets, some are lost 2.84 times in a row.
        (ToldState(0.0, 2e6, 0.1, 0.1), "bbr", 1, 1 / 1.8 + 0.284),
        (ToldState(0.0, 2e6, 0.1, 0.1), "cubic", 1, 1e6 / throughput(0.1, 0.1) + 0.1),
        # So many losses are too many for either.
        (LOSSY, "bbr", 1, 1e6 / throughput(0.2, 0.2) + 0.2),
        (LOSSY, "cubic", 1, 1e6 / throughput(0.2, 0.2) + 0.2),
        # The rate is less than what losses leave.
        (ToldState(0.0, 1e4, 0.01, 0.04), "cubic", 1, 100 / 0.99 + 0.04),
        (DEAD, "bbr", 1, math.inf),
        (ToldState(0.0, None, 0.0, 0.04), "cubic", 1, 0.04),
    ],
)
def test_a_message_takes_what_its_link_carries(
    state: ToldState, congestion_control: str, sharing: int, seconds: float
) -> None:
    """The rate less losses, or the equation's; and the round trips until nothing is missing."""
    found = seconds_to_send(1_000_000, state, congestion_control, sharing)
    assert found == pytest.approx(seconds, rel=1e-3)


def test_a_message_is_held_while_its_link_would_take_too_long(tmp_path: Path) -> None:
    """Until the link changes, at which the gate is asked again."""
    gate = one(tmp_path, GOOD, SLOW, ToldState(117.5, 2.5e6, 0.0, 0.04)).gate
    link = Link("sub")
    assert gate.decide(MEGABYTE, link, 0.0, 99.0).deliver
    verdict = gate.decide(MEGABYTE, link, 0.0, 100.0)
    assert not verdict.deliver
    assert verdict.look_again_at == pytest.approx(117.5, abs=0.01)
    assert gate.decide(MEGABYTE, link, 17.5, 117.5).deliver


def test_a_message_that_takes_less_than_the_exposure_goes(tmp_path: Path) -> None:
    """On the same slow link."""
    gate = one(tmp_path, SLOW).gate
    n_bytes = int(1e5 * (EXPOSURE_SECONDS - SLOW.rtt))
    assert gate.decide(Message("t", bytes(n_bytes), qos=1), Link("sub"), 0.0, 101.0).deliver
    assert not gate.decide(Message("t", bytes(n_bytes + 1), qos=1), Link("sub"), 0.0, 101.0).deliver


def test_no_hold_is_longer_than_its_bound(tmp_path: Path) -> None:
    """Whatever the link is; the gate asks to be asked then."""
    gate = one(tmp_path, DEAD).gate
    link = Link("sub")
    verdict = gate.decide(MEGABYTE, link, 1.0, 101.0)
    assert verdict.look_again_at == pytest.approx(100.0 + MOST_HOLD_SECONDS, abs=0.01)
    assert verdict.look_again_at is not None
    sojourn = verdict.look_again_at - 100.0
    assert gate.decide(MEGABYTE, link, sojourn, verdict.look_again_at).deliver


def test_one_large_message_is_unacknowledged_at_a_time(tmp_path: Path) -> None:
    """Its acknowledgement has the gate asked again; small ones and lost ones do not count."""
    oracle = one(tmp_path, GOOD)
    gate, sampler, link = oracle.gate, oracle.sampler, Link("sub")
    sampler.sent(link, 1, 100, 1.0)
    assert gate.decide(MEGABYTE, link, 0.0, 1.0).deliver
    sampler.sent(link, 2, 1_000_000, 1.0)
    assert not gate.decide(MEGABYTE, link, 0.0, 1.0).deliver
    assert not sampler.acknowledged(link, 1, 1.1)
    assert sampler.acknowledged(link, 2, 1.5)
    assert gate.decide(MEGABYTE, link, 0.5, 1.5).deliver
    sampler.sent(link, 3, 1_000_000, 1.5)
    sampler.connected(link, 2.0)
    assert gate.decide(MEGABYTE, link, 0.0, 2.0).deliver


def test_subscribers_that_share_a_link_share_its_rate(tmp_path: Path) -> None:
    """While the other has a large message under way; it is looked at often then."""
    state = ToldState(0.0, 8e5, 0.0, 0.04)
    told = {name: ToldLink("cloud-a", "cubic", (state,)) for name in ("one", "two")}
    oracle = plugin(tmp_path, told | {"three": ToldLink("cloud-b", "cubic", (state,))})
    gate, sampler = oracle.gate, oracle.sampler
    assert gate.decide(MEGABYTE, Link("one"), 0.0, 1.0).deliver
    sampler.sent(Link("two"), 1, 1_000_000, 1.0)
    verdict = gate.decide(MEGABYTE, Link("one"), 0.0, 1.0)
    assert not verdict.deliver
    assert verdict.look_again_at == 1.0 + LOOK_SECONDS
    assert gate.decide(MEGABYTE, Link("three"), 0.0, 1.0).deliver


def test_what_nothing_was_told_of_goes(tmp_path: Path) -> None:
    """Before the harness has written, and to clients that it does not know."""
    context = PluginContext(logging.getLogger("test"), "policy.yaml", lambda: 0.0)
    early = OraclePlugin(OracleConfig(told=str(tmp_path / "told.json")), context)
    assert early.gate.decide(MEGABYTE, Link("sub"), 0.0, 1.0).deliver
    write_told(tmp_path / "told.json", {"sub": ToldLink("cloud-a", "cubic", (DEAD,))})
    assert not early.gate.decide(MEGABYTE, Link("sub"), 0.0, 101.0).deliver
    assert early.gate.decide(MEGABYTE, Link("other"), 0.0, 101.0).deliver
    assert early.gate.decide(MEGABYTE, Link("sub"), 0.0, 99.0).deliver


def test_a_subscriber_that_has_gone_is_forgotten(tmp_path: Path) -> None:
    """With what it has not acknowledged."""
    sampler, link = one(tmp_path, GOOD).sampler, Link("sub")
    sampler.sent(link, 2, 1_000_000, 1.0)
    assert sampler.clients() == {"sub"}
    sampler.forget(link)
    assert sampler.clients() == set()


GOOD, BAD = ToldState(10.0, 2.5e6, 0.0, 0.04), ToldState(17.5, None, 0.2, 0.2)


def test_what_is_told_is_read_again(tmp_path: Path) -> None:
    """The file has every client; writing it leaves no other file."""
    told = {"one": ToldLink("cloud-a", "bbr", (GOOD, BAD)), "two": ToldLink("cloud-b", "cubic", ())}
    write_told(tmp_path / "told.json", told)
    assert read_told(tmp_path / "told.json") == told
    assert [file.name for file in tmp_path.iterdir()] == ["told.json"]


def test_the_present_state_is_the_newest_that_has_begun() -> None:
    """Before the first there is none; behind the last nothing changes."""
    told = ToldLink("cloud-a", "bbr", (GOOD, BAD))
    assert told.now(9.9) == (None, 10.0)
    assert told.now(10.0) == (GOOD, 17.5)
    assert told.now(17.4) == (GOOD, 17.5)
    assert told.now(17.5) == (BAD, math.inf)
    assert told.now(1e9) == (BAD, math.inf)
