"""Commits offsets for queries that keep Spark's own sinks: one line brings lag tools back.

>>> spark.streams.addListener(OffsetCommitListener(spark))  # doctest: +SKIP
"""

from __future__ import annotations

import atexit
import logging
import threading
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JNetworkError
from pyspark.sql.streaming.listener import StreamingQueryListener

from lockstep.engine.session import require_classic
from lockstep.engine.spark_log import SparkLog
from lockstep.engine.storage import open_storage
from lockstep.protocol.clock import Clock, SystemClock
from lockstep.protocol.lineage import read_lineage
from lockstep.sources.group_commit import group_sources
from lockstep.sources.offset_commit import OffsetCommitter
from lockstep.sources.plan import sources_of_plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

logger = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_LAST_FLUSH_SECONDS = 30.0
_EXIT_FLUSH_SECONDS = 10.0
_COUNTS = ("commits_succeeded", "commits_failed", "commits_superseded", "commits_waiting")


class OffsetCommitListener(StreamingQueryListener):
    """Commits the positions of finished batches to the consumer groups of a query's Kafka sources.

    The group is the source's ``group_id``, or for a plain ``spark.readStream.format("kafka")`` its option
    ``lockstep.group.id`` (or ``kafka.group.id``). A source without one is left alone. Option
    ``lockstep.offset.commit.mode`` may be ``on_checkpoints`` (default), ``periodic`` or ``disabled``.

    Spark calls the ``on…`` methods. An event is only a hint to read the query's commit log again, on a thread of the
    query's own: what is committed to the group is the end of a batch that Spark has recorded as done, and Spark's event
    queue never waits for a broker. Failed commits are tried again; the positions of the last batch are committed as the
    query ends. Works for queries started before or after the listener was added.

    Not promised: that the group is up to date the moment ``awaitTermination`` returns. Call :meth:`flush` for that. A
    program that ends normally waits for it, up to ten seconds.

    Queries started with ``lockstep.checkpointed`` are left alone: they commit offsets by themselves, after their sinks.

    Parameters
    ----------
    spark
        The session whose queries to follow.
    query_name
        Follow only the query with this name.
    """

    def __init__(self, spark: SparkSession, query_name: str | None = None, clock: Clock | None = None) -> None:
        require_classic(spark)
        self._session = spark
        self._query_name = query_name
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._followed: dict[str, _Follower | None] = {}  # by run id; None for a run that needs nothing
        self._ended = dict.fromkeys(_COUNTS, 0)  # counts of the runs that have ended
        atexit.register(self._flush_at_exit)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        self._hint(str(event.id), str(event.runId))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self._hint(str(event.progress.id), str(event.progress.runId))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        self._hint(str(event.id), str(event.runId))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        with self._lock:
            follower = self._followed.get(str(event.runId))
            if follower is not None:
                follower.finish()
            else:
                self._followed.pop(str(event.runId), None)

    def flush(self, timeout: float) -> bool:
        """Commit what has finished so far; whether it all was committed within ``timeout`` seconds."""
        deadline = self._clock.monotonic() + timeout
        outcomes = [follower.flush(max(0.0, deadline - self._clock.monotonic())) for follower in self._followers()]
        return all(outcomes)

    def metrics(self) -> dict[str, int]:
        """The sum of the committers' counts, see :meth:`OffsetCommitter.metrics`, over all queries followed."""
        counts = [follower.committer.metrics() for follower in self._followers()]
        return {name: self._ended[name] + sum(count[name] for count in counts) for name in _COUNTS}

    def _followers(self) -> list[_Follower]:
        with self._lock:
            self._drop_ended()
            return [follower for follower in self._followed.values() if follower is not None]

    def _drop_ended(self) -> None:
        for run_id, follower in list(self._followed.items()):
            if follower is not None and not follower.is_alive():
                del self._followed[run_id]
                count = follower.committer.metrics()
                self._ended = {name: self._ended[name] + count[name] for name in _COUNTS}

    def _hint(self, query_id: str, run_id: str) -> None:
        try:
            with self._lock:
                if run_id not in self._followed:
                    self._drop_ended()
                    self._followed[run_id] = None  # so that a failure below is told once
                    self._followed[run_id] = self._follow(query_id, run_id)
                follower = self._followed[run_id]
            if follower is not None:
                follower.hint()
        except Exception as error:  # whatever it is, it must not reach Spark's event queue
            logger.warning("query %s: its offsets are not committed: %s", query_id, error)

    def _follow(self, query_id: str, run_id: str) -> _Follower | None:
        session: Any = self._session
        query = session._jsparkSession.streams().get(query_id)
        if query is None or str(query.runId()) != run_id:
            return None  # ended already
        if self._query_name is not None and query.name() != self._query_name:
            return None
        execution = query.streamingQuery()
        groups = group_sources(self._session, sources_of_plan(execution.analyzedPlan()))
        if not groups:
            return None
        storage = open_storage(self._session, str(execution.resolvedCheckpointRoot()))
        if read_lineage(storage) is not None:
            return None  # started with lockstep.checkpointed: it commits by itself, after its sinks
        follower = _Follower(query_id, query, SparkLog(storage), OffsetCommitter(groups, self._clock))
        follower.start()
        return follower

    def _flush_at_exit(self) -> None:
        try:
            self.flush(_EXIT_FLUSH_SECONDS)
        except Exception as error:
            logger.debug("at exit: %s", error)


class _Follower(threading.Thread):
    """One run of one query: reads its log when hinted, and commits. Ends with the run, also when no event says so."""

    def __init__(self, query_id: str, query: Any, log: SparkLog, committer: OffsetCommitter) -> None:
        super().__init__(name=f"lockstep-offsets-{query_id}", daemon=True)
        self.committer = committer
        self._query_id = query_id
        self._query = query
        self._log = log
        self._reading = threading.Lock()
        self._hinted = threading.Event()
        self._finishing = False

    def hint(self) -> None:
        self._hinted.set()

    def finish(self) -> None:
        self._finishing = True
        self._hinted.set()

    def flush(self, timeout: float) -> bool:
        self._read_log()
        return self.committer.flush(timeout)

    def run(self) -> None:
        while not self._finishing:
            hinted = self._hinted.wait(_TICK_SECONDS)
            self._hinted.clear()
            try:
                if hinted:
                    self._read_log()
                elif not self._query.isActive():
                    self._finishing = True
                self.committer.tick()
            except Py4JNetworkError:
                return  # the JVM is gone
            except Exception as error:
                logger.warning("query %s: offsets could not be committed: %s", self._query_id, error)
        try:
            if not self.flush(_LAST_FLUSH_SECONDS):
                logger.warning(
                    "query %s ended, and its last offsets are not committed; they will be after its next start",
                    self._query_id,
                )
        except Exception as error:
            logger.warning("query %s ended, and its last offsets are not committed: %s", self._query_id, error)
        finally:
            self.committer.close()

    def _read_log(self) -> None:
        with self._reading:
            decided = self._log.decided()
            if decided > self.committer.metrics()["last_completed_epoch"]:
                self.committer.snapshot(self._log.barrier(decided))
                self.committer.checkpoint_complete(decided)
