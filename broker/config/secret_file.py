"""Files that hold secrets, which no other account of the machine should be able to read."""

from __future__ import annotations

import logging
import stat
from pathlib import Path
from typing import Final

from penstock.broker.config.checked_yaml import NamedBy, read_text
from penstock.broker.errors import ConfigError, ConfigProblem

_LOGGER: Final = logging.getLogger("penstock")


def warn_of_readers(key: str, file: str | Path) -> None:
    """Warn of a file that every account of the machine can read, as mosquitto does."""
    path = Path(file).resolve()
    try:
        is_open = bool(path.stat().st_mode & stat.S_IROTH) and all(
            parent.stat().st_mode & stat.S_IXOTH for parent in path.parents
        )
    except OSError:  # whoever reads it says what is wrong
        return
    if is_open:
        _LOGGER.warning(
            "%s %s: every account of this machine can read it; chmod o-r %s", key, file, file
        )


LEAST_SECRET_CHARACTERS: Final = 16
"""A shorter secret could be guessed over the network."""


def read_secret(path: str | Path, named_by: NamedBy | None = None) -> str:
    """Return the secret in a file, without blanks around it. The call blocks while it reads.

    Args:
        path: the file.
        named_by: the key that names the file; None for a file that a command line names.

    Raises:
        ConfigError: the file cannot be read or holds no secret; the message repeats none of it.
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
