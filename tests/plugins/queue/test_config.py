from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.errors import ConfigError
from penstock.plugins.queue.config import QueueConfig
from tests.plugins.queue.running import queue_config


def test_queue_name_alone_is_enough() -> None:
    """Every key but the queues has a default, and so has every key of a queue."""
    config = QueueConfig(queues=queue_config(queues={"telemetry": {}}).queues)
    assert (config.engine, config.durability, config.http) == ("sqlite", "full", "127.0.0.1:8080")
    queue = config.queues["telemetry"]
    assert (queue.dequeue, queue.readers, queue.physical_queues) == ("rds", "dequeue", 4)
    assert (queue.max_queues_per_dequeue, queue.n_max) == (3, 100)


def test_http_may_be_switched_off() -> None:
    """`http: null` is a queue without an API."""
    assert queue_config(http=None).http is None


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"engine": "redis"}, "plugins.queue.engine: read 'redis'; allowed: 'sqlite' or 'memory'"),
        ({"durability": "some"}, "plugins.queue.durability: read 'some'; allowed: 'full' or"),
        ({"path": ""}, "plugins.queue.path: read ''"),
        ({"http": "8080"}, "plugins.queue.http: read '8080'; allowed: null or HOST:PORT, with a"),
        ({"http": "::1:80"}, "read '::1:80'"),
        ({"http": "localhost:70000"}, "read 'localhost:70000'"),
        ({"commit_wait_seconds": -1}, "plugins.queue.commit_wait_seconds: read -1"),
        ({"commit_max_messages": 0}, "plugins.queue.commit_max_messages: read 0"),
        ({"max_pending_bytes": "64 XB"}, "plugins.queue.max_pending_bytes: read '64 XB'"),
        (
            {"queues": {"q": {"readers": "offsets", "n_max": 5}}},
            "no n_max with readers: offsets; it is for readers: dequeue",
        ),
        ({"queues": {}}, "plugins.queue.queues: read {}; allowed: at least one queue"),
        ({"queues": {"a/b": {}}}, "a name of 1 to 80 letters"),
        ({"queue": {}}, "plugins.queue.queue: read an unknown key"),
        ({"queues": {"q": {"topics": ["a/#/b"]}}}, "queues.q.topics.0: read 'a/#/b'"),
        ({"queues": {"q": {"topics": ["$share/g/a"]}}}, "no $share/"),
        ({"queues": {"q": {"topics": "a/#"}}}, "plugins.queue.queues.q.topics: read 'a/#'"),
        ({"queues": {"q": {"topics": ["a"], "sizes": "big"}}}, "queues.q.sizes: read 'big'"),
        ({"queues": {"q": {"sizes": "small"}}}, "no sizes without topics"),
        ({"queues": {"q": {"dequeue": "pms"}}}, "queues.q.dequeue: read 'pms'"),
        ({"queues": {"q": {"readers": "both"}}}, "queues.q.readers: read 'both'"),
        ({"queues": {"q": {"visibility_timeout": 0}}}, "queues.q.visibility_timeout: read 0"),
        ({"queues": {"q": {"physical_queues": 0}}}, "queues.q.physical_queues: read 0"),
        ({"queues": {"q": {"nmax": 5}}}, "an unknown key; allowed: "),
        ({"queues": {"q": {"retention_seconds": 0}}}, "queues.q.retention_seconds: read 0"),
    ],
)
def test_wrong_keys_and_values_are_told(keys: dict[str, Any], told: str) -> None:
    """A mistake names the key, what was read and what is allowed."""
    with pytest.raises(ConfigError) as raised:
        queue_config(**keys)
    assert told in str(raised.value)
