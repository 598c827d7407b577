from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from penstock.broker.extensions import Verdict
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.broker.outbox.large_messages import (
    CAUSES,
    MAX_LINES,
    WINDOW_SECONDS,
    WithholdingRecord,
)
from penstock.broker.sessions.broker_state import Core
from penstock.plugins.probing import sampler as probing_sampler
from penstock.plugins.probing.config import ProbingConfig
from penstock.plugins.probing.sampler import RttSampler
from penstock.plugins.withholding import gate as gate_module
from tests.helpers.gates import SwitchGate
from tests.helpers.virtual import VirtualBroker, VirtualClient

LARGE = b"x" * 200
DOCUMENTATION = Path(__file__).resolve().parents[3] / "docs" / "reference" / "sys-topics.md"


class Gate(SwitchGate):
    """A gate that names its causes."""

    policy_name = "switch"

    def decide(self, message: Message, link: Link, sojourn: float, now: float) -> Verdict:
        """Answer as the test has set."""
        verdict = super().decide(message, link, sojourn, now)
        return verdict._replace(cause="calm" if verdict.deliver else "congested")


def broker_with(gate: SwitchGate) -> tuple[VirtualBroker, VirtualClient]:
    """Return a broker, and a client of it that has subscribed to everything."""
    broker = VirtualBroker(gate=gate)
    client = broker.connect("s")
    client.subscribe("#", 1)
    return broker, client


def record_of(broker: VirtualBroker) -> WithholdingRecord:
    """Return what was counted."""
    return broker.core.outbox_rules.record


def test_holds_and_releases_are_counted_by_cause_with_their_sojourn() -> None:
    """One that is held, one behind it on another topic, and one that comes on a calm path."""
    gate = Gate()
    broker, client = broker_with(gate)
    publisher = broker.connect("p")
    for topic in ("a", "b"):
        publisher.publish(topic, LARGE, qos=1)
    broker.advance(3)
    gate.is_open = True
    broker.advance(1)
    client.acknowledge()
    broker.advance(1)
    client.acknowledge()
    publisher.publish("c", LARGE, qos=1)
    record = record_of(broker)
    assert record.decisions == {
        ("held", "congested"): 1,
        ("held", "behind"): 1,
        ("released", "calm"): 2,
        ("at_once", "calm"): 1,
    }
    ledger = broker.session("s").ledger
    assert (ledger.withheld_total, ledger.released_total) == (2, 2)
    assert record.sojourn.buckets()["2.5"] == 0
    assert record.sojourn.buckets()["5"] == 2


def test_a_gate_without_causes_is_counted_by_its_class() -> None:
    """A plugin that knows nothing of causes still counts."""
    broker, _ = broker_with(SwitchGate(is_open=True))
    broker.connect("p").publish("a", LARGE)
    record = record_of(broker)
    assert record.policy == "SwitchGate"
    assert record.decisions == {("at_once", "other"): 1}


@pytest.mark.parametrize("sweeps", [False, True])
def test_what_expires_while_it_is_held_is_counted(*, sweeps: bool) -> None:
    """A hold that was too long for the message is seen, found by a search or at its turn."""
    broker, _ = broker_with(Gate())
    properties = {"message_expiry_interval": 1}
    broker.connect("p").publish("a", LARGE, qos=1, properties=properties)
    if sweeps:
        broker.now += 5
        broker.session("s").outbox.drop_expired(broker.now)
    else:
        broker.advance(5)
    assert record_of(broker).decisions == {("held", "congested"): 1, ("gone", "expired"): 1}


def test_latency_of_large_messages_ends_at_their_acknowledgement() -> None:
    """The hold is in it, and so is the way to the client; at QoS 0 nothing tells of that."""
    gate = Gate()
    broker, client = broker_with(gate)
    publisher = broker.connect("p")
    publisher.publish("a", LARGE, qos=1)
    publisher.publish("b", LARGE)
    broker.advance(3)
    gate.is_open = True
    broker.advance(1)
    broker.advance(3)
    client.acknowledge()
    latency = record_of(broker).latency
    assert {kind: one.counts.index(1) for kind, one in latency.items()} == {
        ("large", "acknowledged", "calm"): 9,  # above 5 s, at most 10 s
        ("large", "sent", "calm"): 8,  # above 2.5 s, at most 5 s
    }


@pytest.mark.parametrize("waits", [False, True])
def test_latency_of_small_messages_is_that_of_those_that_are_timed(
    monkeypatch: pytest.MonkeyPatch, *, waits: bool
) -> None:
    """From the arrival, also of one that could not leave at once."""
    monkeypatch.setattr(probing_sampler, "SMALL_ONLY_SPACING_SECONDS", 0.0)
    sampler = RttSampler(ProbingConfig(sources=("puback",)), logging.getLogger("test"))
    broker = VirtualBroker(samplers=(sampler,))
    client = broker.connect("s", properties={"receive_maximum": 1})
    client.subscribe("#", 1)
    publisher = broker.connect("p")
    publisher.publish("a", b"x", qos=1)
    if waits:
        publisher.publish("b", b"x", qos=1)
    broker.advance(0.2)
    client.acknowledge()
    (histogram,) = record_of(broker).latency.values()
    assert (list(record_of(broker).latency), histogram.buckets()["+Inf"]) == (
        [("small", "acknowledged", "calm")],
        1,
    )
    assert (histogram.buckets()["0.1"], histogram.buckets()["0.25"]) == (0, 1)
    if waits:
        broker.advance(2.5)
        client.acknowledge()
        assert (histogram.buckets()["2.5"], histogram.buckets()["5"]) == (1, 2)


@pytest.mark.parametrize("payload", [b"x", LARGE])
def test_the_latency_of_a_message_that_has_not_waited_is_exact(
    monkeypatch: pytest.MonkeyPatch, payload: bytes
) -> None:
    """Though the arrival of small messages is remembered to the eighth of a second."""
    monkeypatch.setattr(probing_sampler, "SMALL_ONLY_SPACING_SECONDS", 0.0)
    sampler = RttSampler(ProbingConfig(sources=("puback",)), logging.getLogger("test"))
    gate = Gate(is_open=True)
    broker = VirtualBroker(samplers=(sampler,), gate=gate, core_class=Core)
    client = broker.connect("s")
    client.subscribe("#", 1)
    publisher = broker.connect("p")
    broker.advance(0.12)  # the next eighth begins in 5 ms
    publisher.publish("a", payload, qos=1)
    broker.advance(0.002)
    client.acknowledge()
    (histogram,) = record_of(broker).latency.values()
    assert histogram.total == pytest.approx(0.002)


def test_each_hold_and_release_is_a_debug_line(caplog: pytest.LogCaptureFixture) -> None:
    """With client, bytes, topic, how long it was held, and the reason."""
    caplog.set_level(logging.DEBUG, "test")
    gate = Gate()
    broker, _ = broker_with(gate)
    publisher = broker.connect("p")
    publisher.publish("a", LARGE, qos=1)
    publisher.publish("b", LARGE, qos=1)
    gate.is_open = True
    broker.advance(1)
    lines = [line for line in caplog.messages if "bytes on" in line]
    assert lines == [
        "client s: held: 200 bytes on a, withheld for 0 s: closed",
        "client s: held: 200 bytes on b, withheld for 0 s: behind one on a",
        "client s: released: 200 bytes on a, withheld for 1 s: open",
        "client s: released: 200 bytes on b, withheld for 1 s: open",
    ]


def test_lines_are_limited_and_say_how_many_were_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """A broker that holds thousands does not fill the disk; what is missing is told at once."""
    caplog.set_level(logging.DEBUG, "test")
    broker, _ = broker_with(Gate(look_again_after=1000))
    publisher = broker.connect("p")
    for number in range(MAX_LINES + 10):
        publisher.publish(f"t/{number}", LARGE, qos=1)
    said = "lines about large messages are left out for 10 s"
    assert caplog.messages.count(said) == 1
    assert caplog.messages[-1] == said
    broker.advance(WINDOW_SECONDS)
    publisher.publish("later", LARGE, qos=1)
    told = [line for line in caplog.messages if "held: " in line or "left out" in line]
    assert len(told) == MAX_LINES + 3
    assert told[-2] == "10 lines about large messages were left out"
    assert "on later" in told[-1]


def test_causes_of_the_policies_are_documented() -> None:
    """Each word that a counter may have is explained, and the gate says no other."""
    folder = Path(gate_module.__file__).parent
    source = "".join((folder / f"{name}.py").read_text() for name in ("gate", "policies"))
    said = set(
        re.findall(r'cause="(\w+)"|Judgement\(False, "(\w+)"|"(no_limit|cost|overdue)"', source)
    )
    words = {word for found in said for word in found if word}
    by_the_core = {"behind", "expired", "gate_failed", "operator", "other"}
    assert words | by_the_core == set(CAUSES)
    text = DOCUMENTATION.read_text()
    for cause, meaning in CAUSES.items():
        assert f"| `{cause}` | {meaning} |" in text
