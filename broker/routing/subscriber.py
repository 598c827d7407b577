"""A session as routing sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.broker.access_control import SessionView
from penstock.broker.message import Message
from penstock.broker.outbox.inflight import Inflight
from penstock.broker.outbox.outbox import Outbox

if TYPE_CHECKING:
    from penstock.broker.routing.shared_subscriptions import SharedSubscription
    from penstock.broker.sending.sender import WriteQueue


class Subscriber(SessionView, Protocol):
    """A session, as routing sees it.

    Attributes:
        version: protocol version of the newest connection.
        is_direct: a small message may be written at once.
        outbox: what waits to be sent.
        outgoing: the bytes on their way to the client; only while it is connected.
        shares: the shared subscriptions that this session is a member of.
        subscription_bytes: about what its subscriptions take of the memory.
        n_refused: the client's own messages that were not routed.
    """

    version: int
    is_direct: bool
    outbox: Outbox
    outgoing: WriteQueue
    shares: tuple[SharedSubscription, ...]
    subscription_bytes: int
    n_refused: int

    @property
    def inflight(self) -> Inflight:
        """What was sent and is not acknowledged."""

    @property
    def client(self) -> object | None:
        """The connected client, or None."""

    @property
    def is_durable(self) -> bool:
        """Whether the session outlives the process."""

    def deliver(
        self,
        message: Message,
        qos: int,
        *,
        retain: bool,
        subscription_ids: tuple[int, ...],
        now: float,
        share: str = "",
    ) -> None:
        """Take a message for the client."""

    def sends_at_once(self, qos: int) -> bool:
        """Say whether a small message would be sent at once by `deliver`."""

    def has_room_for(self, message: Message, n_copies: int = 1) -> bool:
        """Say whether a message may wait, as far as the session's own limits go."""

    def keep_for_share(self) -> None:
        """Let the journal store what the session holds for shares with durable members."""
