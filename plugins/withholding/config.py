"""The keys under `withholding` in a policy file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator
from pydantic.dataclasses import dataclass

from penstock.broker.config.key_types import STRICT, PerSecond, Seconds, Size, read_size
from penstock.broker.errors import MalformedPacketError
from penstock.broker.message import DEFAULT_THRESHOLD_S
from penstock.broker.mqtt.topics import parse_share, validate_topic_filter
from penstock.plugins.withholding.policies import DEFAULT_EXPOSURE
from penstock.plugins.withholding.thresholds import (
    LatencyProfile,
    LearnedFrom,
    SizeClasses,
    Thresholds,
)

Bytes = Annotated[Size, Field(ge=0)]
AS_ABOVE = -1
"""Default of a listener's keys, not valid in a file: the common value applies."""

Ordering = Literal["topic", "none"]
PolicyName = Literal["none", "conservative", "probabilistic", "historic", "adaptive"]

DEFAULT_MAX_WITHHOLD = 20.0
"""Seconds; D of paper 002."""

DEFAULT_CONGESTION_RATE = 1 / 17.5
"""1/s; bursts of congestion in paper 002 last 17.5 s on average."""

DEFAULT_PROFILE = {10_000: 1.0, 1_000_000: 10.0}
"""Paper 002: a 1 MB message takes ten times as long as the 10 KB query."""


def _is_seconds(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value < float("inf")


def _read_threshold_l(value: Any) -> Any:
    """Return threshold_l: a number above 0, or None to learn it; otherwise raise ValueError."""
    if value in ("auto", None):
        return None
    if _is_seconds(value):
        return value
    raise ValueError("seconds above 0, or auto")


def _read_exposure(value: Any) -> Any:
    """Return the exposure: a number above 0; otherwise raise ValueError."""
    if _is_seconds(value):
        return value
    raise ValueError(
        "seconds above 0 for which a small message may wait behind a large one, such as 2; "
        "policy: conservative withholds whatever a large one takes"
    )


def _check_filters(topic_filters: Iterable[str], where: str) -> None:
    """Raise ValueError where one is not a valid topic filter, or is of a shared subscription."""
    for topic_filter in topic_filters:
        try:
            validate_topic_filter(topic_filter)
            is_shared = bool(parse_share(topic_filter).share_name)
        except MalformedPacketError as error:
            raise ValueError(f"valid topic filters{where} ({error.args[0]})") from None
        if is_shared:
            raise ValueError(f"topic filters without $share{where} (not {topic_filter!r})")


Exposure = Annotated[float, BeforeValidator(_read_exposure)]
ThresholdL = Annotated[float | None, BeforeValidator(_read_threshold_l)]


@dataclass(frozen=True, slots=True, config=STRICT)
class ListenerThresholds:
    """Thresholds for subscribers that connect to one listener.

    Attributes:
        threshold_s: as in `WithholdingConfig`; null (None in Python) for never large.
        threshold_l: as in `WithholdingConfig`.
    """

    threshold_s: Bytes | None = AS_ABOVE
    threshold_l: ThresholdL = AS_ABOVE


@dataclass(frozen=True, slots=True, config=STRICT)
class WithholdingConfig:
    """How large messages are held back.

    Attributes:
        policy: `adaptive`, by what large messages took to this subscriber, `conservative`,
            `probabilistic`, `historic` or `none` (deliver always).
        threshold_s: a message with more payload bytes is large.
        threshold_s_by_topic: topic filter to threshold_s; the first match decides, before the
            listener; null means never large.
        threshold_l: RTT in seconds of the uncongested path, for packets up to the first row of
            `profile`; ``auto``, the same as None, learns it for each subscriber.
        threshold_l_by_client: pattern of client ids (``*``, ``?``, ``[...]``) to seconds or
            ``auto``; the first match decides, then the user property ``threshold_l`` of the
            CONNECT.
        listeners: name of a listener to `threshold_s` and `threshold_l` for its subscribers, before
            those two.
        learned_from: what `auto` learns from: `minimum`, the smallest recent RTT, or `average`,
            paper 002's moving average.
        max_withhold: longest hold in seconds (D), for `adaptive`, `conservative` and
            `probabilistic`.
        exposure: seconds that a small message may wait behind a large one, for `adaptive`; what
            takes no longer is not withheld.
        congestion_rate: inverse of the mean duration of congestion, 1/s, for `probabilistic`.
        profile: payload bytes to relative latency, at least one row.
        priority: topic filters of messages that leave before all others and are not withheld.
        ordering: ``topic``: messages wait behind a withheld one of their topic, as MQTT requires;
            ``none``: small ones pass it.
        supersede: drop a waiting large message of QoS 0 for the next one of its topic.
    """

    policy: PolicyName = "adaptive"
    threshold_s: Bytes = DEFAULT_THRESHOLD_S
    threshold_s_by_topic: dict[str, Bytes | None] = Field(default_factory=dict)
    threshold_l: ThresholdL = None
    threshold_l_by_client: dict[str, ThresholdL] = Field(default_factory=dict)
    listeners: dict[str, ListenerThresholds] = Field(default_factory=dict)
    learned_from: LearnedFrom = "minimum"
    max_withhold: Seconds = DEFAULT_MAX_WITHHOLD
    congestion_rate: PerSecond = DEFAULT_CONGESTION_RATE
    exposure: Exposure = DEFAULT_EXPOSURE
    profile: dict[Size, float] = Field(default_factory=DEFAULT_PROFILE.copy)
    priority: list[str] = Field(default_factory=list)
    ordering: Ordering = "topic"
    supersede: bool = False

    @field_validator("threshold_s_by_topic")
    @classmethod
    def _check_by_topic(cls, by_topic: dict[str, int | None]) -> dict[str, int | None]:
        _check_filters(by_topic, " as keys")
        return by_topic

    @field_validator("priority")
    @classmethod
    def _check_priority(cls, topic_filters: list[str]) -> list[str]:
        _check_filters(topic_filters, "")
        return topic_filters

    @field_validator("profile", mode="before")
    @classmethod
    def _check_sizes(cls, profile: Any) -> Any:
        if isinstance(profile, dict) and len(set(map(read_size, profile))) < len(profile):
            raise ValueError("a size as each key, each size once")
        return profile

    @field_validator("profile")
    @classmethod
    def _check_profile(cls, profile: dict[int, float]) -> dict[int, float]:
        LatencyProfile(profile)
        return profile

    def size_classes(self) -> SizeClasses:
        """Return the object that decides threshold_s."""
        own = {name: each.threshold_s for name, each in self.listeners.items()}
        by_listener = {name: value for name, value in own.items() if value != AS_ABOVE}
        return SizeClasses(self.threshold_s, self.threshold_s_by_topic, by_listener)

    def thresholds(self) -> Thresholds:
        """Return the object that decides threshold_l."""
        own = {name: each.threshold_l for name, each in self.listeners.items()}
        by_listener = {name: value for name, value in own.items() if value != AS_ABOVE}
        return Thresholds(
            self.threshold_l, self.threshold_l_by_client, by_listener, self.learned_from
        )
