"""The programs' log: one line for each record, on standard error.

Client ids, user names and topics come from whoever connects and may hold any character but U+0000
(section 1.5.4 of MQTT 5.0). One with a line feed must not be able to write a line of its own, nor
one with an escape sequence to work the operator's terminal. Each may have 65,535 bytes, too, which
nobody reads: a long line loses its middle. And whoever connects may do so a thousand times a
second, for a line each: of what is said in the same words only so many lines are written.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from typing import Final, TextIO

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
"""Of a line: several mistakes of a file fit, and no client's name or topic of 65,535 bytes."""


class LineFormatter(logging.Formatter):
    """Writes control characters of a message as escapes; a traceback keeps its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the base's name)
        """Return the record without its traceback, on one line of `MAX_CHARACTERS` at most."""
        line = super().formatMessage(record)
        if len(line) > MAX_CHARACTERS:
            line = f"{line[: MAX_CHARACTERS // 2]}...{line[-MAX_CHARACTERS // 2 :]}"
        return line.translate(_SHOWN)


MAX_LINES: Final = 200
"""Of the same words within `WINDOW_SECONDS`: 20 a second are some 200 MB a day at most, and a user
who restarts a few dozen clients sees a line for each."""

WINDOW_SECONDS: Final = 10.0


class BoundedHandler(logging.StreamHandler[TextIO]):
    """Leaves out lines that say the same again and again, and tells how many there were.

    What differs in its arguments alone says the same. Debug lines are asked for, and all written.

    Invariant: it counts only what was said since the beginning of the window.

    Args:
        stream: where lines go.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._began_at = 0.0
        self._n_lines: Counter[tuple[str, str]] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, unless its words have had their lines."""
        if record.levelno > logging.DEBUG:
            # The wall clock, which may be set back.
            if not 0 <= record.created - self._began_at < WINDOW_SECONDS:
                self._tell()
                self._began_at = record.created
            words = record.name, str(record.msg)
            self._n_lines[words] += 1
            if self._n_lines[words] > MAX_LINES:
                return
        super().emit(record)

    def close(self) -> None:
        """Tell what was left out last."""
        self._tell()
        super().close()

    def _tell(self) -> None:
        """Write a line for each kind that was left out, and begin to count anew."""
        counted, self._n_lines = self._n_lines, Counter()
        for (name, words), n_lines in counted.items():
            if n_lines > MAX_LINES:
                told = "%d more lines like this one were left out: %s"
                arguments = n_lines - MAX_LINES, words
                super().emit(
                    logging.LogRecord(name, logging.WARNING, __file__, 0, told, arguments, None)
                )


def log_to_stderr(level: str) -> None:
    """Send the log of the whole process to standard error.

    Args:
        level: name of the least level that is logged, such as INFO.
    """
    handler = BoundedHandler(sys.stderr)
    handler.setFormatter(LineFormatter(_FORM))
    logging.basicConfig(level=level, handlers=[handler])
