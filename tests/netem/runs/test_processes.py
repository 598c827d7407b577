from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import psutil
import pytest

from penstock.netem.runs import processes
from penstock.netem.runs.processes import Families, IdleClass

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
