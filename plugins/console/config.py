"""The keys under `console` in a policy file."""

from __future__ import annotations

from dataclasses import field

from pydantic.dataclasses import dataclass

from penstock.broker.config.key_types import STRICT
from penstock.plugins.web.bind import Bind
from penstock.plugins.web.limits import HttpLimits


@dataclass(frozen=True, slots=True, config=STRICT)
class ConsoleConfig:
    """Where the console can be reached.

    Attributes:
        http: ``HOST:PORT`` of the HTTP API, port 0 for any free one. Only this machine by default,
            as the API needs no password and names clients, users and topics.
        http_limits: limits for its clients.
    """

    http: Bind = "127.0.0.1:8081"
    http_limits: HttpLimits = field(default_factory=HttpLimits)
