"""The keys under `memory` in a policy file."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

UNITS: Final = {
    "B": 1,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "TiB": 1024**4,
}
"""Unit to bytes, as the International System and IEC 80000-13 have them."""

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?) ?([a-zA-Z]+)", re.ASCII)

DEFAULT_MEMORY_LIMIT: Final = 64 * 1000**2
"""Bytes. A few dozen messages of the size that paper 002 calls large: what is only on its way
through stays off the disk, and what waits for long costs no more than a broker has anyway."""


def read_size(value: object) -> object:
    """Return the bytes that a text such as ``32 MB`` means; anything else as it is.

    Raises:
        ValueError: a text that means none.
    """
    if not isinstance(value, str):
        return value
    found = _SIZE.fullmatch(value.strip())
    if found is None or found[2] not in UNITS:
        raise ValueError(f"bytes, or a text such as 32 MB; units: {', '.join(UNITS)}")
    return int(float(found[1]) * UNITS[found[2]])


Size = Annotated[int, Field(ge=0), BeforeValidator(read_size)]


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid", strict=True))
class MemoryConfig:
    """Where payloads of more than 4,096 bytes wait; smaller ones stay with their messages.

    Attributes:
        store: ``reference``, each in memory once, for all who are to get it; ``spill``, the same
            until they exceed `memory_limit`: then those that have waited longest go to files;
            ``copy``, one for each subscriber, as brokers do that paper 002 compares itself with.
        memory_limit: of ``spill``: bytes of payloads in memory, what is just coming in included;
            a number, or a text with a unit, such as ``32 MB``. A payload of more than a third of
            it goes to the file at once.
        directory: of ``spill``: where its files are made, from the directory the broker started
            in. They have no name, so that nothing is left of them when the broker ends, however it
            ends. On a disk: what lies in a file system in memory saves none.
        disk_limit: of ``spill``: bytes of payloads in files; further messages are refused. None:
            as many as the disk takes.
    """

    store: Literal["reference", "spill", "copy"] = "reference"
    memory_limit: Size = DEFAULT_MEMORY_LIMIT
    directory: Annotated[str, Field(min_length=1)] = "."
    disk_limit: Size | None = None
