from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from penstock.netem.clients.connection import PORT
from penstock.netem.clients.publisher import Published, read_published, read_published_file
from penstock.netem.clients.roster import Roster, publisher_files, subscriber_files
from penstock.netem.clients.subscriber import read_delivered_file
from penstock.netem.errors import RunError
from penstock.netem.links.namespaces import start_time_of
from penstock.netem.links.network import Host, Network
from penstock.netem.runs.broker_process import RunningBroker
from penstock.netem.runs.broker_topology import Crew
from penstock.netem.runs.brokers import prepare
from penstock.netem.runs.scenario import Broker, Edges, Publisher, Scenario, Stream, Subscriber
from tests.helpers.experiments import scenario
from tests.helpers.networks import NEEDS_ROOT
from tests.helpers.process import SECONDS

pytestmark = [NEEDS_ROOT, pytest.mark.usefixtures("forks")]


@pytest.fixture
def host() -> Iterator[Host]:
    """A host without a link."""
    with Network() as network:
        yield network.host("cloud")


def crew_of(plan: Scenario, host: Host, directory: Path) -> tuple[Roster, Crew]:
    """Start the broker `penstock` of a scenario and the clients of its host."""
    (directory / "broker").mkdir()
    folder = directory / "broker"
    command = prepare(plan.brokers["penstock"], folder)
    broker = RunningBroker("penstock", command, folder, host.popen)
    broker.wait_until_listening(PORT)
    roster = Roster(plan, "penstock", 1)
    crew = roster.crews(lambda _source, _host: "127.0.0.1", directory)["cloud"]
    return roster, Crew("penstock", {host.namespace: crew}, host, directory)


def wait_for(crew: Crew, word: str, client_ids: set[str]) -> None:
    """Come back when these have said something."""
    deadline = time.monotonic() + SECONDS
    while not all(word in crew.told[each] for each in client_ids):
        assert time.monotonic() < deadline, crew.told
        crew.listen()
        time.sleep(0.01)


def all_acknowledged(file: Path) -> list[Published]:
    """Return what was published once no acknowledgement is missing: subscribers may be faster."""
    deadline = time.monotonic() + SECONDS
    while True:
        published = read_published_file(file)
        if all(each.acknowledged_at is not None for each in published if each.stream):
            return published
        assert time.monotonic() < deadline, published
        time.sleep(0.01)


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_clients_publish_when_it_is_due_and_write_down_what_comes(
    protocol: Literal["3.1.1", "5"], host: Host, tmp_path: Path
) -> None:
    """At each QoS every message once, in order, after it was due; acknowledged at QoS 1 and 2."""
    names = ["qos0", "qos1", "qos2"]
    plan = scenario(
        traffic={name: Stream(name, 100, 0.05, qos=qos) for qos, name in enumerate(names)},
        publishers={"sensor": Publisher("cloud", names, protocol=protocol)},
        subscribers={"board": Subscriber("cloud", ["#"], qos=2, protocol=protocol)},
        duration_seconds=0.5,
    )
    roster, crew = crew_of(plan, host, tmp_path)
    wait_for(crew, "ready", {"sensor", "board"})
    begin_at = time.monotonic() + 0.2
    crew.begin(begin_at)
    wait_for(crew, "complete", {"board"})
    wait_for(crew, "published", {"sensor"})
    all_delivered = read_delivered_file(subscriber_files(tmp_path, 0)[0])
    all_published = all_acknowledged(publisher_files(tmp_path, 0)[0])
    for qos, name in enumerate(names):
        delivered = [each for each in all_delivered if each.stream == qos]
        published = [each for each in all_published if each.stream == qos]
        times = roster.times(roster.publishers[0], name).due_seconds()
        assert [each.number for each in delivered] == list(range(len(times)))
        assert {each.qos for each in delivered} == {qos}
        for due, sent, came in zip(times, published, delivered, strict=True):
            assert begin_at + due <= sent.published_at <= came.at
            assert (sent.acknowledged_at is None) == (qos == 0)


@pytest.mark.parametrize("lanes", ["filters", "sizes"])
def test_what_comes_over_two_connections_is_one_subscribers(
    lanes: Literal["filters", "sizes"], host: Host, tmp_path: Path
) -> None:
    """Every message once, whichever connection it came over."""
    plan = scenario(
        brokers={"penstock": Broker("penstock", lanes=lanes)},
        traffic={
            "small": Stream("alarms/1", 100, 0.05),
            "large": Stream("pictures/1", 20_000, 0.1),
        },
        subscribers={"board": Subscriber("cloud", ["alarms/#", "pictures/#"])},
        duration_seconds=0.5,
    )
    _, crew = crew_of(plan, host, tmp_path)
    wait_for(crew, "ready", {"sensor", "board"})
    crew.begin(time.monotonic())
    wait_for(crew, "complete", {"board"})
    delivered = read_delivered_file(subscriber_files(tmp_path, 0)[0])
    numbers = {n: [each.number for each in delivered if each.stream == n] for n in (0, 1)}
    assert numbers == {0: list(range(10)), 1: list(range(5))}


def test_small_messages_go_on_after_the_traffic_and_are_not_counted(
    host: Host, tmp_path: Path
) -> None:
    """A link that is good again has something to show it; results hold the traffic alone."""
    plan = scenario(
        traffic={
            "small": Stream("alarms/1", 100, 0.05),
            "large": Stream("pictures/1", 20_000, 0.05),
        },
        publishers={"sensor": Publisher("cloud", ["small", "large"])},
        subscribers={"board": Subscriber("cloud", ["#"])},
        duration_seconds=0.2,
    )
    _, crew = crew_of(plan, host, tmp_path)
    wait_for(crew, "ready", {"sensor", "board"})
    crew.begin(time.monotonic())
    wait_for(crew, "published", {"sensor"})
    wait_for(crew, "complete", {"board"})  # what was published may be on its way to the broker
    words = ["mosquitto_sub", "-t", "#", "-C", "3", "-W", str(int(SECONDS)), "-F", "%t"]
    assert host.run(words).split() == ["alarms/1"] * 3
    assert len(read_delivered_file(subscriber_files(tmp_path, 0)[0])) == 8
    assert len(read_published_file(publisher_files(tmp_path, 0)[0])) == 8


def test_a_client_that_dies_is_named_with_the_end_of_its_log(host: Host, tmp_path: Path) -> None:
    """Each is a process of its own; here one is killed."""
    _, crew = crew_of(scenario(), host, tmp_path)
    wait_for(crew, "ready", {"sensor"})
    children = subprocess.run(
        ["pgrep", "-P", str(crew.process.pid)], capture_output=True, text=True, check=True
    )
    pids = [int(pid) for pid in children.stdout.split()]
    assert len(pids) == 2, "the publisher and the witness"
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(RunError, match=r"client sensor of penstock has ended with status -9"):
        wait_for(crew, "published", {"sensor"})


def test_a_client_that_dies_just_before_the_beginning_is_named(host: Host, tmp_path: Path) -> None:
    """Its end and the word to begin come at once; it is the client that is named."""
    _, crew = crew_of(scenario(), host, tmp_path)
    wait_for(crew, "ready", {"sensor"})
    os.kill(crew.process.pid, signal.SIGSTOP)
    listed = ["pgrep", "-P", str(crew.process.pid)]
    children = subprocess.run(listed, capture_output=True, text=True, check=True)
    pid = int(children.stdout.split()[1])
    os.kill(pid, signal.SIGKILL)
    while start_time_of(pid) is not None:
        time.sleep(0.01)
    crew.begin(time.monotonic())
    os.kill(crew.process.pid, signal.SIGCONT)
    with pytest.raises(RunError, match=r"client sensor of penstock has ended with status -9"):
        wait_for(crew, "published", {"sensor"})


def test_a_refused_client_says_why(host: Host, tmp_path: Path) -> None:
    """The broker's answer stands in the failure."""
    plan = scenario(brokers={"penstock": Broker("mosquitto", lines=["allow_anonymous false"])})
    _, crew = crew_of(plan, host, tmp_path)
    with pytest.raises(RunError, match=r"(?s)has ended with status 1:.*Not authorized"):
        wait_for(crew, "ready", {"sensor"})


def test_clients_end_with_their_standard_input(host: Host, tmp_path: Path) -> None:
    """Whatever has become of who has started them."""
    _, crew = crew_of(scenario(), host, tmp_path)
    wait_for(crew, "ready", {"sensor"})
    assert crew.process.stdin is not None
    crew.process.stdin.close()
    assert crew.process.wait(SECONDS) == 0
    with pytest.raises(RunError, match="the clients of penstock have ended with status 0"):
        crew.listen()


def test_soundings_try_the_way_before_the_beginning(host: Host, tmp_path: Path) -> None:
    """The runner knows before the traffic that each stream arrives; results do not hold them."""
    plan = scenario(
        brokers={"penstock": Broker("penstock", edges=Edges(["edge"]))},
        traffic={"small": Stream("alarms/1", 100, 0.05), "large": Stream("p/1", 20_000, 0.05)},
        subscribers={"board": Subscriber("cloud", ["#"])},
        duration_seconds=0.1,
    )
    _, crew = crew_of(plan, host, tmp_path)
    wait_for(crew, "reached", {"board"})
    crew.begin(time.monotonic())
    wait_for(crew, "complete", {"board"})
    delivered = read_delivered_file(subscriber_files(tmp_path, 0)[0])
    assert sorted((each.stream, each.number) for each in delivered) == [
        *((0, 0), (0, 1), (1, 0), (1, 1))
    ]


def test_messages_are_joined_with_their_acknowledgements() -> None:
    """Packet ids tell which is whose, on each stream's connection for itself."""
    lines = ["p 0 0 1 10.0", "p 1 0 1 10.5", "a 1 1 10.75", "a 0 1 11.0", "p 0 1 2 12.0"]
    assert read_published(lines) == [
        Published(0, 0, 10.0, 11.0),
        Published(1, 0, 10.5, 10.75),
        Published(0, 1, 12.0, None),
    ]


def test_an_acknowledgement_may_be_written_before_its_message() -> None:
    """The connection's thread may be faster than the one that publishes."""
    assert read_published(["a 0 7 10.5", "p 0 0 7 10.0"]) == [Published(0, 0, 10.0, 10.5)]


def test_a_packet_id_is_used_again() -> None:
    """Each acknowledgement belongs to one message."""
    lines = ["p 0 0 7 1.0", "a 0 7 2.0", "p 0 1 7 3.0", "a 0 7 4.0", "p 0 2 7 5.0"]
    assert [each.acknowledged_at for each in read_published(lines)] == [2.0, 4.0, None]


def test_nobody_acknowledges_at_qos_0() -> None:
    """Without a packet id there is no acknowledgement."""
    assert read_published(["p 0 0 0 1.0", "p 0 1 0 2.0"]) == [
        Published(0, 0, 1.0, None),
        Published(0, 1, 2.0, None),
    ]


def test_a_publisher_that_has_not_begun_has_published_nothing(tmp_path: Path) -> None:
    """There is no file then."""
    assert read_published_file(tmp_path / "none") == []
