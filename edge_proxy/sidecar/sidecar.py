"""The sidecar: listeners, one broker behind them, and the plugins that withhold and probe."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.broker.config.changes import InForce, compare, failures
from penstock.broker.errors import ConfigError, ConfigProblem, PenstockError
from penstock.broker.extensions import Reload
from penstock.broker.mqtt.proxy_header import LOCAL_HEADER
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.network.admission import Admission
from penstock.broker.network.listener_set import Listeners
from penstock.broker.network.new_connection import Reception
from penstock.broker.network.open_files import most_connections
from penstock.broker.plugin_guard import Guard
from penstock.broker.plugin_loader import LoadedPlugins, load_plugins
from penstock.broker.process.log_lines import take_options
from penstock.broker.process.start_check import StartCheck
from penstock.edge_proxy.sidecar.config import LIVE, ProxyConfig
from penstock.edge_proxy.sidecar.default_store import choose_store
from penstock.edge_proxy.sidecar.operations import ProxyOperations
from penstock.edge_proxy.sidecar.proxy_state import ProxyState, describe, describe_large
from penstock.edge_proxy.sidecar.transport import ClientTransport, ProxiedClients
from penstock.edge_proxy.upstream import Upstreams

if TYPE_CHECKING:
    from penstock.broker.operations_contract import Reloaded

CHECKED_AT_ONCE: Final = 100
"""So many clients are looked at after a reload before others are served."""

FILES_OF_A_CLIENT: Final = 2
"""Its connection and the one to the broker."""

CLOSE_SECONDS: Final = 5.0
"""How long a stop waits for clients to take what is being sent to them, the end included."""


class Sidecar:
    """One proxy.

    Attributes:
        shared: what its clients share, once started.
        upstreams: addresses of the broker, once started.
    """

    def __init__(
        self,
        config: ProxyConfig,
        logger: logging.Logger | None = None,
        *,
        read_config: Callable[[], ProxyConfig] | None = None,
    ) -> None:
        """Make a proxy that is not running.

        Args:
            config: a checked proxy file.
            logger: for what an operator should know; None for one named ``penstock.proxy``.
            read_config: reads the proxy's file again, for a reload; it may raise a `ConfigError`.
                None: a reload reads the files that it names, alone.
        """
        self._config = config
        self._read_config = read_config or (lambda: config)
        self._logger = logger or logging.getLogger("penstock.proxy")
        self._plugins = LoadedPlugins()
        self._listeners: Listeners
        self._reception: Reception
        self._clients: ProxiedClients
        self._hurried = asyncio.Event()
        self._in_force: InForce
        self._operations: ProxyOperations
        self._reloading = asyncio.Lock()
        self.shared: ProxyState
        self.upstreams: Upstreams

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        """Listener name to the (host, port) that it is bound to, or (path, 0) of a Unix socket."""
        return self._listeners.addresses if hasattr(self, "_listeners") else {}

    async def start(self) -> None:
        """Start plugins, then listen.

        Raises:
            PenstockError: a plugin cannot start, a file cannot be used or an address cannot be
                bound; what was started is stopped again.
        """
        try:
            async with self._reloading:  # the console may ask for a reload before all is there
                await self._start()
        except BaseException:
            await self._close()
            raise

    async def check(self) -> StartCheck:
        """Do what a start does, as far as it changes nothing; a proxy is checked or started."""
        config, found, plugins = self._config, StartCheck(), LoadedPlugins()
        try:
            operations = ProxyOperations(time.monotonic)
            plugins = load_plugins(
                config, listeners=config.listeners, operations=operations, is_proxy=True
            )
            _check_plugins(plugins, config)
            Upstreams(config.keys.upstream, self._logger)
            answer = await plugins.reload(config, config.listeners)
        except PenstockError as error:
            found.fail(failures(error, config.file, config.file))
            return found
        finally:
            await plugins.close(Guard(self._logger, {}))
        found.good["upstream"] = "its files are good; whether a broker answers is not looked at"
        named = dict(zip(plugins.names, plugins.plugins, strict=True))
        await asyncio.to_thread(found.look, named, answer.failed, config.listeners.values())
        return found

    async def _start(self) -> None:
        config = self._config
        operations = self._operations = ProxyOperations(time.monotonic)
        plugins = load_plugins(
            config, listeners=config.listeners, operations=operations, is_proxy=True
        )
        _check_plugins(plugins, config)
        self.shared = ProxyState(
            config.keys.limits,
            logger=self._logger,
            gate=plugins.gate,
            samplers=plugins.samplers,
            payload_store=choose_store(plugins, self._logger),
        )
        self.upstreams = Upstreams(
            config.keys.upstream,
            self._logger,
            check_header=LOCAL_HEADER if config.keys.identity == "proxy_v2" else b"",
        )
        operations.attach(self.shared, self.upstreams, self.reload)
        self._reception = Reception(
            Admission(
                self.shared.counters,
                connections=self._connections(sum(one.open_files for one in plugins.plugins)),
                connections_per_address=config.keys.limits.connections_per_address,
            ),
            self.shared.counters,
            self._logger,
            clock=time.monotonic,
            timeout=config.keys.limits.connect_timeout_seconds,
        )
        self._clients = ProxiedClients(
            self.shared,
            self._reception,
            self.upstreams,
            connack_timeout_seconds=config.keys.upstream.connack_timeout_seconds,
            identity=config.keys.identity,
            server_reference=config.keys.server_reference,
        )
        self._plugins = plugins
        await plugins.start()
        self.upstreams.start()
        self._in_force = InForce(config.file, config.values() | plugins.values(), self._logger)
        self._listeners = Listeners(
            self._reception,
            self._clients.accept,
            maximum_packet_size=config.keys.limits.maximum_packet_size,
        )
        operations.serve(self._clients, self._listeners)
        await self._listeners.open(config.listeners.values())
        self._logger.info("serving the clients of the broker at %s", self.upstreams)

    def _connections(self, files_of_plugins: int) -> int:
        """Return how many clients may be connected at a time."""
        most = most_connections(files_each=FILES_OF_A_CLIENT, files_elsewhere=files_of_plugins)
        wanted = self._config.keys.limits.connections
        if wanted is not None and wanted > most:
            self._logger.warning(
                "limits.connections: %d, but the process may have files for %d, two each; allow it "
                "more, as by LimitNOFILE of systemd",
                wanted,
                most,
            )
        return wanted or most

    async def reload(self) -> Reloaded:
        """Read the proxy's file and the files that it names again, and make what has changed count.

        Where anything cannot be used, nothing changes. The log has the same account.
        """
        async with self._reloading:
            return await self._reload()

    async def _reload(self) -> Reloaded:
        try:
            config = await asyncio.to_thread(self._read_config)
        except PenstockError as error:
            return self._in_force.refuse(error)
        plugins = await self._plugins.reload(config, config.listeners)
        found = await self._listeners.prepare(config.listeners)
        failed, upstream = plugins.failed | found.failed, Reload()
        try:
            upstream = self.upstreams.reload()
        except PenstockError as error:
            failed["upstream.tls"] = str(error)
        if failed:
            found.abandon()
            self._plugins.give_up(plugins)
            return self._in_force.refuse(failed)
        wanted = config.values() | plugins.values
        changes = compare(self._in_force.values, wanted, {**LIVE, **found.live(), **plugins.live})
        closed = [one for one in self._clients.running if one.arrival.listener in found.gone]
        self._take(config)
        take_options(config.keys.log, changes.live)
        upstream.apply()
        rest = [self._listeners.take(found), plugins.apply(self.shared.guard)]
        self._plugins.share_period()
        self.shared.gate_changed()
        for each in rest:
            await each
        read = [*found.read, *(f"upstream.tls.{file}" for file in upstream.read), *plugins.read]
        done = self._in_force.take(changes, read, plugins.failed | found.failed)
        await self._look_at_clients(closed)
        return done

    def _take(self, config: ProxyConfig) -> None:
        """Make what is not a plugin's or a listener's count."""
        limits, keys = config.keys.limits, self._config.keys
        self._config = replace(
            self._config,
            keys=replace(
                keys, drain_seconds=config.keys.drain_seconds, limits=limits, log=config.keys.log
            ),
        )
        self.shared.limits = limits  # of clients that connect from now on
        self._listeners.maximum_packet_size = limits.maximum_packet_size
        files = sum(one.open_files for one in self._plugins.plugins)
        self._reception.admission.change(self._connections(files), limits.connections_per_address)
        self._reception.timeout = limits.connect_timeout_seconds

    async def _look_at_clients(self, closed: Iterable[ClientTransport]) -> None:
        """Disconnect the clients of closed listeners, and those whose certificate is revoked.

        For what is held for the others, the gate is asked anew. Some are looked at at a time.
        """
        for transport in closed:
            self._logger.info("%s: its listener was closed", transport.arrival.peer())
            transport.close(ReasonCode.ADMINISTRATIVE_ACTION)
        for one in self._listeners:
            one.abort_handshakes()
        for number, transport in enumerate(list(self._clients.running), 1):
            arrival = transport.arrival
            listening = self._listeners.get(arrival.listener)
            if listening is not None and listening.has_revoked(arrival.ssl_object):
                self._logger.info("%s: its certificate is revoked", arrival.peer())
                transport.close(ReasonCode.NOT_AUTHORIZED)
            elif transport.proxied is not None:
                transport.proxied.client.link_changed()
                transport.serve()
            if not number % CHECKED_AT_ONCE:
                await asyncio.sleep(0)

    async def stop(self) -> None:
        """Stop listening, let withheld messages leave, disconnect the clients and free everything.

        At the end it logs the totals. `hurry` ends each wait.
        """
        self._logger.info("stopping")
        self._listeners.close()
        self._reception.close()
        seconds = self._config.keys.drain_seconds
        if seconds and (n_left := self._clients.drain()):
            self._logger.info(
                "waiting %g s at most for the messages of %d clients", seconds, n_left
            )
            await self._wait_for_the_end(seconds)
        self._clients.disconnect_all()
        await self._wait_for_the_end(CLOSE_SECONDS)
        await self._close()
        self._logger.info("served %d clients: %s", self.shared.n_ended, describe(self.shared.ended))
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

    def hurry(self) -> None:
        """Let `stop` wait no longer."""
        self._hurried.set()

    async def _wait_for_the_end(self, seconds: float) -> None:
        """Wait until no client is connected, for some seconds at most."""
        waits = [
            asyncio.ensure_future(wait)
            for wait in (self._clients.all_ended(), self._hurried.wait())
        ]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _close(self) -> None:
        if hasattr(self, "_listeners"):
            self._listeners.close()
        if hasattr(self, "_reception"):
            self._reception.close()
        if hasattr(self, "_clients"):
            await self._clients.close()
        if hasattr(self, "upstreams"):
            await self.upstreams.close()
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
        if plugin.has_local_clients:
            brought.append("clients in a broker's process, as of penstock proxy --mode edge")
        if plugin.session_owner is not None:
            brought.append("a session owner")
        if plugin.sampler is not None and plugin.sampler.probe_topic is not None:
            brought.append("a sampler that sends probes, as by source probe")
        if plugin.access is not None:
            brought.append("access control, which the broker behind the proxy has")
        if plugin.authenticators:
            brought.append("an authentication method, which the broker behind the proxy has")
        if plugin.callbacks is not None:
            brought.append("callbacks of the broker's events")
        problems += [
            ConfigProblem(
                f"plugins.{name}",
                f"a plugin with {what}",
                "in a proxy, plugins with a delivery gate, a link sampler or a payload store",
            )
            for what in brought
        ]
    if problems:
        raise ConfigError(config.file, problems)
