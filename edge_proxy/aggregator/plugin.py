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
from penstock.broker.extensions import LOCAL_CLIENT_PREFIX, Plugin, PluginContext
from penstock.edge_proxy.aggregator.config import UplinkConfig
from penstock.edge_proxy.aggregator.uplink import Uplink


class UplinkPlugin(Plugin):
    """Uplinks of a site.

    Attributes:
        uplinks: in the order of the policy file.
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
        self.open_files = len(config.uplinks)
        self._local_clients = context.local_clients
        self.uplinks = [
            Uplink(
                name,
                config.site,
                keys,
                self._local_clients,
                context.logger,
                rng=random.Random(),  # noqa: S311 (no secret)
                clock=context.clock,
                wall=time.time,
            )
            for name, keys in config.uplinks.items()
            if self._local_clients is not None  # nothing runs where a file is only checked
        ]
        self.callbacks = Callbacks(
            client_subscribed=(self._subscribed,),
            client_unsubscribed=(self._unsubscribed,),
            session_ended=(self._ended,),
        )

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
        for client_id in self._local_clients.end_sessions(lambda one: one not in keeps):
            self.context.logger.warning(
                "client %s: its uplink is not configured any more; its session ends, with what "
                "waits in it",
                client_id,
            )
        for uplink in self.uplinks:
            await uplink.prepare()
        for uplink in self.uplinks:
            uplink.start()

    async def reload(self) -> Sequence[str]:
        """Read the files of TLS again; that of a password is read for each connection.

        Raises:
            PenstockError: one cannot be used; the old ones stay in use.
        """
        return [
            f"uplinks.{uplink.name}.upstream.{file}"
            for uplink in self.uplinks
            for file in uplink.upstreams.reload()
        ]

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
