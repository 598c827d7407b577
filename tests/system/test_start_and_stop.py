from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.broker.mqtt.packets import Disconnect, PubAck, Publish
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.plugins.queue.client import QueueClient
from tests.helpers.paho_client import MQTT_5, PahoClient
from tests.helpers.process import BrokerProcess, anonymous_policy, running_broker
from tests.helpers.wire import connected

QUEUE = {
    "queue": {
        "path": "queue.db",
        "http": "127.0.0.1:0",
        "commit_wait_seconds": 1.0,
        "queues": {"work": {"topics": ["work/#"]}},
    }
}
"""A second passes before a message is committed, unless the broker stops."""


async def test_stop_by_signal_tells_clients_and_stores_what_waits(tmp_path: Path) -> None:
    """MQTT 5 clients get 0x8B after what they are owed; queued messages are on the disk."""
    with running_broker(anonymous_policy(QUEUE), tmp_path, is_forked=False) as broker:
        async with (
            await connected(broker.port) as publisher,
            await connected(broker.port) as idle,
            await connected(broker.port, version=4) as old,
        ):
            packets = [Publish("work/1", b"%d" % n, qos=1, packet_id=n) for n in range(1, 101)]
            await publisher.send(*packets, Publish("elsewhere", b"", qos=1, packet_id=101))
            # Once this one is answered, the broker has read what was sent before.
            await idle.publish("elsewhere", b"")
            assert await asyncio.to_thread(broker.stop) == 0
            goodbye = Disconnect(ReasonCode.SERVER_SHUTTING_DOWN)
            nobody = PubAck(101, ReasonCode.NO_MATCHING_SUBSCRIBERS)
            wanted = [*(PubAck(n) for n in range(1, 101)), nobody, goodbye]
            assert await publisher.rest() == wanted
            assert await idle.rest() == [goodbye]
            assert await old.rest_bytes() == b""
        assert "Traceback" not in broker.log
    with running_broker(anonymous_policy(QUEUE), tmp_path) as broker:
        client = QueueClient(broker.queue_url)
        stored = client.receive("work", max_messages=100, wait_seconds=5)
        while len(stored) < 100:
            stored += client.receive("work", max_messages=100, wait_seconds=5)
        client.close()
        assert {int(one.payload) for one in stored} == set(range(1, 101))


def test_paho_hears_why_the_broker_has_gone(tmp_path: Path) -> None:
    """A real client reports "server shutting down"."""
    with (
        running_broker(anonymous_policy(), tmp_path) as broker,
        PahoClient(broker.port, version=MQTT_5, reconnect_on_failure=False) as client,
    ):
        assert client.connect()
        assert broker.stop() == 0
        assert client.disconnected().value == ReasonCode.SERVER_SHUTTING_DOWN


@pytest.mark.parametrize(
    ("policy", "lines"),
    [
        (
            {
                "listeners": {"default": {"bind": "127.0.0.1:99999"}},
                "limits": {"receive_maximum": 0, "queued_bites": 1},
            },
            [
                "listeners.default.bind: read '127.0.0.1:99999'; allowed: host:port",
                "limits.receive_maximum: read 0; allowed: greater than or equal to 1",
                "limits.queued_bites: read an unknown key; allowed: one of ",
            ],
        ),
        (
            {
                "plugins": {
                    "withholding": {"policy": "hysteric"},
                    "qeue": {},
                    "queue": {"queues": {"q": {"topics": ["a#"]}}},
                }
            },
            [
                "plugins.withholding.policy: read 'hysteric'; allowed: 'none', ",
                "plugins.qeue: read an unknown plugin; allowed: one of ",
                "plugins.queue.queues.q.topics.0: read 'a#'; allowed: a topic filter",
            ],
        ),
        ("listeners: [\n", ["line 2, column 1: read "]),
    ],
)
def test_wrong_policy_file_is_told_line_by_line(
    tmp_path: Path, policy: dict[str, object] | str, lines: list[str]
) -> None:
    """File, place, what was read and what is allowed; status 2; nothing listens."""
    broker = BrokerProcess(policy, tmp_path)
    assert broker.wait() == 2
    for line in lines:
        assert f"policy.yaml: {line}" in broker.log
    assert "listening" not in broker.log
    assert "Traceback" not in broker.log
