"""The error that ends the demo early."""

from __future__ import annotations


class DemoError(Exception):
    """An error: the demo cannot go on; the text is for the user.

    Attributes:
        status: the exit status; 2 where something has to be changed first, 1 otherwise.
    """

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.status = status
