"""A link in a file: its states, and when it is in which.

YAML, in the units of `netem.profiles`; docs/netem.md has an example.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Final

import yaml
from pydantic import TypeAdapter, ValidationError

from netem.changes import Changes, OnOff, Trace
from netem.errors import NetemError
from netem.profiles import Bursts, Direction, Profile

_CONFIG: Final[dict[str, Any]] = {"extra": "forbid", "strict": True}


@dataclass(frozen=True, slots=True)
class _Ways:
    __pydantic_config__: ClassVar[dict[str, Any]] = _CONFIG

    upstream: Direction = field(default_factory=Direction)
    downstream: Direction = field(default_factory=Direction)


@dataclass(frozen=True, slots=True)
class _OnOff:
    __pydantic_config__: ClassVar[dict[str, Any]] = _CONFIG

    good: str
    bad: str
    mean_good_seconds: float
    mean_bad_seconds: float
    seed: int = 0


@dataclass(frozen=True, slots=True)
class _Trace:
    __pydantic_config__: ClassVar[dict[str, Any]] = _CONFIG

    at_seconds: tuple[float, ...]
    profiles: tuple[str, ...]
    repeat_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class _File:
    __pydantic_config__: ClassVar[dict[str, Any]] = _CONFIG

    profiles: dict[str, _Ways]
    begin: str
    on_off: _OnOff | None = None
    trace: _Trace | None = None

    def __post_init__(self) -> None:
        if self.on_off is not None and self.trace is not None:
            raise ValueError("read on_off and trace; allowed: one of them")


_READER: Final = TypeAdapter(_File)
_IN_THE_FILE: Final = (_File, _Ways, _OnOff, _Trace, Direction, Bursts)


@dataclass(frozen=True, slots=True)
class LinkPlan:
    """What a file says.

    Attributes:
        profiles: by name.
        begin: the link to begin with.
        changes: when it is which; None where it stays.
    """

    profiles: dict[str, Profile]
    begin: Profile
    changes: Changes | None


def read_link(path: Path) -> LinkPlan:
    """Read a link from a file.

    Raises:
        NetemError: it cannot be read, or says what cannot be: one line for each mistake, with
            the file, the place in it, what was read and what is allowed.
    """
    try:
        mapping = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise NetemError(f"{path}: {error}") from error
    try:
        # Strict types, as YAML has them: JSON's are the same, with lists for tuples.
        file = _READER.validate_json(json.dumps(mapping, default=str))
    except ValidationError as error:
        lines = [_explain(detail) for detail in error.errors() if not _is_other_form(detail)]
        raise NetemError("\n".join(f"{path}: {line}" for line in lines)) from error
    profiles = {
        name: Profile(name, ways.upstream, ways.downstream) for name, ways in file.profiles.items()
    }

    def find(place: str, name: str) -> Profile:
        if name not in profiles:
            raise NetemError(f"{path}: {place}: read {name!r}; allowed: {', '.join(profiles)}")
        return profiles[name]

    begin = find("begin", file.begin)
    place, changes = "on_off", None
    try:
        if (on_off := file.on_off) is not None:
            changes = OnOff(
                find("on_off.good", on_off.good),
                find("on_off.bad", on_off.bad),
                on_off.mean_good_seconds,
                on_off.mean_bad_seconds,
                on_off.seed,
            )
        elif (trace := file.trace) is not None:
            place = "trace"
            states = tuple(find("trace.profiles", name) for name in trace.profiles)
            return LinkPlan(profiles, begin, Trace(trace.at_seconds, states, trace.repeat_seconds))
    except ValueError as error:
        raise NetemError(f"{path}: {place}.{error}") from error
    return LinkPlan(profiles, begin, changes)


def _is_other_form(detail: Any) -> bool:
    """Say whether a mistake is only that a value has the other of its two forms."""
    is_mapping = isinstance(detail["input"], dict)
    return ("float" in detail["loc"] and is_mapping) or (
        detail["type"] == "dataclass_type" and ("Bursts" in detail["loc"])
    )


def _explain(detail: Any) -> str:
    """Return one mistake: the place, what was read, what is allowed."""
    # Which of two forms of a value was tried is no place in the file.
    place = ".".join(str(part) for part in detail["loc"] if part not in {"float", "Bursts"})
    prefix = f"{place}: " if place else ""
    match detail["type"]:
        case "value_error":
            return f"{place}.{detail['ctx']['error']}" if place else str(detail["ctx"]["error"])
        case "unexpected_keyword_argument":
            return f"{prefix}no such key; allowed: {', '.join(_keys_beside(detail['loc'][:-1]))}"
        case "missing_argument" | "missing":
            return f"{prefix}missing"
    return f"{prefix}read {detail['input']!r}; allowed: {detail['msg'].rpartition('be ')[2]}"


def _keys_beside(location: tuple[int | str, ...]) -> list[str]:
    """Return the keys of the mapping at a place in the file."""
    kind: type = _File
    for part in location:
        match part:
            case "on_off":
                kind = _OnOff
            case "trace":
                kind = _Trace
            case "upstream" | "downstream":
                kind = Direction
            case "Bursts":
                kind = Bursts
            case _ if kind is _File and part != "profiles":
                kind = _Ways
    return [each.name for each in fields(kind)]
