"""A network connection whose chunks take the fast paths, as far as they can."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.fast_paths.copied_runs import receive_in_runs
from penstock.broker.fast_paths.single_packet import LEAST_BYTES, TAKE_SINGLE
from penstock.broker.payload import JOIN_BELOW_BYTES
from penstock.broker.receiving.connection import Connection
from penstock.broker.sessions.client import Client

if TYPE_CHECKING:
    from penstock.broker.fast_paths.fast_core import FastCore, FastPlan, FastSession


class FastClient(Client):
    """A client whose packets may take the fast paths.

    Attributes:
        core: the broker.
        session: the client's session; only after CONNECT was accepted.
        fast_plans: topic bytes to plan, of topics that the client has published to.
        known_properties: encoded properties of a PUBLISH that were found good, as applications
            often say the same in each packet.
        most_single_bytes: bytes of the largest chunk that may be taken as a single packet; 0 where
            something looks at each packet.

    These are there from the time that the client is accepted.
    """

    __slots__ = ("fast_plans", "known_properties", "most_single_bytes")

    core: FastCore
    session: FastSession

    fast_plans: dict[bytes, FastPlan]
    known_properties: bytes
    most_single_bytes: int

    def opened(self) -> None:
        """Find out what may take the fast paths, now that the client is accepted."""
        core, sender = self.core, self.sender
        self.fast_plans = core.plans_of(self)
        self.known_properties = b""
        self.limits_changed()
        if sender.takes_copies and sender.aliases is None:
            self.outgoing.copy_maximum = min(sender.send_maximum, core.copy_maximum)

    def detach(self, now: float) -> None:
        """Leave the session, once."""
        plans = getattr(self, "fast_plans", None)  # there is none before it is accepted
        if plans is not None:
            self.core.forget_judged(plans)
        super().detach(now)

    def limits_changed(self) -> None:
        """Take single packets only where their rate is not limited."""
        has_rate = self.core.limits.has_publish_rate
        self.most_single_bytes = 0 if has_rate else min(JOIN_BELOW_BYTES, self.maximum_packet_size)


class FastConnection(Connection):
    """One client's network connection, with fast paths.

    Attributes:
        client: what the handlers of its packets work on.
    """

    __slots__ = ()

    client_class = FastClient
    client: FastClient

    def receive_data(self, chunk: bytes, now: float) -> None:
        """Handle every packet that is complete with this chunk."""
        client = self.client
        if (
            client.is_open
            and LEAST_BYTES <= len(chunk) <= client.most_single_bytes
            and not (self._buffer.pending_bytes or client.backlog)
            and client.suspended is None
            and (take := TAKE_SINGLE.get(chunk[0])) is not None
            and take(client, chunk, now)
        ):
            client.last_received = now
        else:
            Connection.receive_data(self, chunk, now)  # `super()` takes 0.1 us more

    def limits_changed(self, now: float) -> None:
        """Take the publish rate of the limits that were changed."""
        super().limits_changed(now)
        if self.client.is_open:
            self.client.limits_changed()

    _receive_packets = staticmethod(receive_in_runs)
