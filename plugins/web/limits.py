"""What clients of an HTTP API may take of the program; the keys under `http_limits`."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

STRICT: Final = ConfigDict(extra="forbid", strict=True)

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, config=STRICT)
class HttpLimits:
    """What clients of an HTTP API may take of the program; the keys under `http_limits`.

    Attributes:
        connections: at a time. None: an eighth of the files that the process may have open, and
            no more than the API has use for: MQTT clients have the others.
        header_timeout_seconds: time for the whole header of a request, from the connection or
            from its first byte. As for a CONNECT.
        idle_timeout_seconds: time for which a connection may stay without a request, or a client
            not take any of its answer. As most servers have it.
    """

    connections: Annotated[int, Field(ge=1)] | None = None
    header_timeout_seconds: Seconds = 10.0
    idle_timeout_seconds: Seconds = 75.0
