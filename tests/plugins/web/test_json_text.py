from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.web import json_text
from penstock.plugins.web.json_text import MAX_DEPTH, JsonTextError, read_json
from tests.helpers.works import result_of


def read(text: str | bytes) -> Any:
    """Read a text to its end."""
    return result_of(read_json(text.encode() if isinstance(text, str) else text))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(
        st.characters(codec="utf-8") | st.sampled_from('"\\,:[]{}\n\U0001f600'), max_size=200
    ),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=20), inner),
    max_leaves=40,
)
"""With the characters that end values, and some outside of the Basic Multilingual Plane."""


@pytest.mark.parametrize("windows", [(32, 40), (40, 100), json_text.WINDOWS])
@given(value=VALUES, is_ascii=st.booleans(), indent=st.sampled_from([None, 0, 3]))
def test_any_value_is_read_as_python_reads_it(
    *, windows: tuple[int, int], value: Any, is_ascii: bool, indent: int | None
) -> None:
    """Wherever the windows end."""
    text = json.dumps(value, ensure_ascii=is_ascii, indent=indent)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_text, "WINDOWS", windows)
        assert read(text) == json.loads(text)


@given(
    value=VALUES,
    place=st.integers(0, 10_000),
    put=st.sampled_from(["", ",", ",,", "]", "}", '"', "\\", "x", "\n", ":", "0", "NaN"]),
)
def test_a_broken_text_is_refused_where_python_refuses_it(value: Any, place: int, put: str) -> None:
    """And read where Python reads it, with NaN and Infinity, which are no JSON, as numbers."""
    text = json.dumps(value, ensure_ascii=False)
    place %= len(text) + 1
    text = text[:place] + put + text[place + 1 :]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_text, "WINDOWS", (32, 40))
        try:
            expected = json.loads(text)
        except ValueError:
            with pytest.raises(JsonTextError):
                read(text)
        else:
            assert repr(read(text)) == repr(expected)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "at character 0"),
        ("{", "at character"),
        ("[1 2]", "at character"),
        ("[1,]", "at character"),
        ("1 1", "more after the value at character 2"),
        ("[nan]", "at character"),
        (b"\xff", "no UTF-8 at byte 0"),
        ("[" * 200_000, f"nested too deep at character {MAX_DEPTH}"),
        ('["' + "x" * 100_000, "without an end, at character"),
        ('["' + "x" * 100_000 + "\n" + '"]', "a control character in a string at character"),
        ('["\\n' + "x" * 100_000 + "\\x" + '"]', "a string with a wrong character"),
        ("[1,2" + " " * 100_000 + "3]", "no comma at character"),
        ("{" + " " * 100_000 + "3:1}", "no property name in quotes at character"),
        ('{"a"' + " " * 100_000 + "3}", "no colon at character"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str | bytes, told: str) -> None:
    """The error names what was expected, and where."""
    with pytest.raises(JsonTextError) as raised:
        read(text)
    assert told in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"messages": [{"topic": "a", "payload": "AAAA" * 300}] * 1000}),
        json.dumps({"text": "x" * 2_000_000}),
        json.dumps({"text": '"\n\u00e4\U0001f600' * 100_000}),
        "[" + "1," * 1_000_000 + "1]",
        "[" + "[]," * 500_000 + "[]]",
        "{" + '"a":1,' * 300_000 + '"b":2}',
        " " * 2_000_000 + "1",
    ],
)
def test_a_large_text_is_read_in_many_steps(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step gives Python's reader more than a window."""
    largest = 0

    def noting(window: str) -> tuple[Any, int]:
        nonlocal largest
        largest = max(largest, len(window))
        return python_reads(window)

    python_reads = json_text._READ
    monkeypatch.setattr(json_text, "_READ", noting)
    work = read_json(text.encode())
    n_steps = sum(1 for _ in work)
    assert n_steps >= len(text) // json_text.WINDOWS[-1] // 2
    assert largest <= json_text.WINDOWS[-1] + 2
    assert read(text) == json.loads(text)
