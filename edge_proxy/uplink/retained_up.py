"""Sends retained messages of the site up again that the cloud may lack after an outage.

Theory of operation. A change of a retained message waits for the cloud as any message does, but not
at QoS 0, nor where the backlog has dropped it; a clear is lost in the same way. So at each
connection the uplink compares: what has changed since the cloud certainly had everything, and does
not wait, goes up again; what was cleared since then is cleared in the cloud. mosquitto's bridge
sends all retained messages at each connection, and no clears.

The cloud certainly had everything up to a change if nothing waited for *up* after it, and a PINGREQ
that followed was answered. A lost connection is noticed later than it is lost: what was sent in
between, or waited, goes up again, too. A retained message that comes twice does no harm.

The messages go into the session of *up*, behind what waits there and a few at a time, so that each
topic keeps its order and nothing urgent waits for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from penstock.broker.extensions import LocalClients
from penstock.edge_proxy.uplink.config import UplinkKeys
from penstock.edge_proxy.uplink.lanes import Lane

if TYPE_CHECKING:
    from penstock.edge_proxy.uplink.packet_relay import PacketRelay

MOST_TOPICS: Final = 100_000
"""Cleared topics that are remembered. Each takes some 250 bytes."""

LOOK_SECONDS: Final = 0.5
"""Seconds between two looks at what the cloud certainly has."""

STEP_SECONDS: Final = 0.05
"""Seconds between two looks at whether there is room for more."""


class RetainedUp:
    """The retained messages and clears that one lane of an uplink has still to send again.

    Attributes:
        n_repeated: the number of retained messages and clears that have gone up again.
    """

    def __init__(
        self,
        client_id: str,
        local_clients: LocalClients,
        keys: UplinkKeys,
        lane: Lane,
        filters: Mapping[str, int],
        own_prefix: str,
    ) -> None:
        """Begin after a start, when earlier changes are not known."""
        self.n_repeated = 0
        self._client_id = client_id
        self._clients = local_clients
        # What is in parts is long, and comes again where the cloud has no session.
        is_on = keys.outgoing_retain and not lane.leaves
        whole = {name: n for name, n in filters.items() if not name.startswith(keys.parts_prefix)}
        self._filters = whole if is_on else {}
        self._sizes = lane.sizes
        self._own_prefix = own_prefix
        self._after = -1
        self._due: dict[str, int] = {}
        self._noted: tuple[int, int] | None = None
        self._has_asked = False

    def connected(self, *, sends_all: bool, lanes: Sequence[str]) -> None:
        """Find out what the cloud lacks, before anything that waits has gone up.

        Args:
            sends_all: all retained messages go up anyhow, as the cloud has lost the session.
            lanes: Client Identifiers of the *up* clients of all lanes.
        """
        self._noted, self._has_asked = None, False
        clients, filters, after = self._clients, self._filters, self._after
        own = self._own_prefix
        if filters:
            clients.note_clears(MOST_TOPICS)
        if not sends_all:
            self._due |= clients.lacking_retained(lanes, filters, after=after, except_of=own)
        self._due |= clients.cleared_retained(filters, after=after, except_of=own)

    def step(self, relay: PacketRelay) -> float | None:
        """Let some go up, as far as there is room, and find out what the cloud certainly has.

        Returns:
            Seconds until it must be called again; None for never.
        """
        if not self._filters:
            return None
        while self._due:
            topic, qos = next(iter(self._due.items()))
            is_sent = self._clients.repeat_retained(self._client_id, topic, qos, self._sizes)
            if is_sent is None:
                return STEP_SECONDS
            del self._due[topic]
            self.n_repeated += is_sent
        if self._noted is not None and relay.n_pongs >= self._noted[0]:
            self._after = self._noted[1]
            self._noted = None
        if self._noted is None or relay.n_pings < self._noted[0]:
            number = self._clients.retained_number(self._client_id)
            if number is not None and relay.busy is None:
                self._noted = relay.n_pings + 1, number
                if not self._has_asked:  # the next one comes with the Keep Alive
                    self._has_asked = True
                    relay.ping()
        return LOOK_SECONDS
