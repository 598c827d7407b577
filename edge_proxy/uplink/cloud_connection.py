"""The network side of an uplink: a connection to the cloud's broker, and two to the site's."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import TYPE_CHECKING, Final, cast

from penstock.broker.errors import PeerError
from penstock.broker.network.lane_pacer import LanePacer
from penstock.broker.network.tcp_info import TcpInfo, read_tcp_info
from penstock.edge_proxy.uplink.connecting import UplinkRefusedError
from penstock.edge_proxy.uplink.packet_relay import PacketRelay
from penstock.edge_proxy.uplink.packet_stream import Buffer
from penstock.edge_proxy.uplink.suspects import PROMPT_SECONDS, SentItem
from penstock.edge_proxy.upstream import Upstream

if TYPE_CHECKING:
    from penstock.edge_proxy.uplink.uplink import Uplink

WRITE_HIGH_BYTES: Final = 65_536
WRITE_LOW_BYTES: Final = 16_384
"""Unsent bytes of the cloud's connection above which nothing is read from the site's broker, and
below which reading resumes. A small message has to wait for what was read before it."""
LEAST_LOOK_SECONDS: Final = 0.01
"""Least time between two checks of the conditions, so that rounding errors cause no busy loop."""

_BUDGET: Final = "budget"
_CARE: Final = "care"
"""Reasons for which reading from the site's broker pauses, beside those named after connections."""

PROOF_SECONDS: Final = 0.05
"""Seconds between two looks at whether TCP has acknowledged what is suspect."""

WISHED: Final = "wished"
"""Reason of an end that is no failure."""

NOTHING_LEFT: Final = "nothing is left in it"
"""Why a lane disconnects that is no longer configured."""

GOODBYE_SECONDS: Final = 2.0
"""How long a stop waits for the cloud's connection to take what is written."""


def _tcp_info(transport: asyncio.Transport) -> TcpInfo | None:
    """Return what the kernel knows of a connection, or None."""
    sock = transport.get_extra_info("socket")
    return None if sock is None else read_tcp_info(sock.fileno())


class ArrivalProof:
    """Finds out by TCP whether the cloud's machine has received all of a suspect item."""

    def __init__(self, item: SentItem, transport: asyncio.Transport) -> None:
        """Begin before the first byte of the item is written."""
        self.item = item
        self._transport = transport
        self._sent_at: float | None = None
        self._acknowledged_at: float | None = None
        info = _tcp_info(transport)
        self._bytes_before = 0 if info is None else info.bytes_acked

    def look(self, now: float) -> bool:
        """Look at the connection once all of the item was written; return whether to look again."""
        info = _tcp_info(self._transport)
        is_sent = not self._transport.get_write_buffer_size() and not (info and info.notsent_bytes)
        if is_sent and self._sent_at is None:
            self._sent_at = now
        if is_sent and not (info and info.unacked):
            self._acknowledged_at = now
        return self._acknowledged_at is None

    def is_prompt(self, now: float) -> bool:
        """Say whether the connection, which is lost, was closed right after the item had arrived.

        A broker that closes before it has read everything resets the connection and acknowledges
        nothing more. So the time at which everything was sent counts, too.
        """
        info = _tcp_info(self._transport)
        if info and info.bytes_acked - self._bytes_before >= self.item.n_bytes > 0:
            at = self._acknowledged_at or now
        else:
            at = self._acknowledged_at or self._sent_at or -PROMPT_SECONDS
        return now - at <= PROMPT_SECONDS


class ConnectionEnd(asyncio.Protocol):
    """The protocol of one of the three connections.

    Attributes:
        transport: its transport while it is connected, else None.
        received_at: monotonic seconds at which the last bytes came.
    """

    def __init__(self, connection: CloudConnection, name: str) -> None:
        self._connection = connection
        self.name = name
        self.transport: asyncio.Transport | None = None
        self.received_at = 0.0
        self._paused_by: set[str] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast("asyncio.Transport", transport)
        self.received_at = self._connection.uplink.clock()
        if self._paused_by:
            self.transport.pause_reading()

    def data_received(self, data: Buffer) -> None:
        """Pass bytes to the relay."""
        self.received_at = self._connection.uplink.clock()
        self._connection.receive(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        """End all three connections."""
        if self.name == "cloud":
            self._connection.note_end()
        self.transport = None
        told = "" if exc is None else f": {exc}"
        if self.name == "cloud":
            self._connection.closed.set()
            self._connection.end("closed", f"the connection was closed{told}")
        else:
            self._connection.end(
                "local", f"the site's own broker has closed the client {self.name}{told}"
            )

    def pause_writing(self) -> None:
        """Stop reading what would be written here."""
        self._connection.pause(self)

    def resume_writing(self) -> None:
        """Read it again."""
        self._connection.resume(self)

    @property
    def is_reading(self) -> bool:
        """Whether this connection is read from."""
        return not self._paused_by

    def read(self, *, unless: str, wants: bool) -> None:
        """Add or remove a reason for not reading.

        Args:
            unless: the reason.
            wants: False adds it, True removes it.
        """
        was_paused = bool(self._paused_by)
        (self._paused_by.discard if wants else self._paused_by.add)(unless)
        if self.transport is None or was_paused == bool(self._paused_by):
            return
        self.received_at = self._connection.uplink.clock()  # the silence before was our own
        if self._paused_by:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()


class CloudConnection:
    """One connection to the cloud, and the two local ones that come and go with it.

    Attributes:
        ended: a future that becomes (reason, text for the log) at the end.
        relay: passes packets between the three, once the connection to the cloud is established.
        closed: an event that is set when the connection to the cloud has ended.
        is_prompt: whether it has ended right after TCP had acknowledged all that was sent.
        cloud: the protocol of the connection to the cloud's broker.
    """

    def __init__(self, uplink: Uplink, loop: asyncio.AbstractEventLoop) -> None:
        self.uplink = uplink
        self.relay: PacketRelay
        self.upstream: Upstream
        self.ended: asyncio.Future[tuple[str, str]] = loop.create_future()
        self.closed = asyncio.Event()
        self.cloud = ConnectionEnd(self, "cloud")
        self._up = ConnectionEnd(self, "up")
        self._down = ConnectionEnd(self, "down")
        self._loop = loop
        self._is_local = False
        self._is_safe = False
        self._timer: asyncio.TimerHandle | None = None
        self._ask_timer: asyncio.TimerHandle | None = None
        self._is_asking_soon = False
        self._condition_timer: asyncio.TimerHandle | None = None
        self._budget_timer: asyncio.TimerHandle | None = None
        self._pacer: LanePacer | None = None
        self._written_bytes = self._arrived_before = self._bytes_before = 0
        self._ping_end: float = 0
        self._pinged_at: float | None = None
        self._proof: ArrivalProof | None = None
        self.is_prompt = False

    @property
    def is_accepted(self) -> bool:
        """Whether the cloud's broker has accepted the connection."""
        return self._is_local

    def begin(self, relay: PacketRelay) -> None:
        """Send CONNECT to the cloud's broker."""
        self.relay = relay
        if self.cloud.transport is not None:
            self.cloud.transport.set_write_buffer_limits(WRITE_HIGH_BYTES, WRITE_LOW_BYTES)
            info = _tcp_info(self.cloud.transport)
            self._bytes_before = 0 if info is None else info.bytes_acked
        timeout = self.uplink.keys.upstream.connack_timeout_seconds
        self._timer = self._loop.call_later(
            timeout, self.end, "connack", f"no CONNACK in {timeout:g} s"
        )
        self._flush()

    def receive(self, side: ConnectionEnd, data: Buffer) -> None:
        """Hand bytes to the relay and write what it wants to send."""
        if self.ended.done():
            return
        relay = self.relay
        try:
            streams = {"cloud": relay.from_cloud, "up": relay.from_up, "down": relay.from_down}
            streams[side.name].receive_data(data)
        except UplinkRefusedError as error:
            self.end(error.reason, str(error))
            return
        except PeerError as error:
            self.end("protocol", f"not understood: {error}")
            return
        except Exception:
            self.uplink.logger.exception("uplink %s: a fault of the uplink", self.uplink.name)
            self.end("fault", "ended after a fault of the uplink")
            return
        if relay.is_accepted and not self._is_local:
            self._connect_locally()
        partnership = self.uplink.partnership
        if relay.not_taken:
            partnership.not_taken(relay)
        elif side is self.cloud and partnership.is_refused:
            partnership.leave_soon()
        is_safe_now = relay.is_safe and not self._is_safe
        self._is_safe = relay.is_safe
        if is_safe_now or relay.answers or relay.markers or relay.retained:
            self._ask()
        self._flush()

    def _connect_locally(self) -> None:
        """Connect the local clients, right after the cloud's CONNACK."""
        self._is_local = True
        transport = self.cloud.transport
        sock = None if transport is None else transport.get_extra_info("socket")
        extra = {} if sock is None else {"socket": sock}
        clients = self.uplink.local_clients
        # This one first: its session must be stored before a message of QoS 2 leaves. Without it,
        # the cloud's session would be ended after a kill, with what it knows of that message.
        clients.connect(self._down, is_patient=True)
        clients.connect(self._up, tells_publisher=True, extra=extra)
        self.uplink.accepted(self.relay, self.upstream)
        self._watch()
        self._look_at_conditions()
        self._loop.call_soon(self._repeat_retained)

    def _repeat_retained(self) -> None:
        """Let retained messages go up that the cloud lacks, and repeat that by a timer."""
        if self.ended.done():
            return
        seconds = self.uplink.repeat_retained(self.relay)
        self._flush()
        if seconds is not None:
            self._loop.call_later(seconds, self._repeat_retained)

    # -- lanes ---------------------------------------------------------------------------------

    def check_pace(self) -> None:
        """Pace what goes up while both lanes are connected; alone, this one has all messages."""
        uplink, transport = self.uplink, self.cloud.transport
        are_both = all(lane.counts.connected for lane in uplink.lanes)
        if not (uplink.lane.yields and are_both) or transport is None:
            if self._pacer is not None:
                self._pacer.stop()
            self._pacer = None
        elif self._pacer is None:
            counts = uplink.counts
            self._pacer = LanePacer(transport, self._loop, uplink.clock, counts.has_yielded)
            self._pacer.sent()  # messages may be under way already

    # -- subscriptions -------------------------------------------------------------------------

    def want_subscriptions(self) -> None:
        """Ask the cloud for what has changed, soon: clients subscribe to several filters."""
        if self._is_safe and not self._is_asking_soon:
            self._is_asking_soon = True
            self._loop.call_soon(self._ask_now)

    def _ask_now(self) -> None:
        self._is_asking_soon = False
        if not self.ended.done():
            self._ask()
            self._flush()

    def _ask(self) -> None:
        wait = self.uplink.ask(self.relay)
        if self._ask_timer is not None:
            self._ask_timer.cancel()
        self._ask_timer = None if wait is None else self._loop.call_later(wait, self._ask_now)

    def _flush(self) -> None:
        relay = self.relay
        transport = self.cloud.transport
        is_new = self._proof is None or self._proof.item is not relay.busy
        if relay.busy is not None and transport is not None and is_new:
            self._proof = ArrivalProof(relay.busy, transport)
            self._loop.call_soon(self._look_at_proof, self._proof)
        self._up.read(unless=_CARE, wants=relay.busy is None or relay.cloud.is_in_payload)
        if relay.cloud.out:
            if self.uplink.budget.bytes_per_second is not None:
                self._pay(sum(map(len, relay.cloud.out)))
            if self._pacer is not None:
                self._pacer.sent()
            self._written_bytes += sum(map(len, relay.cloud.out))
            if self._ping_end == math.inf and not relay.cloud.is_in_payload:
                self._ping_end = self._written_bytes
        for side, writer in (
            (self.cloud, relay.cloud),
            (self._up, relay.up),
            (self._down, relay.down),
        ):
            if writer.out and side.transport is not None:
                side.transport.writelines(writer.take())

    def _look_at_proof(self, proof: ArrivalProof) -> None:
        """Check whether TCP has acknowledged what everything else waits for."""
        if proof is not self._proof or self.ended.done():
            return
        if self.relay.cloud.is_in_payload or proof.look(self.uplink.clock()):
            self._loop.call_later(PROOF_SECONDS, self._look_at_proof, proof)

    def note_end(self) -> None:
        """Note whether the connection to the cloud has ended right after what was sent."""
        proof, relay = self._proof, self.relay
        if proof is not None and relay.busy is proof.item and not relay.cloud.is_in_payload:
            self.is_prompt = proof.is_prompt(self.uplink.clock())

    # -- conditions ----------------------------------------------------------------------------

    def _look_at_conditions(self) -> None:
        """Disconnect where the conditions do not hold any more, else check again later."""
        why, seconds = self.uplink.look()
        if why:
            self.leave(why, for_good=why == NOTHING_LEFT)
        else:
            self._condition_timer = self._loop.call_later(
                max(seconds, LEAST_LOOK_SECONDS), self._look_at_conditions
            )

    def _pay(self, n_bytes: int) -> None:
        """Spend budget on bytes that go up; read nothing more while it is overdrawn."""
        budget = self.uplink.budget
        now = self.uplink.clock()
        budget.spend(n_bytes, now)
        wait = budget.wait_seconds(now)
        if wait and self._budget_timer is None:
            self._up.read(unless=_BUDGET, wants=False)
            self._budget_timer = self._loop.call_later(wait, self._paid)

    def _paid(self) -> None:
        self._budget_timer = None
        wait = self.uplink.budget.wait_seconds(self.uplink.clock())
        if wait:
            self._budget_timer = self._loop.call_later(wait, self._paid)
        else:
            self._up.read(unless=_BUDGET, wants=True)

    # -- flow control --------------------------------------------------------------------------

    def pause(self, side: ConnectionEnd) -> None:
        """Read nothing that would go to a connection which takes no more."""
        for other in self._sources(side):
            other.read(unless=side.name, wants=False)

    def resume(self, side: ConnectionEnd) -> None:
        """Read again what goes to a connection which takes more."""
        for other in self._sources(side):
            other.read(unless=side.name, wants=True)

    def _sources(self, side: ConnectionEnd) -> tuple[ConnectionEnd, ...]:
        return (self._up, self._down) if side is self.cloud else (self.cloud,)

    # -- keep alive ----------------------------------------------------------------------------

    def _watch(self) -> None:
        """Check the connection once in a quarter of the Keep Alive."""
        if self._timer is not None:
            self._timer.cancel()
        keep_alive = self.relay.keep_alive
        if keep_alive:
            self._timer = self._loop.call_later(keep_alive / 4, self._look)
        else:
            self._timer = None

    def _look(self) -> None:
        """Send PINGREQ after half of the Keep Alive, and give up after 1.5 times it.

        On a slow link, a large message alone may take longer than the Keep Alive. While a PINGREQ
        is on its way behind it, bytes that TCP acknowledges count as signs of life. Later they do
        not, as the kernel also acknowledges for a broker that has stopped. Nor is it silence where
        the uplink itself does not read, as the site's broker has no room.
        """
        transport = self.cloud.transport
        if transport is None:
            return
        now = self.uplink.clock()
        keep_alive = self.relay.keep_alive
        arrived_bytes = self._arrived_bytes(transport)
        is_arriving = arrived_bytes > self._arrived_before
        self._arrived_before = arrived_bytes
        if (is_arriving and arrived_bytes < self._ping_end) or not self.cloud.is_reading:
            self.cloud.received_at = now
        silence = now - self.cloud.received_at
        if silence >= 1.5 * keep_alive:
            self.end("silent", f"nothing came in {silence:.0f} s; Keep Alive {keep_alive} s")
            return
        if self._pinged_at is None or now - self._pinged_at >= keep_alive / 2:
            self._pinged_at = now
            self.relay.ping()
            self._ping_end = math.inf
            self._flush()
        self._watch()

    def _arrived_bytes(self, transport: asyncio.Transport) -> int:
        """Return how many of the written bytes the other end's kernel has received."""
        info = _tcp_info(transport)
        if info is None:
            return self._written_bytes - transport.get_write_buffer_size()
        return info.bytes_acked - self._bytes_before

    # -- the end -------------------------------------------------------------------------------

    async def say_goodbye(self) -> None:
        """Disconnect, and wait until that was sent, for a short time."""
        if self.ended.done() or self.cloud.transport is None or not self.is_accepted:
            return
        self.leave("it stops")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_SECONDS):
                await self.closed.wait()
        self.close()

    def leave(self, why: str, *, for_good: bool = False) -> None:
        """Disconnect on purpose."""
        is_told = self.relay.disconnect(for_good=for_good)
        self._flush()
        transport = self.cloud.transport
        if is_told and transport is not None:
            transport.close()  # when all is written
        else:
            self.closed.set()
        if not self.ended.done():
            self.ended.set_result((WISHED, why))

    def end(self, reason: str, told: str) -> None:
        """End all three connections; a second call does nothing."""
        if not self.ended.done():
            self.ended.set_result((reason, told))
            self.close()

    def close(self) -> None:
        """Close what is open. The site's broker still handles what the local clients have sent."""
        for timer in (self._timer, self._ask_timer, self._condition_timer, self._budget_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._ask_timer = self._condition_timer = self._budget_timer = None
        if self._pacer is not None:
            self._pacer.stop()
        for side in (self._up, self._down):
            if side.transport is not None:
                side.transport.close()
        if self.cloud.transport is not None:
            self.cloud.transport.abort()
