"""Mistakes in netem's YAML files, each with its place, the value read and the allowed ones.

A place is a tuple, so that `penstock.netem.runs.scenario_file` can look it up in an overlay.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from penstock.broker.config import checked_yaml
from penstock.broker.errors import ConfigError
from penstock.netem.errors import NetemError

T = TypeVar("T")
Place: TypeAlias = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake in a file.

    Attributes:
        place: the keys and list indices (from 0) that lead to it from the top of the file.
        words: the value that was read, and the allowed ones.
    """

    place: Place
    words: str

    def __str__(self) -> str:
        """Return both in one line."""
        return f"{'.'.join(map(str, self.place))}: {self.words}" if self.place else self.words


class MistakesError(Exception):
    """An error: a file holds mistakes.

    Attributes:
        mistakes: all mistakes that were found, at least one.
    """

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = list(mistakes)
        super().__init__("\n".join(map(str, self.mistakes)))

    def of(self, path: Path) -> NetemError:
        """Return the error of a file, with one line for each mistake."""
        return NetemError("\n".join(f"{path}: {mistake}" for mistake in self.mistakes))


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping that a YAML file holds.

    Raises:
        NetemError: the file cannot be read, is not YAML, gives a key twice, or is not a mapping.
    """
    try:
        return checked_yaml.read_mapping(path)
    except ConfigError as error:
        raise NetemError(str(error)) from error


def fit(kind: type[T], value: Any) -> T:
    """Return a value that YAML has read as an object of a kind, with everything in it.

    Raises:
        MistakesError: the value does not fit.
    """
    try:
        return checked_yaml.fit(kind, value)
    except checked_yaml.MisfitError as error:
        raise MistakesError(
            Mistake(place, f"read {read}; allowed: {allowed}")
            for place, read, allowed in error.misfits
        ) from error
