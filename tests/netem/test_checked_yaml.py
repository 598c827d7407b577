"""YAML, read strictly."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import ConfigDict

from penstock.broker.config.key_types import STRICT
from penstock.netem.checked_yaml import Mistake, MistakesError, fit, read_yaml
from penstock.netem.errors import NetemError


@dataclass(frozen=True, slots=True)
class Inner:
    """A mapping that checks itself."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    seconds: float

    def __post_init__(self) -> None:
        if self.seconds < 0:
            raise ValueError(f"seconds: read {self.seconds}; allowed: from 0")


@dataclass(frozen=True, slots=True)
class Outer:
    """One of each kind of value."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    forms: float | Inner = 0.0
    by_name: dict[str, Inner] | None = None
    pair: tuple[str, str] = ("a", "b")
    numbers: list[int] | None = None
    inner: Inner | None = None


@pytest.mark.parametrize(
    ("value", "lines"),
    [
        (7, ["read 7; allowed: a mapping"]),
        ({"forms": "much"}, ["forms: read 'much'; allowed: a valid number or a mapping"]),
        ({"forms": {"seconds": -1}}, ["forms.seconds: read -1.0; allowed: from 0"]),
        (
            {"forms": {"hours": 1, "seconds": 1}},
            ["forms.hours: read an unknown key; allowed: one of seconds"],
        ),
        (
            {"by_name": {"float": {"seconds": "1"}}},
            ["by_name.float.seconds: read '1'; allowed: a valid number"],
        ),
        ({"by_name": {"Inner": 1}}, ["by_name.Inner: read 1; allowed: a mapping"]),
        ({"by_name": []}, ["by_name: read []; allowed: a mapping"]),
        ({"pair": ["a", "b", "c"]}, ["pair: read ['a', 'b', 'c']; allowed: at most 2 items"]),
        ({"pair": ["a"]}, ["pair.1: read nothing; allowed: a value"]),
        ({"pair": "ab"}, ["pair: read 'ab'; allowed: a list"]),
        ({"numbers": [1, True]}, ["numbers.1: read True; allowed: a valid integer"]),
        ({"inner": {}}, ["inner.seconds: read nothing; allowed: a value; this key has no default"]),
        (
            {"iner": 1, "inner": {"seconds": None}},
            [
                "inner.seconds: read null; allowed: a valid number",
                (
                    "iner: read an unknown key; allowed: one of by_name, forms, inner, numbers, "
                    "pair (perhaps inner)"
                ),
            ],
        ),
    ],
)
def test_each_mistake_is_told_once_with_its_place(value: Any, lines: list[str]) -> None:
    """A user finds each by its keys; of a value with two forms, the one that was meant counts."""
    with pytest.raises(MistakesError) as told:
        fit(Outer, value)
    assert sorted(map(str, told.value.mistakes)) == sorted(lines)


def test_what_fits_is_an_object() -> None:
    """Lists become tuples, whole numbers seconds, mappings objects."""
    read = fit(Outer, {"forms": {"seconds": 2}, "pair": ["x", "y"]})
    assert read == Outer(forms=Inner(2.0), pair=("x", "y"))


def test_mistakes_of_a_file_have_its_name(tmp_path: Path) -> None:
    """One line each."""
    error = MistakesError([Mistake((), "read 1; allowed: 2"), Mistake(("a", 0), "missing")])
    path = tmp_path / "x.yaml"
    assert str(error.of(path)) == f"{path}: read 1; allowed: 2\n{path}: a.0: missing"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 1\nb: 2\na: 3\n", "a: read the same key in lines 1 and 3; allowed: each key once"),
        ("a: {x: 1, x: 1}\n", "a.x: read the same key in lines 1 and 1; allowed: each key once"),
        ("a: [1\n", "line 2"),
        ("a: !!python/object:os.system {}\n", "could not determine a constructor"),
        ("[" * 5_000, "nested too deeply"),
        ("\x00", "special characters"),
        ("{2020-01-01: 1}", "a key that is no text"),
    ],
)
def test_what_is_no_plain_yaml_is_told_with_the_file(tmp_path: Path, text: str, told: str) -> None:
    """No traceback, and no value that silently takes another's place."""
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(NetemError, match=told) as error:
        read_yaml(path)
    assert str(error.value).startswith(f"{path}: ")


def test_a_number_as_a_key_is_a_mistake(tmp_path: Path) -> None:
    """YAML has numbers as keys, and the file's kind does not."""
    path = tmp_path / "x.yaml"
    path.write_text("{1: 2}")
    with pytest.raises(MistakesError):
        fit(Outer, read_yaml(path))
