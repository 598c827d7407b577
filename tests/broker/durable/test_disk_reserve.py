from __future__ import annotations

import resource
from pathlib import Path

import pytest

from penstock.broker.durable.database_file import DatabaseFileError
from penstock.broker.durable.disk_reserve import DiskReserve

N_BYTES = 200_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the reserve will lie."""
    return tmp_path / "reserve"


def test_held_space_is_really_taken(path: Path) -> None:
    """The file has its blocks, so that nobody else gets them."""
    reserve = DiskReserve(str(path), N_BYTES)
    assert reserve.hold()
    assert path.stat().st_blocks * 512 >= N_BYTES
    assert reserve.hold()


def test_space_is_spent_once(path: Path) -> None:
    """Spent space is free for others, until it is held again."""
    reserve = DiskReserve(str(path), N_BYTES)
    reserve.hold()
    assert reserve.spend()
    assert not path.exists()
    assert not reserve.spend()
    assert reserve.hold()
    assert path.exists()


def test_space_that_is_not_there_is_not_held(path: Path) -> None:
    """Where the space cannot be had nothing is left behind, and later it can be held."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    reserve = DiskReserve(str(path), N_BYTES)
    resource.setrlimit(resource.RLIMIT_FSIZE, (N_BYTES // 2, hard))
    try:
        assert not reserve.hold()
        assert not path.exists()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert reserve.hold()


def test_reserve_of_the_last_run_is_taken_over(path: Path) -> None:
    """The space is kept while the program does not run."""
    DiskReserve(str(path), N_BYTES).hold()
    reserve = DiskReserve(str(path), N_BYTES)
    assert reserve.hold()
    assert path.stat().st_size == N_BYTES


def test_missing_directory_is_no_space(tmp_path: Path) -> None:
    """Whatever stands in the way, the answer is that there is no space."""
    assert not DiskReserve(str(tmp_path / "missing" / "reserve"), N_BYTES).hold()


def test_what_the_last_run_held_is_given_up_once(path: Path) -> None:
    """For a start on a full disk; a link is no reserve."""
    DiskReserve(str(path), N_BYTES).hold()
    reserve = DiskReserve(str(path), N_BYTES)
    assert reserve.give_up()
    assert not path.exists()
    assert not reserve.give_up()
    path.symlink_to("elsewhere")
    assert not reserve.give_up()
    assert path.is_symlink()


def test_a_link_is_not_followed(path: Path) -> None:
    """Its target keeps its size."""
    victim = path.with_name("victim")
    victim.touch()
    path.symlink_to(victim)
    with pytest.raises(DatabaseFileError, match="read a symbolic link"):
        DiskReserve(str(path), N_BYTES).hold()
    assert victim.stat().st_size == 0
