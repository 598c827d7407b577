"""All evaluations of the papers run again, and each reported number beside what was found.

Each evaluation is what a command of its own runs, with the same effort and the same seeds, so that
each row names the command that gives it alone. Two run at a time, in processes of their own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from typing import Final, NamedTuple

from penstock.models.dequeue import sweep as dequeue
from penstock.models.fabric import claims as fabric_claims
from penstock.models.fabric import sweep as fabric
from penstock.models.patterns import claims as pattern_claims
from penstock.models.patterns import sweep as patterns
from penstock.models.reported import Reported, reported_table
from penstock.models.visibility import claims as visibility_claims
from penstock.models.visibility import sweep as visibility
from penstock.models.withholding import claims as withholding_claims
from penstock.models.withholding import sweep as withholding
from penstock.models.withholding.trace import generate_trace
from penstock.netem.figures.estimates import Standing
from penstock.netem.figures.figure_file import Table

PROCESSES: Final = 2
EXPECTED_SECONDS: Final = 400.0
"""Of a whole run on two cores; a quick one takes a tenth. For the progress bar alone."""

Tell = Callable[[str], None]
Claim = tuple[str, Standing, str]
"""A statement, how it stands, and what was found."""


class Found(NamedTuple):
    """What one evaluation gave.

    Attributes:
        numbers: of the paper's text.
        claims: what the paper says of its figures.
    """

    numbers: Sequence[Reported]
    claims: Sequence[Claim]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation of a paper.

    Attributes:
        paper: its number.
        command: that runs it alone.
        run: runs it whole, or quick.
        n_steps: how many times `run` tells of a step: whole, and quick.
    """

    paper: str
    command: str
    run: Callable[[bool, Tell], Found]
    n_steps: tuple[int, int]


_RATES: Final = ((10, 20, 50, 100, 150, 200), (10, 200))
"""Lambda of paper 000, whole and quick."""


def run_withholding(is_quick: bool, tell: Tell) -> Found:  # noqa: FBT001 - the form of all
    """Run figures 8 and 9 of paper 002."""
    n_traces, seconds = (6, 500) if is_quick else (60, 5000)
    rngs = [random.Random(seed) for seed in range(n_traces)]  # noqa: S311 (a simulation)
    tell("withholding: traces")
    results = withholding.run(withholding.Sweep([generate_trace(rng, seconds) for rng in rngs]))
    tell("withholding")
    claims = [
        (each.claim, each.standing, each.found) for each in withholding_claims.verdicts(results)
    ]
    return Found(list(withholding_claims.numbers(results)), claims)


def run_dequeue(is_quick: bool, tell: Tell) -> Found:  # noqa: FBT001
    """Run figures 9 to 12 of paper 000."""
    n_seeds, seconds = (6, 3.0) if is_quick else (8, 40.0)
    results = dequeue.run(_RATES[is_quick], range(n_seeds), seconds, tell)
    return Found(list(dequeue.numbers(results)), list(dequeue.claims(results)))


def run_fabric(is_quick: bool, tell: Tell) -> Found:  # noqa: FBT001
    """Run sections 3.4.2 to 3.4.4 of paper 001."""
    effort = fabric.Effort(2, 0.05) if is_quick else fabric.Effort()
    results = fabric.run(effort, tell)
    return Found(list(fabric_claims.numbers(results)), list(fabric_claims.claims(results)))


def run_patterns(is_quick: bool, tell: Tell) -> Found:  # noqa: FBT001
    """Run figures 7 to 11 of paper 003."""
    effort = patterns.Effort(6, 6000) if is_quick else patterns.Effort()
    results = patterns.run(effort, tell)
    return Found(list(pattern_claims.numbers(results)), list(pattern_claims.claims(results)))


def run_visibility(is_quick: bool, tell: Tell) -> Found:  # noqa: FBT001
    """Run figures 11 to 15 of paper 004."""
    effort = visibility.Effort(6, 5.0) if is_quick else visibility.Effort()
    results = visibility.run(effort, tell)
    return Found(list(visibility_claims.numbers(results)), list(visibility_claims.claims(results)))


_N_DEQUEUE: Final = tuple(
    len(dequeue.RUNS) * len(rates) + len(dequeue.SLEEP_TIMES) - 1 for rates in _RATES
)

EVALUATIONS: Final = (
    Evaluation("000", "dequeue", run_dequeue, (_N_DEQUEUE[0], _N_DEQUEUE[1])),
    Evaluation("001", "fabric", run_fabric, (fabric.N_STEPS, fabric.N_STEPS)),
    Evaluation("002", "withholding --traces 60", run_withholding, (2, 2)),
    Evaluation("003", "patterns", run_patterns, (patterns.N_STEPS, patterns.N_STEPS)),
    Evaluation("004", "visibility", run_visibility, (visibility.N_STEPS, visibility.N_STEPS)),
)
"""In the order of papers."""


def run(
    evaluations: Sequence[Evaluation], tell: Callable[[str, float], None], *, is_quick: bool
) -> dict[Evaluation, Found]:
    """Run evaluations, two at a time.

    Args:
        evaluations: in any order; those that take longest should be first.
        tell: gets a line about each finished step, and the share of all steps that are done.
        is_quick: few and short runs, which show that each row can be made, and little of how it
            stands.

    Returns:
        What each gave, in the same order.
    """
    context = get_context("spawn")
    steps: SimpleQueue[str] = context.SimpleQueue()
    n_steps, n_done = sum(each.n_steps[is_quick] for each in evaluations), 0
    with ProcessPoolExecutor(PROCESSES, context, _begin, (steps,)) as pool:
        futures: dict[Future[Found], Evaluation] = {
            pool.submit(_run_in_process, each.run, is_quick): each for each in evaluations
        }
        pending = set(futures)
        while pending:
            _, pending = wait(pending, 0.5, FIRST_COMPLETED)
            while not steps.empty():
                n_done += 1
                tell(steps.get(), n_done / n_steps)
    return {evaluation: future.result() for future, evaluation in futures.items()}


_steps: SimpleQueue[str] | None = None
"""Of a process of the pool: where it tells of its steps."""


def _begin(steps: SimpleQueue[str]) -> None:
    global _steps  # noqa: PLW0603 - a process is given it once, as it begins
    _steps = steps


def _run_in_process(evaluate: Callable[[bool, Tell], Found], is_quick: bool) -> Found:  # noqa: FBT001
    assert _steps is not None  # noqa: S101 - `_begin` has run
    return evaluate(is_quick, _steps.put)


def tables(found: Mapping[Evaluation, Found]) -> dict[str, Table]:
    """Return every number, how many statements hold, and those that do not."""
    plain = reported_table(())
    rows = [
        [each.paper, *row, f"`penstock plan {each.command}`"]
        for each, given in found.items()
        for row in reported_table(given.numbers).rows
    ]
    counts = [
        [
            each.paper,
            *(str(sum(claim[1] is standing for claim in given.claims)) for standing in Standing),
            f"`penstock plan {each.command}`",
        ]
        for each, given in found.items()
    ]
    others = [
        [each.paper, claim, str(standing), said]
        for each, given in found.items()
        for claim, standing, said in given.claims
        if standing is not Standing.MET
    ]
    return {
        "numbers": Table(["paper", *plain.columns, "command"], rows),
        "statements": Table(["paper", *map(str, Standing), "command"], counts),
        "statements that are not met": Table(["paper", "statement", "verdict", "found"], others),
    }
