"""The arguments of tc(8) for a direction of a link, and its counters as `Counts`. Pure.

Each direction has two queueing disciplines in sequence, as in `penstock.netem.links.channel`:
first the rate with its bounded queue (tbf), then loss, delay, reordering and duplicates (netem).
Within one device netem would have to come first: a lost packet would then use no time of the rate,
and the delay would count from when a packet is sent instead of from when it has left.

tc differs from the tun engine:

* tbf lets `BURST_SECONDS` of the rate pass at once after a pause, because a timer may be that late.
* A burst of loss begins and ends one packet later than with the tun engine. A duplicate is drawn
  before the loss, so that one copy of a packet may be lost. The shares are the same in the long
  run.
* The kernel does not count packets that overtake, and its random numbers cannot be seeded.

The program `tc` gets these arguments. pyroute2 0.9.7 changes a queueing discipline in 0.5 ms, where
the program takes 3.8 ms. pyroute2 has no message for three things that are used here: bursts of
loss (TCA_NETEM_LOSS), the size table (TCA_STAB), and a rate above 4.29 GB/s (TCA_TBF_RATE64).
"""

from __future__ import annotations

import json
from typing import Any, Final

from penstock.netem.errors import NetemError
from penstock.netem.links.channel import MAX_UNDER_WAY_BYTES, Counts
from penstock.netem.links.profiles import Bursts, Direction

ETHERNET_HEADER_BYTES: Final = 14
"""Bytes of a packet that tc counts and a profile does not."""

BURST_SECONDS: Final = 0.002
LEAST_BURST_BYTES: Final = 3_000
"""Two packets: tbf drops a packet that is larger than its burst."""

LEAST_RATE: Final = 100.0
"""Bytes per second; tc's computation of a burst overflows below some tens."""

ANY_RATE: Final = 10e9
"""Bytes per second of a direction without a rate. The direction keeps its queue: without one,
packets that wait would be lost when the link becomes slow or fast."""

ANY_BURST_BYTES: Final = 1_000_000
MAX_JITTER_SECONDS: Final = 2.147
"""The kernel silently reduces a greater value to this (netem_change: INT_MAX nanoseconds)."""

MAX_UNDER_WAY_PACKETS: Final = MAX_UNDER_WAY_BYTES // 1_500
KEEP_ORDER: Final = ("rate", "100gbit")
"""With a rate, netem lets no packet arrive before the one ahead of it, whatever their delays
(netem_enqueue); without one it sorts them by time of arrival, and jitter is a change of order. This
rate adds 0.12 µs to a packet."""


def rate_words(direction: Direction) -> list[str]:
    """Return the queueing discipline of a direction's rate, as after ``tc qdisc add dev DEVICE``.

    Raises:
        NetemError: the rate is below tc's minimum.
    """
    rate, limit = direction.rate, direction.max_queue_bytes
    if rate is None or rate >= ANY_RATE:
        rate, burst, limit = ANY_RATE, ANY_BURST_BYTES, MAX_UNDER_WAY_BYTES
    elif rate < LEAST_RATE:
        raise NetemError(
            f"tc: rate: read {rate:g}; allowed: at least {LEAST_RATE:g} bytes per second; "
            "use the engine tun"
        )
    else:
        burst = max(LEAST_BURST_BYTES, round(rate * BURST_SECONDS))
    size = ["stab", "overhead", str(-ETHERNET_HEADER_BYTES)]
    # In tc, "bit" is bits per second and "b" is bytes.
    amounts = ["rate", f"{round(8 * rate)}bit", "burst", f"{burst}b", "limit", f"{round(limit)}b"]
    return ["root", "handle", "1:", *size, "tbf", *amounts]


def impairment_words(direction: Direction) -> list[str]:
    """Return the queueing discipline of all but the rate, as after ``tc qdisc add dev DEVICE``.

    Raises:
        NetemError: the jitter is above tc's maximum.
    """
    if direction.jitter > MAX_JITTER_SECONDS:
        raise NetemError(
            f"tc: jitter: read {direction.jitter:g}; allowed: at most {MAX_JITTER_SECONDS:g} s; "
            "use the engine tun"
        )
    words = ["root", "handle", "2:", "netem", "limit", str(MAX_UNDER_WAY_PACKETS)]
    words += ["delay", _microseconds(direction.delay)]
    if direction.jitter:
        words.append(_microseconds(direction.jitter))
    loss = direction.loss
    if isinstance(loss, Bursts):
        shares = (loss.begin, loss.end, loss.inside, loss.outside)
        words += ["loss", "gemodel", *(_percent(share) for share in shares)]
    elif loss:
        words += ["loss", "random", _percent(loss)]
    if direction.duplicate:
        words += ["duplicate", _percent(direction.duplicate)]
    if direction.reorder:
        words += ["reorder", _percent(direction.reorder)]
    return [*words, *KEEP_ORDER]


def needs_netem(direction: Direction) -> bool:
    """Say whether a direction does anything that tbf cannot do."""
    return direction != Direction(rate=direction.rate, queue_bytes=direction.queue_bytes)


def read_shown(text: str) -> list[dict[str, Any]]:
    """Return the queueing disciplines at the root of devices, one of each ``qdisc show``.

    Args:
        text: what ``tc -s -j -batch -`` printed: a line with a JSON array for each.
    """
    return [
        next(shown for shown in json.loads(line) if shown.get("root"))
        for line in text.splitlines()
        if line
    ]


def count(rate: dict[str, Any], impairment: dict[str, Any] | None) -> Counts:
    """Return the packets of a direction by outcome.

    Args:
        rate: counters of the rate's queueing discipline, from tc.
        impairment: counters of the other discipline, read earlier; None if there is none.
    """
    sent, dropped = rate["packets"], rate["drops"]
    counts = Counts(taken=sent + dropped + rate["qlen"], delivered=sent, dropped=dropped)
    counts.carried_bytes = rate["bytes"]  # without Ethernet headers, by the size table
    if impairment is not None:
        out = impairment["packets"] + impairment["drops"] + impairment["qlen"]
        counts.delivered, counts.lost = impairment["packets"], impairment["drops"]
        counts.duplicated = max(0, out - sent)
    return counts


def _microseconds(seconds: float) -> str:
    return f"{round(1e6 * seconds)}us"


def _percent(share: float) -> str:
    return f"{100 * share:.9f}".rstrip("0").rstrip(".") + "%"
