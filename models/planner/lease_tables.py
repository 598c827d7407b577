"""The tables of ``penstock plan lease``: one simulated queue beside its analytic network."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.models.kernels.lease_setting import LeaseSetting, analytic
from penstock.models.kernels.lease_simulation import (
    LeaseOutcome,
    broker_utilisation,
    delivery,
    duplicates,
    figure_of,
    sender_utilisation,
    waiting,
)
from penstock.netem.figures.estimates import mean_estimate
from penstock.netem.figures.figure_file import Table


def queue_tables(setting: LeaseSetting, outcomes: Sequence[LeaseOutcome]) -> dict[str, Table]:
    """Return the tables of a queue's independent runs.

    The analytic network stands beside it where it describes the queue: out of order, and with
    failed deliveries that are visible again at once.
    """
    has_network = setting.order == "any" and setting.visibility_timeout is None
    figures = analytic(setting) if has_network else None
    rows = []
    for name, measure in (
        ("delivery time, s", delivery),
        ("waiting messages", waiting),
        ("utilisation of the senders", sender_utilisation),
        ("utilisation of the receivers", broker_utilisation),
        ("delivered twice, of 100", duplicates),
    ):
        values = list(map(measure, outcomes))
        expected = "-"
        if figures is not None:
            expected = f"{figure_of(figures, measure):.3g}"
        found = format(mean_estimate(values), ".3g")
        rows.append([name, found, expected])
    return {"queue": Table(["queue", "simulated", "analytic"], rows)}
