"""Access to the queues over HTTP and SQS: tokens, and their roles in each queue, from a file.

The file holds a list under ``tokens``:

    tokens:
    - name: dashboard
      token_sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0bb8...   # sha256sum of the token
      roles: {telemetry: [read]}
    - name: importer
      secret_file: importer.secret
      roles: {"raw-*": [write], "*": [read, write, admin]}

A token whose digest is in the file is a bearer token. A signature of Amazon's version 4 needs the
secret itself, so that of ``secret_file`` works for both: as a bearer token, and as the secret
access key of ``access_key_id``. A token with ``requests_per_second`` may send so many, in bursts of
one second's.

Without a file, every caller may do everything; the APIs then serve this machine alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

from aiohttp import web
from pydantic import Field
from pydantic.dataclasses import dataclass

from penstock.broker.config.checked_yaml import NamedBy, parse_mapping, read_text, validate_config
from penstock.broker.config.key_types import STRICT, PerSecond
from penstock.broker.config.secret_file import read_secret
from penstock.broker.errors import ConfigError, ConfigProblem
from penstock.plugins.web.bearer_tokens import digest_in, digest_of
from penstock.plugins.web.bind import is_loopback
from penstock.plugins.web.operators import OPERATOR

Role: TypeAlias = Literal["read", "write", "admin", "publish"]
"""What a token may do in a queue: `read` receives, settles, reads ranges and commits; `write`
stores messages; `admin` creates, changes, deletes and empties queues and groups, and moves dead
letters; `publish` has the broker publish batches, whatever the queue."""

ALL_QUEUES: Final = "*"
"""The name that stands for the whole storage. Only the pattern ``*`` matches it."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_Name = Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,128}$")]


@dataclass(frozen=True, slots=True, config=STRICT)
class TokenConfig:
    """One token; the keys of an item under `tokens`.

    Attributes:
        name: the name of its owner, stored as the publisher of the messages that the owner sends.
        roles: the roles by name of a queue, or pattern of names with ``*``; the roles of all
            patterns that match a queue count.
        token_sha256: SHA-256 of the bearer token, in lower-case hexadecimal digits.
        secret_file: file with the token itself, relative to the directory of the tokens' file.
        access_key_id: name of the secret in a signature; None for `name`.
        requests_per_second: how many the owner may send over both APIs together; None for any
            number.
    """

    name: _Name
    roles: Mapping[str, tuple[Role, ...]]
    token_sha256: str | None = Field(default=None, repr=False)
    secret_file: Annotated[str, Field(min_length=1)] | None = None
    access_key_id: _Name | None = None
    requests_per_second: PerSecond | None = None

    def __post_init__(self) -> None:
        """Check that there is one secret."""
        if (self.token_sha256 is None) == (self.secret_file is None):
            read = "neither" if self.token_sha256 is None else "both"
            raise ValueError(f"read {read}; allowed: token_sha256 or secret_file")
        if self.token_sha256 is not None and _DIGEST.fullmatch(self.token_sha256) is None:
            # The text may be the token itself, so it is not shown.
            raise ValueError("token_sha256: read something else; allowed: 64 of 0-9 and a-f")
        for pattern, roles in self.roles.items():
            if "publish" in roles and pattern != ALL_QUEUES:
                raise ValueError(
                    f"roles: read publish under {pattern!r}; allowed: under {ALL_QUEUES!r}, as it "
                    "is no role in a queue"
                )
        if self.access_key_id is not None and self.secret_file is None:
            raise ValueError(
                "access_key_id: read it without secret_file; allowed: with secret_file, as a "
                "signature needs the secret itself"
            )


@dataclass(frozen=True, slots=True, config=STRICT)
class _TokensFile:
    tokens: Annotated[tuple[TokenConfig, ...], Field(min_length=1)]


class RequestRate:
    """A token bucket: requests that a caller may send."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._most = max(per_second, 1.0)
        self._left = self._most
        self._at = 0.0

    def take(self, now: float) -> float:
        """Take a request; return 0, or the seconds after which there is room for it."""
        self._left = min(self._left + (now - self._at) * self._per_second, self._most)
        self._at = now
        if self._left >= 1:
            self._left -= 1
            return 0.0
        return (1 - self._left) / self._per_second


class Caller(NamedTuple):
    """Who sends a request.

    Attributes:
        name: the name of the token; "" where callers need none.
        secret: the secret for signatures of version 4; "" where the token has only a digest.
        rate: limits the requests; None for no limit.
    """

    name: str
    secret: str
    roles: Mapping[str, tuple[Role, ...]]
    rate: RequestRate | None = None

    def seconds_to_wait(self, now: float) -> float:
        """Count a request; return 0, or the seconds after which it may be sent again."""
        return 0.0 if self.rate is None else self.rate.take(now)

    def may(self, role: Role, queue: str) -> bool:
        """Say whether the caller has a role in a queue; `ALL_QUEUES` for the whole storage."""
        return any(
            role in roles
            and (pattern == "*" or (queue != ALL_QUEUES and fnmatchcase(queue, pattern)))
            for pattern, roles in self.roles.items()
        )

    def __repr__(self) -> str:
        """Return it without the secret."""
        return f"Caller({self.name!r})"


OPERATOR_ROLES: Final[Mapping[str, Mapping[str, tuple[Role, ...]]]] = {
    "viewer": {ALL_QUEUES: ("read",)},
    "admin": {ALL_QUEUES: ("read", "write", "admin")},
}
"""The roles of the console's callers by theirs there."""

ANYBODY: Final = Caller("", "", {"*": ("read", "write", "admin", "publish")})
"""The caller of every request where there is no file of tokens."""


class OperatorAccess:
    """The callers of routes that the console serves: it has checked who they are."""

    is_open = False

    def of(self, request: web.Request) -> Caller:
        """Return who sends a request."""
        operator = request[OPERATOR]
        return Caller(operator.name, "", OPERATOR_ROLES[operator.role or "viewer"])


class QueueAccess:
    """The callers that there are.

    Attributes:
        is_open: whether callers need no token.
        file: with the tokens; "" where callers need none.
    """

    def __init__(self, file: str, named_by: NamedBy | None) -> None:
        self.file = file
        self.is_open = not file
        self._named_by = named_by
        self._by_digest: Mapping[bytes, Caller] = {}
        self._by_key: Mapping[str, Caller] = {}

    @classmethod
    def load(cls, path: str, named_by: NamedBy | None = None) -> QueueAccess:
        """Read a file of tokens; it blocks while it reads.

        Raises:
            ConfigError: with each mistake; no part of a secret is in its text.
        """
        access = cls(path, named_by)
        access.read()()
        return access

    @classmethod
    def open_to_all(cls) -> QueueAccess:
        """Return the access of an API that needs no token."""
        return cls("", None)

    def read(self) -> Callable[[], None]:
        """Read the file again; it blocks while it reads. Requests that run go on.

        Returns:
            What makes its tokens count.

        Raises:
            ConfigError: it is wrong; the tokens of before stay.
        """
        if self.is_open:
            return lambda: None
        read = parse_mapping(read_text(self.file, form="YAML", named_by=self._named_by), self.file)
        found = validate_config(_TokensFile, read, self.file, "")
        by_digest: dict[bytes, Caller] = {}
        by_key: dict[str, Caller] = {}
        names: set[str] = set()
        problems: list[ConfigProblem] = []
        for index, token in enumerate(found.tokens):
            where = f"tokens.{index}"
            if token.name in names:
                problems.append(ConfigProblem(f"{where}.name", f"{token.name} again", "each once"))
            names.add(token.name)
            secret = "" if token.secret_file is None else self._secret(token.secret_file, where)
            digest = bytes.fromhex(token.token_sha256 or "") or digest_of(secret)
            per_second = token.requests_per_second
            rate = None if per_second is None else RequestRate(per_second)
            caller = Caller(token.name, secret, token.roles, rate)
            if digest in by_digest:
                read_it = f"the token of {by_digest[digest].name} again"
                problems.append(ConfigProblem(where, read_it, "a token for each name"))
            by_digest[digest] = caller
            if secret:
                key = token.access_key_id or token.name
                if key in by_key:
                    problems.append(
                        ConfigProblem(f"{where}.access_key_id", f"{key} again", "each once")
                    )
                by_key[key] = caller
        if problems:
            raise ConfigError(self.file, problems)

        def apply() -> None:
            self._by_digest, self._by_key = by_digest, by_key

        return apply

    def _secret(self, file: str, where: str) -> str:
        named_by = NamedBy(self.file, f"{where}.secret_file")
        return read_secret(Path(self.file).parent / file, named_by)

    def of(self, request: web.Request) -> Caller | None:
        """Return who sends a request; None where it is unknown."""
        return self.bearer(request.headers.get("Authorization"))

    def bearer(self, authorization: str | None) -> Caller | None:
        """Return who sends a request, by its Authorization header; None where it is unknown."""
        if self.is_open:
            return ANYBODY
        digest = digest_in(authorization)
        return None if digest is None else self._by_digest.get(digest)

    def by_key(self, access_key_id: str) -> Caller | None:
        """Return the caller whose secret signs requests with this access key ID; None for none."""
        return ANYBODY if self.is_open else self._by_key.get(access_key_id)


def require_tokens(access: QueueAccess, key: str, bind: str, policy_file: str) -> None:
    """Refuse an address that other machines reach, where callers need no token.

    Raises:
        ConfigError: names the key.
    """
    if not access.is_open or is_loopback(bind):
        return
    allowed = (
        "an address of this machine, such as 127.0.0.1:8080, while callers need no token; to serve "
        "other machines, name a file of tokens: plugins: {queue: {tokens: FILE}}"
    )
    raise ConfigError(policy_file, [ConfigProblem(key, bind, allowed)])
