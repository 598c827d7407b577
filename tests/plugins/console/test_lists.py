from __future__ import annotations

import json
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote

import pytest

from penstock.plugins.console.lists import Form, Page
from penstock.plugins.web.service import RequestError


class Row(NamedTuple):
    """A row of a list."""

    name: str
    rtt: float | None


FORM = Form[Row]("rows", lambda row: row.name, "name", ("rtt",), lambda row: (row.name, None))

ROWS = [Row("b", 0.5), Row("A1", None), Row("c", 0.25), Row("a2", 0.5), Row("d", None)]


def ask(query: str, rows: list[Row] = ROWS) -> Any:
    """Return the answer for a query; the rows come two at a time."""
    page = Page(FORM, dict(parse_qsl(query, keep_blank_values=True)))
    for start in range(0, len(rows), 2):
        page.add(rows[start : start + 2])
    return json.loads(page.text())


def names(answer: Any) -> list[str]:
    """Return the names in a page."""
    return [row["name"] for row in answer["rows"]]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["A1", "a2", "b", "c", "d"]),
        ("order=desc", ["d", "c", "b", "a2", "A1"]),
        ("sort=rtt", ["b", "a2", "c", "d", "A1"]),
        ("sort=rtt&order=asc", ["c", "a2", "b", "A1", "d"]),
        ("search=a", ["A1", "a2"]),
        ("search=nothing", []),
    ],
)
def test_rows_come_in_the_order_that_is_asked_for(query: str, expected: list[str]) -> None:
    """What is not known comes last; equal values stand in the order of the names."""
    answer = ask(query)
    assert (names(answer), answer["next"], answer["total"]) == (expected, None, len(expected))


@pytest.mark.parametrize("sort", ["name", "rtt"])
@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 4, 5])
def test_pages_have_each_row_once(sort: str, order: str, limit: int) -> None:
    """Page by page, the whole list comes in its order."""
    query = f"sort={sort}&order={order}&limit={limit}"
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        answer = ask(f"{query}&after={quote(after, safe='')}")
        found += names(answer)
        after = answer["next"]
    assert found == names(ask(f"sort={sort}&order={order}"))


@pytest.mark.parametrize("sort", ["name", "rtt"])
def test_a_page_of_long_names_ends_early(sort: str) -> None:
    """A client makes them up; a thousand of 64 KiB would be an answer of hundreds of MB."""
    rows = [Row(f"{number:03}" + "\u00e4" * 60_000, 0.5) for number in range(20)]
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        answer = ask(f"sort={sort}&order=asc&limit=1000&after={quote(after, safe='')}", rows)
        assert 1 <= len(names(answer)) < 10
        found += names(answer)
        after = answer["next"]
    assert found == [row.name for row in rows]


@pytest.mark.parametrize("sort", ["name", "rtt"])
@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize(("limit", "n_characters"), [(1, 1), (3, 1), (20, 1), (20, 60_000)])
def test_pages_of_several_programs_are_one_list(
    sort: str, order: str, limit: int, n_characters: int
) -> None:
    """Page by page each row comes once and in its order, also where one has ended early."""
    rows = [
        Row(f"{number:02}" + "x" * n_characters, None if number % 5 == 0 else number % 3)
        for number in range(15)
    ]
    parts = [rows[::2], rows[1::4], rows[3::4], []]
    query: dict[str, str] = {"sort": sort, "order": order, "limit": str(limit), "after": ""}
    found: list[str] = []
    while query["after"] is not None:
        one, *others = [Page(FORM, query) for _ in parts]
        for page, part in zip([one, *others], parts, strict=True):
            page.add(part)
        for page in others:
            one.join(page.rows, page.total, page.n_behind)
        answer = json.loads(one.text())
        assert answer["total"] == len(rows)
        found += names(answer)
        query["after"] = answer["next"]
    expected = ask(f"sort={sort}&order={order}", [row._replace(name=row.name[:2]) for row in rows])
    assert [name[:2] for name in found] == names(expected)


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("limit=0", 'limit: read "0"; allowed: 1 to 1000'),
        ("limit=x", 'limit: read "x"; allowed: 1 to 1000'),
        ("sort=size", 'sort: read "size"; allowed: name, rtt'),
        ("order=up", 'order: read "up"; allowed: asc, desc'),
        ("sort=rtt&after=x", 'after: read "x"; allowed: next of the page before'),
        ("sort=rtt&after=x|b", 'after: read "x|b"; allowed: next of the page before'),
    ],
)
def test_a_wrong_query_is_told(query: str, told: str) -> None:
    """What was read and what is allowed."""
    with pytest.raises(RequestError) as raised:
        ask(query)
    assert str(raised.value) == told
