from __future__ import annotations

import logging
from typing import Any

import pytest

from penstock.broker.errors import ConfigError
from penstock.broker.extensions import PluginContext, Transfer
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.plugins.withholding.breaking import CALM_RATIO, Breaking
from penstock.plugins.withholding.config import WithholdingConfig
from penstock.plugins.withholding.gate import WithholdingGate, WithholdingPlugin

NOW = 1_000.0
AFTER = 3.0
PICTURE = Message("cam", bytes(1_000_000))
SLOW = {"seconds": 5.0, "left_bytes": 500_000, "bytes_per_second": 10_000.0, "repeated_bytes": 0}


def gate_with(**keys: Any) -> WithholdingGate:
    """Return a gate of a broker that breaks messages off."""
    config = {"policy": "conservative", "threshold_l": 0.5, "break_off_after": AFTER, **keys}
    return WithholdingGate(WithholdingConfig(**config))


def link_with(rtt: float) -> Link:
    """Return a link with this RTT estimate in seconds."""
    link = Link("site-7")
    link.rtt_latest = rtt
    return link


def transfer(**changed: Any) -> Transfer:
    """Return a picture that leaves far too slowly, unless something of it is changed."""
    fields: dict[str, Any] = {"message": PICTURE, "sent_bytes": 500_000, "sojourn": 0.0}
    return Transfer(**{**fields, **SLOW, **changed})


def test_message_is_broken_off_that_its_policy_would_hold() -> None:
    """It says at what rate it left, and what the policy says."""
    why = gate_with().breaks_off(transfer(), link_with(8.0), NOW)
    assert why.startswith("at 10,000 bytes a second after 5 s; conservative: L_now ")


@pytest.mark.parametrize(
    "changed",
    [
        {"seconds": AFTER - 0.1},
        {"left_bytes": 30_000},
        {"bytes_per_second": 500_000 / AFTER},
        {"repeated_bytes": 250_001},
    ],
    ids=["has just begun", "little is left", "is fast enough", "as much would be repeated"],
)
def test_message_is_left_alone_where_others_would_not_gain(changed: dict[str, Any]) -> None:
    """What would soon be out of the way, or what a new connection begins with, is no gain."""
    assert gate_with().breaks_off(transfer(**changed), link_with(8.0), NOW) == ""


def test_message_is_left_alone_on_a_path_that_is_not_congested() -> None:
    """A slow path that is calm is never faster."""
    assert gate_with().breaks_off(transfer(), link_with(0.1), NOW) == ""
    assert gate_with(policy="none").breaks_off(transfer(), link_with(8.0), NOW) == ""
    assert gate_with().breaks_off(transfer(bytes_per_second=0.0), Link("new"), NOW) == ""


def test_message_that_has_waited_for_max_withhold_is_left_alone() -> None:
    """Every hold has a bound: it was let go at last, and gets through."""
    gate = gate_with(max_withhold=20.0)
    assert gate.breaks_off(transfer(sojourn=20.1), link_with(8.0), NOW) == ""
    assert gate.breaks_off(transfer(sojourn=19.9), link_with(8.0), NOW)


def test_each_time_is_followed_by_a_pause_twice_as_long() -> None:
    """In the end there is one in which any message gets through."""
    gate, link = gate_with(max_withhold=20.0), link_with(8.0)
    now, times = NOW, []
    for _ in range(1000):
        if gate.breaks_off(transfer(), link, now):
            times.append(now - NOW)
        now += 1.0
    assert times == [0.0, 20.0, 60.0, 140.0, 300.0, 620.0]


@pytest.mark.parametrize(("policy", "most"), [("conservative", 20.0), ("adaptive", 40.0)])
def test_nothing_large_is_sent_before_the_path_was_seen_to_be_calm(
    policy: str, most: float
) -> None:
    """What a policy knew of the connection is gone with it; a hold has a bound all the same."""
    gate, link = gate_with(policy=policy, max_withhold=20.0), link_with(8.0)
    link.rtt_updated_at = link.outstanding_since = NOW - 5.0
    assert gate.breaks_off(transfer(), link, NOW)
    link.outstanding_since = None
    for rtt in (0.1, None):  # from before; too old to say anything
        link.rtt_latest = rtt
        verdict = gate.decide(PICTURE, link, 8.0, NOW + 8.0)
        assert (verdict.deliver, verdict.look_again_at) == (False, NOW + most)
    assert gate.decide(PICTURE, link, most + 0.1, NOW + 8.0).deliver
    assert gate.decide(PICTURE, link, 1.0, NOW + most).deliver
    link.rtt_latest, link.rtt_updated_at = 0.6, NOW + 8.5
    assert not gate.decide(PICTURE, link, 8.6, NOW + 8.6).deliver
    link.rtt_latest = 0.1
    assert gate.decide(PICTURE, link, 8.6, NOW + 8.6).deliver


def test_pauses_are_each_subscribers_own_and_end_with_its_session() -> None:
    """One client's bad path is not another's."""
    gate, link, other = gate_with(), link_with(8.0), link_with(8.0)
    assert gate.breaks_off(transfer(), link, NOW)
    assert not gate.breaks_off(transfer(), link, NOW + 1.0)
    assert gate.breaks_off(transfer(), other, NOW + 1.0)
    gate.forget(link)
    assert gate.breaks_off(transfer(), link, NOW + 2.0)


def test_pauses_are_short_again_after_a_long_calm() -> None:
    """Congestion every few minutes is each time as the first."""
    breaking, link = Breaking(AFTER, 20.0, most_hold=20.0), Link("c")
    breaking.begin_pause(link, NOW)
    later = NOW + CALM_RATIO * 20.0
    breaking.begin_pause(link, later)
    assert breaking.is_in_pause(link, later + 19.9)
    assert not breaking.is_in_pause(link, later + 20.0)
    breaking.begin_pause(link, later + 20.0)
    assert breaking.is_in_pause(link, later + 59.9)


def test_it_is_off_unless_asked_for() -> None:
    """The broker then keeps nothing for it."""
    assert WithholdingGate(WithholdingConfig()).break_off_after is None
    assert gate_with().break_off_after == AFTER


def test_edge_proxy_refuses_it() -> None:
    """A proxy's clients have their sessions with the broker: it could not give anything back."""
    logger = logging.getLogger("penstock.withholding")
    context = PluginContext(logger, "proxy.yaml", lambda: NOW, is_proxy=True)
    with pytest.raises(ConfigError, match="break_off_after: read 3; allowed: null"):
        WithholdingPlugin(WithholdingConfig(break_off_after=3.0), context)
