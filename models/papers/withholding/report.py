"""The tables of paper 002's sweep."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.models.papers.paper_figures import reported_table
from penstock.models.papers.withholding.claims import WORDS, numbers, verdicts
from penstock.models.papers.withholding.recorded_traces import Trace
from penstock.models.papers.withholding.sweep import (
    BASELINE,
    CLAIRVOYANT,
    GIVEN_THRESHOLD_L,
    POLICIES,
    WithholdingResults,
)
from penstock.netem.figures.figure_file import Table

LABELS = (*POLICIES, CLAIRVOYANT)


def describe(results: WithholdingResults) -> str:
    """Return what the tables of a sweep show, in a sentence."""
    sweep = results.sweep
    n_traces = len(sweep.traces)
    return (
        "Mean end-to-end latency of a large message in seconds, with its 95 % confidence interval"
        f" (bootstrap) over {n_traces} independent {'traces' if n_traces > 1 else 'trace'} of"
        f" {max(map(len, sweep.traces))} s; answers known by {sweep.answers}."
    )


def traces_table(traces: Sequence[Trace]) -> Table:
    """Return what was read of files."""
    rows = []
    for name, rtts, arrivals in traces:
        cells = [f"{quantile:.3g} s" for quantile in _quantiles(rtts)]
        sizes = [each.size_scale for each in arrivals or ()]
        times = f"{min(sizes):.3g} to {max(sizes):.3g}" if sizes else "10"
        n_large = f"{len(sizes):,}" if sizes else "none: one in 5 s, as in the paper"
        rows.append([name, f"{len(rtts):,}", *cells, n_large, times])
    columns = ["trace", "seconds", "RTT p50", "RTT p90", "RTT p99", "large messages"]
    return Table([*columns, "latency over the query's"], rows)


def _quantiles(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered[min(int(share * len(ordered)), len(ordered) - 1)] for share in (0.5, 0.9, 0.99)]


def sweep_tables(results: WithholdingResults) -> dict[str, Table]:
    """Return latency by T_Q and threshold_l, what each policy closes, and all verdicts."""
    sweep = results.sweep
    tables = {}
    for probe_period in sweep.probe_periods:
        header = [f"T_Q = {probe_period} s", *(f"threshold_l {t:g} s" for t in sweep.thresholds)]
        rows = [_row(results, label, probe_period) for label in LABELS]
        tables[f"T_Q {probe_period} s"] = Table(header, rows)
    middle, periods = sweep.middle_threshold(), sweep.probe_periods
    header = [f"threshold_l = {middle:g} s", *(f"T_Q {period} s" for period in periods)]
    rows = [
        [label, *(str(results.latency(label, period, middle)) for period in periods)]
        for label in LABELS
    ]
    tables["by T_Q"] = Table(header, rows)
    header = [f"share of the gap from {BASELINE} to {CLAIRVOYANT} that it closes", *header[1:]]
    rows = [
        [label, *(format(results.closed(label, t_q, middle), ".1%") for t_q in periods)]
        for label in LABELS
        if label not in {BASELINE, CLAIRVOYANT}
    ]
    tables["closed"] = Table(header, rows)
    tables["reported"] = reported_table(numbers(results))
    rows = [[each.claim, WORDS[each.standing], each.found] for each in verdicts(results)]
    tables["claims"] = Table(["claim", "verdict", "found"], rows)
    return tables


def _row(results: WithholdingResults, label: str, probe_period: int) -> list[str]:
    thresholds = results.sweep.thresholds
    if label in GIVEN_THRESHOLD_L:
        return [label, *(str(results.latency(label, probe_period, t)) for t in thresholds)]
    # threshold_l has no effect on it: one value for all.
    value = str(results.latency(label, probe_period, thresholds[0]))
    return [label, value, *[""] * (len(thresholds) - 1)]
