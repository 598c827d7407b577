from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.spark_bridge.offsets import Position, QueuePosition
from penstock.spark_bridge.siblings import Siblings

SCOPE = "http://h:1 spark"
LIFE = "7e3cf3a2"


def at(*offsets: int) -> Position:
    """Return a position in the physical queues of one queue."""
    return Position({"q": QueuePosition(dict(enumerate(offsets)), LIFE)})


def test_sources_of_a_new_query_have_one_name(tmp_path: Path) -> None:
    """Until its first micro-batch; the next query has another, as have other groups."""
    one, other = Siblings(tmp_path, SCOPE), Siblings(tmp_path, SCOPE)
    name = one.new_name()
    assert other.new_name() == name
    assert Siblings(tmp_path, "http://h:1 else").new_name() != name
    other.end_new()
    one.end_new()
    assert one.new_name() != name


def test_a_commit_is_the_least_of_all_sources_that_live(tmp_path: Path) -> None:
    """The sources are those of one query: what others of the driver have read does not count."""
    one, other, third = (Siblings(tmp_path, SCOPE) for _ in range(3))
    other.hold("mine", at(2, 9))
    third.hold("theirs", at(0, 0))
    assert one.least("mine", at(5, 5)) == at(2, 5)
    assert other.least("mine", at(7, 9)) == at(5, 5)
    other.close()
    assert one.least("mine", at(6, 6)) == at(6, 6)
    third.close()
    one.close()
    assert [file.name for file in tmp_path.glob("*-of-*")] == []


def test_a_source_whose_process_was_killed_holds_nothing(tmp_path: Path) -> None:
    """Its file is left, and its lock is not."""
    program = f"""
from pathlib import Path
from penstock.spark_bridge.siblings import Siblings
from tests.spark_bridge.test_siblings import at
Siblings(Path({str(tmp_path)!r}), {SCOPE!r}).hold("mine", at(1))
print("held", flush=True)
input()
"""
    killed = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert killed.stdout is not None
    assert killed.stdout.readline() == b"held\n"
    one = Siblings(tmp_path, SCOPE)
    assert one.least("mine", at(5)) == at(1)
    killed.kill()
    killed.communicate()
    assert one.least("mine", at(5)) == at(5)
    one.close()


def test_a_source_is_alone_where_the_driver_has_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that several drivers share is none of this driver's."""
    shared, own = tmp_path / "shared", tmp_path / "blockmgr-1f"
    for folder in (shared, own):
        folder.mkdir()
    for value, files in (("", 0), (str(shared), 0), (f"{own},{shared}", 2)):
        monkeypatch.setenv("SPARK_LOCAL_DIRS", value)
        one = Siblings.of_driver(SCOPE)
        one.hold("mine", at(1))
        assert one.least("mine", at(5)) == at(5)
        one.end_new()
        assert len(list(tmp_path.glob("*/penstock-*"))) == files
        one.close()
