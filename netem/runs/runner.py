"""Runs a scenario: for each seed, its brokers side by side, each with its own copy of everything.

A round is a seed and as many brokers as run at a time. Brokers start, then all clients; when all
are subscribed or connected, links are left calm for a moment, and the traffic and what happens to
the links begin at the same monotonic second everywhere. At the end of the traffic links are again
what the topology says, and what is missing gets its time to arrive.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.netem.clients.connection import PORT
from penstock.netem.clients.roster import Roster
from penstock.netem.display import Display
from penstock.netem.errors import RunError
from penstock.netem.figures.records import MemoryRow, Tables
from penstock.netem.links.engines import Engine
from penstock.netem.links.namespaces import NAME_PREFIX, is_leftover, own_prefix
from penstock.netem.links.network import Network
from penstock.netem.runs.processes import BusyTime, Families
from penstock.netem.runs.result_rows import delivery_rows, link_rows, message_rows, withheld_rows
from penstock.netem.runs.run_file import ProcessorShare
from penstock.netem.runs.scenario import Scenario
from penstock.netem.runs.site import READY_SECONDS, Site

CALM_SECONDS: Final = 5.0
"""Between the last subscription and the beginning: brokers learn what the links are like."""

LOOK_SECONDS: Final = 0.1
"""Between two looks at everything that runs."""

SILENT_SECONDS: Final = 60.0
"""Silence after which missing messages of QoS 0 are not waited for. TCP doubles its retransmission
timeout with each loss, and can stay silent for as long as the link was bad."""

SETTLE_SECONDS: Final = 1.0
"""After the last delivery: for its acknowledgement, and for messages that come twice."""

BUSY_SHARE: Final = 0.01
"""Of the traffic, for which processors may be busy unmentioned: what a p99 does not show."""

LINKS: Final = "links"
CLIENTS: Final = "clients"


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


def planned_seconds(scenario: Scenario) -> float:
    """Return how long a run takes at the least."""
    return scenario.rounds * (CALM_SECONDS + scenario.duration_seconds)


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
    names = list(scenario.brokers)
    at_a_time = scenario.side_by_side or len(names)
    left = planned_seconds(scenario)
    for n, seed in enumerate(scenario.seeds, start=1):
        for begin in range(0, len(names), at_a_time):
            group = names[begin : begin + at_a_time]
            words = f"seed {n} of {len(scenario.seeds)}, {', '.join(group)}"
            # The folder goes last: who writes into it has ended by then.
            with temporary_folder() as folder, Network(seed=seed, engine=engine) as network:
                one = _Round(scenario, seed, group, network, folder)
                one.run(outcome, _Teller(display, words, left))
            left -= CALM_SECONDS + scenario.duration_seconds
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
        names: Sequence[str],
        network: Network,
        folder: Path,
    ) -> None:
        """Make hosts and links, and start brokers.

        Args:
            scenario: what.
            seed: of the run.
            names: of the brokers.
            network: an empty one.
            folder: an empty folder for the files of brokers and clients.
        """
        self._scenario = scenario
        self._seed = seed
        folder.chmod(0o755)  # brokers may leave their rights
        self._sites = []
        for name in names:
            directory = folder / name
            directory.mkdir()
            self._sites.append(Site(network, Roster(scenario, name, seed), directory))
        self._network = network
        self._memory: list[tuple[str, float, int]] = []
        self._memory_due_at = time.monotonic()
        self._families = Families(self._broker_pids())

    def run(self, outcome: Outcome, teller: _Teller) -> None:
        """Run the round and add what came out of it."""
        scenario, sites = self._scenario, self._sites
        teller.stage("brokers start")
        for site in sites:
            site.broker.wait_until_listening(PORT)
        self._start_clients(teller)
        begin_at = time.monotonic() + CALM_SECONDS
        for site in sites:
            site.begin(begin_at)
        teller.stage("calm")
        self._keep(lambda: False, begin_at, lambda: teller.done(self._since(begin_at)))
        before = self._processor_seconds()
        busy = BusyTime()
        end_at = begin_at + scenario.duration_seconds

        def tell() -> None:
            teller.done(self._since(begin_at))
            busy.look()

        teller.stage(f"traffic for {scenario.duration_seconds:g} s")
        self._keep(lambda: False, end_at, tell)
        traffic = self._processor_seconds()
        for site in sites:
            site.restore_links()
        teller.stage(f"what is missing arrives, {scenario.drain_seconds:g} s at most")
        self._keep(self._is_drained, end_at + scenario.drain_seconds)
        self._keep(lambda: False, time.monotonic() + SETTLE_SECONDS)
        if unfinished := [site.name for site in sites if not site.has_published()]:
            raise RunError(f"publishers of {', '.join(unfinished)} have not published all")
        ended_at = time.monotonic()
        after = self._processor_seconds()
        for site in sites:
            share = (after[site.name] - before[site.name]) / (ended_at - begin_at)
            outcome.processor.append(ProcessorShare(site.name, self._seed, share))
            outcome.rows.add(self._rows(site, begin_at, ended_at))
        lasted = scenario.duration_seconds
        if busy.seconds > BUSY_SHARE * lasted:
            used = {name: (traffic[name] - before[name]) / lasted for name in before}
            shares = ", ".join(f"{name} {share:.2f}" for name, share in used.items())
            outcome.remarks.append(
                f"seed {self._seed}: all processors were busy for {busy.seconds:.0f} of "
                f"{lasted:g} s of the traffic ({shares} cores on average): latencies of that time "
                "may be those of this machine"
            )

    def _start_clients(self, teller: _Teller) -> None:
        teller.stage("clients connect")
        for site in self._sites:
            site.start_clients()
        n_clients = sum(len(crew.told) for site in self._sites for crew in site.crews)
        pids = [crew.process.pid for site in self._sites for crew in site.crews]
        self._families = Families(
            {**self._broker_pids(), LINKS: [self._network.forwarder_pid], CLIENTS: pids}
        )
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
            site.start_watch()

    def _broker_pids(self) -> dict[str, list[int]]:
        return {site.name: [site.broker.process.pid] for site in self._sites}

    def _processor_seconds(self) -> dict[str, float]:
        names = [*(site.name for site in self._sites), LINKS, CLIENTS]
        return {name: self._families.processor_seconds(name) for name in names}

    def _since(self, begin_at: float) -> float:
        return time.monotonic() - begin_at + CALM_SECONDS

    def _keep(
        self,
        is_done: Callable[[], bool],
        deadline: float,
        tell: Callable[[], None] = lambda: None,
    ) -> None:
        """Look at everything until something is done, or until a monotonic second."""
        while True:
            self._network.check()
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
        for name, link in site.links.items():
            rows.links += link_rows(roster, name, link.log(), begin_at, ended_at)
        return rows
