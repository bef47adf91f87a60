"""What a query can be restored from: a savepoint, or a checkpoint that another directory still retains."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from lockstep.engine.storage import open_storage
from lockstep.errors import CorruptRecordError
from lockstep.operators.state_reader import find_groups
from lockstep.protocol.savepoint import STATE, Contents, SavedOperator, Savepoint, read_savepoint
from lockstep.protocol.storage import Storage
from lockstep.savepoint.create import Epoch
from lockstep.savepoint.groups import count, read_groups, require_contents

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CHECKPOINT = re.compile(r"(.+)/lockstep/checkpoints/chk-(\d+)/?")


class Origin(ABC):
    """``record`` says what there is."""

    record: Savepoint

    @abstractmethod
    def groups(self, uid: str) -> DataFrame:
        """The key groups of an operator, checked to be as they were saved."""

    @abstractmethod
    def source_logs(self) -> Storage:
        """Where the folder ``sources`` is."""


class SavepointOrigin(Origin):
    """A savepoint."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path.rstrip("/")
        self._storage = open_storage(spark, path)
        self.record = read_savepoint(self._storage)

    def groups(self, uid: str) -> DataFrame:
        if not self._storage.list(f"{STATE}/{uid}"):
            raise CorruptRecordError(
                f"{self._storage.describe()}: the state of operator {uid!r} is missing. Copy the savepoint again."
            )
        frame = read_groups(self._spark, f"{self._path}/{STATE}/{uid}")
        require_contents(count(frame), self.record.operators[uid].contents, uid, self._storage.describe())
        return frame

    def source_logs(self) -> Storage:
        return self._storage


class CheckpointOrigin(Origin):
    """A retained checkpoint, in the directory of its query. It belongs to that query, and stays."""

    def __init__(self, spark: SparkSession, directory: str, epoch: int) -> None:
        self._spark = spark
        self._directory = directory
        self._storage = open_storage(spark, directory)
        found = Epoch.find(self._storage, epoch)
        unknown = Contents(0, 0, 0)  # it is read as it is
        operators = {uid: SavedOperator(text, unknown) for uid, text in found.lineage.operators.items()}
        self.record = found.savepoint(operators)

    def groups(self, uid: str) -> DataFrame:
        return find_groups(self._spark, self._directory, uid, self.record.epoch).frame

    def source_logs(self) -> Storage:
        return self._storage


def open_origin(spark: SparkSession, path: str) -> Origin:
    """``path`` is a savepoint, or ``<checkpoint directory>/lockstep/checkpoints/chk-N``."""
    checkpoint = _CHECKPOINT.fullmatch(path)
    if checkpoint is not None:
        return CheckpointOrigin(spark, checkpoint[1], int(checkpoint[2]))
    return SavepointOrigin(spark, path)


def is_checkpoint(path: str) -> bool:
    """Whether ``path`` names a checkpoint: it is its own query's, and claiming it changes nothing."""
    return _CHECKPOINT.fullmatch(path) is not None
