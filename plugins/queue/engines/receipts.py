"""Receipt handles name one receive of one message, and cannot be guessed.

A handle is 35 characters: the receive and the block of the message's offset, 16 bytes in base64 for
URLs; the index of the message in the block, in hexadecimal; and the message's tag, 9 bytes in
base64. A block is 16 consecutive offsets. One keyed hash of the first part gives the tags of a
whole block, so that messages that are received together cost one hash for each 16 of them; a tag
tells nothing of the others. The key is derived from the secret of the storage, the incarnation of
the queue and the group, so that a handle of another queue or group, or one that somebody has made
up, is recognised.
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b, shake_128
from typing import Final, NamedTuple

_BLOCK: Final = struct.Struct("<HHHHQ")
_BLOCK_MESSAGES: Final = 16
_BLOCK_BITS: Final = 48
"""The bits for the first offset of a block; the higher 16 bits of the nonce stand above them. A
physical queue has 2 ** 48 messages after nine years of a million a second."""
N_NONCES: Final = 1 << 32
_TAG_BYTES: Final = 9
"""The bytes of a tag: as many as one step of the hash gives for a block, in whole groups of
base64."""
_KEPT_BLOCKS: Final = 1_024
"""How many blocks of a group are kept between making and reading their handles: 16,384 messages."""
_TEXT_CHARACTERS: Final = 22
_TAG_CHARACTERS: Final = 12
_INDEXES: Final = tuple((f"{index:x}", index * _TAG_CHARACTERS) for index in range(_BLOCK_MESSAGES))
"""The index of each message of a block, and the place of its tag among all tags of the block."""
_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URL: Final = bytes.maketrans(b"-_", b"+/")


class Receive(NamedTuple):
    """What the handles of messages have in common that were received together.

    Attributes:
        receive_count: the receive count of the messages with this receive.
        nonce: another one in each receive, modulo `N_NONCES`.
        epoch: the epoch of the group, another one after each seek, modulo 65,536.
    """

    number: int
    receive_count: int
    nonce: int
    epoch: int


_NO_RECEIVE: Final = Receive(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Received:
    """Handles of one receive.

    Attributes:
        receive: what they have in common.
        indexes: the indexes of the handles among those that were read together.
    """

    receive: Receive
    indexes: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)


class Receipts:
    """Makes and reads the handles of one group."""

    def __init__(self, secret: bytes, incarnation: str, group_id: int) -> None:
        key = blake2b(f"{incarnation} {group_id}".encode(), key=secret, digest_size=32).digest()
        self._hash = shake_128(key)
        self._made: dict[str, list[str]] = {}

    def handles(self, receive: Receive, offsets: range) -> list[str]:
        """Return the handles of messages at consecutive offsets, in their order."""
        handles: list[str] = []
        number, receive_count, nonce, epoch = receive
        high, low = nonce >> 16 << _BLOCK_BITS, nonce & 0xFFFF
        start = offsets.start
        while start < offsets.stop:
            index = start % _BLOCK_MESSAGES
            block = start - index
            packed = _BLOCK.pack(number, receive_count, low, epoch, high | block)
            data = binascii.b2a_base64(packed)
            text = data[:_TEXT_CHARACTERS].translate(_TO_URL).decode()
            made = self._of_block(text)
            if len(self._made) >= _KEPT_BLOCKS:
                self._made.clear()
            self._made[text] = made
            some = made[index : offsets.stop - block]
            handles += some
            start += len(some)
        return handles

    def read(self, handles: Sequence[str]) -> tuple[list[Received], list[int]]:
        """Return what handles name, by receive, and the indexes of those not made here."""
        found: dict[Receive, Received] = {}
        blocks: dict[str, tuple[Received, int, list[str]]] = {}
        unknown: list[int] = []
        index = 0
        while index < len(handles):
            handle = handles[index]
            text = handle[:_TEXT_CHARACTERS]
            known = blocks.get(text)
            if known is None:
                receive, block, made = self._read_block(text)
                received = found.setdefault(receive, Received(receive))
                known = blocks[text] = received, block, made
            received, block, made = known
            if handle not in made:
                unknown.append(index)
                index += 1
                continue
            at = made.index(handle)
            # A client usually settles what it has received, in this order: the rest of the block.
            n = _BLOCK_MESSAGES - at
            if handles[index : index + n] != made[at:]:
                n = 1
            received.indexes.extend(range(index, index + n))
            received.offsets.extend(range(block + at, block + at + n))
            index += n
        return [one for one in found.values() if one.indexes], unknown

    def _read_block(self, text: str) -> tuple[Receive, int, list[str]]:
        """Return what the first part of a handle says, and all handles that begin with it.

        Whether the first part was made here shows in an equal handle alone.
        """
        made = self._made.pop(text, None)  # a handle is usually read once
        try:
            data = binascii.a2b_base64(text.encode("ascii").translate(_FROM_URL) + b"==")
            number, receive_count, low, epoch, place = _BLOCK.unpack(data)
        except (ValueError, struct.error):
            return _NO_RECEIVE, 0, []
        nonce = place >> _BLOCK_BITS << 16 | low
        block = place & ((1 << _BLOCK_BITS) - 1)
        return Receive(number, receive_count, nonce, epoch), block, made or self._of_block(text)

    def _of_block(self, text: str) -> list[str]:
        """Return the handles of the messages of a block."""
        keyed = self._hash.copy()
        keyed.update(text.encode())
        tags = binascii.b2a_base64(keyed.digest(_BLOCK_MESSAGES * _TAG_BYTES), newline=False)
        ends = tags.translate(_TO_URL).decode()
        return [f"{text}{index}{ends[at : at + _TAG_CHARACTERS]}" for index, at in _INDEXES]
