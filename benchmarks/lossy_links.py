"""What does each policy of `withholding` do on a link that is really lossy?

Rerun: ``python -m benchmarks.lossy_links``, as root; a look in a minute with ``--quick``.

Brokers stand side by side, each on a host of its own, each with one subscriber at QoS 1 behind a
link of its own (`penstock.netem.links.network`: real TCP, packets of 1,500 bytes): Penstock with
each policy (T_Q 1 s, the example policy's other values; ``adaptive-learned`` is `adaptive` with
``profile: learned``, ``adaptive-breaking`` with `break_off_after`) and mosquitto. Their sessions
outlive a connection, and the subscriber connects again. ``--link`` says what the links do
(`CASES`), ``--congestion-control`` what the brokers' TCP makes of it. Most links are good (20 ms
each way, 20 Mbit/s) and bad in turn, all at the same times, drawn from a seed: exponential
durations. Publishers beside each broker send 100 bytes every 0.5 s and 1 MB every 5 s at QoS 1.
Latency counts from the moment a message is due to its last byte at the subscriber. At the end the
links become good, small messages go on for 15 s, and what is missing after two minutes is lost.

Side by side, all brokers of a seed take a tenth of a core, so they do not disturb each other; the
table says what it was. Seeds run one after the other, or ``--at-once`` so many.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import psutil
import typer
import yaml

from benchmarks.errors import BenchmarkError
from benchmarks.loads.lossy_load import PORT, STREAMS, read_arrivals
from benchmarks.lossy_report import Outcome, compare, to_markdown, verdict
from benchmarks.peers import EXAMPLE_POLICY, without_queue_limits
from benchmarks.program import JsonFile, Program, choose, describe_run, tell, write_json
from penstock.netem.links.link_variation import Changes, OnOff, Trace
from penstock.netem.links.network import DEFAULT_CONGESTION_CONTROL, Host, Network
from penstock.netem.links.profiles import GOOD, LOSSY, LOSSY_DOWNSTREAM, Direction, Profile
from penstock.netem.runs.broker_process import (
    ENVIRONMENT,
    log_tail,
    mosquitto_command,
    penstock_command,
)

POLICIES: Final = ("none", "conservative", "probabilistic", "historic", "adaptive")
LEARNED: Final = "learned"
BREAKING: Final = "adaptive-breaking"
BREAK_OFF_AFTER: Final = 3.0
"""Seconds; some more than a client takes to come back over a link that is bad."""

MOSQUITTO: Final = "mosquitto"
BY_DEFAULT: Final = (*POLICIES, MOSQUITTO)
BROKERS: Final = (*BY_DEFAULT, BREAKING, *(f"{policy}-{LEARNED}" for policy in POLICIES[1:]))
MEAN_SECONDS: Final = 17.5
PUBACK_SECONDS: Final = 10.0
"""What the publisher gets to end, once the subscriber has everything: its broker is beside it."""
LONG_SECONDS: Final = 60.0

MILD: Final = Profile(
    "mild", Direction(0.02, 2_500_000, loss=0.02), Direction(0.02, 2_500_000, loss=0.02)
)
CLIFF: Final = Profile("cliff", Direction(0.02, 125_000), Direction(0.02, 125_000))


class Case(enum.StrEnum):
    """What the links do."""

    LOSSY = "lossy"
    DOWNSTREAM = "downstream"
    LONG = "long"
    CLIFF = "cliff"
    MILD = "mild"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class State:
    """What a link is when it is not good.

    Attributes:
        about: in words.
        bad: the link then.
        bad_seconds: for how long on average, being good for `MEAN_SECONDS` in between; None for
            always.
    """

    about: str
    bad: Profile
    bad_seconds: float | None

    @property
    def at_first(self) -> Profile:
        """The link on which clients connect."""
        return self.bad if self.bad_seconds is None else GOOD

    def changes(self, seed: int) -> Changes:
        """Return when a link is which."""
        if self.bad_seconds is None:
            return Trace((0.0,), (self.bad,))
        return OnOff(GOOD, self.bad, MEAN_SECONDS, self.bad_seconds, seed)


CASES: Final = {
    Case.LOSSY: State("100 ms and 20 % loss each way, 17.5 s", LOSSY, MEAN_SECONDS),
    Case.DOWNSTREAM: State(
        "the same, lost towards the client alone", LOSSY_DOWNSTREAM, MEAN_SECONDS
    ),
    Case.LONG: State("100 ms and 20 % loss each way, 60 s", LOSSY, LONG_SECONDS),
    Case.CLIFF: State("1 Mbit/s in place of 20, 17.5 s", CLIFF, MEAN_SECONDS),
    Case.MILD: State("2 % loss each way, always", MILD, None),
    Case.ALWAYS: State("100 ms and 20 % loss each way, always", LOSSY, None),
    Case.NEVER: State("always good", GOOD, None),
}
CALM_SECONDS: Final = 5.0
"""Between the last subscription and the beginning: publishers start, and the link is known."""

LONGER_SECONDS: Final = 15.0
"""For which small messages go on after the end of a run."""

DRAIN_SECONDS: Final = 120.0
QUICK_SECONDS: Final = 40.0
LOOK_SECONDS: Final = 0.2
CPU_LOOK_SECONDS: Final = 5.0


def _penstock(directory: Path, name: str) -> list[str]:
    """Write Penstock's policy file; return its command."""
    policy, _, profile = name.partition("-")
    settings: dict[str, Any] = without_queue_limits(yaml.safe_load(EXAMPLE_POLICY.read_text()))
    settings["listeners"] = {"default": {"type": "tcp", "bind": f"0.0.0.0:{PORT}"}}
    plugins = settings["plugins"]
    del plugins["queue"]  # takes the pictures and needs a disk
    plugins["withholding"]["policy"] = policy
    if name == BREAKING:
        plugins["withholding"]["break_off_after"] = BREAK_OFF_AFTER
    elif profile:
        plugins["withholding"]["profile"] = profile
    return penstock_command(directory, settings)


def _mosquitto(directory: Path) -> list[str]:
    """Write mosquitto's configuration; return its command."""
    lines = [f"listener {PORT} 0.0.0.0", "allow_anonymous true", "max_queued_messages 0"]
    return mosquitto_command(directory, lines)


class Site:
    """One broker, its publisher and its subscriber, on two hosts and the link between.

    Attributes:
        name: of the broker.
        seed: of the link's times.
        link: what its subscriber is behind.
        processes: those started so far, by what they are.
    """

    def __init__(
        self,
        network: Network,
        name: str,
        seed: int,
        directory: Path,
        profile: Profile,
        congestion_control: str,
    ) -> None:
        """Start the broker.

        Args:
            network: where.
            name: of the policy, or mosquitto.
            seed: of the link's times.
            directory: an empty one.
            profile: of the link at first.
            congestion_control: of the broker's connections.
        """
        self.name = name
        self.seed = seed
        self._directory = directory
        self._cloud = network.host(f"cloud-{name}", congestion_control=congestion_control)
        self._edge = network.host(f"edge-{name}")
        self.link = network.link(self._cloud, self._edge, profile)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        command = _mosquitto(directory) if name == MOSQUITTO else _penstock(directory, name)
        self._start("broker", self._cloud, command)

    def subscribe(self, expected: int) -> None:
        """Start the subscriber, which leaves when it has so many messages."""
        address, file = self.link.server_address, str(self._arrivals)
        self._start_load("subscriber", self._edge, "record", address, file, str(expected))
        output = self.processes["subscriber"].stdout
        while output is not None and not select.select([output], [], [], LOOK_SECONDS)[0]:
            if self.processes["broker"].poll() is not None:
                raise self._failure("broker")
        if output is None or not output.readline():
            raise self._failure("subscriber")

    def publish(self, begin_at: float, seconds: float) -> None:
        """Start the publishers: the run begins at a monotonic second and lasts so long."""
        self._start_load(
            "publisher", self._cloud, "publish", *map(repr, (begin_at, seconds, LONGER_SECONDS))
        )

    def outcome(self, expected: int, deadline: float) -> Outcome:
        """Wait for the subscriber to have everything, or for the deadline; return what it has.

        Raises:
            BenchmarkError: the broker, its publisher or its subscriber has failed.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.processes["subscriber"].wait(max(0.0, deadline - time.monotonic()))
        if self.processes["subscriber"].poll():
            raise self._failure("subscriber")
        if self.processes["broker"].poll() is not None:
            raise self._failure("broker")
        # The subscriber may have the last message before the publisher has its acknowledgement.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.processes["publisher"].wait(PUBACK_SECONDS)
        if self.processes["publisher"].poll() != 0:
            raise self._failure("publisher")
        arrivals = read_arrivals(self._arrivals)
        upstream, downstream = self.link.counts()
        packets = {"upstream": asdict(upstream), "downstream": asdict(downstream)}
        lost = expected - len(arrivals)
        return Outcome(self.name, self.seed, arrivals, lost, self.link.log(), packets)

    @property
    def _arrivals(self) -> Path:
        return self._directory / "arrivals"

    def _failure(self, name: str) -> BenchmarkError:
        words = log_tail(self._directory / f"{name}.log")
        return BenchmarkError(f"{self.name}: the {name} has failed: {words}")

    def _start_load(self, name: str, host: Host, *words: str) -> None:
        self._start(name, host, [sys.executable, "-m", "benchmarks.loads.lossy_load", *words])

    def _start(self, name: str, host: Host, command: list[str]) -> None:
        with (self._directory / f"{name}.log").open("wb") as log:
            output = log if name == "broker" else subprocess.PIPE
            self.processes[name] = host.popen(
                command, cwd=self._directory, env=ENVIRONMENT, stdout=output, stderr=log
            )


def run_side_by_side(
    brokers: Sequence[str],
    seeds: Sequence[int],
    seconds: float,
    state: State,
    congestion_control: str,
) -> tuple[list[Outcome], float]:
    """Let each broker serve its subscriber over a link that is bad at the same times.

    Args:
        brokers: names of policies, or mosquitto.
        seeds: of those times; the runs of each are side by side too, on networks of their own.
        seconds: that messages are published.
        state: what the links are when they are not good.
        congestion_control: of the brokers' connections.

    Returns:
        What became of each broker on each seed, and the share of one core that all of it took.

    Raises:
        BenchmarkError: a process has failed.
        NetemError: the network cannot be had.
    """
    expected = sum(each.count(seconds, LONGER_SECONDS) for each in STREAMS.values())
    with ExitStack() as stack:
        # Folders go last: who writes into them has ended by then.
        whole = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-lossy-")))
        whole.chmod(0o755)  # mosquitto leaves its rights
        networks = {seed: stack.enter_context(Network(seed=seed)) for seed in seeds}
        sites = []
        for seed, name in itertools.product(seeds, brokers):
            directory = whole / f"{name}-{seed}"
            directory.mkdir()
            sites.append(
                Site(networks[seed], name, seed, directory, state.at_first, congestion_control)
            )
        for site in sites:
            site.subscribe(expected)
        begin_at = time.monotonic() + CALM_SECONDS
        for site in sites:
            site.publish(begin_at, seconds)
            site.link.follow(state.changes(site.seed), begin_at)
        time.sleep(max(0.0, begin_at - time.monotonic()))
        forwarders = [network.forwarder_pid for network in networks.values()]
        meter = CpuMeter([*forwarders, *(p.pid for site in sites for p in site.processes.values())])
        while time.monotonic() < begin_at + seconds:
            time.sleep(max(0.0, min(CPU_LOOK_SECONDS, begin_at + seconds - time.monotonic())))
            meter.look()
        for site in sites:
            site.link.switch(GOOD)
        deadline = time.monotonic() + DRAIN_SECONDS
        return [site.outcome(expected, deadline) for site in sites], meter.share


class CpuMeter:
    """What share of one core some processes take, until each ends."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._processes = [psutil.Process(pid) for pid in pids]
        self._began_at = self._looked_at = time.monotonic()
        self._before = self._seconds()
        self._after = dict(self._before)

    def look(self) -> None:
        """Read the processes' times."""
        self._after |= self._seconds()
        self._looked_at = time.monotonic()

    @property
    def share(self) -> float:
        """Processor seconds for each second, up to the newest look."""
        used = sum(self._after[pid] - before for pid, before in self._before.items())
        return used / (self._looked_at - self._began_at)

    def _seconds(self) -> dict[int, float]:
        seconds = {}
        for process in self._processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                seconds[process.pid] = times.user + times.system
        return seconds


def run(
    seeds: Annotated[int, typer.Option(min=1, help="Runs, each with its own times.")] = 3,
    seconds: Annotated[float, typer.Option(min=10, help="Of each run.")] = 300.0,
    brokers: Annotated[str, typer.Option(help=f"Of {', '.join(BROKERS)}.")] = ",".join(BY_DEFAULT),
    link: Annotated[Case, typer.Option(help="What the links do.")] = Case.LOSSY,
    at_once: Annotated[
        int, typer.Option(min=1, help="Runs side by side; a tenth of a core for each.")
    ] = 1,
    congestion_control: Annotated[
        str, typer.Option(help="Of the brokers' connections: cubic, bbr.")
    ] = DEFAULT_CONGESTION_CONTROL,
    json_file: JsonFile = None,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="One run of 40 seconds.")] = False,
) -> None:
    """Compare policies on links that are lossy at the same times."""
    names = choose("broker", brokers, {name: name for name in BROKERS})
    if quick:
        seeds, seconds = 1, QUICK_SECONDS
    outcomes: list[Outcome] = []
    shares = []
    for first in range(1, seeds + 1, at_once):
        some = range(first, min(first + at_once, seeds + 1))
        print(f"seeds {list(some)} of {seeds}: {seconds:g} s and what is left", file=sys.stderr)
        of_some, share = run_side_by_side(names, some, seconds, CASES[link], congestion_control)
        outcomes += of_some
        shares.append(share)
    comparisons = compare(outcomes)
    bad = sum(bad_seconds(each.link_log) for each in outcomes[:: len(names)]) / (seconds * seeds)
    run = describe_run()
    write_json(json_file, {"about": run, "runs": [asdict(outcome) for outcome in outcomes]})
    lines = [
        *(verdict(comparisons), "", *to_markdown(outcomes, comparisons), ""),
        f"Links were bad ({CASES[link].about}) for {100 * bad:.0f} % of the time.",
        f"All processes took {max(shares):.2f} of one core at most.",
    ]
    tell(lines, run)


def bad_seconds(log: Sequence[tuple[float, str]]) -> float:
    """Return how long a link was not good."""
    return sum(
        until - since for (since, name), (until, _) in itertools.pairwise(log) if name != GOOD.name
    )


main: Final = Program(run, "python -m benchmarks.lossy_links")


if __name__ == "__main__":
    sys.exit(main())
