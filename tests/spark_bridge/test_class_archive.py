from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.spark_bridge.class_archive import ClassArchiveError, rehearse, write_class_archive
from penstock.spark_bridge.java import find_java
from penstock.spark_bridge.session import java_options


def run_java(options: str, folder: Path) -> None:
    """Run a Java that does nothing."""
    (folder / "litter").write_text("")
    program = find_java(os.environ).program
    subprocess.run([program, *options.split(), "-version"], check=True, capture_output=True)


def test_the_archive_appears_whole_and_alone_and_java_takes_it(tmp_path: Path) -> None:
    """One file in the cache folder; a Java that must share its classes starts with it."""
    archive = tmp_path / "cache" / "spark.jsa"
    write_class_archive(archive, run_java)
    write_class_archive(archive, run_java)
    assert [file.name for file in archive.parent.iterdir()] == ["spark.jsa"]
    options = java_options(short_run=True, archive=archive).replace("share:auto", "share:on")
    assert str(archive) in options
    run_java(options, tmp_path)


def test_a_java_that_writes_nothing_is_told(tmp_path: Path) -> None:
    """The user learns that Spark's start stays slow, and nothing half-written stays."""
    archive = tmp_path / "cache" / "spark.jsa"
    with pytest.raises(ClassArchiveError, match="Java wrote no class archive to"):
        write_class_archive(archive, lambda *_: None)
    assert list(archive.parent.iterdir()) == []


def test_the_rehearsal_goes_through_the_programs_queries(
    spark: SparkSession, tmp_path: Path
) -> None:
    """What is not rehearsed is not in the archive."""
    rehearse(spark, tmp_path)
    assert spark.read.parquet(str(tmp_path / "messages")).count() == 10
    assert spark.read.parquet(str(tmp_path / "windows")).columns[0] == "window_start"
