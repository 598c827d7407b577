from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.netem.links.channel import Counts
from penstock.netem.links.forwarder_messages import (
    Add,
    Answer,
    Request,
    Switch,
    Tell,
    read_answer,
    write_message,
)
from penstock.netem.links.profiles import GOOD, OPEN
from tests.helpers.networks import NEEDS_ROOT

pytestmark = NEEDS_ROOT

ROOT = Path(__file__).resolve().parents[3]


def devices_now() -> set[str]:
    """Return the names of this machine's network devices."""
    return {each.name for each in Path("/sys/class/net").iterdir()}


@contextmanager
def forwarder() -> Iterator[subprocess.Popen[bytes]]:
    """A forwarder of a network without namespaces."""
    command = [
        sys.executable,
        "-m",
        "penstock.netem.links.forwarder",
        f"penstock-test-{os.getpid()}-",
    ]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield process
        process.communicate()
    assert process.returncode == 0


def answer(process: subprocess.Popen[bytes]) -> Answer:
    """Return the next answer."""
    assert process.stdout is not None
    told = read_answer(process.stdout)
    assert told is not None
    return told


def ask(process: subprocess.Popen[bytes], request: Request) -> Answer:
    """Return the answer to a request."""
    assert process.stdin is not None
    process.stdin.write(write_message(request))
    process.stdin.flush()
    return answer(process)


def test_it_answers_each_request_and_goes_on_after_a_wrong_one() -> None:
    """What names no link is told; the next request is served."""
    devices = (f"pnt{os.getpid()}.0", f"pnt{os.getpid()}.1")
    with forwarder() as process:
        assert ask(process, Tell(7)).error is not None
        assert ask(process, Add(7, devices, OPEN, "1")).error is None
        assert set(devices) <= devices_now()
        assert ask(process, Switch(7, GOOD)).error is None
        told = ask(process, Tell(7))
        assert [name for _, name in told.log] == ["open", "good"]
        assert told.upstream == Counts()
    assert not set(devices) & devices_now()


def test_a_device_that_is_there_is_not_taken_twice() -> None:
    """The name is told as busy, and neither device of the second link stays."""
    first = (f"pnt{os.getpid()}.2", f"pnt{os.getpid()}.3")
    second = (f"pnt{os.getpid()}.4", first[0])
    with forwarder() as process:
        assert ask(process, Add(1, first, OPEN, "1")).error is None
        assert "busy" in str(ask(process, Add(2, second, OPEN, "1")).error)
        assert second[0] not in devices_now()


def test_requests_may_come_in_pieces_and_several_at_once() -> None:
    """Messages are what counts, not how the pipe cuts them."""
    request = write_message(Tell(1))
    with forwarder() as process:
        assert process.stdin is not None
        process.stdin.write(request + request[:5])
        process.stdin.flush()
        assert answer(process).error is not None
        process.stdin.write(request[5:])
        process.stdin.flush()
        assert answer(process).error is not None


def test_it_loads_nothing_that_checks_files() -> None:
    """Each network starts one: pydantic would be most of its start and its memory."""
    code = "import sys, penstock.netem.links.forwarder; print('pydantic' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"
