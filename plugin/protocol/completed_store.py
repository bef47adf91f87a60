"""The completed checkpoints of a directory: ``lockstep/checkpoints/chk-N/_metadata``."""

from __future__ import annotations

import logging

from lockstep.errors import CorruptRecordError
from lockstep.protocol.checkpoint import CompletedCheckpoint
from lockstep.protocol.envelope import of_another, remedy_of
from lockstep.protocol.fields import number_in_name
from lockstep.protocol.storage import Storage

DIRECTORY = "lockstep/checkpoints"
_log = logging.getLogger(__name__)


class CompletedCheckpointStore:
    """Keeps the newest ``retained`` committed checkpoints, and every one that is not committed yet."""

    def __init__(self, storage: Storage, retained: int) -> None:
        self._storage = storage
        self._retained = retained
        self._checkpoints: dict[int, CompletedCheckpoint] = {}
        self._late: list[int] = []

    def load(self, lineage: str) -> None:
        """Read what is stored: at a start. A checkpoint of another lineage would make epochs of this one look committed."""
        found = self.stored()
        for checkpoint in found:
            if checkpoint.lineage != lineage:
                raise of_another(f"{self._storage.describe()}/{_path(checkpoint.id)}", checkpoint.lineage, lineage)
        self._checkpoints = {checkpoint.id: checkpoint for checkpoint in found}
        committed = self.committed_epoch()
        self._late = [c.id for c in self.all() if c.id < committed and not c.committed]
        for late in self._late:
            del self._checkpoints[late]

    def drop_late(self) -> None:
        """Delete what ``load`` has not believed: stored by a fenced driver, when its epochs were committed already.

        It may have chosen attempts that had lost.
        """
        for late in self._late:
            self._drop(late)

    def stored(self) -> list[CompletedCheckpoint]:
        """What is stored at this moment, perhaps by another driver; what is known here does not change."""
        names = [name for name in self._storage.list(DIRECTORY) if name.startswith("chk-")]
        numbers = [number_in_name(name.removeprefix("chk-")) for name in names]
        checkpoints = [self._read(number) for number in numbers if number is not None]
        return [checkpoint for checkpoint in checkpoints if checkpoint is not None]

    def all(self) -> list[CompletedCheckpoint]:
        """Oldest first."""
        return [self._checkpoints[id] for id in sorted(self._checkpoints)]

    def get(self, checkpoint_id: int) -> CompletedCheckpoint | None:
        return self._checkpoints.get(checkpoint_id)

    @property
    def latest(self) -> CompletedCheckpoint | None:
        return self._checkpoints[max(self._checkpoints)] if self._checkpoints else None

    def committed_epoch(self) -> int:
        """Every epoch up to this one is committed in every sink; -1 for none."""
        return max((c.id for c in self._checkpoints.values() if c.committed), default=-1)

    def chosen_attempt(self, epoch: int) -> str | None:
        """The attempt that a stored checkpoint has chosen for the epoch.

        The newest checkpoint decides: an older one that disagrees was stored late, by a driver that was fenced by then.
        """
        checkpoint = self._covering(epoch)
        return None if checkpoint is None else checkpoint.attempts[epoch]

    def certain_attempt(self, epoch: int) -> str | None:
        """The chosen attempt of a committed epoch, if it is certain that no other one is visible in any sink."""
        checkpoint = self._covering(epoch)
        return None if checkpoint is None or epoch in checkpoint.doubtful else checkpoint.attempts[epoch]

    def _covering(self, epoch: int) -> CompletedCheckpoint | None:
        return next((checkpoint for checkpoint in reversed(self.all()) if epoch in checkpoint.attempts), None)

    def add(self, checkpoint: CompletedCheckpoint) -> CompletedCheckpoint:
        """Store a new checkpoint. When another driver was first, its checkpoint is the one that counts: it is returned."""
        if not self._storage.create(_path(checkpoint.id), checkpoint.encode()):
            stored = self._read(checkpoint.id)
            checkpoint = stored if stored is not None else checkpoint
        self._checkpoints[checkpoint.id] = checkpoint
        return checkpoint

    def replace(self, checkpoint: CompletedCheckpoint) -> None:
        """Store what is known now of a checkpoint that was added before, and drop the oldest beyond the retained."""
        self._storage.write(_path(checkpoint.id), checkpoint.encode())
        self._checkpoints[checkpoint.id] = checkpoint
        committed = [id for id, c in sorted(self._checkpoints.items()) if c.committed]
        for old in committed[: -self._retained]:
            del self._checkpoints[old]
            self._drop(old)

    def _drop(self, checkpoint_id: int) -> None:
        try:
            self._storage.delete(f"{DIRECTORY}/chk-{checkpoint_id}")
        except Exception as error:  # a left-over file harms nobody; the next start drops it
            _log.warning("checkpoint %d could not be dropped: %s", checkpoint_id, error)

    def _read(self, checkpoint_id: int) -> CompletedCheckpoint | None:
        path = _path(checkpoint_id)
        data = self._storage.read(path)
        if data is None:
            return None
        where = f"{self._storage.describe()}/{path}"
        checkpoint = CompletedCheckpoint.decode(data, where)
        if checkpoint.id != checkpoint_id:
            raise CorruptRecordError(f"{where} holds checkpoint {checkpoint.id}. {remedy_of(where)}")
        return checkpoint


def _path(checkpoint_id: int) -> str:
    return f"{DIRECTORY}/chk-{checkpoint_id}/_metadata"
