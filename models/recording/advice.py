"""Advice for a running broker: what to change, and what the planner expects of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from penstock.broker.config.key_types import show_size
from penstock.models.planner import delivery, link_policies, load
from penstock.models.planner.planning import Plan
from penstock.models.recording.observed_fleet import ObservedFleet
from penstock.netem.figures.estimates import Estimate
from penstock.netem.figures.figure_file import Table

ROOT: Final = "penstock/"
UNKNOWN: Final = "not known"
KEEP: Final = "nothing: keep it"


def tables(observed: ObservedFleet, plan: Plan) -> dict[str, Table]:
    """Return what to change, and what was measured beside what is predicted."""
    return {
        "changes": Table(["setting", "now", "planned", "gain"], list(_changes(observed, plan))),
        "measured": Table(["figure", "measured", "predicted"], list(_measured(observed, plan))),
        "assumed": Table(["assumed, as it is not measured"], [[each] for each in observed.notes]),
    }


def _changes(observed: ObservedFleet, plan: Plan) -> Iterator[list[str]]:
    now = observed.figures
    yield _limit(now, "connections", plan.connections, f"room for {plan.connections:,} clients")
    if plan.deliveries:
        yield _limit(now, "queued_messages", plan.queued_messages, _more_waiting(now, plan))
        yield _limit(
            now, "queued_bytes", plan.queued_bytes, "room for what waits in an outage", is_size=True
        )
    policy = _policy(now)
    yield [
        "`withholding.policy`",
        policy or UNKNOWN,
        plan.policy,
        KEEP if policy == plan.policy or not plan.held else _policy_gain(policy, plan),
    ]
    if plan.held and plan.sizes.threshold_s is not None:
        threshold_s = now.get(f"{ROOT}withholding/threshold_s", "no message is large")
        wanted = str(plan.sizes.threshold_s)
        gain = KEEP if threshold_s == wanted else plan.sizes.why
        yield ["`withholding.threshold_s`", threshold_s, wanted, gain]
    period = now.get(f"{ROOT}withholding/probe_period")
    ratio = plan.fleet.n_subscribers * plan.costs.look
    gain = KEEP
    if period is not None and float(period) != plan.probe_period:
        before, after = ratio / float(period), ratio / plan.probe_period
        gain = (
            f"an RTT is {plan.probe_period:g} s old at most in place of {float(period):g} s; looks"
            f" take {after:.2%} of a core in place of {before:.2%}"
        )
    yield [
        "`probing.probe_period`",
        UNKNOWN if period is None else f"{period} s",
        f"{plan.probe_period:g} s",
        gain,
    ]
    for name, held in plan.held.items():
        is_two = name in plan.two_lanes
        one, two = held.small(plan.policy, 0.99), held.small(link_policies.TWO_LANES, 0.99)
        gain = f"p99 of small messages {_seconds(two)} with two, {_seconds(one)} with one"
        yield [f"connections of {name}", UNKNOWN, "two, by size" if is_two else "one", gain]


def _limit(
    now: Mapping[str, str], name: str, planned: int, gain: str, *, is_size: bool = False
) -> list[str]:
    value = now.get(f"{ROOT}limits/{name}")
    show = show_size if is_size else "{:,}".format
    is_enough = value is None or int(value) >= planned
    return [
        f"`limits.{name}`",
        "no limit" if value is None else show(int(value)),
        f"{show(planned)} at least",
        KEEP if is_enough else gain,
    ]


def _more_waiting(now: Mapping[str, str], plan: Plan) -> str:
    """Say what arrives with the present limit of waiting messages, and with the planned one."""
    value = now.get(f"{ROOT}limits/queued_messages")
    if value is None or int(value) >= plan.queued_messages:
        return KEEP
    found = []
    for (source, name), given in plan.deliveries.items():
        if given[0].backlog_messages > int(value):
            before = delivery.predict(
                plan.fleet,
                plan.costs,
                source,
                name,
                delivery.Variant(
                    "now", plan.fleet.devices[source], plan.fleet.subscribers[name], int(value)
                ),
            )
            found.append(
                f"{source} to {name}: {_ratio(given[0].success)} delivered in place of"
                f" {_ratio(before.success)}"
            )
    return "; ".join(found) or "room for what waits in an outage"


def _policy(now: Mapping[str, str]) -> str:
    policy = now.get(f"{ROOT}withholding/policy", "")
    return link_policies.NONE if policy == "DeliveryGate" else policy


def _policy_gain(policy: str, plan: Plan) -> str:
    found = []
    for name, held in plan.held.items():
        if policy not in held.by_policy:
            continue
        words = "" if held.over(plan.policy, policy).high < 1 else "no gain is shown: "
        small, small_now = (_seconds(held.small(each, 0.9)) for each in (plan.policy, policy))
        large, large_now = (_seconds(held.large(each)) for each in (plan.policy, policy))
        found.append(
            f"{words}{name}: p90 of small messages {small} in place of {small_now}, mean of large"
            f" ones {large} in place of {large_now}"
        )
    return "; ".join(found) or "the present policy is not one of those that were simulated"


def _measured(observed: ObservedFleet, plan: Plan) -> Iterator[list[str]]:
    figures, rates = observed.figures, observed.rates
    yield [
        "clients, with the recorder",
        figures.get("clients/connected", UNKNOWN),
        f"{plan.fleet.n_clients:,}",
    ]
    received = rates.get("messages/publish/received")
    predicted = sum(each.total_rate for each in plan.fleet.devices.values())
    yield [
        "messages received a second",
        UNKNOWN if received is None else f"{received:,.4g}",
        f"{predicted:,.4g}",
    ]
    busy = rates.get(f"{ROOT}process/processor_seconds")
    most = load.core_ratio(plan.fleet, plan.costs)
    yield [
        "of a core",
        UNKNOWN if busy is None else f"{busy:.1%}",
        f"{plan.core_ratio:.1%} while busy, {most:.1%} at most",
    ]
    resident = figures.get("heap/size")
    fixed = sum(load.memory(plan.fleet, plan.costs).values())
    yield [
        "memory",
        UNKNOWN if resident is None else show_size(int(resident)),
        f"{show_size(round(fixed))} without messages that wait",
    ]
    for name, value in sorted(figures.items()):
        if name.startswith(f"{ROOT}ledger/dropped/"):
            reason = name.removeprefix(f"{ROOT}ledger/dropped/")
            yield [f"dropped since its start: {reason}", value, "-"]
    for name in ("queued", "queued_bytes", "withheld"):
        yield [f"{name} at the end", figures.get(f"{ROOT}ledger/{name}", UNKNOWN), "-"]
    policy = figures.get(f"{ROOT}withholding/policy", "")
    root = f"{ROOT}withholding/sojourn_seconds/{policy}/"
    if float(figures.get(f"{root}count", "0")):
        mean = float(figures[f"{root}sum"]) / float(figures[f"{root}count"])
        yield ["sojourn of released messages, mean", f"{mean:.3g} s", "-"]


def _seconds(found: Estimate) -> str:
    return format(found, ".3g") + " s"


def _ratio(found: Estimate) -> str:
    return format(found, ".1%")
