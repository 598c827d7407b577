from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.errors import ConfigError
from penstock.plugins.queue.config import GroupConfig, QueueConfig
from tests.plugins.queue.running import queue_config


def test_queue_name_alone_is_enough() -> None:
    """Every key has a default, and a queue without groups gets one of kind lease."""
    config = QueueConfig(queues=queue_config(queues={"telemetry": {}}).queues)
    assert (config.engine, config.durability, config.http) == ("sqlite", "full", "127.0.0.1:8080")
    assert (config.sqs, config.tokens, config.http_tls) == (None, None, None)
    queue = config.queues["telemetry"]
    assert (queue.dequeue, queue.physical_queues, queue.when_full) == ("rds+wake", 4, "refuse")
    assert (queue.max_queues_per_dequeue, queue.n_max) == (3, 100)
    assert queue.groups == {"default": GroupConfig()}


def test_http_may_be_switched_off() -> None:
    """`http: null` is a queue without an API."""
    assert queue_config(http=None).http is None


def test_queues_may_all_be_created_by_requests() -> None:
    """A policy file need not name a queue where an API can create some."""
    assert queue_config(queues={}).queues == {}


def queue(**keys: Any) -> dict[str, Any]:
    """Return the keys of a policy file with one queue."""
    return {"queues": {"q": keys}}


def group(**keys: Any) -> dict[str, Any]:
    """Return those with one group."""
    return queue(groups={"g": keys})


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"engine": "kafka"}, "plugins.queue.engine: read 'kafka'; allowed: 'sqlite', 'memory' or"),
        ({"engine": "redis", "redis": {"server": "6379"}}, "redis.server: read '6379'; allowed:"),
        ({"engine": "redis", "redis": {"server": "h:0"}}, "redis.server: read 'h:0'; allowed:"),
        ({"engine": "redis", "redis": {"db": -1}}, "plugins.queue.redis.db: read -1"),
        ({"engine": "redis", "redis": {"prefix": "a{b}"}}, "redis.prefix: read 'a{b}'; allowed: a"),
        ({"engine": "redis", "redis": {"user": "u"}}, "password_file beside user"),
        (
            {"engine": "redis", "redis": {"sentinel": {"servers": [], "master": "m"}}},
            "plugins.queue.redis.sentinel.servers: read []",
        ),
        (
            {"engine": "redis", "redis": {"sentinel": {"servers": ["h:0"], "master": "m"}}},
            "redis.sentinel.servers.0: read 'h:0'; allowed: HOST:PORT",
        ),
        (
            {
                "engine": "redis",
                "redis": {"server": "h:1", "sentinel": {"servers": ["h:2"], "master": "m"}},
            },
            "one of server, sentinel and cluster",
        ),
        (
            {"engine": "redis", "redis": {"server": "h:1", "cluster": ["h:2"]}},
            "one of server, sentinel and cluster",
        ),
        ({"engine": "redis", "redis": {"cluster": ["h:1"], "db": 1}}, "read db: 1 beside cluster"),
        ({"engine": "redis", "redis": {"local_nodes": ["h:1"]}}, "cluster beside local_nodes"),
        (
            {"engine": "redis", "redis": {"cluster": ["h:1"], "local_nodes": ["h"]}},
            "redis.local_nodes.0: read 'h'",
        ),
        (
            {"engine": "redis", "redis": {"slowdown_detection_time": 1}},
            "cluster with slowdown_detection_time",
        ),
        (
            {"engine": "redis", "redis": {"cluster": ["h:1"], "slowdown_detection_time": 0}},
            "redis.slowdown_detection_time: read 0",
        ),
        ({"engine": "redis", "redis": {"min_replicas": -1}}, "redis.min_replicas: read -1"),
        ({"engine": "redis", "redis": {"retry_seconds": 0}}, "redis.retry_seconds: read 0"),
        ({"engine": "redis", "redis": {"tls": {}}}, "plugins.queue.redis.tls.ca: read nothing"),
        (
            {"engine": "redis", "redis": {"tls": {"ca": "c", "key": "k"}}},
            "certificate and key, or neither",
        ),
        ({"durability": "some"}, "plugins.queue.durability: read 'some'; allowed: 'full' or"),
        ({"path": ""}, "plugins.queue.path: read ''"),
        ({"http": "8080"}, "plugins.queue.http: read '8080'; allowed: null or HOST:PORT, with a"),
        ({"sqs": "9324"}, "plugins.queue.sqs: read '9324'; allowed: null or HOST:PORT, with a"),
        ({"http": "::1:80"}, "read '::1:80'"),
        ({"http": "localhost:70000"}, "read 'localhost:70000'"),
        ({"http_tls": {"certificate": "c.pem"}}, "http_tls.key: read nothing"),
        ({"http": None, "tokens": "t.yaml"}, "no tokens without http and sqs"),
        ({"http": None, "http_tls": {"certificate": "c", "key": "k"}}, "no http_tls without http"),
        ({"commit_wait_seconds": -1}, "plugins.queue.commit_wait_seconds: read -1"),
        ({"commit_max_messages": 0}, "plugins.queue.commit_max_messages: read 0"),
        ({"max_pending_bytes": "64 XB"}, "plugins.queue.max_pending_bytes: read '64 XB'"),
        ({"read_ahead_bytes": 0}, "plugins.queue.read_ahead_bytes: read 0"),
        ({"queues": {}, "http": None}, "queues, or http or sqs, by which queues can be created"),
        ({"queues": {"a/b": {}}}, "a name of 1 to 80 letters"),
        ({"queue": {}}, "plugins.queue.queue: read an unknown key"),
        ({"publishing": {}, "http": None, "queues": {"q": {}}}, "no publishing without http"),
        ({"publishing": {"max_rows": 0}}, "plugins.queue.publishing.max_rows: read 0"),
        (queue(topics=["a/#/b"]), "queues.q.topics.0: read 'a/#/b'"),
        (queue(topics=["$share/g/a"]), "not below $share/"),
        (queue(topics="a/#"), "plugins.queue.queues.q.topics: read 'a/#'"),
        (queue(topics=["a"], sizes="big"), "queues.q.sizes: read 'big'"),
        (queue(sizes="small"), "no sizes without topics"),
        (queue(dequeue="lifo"), "queues.q.dequeue: read 'lifo'"),
        (queue(key="payload"), "queues.q.key: read 'payload'; allowed: topic, topic:LEVEL, publ"),
        (queue(keeps_last=True), "a key with keeps_last"),
        (queue(when_full="drop_oldest"), "max_messages or max_bytes with when_full"),
        (queue(delay_seconds=-1), "queues.q.delay_seconds: read -1"),
        (queue(deduplication_seconds=0), "queues.q.deduplication_seconds: read 0"),
        (queue(sqs_body="json"), "queues.q.sqs_body: read 'json'"),
        (queue(physical_queues=0), "queues.q.physical_queues: read 0"),
        (queue(physical_queues=1025), "queues.q.physical_queues: read 1025"),
        (queue(nmax=5), "an unknown key; allowed: "),
        (queue(retention_seconds=0), "queues.q.retention_seconds: read 0"),
        (queue(groups={"a b": {}}), "a name of 1 to 80 letters"),
        (queue(n_max=5, groups={"g": {"kind": "offsets"}}), "no n_max without a group of kind l"),
        (group(kind="both"), "queues.q.groups.g.kind: read 'both'"),
        (group(visibility_timeout=0), "queues.q.groups.g.visibility_timeout: read 0"),
        (group(kind="offsets", order="key"), "no order with kind: offsets; it is for kind: lease"),
        (group(kind="offsets", max_receives=3), "no max_receives with kind: offsets"),
        (group(order="key"), "a key with order: key of group g"),
        (group(max_receives=0), "queues.q.groups.g.max_receives: read 0"),
        (group(topics=[]), "queues.q.groups.g.topics: read []"),
        (group(topics=["a/#/b"]), "queues.q.groups.g.topics.0: read 'a/#/b'"),
        (group(start="first"), "queues.q.groups.g.start: read 'first'; allowed: 'earliest' or 'l"),
        (group(start=-1), "queues.q.groups.g.start: read -1"),
        (group(group_expiry_seconds=0), "queues.q.groups.g.group_expiry_seconds: read 0"),
        (
            group(dead_letter_queue="lost"),
            "queues: read dead_letter_queue: lost of q.groups.g; allowed: another queue of the fi",
        ),
        (group(dead_letter_queue="q"), "read dead_letter_queue: q of q.groups.g"),
    ],
)
def test_wrong_keys_and_values_are_told(keys: dict[str, Any], told: str) -> None:
    """A mistake names the key, what was read and what is allowed."""
    with pytest.raises(ConfigError) as raised:
        queue_config(**keys)
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("keys", "seconds"),
    [
        ({}, None),
        ({"engine": "redis"}, None),
        ({"engine": "redis", "redis": {"cluster": ["h:1"]}}, 0.4),
        ({"engine": "redis", "redis": {"cluster": ["h:1"], "slowdown_detection_time": 2}}, 2),
        ({"engine": "redis", "redis": {"cluster": ["h:1"], "slowdown_detection_time": None}}, None),
        ({"redis": {"cluster": ["h:1"]}}, None),
    ],
)
def test_only_on_a_cluster_are_physical_queues_left_out(
    keys: dict[str, Any], seconds: float | None
) -> None:
    """Elsewhere all are slow at the same time."""
    assert queue_config(**keys).slowdown_detection_time() == seconds
