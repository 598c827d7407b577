from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import SparkSession

from penstock.spark_bridge.java import Java
from penstock.spark_bridge.session import (
    CHECKPOINT_FILES,
    class_archive_path,
    java_options,
    name_pythons,
    worker_python,
    write_checkpoints_by_rename,
)

JAVA = Java(Path("/usr/bin/java"), "17.0.1")


def test_parquet_looks_at_sizes_from_the_first_row_on(spark: SparkSession) -> None:
    """A hundred pictures in one page are more than Java has memory for."""
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    for kind in ("page", "block"):
        assert settings.get(f"parquet.{kind}.size.row.check.min") == "1"


def test_workers_take_compiled_modules_not_spark_s_zip(spark: SparkSession) -> None:
    """A worker that imports Spark from its zip compiles it anew, for half a second each."""

    def where(_: int) -> str:
        import pyspark  # noqa: PLC0415 - the worker's

        return str(pyspark.__file__)

    (path,) = spark.sparkContext.parallelize([1], 1).map(where).collect()
    assert ".zip" not in path


def test_spark_listens_on_this_machine_alone(spark: SparkSession) -> None:
    """Nothing of a local run can be reached from outside."""
    settings = spark.sparkContext.getConf()
    assert settings.get("spark.driver.bindAddress") == "127.0.0.1"
    assert settings.get("spark.driver.host") == "127.0.0.1"
    assert settings.get("spark.ui.enabled") == "false"


def test_parquet_has_times_as_other_readers_know_them(spark: SparkSession, tmp_path: Path) -> None:
    """In UTC, to the microsecond, with the statistics that INT96 does not have."""
    file = str(tmp_path / "times")
    spark.sql("SELECT timestamp'2026-11-23 04:05:06.000007' AS at").coalesce(1).write.parquet(file)
    (part,) = (tmp_path / "times").glob("*.parquet")
    read = parquet.ParquetFile(part)
    at = datetime(2026, 11, 23, 4, 5, 6, 7, tzinfo=UTC)
    assert read.schema_arrow.field("at").type == pa.timestamp("us", tz="UTC")
    assert read.read()["at"].to_pylist() == [at]
    assert read.metadata.row_group(0).column(0).statistics.min == at


def test_checkpoints_of_this_machine_are_written_by_rename(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Without a process for each look at a file; a setting of the user's stays."""
    session = spark.newSession()
    write_checkpoints_by_rename(session)
    chosen = session.conf.get(CHECKPOINT_FILES)
    assert chosen is not None
    assert chosen.endswith(".FileSystemBasedCheckpointFileManager")
    place = tmp_path / "checkpoint"
    rows = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(place))
    query = writer.trigger(availableNow=True).start(str(tmp_path / "rows"))
    query.awaitTermination()
    assert (place / "commits" / "0").is_file()
    assert session.read.parquet(str(tmp_path / "rows")).count() % 5 == 0
    session.conf.set(CHECKPOINT_FILES, "of.the.User")
    write_checkpoints_by_rename(session)
    assert session.conf.get(CHECKPOINT_FILES) == "of.the.User"


def test_the_worker_program_keeps_the_users_own_path(tmp_path: Path) -> None:
    """PYTHONPATH is the user's; only what Spark put before it goes."""
    own = str(tmp_path / "own modules")
    program = worker_python({"XDG_CACHE_HOME": str(tmp_path)})
    assert program == worker_python({"XDG_CACHE_HOME": str(tmp_path)})
    answer = subprocess.run(
        [program, "-c", "import sys; print(sys.executable); print(sys.path[1])"],
        env=os.environ | {"PYTHONPATH": "/spark.zip", "PENSTOCK_PYTHONPATH": own},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.splitlines() == [sys.executable, own]


def test_without_a_cache_folder_the_plain_python_serves(tmp_path: Path) -> None:
    """A home that cannot be written to makes Spark slower, not fail."""
    (tmp_path / "file").write_text("")
    assert worker_python({"XDG_CACHE_HOME": str(tmp_path / "file")}) == Path(sys.executable)


def test_the_python_of_a_cluster_is_the_users_choice(tmp_path: Path) -> None:
    """Its machines may have none at the path of this one; on one machine it is this one."""
    environment = {"PYSPARK_PYTHON": "./environment/bin/python", "XDG_CACHE_HOME": str(tmp_path)}
    name_pythons("spark://master:7077", environment)
    assert environment["PYSPARK_PYTHON"] == "./environment/bin/python"
    assert environment["PYSPARK_DRIVER_PYTHON"] == sys.executable
    name_pythons("local[2]", environment)
    assert environment["PYSPARK_PYTHON"] == str(worker_python(environment))
    chosen: dict[str, str] = {}
    name_pythons("spark://master:7077", chosen)
    assert chosen["PYSPARK_PYTHON"] == sys.executable


def test_a_class_archive_is_used_only_where_it_is_there(tmp_path: Path) -> None:
    """The first run on a machine needs none."""
    archive = tmp_path / "spark.jsa"
    assert "Shared" not in java_options(short_run=True, archive=archive)
    assert "Shared" not in java_options(short_run=True, archive=None)
    archive.write_text("")
    options = java_options(short_run=True, archive=archive)
    assert f"-XX:SharedArchiveFile={archive}" in options
    writing = java_options(short_run=True, archive=archive, write_archive=True)
    assert f"-XX:ArchiveClassesAtExit={archive}" in writing


def test_a_long_run_is_compiled_in_full() -> None:
    """Peak speed counts where Spark runs for hours."""
    assert "TieredStopAtLevel=1" in java_options(short_run=True, archive=None)
    assert "TieredStopAtLevel" not in java_options(short_run=False, archive=None)


def test_each_java_has_a_class_archive_of_its_own(tmp_path: Path) -> None:
    """Java ignores an archive of another version, so none is ever offered one."""
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    path = class_archive_path(JAVA, environment)
    other = class_archive_path(Java(JAVA.program, "21.0.2"), environment)
    assert path.parent == other.parent == tmp_path / "penstock"
    assert path != other
