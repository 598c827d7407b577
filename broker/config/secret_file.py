"""Files with secrets, which no other account of the machine should read."""

from __future__ import annotations

import logging
import stat
from pathlib import Path
from typing import Final

_LOGGER: Final = logging.getLogger("penstock")


def warn_of_readers(key: str, file: str | Path) -> None:
    """Warn of a file that every account of the machine can read, as mosquitto does.

    Args:
        key: that names it.
        file: with a private key, passwords or their hashes, or a token.
    """
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
