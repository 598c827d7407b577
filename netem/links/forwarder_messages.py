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
"""The lateness from which on a packet counts as late, seconds: half of the delay of our good
links."""


@dataclass(frozen=True, slots=True)
class AddLink:
    """The request to make two TUN devices and to forward between them.

    Attributes:
        devices: the names of the server's device and the client's.
    """

    link: int
    devices: tuple[str, str]
    profile: Profile
    seed: str


@dataclass(frozen=True, slots=True)
class SwitchLink:
    """The request to change a link at once and drop its plan."""

    link: int
    profile: Profile


@dataclass(frozen=True, slots=True)
class FollowPlan:
    """The request to change a link by a plan.

    Attributes:
        begin_at: the time of the plan's beginning, monotonic seconds; it may be in the past.
    """

    link: int
    changes: Changes
    begin_at: float


@dataclass(frozen=True, slots=True)
class ReadCounts:
    """The request for a link's packets by outcome, and its changes."""

    link: int


@dataclass(frozen=True, slots=True)
class ReadLateness:
    """The request for the lateness of packets."""


@dataclass(slots=True)
class Lateness:
    """The lateness of a forwarder's deliveries.

    Attributes:
        deliveries: the number of times at which packets were due.
        late_deliveries: the number of these times at which they were more than `LATE_SECONDS` late.
        most_seconds: the greatest lateness since the previous request.
    """

    deliveries: int = 0
    late_deliveries: int = 0
    most_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request.

    Attributes:
        error: the reason for which the request failed; None if it succeeded.
        log: for `ReadCounts`, (monotonic seconds, name of the profile) of each change, oldest
            first.
        upstream: for `ReadCounts`, the packets towards the server.
        downstream: for `ReadCounts`, the packets towards the client.
    """

    error: str | None = None
    log: list[tuple[float, str]] = field(default_factory=list)
    upstream: Counts | None = None
    downstream: Counts | None = None
    lateness: Lateness | None = None


Request: TypeAlias = AddLink | SwitchLink | FollowPlan | ReadCounts | ReadLateness
