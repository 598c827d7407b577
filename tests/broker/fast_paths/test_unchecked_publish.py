from __future__ import annotations

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.fast_paths.fast_core import FastCore
from penstock.broker.mqtt.packets import Publish
from penstock.broker.sessions.broker_state import Core
from tests.helpers.virtual import VirtualBroker


@pytest.mark.parametrize("made_of", [Core, FastCore])
def test_a_message_beyond_the_receive_maximum_takes_nobodys_turn(made_of: type[Core]) -> None:
    """The next one goes to the member that it would have gone to [MQTT-3.3.4-9]."""
    broker = VirtualBroker(Limits(receive_maximum=1), core_class=made_of)
    members = [broker.connect(name, 4) for name in "ab"]
    for member in members:
        member.subscribe("$share/g/t", 2)
    greedy, other = broker.connect("p"), broker.connect("q")
    greedy.send(*[Publish("t", b"%d" % number, qos=2, packet_id=number) for number in (1, 2)])
    assert greedy.is_lost
    other.publish("t", b"3")
    assert [member.payloads() for member in members] == [[b"1"], [b"3"]]
