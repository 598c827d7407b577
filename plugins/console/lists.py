"""Lists of many rows: a page of them by search and order, picked in slices.

There may be very many rows, and the same event loop serves MQTT. So they come in slices, and of
those seen so far only a page is kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nlargest, nsmallest
from operator import attrgetter, gt, lt
from typing import Any, Final, Generic, NamedTuple, TypeVar

from penstock.broker.client_report import as_json
from penstock.plugins.web.service import RequestError, integer, show

DEFAULT_LIMIT: Final = 100

MAX_LIMIT: Final = 1_000

MOST_CHARACTERS: Final = 256 * 1024
"""A page ends early where its texts are longer: clients make up client ids and topics of 64 KiB."""

Row = TypeVar("Row")

_Place = tuple[bool, float, str]
"""Where a row stands: its value is not known, the value, its key."""


class Form(NamedTuple, Generic[Row]):
    """What a list can be asked for.

    Attributes:
        key: returns the text that names a row, by which the list is ordered unless asked otherwise.
        sorts: names of numbers in a row by which it can be ordered.
        first: the order without `sort`; None for that of the key.
    """

    name: str
    key: Callable[[Row], str]
    key_name: str
    sorts: Sequence[str]
    texts: Callable[[Row], Iterable[str | None]]
    first: str | None = None


class Page(Generic[Row]):
    """One page of a list, as a request asks for it.

    Attributes:
        search: in lower case; "" for all rows.
        total: rows that match.
        n_behind: those of them behind `after`.
        n_kept: those of all whose session outlives its connection and whose client matches by its
            name, for who knows it to fill in.

    Raises:
        RequestError: a wrong query.
    """

    def __init__(self, form: Form[Row], query: Mapping[str, str]) -> None:
        self._form = form
        self.limit = integer("limit", query.get("limit", str(DEFAULT_LIMIT)), 1, MAX_LIMIT, int)
        self.search = query.get("search", "").lower()
        self.sort = query.get("sort", form.first or form.key_name)
        allowed = (form.key_name, *form.sorts)
        if self.sort not in allowed:
            raise RequestError(f"sort: read {show(self.sort)}; allowed: {', '.join(allowed)}")
        is_number = self.sort != form.key_name
        order = query.get("order", "desc" if is_number else "asc")
        if order not in ("asc", "desc"):
            raise RequestError(f"order: read {show(order)}; allowed: asc, desc")
        self._is_number, self._falls = is_number, order == "desc"
        self._after = self._read_after(query.get("after", ""))
        self._picked: list[tuple[bool, float, str, Row]] = []
        self._end: _Place | None = None
        self.n_behind = self.total = self.n_kept = 0

    def _read_after(self, token: str) -> _Place | None:
        if not token:
            return None
        if not self._is_number:
            return (False, 0.0, token)
        value, mark, key = token.partition("|")
        try:
            number = float(value) if value else None
        except ValueError:
            mark = ""
        if not mark:
            raise RequestError(f"after: read {show(token)}; allowed: next of the page before")
        return self._place(number, key)

    def _place(self, value: float | None, key: str) -> _Place:
        # What is not known comes last, whichever the order.
        return (value is None) != self._falls, value or 0.0, key

    def add(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Look at some more rows; return those that match."""
        form, after, falls = self._form, self._after, self._falls
        if self.search:
            rows = [row for row in rows if self._matches(row)]
        self.total += len(rows)
        key = form.key
        if self._is_number:
            number = attrgetter(self.sort)
            placed = [
                (((value := number(row)) is None) != falls, value or 0.0, key(row), row)
                for row in rows
            ]
        else:
            placed = [(False, 0.0, key(row), row) for row in rows]
        if after is not None:
            is_behind = lt if falls else gt
            placed = [one for one in placed if is_behind(one[:3], after)]
        self.n_behind += len(placed)
        best = nlargest if falls else nsmallest
        self._picked = best(self.limit, [*self._picked, *placed])
        return rows

    def join(self, rows: Sequence[Row], total: int, n_behind: int) -> None:
        """Add a page of the same query that another program has made.

        Args:
            rows: of that page.
            total: of it.
            n_behind: of it; where there are more than rows, though the page has room, it has ended
                early, and so does this one.
        """
        total, n_behind = self.total + total, self.n_behind + n_behind
        n_more = n_behind - self.n_behind - len(rows)
        self.add(rows)
        self.total, self.n_behind = total, n_behind
        if n_more and 0 < len(rows) < self.limit:
            ends = [one[:3] for one in self._picked if one[3] is rows[-1]]
            ends += [] if self._end is None else [self._end]
            self._end = (max if self._falls else min)(ends, default=None)

    def _matches(self, row: Row) -> bool:
        return any(self.search in text.lower() for text in self._form.texts(row) if text)

    @property
    def rows(self) -> list[Row]:
        """The rows of the page so far."""
        rows: list[Row] = []
        n_characters = 0
        for *place, row in self._picked:
            if self._end is not None and (lt if self._falls else gt)(tuple(place), self._end):
                break
            n_characters += sum(len(text) for text in self._form.texts(row) if text)
            if rows and n_characters > MOST_CHARACTERS:
                break
            rows.append(row)
        return rows

    def text(self, rows: Iterable[Any] | None = None, **more: Any) -> str:
        """Return the page as JSON.

        Args:
            rows: other rows for the same ones, as JSON has them; None for these.
            more: further values.
        """
        following, own_rows = None, self.rows
        if self.n_behind > len(own_rows) > 0:
            is_unknown, value, key, _ = self._picked[len(own_rows) - 1]
            text = "" if is_unknown != self._falls else repr(float(value))
            following = f"{text}|{key}" if self._is_number else key
        shown = [as_json(row) for row in own_rows] if rows is None else list(rows)
        answer = {self._form.name: shown, "next": following, "total": self.total}
        return json.dumps(answer | more)
