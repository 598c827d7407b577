"""The `access` plugin: combines files, certificates and listeners.

A CONNECT is checked by the rules of its listener. A password file that has the user decides by the
password. Any other user is left to the broker's other sources, and refused if there are none. A
password of many iterations is verified in one of a few threads, so that messages of other clients
go on; `penstock.plugins.access.fair_queue` decides the order. A password that was right is
recognised by a keyed digest until the file is read again, so that a fleet that reconnects neither
waits in the queue nor costs a hash for each client.

At `reload` all files are read again; they take effect only if all of them are valid.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import partial
from typing import Final

from penstock.broker.access_control import (
    NOT_JUDGED,
    PUBLISH,
    Accepted,
    AccessControl,
    Action,
    Admittance,
    Authenticator,
    AuthExchange,
    AuthStep,
    ConnectAttempt,
    Refused,
    SessionView,
)
from penstock.broker.config.addresses import address_key
from penstock.broker.config.checked_yaml import NamedBy, check_listeners, read_text
from penstock.broker.config.secret_file import warn_of_readers
from penstock.broker.extensions import Plugin, PluginContext, Reload
from penstock.plugins.access import certificate
from penstock.plugins.access.acl import READ, WRITE, AccessList, parse_acl
from penstock.plugins.access.config import AccessConfig, Rules
from penstock.plugins.access.fair_queue import FairQueue
from penstock.plugins.access.password_hash import StoredPassword, parse_hash, verify
from penstock.plugins.access.scram import METHOD, ScramExchange, Users, parse_credentials
from penstock.plugins.access.user_file import parse_users

VERIFYING_THREADS: Final = 2
"""So many logins are verified at a time; more would starve the network thread of a small machine.
"""

MAX_COST_AT_ONCE: Final = 1_000
"""A hash of at most this cost is verified without a thread, in about a millisecond. Files of
mosquitto 2.0 have 101 iterations."""

_WRONG_PASSWORD: Final = Refused(why="wrong password")


_PATH: Final = "plugins.access"
"""The plugin's place in a policy file."""


class Scope:
    """The rules of one or more listeners, with the contents of their files.

    Attributes:
        access_list: None allows every topic.
        scram_users: None where these listeners have no SCRAM.
        verified: digests of passwords that were right, by user name.
    """

    def __init__(self, rules: Rules, policy_file: str, path: str) -> None:
        """Read the files.

        Raises:
            ConfigError: a file cannot be read or is not valid.
        """

        def text_of(key: str, file: str) -> str:
            if key != "acl_file":
                warn_of_readers(f"{path}.{key}", file)
            return read_text(
                file, named_by=NamedBy(policy_file, f"{path}.{key}"), has_comments=True
            )

        self.rules = rules
        self.passwords: dict[str, StoredPassword] = {}
        self.access_list: AccessList | None = None
        self.scram_users: Users | None = None
        if rules.password_file is not None:
            file = rules.password_file
            self.passwords = parse_users(text_of("password_file", file), file, parse_hash)
        if rules.acl_file is not None:
            file = rules.acl_file
            self.access_list = parse_acl(text_of("acl_file", file), file)
        if rules.scram_file is not None:
            file = rules.scram_file
            users = parse_users(text_of("scram_file", file), file, parse_credentials)
            self.scram_users = Users(users)
        self.verified: dict[str, bytes] = {}
        self._hashes = tuple(self.passwords.values())
        self._secret = hashlib.sha256(b"".join(stored.digest for stored in self._hashes)).digest()

    def judged(
        self, username: str, digest: bytes, answer: Admittance, *, is_right: bool
    ) -> Admittance:
        """Return the answer to a password that was verified, and know it again if it is right."""
        if answer is None:
            return None
        if is_right:
            self.verified[username] = digest
        return answer if is_right else _WRONG_PASSWORD

    def decoy(self, username: str) -> StoredPassword | None:
        """Return a hash to verify an unknown user's password against; None without users.

        The answer then takes as long as for a known user. The same name always gets the same decoy,
        with the form of one of the users: a file may hold hashes of several ages.
        """
        if not self._hashes:
            return None
        chosen = hmac.digest(self._secret, username.encode(), "sha256")
        model = self._hashes[int.from_bytes(chosen, "big") % len(self._hashes)]
        return model._replace(digest=bytes(len(model.digest)))


class FileAccess(AccessControl):
    """The plugin's `AccessControl`.

    Attributes:
        scopes: rules by listener; "" for all others.
        checks_publish: whether any listener has an ACL file.
        checks_subscribe: False: a SUBSCRIBE is always allowed, as in mosquitto.
    """

    checks_subscribe = False
    answers_last = True

    def __init__(self, config: AccessConfig) -> None:
        self.scopes: dict[str, Scope] = {}
        has_list = any(rules.acl_file is not None for rules in config.all_rules())
        self.checks_publish = self.checks_receive = has_list
        self._queue = FairQueue(VERIFYING_THREADS)
        self._threads = ThreadPoolExecutor(VERIFYING_THREADS, "penstock-verify")
        self._digest_key = secrets.token_bytes(32)

    def scope_of(self, listener: str) -> Scope:
        """Return the rules of a listener."""
        return self.scopes.get(listener) or self.scopes[""]

    def authenticate(self, attempt: ConnectAttempt) -> Admittance | Awaitable[Admittance]:
        """Check a CONNECT by its listener's rules."""
        scope = self.scope_of(attempt.listener)
        rules = scope.rules
        if rules.certificate_username is not None:
            name = _certificate_name(attempt, rules)
            return _named(rules, name) if name else False
        username = attempt.username or None  # as in mosquitto, an empty one counts as none
        if username is None:
            if rules.username_as_client_id:
                return False
            return True if rules.allow_anonymous else None
        if rules.password_file is None:
            has_users = rules.scram_file is not None
            return True if rules.allow_anonymous and not has_users else None
        return self.check_password(attempt)

    def check_password(self, attempt: ConnectAttempt) -> Admittance | Awaitable[Admittance]:
        """Check a password by the file of the attempt's listener."""
        scope = self.scope_of(attempt.listener)
        rules, username = scope.rules, attempt.username or ""
        stored = scope.passwords.get(username)
        if stored is not None:
            holds = partial(self._has_password, attempt.listener, username, stored)
            accepted = Accepted(holds=holds)
            if rules.username_as_client_id:
                accepted = _named(rules, username)._replace(holds=holds)
            return self._verify(scope, attempt, username, stored, accepted)
        decoy = scope.decoy(username)
        if decoy is None:
            return None
        return self._verify(scope, attempt, username, decoy, None)

    def _verify(
        self,
        scope: Scope,
        attempt: ConnectAttempt,
        username: str,
        stored: StoredPassword,
        answer: Admittance,
    ) -> Admittance | Awaitable[Admittance]:
        """Return `answer` for the right password, a refusal for a wrong one.

        Where there is no such user, `answer` is None, and so is the result.
        """
        password = attempt.password or b""
        digest = hmac.digest(self._digest_key, password, "sha256")
        if hmac.compare_digest(digest, scope.verified.get(username, b"")):
            return answer
        if stored.cost > MAX_COST_AT_ONCE:
            return self._verify_later(scope, attempt, username, stored, answer, digest)
        return scope.judged(username, digest, answer, is_right=verify(password, stored))

    async def _verify_later(
        self,
        scope: Scope,
        attempt: ConnectAttempt,
        username: str,
        stored: StoredPassword,
        answer: Admittance,
        digest: bytes,
    ) -> Admittance:
        loop = asyncio.get_running_loop()
        password = attempt.password or b""
        async with self._queue.turn(address_key(attempt.remote_address)):
            if attempt.is_wanted is not None and not attempt.is_wanted():
                return NOT_JUDGED
            is_right = await loop.run_in_executor(self._threads, verify, password, stored)
        return scope.judged(username, digest, answer, is_right=is_right)

    def _has_password(self, listener: str, username: str, stored: StoredPassword) -> bool:
        """Say whether a user's line in the password file is still the one of its login."""
        return self.scope_of(listener).passwords.get(username) == stored

    def has_credentials(self, listener: str, before: Users, username: str) -> bool:
        """Say whether a user's SCRAM credentials are still those that let the client in."""
        users = self.scope_of(listener).scram_users
        return users is not None and users.get(username) == before.get(username)

    def authorize(self, session: SessionView, topic: str, action: Action) -> bool:
        """Check the ACL file of the session's listener, if it has one."""
        access_list = self.scope_of(session.listener).access_list
        if access_list is None:
            return True
        wanted = WRITE if action is PUBLISH else READ
        return access_list.allows(session.username or None, session.known_as, topic, wanted)

    def close(self) -> None:
        """End the threads without waiting for running verifications."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class ScramAuthenticator(Authenticator):
    """SCRAM-SHA-256 with the file of the client's listener."""

    method = METHOD

    def __init__(self, access: FileAccess) -> None:
        self._access = access

    def start(self, attempt: ConnectAttempt) -> AuthExchange:
        """Begin an exchange; it refuses where the listener has no SCRAM users.

        Where certificates name users, it also refuses a client without a certificate, and any user
        but the one that the certificate names.
        """
        scope = self._access.scope_of(attempt.listener)
        rules = scope.rules
        if scope.scram_users is None:
            return _NoExchange()
        certified = None
        if rules.certificate_username is not None:
            certified = _certificate_name(attempt, rules)
            if not certified:
                return _NoExchange()
        holds = partial(self._access.has_credentials, attempt.listener, scope.scram_users)
        return _Named(ScramExchange(scope.scram_users), rules, certified, holds)


class _NoExchange(AuthExchange):
    """Refuses."""

    def step(self, data: bytes | None) -> AuthStep:  # noqa: ARG002 (AuthExchange's)
        """Refuse."""
        return Refused()


class _Named(AuthExchange):
    """An exchange after which the listener's rules give the client its names."""

    def __init__(
        self,
        exchange: AuthExchange,
        rules: Rules,
        certified: str | None,
        holds: Callable[[str], bool],
    ) -> None:
        """Begin."""
        self._exchange = exchange
        self._rules = rules
        self._certified = certified
        self._holds = holds

    def step(self, data: bytes | None) -> AuthStep | Awaitable[AuthStep]:
        """Take the step; on success add the client's names."""
        step = self._exchange.step(data)
        if not isinstance(step, Accepted) or step.username is None:
            return step
        if self._certified not in (None, step.username):
            return Refused(why=f"user {step.username!r}: not that of the certificate")
        client_id = step.username if self._rules.username_as_client_id else None
        holds = partial(self._holds, step.username)
        return step._replace(client_id=client_id, holds=holds)


def _named(rules: Rules, username: str) -> Accepted:
    """Return the acceptance of a user, with the Client Identifier that the rules give it."""
    return Accepted(username, username if rules.username_as_client_id else None)


def _certificate_name(attempt: ConnectAttempt, rules: Rules) -> str | None:
    """Return the user name in the client's certificate; None where there is none."""
    if rules.certificate_username == "cn":
        return attempt.certificate_name
    found = attempt.ssl_object.getpeercert() if attempt.ssl_object is not None else None
    if not found:
        return None
    if rules.certificate_username == "subject":
        return certificate.subject(found)
    return certificate.alternative_name(found, str(rules.certificate_username))


class AccessPlugin(Plugin):
    """`access` in a policy file."""

    Config = AccessConfig
    access: FileAccess
    config: AccessConfig

    def __init__(self, config: AccessConfig, context: PluginContext) -> None:
        super().__init__(config, context)
        check_listeners(
            f"{_PATH}.listeners", config.listeners, context.listeners, context.policy_file
        )
        self.access = FileAccess(config)
        has_scram = any(rules.scram_file is not None for rules in config.all_rules())
        offered: list[Authenticator] = [ScramAuthenticator(self.access)] if has_scram else []
        self.authenticators = offered

    async def start(self) -> None:
        """Read every file.

        Raises:
            ConfigError: a file cannot be read or is not valid.
        """
        (await self.reload(self.config)).apply()

    async def reload(self, config: AccessConfig) -> Reload:
        """Read every file again; all of them count, or none.

        The first `acl_file` or `scram_file` needs a restart: without any, the broker does not ask.

        Raises:
            ConfigError: a file cannot be read or is not valid.
        """
        file, access = self.context.policy_file, self.access
        check_listeners(f"{_PATH}.listeners", config.listeners, self.context.listeners, file)
        scopes = await asyncio.to_thread(_read_all, config, file)
        own_places = [(), *(("listeners", name) for name in config.listeners)]
        leaves: list[tuple[str, ...]] = []
        if not access.checks_publish:
            leaves += [(*place, "acl_file") for place in own_places]
        if not self.authenticators:
            leaves += [(*place, "scram_file") for place in own_places]

        def apply() -> None:
            self.config = config
            access.scopes = scopes
            access.rules_changed()

        files = config.files() + [
            f"listeners.{name}.{file}"
            for name, rules in config.listeners.items()
            for file in rules.files()
        ]
        return Reload(files, [key.name for key in fields(config)], leaves, apply)

    async def close(self) -> None:
        """End the threads that verify passwords."""
        self.access.close()


def _read_all(config: AccessConfig, policy_file: str) -> dict[str, Scope]:
    return {"": Scope(config, policy_file, _PATH)} | {
        name: Scope(rules, policy_file, f"{_PATH}.listeners.{name}")
        for name, rules in config.listeners.items()
    }
