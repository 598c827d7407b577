"""What is to be written on one connection of an uplink."""

from __future__ import annotations

from penstock.edge_proxy.uplink.packet_stream import Buffer


class PacketWriter:
    """What is to be written on one connection; no packet comes between the pieces of another.

    Attributes:
        out: what to write, in its order.
    """

    __slots__ = ("_behind", "_bytes_left", "out")

    def __init__(self) -> None:
        self.out: list[Buffer] = []
        self._behind: list[bytes] = []
        self._bytes_left = 0

    @property
    def is_in_payload(self) -> bool:
        """Whether a PUBLISH has begun, and the rest of its payload has still to come."""
        return self._bytes_left > 0

    def send(self, frame: bytes) -> None:
        """Write a whole packet, behind the one that has begun."""
        if frame:
            (self._behind if self._bytes_left else self.out).append(frame)

    def begin(self, header: bytes, payload_bytes: int) -> None:
        """Begin a PUBLISH; `piece` follows."""
        self.out.append(header)
        self._bytes_left = payload_bytes

    def piece(self, data: Buffer, bytes_left: int) -> None:
        """Write a piece of its payload."""
        if data:
            self.out.append(data)
        self._bytes_left = bytes_left
        if not bytes_left and self._behind:
            self.out += self._behind
            self._behind.clear()

    def take(self) -> list[Buffer]:
        """Return what is to be written now."""
        out, self.out = self.out, []
        return out
