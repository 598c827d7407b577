"""The keys under `console` in a policy file."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from penstock.broker.config.key_types import STRICT
from penstock.plugins.web.bind import Bind
from penstock.plugins.web.limits import HttpLimits, HttpTls

Name = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, slots=True, config=STRICT)
class ConsoleConfig:
    """The address, callers and limits of the console.

    Attributes:
        http: ``HOST:PORT`` of page and API, port 0 for any free one. One for other machines needs
            ``admins``, ``viewers`` or ``token_file``, and ``http_tls`` or ``without_tls``.
        http_tls: certificate and key for HTTPS.
        without_tls: other machines may come without TLS, as through a proxy.
        admins: users of ``access`` who may see and change everything.
        viewers: users of ``access`` who may see everything.
        token_file: file with a line ``NAME ROLE TOKEN`` for each bearer token: ``viewer`` or
            ``admin``, 16 characters or more.
        anonymous: role of callers without login: ``none``, ``viewer`` or ``admin``. null:
            ``viewer`` where there are neither users nor tokens, else ``none``.
        names: host names of the console, such as a proxy's, beside ``localhost`` and addresses.
        per_object: ``/metrics/per-object`` has single clients and topics.
        http_limits: limits for its clients.
    """

    http: Bind = "127.0.0.1:8081"
    http_tls: HttpTls | None = None
    without_tls: bool = False
    admins: tuple[Name, ...] = ()
    viewers: tuple[Name, ...] = ()
    token_file: Name | None = None
    anonymous: Literal["none", "viewer", "admin"] | None = None
    names: tuple[Name, ...] = ()
    per_object: bool = False
    http_limits: HttpLimits = field(default_factory=HttpLimits)

    def __post_init__(self) -> None:
        """Refuse a user with two roles."""
        for user in self.admins:
            if user in self.viewers:
                raise ValueError(f"read {user} under admins and viewers; allowed: one of them")

    @property
    def has_login(self) -> bool:
        """Whether there are users or tokens."""
        return bool(self.admins or self.viewers or self.token_file)
