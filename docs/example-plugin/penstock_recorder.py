"""Appends what is published to a file, one JSON object a line; `recorder` in a policy file.

Everything that comes in one turn of the event loop is written in one go. A publisher at QoS 1 or 2
gets its acknowledgement after that. At SIGHUP the file is opened anew, as logrotate wants it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from penstock.broker.errors import PenstockError
from penstock.broker.extensions import (
    MessageSink,
    Plugin,
    PluginContext,
    Receipt,
    Reload,
    SinkCounts,
)
from penstock.broker.message import Message
from penstock.broker.mqtt.reason_codes import ReasonCode

MOST_PENDING = 10_000
"""Messages that wait for one write; more of them are refused."""


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid", strict=True))
class RecorderConfig:
    """The keys under `recorder`.

    Attributes:
        file: to append to, relative to the directory in which the broker was started.
        topics: MQTT topic filters of what is recorded.
    """

    file: str
    topics: tuple[str, ...] = ("#",)


class FileSink(MessageSink):
    """Writes messages to an open file."""

    name = "recorder"

    def __init__(self, topics: Sequence[str]) -> None:
        self.topic_filters = topics
        self.counts = SinkCounts()
        self._file: TextIO | None = None
        self._pending: list[tuple[str, Receipt | None]] = []

    def write_to(self, file: TextIO) -> None:
        """Write to a file from now on; the one before is closed."""
        self.close()
        self._file = file

    def accept(self, message: Message, receipt: Receipt | None) -> None:
        """Take a message; it is written when the event loop has handled what came with it."""
        line = _line(message)
        self.counts.matched += 1
        if self._file is None or len(self._pending) >= MOST_PENDING:
            self._drop("too_many" if self._file else "closing", receipt)
            return
        if not self._pending:
            asyncio.get_running_loop().call_soon(self.flush)
        self.counts.queued += 1
        self._pending.append((line, receipt))

    def flush(self) -> None:
        """Write what waits, and acknowledge it."""
        if self._file is None:
            return  # `close` has written what there was
        pending, self._pending = self._pending, []
        self.counts.queued -= len(pending)
        try:
            self._file.write("".join(line for line, _ in pending))
            self._file.flush()
        except OSError:
            for _, receipt in pending:
                self._drop("write_failed", receipt)
            return
        self.counts.stored += len(pending)
        for _, receipt in pending:
            if receipt is not None:
                receipt.settle(ReasonCode.SUCCESS)

    def close(self) -> None:
        """Write what waits, and close the file."""
        if self._file is not None:
            self.flush()
            self._file.close()
            self._file = None

    def _drop(self, reason: str, receipt: Receipt | None) -> None:
        self.counts.dropped[reason] = self.counts.dropped.get(reason, 0) + 1
        if receipt is not None:
            receipt.settle(ReasonCode.QUOTA_EXCEEDED)


def _line(message: Message) -> str:
    payload = message.read_payload()
    row: dict[str, object] = {"time": round(time.time(), 3), "topic": message.topic}
    try:
        row["payload"] = payload.decode()
    except UnicodeDecodeError:
        row["base64"] = base64.b64encode(payload).decode()
    return json.dumps(row, ensure_ascii=False) + "\n"


def open_to_append(path: str) -> TextIO:
    """Return a file that what is written is added to."""
    return Path(path).open("a", encoding="utf-8")


class RecorderPlugin(Plugin):
    """`recorder` in a policy file."""

    Config = RecorderConfig
    config: RecorderConfig

    def __init__(self, config: RecorderConfig, context: PluginContext) -> None:
        super().__init__(config, context)
        self._sink = FileSink(config.topics)
        self.sinks = [self._sink]
        self.open_files = 1

    async def start(self) -> None:
        """Open the file; one that cannot be opened ends the start."""
        (await self.reload(self.config)).apply()

    async def reload(self, config: RecorderConfig) -> Reload:
        """Open the file anew, or another one; `topics` need a restart."""
        try:
            file = open_to_append(config.file)
        except OSError as error:
            raise PenstockError(
                f"{self.context.policy_file}: plugins.recorder.file: {config.file}: "
                f"{error.strerror}; allowed: a file that this user may write"
            ) from error
        return Reload([f"file {config.file}"], ["file"], apply=lambda: self._sink.write_to(file))

    async def close(self) -> None:
        """Write what waits: the broker has closed its listeners."""
        self._sink.close()
