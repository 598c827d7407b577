"""One broker of a run in a network of its own, with its own links and clients."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from penstock.netem.clients.client_plan import CrewPlan, write_crews
from penstock.netem.clients.connection import BALANCER_PORT, PORT
from penstock.netem.clients.roster import Roster
from penstock.netem.errors import RunError
from penstock.netem.links.device_drops import DeviceDrops
from penstock.netem.links.network import Host, Link, Network
from penstock.netem.links.profiles import Profile
from penstock.netem.oracle_file import TOLD, write_told
from penstock.netem.runs.broker_process import ENVIRONMENT, RunningBroker, log_tail
from penstock.netem.runs.brokers import (
    BEHIND_SIDECAR,
    FOR_CLIENTS,
    console_address,
    prepare,
    prepare_balancer,
    prepare_edge,
    prepare_sidecar,
)
from penstock.netem.runs.oracle_states import oracle_states
from penstock.netem.runs.scenario import LinkPlan

READY_SECONDS: Final = 60.0
"""The seconds within which clients must be subscribed or connected; one more for every four
clients."""


class Crew:
    """The clients of some hosts: a process that has forked one process for each client.

    Attributes:
        told: the lines that each client has written, by client id.
    """

    def __init__(
        self, name: str, plans: Mapping[str, CrewPlan], host: Host, directory: Path
    ) -> None:
        """Start the clients."""
        clients = [each for plan in plans.values() for each in plan.clients()]
        self.told: dict[str, set[str]] = {each.client_id: set() for each in clients}
        self._logs = {each.client_id: Path(each.log) for each in clients}
        self._name = name
        self._rest = b""
        self._log = directory / "crew.log"
        file = directory / "crew.json"
        write_crews(file, plans)
        with self._log.open("wb") as log:
            self.process = host.popen(
                [sys.executable, "-m", "penstock.netem.clients.client", str(file)],
                cwd=directory,
                env=ENVIRONMENT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        if self.process.stdout is not None:
            os.set_blocking(self.process.stdout.fileno(), False)

    def begin(self, begin_at: float) -> None:
        """Tell the clients when the traffic begins."""
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # the next check reports its end
                self.process.stdin.write(f"begin {begin_at!r}\n".encode())
                self.process.stdin.flush()

    def listen(self) -> None:
        """Read what clients have said.

        Raises:
            RunError: one has ended; the text holds the end of its log.
        """
        output = self.process.stdout
        while output is not None and (data := output.read(1 << 16)):
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                word, client_id, *status = line.decode().split()
                if word == "ended":
                    tail = log_tail(self._logs[client_id])
                    raise RunError(
                        f"client {client_id} of {self._name} has ended with status {status[0]}:"
                        f"\n{tail}"
                    )
                self.told[client_id].add(word)
        if self.process.poll() is not None:
            raise RunError(
                f"the clients of {self._name} have ended with status {self.process.returncode}:"
                f"\n{log_tail(self._log)}"
            )


class BrokerTopology:
    """One broker with its sidecar, edge brokers, links and clients.

    Attributes:
        directory: the directory for the files of the broker and the clients.
        network: the network with the hosts and links of this broker alone, so that no other
            broker's packets delay its own.
        broker: the running one, on the broker's host.
        helpers: its sidecar and edge brokers, after their start.
        crew: its clients, after their start.
    """

    def __init__(self, network: Network, roster: Roster, directory: Path) -> None:
        """Make hosts and links, and start the broker, which may not serve yet.

        Raises:
            NetemError: they cannot be had, or the broker is not installed.
        """
        self.name = roster.broker
        self.roster = roster
        self.network = network
        self.directory = directory
        self.crew: Crew | None = None
        self.helpers: list[RunningBroker] = []
        self._balancer: RunningBroker | None = None
        self._bytes_before: dict[str, tuple[int, int]] = {}
        self._watch: subprocess.Popen[bytes] | None = None
        scenario = roster.scenario
        self._hosts = {
            name: network.host(
                f"{self.name}.{name}",
                congestion_control=plan.congestion_control or scenario.congestion_control,
            )
            for name, plan in scenario.topology.hosts.items()
        }
        self.links: dict[str, Link] = {}
        for plan in scenario.topology.links:
            first, second = (self._hosts[host] for host in plan.between)
            self.links[plan.name] = network.link(
                first, second, self._usual(plan), congestion_control=plan.congestion_control
            )
        self._clients_directory = directory / "clients"
        self._clients_directory.mkdir()
        directory.chmod(0o755)
        self._plan = scenario.brokers[self.name]
        broker_directory = directory / "broker"
        broker_directory.mkdir()
        command = prepare(self._plan, broker_directory)
        host = self._hosts[scenario.broker_host]
        self.broker = RunningBroker(self.name, command, broker_directory, host.popen)

    @property
    def files(self) -> Path:
        """The directory of the clients' files."""
        return self._clients_directory

    @property
    def watch_file(self) -> Path:
        """The file that the watch writes."""
        return self.directory / "withheld"

    @property
    def pids(self) -> list[int]:
        """Process ids of the broker, its sidecar and its edge brokers."""
        return [each.process.pid for each in (self.broker, *self.helpers)]

    def start_helpers(self) -> None:
        """Wait until the broker listens, and start its sidecar and edge brokers.

        A bridge that does not find its broker may try again only after half a minute. The helpers
        may not serve yet.

        Raises:
            RunError: the broker has ended, or does not listen in time.
            NetemError: one is not installed.
        """
        plan, broker_host = self._plan, self.roster.scenario.broker_host
        _, port = FOR_CLIENTS if plan.sidecar is None else BEHIND_SIDECAR
        self.broker.wait_until_listening(port)
        if plan.sidecar is not None:
            directory = self._new_directory("sidecar")
            self._start_helper("sidecar", broker_host, prepare_sidecar(plan.sidecar, directory))
        if plan.edges is not None:
            for host in plan.edges.hosts:
                directory = self._new_directory(f"edge-{host}")
                address = self._address(host, broker_host)
                command = prepare_edge(plan.edges, host, address, directory)
                self._start_helper(f"edge-{host}", host, command)
        if any(each.subscriber.through for each in self.roster.subscribers):
            directory = self._new_directory("haproxy")
            self._balancer = self._started("haproxy", broker_host, prepare_balancer(directory))

    def wait_for_helpers(self) -> None:
        """Wait until the sidecar, the edge brokers and the load balancer listen.

        Raises:
            RunError: one of them has ended, or does not listen in time.
        """
        for helper in self.helpers:
            helper.wait_until_listening(PORT)
        if self._balancer is not None:
            self._balancer.wait_until_listening(BALANCER_PORT)

    def _new_directory(self, name: str) -> Path:
        directory = self.directory / name
        directory.mkdir()
        return directory

    def _start_helper(self, name: str, host: str, command: list[str]) -> None:
        self.helpers.append(self._started(name, host, command))

    def _started(self, name: str, host: str, command: list[str]) -> RunningBroker:
        popen = self._hosts[host].popen
        return RunningBroker(f"{self.name} ({name})", command, self.directory / name, popen)

    def start_clients(self) -> None:
        """Start all clients."""
        plans = self.roster.crews(self._address, self._clients_directory)
        self.crew = Crew(
            self.name,
            {self._hosts[host].namespace: plan for host, plan in plans.items()},
            self._hosts[self.roster.scenario.broker_host],
            self.directory,
        )

    def clients_are_ready(self) -> bool:
        """Say whether all are connected and subscribed.

        Raises:
            RunError: the broker or a client has failed.
        """
        self.check()
        return all("ready" in told for told in self.told.values())

    def not_reached(self) -> list[str]:
        """Return the subscribers that edge brokers have not yet joined with all publishers."""
        if self._plan.edges is None:
            return []
        waiting = {
            each.client_id for each in self.roster.subscribers if any(self.roster.expected_by(each))
        }
        return sorted(
            client_id
            for client_id, told in self.told.items()
            if client_id in waiting and "reached" not in told
        )

    def start_watch(self) -> None:
        """Look at what the broker withholds from now on, where it can be asked."""
        scenario = self.roster.scenario
        address = console_address(self._plan)
        focus = {
            client_id
            for each in self.roster.subscribers
            if each.is_focus
            for client_id in self.roster.known_as(each)
        }
        if address is None or not focus:
            return
        period = scenario.measurements.withheld_period_seconds
        command = [sys.executable, "-m", "penstock.netem.runs.withheld_watch"]
        command += [address, str(period), str(self.watch_file), *sorted(focus)]
        with self._watch_log.open("wb") as log:
            self._watch = self._hosts[scenario.broker_host].popen(
                command, cwd=self.directory, env=ENVIRONMENT, stderr=log
            )

    def begin(self, begin_at: float) -> None:
        """Let clients and impairments begin at a monotonic second."""
        scenario, seed = self.roster.scenario, self.roster.seed
        if self._plan.kind == "oracle":
            write_told(self.directory / "broker" / TOLD, oracle_states(self.roster, begin_at))
        for impairment in scenario.impairments:
            changes = scenario.changes_of(impairment, seed)
            self.links[impairment.link].follow(changes, begin_at)
        if self.crew is not None:
            self.crew.begin(begin_at)

    def note_bytes(self) -> None:
        """Note what the links have carried before the traffic."""
        for name, link in self.links.items():
            upstream, downstream = link.counts()
            self._bytes_before[name] = upstream.carried_bytes, downstream.carried_bytes

    def bytes_before(self, link: str) -> tuple[int, int]:
        """Return what a link had carried when the traffic began: upstream, and downstream."""
        return self._bytes_before[link]

    def restore_links(self) -> None:
        """Make the links what the topology says."""
        impaired = {impairment.link for impairment in self.roster.scenario.impairments}
        for plan in self.roster.scenario.topology.links:
            if plan.name in impaired:
                self.links[plan.name].switch(self._usual(plan))

    def _usual(self, plan: LinkPlan) -> Profile:
        """Return what the topology says that a link is."""
        scenario, seed = self.roster.scenario, self.roster.seed
        return scenario.profiles_of(plan.name, seed)[plan.profile]

    def check(self) -> None:
        """See that the broker, its helpers, clients and the watch run.

        Raises:
            RunError: one of them has ended.
        """
        self.network.check()
        self.broker.check()
        for helper in self.helpers:
            helper.check()
        if self._balancer is not None:
            self._balancer.check()
        if self.crew is not None:
            self.crew.listen()
        if self._watch is not None and self._watch.poll() is not None:
            raise RunError(
                f"the watch of {self.name} has ended with status {self._watch.returncode}:"
                f"\n{log_tail(self._watch_log)}"
            )

    def device_drops(self) -> dict[str, dict[str, DeviceDrops]]:
        """Return what the devices of each host dropped, by host and `Link.device`."""
        return {name: host.device_drops() for name, host in self._hosts.items()}

    def not_ready(self) -> list[str]:
        """Return the client ids of those who are not connected and subscribed."""
        return [client_id for client_id, told in self.told.items() if "ready" not in told]

    def has_published(self) -> bool:
        """Say whether all publishers have published all."""
        told = self._told_of({each.client_id for each in self.roster.publishers})
        return all("published" in each for each in told)

    def has_all(self) -> bool:
        """Say whether all subscribers have everything."""
        return all("complete" in each for each in self._told_of(self._subscribers))

    def has_all_promised(self) -> bool:
        """Say whether all subscribers have everything that was published at QoS 1 or 2 for them."""
        return all("assured" in each for each in self._told_of(self._subscribers))

    def newest_delivery_seconds(self) -> float:
        """Return for how many seconds no subscriber has got anything."""
        files = [file for file in self.files.glob("subscriber*") if not file.suffix]
        return time.time() - max((file.stat().st_mtime for file in files), default=0.0)

    @property
    def _watch_log(self) -> Path:
        return self.directory / "watch.log"

    @property
    def _subscribers(self) -> set[str]:
        return {each.client_id for each in self.roster.subscribers}

    @property
    def told(self) -> Mapping[str, set[str]]:
        """The words that each client has said, by client id; none before they are started."""
        return {} if self.crew is None else self.crew.told

    def _told_of(self, client_ids: set[str]) -> Iterator[set[str]]:
        return (told for client_id, told in self.told.items() if client_id in client_ids)

    def _address(self, source: str, destination: str) -> str:
        """Return the address at which a host reaches another."""
        return self.network.address(self._hosts[source], self._hosts[destination])
