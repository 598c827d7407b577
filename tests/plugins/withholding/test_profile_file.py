from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.config.key_types import read_size
from penstock.broker.errors import ConfigError
from penstock.plugins.withholding.profile import LatencyProfile
from penstock.plugins.withholding.profile_file import is_csv, parse_csv_profile, table_of_mapping


def told(text: str) -> list[str]:
    """Return the lines of the error that a CSV text causes."""
    with pytest.raises(ConfigError) as caught:
        parse_csv_profile(text, "sizes.csv")
    return str(caught.value).splitlines()


def test_rows_comments_and_a_header_are_read() -> None:
    """As a spreadsheet writes it, or a person."""
    text = "# measured on site 7\r\nbytes, seconds\r\n\r\n10000, 0.3\r\n1000000,2.9\r\n,\r\n"
    assert parse_csv_profile(text, "f.csv") == {10_000: 0.3, 1_000_000: 2.9}
    assert parse_csv_profile("5,1", "f.csv") == {5: 1.0}


@given(st.dictionaries(st.integers(1, 10**9), st.floats(1e-6, 1e6), min_size=1))
def test_every_sound_table_comes_back_whole(table: dict[int, float]) -> None:
    """In whatever order its rows stand."""
    table = dict(zip(table, sorted(table.values()), strict=True))
    rows = dict(zip(sorted(table), table.values(), strict=True))
    text = "\n".join(f"{size},{latency!r}" for size, latency in reversed(rows.items()))
    assert parse_csv_profile(text, "f.csv") == rows
    LatencyProfile(rows)


def test_each_wrong_line_is_told_with_its_number() -> None:
    """File, line, what was read and what is allowed."""
    row = "payload bytes, a comma and a latency, such as 10000,1.0"
    assert told("10000,1\nmany,2\n1e6,3\n7;4\n10000,9\n-5,1\n8\n") == [
        f"sizes.csv: line 2: read 'many,2'; allowed: {row}",
        f"sizes.csv: line 3: read '1e6,3'; allowed: {row}",
        f"sizes.csv: line 4: read '7;4'; allowed: {row}",
        "sizes.csv: line 5: read 10000 bytes as in line 1; allowed: each size once",
        f"sizes.csv: line 6: read '-5,1'; allowed: {row}",
        f"sizes.csv: line 7: read '8'; allowed: {row}",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "file: read no rows; allowed: at least one row of payload bytes: latency"),
        ("bytes,latency\n", "file: read no rows; allowed: at least one row"),
        ("0,1\n", "line 1: read 0: 1; allowed: payload bytes of at least 1"),
        ("9,1\n10,-1\n", "line 2: read 10: -1; allowed: latencies above 0 and finite"),
        (f"{'9' * 5000},1\n", f"line 1: read '{'9' * 80}'; allowed: payload bytes, a comma"),
        ("9,nan\n", "line 1: read 9: nan; allowed: latencies above 0 and finite"),
        ("9,1\n20,3\n10,4\n", "line 2: read 20: 3; allowed: latencies that never fall"),
        ("bytes,latency\nbytes,latency\n9,1\n", "line 2: read 'bytes,latency'; allowed: payload"),
    ],
)
def test_table_that_is_no_profile_is_told_with_the_line_at_fault(text: str, line: str) -> None:
    """What no row says alone: the rows are read first."""
    [only] = told(text)
    assert only.startswith(f"sizes.csv: {line}")


def test_yaml_mapping_is_a_table() -> None:
    """Its keys are payload bytes, with or without a unit."""
    assert table_of_mapping({"10 kB": 1, 1_000_000: 10.5}, "f.yaml", read_size) == {
        10_000: 1.0,
        1_000_000: 10.5,
    }


@pytest.mark.parametrize(
    ("mapping", "line"),
    [
        ({"many": 1}, "many: read the key 'many'; allowed: payload bytes, such as 10000"),
        ({1.5: 1}, "1.5: read the key 1.5; allowed: payload bytes"),
        ({10000: 1, "10 kB": 2}, "10 kB: read 10000 bytes again; allowed: each size once"),
        ({5: "slow"}, "5: read 'slow'; allowed: a latency, such as 1.0"),
        ({5: True}, "5: read True; allowed: a latency"),
        ({5: None}, "5: read None; allowed: a latency"),
        ({5: 10**400}, "5: read 5: inf; allowed: latencies above 0 and finite"),
        ({5: 2, 6: 1}, "6: read 6: 1; allowed: latencies that never fall"),
        ({}, "file: read no rows; allowed: at least one row"),
    ],
)
def test_wrong_entry_of_a_mapping_is_told_by_its_key(mapping: dict[Any, Any], line: str) -> None:
    """File, key, what was read and what is allowed."""
    with pytest.raises(ConfigError) as caught:
        table_of_mapping(mapping, "sizes.yaml", read_size)
    assert str(caught.value).startswith(f"sizes.yaml: {line}")


@given(
    st.text()
    | st.lists(st.tuples(st.text(), st.text())).map(lambda rows: "\n".join(map(",".join, rows)))
)
def test_whatever_stands_in_a_file_is_a_profile_or_a_users_mistake(text: str) -> None:
    """No other exception, and never a table that is no profile."""
    try:
        LatencyProfile(parse_csv_profile(text, "f.csv"))
    except ConfigError:
        return


def test_form_is_told_by_the_name() -> None:
    """Another ending is a mistake: it may be that a table was meant."""
    assert is_csv("a/B.CSV")
    assert not is_csv("b.yaml")
    assert not is_csv("b.yml")
    with pytest.raises(ValueError, match=r"\.csv, \.yaml, \.yml"):
        is_csv("profile.txt")
