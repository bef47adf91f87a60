"""Commits positions to consumer groups as checkpoints complete, as FlinkKafkaConsumer does.

Committed offsets are for people and tools (lag monitors, dashboards), never for recovery: Spark's own log decides where
a query continues. So a failure to commit them is a warning and a number, and is tried again; it never fails the query.

Knows neither Spark nor Kafka: what really commits is passed in.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum

from lockstep.protocol.barrier import Barrier, TopicPartition
from lockstep.protocol.clock import Clock
from lockstep.protocol.failpoint import reach

logger = logging.getLogger(__name__)

Positions = dict[TopicPartition, int]

DEFAULT_COMMIT_INTERVAL = timedelta(seconds=5)
_FIRST_BACKOFF_SECONDS = 1.0
_LONGEST_BACKOFF_SECONDS = 60.0
_FLUSH_PAUSE_SECONDS = 0.25
_REFRESH_SECONDS = 3600.0


class OffsetCommitMode(Enum):
    """When a source's positions are committed to its consumer group."""

    ON_CHECKPOINTS = "on_checkpoints"  # the positions of a checkpoint, once it is complete
    PERIODIC = "periodic"  # the newest positions, at intervals; may run ahead of what sinks have made visible
    DISABLED = "disabled"  # never


@dataclass(frozen=True)
class GroupSource:
    """A consumer group, the sources whose positions it shows, and the call that commits to it.

    Several sources (numbers in the barrier) may share a group; where they read the same partition, the lower position
    is committed. ``commit`` may raise anything, may be called again with the same positions, and is never called twice
    at a time. ``close`` is called once, after the last ``commit``.
    """

    name: str
    sources: tuple[int, ...]
    commit: Callable[[Mapping[TopicPartition, int]], None] = field(repr=False)
    mode: OffsetCommitMode = OffsetCommitMode.ON_CHECKPOINTS
    commit_interval: timedelta = DEFAULT_COMMIT_INTERVAL
    close: Callable[[], None] = field(default=lambda: None, repr=False)

    def positions(self, barrier: Barrier) -> Positions:
        lowest: Positions = {}
        for source in self.sources:
            for partition, offset in barrier.kafka_offsets(source).items():
                lowest[partition] = min(offset, lowest.get(partition, offset))
        return lowest


class OffsetCommitter:
    """Remembers positions per epoch and commits them when told that the epoch's checkpoint is complete.

    Who calls what: ``restore`` once at a restart; ``snapshot`` for every epoch, before its checkpoint completes;
    ``checkpoint_complete`` when it has (may be missed: a later one stands for all before it); ``tick`` every second or
    so, also when idle; ``flush`` before the end, then ``close``. All may be called from any thread. ``snapshot`` never
    waits for a broker. The others may, for as long as one ``commit`` takes; if a commit is under way already, they leave
    the newer positions to whoever is at it.

    Promised: a group never goes back by itself; positions already committed are not sent again (but once an hour, since
    brokers forget offsets that are not renewed, by default after seven days); a failed commit is tried again with
    backoff until it succeeds or newer positions replace it. Not promised: that every epoch's positions are committed.

    PERIODIC is what Kafka's auto-commit does: ``tick`` commits the newest snapshot's positions every
    ``commit_interval``, whether or not a checkpoint completed, so the group may run ahead of the data that sinks have
    made visible.
    """

    def __init__(
        self,
        group_sources: Sequence[GroupSource],
        clock: Clock,
        max_pending: int = 100,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        active = [source for source in group_sources if source.mode is not OffsetCommitMode.DISABLED]
        self._groups = [_Group(source, clock) for source in active]
        self._clock = clock
        self._sleep = sleep
        self._max_pending = max_pending
        self._lock = threading.Lock()  # guards the fields below; never held during a commit
        self._pending: OrderedDict[int, Barrier] = OrderedDict()
        self._completed = -1
        self._unknown = 0

    def snapshot(self, barrier: Barrier) -> None:
        """Remember where the epoch ends. A repeated epoch replaces its entry; beyond ``max_pending`` the oldest goes."""
        with self._lock:
            self._pending[barrier.epoch] = barrier
            self._pending.move_to_end(barrier.epoch)
            while len(self._pending) > self._max_pending:
                epoch, _ = self._pending.popitem(last=False)
                logger.debug(
                    "epoch %d: its positions are forgotten, more than %d are pending", epoch, self._max_pending
                )
            for group in self._groups:
                if group.periodic:
                    group.newest = barrier

    def checkpoint_complete(self, epoch: int) -> None:
        """Commit the positions of ``epoch`` and forget the older ones. An unknown id is logged, and nothing else."""
        with self._lock:
            if epoch <= self._completed:
                logger.debug("epoch %d: completion came late, epoch %d stands for it", epoch, self._completed)
                return
            barrier = self._pending.get(epoch)
            if barrier is None:
                self._unknown += 1
                logger.warning("epoch %d: checkpoint complete, but no positions are pending under this id", epoch)
                return
            self._completed = epoch
            for old in [pending for pending in self._pending if pending <= epoch]:
                del self._pending[old]
        for group in self._groups:
            if not group.periodic:
                group.want(barrier)
        for group in self._groups:
            group.send_if_due()

    def restore(self, barrier: Barrier) -> None:
        """Commit the positions of the last committed checkpoint again, also when the group was further.

        Called at a restart, or after going back to a savepoint. Epochs continue above the barrier's.
        """
        with self._lock:
            self._pending.clear()
            self._completed = barrier.epoch
        for group in self._groups:
            group.forget_committed()
            group.want(barrier)
            group.send_if_due()

    def tick(self) -> None:
        """Commit what is due: failed commits after their backoff, PERIODIC positions, the hourly renewal."""
        for group in self._groups:
            group.want_what_time_asks()
            group.send_if_due()

    def flush(self, timeout: float) -> bool:
        """Try until every wanted position is committed, or until ``timeout`` seconds have passed. Whether all are.

        A call under way at the deadline is waited for: it is bounded by its own timeout.
        """
        deadline = self._clock.monotonic() + timeout
        for group in self._groups:
            group.want_newest()
        while True:
            outcomes = [group.send_now() for group in self._groups]  # every group gets its try
            done = all(outcomes)
            remaining = deadline - self._clock.monotonic()
            if done or remaining <= 0:
                return done
            self._sleep(min(_FLUSH_PAUSE_SECONDS, remaining))

    def metrics(self) -> dict[str, int]:
        """Counts since the start; ``commits_waiting`` is the number of groups whose newest positions aren't committed."""
        with self._lock:
            pending, unknown, completed = len(self._pending), self._unknown, self._completed
        return {
            "commits_succeeded": sum(group.succeeded for group in self._groups),
            "commits_failed": sum(group.failed for group in self._groups),
            "commits_superseded": sum(group.superseded for group in self._groups),
            "commits_waiting": sum(group.waiting for group in self._groups),
            "pending_snapshots": pending,
            "unknown_checkpoints": unknown,
            "last_completed_epoch": completed,
        }

    def committed(self) -> dict[str, Positions]:
        """By group name, the positions that this object has committed."""
        return {group.name: dict(group.committed) for group in self._groups}

    def close(self) -> None:
        """Let go of the connections. Nothing is committed after it; call ``flush`` first."""
        for group in self._groups:
            group.close()


class _Group:
    """One consumer group: what is wanted, what is committed, when to try again."""

    def __init__(self, source: GroupSource, clock: Clock) -> None:
        self.name = source.name
        self.periodic = source.mode is OffsetCommitMode.PERIODIC
        self.newest: Barrier | None = None  # PERIODIC: the newest snapshot
        self.committed: Positions = {}
        self.succeeded = self.failed = self.superseded = 0
        self._source = source
        self._clock = clock
        self._state = threading.Lock()  # guards what follows, and ``committed``; never held during a commit
        self._sending = threading.Lock()  # one commit at a time
        self._wanted: Positions | None = None
        self._in_flight: Positions | None = None
        self._epoch = -1  # of ``_wanted``
        self._failures = 0  # in a row
        self._not_before = clock.monotonic()
        self._next_period = clock.monotonic() + source.commit_interval.total_seconds()
        self._renew_at = clock.monotonic() + _REFRESH_SECONDS
        self._closed = False

    @property
    def waiting(self) -> bool:
        return self._wanted is not None

    def want(self, barrier: Barrier) -> None:
        positions = self._source.positions(barrier)
        with self._state:
            if self._wanted is not None and self._wanted is not self._in_flight:
                self._count_superseded(self._epoch)
            self._epoch = barrier.epoch
            self._wanted = positions if self._unsent(positions) else None

    def want_newest(self) -> None:
        if self.newest is not None and self.newest.epoch != self._epoch:
            self.want(self.newest)

    def want_what_time_asks(self) -> None:
        now = self._clock.monotonic()
        if self.periodic and now >= self._next_period:
            self._next_period = now + self._source.commit_interval.total_seconds()
            self.want_newest()
        with self._state:
            if now >= self._renew_at and self._wanted is None and self.committed:
                self._wanted, self.committed = self.committed, {}

    def forget_committed(self) -> None:
        with self._state:
            self.committed = {}

    def send_if_due(self) -> None:
        """Commit unless a backoff is running or another thread is at it (which then sees what is wanted now)."""
        while self._is_due() and self._sending.acquire(blocking=False):
            try:
                if self._is_due():
                    self._send()
            finally:
                self._sending.release()

    def send_now(self) -> bool:
        """Commit in spite of a backoff, after a commit that may be under way. Whether nothing is wanted any more."""
        with self._sending:
            return self._closed or self._send()

    def close(self) -> None:
        with self._sending:
            if not self._closed:
                self._closed = True
                self._source.close()

    def _is_due(self) -> bool:
        return not self._closed and self._wanted is not None and self._clock.monotonic() >= self._not_before

    def _unsent(self, positions: Positions) -> Positions:
        return {tp: offset for tp, offset in positions.items() if self.committed.get(tp) != offset}

    def _send(self) -> bool:
        with self._state:
            wanted, epoch = self._wanted, self._epoch
            if wanted is None:
                return True
            self._in_flight = wanted
            unsent = self._unsent(wanted)
        try:
            if unsent:
                reach("source.commit.before")
                self._source.commit(unsent)
                reach("source.commit.after")
        except Exception as error:
            return self._send_failed(wanted, epoch, error)
        with self._state:
            self._in_flight = None
            if len(unsent) == len(wanted):
                self._renew_at = self._clock.monotonic() + _REFRESH_SECONDS
            self.committed.update(unsent)
            if self._wanted is wanted:
                self._wanted = None
            self._failures, self._not_before = 0, self._clock.monotonic()
            self.succeeded += bool(unsent)
            logger.debug("epoch %d: offsets of %d partitions committed to %s", epoch, len(unsent), self.name)
            return self._wanted is None

    def _send_failed(self, wanted: Positions, epoch: int, error: Exception) -> bool:
        with self._state:
            self._in_flight = None
            self.failed += 1
            self._failures += 1
            pause = min(_FIRST_BACKOFF_SECONDS * 2 ** min(self._failures - 1, 10), _LONGEST_BACKOFF_SECONDS)
            self._not_before = self._clock.monotonic() + pause
            if self._wanted is not wanted:  # newer positions came meanwhile
                self._count_superseded(epoch)
        logger.warning(
            "epoch %d: offsets could not be committed to %s; the query goes on, next try in %.0f s: %s",
            *(epoch, self.name, pause, error),
        )
        return False

    def _count_superseded(self, epoch: int) -> None:
        self.superseded += 1
        logger.debug("epoch %d: its positions were not committed to %s, newer ones replace them", epoch, self.name)
