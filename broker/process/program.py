"""The common parts of Penstock's long-running programs: arguments, log, signals, exit status."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import stat
import sys
from functools import partial
from typing import Annotated, Final, Protocol, TypeAlias, runtime_checkable

import typer

from penstock.broker.config.log_options import LogOptions
from penstock.broker.operations_contract import Reloaded
from penstock.broker.plugin_guard import note_fault
from penstock.broker.process.gc_control import Collector, Kept
from penstock.broker.process.log_lines import log_to_stderr, take_options
from penstock.broker.process.memory_trim import LOOK_SECONDS, SpareMemory, keep_a_little
from penstock.broker.process.service_manager import ServiceManager
from penstock.broker.process.supervised import Supervised

LogLevel: TypeAlias = Annotated[
    str | None,
    typer.Option(
        envvar="PENSTOCK_LOG_LEVEL",
        help="debug, info, warning or error. Default: log.level of the file, or info.",
    ),
]
Debug: TypeAlias = Annotated[bool, typer.Option("-d", help="The same as --log-level debug.")]

NO_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
"""Files that a service creates never have these permissions of group and others."""


SWITCH_SECONDS: Final = 0.001
"""A thread that runs Python code lets the loop's waiting thread run after this time, where Python's
default is 5 ms. The thread that writes a queue's messages would otherwise delay each round of the
loop by as much."""


class Service(Protocol):
    """Something that is started, serves, and is stopped."""

    async def start(self) -> None:
        """Begin to serve.

        Raises:
            PenstockError: it cannot.
        """

    async def stop(self) -> None:
        """Finish accepted work and free everything."""


@runtime_checkable
class ReloadingService(Service, Protocol):
    """A service that can reload its files while it serves."""

    async def reload(self) -> Reloaded:
        """Reload the files; a file that cannot be used is logged and changes nothing.

        It may be called again before it has ended.
        """


@runtime_checkable
class KeepingService(Service, Protocol):
    """A service that may have very many objects, and knows how many."""

    def kept(self) -> Kept:
        """Return roughly what they take of the memory, for `penstock.broker.process.gc_control`."""


@runtime_checkable
class HurriedService(Service, Protocol):
    """A service whose `stop` may wait, and can be told to wait no longer."""

    def hurry(self) -> None:
        """End what `stop` waits for: a second signal has asked for the end."""


def set_up_log(log_level: str | None, *, debug: bool, worker: int = 0) -> None:
    """Send the log to standard error.

    Args:
        log_level: debug, info, warning or error, in any case; None for info.
        debug: overrides it.
        worker: number of this process, which each line has; 0 for none.

    Raises:
        typer.BadParameter: the level is unknown.
    """
    name = "DEBUG" if debug else (log_level or "info").upper()
    if name not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise typer.BadParameter(
            f"read {log_level!r}; allowed: debug, info, warning, error", param_hint="--log-level"
        )
    log_to_stderr(name, worker)


def take_log(of_file: LogOptions, log_level: str | None, *, debug: bool) -> None:
    """Take the log's form from a file, and its level where the command line names none."""
    is_named = log_level is not None or debug
    take_options(of_file, [("log", "format"), *([] if is_named else [("log", "level")])])


def run_until_stopped(service: Service, supervised: Supervised | None = None) -> None:
    """Run a service on uvloop, where it is installed, until SIGINT or SIGTERM.

    A `ReloadingService` reloads at each SIGHUP. A second SIGINT or SIGTERM hurries a
    `HurriedService`. The service manager is told each step. Files that the service or a plugin
    creates are accessible to their owner only, as they may hold messages.

    Args:
        service: it.
        supervised: the supervisor of this process, in place of a service manager; its end stops the
            service.

    Raises:
        PenstockError: the service cannot start.
    """
    os.umask(os.umask(NO_OTHERS) | NO_OTHERS)  # keeps stricter bits of the present mask
    sys.setswitchinterval(SWITCH_SECONDS)
    loop_factory = None
    with contextlib.suppress(ImportError):  # uvloop does not exist for Windows
        import uvloop  # noqa: PLC0415

        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_serve(service, supervised or ServiceManager()))


async def _serve(service: Service, manager: ServiceManager) -> None:
    asked: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    starting = loop.create_task(service.start(), name="start")

    def stop(number: signal.Signals) -> None:
        asked.put_nowait(number)
        starting.cancel()  # it may wait for another program

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    if isinstance(service, ReloadingService):
        loop.add_signal_handler(signal.SIGHUP, asked.put_nowait, signal.SIGHUP)
    keep_a_little()
    if isinstance(manager, Supervised) and isinstance(service, ReloadingService):
        manager.follow(loop, service.reload, partial(stop, signal.SIGTERM))
    try:
        await starting
    except asyncio.CancelledError:
        if asked.empty():
            raise
        return
    manager.ready("serving")
    manager.beat(loop)
    collector = Collector(kept=service.kept) if isinstance(service, KeepingService) else Collector()
    spare_memory = SpareMemory()

    faults: dict[str, int] = {}

    def look() -> None:
        loop.call_later(
            LOOK_SECONDS, look
        )  # first, so that an exception below does not end the looks
        for name, part in (("collector", collector), ("spare memory", spare_memory)):
            try:
                part.look()
            except Exception as error:  # noqa: BLE001 (such as for want of a file; the next look follows)
                note_fault(logging.getLogger("penstock"), faults, name, error)

    look()
    reloading: set[asyncio.Task[None]] = set()  # beside this loop: a stop waits for none
    while await asked.get() == signal.SIGHUP:
        if isinstance(service, ReloadingService):
            task = loop.create_task(_reload(service, manager, faults), name="reload")
            reloading.add(task)
            task.add_done_callback(reloading.discard)
    for task in reloading:
        task.cancel()
    manager.tell("STOPPING=1", "STATUS=finishing what was accepted")
    stopping = loop.create_task(service.stop(), name="stop")
    hurrying = loop.create_task(_hurry(service, asked), name="hurry")
    try:
        await stopping
    finally:
        hurrying.cancel()


async def _reload(
    service: ReloadingService, manager: ServiceManager, faults: dict[str, int]
) -> None:
    """Reload; a fault in it is logged, and the service goes on."""
    manager.reloading()
    failed: object = None
    try:
        done = await service.reload()
        failed = ", ".join(done.failed)
    except Exception as error:  # noqa: BLE001 (whatever it is, clients are served)
        note_fault(logging.getLogger("penstock"), faults, "reload", error)
        failed = error
    manager.ready(f"serving; not reloaded, see the log: {failed}" if failed else "serving")


async def _hurry(service: Service, asked: asyncio.Queue[signal.Signals]) -> None:
    """Hurry a stop at the next signal that asks for it."""
    while await asked.get() == signal.SIGHUP:
        pass
    if isinstance(service, HurriedService):
        service.hurry()
