"""Reads a directory that :class:`~lockstep.sinks.files.FileSink` fills, whole epochs only; and knows how it is laid out.

In the directory::

    <partitions>/part-<n>.<lineage>.<uid>.<attempt id><.snappy.parquet, .json.gz, …>    data files, visible to all
    _lockstep/<lineage>.<uid>/birth                                                     that a sink was opened here
    _lockstep/<lineage>.<uid>/staged/<attempt id>/…                                     files of undecided epochs
    _lockstep/<lineage>.<uid>/committed/<epoch>                                         markers: the highest counts

Spark, Hive, Arrow and others pass over names that start with ``_`` or ``.``. A uid may hold dots: the lineage is what
stands before the first, and in a file name the attempt id is the last piece with a dash.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from lockstep.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)

FORMATS = ("parquet", "json", "csv", "orc")
OWN = "_lockstep"
NO_GLOBS = "__globPaths__"  # Spark's own option: '[', '{' and '*' in a path stand for themselves

_MARKER = re.compile(r"[0-9]{12,}")
_DATA_FILE = re.compile(
    r"part-[0-9]{5,}\.(?P<writer>[A-Za-z0-9_-]+\.[A-Za-z0-9_.-]+)\."
    r"(?P<attempt>(?P<epoch>[0-9]+)-[0-9]+-[0-9A-Za-z]+)(?:\.[A-Za-z0-9_]+)*"
)


@dataclass(frozen=True)
class DataFileName:
    """What the name of a data file tells."""

    writer: str  # <lineage>.<uid>
    attempt: str
    epoch: int

    @classmethod
    def parse(cls, path: str) -> DataFileName | None:
        """``None`` for a file that another writer has put there."""
        match = _DATA_FILE.fullmatch(path.rpartition("/")[2])
        return cls(match["writer"], match["attempt"], int(match["epoch"])) if match else None


@dataclass(frozen=True)
class StoredFile:
    path: str
    bytes: int


def committed_files(spark: SparkSession, path: str) -> list[str]:
    """The data files of all epochs that are in place completely, with their full paths.

    Files that no FileSink has written are among them: a directory may hold older data.
    """
    return _committed_files(FileDirectory(spark, path))


def read_files(
    spark: SparkSession,
    path: str,
    format: str = "parquet",
    schema: StructType | str | None = None,
    **options: str | bool | int | float,
) -> DataFrame:
    """The rows of ``committed_files``: an epoch is there with all of its rows, or not at all.

    The list of files is made by this call: read again to see later epochs. ``schema`` is needed while the directory holds
    no files, with the partition columns; ``options`` are those of Spark's reader (``header=True``).
    """
    check_format(format)
    directory = FileDirectory(spark, path)
    files = _committed_files(directory)
    if not files:
        if schema is None:
            raise ConfigurationError(
                f"there are no committed files in {path} yet, so their columns are not known: give schema=, or wait for "
                "the first epoch."
            )
        return spark.createDataFrame([], schema)
    reader = spark.read.format(format).options(**options)
    reader = reader.option("basePath", directory.location).option(NO_GLOBS, "false")
    return (reader if schema is None else reader.schema(schema)).load(files)


def _committed_files(directory: FileDirectory) -> list[str]:
    committed = directory.committed()  # before the files are listed: an epoch with a marker has all of its files
    files = whole_epochs(committed, [file.path for file in directory.data_files()])
    return [f"{directory.location}/{file}" for file in files]


def check_format(format: object) -> str:
    if format not in FORMATS:
        raise ConfigurationError(f"format={format!r} is not known. Use one of: {', '.join(FORMATS)}.")
    return str(format)


def whole_epochs(committed: Mapping[str, int], paths: Iterable[str]) -> list[str]:
    """Those of the data files whose epoch their writer has committed, and those of other writers."""
    kept = []
    strangers = set()
    for path in paths:
        name = DataFileName.parse(path)
        if name is None or name.epoch <= committed.get(name.writer, -1):
            kept.append(path)
        elif name.writer not in committed:
            strangers.add(name.writer)
    for writer in sorted(strangers):
        _log.warning(
            "files of %s are left out: %s/%s is not in the directory. Was it copied in part?", writer, OWN, writer
        )
    return kept


def highest_marker(names: Iterable[str]) -> int:
    """The last committed epoch; -1 for none. A paused driver may leave an older marker behind, which does no harm."""
    return max((int(name) for name in markers(names)), default=-1)


def markers(names: Iterable[str]) -> list[str]:
    """Those of the names that are markers, oldest first."""
    return sorted((name for name in names if _MARKER.fullmatch(name)), key=int)


def hidden(name: str) -> bool:
    """Whether readers pass over a file or directory of this name."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


class FileDirectory:
    """A directory on any Hadoop file system. Paths are relative to it and use ``/``; nothing in them is escaped."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        from lockstep.engine.storage import qualified

        self.location = qualified(spark, path).rstrip("/")
        self._path = cast("Any", spark._jvm).org.apache.hadoop.fs.Path
        self._files = self.at("").getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())

    def at(self, path: str) -> Any:
        return self._path(f"{self.location}/{path}")

    def exists(self, path: str) -> bool:
        return bool(self._files.exists(self.at(path)))

    def size(self, path: str) -> int | None:
        """Bytes of a file; ``None`` when it is not there."""
        found = {name: size for name, size, is_directory in self._list(path) if not is_directory}
        return found.get(path.rpartition("/")[2])

    def committed(self) -> dict[str, int]:
        """The last committed epoch of every writer that was ever opened here; -1 for none."""
        writers = [name for name, _, is_directory in self._list(OWN) if is_directory]
        return {w: highest_marker(name for name, _, _ in self._list(f"{OWN}/{w}/committed")) for w in writers}

    def data_files(self, below: str = "") -> list[StoredFile]:
        """All visible files, at any depth. Hidden directories are not entered: theirs come and go."""
        found = []
        todo = [below]
        while todo:
            directory = todo.pop()
            for name, size, is_directory in self._list(directory):
                path = f"{directory}/{name}" if directory else name
                if hidden(name):
                    continue
                if is_directory:
                    todo.append(path)
                elif not name.endswith("._COPYING_"):  # half a file, being put there by Hadoop's shell
                    found.append(StoredFile(path, size))
        return sorted(found, key=lambda file: file.path)

    def move(self, source: str, target: str) -> bool:
        """Rename a file, creating the directories above ``target``. ``False`` when the file system refused."""
        destination = self.at(target)
        self._files.mkdirs(destination.getParent())
        return bool(self._files.rename(self.at(source), destination))

    def _list(self, path: str) -> list[tuple[str, int, bool]]:
        target = self.at(path)
        if not self._files.exists(target):
            return []
        return [
            (str(status.getPath().getName()), int(status.getLen()), bool(status.isDirectory()))
            for status in self._files.listStatus(target)
        ]
