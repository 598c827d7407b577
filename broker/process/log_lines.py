"""The programs' log writes one line for each record on standard error.

Client ids, user names and topics come from clients and may hold any character but U+0000 (section
1.5.4 of MQTT 5.0). A line feed in one must not begin a line of its own, and an escape sequence must
not reach the operator's terminal. Each may also have 65,535 bytes: a long line is truncated in the
middle. And a client may connect a thousand times a second, for a line each: the number of lines
with the same format string is limited.

In the forms ``keyvalue`` and ``json``, a line has fields for programs to read
(`penstock.broker.sending.log_fields`), and a traceback is one of them.
"""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import Any, Final, TextIO, get_args

from penstock.broker.config.log_options import LogFormat, LogOptions
from penstock.broker.errors import PenstockError
from penstock.broker.operations_contract import LogLevel
from penstock.broker.sending.log_fields import fields_of

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
        if worker := getattr(record, "worker", None):
            record.message = f"worker {worker}: {record.message}"
        return _shortened(super().formatMessage(record)).translate(_SHOWN)


def _shortened(text: str, most: int = MAX_CHARACTERS) -> str:
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 2 :]}"


MAX_FIELD_CHARACTERS: Final = 1_000
"""A field other than the message and the traceback has at most so many."""

MAX_TRACEBACK_CHARACTERS: Final = 20_000

_ESCAPED: Final = {number: f"\\u{number:04x}" for number in _SHOWN}


class _FieldFormatter(logging.Formatter):
    """Makes one line of a record's fields: time, level, fields, logger, message, traceback."""

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return the fields in their order."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        found: dict[str, Any] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
        }
        for name, value in fields_of(record).items():
            found[name] = (
                value if isinstance(value, int) else _shortened(value, MAX_FIELD_CHARACTERS)
            )
        found["logger"] = record.name
        found["message"] = _shortened(record.getMessage())
        if record.exc_info:
            traceback = self.formatException(record.exc_info)
            found["traceback"] = _shortened(traceback, MAX_TRACEBACK_CHARACTERS)
        return found


def _quoted(value: Any) -> str:
    """Return a value as JSON, with no character that ends a line or works a terminal."""
    return json.dumps(value, ensure_ascii=False).translate(_ESCAPED)


class JsonFormatter(_FieldFormatter):
    """Writes a record as a JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return _quoted(self.fields(record))


class KeyValueFormatter(_FieldFormatter):
    """Writes a record as ``key=value`` pairs on one line.

    A value with a character other than letters, digits and a few signs is quoted, as in JSON.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return " ".join(f"{name}={_plain(value)}" for name, value in self.fields(record).items())


def _plain(value: Any) -> str:
    text = str(value)
    return text if text and text.isprintable() and not set(text) & set(' "=\\') else _quoted(text)


_FORMATTERS: Final[dict[str, Callable[[], logging.Formatter]]] = {
    "text": lambda: LineFormatter(_FORM),
    "keyvalue": KeyValueFormatter,
    "json": JsonFormatter,
}


MAX_LINES: Final = 200
"""At most so many lines with the same format string are written within `WINDOW_SECONDS`. 20 lines a
second are some 200 MB a day, and a user who restarts a few dozen clients sees a line for each."""

WINDOW_SECONDS: Final = 10.0


class BoundedHandler(logging.StreamHandler[TextIO]):
    """Drops lines beyond a limit for each format string, and logs how many it dropped.

    Lines that differ only in their arguments count as the same. Debug lines are not limited, nor
    are records with an attribute `is_unlimited`: strangers must not push out what an operator did.

    Invariant: it counts only lines since the beginning of the window.
    """

    def __init__(self, stream: TextIO, worker: int = 0) -> None:
        super().__init__(stream)
        self._worker = worker
        self._began_at = 0.0
        self._n_lines: Counter[tuple[str, str]] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, unless the limit for its format string is reached."""
        if record.levelno > logging.DEBUG and not getattr(record, "is_unlimited", False):
            # This is the wall clock, which may be set back.
            if not 0 <= record.created - self._began_at < WINDOW_SECONDS:
                self._tell()
                self._began_at = record.created
            words = record.name, str(record.msg)
            self._n_lines[words] += 1
            if self._n_lines[words] > MAX_LINES:
                return
        super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, with the worker that this process is."""
        if self._worker:
            record.worker = self._worker
        return super().format(record)

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
                record = logging.LogRecord(
                    name, logging.WARNING, __file__, 0, told, arguments, None
                )
                record.left_out = n_lines - MAX_LINES
                super().emit(record)


def set_level(level: str) -> None:
    """Set the least level that the process logs: ``debug``, ``info``, ``warning``, ``error``."""
    logging.getLogger().setLevel(level.upper())


def set_format(form: LogFormat) -> None:
    """Set the form of the lines that the process logs from now on."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, BoundedHandler):
            handler.setFormatter(_FORMATTERS[form]())


def take_options(options: LogOptions, changed: Collection[tuple[str, ...]]) -> None:
    """Make those keys under `log` count that have changed."""
    if ("log", "level") in changed and options.level is not None:
        set_level(options.level)
    if ("log", "format") in changed:
        set_format(options.format)


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


def log_to_stderr(level: str, worker: int = 0) -> None:
    """Send the log of the whole process to standard error; each line has the worker that it is."""
    handler = BoundedHandler(sys.stderr, worker)
    handler.setFormatter(_FORMATTERS["text"]())
    logging.basicConfig(level=level, handlers=[handler])
