"""Breaking off: the end of a connection in the middle of a large PUBLISH, so that others pass it.

Theory of operation. On one network connection nothing overtakes a PUBLISH that has begun. Where
the path turns bad while a large one is half sent, every small message behind it waits until the
path is good again. A gate with `break_off_after` may end that: the connection is closed, and the
client, whose session outlives it, comes back within a second or so and gets the small ones.

So that it is known what a client can have received, a payload that may be broken off is handed to
the transport in pieces (`PieceReader`), and what is left of it stands in `Outgoing.out`, below all
layers that a listener may have: it is right for TLS and WebSocket, too. Nothing else leaves the
outbox meanwhile. A PUBLISH of which the transport was never given the last piece cannot have been
received. It counts as not sent: its Packet Identifier is free again, it goes back to where it was
in the outbox, before all others of its topic, and the next time it is sent is its first (no DUP
flag [MQTT-3.3.1-1]). What is inflight beside it is sent again, as after any loss of a connection
[MQTT-4.4.0-1], in its order [MQTT-4.6.0-1].

Nothing may be lost by it, so it is done only where

* the message is of QoS 1 or 2. One of QoS 0 counts as delivered once it has begun;
* the session outlives the connection by a minute at least: that of MQTT 3.1.1 without Clean
  Session, that of MQTT 5 by its Session Expiry Interval;
* it publishes no will: there is none, or its Will Delay Interval is long enough;
* the message is sent for the first time. A repeated one may have been received before;
* the message is not of QoS 2 by a shared subscription: the member to which it was begun to be sent
  must get it [MQTT-4.8.2-4], and any member may take a message that waits.

QoS 0 messages that wait, and those that arrive until the client is back, are kept for
`RETURN_SECONDS`: a server may do so (4.1). In MQTT 5 the client gets no reason: a DISCONNECT would
be read as a part of the payload.

Whether it pays, and how often, is the gate's to say.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.broker.extensions import DeliveryGate, Transfer
from penstock.broker.payload import PayloadReader
from penstock.broker.sessions import retained_delivery
from penstock.broker.sessions.wills import will_delay

if TYPE_CHECKING:
    from penstock.broker.outbox.delivery import Delivery
    from penstock.broker.sessions.client import Client
    from penstock.broker.sessions.core import Core
    from penstock.broker.sessions.session import Session
    from penstock.broker.timers import Timer

LOOK_SECONDS: Final = 1.0
"""Between two looks at a message that is being sent, each some 10 us."""

LEAST_EXPIRY_SECONDS: Final = 60.0
"""For which a session must outlive its connection: to connect on a bad path takes some seconds."""

MOST_LOOKED_AT: Final = 64
"""Messages that are looked at for one of another topic: there may be very many of one."""

RETURN_SECONDS: Final = 20.0
"""In which a client is expected back; a will must be delayed for longer than that."""


class _Sending:
    """A message that may be broken off, from its first piece to its last.

    Attributes:
        delivery: inflight.
        reader: what is left of its payload.
        n_bytes: of its payload.
        began_at: monotonic seconds of the first look; None before it.
        look_at: monotonic seconds of the next one.
        marks: (monotonic seconds, payload bytes left then) of looks, oldest first.
        timer: runs until it is over.
    """

    __slots__ = ("began_at", "delivery", "look_at", "marks", "n_bytes", "reader", "timer")

    def __init__(self, delivery: Delivery, reader: PayloadReader) -> None:
        self.delivery = delivery
        self.reader = reader
        self.n_bytes = len(reader)
        self.began_at: float | None = None
        self.look_at = 0.0
        self.marks: deque[tuple[float, int]] = deque()
        self.timer: Timer | None = None

    def bytes_per_second(self, left_bytes: int, now: float, seconds: float) -> float:
        """Note what is left, and return at which rate it became less in the last seconds.

        Args:
            left_bytes: payload bytes.
            now: monotonic seconds.
            seconds: how far to look back.
        """
        marks = self.marks
        while len(marks) > 1 and marks[1][0] <= now - seconds:
            marks.popleft()
        at, before = marks[0]
        marks.append((now, left_bytes))
        return max(0, before - left_bytes) / (now - at)


class BreakingOff:
    """What is being sent and may be broken off, and what came of that, for all of a broker.

    Invariant: `_sendings` has connections that are open, each with a message that is inflight or
    was acknowledged before it was whole.
    """

    def __init__(self, core: Core, gate: DeliveryGate, after: float) -> None:
        """Begin with nothing.

        Args:
            core: of the broker.
            gate: asked.
            after: its `break_off_after`.
        """
        self._core = core
        self._gate = gate
        self._after = after
        self._sendings: dict[Client, _Sending] = {}
        self._awaited: dict[Session, Timer] = {}
        self._n_broken_off: dict[Session, int] = {}

    @staticmethod
    def of(core: Core) -> BreakingOff | None:
        """Return it for a core, or None where its gate breaks nothing off."""
        gate = core.gate
        if gate.break_off_after is None:
            return None
        return BreakingOff(core, gate, gate.break_off_after)

    def n_broken_off(self, session: Session) -> int:
        """Return how often a session's connection was closed so."""
        return self._n_broken_off.get(session, 0)

    def send(self, client: Client, delivery: Delivery, now: float) -> None:
        """Send a large message, in a way that it may be broken off."""
        is_first = self._core.outbox_rules.is_first
        if is_first is not None and is_first(delivery.message.topic):
            client.sender.send_delivery(delivery, now)
            return
        payload = client.sender.send_delivery(delivery, now, in_pieces=True)
        if isinstance(payload, PayloadReader):
            self._end(client)
            sending = self._sendings[client] = _Sending(delivery, payload)
            self._set_timer(client, sending, now)

    def _set_timer(self, client: Client, sending: _Sending, now: float) -> None:
        def due(at: float) -> None:
            sending.timer = None
            if not len(sending.reader):
                self._end(client)
                return
            self._set_timer(client, sending, at)
            client.outgoing.want_pump()

        sending.timer = self._core.timers.at(now + LOOK_SECONDS, due)

    def _end(self, client: Client) -> None:
        sending = self._sendings.pop(client, None)
        if sending is not None and sending.timer is not None:
            sending.timer.cancel()

    def look(self, client: Client, unsent_bytes: int, now: float) -> None:
        """See how a message gets on of which the rest is in `out`, and break it off if need be.

        Args:
            client: connected.
            unsent_bytes: what its transport has taken and not sent.
            now: monotonic seconds.
        """
        sending = self._sendings.get(client)
        if sending is None or now < sending.look_at:
            return
        if not client.outgoing.is_next(sending.reader):
            return  # the transport was given all of it, or is still given something else
        sending.look_at = now + LOOK_SECONDS
        left_bytes = min(sending.n_bytes, len(sending.reader) + unsent_bytes)
        if sending.began_at is None:
            sending.began_at = now
            sending.marks.append((now, left_bytes))
            return
        rate = sending.bytes_per_second(left_bytes, now, self._after)
        session, delivery = client.session, sending.delivery
        message = delivery.message
        if not _is_safe(session, delivery) or not _has_beside(session, message.topic):
            return
        since = delivery.withheld_since
        transfer = Transfer(
            message,
            sent_bytes=sending.n_bytes - left_bytes,
            left_bytes=left_bytes,
            bytes_per_second=rate,
            seconds=now - sending.began_at,
            repeated_bytes=session.inflight.n_bytes - message.size_bytes,
            sojourn=0.0 if since is None else now - since,
        )
        gate, guard = self._gate, self._core.guard
        why = guard.call(gate, gate.breaks_off, transfer, session.link, now, otherwise="")
        if why:
            self._break_off(client, transfer, delivery, f"broken off: {why}", now)

    def _break_off(
        self, client: Client, transfer: Transfer, delivery: Delivery, why: str, now: float
    ) -> None:
        core, session = self._core, client.session
        core.counters.broken_off += 1
        self._n_broken_off[session] = self.n_broken_off(session) + 1
        core.logger.info(
            "client %s: connection closed with %d of %d bytes on %s unsent; %s",
            session.client_id,
            transfer.left_bytes,
            delivery.message.payload_bytes,
            delivery.message.topic,
            why,
        )
        session.inflight.take_back(delivery)
        delivery.packet_id = 0
        session.outbox.put_back(delivery, why, now)
        client.break_off(now)

    # -- while a client is away ---------------------------------------------------------------

    def connection_lost(self, session: Session, client: Client, now: float) -> None:
        """A session has lost its connection: expect it back where that was broken off."""
        self._end(client)
        self._expect_no_more(session)
        if client.is_broken_off:
            self._awaited[session] = self._core.timers.at(
                now + RETURN_SECONDS, lambda _now: self._has_not_come(session)
            )

    def awaits(self, session: Session) -> bool:
        """Say whether a session without a connection is to get messages of QoS 0, too."""
        return session in self._awaited

    def _has_not_come(self, session: Session) -> None:
        del self._awaited[session]
        if session.client is None:
            session.outbox.drop_qos0("connection_lost")
            retained_delivery.connection_lost(session)

    def _expect_no_more(self, session: Session) -> None:
        timer = self._awaited.pop(session, None)
        if timer is not None:
            timer.cancel()

    def forget(self, session: Session) -> None:
        """Drop whatever is kept for a session: it has ended."""
        self._expect_no_more(session)
        self._n_broken_off.pop(session, None)


def _has_beside(session: Session, topic: str) -> bool:
    """Say whether what could leave has a message of another topic, among its first ones."""
    first = itertools.islice(session.outbox.ready(), MOST_LOOKED_AT)
    return any(delivery.message.topic != topic for delivery in first)


def _is_safe(session: Session, delivery: Delivery) -> bool:
    """Say whether nothing is lost by breaking a delivery off."""
    inflight = session.inflight
    if not inflight.holds(delivery) or inflight.is_released(delivery.packet_id):
        return False  # a client that answers what it has not read whole has had it
    if delivery.share and delivery.qos == 2:
        return False
    interval = session.expiry_interval
    if interval is not None and interval < LEAST_EXPIRY_SECONDS:
        return False
    return session.will is None or will_delay(session) >= RETURN_SECONDS
