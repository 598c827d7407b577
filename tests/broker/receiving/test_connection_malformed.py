"""Every packet that a client may send, wrong in every way, on a virtual clock."""

from __future__ import annotations

import pytest

from penstock.broker.mqtt.packets import ConnAck, Disconnect
from tests.helpers.malformed import CLOSED, TAKEN, Case, cases
from tests.helpers.virtual import VirtualBroker, VirtualClient

CASES: dict[str, list[Case]] = {}
for one in cases():
    CASES.setdefault(one.name.partition(":")[0], []).append(one)


def answer(broker: VirtualBroker, case: Case, step: int) -> int:
    """Send a case's bytes in chunks; return the reason code of what the broker says last."""
    if case.is_connect:
        client = VirtualClient(broker, case.version)
    else:
        client = broker.connect("wrong", case.version)
    for start in range(0, len(case.data), step):
        client.send_bytes(case.data[start : start + step])
    last = client.inbox[-1] if client.inbox else None
    is_lost = client.is_lost
    client.lose()
    if isinstance(last, ConnAck | Disconnect):
        assert is_lost or last.reason_code == 0
        return last.reason_code
    return CLOSED if is_lost else TAKEN


@pytest.mark.parametrize("step", [1, 10_000], ids=["byte by byte", "in one chunk"])
@pytest.mark.parametrize("packet", CASES)
def test_each_fault_is_answered_by_its_reason_code(packet: str, step: int) -> None:
    """[MQTT-4.13.1-1]: MQTT 5 is told, MQTT 3.1.1 closed; nobody else notices anything."""
    broker = VirtualBroker()
    subscriber = broker.connect("bystander", 4)
    subscriber.subscribe("talk", 1)
    publisher = broker.connect("speaker")
    wrong = []
    for number, case in enumerate(CASES[packet]):
        expected = case.codes
        if case.version == 4 and TAKEN not in expected:
            expected = (CLOSED,)
        answered = answer(broker, case, step)
        if answered not in expected:
            wrong.append(f"{case.name} ({case.data.hex()}): {answered:#x}")
        publisher.publish("talk", b"%d" % number, qos=1)
        assert subscriber.acknowledge() == [b"%d" % number]
    assert not wrong, "\n".join(wrong)
    core = broker.core
    assert [session.client_id for session in core.sessions] == ["bystander", "speaker"]
    assert core.tree.n_subscriptions == 1
    assert len(core.timers) < 200
    assert len(core.retained) == 0
    assert core.counters.extension_errors == {}
