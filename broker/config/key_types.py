"""The types of keys in configuration files.

A size is a number of bytes, or a text with a unit, such as ``64 KiB``. Units are those of
pydantic's `ByteSize` without its units of bits: kB, MB, GB and TB are decimal, KiB, MiB, GiB and
TiB are binary, in upper or lower case, with or without a space.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    ByteSize,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from penstock.broker.errors import MalformedPacketError
from penstock.broker.mqtt.topics import SHARE_PREFIX, validate_topic_filter

STRICT: Final = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""A dataclass of keys accepts no others, converts nothing, and takes finite numbers only."""

Positive = Annotated[int, Field(ge=1)]
"""A whole number of 1 or more."""

Seconds = Annotated[float, Field(gt=0)]
"""A time in seconds, above 0."""

PerSecond = Annotated[float, Field(gt=0)]
"""A rate per second, above 0."""

NAME_FORM: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
"""The form of names that users give, such as those of queues."""
NAME_ALLOWED: Final = (
    "a name of 1 to 80 letters, digits, dots, dashes and underscores that begins with a letter or "
    "digit"
)


def _checked_name(name: str) -> str:
    if not NAME_FORM.fullmatch(name):
        raise ValueError(NAME_ALLOWED)
    return name


Name = Annotated[str, AfterValidator(_checked_name)]
"""A name that a user gives."""


def _checked_topic_filter(topic_filter: str) -> str:
    try:
        validate_topic_filter(topic_filter)
    except MalformedPacketError as error:
        raise ValueError(f"a topic filter ({error.args[0]})") from error
    if topic_filter.startswith(SHARE_PREFIX):
        raise ValueError(f"a topic filter that is not below {SHARE_PREFIX}")
    return topic_filter


TopicFilter = Annotated[str, AfterValidator(_checked_topic_filter)]
"""A topic filter of no shared subscription."""

SIZE_ALLOWED: Final = (
    "a whole number of bytes, or a text with a unit of bytes, such as 64 KiB or 10 MB"
)
"""An error uses these words in place of pydantic's."""

WRONG_SIZE: Final = frozenset({"byte_size", "byte_size_unit"})
"""The types of pydantic's errors for a value that is no size."""

_SIZE: Final = re.compile(r"\s*(\d*\.?\d+)\s*([a-z]*)\s*", re.ASCII | re.IGNORECASE)
"""The whole text of a size: a number and a unit."""

_BIT: Final = "bit"
_BYTE: Final = ("", "b", "B")


def _read_whole(value: Any, read: Callable[[Any], ByteSize]) -> ByteSize:
    """Read a size; refuse a text that `ByteSize` reads as something else.

    It reads 128 from ``128,000,000``, 0 from ``0.1``, and 1,250 from ``10 kbit``.

    Raises:
        PydanticCustomError: it is such a text.
    """
    n_bytes = read(value)
    if isinstance(value, str):
        found = _SIZE.fullmatch(value)
        number, unit = found.groups() if found is not None else ("", _BIT)
        is_less = not n_bytes and float(number or 0)
        if is_less or unit.lower().endswith(_BIT) or ("." in number and unit in _BYTE):
            raise PydanticCustomError("byte_size", SIZE_ALLOWED)
    return n_bytes


def _size_schema(_source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    return core_schema.no_info_wrap_validator_function(_read_whole, handler(ByteSize))


# A plain int: what compares with a subclass of it is slower on every message.
Size = Annotated[int, GetPydanticSchema(_size_schema), AfterValidator(int)]
"""A size in bytes."""

PositiveSize = Annotated[Size, Field(ge=1)]
"""A size of one byte or more."""

Rate = Annotated[
    float,
    GetPydanticSchema(
        lambda source, handler: core_schema.union_schema(
            [handler(float), _size_schema(source, handler)],
            custom_error_type="byte_size",
            custom_error_message=SIZE_ALLOWED,
        )
    ),
    AfterValidator(float),
]
"""A rate in bytes per second, written as the size of what passes in one second."""

_READER: Final = TypeAdapter(Size)


def read_size(value: object) -> int | None:
    """Return the bytes that a value of a file stands for; None where it is no size."""
    try:
        return _READER.validate_python(value, strict=True)
    except ValidationError:
        return None


def show_size(n_bytes: int) -> str:
    """Return a size with a binary unit, to one decimal place, such as ``1.5 GiB``."""
    return ByteSize(n_bytes).human_readable(separator=" ")
