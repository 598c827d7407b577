"""This machine's telemetry, which the demo publishes."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import psutil

TOP_PROCESSES: Final = 8
"""The number of reported processes: those that used most processor time since the last look."""

MAX_INTERFACES: Final = 4


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured value.

    Attributes:
        metric: the name of the measured quantity, as in the topic; its parts are joined by dots.
        at: the time, seconds since the Unix epoch.
        pid: the process id of the process that it is about, or None.
        process: the name of that process, or None.
    """

    metric: str
    value: float
    unit: str
    at: float
    pid: int | None = None
    process: str | None = None

    def payload(self, host: str, number: int) -> bytes:
        """Return the message that is published: a small JSON object."""
        told: dict[str, object] = {
            "host": host,
            "metric": self.metric,
            "value": self.value,
            "unit": self.unit,
            "at": self.at,
            "n": number,
        }
        if self.pid is not None:
            told |= {"pid": self.pid, "process": self.process}
        return json.dumps(told).encode()


def host_name() -> str:
    """Return this machine's name as one topic level."""
    name = socket.gethostname().split(".")[0]
    return "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in name)


class Sampler:
    """A sampler of the machine; rates are over the time since the last look."""

    def __init__(self) -> None:
        psutil.cpu_percent(percpu=True)  # the first answer of psutil is about nothing
        self._counters = dict(_counters())
        self._looked_at = time.monotonic()
        self._cpu_seconds: dict[int, float] = {}
        list(self._processes(time.time(), 1.0))

    def sample(self) -> list[Sample]:
        """Return everything as it is now."""
        at, now = time.time(), time.monotonic()
        seconds = max(now - self._looked_at, 1e-3)
        self._looked_at = now
        return [
            *_processor(at),
            *_memory(at),
            *self._rates(at, seconds),
            Sample("disk.used", psutil.disk_usage("/").percent, "percent", at),
            *self._processes(at, seconds),
        ]

    def _rates(self, at: float, seconds: float) -> Iterator[Sample]:
        counters = dict(_counters())
        for metric, n_bytes in counters.items():
            grown = max(0, n_bytes - self._counters.get(metric, n_bytes))
            yield Sample(metric, grown / seconds, "bytes per second", at)
        self._counters = counters

    def _processes(self, at: float, seconds: float) -> Iterator[Sample]:
        """Yield processor time and memory of the busiest processes."""
        before, self._cpu_seconds = self._cpu_seconds, {}
        busy: list[tuple[float, int, str, int]] = []
        for process in psutil.process_iter(["cpu_times", "memory_info", "name"]):
            times, memory = process.info["cpu_times"], process.info["memory_info"]
            if times is None or memory is None:  # gone, or not ours to look at
                continue
            used = times.user + times.system
            self._cpu_seconds[process.pid] = used
            share = 100 * (used - before.get(process.pid, used)) / seconds
            busy.append((max(0.0, share), process.pid, process.info["name"], memory.rss))
        for share, pid, name, rss in sorted(busy, reverse=True)[:TOP_PROCESSES]:
            yield Sample("process.cpu", share, "percent", at, pid, name)
            yield Sample("process.memory", rss, "bytes", at, pid, name)


def _processor(at: float) -> Iterator[Sample]:
    cores = psutil.cpu_percent(percpu=True)
    yield Sample("cpu.total", sum(cores) / max(1, len(cores)), "percent", at)
    for number, share in enumerate(cores):
        yield Sample(f"cpu.core{number}", share, "percent", at)
    yield Sample("cpu.load1", psutil.getloadavg()[0], "processes", at)


def _memory(at: float) -> Iterator[Sample]:
    memory = psutil.virtual_memory()
    yield Sample("memory.used", memory.used, "bytes", at)
    yield Sample("memory.available", memory.available, "bytes", at)
    yield Sample("memory.share", memory.percent, "percent", at)


def _counters() -> Iterator[tuple[str, int]]:
    """Yield (metric, bytes since the machine started) of network and disk."""
    interfaces = psutil.net_io_counters(pernic=True)
    busiest = sorted(interfaces, key=lambda name: -sum(interfaces[name][:2]))[:MAX_INTERFACES]
    for name in sorted(busiest):
        level = "".join(letter if letter.isalnum() else "-" for letter in name)
        yield f"network.{level}.sent", interfaces[name].bytes_sent
        yield f"network.{level}.received", interfaces[name].bytes_recv
    disk = psutil.disk_io_counters()
    if disk is not None:  # none in some containers
        yield "disk.read", disk.read_bytes
        yield "disk.written", disk.write_bytes
