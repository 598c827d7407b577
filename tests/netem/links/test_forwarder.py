from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from penstock.netem.links.forwarder_messages import REQUEST, Add, Switch, Tell
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


def ask(process: subprocess.Popen[bytes], line: bytes) -> dict[str, Any]:
    """Return the answer to a line."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + b"\n")
    process.stdin.flush()
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


def test_it_answers_each_request_and_goes_on_after_a_wrong_one() -> None:
    """What is no request, or names no link, is told; the next is served."""
    devices = (f"pnt{os.getpid()}.0", f"pnt{os.getpid()}.1")
    with forwarder() as process:
        assert "json" in ask(process, b"nonsense")["error"].lower()
        assert ask(process, REQUEST.dump_json(Tell(7)))["error"] is not None
        assert ask(process, REQUEST.dump_json(Add(7, devices, OPEN, "1")))["error"] is None
        assert set(devices) <= devices_now()
        assert ask(process, REQUEST.dump_json(Switch(7, GOOD)))["error"] is None
        told = ask(process, REQUEST.dump_json(Tell(7)))
        assert [name for _, name in told["log"]] == ["open", "good"]
        assert told["upstream"] == dict.fromkeys(told["upstream"], 0)
    assert not set(devices) & devices_now()


def test_a_device_that_is_there_is_not_taken_twice() -> None:
    """The name is told as busy, and neither device of the second link stays."""
    first = (f"pnt{os.getpid()}.2", f"pnt{os.getpid()}.3")
    second = (f"pnt{os.getpid()}.4", first[0])
    with forwarder() as process:
        assert ask(process, REQUEST.dump_json(Add(1, first, OPEN, "1")))["error"] is None
        assert "busy" in ask(process, REQUEST.dump_json(Add(2, second, OPEN, "1")))["error"]
        assert second[0] not in devices_now()


def test_requests_may_come_in_pieces_and_several_at_once() -> None:
    """Lines are what counts, not how the pipe cuts them."""
    line = REQUEST.dump_json(Tell(1)) + b"\n"
    with forwarder() as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line + line[:5])
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["error"] is not None
        process.stdin.write(line[5:])
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["error"] is not None


def test_profiles_pass_whole() -> None:
    """What a request holds of a profile is all of it."""
    assert json.loads(REQUEST.dump_json(Switch(1, GOOD)))["profile"] == asdict(GOOD)
