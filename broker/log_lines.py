"""The programs' log: one line for each record, on standard error.

Client ids, user names and topics come from whoever connects and may hold any character but U+0000
(section 1.5.4 of MQTT 5.0). One with a line feed must not be able to write a line of its own, nor
one with an escape sequence to work the operator's terminal. Each may have 65,535 bytes, too, which
nobody reads: a long line loses its middle.
"""

from __future__ import annotations

import logging
import sys
from typing import Final

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


def log_to_stderr(level: str) -> None:
    """Send the log of the whole process to standard error.

    Args:
        level: name of the least level that is logged, such as INFO.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(_FORM))
    logging.basicConfig(level=level, handlers=[handler])
