"""Checkpoints of the Delta table's own log, written beside the commits."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.sinks.delta_log import DeltaTableLog

_log = logging.getLogger(__name__)
_INTERVAL = 50  # entries of the log
_PATIENCE = 60.0


class TableCheckpoints:
    """Delta writes a checkpoint of the table with every tenth commit, before the commit returns: seconds, in which rows of
    later epochs wait. Here they are written on a thread of their own, and less often unless the table has a
    ``delta.checkpointInterval`` of its own. A reader may have a few more entries of the log to go through.
    """

    def __init__(self, table: DeltaTableLog) -> None:
        self._table = table
        self._thread: threading.Thread | None = None
        self._begun_at = -1  # the table's version then: one that fails is not tried again with every commit

    def after_commit(self) -> None:
        """Begin one if it is time, and none is under way."""
        if self._thread is not None and self._thread.is_alive():
            return
        version, newest = self._table.versions()
        if version - max(newest, self._begun_at) >= (self._table.checkpoint_interval() or _INTERVAL):
            self._begun_at = version
            self._thread = threading.Thread(target=self._write, name="lockstep-table-checkpoint", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Wait for one that is under way."""
        if self._thread is not None:
            self._thread.join(_PATIENCE)

    def _write(self) -> None:
        try:
            self._table.write_checkpoint()
        except Exception as error:  # the table is as good without: only slower to open
            _log.warning("no checkpoint of the Delta table %s was written: %s", self._table.path, error)
