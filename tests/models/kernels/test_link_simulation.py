"""The simulation of links in virtual time."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from penstock.broker.extensions import DeliveryGate, Verdict
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.models.kernels.link_simulation import (
    Bottleneck,
    Latencies,
    LinkChange,
    LinkState,
    Traffic,
    in_turn,
    simulate,
)

QUIET = Traffic(small_seconds=math.inf, large_seconds=10.0)


def run(
    changes: list[LinkChange],
    traffic: Traffic = QUIET,
    *,
    seconds: float = 100.0,
    **options: object,
) -> Latencies:
    """Return the latencies without a policy."""
    return simulate(changes, lambda _: DeliveryGate(), traffic, 1, seconds, **options)  # type: ignore[arg-type]


def test_messages_take_what_rate_and_rtt_say() -> None:
    """At 1 MB/s and 0.2 s a megabyte takes 1.1 s; small ones behind it wait for it."""
    always = [LinkChange(0.0, LinkState(1_000_000, 0.2))]
    found = run(always, QUIET._replace(small_seconds=0.5))
    assert found.large == pytest.approx([1.1] * 10, abs=0.002)
    assert min(found.small) == pytest.approx(0.1, abs=0.001)
    assert 0.6 < max(found.small) <= 1.1 + 0.001


def test_a_message_goes_on_at_the_new_rate() -> None:
    """Nothing passes in an outage, and what has begun goes on after it."""
    changes = [LinkChange(0.0, LinkState(1_000_000, 0.2)), LinkChange(2.0, LinkState(0.0, 0.2))]
    changes.append(LinkChange(50.0, changes[0].state))
    found = run(changes, Traffic(math.inf, 3.0), seconds=3.0)
    assert len(found.large) == 1
    assert found.large[0] == pytest.approx(1.1) or found.large[0] > 45


def test_a_relay_lets_large_messages_queue_behind_it() -> None:
    """The broker sees room there, so without a policy small messages wait for all of them."""
    narrow = [LinkChange(0.0, LinkState(100_000, 0.04))]
    traffic = Traffic(0.5, 5.0)
    direct = run(narrow, traffic)
    relayed = run(narrow, traffic, is_relayed=True)
    assert max(relayed.small) > 2 * max(direct.small) > 10


def test_subscribers_share_a_link() -> None:
    """Two that send at a time have half of the rate each."""
    always = [LinkChange(0.0, LinkState(1_000_000, 0.0))]
    traffic = Traffic(math.inf, 1.5)
    assert max(run(always, traffic).large) == pytest.approx(1.0)
    assert max(run(always, traffic, n_subscribers=2).large) > 10.0


def test_a_lossy_link_delays_small_messages_one_behind_the_other() -> None:
    """A lost one comes 0.3 s later or more, and none before the ones that left before it."""
    lossy = [LinkChange(0.0, LinkState(1_000_000, 0.1, 0.3))]
    found = run(lossy, Traffic(0.1, math.inf))
    assert min(found.small) == pytest.approx(0.05, abs=0.001)
    late = [latency for latency in found.small if latency > 0.3]
    assert 0.3 * len(found.small) < len(late) < len(found.small)


def test_everyone_sees_the_same_arrivals() -> None:
    """A gate that holds for a while: as many messages, and later large ones."""

    class Slow(DeliveryGate):
        def decide(self, message: Message, link: Link, sojourn: float, now: float) -> Verdict:  # noqa: ARG002
            return Verdict(deliver=sojourn >= 1.0, look_again_at=now + 1.0 - sojourn)

    always = [LinkChange(0.0, LinkState(1_000_000, 0.2))]
    held = simulate(always, lambda _: Slow(), QUIET, 1, 100.0)
    assert held.large == pytest.approx([latency + 1.0 for latency in run(always).large], abs=0.01)


def test_a_gate_is_told_what_leaves_and_what_is_acknowledged() -> None:
    """Each large message twice, an RTT and its own time apart."""
    told: list[tuple[str, float]] = []

    class Watching(DeliveryGate):
        def large_sent(self, link: Link, payload_bytes: int, now: float) -> None:  # noqa: ARG002
            told.append(("sent", now))

        def large_acknowledged(self, link: Link, now: float) -> bool:  # noqa: ARG002
            told.append(("acknowledged", now))
            return False

    def make(bottleneck: Bottleneck) -> DeliveryGate:
        assert bottleneck.state.rtt == 0.2
        return Watching()

    simulate([LinkChange(0.0, LinkState(1_000_000, 0.2))], make, QUIET, 1, 20.0)
    assert [word for word, _ in told] == ["sent", "acknowledged"] * 2
    assert told[1][1] - told[0][1] == pytest.approx(1.2, abs=0.001)


def test_good_and_bad_have_their_means() -> None:
    """Each lasts 17.5 s on average."""
    rng = random.Random(1)  # noqa: S311 (a simulation)
    bad = LinkState(1.0, 1.0)
    changes = in_turn(rng, 100_000.0, lambda at, _end: [LinkChange(at, bad)])
    lengths = [after.at - before.at for before, after in pairwise(changes)]
    for state in (0, 1):
        some = lengths[state::2]
        assert sum(some) / len(some) == pytest.approx(17.5, rel=0.1)
