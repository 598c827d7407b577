"""What a core with fast paths remembers of access control is never older than its rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.broker.access_control import PUBLISH, RECEIVE, Action, SessionView
from penstock.broker.config.mqtt_options import MqttOptions
from penstock.broker.extensions import QOS_PROPERTY, RELAY_CLIENT_PREFIX
from penstock.broker.fast_paths.fast_core import FastCore
from penstock.broker.message import LANE_PROPERTY, SIZE_PROPERTY
from penstock.broker.mqtt.packets import Connect, Disconnect, Publish
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.routing.topic_tree import Subscription
from penstock.broker.sessions.broker_state import Core
from tests.helpers.access import Access
from tests.helpers.virtual import VirtualBroker, VirtualClient

CORES = pytest.mark.parametrize("made_of", [Core, FastCore])


class ReadsAgain(Access):
    """Access control that finds out while it is asked that its file has changed.

    Attributes:
        on_asked: called once, when it is asked about an action.
    """

    answers_last = True

    def __init__(self) -> None:
        super().__init__()
        self.on_asked: dict[Action, Callable[[], None]] = {}

    def authorize(self, session: SessionView, topic: str, action: Action) -> Any:
        """Answer for a topic by the rules before, as these are read again."""
        answer = super().authorize(session, topic, action)
        then = self.on_asked.pop(action, None)
        if then is not None:
            then()
            self.rules_changed()
        return answer


class UserIds(Access):
    """Access control by which each client may receive what is below its own name."""

    answers_last = True

    def authorize(self, session: SessionView, topic: str, action: Action) -> bool:
        """Answer for a topic."""
        return action is not RECEIVE or topic == f"of/{session.known_as}"


@CORES
@pytest.mark.parametrize("asked", [PUBLISH, RECEIVE])
@pytest.mark.parametrize("refused", ["publish", "receive"])
@pytest.mark.parametrize("qos", [0, 1])
def test_rules_that_change_while_they_are_asked(
    made_of: type[Core], asked: Action, refused: str, qos: int
) -> None:
    """The answer is good for that message alone."""
    access = ReadsAgain()
    broker = VirtualBroker(core_class=made_of, access=access)
    reader, publisher = broker.connect("s"), broker.connect("p")
    reader.subscribe("t", qos)
    access.on_asked[asked] = lambda: access.refused.add((refused, "t"))
    publisher.publish("t", b"1", qos=qos)
    reader.acknowledge()
    publisher.publish("t", b"2", qos=qos)
    assert b"2" not in reader.payloads()


@CORES
def test_a_lane_is_judged_as_the_client_that_it_names(made_of: type[Core]) -> None:
    """From the CONNECT on that names it, whatever was answered before."""
    access = UserIds()
    broker = VirtualBroker(core_class=made_of, access=access)
    publisher = broker.connect("p")
    keep: dict[str, Any] = {"session_expiry_interval": 60}
    broker.connect("first", properties=keep)
    reader = broker.connect("lane", properties=keep)
    reader.subscribe("of/#")
    lanes = [(LANE_PROPERTY, "first"), (SIZE_PROPERTY, "large")]
    for names, own in (([], "lane"), (lanes, "first"), ([], "lane")):
        reader = broker.connect(
            "lane", clean_start=False, properties=keep | {"user_property": names}
        )
        for topic in ("of/lane", "of/first"):
            publisher.publish(topic)
        assert [packet.topic for packet in reader.take_all(Publish)] == [f"of/{own}"]


def test_a_long_topic_is_remembered_once() -> None:
    """However many publish to it: its bytes are those of its plan."""
    access = Access()
    access.answers_last = True
    broker = VirtualBroker(core_class=FastCore, access=access)
    assert isinstance(broker.core, FastCore)
    topic = "t" * 60_000
    keys = set()
    for number, version in enumerate((4, 5, 4, 5)):
        publisher = broker.connect(f"p{number}", version)
        publisher.publish(topic, b"x")
        (key,) = publisher.connection.client.fast_plans  # type: ignore[attr-defined]
        keys.add(id(key))
    keys |= {id(key) for plans in broker.core.fast_plans.values() for key in plans}
    assert keys == {id(plan.topic_bytes) for plan in broker.core.tree.plans.values()}


@CORES
def test_a_subscription_of_before_does_not_raise_the_highest_qos(made_of: type[Core]) -> None:
    """A QoS 2 message ends its connection where QoS 1 is the highest [MQTT-3.2.2-11].

    It does also for a session that was granted QoS 2 before the policy file was changed.
    """
    broker = VirtualBroker(core_class=made_of, options=MqttOptions(maximum_qos=1))
    reader, publisher = broker.connect("s"), broker.connect("p")
    broker.core.tree.add(Subscription(reader.session, "t", 2))
    publisher.send(Publish("t", b"x", qos=2, packet_id=1))
    assert publisher.take(Disconnect).reason_code == ReasonCode.QOS_NOT_SUPPORTED
    assert reader.payloads() == []


@CORES
@pytest.mark.parametrize("qos", [0, 1])
def test_the_qos_that_a_relay_names_is_that_of_its_message(made_of: type[Core], qos: int) -> None:
    """The User Property that names it goes to nobody."""
    broker = VirtualBroker(core_class=made_of)
    reader = broker.connect("s")
    reader.subscribe("t", 2)
    relay = VirtualClient(broker)
    relay.connection.client.is_local = True
    relay.send(Connect(client_id=f"{RELAY_CLIENT_PREFIX}r", protocol_version=5))
    named = {"user_property": [("a", "b"), (QOS_PROPERTY, str(1 - qos))]}
    relay.send(*(Publish("t", b"x", qos=qos, packet_id=qos and 7, properties=named),) * 2)
    got = reader.take_all(Publish)
    assert [packet.qos for packet in got] == [1 - qos] * 2
    assert [packet.properties for packet in got] == [{"user_property": [("a", "b")]}] * 2


def test_what_was_found_out_for_a_client_goes_with_it() -> None:
    """Devices that come every few seconds leave nothing behind each time."""
    access = Access()
    access.answers_last = True
    broker = VirtualBroker(core_class=FastCore, access=access)
    assert isinstance(broker.core, FastCore)
    for _ in range(3):
        publisher = broker.connect("p")
        publisher.publish("t", b"x")
        (kept,) = broker.core._judged.values()
        assert kept is publisher.connection.client.fast_plans  # type: ignore[attr-defined]
        assert broker.core._n_judged == 1
        publisher.lose()
    assert not broker.core._judged
