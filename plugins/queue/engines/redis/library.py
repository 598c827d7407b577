"""The library of functions that the server runs, and its version."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

VERSION: Final = 1
"""Another one whenever the functions or the keys change."""
FAMILY: Final = "penstock_queue_"
LIBRARY: Final = f"{FAMILY}{VERSION}"
PREFIX: Final = f"{LIBRARY}_"
"""Begins the name of each function: names are the server's, not the library's."""


def source() -> str:
    """Return the library as the server loads it."""
    code = files(__package__).joinpath("library.lua").read_text(encoding="utf-8")
    return f"#!lua name={LIBRARY}\nlocal PREFIX = '{PREFIX}'\n{code}"
