"""Reads the lines of a mosquitto.conf, as mosquitto 2.0 does."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from penstock.broker.config.checked_yaml import read_text
from penstock.broker.errors import ConfigError, ConfigProblem


class Line(NamedTuple):
    """One directive in a file.

    Attributes:
        number: the number of the line, from 1.
        name: the first word.
        value: the rest without surrounding blanks; "" for nothing.
    """

    file: str
    number: int
    name: str
    value: str

    @property
    def place(self) -> str:
        """Its place in the file, as text."""
        return f"line {self.number}"


class Settings(dict[str, Line]):
    """The directives of one scope, such as a listener, by their newest names."""

    def text(self, name: str) -> str | None:
        """Return the value of a directive; None where it is not given."""
        line = self.get(name)
        return None if line is None else line.value

    def number(self, name: str) -> int | None:
        """Return the value of a directive as a number; None where it is not given."""
        line = self.get(name)
        return None if line is None else int(line.value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return the value of a directive that is true or false."""
        line = self.get(name)
        return default if line is None else line.value == "true"


def parse_lines(text: str, file: str) -> list[Line]:
    """Return the directives of one file, in their order."""
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#") or not line.strip():
            continue
        name, _, value = line.strip().partition(" ")
        lines.append(Line(file, number, name, value.strip()))
    return lines


def read_conf(path: Path) -> list[Line]:
    """Return the directives of a file and of the folders it includes, in their order of effect.

    Raises:
        ConfigError: a file or folder cannot be read.
    """
    lines: list[Line] = []
    for line in parse_lines(read_text(path, has_comments=True), str(path)):
        lines.append(line)
        if line.name != "include_dir" or not line.value:
            continue
        for included in _included(Path(line.value), line):
            inner = parse_lines(read_text(included, has_comments=True), str(included))
            # mosquitto takes no further folder from an included file.
            _refuse_nested(inner)
            lines += inner
    return lines


def _included(folder: Path, line: Line) -> list[Path]:
    """Return the files of an included folder, as mosquitto orders them: A before a before B."""
    try:
        found = [path for path in folder.iterdir() if path.name.endswith(".conf")]
    except OSError as error:
        place = f"{line.place}, include_dir {line.value}"
        read = error.strerror or str(error)
        problem = ConfigProblem(place, read, "a folder that can be read")
        raise ConfigError(line.file, [problem]) from error
    return sorted(found, key=lambda path: (path.name.lower(), path.name))


def _refuse_nested(lines: list[Line]) -> None:
    for line in lines:
        if line.name == "include_dir":
            problem = ConfigProblem(line.place, "include_dir", "in the main file alone")
            raise ConfigError(line.file, [problem])
