from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.netem.errors import NetemError, RunError
from penstock.netem.links.namespaces import FOLDER, own_prefix, start_time_of
from penstock.netem.progress_display import Display
from penstock.netem.runs import broker_topology, processes, runner
from penstock.netem.runs.processes import Families, IdleClass
from penstock.netem.runs.runner import (
    KINDS_APART_SECONDS,
    apart_seconds,
    planned_seconds,
    run_scenario,
    temporary_folder,
)
from penstock.netem.runs.scenario import Broker, Edges
from tests.helpers.experiments import scenario
from tests.helpers.kinds import kind_scenario
from tests.helpers.networks import NEEDS_ROOT

DISPLAY = Display("test", 1.0)

pytestmark = pytest.mark.usefixtures("forks")


def our_namespaces() -> list[str]:
    """Return the namespaces that this process has made and not removed."""
    if not FOLDER.exists():
        return []
    return [each.name for each in FOLDER.iterdir() if each.name.startswith(own_prefix())]


def test_seconds_are_planned_for_each_seed_and_each_turn_of_brokers() -> None:
    """Two brokers, one at a time, on three seeds: six rounds, each with its calm."""
    plan = scenario(seeds=[1, 2, 3], side_by_side=1, duration_seconds=10.0, calm_seconds=2.0)
    assert planned_seconds(plan) == 6 * 12.0


def test_brokers_begin_one_after_the_other_with_kinds() -> None:
    """The fifth broker begins four times the delay after the first, in each round."""
    plan = kind_scenario()
    assert apart_seconds(plan) == KINDS_APART_SECONDS
    round_seconds = plan.calm_seconds + plan.duration_seconds + 4 * KINDS_APART_SECONDS
    assert planned_seconds(plan) == pytest.approx(6 * round_seconds)
    assert apart_seconds(scenario()) == 0.0


def test_folders_of_processes_that_were_killed_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the next run; not those of one that goes on, nor anything of others."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen(["sleep", "1000"]) as other:
        stays = [f"penstock-{other.pid}-{start_time_of(other.pid)}-x", "penstock-netem", "thesis"]
        goes = f"penstock-{other.pid}-1-x"
        for name in (*stays, goes):
            (tmp_path / name / "broker").mkdir(parents=True)
        with temporary_folder() as folder:
            assert folder.parent == tmp_path
            assert {each.name for each in tmp_path.iterdir()} == {*stays, folder.name}
        assert {each.name for each in tmp_path.iterdir()} == set(stays)
        other.kill()


@NEEDS_ROOT
@pytest.mark.parametrize(
    ("broker", "words"),
    [
        (
            Broker("penstock", settings={"plugins": {"withholding": {"policy": "wishful"}}}),
            r"(?s)broker ours has ended with status 2: .*-m penstock.broker -c .*wishful",
        ),
        (
            Broker("mosquitto", lines=["no_such_key 1"]),
            r"(?s)broker ours has ended with status 3: .*mosquitto.*no_such_key",
        ),
        (
            Broker("mosquitto", edges=Edges(["edge"], "mosquitto", lines=["no_such_key 1"])),
            r"(?s)broker ours \(edge-edge\) has ended with status 3: .*mosquitto.*no_such_key",
        ),
        (
            Broker("command", command=["sleep", "1000"]),
            r"broker ours does not listen on port 1883 after 0.5 s: .*sleep 1000\n\(its log",
        ),
    ],
)
def test_a_broker_that_does_not_start_is_named_with_its_log(
    broker: Broker, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its command; nothing of the network is left."""
    monkeypatch.setattr(
        "penstock.netem.runs.broker_process.START_SECONDS",
        0.5 if broker.kind == "command" else 60.0,
    )
    with pytest.raises(RunError, match=words):
        run_scenario(scenario(brokers={"ours": broker}), DISPLAY)
    assert our_namespaces() == []


@NEEDS_ROOT
def test_a_broker_that_is_not_installed_is_named() -> None:
    """So that it can be installed, or left out."""
    missing = scenario(brokers={"ours": Broker("command", command=["no-such-broker"])})
    with pytest.raises(NetemError, match="no-such-broker is not installed"):
        run_scenario(missing, DISPLAY)
    assert our_namespaces() == []


@NEEDS_ROOT
def test_a_client_that_is_refused_is_named() -> None:
    """With what the broker has said."""
    broker = Broker("mosquitto", lines=["allow_anonymous false"])
    words = r"(?s)client \S+ of ours has ended with status 1:.*Not authorized"
    with pytest.raises(RunError, match=words):
        run_scenario(scenario(brokers={"ours": broker}), DISPLAY)
    assert our_namespaces() == []


@NEEDS_ROOT
def test_clients_that_are_not_ready_in_time_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something listens, and never answers."""
    monkeypatch.setattr(runner, "READY_SECONDS", 1.0)
    silent = "import socket, time; s = socket.create_server(('', 1883)); time.sleep(1000)"
    plan = scenario(brokers={"ours": Broker("command", command=["python3", "-c", silent])})
    with pytest.raises(RunError, match=r"clients of ours are not connected .*dashboard"):
        run_scenario(plan, DISPLAY)
    assert our_namespaces() == []


@NEEDS_ROOT
@pytest.mark.parametrize(
    ("victim", "words"),
    [
        (lambda one: one.broker.process.pid, "broker mosquitto has ended with status -9"),
        (lambda one: one.network.forwarder_pid, "the forwarder has ended with status -9"),
    ],
    ids=["broker", "forwarder"],
)
def test_what_dies_in_the_middle_is_named(
    victim: Callable[[broker_topology.BrokerTopology], int],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker, or what carries the links: all are looked at all the time."""
    begin = broker_topology.BrokerTopology.begin

    def kill_and_begin(one: broker_topology.BrokerTopology, begin_at: float) -> None:
        begin(one, begin_at)
        os.kill(victim(one), signal.SIGKILL)

    monkeypatch.setattr(broker_topology.BrokerTopology, "begin", kill_and_begin)
    with pytest.raises(RunError, match=words):
        run_scenario(
            scenario(brokers={"mosquitto": Broker("mosquitto")}, calm_seconds=0.5), DISPLAY
        )
    assert our_namespaces() == []


@NEEDS_ROOT
def test_the_folder_goes_when_nobody_writes_into_it_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker may save its state as it ends; nobody trips over what it makes then."""
    running = []
    remove = shutil.rmtree

    def look_and_remove(path: str, **options: Any) -> None:
        running.append(our_namespaces())
        remove(path, **options)

    monkeypatch.setattr(shutil, "rmtree", look_and_remove)
    missing = scenario(brokers={"ours": Broker("command", command=["no-such-broker"])})
    with pytest.raises(NetemError):
        run_scenario(missing, DISPLAY)
    assert running
    assert not any(running)


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""

CHILD = """
import sys, time
end = time.process_time() + 0.2
while time.process_time() < end:
    pass
memory = b"x" * 50_000_000
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def parent() -> Iterator[int]:
    """Process id of a program that has started one with 50 MB."""
    with subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        yield process.pid
        with suppress(ProcessLookupError):
            os.kill(child, 9)


def test_what_a_process_has_started_counts_with_it(parent: int) -> None:
    """A broker may be a script that starts one."""
    families = Families({"broker": [parent], "me": [os.getpid()]})
    assert families.rss_bytes("broker") > 50_000_000
    assert families.processor_seconds("broker") >= 0.2


def test_a_process_that_has_ended_takes_nothing_and_its_time_is_kept(
    parent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processor time is what was seen of it."""
    monkeypatch.setattr(processes, "FAMILY_SECONDS", 0.0)
    with subprocess.Popen(["sleep", "1000"]) as process:
        families = Families({"broker": [parent, process.pid]})
        before = families.processor_seconds("broker")
        process.kill()
    assert families.rss_bytes("broker") > 50_000_000
    assert families.processor_seconds("broker") >= before


@pytest.mark.skipif(os.sched_getscheduler(0) == os.SCHED_IDLE, reason="nothing is below this class")
def test_the_idle_class_is_told_from_others(parent: int) -> None:
    """A program counts from when it is of that class, and when it has ended."""
    idle_class = IdleClass()
    before = idle_class.processor_seconds()
    child = psutil.Process(parent).children()[0]
    os.sched_setscheduler(child.pid, os.SCHED_IDLE, os.sched_param(0))
    assert idle_class.processor_seconds() >= before + 0.2
    child.kill()
    psutil.Process(parent).wait()
    assert idle_class.processor_seconds() >= before + 0.2


def test_a_thread_waits_while_another_process_has_its_processor() -> None:
    """Two that are always ready on one processor, each in a process: each waits for the other."""
    spin = (
        "import os, threading\n"
        "def spin():\n"
        "    while True: pass\n"
        f"os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})\n"
        "thread = threading.Thread(target=spin)\n"
        "thread.start()\n"
        "thread.join()\n"
    )
    with ExitStack() as held:
        spinning = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(2)]
        for process in spinning:
            held.enter_context(process)
            held.callback(process.kill)
        families = Families({"both": [process.pid for process in spinning]})
        pids = {process.pid for process in spinning}
        while True:
            waits = families.waits("both")
            assert waits.keys() >= pids
            threads = [seconds for thread, seconds in waits.items() if thread not in pids]
            if len(threads) == len(pids) and min(threads) >= 0.1:
                break
