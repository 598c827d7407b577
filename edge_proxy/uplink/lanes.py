"""Lanes of an uplink: which messages it sends and receives on which of its connections.

Theory of operation. One connection delivers its bytes in order, so a picture on its way holds up
every alarm behind it. An uplink with lanes has two connections, each with a Client Identifier, a
session, an inflight window and a TCP path of its own. Each is a whole uplink as one without lanes
is. With ``by: topic``, each rule belongs to one of them, so that the lanes have no topic in common.
With ``by: size``, what goes up is divided by its size; the site's broker keeps the order of each
topic across both (`penstock.broker.outbox.lane_order`). What comes down is divided where the
cloud's broker is a Penstock, which keeps the order in the same way
(`penstock.broker.sessions.lanes`). Else it comes on the lane of small messages.

A lane that cannot connect while the other one is connected is taken over: what waits to go up on it
goes by the other lane. What is unacknowledged waits for its session, and later messages of these
topics wait behind it, for a limited time.

With ``by: auto``, the lane of large messages is *optional*: it connects when the other one is
connected. Where the cloud's broker does not accept it (`SecondConnection`), the other one takes it
over at once and for good. An uplink of MQTT 3.1.1 has one lane then: such a broker may acknowledge
what the second client publishes, and drop it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar

from pydantic.dataclasses import dataclass as checked_dataclass

from penstock.broker.config.key_types import STRICT, Seconds, TopicFilter
from penstock.broker.message import SizeClass
from penstock.edge_proxy.uplink.filters import canonical, covers, intersection
from penstock.edge_proxy.uplink.remapping import DownRule, Rule

LARGE: Final = "large"
"""Name of the lane of large messages; the other lane has no name of its own."""

AGAIN_SECONDS: Final = 600.0
"""How long after a refusal the second connection is tried again: the limit that refused it may have
changed. An attempt costs a connection, and no message."""

REFUSALS: Final = frozenset({"refused", "configuration"})
"""Reasons of failed attempts that are refusals."""

UNANSWERED: Final = frozenset({"closed", "connack", "disconnected", "protocol"})
"""Reasons of failed attempts that may be refusals, as some brokers close a connection that they do
not allow, or losses of the network. `UNANSWERED_IN_A_ROW` of them count as a refusal."""

UNANSWERED_IN_A_ROW: Final = 3

MUTUAL_IN_A_ROW: Final = 3
"""When so many times in turn one connection has ended as the other one began, the broker takes both
for connections of one client."""

BOTH_TAKE_OVER: Final = (
    "each of two connections ends the other, as if both had one client id (mosquitto: "
    "use_username_as_clientid)"
)

_AnyRule = TypeVar("_AnyRule", bound=Rule)


@checked_dataclass(frozen=True, slots=True, config=STRICT)
class LanesKeys:
    """Two connections in place of one; the keys under `lanes`.

    Attributes:
        by: what divides messages: ``size`` or ``topic``. ``auto`` is ``size``, or one connection
            where the cloud accepts no second.
        large: with ``by: topic``, topic filters of the site. A rule is of the large lane if one of
            them holds all of its topics.
        takeover_seconds: time for which a lane cannot connect while the other does, until the other
            takes what waits on it.
        give_up_seconds: time that a lane is away until messages no longer wait for its
            unacknowledged ones of their topics; order is lost then.
        yields: large messages are paced so that small ones find a short queue.
    """

    by: Literal["auto", "size", "topic"] = "auto"
    large: list[TopicFilter] = field(default_factory=list)
    takeover_seconds: Seconds = 10.0
    give_up_seconds: Seconds = 60.0
    yields: bool = True

    def __post_init__(self) -> None:
        """Check the values against each other."""
        if self.give_up_seconds < self.takeover_seconds:
            raise ValueError("give_up_seconds of at least takeover_seconds")
        if self.by == "topic" and not self.large:
            raise ValueError("topic filters of the site under large, beside by: topic")
        if self.by != "topic" and self.large:
            raise ValueError(f"filters under large only beside by: topic, not by: {self.by}")

    def check(self, rules: Sequence[Rule]) -> None:
        """Check that each rule belongs to one lane, and that both lanes have one.

        Raises:
            ValueError: with what is allowed.
        """
        if self.by != "topic":
            return
        for rule in rules:
            for name in self.large:
                if not self._is_large(rule) and intersection(name, rule.local_filter):
                    raise ValueError(
                        "filters under lanes.large that hold all topics of a rule or none of them: "
                        f"{name!r} holds a part of the rule {rule.local_filter!r}; give that part "
                        "a rule of its own"
                    )
        if len({self._is_large(rule) for rule in rules}) < 2:
            raise ValueError(
                "a rule for each lane: one whose topics a filter under lanes.large holds, and one "
                "whose topics none of them holds"
            )

    def of_lane(self, rules: Sequence[_AnyRule], *, is_large: bool) -> list[_AnyRule]:
        """Return the rules of one lane."""
        return [rule for rule in rules if self._is_large(rule) == is_large]

    def _is_large(self, rule: Rule) -> bool:
        return any(covers(name, canonical(rule.local_filter)) for name in self.large)


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane of an uplink, or an uplink without lanes.

    Attributes:
        name: ``large``, or "" for the lane of small messages and for an uplink without lanes.
        up: the rules of the messages that it sends to the cloud.
        down: the rules of the messages that it receives from the cloud.
        sizes: the size class of its messages; None for both.
        leaves: whether it is to end, or is no longer in the policy file. It sends what is left in
            its sessions, and then ends them.
        yields: whether it carries large messages, and is paced while the other lane is connected.
        is_optional: whether the uplink does without it where the cloud's broker does not accept it.
    """

    name: str
    up: Sequence[Rule]
    down: Sequence[DownRule]
    sizes: SizeClass | None = None
    leaves: bool = False
    yields: bool = False
    is_optional: bool = False

    def of(self, text: str, separator: str) -> str:
        """Return a name of the uplink with the name of this lane appended, if it has one."""
        return f"{text}{separator}{self.name}" if self.name else text


def leaving_lane(name: str) -> Lane:
    """Return a lane that carries what is left in its sessions. The large one is optional."""
    return Lane(name, [], [], leaves=True, is_optional=bool(name))


def lanes_of(
    keys: LanesKeys | None,
    up: Sequence[Rule],
    down: Sequence[DownRule],
    *,
    is_5: bool = True,
    leaves: bool = False,
) -> list[Lane]:
    """Return the lanes of an uplink, the one of small messages first.

    Args:
        keys: the keys under `lanes`; None for one connection.
        up: the rules of what goes up.
        down: the rules of what comes down.
        is_5: whether the uplink speaks MQTT 5 with the cloud's broker.
        leaves: whether the uplink is to end.
    """
    if keys is None or (keys.by == "auto" and not is_5):
        return [leaving_lane("") if leaves else Lane("", up, down)]
    if leaves:
        return [leaving_lane(""), leaving_lane(LARGE)]
    if keys.by != "topic":
        is_optional = keys.by == "auto"
        return [
            Lane("", up, down, "small"),
            Lane(LARGE, up, down, "large", yields=keys.yields, is_optional=is_optional),
        ]
    return [
        Lane(
            LARGE if is_large else "",
            keys.of_lane(up, is_large=is_large),
            keys.of_lane(down, is_large=is_large),
            yields=is_large and keys.yields,
        )
        for is_large in (False, True)
    ]


class SecondConnection:
    """Finds out whether the cloud's broker accepts the optional lane.

    Attributes:
        refused: why it did not at the last attempt; "" where it may.
    """

    def __init__(self) -> None:
        self.refused = ""
        self._again_at = 0.0
        self._n_unanswered = 0
        self._n_mutual = 0
        self._last_back: str | None = None
        self._told = ""

    def wait_seconds(self, now: float) -> float:
        """Return the seconds until it may be tried; 0.0 for now."""
        return max(0.0, self._again_at - now) if self.refused else 0.0

    def accepted(self) -> None:
        """Note that the cloud's broker has accepted it."""
        self.refused = ""
        self._n_unanswered = 0

    @property
    def is_other(self) -> bool:
        """Whether the broker takes both connections for one client."""
        return self.refused == BOTH_TAKE_OVER

    def other_accepted(self) -> None:
        """Note a new connection of the other lane: this may be another broker."""
        if not self.is_other:
            self._again_at = 0.0

    def failed(self, reason: str, told: str, now: float) -> None:
        """Note an attempt that has failed."""
        if reason in UNANSWERED:
            self._n_unanswered += 1
        if reason in REFUSALS or self._n_unanswered >= UNANSWERED_IN_A_ROW:
            self.give_up(told, now)

    def came_back(self, lane: str, *, is_mutual: bool, now: float) -> None:
        """Note that the cloud's broker has accepted a lane again.

        Args:
            lane: name of the lane.
            is_mutual: whether its last connection has ended soon after the other lane was accepted,
                which has been connected since.
            now: monotonic seconds.
        """
        is_in_turn = is_mutual and lane != self._last_back
        self._last_back = lane if is_mutual else None
        self._n_mutual = self._n_mutual + 1 if is_in_turn else int(is_mutual)
        if self._n_mutual >= MUTUAL_IN_A_ROW:
            self._n_mutual = 0
            self.give_up(BOTH_TAKE_OVER, now)

    def give_up(self, told: str, now: float) -> None:
        """Do without it for a while."""
        self.refused = told
        self._n_unanswered = 0
        self._again_at = now + AGAIN_SECONDS

    def to_tell(self) -> str:
        """Return `refused` where it has changed since the last call; else ""."""
        told, self._told = self._told, self.refused
        return "" if told == self.refused else self.refused
