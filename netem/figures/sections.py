"""The tables of a report, each with its heading."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.netem.figures.colours import find_over, paint
from penstock.netem.figures.estimates import bootstrap, mean_of
from penstock.netem.figures.measures import (
    LATENCIES,
    QUANTILES,
    SHARE_AS_FAST,
    WAN_BYTES,
    Measures,
    latency_statistic,
    percent,
    show,
    show_bytes,
    show_estimate,
    show_ratio,
)
from penstock.netem.figures.table_rows import LinkRow
from penstock.netem.links.profiles import Profile
from penstock.netem.runs.run_file import RunInfo
from penstock.netem.runs.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Section:
    """A table of the report below its heading.

    Attributes:
        rows: the rows, each with a cell for every column.
        words: the number of columns, from the left, that hold text; the others hold numbers.
    """

    name: str
    heading: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1

    def __str__(self) -> str:
        """Return it in Markdown."""
        rule = ["---"] * self.words + ["---:"] * (len(self.columns) - self.words)
        lines = [self.columns, rule, *self.rows]
        table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        return f"## {self.heading}\n\n{table}"


def sections(info: RunInfo, measures: Measures) -> list[Section]:
    """Return the tables of the report, those that have rows, in their order."""
    if measures.scenario.kinds:  # what is pooled over kinds says nothing of any of them
        found = [_promises(measures), _withholding(measures), _processor(info), _harness(measures)]
        return [each for each in found if each.rows]
    streams = measures.streams_in_focus()
    found = [
        *(_latencies(measures, stream) for stream in streams),
        *(
            _over(measures, stream, over)
            for stream in streams
            for over in _references(measures.scenario)
        ),
        _others(measures),
        _promises(measures),
        _memory(measures),
        _carried(measures),
        _withholding(measures),
        _processor(info),
        _harness(measures),
        _links(measures),
    ]
    return [each for each in found if each.rows]


def _figure(measures: Measures, figure: str, broker: str, *, over: str | None = None) -> str:
    return show_estimate(figure, measures.estimate(figure, broker, over=over))


def _latencies(measures: Measures, stream: str) -> Section:
    scenario = measures.scenario
    plan = scenario.traffic[stream]
    n_units = f"{len(measures.units(stream))}"
    rows = []
    for broker in paint(scenario):
        latencies = measures.latencies(broker, stream)
        if not len(latencies):
            continue
        never = sum(not math.isfinite(each) for each in latencies)
        figures = [_figure(measures, f"{stream} {each}", broker) for each in LATENCIES]
        rows.append([broker, *figures, str(len(latencies)), str(never), n_units])
    every = "on average every" if plan.arrivals == "poisson" else "every"
    text = f"{show_bytes(plan.payload_bytes)} {every} {plan.period_seconds:g} s at QoS {plan.qos}"
    columns = ["broker", *LATENCIES, "messages", "not delivered", "units"]
    return Section(f"{stream} latency", f"Latency of `{stream}`: {text}", columns, rows)


def _references(scenario: Scenario) -> list[str]:
    """Return the brokers that others are compared with: the first one, and those of targets."""
    named = [find_over(scenario), *(each.over for each in scenario.targets)]
    return list(dict.fromkeys(each for each in named if each is not None))


def _over(measures: Measures, stream: str, over: str) -> Section:
    """Compare latencies with those of a reference that ran in the same rounds."""
    scenario = measures.scenario
    rows = []
    for group in scenario.groups():
        for broker in paint(scenario):
            if broker == over or not {broker, over} <= set(group):
                continue
            found = {
                each: measures.ratio(f"{stream} {each}", broker, over) for each in LATENCIES[:-1]
            }
            if math.isnan(found["p50"].value):
                continue
            ratios = [show_ratio(each) for each in found.values()]
            as_fast = _figure(measures, f"{stream} {SHARE_AS_FAST}", broker, over=over)
            rows.append([broker, *ratios, as_fast, str(found["p50"].n_units)])
    columns = ["broker", *LATENCIES[:-1], "as fast", "units"]
    return Section(f"{stream} over {over}", f"Latency of `{stream}` over {over}'s", columns, rows)


def _others(measures: Measures) -> Section:
    """Say how long it took to subscribers that are not in focus, each group for itself."""
    rows = []
    for group in measures.scenario.subscribers:
        for stream in measures.scenario.traffic:
            for broker in paint(measures.scenario):
                samples = measures.samples(broker, stream, group)
                latencies = [each for of_unit in samples for each in of_unit]
                if not latencies:
                    continue
                figures = [
                    show_estimate(kind, bootstrap(len(samples), latency_statistic(samples, kind)))
                    for kind in (*QUANTILES, "mean")
                ]
                counts = [len(latencies), sum(map(math.isinf, latencies)), len(samples)]
                rows.append([group, stream, broker, *figures, *map(str, counts)])
    columns = ["subscriber", "stream", "broker", *QUANTILES, "mean"]
    columns += ["messages", "not delivered", "units"]
    return Section("others latency", "Latency of other subscribers", columns, rows, words=3)


def _promises(measures: Measures) -> Section:
    scenario = measures.scenario
    columns = {
        "lost": "lost",
        "not_delivered": "not delivered, QoS 0",
        "reordered": "reordered",
        "duplicated": "duplicated, QoS 2",
        "repeated": "repeated, QoS 1 and 0",
    }
    rows = []
    for broker in paint(scenario):
        expected = sum(len(measures.outcomes.get((broker, seed), [])) for seed in scenario.seeds)
        figures = [_figure(measures, name, broker) for name in columns]
        rows.append([broker, f"{expected}", *figures])
    head = ["broker", "to be delivered", *columns.values()]
    return Section("promises", "Promises, to all subscribers", head, rows)


def _memory(measures: Measures) -> Section:
    scenario = measures.scenario
    over = find_over(scenario)
    columns = ["broker", "before", "at most beyond it", "left at the end"]
    if over is not None:
        columns.append(f"over {over}'s")
    rows = []
    for broker in paint(scenario):
        before = [
            next((row.rss_bytes for row in reversed(rows_) if row.at_s < 0), math.nan)
            for rows_ in (measures.memory(broker, seed) for seed in scenario.seeds)
        ]
        row = [broker, show("memory", sum(before) / len(before))]
        row += [_figure(measures, name, broker) for name in ("memory", "memory_left")]
        if over is not None:
            own = broker == over
            row.append("" if own else show_ratio(measures.ratio("memory", broker, over)))
        rows.append([*row, str(len(scenario.seeds))])
    return Section("memory", "Memory", [*columns, "runs"], rows)


def _carried(measures: Measures) -> Section:
    """Say what the links carried, of brokers of which some have brokers at sites."""
    scenario = measures.scenario
    over = find_over(scenario)
    if over is None or all(plan.edges is None for plan in scenario.brokers.values()):
        return Section("bytes", "", [], [])
    rows = []
    for broker in paint(scenario):
        ratio_ = "" if broker == over else show_ratio(measures.ratio(WAN_BYTES, broker, over))
        carried = _figure(measures, WAN_BYTES, broker)
        rows.append([broker, carried, ratio_, str(len(scenario.seeds))])
    heading = f"Bytes on {', '.join(scenario.wan_links())}, both ways"
    return Section("bytes", heading, ["broker", "carried", f"over {over}'s", "runs"], rows)


def _withholding(measures: Measures) -> Section:
    scenario = measures.scenario
    rows = []
    for broker in paint(scenario):
        found = measures.withholding(broker)
        if not scenario.brokers[broker].withholds or not found:
            continue
        rows.append(
            [
                broker,
                f"{sum(each.withheld for each in found):.1f} s",
                _figure(measures, "withheld_share", broker),
                _figure(measures, "withheld_outside", broker),
                str(max(each.most_messages for each in found)),
                str(len(found)),
            ]
        )
    columns = [
        *("broker", "withheld, in all", "of impaired time", "outside of impairments"),
        *("most messages at a time", "units"),
    ]
    heading = "Withholding, from the subscribers in focus"
    return Section("withholding", heading, columns, rows)


def _processor(info: RunInfo) -> Section:
    rows = []
    for broker in paint(info.scenario):
        shares = [each.share for each in info.processor if each.broker == broker]
        if shares:
            found = bootstrap(len(shares), mean_of(shares))
            share = found.show(lambda value: f"{100 * value:.1f} %")
            rows.append([broker, share, str(len(shares))])
    return Section("processor", "Processor, share of one core", ["broker", "share", "runs"], rows)


def _harness(measures: Measures) -> Section:
    """Say what the emulated network itself dropped and delivered late: it is in all figures."""
    rows = []
    for broker in paint(measures.scenario):
        runs = [row for row in measures.tables.runs if row.broker == broker]
        if not runs:
            continue
        n_times, n_late = (
            sum(row.deliveries for row in runs),
            sum(row.late_deliveries for row in runs),
        )
        late = f"{n_late} ({percent(n_late / n_times):.1f} %)" if n_times else str(n_late)
        dropped = str(sum(row.harness_dropped for row in runs))
        most_late = show("max", max(row.most_late_s for row in runs))
        rows.append([broker, dropped, late, most_late, str(len(runs))])
    columns = ["broker", "packets dropped", "late by over 10 ms", "worst lateness", "runs"]
    return Section("harness", "The emulated network itself", columns, rows)


def _links(measures: Measures) -> Section:
    """Say what links were and for how long, and that it was the same for all brokers."""
    scenario = measures.scenario
    rows: dict[tuple[str, str], dict[tuple[str, int], list[LinkRow]]] = {}
    for whole in measures.tables.links:
        # The report leaves out the links' profiles before and after the traffic.
        begin_s, end_s = max(whole.begin_s, 0.0), min(whole.end_s, scenario.duration_seconds)
        if begin_s >= end_s:
            continue
        row = whole._replace(begin_s=begin_s, end_s=end_s)
        by_run = rows.setdefault((row.link, row.profile), {})
        by_run.setdefault((row.broker, row.seed), []).append(row)
    alike: dict[tuple[str, ...], list[str]] = {}
    for (link, profile), by_run in rows.items():
        seconds = {
            run: sum(each.end_s - each.begin_s for each in of_it) for run, of_it in by_run.items()
        }
        broker = next(iter(by_run))[0]
        of_first = [seconds.get((broker, seed), 0.0) for seed in scenario.seeds]
        times = sum(len(by_run.get((broker, seed), [])) for seed in scenario.seeds)
        apart = max(
            max(known) - min(known)
            for seed in scenario.seeds
            if (known := [each for (_, s), each in seconds.items() if s == seed])
        )
        ways = scenario.profiles.get(profile)
        about = str(Profile(profile, ways.upstream, ways.downstream)) if ways else profile
        told = (about, str(times), f"{sum(of_first):.1f} s", f"{apart:.2f} s")
        alike.setdefault(told, []).append(link)
    lines = [
        [links[0] if len(links) == 1 else f"{links[0]} and {len(links) - 1} like it", *told]
        for told, links in alike.items()
    ]
    columns = ["link", "state", "times", "seconds in all", "brokers apart by"]
    return Section("links", "Links, during the traffic", columns, lines, words=2)
