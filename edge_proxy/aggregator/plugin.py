"""The plugin ``uplink``: a broker at a site, with one connection or a few to the cloud's broker."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence

from penstock.broker.errors import ConfigError, ConfigProblem
from penstock.broker.events import (
    Callbacks,
    ClientSubscribed,
    ClientUnsubscribed,
    SessionEnded,
)
from penstock.broker.extensions import (
    LOCAL_CLIENT_PREFIX,
    LocalClients,
    Plugin,
    PluginContext,
)
from penstock.edge_proxy.aggregator.conditions import Budget
from penstock.edge_proxy.aggregator.config import UplinkConfig
from penstock.edge_proxy.aggregator.lanes import Lane, lanes_of
from penstock.edge_proxy.aggregator.pacing import Pacing
from penstock.edge_proxy.aggregator.uplink import Uplink
from penstock.edge_proxy.parts.config import PARTS_CLIENTS


class UplinkPlugin(Plugin):
    """Uplinks of a site.

    Attributes:
        uplinks: in the order of the policy file; each lane of one is here.
    """

    Config = UplinkConfig
    has_local_clients = True

    def __init__(self, config: UplinkConfig, context: PluginContext) -> None:
        super().__init__(config, context)
        if context.is_proxy:
            problem = ConfigProblem(
                "plugins.uplink",
                "an uplink of a sidecar",
                "none: it belongs to a broker (penstock proxy --mode edge)",
            )
            raise ConfigError(context.policy_file, [problem])
        lanes = {
            name: lanes_of(keys.lanes, keys.up, keys.down) for name, keys in config.uplinks.items()
        }
        self.open_files = sum(map(len, lanes.values()))
        self._local_clients = context.local_clients
        self._lanes: dict[str, Sequence[Uplink]] = {}
        if self._local_clients is not None:  # nothing runs where a file is only checked
            for name in config.uplinks:
                self._lanes[name] = self._make(name, lanes[name], self._local_clients)
        self.uplinks = [uplink for uplinks in self._lanes.values() for uplink in uplinks]
        self.callbacks = Callbacks(
            client_subscribed=(self._subscribed,),
            client_unsubscribed=(self._unsubscribed,),
            session_ended=(self._ended,),
        )

    def _make(
        self, name: str, lanes: Sequence[Lane], local_clients: LocalClients
    ) -> Sequence[Uplink]:
        """Return all lanes of an uplink."""
        budget, pacing = Budget(), Pacing()
        uplinks = [
            Uplink(
                name,
                self.config.site,
                self.config.uplinks[name],
                lane,
                local_clients,
                self.context.logger,
                budget=budget,
                pacing=pacing,
                rng=random.Random(),  # noqa: S311 (no secret)
                clock=self.context.clock,
                wall=time.time,
            )
            for lane in lanes
        ]
        for uplink in uplinks:
            uplink.lanes = uplinks
        return uplinks

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
            PenstockError: an uplink cannot work.
        """
        if self._local_clients is None:
            return
        keeps = {client_id for uplink in self.uplinks for client_id in uplink.local_ids}
        for client_id in self._local_clients.end_sessions(
            lambda one: one not in keeps and not one.startswith(PARTS_CLIENTS)
        ):
            self.context.logger.warning(
                "client %s: its uplink is not configured any more; its session ends, with what "
                "waits in it",
                client_id,
            )
        for uplink in self.uplinks:
            await uplink.prepare()
        for lanes in self._lanes.values():
            if len(lanes) > 1:
                small, large = lanes
                self._local_clients.keep_order(small.up_id, large.up_id)
        for uplink in self.uplinks:
            uplink.start()

    async def reload(self) -> Sequence[str]:
        """Read the files of TLS again; that of a password is read for each connection.

        Raises:
            PenstockError: one cannot be used; the old ones stay in use.
        """
        files = [
            f"uplinks.{name}.upstream.{file}"
            for name, lanes in self._lanes.items()
            for lane in lanes
            for file in lane.upstreams.reload()
        ]
        return list(dict.fromkeys(files))

    def figures(self) -> Mapping[str, int]:
        """Return what the uplinks have done, by their names."""
        return {
            f"{uplink.name}/{name}": n
            for uplink in self.uplinks
            for name, n in uplink.counts.figures().items()
        }

    async def close(self) -> None:
        """Disconnect from the cloud."""
        for uplink in self.uplinks:
            await uplink.stop()
