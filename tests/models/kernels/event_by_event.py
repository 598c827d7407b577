"""A path of paper 003, one event after the other: what the computed stages are to give."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from penstock.models.kernels.delivery_path import Path, Stage
from penstock.models.kernels.delivery_simulation import DeliveryDraws


class Followed(NamedTuple):
    """What became of the messages that came to a stage, by their numbers.

    Attributes:
        departures: when those left that went on, seconds.
        dropped: found it full.
        expired: ended their lifetime there.
        lost: left it while the next peer was off.
    """

    departures: dict[int, float]
    dropped: set[int]
    expired: set[int]
    lost: set[int]


def follow_events(
    path: Path, draws: DeliveryDraws, services: list[list[float]]
) -> Iterator[Followed]:
    """Pass messages through one stage after the other, and yield what became of them in each.

    Args:
        path: with the stages.
        draws: when messages are created, and peers are on.
        services: of each stage, seconds of each message that comes, in their order.
    """
    created = draws.created.tolist()
    coming = list(enumerate(created))
    for stage, seconds in zip(path.stages, services, strict=True):
        found = _pass(path, stage, draws, coming, seconds)
        yield found
        coming = list(found.departures.items())


def _pass(
    path: Path,
    stage: Stage,
    draws: DeliveryDraws,
    coming: list[tuple[int, float]],
    services: list[float],
) -> Followed:
    found = Followed({}, set(), set(), set())
    peers = [draws.timelines[name] for name in stage.works_with if name in draws.timelines]
    toggles = sorted(
        {each for peer in peers for each in (*peer.starts.tolist(), *peer.ends.tolist())}
    )
    left = dict(zip((number for number, _ in coming), services, strict=True))
    ends = {number: float(draws.created[number]) + path.lifetime for number, _ in coming}
    arrivals, waiting, now = coming[::-1], list[int](), 0.0
    while arrivals or waiting:
        works = all(_is_on(peer.starts.tolist(), peer.ends.tolist(), now) for peer in peers)
        done = now + left[waiting[0]] if waiting and works else math.inf
        expires = ends[waiting[0]] if waiting and not path.serves_expired else math.inf
        toggle = next((each for each in toggles if each > now), math.inf)
        arrival = arrivals[-1][1] if arrivals else math.inf
        then = min(done, expires, toggle, arrival)
        if waiting and works:
            left[waiting[0]] -= then - now
        now = then
        if now == expires:
            found.expired.add(waiting.pop(0))
        elif now == done:
            _leave(found, stage, draws, waiting.pop(0), now, ends)
        elif now == arrival:
            number, _ = arrivals.pop()
            if stage.capacity is not None and len(waiting) >= stage.capacity:
                found.dropped.add(number)
            else:
                waiting.append(number)
    return found


def _leave(
    found: Followed,
    stage: Stage,
    draws: DeliveryDraws,
    number: int,
    now: float,
    ends: dict[int, float],
) -> None:
    lossy = [draws.timelines[name] for name in stage.loses_without if name in draws.timelines]
    if now >= ends[number]:
        found.expired.add(number)
    elif all(_is_on(peer.starts.tolist(), peer.ends.tolist(), now) for peer in lossy):
        found.departures[number] = now
    else:
        found.lost.add(number)


def _is_on(starts: list[float], ends: list[float], now: float) -> bool:
    return any(start <= now < end for start, end in zip(starts, ends, strict=True))
