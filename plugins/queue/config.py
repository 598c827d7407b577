"""The keys under `plugins.queue` of a policy file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field, fields
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from penstock.broker.config.key_types import (
    STRICT,
    Name,
    Positive,
    PositiveSize,
    Seconds,
    Size,
    TopicFilter,
)
from penstock.broker.message import SizeClass
from penstock.plugins.queue.strategies.slowdown_exclusion import DEFAULT_SLOWDOWN_DETECTION_TIME
from penstock.plugins.redis.config import RedisConfig, Server
from penstock.plugins.web.bind import split_bind
from penstock.plugins.web.limits import HttpLimits, HttpTls

KEY_FORM: Final = re.compile(r"topic|topic:[0-9]{1,4}|publisher|property:.{1,256}", re.DOTALL)
"""The form of `LogicalQueueConfig.key`."""
KEY_ALLOWED: Final = "topic, topic:LEVEL, publisher or property:NAME"
MAX_PHYSICAL_QUEUES: Final = 1024
MAX_RECEIVE_MESSAGES: Final = 10_000
"""The largest `n_max`."""
DEFAULT_GROUP: Final = "default"
"""The name of the lease group that a queue gets if it is created without groups."""


def _checked_key(key: str) -> str:
    if not KEY_FORM.fullmatch(key):
        raise ValueError(KEY_ALLOWED)
    return key


def _checked_bind(bind: str) -> str:
    try:
        split_bind(bind)
    except ValueError as error:
        raise ValueError(f"null or {error}") from error
    return bind


_Key = Annotated[str, AfterValidator(_checked_key)]
_Bind = Annotated[str, AfterValidator(_checked_bind)]
_Duration = Annotated[float, Field(ge=0)]
_Path = Annotated[str, Field(min_length=1)]

_LEASE_KEYS: Final = frozenset(
    {"dead_letter_queue", "max_leased_messages", "max_receives", "order", "visibility_timeout"}
)


@dataclass(frozen=True, slots=True, config=STRICT)
class GroupConfig:
    """A group: the keys under `plugins.queue.queues.NAME.groups.GROUP`.

    Attributes:
        kind: `lease`: receive and settle single messages; `offsets`: read ranges and commit
            positions, as Spark does.
        visibility_timeout: seconds that a received message is invisible to others (paper 004).
        order: `key`: a message comes with the earlier ones of its key, or after they are settled;
            the queue needs a `key`. `any`: it does not wait.
        max_receives: receives after which a message becomes a dead letter.
        dead_letter_queue: queue of dead letters; without one they are dropped and counted.
        max_leased_messages: messages that may be leased at a time; then receives are refused.
        topics: MQTT topic filters of the group's messages; null for all.
        start: where a new group begins: the `earliest` message, behind the `latest`, or the first
            of a time in seconds since 1970 or later.
        group_expiry_seconds: time without a request until the group is deleted, while a program
            runs.
    """

    kind: Literal["lease", "offsets"] = "lease"
    visibility_timeout: Seconds = 30.0
    order: Literal["any", "key"] = "any"
    max_receives: Positive | None = None
    dead_letter_queue: Name | None = None
    max_leased_messages: Positive = 100_000
    topics: Annotated[tuple[TopicFilter, ...], Field(min_length=1)] | None = None
    start: Literal["earliest", "latest"] | _Duration = "earliest"
    group_expiry_seconds: Seconds | None = None

    def __post_init__(self) -> None:
        """Refuse keys without an effect."""
        if self.kind == "offsets":
            for key in fields(self):
                if key.name in _LEASE_KEYS and getattr(self, key.name) != key.default:
                    raise ValueError(f"no {key.name} with kind: offsets; it is for kind: lease")


def _default_groups() -> dict[Name, GroupConfig]:
    return {DEFAULT_GROUP: GroupConfig()}


@dataclass(frozen=True, slots=True, config=STRICT)
class LogicalQueueConfig:
    """One logical queue; the keys under `plugins.queue.queues.NAME`.

    Attributes:
        topics: MQTT topic filters whose messages the queue takes; none for requests only.
        sizes: size class of these messages, ``small`` or ``large``; None for both.
        physical_queues: queues over which the messages are spread, and which readers such as Spark
            read in parallel. When there are fewer, the others are read until empty.
        key: a message's key: its ``topic``, level N of it from 0 (``topic:N``), its ``publisher``
            (Client Identifier), or a user property (``property:NAME``); user property
            ``penstock-key`` has precedence. One physical queue has all messages of a key. None:
            messages are dealt in turn.
        max_messages: messages that the queue may hold.
        max_bytes: payload bytes that it may hold.
        when_full: `refuse` new messages to their publishers; `drop_newest` acknowledges and drops
            them; `drop_oldest`, read or not.
        retention_seconds: age at which a message is removed, read or not.
        delay_seconds: time from the arrival of a message until it can be received.
        deduplication_seconds: window in which no second message of a deduplication identifier is
            stored.
        keeps_last: keep only the newest message of each `key`.
        sqs_body: how Amazon SQS clients see payloads: as `text`, or in `base64` where they are no
            text.
        n_max: most messages of one receive (N_max of the papers).
        max_wait_seconds: longest time that a client may have its request held.
        max_waiting_requests: requests of a group that may be held; further ones are refused.
        groups: the groups by name.
        dequeue: for experiments, as the two keys below: what a receive that finds nothing does:
            `rds+wake`, `rds`, `pms` or `conventional` (papers 000 and 001).
        sleep_time: seconds between two retries of `rds`, or two polls of `pms`.
        max_queues_per_dequeue: physical queues that one request tries in a round.
    """

    topics: tuple[TopicFilter, ...] = ()
    sizes: SizeClass | None = None
    physical_queues: Annotated[int, Field(ge=1, le=MAX_PHYSICAL_QUEUES)] = 4
    key: _Key | None = None
    max_messages: Positive | None = None
    max_bytes: PositiveSize | None = None
    when_full: Literal["refuse", "drop_newest", "drop_oldest"] = "refuse"
    retention_seconds: Seconds | None = None
    delay_seconds: _Duration = 0.0
    deduplication_seconds: Seconds = 300.0
    keeps_last: bool = False
    sqs_body: Literal["text", "base64"] = "text"
    n_max: Annotated[int, Field(ge=1, le=MAX_RECEIVE_MESSAGES)] = 100
    max_wait_seconds: Annotated[float, Field(ge=0, le=3600)] = 60.0
    max_waiting_requests: Positive = 10_000
    groups: dict[Name, GroupConfig] = field(default_factory=_default_groups)
    dequeue: Literal["conventional", "pms", "rds", "rds+wake"] = "rds+wake"
    sleep_time: Seconds = 0.1
    max_queues_per_dequeue: Positive = 3

    def __post_init__(self) -> None:
        """Refuse keys without an effect."""
        if self.sizes is not None and not self.topics:
            raise ValueError("no sizes without topics; what comes by requests has no size class")
        if self.key is None and self.keeps_last:
            raise ValueError("a key with keeps_last: of each key, the newest message is kept")
        if self.max_messages is None and self.max_bytes is None and self.when_full != "refuse":
            raise ValueError("max_messages or max_bytes with when_full; without them none is full")
        for name, group in self.groups.items():
            if group.order == "key" and self.key is None:
                raise ValueError(f"a key with order: key of group {name}")
        if not any(group.kind == "lease" for group in self.groups.values()):
            for key in fields(self):
                if key.name in _DEQUEUE_KEYS and getattr(self, key.name) != key.default:
                    raise ValueError(f"no {key.name} without a group of kind lease")


_DEQUEUE_KEYS: Final = frozenset(
    {"dequeue", "max_queues_per_dequeue", "max_waiting_requests", "n_max", "sleep_time"}
)


@dataclass(frozen=True, slots=True, config=STRICT)
class QueueHttpLimits(HttpLimits):
    """What clients of the HTTP API may take; the keys under `plugins.queue.http_limits`.

    Attributes:
        body_timeout_seconds: time for the body of a request, from its header on.
        body_bytes: bytes of all bodies that are being received. Above it, clients wait, and get 503
            after the timeout.
    """

    body_timeout_seconds: Seconds = 60.0
    body_bytes: PositiveSize = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, config=STRICT)
class QueueRedisConfig(RedisConfig):
    """The server of the engine `redis`; the keys under `plugins.queue.redis`.

    Attributes:
        local_nodes: `HOST:PORT` of the cluster's nodes on this machine, whose physical queues
            receives prefer (paper 001, 3.3.1.1).
        slowdown_detection_time: seconds without an answer after which a physical queue gets nothing
            until it is quick again, and receives leave a node out (paper 001, chapter 3).
    """

    local_nodes: tuple[Server, ...] = ()
    slowdown_detection_time: Seconds | None = DEFAULT_SLOWDOWN_DETECTION_TIME

    def __post_init__(self) -> None:
        """Refuse what is for a cluster alone."""
        RedisConfig.__post_init__(self)
        if self.local_nodes and not self.cluster:
            raise ValueError("cluster beside local_nodes")
        if not self.cluster and self.slowdown_detection_time != DEFAULT_SLOWDOWN_DETECTION_TIME:
            raise ValueError(
                "cluster with slowdown_detection_time; on one server all physical queues are slow"
            )


@dataclass(frozen=True, slots=True, config=STRICT)
class PublishingConfig:
    """Batches of rows that are published once; the keys under `plugins.queue.publishing`.

    Attributes:
        path: SQLite file of the batches, with the durability of the queue.
        max_rows: rows of all batches that are not published yet; further ones wait.
        max_bytes: bytes of these rows: topics, payloads, properties, and 64 for each.
        max_age_seconds: age at which rows without a commit are deleted, and committed rows dropped
            that the broker's disk has no room for.
        remember_seconds: for how long after a query's last batch its repeat is recognised.
    """

    path: _Path = "penstock-publishing.db"
    max_rows: Positive = 10_000_000
    max_bytes: PositiveSize = 1024**3
    max_age_seconds: Seconds = 3_600.0
    remember_seconds: Seconds = 30 * 86_400.0


def _listed(names: Sequence[str]) -> str:
    return f", one of {', '.join(names)}" if names else ""


@dataclass(frozen=True, slots=True, config=STRICT)
class QueueConfig:
    """The keys under `plugins.queue`.

    Attributes:
        engine: `sqlite`: a file; `memory`: lost with the process; `redis`: a server, which other
            programs may share.
        path: the file of `sqlite`. `PATH-wal`, `PATH-shm`, `PATH.lock` and `PATH.reserve` lie
            beside it.
        durability: what is acknowledged: `full`, what is on the disk; `normal`, what the operating
            system has, which a power cut may lose.
        http: ``HOST:PORT`` of the HTTP API, port 0 for any free one.
        http_limits: limits for clients of the HTTP API and of Amazon SQS.
        http_tls: TLS of both.
        sqs: ``HOST:PORT`` of the Amazon SQS protocols.
        sqs_unsupported: attributes without effect here, such as `Policy`: `refuse` them, or
            `ignore`, which keeps and shows them.
        tokens: file of the tokens of both. None: no token is needed, and both have addresses of
            this machine alone.
        max_request_bytes: largest body of a request, in which a payload is a third longer (base64).
        commit_wait_seconds: how long the first message of a commit waits for others, which saves
            flushes of the disk.
        commit_max_messages: messages of one commit.
        max_pending_messages: messages of all queues that may wait for their commit; further ones
            are refused.
        max_pending_bytes: payload bytes that may wait for their commit; one message may be larger.
        read_ahead_bytes: payload bytes of all queues that are read ahead for receivers.
        redis: the server of the engine `redis`.
        publishing: batches that requests stage and the broker publishes.
        queues: the logical queues by name; others may be created at run time.
    """

    queues: dict[Name, LogicalQueueConfig] = field(default_factory=dict)
    engine: Literal["sqlite", "memory", "redis"] = "sqlite"
    path: _Path = "penstock-queue.db"
    durability: Literal["full", "normal"] = "full"
    http: _Bind | None = "127.0.0.1:8080"
    http_limits: QueueHttpLimits = field(default_factory=QueueHttpLimits)
    http_tls: HttpTls | None = None
    sqs: _Bind | None = None
    sqs_unsupported: Literal["refuse", "ignore"] = "refuse"
    tokens: _Path | None = None
    max_request_bytes: Annotated[Size, Field(ge=1024)] = 4 * 1024 * 1024
    commit_wait_seconds: Annotated[float, Field(ge=0, le=1)] = 0.0
    commit_max_messages: Positive = 2_000
    max_pending_messages: Positive = 100_000
    max_pending_bytes: PositiveSize = 64 * 1024 * 1024
    read_ahead_bytes: PositiveSize = 64 * 1024 * 1024
    publishing: PublishingConfig | None = None
    redis: QueueRedisConfig = field(default_factory=QueueRedisConfig)

    def __post_init__(self) -> None:
        """Refuse keys without an effect, and dead letters that have no queue to go to."""
        if not self.queues and self.http is None and self.sqs is None:
            raise ValueError("queues, or http or sqs, by which queues can be created")
        for key in ("http_tls", "tokens"):
            if getattr(self, key) is not None and self.http is None and self.sqs is None:
                raise ValueError(f"no {key} without http and sqs")
        if self.publishing is not None and self.http is None:
            raise ValueError("no publishing without http")
        for name, queue in self.queues.items():
            for group_name, group in queue.groups.items():
                target = group.dead_letter_queue
                others = sorted(set(self.queues) - {name})
                if target is not None and target not in others:
                    raise ValueError(
                        f"queues: read dead_letter_queue: {target} of {name}.groups.{group_name}; "
                        f"allowed: another queue of the file{_listed(others)}"
                    )

    def slowdown_detection_time(self) -> float | None:
        """Return when a physical queue is slow, seconds; None where all are on one server."""
        is_cluster = self.engine == "redis" and bool(self.redis.cluster)
        return self.redis.slowdown_detection_time if is_cluster else None
