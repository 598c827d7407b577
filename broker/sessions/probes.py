"""Probes: messages that a sampler has sent to a subscriber, to time their acknowledgement.

Theory of operation. A probe is a QoS 1 message of the subscriber's session, under a Packet
Identifier and in the ledger like any other, but it is made for one connection and never waits in
the outbox. It *becomes* a message when the connection has room for it: until then it stands in
`Session.probe`, is in no account, and goes without a trace when the connection ends. So it passes
what waits, withheld large messages among it, takes no place of a message in a full outbox, and a
path that takes nothing gathers no probes. It is the broker's own, the only one of its publisher on
the way, and so breaks no order by that [MQTT-4.6.0-6].

Once sent it is inflight, within the client's Receive Maximum [MQTT-3.3.4-9], and is sent again
where a session goes on with another connection [MQTT-4.4.0-1]. No other follows before it is
acknowledged, on whichever connection. It is not stored: a restart has no use for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from penstock.broker.access_control import RECEIVE
from penstock.broker.extensions import LinkSampler
from penstock.broker.message import Message
from penstock.broker.outbox.delivery import Delivery
from penstock.broker.routing.topic_tree import Target

if TYPE_CHECKING:
    from penstock.broker.link import Link
    from penstock.broker.sending.sender import Sender
    from penstock.broker.sessions.broker_state import Core
    from penstock.broker.sessions.client import Client
    from penstock.broker.sessions.session import Session

_HEADER_BYTES: Final = 16
"""Most that a PUBLISH has beside topic, payload and Subscription Identifiers: fixed header, lengths
and Packet Identifier."""

_ID_BYTES: Final = 5
"""Most that a Subscription Identifier takes."""


class Probe(Delivery):
    """A probe on its way to one subscriber.

    Attributes:
        sampler: who wants to know of it.
    """

    __slots__ = ("sampler",)

    is_stored: ClassVar[bool] = False

    def __init__(
        self, message: Message, sampler: LinkSampler, subscription_ids: tuple[int, ...]
    ) -> None:
        super().__init__(message, 1, subscription_ids=subscription_ids)
        self.sampler = sampler

    def tell_sent(self, sampler: LinkSampler, link: Link, now: float) -> None:
        """Tell a sampler: its own probe is no normal delivery."""
        if sampler is self.sampler:
            sampler.probe_sent(link, self.packet_id, now)
        else:
            super().tell_sent(sampler, link, now)


class Probes:
    """Sends the probes of one sampler, in its rounds."""

    def __init__(self, core: Core, sampler: LinkSampler, topic: str) -> None:
        """Make it, for the sampler's `probe_topic`; nothing is sent before `send`."""
        self._core = core
        self._sampler = sampler
        self._topic = topic
        self._topic_bytes = topic.encode()
        self._asked: set[Session] = set()
        self._has_seen_client = False
        self._has_subscriber = False
        self._has_told_none = False
        self._has_told_too_large = False

    def send(self, session: Session, client: Client, now: float) -> None:
        """Send a probe to a connected subscriber of the topic that has none unanswered."""
        self._has_seen_client = True
        subscription = session.subscriptions.get(self._topic)
        if subscription is None or not subscription.qos:
            return
        self._has_subscriber = True
        probe = session.probe
        if probe is not None:
            if not probe.packet_id:
                client.outgoing.want_pump()
                return
            if session.inflight.holds(probe):
                return
        access = self._core.access
        if access is None or not access.checks_receive:
            self._probe(session, client, now)
        elif session not in self._asked:
            self._asked.add(session)
            self._core.run(self._ask(session, client, now))

    async def _ask(self, session: Session, client: Client, now: float) -> None:
        try:
            is_allowed = await self._core.router.is_allowed(session, self._topic, RECEIVE)
        finally:
            self._asked.discard(session)
        if is_allowed and session.client is client and self._topic in session.subscriptions:
            self._probe(session, client, now)

    def _probe(self, session: Session, client: Client, now: float) -> None:
        found = self._core.tree.subscriptions_of(session, self._topic)
        subscription_ids = Target(session, found).subscription_ids
        payload = self._sampler.probe_payload
        n_bytes = _HEADER_BYTES + len(self._topic_bytes) + len(payload)
        n_bytes += _ID_BYTES * len(subscription_ids)
        if n_bytes > client.sender.send_maximum:
            self._tell_too_large(session, client, n_bytes)
            return
        message = Message(
            self._topic, payload, qos=1, arrived_at=now, topic_bytes=self._topic_bytes
        )
        session.probe = Probe(message, self._sampler, subscription_ids)
        client.outgoing.want_pump()

    def _tell_too_large(self, session: Session, client: Client, n_bytes: int) -> None:
        if not self._has_told_too_large:
            self._has_told_too_large = True
            self._core.logger.warning(
                "client %s: gets no probes, as they are longer than its Maximum Packet Size of %d "
                "bytes: a probe has %d; further clients are not named",
                session.client_id,
                client.sender.send_maximum,
                n_bytes,
            )

    def end_round(self) -> None:
        """Note that every connected subscriber was seen; say once if no probe is wanted."""
        if self._has_seen_client and not self._has_subscriber and not self._has_told_none:
            self._has_told_none = True
            self._core.logger.info(
                "no probes are sent: no client has subscribed to %r by this name, at QoS 1 or 2",
                self._topic,
            )


def send_probe(session: Session, sender: Sender, now: float) -> None:
    """Send the probe that waits for room, if there is any; the transport has some."""
    probe = session.probe
    if probe is None or probe.packet_id or session.resend or not sender.has_quota():
        return
    session.ledger.matched += 1
    sender.send_delivery(probe, now)
