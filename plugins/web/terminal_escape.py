"""Makes clients' texts safe for an operator's terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return a text that is safe for a terminal, whatever a client has put into it."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )
