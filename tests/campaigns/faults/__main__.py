"""The command that runs the campaign of faults and shows which promises are broken.

``python -m tests.campaigns.faults`` does all of it; ``--quick`` takes some minutes; ``--hours``
repeats everything with other seeds.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from benchmarks.loads.wire import WireError
from benchmarks.peers import PEERS, allow_open_files
from benchmarks.program import JsonFile, Program, choose, describe_run, tell, write_json
from benchmarks.rows.report import format_value
from penstock.netem.errors import NetemError
from penstock.plugins.queue.client import QueueError
from tests.campaigns.faults.case import FULL, MOSQUITTO, PENSTOCK, QUICK, Effort, Fault, Finding
from tests.campaigns.faults.clocks import CLOCKS, DOWNTIME
from tests.campaigns.faults.descriptors import DESCRIPTORS
from tests.campaigns.faults.disk import DAMAGED, DELETED, FULL_DISK
from tests.campaigns.faults.health_checks import HEALTH_CHECKS
from tests.campaigns.faults.kills import KILLS, PAIRS_KILLED
from tests.campaigns.faults.load import CHURN, SESSIONS_END, SLOW_READERS, STALL_GATE
from tests.campaigns.faults.memory import MEMORY
from tests.campaigns.faults.queues import REDIS_LOST, RESIZED, RESTORED
from tests.campaigns.faults.silence import SILENCE
from tests.campaigns.faults.subject import subject
from tests.campaigns.faults.uplinks import LOOPS, POISON
from tests.campaigns.faults.users import GUESSING, REVOKED

FAULTS: Final = {
    fault.name: fault
    for fault in (
        KILLS,
        PAIRS_KILLED,
        FULL_DISK,
        DAMAGED,
        DELETED,
        DOWNTIME,
        CLOCKS,
        RESTORED,
        RESIZED,
        REDIS_LOST,
        POISON,
        LOOPS,
        HEALTH_CHECKS,
        SILENCE,
        DESCRIPTORS,
        REVOKED,
        GUESSING,
        MEMORY,
        CHURN,
        SLOW_READERS,
        STALL_GATE,
        SESSIONS_END,
    )
}


@dataclass(frozen=True, slots=True)
class FaultResult:
    """The outcome of one fault with one broker, once.

    Attributes:
        fault: the name of the fault.
        broker: the name of the broker.
        seed: the seed of the random values.
        findings: the findings; empty where the fault could not be made.
        failure: the reason why the fault could not be made; "" where it was.
    """

    fault: str
    broker: str
    seed: int
    findings: Sequence[Finding]
    failure: str = ""

    @property
    def missed(self) -> list[Finding]:
        """What breaks a promise; Penstock's alone count."""
        return [each for each in self.findings if each.is_met is False and self.broker == PENSTOCK]


def run_once(fault: Fault, broker: str, seed: int, effort: Effort) -> FaultResult:
    """Do one fault to one broker."""
    rng = random.Random(f"{fault.name} {seed}")  # noqa: S311 - moments and sizes, not secrets
    try:
        with subject(broker) as chosen:
            return FaultResult(fault.name, broker, seed, fault.inflict(chosen, rng, effort))
    except (NetemError, QueueError, WireError, OSError) as error:
        return FaultResult(fault.name, broker, seed, (), f"{type(error).__name__}: {error}")


def _worst(findings: Sequence[Finding]) -> Finding:
    """Return the value that is the furthest from the promise, of one finding over all seeds."""
    if findings[0].least is not None:
        return min(findings, key=lambda each: each.value)
    return max(findings, key=lambda each: each.value)


def to_markdown(outcomes: Sequence[FaultResult]) -> list[str]:
    """Return the verdict, a row for each finding with the worst of all seeds, and the source."""
    missed = sorted({f"{o.fault}: {each.name}" for o in outcomes for each in o.missed})
    failed = [f"{o.fault}, {o.broker}, seed {o.seed}: {o.failure}" for o in outcomes if o.failure]
    lines = [f"promises broken: {'; '.join(missed) or 'none'}", ""]
    lines += [*(f"failed: {each}" for each in failed), ""] if failed else []
    lines += [
        "| fault | finding | promise | Penstock | mosquitto | runs |",
        "|---|---|---|---:|---:|---:|",
    ]
    for name in dict.fromkeys(outcome.fault for outcome in outcomes):
        values: dict[str, dict[str, list[Finding]]] = {}
        for outcome in outcomes:
            for finding in outcome.findings if outcome.fault == name else ():
                by_broker = values.setdefault(finding.name, {})
                by_broker.setdefault(outcome.broker, []).append(finding)
        title = FAULTS[name].title
        for finding_name, by_broker in values.items():
            worst = {broker: _worst(found) for broker, found in by_broker.items()}
            ours = worst.get(PENSTOCK) or next(iter(worst.values()))
            shown = [
                f"{format_value(worst[broker].value)} {worst[broker].unit}".rstrip()
                if broker in worst
                else "-"
                for broker in (PENSTOCK, MOSQUITTO)
            ]
            n_runs = max(map(len, by_broker.values()))
            cells = [title, finding_name, ours.bound or "-", *shown, str(n_runs)]
            lines.append(f"| {' | '.join(cells)} |")
            title = ""
    return lines


def campaign(
    faults: Annotated[str, typer.Option(help="Faults, separated by commas, or all.")] = "all",
    brokers: Annotated[str, typer.Option(help="penstock, mosquitto, or all.")] = "all",
    seed: Annotated[int, typer.Option(help="Of the first run; the next has the next.")] = 1,
    hours: Annotated[float, typer.Option(min=0, help="Repeat with other seeds for so long.")] = 0.0,
    json_file: JsonFile = None,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of everything.")] = False,
) -> None:
    """Do every fault to each broker; status 1 where Penstock breaks a promise."""
    allow_open_files()
    chosen = choose("fault", faults, FAULTS)
    names = choose("broker", brokers, {name: name for name in (PENSTOCK, MOSQUITTO)})
    effort = QUICK if quick else FULL
    outcomes: list[FaultResult] = []
    deadline = time.monotonic() + hours * 3600
    number = seed
    while True:
        for fault in chosen:
            for name in (name for name in names if name in fault.brokers):
                outcome = run_once(fault, name, number, effort)
                outcomes.append(outcome)
                told = outcome.failure or "; ".join(
                    f"{each.name} {format_value(each.value)} {each.unit}".rstrip()
                    for each in outcome.findings
                )
                typer.echo(f"{fault.name}, {name}, seed {number}: {told}", err=True)
        number += 1
        if time.monotonic() >= deadline:
            break
    run = describe_run([PEERS[name] for name in names])
    write_json(json_file, to_json(outcomes, run))
    tell(to_markdown(outcomes), run)
    if any(outcome.failure or outcome.missed for outcome in outcomes):
        raise typer.Exit(1)


def to_json(outcomes: Sequence[FaultResult], run: dict[str, str]) -> dict[str, object]:
    """Return every finding of every run, as JSON can hold it."""
    return {
        "run": run,
        "outcomes": [
            {
                "fault": outcome.fault,
                "broker": outcome.broker,
                "seed": outcome.seed,
                "failure": outcome.failure,
                "findings": [
                    {
                        "name": each.name,
                        "value": each.value,
                        "unit": each.unit,
                        "bound": each.bound,
                        "is_met": each.is_met if outcome.broker == PENSTOCK else None,
                    }
                    for each in outcome.findings
                ],
            }
            for outcome in outcomes
        ],
    }


main: Final = Program(campaign, "python -m tests.campaigns.faults")


if __name__ == "__main__":
    sys.exit(main())
