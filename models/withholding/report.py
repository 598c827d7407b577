"""Results as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import mean

from penstock.models.withholding.claims import verdicts
from penstock.models.withholding.other_paths import HISTORIC, MOST_RATIO, PathResult
from penstock.models.withholding.sweep import CLAIRVOYANT, GIVEN_THRESHOLD_L, POLICIES, Results


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def to_markdown(results: Results) -> str:
    """Return latency by T_Q and threshold_l, and the verdict on each claim."""
    sweep = results.sweep
    n_traces = len(sweep.traces)
    heading = (
        "Mean end-to-end latency of a large message in seconds, with its 95 % confidence interval"
        f" (bootstrap) over {n_traces} independent {'traces' if n_traces > 1 else 'trace'} of"
        f" {max(map(len, sweep.traces))} s; answers known by {sweep.answers}."
    )
    parts = [heading]
    for probe_period in sweep.probe_periods:
        header = [f"T_Q = {probe_period} s", *(f"threshold_l {t:g} s" for t in sweep.thresholds)]
        rows = [_row(results, label, probe_period) for label in (*POLICIES, CLAIRVOYANT)]
        parts.append(table(header, rows))
    judged = [[verdict.claim, verdict.outcome, verdict.found] for verdict in verdicts(results)]
    parts.append(table(["claim", "verdict", "found"], judged))
    return "\n\n".join(parts) + "\n"


def _row(results: Results, label: str, probe_period: int) -> list[str]:
    thresholds = results.sweep.thresholds
    if label in GIVEN_THRESHOLD_L:
        return [label, *(str(results.latency(label, probe_period, t)) for t in thresholds)]
    # threshold_l has no effect on it: one value for all.
    value = str(results.latency(label, probe_period, thresholds[0]))
    return [label, value, *[""] * (len(thresholds) - 1)]


def paths_to_markdown(results: Sequence[PathResult]) -> str:
    """Return adaptive beside the paper's policies on paths unlike the paper's."""
    names = list(results[0].means)
    rows = []
    for result in results:
        best = result.best_of_the_paper()
        rows.append(
            [
                result.path,
                str(result.probe_period),
                *(f"{mean(result.means[name]):.2f}" for name in names),
                f"{result.ratio(best)}, {best}",
                str(result.ratio(HISTORIC)),
                result.outcome(),
            ]
        )
    n_traces = len(results[0].means[names[0]])
    heading = (
        f"Mean latency in seconds on other paths, over {n_traces} independent traces of each, and"
        " the ratio of adaptive to the best of the paper's policies and to historic, each with its"
        f" 95 % confidence interval (bootstrap). The claim is that it is below {MOST_RATIO} of"
        " historic."
    )
    columns = ["path", "T_Q", *names, "over the best", "over historic", "claim"]
    return f"{heading}\n\n{table(columns, rows)}\n"
