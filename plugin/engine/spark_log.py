"""Spark's own logs in a checkpoint directory: the single source of truth for what was planned and decided."""

from __future__ import annotations

from lockstep.errors import CheckpointDirectoryError
from lockstep.protocol.barrier import Barrier, parse_offset_log
from lockstep.protocol.fields import number_in_name
from lockstep.protocol.storage import Storage


class SparkLog:
    """Reads ``offsets/`` and ``commits/``; never writes.

    Epoch N is decided if N is at most the highest batch in ``commits/``. Not "if the file N exists": Spark purges files
    older than ``spark.sql.streaming.minBatchesToRetain``.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._decided = -1  # only ever rises

    def decided(self) -> int:
        """Highest epoch that Spark has decided; -1 for none."""
        self._decided = max(self._decided, self._highest("commits"))
        return self._decided

    def is_decided(self, epoch: int) -> bool:
        """Whether ``epoch`` is decided. One look at a file in the common case, made for polling."""
        if epoch > self._decided and self._storage.exists(f"commits/{epoch}"):
            self._decided = max(self._decided, epoch)
        return epoch <= self._decided

    def planned(self) -> int:
        """Highest epoch whose barrier Spark has laid down; -1 for none."""
        return self._highest("offsets")

    def barrier(self, epoch: int) -> Barrier:
        """The barrier of ``epoch``, from ``offsets/epoch``."""
        data = self._storage.read(f"offsets/{epoch}")
        if data is None:
            raise CheckpointDirectoryError(
                f"{self._storage.describe()}/offsets/{epoch} is missing, though epoch {epoch} is running or decided. "
                "Did something clean the checkpoint directory? Restore it from a backup."
            )
        return parse_offset_log(epoch, data, self._storage.describe())

    def _highest(self, directory: str) -> int:
        numbers = [number_in_name(name) for name in self._storage.list(directory)]
        return max((number for number in numbers if number is not None), default=-1)
