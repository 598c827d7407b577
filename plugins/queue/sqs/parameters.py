"""The parameters of an SQS request are checked here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from penstock.plugins.queue.sqs.errors import (
    BATCH_IDS_NOT_DISTINCT,
    EMPTY_BATCH_REQUEST,
    INVALID_BATCH_ENTRY_ID,
    MISSING_PARAMETER,
    SERIALIZATION,
    TOO_MANY_ENTRIES,
    SqsError,
    invalid_parameter,
)

MAX_ENTRIES: Final = 10
"""The most entries of a batch, as at Amazon."""

_ENTRY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")


def text(parameters: Mapping[str, Any], name: str) -> str:
    """Return a text that must be there and must not be empty.

    Raises:
        SqsError: it is not.
    """
    found = optional_text(parameters, name)
    if not found:
        raise SqsError(MISSING_PARAMETER, f"The request must contain the parameter {name}.")
    return found


def optional_text(parameters: Mapping[str, Any], name: str) -> str | None:
    """Return a text; None where there is none.

    Raises:
        SqsError: it is something else.
    """
    found = parameters.get(name)
    if found is not None and not isinstance(found, str):
        raise SqsError(SERIALIZATION, f"{name}: allowed: a text")
    return found


def optional_integer(parameters: Mapping[str, Any], name: str, least: int, most: int) -> int | None:
    """Return a whole number in ``[least, most]``; None where there is none.

    Raises:
        SqsError: it is something else.
    """
    found = parameters.get(name)
    if found is None:
        return None
    if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
        raise invalid_parameter(name, found, f"a whole number of {least} to {most}")
    return found


def integer(parameters: Mapping[str, Any], name: str, least: int, most: int) -> int:
    """Return a whole number that must be there.

    Raises:
        SqsError: it is not, or is something else.
    """
    found = optional_integer(parameters, name, least, most)
    if found is None:
        raise SqsError(MISSING_PARAMETER, f"The request must contain the parameter {name}.")
    return found


def texts(parameters: Mapping[str, Any], name: str) -> list[str]:
    """Return a list of texts; an empty one where there is none.

    Raises:
        SqsError: it is something else.
    """
    found = parameters.get(name, [])
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise SqsError(SERIALIZATION, f"{name}: allowed: a list of texts")
    return found


def entries(parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of a batch, each with an Id of its own.

    Raises:
        SqsError: the batch is not allowed.
    """
    found = parameters.get("Entries", [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise SqsError(SERIALIZATION, "Entries: allowed: a list of objects")
    if not found:
        raise SqsError(
            EMPTY_BATCH_REQUEST, "There should be at least one entry in the batch request."
        )
    if len(found) > MAX_ENTRIES:
        raise SqsError(
            TOO_MANY_ENTRIES,
            f"Maximum number of entries per request are {MAX_ENTRIES}. You have sent {len(found)}.",
        )
    seen = set()
    for entry in found:
        entry_id = text(entry, "Id")
        if not _ENTRY_ID.fullmatch(entry_id):
            raise SqsError(
                INVALID_BATCH_ENTRY_ID,
                "A batch entry id can only contain alphanumeric characters, hyphens and "
                "underscores. It can be at most 80 letters long.",
            )
        if entry_id in seen:
            raise SqsError(BATCH_IDS_NOT_DISTINCT, f"Id {entry_id} repeated.")
        seen.add(entry_id)
    return found
