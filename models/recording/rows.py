"""The rows of a recording, and their files: a folder with a CSV file for each kind of row.

Times are seconds since the recording began. An empty cell stands for a value that is unknown or
does not apply. Payloads are not recorded.
"""

from __future__ import annotations

import csv
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO, TypeAlias, TypeVar

T = TypeVar("T", bound=tuple[Any, ...])


class RttRow(NamedTuple):
    """The path to a client, as the broker knew it.

    Attributes:
        rtt_seconds: newest estimate of the plugin `probing`.
        rtt_bytes: payload bytes of the packet that was timed; 0 for a bare acknowledgement.
        unanswered_seconds: the time for which the oldest timed packet had been without an answer.
        unanswered_bytes: payload bytes of that packet.
        threshold_l_seconds: the RTT above which the policy considers the path congested.
        bytes_per_second: the recent rate of acknowledged data, as the kernel reports it.
        is_app_limited: whether the broker had too little to send, so that the path may carry more.
        retransmit_ratio: the share of recent segments that were retransmitted.
    """

    seconds: float
    client: str
    is_connected: bool
    rtt_seconds: float | None
    rtt_bytes: int
    unanswered_seconds: float | None
    unanswered_bytes: int
    threshold_l_seconds: float | None
    bytes_per_second: int | None
    is_app_limited: bool | None
    retransmit_ratio: float | None


class MessageRow(NamedTuple):
    """A message that was published."""

    seconds: float
    topic: str
    payload_bytes: int
    expiry_seconds: int | None


class SubscriptionRow(NamedTuple):
    """A topic filter that a client had; without one, a client that had none.

    Attributes:
        seconds: the time at which it was first seen.
        topic_filter: without the share's name, or None.
    """

    seconds: float
    client: str
    topic_filter: str | None


class FigureRow(NamedTuple):
    """One of the broker's own figures.

    Attributes:
        name: topic below ``$SYS/broker/``.
    """

    seconds: float
    name: str
    value: str


FILES: Final[dict[type[tuple[Any, ...]], str]] = {
    RttRow: "rtts.csv",
    MessageRow: "messages.csv",
    SubscriptionRow: "subscriptions.csv",
    FigureRow: "broker.csv",
}

Take: TypeAlias = Callable[[tuple[Any, ...]], None]
"""A function that gets each row of a recording."""


class FullError(Exception):
    """An error: the files are as large as they may become."""


class Writer:
    """Writes rows as they come, so that a recording is whole whenever it ends.

    Attributes:
        n_bytes: the total length of all files, bytes.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """Make the folder and its files.

        Raises:
            FileExistsError: there is something in the folder.
            OSError: it cannot be made or written into.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise FileExistsError(f"{folder} is not empty")
        self.n_bytes = 0
        self.n_rows = dict.fromkeys(FILES, 0)
        self._max_bytes = max_bytes
        self._files: dict[type[tuple[Any, ...]], TextIO] = {}
        for kind, name in FILES.items():
            # A row is in the file as soon as it is whole.
            self._files[kind] = (folder / name).open("w", encoding="utf-8", newline="", buffering=1)
            self._write(kind, kind._fields)  # type: ignore[attr-defined]

    def take(self, row: tuple[Any, ...]) -> None:
        """Write a row.

        Raises:
            FullError: there is no room for it.
            OSError: it cannot be written.
        """
        self._write(type(row), [_cell(value) for value in row])
        self.n_rows[type(row)] += 1

    def _write(self, kind: type[tuple[Any, ...]], cells: Sequence[str]) -> None:
        line = _Line()
        csv.writer(line, lineterminator="\n").writerow(cells)
        n_bytes = len(line.text.encode(errors="surrogateescape"))
        if self.n_bytes + n_bytes > self._max_bytes:
            raise FullError
        self._files[kind].write(line.text)
        self.n_bytes += n_bytes

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


class _Line:
    """A file object that takes the lines of a `csv.writer`."""

    text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6g}" if isinstance(value, float) and value < 1 else _number(value)


def _number(value: object) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def read_rows(folder: Path, kind: type[T]) -> list[T]:
    """Return the rows of a kind, in the order of the file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds something else; the message names file, line and cell.
    """
    file = folder / FILES[kind]
    with file.open(encoding="utf-8", newline="") as lines:
        return list(_rows(csv.reader(lines), kind, file.name))


def _rows(reader: Any, kind: type[T], name: str) -> Iterator[T]:
    hints = typing.get_type_hints(kind)
    readers = [_reader(hint) for hint in hints.values()]
    try:
        columns: list[str] = next(reader, [])
        if columns != list(hints):
            raise ValueError(f"{name}: read columns {columns}; allowed: {list(hints)}")
        for row in reader:
            if len(row) != len(readers):
                raise ValueError(
                    f"{name}, line {reader.line_num}: read {len(row)} cells; allowed: {len(hints)}"
                )
            try:
                yield kind(*(read(cell) for read, cell in zip(readers, row, strict=True)))
            except ValueError as error:
                raise ValueError(f"{name}, line {reader.line_num}: {error}") from None
    except csv.Error as error:
        raise ValueError(f"{name}, line {reader.line_num}: {error}") from None


def _reader(hint: Any) -> Callable[[str], Any]:
    is_optional = isinstance(hint, types.UnionType)
    options = typing.get_args(hint) if is_optional else (hint,)
    (plain,) = (each for each in options if each is not types.NoneType)

    def read(cell: str) -> Any:
        if is_optional and not cell:
            return None
        if plain is bool:
            if cell not in {"true", "false"}:
                raise ValueError(f"read {cell!r}; allowed: true or false")
            return cell == "true"
        try:
            found = plain(cell)
        except ValueError:
            raise ValueError(f"read {cell!r}; allowed: a number") from None
        if plain is float and not 0 <= found < float("inf"):
            raise ValueError(f"read {cell!r}; allowed: a number of 0 or above")
        return found

    return read
