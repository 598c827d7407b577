"""What the programs have in common; each program's own tests show it at work."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import stat
import sys
from pathlib import Path

import pytest

from penstock.broker.config.command_line import CommandLine, exit_status
from penstock.broker.errors import PenstockError
from penstock.broker.process.program import run_until_stopped, set_up_log


class Service:
    """Ends itself by a signal as soon as it has started, or fails to start."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.steps: list[str] = []

    async def start(self) -> None:
        """Start, and ask to be stopped."""
        self.steps.append(f"start on {type(asyncio.get_running_loop()).__module__}")
        if self.fails:
            raise PenstockError("no start")
        os.kill(os.getpid(), signal.SIGTERM)

    async def stop(self) -> None:
        """Stop."""
        self.steps.append("stop")


def test_a_service_runs_on_uvloop_until_a_signal() -> None:
    """It is started, and stopped in order."""
    service = Service()
    run_until_stopped(service)
    assert service.steps == ["start on uvloop", "stop"]


class Unready(Service):
    """Waits in vain for another program, when it is asked to stop."""

    async def start(self) -> None:
        """Start."""
        await super().start()
        try:
            await asyncio.Event().wait()
        finally:
            self.steps.append("not started")


def test_a_service_that_cannot_start_yet_is_stopped_by_a_signal() -> None:
    """It ends what it has begun, as at a failed start."""
    service = Unready()
    run_until_stopped(service)
    assert service.steps == ["start on uvloop", "not started"]


def test_a_busy_thread_keeps_the_loop_waiting_for_a_millisecond_at_most() -> None:
    """Such as the one that writes a queue's messages to its database."""
    before = sys.getswitchinterval()
    try:
        run_until_stopped(Service())
        assert sys.getswitchinterval() == pytest.approx(0.001)
    finally:
        sys.setswitchinterval(before)


class Writing(Service):
    """Makes a file, as a plugin of others does."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    async def start(self) -> None:
        """Make it."""
        await asyncio.to_thread(self._file.touch)
        await super().start()


def test_files_that_a_service_makes_are_nobody_elses(tmp_path: Path) -> None:
    """Whatever its umask was; a stricter one stays."""
    before = os.umask(0o222)
    try:
        run_until_stopped(Writing(tmp_path / "file"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o400


class Resting(Service):
    """Serves, and does not end by itself."""

    async def start(self) -> None:
        """Start."""
        self.steps.append("start")


class EndingLook:
    """Takes the place of what gives memory back: its first look ends the process."""

    def collect_all(self) -> None:
        """Nothing."""

    def look(self) -> None:
        """End it."""
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_service_that_has_started_is_not_collected_for_every_few_objects() -> None:
    """What comes and goes with messages must not set the collector going."""
    try:
        run_until_stopped(Service())
        assert not gc.isenabled()
    finally:
        gc.enable()


class Keeping(Service):
    """Has many objects, and says how many."""

    def kept(self) -> tuple[int, int]:
        """Note that it was asked."""
        self.steps.append("kept")
        return 1000, 100_000


def test_a_service_that_knows_what_it_keeps_is_asked() -> None:
    """For the collector: retained messages are nothing that it need look for cycles in."""
    service = Keeping()
    try:
        run_until_stopped(service)
    finally:
        gc.enable()
    assert "kept" in service.steps


def test_a_service_at_rest_looks_for_memory_to_give_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backlog goes when nothing else may happen."""
    monkeypatch.setattr("penstock.broker.process.program.SpareMemory", EndingLook)
    service = Resting()
    run_until_stopped(service)
    assert service.steps == ["start", "stop"]


class NoCollector(EndingLook):
    """Leaves Python's collector alone."""

    def look(self) -> None:
        """Nothing."""


class FailingOnce(EndingLook):
    """Has no file descriptor at its first look, and ends the process at its second."""

    has_failed = False

    def look(self) -> None:
        """Fail, or end the process."""
        if self.has_failed:
            super().look()
        self.has_failed = True
        raise OSError(24, "Too many open files", "/proc/self/statm")


@pytest.mark.parametrize("part", ["Collector", "SpareMemory"])
def test_a_look_that_fails_is_logged_and_comes_again(
    part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One moment without files must not stop what looks after the memory, nor the other part."""
    monkeypatch.setattr("penstock.broker.process.program.LOOK_SECONDS", 0.001)
    monkeypatch.setattr("penstock.broker.process.program.Collector", NoCollector)
    monkeypatch.setattr(f"penstock.broker.process.program.{part}", FailingOnce)
    service = Resting()
    run_until_stopped(service)
    assert service.steps == ["start", "stop"]
    assert "failed: [Errno 24] Too many open files" in caplog.text


class Reloading(Service):
    """Is asked to reload, and to stop when it has done so."""

    async def start(self) -> None:
        """Start, and ask for a reload."""
        self.steps.append("start")
        os.kill(os.getpid(), signal.SIGHUP)

    async def reload(self) -> None:
        """Reload, and ask to be stopped."""
        self.steps.append("reload")
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_service_that_can_reload_does_so_at_sighup_and_goes_on() -> None:
    """The signal that daemons take for it; the service serves on until it is stopped."""
    service = Reloading()
    run_until_stopped(service)
    assert service.steps == ["start", "reload", "stop"]


class Faulty(Reloading):
    """Has a fault in its reload."""

    async def reload(self) -> None:
        """Ask to be stopped, and fail."""
        await super().reload()
        raise RuntimeError("a fault")


def test_a_fault_in_a_reload_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and the service is stopped in order later."""
    service = Faulty()
    run_until_stopped(service)
    assert service.steps == ["start", "reload", "stop"]
    assert "a fault" in caplog.text


class Waiting(Service):
    """Waits in its stop until it is hurried, and asks for that itself."""

    def __init__(self) -> None:
        super().__init__()
        self._hurried = asyncio.Event()

    async def stop(self) -> None:
        """Wait."""
        os.kill(os.getpid(), signal.SIGTERM)
        await self._hurried.wait()
        await super().stop()

    def hurry(self) -> None:
        """End the wait."""
        self.steps.append("hurry")
        self._hurried.set()


def test_a_second_signal_hurries_a_stop_that_waits() -> None:
    """The first one stops it."""
    service = Waiting()
    run_until_stopped(service)
    assert service.steps == ["start on uvloop", "hurry", "stop"]


def test_a_service_that_cannot_start_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The program's name, then what went wrong; no traceback."""
    app = CommandLine()
    service = Service(fails=True)

    @app.command()
    def command() -> None:
        run_until_stopped(service)

    assert exit_status(app, "penstock test", []) == 2
    assert capsys.readouterr().err == "penstock test: no start\n"
    assert "stop" not in service.steps


def test_a_level_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """With what is allowed; status 2."""
    app = CommandLine()

    @app.command()
    def command() -> None:
        set_up_log("loud", debug=False)

    assert exit_status(app, "penstock test", []) == 2
    told = capsys.readouterr().err
    assert "'loud'" in told
    assert "debug, info, warning, error" in told
