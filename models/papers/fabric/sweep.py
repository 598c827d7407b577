"""The runs of paper 001's sections 3.4.2 to 3.4.4, and what they measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from statistics import pvariance
from typing import Final, TypeAlias

from penstock.models.papers.fabric.rings import CLOCKWISE, COUNTER_ROTATING, Direction, Rings
from penstock.models.papers.fabric.setting import Distribution, FabricSetting, Fault
from penstock.models.papers.fabric.simulation import FabricOutcome, simulate
from penstock.models.papers.paired_runs import PairedRuns
from penstock.netem.figures.figure_file import Table

FAILS_AT: Final = 10.0
"""The time at which the first server fails, seconds."""
SECOND_FAILS_AT: Final = 20.0
"""The time at which the second server fails, when the first has been isolated, seconds."""
SHORT_DETECTION: Final = 5.0
"""The failure detection time of section 3.4.4, seconds: the length of the stop that the paper
explains by it."""
TWO_FAILURE_RATE: Final = 900.0
PAUSES: Final = (0.1, 0.3)
"""The range of the stores' garbage collection pauses in section 3.4.3, seconds."""
DETECTION_TIMES: Final = (0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)
SAME_DIRECTION: Final[tuple[Direction, ...]] = (CLOCKWISE, CLOCKWISE)

DISTRIBUTIONS: Final[Mapping[Distribution, str]] = {
    "hashing": "consistent hashing",
    "exclusion": "slowdown exclusion",
    "repeat": "exclusion, repeated elsewhere",
}
RING_NAMES: Final[Mapping[tuple[Direction, ...], str]] = {
    SAME_DIRECTION: "same direction",
    COUNTER_ROTATING: "counter-rotating",
}
COPY_NAMES: Final[Mapping[bool, str]] = {False: "two of three copies", True: "all three copies"}
FAULTS: Final[Mapping[str, Fault]] = {
    "killed": Fault("D", FAILS_AT),
    "frozen for 5 s": Fault("D", FAILS_AT, FAILS_AT + 5),
    "100 times as slow for 10 s": Fault("D", FAILS_AT, FAILS_AT + 10, slowness=100),
}
"""The faults of one node of five, by name."""

Measure: TypeAlias = Callable[[FabricOutcome], float]


def one_failure(distribution: Distribution, *, needs_all_copies: bool) -> FabricSetting:
    """Return the test of section 3.4.2."""
    return faulty("killed", distribution, needs_all_copies=needs_all_copies)


def faulty(
    name: str, distribution: Distribution, *, needs_all_copies: bool = True
) -> FabricSetting:
    """Return the same test with another fault."""
    return FabricSetting(distribution, (FAULTS[name],), needs_all_copies=needs_all_copies)


def with_pauses(slowdown_detection_time: float) -> FabricSetting:
    """Return the test of section 3.4.3."""
    return replace(
        one_failure("exclusion", needs_all_copies=False),
        pauses=PAUSES,
        slowdown_detection_time=slowdown_detection_time,
    )


def two_failures(
    directions: tuple[Direction, ...], distribution: Distribution, *, needs_all_copies: bool
) -> FabricSetting:
    """Return the test of section 3.4.4."""
    return FabricSetting(
        distribution,
        (Fault("D", FAILS_AT), Fault("E", SECOND_FAILS_AT)),
        directions,
        needs_all_copies,
        TWO_FAILURE_RATE,
        failure_detection_time=SHORT_DETECTION,
    )


def settings() -> list[FabricSetting]:
    """Return all that is simulated, each once."""
    found = [
        *(
            one_failure(each, needs_all_copies=copies)
            for each in DISTRIBUTIONS
            for copies in COPY_NAMES
        ),
        *map(with_pauses, DETECTION_TIMES),
        *(faulty(name, each) for name in FAULTS for each in DISTRIBUTIONS),
        *(
            two_failures(directions, each, needs_all_copies=copies)
            for directions in RING_NAMES
            for each in ("exclusion", "repeat")
            for copies in COPY_NAMES
        ),
    ]
    return list(dict.fromkeys(found))


N_STEPS: Final = len(settings())
"""The number of steps that `run` reports."""


@dataclass(frozen=True, slots=True)
class FabricRuns:
    """The independent runs of a fabric's simulation.

    Attributes:
        replications: independent runs of each setting.
        load_ratio: the scale of the load and of the servers' capacity against the paper's. With
            less than 1 all runs take seconds, and their figures do not count.
    """

    replications: int = 20
    load_ratio: float = 1.0

    def run(self, setting: FabricSetting) -> list[FabricOutcome]:
        """Simulate a setting; equal replications of two settings have equal seeds."""
        rate, capacity = (self.load_ratio * each for each in (setting.rate, setting.capacity))
        loaded = replace(setting, rate=rate, capacity=capacity)
        return [
            simulate(loaded, Random(seed))  # noqa: S311 (a simulation)
            for seed in range(self.replications)
        ]


FabricResults: TypeAlias = PairedRuns[FabricSetting, FabricOutcome]


def run(runs: FabricRuns, tell: Callable[[str], None]) -> FabricResults:
    """Simulate all settings."""
    found = {}
    for number, setting in enumerate(settings(), 1):
        found[setting] = runs.run(setting)
        tell(f"fabric: {number} of {N_STEPS} settings")
    return FabricResults(found)


def errors(outcome: FabricOutcome) -> float:
    """Return the errors to clients."""
    return not_stored(outcome) + sum(outcome.refused)


def not_stored(outcome: FabricOutcome) -> float:
    """Return the errors to clients whose message was not stored in time."""
    return sum(outcome.failed)


def throughput(outcome: FabricOutcome) -> float:
    """Return messages/s that were stored in time, from the failure on."""
    after = outcome.stored[int(FAILS_AT) :]
    return sum(after) / len(after)


def variance(outcome: FabricOutcome) -> float:
    """Return the variance of the throughput of single seconds, from the failure on."""
    return pvariance(outcome.stored[int(FAILS_AT) :])


def kept(first_second: float, rate: float, seconds: float = SHORT_DETECTION) -> Measure:
    """Return the measure: share of the rate that was stored in the seconds from a time on."""

    def measure(outcome: FabricOutcome) -> float:
        after = outcome.stored[int(first_second) : int(first_second + seconds)]
        return sum(after) / seconds / rate

    return measure


def low_seconds(share: float, rate: float) -> Measure:
    """Return the measure: longest run of seconds that stored less than a share of the rate."""

    def measure(outcome: FabricOutcome) -> float:
        longest, length = 0, 0
        for count in outcome.stored:
            length = length + 1 if count < share * rate else 0
            longest = max(longest, length)
        return longest

    return measure


def busiest(outcome: FabricOutcome) -> float:
    """Return messages/s of which the busiest node was master in the last seconds of a run."""
    seconds = int(SHORT_DETECTION)
    return max(sum(served[-seconds:]) / seconds for served in outcome.served.values())


def most_masters(setting: FabricSetting) -> int:
    """Return how many physical queues a node is master of at most when all faults have come."""
    masters = list(
        Rings("ABCDE", setting.directions).masters([one.node for one in setting.faults]).values()
    )
    return max(map(masters.count, masters))


def tables(results: FabricResults) -> dict[str, Table]:
    """Return what was found."""
    return {
        "one failure": _one_failure(results),
        "detection time": _detection(results),
        "two failures": _two_failures(results),
        "faults": _faults(results),
    }


def _one_failure(results: FabricResults) -> Table:
    rows = []
    for each, name in DISTRIBUTIONS.items():
        for copies, copies_name in COPY_NAMES.items():
            setting = one_failure(each, needs_all_copies=copies)
            rows.append([name, copies_name, *_cells(results, setting)])
    return Table(["server D is killed", "stored on", *_HEADINGS], rows)


def _faults(results: FabricResults) -> Table:
    rows = [
        [name, DISTRIBUTIONS[each], *_cells(results, faulty(name, each))]
        for name in list(FAULTS)[1:]
        for each in DISTRIBUTIONS
    ]
    return Table(["server D is, all three copies", "distribution", *_HEADINGS], rows)


_HEADINGS: Final = (
    "errors: not stored",
    "errors: dead controller",
    "kept in the next 5 s",
    "latency at 0.999, s",
    "repeated",
    "stored twice",
)


def _cells(results: FabricResults, setting: FabricSetting) -> list[str]:
    found = [
        (not_stored, ",.0f"),
        (lambda outcome: sum(outcome.refused), ",.0f"),
        (kept(FAILS_AT, setting.rate), ".0%"),
        (lambda outcome: outcome.slowest_seconds, ".2f"),
        (lambda outcome: outcome.repeated, ",.0f"),
        (lambda outcome: outcome.stored_twice, ",.0f"),
    ]
    return [format(results.found(setting, measure), form) for measure, form in found]


def _detection(results: FabricResults) -> Table:
    measures: list[tuple[Measure, str]] = [
        (throughput, ",.0f"),
        (variance, ",.0f"),
        (not_stored, ",.0f"),
    ]
    rows = [
        [
            f"{time:g} s",
            *(format(results.found(with_pauses(time), one), form) for one, form in measures),
        ]
        for time in DETECTION_TIMES
    ]
    return Table(["slowdown detection time", "messages/s", "variance", "errors: not stored"], rows)


def _two_failures(results: FabricResults) -> Table:
    rows = []
    for directions, ring_name in RING_NAMES.items():
        for each in ("exclusion", "repeat"):
            for copies, copies_name in COPY_NAMES.items():
                setting = two_failures(directions, each, needs_all_copies=copies)
                measures: list[tuple[Measure, str]] = [
                    (kept(FAILS_AT, setting.rate), ".0%"),
                    (kept(SECOND_FAILS_AT, setting.rate), ".0%"),
                    (low_seconds(STOPPED, setting.rate), ".1f"),
                    (not_stored, ",.0f"),
                    (busiest, ",.0f"),
                ]
                rows.append(
                    [
                        f"{ring_name}, {DISTRIBUTIONS[each]}",
                        copies_name,
                        *(format(results.found(setting, one), form) for one, form in measures),
                        str(most_masters(setting)),
                    ]
                )
    return Table(
        [
            "D, then E is killed",
            "stored on",
            "kept in 5 s after D",
            "kept in 5 s after E",
            "longest stop, s",
            "errors: not stored",
            "busiest node, messages/s",
            "physical queues of a node, at most",
        ],
        rows,
    )


STOPPED: Final = 0.1
"""The service counts as stopped below this share of the rate."""
