"""Faults of one part that must not stop the others: counted, and logged ever less often."""

from __future__ import annotations

from logging import Logger


def note_fault(
    logger: Logger, by_name: dict[str, int], name: str, error: Exception, *, kind: str = ""
) -> None:
    """Count an exception, and log it: the first with its traceback, then each doubling.

    For a refusal of the system, such as a full disk, the log names the file and not the code.

    Args:
        logger: gets the line.
        by_name: the counters.
        name: of the part that raised, in the log and the counters.
        error: the exception.
        kind: precedes the name in the log.
    """
    n_errors = by_name[name] = by_name.get(name, 0) + 1
    if n_errors & (n_errors - 1):
        return
    is_of_system = isinstance(error, OSError) and error.strerror
    told = str(error) if is_of_system else repr(error)
    if n_errors == 1:
        trace = None if is_of_system else error
        logger.error("%s%s failed: %s", kind, name, told, exc_info=trace)
    else:
        logger.error("%s%s failed %d times: %s", kind, name, n_errors, told)
