from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.process import BrokerProcess, anonymous_policy, running_broker
from tests.helpers.two_lanes import PICTURE, Program


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Run a broker for all tests of this file."""
    with running_broker(anonymous_policy(), tmp_path_factory.mktemp("broker")) as running:
        yield running


def test_a_topic_keeps_its_order_across_the_lanes(broker: BrokerProcess) -> None:
    """Whatever is large of it; other topics pass. Each message comes once, in one thread."""
    with Program("dash", broker.port) as program:
        payloads = [b"0", PICTURE + b"1", b"2", PICTURE + b"3", PICTURE + b"4", b"5"]
        for qos in (1, 2):
            for payload in payloads:
                program.client.publish(f"cam/{qos}", payload, qos)
        messages = program.messages(2 * len(payloads))
        for qos in (1, 2):
            assert [p[-1:] for t, p in messages if t == f"cam/{qos}"] == [p[-1:] for p in payloads]
        assert len(program.threads) == 1
        assert program.is_on_two_lanes()
