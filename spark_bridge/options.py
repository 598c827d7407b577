"""The options of ``format("penstock")`` as a source, checked before anything is read.

Their names follow those of Spark's own sources. Spark accepts them in upper and lower case.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from penstock.broker.errors import MalformedPacketError
from penstock.broker.mqtt.topics import SHARE_PREFIX, validate_topic_filter
from penstock.spark_bridge.errors import OptionError
from penstock.spark_bridge.schema import BY_NAME, DEFAULT_COLUMNS
from penstock.spark_bridge.server import ServerOptions

DEFAULT_GROUP: Final = "spark"

DEFAULT_MAX_ROWS_PER_TRIGGER: Final = 250_000
"""The default limit of rows in a micro-batch: a few seconds of work, which a killed query
repeats."""

DEFAULT_MAX_BYTES_PER_TRIGGER: Final = 128 * 1024 * 1024
"""The default limit of bytes in a micro-batch: a row group of Parquet. Spark's Parquet writer
copies all of it several times in one task. Java's default of 1 GiB of memory suffices for that."""

DEFAULT_WAIT_SECONDS: Final = 1.0

DEFAULT_LARGE_ABOVE_BYTES: Final = 10_000
"""The default payload length above which a message is large: the broker's default of
``threshold_s``."""

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1
"""Stand for offsets in JSON, as in Spark's Kafka source."""

Address: TypeAlias = tuple[str, int]
"""Host and port."""

PlaceOption: TypeAlias = (
    Literal["group", "earliest", "latest"] | float | Mapping[str, Mapping[int, int]]
)
"""The place where a query begins or ends: the position of its group, an end of the queue, the
first message that arrived at or after a time (seconds since 1970), or offsets by queue and
physical queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisOptions:
    """The Redis servers from which tasks read; the options that begin with ``redis``.

    One of `server`, `cluster` and `sentinels` gives the address. Files are read on the machines of
    the executors.

    Attributes:
        server: the address of the only server.
        user: the ACL user; "" for `default`.
        password_file: the file whose first line is the password, or "".
        sentinel_password_file: the file whose first line is the password of the sentinels, or "".
        ca_file: the PEM file of the authorities of servers and sentinels; "" for no TLS.
        certificate_file: the PEM file of the client's certificate, or "".
    """

    server: Address | None = None
    cluster: tuple[Address, ...] = ()
    sentinels: tuple[Address, ...] = ()
    master: str = ""
    db: int = 0
    prefix: str = "penstock"
    user: str = ""
    password_file: str = ""
    sentinel_user: str = ""
    sentinel_password_file: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(ServerOptions):
    """Options of the source, checked; ``docs/reference/spark.md`` has their names for users.

    Attributes:
        group: the query's group in each queue, of kind ``offsets``; it is created where it is
            missing. A queue keeps what its group has not committed. It is for streams only.
        starting_position: the place where a query without a checkpoint begins.
        topic_filters: the MQTT topic filters, of which a message must match one; empty for all
            messages.
        max_rows_per_trigger: the most messages of one micro-batch, over all queues.
        max_bytes_per_trigger: about the most stored bytes of one micro-batch. A larger message is
            read alone.
        min_partitions: the least number of tasks of a micro-batch or a batch read, for which long
            physical queues are split; 0 for a task for each physical queue with messages.
        large_above_bytes: the payload length above which a message is of the size class ``large``.
        fail_on_data_loss: whether the query fails when a queue no longer holds messages that it has
            not read. False logs the missing messages and reads on.
        wait_seconds: the seconds for which the server may hold the request for the next micro-batch
            while there are no messages, in addition to `timeout_seconds`. A query that is stopped
            ends that much later.
        redis: the Redis servers from which tasks read messages themselves; None for tasks that read
            from `url`.
    """

    queues: tuple[str, ...]
    group: str = DEFAULT_GROUP
    starting_position: PlaceOption | None = None
    ending_position: PlaceOption | None = None
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    topic_filters: tuple[str, ...] = ()
    max_rows_per_trigger: int = DEFAULT_MAX_ROWS_PER_TRIGGER
    max_bytes_per_trigger: int = DEFAULT_MAX_BYTES_PER_TRIGGER
    min_partitions: int = 0
    large_above_bytes: int = DEFAULT_LARGE_ABOVE_BYTES
    fail_on_data_loss: bool = True
    wait_seconds: float = DEFAULT_WAIT_SECONDS
    redis: RedisOptions | None = None

    @property
    def shown_queues(self) -> str:
        """The queues' names for messages to users."""
        return ", ".join(map(repr, self.queues))


def read_url(name: str, text: str) -> str:
    """Return the text of an option as a URL."""
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


def read_name(name: str, text: str) -> str:
    """Return the text of an option as a name."""
    if not text.strip():
        raise OptionError(f"option {name!r}: read an empty text; allowed: a name")
    return text.strip()


def _addresses(name: str, text: str) -> tuple[Address, ...]:
    # Here, as executors import this module and need no pydantic.
    from penstock.plugins.web.bind import split_bind  # noqa: PLC0415

    try:
        found = tuple(split_bind(part.strip()) for part in text.split(","))
    except ValueError as error:
        raise OptionError(
            f"option {name!r}: read {text!r}; allowed: {error}; several with commas between them"
        ) from error
    return found


def _address(name: str, text: str) -> Address:
    found = _addresses(name, text)
    if len(found) > 1:
        raise OptionError(f"option {name!r}: read {text!r}; allowed: one HOST:PORT")
    return found[0]


def _database(name: str, text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text.strip()):
        raise OptionError(f"option {name!r}: read {text!r}; allowed: a whole number from 0")
    return int(text)


def _names(name: str, text: str) -> tuple[str, ...]:
    names = [part.strip() for part in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise OptionError(
            f"option {name!r}: read {text!r}; allowed: names, each once, with commas between them"
        )
    return tuple(names)


def _columns(name: str, text: str) -> tuple[str, ...]:
    names = _names(name, text)
    for column in names:
        if column not in BY_NAME:
            near = difflib.get_close_matches(column, BY_NAME, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise OptionError(
                f"option {name!r}: read column {column!r}{hint}; allowed are {', '.join(BY_NAME)}"
            )
    return names


def _topic_filters(name: str, text: str) -> tuple[str, ...]:
    filters: Any = text.split(",")
    if text.startswith("["):  # a topic filter that has a comma
        try:
            filters = json.loads(text)
        except ValueError:
            filters = []
    if not filters or not all(isinstance(one, str) for one in filters):
        raise OptionError(
            f"option {name!r}: read {text!r}; allowed: MQTT topic filters with commas between "
            "them, or a JSON list of them"
        )
    for one in filters:
        try:
            validate_topic_filter(one)
        except MalformedPacketError as error:
            raise OptionError(f"option {name!r}: {error}") from error
        if one.startswith(SHARE_PREFIX):
            raise OptionError(
                f"option {name!r}: read {one!r}; allowed: a topic filter without {SHARE_PREFIX}"
            )
    return tuple(filters)


def read_text(name: str, text: str) -> str:
    """Return the text of an option as a text."""
    del name
    return text.strip()


def read_positive(name: str, text: str) -> int:
    """Return the text of an option as a whole number from 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise OptionError(f"option {name!r}: read {text!r}; allowed: a whole number from 1")
    return number


def read_bytes(name: str, text: str) -> int:
    """Return the text of an option as a number of bytes."""
    # Here, as executors import this module and need no pydantic.
    from penstock.broker.config.key_types import read_size  # noqa: PLC0415

    size = read_size(text)
    if not size:
        raise OptionError(
            f"option {name!r}: read {text!r}; allowed: a number of bytes from 1, such as "
            "8388608 or 8 MiB"
        )
    return size


def read_seconds(name: str, text: str, *, zero: bool) -> float:
    """Return the text of an option as a time in seconds."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and (number > 0 or (zero and number == 0))):
        least = "from 0" if zero else "above 0"
        raise OptionError(f"option {name!r}: read {text!r}; allowed: a number of seconds {least}")
    return number


def read_flag(name: str, text: str) -> bool:
    """Return the text of an option as a truth value."""
    flags = {"true": True, "false": False}
    if text.strip().lower() not in flags:
        raise OptionError(f"option {name!r}: read {text!r}; allowed: true or false")
    return flags[text.strip().lower()]


def _starting(name: str, text: str) -> PlaceOption:
    return _place(name, text, ("group", "earliest", "latest"))


def _ending(name: str, text: str) -> PlaceOption:
    return _place(name, text, ("latest",))


def _place(
    name: str, text: str, words: tuple[Literal["group", "earliest", "latest"], ...]
) -> PlaceOption:
    text = text.strip()
    for word in words:
        if text.lower() == word:
            return word
    found = _offsets(text) if text.startswith("{") else _time(text)
    if found is None:
        raise OptionError(
            f"option {name!r}: read {text!r}; allowed: {', '.join(words)}, a time with its zone "
            "such as 2026-11-23T04:00:00Z, seconds since 1970, or JSON of queues to physical "
            f'queues to offsets such as {{"telemetry": {{"0": 17, "1": {EARLIEST_OFFSET}}}}} '
            f"({EARLIEST_OFFSET} for the earliest, {LATEST_OFFSET} for the latest)"
        )
    return found


def _time(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return None
        seconds = math.nan if moment.tzinfo is None else moment.timestamp()
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _offsets(text: str) -> Mapping[str, Mapping[int, int]] | None:
    """Read offsets by queue, also as the source itself reports them."""
    try:
        queues = {
            name: {int(number): offset for number, offset in one.get("next", one).items()}
            for name, one in json.loads(text).items()
        }
    except (ValueError, AttributeError):
        return None
    offsets = [offset for one in queues.values() for offset in one.values()]
    are_numbers = all(isinstance(offset, int) for offset in offsets) and True not in offsets
    return queues if are_numbers and min(offsets, default=0) >= EARLIEST_OFFSET else None


Reader: TypeAlias = tuple[str, Callable[[str, str], Any]]
"""An option's attribute, and the function that makes its value from its name and text."""

SERVER_READERS: Final[Mapping[str, Reader]] = {
    "token": ("token", read_text),
    "tokenFile": ("token_file", read_text),
    "caFile": ("ca_file", read_text),
    "timeoutSeconds": ("timeout_seconds", lambda name, text: read_seconds(name, text, zero=False)),
    "retrySeconds": ("retry_seconds", lambda name, text: read_seconds(name, text, zero=True)),
}
"""The attribute and the reader of each option of `ServerOptions`, beside ``url``."""

_READERS: Final[Mapping[str, Reader]] = {
    "url": ("url", read_url),
    "queue": ("queues", _names),
    "group": ("group", read_name),
    "startingPosition": ("starting_position", _starting),
    "endingPosition": ("ending_position", _ending),
    "columns": ("columns", _columns),
    "topicFilter": ("topic_filters", _topic_filters),
    "maxRowsPerTrigger": ("max_rows_per_trigger", read_positive),
    "maxBytesPerTrigger": ("max_bytes_per_trigger", read_bytes),
    "minPartitions": ("min_partitions", read_positive),
    "largeAboveBytes": ("large_above_bytes", read_bytes),
    "failOnDataLoss": ("fail_on_data_loss", read_flag),
    "waitSeconds": ("wait_seconds", lambda name, text: read_seconds(name, text, zero=True)),
    **SERVER_READERS,
}
"""The attribute and the reader of each option, in the order of the documentation."""

_REDIS: Final = "redis."
"""The mark of an attribute of `RedisOptions`."""

_REDIS_READERS: Final[Mapping[str, Reader]] = {
    "redis": ("redis.server", _address),
    "redisSentinels": ("redis.sentinels", _addresses),
    "redisMaster": ("redis.master", read_name),
    "redisCluster": ("redis.cluster", _addresses),
    "redisDb": ("redis.db", _database),
    "redisPrefix": ("redis.prefix", read_name),
    "redisUser": ("redis.user", read_name),
    "redisPasswordFile": ("redis.password_file", read_name),
    "redisSentinelUser": ("redis.sentinel_user", read_name),
    "redisSentinelPasswordFile": ("redis.sentinel_password_file", read_name),
    "redisCaFile": ("redis.ca_file", read_name),
    "redisCertificateFile": ("redis.certificate_file", read_name),
    "redisKeyFile": ("redis.key_file", read_name),
}
"""The attribute and the reader of each option of `RedisOptions`."""

_ALL_READERS: Final = {**_READERS, **_REDIS_READERS}
_PLACES: Final = ("redis", "redisSentinels", "redisCluster")
"""The options for the address of the servers, of which one is allowed."""

OPTION_NAMES: Final = tuple(_READERS)
"""The names of all options but those of Redis."""
REDIS_OPTION_NAMES: Final = tuple(_REDIS_READERS)
"""The names of the options of Redis."""


def read_texts(
    texts: Mapping[str, str], readers: Mapping[str, Reader], needed: Sequence[str]
) -> dict[str, Any]:
    """Turn Spark's option texts into the values of attributes.

    Raises:
        OptionError: an option is missing, unknown or out of range; the text names it.
    """
    by_lower_case = {name.lower(): name for name in readers}
    values: dict[str, Any] = {}
    for given, text in texts.items():
        name = by_lower_case.get(given.lower())
        if name is None:
            near = difflib.get_close_matches(given.lower(), by_lower_case, n=1)
            hint = f" (did you mean {by_lower_case[near[0]]!r}?)" if near else ""
            raise OptionError(f"unknown option {given!r}{hint}; allowed are {', '.join(readers)}")
        attribute, read = readers[name]
        values[attribute] = read(name, text)
    for name in needed:
        if readers[name][0] not in values:
            raise OptionError(f"option {name!r} is missing: set .option({name!r}, ...)")
    return values


def read_options(texts: Mapping[str, str]) -> SourceOptions:
    """Turn Spark's option texts into checked values.

    Raises:
        OptionError: an option is missing, unknown or out of range; the text names it.
    """
    values = read_texts(texts, _ALL_READERS, ("url", "queue"))
    of_redis = {
        attribute.removeprefix(_REDIS): values.pop(attribute)
        for attribute, _ in _REDIS_READERS.values()
        if attribute in values
    }
    redis = _checked_redis(of_redis) if of_redis else None
    options = SourceOptions(**values, redis=redis)
    for name in ("startingPosition", "endingPosition"):
        place = values.get(_READERS[name][0])
        if isinstance(place, Mapping) and place.keys() != set(options.queues):
            raise OptionError(
                f"option {name!r}: read offsets of {', '.join(map(repr, place)) or 'no queue'}; "
                f"allowed: of each queue of the query: {options.shown_queues}"
            )
    return options


def _checked_redis(values: Mapping[str, Any]) -> RedisOptions:
    """Return options that belong together.

    Raises:
        OptionError: they do not.
    """
    by_attribute = {
        attribute.removeprefix(_REDIS): name for name, (attribute, _) in _REDIS_READERS.items()
    }
    given = [by_attribute[attribute] for attribute in values]
    places = [name for name in given if name in _PLACES]
    if len(places) != 1:
        raise OptionError(
            f"options {', '.join(map(repr, given))}: read {' and '.join(places) or 'none'} of "
            f"{', '.join(_PLACES)}; allowed: one of them"
        )
    options = RedisOptions(**values)
    for name, wanted in (
        ("redisMaster", bool(options.sentinels)),
        ("redisSentinelUser", bool(options.sentinels and options.sentinel_password_file)),
        ("redisSentinelPasswordFile", bool(options.sentinels)),
        ("redisUser", bool(options.password_file)),
        ("redisCertificateFile", bool(options.ca_file and options.key_file)),
        ("redisKeyFile", bool(options.ca_file and options.certificate_file)),
    ):
        if name in given and not wanted:
            raise OptionError(f"option {name!r}: read one; allowed: {_WITH[name]}")
    if options.sentinels and not options.master:
        raise OptionError("option 'redisMaster' is missing: set .option('redisMaster', ...)")
    if options.cluster and options.db:
        raise OptionError(f"option 'redisDb': read {options.db}; allowed: 0 on a cluster")
    return options


_WITH: Final = {
    "redisMaster": "with redisSentinels",
    "redisSentinelUser": "with redisSentinels and redisSentinelPasswordFile",
    "redisSentinelPasswordFile": "with redisSentinels",
    "redisUser": "with redisPasswordFile",
    "redisCertificateFile": "with redisCaFile and redisKeyFile",
    "redisKeyFile": "with redisCaFile and redisCertificateFile",
}
"""The options that an option requires."""
