"""The sidecar: one listener, one broker behind it, and the plugins that withhold and probe."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Final

from penstock.broker.errors import ConfigError, ConfigProblem, PenstockError
from penstock.broker.faults import Guard
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.network.open_files import most_connections
from penstock.broker.outbox.ledger import Ledger
from penstock.broker.plugin_loader import LoadedPlugins, load_plugins
from penstock.edge_proxy.sidecar.client_reports import ProxyReports
from penstock.edge_proxy.sidecar.config import ProxyConfig
from penstock.edge_proxy.sidecar.shared import Shared, describe, describe_large
from penstock.edge_proxy.sidecar.transport import Pairs

BACKLOG: Final = 1024
"""Connections that may wait to be accepted: a fleet reconnects all at once."""

FILES_OF_A_CLIENT: Final = 2
"""Its connection and the one to the broker."""

DRAIN_SECONDS: Final = 5.0
"""How long a stop waits for clients to take what is being sent to them."""


class ListenError(PenstockError):
    """The listener's address cannot be bound; the program ends with status 2."""


class Sidecar:
    """One proxy.

    Attributes:
        address: (host, port) that it is bound to, once started.
        shared: what its clients share, once started.
    """

    def __init__(self, config: ProxyConfig, logger: logging.Logger | None = None) -> None:
        """Make a proxy that is not running.

        Args:
            config: a checked proxy file.
            logger: for what an operator should know; None for one named ``penstock.proxy``.
        """
        self._config = config
        self._logger = logger or logging.getLogger("penstock.proxy")
        self._plugins = LoadedPlugins()
        self._server: asyncio.Server | None = None
        self._pairs: Pairs
        self.address = ("", 0)
        self.shared: Shared

    async def start(self) -> None:
        """Start plugins, then listen.

        Raises:
            PenstockError: a plugin cannot start or the address cannot be bound; what was
                started is stopped again.
        """
        try:
            await self._start()
        except BaseException:
            await self._close()
            raise

    async def _start(self) -> None:
        config = self._config
        reports = ProxyReports(time.monotonic)
        plugins = load_plugins(config, clients=reports, is_proxy=True)
        _check_plugins(plugins, config)
        self.shared = Shared(
            config.limits, logger=self._logger, gate=plugins.gate, samplers=plugins.samplers
        )
        reports.attach(self.shared)
        self._pairs = Pairs(
            self.shared,
            config.broker_host,
            config.broker_port,
            timeout_seconds=config.broker_timeout_seconds,
            connack_timeout_seconds=config.connack_timeout_seconds,
            connections=self._connections(sum(one.open_files for one in plugins.plugins)),
        )
        self._plugins = plugins
        await plugins.start()
        loop = asyncio.get_running_loop()
        host, port = config.listen_host, config.listen_port
        try:
            self._server = await loop.create_server(
                self._pairs.accept, host, port, backlog=BACKLOG, reuse_address=True
            )
        except OSError as error:
            raise ListenError(f"listener: cannot bind {host or '*'}:{port}: {error}") from error
        self.address = self._server.sockets[0].getsockname()[:2]
        self._logger.info(
            "listening on %s:%d for the broker at %s", *self.address, self._pairs.broker_name
        )

    def _connections(self, files_of_plugins: int) -> int:
        """Return how many clients may be connected at a time."""
        most = most_connections(files_each=FILES_OF_A_CLIENT, files_elsewhere=files_of_plugins)
        wanted = self._config.limits.connections
        if wanted is not None and wanted > most:
            self._logger.warning(
                "limits.connections: %d, but the process may have files for %d, two each; allow it "
                "more, as by LimitNOFILE of systemd",
                wanted,
                most,
            )
        return wanted or most

    def ledger(self) -> Ledger:
        """Return the sum of the ledgers of all clients, past and present."""
        total = Ledger()
        total.add(self.shared.ended)
        for pair_transport in self._pairs.running:
            pair = pair_transport.pair
            if pair.wants_broker and not pair.is_closing:
                total.add(pair.client.ledger)
        return total

    async def reload(self) -> None:
        """Have every plugin reload its files; one that cannot be used is only logged."""
        await self._plugins.reload(
            self._logger, self.shared.guard, at_start_alone=self._config.file
        )

    async def stop(self) -> None:
        """Stop listening, disconnect the clients, free everything and log the totals."""
        self._logger.info("stopping")
        if self._server is not None:
            self._server.close()
        for pair_transport in list(self._pairs.running):
            pair_transport.close(ReasonCode.SERVER_SHUTTING_DOWN)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._pairs.all_ended()
        await self._close()
        self._logger.info("served %d clients: %s", self.shared.n_ended, describe(self.ledger()))
        large = describe_large(self.shared.outbox_rules.record.metrics())
        if large:
            self._logger.info("large messages: %s", large)
        refused = self.shared.counters.connections_refused
        if refused:
            self._logger.info(
                "connections refused: %s",
                ", ".join(f"{reason} {n}" for reason, n in sorted(refused.items())),
            )
        if self.shared.user_properties_ignored:
            self._logger.info(
                "user properties of %d CONNECTs ignored", self.shared.user_properties_ignored
            )

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        if hasattr(self, "_pairs"):
            await self._pairs.close()
        plugins, self._plugins = self._plugins, LoadedPlugins()
        await plugins.close(Guard(self._logger, {}))


def _check_plugins(loaded: LoadedPlugins, config: ProxyConfig) -> None:
    """Refuse plugins with parts that a proxy does not use.

    Raises:
        ConfigError: with one problem for each.
    """
    problems = []
    for name, plugin in zip(config.plugins, loaded.plugins, strict=True):
        brought = []
        if plugin.sinks:
            brought.append("a message sink")
        if plugin.sources:
            brought.append("a message source")
        if plugin.payload_store is not None:
            brought.append("a payload store")
        if plugin.sampler is not None and plugin.sampler.probe_topic is not None:
            brought.append("a sampler that sends probes, as by source probe")
        problems += [
            ConfigProblem(
                f"plugins.{name}",
                f"a plugin with {what}",
                "in a proxy, plugins with a delivery gate or a link sampler",
            )
            for what in brought
        ]
    if problems:
        raise ConfigError(config.file, problems)
