"""The keys under `probing` in a policy file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic.dataclasses import dataclass

from penstock.broker.config.key_types import STRICT, Seconds, Size
from penstock.broker.errors import MalformedPacketError
from penstock.broker.mqtt.topics import validate_topic

SourceName = Literal["tcp_info", "puback", "probe"]

DEFAULT_PROBE_PERIOD = 1.0
"""Seconds. A decision to withhold is as fresh as the estimate behind it (paper 002, figure 9: the
shorter the better), and reading the kernel's estimate sends nothing over the network."""

DEFAULT_MAX_AGE_SECONDS = 10.0
"""The length of the shortest burst of congestion in paper 002: an older estimate may describe
congestion that has ended."""

DEFAULT_PROBE_TOPIC = "latency"
"""The topic of the queries in paper 002."""

DEFAULT_PROBE_BYTES = 10_000
"""The size of paper 002's query, where its latency profile begins."""

MAX_PROBE_BYTES = 1_000_000
"""The size of the large message of paper 002: such a probe causes the congestion that it measures.
"""


@dataclass(frozen=True, slots=True, config=STRICT)
class ProbingConfig:
    """The sources of the RTT of subscribers.

    Attributes:
        sources: ``tcp_info``: the kernel's RTT. ``puback``: the time to the acknowledgement at QoS
            1 and 2. ``probe``: the same of messages that are sent only for this.
        probe_period: seconds between two looks at each subscriber (T_Q of paper 002), and two
            decisions of `withholding`. Idle subscribers are looked at in one period of five.
        probe_topic: topic of probes, for clients that subscribe to exactly this name at QoS 1 or 2.
        probe_bytes: payload bytes of a probe.
        max_age_seconds: age at which an estimate no longer counts.
    """

    sources: tuple[SourceName, ...] = ("tcp_info", "puback")
    probe_period: Seconds = DEFAULT_PROBE_PERIOD
    probe_topic: str = DEFAULT_PROBE_TOPIC
    probe_bytes: Annotated[Size, Field(ge=1, le=MAX_PROBE_BYTES)] = DEFAULT_PROBE_BYTES
    max_age_seconds: Seconds = DEFAULT_MAX_AGE_SECONDS

    @field_validator("sources")
    @classmethod
    def _check_sources(cls, sources: tuple[SourceName, ...]) -> tuple[SourceName, ...]:
        if not sources or len(set(sources)) < len(sources):
            raise ValueError("at least one source, each once")
        return sources

    @field_validator("probe_topic")
    @classmethod
    def _check_probe_topic(cls, topic: str) -> str:
        try:
            validate_topic(topic)
        except MalformedPacketError as error:
            raise ValueError(f"a topic name ({error.args[0]})") from None
        if topic.startswith("$"):
            raise ValueError("a topic name without $ at its beginning, as the broker's own have")
        return topic

    def __post_init__(self) -> None:
        """Check the values against each other."""
        set_up = (self.probe_topic, self.probe_bytes)
        if "probe" not in self.sources and set_up != (DEFAULT_PROBE_TOPIC, DEFAULT_PROBE_BYTES):
            raise ValueError("probe among sources, where probe_topic or probe_bytes is set")
        if self.max_age_seconds < self.probe_period:
            # Estimates would expire before the next look, and nothing would ever be withheld.
            raise ValueError("max_age_seconds of at least probe_period")
