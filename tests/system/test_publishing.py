"""Batches that are staged over HTTP and published once, by a broker that is killed meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho

from penstock.netem.runs.broker_process import reserved_port
from penstock.plugins.queue.batch_client import BatchClient, Published
from tests.helpers.paho_client import PahoClient, connect_properties
from tests.helpers.process import SECONDS, BrokerProcess, anonymous_policy, running_broker

N_ROWS = 900
KILLED_AFTER = (100, 400)
"""Messages that the subscriber takes before the broker is killed: in two windows of rows."""


class Device:
    """A subscriber that takes no more than it is told to.

    Attributes:
        payloads: of the messages that it has taken.
    """

    def __init__(self, port: int) -> None:
        self.payloads: list[str] = []
        self._allowed = threading.Semaphore(0)
        self._taken = threading.Condition()
        self.client = PahoClient(port, "device")
        self.client.paho.on_message = self._take
        self.client.paho.reconnect_delay_set(1, 1)

    def _take(self, _client: paho.Client, _data: Any, message: paho.MQTTMessage) -> None:
        assert self._allowed.acquire(timeout=SECONDS)
        with self._taken:
            self.payloads.append(message.payload.decode())
            self._taken.notify()

    def take(self, n_messages: int) -> None:
        """Take so many messages."""
        with self._taken:
            n_messages += len(self.payloads)
            for _ in range(n_messages - len(self.payloads)):
                self._allowed.release()
            assert self._taken.wait_for(lambda: len(self.payloads) == n_messages, SECONDS)


def publish(broker: BrokerProcess, wait_seconds: float) -> Published:
    """Commit the batch."""
    client = BatchClient(broker.queue_url)
    return client.publish("query", 0, "w", [("a", N_ROWS)], wait_seconds=wait_seconds)


def test_each_row_of_a_batch_comes_once_whenever_the_broker_is_killed(tmp_path: Path) -> None:
    """At QoS 2, in the order of the rows; the commit is repeated after each kill."""
    with reserved_port() as port:
        policy = {
            **anonymous_policy({"queue": {"http": "127.0.0.1:0", "publishing": {}}}),
            "listeners": {"default": {"bind": f"127.0.0.1:{port}"}},
            "persistence": {"path": "sessions.db", "durability": "normal"},
            # A batch cannot be finished before the subscriber has taken most of it.
            "limits": {"queued_messages": 100, "inflight_messages": 20},
        }
        device = Device(port)
        with running_broker(policy, tmp_path) as broker:
            properties = connect_properties(SessionExpiryInterval=1_000)
            device.client.connect(properties=properties, clean_start=False)
            device.client.subscribe("#", 2)
            client = BatchClient(broker.queue_url)
            rows = [{"topic": "a", "text": str(number), "qos": 2} for number in range(N_ROWS)]
            client.stage("w", "a", 0, rows)
            assert not publish(broker, 0).is_repeat
            device.take(KILLED_AFTER[0])
            broker.kill()
        with running_broker(policy, tmp_path) as broker:
            found = publish(broker, 0)
            assert (found.is_repeat, found.is_finished) == (True, False)
            device.take(KILLED_AFTER[1])
            broker.kill()
        with running_broker(policy, tmp_path) as broker, device.client:
            assert publish(broker, 0).is_repeat
            device.take(N_ROWS - sum(KILLED_AFTER))
            found = publish(broker, 60)
            assert (found.is_finished, found.n_done, found.unpublished) == (True, N_ROWS, {})
            BatchClient(broker.queue_url).stage("w", "end", 0, [{"topic": "a", "text": "end"}])
            BatchClient(broker.queue_url).publish("query", 1, "w", [("end", 1)])
            device.take(1)
            assert device.payloads == [*map(str, range(N_ROWS)), "end"]
            assert broker.stop() == 0
            assert "ERROR" not in broker.log
