"""The handle of a running query: Spark's methods, plus checkpoints."""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Any

from lockstep.config import RetentionPolicy
from lockstep.engine.pipeline import Pipeline
from lockstep.errors import LockstepError
from lockstep.protocol.checkpoint import CompletedCheckpoint
from lockstep.protocol.savepoint import Savepoint
from lockstep.protocol.statistics import CheckpointEntry, CheckpointStatistics

if TYPE_CHECKING:
    from pyspark.errors import StreamingQueryException
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)
_DRAIN_SECONDS = 60.0
_open: set[CheckpointedQuery] = set()  # not weak: a program may drop the handle and wait for Spark


class CheckpointedQuery:
    """Looks like pyspark's ``StreamingQuery``.

    When ``stop``, ``awaitTermination`` or ``processAllAvailable`` return, and when ``isActive`` turns false, everything
    that Spark has decided is committed in every sink, and the consumer group's offsets are there (or a warning is logged:
    they never hold back data).
    """

    def __init__(self, query: StreamingQuery, pipeline: Pipeline) -> None:
        self._query = query
        self._pipeline = pipeline
        self._finishing = threading.Lock()
        self._finished = False
        self._drain_failure: BaseException | None = None
        pipeline.start(query.stop)
        _open.add(self)

    # --- Spark's surface --------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        return self._query.id

    @property
    def runId(self) -> str:
        return self._query.runId

    @property
    def name(self) -> str | None:
        return self._query.name

    @property
    def isActive(self) -> bool:
        if self._query.isActive:
            return True
        self._finish()
        return False

    @property
    def status(self) -> dict[str, Any]:
        return self._query.status

    @property
    def recentProgress(self) -> list[Any]:
        return self._query.recentProgress

    @property
    def lastProgress(self) -> Any:
        return self._query.lastProgress

    def explain(self, extended: bool = False) -> None:
        self._query.explain(extended)

    def exception(self) -> LockstepError | StreamingQueryException | BaseException | None:
        """Why the query ended, or ``None``. Lockstep's own error where there is one."""
        if self._query.isActive:
            return None
        return self._pipeline.failure or self._query.exception() or self._drain_failure

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait for the end, as Spark's does, and for the commits. Raises what ended the query."""
        try:
            ended = self._query.awaitTermination() if timeout is None else self._query.awaitTermination(timeout)  # type: ignore[arg-type]
        except Exception as error:
            self._finish()
            raise self._cause(error) from error
        if timeout is not None and not ended:
            return False
        self._finish()
        if self._pipeline.failure is not None or self._drain_failure is not None:
            raise self._pipeline.failure or self._drain_failure  # type: ignore[misc]
        return ended

    def processAllAvailable(self) -> None:
        """Wait until all data that is available now is visible in the sinks."""
        try:
            self._query.processAllAvailable()
        except Exception as error:
            raise self._cause(error) from error
        self.checkpoint()

    def stop(self) -> None:
        """Stop the query, and commit everything decided before returning.

        Raises when that can't be done within a minute; the epochs then stay prepared and are committed at the next start.
        """
        self._stop()
        self._delete_if_wanted()

    # --- checkpoints ------------------------------------------------------------------------------------------------

    @property
    def statistics(self) -> CheckpointStatistics:
        """Counts, latest, history and summary of this run's checkpoints."""
        return self._pipeline.coordinator.statistics

    @property
    def checkpoints(self) -> list[CheckpointEntry]:
        """History of this run, newest first."""
        return self.statistics.history()

    @property
    def completed_checkpoints(self) -> list[CompletedCheckpoint]:
        """The retained completed checkpoints, also of earlier runs, oldest first."""
        return self._pipeline.store.all()

    @property
    def pending_epochs(self) -> list[int]:
        """Epochs that are prepared and not yet committed."""
        return self._pipeline.committer.pending_epochs()

    @property
    def offset_metrics(self) -> dict[str, int]:
        """Figures of the commits to consumer groups."""
        return self._pipeline.offsets.metrics()

    def checkpoint(self) -> None:
        """Take a checkpoint of everything decided now, and wait until it is committed."""
        self._pipeline.refuse_own_threads("checkpoint()")
        pending = set(self.pending_epochs)
        while pending & set(self.pending_epochs) and not self._finished:
            if not self._query.isActive:
                self._finish()
                if (error := self.exception()) is not None:
                    raise error
                return
            self._pipeline.thread.wait_for_progress(0.5)
        self._pipeline.offsets.flush(_DRAIN_SECONDS)

    def savepoint(self, path: str) -> Savepoint:
        """Make a savepoint of everything that is committed now, at ``path``, a new directory. The query goes on meanwhile.

        After the query has ended, of its last epoch.
        """
        if self.isActive:
            self.checkpoint()
        return self._pipeline.create_savepoint(path)

    def stop_with_savepoint(self, path: str) -> Savepoint:
        """Stop, commit everything decided, and make a savepoint of it: nothing is left behind in this directory."""
        self._stop()
        saved = self._pipeline.create_savepoint(path)
        self._delete_if_wanted()
        return saved

    # --- inside -----------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        self._pipeline.refuse_own_threads("stop()")
        self._pipeline.thread.stopping = True
        self._query.stop()
        self._finish()
        if self._drain_failure is not None:
            raise self._drain_failure

    def _delete_if_wanted(self) -> None:
        if self.exception() is None and self._pipeline.config.on_cancellation is RetentionPolicy.DELETE_ON_CANCELLATION:
            self._pipeline.delete_directory()

    def _finish(self) -> None:
        with self._finishing:
            if self._finished:
                return
            self._finished = True
            try:
                self._pipeline.finish(_DRAIN_SECONDS)
            except BaseException as error:
                self._drain_failure = error
                _log.error("the query ended with uncommitted epochs: %s", error)
            _open.discard(self)

    def _cause(self, error: Exception) -> BaseException:
        """Lockstep's own error, when one of ours ended the query; Spark's otherwise."""
        return self._pipeline.failure if isinstance(self._pipeline.failure, LockstepError) else error


@atexit.register
def _drain_at_exit() -> None:
    """A program that ends after ``availableNow`` without waiting for the handle still gets its last epochs committed."""
    for query in list(_open):
        with contextlib.suppress(Exception):
            if not query._query.isActive:
                query._finish()
