"""Kinds of bad links in a scenario, each of which stands for links and clients. Pure.

Theory of operation. A kind says how a link changes. A scenario with kinds measures each of them
with each congestion control and on each way to the broker; such a combination is a *cell*. A cell
has a host of its own with a link to the broker's host, a subscriber there, and a publisher beside
the broker. With several receivers, their hosts share a link from a host in between. So a cell with
a seed is an independent unit. All names follow one pattern, ``KIND-CONGESTION_CONTROL-WAY``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeAlias

from pydantic import ConfigDict, Field

from penstock.broker.config.key_types import STRICT, Positive
from penstock.netem.runs.impairments import OnOffPlan, RedrawnPlan, TracePlan

Way: TypeAlias = Literal["direct", "haproxy"]
"""The way of subscribers to the broker: its own port, or that of a load balancer before it."""


@dataclass(frozen=True, slots=True)
class LinkKind:
    """A kind of bad link, with the same plans as `Impairment`.

    Attributes:
        on_off: random times of a good and a bad profile in turn; or None.
        trace: changes at given times; or None.
        redrawn: a profile that is drawn anew at random times; or None.
        receivers: the number of subscribers that share the link; each has a publisher of its own.
        streams: the names of streams in `Scenario.traffic`; None for those of `EachKind`.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    on_off: OnOffPlan | None = None
    trace: TracePlan | None = None
    redrawn: RedrawnPlan | None = None
    receivers: Annotated[int, Field(ge=1, le=100)] = 1
    streams: list[str] | None = None


@dataclass(frozen=True, slots=True)
class EachKind:
    """The settings that all kinds have in common.

    Attributes:
        profile: the profile of links that nothing impairs; a name in `Scenario.profiles`.
        streams: the names of streams in `Scenario.traffic` whose topics contain ``{to}``.
        congestion_controls: the congestion controls of the TCP connections over a link, on both
            sides.
        links_at_once: the most links that run at a time, of all brokers together, but at least one
            kind; None for all.
        few: the brokers that are measured on the first of `ways` alone.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    profile: str
    streams: list[str]
    congestion_controls: list[str] = field(default_factory=lambda: ["cubic"])
    ways: list[Way] = field(default_factory=lambda: ["direct"])
    links_at_once: Positive | None = None
    few: list[str] = field(default_factory=list)


class Cell(NamedTuple):
    """A kind with a congestion control and a way to the broker.

    Attributes:
        congestion_control: the congestion control of the TCP connections over its link.
        way: the way to the broker.
        receivers: the names of its subscribers, and of their hosts.
    """

    kind: str
    congestion_control: str
    way: Way
    receivers: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of its link's far host."""
        return f"{self.kind}-{self.congestion_control}-{self.way}"


def cells(kinds: dict[str, LinkKind], each: EachKind | None) -> list[Cell]:
    """Return the cells of a scenario: by kind, then by way, then by congestion control."""
    if each is None:
        return []
    return [
        _cell(name, kind.receivers, congestion_control, way)
        for name, kind in kinds.items()
        for way in each.ways
        for congestion_control in each.congestion_controls
    ]


def _cell(name: str, n_receivers: int, congestion_control: str, way: Way) -> Cell:
    cell = Cell(name, congestion_control, way, ())
    if n_receivers == 1:
        return cell._replace(receivers=(cell.name,))
    return cell._replace(receivers=tuple(f"{cell.name}-{n}" for n in range(1, n_receivers + 1)))
