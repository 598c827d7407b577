"""The messages between a network and its forwarder: requests and answers.

The forwarder answers each request with one `Answer`. In a pipe, a message is its pickle behind the
length of the pickle. Both ends are processes of one program, so nothing checks what arrives, and
the forwarder, which each network starts, does not load what could.
"""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass, field
from typing import IO, Any, Final, TypeAlias

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

    link: int
    devices: tuple[str, str]
    profile: Profile
    seed: str


@dataclass(frozen=True, slots=True)
class AddTc:
    """Make a link of veth devices, whose ends in the hosts are called ``link`` and the number.

    Attributes:
        link: its number.
        wires: namespace of the links.
        hosts: namespaces of the server and the client.
        profile: the profile at the beginning.
    """

    link: int
    wires: str
    hosts: tuple[str, str]
    profile: Profile


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

_LENGTH: Final = struct.Struct("!I")


def write_message(message: Request | Answer) -> bytes:
    """Return a message as it passes through a pipe."""
    content = pickle.dumps(message)
    return _LENGTH.pack(len(content)) + content


def read_answer(pipe: IO[bytes]) -> Answer | None:
    """Wait for an answer; None where the pipe has ended."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    content = pipe.read(*_LENGTH.unpack(head))
    answer: Answer = pickle.loads(content)  # noqa: S301 - of our own process
    return answer


def take_requests(data: bytearray) -> list[Request]:
    """Return the requests that have arrived whole, and remove them from what has arrived."""
    requests: list[Any] = []
    while len(data) >= _LENGTH.size:
        end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
        if len(data) < end:
            break
        requests.append(pickle.loads(data[_LENGTH.size : end]))  # noqa: S301 - of our own program
        del data[:end]
    return requests
