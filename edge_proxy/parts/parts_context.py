"""What both ends of the plugin `parts` share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from logging import Logger
from typing import Any, Final, NamedTuple

from penstock.broker.extensions import LocalClients
from penstock.edge_proxy.parts.config import PartsConfig
from penstock.edge_proxy.parts.spool import Spool

AGAIN_SECONDS: Final = 1.0
"""Seconds between two attempts to connect, and to publish what the broker has no room for."""


@dataclass(eq=False, slots=True)
class PartsCounts:
    """Counters of the plugin, all from 0. They only go up.

    Attributes:
        split_messages: messages that were cut.
        split_parts: parts that were published for them, repeats not included.
        split_dropped: messages that were not cut to their end, by reason.
        kept_parts: parts of retained messages that were made for one new subscription each.
        received_parts: parts that have come for messages that are not whole.
        repeated_parts: parts of which nothing was new.
        overtaken_messages: messages of which a part was lost, as parts of a later message of their
            sender and topic have come.
        assembled_messages: messages that were put together and published.
        dropped: messages that were dropped, and payloads that are no parts, by reason.
    """

    split_messages: int = 0
    split_parts: int = 0
    split_dropped: dict[str, int] = field(default_factory=dict)
    kept_parts: int = 0
    received_parts: int = 0
    repeated_parts: int = 0
    overtaken_messages: int = 0
    assembled_messages: int = 0
    dropped: dict[str, int] = field(default_factory=dict)


class PartsContext(NamedTuple):
    """What the end that cuts and the end that puts together have in common.

    Attributes:
        clients: connects clients of the broker's own process.
        spool: the spool, which is open before either end begins.
        clock: returns monotonic seconds.
    """

    config: PartsConfig
    clients: LocalClients
    spool: Spool
    in_thread: Callable[..., Any]
    counts: PartsCounts
    logger: Logger
    clock: Callable[[], float]
