"""The keys under `memory` in a policy file."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from penstock.broker.config.key_types import STRICT, Size

DEFAULT_MEMORY_LIMIT: Final = 64 * 1000**2
"""Bytes. A few dozen messages of the size that paper 002 calls large: what is only on its way
through stays off the disk, and what waits for long costs no more than a broker has anyway."""


_Bytes = Annotated[Size, Field(ge=0)]


@dataclass(frozen=True, slots=True, config=STRICT)
class MemoryConfig:
    """Where payloads of more than 4,096 bytes wait; smaller ones stay with their messages.

    Attributes:
        store: ``reference``: each payload is in memory once, for all its subscribers. ``spill``:
            the same, until they exceed `memory_limit`; then those that have waited longest go to
            files. ``copy``: one copy for each subscriber, as in the brokers that paper 002 compares
            itself with.
        memory_limit: of ``spill``: bytes of payloads in memory, those just being received included.
            A payload of more than a third of it goes to the file at once.
        directory: of ``spill``: where its files are made, relative to the directory in which the
            broker was started. They have no name, so that nothing remains of them when the broker
            ends, however it ends. It should be on a disk: a file system in memory saves no memory.
        disk_limit: of ``spill``: bytes of payloads in files; further messages are refused. None: as
            many as the disk takes.
    """

    store: Literal["reference", "spill", "copy"] = "reference"
    memory_limit: _Bytes = DEFAULT_MEMORY_LIMIT
    directory: Annotated[str, Field(min_length=1)] = "."
    disk_limit: _Bytes | None = None
