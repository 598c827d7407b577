"""The requests of a network to its forwarder, and the answers.

They pass through a `multiprocessing.connection.Connection`, and the forwarder answers each request
with one `Answer`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from penstock.netem.links.channel import Counts
from penstock.netem.links.link_variation import Changes
from penstock.netem.links.profiles import Profile

LATE_SECONDS: Final = 0.01
"""Lateness from which on a packet counts as late: half of the delay of our good links."""


@dataclass(frozen=True, slots=True)
class Add:
    """Make two TUN devices and forward between them.

    Attributes:
        link: its number.
        devices: names of the server's device and the client's.
        profile: the profile at the beginning.
        seed: the seed of its random numbers.
    """

    link: int
    devices: tuple[str, str]
    profile: Profile
    seed: str


@dataclass(frozen=True, slots=True)
class Switch:
    """Change a link at once and drop its plan."""

    link: int
    profile: Profile


@dataclass(frozen=True, slots=True)
class Follow:
    """Change a link by a plan.

    Attributes:
        link: its number.
        changes: the plan.
        begin_at: monotonic seconds of the plan's beginning; may be in the past.
    """

    link: int
    changes: Changes
    begin_at: float


@dataclass(frozen=True, slots=True)
class Tell:
    """Return a link's packets by outcome, and its changes."""

    link: int


@dataclass(frozen=True, slots=True)
class TellLateness:
    """Return how late packets were."""


@dataclass(slots=True)
class Lateness:
    """How late a forwarder was to deliver packets.

    Attributes:
        deliveries: how often packets were due.
        late_deliveries: how often they were more than `LATE_SECONDS` late.
        most_seconds: the greatest lateness since the previous request.
    """

    deliveries: int = 0
    late_deliveries: int = 0
    most_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request.

    Attributes:
        error: why the request failed; None if it succeeded.
        log: the answer to `Tell`: (monotonic seconds, name of the profile) of each change, oldest
            first.
        upstream: the answer to `Tell`: packets towards the server.
        downstream: the answer to `Tell`: packets towards the client.
        lateness: the answer to `TellLateness`.
    """

    error: str | None = None
    log: list[tuple[float, str]] = field(default_factory=list)
    upstream: Counts | None = None
    downstream: Counts | None = None
    lateness: Lateness | None = None


Request: TypeAlias = Add | Switch | Follow | Tell | TellLateness
