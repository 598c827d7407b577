"""What both ends of the plugin are given."""

from __future__ import annotations

from collections.abc import Callable
from logging import Logger
from typing import Any, NamedTuple

from penstock.broker.extensions import LocalClients
from penstock.edge_proxy.parts.config import PartsConfig
from penstock.edge_proxy.parts.counts import PartsCounts
from penstock.edge_proxy.parts.spool import Spool


class PartsContext(NamedTuple):
    """What the end that cuts and the end that puts together have in common.

    Attributes:
        config: of the plugin.
        clients: of the broker.
        spool: open before either end begins.
        in_thread: calls a function of the spool in its thread.
        counts: of the plugin.
        logger: of the plugin.
        clock: monotonic seconds.
    """

    config: PartsConfig
    clients: LocalClients
    spool: Spool
    in_thread: Callable[..., Any]
    counts: PartsCounts
    logger: Logger
    clock: Callable[[], float]
