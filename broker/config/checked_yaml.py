"""From a YAML file to checked dataclasses; every error names the place, what was read, what may be.

The policy file, the proxy's file and the configuration of every plugin go through here, so a
wrong key or value looks the same wherever it stands.
"""

from __future__ import annotations

import difflib
import json
import stat
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import TypeAdapter, ValidationError

from penstock.broker.config.key_types import SIZE_ALLOWED, WRONG_SIZE
from penstock.broker.errors import ConfigError, ConfigProblem

T = TypeVar("T")

_LONGEST_TEXT_SHOWN = 80

_OF_VALUES = (":str", ":int", ":float")
"""Ends of the tags of keys that stand for themselves."""

_OF_KEYS = (*_OF_VALUES, ":merge", ":value")
"""These and those of the keys `<<` and `=`, which YAML resolves as it reads their mapping."""


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


def read_text(path: str | Path, *, form: str = "text", named_by: NamedBy | None = None) -> str:
    """Return a file's text, without the U+FEFF that editors and spreadsheets may put first.

    Args:
        path: of the file.
        form: what it is to hold, for errors.
        named_by: the key that names it: the file must then be a regular one, and an error that
            it cannot be read names the key. None for a file that a command line names, which may
            be a pipe.

    Raises:
        ConfigError: it cannot be read, or is not UTF-8.
    """
    try:
        if named_by is not None:
            check_is_no_pipe(path)
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        reason, allowed = error.strerror or str(error), "a file that can be read"
        if named_by is not None:
            problem = ConfigProblem(named_by.key, f"{path}: {reason}", allowed)
            raise ConfigError(named_by.file, [problem]) from error
        raise ConfigError(str(path), [ConfigProblem("file", reason, allowed)]) from error
    except UnicodeDecodeError as error:
        problem = ConfigProblem(f"byte {error.start}", "no UTF-8", f"{form} in UTF-8")
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
    """Return the top level of a YAML text, {} where it is empty.

    Args:
        text: one YAML document.
        file: its name, for errors.

    Raises:
        ConfigError: as `read_mapping`.
    """
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
        problem = ConfigProblem("file", "lists or mappings in too many others", "a few levels")
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

    Args:
        root: of the document.
        loader: makes values of its nodes.
    """
    problems: list[ConfigProblem] = []
    seen: set[int] = set()

    def look(node: yaml.Node, path: str, parents: frozenset[int]) -> None:
        if id(node) in parents:
            problems.append(ConfigProblem(path, "an alias of what holds it", "a tree"))
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


def validate_config(cls: type[T], mapping: Mapping[str, Any], file: str, path: str) -> T:
    """Return `cls` made from what stands in a file.

    Types are taken as JSON takes them: text is no number and a number no text, a list may
    become a tuple, text an enum member or a path.

    Args:
        cls: a `pydantic.dataclasses.dataclass` that forbids extra keys.
        mapping: what the file holds for it.
        file: name of the file, for errors.
        path: keys from the root to `mapping`, joined by dots; "" for the root.

    Raises:
        ConfigError: with one problem for each wrong key or value.
    """
    try:
        return TypeAdapter(cls).validate_json(json.dumps(mapping, default=str))
    except ValidationError as error:
        problems: dict[tuple[str, str], list[str]] = {}
        for detail in error.errors(include_url=False):
            keys = _keys_in(mapping, detail["loc"])
            place = join(path, *keys) or "file"
            read, allowed = _explain(cls, keys, dict(detail))
            problems.setdefault((place, read), []).append(allowed)
        raise ConfigError(
            file,
            [
                ConfigProblem(place, read, " or ".join(dict.fromkeys(allowed)))
                for (place, read), allowed in problems.items()
            ],
        ) from error


def _explain(cls: type, keys: Sequence[str], detail: Mapping[str, Any]) -> tuple[str, str]:
    """Return what was read and what is allowed, for one of pydantic's errors."""
    kind = detail["type"]
    if kind in {"unexpected_keyword_argument", "extra_forbidden"}:
        return "an unknown key", suggest(str(keys[-1]), _keys_known_at(cls, keys[:-1]))
    if kind in {"missing", "missing_argument"}:
        return "nothing", "a value; this key has no default"
    if kind in WRONG_SIZE:
        return show(detail["input"]), SIZE_ALLOWED
    message = str(detail["msg"])
    for beginning in ("Input should be ", "String should have ", "Value error, "):
        message = message.removeprefix(beginning)
    # pydantic speaks of JSON, the file is YAML.
    for json_word, yaml_word in (("an object", "a mapping"), ("a valid array", "a list")):
        message = message.replace(json_word, yaml_word)
    return show(detail["input"]), message


def _keys_in(mapping: Any, location: Sequence[str | int]) -> list[str]:
    """Return the keys of `location` that a reader of the file knows.

    pydantic's own steps, such as the name of a union's member, are left out.
    """
    keys: list[str] = []
    here = mapping
    for index, step in enumerate(location):
        if isinstance(here, Mapping):
            by_text = {str(key): value for key, value in here.items()}
            if str(step) in by_text:
                here = by_text[str(step)]
            elif index < len(location) - 1 or str(step) == "[key]":
                continue
        elif isinstance(here, list) and isinstance(step, int):
            here = here[step]
        else:
            continue
        keys.append(str(step))
    return keys


def _keys_known_at(annotation: Any, keys: Sequence[str]) -> list[str]:
    """Return the keys that the dataclass at `keys` below `annotation` has."""
    fields = getattr(annotation, "__pydantic_fields__", None)
    if fields is not None:
        if not keys:
            return [field.alias or name for name, field in fields.items()]
        field = fields.get(keys[0])
        return [] if field is None else _keys_known_at(field.annotation, keys[1:])
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _keys_known_at(arguments[0], keys)
    if origin in {Union, UnionType}:
        return [key for member in arguments for key in _keys_known_at(member, keys)]
    if not arguments or not keys:
        return []
    return _keys_known_at(arguments[-1] if len(arguments) == 2 else arguments[0], keys[1:])


def suggest(read: str, known: Iterable[str]) -> str:
    """Return what is allowed in place of an unknown name, nearest first."""
    names = sorted(known)
    near = difflib.get_close_matches(read, names, n=1)
    listed = "one of " + ", ".join(names) if names else "nothing"
    return f"{listed} (perhaps {near[0]})" if near else listed


def check_listeners(path: str, names: Iterable[str], known: Collection[str], file: str) -> None:
    """Check that the listeners exist of which a plugin's keys say something.

    Args:
        path: of the keys in the file.
        names: of listeners, as the keys give them.
        known: names of the listeners that there are.
        file: its name, for errors.

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
