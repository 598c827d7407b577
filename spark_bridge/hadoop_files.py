"""Files in any file system that Spark knows, by Spark's own Java classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class HadoopFolder:
    """A folder of this machine or of another file system."""

    def __init__(self, spark: SparkSession, place: str) -> None:
        context: Any = spark.sparkContext
        self._java = context._jvm  # noqa: SLF001 - nothing else gives access to file systems
        self._settings = context._jsc.hadoopConfiguration()  # noqa: SLF001
        self._place = place.rstrip("/")
        self._folder = self._path("")
        self._files: Any = self._folder.getFileSystem(self._settings)

    def _path(self, name: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(f"{self._place}/{name}")

    @property
    def default_file_system(self) -> Any:
        """The URI of the file system to which paths without a scheme belong, as a Java object."""
        return self._java.org.apache.hadoop.fs.FileSystem.getDefaultUri(self._settings)

    def names(self) -> list[str]:
        """Return the names in the folder; none where there is no folder."""
        if not self._files.exists(self._folder):
            return []
        return [each.getPath().getName() for each in self._files.listStatus(self._folder)]

    def has_file(self, prefix: str) -> bool:
        """Say whether a name in the folder, or in folders within it, has a prefix."""
        there = self._files.exists(self._folder)
        found = self._files.listFiles(self._folder, True) if there else None
        while found is not None and found.hasNext():
            if found.next().getPath().getName().startswith(prefix):
                return True
        return False

    def read(self, name: str) -> str | None:
        """Return the text of a file; None where there is no such file."""
        if not self._files.exists(self._path(name)):
            return None
        stream = self._files.open(self._path(name))
        try:
            text: str = self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        return text

    def write(self, name: str, text: str, *, overwrites: bool = True) -> None:
        """Write a file.

        Args:
            name: the name of the file in the folder.
            text: the content of the file.
            overwrites: whether an existing file is replaced; otherwise it is an error. Amazon S3
                may not notice a file that another program has just written.
        """
        stream = self._files.create(self._path(name), overwrites)
        try:
            stream.write(text.encode())
        finally:
            stream.close()

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        self._files.delete(self._path(name), False)
