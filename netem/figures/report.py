"""The report of a run in Markdown with plots, which is made from the run's folder alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.netem.errors import NetemError, RunError
from penstock.netem.figures.colours import paint
from penstock.netem.figures.estimates import LEAST_UNITS, Standing
from penstock.netem.figures.figure_file import Origin, Table, check_writable, write_figure_file
from penstock.netem.figures.kind_figures import kind_verdicts
from penstock.netem.figures.kind_sections import kind_sections
from penstock.netem.figures.measures import TOLERANCE_SECONDS, Measures, TargetVerdict
from penstock.netem.figures.sections import Section, sections
from penstock.netem.figures.table_files import NAMES, Format, read_table
from penstock.netem.figures.table_rows import Tables
from penstock.netem.figures.withheld_times import GRACE_SECONDS
from penstock.netem.runs.results import join_infos, make_folder, write_result
from penstock.netem.runs.run_file import RunInfo, read_run_info
from penstock.netem.runs.scenario import Publisher, Scenario, Subscriber

if TYPE_CHECKING:
    from penstock.netem.figures.canvas import Plot

NAME: Final = "report.md"
"""The name of the report's file in the folder of the run."""

HOW_COUNTED: Final = f"""\
## How it was counted

- Latency is from when a message was due at its publisher to its last byte at the subscriber, so a
  publisher that was late counts. It is that of the subscribers in focus. Quantiles are latencies
  that were measured (the least that a share of all do not exceed).
- A message that had not come when the run ended is lost at QoS 1 and 2, and not delivered at QoS 0.
  It is not left out of latencies: it counts as infinite (∞).
- In brackets: the 95 % confidence interval, by a bootstrap over independent units. A unit is a
  link, or links that share their chance, of a seed: the times at which they are bad, or
  the messages of one publisher, whose phase is one draw. Where the scenario says so
  (`unit: seed`), and of a broker's process (memory, processor), it is a run, one for each seed. Of
  fewer than {LEAST_UNITS} units there is no interval. Ratios compare two brokers unit by unit.
  Counts and the greatest latency are exact.
- Units count together: latencies as one set, counts as a sum, memory as the mean. A figure of which
  a seed has no data is a dash, and meets no target.
- A target is met where the whole interval keeps its bound, missed where the whole interval is
  beyond it, and otherwise not shown.
- With kinds of links, `oracle` gains 1 less the ratio of its mean latency of small messages to that
  of `none`, and a policy closes (none - policy) / (none - oracle) of it.
- A message is as fast under one broker as under another if it took at most
  {1000 * TOLERANCE_SECONDS:.0f} ms longer; it is the same by seed, publisher, stream, number and
  subscriber.
- Reordered: it came first after a later message of the same publisher and stream; to come again
  after one is none.
- Memory is the greatest resident set of the broker's process and its children, beyond what it was
  just before the traffic.
- Memory and processor time are those of the broker, its sidecar and its edge brokers together.
- Bytes on links are those of whole packets, with IP headers, in both directions, from the beginning
  of the traffic to the end of the run. What was lost on a link had used it, and counts.
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


def join_runs(folders: Sequence[Path], out: Path) -> None:
    """Write the tables and the description of one run with the seeds of several.

    Raises:
        NetemError: a folder holds no run, they differ in more than their seeds, or `out` holds
            something else.
        RunError: the result cannot be written.
    """
    info = join_infos([read_run_info(each) for each in folders], [str(each) for each in folders])
    tables = Tables()
    for each in folders:
        tables.add(read_tables(each))
    make_folder(out)
    write_result(out, tables, info, Format.PARQUET)


def write_report(
    folder: Path, figures: Path | None = None, *, with_plots: bool = True
) -> list[TargetVerdict]:
    """Write ``report.md`` and its plots into the folder of a run; earlier ones are replaced.

    Returns:
        The verdict on each of the scenario's targets, in their order.

    Raises:
        NetemError: a file is missing or wrong, or a target names no figure.
        RunError: the report, a plot or the figures cannot be written.
    """
    info = read_run_info(folder)
    measures = Measures(info.scenario, read_tables(folder))
    verdicts = [
        *(measures.judge(target, info.length) for target in info.scenario.targets),
        *kind_verdicts(measures, info.length),
    ]
    tables = [*kind_sections(measures), *sections(info, measures)]
    path = folder / NAME
    try:
        plots = _draw(info, measures, folder) if with_plots else []
        path.write_text(to_markdown(info, verdicts, plots, tables), encoding="utf-8")
        if figures is not None:
            path = figures
            write_figure_file(figures, _origin(info), figure_tables(verdicts, tables))
    except OSError as error:
        raise RunError(f"{path}: {error}") from error
    return verdicts


def _draw(info: RunInfo, measures: Measures, folder: Path) -> list[Plot]:
    from penstock.netem.figures.plots import draw  # noqa: PLC0415 - matplotlib is slow to load

    return draw(info, measures, folder)


def check_figures(figures: Path | None) -> None:
    """Check that a file of figures can be written, before a long run.

    Raises:
        NetemError: it cannot.
    """
    if figures is None:
        return
    try:
        check_writable(figures)
    except OSError as error:
        raise NetemError(f"--figures: {figures}: {error}") from error


def _origin(info: RunInfo) -> Origin:
    date = datetime.fromisoformat(info.date).astimezone(UTC).date().isoformat()
    return Origin(info.command, info.commit, info.machine, info.python, date, info.remarks)


def figure_tables(
    verdicts: Sequence[TargetVerdict], tables: Sequence[Section]
) -> Mapping[str, Table]:
    """Return what a file of figures holds: verdicts first, if there are any."""
    found: dict[str, Table] = {}
    if verdicts:
        rows = [[each.figure, each.found, each.bounds, each.word] for each in verdicts]
        found["verdicts"] = Table(["figure", "found", "target", "verdict"], rows)
    return found | {each.name: Table(each.columns, each.rows) for each in tables}


def to_markdown(
    info: RunInfo,
    verdicts: Sequence[TargetVerdict],
    plots: Sequence[Plot],
    tables: Sequence[Section],
) -> str:
    """Return the report's text."""
    scenario = info.scenario
    pictures = [f"![{each.title}]({each.name})\n\n*{each.about}.*\n" for each in plots]
    parts = [
        f"# {scenario.title}\n",
        f"{scenario.about.strip()}\n",
        _doubts(info),
        _verdicts(info, verdicts),
        *pictures,
        *map(str, tables),
        _what_was_run(info),
        HOW_COUNTED,
    ]
    return "\n".join(part for part in parts if part)


def _doubts(info: RunInfo) -> str:
    return "\n".join(f"**Doubtful:** {remark}.\n" for remark in info.remarks)


def _verdicts(info: RunInfo, verdicts: Sequence[TargetVerdict]) -> str:
    if not verdicts:
        return ""
    judged = [each.standing for each in verdicts if each.is_judged]
    text = f"## Verdict: {judged.count(Standing.MET)} of {len(judged)} targets met"
    for standing in (Standing.MISSED, Standing.NOT_SHOWN):
        if standing in judged:
            text += f", {judged.count(standing)} {standing}"
    text += "\n\n"
    if len(judged) < len(verdicts):
        text += f"A {info.length} run does not judge timings; they are shown.\n\n"
    return text + "".join(f"- {each.line}\n" for each in verdicts)


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
        f"- On {info.machine}.",
        *(_broker_line(info, name) for name in paint(scenario)),
        *(
            f"- {each.capitalize()}: {info.versions[each]}."
            for each in info.versions
            if each not in scenario.brokers
        ),
        *(_kind_lines(scenario) if scenario.kinds else _client_lines(scenario)),
        "",
        "`penstock netem report .`, here, writes this report again from the tables.\n",
    ]
    return "\n".join(lines)


_LANES: Final = {
    "filters": "a connection for each topic filter",
    "sizes": "a connection for each size class",
    "client": "the connections of `penstock.lanes`",
}
"""The meaning of `Broker.lanes` in words."""


def _broker_line(info: RunInfo, name: str) -> str:
    plan = info.scenario.brokers[name]
    said: list[str] = []
    if plan.settings:
        said.append(f"`{json.dumps(plan.settings, ensure_ascii=False)}`")
    said += [f"`{line}`" for line in plan.lines]
    if plan.sidecar:
        said.append(f"sidecar `{json.dumps(plan.sidecar, ensure_ascii=False)}`")
    if plan.edges is not None:
        said.append(f"edge brokers on {', '.join(plan.edges.hosts)}")
        if plan.edges.settings:
            said.append(f"`{json.dumps(plan.edges.settings, ensure_ascii=False)}`")
        said += [f"`{line}`" for line in plan.edges.lines]
    if plan.lanes:
        said.append(f"subscribers have {_LANES[plan.lanes]}")
    if plan.command:
        said.append(f"`{' '.join(plan.command)}`")
    return f"- Broker `{name}`: {', '.join([info.versions.get(name, 'unknown'), *said])}."


def _kind_lines(scenario: Scenario) -> list[str]:
    each = scenario.each_kind
    if each is None:
        return []
    cells = f"{', '.join(each.congestion_controls)}; {', '.join(each.ways)}"
    lines = [f"- Each kind with {cells}; a publisher beside the broker for each subscriber."]
    for name, kind in scenario.kinds.items():
        streams = ", ".join(f"`{stream}`" for stream in kind.streams or each.streams)
        lines.append(f"- `{name}`: {kind.receivers} on a link, {streams}.")
    for name, ways in scenario.profiles.items():
        drawn = [
            f"`{key}` {least:.10g} to {most:.10g}" for key, (least, most) in ways.drawn.items()
        ]
        told = f"; drawn for each link and seed: {', '.join(drawn)}" if drawn else ""
        lines.append(f"- {ways.profile(name)}{told}.")
    return lines


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
        lines.append(line + ".")
    return lines
