from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.mqtt.packets import Publish
from tests.helpers.process import anonymous_policy, resident_bytes, running_broker
from tests.helpers.stalled import (
    N_MESSAGES,
    PAYLOAD_BYTES,
    growth_with_stalled_subscribers,
    publish_numbered,
    stalled_subscriber,
)
from tests.helpers.wire import connected


@pytest.mark.memory
async def test_a_payload_is_kept_once_however_many_wait_for_it(tmp_path: Path) -> None:
    """Twenty stalled subscribers cost the payloads once; other clients notice nothing."""
    with running_broker(anonymous_policy(), tmp_path, is_forked=False) as broker:
        grown = await growth_with_stalled_subscribers(
            broker.port, 20, lambda: resident_bytes(broker)
        )
        assert grown <= 1.5 * N_MESSAGES * PAYLOAD_BYTES
        assert broker.stop() == 0


async def test_a_full_outbox_drops_for_one_subscriber_and_says_so(tmp_path: Path) -> None:
    """At `queued_bytes` further messages of the stalled one are dropped and counted in $SYS."""
    limits = {"queued_bytes": 3 * PAYLOAD_BYTES, "queue_full": "drop_newest"}
    policy = anonymous_policy(limits=limits, sys_interval=0.1)
    with running_broker(policy, tmp_path) as broker:
        async with (
            await stalled_subscriber(broker.port, 0),
            await connected(broker.port) as watcher,
            await connected(broker.port) as publisher,
        ):
            await watcher.subscribe("$SYS/broker/penstock/ledger/dropped/queue_full")
            for number in range(N_MESSAGES):
                await publish_numbered(publisher, number)
            assert int((await watcher.take(Publish)).payload) > 0
