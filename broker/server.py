"""The broker with its sockets: builds its parts, starts them and stops them in order."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.config.changes import Changes, InForce, compare, failures
from penstock.broker.config.key_types import show_size
from penstock.broker.config.listener_config import Listener
from penstock.broker.config.loopback_only import (
    WHAT_TO_WRITE,
    demands_certificate,
    is_local,
    local_listeners,
)
from penstock.broker.config.policy import AMQTT_PERSISTENCE, LIVE, Policy
from penstock.broker.errors import ConfigError, ConfigProblem, PenstockError
from penstock.broker.events import Callbacks
from penstock.broker.extensions import Claim, Plugin, Worker, overridden
from penstock.broker.fast_paths.door import core_class
from penstock.broker.network.admission import Admission
from penstock.broker.network.in_process import InProcessClients
from penstock.broker.network.listener_set import Listeners
from penstock.broker.network.loop_scheduler import LoopScheduler
from penstock.broker.network.new_connection import Reception
from penstock.broker.network.open_files import most_connections
from penstock.broker.network.tcp_info import is_near
from penstock.broker.network.transport import MqttProtocol
from penstock.broker.operations.operations import BrokerOperations
from penstock.broker.operations.program import Program
from penstock.broker.plugin_guard import Guard
from penstock.broker.plugin_loader import LoadedPlugins, load_plugins
from penstock.broker.process.log_lines import take_options
from penstock.broker.process.machine_memory import machine_memory_bytes
from penstock.broker.process.start_check import StartCheck
from penstock.broker.receiving.connecting import close_if_revoked, leave_listener, revoke
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
    from penstock.broker.durable.commits import Commits
    from penstock.broker.operations_contract import Reloaded
    from penstock.broker.sessions.broker_state import Core

DRAIN_SECONDS: Final = 5.0
"""A stop waits so long for clients to take what is being sent to them."""

CHECKED_AT_ONCE: Final = 500
"""So many clients are checked after a reload before others are served: a millisecond's work."""


class Server:
    """One broker.

    Attributes:
        core: the broker without its sockets; set by `start`.
    """

    def __init__(
        self,
        policy: Policy,
        logger: logging.Logger | None = None,
        *,
        memory_bytes: int | None = None,
        read_policy: Callable[[], Policy] | None = None,
        worker: Worker | None = None,
        reload_all: Callable[[], Awaitable[Reloaded]] | None = None,
    ) -> None:
        """Prepare a broker; `start` starts it.

        Args:
            policy: a checked policy file.
            logger: the logger for what an operator should know; None for one named ``penstock``.
            memory_bytes: memory of the process, from which some limits are derived; None to ask the
                system.
            read_policy: reads the policy file again, for a reload; it may raise a `ConfigError`.
                None: a reload reads the files that the policy names, alone.
            worker: this process among those of the machine; None where it is the only one.
            reload_all: has all of them reload, and returns one account; None for `reload`.
        """
        self._policy = policy
        self._read_policy = read_policy or (lambda: policy)
        self._logger = logger or logging.getLogger("penstock")
        self._worker = worker
        self._reload_all = reload_all or self.reload
        n_processes = 1 if worker is None else worker.total
        self._memory_bytes = memory_bytes or machine_memory_bytes() // n_processes
        self._limits = policy.limits.for_memory(self._memory_bytes)
        self._driver: LoopScheduler
        self._host: AmqttHost | None = None
        self._state: Commits | None = None
        self._plugins = LoadedPlugins()
        self._listeners: Listeners
        self._reception: Reception
        self._local_clients: InProcessClients
        self._sys_topics: list[SysTopics | ClientTopics] = []
        self._in_force: InForce
        self._operations: BrokerOperations
        self._reloading = asyncio.Lock()
        self.core: Core

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        """Listener name to the (host, port) that it is bound to, or (path, 0) of a Unix socket."""
        return self._listeners.addresses if hasattr(self, "_listeners") else {}

    async def start(self) -> None:
        """Start plugins, then listen.

        Raises:
            PenstockError: a plugin cannot start or a listener cannot be bound; whatever was started
                is stopped again.
        """
        try:
            async with self._reloading:  # the console may ask for a reload before all is there
                await self._start()
        except BaseException:
            await self._close_all()
            raise

    async def _start(self) -> None:
        policy = self._policy
        self._log_limits()
        self._driver = LoopScheduler(self._limits, self._logger)
        self._local_clients = InProcessClients(self._driver, lambda: self._reception)
        sink_routes = CoreSinks()
        operations, listeners = self._load(sink_routes, self._local_clients)
        n_processes = self._plugins.worker.total
        if self._worker is None and n_processes > 1:
            raise PenstockError(
                f"{policy.file}: read {n_processes} processes of the broker; allowed: one, or "
                "penstock broker, which starts them"
            )
        self._build_core()
        program = self._program()
        operations.attach(self.core, program)
        sink_routes.attach(self.core)
        await self._plugins.start()
        if self._host is not None:
            await self._host.pre_start()
        self._restore_state()
        program.state = self._state
        self._receive()
        values = policy.values() | self._plugins.values()
        self._in_force = InForce(policy.file, values, self._logger)
        if not any(one.has_local_clients for one in self._plugins.plugins):
            self._end_local_sessions()
        await self._plugins.restored()
        await self._listeners.open(listeners.values())
        if self._host is not None:
            await self._host.post_start()
        now = self._driver.clock()
        for sampler in self._plugins.samplers:
            if sampler.period is not None:
                Sampling(self.core, sampler, sampler.period).start(now)
        self._start_sys_topics(now)
        operations.start()
        self._driver.settle(now)

    def _program(self) -> Program:
        """Return what operators see and change of the program around the core."""
        driver = self._driver
        return Program(
            version=importlib.metadata.version("penstock-mqtt"),
            started_at=driver.clock(),
            memory_bytes=self._memory_bytes,
            plugins=self._plugins.by_name,
            take_turn=driver.take_turn,
            spawn=driver.spawn,
            protocols=driver.protocols,
            stop_listening=self._stop_listening,
            is_listening=self._is_listening,
            reload=self._reload_all,
        )

    def _stop_listening(self) -> None:
        if not hasattr(self, "_listeners"):
            raise PenstockError("the broker starts; allowed: once it listens")
        self._listeners.close()

    def _is_listening(self) -> bool:
        return len(self.addresses) == len(self._here(self._policy.listeners))

    def _load(
        self, sink_routes: CoreSinks, local_clients: InProcessClients | None
    ) -> tuple[BrokerOperations, Mapping[str, Listener]]:
        """Make the plugins; return what operators see, and the listeners that are to be opened."""
        policy = self._policy
        operations = self._operations = BrokerOperations(self._driver.clock)
        self._plugins = load_plugins(
            policy,
            clock=self._driver.clock,
            listeners=policy.listeners,
            worker=self._worker,
            operations=operations,
            sink_routes=sink_routes,
            local_clients=local_clients,
            policy_keys=lambda: self._policy.document,
        )
        self._refuse_second_store()
        self._host = self._load_amqtt()
        return operations, self._listeners_to_open(policy)

    def _refuse_second_store(self) -> None:
        """Check that sessions are kept in one place.

        Raises:
            ConfigError: the policy file has `persistence`, or aMQTT's plugin for it, beside a
                plugin that keeps sessions.
        """
        policy, second = self._policy, {}
        if policy.persistence is not None and policy.persistence.durability != "memory":
            second["persistence"] = policy.persistence.path
        for name in AMQTT_PERSISTENCE & ((policy.amqtt or {}).get("plugins") or {}).keys():
            second[f"plugins.{name}"] = "it"
        for name, plugin in self._plugins.by_name.items():
            if second and (plugin.session_store is not None or plugin.has_other_brokers):
                key = plugin.key_of(name)
                allowed = f"no such key beside {key}, which keeps the sessions itself"
                problems = [ConfigProblem(*each, allowed) for each in second.items()]
                raise ConfigError(policy.file, problems)

    async def check(self, *, is_start: bool = False) -> StartCheck:
        """Do what a start does, as far as it changes nothing; a server is checked or started.

        Args:
            is_start: a start follows at once: an address that a running program of Penstock has is
                a problem.
        """
        policy, found = self._policy, StartCheck(is_start=is_start)
        self._driver = LoopScheduler(self._limits, self._logger)
        try:
            _, listeners = self._load(CoreSinks(), None)
            answer = await self._plugins.reload(policy, policy.listeners)
        except PenstockError as error:
            found.fail(failures(error, policy.file, policy.file))
            return found
        finally:
            plugins = dict(zip(self._plugins.names, self._plugins.plugins, strict=True))
            await self._close_plugins()
        await asyncio.to_thread(found.look, plugins, answer.failed, listeners.values())
        if policy.persistence is not None and policy.persistence.durability != "memory":
            path = policy.persistence.path
            found.claim(Claim("persistence.path", "database", path, "sessions.db"))
        return found

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

    def _here(self, listeners: Mapping[str, Listener]) -> dict[str, Listener]:
        """Return the listeners of this process: the file of a socket is the first one's."""
        is_first = self._plugins.worker.number == 1
        return {name: one for name, one in listeners.items() if is_first or not one.socket_path}

    def _listeners_to_open(self, policy: Policy) -> Mapping[str, Listener]:
        """Return the policy's listeners; local ones where no plugin authenticates clients.

        Raises:
            ConfigError: no plugin does, and a listener cannot be restricted to this machine; or
                several processes cannot share its port.
        """
        n_processes = self._plugins.worker.total
        problems = [
            ConfigProblem(
                f"listeners.{name}.bind", "port 0", f"a port that {n_processes} processes share"
            )
            for name, one in policy.listeners.items()
            if n_processes > 1 and not one.port and not one.socket_path
        ]
        if problems:
            raise ConfigError(policy.file, problems)
        host = self._host
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
            return self._here(listeners)
        if host is not None and host.lets_anybody_in:
            for listener in policy.listeners.values():
                if not is_local(listener):
                    self._logger.warning(
                        "listener %s: AnonymousAuthPlugin accepts every client that can reach "
                        "the listener, including those on other machines",
                        listener.name,
                    )
        return self._here(policy.listeners)

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
            session_owner=plugins.session_owner,
            callbacks=Callbacks.joined(
                [
                    ClientLog(self._logger).callbacks,
                    *([host.callbacks] if host is not None else []),
                    *plugins.callbacks,
                    *self._operations.callbacks,
                ]
            ),
            session_expiry_limit=policy.session_expiry_interval,
            keep_alive_grace=policy.timeout_disconnect_delay,
            options=policy.mqtt,
            sizes_by_listener=policy.sizes_by_listener(),
        )
        if host is not None:
            host.attach(self.core)

    def _restore_state(self) -> None:
        """Restore what the last process has left, before any client connects.

        Raises:
            DatabaseError: its database cannot be used.
        """
        owner, store = self._plugins.session_owner, self._plugins.session_store
        config = self._policy.persistence
        if (owner is None or store is None) and (config is None or config.durability == "memory"):
            return
        from penstock.broker.durable.commits import StoreCommits, Surroundings  # noqa: PLC0415 (not all have state)

        driver = self._driver
        broker = Surroundings(self.core, driver.clock, driver.take_turn, is_near, self._logger)
        if owner is not None and store is not None:
            self._state = StoreCommits(owner, store, broker)
        elif config is not None:
            from penstock.broker.durable.persistence import PersistentState  # noqa: PLC0415 (few need its database)

            self._state = PersistentState(config, broker)

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
        self._reception = Reception(
            Admission(
                self.core.counters,
                connections=self._connections(),
                connections_per_address=limits.connections_per_address,
            ),
            self.core.counters,
            self._logger,
            clock=driver.clock,
            timeout=limits.connect_timeout_seconds,
            bans=self.core.bans,
        )
        self._listeners = Listeners(
            self._reception,
            partial(MqttProtocol, driver),
            maximum_packet_size=limits.maximum_packet_size,
            shares_ports=self._plugins.worker.total > 1,
        )

    def _connections(self) -> int:
        """Return how many connections there may be."""
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
        return limits.connections or most

    def _start_sys_topics(self, now: float) -> None:
        """Publish `$SYS` as often as the policy says; again after that has changed."""
        for topics in self._sys_topics:
            topics.stop()
        interval = self._policy.sys_interval
        if not interval:
            return
        if not self._sys_topics:
            has_common = self._host is None or not self._host.has_sys_plugin
            version = importlib.metadata.version("penstock-mqtt")
            core, plugins = self.core, self._plugins.by_name
            topics = SysTopics(core, version, now, has_common=has_common, plugins=plugins)
            self._sys_topics = [topics, ClientTopics(core)]
        for topics in self._sys_topics:
            topics.start(now, interval)

    async def reload(self) -> Reloaded:
        """Read the policy file and the files that it names again, and make what has changed count.

        Where anything cannot be used, nothing changes. The log has the same account.
        """
        async with self._reloading:
            return await self._reload()

    async def _reload(self) -> Reloaded:
        try:
            policy = await asyncio.to_thread(self._read_policy)
            listeners = self._listeners_to_open(policy)
        except PenstockError as error:
            return self._in_force.refuse(error)
        plugins = await self._plugins.reload(policy, policy.listeners)
        found = await self._listeners.prepare(listeners)
        if failed := plugins.failed | found.failed:
            found.abandon()
            self._plugins.give_up(plugins)
            return self._in_force.refuse(failed)
        wanted = policy.values() | plugins.values
        changes = compare(self._in_force.values, wanted, {**LIVE, **found.live(), **plugins.live})
        closed = [one for one in self._driver.protocols if one.arrival.listener in found.gone]
        self._take(policy, changes)
        rest = [self._listeners.take(found), plugins.apply(self.core.guard)]
        self._plugins.share_period()
        self.core.gate_changed()
        for each in rest:
            await each
        read, failed = [*found.read, *plugins.read], plugins.failed | found.failed
        done = self._in_force.take(changes, read, failed)
        await self._look_at_clients(closed)
        return done

    def _take(self, policy: Policy, changes: Changes) -> None:
        """Make what is not a plugin's or a listener's count."""
        self._policy = policy
        limits = self._limits = policy.limits.for_memory(self._memory_bytes)
        self._driver.limits = limits
        self._listeners.maximum_packet_size = limits.maximum_packet_size
        self._reception.timeout = limits.connect_timeout_seconds
        self._reception.admission.change(self._connections(), limits.connections_per_address)
        self.core.change(
            limits,
            policy.mqtt,
            session_expiry_limit=policy.session_expiry_interval,
            keep_alive_grace=policy.timeout_disconnect_delay,
            sizes_by_listener=policy.sizes_by_listener(),
        )
        if ("sys_interval",) in changes.live:
            self._start_sys_topics(self._driver.clock())
        take_options(policy.log, changes.live)

    async def _look_at_clients(self, closed: Sequence[MqttProtocol]) -> None:
        """Disconnect clients of closed listeners and those whose access was withdrawn.

        Others take their new limits. Some are looked at at a time.
        """
        now = self._driver.clock()
        for protocol in closed:
            if protocol.connection is None:
                protocol.abort()
            else:
                leave_listener(protocol.connection.client, now)
        self.core.logins.forget_wrong()
        for one in self._listeners:
            one.abort_handshakes()
        for _ in self.core.look_at_sessions():
            await asyncio.sleep(0)
        for number, protocol in enumerate(list(self._driver.protocols), 1):
            self._look_at(protocol)
            if not number % CHECKED_AT_ONCE:
                await asyncio.sleep(0)

    def _look_at(self, protocol: MqttProtocol) -> None:
        arrival, connection, now = protocol.arrival, protocol.connection, self._driver.clock()
        if connection is not None:
            connection.limits_changed(now)
        listening = self._listeners.get(arrival.listener)
        if listening is None:  # of the broker's own process, or it is being disconnected
            return
        is_revoked = listening.has_revoked(arrival.ssl_object)
        if connection is None:
            if is_revoked:  # while it waits for a place
                protocol.abort()
        elif is_revoked:
            revoke(connection.client, "its certificate is revoked", now)
        else:
            close_if_revoked(connection.client, now)

    def kept(self) -> tuple[int, int]:
        """Return `kept_by` the core."""
        return kept_by(self.core)

    async def stop(self) -> None:
        """Stop listening, finish accepted work, disconnect the clients and free everything."""
        self._logger.info("stopping")
        self._listeners.close()
        if self._host is not None:
            await self._host.pre_shutdown()
        # They commit, so that acknowledgements can still be sent.
        await self._close_plugins(but_store=True)
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

    async def _close_plugins(self, *, but_store: bool = False) -> None:
        """Close the plugins; but the one with a store last, as sessions are written to the end."""
        plugins = self._plugins.plugins
        stays = [each for each in plugins if but_store and each.session_store is not None]
        ends = [each for each in plugins if each not in stays]
        self._plugins = LoadedPlugins(plugins=tuple(stays))
        await LoadedPlugins(plugins=tuple(ends)).close(Guard(self._logger, {}))

    async def _close_all(self) -> None:
        if hasattr(self, "_listeners"):
            self._listeners.close()
        if self._state is not None and self.core.kept is not None:  # a plugin's store
            state, self._state = self._state, None
            await state.close()
        await self._close_plugins()
        if hasattr(self, "_reception"):
            self._reception.close()
        if hasattr(self, "_operations"):
            self._operations.close()
        if hasattr(self, "_driver"):
            await self._driver.close()
        last, self._state = self._state, None
        if last is not None:
            await last.close()
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
    n_blocks += (retained.level_bytes + core.subscription_bytes) // BLOCK_BYTES
    n_bytes = retained.n_bytes + core.subscription_bytes + BLOCK_BYTES * SESSION_BLOCKS * n_sessions
    if backlog is not None:
        n_blocks += backlog.n_messages
        n_bytes += backlog.n_bytes
    return n_blocks, n_bytes
