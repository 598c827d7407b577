"""Receipt handles: what names one receive of one message, and cannot be guessed.

A handle is 32 characters: the receive in 16 bytes, and a keyed hash of them in 8, in base64 for
URLs. The key is derived from the secret of the storage, the incarnation of the queue and the group,
so that a handle of another queue or group, or one that somebody has made up, is recognised.
"""

from __future__ import annotations

import binascii
import struct
from hashlib import blake2b
from hmac import compare_digest
from typing import Final, NamedTuple

_RECEIVE: Final = struct.Struct("<HHHHq")
_MAC_BYTES: Final = 8
_HANDLE_CHARACTERS: Final = 32
_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URL: Final = bytes.maketrans(b"-_", b"+/")


class Receive(NamedTuple):
    """What a handle names.

    Attributes:
        number: physical queue.
        receive_count: of the message with this receive.
        nonce: another one in each receive, modulo 65,536.
        epoch: of the group, another one after each seek, modulo 65,536.
        offset: of the message.
    """

    number: int
    receive_count: int
    nonce: int
    epoch: int
    offset: int


class Receipts:
    """Makes and reads the handles of one group.

    Args:
        secret: of the storage.
        incarnation: of the queue.
        group_id: row number of the group.
    """

    def __init__(self, secret: bytes, incarnation: str, group_id: int) -> None:
        key = blake2b(f"{incarnation} {group_id}".encode(), key=secret, digest_size=32).digest()
        self._hash = blake2b(key=key, digest_size=_MAC_BYTES)

    def handle(self, number: int, receive_count: int, nonce: int, epoch: int, offset: int) -> str:
        """Return the handle of a receive."""
        data = _RECEIVE.pack(number, receive_count, nonce, epoch, offset)
        mac = self._hash.copy()
        mac.update(data)
        text = binascii.b2a_base64(data + mac.digest(), newline=False)
        return text.translate(_TO_URL).decode()

    def read(self, handle: str) -> Receive | None:
        """Return what a handle names; None where it was not made here."""
        if len(handle) != _HANDLE_CHARACTERS:
            return None
        try:
            data = binascii.a2b_base64(handle.encode("ascii").translate(_FROM_URL))
        except (ValueError, UnicodeEncodeError):
            return None
        if len(data) != _RECEIVE.size + _MAC_BYTES:
            return None
        mac = self._hash.copy()
        mac.update(data[: _RECEIVE.size])
        if not compare_digest(mac.digest(), data[_RECEIVE.size :]):
            return None
        return Receive._make(_RECEIVE.unpack_from(data))
