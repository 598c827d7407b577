"""The keys under `parts` in a policy file."""

from __future__ import annotations

import itertools
from dataclasses import field
from typing import Annotated, Final

from pydantic import AfterValidator, Field, field_validator
from pydantic.dataclasses import dataclass as checked_dataclass

from penstock.broker.config.key_types import STRICT, PositiveSize, Seconds, TopicFilter
from penstock.broker.errors import MalformedPacketError
from penstock.broker.extensions import LOCAL_CLIENT_PREFIX
from penstock.broker.mqtt.topics import validate_topic
from penstock.edge_proxy.uplink.filters import intersection

PARTS_CLIENTS: Final = f"{LOCAL_CLIENT_PREFIX}$parts/"
"""Begins the Client Identifiers of the plugin's local clients; no uplink has such a name."""

DEFAULT_PREFIX: Final = "penstock-parts"
"""First level of the topics of parts, by default."""

DEFAULT_PART_BYTES: Final = 65_536
"""Payload bytes of a part, by default. At 1 Mbit/s it takes half a second, for which a small
message may have to wait behind it. What precedes its data takes a thousandth."""

_WEEK: Final = 7 * 86_400.0


def check_prefix(prefix: str) -> str:
    """Return the prefix of the topics of parts.

    Raises:
        ValueError: it cannot be one.
    """
    try:
        validate_topic(prefix)
    except MalformedPacketError as error:
        raise ValueError(f"a topic name ({error.args[0]})") from error
    if prefix.startswith("$") or prefix.endswith("/"):
        raise ValueError("a topic name that is not below $, without a / at its end")
    return prefix


_PartBytes = Annotated[PositiveSize, Field(ge=1_024)]


@checked_dataclass(frozen=True, slots=True, config=STRICT)
class PartsConfig:
    """Which messages are cut into parts here, and which are put together here.

    Attributes:
        spool: SQLite file of parts, and of identifiers of messages cut or delivered.
        prefix: first level of the topics of all parts, the same at both ends.
        split: topic filters. A message that a client publishes below them is published again, in
            parts.
        part_bytes: payload bytes of a part.
        tells_publisher: a split message names its publisher's Client Identifier in the User
            Property ``penstock-publisher``.
        assemble: topic filters, without the prefix, of messages that are put together and
            published; [] for none.
        max_message_bytes: a longer message is refused with its first part.
        spool_bytes: payload bytes of unpublished messages, with 1 KiB for each, and 128 bytes for
            each part. What does not fit is dropped.
        max_age_seconds: a message without a new part for so long is dropped.
        remember_seconds: how long the last 100,000 delivered or dropped messages are remembered,
            whose parts then start nothing.
    """

    spool: Annotated[str, Field(min_length=1)] = "penstock-parts.db"
    prefix: Annotated[str, AfterValidator(check_prefix)] = DEFAULT_PREFIX
    split: list[TopicFilter] = field(default_factory=list)
    part_bytes: _PartBytes = DEFAULT_PART_BYTES
    tells_publisher: bool = True
    assemble: list[TopicFilter] = field(default_factory=lambda: ["#"])
    max_message_bytes: PositiveSize = 256 * 1024**2
    spool_bytes: PositiveSize = 1024**3
    max_age_seconds: Seconds = _WEEK
    remember_seconds: Seconds = _WEEK

    @field_validator("split", "assemble")
    @classmethod
    def _check_filters(cls, filters: list[str]) -> list[str]:
        for name in filters:
            if name.startswith("$"):
                raise ValueError("topic filters that are not below $")
        return filters

    def __post_init__(self) -> None:
        """Check that no part is cut into parts."""
        for name, other in itertools.product(self.split, self.split):
            if name.startswith(f"{self.prefix}/") or intersection(name, f"{self.prefix}/{other}"):
                raise ValueError(
                    f"filters under split that do not match the parts of their messages: {name} "
                    f"matches parts of {other}, below {self.prefix}/"
                )
