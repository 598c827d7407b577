"""Workers that are short programs; tests/cluster/test_workers.py has brokers."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from penstock.broker.operations_contract import Reloaded
from penstock.broker.process import supervisor
from penstock.broker.process.start_check import StartCheck
from penstock.broker.process.supervisor import Supervisor, WorkersError
from tests.helpers.cluster import reached

LOGGER = logging.getLogger("penstock.test")

SERVES = """
import socket
link = socket.socket(fileno=0)
link.send(b"READY=1")
while said := link.recv(1000):
    if b"X_RELOAD" in said:
        link.send(b'X_RELOADED=%s')
"""
RELOADS = SERVES.replace("%s", '[["file"], ["limits"], [], {}]')
FAILS = SERVES.replace("%s", '[["file"], [], [], {"limits": "wrong", "own": "%d"}]')
DIES = SERVES.replace("link.send(b'X_RELOADED=%s')", "raise SystemExit(3)")
ASKS = """
import socket
link = socket.socket(fileno=0)
link.send(b"READY=1\\nX_RELOAD=1")
while said := link.recv(1000):
    if said == b"X_RELOAD=1":
        link.send(b'X_RELOADED=[["own"], [], [], {}]')
    else:
        print(said.decode(), flush=True)
"""
OF_ITS_COPY = """
import os, socket, sys
link = socket.socket(fileno=0)
link.send(b"READY=1")
if "bad" in os.fdopen(int(sys.argv[1])).read():
    raise SystemExit(3)
link.recv(1000)
"""
LATE = """
import pathlib, socket, time
link, folder = socket.socket(fileno=0), pathlib.Path("%s")
while not (folder / "go").exists():
    time.sleep(0.01)
link.send(b"READY=1")
while said := link.recv(1000):
    (folder / said.decode()).touch()
"""


async def nothing_wrong() -> StartCheck:
    """Find no problem."""
    return StartCheck()


@asynccontextmanager
async def supervised(*programs: str) -> AsyncIterator[Supervisor]:
    """Run a worker for each program for a block."""
    made = Supervisor(
        len(programs),
        lambda number, _: [sys.executable, "-c", programs[number - 1]],
        nothing_wrong,
        "policy.yaml",
        "",
        LOGGER,
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(made.stop)
        await made.start()
        yield made


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait a hundredth of the time for the next start."""
    for name in ("FIRST_WAIT_SECONDS", "LONGEST_WAIT_SECONDS"):
        monkeypatch.setattr(supervisor, name, getattr(supervisor, name) / 100)


async def test_what_is_wrong_is_told_before_any_worker_starts() -> None:
    """With the file and its key."""

    async def check() -> StartCheck:
        return StartCheck(problems={"limits.a": "read 1; allowed: 2", "b": "no"})

    made = Supervisor(1, lambda *_: ["/no/such/program"], check, "policy.yaml", "", LOGGER)
    with pytest.raises(WorkersError) as caught:
        await made.start()
    lines = str(caught.value).splitlines()
    assert lines == ["policy.yaml: limits.a: read 1; allowed: 2", "policy.yaml: b: no"]


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("raise SystemExit(7)", "with status 7"),
        ("import os; os.kill(os.getpid(), 9)", "by SIGKILL"),
        ("pass", "it was stopped"),
    ],
)
async def test_a_worker_that_does_not_serve(program: str, told: str) -> None:
    """Ends the start, and the workers that do."""
    with pytest.raises(WorkersError, match=f"worker 2 does not serve: .*{told}"):
        async with supervised(RELOADS, program):
            pass


async def test_a_program_that_is_not_there() -> None:
    """Is told as the system has it."""
    made = Supervisor(1, lambda *_: ["/no/such/program"], nothing_wrong, "f", "", LOGGER)
    with pytest.raises(WorkersError, match=r"it cannot be started: .*No such file"):
        await made.start()


async def test_a_worker_that_dies_is_started_after_longer_and_longer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A second at first, half a minute at last."""
    program = "import socket; socket.socket(fileno=0).send(b'READY=1'); raise SystemExit(3)"
    async with supervised(RELOADS, program):
        await reached(lambda: caplog.text.count("again in 0.3 s") > 1, "the longest wait")
    told = [record.getMessage() for record in caplog.records if "again" in record.getMessage()]
    assert told[0] == "worker 2: it has ended with status 3; it is started again in 0.01 s"
    waits = [each.rpartition(" in ")[2] for each in told]
    assert waits[:7] == ["0.01 s", "0.02 s", "0.04 s", "0.08 s", "0.16 s", "0.3 s", "0.3 s"]


async def test_after_it_has_served_for_a_while_the_first_wait_applies(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if it had never died."""
    monkeypatch.setattr(supervisor, "STEADY_SECONDS", 0.0)
    program = "import socket; socket.socket(fileno=0).send(b'READY=1'); raise SystemExit(3)"
    async with supervised(RELOADS, program):
        await reached(lambda: caplog.text.count("again in 0.01 s") > 2, "the first wait")
    assert "0.02 s" not in caplog.text


async def test_a_worker_that_waits_for_its_next_start_is_not_started_to_be_stopped(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop ends the wait."""
    monkeypatch.setattr(supervisor, "FIRST_WAIT_SECONDS", 600.0)
    program, numbers = "import socket; socket.socket(fileno=0).send(b'READY=1'); exit(3)", []

    def command(number: int, _copy: int) -> list[str]:
        numbers.append(number)
        return [sys.executable, "-c", program]

    made = Supervisor(1, command, nothing_wrong, "policy.yaml", "", LOGGER)
    await made.start()
    await reached(lambda: "again in 600 s" in caplog.text, "the wait")
    await made.stop()
    assert numbers == [1]


async def test_a_worker_that_hangs_is_killed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the service manager watches, as it would a program of one process."""
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    async with supervised(SERVES):
        await reached(lambda: "ended by SIGKILL" in caplog.text, "its end")
    assert "worker 1 has been silent for 0.1 s: it is killed" in caplog.text


async def test_without_a_watchdog_none_is(caplog: pytest.LogCaptureFixture) -> None:
    """As for a program of one process."""
    async with supervised(SERVES) as made:
        assert not made._background
    assert "silent" not in caplog.text


async def test_a_reload_has_one_account() -> None:
    """What fails in all is told once; what fails in some names them."""
    async with supervised(RELOADS, RELOADS) as made:
        assert await made.reload() == Reloaded(["file"], ["limits"], [], {})
    async with supervised(FAILS.replace("%d", "1"), FAILS.replace("%d", "2")) as made:
        failed = {"limits": "wrong", "own": "worker 1: 1; worker 2: 2"}
        assert await made.reload() == Reloaded(["file"], [], [], failed)


async def test_a_worker_that_dies_in_a_reload_is_named() -> None:
    """And is not waited for."""
    async with supervised(RELOADS, DIES) as made:
        done = await made.reload()
    assert done.failed == {"reload": "worker 2: it has ended meanwhile"}
    assert done.changed == ["limits"]


async def test_a_worker_that_does_not_answer_a_reload_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The account of the others is not kept back by it."""
    monkeypatch.setattr(supervisor, "RELOAD_SECONDS", 0.5)
    async with supervised(SERVES.replace("link.send(b'X_RELOADED=%s')", "pass")) as made:
        assert (await made.reload()).failed == {"reload": "no answer in 0.5 s"}


async def test_a_worker_that_starts_in_a_reload_reloads_once_it_serves(tmp_path: Path) -> None:
    """It may have read its files before they were changed."""
    made = Supervisor(
        1,
        lambda *_: [sys.executable, "-c", LATE % tmp_path],
        nothing_wrong,
        "policy.yaml",
        "",
        LOGGER,
    )
    starting = asyncio.create_task(made.start())
    try:
        await reached(lambda: bool(made._workers), "its process")
        assert await made.reload() == Reloaded([], [], [], {})
        (tmp_path / "go").touch()
        await starting
        await reached((tmp_path / "X_RELOAD=1").exists, "its reload")
    finally:
        await made.stop()


async def test_a_reload_while_no_worker_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The next ones have the new file: the old one may be what they die of."""
    caplog.set_level(logging.INFO)
    copies: list[str] = []
    file = tmp_path / "policy.yaml"
    file.write_text("# good")

    def command(_number: int, copy: int) -> list[str]:
        copies.append(os.pread(copy, 100, 0).decode())
        return [sys.executable, "-c", OF_ITS_COPY, str(copy)]

    made = Supervisor(1, command, nothing_wrong, str(file), "# bad", LOGGER)
    await made.start()
    try:
        await reached(lambda: "with status 3" in caplog.text, "its end")
        await made.reload()
        await reached(lambda: copies[-1] == "# good", "its next start")
    finally:
        await made.stop()


async def test_a_worker_is_started_where_no_file_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose root is read-only, or on a full disk."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    async with supervised(SERVES) as made:
        assert made._workers


async def test_a_worker_may_ask_for_a_reload_of_all(capfd: pytest.CaptureFixture[str]) -> None:
    """And gets the account of all."""
    async with supervised(RELOADS, ASKS):
        said = ""

        def has_answer() -> bool:
            nonlocal said
            said += capfd.readouterr().out
            return "\n" in said

        await reached(has_answer, "the account")
    assert said == 'X_RELOADED=[["file", "own"], ["limits"], [], {}]\n'


async def test_workers_that_stop_by_themselves_are_not_started_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The program ends with the last of them."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    stops = SERVES.replace("link.send(b'X_RELOADED=%s')", "raise SystemExit(0)")
    try:
        async with supervised(stops, stops) as made:
            await made.reload()
            await ended.wait()
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
    assert caplog.text.count("has stopped by itself, as after a drain") == 2
