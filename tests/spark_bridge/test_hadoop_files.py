from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from penstock.spark_bridge.hadoop_files import HadoopFolder


def test_texts_are_kept_by_name(spark: SparkSession, tmp_path: Path) -> None:
    """In a folder that is made when the first is written; by path or URI."""
    storage = HadoopFolder(spark, str(tmp_path / "new"))
    assert storage.read("a") is None
    storage.write("a", "é\n")
    storage.write("a", "text é\n")
    assert storage.read("a") == "text é\n"
    assert HadoopFolder(spark, (tmp_path / "new").as_uri()).read("a") == "text é\n"
