"""Every scenario that comes with Penstock, in its short length, over real links that are bad."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.netem.figures.measures import Measures
from penstock.netem.figures.report import read_tables
from penstock.netem.runs.run_command import choose
from penstock.netem.runs.run_file import read_run_info
from penstock.netem.runs.scenario import Target
from penstock.netem.runs.scenario_file import names, read_scenario
from tests.helpers.networks import NEEDS_ROOT
from tests.helpers.process import Program

pytestmark = NEEDS_ROOT

AT_A_TIME = 4
"""Runs: they wait most of the time, and other tests run beside them."""

WITH_PLOTS = "micro-benchmark"
"""The run that is drawn: of many sizes, it has all the plots there are."""

WITH_PEERS = "transient-congestion"
"""The run of all its brokers; of others, Penstock and who has targets. What a peer does differs
little from scenario to scenario; its copy of clients and links takes as long as Penstock's."""

MOST_SECONDS = 300.0
"""The longest run, on a machine that has other things to do as well."""

ENOUGH_BYTES = 24_000_000
"""Beside one copy of all that is published: what an allocator takes more than it needs, and the
pages of its parent that a fork writes to."""

EARLY_SECONDS = 5.0
"""The most that may be withheld before any link is bad, for all subscribers together: a slow large
message is followed by a pause of 5 s at most."""


NAMES = [name for name in names() if name != "links-cut"]
"""Scenarios with a short length of their own: that of a cut is that of the whole."""


class Run(NamedTuple):
    """A run that has ended.

    Attributes:
        status: exit status.
        said: all that it wrote.
    """

    status: int
    said: str


read_short = functools.cache(functools.partial(read_scenario, short=True))


def chosen_brokers(name: str) -> list[str]:
    """Return which of a scenario's brokers run."""
    scenario = read_short(name)
    judged = {target.broker for target in scenario.targets}
    return [
        each
        for each, plan in scenario.brokers.items()
        if name == WITH_PEERS or plan.kind == "penstock" or each in judged
    ]


def run_short(name: str, folder: Path) -> Run:
    """Run a scenario in its short length into a folder; its targets that are no timings count."""
    arguments = ["run", name, "--short", "--check", "--out", str(folder)]
    arguments += ["--brokers", ",".join(chosen_brokers(name))]
    arguments += [] if name == WITH_PLOTS else ["--no-plots"]
    run = Program([sys.executable, "-m", "penstock.netem", *arguments], is_forked=True)
    try:
        run.process.wait(MOST_SECONDS)
        return Run(run.wait(), run.log)
    finally:
        run.process.terminate()


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, tuple[Path, Future[Run]]]]:
    """Those that are asked for, some at a time: folder and outcome by the scenario's name."""
    asked = [
        str(item.callspec.params["name"])
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.path == Path(__file__)
        and "runs" in item.fixturenames
    ]
    folders = {name: tmp_path_factory.mktemp(name) for name in dict.fromkeys(asked)}
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        yield {name: (each, pool.submit(run_short, name, each)) for name, each in folders.items()}
        pool.shutdown(cancel_futures=True)


def test_the_short_length_of_a_cut_is_that_of_the_whole() -> None:
    """Which runs."""
    cut, whole = read_short("links-cut"), read_short("links")
    assert cut == dataclasses.replace(whole, name=cut.name, title=cut.title)


def _value(measures: Measures, target: Target) -> float:
    """Return what is held against a target's bounds, without its interval."""
    figure, broker, over = target.figure, target.broker, target.over
    if over is None or figure.endswith(" share_as_fast"):
        return measures.estimate(figure, broker, over=over).value
    return measures.ratio(figure, broker, over).value


@pytest.mark.timeout(MOST_SECONDS * len(NAMES) / AT_A_TIME)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_timing_comes_out_as_it_is_to(
    name: str, runs: dict[str, tuple[Path, Future[Run]]]
) -> None:
    """Nothing lost, order kept, memory bounded, nothing withheld before links were bad."""
    folder, outcome = runs[name]
    run = outcome.result()
    assert run.status == 0, run.said
    info = read_run_info(folder)
    scenario = info.scenario
    assert scenario == choose(read_short(name), ",".join(chosen_brokers(name)), None)
    measures = Measures(scenario, read_tables(folder))
    # A run of few links shows nothing of what depends on chance; here, its own figures are to hold.
    for target in scenario.targets:
        verdict = measures.judge(target, "short")
        held = _value(measures, target)
        is_kept = (target.at_most is None or held <= target.at_most) and (
            target.at_least is None or held >= target.at_least
        )
        # Processors that are busy make a path look slow: the run remarks it then.
        is_excused = target.figure == "withheld_outside" and info.remarks
        assert is_kept or is_excused or not verdict.is_judged, verdict.line
    rows = measures.tables.links
    impaired = {(row.broker, row.link) for row in rows if row.is_impaired}
    links = {each.link for each in scenario.impairments}
    assert impaired == {(broker, link) for broker in scenario.brokers for link in links}
    bad_from = min(row.begin_s for row in rows if row.is_impaired)
    for broker, plan in scenario.brokers.items():
        assert measures.figure("lost", broker) == 0, broker
        assert measures.figure("reordered", broker) == 0, broker
        if plan.kind != "penstock":
            continue
        withheld = [row for row in measures.tables.withheld if row.broker == broker]
        early = sum(max(0.0, min(row.end_s, bad_from) - row.begin_s) for row in withheld)
        assert early <= EARLY_SECONDS or info.remarks, broker
        if plan.settings.get("plugins", {}).get("memory") != {"store": "copy"}:
            payloads = sum(
                row.payload_bytes for row in measures.tables.messages if row.broker == broker
            )
            assert measures.figure("memory", broker) <= payloads + ENOUGH_BYTES, broker
