"""Do mosquitto's own tests and Eclipse Paho's pass with a cluster as they do with one broker?

Rerun: ``python -m tests.campaigns.suites --paho FOLDER --mosquitto FOLDER``, each a checkout of
their repository. Three brokers are on one Redis server behind HAProxy, which sends each connection
to the next of them. One broker behind HAProxy stands beside. A test that passes with one broker and
not with three is a broken promise, unless `CANNOT_HOLD` says why it holds in no cluster.

Of mosquitto's tests those of groups that are about MQTT are run, as they are, but for one thing:
of CONNACK they compare the properties, which say what mosquitto's limits are; these are not
compared.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Final

import typer

from benchmarks.errors import BenchmarkError
from benchmarks.program import JsonFile, Program
from penstock.netem.runs.broker_process import reserved_port
from tests.campaigns.faults.case import Finding, report
from tests.helpers.process import ROOT
from tests.helpers.redis_server import running_redis
from tests.system.interop.cases import KINDS, running_cases

GROUPS: Final = ("msg_", "01-", "02-", "03-", "04-", "05-", "07-", "10-", "11-", "12-")
"""How the tests of mosquitto begin that are about MQTT. The others are about its own files,
plugins, bridges, TLS and HTTP."""

_BEFORE_SUBACK: Final = "publishes at another broker before the second client's SUBACK has come"
_NO_SUBSCRIBERS: Final = "a retained message has all brokers as readers: PUBACK has not 0x10"
CANNOT_HOLD: Final[Mapping[str, str]] = {
    "02-shared-qos0-v5.py": "a member at the publisher's broker comes first; no one order",
    "02-subpub-qos1-message-expiry-retain.py": _NO_SUBSCRIBERS,
    "03-publish-qos1-no-subscribers-v5.py": _NO_SUBSCRIBERS,
    "11-pub-props.py": _NO_SUBSCRIBERS,
    "client_test5.py test_request_response": _BEFORE_SUBACK,
    "client_test5.py test_subscribe_options": _BEFORE_SUBACK,
}
"""Tests that hold in no cluster, each with the reason."""

SECONDS: Final = 60.0
"""The longest time for one of mosquitto's tests."""
PAHO_SECONDS: Final = 600.0
"""The longest time for all of Paho's tests of a version."""
_LISTED: Final = re.compile(r"^    \((\d), '\./([\w-]+\.py)'\)", re.MULTILINE)
N_NODES: Final = {"one": 1, "cluster": 3}

_STAND_IN: Final = """#!/bin/sh
exec '{python}' -m tests.campaigns.suites.stand_in "$@"
"""

_ONE_TEST: Final = """
import runpy, sys
sys.path.insert(0, "..")
import mosq_test
expect_packet = mosq_test.expect_packet
def expect(sock, name, expected):
    if expected[:1] != b"\\x20":
        return expect_packet(sock, name, expected)
    found = b""
    while len(found) < 2 or len(found) < found[1] + 2:
        data = sock.recv(1 if len(found) < 2 else found[1] + 2 - len(found))
        if not data:
            raise BrokenPipeError(name)
        found += data
    if found[2:4] != expected[2:4]:
        raise mosq_test.TestError(f"{name}: {found.hex()} and not {expected.hex()}")
    return True
mosq_test.expect_packet = expect
start_broker = mosq_test.start_broker
mosq_test.start_broker = lambda *args, **keys: start_broker(*args, **(keys | {"timeout": 0.5}))
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs one of mosquitto's tests; of CONNACK it compares flags and reason code. Several brokers take
longer to start than the tests wait, too."""

_PAHO_TEST: Final = """
import runpy, sys, unittest
sys.path.insert(0, ".")
main = unittest.main
unittest.main = lambda: main(argv=sys.argv[:1])
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


Result = tuple[str, str, str]
"""One of `KINDS`, the name of a test, and why it fails; "" where it passes."""


def mosquitto_results(checkout: Path, only: str) -> Iterator[Result]:
    """Run mosquitto's tests; those that fail with one broker are not run with three."""
    tests = checkout / "test" / "broker"
    listed = _LISTED.findall((tests / "test.py").read_text())
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-suite-")))
        redis = stack.enter_context(running_redis(place / "redis"))
        program = place / "src" / "mosquitto"
        program.parent.mkdir()
        program.write_text(_STAND_IN.format(python=sys.executable))
        program.chmod(0o755)
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        for number, (n_ports, name) in enumerate(listed):
            if not name.startswith(GROUPS) or only not in name or "plugin" in name:
                continue
            for kind in KINDS:
                folder = place / f"{number}-{kind}"
                folder.mkdir()
                environment = {
                    **os.environ,
                    "BUILD_ROOT": str(place),
                    "PYTHONPATH": path,
                    "SUITE_FOLDER": str(folder),
                    "SUITE_NODES": str(N_NODES[kind]),
                    "SUITE_REDIS": str(redis.port),
                }
                with ExitStack() as reserved:
                    ports = [reserved.enter_context(reserved_port()) for _ in range(int(n_ports))]
                    words = [_ONE_TEST, name, *map(str, ports)]
                    status, told = _run(words, tests, environment)
                yield kind, name, f"status {status}\n{told}" if status else ""
                if status:
                    break


def _run(
    words: list[str], folder: Path, environment: Mapping[str, str], seconds: float = SECONDS
) -> tuple[int, str]:
    """Run a test; return its exit status, which is negative after a time, and what it says."""
    with subprocess.Popen(
        [sys.executable, "-c", *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as test:
        try:
            told, _ = test.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(test.pid, signal.SIGKILL)
            told, _ = test.communicate()
    with contextlib.suppress(ProcessLookupError):  # brokers that it has not ended
        os.killpg(test.pid, signal.SIGKILL)
    return test.returncode, told


def paho_results(checkout: Path, only: str) -> Iterator[Result]:
    """Run Paho's tests."""
    folder = checkout / "interoperability"
    for kind in KINDS:
        with (
            tempfile.TemporaryDirectory(prefix="penstock-suite-") as place,
            running_cases(kind, Path(place)) as service,
        ):
            for name in ("client_test.py", "client_test5.py"):
                if only not in name:
                    continue
                words = [_PAHO_TEST, name, "-p", str(service.port)]
                _, told = _run(words, folder, os.environ, PAHO_SECONDS)
                found = re.search(r"^Ran (\d+) test", told, re.MULTILINE)
                if found is None:
                    raise BenchmarkError(f"{name}: {told}")
                failed = re.findall(r"^(?:FAIL|ERROR): (\w+)", told, re.MULTILINE)
                for number in range(int(found[1]) - len(failed)):
                    yield kind, f"{name} {number}", ""
                for test in failed:
                    yield kind, f"{name} {test}", told


def compare(found: Mapping[str, Mapping[str, str]]) -> list[Finding]:
    """Return what has failed with three brokers and not with one.

    Args:
        found: by one of `KINDS`, by test, why it failed.
    """
    one, three = (found[kind] for kind in KINDS)
    worse = [name for name, why in three.items() if why and not one.get(name)]
    findings = [
        Finding("tests", len(one)),
        Finding("pass with one broker", sum(not why for why in one.values())),
        Finding("pass with three", sum(not why for why in three.values())),
    ]
    for name in worse:
        reason = CANNOT_HOLD.get(name)
        most = 0 if reason is None else None
        findings.append(Finding(f"{name}: {reason or 'fails with three'}", 1, most=most))
    return findings


def suites(
    paho: Annotated[Path | None, typer.Option(help="Checkout of paho.mqtt.testing.")] = None,
    mosquitto: Annotated[Path | None, typer.Option(help="Checkout of mosquitto.")] = None,
    only: Annotated[str, typer.Option(help="Tests whose names have this alone.")] = "",
    json_file: JsonFile = None,
) -> None:
    """Run the suites of others against one broker and against three that are one.

    Ends with status 1 where a test passes with one broker alone.
    """
    findings = {}
    for name, checkout, run in (
        ("Paho", paho, paho_results),
        ("mosquitto", mosquitto, mosquitto_results),
    ):
        if checkout is None:
            continue
        found: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
        for kind, test, why in run(checkout.resolve(), only):
            found[kind][test] = why
            typer.echo(f"{kind}: {test}: {'fails' if why else 'passes'}\n{why}", err=True)
        findings[name] = compare(found)
    report(findings, json_file)


main: Final = Program(suites, "python -m tests.campaigns.suites")


if __name__ == "__main__":
    sys.exit(main())
