"""One connection of an uplink to the cloud, and the two local ones with it, on the network."""

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
"""Unsent bytes of the cloud's connection above which no more is taken from the site's broker, and
below which it is again. A small message has to wait for what was taken before it."""
LEAST_LOOK_SECONDS: Final = 0.01
"""Between two looks at the conditions: a rounding error must not cost a turn of the loop each."""

_BUDGET: Final = "budget"
_CARE: Final = "care"
"""Reasons for not reading from the site's broker."""

PROOF_SECONDS: Final = 0.05
"""Between two looks at whether TCP has acknowledged what is suspect."""


WISHED: Final = "wished"
"""Reason of an end that is no failure."""

NOTHING_LEFT: Final = "nothing is left in it"
"""Why a lane disconnects that is configured no more."""

GOODBYE_SECONDS: Final = 2.0
"""How long a stop waits for the cloud's connection to take what is written."""


def _tcp_info(transport: asyncio.Transport) -> TcpInfo | None:
    """Ask the kernel about a connection; None where it does not tell."""
    sock = transport.get_extra_info("socket")
    return None if sock is None else read_tcp_info(sock.fileno())


class ArrivalProof:
    """Whether the cloud's machine has got all of what is suspect, as far as TCP can tell.

    Attributes:
        thing: that is suspect.
    """

    def __init__(self, thing: SentItem, transport: asyncio.Transport) -> None:
        """Begin, before the first byte of it is written."""
        self.thing = thing
        self._transport = transport
        self._sent_at: float | None = None
        self._acknowledged_at: float | None = None
        info = _tcp_info(transport)
        self._bytes_before = 0 if info is None else info.bytes_acked

    def look(self, now: float) -> bool:
        """Look at the connection; return whether to look again. All of it was written."""
        info = _tcp_info(self._transport)
        is_sent = not self._transport.get_write_buffer_size() and not (info and info.notsent_bytes)
        if is_sent and self._sent_at is None:
            self._sent_at = now
        if is_sent and not (info and info.unacked):
            self._acknowledged_at = now
        return self._acknowledged_at is None

    def is_prompt(self, now: float) -> bool:
        """Say whether the connection, which is lost, was closed right after all of it had come.

        A broker that closes without having read all resets the connection, and acknowledges nothing
        then: what was sent whole counts.
        """
        info = _tcp_info(self._transport)
        if info and info.bytes_acked - self._bytes_before >= self.thing.n_bytes > 0:
            at = self._acknowledged_at or now
        else:
            at = self._acknowledged_at or self._sent_at or -PROMPT_SECONDS
        return now - at <= PROMPT_SECONDS


class ConnectionEnd(asyncio.Protocol):
    """One of the three connections of a link.

    Attributes:
        name: ``cloud``, ``up`` or ``down``.
        transport: once connected, until it has ended.
        received_at: monotonic seconds of the last bytes.
    """

    def __init__(self, link: CloudConnection, name: str) -> None:
        self._connection = link
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
        """Pass bytes through the relay."""
        self.received_at = self._connection.uplink.clock()
        self._connection.receive(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the whole link."""
        if self.name == "cloud":
            self._connection.look_at_end()
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
        """Have nothing read that would be written here."""
        self._connection.pause(self)

    def resume_writing(self) -> None:
        """Have it read again."""
        self._connection.resume(self)

    @property
    def is_reading(self) -> bool:
        """Whether anything that comes is read."""
        return not self._paused_by

    def read(self, *, unless: str, wants: bool) -> None:
        """Read or not.

        Args:
            unless: name of what the reason for a pause is.
            wants: False to pause for this reason, True to let it go.
        """
        was_paused = bool(self._paused_by)
        (self._paused_by.discard if wants else self._paused_by.add)(unless)
        if self.transport is None or was_paused == bool(self._paused_by):
            return
        self.received_at = self._connection.uplink.clock()  # silence was ours
        if self._paused_by:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()


class CloudConnection:
    """One connection to the cloud, and the two local ones with it.

    Attributes:
        ended: set to (reason, what to log) at the end.
        relay: between the three, once the connection to the cloud is established.
        upstream: the address that it goes to.
        closed: set when the connection to the cloud has ended.
        is_prompt: it has ended right after TCP had acknowledged all that was sent.
        cloud: the connection to the cloud's broker.
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
        self._asking: asyncio.TimerHandle | None = None
        self._is_asking_soon = False
        self._looking: asyncio.TimerHandle | None = None
        self._paying: asyncio.TimerHandle | None = None
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
        """Begin to speak MQTT on the connection to the cloud."""
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
        """Hand bytes to the relay and write what comes of them."""
        if self.ended.done():
            return
        relay = self.relay
        try:
            if side is self.cloud:
                relay.receive_cloud(data)
            elif side is self._up:
                relay.receive_up(data)
            else:
                relay.receive_down(data)
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
        # First: its session must be safe before a message of QoS 2 leaves. Without it, the cloud's
        # session would end after a kill, and take what it knows of that message with it.
        clients.connect(self._down, is_patient=True)
        clients.connect(self._up, tells_publisher=True, extra=extra)
        self.uplink.accepted(self.relay, self.upstream)
        self._watch()
        self._look_at_conditions()
        self._loop.call_soon(self._repeat_retained)

    def _repeat_retained(self) -> None:
        """Let retained messages go up that the cloud lacks, a few at a time."""
        if self.ended.done():
            return
        seconds = self.uplink.repeat_retained(self.relay)
        self._flush()
        if seconds is not None:
            self._loop.call_later(seconds, self._repeat_retained)

    # -- lanes ---------------------------------------------------------------------------------

    def see_to_pace(self) -> None:
        """Let what goes up yield while both lanes stand; alone, this one has all messages."""
        uplink, transport = self.uplink, self.cloud.transport
        stand = all(lane.counts.connected for lane in uplink.lanes)
        if not (uplink.lane.yields and stand) or transport is None:
            if self._pacer is not None:
                self._pacer.stop()
            self._pacer = None
        elif self._pacer is None:
            counts = uplink.counts
            self._pacer = LanePacer(transport, self._loop, uplink.clock, counts.has_yielded)
            self._pacer.sent()  # something may be under way

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
        if self._asking is not None:
            self._asking.cancel()
        self._asking = None if wait is None else self._loop.call_later(wait, self._ask_now)

    def _flush(self) -> None:
        relay = self.relay
        transport = self.cloud.transport
        is_new = self._proof is None or self._proof.thing is not relay.busy
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
        """See whether TCP has acknowledged what all else waits for."""
        if proof is not self._proof or self.ended.done():
            return
        if self.relay.cloud.is_in_payload or proof.look(self.uplink.clock()):
            self._loop.call_later(PROOF_SECONDS, self._look_at_proof, proof)

    def look_at_end(self) -> None:
        """Note whether the connection to the cloud has ended right after what was sent."""
        proof, relay = self._proof, self.relay
        if proof is not None and relay.busy is proof.thing and not relay.cloud.is_in_payload:
            self.is_prompt = proof.is_prompt(self.uplink.clock())

    # -- conditions ----------------------------------------------------------------------------

    def _look_at_conditions(self) -> None:
        """Disconnect where the conditions do not hold any more, and look again later."""
        why, seconds = self.uplink.look()
        if why:
            self.leave(why, for_good=why == NOTHING_LEFT)
        else:
            self._looking = self._loop.call_later(
                max(seconds, LEAST_LOOK_SECONDS), self._look_at_conditions
            )

    def _pay(self, n_bytes: int) -> None:
        """Count bytes that go up, and take no more from the site's broker until they are paid."""
        budget = self.uplink.budget
        now = self.uplink.clock()
        budget.spend(n_bytes, now)
        wait = budget.wait_seconds(now)
        if wait and self._paying is None:
            self._up.read(unless=_BUDGET, wants=False)
            self._paying = self._loop.call_later(wait, self._paid)

    def _paid(self) -> None:
        self._paying = None
        wait = self.uplink.budget.wait_seconds(self.uplink.clock())
        if wait:
            self._paying = self._loop.call_later(wait, self._paid)
        else:
            self._up.read(unless=_BUDGET, wants=True)

    # -- flow control --------------------------------------------------------------------------

    def pause(self, side: ConnectionEnd) -> None:
        """One connection takes no more: read nothing that goes there."""
        for other in self._sources(side):
            other.read(unless=side.name, wants=False)

    def resume(self, side: ConnectionEnd) -> None:
        """It takes more."""
        for other in self._sources(side):
            other.read(unless=side.name, wants=True)

    def _sources(self, side: ConnectionEnd) -> tuple[ConnectionEnd, ...]:
        return (self._up, self._down) if side is self.cloud else (self.cloud,)

    # -- keep alive ----------------------------------------------------------------------------

    def _watch(self) -> None:
        """Look after the connection once in a quarter of the Keep Alive."""
        if self._timer is not None:
            self._timer.cancel()
        keep_alive = self.relay.keep_alive
        if keep_alive:
            self._timer = self._loop.call_later(keep_alive / 4, self._look)
        else:
            self._timer = None

    def _look(self) -> None:
        """Ask for a sign of life after half of the Keep Alive, and give up after 1.5 times it.

        On a slow link, a large message alone may take longer than the Keep Alive. While a PINGREQ
        is on its way behind it, bytes that TCP acknowledges are signs of life, and no later: the
        kernel acknowledges for a broker that stands still, too. Nor is it silence where nothing is
        read, as the site's broker has no room.
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
        """Return how many of the bytes that were written have come to the other end's kernel."""
        info = _tcp_info(transport)
        if info is None:
            return self._written_bytes - transport.get_write_buffer_size()
        return info.bytes_acked - self._bytes_before

    # -- the end -------------------------------------------------------------------------------

    async def say_goodbye(self) -> None:
        """Disconnect, and wait a little until that has left."""
        if self.ended.done() or self.cloud.transport is None or not self.is_accepted:
            return
        self.leave("it stops")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_SECONDS):
                await self.closed.wait()
        self.close()

    def leave(self, why: str, *, for_good: bool = False) -> None:
        """Disconnect, as is wished.

        Args:
            why: for the log.
            for_good: the lane does not connect again.
        """
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
        """End the link, once; all three connections end."""
        if not self.ended.done():
            self.ended.set_result((reason, told))
            self.close()

    def close(self) -> None:
        """Close what is open. What the local clients were given is still handled."""
        for timer in (self._timer, self._asking, self._looking, self._paying):
            if timer is not None:
                timer.cancel()
        self._timer = self._asking = self._looking = self._paying = None
        if self._pacer is not None:
            self._pacer.stop()
        for side in (self._up, self._down):
            if side.transport is not None:
                side.transport.close()
        if self.cloud.transport is not None:
            self.cloud.transport.abort()
