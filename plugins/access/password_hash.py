"""Passwords as mosquitto_passwd stores them: ``$7$`` and ``$6$`` hashes, and Argon2id.

A hash is text parts joined by ``$``: ``7``, the iterations, the salt and the digest of PBKDF2 with
HMAC-SHA-512; or ``6``, the salt and the SHA-512 digest of password and salt. Salt and digest are in
base64. mosquitto 2.1 writes Argon2id (RFC 9106) in the form of its reference implementation:
``argon2id``, the version, memory, passes and lanes, salt and digest in base64 without padding.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import Final, NamedTuple, TypeAlias

DIGEST_BYTES: Final = 64
"""The length of a SHA-512 digest."""

MAX_ITERATIONS: Final = 10_000_000
"""A hash with more iterations is a mistake: one login takes seconds of processor time."""

DEFAULT_ITERATIONS: Final = 10_000
"""The iterations of a new hash. mosquitto 2.0 uses 101, which do not protect a stolen file. Ten
thousand take about 10 ms, so that a fleet of a thousand clients still reconnects within ten
seconds."""

LEAST_SALT_BYTES: Final = 8
LEAST_DIGEST_BYTES: Final = 4
"""Argon2's minimum lengths."""

MAX_MEMORY_KIB: Final = 1_048_576
MAX_PASSES: Final = 100
MAX_LANES: Final = 64
"""A hash of Argon2id with more lanes, memory or passes is a mistake. mosquitto 2.1 writes
47,104 KiB, one pass and one lane."""

ALLOWED: Final = (
    "$7$ITERATIONS$SALT$HASH, $6$SALT$HASH or $argon2id$v=19$m=KIB,t=PASSES,p=LANES$SALT$HASH, as "
    "mosquitto_passwd writes them"
)

_ARGON2ID: Final = re.compile(
    r"\$argon2id\$v=(16|19)\$m=(\d{1,9}),t=(\d{1,9}),p=(\d{1,9})\$([^$]+)\$([^$]+)", re.ASCII
)


class PasswordHash(NamedTuple):
    """One stored password.

    Attributes:
        iterations: the iterations of PBKDF2, 1 to `MAX_ITERATIONS`; 0 for the older form, a single
            digest.
        salt: any number of bytes, at least one.
        digest: 64 bytes.
    """

    iterations: int
    salt: bytes
    digest: bytes

    @property
    def cost(self) -> int:
        """About the microseconds that one digest takes."""
        return self.iterations

    def digest_of(self, password: bytes) -> bytes:
        """Return the digest of a password, made as this one."""
        return _digest(password, self.salt, self.iterations)

    def __str__(self) -> str:
        """Return the hash as a file has it."""
        salt, digest = (base64.b64encode(part).decode() for part in (self.salt, self.digest))
        if not self.iterations:
            return f"$6${salt}${digest}"
        return f"$7${self.iterations}${salt}${digest}"


class Argon2Hash(NamedTuple):
    """One stored password, by Argon2id.

    Attributes:
        version: the version of the algorithm, 16 or 19.
        memory_kib: the KiB of memory that one digest takes, up to `MAX_MEMORY_KIB`.
        passes: over that memory, 1 to `MAX_PASSES`.
        lanes: degree of parallelism, 1 to `MAX_LANES`.
        salt: 8 bytes at least.
        digest: 4 bytes at least.
    """

    version: int
    memory_kib: int
    passes: int
    lanes: int
    salt: bytes
    digest: bytes

    @property
    def cost(self) -> int:
        """About the microseconds that one digest takes."""
        return self.memory_kib * self.passes

    def digest_of(self, password: bytes) -> bytes:
        """Return the digest of a password, made as this one; other threads run meanwhile."""
        from argon2.low_level import Type, hash_secret_raw  # noqa: PLC0415 - few files need it

        return hash_secret_raw(
            password,
            self.salt,
            self.passes,
            self.memory_kib,
            self.lanes,
            len(self.digest),
            Type.ID,
            self.version,
        )

    def __str__(self) -> str:
        """Return the hash as a file has it."""
        salt, digest = (
            base64.b64encode(part).decode().rstrip("=") for part in (self.salt, self.digest)
        )
        costs = f"m={self.memory_kib},t={self.passes},p={self.lanes}"
        return f"$argon2id$v={self.version}${costs}${salt}${digest}"


ARGON2_MEMORY_KIB: Final = 47_104
ARGON2_PASSES: Final = 1
ARGON2_LANES: Final = 1
ARGON2_SALT_BYTES: Final = 16
ARGON2_DIGEST_BYTES: Final = 32
"""What a new hash of Argon2id has: OWASP's first choice, and that of mosquitto 2.1. A login takes
some 50 ms of a processor and 46 MiB, so that `make_hash` stays the default: a fleet of a thousand
clients reconnects in a fifth of the time, and mosquitto 2.0 reads its files."""


StoredPassword: TypeAlias = PasswordHash | Argon2Hash


def make_hash(password: bytes, salt: bytes, iterations: int = DEFAULT_ITERATIONS) -> PasswordHash:
    """Return the ``$7$`` hash of a password; it blocks the calling thread while it computes."""
    return PasswordHash(iterations, salt, _digest(password, salt, iterations))


def make_argon2id(password: bytes, salt: bytes) -> Argon2Hash:
    """Return the Argon2id hash of a password; it blocks the calling thread while it computes."""
    costs = (19, ARGON2_MEMORY_KIB, ARGON2_PASSES, ARGON2_LANES)
    blank = Argon2Hash(*costs, salt, bytes(ARGON2_DIGEST_BYTES))
    return blank._replace(digest=blank.digest_of(password))


def verify(password: bytes, stored: StoredPassword) -> bool:
    """Compare a password with the stored one in constant time.

    It takes about `stored.cost` microseconds; the interpreter's lock is released meanwhile.
    """
    return hmac.compare_digest(stored.digest_of(password), stored.digest)


def parse_hash(text: str) -> StoredPassword:
    """Read a hash.

    Raises:
        ValueError: it has another form; the text says what is allowed and holds no part of it.
    """
    if text.startswith("$argon2id$"):
        return _parse_argon2id(text)
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


def _parse_argon2id(text: str) -> Argon2Hash:
    """Read a hash by Argon2id."""
    found = _ARGON2ID.fullmatch(text)
    if found is None:
        raise ValueError(ALLOWED)
    version, memory_kib, passes, lanes = map(int, found.groups()[:4])
    if (
        not 8 * lanes <= memory_kib <= MAX_MEMORY_KIB
        or not 1 <= passes <= MAX_PASSES
        or not 1 <= lanes <= MAX_LANES
    ):
        raise ValueError(
            f"m of 8 for each lane to {MAX_MEMORY_KIB}, t of 1 to {MAX_PASSES}, p of 1 to "
            f"{MAX_LANES}"
        )
    try:
        salt, digest = (
            base64.b64decode(part + "=" * (-len(part) % 4), validate=True)
            for part in found.groups()[4:]
        )
    except ValueError:
        raise ValueError(f"{ALLOWED}, salt and hash in base64") from None
    if len(salt) < LEAST_SALT_BYTES or len(digest) < LEAST_DIGEST_BYTES:
        raise ValueError(
            f"{ALLOWED}, with a salt of {LEAST_SALT_BYTES} bytes or more and a hash of "
            f"{LEAST_DIGEST_BYTES} or more"
        )
    return Argon2Hash(version, memory_kib, passes, lanes, salt, digest)


def _digest(password: bytes, salt: bytes, iterations: int) -> bytes:
    if iterations:
        return hashlib.pbkdf2_hmac("sha512", password, salt, iterations, DIGEST_BYTES)
    return hashlib.sha512(password + salt).digest()
