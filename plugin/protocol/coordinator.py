"""The checkpoint coordinator: when a checkpoint is taken, who has acknowledged it, and when it is complete.

Flink's coordinator sends barriers into a running graph. Spark has laid the barrier down before the epoch runs, so here
the coordinator decides at the start of an epoch whether that epoch is a checkpoint, collects the acknowledgements while
it runs, and completes the checkpoint once Spark has decided the epoch. It does no I/O besides the store it is given, and
is not thread-safe: its owner calls it under a lock.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from lockstep.config import CheckpointConfig
from lockstep.errors import CheckpointError
from lockstep.protocol.barrier import Barrier, CheckpointKind
from lockstep.protocol.checkpoint import (
    AckResult,
    CompletedCheckpoint,
    FailureReason,
    PendingCheckpoint,
    PendingState,
)
from lockstep.protocol.clock import Clock
from lockstep.protocol.statistics import CheckpointStatistics

_log = logging.getLogger(__name__)
_REMEMBERED = 16  # ids of recent checkpoints, so that a late message is told from a wrong one


class CheckpointListener:
    """Override what you need; register with ``lockstep.checkpointed(df).listener(...)``.

    Called on Lockstep's threads: return quickly, and don't call the query's ``stop`` or ``checkpoint`` here. A
    notification may come late, or be missed when the driver dies; the next one stands for all before it. An exception
    is logged and otherwise ignored: the checkpoint is complete anyway.
    """

    def checkpoint_completed(self, checkpoint: CompletedCheckpoint) -> None:
        """Spark has decided the checkpoint's epochs; its metadata is stored. Sinks may not have committed yet."""

    def checkpoint_committed(self, checkpoint: CompletedCheckpoint) -> None:
        """Every sink has committed: the rows up to the checkpoint's barrier are visible."""

    def checkpoint_aborted(self, checkpoint_id: int, reason: FailureReason) -> None:
        """The checkpoint failed before it was decided; its epoch is run again."""


class Store(Protocol):
    """Where completed checkpoints go: :class:`lockstep.protocol.completed_store.CompletedCheckpointStore`."""

    def add(self, checkpoint: CompletedCheckpoint) -> CompletedCheckpoint: ...

    @property
    def latest(self) -> CompletedCheckpoint | None: ...


class CheckpointCoordinator:
    """Triggers, tracks and completes checkpoints of one lineage."""

    def __init__(
        self,
        config: CheckpointConfig,
        lineage: str,
        participants: frozenset[str],
        store: Store,
        clock: Clock,
        rng: random.Random,
        listeners: tuple[CheckpointListener, ...] = (),
    ) -> None:
        self.config = config
        self.lineage = lineage
        self.participants = participants
        self.statistics = CheckpointStatistics()
        self._store = store
        self._clock = clock
        self._rng = rng
        self._listeners = listeners
        self._pending: dict[int, PendingCheckpoint] = {}
        self._recent: deque[int] = deque(maxlen=_REMEMBERED)
        self._last_id = store.latest.id if store.latest else -1
        self._running: set[str] = set()
        self._periodic = False
        self._shutdown = False
        self._queued = False
        self._next_trigger = 0.0
        self._pause_ends = 0.0

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start periodic checkpoints: the first falls at a random time between the minimum pause and the interval."""
        self._periodic = True
        interval = self._interval
        first = self._rng.uniform(min(self.config.min_pause.total_seconds(), interval), interval)
        self._next_trigger = self._clock.monotonic() + first

    def suspend(self) -> None:
        """No periodic checkpoints until the next ``start``; forced ones and savepoints still work."""
        self._periodic = False

    @property
    def suspended(self) -> bool:
        return not self._periodic

    def release(self) -> None:
        """The query has ended: nothing in progress will be decided any more. Prepared epochs are left to the next start."""
        for pending in list(self._pending.values()):
            self._fail(pending, FailureReason.COORDINATOR_SHUTDOWN)

    def shutdown(self) -> None:
        """Refuse everything from now on. Waiting checkpoints are given up; prepared epochs are left to the next start."""
        self._shutdown = True
        self.release()

    def task_running(self, participant: str, running: bool = True) -> None:
        """A source, operator or sink has opened (or closed)."""
        if running:
            self._running.add(participant)
        else:
            self._running.discard(participant)

    # --- trigger ----------------------------------------------------------------------------------------------------

    def due(self) -> bool:
        """Whether the timer would fire now: the interval has passed, or a queued request can be run."""
        return self._queued or self._clock.monotonic() >= self._next_trigger

    def trigger(self, barrier: Barrier) -> PendingCheckpoint | FailureReason:
        """Open a checkpoint at ``barrier``, or say why not. The checks, and their order, are Flink's."""
        if barrier.epoch <= self._last_id:
            raise CheckpointError(f"checkpoint {barrier.epoch}: ids must rise, and {self._last_id} was taken already")
        refusal = self._refusal(barrier.kind)
        if refusal is not None:
            self.statistics.refused(refusal)
            _log.debug("checkpoint %d not triggered: %s", barrier.epoch, refusal.value)
            return refusal
        now = self._clock.monotonic()
        pending = PendingCheckpoint(
            barrier,
            self.participants,
            self._clock.epoch_millis(),
            now + self.config.timeout.total_seconds(),
        )
        self._queued = False
        self._next_trigger = now + self._interval
        self._pending[pending.id] = pending
        self._last_id = pending.id
        self._recent.append(pending.id)
        self.statistics.triggered(pending)
        return pending

    def _refusal(self, kind: CheckpointKind) -> FailureReason | None:
        periodic = kind is CheckpointKind.CHECKPOINT
        if self._shutdown:
            return FailureReason.COORDINATOR_SHUTDOWN
        if periodic and not self._periodic:
            return FailureReason.PERIODIC_SCHEDULER_SHUTDOWN
        if periodic and self._queued and self._full:
            return FailureReason.ALREADY_QUEUED
        if periodic and self._full:
            self._queued = True  # one request waits for the next free slot
            return FailureReason.TOO_MANY_CONCURRENT_CHECKPOINTS
        if periodic and self._clock.monotonic() < self._pause_ends:
            self._next_trigger = self._pause_ends
            return FailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS
        if not self.participants <= self._running:
            return FailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING
        return None

    # --- messages ---------------------------------------------------------------------------------------------------

    def acknowledge(self, lineage: str, checkpoint_id: int, participant: str, report: Mapping[str, Any]) -> AckResult:
        """A participant has prepared its part."""
        self._same_job(lineage, checkpoint_id)
        pending = self._pending.get(checkpoint_id)
        if pending is None:
            return AckResult.DISCARDED if checkpoint_id in self._recent else AckResult.UNKNOWN
        result = pending.acknowledge(participant, report)
        if result is AckResult.SUCCESS:
            self.statistics.acknowledged(pending, participant, self._clock.epoch_millis())
        return result

    def decline(self, lineage: str, checkpoint_id: int, participant: str, reason: FailureReason) -> bool:
        """A participant can't do its part. ``False`` when the checkpoint is gone already."""
        self._same_job(lineage, checkpoint_id)
        pending = self._pending.get(checkpoint_id)
        if pending is None or pending.state is not PendingState.WAITING:
            return False
        _log.warning("checkpoint %d declined by %s: %s", checkpoint_id, participant, reason.value)
        self._fail(pending, reason)
        return True

    def expire(self) -> list[int]:
        """Fail every checkpoint that is not prepared in time. A prepared one that is late is only counted."""
        now = self._clock.monotonic()
        expired = []
        for pending in list(self._pending.values()):
            if now < pending.deadline:
                continue
            if pending.state is PendingState.WAITING:
                self._fail(pending, FailureReason.EXPIRED)
                expired.append(pending.id)
            else:
                self.statistics.late(pending.id)
        return expired

    # --- completion -------------------------------------------------------------------------------------------------

    def complete(
        self,
        decided: int,
        attempts: Callable[[int], Mapping[int, str]],
        reports: Callable[[int], Mapping[str, Mapping[str, Any]]] | None = None,
        phases: Callable[[int], Mapping[str, int]] = lambda _: {},
    ) -> CompletedCheckpoint | None:
        """Complete the newest prepared checkpoint that Spark has decided; older ones are subsumed by it.

        ``attempts`` tells which attempt of each epoch the checkpoint commits; ``reports`` what participants reported over
        all the epochs that share it (without it: what they acknowledged with); ``phases`` where the time of these epochs
        went. The order: write the metadata and add it to the store; remove it from the pending ones (which frees its slot
        for a queued request); drop the older ones; note the time for the minimum pause; notify. When the store fails, the
        error is raised and nothing has changed: a decided checkpoint is never given up, so the caller calls again.
        """
        ready = [p for p in self._pending.values() if p.id <= decided and p.state is PendingState.PREPARED]
        if not ready:
            return None
        pending = max(ready, key=lambda p: p.id)
        completed = self._store.add(  # 1. the metadata, durable: the choice of attempts stands
            CompletedCheckpoint(
                barrier=pending.barrier,
                lineage=self.lineage,
                attempts=dict(attempts(pending.id)),
                triggered_ms=pending.triggered_ms,
                completed_ms=self._clock.epoch_millis(),
                reports=dict(pending.reports if reports is None else reports(pending.id)),
                phases=dict(phases(pending.id)),
            )
        )
        pending.mark_completed()
        del self._pending[pending.id]  # 2. its slot is free
        for older in [p for p in self._pending.values() if p.id < pending.id]:  # 3. subsumed
            self._fail(older, FailureReason.SUBSUMED)
        self._pause_ends = self._clock.monotonic() + self.config.min_pause.total_seconds()  # 4. the pause begins
        self.statistics.completed(completed)
        self._notify(lambda listener: listener.checkpoint_completed(completed))  # 5. tell everybody
        return completed

    def committed(self, checkpoint: CompletedCheckpoint) -> None:
        """Every sink has committed the checkpoint."""
        self.statistics.committed(checkpoint)
        self._notify(lambda listener: listener.checkpoint_committed(checkpoint))

    def restored(self, checkpoint: CompletedCheckpoint | None) -> None:
        """The query has continued from ``checkpoint``; ids go on above it."""
        if checkpoint is not None:
            self._last_id = max(self._last_id, checkpoint.id)
            self.statistics.restored(checkpoint)

    @property
    def in_progress(self) -> list[PendingCheckpoint]:
        return [self._pending[id] for id in sorted(self._pending)]

    # --- inside -----------------------------------------------------------------------------------------------------

    @property
    def _interval(self) -> float:
        return self.config.interval.total_seconds() if self.config.interval is not None else 0.0

    @property
    def _full(self) -> bool:
        return len(self._pending) >= self.config.max_concurrent

    def _fail(self, pending: PendingCheckpoint, reason: FailureReason) -> None:
        pending.discard(reason)
        self._pending.pop(pending.id, None)
        if reason is not FailureReason.SUBSUMED:  # the epoch is run again, under the same id
            latest = self._store.latest
            self._last_id = max([*self._pending, latest.id if latest else -1])
        self.statistics.failed(pending, reason)
        self._notify(lambda listener: listener.checkpoint_aborted(pending.id, reason))

    def _same_job(self, lineage: str, checkpoint_id: int) -> None:
        if lineage != self.lineage:
            raise CheckpointError(
                f"checkpoint {checkpoint_id}: a message of lineage {lineage} reached the coordinator of {self.lineage}"
            )

    def _notify(self, call: Callable[[CheckpointListener], None]) -> None:
        for listener in self._listeners:
            try:
                call(listener)
            except Exception:
                _log.exception("a checkpoint listener failed; the checkpoint is not affected")


def at(barrier: Barrier, kind: CheckpointKind) -> Barrier:
    """The same barrier, asking for another kind of checkpoint."""
    return replace(barrier, kind=kind)
