"""What leaves the fast paths is what `docs/explanation/speed.md` says, and nothing else.

Each row of its table is one case here: a broker, its clients, and messages that all take the plain
way. Options that cost nothing have cases of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import pytest

from penstock.broker.access_control import RECEIVE, SUBSCRIBE, Action, SessionView
from penstock.broker.config.limits import Limits
from penstock.broker.config.mqtt_options import MqttOptions
from penstock.broker.events import Callbacks
from penstock.broker.extensions import DeliveryGate
from penstock.broker.fast_paths import copied_runs, fast_core
from penstock.broker.fast_paths.fast_core import FastCore
from penstock.broker.mqtt.enums import PUBLISH
from penstock.broker.mqtt.packets import PubAck, Publish
from penstock.broker.receiving.connection import receive_packet
from penstock.broker.sessions.broker_state import Core
from tests.helpers.access import Access
from tests.helpers.durable import DurableBroker
from tests.helpers.process import ROOT
from tests.helpers.sinks import HoldingSink, RunSink
from tests.helpers.virtual import VirtualBroker

PAGE: Final = ROOT / "docs" / "explanation" / "speed.md"

Case: TypeAlias = Callable[[], tuple[VirtualBroker, list[Publish]]]
"""Returns a broker with a subscriber to ``t``, and what a client named ``p`` publishes."""

ALIKE: Final = [Publish("t", b"x", qos=1, packet_id=number) for number in (1, 2)]


def broker_with(qos: int = 1, version: int = 5, **extensions: Any) -> VirtualBroker:
    """Return a broker with a subscriber to ``t``."""
    limits = extensions.pop("limits", None)
    broker = VirtualBroker(limits, core_class=FastCore, **extensions)
    broker.connect("s", version).subscribe("t", qos)
    return broker


def _lasting() -> Access:
    access = Access()
    access.answers_last = True
    return access


def _subscribed(**options: Any) -> VirtualBroker:
    broker = VirtualBroker(core_class=FastCore)
    broker.connect("s").subscribe(options.pop("topic_filter", "t"), 1, **options)
    return broker


def _own_no_local() -> VirtualBroker:
    broker = broker_with()
    publisher = broker.connect("p", properties={"session_expiry_interval": 600})
    publisher.subscribe("t", 1, no_local=True)
    return broker


def _shared_too() -> VirtualBroker:
    broker = broker_with()
    broker.connect("m").subscribe("$share/g/t", 1)
    return broker


def _shared(**extensions: Any) -> VirtualBroker:
    broker = VirtualBroker(core_class=FastCore, **extensions)
    for name in "ab":
        broker.connect(name).subscribe("$share/g/t", 1)
    return broker


def _durable() -> VirtualBroker:
    broker = DurableBroker(core_class=FastCore)
    client = broker.connect("s", properties={"session_expiry_interval": 600})
    client.subscribe("t", 1)
    return broker


class UserRules(Access):
    """Access control by user names."""

    answers_last = True

    def authorize(self, session: SessionView, topic: str, action: Action) -> bool:  # noqa: ARG002 (AccessControl's)
        """Let a reader receive, and a writer publish."""
        wanted = "reader" if action is RECEIVE else "writer"
        return action is SUBSCRIBE or session.username == wanted


class AllAreLarge(DeliveryGate):
    """A gate for which every byte is many."""

    def threshold_s(self, topic: str) -> int | None:  # noqa: ARG002 (a gate's signature)
        """Return no bytes."""
        return 0


LEAVE: Final[dict[str, Case]] = {
    "a plugin that decides about topics, and whose answers may change": lambda: (
        broker_with(access=Access()),
        ALIKE,
    ),
    "a plugin that is told of each message or packet": lambda: (
        broker_with(callbacks=Callbacks(message_received=(lambda _: None,))),
        ALIKE,
    ),
    "a queue bound to the topic, or another sink that takes no runs": lambda: (
        broker_with(sinks=[HoldingSink("t")]),
        ALIKE,
    ),
    "QoS 2 with a sink, in a broker with a database": lambda: (
        DurableBroker(core_class=FastCore, sinks=[RunSink("t")]),
        [Publish("t", b"x", qos=2, packet_id=number) for number in (1, 2)],
    ),
    "RETAIN at QoS 0, without a payload, with a durable subscriber or a sink": lambda: (
        broker_with(),
        [Publish("t", b"x", retain=True), Publish("t", b"", qos=1, packet_id=1, retain=True)],
    ),
    "a Topic Alias, or more than 1 KiB of properties": lambda: (
        broker_with(),
        [Publish("t", b"x", properties={"topic_alias": 1}) for _ in range(2)],
    ),
    "a subscriber of the other protocol version (5 to 3.1.1 or back)": lambda: (
        broker_with(version=4),
        ALIKE,
    ),
    "a subscriber with a lower QoS than the message, above 0": lambda: (broker_with(qos=0), ALIKE),
    "Subscription Identifiers": lambda: (
        _subscribed(properties={"subscription_identifier": [7]}),
        ALIKE,
    ),
    "No Local with the publisher among the subscribers": lambda: (_own_no_local(), ALIKE),
    "a shared subscription beside others, or with durable members": lambda: (_shared_too(), ALIKE),
    "messages above `threshold_s`": lambda: (broker_with(gate=AllAreLarge()), ALIKE),
}
"""The rows of the page's table to their cases."""

STAY: Final[dict[str, Case]] = {
    "RETAIN": lambda: (
        broker_with(),
        [Publish("t", b"x", qos=1, packet_id=number, retain=True) for number in (1, 2)],
    ),
    "nothing": lambda: (broker_with(), ALIKE),
    "a session that outlives the process": lambda: (_durable(), ALIKE),
    "a shared subscription": lambda: (_shared(), ALIKE),
    "a sink that takes runs": lambda: (broker_with(sinks=[RunSink("t")]), ALIKE),
    "a shared subscription at QoS 0": lambda: (_shared(), [Publish("t", b"x")] * 2),
    "a shared subscription and access control whose answers last": lambda: (
        _shared(access=_lasting()),
        ALIKE,
    ),
    "access control whose answers last": lambda: (broker_with(access=_lasting()), ALIKE),
    "a plugin that is told of connections": lambda: (
        broker_with(callbacks=Callbacks(client_connected=(lambda _: None,))),
        ALIKE,
    ),
    "features that are not offered": lambda: (
        broker_with(
            options=MqttOptions(maximum_qos=1, retain_available=False, check_payload_format=True)
        ),
        ALIKE,
    ),
    "a publish rate": lambda: (broker_with(limits=Limits(publish_messages_per_second=1000)), ALIKE),
    "properties": lambda: (
        broker_with(),
        [
            *(Publish("t", b"x", properties={"content_type": "text"}) for _ in range(2)),
            *(
                Publish("t", b"x", qos=1, packet_id=number, properties={"content_type": "text"})
                for number in (1, 2)
            ),
        ],
    ),
}


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the first byte of each PUBLISH that takes the plain way, as they come."""
    first_bytes: list[int] = []

    def noted(client: Any, data: bytes, position: int, *rest: Any) -> None:
        if data[position] >> 4 == PUBLISH:
            first_bytes.append(data[position])
        receive_packet(client, data, position, *rest)

    monkeypatch.setattr(copied_runs, "receive_packet", noted)
    return first_bytes


@pytest.mark.parametrize("row", LEAVE)
def test_what_leaves_the_fast_path(row: str, plain: list[int]) -> None:
    """Each message takes the plain way; where no connection has fast paths, each packet does."""
    broker, messages = LEAVE[row]()
    assert isinstance(broker.core, FastCore)
    if not broker.core.has_fast_paths:
        return
    publisher = broker.connect("p", clean_start=False)
    publisher.send(*messages)
    assert len(plain) == len(messages)


@pytest.mark.parametrize("option", STAY)
def test_what_costs_nothing(option: str, plain: list[int]) -> None:
    """Two messages in one chunk leave as one run."""
    broker, messages = STAY[option]()
    assert isinstance(broker.core, FastCore)
    assert broker.core.has_fast_paths
    broker.connect("p").send(*messages)
    assert plain == []
    assert broker.core.counters.publish_sent == len(messages)


def test_the_page_has_each_row() -> None:
    """What it names is what is shown here."""
    (_, section) = PAGE.read_text().split("## What leaves the fast path\n", 1)
    (_, table) = section.split("\n\n| ", 1)
    rows = [line.split("|")[1].strip() for line in f"| {table}".split("\n\n")[0].splitlines()]
    assert rows[2:] == list(LEAVE)


@pytest.mark.parametrize("made_of", [Core, FastCore])
def test_who_comes_back_as_another_user_gets_what_that_user_may_receive(
    made_of: type[Core],
) -> None:
    """Answers that were given to a session's earlier user are not kept for its next one."""
    access = UserRules()
    broker = VirtualBroker(core_class=made_of, access=access)
    publisher = broker.connect("p", username="writer")
    durable: dict[str, Any] = {"properties": {"session_expiry_interval": 600}}
    reader = broker.connect("s", username="reader", **durable)
    reader.subscribe("t", 1)
    publisher.publish("t", b"1")
    assert reader.payloads() == [b"1"]
    other = broker.connect("s", username="nobody", clean_start=False, **durable)
    publisher.publish("t", b"2")
    assert other.payloads() == []
    reader = broker.connect("s", username="reader", clean_start=False, **durable)
    publisher.publish("t", b"3")
    assert reader.payloads() == [b"3"]


@pytest.mark.parametrize("made_of", [Core, FastCore])
def test_access_control_that_fails_refuses_and_is_counted(made_of: type[Core]) -> None:
    """Each message counts its own failure, whichever way it takes."""
    access = _lasting()
    broker = VirtualBroker(core_class=made_of, access=access)
    publisher = broker.connect("p")
    access.error = OSError("the directory is gone")
    for number in (1, 2):
        publisher.publish("t", b"x", qos=1, packet_id=number)
    assert [packet.reason_code for packet in publisher.take_all(PubAck)] == [0x87, 0x87]
    assert sum(broker.core.counters.extension_errors.values()) == 2


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishers with many topics fill no memory, and each topic is still judged."""
    monkeypatch.setattr(fast_core, "MOST_JUDGED", 5)
    access = _lasting()
    access.refused = {("publish", "t/7")}
    broker = VirtualBroker(core_class=FastCore, access=access)
    publishers = [broker.connect(f"p{number}") for number in range(3)]
    for number in range(10):
        for publisher in publishers:
            publisher.publish(f"t/{number}", b"x", qos=1)
            code = 0x87 if number == 7 else 0x10
            assert publisher.take(PubAck).reason_code == code
    kept = [len(one.connection.client.fast_plans) for one in publishers]  # type: ignore[attr-defined]
    assert 0 < sum(kept) <= 5
