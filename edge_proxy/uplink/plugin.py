"""The plugin ``uplink``: connects the broker of a site to the cloud's broker."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence

from penstock.broker.config.secret_file import warn_of_readers
from penstock.broker.counters import Metric, Sample, metrics_of
from penstock.broker.errors import ConfigError, ConfigProblem
from penstock.broker.events import Callbacks, ClientSubscribed, ClientUnsubscribed, SessionEnded
from penstock.broker.extensions import (
    LOCAL_CLIENT_PREFIX,
    LocalClients,
    Plugin,
    PluginContext,
    Reload,
)
from penstock.broker.operations_contract import LaneState, UplinkState
from penstock.edge_proxy.uplink.config import UplinkConfig
from penstock.edge_proxy.uplink.connecting import recorded_states
from penstock.edge_proxy.uplink.lanes import LARGE, Lane, lanes_of, leaving_lane
from penstock.edge_proxy.uplink.one_shot_clients import forget_states
from penstock.edge_proxy.uplink.partnership import join_uplinks
from penstock.edge_proxy.uplink.schedule_and_budget import Budget
from penstock.edge_proxy.uplink.uplink import Uplink
from penstock.edge_proxy.upstream import new_context


class UplinkPlugin(Plugin):
    """The uplinks of a site.

    Attributes:
        uplinks: all lanes of all uplinks, in the order of the policy file.
    """

    Config = UplinkConfig
    is_one_per_machine = True
    has_local_clients = True

    def __init__(self, config: UplinkConfig, context: PluginContext) -> None:
        super().__init__(config, context)
        if others := context.others():
            _refuse_subscribed(config, others, context.policy_file)
        lanes = {
            name: lanes_of(
                keys.lanes, keys.up, keys.down, is_5=keys.version == "5", leaves=keys.leaves
            )
            for name, keys in config.uplinks.items()
        }
        self.open_files = sum(map(len, lanes.values()))
        self._local_clients = context.local_clients
        self._lanes: dict[str, Sequence[Uplink]] = {}
        if self._local_clients is not None:  # nothing runs where a file is only checked
            for name in config.uplinks:
                budget = Budget()
                uplinks = [
                    self._lane(name, lane, self._local_clients, budget) for lane in lanes[name]
                ]
                join_uplinks(uplinks)
                self._lanes[name] = uplinks
        self.uplinks = [uplink for uplinks in self._lanes.values() for uplink in uplinks]
        self.callbacks = Callbacks(
            client_subscribed=(self._subscribed,),
            client_unsubscribed=(self._unsubscribed,),
            session_ended=(self._ended,),
        )

    def _lane(self, name: str, lane: Lane, local_clients: LocalClients, budget: Budget) -> Uplink:
        return Uplink(
            name,
            self.config.site,
            self.config.uplinks[name],
            lane,
            local_clients,
            self.context.logger,
            budget=budget,
            rng=random.Random(),  # noqa: S311 (no secret)
            clock=self.context.clock,
            wall=time.time,
        )

    def _add_leaving(self, local_clients: LocalClients) -> None:
        """Add a lane to each uplink that has sessions of a lane which is no longer configured."""
        for name, lanes in self._lanes.items():
            one, *others = lanes
            if others:
                continue
            leaving = self._lane(name, leaving_lane(LARGE), local_clients, one.budget)
            if any(local_clients.subscriptions(each) is not None for each in leaving.local_ids):
                self.context.logger.warning(
                    "uplink %s: it is configured no more: what is left in its sessions passes, "
                    "then they end",
                    leaving.name,
                )
                self._lanes[name] = one, leaving
                join_uplinks(self._lanes[name])
        self.uplinks = [uplink for uplinks in self._lanes.values() for uplink in uplinks]

    def _subscribed(self, event: ClientSubscribed) -> None:
        client_id = event.session.client_id
        if not client_id.startswith(LOCAL_CLIENT_PREFIX):
            for uplink in self.uplinks:
                uplink.client_subscribed(client_id, event.topic_filter, event.qos)

    def _unsubscribed(self, event: ClientUnsubscribed) -> None:
        for uplink in self.uplinks:
            uplink.client_unsubscribed(event.session.client_id, event.topic_filter)

    def _ended(self, event: SessionEnded) -> None:
        for uplink in self.uplinks:
            uplink.session_ended(event.session.client_id)

    async def restored(self) -> None:
        """Subscribe to what goes up, and begin to connect.

        Raises:
            PenstockError: an uplink cannot work as it is configured.
        """
        local_clients = self._local_clients
        if local_clients is None:
            return
        local_clients.name_site(self.config.site)
        self._add_leaving(local_clients)
        for uplink in self.uplinks:
            uplink.limit()
        await self._end_gone(local_clients)
        self._keep_order(local_clients)
        for name, (uplink, *_) in self._lanes.items():
            if uplink.keys.password_file is not None:
                key = f"plugins.uplink.uplinks.{name}.password_file"
                warn_of_readers(key, uplink.keys.password_file)
        for uplink in self.uplinks:
            await uplink.prepare()
        self._keep_order(local_clients)
        for uplink in self.uplinks:
            uplink.start()

    async def _end_gone(self, local_clients: LocalClients) -> None:
        """End the sessions of uplinks that are no longer configured, and clear old state topics.

        Raises:
            PenstockError: the broker does not let it.
        """
        keeps = {client_id for uplink in self.uplinks for client_id in uplink.local_ids}
        state_topics = {uplink.state_topic for uplink in self.uplinks}
        stale: dict[str, list[str]] = {}

        def is_gone(client_id: str) -> bool:
            recorded = recorded_states(local_clients.subscriptions(client_id) or ())
            stale[client_id] = [topic for topic in recorded if topic not in state_topics]
            # Clients of other plugins have such names, and no uplink has one.
            return client_id not in keeps and not client_id.startswith(f"{LOCAL_CLIENT_PREFIX}$")

        gone = local_clients.end_sessions(is_gone)
        for client_id in gone:
            self.context.logger.warning(
                "client %s: its uplink is not configured any more; its session ends, with what "
                "waits in it; what the cloud's broker has for it stays there (see leaves: true)",
                client_id,
            )
        for client_id, topics in stale.items():
            if topics:
                await forget_states(local_clients, client_id, topics)
        local_clients.end_sessions(lambda client_id: client_id in gone)  # which has cleared topics

    def _keep_order(self, local_clients: LocalClients) -> None:
        """Keep the order of topics across the lanes that have sessions."""
        for lanes in self._lanes.values():
            if len(lanes) > 1:
                small, large = lanes
                local_clients.keep_order(small.up_id, large.up_id)

    async def reload(self, config: UplinkConfig) -> Reload:  # noqa: ARG002 (read at the start)
        """Read the files of TLS again; a password file is read for each connection.

        Raises:
            PenstockError: a file cannot be used.
        """
        if self._local_clients is None:  # the policy file is only checked
            for name, keys in self.config.uplinks.items():
                if keys.upstream.tls is not None:
                    new_context(keys.upstream.tls, f"plugins.uplink.uplinks.{name}.upstream")
        files: list[str] = []
        applies: list[Callable[[], object]] = []
        for name, lanes in self._lanes.items():
            for lane in lanes:
                found = lane.upstreams.reload()
                files += [f"uplinks.{name}.upstream.{file}" for file in found.read]
                applies.append(found.apply)

        def apply() -> None:
            for each in applies:
                each()

        return Reload(list(dict.fromkeys(files)), apply=apply)

    def figures(self) -> Iterator[Metric]:
        """Yield the counters of all uplinks, and how much waits for them and how long."""
        lanes = [
            ({"uplink": name, "lane": lane.lane.name}, lane)
            for name, lanes in self._lanes.items()
            for lane in lanes
        ]
        counts = [(labels, lane.counts) for labels, lane in lanes]
        yield from metrics_of(counts, states={"connected", "taken_over"})
        states = [(labels, _state_of(lane)) for labels, lane in lanes]
        yield Metric(
            "waiting_messages",
            "gauge",
            "Messages that wait for the cloud, or that it has not acknowledged.",
            [Sample(labels, state.waiting) for labels, state in states],
        )
        yield Metric(
            "oldest_message_age_seconds",
            "gauge",
            "Age of the oldest message that waits for the cloud; 0 for none.",
            [Sample(labels, state.oldest_seconds or 0.0) for labels, state in states],
            "max",
        )

    def uplink_states(self) -> list[UplinkState]:
        """Return the state of all uplinks."""
        found = []
        for name, lanes in self._lanes.items():
            states = [_state_of(lane) for lane in lanes]
            if len(states) > 1:
                states = [one._replace(name=one.name or "small") for one in states]
            found.append(UplinkState(name, all(one.is_connected for one in states), states))
        return found

    async def start(self) -> None:
        """Read the files of TLS where the policy file is only checked; else each uplink does.

        Raises:
            UpstreamError: a file cannot be used.
        """
        if self._local_clients is None:
            await self.reload(self.config)

    async def close(self) -> None:
        """Disconnect from the cloud."""
        for uplink in self.uplinks:
            await uplink.stop()


def _refuse_subscribed(config: UplinkConfig, others: str, policy_file: str) -> None:
    """Refuse rules that ask what clients of other brokers or processes have subscribed to.

    Raises:
        ConfigError: there are some.
    """
    read = f"subscribed, and {others}, one with the uplink"
    problems = [
        ConfigProblem(f"plugins.uplink.uplinks.{name}.down[{place}].when", read, "always")
        for name, keys in config.uplinks.items()
        for place, rule in enumerate(keys.down)
        if rule.when == "subscribed"
    ]
    if problems:
        raise ConfigError(policy_file, problems)


def _state_of(lane: Uplink) -> LaneState:
    """Return how a lane is now."""
    waiting, waiting_bytes, oldest_seconds, rtt = lane.local_clients.backlog(lane.up_id)
    is_connected = bool(lane.counts.connected)
    return LaneState(
        lane.lane.name,
        is_connected,
        round(lane.absence.seconds, 3),
        lane.connected_address or lane.address,
        lane.in_words(),
        waiting,
        waiting_bytes,
        oldest_seconds,
        rtt if is_connected else None,
    )
