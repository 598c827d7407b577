"""Errors of the bridge, each with a text that tells the user what to do."""

from __future__ import annotations

from typing import Final

MARK: Final = "penstock: "
"""The beginning of the text of each of our errors, by which it is found inside Spark's texts."""

MORE_MEMORY: Final = (
    "If it ends so again, its micro-batch needs more memory: --conf spark.driver.memory=4g, and "
    "smaller ones from then on by the source's option maxBytesPerTrigger"
)

_NO_CAUSE: Final = "(no cause message)"
"""Spark's text where one of its Python processes has ended without an answer."""

_OUT_OF_MEMORY: Final = ("OutOfMemoryError", "SparkContext was shut down")
"""A phrase in Spark's texts where Java has run out of memory and has ended."""

_CAUSES: Final = ("Caused by: ", ": ")
"""The beginnings of the lines in Java's texts that name an error or its cause."""


class BridgeError(Exception):
    """The root of this package's errors.

    Attributes:
        status: the exit status of the program: 1, or 2 where the user must change something first.
    """

    status = 1

    def __init__(self, text: str) -> None:
        self.text = " ".join(text.split()).removeprefix(MARK)
        super().__init__(MARK + self.text)


class OptionError(BridgeError):
    """An option of the source or of the program is missing, unknown or out of range."""

    status = 2


class QueueUnavailableError(BridgeError):
    """The queue's server does not answer, or reports that it cannot."""


class QueueChangedError(BridgeError):
    """The queue no longer holds what the query has still to read, by its checkpoint."""


class GroupTakenError(BridgeError):
    """The query's group belongs to another query."""

    status = 2

    def __init__(self, queue: str, group: str, reader: str) -> None:
        super().__init__(
            f"option 'group': read {group!r}, which in queue {queue!r} belongs to another query "
            f"(begun as {reader}); allowed: a group of this query's own, which gets every message: "
            ".option('group', NAME), --option group=NAME, or sinks.SINK.group of a pipeline. "
            "spark.read looks at messages without a group. If the checkpoint of that query is gone "
            "and this one is to take its place, give this one an empty output, too, and run: "
            f"penstock queue seek {queue} {group} earliest"
        )


class SparkVersionError(BridgeError, ImportError):
    """A PySpark that has no source in Python with limits."""

    status = 2

    def __init__(self, version: str) -> None:
        super().__init__(
            f"PySpark: read version {version}; allowed: 4.2 or later, as older ones know no limits "
            "of a micro-batch for a source in Python: pip install 'pyspark>=4.2'"
        )


class JavaGoneError(BridgeError):
    """Spark's Java process has ended by itself."""

    def __init__(self) -> None:
        super().__init__(
            "Spark's Java process has ended, as when it is killed or has no memory left; start the "
            f"run again: it goes on from its checkpoints. {MORE_MEMORY}"
        )


class RowError(BridgeError):
    """A row cannot be published; the text names its partition and place, and the column."""


class PublishError(BridgeError):
    """A batch cannot be published, or not to its end."""


def one_line(error: BaseException) -> str:
    """Return the one line of an error that a user needs.

    Spark wraps an error of a Python source in a traceback of two processes. If it contains one of
    our own errors, this returns that error's line; otherwise the innermost cause that Java names,
    or the first line with text.
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
    if _NO_CAUSE in told:
        told = (
            "Spark gives no reason, as when one of its Python processes is killed or has no "
            f"memory; start the run again: it goes on from its checkpoints: {told}"
        )
    if any(each in told for each in _OUT_OF_MEMORY):
        told = f"{told.strip()}: Spark may have run out of memory. {MORE_MEMORY}"
    return told.strip()


def step_line(error: BaseException) -> str:
    """Return the one line of an error that Spark raised for a step of a pipeline.

    Some have no class in PySpark, such as the error of a missing format. They come as Java's own
    errors, whose text says more than their innermost cause.
    """
    java = getattr(error, "java_exception", None)
    return one_line(error) if java is None else " ".join(str(java.getMessage()).split())
