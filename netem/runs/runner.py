"""Runs a scenario: for each seed, its brokers side by side, each with its own copy of everything.

A round is a seed, as many brokers as run at a time, each with a network of its own, and in a
scenario with kinds of links as many kinds as run at a time. Brokers start, then all clients. When
all are subscribed or connected, links are left calm for a moment, and the traffic and what happens
to the links begin at the same monotonic second everywhere; with kinds, of one broker after the
other. At the end of the traffic links are again what the topology says, and what is missing gets
its time to arrive.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.netem.clients.roster import Roster
from penstock.netem.display import Display
from penstock.netem.errors import RunError
from penstock.netem.figures.records import MachineRow, MemoryRow, RunRow, Tables
from penstock.netem.links.engines import Engine
from penstock.netem.links.forwarder_messages import Lateness
from penstock.netem.links.namespaces import NAME_PREFIX, is_leftover, own_prefix
from penstock.netem.links.network import Network
from penstock.netem.runs.broker_topology import READY_SECONDS, Site
from penstock.netem.runs.kind_links import parts
from penstock.netem.runs.machine_load import LOOK_SECONDS as LOAD_LOOK_SECONDS
from penstock.netem.runs.machine_load import Load, Look, describe_doubt, load_between, look
from penstock.netem.runs.processes import Families, IdleClass
from penstock.netem.runs.result_rows import (
    bad_phase_rows,
    delivery_rows,
    flow_rows,
    link_rows,
    looks_since,
    message_rows,
    packets_rows,
    withheld_rows,
)
from penstock.netem.runs.run_file import ProcessorShare
from penstock.netem.runs.scenario import Scenario

LOOK_SECONDS: Final = 0.1
"""Between two looks at everything that runs."""

SILENT_SECONDS: Final = 60.0
"""Silence after which missing messages of QoS 0 are not waited for. TCP doubles its retransmission
timeout with each loss, and can stay silent for as long as the link was bad."""

SETTLE_SECONDS: Final = 1.0
"""After the last delivery: for its acknowledgement, and for messages that come twice."""

DOUBTFUL_SHARE: Final = 0.01
"""Of the traffic, for which the machine may be busy unmentioned: what a p99 does not show."""

KINDS_APART_SECONDS: Final = 2.0
"""Between the beginnings of two brokers in a scenario with kinds of links. When links get good, all
that has waited comes at once, for a second or two. Those of all brokers would do so together."""

EVERYTHING: Final = "everything"
"""This process and all that it has started."""


@dataclass(slots=True)
class Outcome:
    """What came out of a run.

    Attributes:
        rows: of all brokers and seeds.
        processor: how busy each broker was on each seed.
        remarks: what makes the figures doubtful, a line each.
    """

    rows: Tables = field(default_factory=Tables)
    processor: list[ProcessorShare] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def apart_seconds(scenario: Scenario) -> float:
    """Return the time between the beginnings of two brokers in a round."""
    return KINDS_APART_SECONDS if scenario.kinds else 0.0


def planned_seconds(scenario: Scenario) -> float:
    """Return how long a run takes at the least."""
    apart = sum((len(group) - 1) * apart_seconds(scenario) for group in scenario.groups())
    n_groups = len(scenario.groups())
    a_round = scenario.calm_seconds + scenario.duration_seconds + apart / n_groups
    return scenario.rounds * a_round


def run_scenario(scenario: Scenario, display: Display, engine: str = Engine.AUTO) -> Outcome:
    """Run all of it.

    Args:
        scenario: what.
        display: told what is going on.
        engine: what makes links: name of an `Engine`.

    Raises:
        RunError: a broker, a client or the links have failed. All is taken down.
        NetemError: networks cannot be had, or a broker is not installed.
        OSError: what is written in between cannot be, such as on a full disk.
    """
    outcome = Outcome()
    left = planned_seconds(scenario)
    rounds = itertools.product(
        enumerate(scenario.seeds, start=1), parts(scenario), scenario.groups()
    )
    for number, ((n, seed), part, group) in enumerate(rounds, start=1):
        names = [*part.kinds, *group]
        words = f"seed {n} of {len(scenario.seeds)}, {', '.join(names)}"
        # The folder goes last: who writes into it has ended by then.
        with temporary_folder() as folder, ExitStack() as held:
            networks = {
                name: held.enter_context(Network(seed=seed, engine=engine)) for name in group
            }
            one = _Round(part, seed, number, networks, folder)
            one.run(outcome, _Teller(display, words, left))
        left -= planned_seconds(scenario) / scenario.rounds
    if len(parts(scenario)) > 1:
        # A broker had several processes with each seed, and their memory has no sum.
        outcome.rows.memory.clear()
    return outcome


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a folder for as long as a block takes.

    Those of processes that were killed before they could remove theirs are removed as well.
    """
    beside = Path(tempfile.gettempdir())
    for each in beside.glob(f"{NAME_PREFIX}*"):
        if is_leftover(each.name) and each.lstat().st_uid == os.geteuid():
            shutil.rmtree(each, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=own_prefix()) as folder:
        yield Path(folder)


@dataclass(frozen=True, slots=True)
class _Teller:
    """A display in one round.

    Attributes:
        display: the display.
        words: which round.
        left_seconds: of it and the following ones at the least.
    """

    display: Display
    words: str
    left_seconds: float

    def stage(self, what: str) -> None:
        self.display.stage(f"{what}; {self.words}")

    def done(self, seconds: float) -> None:
        self.display.left(self.left_seconds - seconds)


class _Round:
    """A seed and some brokers."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        number: int,
        networks: Mapping[str, Network],
        folder: Path,
    ) -> None:
        """Make hosts and links, and start brokers.

        Args:
            scenario: what.
            seed: of the run.
            number: of the round, from 1.
            networks: an empty one for each broker, by its name.
            folder: an empty folder for the files of brokers and clients.
        """
        self._scenario = scenario
        self._seed = seed
        self._number = number
        folder.chmod(0o755)  # brokers may leave their rights
        self._sites = []
        for name, network in networks.items():
            directory = folder / name
            directory.mkdir()
            self._sites.append(Site(network, Roster(scenario, name, seed), directory))
        self._memory: list[tuple[str, float, int]] = []
        self._memory_due_at = time.monotonic()
        self._families = Families({})

    def run(self, outcome: Outcome, teller: _Teller) -> None:
        """Run the round and add what came out of it."""
        scenario, sites = self._scenario, self._sites
        teller.stage("brokers start")
        for site in sites:
            site.start_helpers()
        for site in sites:
            site.wait_for_helpers()
        self._families = Families({site.name: site.pids for site in sites})
        self._start_clients(teller)
        begin_at = time.monotonic() + scenario.calm_seconds
        begins = {site.name: begin_at + n * apart_seconds(scenario) for n, site in enumerate(sites)}
        for site in sites:
            site.begin(begins[site.name])
        teller.stage("calm")
        self._keep(lambda: False, begin_at, lambda: teller.done(self._since(begin_at)))
        before = self._processor_seconds()
        for site in sites:
            site.note_bytes()
        watch = _LoadWatch(self._sites)
        end_at = max(begins.values()) + scenario.duration_seconds
        running = list(sites)

        def tell() -> None:
            teller.done(self._since(begin_at))
            watch.look()
            while (
                running and time.monotonic() >= begins[running[0].name] + scenario.duration_seconds
            ):
                running.pop(0).restore_links()

        teller.stage(f"traffic for {scenario.duration_seconds:g} s")
        self._keep(lambda: not running, math.inf, tell)
        watch.finish()
        teller.stage(f"what is missing arrives, {scenario.drain_seconds:g} s at most")
        self._keep(self._is_drained, end_at + scenario.drain_seconds)
        self._keep(lambda: False, time.monotonic() + SETTLE_SECONDS)
        if unfinished := [site.name for site in sites if not site.has_published()]:
            raise RunError(f"publishers of {', '.join(unfinished)} have not published all messages")
        ended_at = time.monotonic()
        after = self._processor_seconds()
        for site in sites:
            share = (after[site.name] - before[site.name]) / (ended_at - begin_at)
            outcome.processor.append(ProcessorShare(site.name, self._seed, share))
            rows = self._rows(site, begins[site.name], ended_at)
            dropped = sum(row.harness_dropped for row in rows.packets)
            lateness = watch.lateness[site.name]
            rows.runs.append(
                RunRow(site.name, self._seed, self._number, dropped, *dataclasses.astuple(lateness))
            )
            outcome.rows.add(rows)
        outcome.rows.machine += self._machine_rows(watch.loads, begin_at)
        outcome.remarks += self._remarks(outcome.rows, watch.loads)

    def _machine_rows(self, loads: Sequence[Load], begin_at: float) -> list[MachineRow]:
        return [
            MachineRow(
                self._seed,
                self._number,
                load.begin - begin_at,
                load.end - begin_at,
                load.busy_share,
                load.steal_share,
                load.others_share,
                None if math.isnan(load.wait_share) else load.wait_share,
                load.runnable,
                load.most_late_seconds,
                bool(load.reasons),
            )
            for load in loads
        ]

    def _remarks(self, rows: Tables, loads: Sequence[Load]) -> Iterator[str]:
        """Yield what makes the figures of this round doubtful."""
        lasted = self._scenario.duration_seconds
        seconds, reasons = describe_doubt(loads)
        if seconds > DOUBTFUL_SHARE * lasted:
            names = ", ".join([*self._scenario.kinds, *(site.name for site in self._sites)])
            yield (
                f"seed {self._seed}, {names}: this machine was busy for {seconds:.0f} of "
                f"{lasted:g} s of the traffic ({reasons}): latencies of that time may be its own"
            )
        for row in rows.runs:
            if row.round == self._number and row.harness_dropped:
                yield (
                    f"seed {row.seed}, {row.broker}: queues of the harness dropped "
                    f"{row.harness_dropped} packets, which no profile asks for"
                )

    def _start_clients(self, teller: _Teller) -> None:
        teller.stage("clients connect")
        for site in self._sites:
            site.start_clients()
        n_clients = sum(len(site.told) for site in self._sites)
        seconds = READY_SECONDS + n_clients / 4
        self._keep(
            lambda: all(site.clients_are_ready() for site in self._sites),
            time.monotonic() + seconds,
        )
        for site in self._sites:
            if names := site.not_ready():
                raise RunError(
                    f"clients of {site.name} are not connected and subscribed after "
                    f"{seconds:.0f} s: {', '.join(names[:10])}"
                )
        deadline = time.monotonic() + seconds
        self._keep(lambda: not any(site.not_reached() for site in self._sites), deadline)
        for site in self._sites:
            if names := site.not_reached():
                raise RunError(
                    f"edge brokers of {site.name} do not forward all publishers' messages to these "
                    f"subscribers after {seconds:.0f} s: {', '.join(names[:10])}"
                )
            site.start_watch()

    def _processor_seconds(self) -> dict[str, float]:
        return {site.name: self._families.processor_seconds(site.name) for site in self._sites}

    def _since(self, begin_at: float) -> float:
        return time.monotonic() - begin_at + self._scenario.calm_seconds

    def _keep(
        self,
        is_done: Callable[[], bool],
        deadline: float,
        tell: Callable[[], None] = lambda: None,
    ) -> None:
        """Look at everything until something is done, or until a monotonic second."""
        while True:
            for site in self._sites:
                site.check()
            self._look_at_memory()
            tell()
            if is_done():
                return
            left = deadline - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(LOOK_SECONDS, left))

    def _look_at_memory(self) -> None:
        now = time.monotonic()
        if now < self._memory_due_at:
            return
        period = self._scenario.measurements.memory_period_seconds
        self._memory_due_at = max(self._memory_due_at + period, now)
        for site in self._sites:
            self._memory.append((site.name, now, self._families.rss_bytes(site.name)))

    def _is_drained(self) -> bool:
        return all(
            site.has_published()
            and (
                site.has_all()
                or (site.has_all_promised() and site.newest_delivery_seconds() > SILENT_SECONDS)
            )
            for site in self._sites
        )

    def _rows(self, site: Site, begin_at: float, ended_at: float) -> Tables:
        roster = site.roster
        rows = Tables(
            messages=message_rows(roster, site.files, begin_at),
            deliveries=delivery_rows(roster, site.files, begin_at),
            expected=roster.expected(),
            memory=[
                MemoryRow(name, self._seed, at - begin_at, rss_bytes)
                for name, at, rss_bytes in self._memory
                if name == site.name
            ],
            withheld=withheld_rows(roster, site.watch_file, begin_at),
        )
        drops = site.device_drops()
        for plan in self._scenario.topology.links:
            link = site.links[plan.name]
            rows.links += link_rows(roster, plan.name, link.log(), begin_at, ended_at)
            rows.packets += packets_rows(
                roster, plan, link.device, link.counts(), site.bytes_before(plan.name), drops
            )
        for name in self._scenario.bulk_flows:
            rows.flows += flow_rows(roster, name, site.flow_file(name), begin_at)
        rows.bad_phases = bad_phase_rows(roster, rows, looks_since(site.watch_file, begin_at))
        return rows


class _LoadWatch:
    """Looks at the load of the machine and the lateness of forwarders, second by second.

    Attributes:
        loads: of the seconds, from the making of this object on.
        lateness: of each broker's forwarder in this time, by the broker's name.
    """

    def __init__(self, sites: Sequence[Site]) -> None:
        self.loads: list[Load] = []
        self.lateness = {site.name: Lateness() for site in sites}
        self._networks = {site.name: site.network for site in sites}
        self._before = {name: each.lateness() for name, each in self._networks.items()}
        self._families = Families({EVERYTHING: [os.getpid()]})
        self._idle_class = IdleClass()
        self._newest = self._look()

    def look(self) -> None:
        """Look, if it is time."""
        if time.monotonic() - self._newest.at >= LOAD_LOOK_SECONDS:
            self.finish()

    def finish(self) -> None:
        """Look at what has happened since the last look."""
        most_late_seconds = 0.0
        for name, network in self._networks.items():
            told, before, total = network.lateness(), self._before[name], self.lateness[name]
            total.deliveries = told.deliveries - before.deliveries
            total.late_deliveries = told.late_deliveries - before.late_deliveries
            total.most_seconds = max(total.most_seconds, told.most_seconds)
            most_late_seconds = max(most_late_seconds, told.most_seconds)
        newest = self._look()
        self.loads.append(load_between(self._newest, newest, most_late_seconds))
        self._newest = newest

    def _look(self) -> Look:
        families = self._families
        return look(
            time.monotonic(),
            families.processor_seconds(EVERYTHING),
            self._idle_class.processor_seconds(),
            families.waits(EVERYTHING),
        )
