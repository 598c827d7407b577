"""The tables of a plan: first the settings, then the predictions from which each follows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from typing import Final

from penstock.broker.config.key_types import show_size
from penstock.models.planner import back_ends, link_policies, load
from penstock.models.planner.costs import SOURCE, TIMES, Costs
from penstock.models.planner.planning import (
    LEAST_QUEUED_BYTES,
    LEAST_QUEUED_MESSAGES,
    QUEUE_SECONDS,
    Plan,
)
from penstock.netem.figures.estimates import Estimate
from penstock.netem.figures.figure_file import Table

OWN_FILES: Final = 192
"""The number of files that the broker keeps for itself (docs/evidence/performance.md)."""

HEADING: Final = (
    "Predicted by simulation and closed forms, with 95 % confidence intervals (bootstrap over"
    " runs). What each number is from stands beside it, and costs of the broker in the last table."
)


def tables(plan: Plan) -> dict[str, Table]:
    """Return the plan's tables by name."""
    found = {
        "settings": Table(["set", "to", "because"], list(_settings(plan))),
        "stages": _stages(plan),
        "core": _core(plan),
    }
    if plan.deliveries:
        found["deliveries"] = _deliveries(plan)
    if plan.held:
        found["policies"] = _policies(plan)
    if plan.queues:
        found["back ends"] = _receivers(plan)
        found["strategies"] = _strategies(plan)
    memory = plan.memory()
    rows = [[what, _size(n_bytes)] for what, n_bytes in memory.items()]
    rows.append(["together", _size(sum(memory.values()))])
    found["memory"] = Table(["memory", "bytes"], rows)
    scaled = [[each] for each in plan.scaled()]
    if scaled:
        found["scaled"] = Table(["simulated in part"], scaled)
    found["costs"] = _costs(plan.costs)
    return found


def _settings(plan: Plan) -> Iterator[list[str]]:
    """Yield each setting of the policy file, and what else to do."""
    fleet = plan.fleet
    yield [
        "`limits.connections`",
        f"{plan.connections:,}",
        f"{fleet.n_clients:,} clients, and a quarter, ten at least",
    ]
    yield [
        "open files (`ulimit -n`)",
        f"{plan.connections + OWN_FILES:,}",
        f"one a connection, and {OWN_FILES} of the broker's own",
    ]
    if plan.deliveries:
        yield from _session_settings(plan)
    yield [
        "`probing.probe_period` (T_Q)",
        f"{plan.probe_period:g} s",
        (
            f"looks at {fleet.n_subscribers:,} subscribers take"
            f" {load.probing(fleet, plan.costs).ratio:.2%} of a core"
        ),
    ]
    yield from _withholding_settings(plan)
    for name, back_end in fleet.back_ends.items():
        yield from _queue_settings(plan, name, back_end.order == "key")
    yield [
        "`plugins.memory`",
        "store: spill" if plan.spills else "not needed",
        f"{_size(sum(plan.memory().values()))} of {_size(fleet.machine.memory_bytes)}",
    ]
    if plan.least_memory > fleet.machine.memory_bytes:
        yield [
            "memory of the machine",
            f"{_size(plan.least_memory)} at least",
            f"for {fleet.n_clients:,} connections; {_size(fleet.machine.memory_bytes)} in the file",
        ]
    yield ["cores", *_cores(plan)]
    seconds = fleet.n_clients * plan.costs.connect
    yield [
        "after a restart",
        f"{seconds:.3g} s",
        "until all clients have connected again, if they come at once",
    ]


def _session_settings(plan: Plan) -> Iterator[list[str]]:
    n_messages, n_bytes = plan.waiting_messages, plan.waiting_bytes
    for key, to, waiting, is_least in (
        (
            "messages",
            f"{plan.queued_messages:,}",
            f"{n_messages:,}",
            n_messages < LEAST_QUEUED_MESSAGES,
        ),
        ("bytes", _size(plan.queued_bytes), _size(n_bytes), n_bytes < LEAST_QUEUED_BYTES),
    ):
        least = "no plan has less; " if is_least else ""
        why = f"{least}{waiting} wait for one subscriber in 99 of 100 of its outages"
        yield [f"`limits.queued_{key}`", to, why]


def _withholding_settings(plan: Plan) -> Iterator[list[str]]:
    sizes = plan.sizes
    if not plan.held:
        why = sizes.why if sizes.threshold_s is None else "no subscriber's link has bad phases"
        yield ["`withholding.policy`", plan.policy, f"the default; {why}, so nothing was simulated"]
        return
    why = (
        "the default; no other is shown to give small messages a lower p90 without delaying large"
        " ones by more than a tenth"
    )
    if plan.policy != link_policies.DEFAULT:
        why = f"small messages have a lower p90 than under the default, {link_policies.DEFAULT}"
    yield ["`withholding.policy`", plan.policy, why]
    yield ["`withholding.threshold_s`", f"{sizes.threshold_s:,} bytes", sizes.why]
    yield ["`withholding.threshold_l`", "auto", "learned for each subscriber"]
    if plan.bad_seconds is not None and plan.policy in {"conservative", "probabilistic"}:
        settings = link_policies.config(plan.policy, plan.bad_seconds, sizes.threshold_s or 0)
        yield [
            "`withholding.max_withhold` (D)",
            f"{settings.max_withhold:g} s",
            f"bad phases last {plan.bad_seconds:g} s on average; 20 s for 17.5 s in paper 002",
        ]
        if plan.policy == "probabilistic":
            rate = f"{settings.congestion_rate:.3g} /s"
            yield ["`withholding.congestion_rate` (lambda)", rate, "one over their mean length"]
    for name, held in plan.held.items():
        one, two = held.small(plan.policy, 0.99), held.small(link_policies.TWO_LANES, 0.99)
        yield [
            f"connections of {name}",
            "two, by size" if name in plan.two_lanes else "one",
            f"p99 of small messages {_seconds(two)} with two, {_seconds(one)} with one",
        ]


def _queue_settings(plan: Plan, name: str, by_key: bool) -> Iterator[list[str]]:  # noqa: FBT001
    back_end = plan.fleet.back_ends[name]
    calm = back_ends.recommended(plan.fleet, name)
    yield [
        f"receivers of {name}",
        f"{calm:,}",
        (
            f"the least that are busy for up to {back_ends.CALM_UTILISATION:.0%};"
            f" {back_end.receivers} in the file"
        ),
    ]
    key = f"queue {name}"
    n_queues = back_ends.physical_queues(plan.fleet, name)
    why = (
        "a key is in one of them, which one receiver empties" if by_key else "one for each receiver"
    )
    yield [f"{key}: `physical_queues`", str(n_queues), why]
    n_max, timeout = back_ends.n_max(back_end), back_ends.visibility_timeout(back_end)
    yield [
        f"{key}: `n_max`",
        str(n_max),
        f"a batch takes {n_max * back_end.seconds_per_message:g} s, a third of the timeout at most",
    ]
    yield [
        f"{key}: `visibility_timeout`",
        f"{timeout:g} s",
        f"{back_ends.SERVICES:g} times a message's {back_end.seconds_per_message:g} s at least",
    ]
    yield [
        f"{key}: `dequeue`",
        "rds+wake",
        "no message waits for a retry; `sleep_time` is of rds and pms alone, 0.1 s by default",
    ]
    n_messages, n_bytes = plan.queue_limits(name)
    yield [
        f"{key}: `max_messages`",
        f"{n_messages:,}",
        f"{QUEUE_SECONDS / 60:g} minutes without receivers; {_size(n_bytes)} on the disk",
    ]


def _cores(plan: Plan) -> tuple[str, str]:
    rho, most = plan.core_ratio, load.core_ratio(plan.fleet, plan.costs)
    why = (
        f"the broker takes {most:.0%} of a core at most, and can use one; it overflows at"
        f" {_times(1 / rho)} times the load; {plan.fleet.machine.cores} in the file"
    )
    if rho >= load.WARNING_RATIO:
        return "2, or two brokers", f"nearly full: {why}"
    return "1" if most < load.WARNING_RATIO else "2", why


def _stages(plan: Plan) -> Table:
    rows = [
        [
            each.name,
            f"{each.rate:,.4g} {each.work}/s",
            f"{each.most:,.4g}/s",
            f"{each.utilisation:.3f}",
            _times(1 / each.utilisation),
            each.source,
        ]
        for each in plan.stages
    ]
    return Table(["stage", "comes", "it serves", "rho", "overflows at so many times", "from"], rows)


def _core(plan: Plan) -> Table:
    work = [*load.broker_work(plan.fleet, plan.costs), load.probing(plan.fleet, plan.costs)]
    rows = [
        [
            each.name,
            f"{each.rate:,.4g}",
            f"{each.seconds * 1e6:,.1f}",
            f"{each.ratio:.2%}",
            f"{each.alone_ratio:.2%}",
        ]
        for each in sorted(work, key=lambda each: -each.alone_ratio)
    ]
    columns = ["the broker's work", "a second", "µs each, busy", "of a core, busy"]
    return Table([*columns, "of a core, at most"], rows)


def _deliveries(plan: Plan) -> Table:
    rows = []
    for (source, name), given in plan.deliveries.items():
        rows += [
            [
                f"{source} to {name}" if each is given[0] else "",
                each.variant.name,
                format(each.success, ".1%"),
                "-" if math.isnan(each.light) else f"{each.light:.1%}",
                _seconds(each.quantile(0.5)),
                _seconds(each.quantile(0.9)),
                _seconds(each.quantile(0.99)),
                format(each.expired, ".1%"),
                format(each.lost, ".1%"),
                f"{each.backlog_messages:,}, {_size(each.backlog_bytes)}",
            ]
            for each in given
        ]
    columns = ["messages", "variant", "delivered", "closed form", "p50", "p90", "p99"]
    return Table([*columns, "expired", "lost or dropped", "waits for one subscriber"], rows)


def _policies(plan: Plan) -> Table:
    rows = []
    for name, held in plan.held.items():
        rows += [
            [
                name if policy == link_policies.NONE else "",
                f"**{policy}**" if policy == plan.policy else policy,
                *(_seconds(held.small(policy, share)) for share in link_policies.SHARES),
                _seconds(held.large(policy)),
                "another connection each" if policy == link_policies.TWO_LANES else "-",
            ]
            for policy in held.by_policy
        ]
    small = ["small p50", "small p90", "small p99"]
    return Table(["subscribers", "policy", *small, "large mean", "cost"], rows)


def _receivers(plan: Plan) -> Table:
    rows = []
    for name, queue in plan.queues.items():
        for each in queue.receivers:
            in_file = each.count == plan.fleet.back_ends[name].receivers
            calm = each.count == back_ends.recommended(plan.fleet, name)
            note = " and ".join(["in the file"] * in_file + ["recommended"] * calm)
            rows.append(
                [
                    name if each is queue.receivers[0] else "",
                    f"{each.count:,}{f' ({note})' if note else ''}",
                    f"{each.utilisation:.2f}",
                    _seconds(each.delivery) if each.outcomes else "overflows",
                    f"{each.quantile_wait:.3g} s" if each.outcomes else "-",
                    format(each.twice, ".2%") if each.outcomes else "-",
                ]
            )
    columns = ["back end", "receivers", "rho", "from arrival to end, mean"]
    return Table([*columns, "wait, p99 (M/M/N)", "delivered twice"], rows)


def _strategies(plan: Plan) -> Table:
    rows = []
    for name, queue in plan.queues.items():
        rows += [
            [
                name if each is queue.strategies[0] else "",
                each.name,
                f"{each.outcome.messages_per_second:,.4g}",
                f"{each.outcome.hit_ratio:.2f}",
                f"{each.outcome.messages_per_hit:,.3g}",
                f"{each.busy_ratio:.2%}",
            ]
            for each in queue.strategies
        ]
    columns = ["back end", "dequeue", "messages/s", "hit ratio", "messages a hit", "of a core"]
    return Table(columns, rows)


def _costs(costs: Costs) -> Table:
    rows = []
    for each in fields(costs):
        value = getattr(costs, each.name)
        shown = f"{value * 1e6:,.3g} µs" if each.name in TIMES else _size(value)
        if each.name.endswith("_byte"):
            shown = f"{value * 1e9:,.3g} ns"
        if each.name == "idle":
            shown = f"{value:.2%} of a core"
        rows.append([each.name, shown, SOURCE[each.name]])
    return Table(["cost", "taken", "from docs/evidence/performance.md"], rows)


def _times(number: float) -> str:
    return f"{number:,.3g}" if number < 1000 else f"{number:,.0f}"


def _seconds(found: Estimate) -> str:
    shown = format(found, ".3g")
    return shown if math.isnan(found.value) else f"{shown} s"


def _size(n_bytes: float) -> str:
    return show_size(round(n_bytes))
