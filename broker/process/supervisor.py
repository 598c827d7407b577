"""Starts the broker's processes on this machine, its workers, and keeps them running.

Theory of operation. A worker is the same program with ``--worker NUMBER/COUNT/FILE``, and serves by
itself. FILE is the descriptor of a copy of the policy file as it was loaded last: a worker that is
started again has what the others have, though somebody edits the file. Its standard input is its
end of a pair of sockets, by which the two talk (see `penstock.broker.process.supervised`). The pair
ends with either of them, however that ends, so that no worker is left behind. The first worker is
started alone: what keeps all of them from serving is told once. Workers lead sessions of their own,
so that Ctrl-C in a terminal reaches the supervisor alone, which passes it on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from logging import Logger
from typing import Any, Final

from penstock.broker.config.checked_yaml import read_text
from penstock.broker.errors import ConfigError, PenstockError
from penstock.broker.operations_contract import Reloaded
from penstock.broker.process.service_manager import MICROSECONDS
from penstock.broker.process.start_check import StartCheck
from penstock.broker.process.supervised import (
    RELOAD,
    RELOADED,
    from_json,
    receive,
    to_json,
)

FIRST_WAIT_SECONDS: Final = 1.0
LONGEST_WAIT_SECONDS: Final = 30.0
"""A worker that has ended is started again after the first of these, and each time after twice the
time before, up to the second."""

STEADY_SECONDS: Final = 60.0
"""After a worker has served for so long, the first time applies again."""

RELOAD_SECONDS: Final = 120.0
"""After this time the account of a reload goes without a worker that has not answered."""

LOOKS: Final = 4
"""In each interval of the watchdog; a worker that has been silent in so many is killed."""


class WorkersError(PenstockError):
    """The workers cannot serve; the program ends with status 2."""


class _Worker:
    """A process.

    Attributes:
        name: for log and errors.
        link: the supervisor's end of the pair of sockets.
        serves: whether it has said that it does.
        must_reload: once it does: it may have read its files before they were changed.
        n_silent: looks of the watchdog since it has said something.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process, link: socket.socket) -> None:
        self.name = name
        self.link = link
        self.serves = self.must_reload = False
        self.n_silent = 0
        self._process = process
        self._reloads: list[asyncio.Future[Reloaded]] = []

    def tell(self, state: str) -> None:
        """Send a state, unless the worker has just ended."""
        with contextlib.suppress(OSError):
            self.link.send(state.encode())

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has just ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def reload(self) -> asyncio.Future[Reloaded]:
        """Have it reload; return what is set to its account."""
        self._reloads.append(asyncio.get_running_loop().create_future())
        self.tell(f"{RELOAD}=1")
        return self._reloads[-1]

    def reloaded(self, done: Reloaded) -> None:
        """Take its account of a reload."""
        waiting = self._reloads.pop(0)
        if not waiting.done():
            waiting.set_result(done)

    def ended(self) -> None:
        """Take its end."""
        while self._reloads:
            self.reloaded(Reloaded(failed={"reload": "it has ended meanwhile"}))


class Supervisor:
    """Runs workers until it is stopped, or until all of them have stopped by themselves."""

    def __init__(
        self,
        n_workers: int,
        command: Callable[[int, int], Sequence[str]],
        check: Callable[[], Awaitable[StartCheck]],
        file: str,
        text: str,
        logger: Logger,
    ) -> None:
        """Prepare; `start` starts them.

        Args:
            n_workers: how many.
            command: returns the program and the arguments of a worker, by its number from 1 on, and
                by the descriptor of its copy of the policy file.
            check: finds what keeps all of them from serving.
            file: name of the policy file.
            text: of the policy file.
            logger: gets the ends of workers.
        """
        self._n_workers = n_workers
        self._command = command
        self._check = check
        self._file = file
        self._text = text  # as it was loaded last
        self._logger = logger
        self._watchdog = os.environ.get("WATCHDOG_USEC", "")  # which `ServiceManager` takes out
        self._workers: dict[int, _Worker] = {}
        self._starting: dict[int, asyncio.Future[None]] = {}
        self._keeping: set[asyncio.Task[None]] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._n_stopped = 0  # by themselves
        self._stopping = asyncio.Event()
        self._reloading = asyncio.Lock()

    async def start(self) -> None:
        """Start the workers, and wait until all of them serve.

        Raises:
            WorkersError: one of them cannot; none is left.
        """
        problems = (await self._check()).problems
        if problems:
            told = (f"{self._file}: {key}: {why}" for key, why in problems.items())
            raise WorkersError("\n".join(told))
        try:
            await self._start([1])
            await self._start(range(2, self._n_workers + 1))
        except BaseException:
            await self.stop()
            raise
        self._logger.info("%d workers serve", self._n_workers)
        if self._watchdog.isdecimal():
            self._run(self._watch(int(self._watchdog) / MICROSECONDS), self._background)

    async def _start(self, numbers: Iterable[int]) -> None:
        started = {n: asyncio.get_running_loop().create_future() for n in numbers}
        self._starting |= started
        for number in started:
            self._run(self._keep(number), self._keeping)
        await asyncio.gather(*started.values())

    @staticmethod
    def _run(coroutine: Coroutine[Any, Any, None], among: set[asyncio.Task[None]]) -> None:
        task = asyncio.create_task(coroutine)
        among.add(task)
        task.add_done_callback(among.discard)

    async def stop(self) -> None:
        """Stop all workers, and wait for their ends."""
        self._stopping.set()
        self.hurry()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._keeping, *self._background, return_exceptions=True)

    def hurry(self) -> None:
        """Ask all workers to stop, once more."""
        for worker in self._workers.values():
            worker.signal(signal.SIGTERM)

    # -- one worker --------------------------------------------------------------------------------

    async def _keep(self, number: int) -> None:
        """Run a worker, and start it again whenever it has ended, unless it was to."""
        name, started, wait = f"worker {number}", self._starting[number], FIRST_WAIT_SECONDS
        while True:
            began_at = time.monotonic()
            try:
                status = await self._run_once(number, name)
                how = "" if status == 0 else f"it has ended {_in_words(status)}"
            except OSError as error:  # such as for want of memory
                how = f"it cannot be started: {error}"
            if self._stopping.is_set():
                return
            if not started.done():
                why = f"{name} does not serve: {how or 'it was stopped'}; the log says more"
                started.set_exception(WorkersError(why))
                return
            if not how:
                break
            if time.monotonic() - began_at >= STEADY_SECONDS:
                wait = FIRST_WAIT_SECONDS
            self._logger.error("%s: %s; it is started again in %g s", name, how, wait)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait)
                return
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)
        self._logger.warning("%s has stopped by itself, as after a drain", name)
        self._n_stopped += 1
        if self._n_stopped == self._n_workers:
            os.kill(os.getpid(), signal.SIGTERM)

    async def _run_once(self, number: int, name: str) -> int:
        """Run a worker to its end, and return its exit status.

        Raises:
            OSError: it cannot be started.
        """
        link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link.setblocking(False)
        with link:
            with theirs, os.fdopen(os.memfd_create("policy"), "r+b") as copy:
                text = self._text
                copy.write(text.encode())
                copy.seek(0)
                process = await asyncio.create_subprocess_exec(
                    *self._command(number, copy.fileno()),
                    stdin=theirs.fileno(),
                    pass_fds=[copy.fileno()],
                    env=os.environ | ({"WATCHDOG_USEC": self._watchdog} if self._watchdog else {}),
                    start_new_session=True,
                )
            loop, worker = asyncio.get_running_loop(), _Worker(name, process, link)
            worker.must_reload = self._reloading.locked() or text != self._text
            loop.add_reader(link, self._heard, number, worker)
            self._workers[number] = worker
            if self._stopping.is_set():
                worker.signal(signal.SIGTERM)
            try:
                return await process.wait()
            finally:
                del self._workers[number]
                loop.remove_reader(link)
                worker.ended()

    def _heard(self, number: int, worker: _Worker) -> None:
        """Take what a worker says."""
        said = receive(worker.link)
        if not said:  # its end is about to be told
            asyncio.get_running_loop().remove_reader(worker.link)
            return
        worker.n_silent = 0
        started = self._starting[number]
        if "READY" in said:
            worker.serves = True
            if not started.done():
                started.set_result(None)
            if worker.must_reload:
                worker.must_reload = False
                worker.reload()
        if RELOAD in said:
            self._run(self._reload_for(worker), self._background)
        if RELOADED in said:
            worker.reloaded(from_json(said[RELOADED]))

    async def _watch(self, seconds: float) -> None:
        """Kill workers whose loops do not run any more, by which they are started again."""
        while True:
            await asyncio.sleep(seconds / LOOKS)
            for worker in self._workers.values():
                worker.n_silent += worker.serves
                if worker.n_silent > LOOKS:
                    self._logger.error(
                        "%s has been silent for %g s: it is killed", worker.name, seconds
                    )
                    worker.signal(signal.SIGKILL)

    # -- reload ------------------------------------------------------------------------------------

    async def reload(self) -> Reloaded:
        """Have all workers reload; return one account of those that serve."""
        async with self._reloading:
            text = self._text
            with contextlib.suppress(ConfigError):  # which the workers tell
                text = read_text(self._file)
            for worker in self._workers.values():
                worker.must_reload = not worker.serves
            asked = {w.name: w.reload() for w in self._workers.values() if w.serves}
            if asked:
                await asyncio.wait(asked.values(), timeout=RELOAD_SECONDS)
            silent = Reloaded(failed={"reload": f"no answer in {RELOAD_SECONDS:g} s"})
            done = {n: one.result() if one.done() else silent for n, one in asked.items()}
            # Where none is left, the old text may be what they have died of.
            is_any_left = any(worker.serves for worker in self._workers.values())
            if not (is_any_left and all(one.failed for one in done.values())):
                self._text = text
            return _merged(done)

    async def _reload_for(self, worker: _Worker) -> None:
        """Have all workers reload, as one of them has been asked to."""
        worker.tell(f"{RELOADED}={to_json(await self.reload())}")


def _in_words(status: int) -> str:
    return f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"


def _merged(done: Mapping[str, Reloaded]) -> Reloaded:
    """Return one account of several; what has failed in some of them alone names these."""

    def keys(of: Callable[[Reloaded], Iterable[str]]) -> list[str]:
        return list(dict.fromkeys(key for each in done.values() for key in of(each)))

    failed = {}
    for key in keys(lambda each: each.failed):
        reasons: dict[str, list[str]] = {}
        for name, each in done.items():
            if key in each.failed:
                reasons.setdefault(each.failed[key], []).append(name)
        failed[key] = "; ".join(
            why if len(names) == len(done) else f"{', '.join(names)}: {why}"
            for why, names in reasons.items()
        )
    return Reloaded(
        keys(lambda each: each.read),
        keys(lambda each: each.changed),
        keys(lambda each: each.needs_restart),
        failed,
    )
