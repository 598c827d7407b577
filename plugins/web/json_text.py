"""Reads JSON texts of any size, in steps of a millisecond at most.

Theory of operation. Python's own reader is fast, but reads a text in one step, during which nothing
else runs: 4 MB take from 6 to 100 ms. So it gets windows of the text. A value that ends within its
window is read by it; of a larger one, the members are read window by window in the same way, as
many at a time as the window holds. A string that is larger is read in pieces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from typing import Any, Final

WINDOWS: Final = (2_048, 32_768)
"""Python's reader gets so many characters at a time: a usual message, or what it reads within a
millisecond, whatever it is."""

MAX_DEPTH: Final = 64
"""A value larger than a window may have at most so many levels."""

_CONTROL: Final = bytes(range(32))
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_STRING_PIECE: Final = re.compile(
    r'(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u[0-9A-Fa-f]{4})*+', re.DOTALL
)
"""A piece of a string: whole characters and escapes."""

_ESCAPE_CHARACTERS: Final = 6

_Value = Generator[None, None, tuple[Any, int]]


class JsonTextError(ValueError):
    """A text that is no JSON; says where."""


_DECODER: Final = json.JSONDecoder()
_READ: Final = _DECODER.raw_decode
_READ_WHOLE: Final = _DECODER.decode


def read_json(data: bytes | bytearray) -> Generator[None, None, Any]:
    """Read a text in UTF-8; a work for `penstock.plugins.web.cooperative_work.Slicer`.

    ``NaN`` and ``Infinity``, which are no JSON, are read as the numbers that they mean: the check
    of the value can name it and say what is allowed, as with ``1e999``.

    Raises:
        JsonTextError: it is no JSON, or nests larger values too deep.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise JsonTextError(f"no UTF-8 at byte {error.start}") from None
    yield
    if len(text) <= WINDOWS[-1]:
        try:
            return _READ_WHOLE(text)
        except (ValueError, RecursionError):
            pass  # the reader of windows tells where, in its own words
    at = yield from _behind_space(text, 0)
    value, at = yield from _value(text, at, 0)
    at = yield from _behind_space(text, at)
    if at < len(text):
        raise _error("more after the value", at)
    return value


def _error(what: str, at: int) -> JsonTextError:
    return JsonTextError(f"{what} at character {at}")


def _behind_space(text: str, at: int) -> Generator[None, None, int]:
    while True:
        match = _SPACE.match(text, at, at + WINDOWS[-1])
        if match is None or match.end() < at + WINDOWS[-1]:
            return at if match is None else match.end()
        at = match.end()
        yield


def _value(text: str, at: int, depth: int) -> _Value:
    """Read the value that begins at a character."""
    problem = "no value"
    for n_characters in WINDOWS:
        window = text[at : at + n_characters]
        is_rest = at + len(window) == len(text)
        try:
            value, end = _READ(window)
        except ValueError as error:
            problem = getattr(error, "msg", None) or str(error)
        except RecursionError:
            problem = "nested too deep"
        else:
            # "1.5e+" is read as 1.5: where a number ends shows what follows.
            if end < len(window) - 2 or is_rest:
                return value, at + end
        yield
        if is_rest:
            raise _error(problem, at)
    kind = text[at]
    if kind == '"':
        return (yield from _string(text, at + 1))
    if kind not in "[{":
        raise _error(problem, at)
    if depth == MAX_DEPTH:
        raise _error("nested too deep", at)
    return (yield from _members(text, at + 1, depth + 1, is_object=kind == "{"))


def _members(text: str, at: int, depth: int, *, is_object: bool) -> _Value:
    """Read the members of a list or an object, from behind its bracket."""
    found: list[Any] = []
    close = "}" if is_object else "]"
    at = yield from _behind_space(text, at)
    while text[at : at + 1] != close or found:
        some, behind = _several(text, at, is_object=is_object)
        if some:
            found += some
            yield
            at = yield from _behind_space(text, behind)
            continue
        if is_object:
            member, at = yield from _pair(text, at, depth)
        else:
            member, at = yield from _value(text, at, depth)
        found.append(member)
        yield
        at = yield from _behind_space(text, at)
        if text[at : at + 1] == close:
            break
        if text[at : at + 1] != ",":
            raise _error("no comma", at)
        at = yield from _behind_space(text, at + 1)
    return (dict(found) if is_object else found), at + 1


def _several(text: str, at: int, *, is_object: bool) -> tuple[list[Any], int]:
    """Read as many members as a window holds, if it can be cut at its last comma.

    Returns:
        The members and the place behind the comma; no members where the comma is inside of one.
    """
    window = text[at : at + WINDOWS[-1]]
    for end_of_member in ("},", ","):
        found = window.rfind(end_of_member)
        if found < 0:
            continue
        cut = found + len(end_of_member) - 1
        try:
            read = f"{{{window[:cut]}}}" if is_object else f"[{window[:cut]}]"
            value, end = _READ(read)
        except (ValueError, RecursionError):
            continue
        if value and end == len(read):
            return list(value.items()) if is_object else value, at + cut + 1
    return [], at


def _pair(text: str, at: int, depth: int) -> _Value:
    if text[at : at + 1] != '"':
        raise _error("no property name in quotes", at)
    key, at = yield from _value(text, at, depth)
    at = yield from _behind_space(text, at)
    if text[at : at + 1] != ":":
        raise _error("no colon", at)
    at = yield from _behind_space(text, at + 1)
    value, at = yield from _value(text, at, depth)
    return (key, value), at


def _string(text: str, at: int) -> _Value:
    """Read the string whose first character behind the quote is at `at`."""
    end = text.find('"', at)
    if end >= 0 and text.find("\\", at, end) < 0:
        yield from _check_characters(text, at, end)
        return text[at:end], end + 1
    pieces: list[str] = []
    while text[at : at + 1] != '"':
        match = _STRING_PIECE.match(text, at, at + WINDOWS[-1])
        behind = at if match is None else match.end()
        if behind == at:
            raise _error("a string with a wrong character, or without an end,", at)
        piece: str = json.loads(f'"{text[at:behind]}"')
        # The other half of a pair of surrogates may follow.
        if "\ud800" <= piece[-1] <= "\udbff" and behind - at > _ESCAPE_CHARACTERS:
            behind -= _ESCAPE_CHARACTERS
            piece = piece[:-1]
        pieces.append(piece)
        at = behind
        yield
    return "".join(pieces), at + 1


def _check_characters(text: str, at: int, end: int) -> Generator[None, None, None]:
    for start in range(at, end, WINDOWS[-1]):
        piece = text[start : min(end, start + WINDOWS[-1])].encode()
        if len(piece.translate(None, _CONTROL)) != len(piece):
            raise _error("a control character in a string", start)
        yield
