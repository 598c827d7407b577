"""The keys under `trace` in a policy file."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from penstock.broker.config.key_types import STRICT


@dataclass(frozen=True, slots=True, config=STRICT)
class TraceConfig:
    """Spans of OpenTelemetry for messages with the User Property ``traceparent``.

    With this plugin no message takes the fast path.

    Attributes:
        otlp: URL for spans by OTLP over HTTP, such as ``http://127.0.0.1:4318/v1/traces``. None:
            ``OTEL_EXPORTER_OTLP_ENDPOINT``, or port 4318 of this machine.
        sample: share of the traces sampled by publishers of which spans are made.
    """

    otlp: Annotated[str, Field(pattern=r"^https?://[^\s/]+")] | None = None
    sample: Annotated[float, Field(ge=0, le=1)] = 1.0
