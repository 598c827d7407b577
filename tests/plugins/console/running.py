"""The console of a virtual broker, on a real socket."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from penstock.broker.extensions import PluginContext
from penstock.broker.operations.operations import BrokerOperations
from penstock.plugins.console.api import ConsolePlugin
from penstock.plugins.console.config import ConsoleConfig
from tests.helpers.virtual import VirtualBroker


@asynccontextmanager
async def console(
    broker: VirtualBroker, kind: type[BrokerOperations] = BrokerOperations, **keys: Any
) -> AsyncIterator[ConsolePlugin]:
    """Run the plugin, with these keys, beside a broker whose clock is virtual."""
    reports = kind(lambda: broker.now)
    reports.attach(broker.core)
    logger = logging.getLogger("penstock.console")
    context = PluginContext(logger, "policy.yaml", lambda: broker.now, (), reports)
    plugin = ConsolePlugin(ConsoleConfig(http="127.0.0.1:0", **keys), context)
    await plugin.start()
    try:
        yield plugin
    finally:
        await plugin.close()
