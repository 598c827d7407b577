from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock.models.papers.withholding.simulation
from penstock.broker.errors import ConfigError
from penstock.broker.extensions import DeliveryGate, PluginContext, Verdict, overridden
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.broker.outbox.delivery import Delivery
from penstock.broker.outbox.message_counts import Ledger
from penstock.broker.outbox.outbox import Outbox
from penstock.broker.outbox.outbox_limits import OutboxLimits
from penstock.models.papers.withholding.simulation import WithholdingSetting, simulate
from penstock.plugins.withholding import gate as gate_module
from penstock.plugins.withholding.config import ListenerThresholds, WithholdingConfig
from penstock.plugins.withholding.gate import WithholdingGate, WithholdingPlugin
from penstock.plugins.withholding.policy import Judgement, Policy
from tests.helpers.guard import NoFaults

NOW = 1_000.0
LARGE = Message("cam/1", b"x" * 1_000_000)


def gate_with(**keys: Any) -> WithholdingGate:
    """Return a gate with a fixed threshold_l of 0.5 s unless told otherwise."""
    return WithholdingGate(WithholdingConfig(**{"threshold_l": 0.5, **keys}))


def link_with(rtt: float | None, *, rtt_bytes: int = 0) -> Link:
    """Return a link with this RTT estimate in seconds."""
    link = Link("site-7")
    link.rtt_latest = rtt
    link.rtt_bytes = rtt_bytes
    return link


def outbox_with(link: Link, gate: WithholdingGate) -> Outbox:
    """Return an empty outbox with a real gate, which must not raise."""
    return Outbox(link, Ledger(), OutboxLimits(gate, NoFaults()))


def test_gate_meets_the_extension_point() -> None:
    """The plugin brings a gate and nothing else."""
    context = PluginContext(logging.getLogger("penstock.withholding"), "policy.yaml", lambda: NOW)
    plugin = WithholdingPlugin(WithholdingConfig(), context)
    gate: DeliveryGate = plugin.gate
    assert gate.threshold_s("any") == 10_000
    assert plugin.sampler is None
    assert not plugin.sinks


def test_threshold_s_of_a_topic_comes_from_the_file() -> None:
    """The core learns from the gate what is large."""
    gate = gate_with(threshold_s=5, threshold_s_by_topic={"alarm/#": None, "cam/+": 7})
    assert [gate.threshold_s(topic) for topic in ("a", "alarm", "cam/1")] == [5, None, 7]


def test_small_message_always_goes() -> None:
    """Small messages are never withheld by a policy."""
    small = Message("cam/1", b"x" * 10_000)
    verdict = gate_with(policy="conservative").decide(small, link_with(99.0), 0.0, NOW)
    assert verdict == Verdict(deliver=True, reason="small")


def test_without_estimate_the_message_goes() -> None:
    """No evidence of congestion, and the delivery brings the first estimate."""
    verdict = gate_with(policy="conservative").decide(LARGE, link_with(None), 0.0, NOW)
    assert verdict == Verdict(deliver=True, reason="no recent RTT estimate", cause="no_estimate")


def test_conservative_withholds_until_d_has_passed() -> None:
    """The verdict gives both sides of the inequality and a time just after D."""
    gate = gate_with(policy="conservative", max_withhold=20.0)
    verdict = gate.decide(LARGE, link_with(0.8), 5.0, NOW)
    # 1 MB costs ten times the latency of a small packet: L_now = 4 s, threshold_l / 2 = 2.5 s.
    assert verdict == Verdict(
        deliver=False,
        look_again_at=NOW + 15.001,
        reason="conservative: L_now 4 s >= 2.5 s "
        "(RTT 0.8 s, threshold_l 0.5 s, size x10, withheld 5 s, T_Q 1 s)",
        cause="congested",
    )


def test_historic_asks_again_when_the_wait_has_made_up_for_the_latency() -> None:
    """look_again_at is equation 6 solved for the sojourn, and then the message goes."""
    gate = gate_with(policy="historic")
    link = link_with(1.6)
    verdict = gate.decide(LARGE, link, 0.0, NOW)
    # L_now = 8 s, limit = 1 + 2.5 + sojourn: the sojourn has to pass 4.5 s.
    assert verdict.reason.startswith("historic: L_now 8 s >= 3.5 s (")
    assert verdict.look_again_at == pytest.approx(NOW + 4.501)
    later = gate.decide(LARGE, link, 4.501, NOW + 4.501)
    assert later.deliver
    assert later.reason.startswith("historic: L_now 8 s < 8.001 s (")


def test_estimate_of_a_large_packet_is_scaled_down() -> None:
    """An RTT timed on 1 MB is ten times that of a small packet (latency profile)."""
    gate = gate_with(policy="conservative")
    assert not gate.decide(LARGE, link_with(0.8), 0.0, NOW).deliver
    assert gate.decide(LARGE, link_with(0.8, rtt_bytes=1_000_000), 0.0, NOW).deliver


def test_profile_of_the_file_scales_latency() -> None:
    """Historic weighs seconds: with a flatter profile a large message costs less."""
    link = link_with(1.6)
    assert not gate_with(policy="historic").decide(LARGE, link, 0.0, NOW).deliver
    assert gate_with(policy="historic", profile={1: 1.0}).decide(LARGE, link, 0.0, NOW).deliver


@pytest.mark.parametrize(
    ("keys", "link_keys", "delivers"),
    [
        ({"threshold_l": None}, {"rtt_min": 0.1}, False),
        ({"threshold_l": None}, {"rtt_min": 0.48}, True),
        ({"threshold_l": None, "learned_from": "average"}, {"threshold_l": 0.4}, False),
        ({"threshold_l": None, "learned_from": "average"}, {"threshold_l": 0.6}, True),
        ({"threshold_l": 0.4}, {"rtt_min": 9.0}, False),
        ({"threshold_l": 0.4, "threshold_l_by_client": {"site-*": 0.6}}, {}, True),
    ],
)
def test_keys_of_threshold_l_change_the_decision(
    keys: dict[str, Any], link_keys: dict[str, float], *, delivers: bool
) -> None:
    """Each way to a threshold_l decides over an RTT of half a second."""
    link = link_with(0.5)
    for name, value in link_keys.items():
        setattr(link, name, value)
    gate = gate_with(policy="conservative", **keys)
    verdict = gate.decide(LARGE, link, 0.0, NOW)
    assert verdict.deliver is delivers
    assert (gate.threshold_l(link) > 0.5) is delivers  # which reports show
    assert f"threshold_l {gate.threshold_l(link):.4g} s" in verdict.reason


def test_congestion_rate_changes_the_decision() -> None:
    """Congestion that is expected to be short is worth a wait."""
    link = link_with(1.6)
    patient = gate_with(policy="probabilistic", congestion_rate=1 / 2)
    assert not patient.decide(LARGE, link, 0.0, NOW).deliver
    hasty = gate_with(policy="probabilistic", congestion_rate=1 / 60)
    assert hasty.decide(LARGE, link, 0.0, NOW).deliver


def test_probe_period_changes_the_decision() -> None:
    """With a later next decision it is better to send now."""
    link = link_with(1.6)
    gate = gate_with(policy="historic")
    assert not gate.decide(LARGE, link, 0.0, NOW).deliver
    gate.probe_period = 6.0
    assert gate.decide(LARGE, link, 0.0, NOW).deliver


@pytest.mark.parametrize(
    ("policy", "rtt", "sojourn", "overdue", "cause"),
    [
        ("none", 1e6, 0.0, 0.0, "no_limit"),
        ("none", 0.1, 0.0, 0.0, "calm"),
        ("conservative", 0.1, 0.0, 0.0, "calm"),
        ("conservative", 0.8, 0.0, 0.0, "congested"),
        ("conservative", 0.1, 0.0, 2.0, "overdue"),
        ("conservative", 0.8, 20.5, 0.0, "bound"),
        ("historic", 0.6, 0.0, 0.0, "cost"),
        ("historic", None, 0.0, 0.0, "no_estimate"),
        ("adaptive", 0.1, 0.0, 0.0, "calm"),
    ],
)
def test_each_decision_has_a_cause(
    policy: str, rtt: float | None, sojourn: float, overdue: float, cause: str
) -> None:
    """Counters are by cause: it says in a word what the reason says at length."""
    link = link_with(rtt)
    link.outstanding_since = NOW - overdue if overdue else None
    verdict = gate_with(policy=policy).decide(LARGE, link, sojourn, NOW)
    assert verdict.cause == cause


def test_overdue_packet_counts_as_the_least_its_rtt_can_be() -> None:
    """A good estimate does not hide a packet that has been unanswered for seconds."""
    gate = gate_with(policy="conservative")
    link = link_with(0.1)
    assert gate.decide(LARGE, link, 0.0, NOW).deliver
    link.outstanding_since = NOW - 2.0
    verdict = gate.decide(LARGE, link, 0.0, NOW)
    assert verdict.reason.startswith("conservative: L_now 10 s >= 2.5 s (RTT 2 s so far, ")


def test_overdue_packet_is_evidence_without_any_estimate() -> None:
    """The first packet of a connection may be the one that is lost."""
    link = link_with(None)
    link.outstanding_since = NOW - 2.0
    assert not gate_with(policy="conservative").decide(LARGE, link, 0.0, NOW).deliver


def test_packet_just_sent_does_not_lower_the_estimate() -> None:
    """The larger of estimate and age counts."""
    link = link_with(0.8)
    link.outstanding_since = NOW - 0.001
    assert not gate_with(policy="conservative").decide(LARGE, link, 0.0, NOW).deliver


def test_age_of_a_large_outstanding_packet_is_scaled_down() -> None:
    """A large packet may take its time without being overdue."""
    link = link_with(0.1)
    link.outstanding_since = NOW - 2.0
    link.outstanding_bytes = 1_000_000
    assert gate_with(policy="conservative").decide(LARGE, link, 0.0, NOW).deliver


def test_message_is_large_by_the_subscribers_listener() -> None:
    """The core asks about what is large for somebody; for whom, the listener says."""
    listeners = {"field": ListenerThresholds(threshold_s=100)}
    gate = gate_with(policy="conservative", listeners=listeners)
    assert gate.threshold_s("t") == 100
    message = Message("t", b"x" * 101, is_large=True)
    field, office = link_with(99.0), link_with(99.0)
    field.listener, office.listener = "field", "office"
    assert [gate.is_large(message, link) for link in (field, office)] == [True, False]
    assert not gate.decide(message, field, 0.0, NOW).deliver
    assert gate.decide(message, office, 0.0, NOW).reason == "small"


def test_subscriber_says_its_threshold_until_it_says_otherwise() -> None:
    """The newest CONNECT holds, also where it says nothing or nonsense."""
    gate, link = gate_with(policy="conservative", threshold_l=0.5), link_with(0.8)
    assert not gate.decide(LARGE, link, 0.0, NOW).deliver
    assert gate.connected(link, [("threshold_l", "0.9")]) == ""
    assert gate.decide(LARGE, link, 0.0, NOW).deliver
    assert gate.connected(link, [("threshold_l", "soon")]).startswith("user property threshold_l")
    assert not gate.decide(LARGE, link, 0.0, NOW).deliver
    gate.connected(link, [("threshold_l", "0.9")])
    gate.connected(link, [])
    assert link.asked_threshold_l is None


def test_unknown_listener_is_named_with_those_there_are() -> None:
    """A misspelt listener would silently have no thresholds of its own."""
    logger = logging.getLogger("penstock.withholding")
    context = PluginContext(logger, "policy.yaml", lambda: NOW, ("default", "field"))
    config = WithholdingConfig(listeners={"feild": ListenerThresholds(threshold_s=1)})
    with pytest.raises(ConfigError) as caught:
        WithholdingPlugin(config, context)
    assert str(caught.value) == (
        "policy.yaml: plugins.withholding.listeners.feild: read an unknown listener; "
        "allowed: one of default, field (perhaps field)"
    )


@given(
    policy=st.sampled_from(["conservative", "probabilistic", "historic", "adaptive"]),
    rtt=st.floats(0, 60),
)
def test_every_hold_ends_though_a_client_never_answers(policy: str, rtt: float) -> None:
    """With a packet that stays unanswered for ever, asking when told releases the message."""
    gate = gate_with(policy=policy)
    link = link_with(rtt)
    link.outstanding_since = began_at = NOW
    now = began_at
    for _ in range(100):
        verdict = gate.decide(LARGE, link, now - began_at, now)
        if verdict.deliver:
            break
        assert verdict.look_again_at is not None
        assert verdict.look_again_at > now
        now = verdict.look_again_at
    assert verdict.deliver
    assert now - began_at <= max(10 * rtt / 2, 10 * 20 / 2) + 0.1


def estimate(gate: WithholdingGate, link: Link, rtt: float, at: float) -> None:
    """Give the link an RTT estimate as a sampler does, and tell the gate."""
    link.rtt_latest = rtt
    link.rtt_updated_at = at
    gate.observe(link)


def test_adaptive_holds_by_what_messages_took_on_this_path() -> None:
    """A first one is held for D, which shows what the path takes; then a quick one goes."""
    gate, link = gate_with(policy="adaptive"), link_with(None)
    estimate(gate, link, 2.0, NOW)
    first = gate.decide(LARGE, link, 0.0, NOW)
    assert first == Verdict(
        deliver=False,
        look_again_at=NOW + 20.001,
        reason="adaptive: the path is bad, what it would take is not known: withheld 0 s of 20 s "
        "(RTT 2 s, threshold_l 0.5 s)",
        cause="congested",
    )
    estimate(gate, link, 2.0, NOW + 19.0)
    gate.large_sent(link, 1_000_000, NOW + 20.0)
    another = gate.decide(LARGE, link, 0.0, NOW + 20.5)
    assert (another.deliver, another.cause) == (False, "on_way")
    assert gate.large_acknowledged(link, NOW + 23.5)
    estimate(gate, link, 2.0, NOW + 26.0)
    then = gate.decide(LARGE, link, 0.0, NOW + 26.0)
    assert (then.deliver, then.cause) == (True, "exposure")


def test_exposure_of_the_file_changes_the_decision() -> None:
    """What takes 3 s goes where small messages may wait for 4 s."""
    delivers = []
    for exposure in (2.0, 4.0):
        gate, link = gate_with(policy="adaptive", exposure=exposure), link_with(None)
        estimate(gate, link, 1.0, NOW)
        gate.large_sent(link, 1_000_000, NOW)
        gate.large_acknowledged(link, NOW + 4.0)
        estimate(gate, link, 1.0, NOW + 9.0)
        delivers.append(gate.decide(LARGE, link, 0.0, NOW + 9.1).deliver)
    assert delivers == [False, True]


def test_adaptive_sees_an_overdue_answer() -> None:
    """Without any estimate, too; the reason has its age."""
    gate, link = gate_with(policy="adaptive"), link_with(None)
    assert gate.decide(LARGE, link, 0.0, NOW).cause == "no_estimate"
    link.outstanding_since = NOW - 2.0
    verdict = gate.decide(LARGE, link, 0.0, NOW)
    assert not verdict.deliver
    assert verdict.reason.endswith("(no recent RTT, unanswered for 2 s, threshold_l 0.5 s)")


def test_rtt_of_the_kernel_is_of_what_was_sent_since_the_look_before() -> None:
    """So one that is known soon after a large message has passed says nothing of the path."""
    for source, is_held in (("tcp_info", False), ("puback", True)):
        gate, link = gate_with(policy="adaptive"), link_with(None)
        link.rtt_source = source
        gate.large_sent(link, 1_000_000, NOW)
        gate.large_acknowledged(link, NOW + 1.0)
        estimate(gate, link, 0.8, NOW + 2.0)
        assert gate.decide(LARGE, link, 0.0, NOW + 2.0).deliver is not is_held


def test_estimate_that_is_told_twice_counts_once() -> None:
    """Connections and outboxes tell the gate more often than there is news."""
    gate, link = gate_with(policy="adaptive"), link_with(None)
    gate.large_sent(link, 1_000_000, NOW)
    gate.large_acknowledged(link, NOW + 4.0)
    estimate(gate, link, 0.1, NOW + 5.0)
    gate.large_sent(link, 1_000_000, NOW + 10.0)
    gate.large_acknowledged(link, NOW + 14.0)
    passage = gate.passages[link]
    pause_until = passage.pause_until
    gate.observe(link)
    assert passage.pause_until == pause_until


@pytest.mark.parametrize("gets_small", [True, False])
def test_nothing_is_held_where_subscriptions_bring_no_small_message(*, gets_small: bool) -> None:
    """A lane of large messages alone: to hold them protects nothing."""
    gate, link = gate_with(policy="adaptive"), link_with(None)
    link.gets_small = gets_small
    estimate(gate, link, 2.0, NOW)
    verdict = gate.decide(LARGE, link, 0.0, NOW)
    assert verdict.deliver is not gets_small
    assert (verdict.cause == "no_limit") is not gets_small


def test_what_is_known_ends_with_the_subscriber() -> None:
    """What is kept for a link is made with its first estimate and gone when it is forgotten."""
    gate, link = gate_with(policy="adaptive"), link_with(None)
    gate.observe(link)
    assert not gate.large_acknowledged(link, NOW)
    assert not gate.passages
    assert gate.passage(link, NOW) is None
    estimate(gate, link, 0.1, 1.0)
    assert list(gate.passages) == [link]
    gate.forget(link)
    gate.forget(link)
    assert not gate.passages


def test_a_new_connection_has_nothing_on_its_way() -> None:
    """What messages took stays known."""
    gate, link = gate_with(policy="adaptive"), link_with(None)
    gate.large_sent(link, 1_000_000, NOW)
    gate.large_acknowledged(link, NOW + 1.0)
    gate.large_sent(link, 1_000_000, NOW + 1.0)
    gate.connected(link, [])
    figures = gate.passage(link, NOW + 2.0)
    assert figures is not None
    assert (figures.on_way_bytes, figures.last_seconds) == (0, 1.0)


def test_reports_have_rates_and_times() -> None:
    """What is not known, and a rate without end, is None."""
    gate, link = gate_with(policy="adaptive"), link_with(None)
    estimate(gate, link, 1.0, NOW)
    assert gate.passage(link, NOW) == (None, None, None, 0.0, 0, 0.0)
    gate.large_sent(link, 1_000_000, NOW)
    gate.large_acknowledged(link, NOW + 1.0)
    assert gate.passage(link, NOW + 1.0) == (1.0, None, None, 0.0, 0, 0.0)
    gate.large_sent(link, 1_000_000, NOW + 2.0)
    gate.large_acknowledged(link, NOW + 7.0)
    estimate(gate, link, 1.0, NOW + 8.5)
    gate.large_sent(link, 500, NOW + 9.0)
    assert gate.passage(link, NOW + 9.5) == (5.0, 250_000.0, 250_000.0, 1.5, 500, 0.5)


def test_policies_that_do_not_learn_keep_nothing() -> None:
    """No memory is spent on what nobody reads."""
    gate, link = gate_with(policy="historic"), link_with(None)
    estimate(gate, link, 0.1, 1.0)
    gate.large_sent(link, 1_000_000, NOW)
    assert not gate.large_acknowledged(link, NOW)
    assert not gate.passages


def test_outbox_releases_one_message_after_the_other_on_this_gate() -> None:
    """With the real outbox: held while the path is bad, small ones pass, then one each look."""
    link = link_with(1.6)
    outbox = outbox_with(link, gate_with(policy="conservative"))
    for topic, size in (("pictures", 1_000_000), ("alarm", 100)):
        message = Message(topic, b"x" * size, qos=1, is_large=size > 10_000)
        outbox.add(Delivery(message, 1))
    first = outbox.take(NOW)
    assert first is not None
    assert first.message.topic == "alarm"
    assert outbox.take(NOW + 1) is None
    assert outbox.why_nothing().startswith("withheld: conservative: L_now 8 s >= 2.5 s (")
    link.rtt_latest = 0.1
    outbox.link_changed()
    second = outbox.take(NOW + 2)
    assert second is not None
    assert second.message.topic == "pictures"


def test_outbox_releases_at_the_time_the_gate_named() -> None:
    """At look_again_at the sojourn is past D: the message goes at the first asking."""
    outbox = outbox_with(link_with(1.6), gate_with(policy="conservative"))
    outbox.add(Delivery(Message("pictures", b"x" * 1_000_000, is_large=True), 0))
    assert outbox.take(NOW) is None
    assert outbox.look_again_at is not None
    assert outbox.take(outbox.look_again_at) is not None


def test_simulation_drives_the_very_object_that_the_gate_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One implementation, two clocks: identity of object and class, not equality of code."""
    gate = gate_with(policy="conservative")
    asked: list[Policy] = []
    judge = type(gate.policy).judge

    def spy(self: Policy, situation: Any) -> Judgement:
        asked.append(self)
        return judge(self, situation)

    monkeypatch.setattr(type(gate.policy), "judge", spy)
    gate.decide(LARGE, link_with(0.1), 0.0, NOW)
    simulate(gate.policy, [0.3] * 10, WithholdingSetting())
    assert len(asked) > 2
    assert all(policy is gate.policy for policy in asked)
    assert (
        vars(penstock.models.papers.withholding.simulation)["Policy"] is vars(gate_module)["Policy"]
    )


def test_what_may_pass_what_is_said_in_the_policy_file() -> None:
    """`priority`, `ordering` and `supersede` reach the outbox; unless they are there, nothing."""
    plain = gate_with(policy="none")
    assert (plain.keeps_topics, plain.supersedes) == (True, False)
    assert overridden(plain.is_first, DeliveryGate.is_first) is None
    asked = gate_with(policy="none", priority=["alarms/#"], ordering="none", supersede=True)
    assert (asked.keeps_topics, asked.supersedes) == (False, True)
    assert overridden(asked.is_first, DeliveryGate.is_first) is not None
    assert [asked.is_first(topic) for topic in ("alarms/fire", "pictures")] == [True, False]
