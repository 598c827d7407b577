"""What nodes tell each other, without a server."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from penstock.plugins.cluster.notes import Notes

Entries = list[tuple[bytes, list[bytes]]]


class Engine:
    """Gives some notes to who reads them; it is their reader as well."""

    def __init__(self, *notes: Any) -> None:
        self.entries = [(b"1-0", [b"other", json.dumps(note).encode()]) for note in notes]

    def notes_reader(self) -> Engine:
        """Return the reader."""
        return self

    async def anew(self, _most: int) -> AsyncIterator[Entries]:
        """Yield all notes at once."""
        yield self.entries
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Read nothing more."""


async def test_a_note_that_fails_does_not_end_those_behind_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A node that hears nothing any more lets go of no client."""
    heard: asyncio.Future[tuple[Any, ...]] = asyncio.get_running_loop().create_future()
    engine = cast("Any", Engine(["fails"], ["unknown"], [], 7, ["works", 1, "two"]))
    notes = Notes(engine, {}, logging.getLogger("test"))

    def fails(_node: str) -> None:
        raise RuntimeError("a fault")

    notes.heard["fails"] = fails
    notes.heard["works"] = lambda *told: heard.set_result(told)
    notes.start()
    try:
        async with asyncio.timeout(10):
            assert await heard == ("other", 1, "two")
    finally:
        notes.stop()
    assert notes.n_unknown == 4
    assert "a fault" in caplog.text
