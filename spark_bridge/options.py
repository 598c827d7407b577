"""The options of ``spark.readStream.format("penstock")``, checked before anything is read."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final
from urllib.parse import urlsplit

from penstock.broker.config.key_types import read_size
from penstock.spark_bridge.errors import OptionError

DEFAULT_GROUP: Final = "spark"

DEFAULT_MAX_MESSAGES_PER_BATCH: Final = 250_000
"""A few seconds of work: a killed query repeats no more than that, and commits to the queue as
often."""

DEFAULT_MAX_MESSAGES_PER_REQUEST: Final = 10_000
"""With so many a request's fixed cost is negligible, and a record batch is still small."""

DEFAULT_MAX_BYTES_PER_REQUEST: Final = 8 * 1024 * 1024
"""Memory of one Python worker for a request, whatever the size of the messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Options of the source as checked values.

    Attributes:
        url: of the queue's HTTP API, as ``http://host:port``.
        queue: the logical queue.
        group: the query's group, of kind ``offsets``; created where it is missing. The queue keeps
            what it has not committed.
        token_file: file with the bearer token, on the driver and where executors run; "" where the
            server asks for none.
        ca_file: PEM file of the certificate authority of an https server, on the same machines; ""
            for those of the system.
        max_messages_per_batch: messages of one micro-batch at most, over all physical queues.
        max_messages_per_request: messages of one HTTP answer and one record batch at most.
        max_bytes_per_request: approximate payload bytes of one HTTP answer; a larger message is
            read alone.
        wait_seconds: for how long the server may hold the question for the next micro-batch while
            nothing is there. A query that is stopped ends as much later.
        timeout_seconds: how long one request may take, in addition to that.
        retry_seconds: for how long requests are repeated to a server that does not answer, before
            the query fails; 0 asks once.
        fail_on_data_loss: whether the query fails when the queue no longer holds messages that it
            has not read. False logs what is missing and reads on.
    """

    url: str
    queue: str
    group: str = DEFAULT_GROUP
    token_file: str = ""
    ca_file: str = ""
    max_messages_per_batch: int = DEFAULT_MAX_MESSAGES_PER_BATCH
    max_messages_per_request: int = DEFAULT_MAX_MESSAGES_PER_REQUEST
    max_bytes_per_request: int = DEFAULT_MAX_BYTES_PER_REQUEST
    wait_seconds: float = 1.0
    timeout_seconds: float = 30.0
    retry_seconds: float = 30.0
    fail_on_data_loss: bool = True


def _url(name: str, text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        usable = False
    if not usable:
        raise OptionError(
            f"option {name!r}: read {text!r}; allowed: http://host:port or https://host:port"
        )
    return text.rstrip("/")


def _name(name: str, text: str) -> str:
    if not text.strip():
        raise OptionError(f"option {name!r}: read an empty text; allowed: a name")
    return text


def _file(name: str, text: str) -> str:
    del name
    return text.strip()


def _positive(name: str, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise OptionError(f"option {name!r}: read {text!r}; allowed: a whole number from 1")
    return number


def _size(name: str, text: str) -> int:
    size = read_size(text)
    if not size:
        raise OptionError(
            f"option {name!r}: read {text!r}; allowed: a number of bytes from 1, such as "
            "8388608 or 8 MiB"
        )
    return size


def _seconds(name: str, text: str, *, zero: bool) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and (number > 0 or (zero and number == 0))):
        least = "from 0" if zero else "above 0"
        raise OptionError(f"option {name!r}: read {text!r}; allowed: a number of seconds {least}")
    return number


def _flag(name: str, text: str) -> bool:
    flags = {"true": True, "false": False}
    if text.strip().lower() not in flags:
        raise OptionError(f"option {name!r}: read {text!r}; allowed: true or false")
    return flags[text.strip().lower()]


_READERS: Final[dict[str, Callable[[str, str], Any]]] = {
    "url": _url,
    "queue": _name,
    "group": _name,
    "token_file": _file,
    "ca_file": _file,
    "max_messages_per_batch": _positive,
    "max_messages_per_request": _positive,
    "max_bytes_per_request": _size,
    "wait_seconds": lambda name, text: _seconds(name, text, zero=True),
    "timeout_seconds": lambda name, text: _seconds(name, text, zero=False),
    "retry_seconds": lambda name, text: _seconds(name, text, zero=True),
    "fail_on_data_loss": _flag,
}

OPTION_NAMES: Final = tuple(field.name for field in fields(SourceOptions))
"""Every option's name, in the order of the documentation."""


def read_options(texts: Mapping[str, str]) -> SourceOptions:
    """Turn Spark's option texts into checked values.

    Args:
        texts: option names, in any case, to their texts.

    Returns:
        The options, defaults filled in.

    Raises:
        OptionError: an option is missing, unknown or out of range; the text names it.
    """
    values: dict[str, Any] = {}
    for given, text in texts.items():
        name = given.lower()
        if name not in _READERS:
            near = difflib.get_close_matches(name, OPTION_NAMES, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise OptionError(
                f"unknown option {given!r}{hint}; allowed are {', '.join(OPTION_NAMES)}"
            )
        values[name] = _READERS[name](name, text)
    for name in ("url", "queue"):
        if name not in values:
            raise OptionError(f"option {name!r} is missing: set .option({name!r}, ...)")
    return SourceOptions(**values)
