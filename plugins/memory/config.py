"""The keys under `memory` in a policy file."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from penstock.broker.config.key_types import STRICT, Size

DEFAULT_MEMORY_LIMIT: Final = 64 * 1000**2
"""These bytes hold a few dozen messages of the size that paper 002 calls large: what only
passes through stays off the disk, and what waits costs no more than a broker has anyway."""


_Bytes = Annotated[Size, Field(ge=0)]


@dataclass(frozen=True, slots=True, config=STRICT)
class MemoryConfig:
    """The store of payloads of more than 4,096 bytes; smaller ones stay with their messages.

    Attributes:
        store: ``reference``: each payload is in memory once. ``spill``: beyond `memory_limit`,
            those that have waited longest go to files. ``copy``: one copy for each subscriber, to
            compare with paper 002.
        memory_limit: bytes of payloads that ``spill`` keeps in memory. A payload of more than a
            third of it goes to a file at once.
        directory: directory, on a disk, of the files of ``spill``, which have no name.
        disk_limit: bytes of payloads in these files; further messages are refused. None: as the
            disk takes.
    """

    store: Literal["reference", "spill", "copy"] = "reference"
    memory_limit: _Bytes = DEFAULT_MEMORY_LIMIT
    directory: Annotated[str, Field(min_length=1)] = "."
    disk_limit: _Bytes | None = None
