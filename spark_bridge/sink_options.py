"""The options of ``format("penstock")`` as a sink, checked before anything is staged."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.spark_bridge.errors import OptionError
from penstock.spark_bridge.options import (
    SERVER_READERS,
    Reader,
    read_bytes,
    read_flag,
    read_positive,
    read_texts,
    read_url,
)
from penstock.spark_bridge.server import ServerOptions

DEFAULT_ROWS_PER_REQUEST: Final = 5_000
"""The default number of rows in a request: half of the server's limit."""

DEFAULT_BYTES_PER_REQUEST: Final = 1024 * 1024
"""The default limit of payload bytes in a request. Payloads in base64 are a third longer:
together with the rest of their rows, these stay below the server's default of 4 MiB for a
request."""

_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname", "path"})
"""The options of Spark's own, in lower case, that it gives to every sink."""

_WRITE_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,100}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions(ServerOptions):
    """Options of the sink as checked values; ``docs/reference/spark.md`` has their names for users.

    Attributes:
        defaults: the value of a column where it is null or missing, by column.
        write_id: the name of a batch write: a later write of the same name publishes nothing. ""
            for none.
        rows_per_request: the most rows of one upload.
        bytes_per_request: the most payload bytes of one upload; a longer row is sent alone.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    write_id: str = ""
    rows_per_request: int = DEFAULT_ROWS_PER_REQUEST
    bytes_per_request: int = DEFAULT_BYTES_PER_REQUEST


def _as_given(_name: str, text: str) -> str:
    return text


def _qos(name: str, text: str) -> int:
    if text.strip() not in ("0", "1", "2"):
        raise OptionError(f"option {name!r}: read {text!r}; allowed: 0, 1 or 2")
    return int(text)


def _pairs(name: str, text: str) -> list[tuple[str, str]]:
    try:
        pairs = json.loads(text).items()
    except (ValueError, AttributeError):
        pairs = [(None, None)]
    if not all(isinstance(value, str) for _, value in pairs):
        raise OptionError(
            f'option {name!r}: read {text!r}; allowed: a JSON object of texts, as {{"unit": "C"}}'
        )
    return list(pairs)


def _write_id(name: str, text: str) -> str:
    if not _WRITE_ID.fullmatch(text):
        raise OptionError(
            f"option {name!r}: read {text!r}; allowed: 1 to 100 letters, digits, dots, colons, "
            "dashes and underscores"
        )
    return text


_ROW_READERS: Final[Mapping[str, Reader]] = {
    "topic": ("topic", _as_given),
    "qos": ("qos", _qos),
    "retain": ("retain", read_flag),
    "expiry": ("expiry", read_positive),
    "contentType": ("content_type", _as_given),
    "responseTopic": ("response_topic", _as_given),
    "correlationData": ("correlation_data", _as_given),
    "userProperties": ("user_properties", _pairs),
}
"""The options that stand for a column, with the column's name."""

_READERS: Final[Mapping[str, Reader]] = {
    "url": ("url", read_url),
    **_ROW_READERS,
    "writeId": ("write_id", _write_id),
    "rowsPerRequest": ("rows_per_request", read_positive),
    "bytesPerRequest": ("bytes_per_request", read_bytes),
    **SERVER_READERS,
}

SINK_OPTION_NAMES: Final = tuple(_READERS)
"""The names of all options, in the order of the documentation."""


def read_sink_options(texts: Mapping[str, str]) -> SinkOptions:
    """Turn Spark's option texts into checked values.

    Raises:
        OptionError: an option is missing, unknown or out of range; the text names it.
    """
    own = {name: text for name, text in texts.items() if name.lower() not in _OF_SPARK}
    values = read_texts(own, _READERS, ("url",))
    columns = {column for column, _ in _ROW_READERS.values()}
    defaults = {name: value for name, value in values.items() if name in columns}
    others = {name: value for name, value in values.items() if name not in columns}
    return SinkOptions(defaults=defaults, **others)
