"""How fast is a broker as operators run it: users and an ACL file, durable sessions, TLS?

The rows are those of `throughput` and `acknowledged` with other options, the same in all
brokers. Each has a twin with `_random` in its name: payload lengths and topics at random, and
messages of two users in turn. The ACL file allows half of the topics by a line of the user's own,
and half by a pattern. A broker that is fast at one repeated packet alone misses the target there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from benchmarks.peers import Options, RunningPeer
from benchmarks.rows import acknowledged, throughput
from benchmarks.rows.row import Measurement, Row, Scale, Target

RANDOM_RATIO: Final = 3.0
"""The most that is asked of a row at random: as much as of `qos0_mixed`, as a run of packets that
differ can be handed on in one piece by nobody."""

BARE: Final = {row.name: row for row in (*throughput.ROWS, *acknowledged.ROWS)}


def _at_random(
    peer: RunningPeer, scale: Scale, *, measure: Callable[[RunningPeer, Scale], Measurement]
) -> Measurement:
    return measure(peer, replace(scale, is_random=True))


def _rows(
    group: str, words: str, options: Options, least_ratios: dict[str, float]
) -> Iterator[Row]:
    """Yield rows with some options."""
    for name, least_ratio in least_ratios.items():
        bare = BARE[name]
        row = replace(
            bare,
            name=f"{name}_{group}",
            group=group,
            title=f"{bare.title}, {words}",
            target=Target(least_ratio=least_ratio),
            options=replace(options, inflight_messages=bare.options.inflight_messages),
        )
        yield row
        yield replace(
            row,
            name=f"{row.name}_random",
            title="the same at random, two users in turn",
            target=Target(least_ratio=min(least_ratio, RANDOM_RATIO)),
            measure=partial(_at_random, measure=bare.measure),
            has_ceiling=False,
        )


ROWS: Final = (
    *_rows(
        "acl",
        "ACL file",
        Options(has_acl=True),
        {"qos0_1to1": 15, "qos0_1to10": 40, "qos1_1to1": 10, "qos1_pairs": 4, "qos1_500_pairs": 1},
    ),
    *_rows(
        "durable",
        "durable sessions",
        Options(is_durable=True),
        {"qos1_1to1": 2, "qos1_pairs": 1.5, "qos2_1to1": 1, "qos1_500_pairs": 0.8},
    ),
    *_rows(
        "production",
        "ACL file, durable sessions and TLS 1.3",
        Options(is_tls=True, has_acl=True, is_durable=True),
        {"qos1_pairs": 1},
    ),
)
