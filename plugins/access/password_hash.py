"""Passwords as mosquitto_passwd stores them: ``$7$`` and ``$6$`` hashes (mosquitto 2.0).

A hash is text parts joined by ``$``: ``7``, the iterations, the salt and the digest of PBKDF2 with
HMAC-SHA-512; or ``6``, the salt and the SHA-512 digest of password and salt. Salt and digest are in
base64.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Final, NamedTuple

DIGEST_BYTES: Final = 64
"""Of SHA-512."""

MAX_ITERATIONS: Final = 10_000_000
"""Seconds of processor time for one login; a larger number is a mistake."""

DEFAULT_ITERATIONS: Final = 10_000
"""Of a new hash. mosquitto 2.0 uses 101, which do not protect a stolen file. Ten thousand take
about 10 ms, so that a fleet of a thousand clients still reconnects within ten seconds."""

ALLOWED: Final = "$7$ITERATIONS$SALT$HASH or $6$SALT$HASH, as mosquitto_passwd writes them"


class PasswordHash(NamedTuple):
    """One stored password.

    Attributes:
        iterations: of PBKDF2, 1 to `MAX_ITERATIONS`; 0 for the older form, a single digest.
        salt: any number of bytes, at least one.
        digest: 64 bytes.
    """

    iterations: int
    salt: bytes
    digest: bytes

    def __str__(self) -> str:
        """Return the hash as a file has it."""
        salt, digest = (base64.b64encode(part).decode() for part in (self.salt, self.digest))
        if not self.iterations:
            return f"$6${salt}${digest}"
        return f"$7${self.iterations}${salt}${digest}"


def make_hash(password: bytes, salt: bytes, iterations: int = DEFAULT_ITERATIONS) -> PasswordHash:
    """Return the ``$7$`` hash of a password; it blocks the calling thread while it computes.

    Args:
        password: as the client will send it.
        salt: random, 12 bytes for mosquitto.
        iterations: 1 to `MAX_ITERATIONS`.
    """
    return PasswordHash(iterations, salt, _digest(password, salt, iterations))


def verify(password: bytes, stored: PasswordHash) -> bool:
    """Compare a password with the stored one in constant time.

    It takes about a microsecond for each of `stored.iterations`; the interpreter's lock is released
    meanwhile.
    """
    digest = _digest(password, stored.salt, stored.iterations)
    return hmac.compare_digest(digest, stored.digest)


def parse_hash(text: str) -> PasswordHash:
    """Read a hash.

    Raises:
        ValueError: it has another form; the text says what is allowed and holds no part of it.
    """
    kind, *parts = text[1:].split("$") if text.startswith("$") else [""]
    if kind == "7" and len(parts) == 3 and parts[0].isascii() and parts[0].isdecimal():
        iterations = int(parts.pop(0))
        if not 1 <= iterations <= MAX_ITERATIONS:
            raise ValueError(f"1 to {MAX_ITERATIONS} iterations")
    elif kind == "6" and len(parts) == 2:
        iterations = 0
    else:
        raise ValueError(ALLOWED)
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in parts)
    except ValueError:
        raise ValueError(f"{ALLOWED}, salt and hash in base64") from None
    if not salt or len(digest) != DIGEST_BYTES:
        raise ValueError(f"{ALLOWED}, with a salt and a hash of {DIGEST_BYTES} bytes")
    return PasswordHash(iterations, salt, digest)


def _digest(password: bytes, salt: bytes, iterations: int) -> bytes:
    if iterations:
        return hashlib.pbkdf2_hmac("sha512", password, salt, iterations, DIGEST_BYTES)
    return hashlib.sha512(password + salt).digest()
