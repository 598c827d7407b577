"""The file of a fleet: devices, links, subscribers, back ends and the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from penstock.broker.config.checked_yaml import FileReading, read_mapping, show, validate_config
from penstock.broker.config.key_types import STRICT, Positive, PositiveSize, Rate, Seconds
from penstock.broker.errors import ConfigError

Ratio = Annotated[float, Field(gt=0, le=1)]
LossRatio = Annotated[float, Field(ge=0, lt=1)]
PositiveRate = Annotated[Rate, Field(gt=0)]
Lifetime = Annotated[Seconds, Field(ge=1)]
"""A lifetime in whole seconds, as MQTT has them."""
Payload = Annotated[PositiveSize, Field(le=268_000_000)]
"""A payload length. MQTT's largest packet has 268,435,455 bytes, its headers included."""
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]


@dataclass(frozen=True, slots=True, config=STRICT)
class BadPath:
    """A link in its bad phases.

    Attributes:
        rtt_seconds: the round-trip time, without queueing on this link.
        bytes_per_second: the bytes a second that TCP carries, which is less than the link's rate
            where packets are lost.
        loss_ratio: the share of packets that are lost.
    """

    rtt_seconds: Seconds
    bytes_per_second: PositiveRate
    loss_ratio: LossRatio = 0.0


@dataclass(frozen=True, slots=True, config=STRICT)
class LinkClass:
    """A kind of link.

    Attributes:
        rtt_seconds: the round trip while the link is good, as in `BadPath`.
        bytes_per_second: the bytes a second while the link is good, as in `BadPath`.
        bad: the link in its bad phases; None where it has none.
        good_seconds: the mean length of a good phase; lengths are exponentially distributed.
    """

    rtt_seconds: Seconds
    bytes_per_second: PositiveRate
    bad: BadPath | None = None
    good_seconds: Seconds | None = None
    bad_seconds: Seconds | None = None

    def __post_init__(self) -> None:
        """Check that a bad path comes with its times."""
        for key in ("good_seconds", "bad_seconds"):
            if (getattr(self, key) is None) is not (self.bad is None):
                read = show(getattr(self, key))
                allowed = "a time above 0 with bad, and none without it"
                raise ValueError(f"{key}: read {read}; allowed: {allowed}")

    @property
    def bad_ratio(self) -> float:
        """Share of the time in which it is bad."""
        if self.good_seconds is None or self.bad_seconds is None:
            return 0.0
        return self.bad_seconds / (self.good_seconds + self.bad_seconds)

    @property
    def mean_rate(self) -> float:
        """Bytes a second over good and bad phases."""
        bad = 0.0 if self.bad is None else self.bad_ratio * self.bad.bytes_per_second
        return (1 - self.bad_ratio) * self.bytes_per_second + bad


@dataclass(frozen=True, slots=True, config=STRICT)
class Devices:
    """Devices of one kind, which publish.

    Attributes:
        messages_per_second: the messages a second of one device.
        link: the name of its link.
        topics: the topic filter that matches all topics that they publish to.
        lifetime_seconds: Message Expiry Interval; None for none.
        on_seconds: mean time for which a device has a connection; None for always.
        off_seconds: the mean time for which it has no connection.
    """

    count: Positive
    messages_per_second: Annotated[float, Field(gt=0)]
    payload_bytes: Payload
    link: str
    topics: str
    qos: Literal[0, 1, 2] = 1
    lifetime_seconds: Lifetime | None = None
    on_seconds: Seconds | None = None
    off_seconds: Seconds | None = None

    def __post_init__(self) -> None:
        """Check the times against each other."""
        _check_times(self.on_seconds, self.off_seconds)

    @property
    def total_rate(self) -> float:
        """Messages a second of all."""
        return self.count * self.messages_per_second


@dataclass(frozen=True, slots=True, config=STRICT)
class Subscribers:
    """Subscribers of one kind.

    Attributes:
        count: the number of subscribers.
        devices: the names of the kinds of devices whose messages they receive.
        link: the name of its link.
        share_ratio: the share of those devices whose messages one subscriber receives.
        keeps_session: whether the broker keeps messages of QoS 1 and 2 while a subscriber is off.
        on_seconds: the mean time for which a subscriber has a connection; None for always.
        off_seconds: the mean time for which it has no connection.
    """

    count: Positive
    devices: Annotated[list[str], Field(min_length=1)]
    link: str
    share_ratio: Ratio = 1.0
    keeps_session: bool = True
    on_seconds: Seconds | None = None
    off_seconds: Seconds | None = None

    def __post_init__(self) -> None:
        """Check the times against each other."""
        _check_times(self.on_seconds, self.off_seconds)


@dataclass(frozen=True, slots=True, config=STRICT)
class BackEnd:
    """Receivers that share a queue.

    Attributes:
        devices: the names of the kinds of devices whose messages it receives.
        seconds_per_message: the time that a receiver needs for one message.
        success_ratio: q, share of the messages that a receiver finishes; it gets the others again.
        order: the order of messages: ``any``, or ``key`` for those of a device in their order.
        requests_per_second: the requests a second of an idle receiver, which find nothing.
    """

    devices: Annotated[list[str], Field(min_length=1)]
    receivers: Positive
    seconds_per_message: Seconds
    success_ratio: Ratio = 1.0
    order: Literal["any", "key"] = "any"
    requests_per_second: Annotated[float, Field(gt=0)] = 10.0


@dataclass(frozen=True, slots=True, config=STRICT)
class Machine:
    """The machine that the broker runs on.

    Attributes:
        memory_bytes: the memory for the broker, bytes.
        speed_ratio: the ratio of its speed to that of the machine on which costs were measured.
    """

    cores: Positive
    memory_bytes: PositiveSize
    speed_ratio: Annotated[float, Field(gt=0)] = 1.0


@dataclass(frozen=True, slots=True, config=STRICT)
class Fleet:
    """The whole content of a plan's file."""

    links: Annotated[Mapping[Name, LinkClass], Field(min_length=1)]
    devices: Annotated[Mapping[Name, Devices], Field(min_length=1)]
    machine: Machine
    subscribers: Mapping[Name, Subscribers] = field(default_factory=dict)
    back_ends: Mapping[Name, BackEnd] = field(default_factory=dict)

    def sources(self, who: Subscribers | BackEnd) -> dict[str, Devices]:
        """Return the kinds of devices whose messages somebody gets."""
        return {name: self.devices[name] for name in who.devices}

    @property
    def n_subscribers(self) -> int:
        """Subscribers of all kinds."""
        return sum(each.count for each in self.subscribers.values())

    @property
    def n_clients(self) -> int:
        """Devices and subscribers."""
        return sum(each.count for each in self.devices.values()) + self.n_subscribers


def read_fleet(file: Path) -> Fleet:
    """Read the file of a fleet.

    Raises:
        ConfigError: it cannot be read, or a key or value is wrong; each is named.
    """
    fleet = validate_config(Fleet, read_mapping(file), str(file), "")
    reading = FileReading(str(file))
    for kind in ("devices", "subscribers"):
        for name, each in getattr(fleet, kind).items():
            if each.link not in fleet.links:
                allowed = ", ".join(fleet.links)
                reading.wrong(f"{kind}.{name}.link", show(each.link), allowed)
    for kind in ("subscribers", "back_ends"):
        for name, each in getattr(fleet, kind).items():
            for number, source in enumerate(each.devices):
                if source not in fleet.devices or source in each.devices[:number]:
                    place = f"{kind}.{name}.devices[{number}]"
                    reading.wrong(place, show(source), f"each once of {', '.join(fleet.devices)}")
    if not fleet.subscribers and not fleet.back_ends:
        reading.wrong("subscribers", "nothing", "subscribers or back_ends, one or more")
    if reading.problems:
        raise ConfigError(str(file), reading.problems)
    return fleet


def _check_times(on_seconds: float | None, off_seconds: float | None) -> None:
    if (on_seconds is None) is not (off_seconds is None):
        raise ValueError(
            f"off_seconds: read {show(off_seconds)}; allowed: a time above 0 with on_seconds, and"
            " none without it"
        )
