"""The plan of clients that are on and off by schedule, and their records: JSON files.

All times are seconds after the beginning of the run.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

ALWAYS = ((0.0, math.inf),)
"""The times on of a client that is always on."""


@dataclass(frozen=True, slots=True)
class OnOffPublisher:
    """A client that publishes messages as they are created.

    Attributes:
        on: the begin and the end of each time on, ascending; the last end may be infinite.
        created: the creation time of each message, ascending.
        services: the seconds for which a subscriber works on each message; empty for no time.
        payload_bytes: the payload length of each message, at least 20 for its head.
        qos: the QoS of each message. A publisher that is off keeps messages of QoS 1, and loses
            those of QoS 0.
        lifetime: the seconds from the creation of a message to its end; infinite for none. A
            message is sent with the remaining lifetime, in whole seconds rounded up (Message Expiry
            Interval).
    """

    client_id: str
    topic: str
    on: list[tuple[float, float]]
    created: list[float]
    services: list[float] = field(default_factory=list)
    payload_bytes: int = 20
    qos: int = 1
    lifetime: float = math.inf
    host: str = ""
    address: str = "127.0.0.1"

    def deadline(self, number: int) -> float:
        """Return when the lifetime of a message ends."""
        return self.created[number] + self.lifetime

    def service(self, number: int) -> float:
        """Return for how long a subscriber works on a message, seconds."""
        return self.services[number] if self.services else 0.0


@dataclass(frozen=True, slots=True)
class OnOffSubscriber:
    """A client that receives messages and works on one after the other.

    Attributes:
        filters: the topic filters of its subscriptions, with QoS 1.
        receive_maximum: the Receive Maximum of its CONNECT; None for the protocol's default.
    """

    client_id: str
    filters: list[str]
    on: list[tuple[float, float]]
    keeps_session: bool = True
    receive_maximum: int | None = None
    host: str = ""
    address: str = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class OnOffClientsPlan:
    """The clients of a run.

    Attributes:
        end_seconds: the time at which all clients end, unless messages still arrive.
        quiet_seconds: the time without an arrival after which no more messages are awaited.
    """

    port: int
    end_seconds: float
    publishers: list[OnOffPublisher]
    subscribers: list[OnOffSubscriber]
    quiet_seconds: float = 1.0

    def write(self, file: Path) -> None:
        """Write the plan."""
        file.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, file: Path) -> OnOffClientsPlan:
        """Return the plan that `write` wrote."""
        plan = json.loads(file.read_text())
        plan["publishers"] = [OnOffPublisher(**each) for each in plan["publishers"]]
        plan["subscribers"] = [OnOffSubscriber(**each) for each in plan["subscribers"]]
        return cls(**plan)


class Sent(NamedTuple):
    """A PUBLISH that a publisher sent.

    Attributes:
        at: the time since the beginning, seconds.
        expiry_seconds: the Message Expiry Interval; infinite for none.
    """

    publisher: int
    number: int
    at: float
    expiry_seconds: float


class Answered(NamedTuple):
    """A PUBACK that a publisher got.

    Attributes:
        at: the time since the beginning, seconds.
    """

    publisher: int
    number: int
    at: float
    reason_code: int


class Arrived(NamedTuple):
    """A PUBLISH that a subscriber got.

    Attributes:
        at: the time since the beginning, seconds.
        asked_at: the time at which the subscriber began to connect, on the connection that
            delivered it.
    """

    subscriber: int
    publisher: int
    number: int
    at: float
    is_duplicate: bool
    asked_at: float


class Worked(NamedTuple):
    """A message whose work a subscriber has finished within its lifetime.

    Attributes:
        at: the time since the beginning, seconds.
    """

    subscriber: int
    publisher: int
    number: int
    at: float


@dataclass(slots=True)
class OnOffRecords:
    """The records of clients.

    Attributes:
        answered: the PUBACKs that came, in order of time.
        worked: the messages whose work was finished, in order of time.
        late: the lateness of each action of the schedule, seconds.
    """

    sent: list[Sent] = field(default_factory=list)
    answered: list[Answered] = field(default_factory=list)
    arrived: list[Arrived] = field(default_factory=list)
    worked: list[Worked] = field(default_factory=list)
    late: list[float] = field(default_factory=list)

    def write(self, file: Path) -> None:
        """Write them."""
        file.write_text(
            json.dumps([self.sent, self.answered, self.arrived, self.worked, self.late])
        )

    def add(self, file: Path) -> None:
        """Add what `write` wrote."""
        sent, answered, arrived, worked, late = json.loads(file.read_text())
        self.sent += [Sent(*each) for each in sent]
        self.answered += [Answered(*each) for each in answered]
        self.arrived += [Arrived(*each) for each in arrived]
        self.worked += [Worked(*each) for each in worked]
        self.late += late

    def late_seconds(self, share: float = 0.99) -> float:
        """Return how late a share of the schedule's things began at most."""
        ascending = sorted(self.late)
        return ascending[int(share * len(ascending))] if ascending else 0.0
