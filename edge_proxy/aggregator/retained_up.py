"""Retained messages of the site that the cloud may not have after an outage.

Theory of operation. A change of a retained message waits for the cloud as any message does, but not
at QoS 0, nor where the backlog has dropped it; a clear is lost in the same way. So at each
connection the uplink compares: what the site retains, has changed since the last connection was
lost and does not wait, goes up again; what was retained then and is no more is cleared. The bridge
of mosquitto sends all that is retained at each connection, and no clear.

They go into the session of *up*, behind what waits there and a few at a time, so that each topic
keeps its order and nothing urgent waits for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from logging import Logger
from typing import Final

from penstock.broker.extensions import LocalClients
from penstock.edge_proxy.aggregator.config import UplinkKeys
from penstock.edge_proxy.aggregator.lanes import Lane

MOST_TOPICS: Final = 100_000
"""Topics of which clears are noticed. Each takes some 100 bytes during an outage."""

STEP_SECONDS: Final = 0.05
"""Between two looks at whether there is room for more."""


class RetainedUp:
    """What one lane of an uplink has still to tell the cloud of retained messages.

    Attributes:
        n_repeated: retained messages and clears that have gone up again.
    """

    def __init__(
        self,
        client_id: str,
        local_clients: LocalClients,
        keys: UplinkKeys,
        lane: Lane,
        filters: Mapping[str, int],
        own_prefix: str,
        logger: Logger,
    ) -> None:
        """Begin after a start: what has changed before is not known.

        Args:
            client_id: of *up*.
            local_clients: of the site's broker.
            keys: of the uplink.
            lane: which of its messages travel here.
            filters: that go up, to their QoS.
            own_prefix: what the Client Identifiers of the uplink's publishers begin with.
            logger: told where there are too many topics.
        """
        self.n_repeated = 0
        self._client_id = client_id
        self._clients = local_clients
        # What is in parts is long, and comes again where the cloud has no session.
        is_on = keys.outgoing_retain and not lane.leaves
        whole = {name: n for name, n in filters.items() if not name.startswith(keys.parts_prefix)}
        self._filters = whole if is_on else {}
        self._sizes = lane.sizes
        self._own_prefix = own_prefix
        self._logger = logger
        self._after = -1
        self._there: dict[str, int] = {}
        self._due: dict[str, int] = {}

    def lost(self, unsure: Iterable[str]) -> None:
        """Note the end of a connection.

        Args:
            unsure: topics of retained messages of QoS 0 that may have come or not.
        """
        self._due |= dict.fromkeys(unsure, 0)
        self._after = self._clients.retained_number()
        self._there = {}
        for topic_filter, qos in self._filters.items():
            for topic in self._retained(topic_filter):
                if len(self._there) >= MOST_TOPICS:
                    self._logger.warning(
                        "more than %d retained topics go up: clears of the others during an outage "
                        "do not reach the cloud",
                        MOST_TOPICS,
                    )
                    return
                self._there.setdefault(topic, qos)

    def connected(self, *, sends_all: bool, lanes: Sequence[str]) -> None:
        """Find out what the cloud lacks, before anything that waits has gone up.

        Args:
            sends_all: all that is retained goes up anyhow, as the cloud has lost the session.
            lanes: Client Identifiers of *up* of all lanes.
        """
        present: set[str] = set()
        for topic_filter, qos in self._filters.items():
            if self._there:
                present.update(self._retained(topic_filter))
            if not sends_all:
                lacking = self._clients.lacking_retained(
                    lanes, topic_filter, after=self._after, except_of=self._own_prefix
                )
                self._due |= dict.fromkeys(lacking, qos)
        self._due |= {topic: qos for topic, qos in self._there.items() if topic not in present}
        self._there = {}

    def _retained(self, topic_filter: str) -> Sequence[str]:
        return self._clients.lacking_retained(
            (), topic_filter, after=-1, except_of=self._own_prefix
        )

    def step(self) -> float | None:
        """Let some go up, as far as there is room.

        Returns:
            Seconds until it is to be called again; None where nothing is left.
        """
        while self._due:
            topic, qos = next(iter(self._due.items()))
            is_sent = self._clients.repeat_retained(self._client_id, topic, qos, self._sizes)
            if is_sent is None:
                return STEP_SECONDS
            del self._due[topic]
            self.n_repeated += is_sent
        return None
