from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.spark_bridge.sink_folder import (
    FolderInUseError,
    PlaceError,
    SinkFolderError,
    check_nesting,
    check_paths,
    check_place,
    held_folders,
    held_places,
    listed_names,
    local_folder,
    note_joining,
    prepare_checkpoint,
    prepare_folder,
)

UNFINISHED = "part-00000-5f2a1c9e-0b1d-4c3e-8a7f-9d6b5e4c3a21-c000.snappy.parquet"
"""As Spark names a file."""


def plan(checkpoint: Path, *batches: int) -> None:
    """Write plans of micro-batches."""
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    for batch in batches:
        (checkpoint / "offsets" / str(batch)).write_text("v1")


def list_files(folder: Path, batch: int, *names: str) -> None:
    """List files as those of a finished micro-batch."""
    (folder / "_spark_metadata").mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"path": (folder / name).as_uri()}) for name in names]
    (folder / "_spark_metadata" / str(batch)).write_text("\n".join(["v1", *lines]))


def put(file: Path, *, age: float = 0) -> Path:
    """Write a file with so many seconds of age."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"PAR1")
    os.utime(file, (time.time() - age,) * 2)
    return file


def run(spark: SparkSession, folder: Path, checkpoint: Path, batches: int) -> None:
    """Let Spark write some micro-batches of one row each."""
    source = folder.parent / "source"
    for number in range(batches):
        spark.range(number, number + 1, numPartitions=1).write.mode("append").parquet(str(source))
    followed = spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 1)
    writer = followed.parquet(str(source)).writeStream.option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start(str(folder))
    query.awaitTermination()


def test_files_of_a_killed_run_go_and_listed_ones_stay(spark: SparkSession, tmp_path: Path) -> None:
    """Afterwards every reader finds each row once; compacted lists count as lists."""
    folder, checkpoint = tmp_path / "rows", tmp_path / "checkpoint"
    interval = "spark.sql.streaming.fileSink.log.compactInterval"
    spark.conf.set(interval, 3)
    run(spark, folder, checkpoint, batches=4)
    spark.conf.unset(interval)
    assert [file.name for file in (folder / "_spark_metadata").glob("*.compact")] == ["2.compact"]
    names = {file.name for file in folder.glob("part-*.parquet")}
    assert listed_names(folder) == names
    litter = folder / UNFINISHED
    litter.write_bytes(b"half a file")
    (folder / f".{litter.name}.crc").write_bytes(b"")
    assert prepare_folder(folder, checkpoint) == []  # no batch is unfinished: it is not the query's
    plan(checkpoint, 4)
    put(litter)
    assert prepare_folder(folder, checkpoint) == [litter]
    assert {file.name for file in folder.glob("part-*.parquet")} == names
    assert not (folder / f".{litter.name}.crc").exists()
    assert prepare_folder(folder, checkpoint) == []


def test_what_the_query_cannot_have_written_stays(tmp_path: Path) -> None:
    """Files of batch jobs and of other queries, wherever they lie, and copies of any."""
    folder, checkpoint = tmp_path / "lake", tmp_path / "checkpoint"
    listed = put(folder / UNFINISHED.replace("00000", "00007"), age=30)
    list_files(folder, 0, listed.name)
    kept = [
        put(folder / "high" / UNFINISHED),  # another sink of the pipeline
        put(folder / "quarantine" / UNFINISHED),
        put(folder / "daily" / "day=1" / UNFINISHED),  # a batch job's
        put(folder / UNFINISHED.replace("00000", "00001"), age=20),  # appended before the plan
        put(folder / "part-of-mine.parquet"),
        put(folder / "part-00000-copy.parquet"),
        put(folder / "host=a" / UNFINISHED),  # partitions that this query has not
    ]
    plan(checkpoint, 0)
    assert prepare_folder(folder, checkpoint) == []
    plan(checkpoint, 1)
    os.utime(checkpoint / "offsets" / "1", (time.time() - 10,) * 2)
    own = put(folder / UNFINISHED)
    assert prepare_folder(folder, checkpoint) == [own]
    assert all(file.exists() for file in [*kept, listed])


def test_outputs_within_each_other_are_refused(tmp_path: Path) -> None:
    """By what other runs have written; the outputs of one run are its pipeline's affair."""
    outer, inner = tmp_path / "lake", tmp_path / "lake" / "days" / "high"
    check_nesting([outer, inner])
    (outer / "_spark_metadata").mkdir(parents=True)
    check_nesting([outer])
    told = rf"{inner}: read a folder within {outer}, and both are outputs of queries"
    with pytest.raises(SinkFolderError, match=told):
        check_nesting([inner])
    (outer / "_spark_metadata").rmdir()
    (inner / "_spark_metadata").mkdir(parents=True)
    with pytest.raises(SinkFolderError, match=told):
        check_nesting([outer])
    check_nesting([outer, inner])


def test_what_a_killed_joining_has_left_goes(tmp_path: Path) -> None:
    """Noted files that no list has are deleted, however old they are."""
    folder, checkpoint = tmp_path / "rows", tmp_path / "checkpoint"
    plan(checkpoint, 0)
    joined, old, other = (put(folder / f"part-{name}.parquet", age=60) for name in "abc")
    list_files(folder, 0, joined.name)
    note_joining(folder, [joined.name, old.name, "part-gone.parquet"])
    assert prepare_folder(folder, checkpoint) == [old]
    assert joined.exists()
    assert other.exists()
    note_joining(folder, [other.name])
    (folder / ".penstock.joining").write_text('["part-')  # killed before anything was touched
    assert prepare_folder(folder, checkpoint) == []
    assert sorted(file.name for file in folder.glob("*part*")) == [joined.name, other.name]
    assert not (folder / ".penstock.joining").exists()


def test_an_unfinished_first_plan_goes_and_finished_ones_stay(tmp_path: Path) -> None:
    """Spark would never start the query again; behind a finished plan it does."""
    prepare_checkpoint(tmp_path / "none")
    plans = tmp_path / "offsets"
    plans.mkdir()
    unfinished = [plans / "..0.57a2.tmp.crc", plans / ".0.57a2.tmp"]
    kept = [plans / ".hidden"]
    for file in [*unfinished, *kept]:
        file.write_text("")
    assert prepare_checkpoint(tmp_path) == unfinished
    assert list(plans.iterdir()) == kept
    finished = [plans / "0", plans / ".0.crc"]
    for file in finished:
        file.write_text("")
    assert prepare_checkpoint(tmp_path) == []
    assert sorted(plans.iterdir()) == sorted(finished + kept)


def test_a_new_checkpoint_on_a_used_folder_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would skip the new query's first batches, and their messages would be lost."""
    folder = tmp_path / "rows"
    run(spark, folder, tmp_path / "checkpoint", batches=1)
    with pytest.raises(SinkFolderError, match="holds files of another query"):
        prepare_folder(folder, tmp_path / "new checkpoint")
    assert listed_names(folder) == {file.name for file in folder.glob("part-*.parquet")}


def test_an_output_that_was_deleted_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would go on, and stop for good where it compacts its list."""
    folder, checkpoint = tmp_path / "rows", tmp_path / "checkpoint"
    plan(checkpoint, 0, 1, 2)
    (checkpoint / "commits").mkdir()
    (checkpoint / "commits" / "1").write_text("v1")
    list_files(folder, 1)
    assert prepare_folder(folder, checkpoint) == []
    list_files(folder, 0)
    (folder / "_spark_metadata" / "1").unlink()
    told = (
        r"rows lacks what .* \(batches up to 0 are listed in it, .* finished batches up to 1\), as"
    )
    with pytest.raises(SinkFolderError, match=told):
        prepare_folder(folder, checkpoint)
    with pytest.raises(SinkFolderError, match=told):
        check_place(spark, folder.as_uri(), checkpoint.as_uri())


def test_a_place_elsewhere_is_its_querys_or_refused(spark: SparkSession, tmp_path: Path) -> None:
    """As on this machine: batches that its checkpoint does not know of, and files of others."""
    place, checkpoint = f"{tmp_path.as_uri()}/rows", f"{tmp_path.as_uri()}/checkpoint"
    check_place(spark, place, checkpoint)  # neither is there
    for file in ("rows/_spark_metadata/3", "rows/_spark_metadata/2.compact", "rows/part-0.parquet"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("v1")
    plans = tmp_path / "checkpoint" / "offsets"
    plans.mkdir(parents=True)
    for known in ("2", ".3.tmp"):
        (plans / known).write_text("v1")
        told = r"/rows holds files of another query \(batches up to 3 .* of batches up to 2\)"
        with pytest.raises(SinkFolderError, match=told):
            check_place(spark, place, checkpoint)
    (plans / "3").write_text("v1")
    check_place(spark, place, checkpoint)
    with pytest.raises(SinkFolderError, match=r"of batches up to -1\)"):
        check_place(spark, place, f"{tmp_path.as_uri()}/new")
    (tmp_path / "rows" / "_spark_metadata").rename(tmp_path / "gone")
    with pytest.raises(SinkFolderError, match="use an empty folder"):
        check_place(spark, place, f"{tmp_path.as_uri()}/new")
    (tmp_path / "rows" / "day=1").mkdir()
    (tmp_path / "rows" / "part-0.parquet").rename(tmp_path / "rows" / "day=1" / "part-0.parquet")
    with pytest.raises(SinkFolderError, match="use an empty folder"):
        check_place(spark, place, f"{tmp_path.as_uri()}/new")


def test_a_folder_with_files_of_others_is_refused_not_swept(tmp_path: Path) -> None:
    """What the query did not write is never deleted."""
    foreign = tmp_path / "rows" / "part-00000-of-a-batch-job.snappy.parquet"
    foreign.parent.mkdir()
    foreign.write_bytes(b"")
    with pytest.raises(SinkFolderError, match="use an empty folder"):
        prepare_folder(foreign.parent, tmp_path / "checkpoint")
    assert foreign.exists()


def test_a_first_batch_that_was_killed_leaves_nothing(tmp_path: Path) -> None:
    """Planned and not listed: whatever lies there is the killed batch's."""
    plan(tmp_path / "checkpoint", 0)
    litter = put(tmp_path / "rows" / UNFINISHED)
    assert prepare_folder(litter.parent, tmp_path / "checkpoint") == [litter]


def test_a_new_folder_is_ready(tmp_path: Path) -> None:
    """The first run of all."""
    assert prepare_folder(tmp_path / "rows", tmp_path / "checkpoint") == []


def test_folders_are_held_until_the_run_ends(tmp_path: Path) -> None:
    """Both by name and by a link; a folder that is named twice is held once."""
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    in_use = pytest.raises(FolderInUseError, match=r"in use by process \d+; allowed: one run")
    with held_folders([tmp_path, link]), in_use, held_folders([link]):
        pass
    with held_folders([link]):
        pass


def test_files_in_partitions_are_swept_too(tmp_path: Path) -> None:
    """A folder for each value of each column; what is no file of Spark's stays."""
    plan(tmp_path / "checkpoint", 0)
    litter = put(tmp_path / "rows" / "host=a" / "on%3F=1" / UNFINISHED.replace("parquet", "json"))
    (litter.parent / "notes").write_text("")
    columns = ("Host", "on?")
    assert prepare_folder(tmp_path / "rows", tmp_path / "checkpoint", columns) == [litter]
    assert (litter.parent / "notes").exists()


@pytest.mark.parametrize(
    ("place", "folder"),
    [
        ("data/rows", Path("data/rows")),
        ("file:///data/a%20b", Path("/data/a b")),
        ("file:/data", Path("/data")),
        ("s3a://bucket/rows", None),
        ("hdfs://name/rows", None),
    ],
)
def test_only_places_on_this_machine_are_folders(place: str, folder: Path | None) -> None:
    """Others are Spark's alone."""
    assert local_folder(place) == folder


def test_places_elsewhere_are_held_by_a_file_that_names_the_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Another run is refused, one that is known to have ended replaced; it goes with the run."""
    place = f"{tmp_path.as_uri()}/rows"
    lock = tmp_path / "rows" / ".penstock.lock"
    told = rf"rows is in use by .*\"process\": {os.getpid()}.*delete file:.*/\.penstock\.lock"
    with held_places(spark, [place, f"{place}/"]):
        with pytest.raises(FolderInUseError, match=told), held_places(spark, [place]):
            pass
        assert lock.exists()
    assert not lock.exists()
    for owner in ('{"host": "elsewhere", "process": 1}', "half a li"):
        lock.write_text(owner)
        (lock.parent / ".penstock.lock.crc").unlink(missing_ok=True)
        with pytest.raises(FolderInUseError, match="in use by"), held_places(spark, [place]):
            pass
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    lock.write_text(json.dumps({"host": socket.gethostname(), "process": ended.pid}))
    with held_places(spark, [place]):
        assert json.loads(lock.read_text())["process"] == os.getpid()


def test_a_place_that_spark_has_no_file_system_for_is_named(spark: SparkSession) -> None:
    """With what to give it."""
    told = "nowhere://bucket/rows: Spark cannot write there .*nowhere.*spark.jars.packages"
    with pytest.raises(PlaceError, match=told), held_places(spark, ["nowhere://bucket/rows"]):
        pass


def test_a_path_means_the_same_folder_to_spark_or_is_refused(spark: SparkSession) -> None:
    """Where Hadoop's settings name another file system, Spark would take it for one there."""
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    kept = settings.get("fs.defaultFS")
    check_paths(spark, ["data/rows", "nowhere://bucket/rows"])
    settings.set("fs.defaultFS", "hdfs://name")
    try:
        check_paths(spark, ["file:///data/rows", "nowhere://bucket/rows"])
        told = "^penstock: data/rows: .* default file system is hdfs://name; allowed: .* file:///"
        with pytest.raises(PlaceError, match=told):
            check_paths(spark, ["data/rows"])
    finally:
        settings.set("fs.defaultFS", kept)
