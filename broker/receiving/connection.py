"""One client's network connection, without the network.

Theory of operation. The driver hands over each chunk of received bytes with the time. Every
whole packet in it is handled before anything is written; what is to be sent collects in
`out`, which the driver writes once. A chunk that is one small packet goes to
`penstock.broker.receiving.lone_packets`, any other to `penstock.broker.receiving.scanning`; what is
left of it is kept here.

A connection is *suspended* while access control takes its time, and then handles nothing
more; `wants_reading` then tells the driver to stop reading, as it does while
`penstock.broker.sending.throttle` or `penstock.broker.receiving.rate_limit` slows this publisher
down, or the journal, as the disk is behind. What takes many steps is not done all at once either:
the rest of a chunk waits until the others have had their turn, and the driver calls `go_on`. How
packets leave is the other half, `penstock.broker.sending.sender`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.broker.counters import count
from penstock.broker.errors import PeerError, ProtocolError
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.receive_buffer import ReceiveBuffer
from penstock.broker.quotas.received_bytes import FREE_BYTES
from penstock.broker.receiving.lone_packets import LEAST_BYTES, take_lone
from penstock.broker.receiving.rate_limit import RateLimit, n_publishes
from penstock.broker.receiving.scanning import scan
from penstock.broker.sessions.client import Client
from penstock.broker.sessions.pump import pump
from penstock.broker.timers import Timer

if TYPE_CHECKING:
    from penstock.broker.sessions.core import Core


class Connection(Client):
    """The verbs of receiving, on one client."""

    __slots__ = (
        "_buffer",
        "_is_counted",
        "_layer_bytes",
        "_rate",
        "_rate_timer",
    )

    def __init__(
        self,
        core: Core,
        now: float,
        *,
        listener: str = "default",
        remote_address: str = "",
        remote_port: int = 0,
        driver: Any = None,
        ssl_object: Any = None,
        certificate_name: str | None = None,
        refusal: ReasonCode | None = None,
    ) -> None:
        """Take a network connection.

        Args:
            core: the broker.
            now: monotonic seconds at which it was accepted.
            listener: name of the listener in the policy file.
            remote_address: of the peer.
            remote_port: of the peer.
            driver: whatever the driver wants to find again in a touched connection.
            ssl_object: the TLS connection, or None.
            certificate_name: common name of the client's verified certificate, or None.
            refusal: reason code that answers its CONNECT, or None.
        """
        super().__init__(
            core,
            now,
            driver,
            listener,
            remote_address,
            remote_port,
            ssl_object,
            certificate_name,
            refusal,
        )
        self._buffer = ReceiveBuffer(core.limits.maximum_packet_size)
        self._rate = RateLimit(core.limits, now) if core.limits.has_publish_rate else None
        self._rate_timer: Timer | None = None
        self._is_counted = False
        self._layer_bytes = 0

    # -- what the driver calls ------------------------------------------------------------

    def receive_data(self, chunk: bytes, now: float) -> None:
        """Handle every packet that is complete with this chunk.

        What the peer did never raises here: the connection closes itself.
        """
        self.last_received = now
        if self.is_closing:
            return
        if self.backlog or self.suspended is not None:
            self.backlog.append(chunk)
            self._count_held(now)
            return
        if (
            LEAST_BYTES <= len(chunk) <= self.most_lone_bytes
            and not self._buffer.pending_bytes
            and take_lone(self, chunk, now)
        ):
            return
        behind = b""
        if self._buffer.is_large:
            n_bytes = self._buffer.missing_bytes
            chunk, behind = chunk[:n_bytes], chunk[n_bytes:]
        try:
            data = self._buffer.receive_data(chunk)
            if data:
                if self._rate is None:
                    self._receive(data, now)
                else:
                    self._receive_at_rate(self._rate, data, now)
        except PeerError as error:
            self.peer_failed(error, now)
        if behind and not self.is_closing:
            self._put_off(behind)
        if (
            self._buffer.pending_bytes + self.incoming_aliases.n_bytes > FREE_BYTES
            or self.backlog
            or self._is_counted
        ):
            self._count_held(now)

    def _count_held(self, now: float) -> None:
        """Count the received bytes that are kept: the broker may close the largest holder."""
        if self.is_closing:
            return
        n_bytes = self._buffer.pending_bytes + self.incoming_aliases.n_bytes + self._layer_bytes
        if self.backlog:
            n_bytes += sum(map(len, self.backlog))
        self._is_counted = n_bytes > FREE_BYTES
        self.core.received.count(self, n_bytes, now)

    def held_in_layer(self, n_bytes: int) -> None:
        """Count what a layer below holds, as WebSocket does of a frame that is not whole."""
        if n_bytes > FREE_BYTES or self._layer_bytes:
            self._layer_bytes = n_bytes
            self._count_held(self.last_received)

    def resume(self, now: float) -> None:
        """Go on after `suspended` has run to its end."""
        self.suspended = None
        self.go_on(now)

    def go_on(self, now: float) -> None:
        """Handle what was put off: nothing keeps it any more, or it `wants_turn`."""
        backlog, self.backlog = self.backlog, []
        self.core.turn.touch(self.outgoing)
        for chunk in backlog:
            self.receive_data(chunk, now)

    def connection_lost(self, now: float) -> None:
        """The network connection has ended, from whichever side."""
        if not self.is_closing:
            self.detach(now)

    @property
    def missing_bytes(self) -> int:
        """Bytes that only complete the packet which has begun to come: most are just kept."""
        return self._buffer.missing_bytes

    @property
    def wants_turn(self) -> bool:
        """Whether the driver should call `go_on` after the others have had their turn."""
        return bool(self.backlog) and self._rate_timer is None and self.may_receive

    @property
    def has_backlog(self) -> bool:
        """Whether some of what an accepted client has sent was put off."""
        return self.is_open and bool(self.backlog)

    @property
    def is_held_up(self) -> bool:
        """Whether more can be handled only after `suspended`, or when the publish rate allows."""
        return self.is_open and (self.suspended is not None or bool(self.backlog))

    def peer_left(self, now: float) -> None:
        """Note that the peer has gone: nothing more is sent to it, and it cannot be slowed down.

        Its input is still handled as far as the driver allows; `connection_lost` follows that, or
        `drop_input`.
        """
        self.has_peer_left = True
        if self.timer is not None and self.is_open:
            self.timer.cancel()  # its keep-alive does not count for what it has left
            self.timer = None
        self.throttle.let_go()
        if self.is_open:
            self.core.sessions.peer_left(self.session, self, now)

    def drop_input(self, rest: bytes) -> None:
        """Drop what has come from a peer that is gone, and count the messages in it.

        Args:
            rest: what the driver has not handed over yet.
        """
        if not (rest or self.backlog):
            return
        backlog, self.backlog = self.backlog, []
        n_messages = n_publishes(self._buffer.receive_data(b"".join([*backlog, rest])))
        if n_messages:
            count(self.core.counters.publish_refused, "publisher gone", n_messages)
            self.core.logger.info(
                "%s: gone; %d of the messages that it had sent were not handled",
                self.peer(),
                n_messages,
            )

    # -- receiving ------------------------------------------------------------------------

    def _receive_at_rate(self, rate: RateLimit, data: bytes, now: float) -> None:
        """Handle what the client's publish rate allows now, and the rest when it does.

        Raises:
            PeerError: as `_receive`; message rate too high, where that is not waited for.
        """
        stop = rate.take(data, now)
        if stop:
            self._receive(data[:stop], now)
        if self.is_closing:
            return
        if self.backlog:
            for rest in self.backlog:
                rate.give_back(rest)
            self._put_off(data[stop:])
            return
        if stop == len(data):
            return
        if self.core.limits.publish_rate_exceeded == "disconnect":
            raise ProtocolError("publishes too fast", ReasonCode.MESSAGE_RATE_TOO_HIGH)
        self.backlog.append(data[stop:])
        self.core.counters.publishers_slowed += 1
        self._rate_timer = self.core.timers.at(now + rate.wait_seconds, self._rate_allows)
        self.core.turn.touch(self.outgoing)

    def _rate_allows(self, now: float) -> None:
        self._rate_timer = None
        self.go_on(now)

    def _put_off(self, data: bytes) -> None:
        """Keep bytes that were not handled, in their order, for `go_on`."""
        if data:
            self.backlog.append(data)
            self.core.turn.touch(self.outgoing)

    def _receive(self, data: bytes, now: float) -> None:
        """Handle each whole packet in `data`, as far as the steps go; keep the rest.

        Raises:
            PeerError: for a packet that is malformed or not allowed.
        """
        position = scan(self, data, now)
        if self.suspended is not None:
            self.backlog.append(data[position:])
        elif self.is_closing:
            pass
        elif (turn := self.core.turn).steps >= turn.most_steps:
            self._put_off(data[position:])
        else:
            self._buffer.unread(data, position)

    # -- the life of the connection ---------------------------------------------------------

    def pump(self, unsent_bytes: int, now: float) -> None:
        """Move from the outbox into `out` what may be sent now."""
        pump(self, unsent_bytes, now)

    def detach(self, now: float) -> None:
        """Leave the session, once; keep nothing of what has come."""
        if self._rate_timer is not None:
            self._rate_timer.cancel()
        if self._is_counted:
            self.core.received.forget(self)
            self._buffer.clear()
        super().detach(now)
