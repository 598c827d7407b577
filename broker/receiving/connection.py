"""One client's network connection, without the network.

Theory of operation. The driver hands over each chunk of received bytes with the time. Every
whole packet in it is handled before anything is written; what is to be sent collects in
`Outgoing.out`, which the driver writes once. A chunk that is one small packet goes to
`penstock.broker.receiving.single_packet_path`, any other to
`penstock.broker.receiving.packet_splitter`. Both work on the `Client` that the connection has. The
bytes of an incomplete packet are kept here.

A client is *suspended* while access control takes its time, and then no further packet is handled.
`Client.wants_reading` then tells the driver to stop reading. It does so too while
`penstock.broker.sending.throttle` or `penstock.broker.receiving.rate_limit` slows this publisher
down, and while the journal waits for the disk. A chunk that takes many steps is not handled all at
once: its rest waits until the other clients have had their turn, and the driver calls `go_on`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.broker.counters import count
from penstock.broker.errors import PeerError, ProtocolError
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.receive_buffer import ReceiveBuffer
from penstock.broker.quotas.received_bytes import FREE_BYTES
from penstock.broker.receiving.packet_splitter import scan
from penstock.broker.receiving.rate_limit import RateLimit, n_publishes
from penstock.broker.receiving.single_packet_path import LEAST_BYTES, take_lone
from penstock.broker.sessions.client import Client
from penstock.broker.timers import Timer

if TYPE_CHECKING:
    from penstock.broker.sessions.broker_state import Core


class Connection:
    """One client's network connection: what the driver calls.

    Attributes:
        client: what the handlers of its packets work on.
        outgoing: the client's, which the driver takes after each call.
    """

    __slots__ = ("_buffer", "_layer_bytes", "_rate", "_rate_timer", "client", "outgoing")

    def __init__(
        self,
        core: Core,
        now: float,
        *,
        listener: str = "default",
        remote_address: str = "",
        remote_port: int = 0,
        served: Any = None,
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
            served: what the driver serves: this with its transport.
            ssl_object: the TLS connection, or None.
            certificate_name: common name of the client's verified certificate, or None.
            refusal: reason code that answers its CONNECT, or None.
        """
        self.client = Client(
            core,
            now,
            served,
            listener,
            remote_address,
            remote_port,
            ssl_object,
            certificate_name,
            refusal,
        )
        self.outgoing = self.client.outgoing
        self._buffer = ReceiveBuffer(core.limits.maximum_packet_size)
        self._rate = RateLimit(core.limits, now) if core.limits.has_publish_rate else None
        self._rate_timer: Timer | None = None
        self._layer_bytes = 0

    # -- what the driver calls ------------------------------------------------------------

    def receive_data(self, chunk: bytes, now: float) -> None:
        """Handle every packet that is complete with this chunk.

        What the peer did never raises here: the connection closes itself.
        """
        client = self.client
        client.last_received = now
        if client.is_closing:
            return
        if client.backlog or client.suspended is not None:
            client.put_off(chunk)
            self._count_held(now)
            return
        if (
            LEAST_BYTES <= len(chunk) <= client.most_lone_bytes
            and not self._buffer.pending_bytes
            and take_lone(client, chunk, now)
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
                    self._receive(client, data, now)
                else:
                    self._receive_at_rate(self._rate, data, now)
        except PeerError as error:
            client.peer_failed(error, now)
        if behind and not client.is_closing:
            self._put_off(behind)
        if (
            self._buffer.pending_bytes + client.incoming_aliases.n_bytes > FREE_BYTES
            or client.backlog
            or client.is_counted
        ):
            self._count_held(now)

    def _count_held(self, now: float) -> None:
        """Count the received bytes that are kept: the broker may close the largest holder."""
        client = self.client
        if client.is_closing:
            return
        n_bytes = self._buffer.pending_bytes + client.incoming_aliases.n_bytes + self._layer_bytes
        if client.backlog:
            n_bytes += sum(map(len, client.backlog))
        client.is_counted = n_bytes > FREE_BYTES
        client.core.received.count(client, n_bytes, now)

    @property
    def is_known(self) -> bool:
        """Whether its CONNECT was accepted."""
        return self.client.is_open

    def held_in_layer(self, n_bytes: int) -> None:
        """Count what a layer below holds, as WebSocket does of a frame that is not whole."""
        if n_bytes > FREE_BYTES or self._layer_bytes:
            self._layer_bytes = n_bytes
            self._count_held(self.client.last_received)

    def resume(self, now: float) -> None:
        """Go on after `suspended` has run to its end."""
        self.client.suspended = None
        self.go_on(now)

    def go_on(self, now: float) -> None:
        """Handle what was put off: nothing keeps it any more, or it `wants_turn`."""
        client = self.client
        backlog, client.backlog = client.backlog, ()
        client.core.turn.touch(self.outgoing)
        for chunk in backlog:
            self.receive_data(chunk, now)

    def pause_sending(self, now: float) -> None:
        """The transport has too many unsent bytes: yield nothing until `resume_sending`."""
        client = self.client
        self.outgoing.is_paused = True
        client.throttle.paused(now)
        if client.is_open:
            client.session.is_direct = False

    def resume_sending(self, now: float) -> None:
        """The transport has room again."""
        self.outgoing.is_paused = False
        self.outgoing.unread_bytes = 0
        self.client.throttle.resumed(now)
        self.outgoing.want_pump()

    def connection_lost(self, now: float) -> None:
        """The network connection has ended, from whichever side."""
        if not self.client.is_closing:
            self.client.detach(now)
        self.stop_receiving()

    def stop_receiving(self) -> None:
        """Stop the timer of the publish rate, and free a large buffer: the client is closing."""
        if self._rate_timer is not None:
            self._rate_timer.cancel()
        if self.client.is_counted:
            self._buffer.clear()

    @property
    def missing_bytes(self) -> int:
        """Bytes that only complete the packet which has begun to come: most are just kept."""
        return self._buffer.missing_bytes

    @property
    def wants_turn(self) -> bool:
        """Whether the driver should call `go_on` after the others have had their turn."""
        client = self.client
        return bool(client.backlog) and self._rate_timer is None and client.may_receive

    @property
    def has_backlog(self) -> bool:
        """Whether some of what an accepted client has sent was put off."""
        return self.client.is_open and bool(self.client.backlog)

    @property
    def is_held_up(self) -> bool:
        """Whether more can be handled only after `suspended`, or when the publish rate allows."""
        client = self.client
        return client.is_open and (client.suspended is not None or bool(client.backlog))

    def peer_left(self, now: float) -> None:
        """Note that the peer has gone: nothing more is sent to it, and it cannot be slowed down.

        Its input is still handled as far as the driver allows; `connection_lost` follows that, or
        `drop_input`.
        """
        client = self.client
        client.has_peer_left = True
        if client.timer is not None and client.is_open:
            client.timer.cancel()  # its keep-alive does not count for what it has left
            client.timer = None
        client.throttle.let_go()
        if client.is_open:
            client.core.sessions.peer_left(client.session, client, now)

    def drop_input(self, rest: bytes) -> None:
        """Drop what has come from a peer that is gone, and count the messages in it.

        Args:
            rest: what the driver has not handed over yet.
        """
        client = self.client
        if not (rest or client.backlog):
            return
        backlog, client.backlog = client.backlog, ()
        n_messages = n_publishes(self._buffer.receive_data(b"".join([*backlog, rest])))
        if n_messages:
            count(client.core.counters.publish_refused, "publisher gone", n_messages)
            client.core.logger.info(
                "%s: gone; %d of its messages were not handled",
                client.peer(),
                n_messages,
            )

    # -- receiving ------------------------------------------------------------------------

    def _receive_at_rate(self, rate: RateLimit, data: bytes, now: float) -> None:
        """Handle what the client's publish rate allows now, and the rest when it does.

        Raises:
            PeerError: as `_receive`; message rate too high, where that is not waited for.
        """
        client = self.client
        stop = rate.take(data, now)
        if stop:
            self._receive(client, data[:stop], now)
        if client.is_closing:
            return
        if client.backlog:
            for rest in client.backlog:
                rate.give_back(rest)
            self._put_off(data[stop:])
            return
        if stop == len(data):
            return
        core = client.core
        if core.limits.publish_rate_exceeded == "disconnect":
            raise ProtocolError("publishes too fast", ReasonCode.MESSAGE_RATE_TOO_HIGH)
        client.put_off(data[stop:])
        core.counters.publishers_slowed += 1
        self._rate_timer = core.timers.at(now + rate.wait_seconds, self._rate_allows)
        core.turn.touch(self.outgoing)

    def _rate_allows(self, now: float) -> None:
        self._rate_timer = None
        self.go_on(now)

    def _put_off(self, data: bytes) -> None:
        """Keep bytes that were not handled, in their order, for `go_on`."""
        if data:
            self.client.put_off(data)
            self.client.core.turn.touch(self.outgoing)

    def _receive(self, client: Client, data: bytes, now: float) -> None:
        """Handle each whole packet in `data`, as far as the steps go; keep the rest.

        Raises:
            PeerError: for a packet that is malformed or not allowed.
        """
        position = scan(client, data, now)
        if client.suspended is not None:
            client.put_off(data[position:])
        elif client.is_closing:
            pass
        elif (turn := client.core.turn).steps >= turn.most_steps:
            self._put_off(data[position:])
        else:
            self._buffer.unread(data, position)
