"""Opens the file system that holds a checkpoint directory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lockstep.engine.hadoop_storage import HadoopStorage
from lockstep.engine.local_storage import LocalStorage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lockstep.protocol.storage import Storage


def open_storage(spark: SparkSession, location: str) -> Storage:
    """The directory as Spark would resolve it: local paths directly, everything else through Hadoop."""
    path = local_path(qualified(spark, location))
    return LocalStorage(path) if path is not None else HadoopStorage(spark, location)


def qualified(spark: SparkSession, location: str) -> str:
    """The location with its file system, as Spark would resolve it."""
    jvm = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(location)  # type: ignore[union-attr]
    file_system = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    return str(path.makeQualified(file_system.getUri(), file_system.getWorkingDirectory()).toString())


def local_path(location: str) -> str | None:
    """The path on this machine of a ``file:`` location or a plain path; ``None`` for other file systems."""
    if location.startswith("file:"):  # Hadoop's paths are not escaped: '#', '?' and '%' stand for themselves
        return re.sub(r"^//[^/]*(?=/)", "", location.removeprefix("file:"))
    return None if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", location) else location
