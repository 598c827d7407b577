"""SCRAM-SHA-256 as a method of enhanced authentication (RFC 5802, RFC 7677).

The broker stores what verifies a password and cannot be used in place of it: for each user the
salt, the iterations, the StoredKey and the ServerKey, in PostgreSQL's format. A verification costs
two digests; the iterations are the client's work. There is no channel binding.

An unknown user also gets a salt, always the same, with the length and iterations of a known user's,
and fails at the end as a wrong password does. So a client cannot learn which users exist.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Final, NamedTuple

from scramp import ScramException, ScramMechanism

from penstock.broker.access_control import Accepted, AuthExchange, AuthStep, Challenge, Refused

METHOD: Final = "SCRAM-SHA-256"

DEFAULT_ITERATIONS: Final = 4_096
"""RFC 7677's number, and PostgreSQL's: the smallest device pays for it at each CONNECT."""

MAX_ITERATIONS: Final = 10_000_000
"""Clients accept no more iterations than these."""

SALT_BYTES: Final = 16

_WRONG_PROOF: Final = "invalid-proof"
"""RFC 5802's error for a client that does not know the password."""

_KEY_BYTES: Final = 32
_MIN_SALT_BYTES: Final = 12

ALLOWED: Final = (
    f"{METHOD}$ITERATIONS:SALT$STOREDKEY:SERVERKEY, as penstock passwd --scram writes it"
)


class Credentials(NamedTuple):
    """The values that verify one user's password.

    Attributes:
        salt: `SALT_BYTES` or more, at least 12.
        stored_key: 32 bytes.
        server_key: 32 bytes.
        iterations: 4,096 to `MAX_ITERATIONS`.
    """

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __str__(self) -> str:
        """Return the credentials as a file has them."""
        salt, stored, server = (
            base64.b64encode(part).decode()
            for part in (self.salt, self.stored_key, self.server_key)
        )
        return f"{METHOD}${self.iterations}:{salt}${stored}:{server}"


def make_credentials(
    password: str, salt: bytes, iterations: int = DEFAULT_ITERATIONS
) -> Credentials:
    """Return what verifies a password; it blocks the calling thread while it computes.

    Raises:
        ValueError: the password has characters that SASLprep forbids (RFC 4013).
    """
    try:
        return Credentials._make(ScramMechanism(METHOD).make_auth_info(password, iterations, salt))
    except ScramException as error:
        raise ValueError(f"a password that SASLprep takes: {error}") from error


def parse_credentials(text: str) -> Credentials:
    """Read the credentials of a user.

    Raises:
        ValueError: they have another form; the text says what is allowed.
    """
    method, _, rest = text.partition("$")
    numbers, _, keys = rest.partition("$")
    iterations, _, salt = numbers.partition(":")
    if method != METHOD or not (iterations.isascii() and iterations.isdecimal()):
        raise ValueError(ALLOWED)
    try:
        parts = [base64.b64decode(part, validate=True) for part in (salt, *keys.split(":"))]
    except ValueError:
        raise ValueError(f"{ALLOWED}, with base64") from None
    if [len(part) for part in parts[1:]] != [_KEY_BYTES, _KEY_BYTES]:
        raise ValueError(f"{ALLOWED}, with keys of {_KEY_BYTES} bytes")
    decoded_salt, stored_key, server_key = parts
    if len(decoded_salt) < _MIN_SALT_BYTES:
        raise ValueError(f"{ALLOWED}, with a salt of {_MIN_SALT_BYTES} bytes or more")
    if not DEFAULT_ITERATIONS <= int(iterations) <= MAX_ITERATIONS:
        raise ValueError(f"{DEFAULT_ITERATIONS} to {MAX_ITERATIONS} iterations")
    return Credentials(decoded_salt, stored_key, server_key, int(iterations))


class Users:
    """All users of one file, and decoys for unknown ones."""

    def __init__(self, users: Mapping[str, Credentials]) -> None:
        self._users = users
        self._models = tuple(users.values())
        known = b"".join(credentials.server_key for credentials in self._models)
        self._secret = hashlib.sha256(known).digest()

    def get(self, username: str) -> Credentials | None:
        """Return a user's credentials; None for an unknown user."""
        return self._users.get(username)

    def find(self, username: str) -> Credentials:
        """Return a user's credentials; for an unknown user some that no password matches."""
        found = self._users.get(username)
        if found is not None:
            return found
        chosen, stored_key, server_key = (
            hmac.digest(self._secret, f"{purpose}:{username}".encode(), "sha256")
            for purpose in ("chosen", "stored", "server")
        )
        iterations, n_salt_bytes = DEFAULT_ITERATIONS, SALT_BYTES
        if self._models:
            model = self._models[int.from_bytes(chosen, "big") % len(self._models)]
            iterations, n_salt_bytes = model.iterations, len(model.salt)
        salt = hashlib.shake_256(chosen).digest(n_salt_bytes)
        return Credentials(salt, stored_key, server_key, iterations)


class ScramExchange(AuthExchange):
    """One client's exchange; refused where it departs from RFC 5802."""

    def __init__(self, users: Users) -> None:
        self._users = users
        self._username = ""
        self._has_begun = False
        self._server = ScramMechanism(METHOD).make_server(self._find)

    def _find(self, username: str) -> Credentials:
        self._username = username
        return self._users.find(username)

    def step(self, data: bytes | None) -> AuthStep:
        """Take the client's next message; None at first asks for it."""
        if data is None and not self._has_begun:
            return Challenge()
        try:
            text = (data or b"").decode()
            if self._has_begun:
                self._server.set_client_final(text)
                return Accepted(self._username, data=self._server.get_server_final().encode())
            self._has_begun = True
            self._server.set_client_first(text)
            return Challenge(self._server.get_server_first().encode())
        except ScramException as error:
            return self._refused(is_proof=_WRONG_PROOF in str(error))
        except UnicodeDecodeError:
            return self._refused(is_proof=False)

    def _refused(self, *, is_proof: bool) -> Refused:
        """Return a refusal that says for the log whether the proof or the message was wrong."""
        if not is_proof:
            return Refused(why=f"not as {METHOD} has it")
        username = self._username
        why = "unknown user" if self._users.get(username) is None else "wrong password"
        return Refused(why=f"user {username!r}: {why}", username=username)
