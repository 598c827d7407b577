from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from penstock.broker.config.checked_yaml import (
    NamedBy,
    check_listeners,
    parse_mapping,
    read_text,
    show,
    suggest,
    validate_config,
)
from penstock.broker.errors import ConfigError

STRICT = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, config=STRICT)
class Filter:
    """A nested part of `Example`."""

    threshold_s: int = 1


@dataclass(frozen=True, config=STRICT)
class Example:
    """Every kind of field that a plugin's configuration may have."""

    name: str
    rate: Annotated[float, Field(gt=0)] | Literal["learned"] = 1.0
    parts: tuple[str, ...] = ()
    filters: dict[str, Filter] = Field(default_factory=dict)
    listed: list[Filter] | None = None
    table: dict[int, float] = Field(default_factory=dict)
    loss: float | Filter = 0.0
    pair: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        """Refuse one value, as a check across fields does."""
        if self.name == "bad":
            raise ValueError("a good name")


def problems_of(mapping: Any) -> list[tuple[str, str, str]]:
    """Return (path, read, allowed) of a mapping that must be refused."""
    with pytest.raises(ConfigError) as caught:
        validate_config(Example, mapping, "policy.yaml", "plugins.example")
    return [(problem.path, problem.read, problem.allowed) for problem in caught.value.problems]


def test_valid_mapping_becomes_the_dataclass() -> None:
    """Lists become tuples, nested mappings dataclasses, and number keys stay numbers."""
    example = validate_config(
        Example,
        {
            "name": "n",
            "rate": "learned",
            "parts": ["a"],
            "filters": {"a/#": {"threshold_s": 5}},
            "listed": [{}],
            "table": {10_000: 1, 20_000: 2.5},
        },
        "policy.yaml",
        "plugins.example",
    )
    assert example == Example(
        name="n",
        rate="learned",
        parts=("a",),
        filters={"a/#": Filter(threshold_s=5)},
        listed=[Filter()],
        table={10_000: 1.0, 20_000: 2.5},
    )


def test_missing_key_is_named() -> None:
    """A key without a default must be there."""
    assert problems_of({}) == [
        ("plugins.example.name", "nothing", "a value; this key has no default")
    ]


def test_members_of_a_union_are_one_problem() -> None:
    """A value that fits no member of a union is told once, with all that is allowed."""
    assert problems_of({"name": "n", "rate": "fast"}) == [
        ("plugins.example.rate", "'fast'", "a valid number or 'learned'")
    ]


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ({"loss": "much"}, ("loss", "'much'", "a valid number or a mapping")),
        ({"loss": {"threshold_s": "1"}}, ("loss.threshold_s", "'1'", "a valid integer")),
        ({"pair": [1]}, ("pair.1", "nothing", "a value")),
        ({"pair": [1, 2, 3]}, ("pair", "[1, 2, 3]", "at most 2 items")),
    ],
)
def test_a_value_is_told_in_the_form_in_which_it_was_written(
    part: dict[str, Any], problem: tuple[str, str, str]
) -> None:
    """A mapping that is wrong inside is no wrong number; no value ends in a traceback."""
    path, read, allowed = problem
    assert problems_of({"name": "n", **part}) == [(f"plugins.example.{path}", read, allowed)]


@pytest.mark.parametrize(
    ("part", "path"),
    [
        ({"filters": {"a/#": {"treshold_s": 5}}}, "plugins.example.filters.a/#.treshold_s"),
        ({"listed": [{}, {"treshold_s": 5}]}, "plugins.example.listed.1.treshold_s"),
    ],
)
def test_unknown_key_inside_a_list_or_table_suggests_the_nearest(
    part: dict[str, Any], path: str
) -> None:
    """The keys that are known at the very place of an unknown one are offered."""
    assert problems_of({"name": "n", **part}) == [
        (path, "an unknown key", "one of threshold_s (perhaps threshold_s)")
    ]


def test_check_across_fields_names_the_whole() -> None:
    """A check over several keys is told for the mapping that holds them."""
    assert problems_of({"name": "bad"}) == [("plugins.example", "{'name': 'bad'}", "a good name")]


def test_a_mapping_may_be_merged_into_another() -> None:
    """YAML's `<<` is a key by its form alone."""
    text = "a: &a {b: 1, c: 2}\nd: {<<: *a, c: 3}"
    assert parse_mapping(text, "policy.yaml") == {"a": {"b": 1, "c": 2}, "d": {"b": 1, "c": 3}}


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("a: {b: 2026-13-01}", "a.b"),
        (f"a: [1, {'1' * 5000}]", "a[1]"),
        ("0b_", "line 1"),
        (f"a: {'1:' * 300}1.5", "a"),
        ("a: !!bool maybe", "a"),
        ("a: !!timestamp today", "a"),
        ("a: !!int ''", "a"),
    ],
)
def test_what_looks_like_a_number_or_a_date_and_is_none_is_named(text: str, path: str) -> None:
    """YAML takes it for one by its form; whoever meant text is told to quote it."""
    with pytest.raises(ConfigError) as caught:
        parse_mapping(text, "policy.yaml")
    ((found, read, allowed),) = [(p.path, p.read, p.allowed) for p in caught.value.problems]
    assert (found, allowed) == (path, "a number or a date, or text in quotes")
    assert len(read) <= 80


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("a: {on: 1}", "a"),
        ("a: {2026-01-30: 1}", "a"),
        ("a: {2026-02-30: 1}", "a"),
        ("2026-01-30: 1", "file"),
        ("a: {!!binary eA==: 1}", "a"),
        ("a: {[1]: 1}", "a"),
    ],
)
def test_a_key_that_is_neither_text_nor_number_is_named(text: str, path: str) -> None:
    """JSON, as which values are checked, has no other keys."""
    with pytest.raises(ConfigError) as caught:
        parse_mapping(text, "policy.yaml")
    ((found, read, allowed),) = [(p.path, p.read, p.allowed) for p in caught.value.problems]
    assert (found, read) == (path, "a key that is no text in line 1")
    assert allowed.startswith("text; in quotes where")


def test_text_is_no_number_and_number_no_text() -> None:
    """Values are taken as they stand in the file, never guessed into another type."""
    paths = [path for path, _, _ in problems_of({"name": 5, "table": {1: "2"}})]
    assert paths == ["plugins.example.name", "plugins.example.table.1"]


def test_long_values_are_cut() -> None:
    """An error stays on one readable line."""
    assert len(show("x" * 1000)) == 80
    assert show(None) == "null"


def test_suggestion_without_a_near_name_lists_all() -> None:
    """With nothing similar known, the list alone is given."""
    assert suggest("zzz", ["b", "a"]) == "one of a, b"
    assert suggest("zzz", []) == "nothing"


def test_text_has_no_mark_of_its_editor_before_it(tmp_path: Path) -> None:
    """Those of Windows put U+FEFF first, which would be part of the first name in the file."""
    file = tmp_path / "users"
    file.write_bytes(b"\xef\xbb\xbfjoe\n")
    assert read_text(file) == "joe\n"


@pytest.mark.parametrize(
    ("content", "path", "allowed"),
    [(None, "file", "a file that can be read"), (b"joe\n\xff", "line 2", "users in UTF-8")],
)
def test_text_that_cannot_be_read_names_its_file(
    tmp_path: Path, content: bytes | None, path: str, allowed: str
) -> None:
    """What is missing or no text is a mistake in a file, with its place."""
    file = tmp_path / "users"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_text(file, form="users")
    assert caught.value.file == str(file)
    assert [(problem.path, problem.allowed) for problem in caught.value.problems] == [
        (path, allowed)
    ]


def test_file_that_a_key_names_is_told_by_the_key(tmp_path: Path) -> None:
    """The key is what has to be corrected; a FIFO would be waited for."""
    file = tmp_path / "users"
    named_by = NamedBy("policy.yaml", "plugins.access.password_file")
    for reason in ("No such file or directory", "Not a regular file"):
        if reason == "Not a regular file":
            os.mkfifo(file)
        with pytest.raises(ConfigError) as caught:
            read_text(file, named_by=named_by)
        assert str(caught.value) == (
            f"policy.yaml: plugins.access.password_file: read {file}: {reason}; "
            "allowed: a file that can be read"
        )


def test_each_unknown_listener_is_named_with_those_there_are() -> None:
    """A plugin's keys about a listener that does not exist are no silence."""
    check_listeners("plugins.p.listeners", ["lan"], ("lan", "wan"), "policy.yaml")
    with pytest.raises(ConfigError) as caught:
        check_listeners("plugins.p.listeners", ["lam", "lan", "x"], ("lan", "wan"), "policy.yaml")
    assert [(problem.path, problem.read, problem.allowed) for problem in caught.value.problems] == [
        ("plugins.p.listeners.lam", "an unknown listener", "one of lan, wan (perhaps lan)"),
        ("plugins.p.listeners.x", "an unknown listener", "one of lan, wan"),
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [("a: \0", "special characters are not allowed"), ("[" * 5_000, "lists or mappings nested")],
)
def test_what_the_yaml_reader_gives_up_on_is_an_error_of_the_file(text: str, told: str) -> None:
    """A control character, or a nesting that is too deep, is no traceback."""
    with pytest.raises(ConfigError, match=f"^policy.yaml: file: read .*{told}"):
        parse_mapping(text, "policy.yaml")
