"""The keys under `console` in a policy file."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from penstock.broker.config.key_types import STRICT
from penstock.plugins.web.bind import Bind
from penstock.plugins.web.limits import HttpLimits


@dataclass(frozen=True, slots=True, config=STRICT)
class ConsoleConfig:
    """The address, token and limits of the console.

    Attributes:
        http: ``HOST:PORT`` of the HTTP API, port 0 for any free one. Without a ``token_file`` it
            must be an address of this machine, as the API names clients, users and topics.
        token_file: file with the bearer token of every request, of 16 characters or more; null:
            none is needed.
        http_limits: limits for its clients.
    """

    http: Bind = "127.0.0.1:8081"
    token_file: Annotated[str, Field(min_length=1)] | None = None
    http_limits: HttpLimits = field(default_factory=HttpLimits)
