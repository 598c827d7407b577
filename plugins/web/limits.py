"""Limits and TLS of an HTTP API: the keys under `http_limits` and `http_tls`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from penstock.broker.config.key_types import STRICT, Seconds


@dataclass(frozen=True, slots=True, config=STRICT)
class HttpLimits:
    """Limits for the clients of an HTTP API: the keys under `http_limits`.

    Attributes:
        connections: connections at a time. None: an eighth of the files that the process may have
            open, or less.
        header_timeout_seconds: time for a request's header, from the connection or the first byte.
        idle_timeout_seconds: time without a request, or in which a client takes nothing of its
            answer.
    """

    connections: Annotated[int, Field(ge=1)] | None = None
    header_timeout_seconds: Seconds = 10.0
    idle_timeout_seconds: Seconds = 75.0


@dataclass(frozen=True, slots=True, config=STRICT)
class HttpTls:
    """TLS of an HTTP API: the keys under `http_tls`.

    Attributes:
        certificate: PEM file of the certificate, then those between it and its root.
        key: PEM file of its private key, without a passphrase.
    """

    certificate: Annotated[str, Field(min_length=1)]
    key: Annotated[str, Field(min_length=1)]
