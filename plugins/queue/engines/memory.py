"""A store in memory, for tests and for queues that may be lost with the program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.plugins.queue.engines.contract import StorageError
from penstock.plugins.queue.engines.store import Changes, Rows


class MemoryStore:
    """Frames in a dictionary; see `Store` for the contract of its methods.

    It keeps no rows, as there is no start at which they are read.

    Attributes:
        tightened: empty, as there are no files.
    """

    def __init__(self) -> None:
        self.name = "the memory"
        self.tightened: Sequence[str] = ()
        self._frames: dict[tuple[int, int], bytes] = {}
        self._owned: dict[int, set[int]] = {}

    def open(self) -> Rows:
        """Return nothing."""
        return Rows()

    def close(self) -> None:
        """Forget everything."""
        self._frames.clear()
        self._owned.clear()

    def write(self, changes: Changes) -> None:
        """Keep the frames of new segments, and drop those of deleted ones."""
        for physical in changes.physical:
            self._owned.setdefault(physical.queue_id, set()).add(physical.row_id)
        for physical_id, segment, frame in (*changes.segments, *changes.replaced_segments):
            self._frames[physical_id, segment.first_offset] = frame
        for place in changes.deleted_segments:
            self._frames.pop(place, None)
        for queue_id in changes.deleted_queues:
            physical_ids = self._owned.pop(queue_id, set())
            for place in [place for place in self._frames if place[0] in physical_ids]:
                del self._frames[place]

    def probe(self, *, is_failing: bool) -> None:
        """Do nothing: it stores any message."""

    def read(self, physical_id: int, first_offsets: Sequence[int]) -> dict[int, bytes]:
        """Return the frames of segments by first offset."""
        found = {first: self._frames.get((physical_id, first)) for first in first_offsets}
        return {first: frame for first, frame in found.items() if frame is not None}

    def sweep(self) -> bool:
        """Return False: deleted queues leave nothing."""
        return False

    def trim(self) -> bool:
        """Return False: there is no file."""
        return False

    def compact(self) -> int:
        """Return 0: there is no unused space."""
        return 0

    def backup(self, path: str) -> int:
        """Refuse.

        Raises:
            StorageError: always.
        """
        raise StorageError(f"backup to {path}: the memory engine has no file; allowed: sqlite")

    def why_lost(self) -> str:
        """Return "": there is no file."""
        return ""

    def figures(self) -> Mapping[str, Any]:
        """Return the engine's name and the bytes of its frames."""
        return {"engine": "memory", "segments": len(self._frames)}
