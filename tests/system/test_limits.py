from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from penstock.broker.mqtt.packets import Disconnect, PubAck, Publish, Subscribe, SubscriptionRequest
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.writer import write_packet
from tests.broker.serving import until
from tests.helpers.process import BrokerProcess, anonymous_policy, running_broker
from tests.helpers.wire import WireClient, connected

LIMITS = {
    "control_bytes": 100_000,
    "topic_levels": 6,
    "subscriptions": 2,
    "retained_messages": 1,
    "publish_messages_per_second": 500,
    "publish_burst_seconds": 0.1,
    "queued_messages": 20,
    "queue_full": "disconnect",
}

QUOTA = ReasonCode.QUOTA_EXCEEDED


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Return a broker with small limits, one for all tests."""
    policy = anonymous_policy(limits=LIMITS, sys_interval=0.2)
    with running_broker(policy, tmp_path_factory.mktemp("b"), is_forked=False) as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.log


async def figure(broker: BrokerProcess, name: str) -> int:
    """Return one of the broker's figures once it is not 0."""
    async with await connected(broker.port) as client:
        assert await client.subscribe(f"$SYS/broker/penstock/{name}") == 0
        while True:
            value = int((await client.take(Publish)).payload)
            if value:
                return value


async def test_refusals_say_why_and_are_counted(broker: BrokerProcess) -> None:
    """Each with its reason code; the client goes on, and `$SYS` has the sums."""
    async with await connected(broker.port) as client:
        assert [await client.subscribe(name) for name in ("a", "b", "c")] == [0, 0, QUOTA]
        assert await client.subscribe("1/2/3/4/5/6/7") == ReasonCode.TOPIC_FILTER_INVALID
        answer = await client.publish("1/2/3/4/5/6/7", b"x")
        assert answer.reason_code == ReasonCode.TOPIC_NAME_INVALID
        codes = []
        for topic in ("r/1", "r/2"):
            await client.send(Publish(topic, b"x", qos=1, packet_id=1, retain=True))
            codes.append((await client.take(PubAck)).reason_code)
        assert codes == [ReasonCode.NO_MATCHING_SUBSCRIBERS, QUOTA]
    assert await figure(broker, "subscribe_refused/quota exceeded (0x97)") == 1
    assert await figure(broker, "publish_refused/topic name invalid (0x90)") == 1


async def test_a_flood_is_slowed_down_and_nothing_of_it_lost(broker: BrokerProcess) -> None:
    """Five times as much as may come at once: all acknowledged in order, others served."""
    flood = [Publish("t", b"x", qos=1, packet_id=number) for number in range(1, 251)]
    async with (
        await connected(broker.port) as fast,
        await connected(broker.port, version=4) as slow,
    ):
        await fast.send(*flood)
        for number in range(1, 6):
            assert (await slow.publish("t", b"x", number)).packet_id == number
        assert [(await fast.take(PubAck)).packet_id for _ in flood] == list(range(1, 251))
    assert await figure(broker, "publishers_slowed") >= 1


@pytest.mark.parametrize("version", [4, 5])
async def test_a_stalled_subscriber_is_cut_off(broker: BrokerProcess, version: int) -> None:
    """With what it had been sent before; MQTT 5 is told Quota exceeded."""
    async with (
        await WireClient.dial(broker.port, version, receive_bytes=4096) as stalled,
        await connected(broker.port) as publisher,
    ):
        await stalled.connect("stalled")
        await stalled.subscribe("picture")
        picture = write_packet(Publish("picture", bytes(500_000)), 5)
        await publisher.send_bytes(picture * 40)
        await publisher.publish("last", b"")
        broker.wait_for_log("client stalled: its outbox was full: connection closed")
        packets = await stalled.rest()
    said = [packet for packet in packets if not isinstance(packet, Publish)]
    assert said == ([Disconnect(QUOTA)] if version == 5 else [])
    assert await figure(broker, "ledger/dropped/queue_full") >= 1


@pytest.mark.memory
async def test_packets_as_large_as_can_be_leave_nothing_behind(broker: BrokerProcess) -> None:
    """Each is refused by its code or taken; the memory is as before."""
    many = write_packet(Subscribe(1, (SubscriptionRequest("a"),) * 20_000), 5)
    longest = "x" * 65_000

    def published(*pairs: tuple[str, str]) -> bytes:
        return write_packet(Publish("t", properties={"user_property": list(pairs)}), 5)

    large = {
        "filters": (many, QUOTA),
        "announced filters": (b"\x82\xff\xff\xff\x3f", QUOTA),
        "properties": (published((longest, longest), *[("", "")] * 200), 0),
        "more properties": (published(*[("", "")] * 20_000), QUOTA),
        "longer properties": (published((longest, longest), ("", longest)), QUOTA),
        "levels": (write_packet(Publish("/" * 65_535, qos=0), 5), ReasonCode.TOPIC_NAME_INVALID),
        "payload": (write_packet(Publish("t", bytes(20_000_000)), 5), 0),
    }
    process = psutil.Process(broker.process.pid)
    n_bytes = []
    for _ in range(3):
        for name, (data, code) in large.items():
            async with await connected(broker.port) as client:
                await client.send_bytes(data + write_packet(Disconnect(), 5))
                said = [p.reason_code for p in await client.rest() if isinstance(p, Disconnect)]
                assert said == ([code] if code else []), name
        n_bytes.append(process.memory_info().rss)
    # What the last one has left is given back a little later.
    await until(lambda: process.memory_info().rss < n_bytes[0] + 10_000_000)
