"""The states of links that a run writes for the oracle. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from penstock.netem.clients.roster import Roster
from penstock.netem.links.network import DEFAULT_CONGESTION_CONTROL
from penstock.netem.links.profiles import Profile
from penstock.netem.oracle_file import ToldLink, ToldState
from penstock.netem.runs.impairments import Impairment
from penstock.netem.runs.scenario import LinkPlan


def oracle_states(roster: Roster, begin_at: float) -> dict[str, ToldLink]:
    """Return what the link of each subscriber is, by the Client Identifier of each connection."""
    scenario = roster.scenario
    told: dict[str, ToldLink] = {}
    for member in roster.subscribers:
        way = scenario.topology.way(scenario.broker_host, member.subscriber.host) or []
        each = ToldLink(
            way[0].name if way else "",
            _congestion_control(roster, way),
            tuple(_states(roster, way, begin_at)),
        )
        told |= dict.fromkeys(roster.known_as(member), each)
    return told


def _congestion_control(roster: Roster, way: Sequence[LinkPlan]) -> str:
    """Return that of the broker's connections to a subscriber."""
    scenario = roster.scenario
    host = scenario.topology.hosts[scenario.broker_host]
    named = [way[0].congestion_control] if way else []
    named += [host.congestion_control, scenario.congestion_control]
    return next((name for name in named if name is not None), DEFAULT_CONGESTION_CONTROL)


def _states(roster: Roster, way: Sequence[LinkPlan], begin_at: float) -> Iterator[ToldState]:
    """Yield what a way over several links is, from each change of one of them on."""
    scenario, seed = roster.scenario, roster.seed
    if not way:
        return
    until = scenario.duration_seconds
    usual = {link.name: scenario.profiles_of(link.name, seed)[link.profile] for link in way}
    steps = [_steps(roster, each) for each in scenario.impairments if each.link in usual]
    now = dict(usual)
    yield _state(begin_at, scenario.broker_host, way, now)
    for at, link, profile in heapq.merge(*steps, key=lambda step: step[0]):
        if at >= until:
            break
        now[link] = profile
        yield _state(begin_at + at, scenario.broker_host, way, now)
    yield _state(begin_at + until, scenario.broker_host, way, usual)


def _steps(roster: Roster, impairment: Impairment) -> Iterator[tuple[float, str, Profile]]:
    """Yield seconds since the beginning, the link and its profile from then on."""
    changes = roster.scenario.changes_of(impairment, roster.seed)
    for at, profile in changes.steps():
        yield at, impairment.link, profile


def _state(
    at: float, begin: str, way: Sequence[LinkPlan], profiles: dict[str, Profile]
) -> ToldState:
    near, rates, passed, rtt = begin, [], 1.0, 0.0
    for link in way:
        first, second = link.between
        profile = profiles[link.name]
        towards = profile.downstream if near == first else profile.upstream
        near = second if near == first else first
        if towards.rate is not None:
            rates.append(towards.rate)
        passed *= 1 - towards.mean_loss
        rtt += profile.upstream.delay + profile.downstream.delay
    return ToldState(at, min(rates, default=None), 1 - passed, rtt)
