"""YAML read strictly: each mistake with its place, what was read and what is allowed."""

from __future__ import annotations

import functools
import json
import types
from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from penstock.broker.config.checked_yaml import read_mapping
from penstock.broker.config.key_types import SIZE_ALLOWED
from penstock.broker.errors import ConfigError
from penstock.netem.errors import NetemError

T = TypeVar("T")
Place: TypeAlias = tuple[int | str, ...]

STRICT: Final[dict[str, Any]] = {"extra": "forbid", "strict": True}
"""`__pydantic_config__` of what stands in a file: no other keys, and no guessing at types."""

NO_KEY: Final[dict[str, Any]] = {"is_key": False}
"""Metadata of a field that is not given in the file."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong in a file.

    Attributes:
        place: keys, and numbers from 0 in lists, from the top of the file.
        words: what was read and what is allowed.
    """

    place: Place
    words: str

    def __str__(self) -> str:
        """Return both in one line."""
        return f"{'.'.join(map(str, self.place))}: {self.words}" if self.place else self.words


class MistakesError(Exception):
    """A file says what cannot be.

    Attributes:
        mistakes: all of them, at least one.
    """

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = list(mistakes)
        super().__init__("\n".join(map(str, self.mistakes)))

    def of(self, path: Path) -> NetemError:
        """Return it as the error of a file: a line for each mistake."""
        return NetemError("\n".join(f"{path}: {mistake}" for mistake in self.mistakes))


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping that a YAML file holds.

    Raises:
        NetemError: it cannot be read, is no YAML, gives a key twice, or holds no mapping.
    """
    try:
        return read_mapping(path)
    except ConfigError as error:
        raise NetemError(str(error)) from error


def fit(kind: type[T], value: Any) -> T:
    """Return what YAML has read as an object of a kind, with everything in it.

    Raises:
        MistakesError: it does not fit.
    """
    try:
        # Strict types, as YAML has them: JSON's are the same, with lists for tuples.
        anything: Any = kind  # mypy takes a type for something that cannot be hashed
        reader: TypeAdapter[T] = _reader(anything)
        return reader.validate_json(json.dumps(value, default=str))
    except ValidationError as error:
        found = [_explain(kind, detail) for detail in error.errors()]
        raise MistakesError(mistake for mistake in found if mistake is not None) from error


@functools.cache
def _reader(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _explain(kind: Any, detail: ErrorDetails) -> Mistake | None:
    """Return one mistake; None where it is only that a value has the other of its two forms."""
    place: list[int | str] = []
    for part in detail["loc"]:
        forms = _forms(kind)
        if len(forms) == 1:
            place.append(part)
            kind = _inside(forms[0], part)
            continue
        # Which form was tried is no place in the file.
        kind = next(form for form in forms if form.__name__ == part)
        if _is_other_form(kind, detail):
            return None
    return _in_words(tuple(place), kind, detail)


def _forms(kind: Any) -> list[Any]:
    if not isinstance(kind, types.UnionType):
        return [kind]
    return [form for form in get_args(kind) if form is not types.NoneType]


def _inside(kind: Any, part: int | str) -> Any:
    """Return the kind of what stands under a key or a number."""
    if is_dataclass(kind):
        # What is no key has no kind of its own; it is told with the keys beside it.
        return get_type_hints(kind).get(str(part), kind)
    return get_args(kind)[1 if get_origin(kind) is dict else 0]


def _is_other_form(form: Any, detail: ErrorDetails) -> bool:
    if is_dataclass(form):
        return detail["type"] == "dataclass_type"
    return isinstance(detail["input"], dict)


def _in_words(place: Place, kind: Any, detail: ErrorDetails) -> Mistake:
    allowed = detail["msg"].rpartition(" be ")[2]
    match detail["type"]:
        case "value_error":
            key, _, words = str(detail["ctx"]["error"]).partition(": ")
            # A dataclass that checks itself names the key that is wrong.
            return (
                Mistake((*place, key), words)
                if key.isidentifier()
                else Mistake(place, f"{detail['ctx']['error']}")
            )
        case "unexpected_keyword_argument":
            keys = ", ".join(each.name for each in fields(kind) if each.metadata != NO_KEY)
            return Mistake(place, f"no such key; allowed: {keys}")
        case "missing_argument" | "missing":
            return Mistake(place, "missing")
        case "too_long":
            allowed = f"{detail['ctx']['max_length']} of them"
        case "dataclass_type" | "dict_type":
            allowed = "a mapping"
        case "list_type" | "tuple_type":
            allowed = "a list"
        case "byte_size" | "byte_size_unit":
            allowed = SIZE_ALLOWED
    return Mistake(place, f"read {detail['input']!r}; allowed: {allowed}")
