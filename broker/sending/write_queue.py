"""What is to be written to one client, and how much of it in one round.

Theory of operation. `out` collects packets until the driver writes them all at once; where that is
much, in *rounds* in which the other connections have their share too. Payloads in memory stand
there by reference. One that lives elsewhere stands there as a `PayloadReader`, of which a round
takes one piece; while the transport has no room the rest stays, and with it all that comes behind.
So a client that stalls never has more of such a payload in memory than one piece.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.broker.payload import PayloadReader

if TYPE_CHECKING:
    from penstock.broker.sending.core_context import Shared

WRITE_BYTES: Final = 640 * 1024
"""What one connection is written before the others touched have had as much. While the broker
writes to those, another processor sees to what the first have acknowledged: 1 MiB to each of 50
readers takes the kernel 9 ms in two rounds, 12 ms in one, 16 ms in sixteen."""

Buffer: TypeAlias = bytes | bytearray | memoryview
"""What a transport writes."""


class Outgoing:
    """The bytes on their way to one client.

    Attributes:
        core: what all of the broker share.
        served: what the driver serves once this was touched: the connection with its transport.
        is_touched: on the turn's list for the driver.
        is_pump_wanted: something may be able to leave the outbox.
        needs_look: the driver must look at more of it than what is in `out`.
        wants_more: there is more to send than the last pump took.
        out: what to write, in order; the driver takes it by `data_to_send`, round by round.
        out_bytes: what it sums up to.
        round_bytes: bytes of `out` above which a round takes not all of it; 0 while there is a
            payload in it that is read piece by piece.
        is_unreadable: a payload that has begun to leave cannot be read on: the connection must end.
        is_paused: the transport has more unsent bytes than it should.
        unread_bytes: about what the memory holds of answers to this client that were put while
            the transport had no room.
        copy_maximum: bytes of the largest PUBLISH that goes to this client as it came; 0 where
            none does, as the client takes Topic Aliases.
    """

    __slots__ = (
        "copy_maximum",
        "core",
        "is_paused",
        "is_pump_wanted",
        "is_touched",
        "is_unreadable",
        "needs_look",
        "out",
        "out_bytes",
        "round_bytes",
        "served",
        "unread_bytes",
        "wants_more",
    )

    def __init__(self, core: Shared, served: Any) -> None:
        self.core = core
        self.served = served
        self.is_touched = False
        self.needs_look = False
        self.is_pump_wanted = False
        self.wants_more = False
        self.out: list[Buffer | PayloadReader] = []
        self.out_bytes = 0
        self.round_bytes = WRITE_BYTES
        self.is_paused = False
        self.is_unreadable = False
        self.unread_bytes = 0
        self.copy_maximum = 0

    def want_pump(self) -> None:
        """Ask the driver for a pump: something may be able to leave the outbox."""
        self.is_pump_wanted = True
        self.core.turn.touch(self)

    def data_to_send(self) -> list[Buffer]:
        """Return what is to be written now, and keep in `out` what goes in the next round."""
        out, self.out = self.out, []
        n_bytes = self.out_bytes
        self.out_bytes = 0
        if n_bytes > self.round_bytes:
            if not self.round_bytes:
                return self._next_piece(out, n_bytes)
            if not self.is_paused:
                self._keep_rest(out)
                n_bytes -= self.out_bytes
        self.core.counters.bytes_sent += n_bytes
        return out  # type: ignore[return-value]  # no reader is in it

    @property
    def has_unread(self) -> bool:
        """Whether a payload in `out` has still to be read, so that only a part can be written."""
        return not self.round_bytes

    @property
    def is_stuck(self) -> bool:
        """Whether nothing of `out` can be written until the transport has room again."""
        return self.is_paused and not self.round_bytes

    def drop_out(self) -> None:
        """Discard the unwritten bytes, because the connection has ended."""
        self.out = []
        self.out_bytes = 0
        self.round_bytes = WRITE_BYTES

    def _next_piece(self, out: list[Any], n_bytes: int) -> list[Buffer]:
        """Return what goes until the end of a stored payload's next piece; keep the rest.

        A packet that has begun and cannot go on is the end of the connection.

        Args:
            out: what there is to write, a reader among it.
            n_bytes: what it sums up to.
        """
        if self.is_paused:
            self.out, self.out_bytes = out, n_bytes
            return []
        index = next(i for i, each in enumerate(out) if isinstance(each, PayloadReader))
        reader = out[index]
        piece = self.core.guard.call(self.core.payload_store, reader.read, otherwise=None)
        if piece is None:
            self.is_unreadable = True
            self.drop_out()
            self.core.turn.touch(self)
            return []
        now = [*out[:index], piece]
        self.out = out[index if len(reader) else index + 1 :]
        if not any(isinstance(each, PayloadReader) for each in self.out):
            self.round_bytes = WRITE_BYTES
        n_now = sum(map(len, now))
        self.out_bytes = n_bytes - n_now
        self.core.counters.bytes_sent += n_now
        return now

    def _keep_rest(self, out: list[Any]) -> None:
        """Move what is beyond `WRITE_BYTES` back into `out`, by reference."""
        room = WRITE_BYTES
        for i, data in enumerate(out):
            if len(data) > room:
                view = memoryview(data)
                self.out = [view[room:], *out[i + 1 :]]
                self.out_bytes = sum(map(len, self.out))
                out[i:] = [view[:room]]
                return
            room -= len(data)
