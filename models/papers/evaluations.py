"""All evaluations of the papers in one run: each number of their text beside the simulation's.

Each evaluation is what a command of its own runs, with the same extent and the same seeds, so that
each row names the command that gives it alone. Two run at a time, in processes of their own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from typing import Any, Final, NamedTuple

from penstock.models.kernels.delivery_simulation import DeliveryRuns
from penstock.models.kernels.lease_simulation import LeaseRuns
from penstock.models.papers.dequeue import sweep as dequeue
from penstock.models.papers.fabric import claims as fabric_claims
from penstock.models.papers.fabric import sweep as fabric
from penstock.models.papers.paper_figures import Claim, ReportedNumber, reported_table
from penstock.models.papers.patterns import claims as pattern_claims
from penstock.models.papers.patterns import sweep as patterns
from penstock.models.papers.visibility import claims as visibility_claims
from penstock.models.papers.visibility import sweep as visibility
from penstock.models.papers.withholding import claims as withholding_claims
from penstock.models.papers.withholding import sweep as withholding
from penstock.models.papers.withholding.rtt_trace import generate_trace
from penstock.netem.figures.estimates import Standing
from penstock.netem.figures.figure_file import Table

PROCESSES: Final = 2
EXPECTED_SECONDS: Final = 400.0
"""How long a whole run takes on two cores, for the progress bar; a quick one takes a tenth."""

Tell = Callable[[str], None]
"""A function that gets a line about a finished step."""


class EvaluationResults(NamedTuple):
    """The results of one evaluation.

    Attributes:
        numbers: the numbers of the paper's text, each beside the simulation's.
        claims: the paper's statements on its figures.
    """

    numbers: Sequence[ReportedNumber]
    claims: Sequence[Claim]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation of a paper.

    Attributes:
        command: the words behind ``penstock plan`` that run it alone.
        run: runs it, whole or quick, and returns its results.
        numbers: a function that yields the numbers of the paper's text from the results.
        claims: a function that yields the paper's statements from the results.
        n_steps: how often `run` reports a finished step, in a whole and in a quick run.
    """

    paper: str
    command: str
    run: Callable[[bool, Tell], Any]
    numbers: Callable[[Any], Iterable[ReportedNumber]]
    claims: Callable[[Any], Iterable[Claim]]
    n_steps: tuple[int, int]


RATES: Final = ((10, 20, 50, 100, 150, 200), (10, 200))
"""Lambda of paper 000 in a whole run, and in a quick one."""


def run_withholding(is_quick: bool, tell: Tell) -> withholding.WithholdingResults:  # noqa: FBT001 - the form of all
    """Run figures 8 and 9 of paper 002."""
    n_traces, seconds = (6, 500) if is_quick else (60, 5000)
    rngs = [random.Random(seed) for seed in range(n_traces)]  # noqa: S311 (a simulation)
    tell("withholding: traces")
    results = withholding.run(withholding.Sweep([generate_trace(rng, seconds) for rng in rngs]))
    tell("withholding")
    return results


def run_dequeue(is_quick: bool, tell: Tell) -> dequeue.DequeueResults:  # noqa: FBT001
    """Run figures 9 to 12 of paper 000."""
    n_seeds, seconds = (6, 3.0) if is_quick else (8, 40.0)
    return dequeue.run(RATES[is_quick], range(n_seeds), seconds, tell)


def run_fabric(is_quick: bool, tell: Tell) -> fabric.FabricResults:  # noqa: FBT001
    """Run sections 3.4.2 to 3.4.4 of paper 001."""
    return fabric.run(fabric.FabricRuns(2, 0.05) if is_quick else fabric.FabricRuns(), tell)


def run_patterns(is_quick: bool, tell: Tell) -> patterns.PatternResults:  # noqa: FBT001
    """Run figures 7 to 11 of paper 003."""
    return patterns.run(DeliveryRuns(6, 6000) if is_quick else DeliveryRuns(), tell)


def run_visibility(is_quick: bool, tell: Tell) -> visibility.VisibilityResults:  # noqa: FBT001
    """Run figures 11 to 15 of paper 004."""
    return visibility.run(LeaseRuns(6, 5.0) if is_quick else LeaseRuns(), tell)


EVALUATIONS: Final = (
    Evaluation(
        "000",
        "dequeue",
        run_dequeue,
        dequeue.numbers,
        dequeue.claims,
        (dequeue.n_steps(RATES[False]), dequeue.n_steps(RATES[True])),
    ),
    Evaluation(
        "001",
        "fabric",
        run_fabric,
        fabric_claims.numbers,
        fabric_claims.claims,
        (fabric.N_STEPS, fabric.N_STEPS),
    ),
    Evaluation(
        "002",
        "withholding --traces 60",
        run_withholding,
        withholding_claims.numbers,
        withholding_claims.claims,
        (2, 2),
    ),
    Evaluation(
        "003",
        "patterns",
        run_patterns,
        pattern_claims.numbers,
        pattern_claims.claims,
        (patterns.N_STEPS, patterns.N_STEPS),
    ),
    Evaluation(
        "004",
        "visibility",
        run_visibility,
        visibility_claims.numbers,
        visibility_claims.claims,
        (visibility.N_STEPS, visibility.N_STEPS),
    ),
)
"""All evaluations, in the order of the papers."""


def run(
    evaluations: Sequence[Evaluation], tell: Callable[[str, float], None], *, is_quick: bool
) -> dict[Evaluation, EvaluationResults]:
    """Run evaluations, two at a time, each in a process of its own.

    Returns:
        The results of each, in the same order.
    """
    context = get_context("spawn")
    steps: SimpleQueue[str] = context.SimpleQueue()
    n_steps, n_done = sum(each.n_steps[is_quick] for each in evaluations), 0
    with ProcessPoolExecutor(PROCESSES, context, _begin, (steps,)) as pool:
        futures: dict[Future[EvaluationResults], Evaluation] = {
            pool.submit(_run_in_process, each, is_quick): each for each in evaluations
        }
        pending = set(futures)
        while pending:
            _, pending = wait(pending, 0.5, FIRST_COMPLETED)
            while not steps.empty():
                n_done += 1
                tell(steps.get(), n_done / n_steps)
    return {evaluation: future.result() for future, evaluation in futures.items()}


_steps: SimpleQueue[str] | None = None
"""The queue by which a process of the pool tells of its steps."""


def _begin(steps: SimpleQueue[str]) -> None:
    global _steps  # noqa: PLW0603 - a process is given it once, as it begins
    _steps = steps


def _run_in_process(evaluation: Evaluation, is_quick: bool) -> EvaluationResults:  # noqa: FBT001
    assert _steps is not None  # noqa: S101 - `_begin` has run
    results = evaluation.run(is_quick, _steps.put)
    return EvaluationResults(list(evaluation.numbers(results)), list(evaluation.claims(results)))


def tables(found: Mapping[Evaluation, EvaluationResults]) -> dict[str, Table]:
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
