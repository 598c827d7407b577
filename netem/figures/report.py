"""The report of a run: Markdown and plots, made from its folder alone."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np

from penstock.netem.errors import RunError
from penstock.netem.figures.canvas import Plot, find_over, paint, show_bytes
from penstock.netem.figures.measures import (
    QUANTILES,
    TOLERANCE_SECONDS,
    Measures,
    Verdict,
    quantile,
    show,
)
from penstock.netem.figures.plots import draw
from penstock.netem.figures.records import (
    LinkRow,
    Tables,
)
from penstock.netem.figures.tables import NAMES, read_table
from penstock.netem.figures.withheld_times import GRACE_SECONDS
from penstock.netem.links.profiles import Profile
from penstock.netem.runs.run_file import RunInfo, read_run_info
from penstock.netem.runs.scenario import Publisher, Scenario, Subscriber

NAME: Final = "report.md"
"""Of the report, in the folder of the run."""

HOW_COUNTED: Final = f"""\
## How it was counted

- Latency is from when a message was due at its publisher to its last byte at the subscriber, so a
  publisher that was late counts. It is that of the subscribers in focus. Quantiles are latencies
  that were measured (the least that a share of all do not exceed).
- A message that had not come when the run ended is lost at QoS 1 and 2, and not delivered at QoS 0.
  It is not left out of latencies: it counts as infinite (∞).
- Seeds count together: latencies as one set, counts as a sum, memory as the mean. In brackets: the
  least and the greatest of the seeds alone. A figure of which a seed has no data is a dash, and
  meets no target.
- A message is as fast under one broker as under another if it took at most
  {1000 * TOLERANCE_SECONDS:.0f} ms longer; it is the same by seed, publisher, stream, number and
  subscriber.
- Reordered: it came first after a later message of the same publisher and stream; to come again
  after one is none.
- Memory is the greatest resident set of the broker's process and its children, beyond what it was
  just before the traffic.
- Withheld outside of impairments: while no link between broker and subscriber was impaired, nor had
  been for {GRACE_SECONDS:g} s before; seconds of all subscribers in focus.
"""


def read_tables(folder: Path) -> Tables:
    """Read all rows of a run.

    Raises:
        NetemError: a table is missing, or holds something else.
    """
    tables = Tables()
    for kind, name in NAMES.items():
        getattr(tables, name).extend(read_table(folder, kind))
    return tables


def write_report(folder: Path) -> list[Verdict]:
    """Write ``report.md`` and its plots into the folder of a run; earlier ones are replaced.

    Returns:
        What came out for each of the scenario's targets, in their order.

    Raises:
        NetemError: a file is missing or wrong, or a target names no figure.
        RunError: the report or a plot cannot be written.
    """
    info = read_run_info(folder)
    measures = Measures(info.scenario, read_tables(folder))
    verdicts = [measures.judge(target, info.length) for target in info.scenario.targets]
    path = folder / NAME
    try:
        plots = draw(info, measures, folder)
        path.write_text(to_markdown(info, measures, verdicts, plots), encoding="utf-8")
    except OSError as error:
        raise RunError(f"{path}: {error}") from error
    return verdicts


def to_markdown(
    info: RunInfo, measures: Measures, verdicts: list[Verdict], plots: list[Plot]
) -> str:
    """Return the report's text.

    Args:
        info: what was run.
        measures: what came out.
        verdicts: of its targets.
        plots: those that stand beside it.
    """
    scenario = info.scenario
    pictures = [f"![{each.title}]({each.name})\n\n*{each.about}.*\n" for each in plots]
    parts = [
        f"# {scenario.title}\n",
        f"{scenario.about.strip()}\n",
        _doubts(info),
        _verdicts(info, verdicts),
        *pictures,
        *(_latencies(measures, stream) for stream in measures.streams_in_focus()),
        _ways(measures),
        _others(measures),
        _promises(measures),
        _memory(measures),
        _withholding(measures),
        _processor(info),
        _links(measures),
        _what_was_run(info),
        HOW_COUNTED,
    ]
    return "\n".join(part for part in parts if part)


def _table(head: list[str], rows: Iterable[list[str]], *, words: int = 1) -> str:
    """Return a table of Markdown: the first columns hold words, the others numbers."""
    lines = [head, ["---"] * words + ["---:"] * (len(head) - words), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _doubts(info: RunInfo) -> str:
    return "\n".join(f"**Doubtful:** {remark}.\n" for remark in info.remarks)


def _verdicts(info: RunInfo, verdicts: list[Verdict]) -> str:
    if not verdicts:
        return ""
    judged = [each for each in verdicts if each.is_judged]
    met = sum(each.is_met for each in judged)
    text = f"## Verdict: {met} of {len(judged)} targets met\n\n"
    if len(judged) < len(verdicts):
        text += f"A {info.length} run does not judge timings; they are shown.\n\n"
    return text + "".join(f"- {each.line}\n" for each in verdicts)


def _with_spread(measures: Measures, figure: str, broker: str, *, over: str | None = None) -> str:
    """Return a figure of all seeds, and the least and greatest of each."""
    text = show(figure, measures.figure(figure, broker, over=over))
    seeds = measures.scenario.seeds
    if len(seeds) == 1:
        return text
    alone = [measures.figure(figure, broker, over=over, seeds=[seed]) for seed in seeds]
    known = [each for each in alone if not math.isnan(each)]
    if not known:
        return text
    least, greatest = show(figure, min(known)), show(figure, max(known))
    return text if least == greatest == text else f"{text} ({least} to {greatest})"


def _latencies(measures: Measures, stream: str) -> str:
    scenario = measures.scenario
    plan = scenario.traffic[stream]
    over = find_over(scenario)
    head = ["broker", "p50", "p90", "p99", "mean", "max", "messages", "not delivered"]
    if over is not None:
        head += [f"p50, p90, mean over {over}'s", f"as fast as {over}"]
    rows = []
    for broker in paint(scenario):
        latencies = measures.latencies(broker, stream)
        if not len(latencies):
            continue
        figures = [f"{stream} {each}" for each in ("p50", "p90", "p99", "mean", "max")]
        never = sum(not math.isfinite(each) for each in latencies)
        row = [broker, *(_with_spread(measures, each, broker) for each in figures)]
        row += [str(len(latencies)), str(never)]
        if over is not None and broker != over:
            ratios = [
                _ratio(measures, f"{stream} {each}", broker) for each in ("p50", "p90", "mean")
            ]
            row.append(", ".join(ratios))
            row.append(_with_spread(measures, f"{stream} share_as_fast", broker, over=over))
        elif over is not None:
            row += ["", ""]
        rows.append(row)
    every = "on average every" if plan.arrivals == "poisson" else "every"
    text = f"{show_bytes(plan.payload_bytes)} {every} {plan.period_seconds:g} s at QoS {plan.qos}"
    return f"## Latency of `{stream}`: {text}\n\n{_table(head, rows)}"


def _ways(measures: Measures) -> str:
    """Say where the time goes: to the broker, and from there; and how much is late."""
    rows = []
    for stream in measures.streams_in_focus():
        for broker in paint(measures.scenario):
            of_it = [
                each
                for seed in measures.scenario.seeds
                for each in measures.outcomes.get((broker, seed), [])
                if each.is_focus and each.message.stream == stream and each.copies
            ]
            known = [
                (each.message.due_s, each.message.arrived_s, each.delivered_s)
                for each in of_it
                if each.message.arrived_s is not None
            ]
            if not known:
                continue
            to_it = sum(arrived - due for due, arrived, _ in known) / len(known)
            from_it = sum(delivered - arrived for _, arrived, delivered in known) / len(known)
            late = 2 * measures.figure(f"{stream} p50", broker)
            share = sum(each.latency > late for each in of_it) / len(of_it)
            rows.append(
                [stream, broker, show("mean", to_it), show("mean", from_it), f"{100 * share:.1f} %"]
            )
    if not rows:
        return ""
    head = ["stream", "broker", "to the broker, mean", "from there, mean", "over twice p50"]
    return f"## Where the time goes, of what came\n\n{_table(head, rows, words=2)}"


def _others(measures: Measures) -> str:
    """Say how long it took to subscribers that are not in focus, each group for itself."""
    found: dict[tuple[str, str, str], list[float]] = {}
    groups = {
        (row.broker, row.subscriber): row.group
        for row in measures.tables.expected
        if not row.is_focus
    }
    for (broker, _), outcomes in measures.outcomes.items():
        for each in outcomes:
            if not each.is_focus:
                key = (groups[broker, each.subscriber], each.message.stream, broker)
                found.setdefault(key, []).append(each.latency)
    rows = []
    for group in measures.scenario.subscribers:
        for stream in measures.scenario.traffic:
            for broker in paint(measures.scenario):
                latencies = np.sort(np.array(found.get((group, stream, broker), [])))
                if not len(latencies):
                    continue
                figures = [
                    show(name, quantile(latencies, share)) for name, share in QUANTILES.items()
                ]
                never = int(np.isinf(latencies).sum())
                mean = show("mean", float(latencies.mean()))
                row = [group, stream, broker, *figures, mean, str(len(latencies)), str(never)]
                rows.append(row)
    if not rows:
        return ""
    head = ["subscriber", "stream", "broker", *QUANTILES, "mean", "messages", "not delivered"]
    return f"## Latency of other subscribers\n\n{_table(head, rows, words=3)}"


def _ratio(measures: Measures, figure: str, broker: str) -> str:
    over = find_over(measures.scenario)
    if over is None:
        return "-"
    theirs = measures.figure(figure, over)
    ratio = measures.figure(figure, broker) / theirs if theirs > 0 else math.nan
    return "-" if math.isnan(ratio) else "∞" if math.isinf(ratio) else f"{ratio:.2f}"


def _promises(measures: Measures) -> str:
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
        figures = [_with_spread(measures, name, broker) for name in columns]
        rows.append([broker, f"{expected}", *figures])
    head = ["broker", "to be delivered", *columns.values()]
    return f"## Promises, to all subscribers\n\n{_table(head, rows)}"


def _memory(measures: Measures) -> str:
    scenario = measures.scenario
    over = find_over(scenario)
    head = ["broker", "before", "at most beyond it", "left at the end"]
    if over is not None:
        head.append(f"over {over}'s")
    rows = []
    for broker in paint(scenario):
        before = [
            next((row.rss_bytes for row in reversed(rows_) if row.at_s < 0), math.nan)
            for rows_ in (measures.memory(broker, seed) for seed in scenario.seeds)
        ]
        row = [broker, show("memory", sum(before) / len(before))]
        row += [_with_spread(measures, name, broker) for name in ("memory", "memory_left")]
        if over is not None:
            row.append("" if broker == over else _ratio(measures, "memory", broker))
        rows.append(row)
    return f"## Memory\n\n{_table(head, rows)}"


def _withholding(measures: Measures) -> str:
    scenario = measures.scenario
    rows = []
    for broker in paint(scenario):
        found = [measures.withholding(broker, seed) for seed in scenario.seeds]
        known = [each for each in found if each is not None]
        if scenario.brokers[broker].kind != "penstock" or not known:
            continue
        held = sum(each.withheld for each in known)
        rows.append(
            [
                broker,
                f"{held:.1f} s",
                _with_spread(measures, "withheld_share", broker),
                _with_spread(measures, "withheld_outside", broker),
                str(max(each.most_messages for each in known)),
            ]
        )
    if not rows:
        return ""
    head = [
        "broker",
        "withheld, in all",
        "of impaired time",
        "outside of impairments",
        "most messages at a time",
    ]
    return f"## Withholding, from the subscribers in focus\n\n{_table(head, rows)}"


def _processor(info: RunInfo) -> str:
    rows = []
    for broker in paint(info.scenario):
        shares = [each.share for each in info.processor if each.broker == broker]
        if not shares:
            continue
        text = f"{100 * sum(shares) / len(shares):.1f} %"
        if len(shares) > 1:
            text += f" ({100 * min(shares):.1f} to {100 * max(shares):.1f} %)"
        rows.append([broker, text])
    return f"## Processor, share of one core\n\n{_table(['broker', 'share'], rows)}" if rows else ""


def _links(measures: Measures) -> str:
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
    if not rows:
        return ""
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
    head = ["link", "state", "times", "seconds in all", "brokers apart by"]
    return f"## Links, during the traffic\n\n{_table(head, lines, words=2)}"


def _what_was_run(info: RunInfo) -> str:
    scenario = info.scenario
    seeds = ", ".join(map(str, scenario.seeds))
    length = f"{scenario.duration_seconds:g} s of traffic"
    length += f", up to {scenario.drain_seconds:g} s more to arrive"
    lines = [
        "## What was run\n",
        "```sh",
        info.command,
        "```\n",
        f"- {info.length.capitalize()} length: {length}; seeds {seeds}.",
        f"- Penstock's commit {info.commit or 'unknown'}, {info.python}, {info.date}.",
        f"- On {info.machine}{f'; links by the engine `{info.engine}`' if info.engine else ''}.",
        *(_broker_line(info, name) for name in paint(scenario)),
        *_client_lines(scenario),
        "",
        "`penstock netem report .`, here, writes this report again from the tables.\n",
    ]
    return "\n".join(lines)


def _broker_line(info: RunInfo, name: str) -> str:
    plan = info.scenario.brokers[name]
    said: list[str] = []
    if plan.settings:
        said.append(f"`{json.dumps(plan.settings, ensure_ascii=False)}`")
    said += [f"`{line}`" for line in plan.lines]
    if plan.lanes:
        lane = "topic filter" if plan.lanes == "filters" else "size class"
        said.append(f"subscribers have a connection for each {lane}")
    if plan.command:
        said.append(f"`{' '.join(plan.command)}`")
    return f"- Broker `{name}`: {', '.join([info.versions.get(name, 'unknown'), *said])}."


def _clients(name: str, plan: Publisher | Subscriber) -> str:
    several = f", each of {plan.count}," if plan.count > 1 else ""
    return f"`{name}` on {plan.host}{several}"


def _client_lines(scenario: Scenario) -> list[str]:
    lines = []
    for name, publisher in scenario.publishers.items():
        streams = ", ".join(f"`{each}`" for each in publisher.streams)
        lines.append(f"- {_clients(name, publisher)} publishes {streams}.")
    for name, subscriber in scenario.subscribers.items():
        filters = ", ".join(f"`{each}`" for each in subscriber.filters)
        line = f"- {_clients(name, subscriber)} subscribes to {filters} at QoS {subscriber.qos}"
        if subscriber.user_properties:
            line += f", with `{json.dumps(subscriber.user_properties)}`"
        if subscriber.reads_from_seconds is not None:
            line += f", and reads from {subscriber.reads_from_seconds:g} s on"
        lines.append(line + ".")
    return lines
