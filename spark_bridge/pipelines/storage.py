"""Small texts beside the checkpoints, in whatever file system Spark keeps them."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession


class Storage:
    """Texts by name in one folder.

    Args:
        spark: knows the file systems.
        place: path or URI of the folder.
    """

    def __init__(self, spark: SparkSession, place: str) -> None:
        self._java: Any = spark._jvm  # noqa: SLF001 - Spark's own file systems have no other way in
        self._place = place
        settings = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
        self._files: Any = self._path("").getFileSystem(settings)

    def read(self, name: str) -> str | None:
        """Return a text; None where there is none."""
        if not self._files.exists(self._path(name)):
            return None
        stream = self._files.open(self._path(name))
        try:
            text: str = self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        return text

    def write(self, name: str, text: str) -> None:
        """Store a text."""
        stream = self._files.create(self._path(name), True)
        try:
            stream.write(text.encode())
        finally:
            stream.close()

    def _path(self, name: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(f"{self._place.rstrip('/')}/{name}")
