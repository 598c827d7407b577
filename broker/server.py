"""The broker with its sockets: builds its parts, starts them and stops them in order."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import logging
import secrets
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.config.key_types import show_size
from penstock.broker.config.listener_config import Listener
from penstock.broker.config.loopback_only import (
    WHAT_TO_WRITE,
    demands_certificate,
    is_local,
    local_listeners,
)
from penstock.broker.config.policy import Policy
from penstock.broker.events import Callbacks
from penstock.broker.extensions import Plugin, overridden
from penstock.broker.fast_paths.door import core_class
from penstock.broker.network.admission import Admission
from penstock.broker.network.in_process import LISTENER as IN_PROCESS
from penstock.broker.network.in_process import InProcessClients
from penstock.broker.network.listeners import Listening, reload_files
from penstock.broker.network.loop_scheduler import LoopScheduler
from penstock.broker.network.new_connection import Reception
from penstock.broker.network.open_files import most_connections
from penstock.broker.network.transport import MqttProtocol
from penstock.broker.operations.operations import BrokerOperations
from penstock.broker.plugin_guard import Guard
from penstock.broker.plugin_loader import LoadedPlugins, load_plugins
from penstock.broker.process.machine_memory import machine_memory_bytes
from penstock.broker.receiving.connecting import close_if_revoked, revoke
from penstock.broker.reports.client_log import ClientLog
from penstock.broker.reports.client_topics import ClientTopics
from penstock.broker.reports.sampling import Sampling
from penstock.broker.reports.sys_topics import SysTopics
from penstock.broker.routing.retained import RETAINED_BLOCKS
from penstock.broker.routing.topic_tree import PLAN_BLOCKS
from penstock.broker.sessions.access import AlsoAsking, ExceptLocal, combine
from penstock.broker.sessions.broker_state import CoreSinks

if TYPE_CHECKING:
    from penstock.broker.amqtt_host.host import AmqttHost
    from penstock.broker.durable.persistence import PersistentState
    from penstock.broker.sessions.broker_state import Core

DRAIN_SECONDS: Final = 5.0
"""A stop waits so long for clients to take what is being sent to them."""

CHECKED_AT_ONCE: Final = 500
"""So many clients are checked after a reload before others are served: a millisecond's work."""


class Server:
    """One broker.

    Attributes:
        addresses: listener name to the (host, port) that it is bound to, or (path, 0) of a Unix
            socket; filled by `start`.
        core: the broker without its sockets; set by `start`.
    """

    def __init__(
        self,
        policy: Policy,
        logger: logging.Logger | None = None,
        *,
        memory_bytes: int | None = None,
    ) -> None:
        """Prepare a broker; `start` starts it.

        Args:
            policy: a checked policy file.
            logger: the logger for what an operator should know; None for one named ``penstock``.
            memory_bytes: memory of the process, from which some limits are derived; None to ask the
                system.
        """
        self._policy = policy
        self._logger = logger or logging.getLogger("penstock")
        self._memory_bytes = memory_bytes or machine_memory_bytes()
        self._limits = policy.limits.for_memory(self._memory_bytes)
        self._driver: LoopScheduler
        self._host: AmqttHost | None = None
        self._state: PersistentState | None = None
        self._plugins = LoadedPlugins()
        self._listeners: Mapping[str, Listener] = {}
        self._listening: list[Listening] = []
        self._reception: Reception
        self._local_clients: InProcessClients
        self.addresses: dict[str, tuple[str, int]] = {}
        self.core: Core

    async def start(self) -> None:
        """Start plugins, then listen.

        Raises:
            PenstockError: a plugin cannot start or a listener cannot be bound; whatever was started
                is stopped again.
        """
        try:
            await self._start()
        except BaseException:
            await self._close_all()
            raise

    async def _start(self) -> None:
        policy = self._policy
        self._log_limits()
        self._driver = LoopScheduler(self._limits, self._logger)
        self._local_clients = InProcessClients(self._driver, lambda: self._reception)
        operations = BrokerOperations(self._driver.clock)
        sink_routes = CoreSinks()
        self._plugins = load_plugins(
            policy,
            clock=self._driver.clock,
            listeners=policy.listeners,
            operations=operations,
            sink_routes=sink_routes,
            local_clients=self._local_clients,
        )
        self._host = self._load_amqtt()
        self._listeners = self._listeners_to_open()
        self._build_core()
        operations.attach(self.core)
        sink_routes.attach(self.core)
        await self._plugins.start()
        if self._host is not None:
            await self._host.pre_start()
        self._restore_state()
        self._receive()
        if not any(one.has_local_clients for one in self._plugins.plugins):
            self._end_local_sessions()
        await self._plugins.restored()
        await self._listen()
        if self._host is not None:
            await self._host.post_start()
        now = self._driver.clock()
        for sampler in self._plugins.samplers:
            if sampler.period is not None:
                Sampling(self.core, sampler, sampler.period).start(now)
        self._start_sys_topics(now)
        self._driver.settle(now)

    def _log_limits(self) -> None:
        """Log the limits that are derived from the machine's memory."""
        asked, limits = self._policy.limits, self._limits
        chosen = asked.chosen_by_memory()
        self._logger.info(
            "limits of this machine, with %s of memory: %s",
            show_size(self._memory_bytes),
            ", ".join(f"{name} {limits.shown(name)}" for name in chosen) or "none",
        )

    def _load_amqtt(self) -> AmqttHost | None:
        """Load aMQTT, only where the policy file names one of its plugins."""
        if self._policy.amqtt is None:
            return None
        from penstock.broker.amqtt_host.host import AmqttHost  # noqa: PLC0415 (aMQTT costs time and memory)

        is_alone = not self._plugins.has_authentication
        return AmqttHost(self._policy, self._logger, clock=self._driver.clock, is_alone=is_alone)

    def _listeners_to_open(self) -> Mapping[str, Listener]:
        """Return the policy's listeners; local ones where no plugin authenticates clients.

        Raises:
            ConfigError: no plugin does, and a listener cannot be restricted to this machine.
        """
        policy, host = self._policy, self._host
        if not self._plugins.has_authentication and (host is None or not host.authenticates):
            listeners = local_listeners(policy.listeners, policy.file)
            local = [name for name, one in listeners.items() if not demands_certificate(one)]
            if local:
                self._logger.warning(
                    "%s: no plugin authenticates clients: listeners that serve only this machine "
                    "and accept any user name and password: %s; %s",
                    policy.file,
                    ", ".join(local),
                    WHAT_TO_WRITE,
                )
            return listeners
        if host is not None and host.lets_anybody_in:
            for listener in policy.listeners.values():
                if not is_local(listener):
                    self._logger.warning(
                        "listener %s: AnonymousAuthPlugin accepts every client that can reach "
                        "the listener, including those on other machines",
                        listener.name,
                    )
        return policy.listeners

    def _build_core(self) -> None:
        policy = self._policy
        host = self._host
        plugins = self._plugins
        access = combine(
            [*([host] if host is not None else []), *plugins.access], plugins.authenticators
        )
        if access is not None:
            for plugin in plugins.plugins:
                second = overridden(plugin.also_asked, Plugin.also_asked)
                if second is not None:
                    access = AlsoAsking(access, second)
            if any(one.has_local_clients for one in plugins.plugins):
                access = ExceptLocal(access)
        self.core = self._driver.core = core_class()(
            self._limits,
            logger=self._logger,
            wake=self._driver.wake,
            spawn=self._driver.spawn,
            new_client_id=lambda: f"penstock-{secrets.token_hex(8)}",
            gate=plugins.gate,
            samplers=plugins.samplers,
            payload_store=plugins.payload_store,
            sinks=plugins.sinks,
            sources=plugins.sources,
            access=access,
            authenticators=plugins.authenticators,
            callbacks=Callbacks.joined(
                [
                    ClientLog(self._logger).callbacks,
                    *([host.callbacks] if host is not None else []),
                    *plugins.callbacks,
                ]
            ),
            session_expiry_limit=policy.session_expiry_interval,
            keep_alive_grace=policy.timeout_disconnect_delay,
            options=policy.mqtt,
            sizes_by_listener={
                name: listener.sizes
                for name, listener in policy.listeners.items()
                if listener.sizes is not None
            },
        )
        if host is not None:
            host.attach(self.core)

    def _restore_state(self) -> None:
        """Restore what the last process has left, before any client connects.

        Raises:
            DatabaseError: its database cannot be used.
        """
        config = self._policy.persistence
        if config is None or config.durability == "memory":
            return
        from penstock.broker.durable.persistence import PersistentState  # noqa: PLC0415 (few need its database)

        self._state = PersistentState(
            config,
            self.core,
            clock=self._driver.clock,
            settle=self._driver.take_turn,
            logger=self._logger,
        )

    def _end_local_sessions(self) -> None:
        """End what uplinks have left that the policy file names no more: it would only grow."""
        for client_id in self._local_clients.end_sessions(lambda _: True):
            self._logger.warning(
                "client %s: no plugin has it any more; its session ends with all waiting messages",
                client_id,
            )

    def _receive(self) -> None:
        """Prepare the admission of connections."""
        driver = self._driver
        limits = self._limits
        most = most_connections(
            files_elsewhere=sum(plugin.open_files for plugin in self._plugins.plugins)
        )
        if limits.connections is not None and limits.connections > most:
            self._logger.warning(
                "limits.connections: %d, but the process may open files for %d; raise the limit of "
                "files, as by LimitNOFILE of systemd",
                limits.connections,
                most,
            )
        self._reception = Reception(
            Admission(
                self.core.counters,
                connections=limits.connections or most,
                connections_per_address=limits.connections_per_address,
            ),
            self.core.counters,
            self._logger,
            clock=driver.clock,
            timeout=limits.connect_timeout_seconds,
        )

    async def _listen(self) -> None:
        for listener in self._listeners.values():
            listening = Listening(
                listener,
                self._reception,
                partial(MqttProtocol, self._driver),
                maximum_packet_size=self._limits.maximum_packet_size,
            )
            self._listening.append(listening)
            await listening.open()
            self.addresses[listener.name] = listening.address

    def _start_sys_topics(self, now: float) -> None:
        interval = self._policy.sys_interval
        if not interval:
            return
        has_common = self._host is None or not self._host.has_sys_plugin
        version = importlib.metadata.version("penstock-mqtt")
        of_plugins = {
            name: plugin.figures
            for name, plugin in zip(self._plugins.names, self._plugins.plugins, strict=True)
            if overridden(plugin.figures, Plugin.figures) is not None
        }
        topics = SysTopics(self.core, version, now, has_common=has_common, of_plugins=of_plugins)
        topics.start(now, interval)
        ClientTopics(self.core).start(now, interval)

    async def reload(self) -> None:
        """Have every plugin reload its files, and reload certificates.

        A file that cannot be used is logged and changes nothing.
        """
        read, failed = await reload_files(self._listening)
        at_start_alone = self._policy.file
        if self._host is not None:
            at_start_alone += ", what aMQTT's plugins read"
        await self._plugins.reload(
            self._logger, self.core.guard, at_start_alone=at_start_alone, read=read, failed=failed
        )
        self.core.logins.forget_wrong()
        await self._close_revoked()

    async def _close_revoked(self) -> None:
        """Disconnect clients whose access was withdrawn, some at a time."""
        listening = {one.listener.name: one for one in self._listening}
        for one in self._listening:
            one.abort_handshakes()
        for number, protocol in enumerate(list(self._driver.protocols), 1):
            arrival, connection = protocol.arrival, protocol.connection
            if arrival.listener == IN_PROCESS:
                continue
            is_revoked = listening[arrival.listener].has_revoked(arrival.ssl_object)
            if connection is None:
                if is_revoked:  # while it waits for a place
                    protocol.abort()
            elif is_revoked:
                revoke(connection.client, "its certificate is revoked", self._driver.clock())
            else:
                close_if_revoked(connection.client, self._driver.clock())
            if not number % CHECKED_AT_ONCE:
                await asyncio.sleep(0)

    def kept(self) -> tuple[int, int]:
        """Return `kept_by` the core."""
        return kept_by(self.core)

    async def stop(self) -> None:
        """Stop listening, finish accepted work, disconnect the clients and free everything."""
        self._logger.info("stopping")
        for listening in self._listening:
            listening.close()
        if self._host is not None:
            await self._host.pre_shutdown()
        await self._close_plugins()  # they commit, so that acknowledgements can still be sent
        if self._state is not None:
            await self._state.flush()  # as does this
        now = self._driver.clock()
        self._reception.close()
        for protocol in list(self._driver.protocols):
            if protocol.connection is not None:
                protocol.connection.client.shut_down(now)
            else:
                protocol.abort()
        self._driver.settle(now)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._driver.all_lost()
        await self._close_all()

    async def _close_plugins(self) -> None:
        plugins, self._plugins = self._plugins, LoadedPlugins()
        await plugins.close(Guard(self._logger, {}))

    async def _close_all(self) -> None:
        for listening in self._listening:
            listening.close()
        self._listening.clear()
        await self._close_plugins()
        if hasattr(self, "_reception"):
            self._reception.close()
        if hasattr(self, "_driver"):
            await self._driver.close()
        state, self._state = self._state, None
        if state is not None:
            await state.close()
        host, self._host = self._host, None
        if host is not None:
            await host.post_shutdown()


SESSION_BLOCKS: Final = 35
CONNECTION_BLOCKS: Final = 15
"""Small memory blocks of CPython that a session takes, and its connection."""

BLOCK_BYTES: Final = 100
"""The mean size of a small block of a session, a subscription or a topic level."""


def kept_by(core: Core) -> tuple[int, int]:
    """Return roughly what sessions, subscriptions and messages take, and cached plans.

    Returns:
        (small blocks of CPython's, bytes of memory).
    """
    retained, backlog, tree = core.retained, core.outbox_rules.backlog, core.tree
    n_sessions, n_connected = len(core.sessions), core.counters.clients_connected
    n_blocks = SESSION_BLOCKS * n_sessions + CONNECTION_BLOCKS * n_connected
    n_blocks += RETAINED_BLOCKS * len(retained) + PLAN_BLOCKS * len(tree.plans)
    n_blocks += (retained.level_bytes + tree.n_bytes) // BLOCK_BYTES
    n_bytes = retained.n_bytes + tree.n_bytes + BLOCK_BYTES * SESSION_BLOCKS * n_sessions
    if backlog is not None:
        n_blocks += backlog.n_messages
        n_bytes += backlog.n_bytes
    return n_blocks, n_bytes
