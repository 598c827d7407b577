"""Bearer tokens: each is looked up by its digest, which tells an attacker nothing by its time."""

from __future__ import annotations

import hashlib


def digest_of(token: str) -> bytes:
    """Return the digest of a secret text, whatever bytes it came as."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def digest_in(authorization: str | None) -> bytes | None:
    """Return the digest of the token in an Authorization header; None where there is none."""
    scheme, _, token = (authorization or "").partition(" ")
    return digest_of(token.strip()) if scheme.lower() == "bearer" else None
