"""The messages between a network and its forwarder: requests and answers, a line of JSON each.

The forwarder answers each request with one `Answer`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final, Literal, TypeAlias

from pydantic import ConfigDict, Field, TypeAdapter

from penstock.broker.config.key_types import STRICT
from penstock.netem.links.channel import Counts
from penstock.netem.links.link_variation import Changes
from penstock.netem.links.profiles import Profile

LATE_SECONDS: Final = 0.01
"""Lateness that shows in latencies: half of the delay of our good links."""


@dataclass(frozen=True, slots=True)
class Add:
    """Make two TUN devices and forward between them.

    Attributes:
        link: its number.
        devices: names of the server's device and the client's.
        profile: the profile at the beginning.
        seed: of its random numbers.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    link: int
    devices: tuple[str, str]
    profile: Profile
    seed: str
    do: Literal["add"] = "add"


@dataclass(frozen=True, slots=True)
class AddTc:
    """Make a link of veth devices, whose ends in the hosts are called ``link`` and the number.

    Attributes:
        link: its number.
        wires: namespace of the links.
        hosts: namespaces of the server and the client.
        profile: the profile at the beginning.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    link: int
    wires: str
    hosts: tuple[str, str]
    profile: Profile
    do: Literal["add_tc"] = "add_tc"


@dataclass(frozen=True, slots=True)
class Switch:
    """Change a link at once and drop its plan."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    link: int
    profile: Profile
    do: Literal["switch"] = "switch"


@dataclass(frozen=True, slots=True)
class Follow:
    """Change a link by a plan.

    Attributes:
        link: its number.
        changes: the plan.
        begin_at: monotonic seconds of the plan's beginning; may be in the past.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    link: int
    changes: Changes
    begin_at: float
    do: Literal["follow"] = "follow"


@dataclass(frozen=True, slots=True)
class Tell:
    """Return a link's packets by outcome, and its changes."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    link: int
    do: Literal["tell"] = "tell"


@dataclass(frozen=True, slots=True)
class TellLateness:
    """Return how late packets were."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    do: Literal["tell_lateness"] = "tell_lateness"


@dataclass(slots=True)
class Lateness:
    """How late a forwarder was to deliver packets; the kernel's links have none.

    Attributes:
        deliveries: times at which packets were due.
        late_deliveries: those at which they were more than `LATE_SECONDS` late.
        most_seconds: greatest lateness since the request before.
    """

    deliveries: int = 0
    late_deliveries: int = 0
    most_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request.

    Attributes:
        error: why the request failed; None if it succeeded.
        log: for `Tell`: (monotonic seconds, name of the profile) of each change, oldest first.
        upstream: for `Tell`: packets towards the server.
        downstream: for `Tell`: packets towards the client.
        lateness: for `TellLateness`.
    """

    error: str | None = None
    log: list[tuple[float, str]] = field(default_factory=list)
    upstream: Counts | None = None
    downstream: Counts | None = None
    lateness: Lateness | None = None


Request: TypeAlias = Add | AddTc | Switch | Follow | Tell | TellLateness
REQUEST: Final[TypeAdapter[Request]] = TypeAdapter(Annotated[Request, Field(discriminator="do")])
ANSWER: Final = TypeAdapter(Answer)
