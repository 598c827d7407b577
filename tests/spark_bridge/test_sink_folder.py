from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.spark_bridge.sink_folder import (
    FolderInUseError,
    SinkFolderError,
    held_folders,
    listed_names,
    prepare_folder,
)


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
    litter = folder / "part-00000-killed-c000.snappy.parquet"
    litter.write_bytes(b"half a file")
    (folder / f".{litter.name}.crc").write_bytes(b"")
    assert prepare_folder(folder, checkpoint) == [litter]
    assert {file.name for file in folder.glob("part-*.parquet")} == names
    assert not list(folder.glob(".part-*killed*"))
    assert prepare_folder(folder, checkpoint) == []


def test_a_new_checkpoint_on_a_used_folder_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would skip the new query's first batches, and their messages would be lost."""
    folder = tmp_path / "rows"
    run(spark, folder, tmp_path / "checkpoint", batches=1)
    with pytest.raises(SinkFolderError, match="holds files of another query"):
        prepare_folder(folder, tmp_path / "new checkpoint")
    assert listed_names(folder) == {file.name for file in folder.glob("part-*.parquet")}


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
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    (tmp_path / "checkpoint" / "offsets" / "0").write_text("v1")
    litter = tmp_path / "rows" / "part-00000-killed-c000.snappy.parquet"
    litter.parent.mkdir()
    litter.write_bytes(b"")
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
