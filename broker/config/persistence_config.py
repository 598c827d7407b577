"""The policy file's section `persistence`: what outlives the broker's process, and how surely."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from penstock.broker.config.sizes import Size

DEFAULT_PATH: Final = "penstock-sessions.db"


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid", strict=True))
class Persistence:
    """Sessions, their messages, retained messages and wills on the disk.

    Attributes:
        path: file of the database, from the directory the broker started in.
        durability: ``memory``: nothing is written; ``normal``: with the operating system before
            anything is acknowledged, which survives the end of the process, however it ends;
            ``full``: on the disk before that, which survives a power cut.
        commit_wait_seconds: how long a first change waits for others to its commit. What is
            delivered and acknowledged within it is never written. Two milliseconds are less
            than most networks take and enough for the acknowledgement of a near subscriber.
        max_pending_messages: messages that may wait for their commit. At half of it publishers are
            slowed down, further ones are refused. A hundred publishers with as many
            unacknowledged as they may have by default.
        max_pending_bytes: the same in payload bytes.
    """

    path: Annotated[str, Field(min_length=1)] = DEFAULT_PATH
    durability: Literal["memory", "normal", "full"] = "full"
    commit_wait_seconds: Annotated[float, Field(ge=0, le=1)] = 0.002
    max_pending_messages: Annotated[int, Field(ge=1)] = 100_000
    max_pending_bytes: Annotated[Size, Field(ge=1)] = 64 * 1024 * 1024
