"""Rows that wait in files, invisible to everybody else, until their epoch is committed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.engine.jvm import jvm_of
from lockstep.errors import CheckpointDirectoryError
from lockstep.sinks.disk import sync_tree

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Staging:
    """A directory of a sink's own, with one subdirectory of Parquet files per attempt. On any Hadoop file system."""

    def __init__(self, spark: SparkSession, directory: str) -> None:
        from lockstep.engine.storage import local_path

        self.spark = spark
        self.hadoop = spark._jsparkSession.sessionState().newHadoopConf()
        self._jvm = jvm_of(spark)
        self._root = self._jvm.org.apache.hadoop.fs.Path(directory)
        self._files = self._root.getFileSystem(self.hadoop)
        local = local_path(directory)
        self._local = Path(local) if local is not None else None

    def write(self, rows: DataFrame, attempt: str) -> None:
        """Write the rows of an attempt. What an earlier, interrupted call left is replaced."""
        plain = {"parquet.enable.dictionary": "false"}  # read once, row by row: dictionaries only cost time
        rows.write.mode("overwrite").options(**plain).parquet(self.absolute(attempt))
        if self._local is not None:
            sync_tree(self._local, attempt)

    def attempts(self) -> list[str]:
        """Ids of the attempts that have staged something."""
        if not self._files.exists(self._root):
            return []
        return [str(status.getPath().getName()) for status in self._files.listStatus(self._root)]

    def delete(self, attempt: str) -> None:
        """Remove what an attempt has staged. Nothing happens when there is nothing."""
        if not _NAME.fullmatch(attempt):
            raise CheckpointDirectoryError(f"{attempt!r} is no attempt id: nothing is deleted.")
        self._files.delete(self._at(attempt), True)

    def absolute(self, path: str) -> str:
        return str(self._at(path).toString())

    def _at(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, path)


def checked_relative(path: Any, target: str) -> str:
    """The path of a staged file in a handle; one that leads out of the staging directory is refused."""
    if not isinstance(path, str) or not all(_NAME.fullmatch(part) for part in path.split("/")):
        raise CheckpointDirectoryError(f"{target}: a handle names {path!r}, which is no staged file.")
    return path
