"""The normative statements of both versions of MQTT, read from this folder's YAML files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

FOLDER: Final = Path(__file__).parent
ROOT: Final = FOLDER.parents[1]

VERSIONS: Final = {"mqtt5": "MQTT 5.0", "mqtt311": "MQTT 3.1.1"}
"""Name of the pytest marker, and of the file, to the name of the version."""

BINDS: Final = frozenset({"both", "client", "server"})


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement that the specification has numbered.

    Attributes:
        number: without its ``MQTT-``, such as ``3.1.0-1``.
        binds: whose duty it is: the server's, the client's, or of both.
        says: what it asks for.
        not_applicable: why there is nothing to test in a broker; "" where there is.
    """

    number: str
    binds: str
    says: str
    not_applicable: str = ""


@cache
def statements(marker: str) -> dict[str, Statement]:
    """Return the statements of a version by their numbers, in the order of its chapters.

    Args:
        marker: key of `VERSIONS`.
    """
    rows: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / f"{marker}.yaml").read_text())
    return {number: Statement(number=number, **row) for number, row in rows.items()}


def sort_key(number: str) -> tuple[int, ...]:
    """Return what puts statement numbers into the order of the chapters."""
    section, _, rest = number.partition("-")
    return (*map(int, section.split(".")), int(rest))
