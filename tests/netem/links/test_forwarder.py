from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from penstock.netem.links.channel import Counts
from penstock.netem.links.forwarder_messages import (
    AddLink,
    Answer,
    FollowPlan,
    ReadCounts,
    Request,
    SwitchLink,
)
from penstock.netem.links.link_variation import Trace
from penstock.netem.links.profiles import GOOD, OPEN, Bursts, Direction, Profile
from tests.helpers.networks import NEEDS_ROOT

pytestmark = NEEDS_ROOT

ROOT = Path(__file__).resolve().parents[3]
BURSTY = Profile("bursty", Direction(loss=Bursts(0.1, 0.5)), Direction(0.1, 1e6, queue_bytes=9))


def devices_now() -> set[str]:
    """Return the names of this machine's network devices."""
    return {each.name for each in Path("/sys/class/net").iterdir()}


@contextmanager
def forwarder() -> Iterator[Connection]:
    """A connection to the forwarder of a network without namespaces."""
    module = "penstock.netem.links.forwarder"
    command = [sys.executable, "-m", module, f"penstock-test-{os.getpid()}-"]
    ours, theirs = Pipe()
    with theirs:
        process = subprocess.Popen(command, cwd=ROOT, stdin=theirs.fileno())
    with process, ours:
        yield ours
    assert process.returncode == 0


def ask(connection: Connection, request: Request) -> Answer:
    """Return the answer to a request."""
    connection.send(request)
    answer: Answer = connection.recv()
    return answer


def test_it_answers_each_request_and_goes_on_after_a_wrong_one() -> None:
    """What names no link is told; the next request is served."""
    devices = (f"pnt{os.getpid()}.0", f"pnt{os.getpid()}.1")
    with forwarder() as connection:
        assert ask(connection, ReadCounts(7)).error is not None
        assert ask(connection, AddLink(7, devices, OPEN, "1")).error is None
        assert set(devices) <= devices_now()
        assert ask(connection, SwitchLink(7, GOOD)).error is None
        assert ask(connection, FollowPlan(7, Trace((0.0,), (BURSTY,)), 0.0)).error is None
        told = ask(connection, ReadCounts(7))
        assert [name for _, name in told.log] == ["open", "good", "bursty"]
        assert told.upstream == Counts()
    assert not set(devices) & devices_now()


def test_a_device_that_is_there_is_not_taken_twice() -> None:
    """The name is told as busy, and neither device of the second link stays."""
    first = (f"pnt{os.getpid()}.2", f"pnt{os.getpid()}.3")
    second = (f"pnt{os.getpid()}.4", first[0])
    with forwarder() as connection:
        assert ask(connection, AddLink(1, first, OPEN, "1")).error is None
        assert "busy" in str(ask(connection, AddLink(2, second, OPEN, "1")).error)
        assert second[0] not in devices_now()


def test_several_requests_may_come_at_once() -> None:
    """Each has its answer, in their order."""
    with forwarder() as connection:
        for request in (ReadCounts(1), ReadCounts(2)):
            connection.send(request)
        assert [connection.recv().error for _ in range(2)] == ["link: 1", "link: 2"]


def test_it_loads_nothing_that_checks_files() -> None:
    """Each network starts one: pydantic would be most of its start and its memory."""
    code = "import sys, penstock.netem.links.forwarder; print('pydantic' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"
