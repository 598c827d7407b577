from __future__ import annotations

from penstock.plugins.web.terminal_escape import printable


def test_what_a_terminal_would_obey_is_escaped() -> None:
    """A text of a client moves no cursor and begins no line; other texts stay as they are."""
    assert printable("a\x1b[2J\nb\u202e") == "a\\x1b[2J\\nb\\u202e"
    assert printable("ä €") == "ä €"
