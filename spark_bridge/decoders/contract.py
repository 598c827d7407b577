"""The interface of decoders: they turn a payload into JSON text, and may know its schema.

Spark parses JSON with a schema fast, with all of its types. So a decoder in Python only has to
produce a JSON object. From there on, all formats are handled in the same way.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

from penstock.spark_bridge.errors import OptionError

EXTRA: Final = "decoders"
"""The extra of the distribution that installs the libraries."""

_SURPRISES: Final[tuple[type[Exception], ...]] = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, RecursionError),
    *(TypeError, ValueError),
)
"""The exceptions that libraries raise for unexpected bytes, beside their own."""

JSON_OBJECT: Final = "STRING"
"""The type of a column that holds JSON text, for content without fixed columns."""


class DecodeError(Exception):
    """An error: a payload is not of the format; the text says why."""


class Decoder(NamedTuple):
    """A decoder of one format and schema.

    Attributes:
        to_json: a function that returns a payload as the text of a JSON object, and raises nothing
            but `DecodeError`.
        schema: the columns of that object as Spark's DDL; None where the format does not tell.
    """

    to_json: Callable[[bytes], str]
    schema: str | None = None


@contextmanager
def needed_for(kind: str) -> Iterator[None]:
    """Name the extra where an import inside the block fails.

    Raises:
        OptionError: the library is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise OptionError(
            f"decode.format: {kind} needs the module {error.name}: "
            f"pip install 'penstock-mqtt[{EXTRA}]'"
        ) from error


def new_decoder(
    read: Callable[[bytes], Any],
    failures: tuple[type[Exception], ...],
    schema: str | None = None,
    *,
    nothing: Any = None,
) -> Decoder:
    """Return a decoder.

    Args:
        read: a function that returns the object in a payload.
        failures: the exceptions of `read` for a payload that is not of the format.
        schema: see `Decoder`.
        nothing: a value that becomes null.
    """
    caught = failures + _SURPRISES

    def plain(value: Any) -> Any:
        return None if value is nothing else _plain(value)

    def to_json(payload: bytes) -> str:
        try:
            value = read(payload)
            if not isinstance(value, dict):
                raise DecodeError(f"read {type(value).__name__}; allowed: a map of names to values")
            return json.dumps(value, default=plain)
        except caught as error:
            raise DecodeError(f"{type(error).__name__}: {error}") from error

    return Decoder(to_json, schema)


def column(name: str, spark_type: str) -> str:
    """Return a column as Spark's DDL writes it."""
    return f"{_quoted(name)} {spark_type}"


def struct(fields: dict[str, str]) -> str:
    """Return the type of an object with these fields, name to type."""
    return f"STRUCT<{', '.join(f'{_quoted(name)}: {kind}' for name, kind in fields.items())}>"


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _plain(value: Any) -> Any:
    """Return a value as JSON has it, in a form that Spark reads back as the original type."""
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, set | frozenset):
        return list(value)
    raise DecodeError(f"read a value of type {type(value).__name__}, which has no form in JSON")
