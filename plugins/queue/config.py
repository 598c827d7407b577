"""The keys under `plugins.queue` of a policy file."""

from __future__ import annotations

import re
from dataclasses import field, fields
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from penstock.broker.config.key_types import STRICT, Positive, PositiveSize, Seconds, Size
from penstock.broker.errors import MalformedPacketError
from penstock.broker.message import SizeClass
from penstock.broker.mqtt.topics import SHARE_PREFIX, validate_topic_filter
from penstock.plugins.web.bind import split_bind
from penstock.plugins.web.limits import HttpLimits

_NAME_FORM: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


def _checked_topic_filter(topic_filter: str) -> str:
    try:
        validate_topic_filter(topic_filter)
    except MalformedPacketError as error:
        raise ValueError(f"an MQTT topic filter ({error.args[0]})") from error
    if topic_filter.startswith(SHARE_PREFIX):
        raise ValueError(f"no {SHARE_PREFIX}: the readers of a queue share its messages anyway")
    return topic_filter


def _checked_queue_name(name: str) -> str:
    if not _NAME_FORM.fullmatch(name):
        raise ValueError(
            "a name of 1 to 80 letters, digits, dots, dashes and underscores that begins with a "
            "letter or digit"
        )
    return name


def _checked_bind(bind: str) -> str:
    try:
        split_bind(bind)
    except ValueError as error:
        raise ValueError(f"null or {error}") from error
    return bind


_TopicFilter = Annotated[str, AfterValidator(_checked_topic_filter)]
_QueueName = Annotated[str, AfterValidator(_checked_queue_name)]
_Bind = Annotated[str, AfterValidator(_checked_bind)]


_DEQUEUE_KEYS: Final = frozenset(
    {
        "dequeue",
        "max_leased_messages",
        "max_queues_per_dequeue",
        "max_wait_seconds",
        "max_waiting_requests",
        "n_max",
        "sleep_time",
        "visibility_timeout",
    }
)


@dataclass(frozen=True, slots=True, config=STRICT)
class LogicalQueueConfig:
    """One logical queue; the keys under `plugins.queue.queues.NAME`.

    Attributes:
        topics: MQTT topic filters whose messages the queue takes; none for a queue that is fed over
            HTTP only.
        sizes: size class of the messages that it takes, ``small`` or ``large``; None for both.
        physical_queues: number of queues over which the messages are spread, round robin. A reader
            that commits offsets, such as Spark, reads them in parallel. When the number is reduced,
            the surplus ones are still read until they are empty.
        readers: `dequeue` for back ends that receive and delete single messages, `offsets`
            for readers that read ranges and commit; the keys of dequeueing are then refused.
        dequeue: `rds` holds a request that found nothing and retries; `conventional` answers at
            once (papers 000 and 001).
        visibility_timeout: seconds for which a received message is invisible to others
            (paper 004). Long enough for a back end that writes a batch to a database.
        sleep_time: seconds between two retries of `rds`; 0.1 to 0.5 served best on real
            servers (paper 000).
        max_queues_per_dequeue: physical queues that one request tries; 3 in the papers.
        n_max: most messages of one dequeue (N_max); 100 in the papers.
        max_wait_seconds: longest time for which a client may ask `rds` to hold its request.
        max_waiting_requests: requests that may be held at a time; further ones are refused.
        max_leased_messages: messages that may be received and not deleted; at the limit, a dequeue
            is refused. Bounds the memory of leases, 0.4 KB each.
        max_messages: messages that the queue may hold; further ones are refused. None for no limit.
        max_bytes: the same in bytes as stored.
        retention_seconds: age at which an unread message is removed; None for never.
    """

    topics: tuple[_TopicFilter, ...] = ()
    sizes: SizeClass | None = None
    physical_queues: Annotated[int, Field(ge=1, le=1024)] = 4
    readers: Literal["dequeue", "offsets"] = "dequeue"
    dequeue: Literal["rds", "conventional"] = "rds"
    visibility_timeout: Seconds = 30.0
    sleep_time: Seconds = 0.1
    max_queues_per_dequeue: Positive = 3
    n_max: Annotated[int, Field(ge=1, le=10_000)] = 100
    max_wait_seconds: Annotated[float, Field(ge=0, le=3600)] = 60.0
    max_waiting_requests: Positive = 1_000
    max_leased_messages: Positive = 100_000
    max_messages: Positive | None = None
    max_bytes: PositiveSize | None = None
    retention_seconds: Seconds | None = None

    def __post_init__(self) -> None:
        """Refuse keys without an effect."""
        if self.sizes is not None and not self.topics:
            raise ValueError("no sizes without topics; what comes over HTTP has no size class")
        if self.readers == "dequeue":
            return
        for key in fields(self):
            if key.name in _DEQUEUE_KEYS and getattr(self, key.name) != key.default:
                raise ValueError(f"no {key.name} with readers: offsets; it is for readers: dequeue")


@dataclass(frozen=True, slots=True, config=STRICT)
class QueueHttpLimits(HttpLimits):
    """What clients of the HTTP API may take; the keys under `plugins.queue.http_limits`.

    Attributes:
        body_timeout_seconds: time for the whole body of a request, from its header on. The largest
            body takes half of it over 1 Mbit/s.
        body_bytes: of all bodies that are being received; above it clients are not read from until
            other requests are handled, and get 503 after the timeout. Sixteen of the largest.
    """

    body_timeout_seconds: Seconds = 60.0
    body_bytes: PositiveSize = 64 * 1024 * 1024


def _checked_queues(
    queues: dict[str, LogicalQueueConfig],
) -> dict[str, LogicalQueueConfig]:
    if not queues:
        raise ValueError("at least one queue")
    return queues


@dataclass(frozen=True, slots=True, config=STRICT)
class QueueConfig:
    """The keys under `plugins.queue`.

    Attributes:
        engine: `sqlite` keeps messages in a file, `memory` until the program ends.
        path: the file of `sqlite`, created where it is missing; relative to the directory in which
            the program was started. Beside it lie ``PATH-wal``, ``PATH-shm``, ``PATH.lock`` and
            ``PATH.reserve``, which reserves space so that a queue on a full disk can be drained.
        durability: `full` acknowledges messages that are on the disk; `normal` those that the
            operating system has, which survive the program but not a power cut.
        http: ``HOST:PORT`` of the HTTP API, port 0 for any free one; null for none. Only this
            machine by default, as the API needs no password.
        http_limits: limits for clients of the HTTP API.
        max_request_bytes: largest body of an HTTP request. A picture of 1 MB in base64 fits, and
            reading one body does not block the broker for long.
        commit_wait_seconds: how long the first message of a group waits for others before the
            commit. About the time of a disk's flush.
        commit_max_messages: messages of one commit at most.
        max_pending_messages: messages that may wait for their commit, over all queues;
            further ones are refused.
        max_pending_bytes: the same in payload bytes. One message alone may be larger.
        queues: the logical queues by name.
    """

    queues: Annotated[dict[_QueueName, LogicalQueueConfig], AfterValidator(_checked_queues)]
    engine: Literal["sqlite", "memory"] = "sqlite"
    path: Annotated[str, Field(min_length=1)] = "penstock-queue.db"
    durability: Literal["full", "normal"] = "full"
    http: _Bind | None = "127.0.0.1:8080"
    http_limits: QueueHttpLimits = field(default_factory=QueueHttpLimits)
    max_request_bytes: Annotated[Size, Field(ge=1024)] = 4 * 1024 * 1024
    commit_wait_seconds: Annotated[float, Field(ge=0, le=1)] = 0.002
    commit_max_messages: Positive = 2_000
    max_pending_messages: Positive = 100_000
    max_pending_bytes: PositiveSize = 64 * 1024 * 1024
