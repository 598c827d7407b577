from __future__ import annotations

from penstock.broker.mqtt.packets import PingReq, PingResp
from tests.campaigns.cluster_kills import N_FAULTS, Engine, Spread, judge, on_machines, run
from tests.helpers.cluster import Reading, Stream
from tests.helpers.networks import NEEDS_ROOT


def broken(came: list[int], *, qos: int, repeated: set[int] | None = None) -> set[str]:
    """Return the promises that are broken where 0, 1 and 2 were acknowledged and these came."""
    streams = [Stream(f"t/{each}", qos=each) for each in (1, 2)]
    reading = Reading()
    for stream in streams:
        stream.acknowledged = {0, 1, 2}
        stream.repeated = repeated or set()
        reading.came[stream.topic] = dict.fromkeys((0, 1, 2))
    reading.came[f"t/{qos}"] = dict.fromkeys(came)
    reading.twice[f"t/{qos}"] = [number for number in set(came) if came.count(number) > 1]
    return {each.name for each in judge(streams, reading, has_stayed=True) if each.is_met is False}


def test_each_broken_promise_is_found() -> None:
    """A repeat breaks one at QoS 2 alone, and only where its publisher has not published again."""
    assert broken([0, 1, 2], qos=2) == set()
    assert broken([0, 1, 0, 2], qos=1) == set()
    assert broken([0, 1, 0, 2], qos=2) == {"QoS 2: received twice"}
    assert broken([0, 1, 0, 2], qos=2, repeated={0}) == set()
    assert broken([0, 2], qos=2) == {"QoS 2: of these lost"}
    assert broken([1, 0, 2], qos=1) == {"QoS 1: out of order"}


@NEEDS_ROOT
def test_faults_of_brokers_machines_and_engine_break_no_promise() -> None:
    """What was acknowledged has arrived in order, and at QoS 2 once."""
    findings = run(dict.fromkeys(N_FAULTS, 1), seed=1)
    assert not [each for each in findings if each.is_met is False], findings


@NEEDS_ROOT
def test_nobody_is_taken_for_dead_as_masters_come_and_go() -> None:
    """Nodes find the next master one after the other; some see one that is none any more."""

    async def kill_masters(cluster: Spread, engine: Engine) -> None:
        async with await cluster.connected("c", "stays") as client:
            for _ in range(4):
                await engine.kill_master()
            await client.send(PingReq())
            await client.take(PingResp)
        for name in "abc":
            assert "has left" not in cluster[name].log
            assert "taken for dead" not in cluster[name].log

    on_machines(kill_masters)
