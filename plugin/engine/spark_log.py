"""Spark's own logs in a checkpoint directory: the single source of truth for what was planned and decided."""

from __future__ import annotations

from lockstep.errors import CheckpointDirectoryError, CorruptRecordError
from lockstep.protocol.barrier import Barrier, parse_offset_log
from lockstep.protocol.fields import number_in_name, parse_json
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

    def next_watermark_ms(self, epoch: int) -> int:
        """The watermark of the epoch after a decided one, from ``commits/epoch``; 0 when there is none."""
        data = self._storage.read(f"commits/{epoch}")
        try:
            entry = parse_json((data or b"").decode().partition("\n")[2] or "{}")
        except ValueError as error:
            where = f"{self._storage.describe()}/commits/{epoch}"
            raise CorruptRecordError(f"{where} can't be read ({error}). Restore it from a backup.") from error
        watermark = entry.get("nextBatchWatermarkMs", 0) if isinstance(entry, dict) else 0
        return watermark if type(watermark) is int else 0

    def _highest(self, directory: str) -> int:
        numbers = [number_in_name(name) for name in self._storage.list(directory)]
        return max((number for number in numbers if number is not None), default=-1)
