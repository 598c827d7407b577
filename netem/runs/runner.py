"""The runner of a scenario: each seed with its brokers side by side, each with links of its own.

A round is a seed with as many brokers as run at a time, each in a network of its own, and in a
scenario with kinds of links with as many kinds as run at a time. The brokers start first, then all
clients. When all clients are subscribed or connected, links stay unimpaired for a moment. Then
traffic and impairments begin at the same monotonic second everywhere; with kinds, for one broker
after the other. At the end of the traffic links have the topology's profiles again, and missing
messages get some time to arrive.
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
from penstock.netem.errors import RunError
from penstock.netem.figures.table_rows import MachineRow, MemoryRow, RunRow, Tables
from penstock.netem.links.forwarder_messages import Lateness
from penstock.netem.links.namespaces import NAME_PREFIX, is_leftover, own_prefix
from penstock.netem.links.network import Network
from penstock.netem.progress_display import Display
from penstock.netem.runs.broker_topology import READY_SECONDS, BrokerTopology
from penstock.netem.runs.kind_links import parts
from penstock.netem.runs.machine_load import LOOK_SECONDS as LOAD_LOOK_SECONDS
from penstock.netem.runs.machine_load import Load, LoadTotals, describe_doubt, load_between, look
from penstock.netem.runs.processes import Families, IdleClass
from penstock.netem.runs.result_rows import (
    delivery_rows,
    link_rows,
    message_rows,
    packets_rows,
    withheld_rows,
)
from penstock.netem.runs.run_file import ProcessorShare
from penstock.netem.runs.scenario import Scenario

LOOK_SECONDS: Final = 0.1
"""The time between two looks at everything that runs."""

SILENT_SECONDS: Final = 60.0
"""The silence after which missing messages of QoS 0 are not waited for, seconds. TCP doubles its
retransmission timeout with each loss, and can stay silent for as long as the link was bad."""

SETTLE_SECONDS: Final = 1.0
"""The time for which a run waits after the last delivery, for its acknowledgement and for
repeated messages."""

DOUBTFUL_SHARE: Final = 0.01
"""The share of the traffic's time for which the machine may be busy without a remark: a p99 does
not show it."""

KINDS_APART_SECONDS: Final = 2.0
"""The time between the beginnings of two brokers in a scenario with kinds of links. When links
turn good, all waiting messages arrive within a second or two. With equal beginnings, those of
all brokers would arrive together."""

EVERYTHING: Final = "everything"
"""The name of the group of this process and all that it has started."""


@dataclass(slots=True)
class RunOutcome:
    """The results of a run.

    Attributes:
        remarks: the reasons to doubt the figures, a line each.
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


def run_scenario(scenario: Scenario, display: Display) -> RunOutcome:
    """Run a scenario.

    Raises:
        RunError: a broker, a client or a link has failed; all processes and networks have been
            ended.
        NetemError: networks cannot be made, or a broker is not installed.
        OSError: a temporary file cannot be written, such as on a full disk.
    """
    outcome = RunOutcome()
    left = planned_seconds(scenario)
    rounds = itertools.product(
        enumerate(scenario.seeds, start=1), parts(scenario), scenario.groups()
    )
    for number, ((n, seed), part, group) in enumerate(rounds, start=1):
        names = [*part.kinds, *group]
        words = f"seed {n} of {len(scenario.seeds)}, {', '.join(names)}"
        # The folder goes last: who writes into it has ended by then.
        with temporary_folder() as folder, ExitStack() as held:
            networks = {name: held.enter_context(Network(seed=seed)) for name in group}
            one = _Round(part, seed, number, networks, folder)
            one.run(outcome, _RoundDisplay(display, words, left))
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
class _RoundDisplay:
    """The display of one round's progress.

    Attributes:
        left_seconds: the least time that this and the following rounds take.
    """

    display: Display
    words: str
    left_seconds: float

    def stage(self, what: str) -> None:
        self.display.stage(f"{what}; {self.words}")

    def done(self, seconds: float) -> None:
        self.display.left(self.left_seconds - seconds)


class _Round:
    """A round: a seed with some brokers."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        number: int,
        networks: Mapping[str, Network],
        folder: Path,
    ) -> None:
        """Make hosts and links, and start brokers."""
        self._scenario = scenario
        self._seed = seed
        self._number = number
        folder.chmod(0o755)  # brokers may leave their rights
        self._topologies = []
        for name, network in networks.items():
            directory = folder / name
            directory.mkdir()
            self._topologies.append(
                BrokerTopology(network, Roster(scenario, name, seed), directory)
            )
        self._memory: list[tuple[str, float, int]] = []
        self._memory_due_at = time.monotonic()
        self._families = Families({})

    def run(self, outcome: RunOutcome, teller: _RoundDisplay) -> None:
        """Run the round and add what came out of it."""
        scenario, topologies = self._scenario, self._topologies
        teller.stage("brokers start")
        for topology in topologies:
            topology.start_helpers()
        for topology in topologies:
            topology.wait_for_helpers()
        self._families = Families({topology.name: topology.pids for topology in topologies})
        self._start_clients(teller)
        begin_at = time.monotonic() + scenario.calm_seconds
        begins = {
            topology.name: begin_at + n * apart_seconds(scenario)
            for n, topology in enumerate(topologies)
        }
        for topology in topologies:
            topology.begin(begins[topology.name])
        teller.stage("calm")
        self._keep(lambda: False, begin_at, lambda: teller.done(self._since(begin_at)))
        before = self._processor_seconds()
        for topology in topologies:
            topology.note_bytes()
        watch = _LoadWatch(self._topologies)
        end_at = max(begins.values()) + scenario.duration_seconds
        running = list(topologies)

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
        if unfinished := [topology.name for topology in topologies if not topology.has_published()]:
            raise RunError(f"publishers of {', '.join(unfinished)} have not published all messages")
        ended_at = time.monotonic()
        after = self._processor_seconds()
        for topology in topologies:
            share = (after[topology.name] - before[topology.name]) / (ended_at - begin_at)
            outcome.processor.append(ProcessorShare(topology.name, self._seed, share))
            rows = self._rows(topology, begins[topology.name], ended_at)
            dropped = sum(row.harness_dropped for row in rows.packets)
            lateness = watch.lateness[topology.name]
            rows.runs.append(
                RunRow(
                    topology.name, self._seed, self._number, dropped, *dataclasses.astuple(lateness)
                )
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
            names = ", ".join(
                [*self._scenario.kinds, *(topology.name for topology in self._topologies)]
            )
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

    def _start_clients(self, teller: _RoundDisplay) -> None:
        teller.stage("clients connect")
        for topology in self._topologies:
            topology.start_clients()
        n_clients = sum(len(topology.told) for topology in self._topologies)
        seconds = READY_SECONDS + n_clients / 4
        self._keep(
            lambda: all(topology.clients_are_ready() for topology in self._topologies),
            time.monotonic() + seconds,
        )
        for topology in self._topologies:
            if names := topology.not_ready():
                raise RunError(
                    f"clients of {topology.name} are not connected and subscribed after "
                    f"{seconds:.0f} s: {', '.join(names[:10])}"
                )
        deadline = time.monotonic() + seconds
        self._keep(
            lambda: not any(topology.not_reached() for topology in self._topologies), deadline
        )
        for topology in self._topologies:
            if names := topology.not_reached():
                raise RunError(
                    f"edge brokers of {topology.name} do not forward all publishers' messages to "
                    f"these subscribers after {seconds:.0f} s: {', '.join(names[:10])}"
                )
            topology.start_watch()

    def _processor_seconds(self) -> dict[str, float]:
        return {
            topology.name: self._families.processor_seconds(topology.name)
            for topology in self._topologies
        }

    def _since(self, begin_at: float) -> float:
        return time.monotonic() - begin_at + self._scenario.calm_seconds

    def _keep(
        self, is_done: Callable[[], bool], deadline: float, tell: Callable[[], None] = lambda: None
    ) -> None:
        """Look at everything until something is done, or until a monotonic second."""
        while True:
            for topology in self._topologies:
                topology.check()
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
        for topology in self._topologies:
            self._memory.append((topology.name, now, self._families.rss_bytes(topology.name)))

    def _is_drained(self) -> bool:
        return all(
            topology.has_published()
            and (
                topology.has_all()
                or (
                    topology.has_all_promised()
                    and topology.newest_delivery_seconds() > SILENT_SECONDS
                )
            )
            for topology in self._topologies
        )

    def _rows(self, topology: BrokerTopology, begin_at: float, ended_at: float) -> Tables:
        roster = topology.roster
        rows = Tables(
            messages=message_rows(roster, topology.files, begin_at),
            deliveries=delivery_rows(roster, topology.files, begin_at),
            expected=roster.expected(),
            memory=[
                MemoryRow(name, self._seed, at - begin_at, rss_bytes)
                for name, at, rss_bytes in self._memory
                if name == topology.name
            ],
            withheld=withheld_rows(roster, topology.watch_file, begin_at),
        )
        drops = topology.device_drops()
        for plan in self._scenario.topology.links:
            link = topology.links[plan.name]
            rows.links += link_rows(roster, plan.name, link.log(), begin_at, ended_at)
            rows.packets += packets_rows(
                roster, plan, link.device, link.counts(), topology.bytes_before(plan.name), drops
            )
        return rows


class _LoadWatch:
    """A thread that measures the load of the machine and the lateness of forwarders each second.

    Attributes:
        loads: the load of each second, from the making of this object on.
        lateness: the lateness of each broker's forwarder in this time, by the broker's name.
    """

    def __init__(self, topologies: Sequence[BrokerTopology]) -> None:
        self.loads: list[Load] = []
        self.lateness = {topology.name: Lateness() for topology in topologies}
        self._networks = {topology.name: topology.network for topology in topologies}
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

    def _look(self) -> LoadTotals:
        families = self._families
        return look(
            time.monotonic(),
            families.processor_seconds(EVERYTHING),
            self._idle_class.processor_seconds(),
            families.waits(EVERYTHING),
        )
