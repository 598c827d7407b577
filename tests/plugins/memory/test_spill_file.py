from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path

import pytest

from penstock.plugins.memory import spill_file
from penstock.plugins.memory.spill_file import BLOCK_BYTES, HOLE_BYTES, SpillFile


def blocks_of(file: SpillFile) -> int:
    """Return the bytes of the disk that a file takes."""
    return sum(os.fstat(segment.fileno).st_blocks * 512 for segment in file._segments)


def n_open(directory: Path) -> int:
    """Return how many files in a directory this process has open."""
    return sum(
        (descriptor.is_symlink() and descriptor.readlink().is_relative_to(directory))
        for descriptor in Path("/proc/self/fd").iterdir()
    )


def test_payloads_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Each payload, whole or in part, is what was put there."""
    rng = random.Random(1)  # noqa: S311 (payloads, not secrets)
    file = SpillFile(str(tmp_path))
    payloads = [rng.randbytes(rng.randrange(1, 3 * BLOCK_BYTES)) for _ in range(50)]
    places = [file.write(payload) for payload in payloads]
    assert file.stored_bytes == sum(map(len, payloads))
    for payload, (segment, start) in zip(payloads, places, strict=True):
        assert file.read(segment, start, len(payload)) == payload
        assert file.read(segment, start + len(payload) // 2, 1) == payload[len(payload) // 2 :][:1]


def test_nothing_is_seen_in_the_directory(tmp_path: Path) -> None:
    """Files have no name: whatever ends the process, none is left over."""
    file = SpillFile(str(tmp_path))
    file.write(bytes(10_000))
    assert not list(tmp_path.iterdir())


def test_very_many_payloads_need_one_descriptor(tmp_path: Path) -> None:
    """Payloads stand one behind the other in one file."""
    file = SpillFile(str(tmp_path))
    places = [file.write(b"x" * 5000) for _ in range(2000)]
    assert n_open(tmp_path) == 1
    del file, places
    assert n_open(tmp_path) == 0


def test_blocks_come_back_while_the_rest_stays(tmp_path: Path) -> None:
    """What is freed amid payloads that stay goes back to the disk, but for a little."""
    file = SpillFile(str(tmp_path))
    n_bytes = 10 * BLOCK_BYTES
    places = [file.write(b"%6d" % number + bytes(n_bytes - 6)) for number in range(1000)]
    kept = set(range(0, 1000, 100))
    for number, place in enumerate(places):
        if number not in kept:
            file.free(*place, n_bytes)
    assert file.stored_bytes == len(kept) * n_bytes
    assert blocks_of(file) <= file.stored_bytes + HOLE_BYTES + 1000 * BLOCK_BYTES // 10
    for number in kept:
        assert file.read(*places[number], n_bytes)[:6] == b"%6d" % number
    for number in kept:
        file.free(*places[number], n_bytes)
    assert file.stored_bytes == blocks_of(file) == 0


def test_a_full_segment_makes_way_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment goes with its last payload, and those in others stay where they are."""
    monkeypatch.setattr(spill_file, "SEGMENT_BYTES", 4 * BLOCK_BYTES)
    file = SpillFile(str(tmp_path))
    places = [file.write(b"%d" % number * BLOCK_BYTES) for number in range(10)]
    assert len(file._segments) == 3
    for place in places[:4]:
        file.free(*place, BLOCK_BYTES)
    assert len(file._segments) == 2
    assert file.read(*places[4], 3) == b"444"
    assert file.read(*places[9], 3) == b"999"


def test_a_full_disk_takes_what_was_given_up_before_it_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One payload that stays does not keep the room of those behind it, little as that may be."""
    file = SpillFile(str(tmp_path))
    disk_bytes, write = 10 * BLOCK_BYTES, os.pwrite

    def write_to_disk(fileno: int, data: memoryview, position: int) -> int:
        if blocks_of(file) + len(data) > disk_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fileno, data, position)

    monkeypatch.setattr(os, "pwrite", write_to_disk)
    kept = file.write(b"kept" * 1000)
    places = [file.write(bytes(3 * BLOCK_BYTES)) for _ in range(3)]
    with pytest.raises(OSError, match="No space left"):
        file.write(b"x")
    for place in places[:2]:
        file.free(*place, 3 * BLOCK_BYTES)
    again = file.write(b"again" * BLOCK_BYTES)
    with pytest.raises(OSError, match="No space left"):
        file.write(bytes(2 * BLOCK_BYTES))
    assert file.read(*kept, 4000) == b"kept" * 1000
    assert file.read(*again, 5 * BLOCK_BYTES) == b"again" * BLOCK_BYTES
    assert file.stored_bytes == 4000 + 8 * BLOCK_BYTES


def test_a_file_system_without_holes_gives_blocks_back_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing can be punched out, all blocks come back with the last payload."""
    monkeypatch.setattr(spill_file, "_find_fallocate", lambda: lambda *_: -1)
    file = SpillFile(str(tmp_path))
    places = [file.write(bytes(HOLE_BYTES)) for _ in range(3)]
    for place in places[:2]:
        file.free(*place, HOLE_BYTES)
    assert file.read(*places[2], 3) == bytes(3)
    file.free(*places[2], HOLE_BYTES)
    assert blocks_of(file) == 0


def test_a_directory_that_is_gone_takes_nothing_and_loses_nothing(tmp_path: Path) -> None:
    """Clearing the directory away refuses further payloads; those it had can still be read."""
    folder = tmp_path / "spill"
    folder.mkdir()
    file = SpillFile(str(folder))
    place = file.write(b"kept" * 2000)
    shutil.rmtree(folder)
    with pytest.raises(FileNotFoundError, match=f"No such file or directory: '{folder}'"):
        file.write(b"more")
    assert file.read(*place, 8000) == b"kept" * 2000
    folder.mkdir()
    assert file.read(*file.write(b"again"), 5) == b"again"


def test_disk_limit_refuses_what_is_beyond_it(tmp_path: Path) -> None:
    """At `disk_limit` nothing more is taken, until something goes."""
    file = SpillFile(str(tmp_path), disk_limit=10_000)
    place = file.write(bytes(6000))
    with pytest.raises(OSError, match="disk_limit of 10000 bytes") as caught:
        file.write(bytes(4001))
    assert caught.value.errno == errno.ENOSPC
    file.write(bytes(4000))
    file.free(*place, 6000)
    file.write(bytes(6000))


def test_what_is_gone_from_the_file_is_an_error(tmp_path: Path) -> None:
    """A payload of which the file has only a part is not read as a shorter one."""
    file = SpillFile(str(tmp_path))
    segment, start = file.write(bytes(10_000))
    os.ftruncate(segment.fileno, 5000)
    with pytest.raises(OSError, match="5000 of 10000 bytes are gone"):
        file.read(segment, start, 10_000)
