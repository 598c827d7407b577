"""Reserved disk space, so that a database on a full disk can still delete.

Deleting needs space, too: SQLite writes to its log first, and the log to the file later. Without a
reserve, a queue that has filled its disk could be neither fed nor drained.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from penstock.broker.durable.database_file import open_private

_BLOCK_BYTES = 512
"""The unit of `st_blocks`, whatever the block size of the file system is."""


class DiskReserve:
    """A file that holds space until it is needed.

    Args:
        path: the file's name.
        n_bytes: the size of the file in bytes.

    Attributes:
        is_held: the space is reserved.
        is_possible: False where it could not be, for another reason than that there is none: files
            may not be so large, or the file system cannot do it. ZFS gives a file without blocks.
    """

    def __init__(self, path: str, n_bytes: int) -> None:
        self.n_bytes = n_bytes
        self._path = Path(path)
        self.is_possible = True
        self.is_held = False

    def hold(self) -> bool:
        """Reserve the space, unless it is reserved already; return False where there is none.

        Raises:
            DatabaseFileError: the path is a link or no regular file.
        """
        if self.is_held:
            return True
        try:
            file = open_private(str(self._path))
            try:
                os.posix_fallocate(file, 0, self.n_bytes)
                self.is_possible = os.fstat(file).st_blocks * _BLOCK_BYTES >= self.n_bytes
            finally:
                os.close(file)
        except OSError as error:
            self.is_possible = error.errno in (errno.ENOSPC, errno.EDQUOT)
            self._remove()
            return False
        self.is_held = True
        return True

    def spend(self) -> bool:
        """Free the space for use; return False where it was free already."""
        was_held, self.is_held = self.is_held, False
        self._remove()
        return was_held

    def give_up(self) -> bool:
        """Free what the last run had reserved; return False where there was nothing."""
        if not self._path.is_file() or self._path.is_symlink():
            return False
        self.is_held = False
        self._remove()
        return True

    def _remove(self) -> None:
        with suppress(OSError):
            self._path.unlink()
