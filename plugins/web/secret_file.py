"""Files with a secret that callers of an HTTP API send."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock.broker.config.checked_yaml import NamedBy, read_text
from penstock.broker.config.secret_file import warn_of_readers
from penstock.broker.errors import ConfigError, ConfigProblem

LEAST_SECRET_CHARACTERS: Final = 16
"""A shorter one could be guessed over the network."""


def read_secret(path: str | Path, named_by: NamedBy | None = None) -> str:
    """Return what stands in a file, without blanks around it; it blocks while it reads.

    Args:
        path: of the file.
        named_by: the key that names it; None for a file that a command line names.

    Raises:
        ConfigError: it cannot be read, or is no secret; it is no part of the text.
    """
    text = read_text(path, named_by=named_by).strip()
    warn_of_readers("secret file" if named_by is None else named_by.key, path)
    if len(text) >= LEAST_SECRET_CHARACTERS and text.isascii() and text.isprintable():
        return text
    file, key, read = str(path), "file", "another text"
    if named_by is not None:
        file, key, read = named_by.file, named_by.key, f"{path}: another text"
    allowed = f"{LEAST_SECRET_CHARACTERS} printable ASCII characters or more, on one line"
    raise ConfigError(file, [ConfigProblem(key, read, allowed)])
