"""What can go wrong between the queue and Spark, each with a text a user can act on."""

from __future__ import annotations

from typing import Final

MARK: Final = "penstock: "
"""Opens the text of each of our errors, so that it can be found inside Spark's own texts."""

_CAUSES: Final = ("Caused by: ", ": ")
"""How lines begin in a text of Java's that name an error or what caused it."""


class BridgeError(Exception):
    """Root of this package's errors.

    Attributes:
        text: what happened, on one line.
        status: what the program ends with: 1, or 2 where the user must change something first.
    """

    status = 1

    def __init__(self, text: str) -> None:
        self.text = " ".join(text.split()).removeprefix(MARK)
        super().__init__(MARK + self.text)


class OptionError(BridgeError):
    """An option of the source or of the program is missing, unknown or out of range."""

    status = 2


class QueueUnavailableError(BridgeError):
    """The queue's server does not answer, or answers that it cannot."""


class QueueChangedError(BridgeError):
    """The queue no longer holds what the checkpoint says is still to be read."""


def one_line(error: BaseException) -> str:
    """Return the one line of an error that a user needs.

    Spark wraps what a Python source raises in a traceback of two processes. Where one of our own
    errors is inside, its line is returned; else the innermost cause that Java names, else the first
    line that says something.

    Args:
        error: any exception, Spark's own included.

    Returns:
        A text without line breaks.
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    for line in reversed(lines):
        before, mark, after = line.partition(MARK)
        if mark and (not before or before.endswith(("Error: ", "Error("))):
            return after.strip()
    causes = [line for line in lines if line.startswith(_CAUSES)]
    told = causes[-1] if causes else lines[0]
    for cause in _CAUSES:
        told = told.removeprefix(cause)
    return told.strip()
