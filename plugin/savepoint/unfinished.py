"""Where a rewind keeps its plan, and what nobody may do while that is there."""

from __future__ import annotations

from lockstep.errors import CheckpointDirectoryError
from lockstep.protocol.storage import Storage

REWIND = "lockstep/rewind"
REWIND_PLAN = f"{REWIND}/plan"


def refuse_unfinished_rewind(storage: Storage) -> None:
    """The directory's positions, state and tables may belong to different epochs."""
    if storage.exists(REWIND_PLAN):
        raise CheckpointDirectoryError(
            f"{storage.describe()}: a rewind was interrupted. Finish it with 'lockstep rewind {storage.describe()}'."
        )
