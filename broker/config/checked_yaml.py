"""Reads YAML files into checked dataclasses.

The policy file, the proxy's file and the configuration of every plugin go through here, so a
wrong key or value looks the same wherever it stands.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
import stat
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    Final,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from penstock.broker.config.key_types import SIZE_ALLOWED, WRONG_SIZE
from penstock.broker.errors import ConfigError, ConfigProblem

T = TypeVar("T")

_LONGEST_TEXT_SHOWN = 80

_OF_VALUES = (":str", ":int", ":float")
"""A key of a file may have one of these YAML types: a text or a number."""

_OF_KEYS = (*_OF_VALUES, ":merge", ":value")
"""The same, with the keys `<<` and `=`, which YAML resolves as it reads their mapping."""

_reader: Final[Callable[[type], TypeAdapter[Any]]] = functools.cache(TypeAdapter)
"""Returns the `TypeAdapter` of a class; building one takes longer than reading a file."""

_MISSING = frozenset({"missing", "missing_argument"})

_COMMENT = re.compile(rb"^(?:\xef\xbb\xbf)?#.*", re.MULTILINE)

_TOLD = re.compile(r"(?:(\w+): )?read (.+); allowed: (.+)", re.DOTALL)

NOT_IN_FILE: Final[dict[str, Any]] = {"is_key": False}
"""Metadata that marks a field of a dataclass as one that the file cannot give."""


class NamedBy(NamedTuple):
    """The key of a configuration file under which the name of another file stands.

    Attributes:
        file: name of the configuration file.
        key: keys from its root, joined by dots, such as ``plugins.access.password_file``.
    """

    file: str
    key: str


def read_mapping(path: str | Path) -> dict[str, Any]:
    """Return the top level of a YAML file, {} where the file is empty.

    Raises:
        ConfigError: the file cannot be read, is not YAML, names a key twice, or its top
            level is not a mapping.
    """
    return parse_mapping(read_text(path, form="YAML"), str(path))


def read_text(
    path: str | Path,
    *,
    form: str = "text",
    named_by: NamedBy | None = None,
    has_comments: bool = False,
) -> str:
    """Return a file's text, without the U+FEFF that editors and spreadsheets may put first.

    Args:
        path: the path of the file.
        form: the form of the text, for errors.
        named_by: the key that names it: the file must then be a regular one, and an error that
            it cannot be read names the key. None for a file that a command line names, which may
            be a pipe.
        has_comments: lines that begin with ``#`` may be in any encoding, as in mosquitto's files.

    Raises:
        ConfigError: it cannot be read, or is not UTF-8.
    """
    try:
        if named_by is not None:
            check_is_no_pipe(path)
        data = Path(path).read_bytes()
        if has_comments:
            data = _COMMENT.sub(b"#", data)
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        reason, allowed = error.strerror or str(error), "a file that can be read"
        if named_by is not None:
            problem = ConfigProblem(named_by.key, f"{path}: {reason}", allowed)
            raise ConfigError(named_by.file, [problem]) from error
        raise ConfigError(str(path), [ConfigProblem("file", reason, allowed)]) from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = ConfigProblem(f"line {line}", "no UTF-8", f"{form} in UTF-8")
        raise ConfigError(str(path), [problem]) from error


def check_is_no_pipe(path: str | Path) -> None:
    """Refuse what may keep its reader waiting: a FIFO, a socket, a device.

    Raises:
        OSError: it is one of these, or nothing can be found out about it.
    """
    mode = Path(path).stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError("Not a regular file")


def parse_mapping(text: str, file: str) -> dict[str, Any]:
    """Return the top level of a YAML text, {} where it is empty."""
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            problems = [] if node is None else _problems_of_node(node, loader)
            if problems:
                raise ConfigError(file, problems)
            read = None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        raise ConfigError(file, [_yaml_problem(error)]) from error
    except yaml.YAMLError as error:
        read = " ".join(str(error).split())
        raise ConfigError(file, [ConfigProblem("file", read, "YAML")]) from error
    except RecursionError as error:
        problem = ConfigProblem("file", "lists or mappings nested too deeply", "a few levels")
        raise ConfigError(file, [problem]) from error
    if read is None:
        return {}
    if not isinstance(read, dict):
        raise ConfigError(file, [ConfigProblem("file", show(read), "a mapping of keys to values")])
    return read


def _yaml_problem(error: yaml.MarkedYAMLError) -> ConfigProblem:
    mark = error.problem_mark or error.context_mark
    place = "file" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}"
    read = ", ".join(part for part in (error.context, error.problem) if part)
    return ConfigProblem(place, read or "no YAML", "YAML")


def _problems_of_node(root: yaml.Node, loader: yaml.SafeLoader) -> list[ConfigProblem]:
    """Find what YAML lets pass and a policy file must not hold.

    These are keys given twice, keys that are neither text nor number, nodes that hold themselves,
    and what looks like a number or a date and is none.
    """
    problems: list[ConfigProblem] = []
    seen: set[int] = set()

    def look(node: yaml.Node, path: str, parents: frozenset[int]) -> None:
        if id(node) in parents:
            problems.append(ConfigProblem(path, "an alias of a node that contains it", "a tree"))
            return
        if id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            problems.extend(_problems_of_keys(node, path))
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode) and key.tag.endswith(_OF_VALUES):
                    problems.extend(_problems_of_scalar(key, path, loader))
                look(value, join(path, key.value), parents | {id(node)})
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                look(value, f"{path}[{index}]", parents | {id(node)})
        elif isinstance(node, yaml.ScalarNode):
            problems.extend(_problems_of_scalar(node, path, loader))

    look(root, "", frozenset())
    return problems


def _problems_of_scalar(
    node: yaml.ScalarNode, path: str, loader: yaml.SafeLoader
) -> list[ConfigProblem]:
    """Find a date such as 2026-13-01, a number of more digits than Python reads, or `!!bool x`."""
    try:
        loader.construct_object(node)
    except (ValueError, OverflowError, LookupError, AttributeError):
        place = path or f"line {node.start_mark.line + 1}"
        return [ConfigProblem(place, show(node.value), "a number or a date, or text in quotes")]
    return []


def _problems_of_keys(node: yaml.MappingNode, path: str) -> list[ConfigProblem]:
    problems = []
    lines: dict[Hashable, int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or not key.tag.endswith(_OF_KEYS):
            problems.append(
                ConfigProblem(
                    path or "file",
                    f"a key that is no text in line {line}",
                    "text; in quotes where it reads yes, no, on, off, true, false, null or a date",
                )
            )
        elif key.value in lines:
            problems.append(
                ConfigProblem(
                    join(path, key.value),
                    f"the same key in lines {lines[key.value]} and {line}",
                    "each key once",
                )
            )
        else:
            lines[key.value] = line
    return problems


class Misfit(NamedTuple):
    """One value of a file that does not fit its type.

    Attributes:
        place: keys, and indices of lists, from the mapping that was checked.
        read: the value there, as text.
        allowed: the values that are allowed there.
    """

    place: tuple[str, ...]
    read: str
    allowed: str


class MisfitError(Exception):
    """A value of a file does not fit its type.

    Attributes:
        misfits: one for each wrong key or value, at least one.
    """

    def __init__(self, misfits: list[Misfit]) -> None:
        super().__init__(misfits)
        self.misfits = misfits


def validate_config(cls: type[T], mapping: Mapping[str, Any], file: str, path: str) -> T:
    """Return `cls` made from a mapping of a file, as `fit` makes it.

    Args:
        cls: a `pydantic.dataclasses.dataclass` that forbids extra keys.
        mapping: its part of the file.
        file: name of the file, for errors.
        path: keys from the root to `mapping`, joined by dots; "" for the root.

    Raises:
        ConfigError: with one problem for each wrong key or value.
    """
    try:
        return fit(cls, mapping)
    except MisfitError as error:
        problems = [
            ConfigProblem(join(path, *place) or "file", read, allowed)
            for place, read, allowed in error.misfits
        ]
        raise ConfigError(file, problems) from error


class FileReading:
    """One pass over a file, which collects every problem before it gives up.

    Attributes:
        file: name of the file, for errors.
        problems: found so far.
    """

    def __init__(self, file: str) -> None:
        """Begin without problems."""
        self.file = file
        self.problems: list[ConfigProblem] = []

    def wrong(self, path: str, read: str, allowed: str) -> None:
        """Take note of a wrong place."""
        self.problems.append(ConfigProblem(path, read, allowed))

    def checked(self, cls: type[T], mapping: Mapping[str, Any], path: str) -> T | None:
        """Return what `validate_config` makes; None where it finds problems, which are noted."""
        try:
            return validate_config(cls, mapping, self.file, path)
        except ConfigError as error:
            self.problems.extend(error.problems)
            return None

    def underscored(self, mapping: Mapping[str, Any], path: str) -> dict[str, Any]:
        """Return `mapping` with dashes in its keys as underscores, as aMQTT reads both."""
        result: dict[str, Any] = {}
        for key, value in mapping.items():
            name = key.replace("-", "_") if isinstance(key, str) else key
            if name in result:
                self.wrong(
                    join(path, key),
                    "the same key with a dash and with an underscore",
                    "each key once",
                )
            result[name] = value
        return result


def fit(cls: type[T], value: Any) -> T:
    """Return `cls` made from a value of a file.

    Types are taken as JSON takes them: text is no number and a number no text, a list may
    become a tuple, text an enum member or a path.

    Raises:
        MisfitError: with each wrong key or value.
    """
    try:
        made: T = _reader(cls).validate_json(json.dumps(value, default=str))
    except ValidationError as error:
        raise MisfitError(_misfits(cls, value, error)) from error
    return made


def _misfits(cls: type, value: Any, error: ValidationError) -> list[Misfit]:
    found: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for detail in error.errors(include_url=False):
        place, read, allowed = _explain(cls, _keys_in(value, detail), detail)
        found.setdefault((place, read), []).append(allowed)
    places = [place for place, _ in found]
    return [
        Misfit(place, read, " or ".join(dict.fromkeys(allowed)))
        for (place, read), allowed in found.items()
        # A mapping that is wrong inside is no misfit of the union's members that are no mapping.
        if not any(len(other) > len(place) and other[: len(place)] == place for other in places)
    ]


def _explain(cls: type, place: tuple[str, ...], detail: ErrorDetails) -> Misfit:
    """Return one of pydantic's errors in the words of a file."""
    kind = detail["type"]
    if kind in {"unexpected_keyword_argument", "extra_forbidden"}:
        return Misfit(
            place, "an unknown key", suggest(str(place[-1]), _keys_known_at(cls, place[:-1]))
        )
    if kind in _MISSING:
        # An item of a list is no key.
        of_key = "; this key has no default" if isinstance(detail["loc"][-1], str) else ""
        return Misfit(place, "nothing", f"a value{of_key}")
    if kind in WRONG_SIZE:
        return Misfit(place, show(detail["input"]), SIZE_ALLOWED)
    if kind == "too_long":
        return Misfit(place, show(detail["input"]), f"at most {detail['ctx']['max_length']} items")
    message = str(detail["msg"])
    for beginning in ("Input should be ", "String should have ", "Value error, "):
        message = message.removeprefix(beginning)
    # A dataclass that checks itself may name the key and what was read.
    if told := _TOLD.fullmatch(message):
        key, read, allowed = told.groups()
        return Misfit((*place, key) if key else place, read, allowed)
    # pydantic speaks of JSON, the file is YAML.
    for json_word, yaml_word in (("an object", "a mapping"), ("a valid array", "a list")):
        message = message.replace(json_word, yaml_word)
    return Misfit(place, show(detail["input"]), message)


def _keys_in(value: Any, detail: ErrorDetails) -> tuple[str, ...]:
    """Return the keys of an error's location that a reader of the file knows.

    pydantic's own steps, such as the name of a union's member, are left out.
    """
    keys: list[str] = []
    here = value
    location = detail["loc"]
    for index, step in enumerate(location):
        is_missing = index == len(location) - 1 and detail["type"] in _MISSING
        if isinstance(here, Mapping):
            by_text = {str(key): value for key, value in here.items()}
            if str(step) in by_text:
                here = by_text[str(step)]
            elif not is_missing:
                continue
        elif isinstance(here, list) and isinstance(step, int):
            here = None if is_missing else here[step]
        else:
            continue
        keys.append(str(step))
    return tuple(keys)


def _keys_known_at(annotation: Any, keys: Sequence[str]) -> list[str]:
    """Return the keys that the dataclass at `keys` below `annotation` has."""
    if is_dataclass(annotation):
        names = [each.name for each in fields(annotation) if each.metadata != NOT_IN_FILE]
        if not keys:
            return names
        return _keys_known_at(get_type_hints(annotation).get(keys[0]), keys[1:])
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _keys_known_at(arguments[0], keys)
    if origin in {Union, UnionType}:
        return [key for member in arguments for key in _keys_known_at(member, keys)]
    if not arguments or not keys:
        return []
    is_mapping = isinstance(origin, type) and issubclass(origin, Mapping)
    return _keys_known_at(arguments[1] if is_mapping else arguments[0], keys[1:])


def suggest(read: str, known: Iterable[str]) -> str:
    """Return what is allowed in place of an unknown name, nearest first."""
    names = sorted(known)
    near = difflib.get_close_matches(read, names, n=1)
    listed = "one of " + ", ".join(names) if names else "nothing"
    return f"{listed} (perhaps {near[0]})" if near else listed


def check_listeners(path: str, names: Iterable[str], known: Collection[str], file: str) -> None:
    """Check that the listeners exist of which a plugin's keys say something.

    Raises:
        ConfigError: with each that does not exist.
    """
    problems = [
        ConfigProblem(join(path, name), "an unknown listener", suggest(name, known))
        for name in names
        if name not in known
    ]
    if problems:
        raise ConfigError(file, problems)


def show(value: Any) -> str:
    """Return a value as an error shows it: on one line, not too long."""
    text = "null" if value is None else repr(value)
    if len(text) <= _LONGEST_TEXT_SHOWN:
        return text
    return text[: _LONGEST_TEXT_SHOWN - 3] + "..."


def join(*keys: str) -> str:
    """Return keys from the root joined by dots; empty ones are left out."""
    return ".".join(str(key) for key in keys if key != "")
