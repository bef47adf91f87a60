"""A checkpoint directory on any Hadoop file system: HDFS, object stores, …"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockstep.engine.jvm import jvm_of
from lockstep.engine.versions import checkpoint_file_manager
from lockstep.protocol.storage import LARGEST_FILE, no_such_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class HadoopStorage:
    """Files written through Spark's own checkpoint file manager: as atomic as Spark's logs in the same directory.

    Mutual exclusion of ``create`` holds where the file system refuses to rename or create over an existing file: HDFS
    and its kin, and object stores with conditional writes. Where it does not, two drivers started at the same instant
    may take the same token; Spark's own commit log has the same limit there.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._jvm = jvm_of(spark)
        self._path = self._jvm.org.apache.hadoop.fs.Path
        self._root = self._path(root)
        self._configuration = spark._jsparkSession.sessionState().newHadoopConf()
        self._files = checkpoint_file_manager(self._jvm).create(self._root, self._configuration)
        self._files.mkdirs(self._root)

    def describe(self) -> str:
        return str(self._root.toString())

    def read(self, path: str) -> bytes | None:
        target = self._at(path)
        if not self._files.exists(target):
            return None
        found = target.getFileSystem(self._configuration).getFileStatus(target)
        if found.isDirectory() or found.getLen() > LARGEST_FILE:
            raise no_such_file(str(target.toString()), None if found.isDirectory() else int(found.getLen()))
        stream = self._files.open(target)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def write(self, path: str, data: bytes) -> None:
        self._write(path, data, True)

    def create(self, path: str, data: bytes) -> bool:
        if self.exists(path):
            return False
        try:
            self._write(path, data, False)
        except Exception as error:
            if "FileAlreadyExists" in str(error):
                return False
            raise
        return True

    def exists(self, path: str) -> bool:
        return bool(self._files.exists(self._at(path)))

    def list(self, path: str) -> list[str]:
        target = self._at(path)
        if not self._files.exists(target):
            return []
        return [str(status.getPath().getName()) for status in self._files.list(target)]

    def delete(self, path: str) -> None:
        self._files.delete(self._at(path))

    def _at(self, path: str) -> Any:
        return self._path(self._root, path) if path else self._root

    def _write(self, path: str, data: bytes, overwrite: bool) -> None:
        target = self._at(path)
        self._files.mkdirs(target.getParent())
        stream = self._files.createAtomic(target, overwrite)
        try:
            stream.write(bytearray(data))
            stream.close()
        except Exception:
            stream.cancel()
            raise
