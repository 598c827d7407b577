"""The programs' log writes one line for each record on standard error.

Client ids, user names and topics come from clients and may hold any character but U+0000 (section
1.5.4 of MQTT 5.0). A line feed in one must not begin a line of its own, and an escape sequence must
not reach the operator's terminal. Each may also have 65,535 bytes: a long line is truncated in the
middle. And a client may connect a thousand times a second, for a line each: the number of lines
with the same format string is limited.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from typing import Final, TextIO, get_args

from penstock.broker.errors import PenstockError
from penstock.broker.operations_contract import LogLevel

_FORM: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_SHOWN: Final = {
    number: repr(chr(number))[1:-1]
    # The C0 and C1 controls, and what Unicode has beside them to end a line or turn its direction.
    for number in (
        *range(0x20),
        *range(0x7F, 0xA0),
        *range(0x2028, 0x202F),
        *range(0x2066, 0x206A),
    )
}


MAX_CHARACTERS: Final = 4_000
"""A line has at most so many: enough for several mistakes in a file, not for a name or topic of
65,535 bytes."""


class LineFormatter(logging.Formatter):
    """Writes control characters of a message as escapes; a traceback keeps its line feeds."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the base's name)
        """Return the record without its traceback, as one line of at most `MAX_CHARACTERS`."""
        line = super().formatMessage(record)
        if len(line) > MAX_CHARACTERS:
            line = f"{line[: MAX_CHARACTERS // 2]}...{line[-MAX_CHARACTERS // 2 :]}"
        return line.translate(_SHOWN)


MAX_LINES: Final = 200
"""At most so many lines with the same format string are written within `WINDOW_SECONDS`. 20 lines a
second are some 200 MB a day, and a user who restarts a few dozen clients sees a line for each."""

WINDOW_SECONDS: Final = 10.0


class BoundedHandler(logging.StreamHandler[TextIO]):
    """Drops lines beyond a limit for each format string, and logs how many it dropped.

    Lines that differ only in their arguments count as the same. Debug lines are not limited.

    Invariant: it counts only lines since the beginning of the window.

    Args:
        stream: the stream that lines are written to.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._began_at = 0.0
        self._n_lines: Counter[tuple[str, str]] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, unless the limit for its format string is reached."""
        if record.levelno > logging.DEBUG:
            # This is the wall clock, which may be set back.
            if not 0 <= record.created - self._began_at < WINDOW_SECONDS:
                self._tell()
                self._began_at = record.created
            words = record.name, str(record.msg)
            self._n_lines[words] += 1
            if self._n_lines[words] > MAX_LINES:
                return
        super().emit(record)

    def close(self) -> None:
        """Log what was dropped last."""
        self._tell()
        super().close()

    def _tell(self) -> None:
        """Write a line for each format string with dropped lines, and reset the counts."""
        counted, self._n_lines = self._n_lines, Counter()
        for (name, words), n_lines in counted.items():
            if n_lines > MAX_LINES:
                told = "%d more lines like this one were left out: %s"
                arguments = n_lines - MAX_LINES, words
                super().emit(
                    logging.LogRecord(name, logging.WARNING, __file__, 0, told, arguments, None)
                )


def set_level(level: str) -> None:
    """Set the least level that the process logs: ``debug``, ``info``, ``warning``, ``error``."""
    logging.getLogger().setLevel(level.upper())


class LogLevels:
    """The part of `penstock.broker.operations_contract.Operations` about the program's log."""

    @property
    def log_level(self) -> str:
        """``debug``, ``info``, ``warning`` or ``error``."""
        return logging.getLevelName(logging.getLogger().getEffectiveLevel()).lower()

    def set_log_level(self, level: str) -> None:
        """Set the least level that the process logs.

        Raises:
            PenstockError: there is no such level.
        """
        allowed = get_args(LogLevel)
        if level not in allowed:
            raise PenstockError(f"log level: read {level!r}; allowed: {', '.join(allowed)}")
        set_level(level)


def log_to_stderr(level: str) -> None:
    """Send the log of the whole process to standard error.

    Args:
        level: name of the least level that is logged, such as INFO.
    """
    handler = BoundedHandler(sys.stderr)
    handler.setFormatter(LineFormatter(_FORM))
    logging.basicConfig(level=level, handlers=[handler])
