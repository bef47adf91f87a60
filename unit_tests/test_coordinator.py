"""The coordinator keeps Flink's rules, line by line; ``docs/flink.md`` refers to these tests."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from lockstep.config import CheckpointConfig
from lockstep.errors import CheckpointError
from lockstep.protocol.barrier import Barrier, CheckpointKind
from lockstep.protocol.checkpoint import AckResult, CompletedCheckpoint, FailureReason, PendingCheckpoint, PendingState
from lockstep.protocol.completed_store import CompletedCheckpointStore
from lockstep.protocol.coordinator import CheckpointCoordinator, CheckpointListener, at
from lockstep.testing import ManualClock, MemoryStorage

LIFE = "life"
SINKS = frozenset({"source-0", "lake"})


class Journal(CheckpointListener):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def checkpoint_completed(self, checkpoint: CompletedCheckpoint) -> None:
        self.told.append(("completed", checkpoint.id))

    def checkpoint_committed(self, checkpoint: CompletedCheckpoint) -> None:
        self.told.append(("committed", checkpoint.id))

    def checkpoint_aborted(self, checkpoint_id: int, reason: FailureReason) -> None:
        self.told.append(("aborted", checkpoint_id, reason))


class Stage:
    """A coordinator with everything around it."""

    def __init__(self, storage: MemoryStorage | None = None, seed: int = 1, **settings: Any) -> None:
        self.clock = ManualClock()
        self.storage = storage or MemoryStorage()
        self.store = CompletedCheckpointStore(self.storage, 10)
        self.store.load("life")
        self.journal = Journal()
        self.coordinator = CheckpointCoordinator(
            CheckpointConfig(**settings),
            LIFE,
            SINKS,
            self.store,
            self.clock,
            random.Random(seed),
            (self.journal,),
        )

    def running(self) -> Stage:
        for participant in SINKS:
            self.coordinator.task_running(participant)
        self.coordinator.start()
        return self

    def trigger(
        self, epoch: int, kind: CheckpointKind = CheckpointKind.CHECKPOINT
    ) -> PendingCheckpoint | FailureReason:
        return self.coordinator.trigger(Barrier(epoch, 0, 0, ("x",), kind))

    def opened(self, epoch: int, kind: CheckpointKind = CheckpointKind.CHECKPOINT) -> PendingCheckpoint:
        pending = self.trigger(epoch, kind)
        assert isinstance(pending, PendingCheckpoint)
        return pending

    def prepared(self, epoch: int, kind: CheckpointKind = CheckpointKind.CHECKPOINT) -> PendingCheckpoint:
        pending = self.opened(epoch, kind)
        for participant in SINKS:
            assert self.coordinator.acknowledge(LIFE, epoch, participant, {"rows": 2}) is AckResult.SUCCESS
        pending.mark_prepared()
        return pending

    def complete(self, decided: int) -> CompletedCheckpoint | None:
        return self.coordinator.complete(decided, lambda id: {id: f"{id}-1-x"})

    def completed(self, epoch: int) -> CompletedCheckpoint:
        self.prepared(epoch)
        checkpoint = self.complete(epoch)
        assert checkpoint is not None
        return checkpoint


# --- life -----------------------------------------------------------------------------------------------------------


def test_first_trigger_falls_between_the_minimum_pause_and_the_interval() -> None:
    delays = set()
    for seed in range(200):
        stage = Stage(seed=seed, interval=timedelta(seconds=10), min_pause=timedelta(seconds=4)).running()
        waited = 0.0
        while not stage.coordinator.due():
            stage.clock.advance(0.5)
            waited += 0.5
        assert 4 <= waited <= 10
        delays.add(waited)
    assert len(delays) > 8  # spread, so that many queries on one cluster don't trigger together


def test_minimum_pause_longer_than_the_interval_delays_the_first_trigger_by_the_interval() -> None:
    stage = Stage(interval=timedelta(seconds=2), min_pause=timedelta(seconds=60)).running()
    stage.clock.advance(1.9)
    assert not stage.coordinator.due()
    stage.clock.advance(0.1)
    assert stage.coordinator.due()


def test_without_an_interval_every_epoch_is_due() -> None:
    stage = Stage().running()
    for epoch in range(3):
        assert stage.coordinator.due()
        stage.completed(epoch)


def test_interval_counts_from_trigger_to_trigger() -> None:
    stage = Stage(interval=timedelta(seconds=10)).running()
    stage.clock.advance(10)
    stage.completed(0)
    stage.clock.advance(9.9)
    assert not stage.coordinator.due()
    stage.clock.advance(0.1)
    assert stage.coordinator.due()


def test_coordinator_starts_with_the_query_and_ends_with_it() -> None:
    stage = Stage()
    for participant in SINKS:
        stage.coordinator.task_running(participant)
    assert stage.trigger(0) is FailureReason.PERIODIC_SCHEDULER_SHUTDOWN
    stage.coordinator.start()
    stage.completed(0)
    stage.coordinator.shutdown()
    assert stage.trigger(1) is FailureReason.COORDINATOR_SHUTDOWN


# --- checks before a trigger, in their order ------------------------------------------------------------------------


def test_checks_before_a_trigger_come_in_flinks_order_each_with_its_reason() -> None:
    """All conditions are violated at once; they are mended one by one, and each next reason shows."""
    stage = Stage(min_pause=timedelta(seconds=5)).running()
    coordinator = stage.coordinator
    stage.completed(0)  # begins the minimum pause
    blocking = stage.opened(1, CheckpointKind.SAVEPOINT)  # takes the only slot
    assert stage.trigger(2) is FailureReason.TOO_MANY_CONCURRENT_CHECKPOINTS  # one request is queued from now on
    coordinator.task_running("lake", False)
    coordinator.suspend()
    coordinator._shutdown = True
    assert stage.trigger(2) is FailureReason.COORDINATOR_SHUTDOWN
    coordinator._shutdown = False
    assert stage.trigger(2) is FailureReason.PERIODIC_SCHEDULER_SHUTDOWN
    coordinator._periodic = True
    assert stage.trigger(2) is FailureReason.ALREADY_QUEUED
    coordinator.decline(LIFE, blocking.id, "lake", FailureReason.DECLINED)
    assert stage.trigger(2) is FailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS
    stage.clock.advance(5)
    assert stage.trigger(2) is FailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING
    coordinator.task_running("lake")
    assert isinstance(stage.trigger(2), PendingCheckpoint)
    assert set(coordinator.statistics.refusals) == {
        FailureReason.COORDINATOR_SHUTDOWN,
        FailureReason.PERIODIC_SCHEDULER_SHUTDOWN,
        FailureReason.ALREADY_QUEUED,
        FailureReason.TOO_MANY_CONCURRENT_CHECKPOINTS,
        FailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS,
        FailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING,
    }


def test_one_request_is_queued_when_too_many_are_in_progress_and_runs_when_a_slot_frees() -> None:
    stage = Stage(interval=timedelta(seconds=10)).running()
    stage.clock.advance(10)
    stage.prepared(0)
    stage.clock.advance(10)
    assert stage.trigger(1) is FailureReason.TOO_MANY_CONCURRENT_CHECKPOINTS
    assert stage.trigger(1) is FailureReason.ALREADY_QUEUED
    stage.complete(0)
    assert stage.coordinator.due()  # at once, not an interval later
    stage.opened(1)
    assert not stage.coordinator.due()


def test_as_many_checkpoints_as_allowed_are_in_progress() -> None:
    stage = Stage(max_concurrent=2).running()
    stage.opened(0)
    stage.opened(1)
    assert stage.trigger(2) is FailureReason.TOO_MANY_CONCURRENT_CHECKPOINTS


def test_trigger_within_the_minimum_pause_is_put_off_to_its_end() -> None:
    stage = Stage(interval=timedelta(seconds=1), min_pause=timedelta(seconds=5)).running()
    stage.clock.advance(1)
    stage.completed(0)
    stage.clock.advance(1)
    assert stage.coordinator.due()
    assert stage.trigger(1) is FailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS
    assert not stage.coordinator.due()
    stage.clock.advance(4)
    assert stage.coordinator.due()
    stage.opened(1)


def test_minimum_pause_counts_from_completion_not_from_the_trigger() -> None:
    stage = Stage(min_pause=timedelta(seconds=5)).running()
    stage.prepared(0)
    stage.clock.advance(60)
    stage.complete(0)
    assert stage.trigger(1) is FailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS


def test_nothing_is_triggered_before_every_source_and_sink_runs() -> None:
    stage = Stage()
    stage.coordinator.start()
    stage.coordinator.task_running("source-0")
    assert stage.trigger(0) is FailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING
    stage.coordinator.task_running("lake")
    stage.opened(0)


@pytest.mark.parametrize("kind", [CheckpointKind.SAVEPOINT, CheckpointKind.FORCED])
def test_savepoints_and_forced_checkpoints_skip_the_concurrency_and_pause_checks(kind: CheckpointKind) -> None:
    stage = Stage(min_pause=timedelta(hours=1)).running()
    stage.completed(0)
    stage.opened(1, kind)
    stage.opened(2, kind)
    stage.coordinator.suspend()
    stage.opened(3, kind)
    stage.coordinator.task_running("lake", False)
    assert stage.trigger(4, kind) is FailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING
    stage.coordinator.shutdown()
    assert stage.trigger(4, kind) is FailureReason.COORDINATOR_SHUTDOWN


# --- a pending checkpoint -------------------------------------------------------------------------------------------


def test_ids_rise_strictly() -> None:
    stage = Stage(max_concurrent=5).running()
    stage.opened(4)
    for epoch in (3, 4):
        with pytest.raises(CheckpointError, match="ids must rise"):
            stage.trigger(epoch)
    stage.opened(5)


def test_failed_epoch_is_triggered_again_under_its_own_id() -> None:
    """Spark runs the same epoch again, so the id of a failed checkpoint, and only that, may come back."""
    stage = Stage().running()
    stage.completed(3)
    stage.opened(4)
    stage.coordinator.decline(LIFE, 4, "lake", FailureReason.DECLINED)
    with pytest.raises(CheckpointError, match="ids must rise"):
        stage.trigger(3)
    stage.completed(4)


def test_pending_checkpoint_expects_every_participant_until_its_deadline() -> None:
    stage = Stage(timeout=timedelta(seconds=30)).running()
    pending = stage.opened(0)
    assert pending.missing == SINKS
    assert pending.state is PendingState.WAITING
    assert pending.deadline == stage.clock.monotonic() + 30
    assert pending.triggered_ms == stage.clock.epoch_millis()


def test_acknowledgements_are_success_then_duplicate_and_unknown_for_strangers() -> None:
    stage = Stage().running()
    pending = stage.opened(0)
    acknowledge = stage.coordinator.acknowledge
    assert acknowledge(LIFE, 0, "lake", {"rows": 1}) is AckResult.SUCCESS
    assert acknowledge(LIFE, 0, "lake", {"rows": 9}) is AckResult.DUPLICATE
    assert acknowledge(LIFE, 0, "stranger", {"rows": 9}) is AckResult.UNKNOWN
    assert pending.reports == {"lake": {"rows": 1}}  # neither changed anything
    assert not pending.fully_acknowledged
    assert acknowledge(LIFE, 0, "source-0", {}) is AckResult.SUCCESS
    assert pending.fully_acknowledged


def test_acknowledgement_of_a_checkpoint_that_is_gone_is_discarded() -> None:
    stage = Stage().running()
    pending = stage.opened(0)
    stage.coordinator.decline(LIFE, 0, "lake", FailureReason.DECLINED)
    assert stage.coordinator.acknowledge(LIFE, 0, "lake", {}) is AckResult.DISCARDED
    assert pending.acknowledge("lake", {}) is AckResult.DISCARDED


def test_late_message_is_told_from_a_wrong_one() -> None:
    stage = Stage().running()
    for epoch in range(20):
        stage.completed(epoch)
    assert stage.coordinator.acknowledge(LIFE, 19, "lake", {}) is AckResult.DISCARDED
    assert stage.coordinator.acknowledge(LIFE, 77, "lake", {}) is AckResult.UNKNOWN  # never was
    assert stage.coordinator.acknowledge(LIFE, 0, "lake", {}) is AckResult.UNKNOWN  # too long ago to be remembered


def test_message_for_another_job_is_refused() -> None:
    stage = Stage().running()
    stage.opened(0)
    with pytest.raises(CheckpointError, match="lineage other"):
        stage.coordinator.acknowledge("other", 0, "lake", {})
    with pytest.raises(CheckpointError, match="lineage other"):
        stage.coordinator.decline("other", 0, "lake", FailureReason.DECLINED)
    assert stage.coordinator.in_progress[0].missing == SINKS


def test_decline_discards_the_checkpoint_and_keeps_the_reason() -> None:
    stage = Stage().running()
    pending = stage.opened(0)
    assert stage.coordinator.decline(LIFE, 0, "lake", FailureReason.EXCEPTION) is True
    assert (pending.state, pending.failure) == (PendingState.DISCARDED, FailureReason.EXCEPTION)
    assert stage.coordinator.in_progress == []
    assert stage.journal.told == [("aborted", 0, FailureReason.EXCEPTION)]
    assert stage.coordinator.statistics.failures == {FailureReason.EXCEPTION: 1}
    assert stage.coordinator.decline(LIFE, 0, "lake", FailureReason.DECLINED) is False


def test_prepared_checkpoint_cannot_be_declined_any_more() -> None:
    stage = Stage().running()
    pending = stage.prepared(0)
    assert stage.coordinator.decline(LIFE, 0, "lake", FailureReason.DECLINED) is False
    assert pending.state is PendingState.PREPARED


def test_checkpoint_that_is_not_prepared_in_time_expires() -> None:
    stage = Stage(timeout=timedelta(seconds=30)).running()
    stage.opened(0)
    stage.clock.advance(29.9)
    assert stage.coordinator.expire() == []
    stage.clock.advance(0.1)
    assert stage.coordinator.expire() == [0]
    assert stage.journal.told == [("aborted", 0, FailureReason.EXPIRED)]


def test_prepared_checkpoint_that_is_late_is_only_counted() -> None:
    stage = Stage(timeout=timedelta(seconds=30)).running()
    pending = stage.prepared(0)
    stage.clock.advance(60)
    assert stage.coordinator.expire() == []
    assert stage.coordinator.statistics.late_ids == {0}
    assert pending.state is PendingState.PREPARED
    assert stage.complete(0) is not None


def test_wrong_transitions_of_a_pending_checkpoint_raise() -> None:
    stage = Stage(max_concurrent=5).running()
    waiting, prepared = stage.opened(0), stage.prepared(1)
    with pytest.raises(ValueError, match="not acknowledged by lake, source-0"):
        waiting.mark_prepared()
    with pytest.raises(ValueError, match="can't become completed"):
        waiting.mark_completed()
    with pytest.raises(ValueError, match="can't become discarded"):
        prepared.discard(FailureReason.EXPIRED)
    with pytest.raises(ValueError, match="can't become prepared"):
        prepared.mark_prepared()


# --- completion -----------------------------------------------------------------------------------------------------


def test_checkpoint_completes_only_when_it_is_prepared_and_decided() -> None:
    stage = Stage().running()
    pending = stage.opened(5)
    assert stage.complete(5) is None
    for participant in SINKS:
        stage.coordinator.acknowledge(LIFE, 5, participant, {})
    assert stage.complete(5) is None
    pending.mark_prepared()
    assert stage.complete(4) is None
    completed = stage.complete(5)
    assert completed is not None
    assert completed.attempts == {5: "5-1-x"}
    assert stage.complete(5) is None


def test_completion_stores_then_frees_the_slot_then_subsumes_then_notes_the_pause_then_notifies() -> None:
    stage = Stage(max_concurrent=2, min_pause=timedelta(seconds=5)).running()
    coordinator = stage.coordinator
    seen: list[str] = []
    stage.prepared(0)
    stage.prepared(1, CheckpointKind.SAVEPOINT)
    add = stage.store.add

    def adding(checkpoint: CompletedCheckpoint) -> CompletedCheckpoint:
        assert [p.id for p in coordinator.in_progress] == [0, 1]
        seen.append("stored")
        return add(checkpoint)

    stage.store.add = adding  # type: ignore[method-assign]

    def aborted(checkpoint_id: int, reason: FailureReason) -> None:
        assert (checkpoint_id, reason, coordinator.in_progress) == (0, FailureReason.SUBSUMED, [])
        assert coordinator._pause_ends == 0.0
        seen.append("subsumed")

    def completed(checkpoint: CompletedCheckpoint) -> None:
        assert coordinator._pause_ends == stage.clock.monotonic() + 5
        assert "lockstep/checkpoints/chk-1/_metadata" in stage.storage.files
        seen.append("notified")

    stage.journal.checkpoint_aborted = aborted  # type: ignore[method-assign]
    stage.journal.checkpoint_completed = completed  # type: ignore[method-assign]
    stage.complete(1)
    assert seen == ["stored", "subsumed", "notified"]


def test_older_pending_checkpoints_are_subsumed_and_newer_ones_are_not() -> None:
    stage = Stage(max_concurrent=3).running()
    pending = [stage.prepared(epoch) for epoch in range(3)]
    completed = stage.complete(1)
    assert completed is not None
    assert completed.id == 1
    assert [one.state for one in pending] == [PendingState.DISCARDED, PendingState.COMPLETED, PendingState.PREPARED]
    assert [one.id for one in stage.coordinator.in_progress] == [2]
    assert stage.journal.told == [("aborted", 0, FailureReason.SUBSUMED), ("completed", 1)]


@pytest.mark.parametrize("after", [False, True])
def test_store_that_fails_leaves_the_checkpoint_pending_and_it_completes_later(after: bool) -> None:
    """Flink gives the checkpoint up. Here its epoch is decided already: it is tried again until it is stored."""
    stage = Stage().running()
    pending = stage.prepared(0)
    stage.storage.fail("create", after=after)
    with pytest.raises(OSError, match="injected"):
        stage.complete(0)
    assert pending.state is PendingState.PREPARED
    assert stage.journal.told == []
    assert stage.complete(0) is not None
    assert stage.journal.told == [("completed", 0)]


def test_retained_count_is_kept_by_the_completed_store() -> None:
    stage = Stage(retained=10).running()
    for epoch in range(13):
        checkpoint = stage.completed(epoch)
        stage.store.replace(replace(checkpoint, committed_ms=1))
    assert len(stage.storage.list("lockstep/checkpoints")) == 10


def test_every_listener_is_told_and_one_that_fails_harms_nobody() -> None:
    class Broken(CheckpointListener):
        def checkpoint_completed(self, checkpoint: CompletedCheckpoint) -> None:
            raise RuntimeError("broken")

    stage = Stage()
    stage.coordinator._listeners = (Broken(), stage.journal)
    stage.running().completed(0)
    assert stage.journal.told == [("completed", 0)]


def test_listeners_are_told_when_every_sink_has_committed() -> None:
    stage = Stage().running()
    stage.coordinator.committed(replace(stage.completed(0), committed_ms=5))
    assert stage.journal.told == [("completed", 0), ("committed", 0)]


def test_shutdown_gives_up_what_is_waiting_and_leaves_what_is_prepared_to_the_next_start() -> None:
    stage = Stage(max_concurrent=2).running()
    prepared, waiting = stage.prepared(0), stage.opened(1)
    stage.coordinator.shutdown()
    assert (waiting.failure, prepared.failure) == (FailureReason.COORDINATOR_SHUTDOWN,) * 2
    assert stage.coordinator.in_progress == []
    assert stage.coordinator.statistics.counts["in progress"] == 0


# --- restore --------------------------------------------------------------------------------------------------------


def test_restore_continues_above_the_latest_completed_checkpoint() -> None:
    before = Stage().running()
    for epoch in range(4):
        before.completed(epoch)
    stage = Stage(before.storage).running()
    stage.coordinator.restored(stage.store.latest)
    with pytest.raises(CheckpointError, match="3 was taken already"):
        stage.trigger(3)
    stage.opened(4)
    assert stage.coordinator.statistics.counts["restored"] == 1
    assert stage.coordinator.statistics.latest_restored == stage.store.get(3)


def test_first_start_restores_nothing() -> None:
    stage = Stage().running()
    stage.coordinator.restored(None)
    assert stage.coordinator.statistics.latest_restored is None
    stage.opened(0)


# --- statistics -----------------------------------------------------------------------------------------------------


def test_statistics_count_and_keep_the_latest_of_each_kind() -> None:
    stage = Stage().running()
    stage.coordinator.committed(replace(stage.completed(0), committed_ms=5))
    stage.prepared(1, CheckpointKind.SAVEPOINT)
    stage.complete(1)
    stage.opened(2)
    stage.coordinator.decline(LIFE, 2, "lake", FailureReason.DECLINED)
    stage.opened(2)
    statistics = stage.coordinator.statistics
    assert statistics.counts == {"triggered": 4, "in progress": 1, "completed": 2, "committed": 1, "failed": 1}
    assert statistics.latest_completed is not None
    assert statistics.latest_completed.id == 1
    assert statistics.latest_savepoint == statistics.latest_completed
    assert statistics.latest_failed is not None
    assert (statistics.latest_failed.id, statistics.latest_failed.failure) == (2, FailureReason.DECLINED)


def test_history_tells_of_every_participant_when_it_acknowledged_and_what_it_reported() -> None:
    stage = Stage().running()
    stage.opened(0)
    start = stage.clock.epoch_millis()
    stage.clock.advance(1)
    stage.coordinator.acknowledge(LIFE, 0, "source-0", {})
    stage.clock.advance(1)
    stage.coordinator.acknowledge(LIFE, 0, "lake", {"rows": 7, "bytes": 70, "write_ms": 12})
    stage.coordinator.in_progress[0].mark_prepared()
    stage.clock.advance(1)
    stage.complete(0)
    entry = stage.coordinator.statistics.history()[0]
    assert entry.acknowledged_ms == {"source-0": start + 1000, "lake": start + 2000}
    assert (entry.status, entry.duration_ms, entry.expected) == ("completed", 3000, 2)
    assert (entry.total("rows"), entry.total("bytes")) == (7, 70)
    assert entry.reports["lake"]["write_ms"] == 12


def test_history_is_bounded_and_newest_first() -> None:
    stage = Stage().running()
    for epoch in range(1005):
        stage.opened(epoch)
        stage.coordinator.decline(LIFE, epoch, "lake", FailureReason.DECLINED)
    history = stage.coordinator.statistics.history()
    assert (len(history), history[0].id) == (1000, 1004)


def test_summary_is_over_completed_checkpoints() -> None:
    stage = Stage().running()
    assert stage.coordinator.statistics.summary() == {}
    for epoch, seconds in enumerate((1, 2, 6)):
        stage.prepared(epoch)
        stage.clock.advance(seconds)
        stage.complete(epoch)
    stage.opened(3)
    duration = stage.coordinator.statistics.summary()["duration_ms"]
    assert duration == {"min": 1000, "avg": 3000, "p50": 2000, "p99": 6000, "max": 6000}
    assert stage.coordinator.statistics.summary()["rows"]["max"] == 4


def test_the_same_barrier_can_ask_for_another_kind_of_checkpoint() -> None:
    barrier = Barrier(1, 2, 3, ("x",))
    assert at(barrier, CheckpointKind.FORCED) == replace(barrier, kind=CheckpointKind.FORCED)
