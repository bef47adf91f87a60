"""Phase 1: an epoch returns only when it is prepared in every sink; otherwise it raises and leaves nothing visible."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest

from lockstep.config import CheckpointConfig, CheckpointMode
from lockstep.errors import (
    CheckpointDeclinedError,
    CheckpointDirectoryError,
    CheckpointExpiredError,
    CommitStalledError,
    FencedError,
    LockstepError,
)
from lockstep.protocol.checkpoint import FailureReason, PendingState
from lockstep.protocol.epoch import BoundSink
from lockstep.sinks.two_phase import CommitOutcome
from lockstep.testing import RecordingSink, failpoints
from unit_tests.simulation import Crash, Driver, World, crash_at, doing_at, position, rows_of

LONG = CheckpointConfig(interval=timedelta(hours=1), min_pause=timedelta(hours=1))
PHASE_1 = failpoints.POINTS[: failpoints.POINTS.index("epoch.end") + 1]
IN_ATTEMPT = PHASE_1[PHASE_1.index("sink.begin.after") : PHASE_1.index("record.before") + 1]


def finish(world: World, last: int = 4) -> None:
    assert Driver(world).start().run_to(last).stop()
    world.check_exactly_once(last)


# --- the steps ------------------------------------------------------------------------------------------------------


def test_epoch_passes_all_points_in_the_order_of_the_protocol() -> None:
    passed: list[str] = []
    driver = Driver(World()).start()
    failpoints.watch(lambda point: passed.append(point) if not point.startswith("spark") else None)
    try:
        driver.epoch()
    finally:
        failpoints.clear()
    assert tuple(passed) == failpoints.POINTS


def test_nothing_is_visible_until_spark_has_decided() -> None:
    world = World("a", "b")
    driver = Driver(world).start()
    driver.prepare()
    driver.committer.advance(force=True)
    assert world.tables["a"].rows() == world.tables["b"].rows() == []
    assert world.group == []
    driver.decide()
    driver.committer.advance()
    world.check_exactly_once(0)
    assert world.group == [0]


def test_record_holds_all_that_another_process_needs_before_the_epoch_returns() -> None:
    world = World("a", "b")
    driver = Driver(world).start()
    driver.prepare()
    (record,) = world.records()
    assert set(record.handles) == {"a", "b"}
    assert record.barrier.positions == (position(0),)
    assert record.attempt.lineage == driver.lineage.id
    assert (record.epoch, record.attempt.token, record.attempt.id[:4]) == (0, 1, "0-1-")
    assert record.reports["a"] == {"rows": 3, "bytes": 24, "write_ms": 0, "pre_commit_ms": 0}
    assert record.reports["source-0"] == {"position": position(0)}


def test_sinks_see_one_evaluation_of_the_batch_each_through_its_own_transform() -> None:
    world = World("a", "b")
    evaluations: list[Any] = []

    @contextmanager
    def materialise(batch: Any) -> Iterator[Any]:
        evaluations.append(batch)
        yield tuple(batch)

    driver = Driver(world, materialise=materialise).start()
    bound = driver.runner._sinks
    driver.runner._sinks = (bound[0], BoundSink("b", bound[1].sink, lambda rows: [row * 10 for row in rows]))
    driver.epoch()
    assert evaluations == [rows_of(0)]
    assert world.tables["a"].rows() == [0, 1, 2]
    assert world.tables["b"].rows() == [0, 10, 20]


def test_checkpoint_is_prepared_once_all_participants_have_acknowledged() -> None:
    driver = Driver(World("a", "b")).start()
    driver.prepare()
    (pending,) = driver.coordinator.in_progress
    assert pending.state is PendingState.PREPARED
    assert set(pending.reports) == {"source-0", "a", "b"}


# --- failures and crashes before the decision -----------------------------------------------------------------------


@pytest.mark.parametrize("point", failpoints.POINTS)
@pytest.mark.parametrize("hit", [1, 2, 3])
def test_crash_at_any_point_loses_nothing_and_repeats_nothing(point: str, hit: int) -> None:
    world = World("a", "b")
    with pytest.raises(Crash), crash_at(point, hit):
        Driver(world).start().run_to(4).stop()
    world.check_nothing_wrong()
    assert all(committed < len(table.visible) for committed in world.group for table in world.tables.values())
    finish(world)
    assert world.group[-1] == 4


@pytest.mark.parametrize("point", failpoints.POINTS)
def test_error_at_any_point_loses_nothing_and_repeats_nothing(point: str) -> None:
    """Unlike a crash, an error is handled: the attempt is aborted, or the commit tried again."""
    world = World("a", "b")
    driver = Driver(world).start()
    with crash_at(point, error=RuntimeError), suppress(LockstepError, RuntimeError):
        driver.run_to(2)
        driver.stop()
    world.check_nothing_wrong()
    finish(world)


@pytest.mark.parametrize("point", IN_ATTEMPT)
def test_failed_attempt_raises_is_aborted_and_its_checkpoint_is_discarded(point: str) -> None:
    world = World("a", "b")
    driver = Driver(world).start()
    hit = 2 if point.startswith("sink") else 1
    with (
        crash_at(point, hit, RuntimeError),
        pytest.raises(CheckpointDeclinedError, match=r"epoch 0: .* failed before the epoch was prepared"),
    ):
        driver.prepare()
    assert world.tables["a"].staged == world.tables["b"].staged == {}
    assert world.records() == []
    assert driver.coordinator.in_progress == []
    assert driver.coordinator.statistics.failures == {FailureReason.DECLINED: 1}
    driver.run_to(2)
    world.check_exactly_once(2)


def test_error_names_the_sink_that_failed() -> None:
    world = World("a", "b")
    driver = Driver(world).start()

    def fail() -> None:
        raise RuntimeError("disk full")

    driver.sinks["b"].on("write", fail)
    with pytest.raises(CheckpointDeclinedError, match=r"epoch 0: sink 'b' failed .*disk full"):
        driver.prepare()


def test_sink_that_cannot_abort_does_not_hide_the_failure() -> None:
    world = World("a", "b")
    driver = Driver(world).start()

    def fail() -> None:
        raise RuntimeError("first")

    def fail_too() -> None:
        raise RuntimeError("second")

    driver.sinks["b"].on("write", fail)
    driver.sinks["a"].on("abort", fail_too)
    with pytest.raises(CheckpointDeclinedError, match="first"):
        driver.prepare()
    finish(world)


@pytest.mark.parametrize("after", [False, True])
def test_record_that_cannot_be_stored_fails_the_epoch_and_its_rows_are_left_alone(after: bool) -> None:
    world = World()
    driver = Driver(world).start()
    driver.storage.fail("write", path="lockstep/prepared", after=after)
    with pytest.raises(CheckpointDeclinedError):
        driver.prepare()
    assert world.tables["a"].aborted == []
    finish(world)


def test_handle_that_is_no_json_fails_the_epoch_before_it_is_decided() -> None:
    world = World()
    driver = Driver(world).start()
    sink = driver.sinks["a"]
    sink.pre_commit = lambda handle: {**handle, "bad": {1, 2}}  # type: ignore[method-assign]
    with pytest.raises(CheckpointDeclinedError, match="not JSON serializable"):
        driver.prepare()
    assert world.tables["a"].staged == {}


def test_tolerable_failures_run_the_epoch_again_in_place() -> None:
    world = World()
    driver = Driver(world, CheckpointConfig(tolerable_failures=2)).start()
    failing = iter([True, True, False])

    def fail() -> None:
        driver.sinks["a"].on("pre_commit", fail)
        if next(failing, False):
            raise RuntimeError("flaky")

    driver.sinks["a"].on("pre_commit", fail)
    driver.run_to(1)
    world.check_exactly_once(1)
    assert len(world.tables["a"].aborted) == 2
    assert driver.coordinator.statistics.counts["failed"] == 2


def test_one_failure_too_many_fails_the_query() -> None:
    world = World()
    driver = Driver(world, CheckpointConfig(tolerable_failures=1)).start()

    def fail() -> None:
        driver.sinks["a"].on("write", fail)
        raise RuntimeError("broken")

    driver.sinks["a"].on("write", fail)
    with pytest.raises(CheckpointDeclinedError):
        driver.prepare()
    assert driver.coordinator.statistics.counts["failed"] == 2
    finish(world)


# --- expiry ---------------------------------------------------------------------------------------------------------


def slow(driver: Driver, seconds: float) -> None:
    driver.sinks["a"].on("write", lambda: driver.world.clock.advance(seconds))


@pytest.mark.parametrize("config", [CheckpointConfig(), LONG], ids=["checkpoint", "epoch between checkpoints"])
def test_epoch_that_is_not_prepared_in_time_raises_and_is_aborted(config: CheckpointConfig) -> None:
    world = World()
    driver = Driver(world, config).start()
    slow(driver, 601)
    with pytest.raises(CheckpointExpiredError, match=r"epoch 0 took 601\.0 s .*timeout=600 s"):
        driver.prepare()
    assert world.records() == []
    assert world.tables["a"].staged == {}
    finish(world)


def test_write_that_is_cancelled_at_the_deadline_is_told_as_expired() -> None:
    world = World()
    driver = Driver(world).start()

    def cancelled() -> None:
        world.clock.advance(601)
        raise RuntimeError("job cancelled")

    driver.sinks["a"].on("write", cancelled)
    with pytest.raises(CheckpointExpiredError, match=r"sink 'a' was cancelled after .*timeout=600 s: job cancelled"):
        driver.prepare()
    assert driver.coordinator.statistics.failures == {FailureReason.EXPIRED: 1}


def test_expiry_found_by_the_committers_thread_fails_the_epoch_too() -> None:
    world = World()
    driver = Driver(world).start()

    def stuck() -> None:
        world.clock.advance(600)  # the checkpoint's deadline, not yet more than the epoch's own time
        driver.committer.advance()

    driver.sinks["a"].on("write", stuck)
    with pytest.raises(CheckpointExpiredError, match="given up before a was ready"):
        driver.prepare()
    assert world.records() == []
    assert world.tables["a"].staged == {}
    finish(world)


def test_expiry_after_the_record_is_only_counted_and_the_epoch_is_committed() -> None:
    world = World()
    driver = Driver(world).start()
    driver.prepare()
    world.clock.advance(3600)
    driver.committer.advance()
    assert driver.coordinator.statistics.late_ids == {0}
    driver.decide()
    driver.committer.advance()
    world.check_exactly_once(0)


def test_expiry_between_the_record_and_its_note_lets_the_epoch_ride_along() -> None:
    world = World()
    driver = Driver(world).start()

    def expire() -> None:
        world.clock.advance(3600)
        driver.committer.advance()

    with doing_at("record.after", expire):
        driver.epoch()
    driver.epoch()
    world.check_exactly_once(1)


# --- holding back ---------------------------------------------------------------------------------------------------


def test_epoch_is_held_back_while_too_many_wait_for_their_commit_and_goes_on_when_they_are_done() -> None:
    world = World()
    driver = Driver(world, CheckpointConfig(max_pending_epochs=2)).start()
    driver.sinks["a"].script(*[CommitOutcome.retry("table locked")] * 4)
    driver.run_to(3)
    assert driver.waits
    world.check_exactly_once(3)


def test_epoch_that_is_held_back_too_long_fails_the_query_and_nothing_is_lost() -> None:
    world = World()
    driver = Driver(world, CheckpointConfig(max_pending_epochs=2, timeout=timedelta(seconds=30))).start()
    driver.sinks["a"].script(*[CommitOutcome.retry("table locked")] * 1000)
    with pytest.raises(CommitStalledError, match=r"epoch 2 was held back for 30 s: 2 epochs wait .*table locked"):
        driver.run_to(3)
    assert world.tables["a"].rows() == []
    finish(world)


def test_undecided_record_of_an_earlier_driver_does_not_hold_back_its_own_epoch() -> None:
    """Otherwise a crash after the record, with max_pending_epochs=1, could never be recovered from."""
    world = World()
    config = CheckpointConfig(max_pending_epochs=1)
    with pytest.raises(Crash), crash_at("epoch.end"):
        Driver(world, config).start().prepare()
    driver = Driver(world, config).start().run_to(1)
    assert driver.waits == []
    world.check_exactly_once(1)


def test_epoch_is_held_back_while_staged_rows_grow_too_old() -> None:
    world = World()
    sink = RecordingSink(world.tables["a"], "a", pending_seconds=100)
    driver = Driver(world, LONG, sinks={"a": sink}).start().run_to(1)
    world.clock.advance(101)
    driver.prepare()
    assert len(driver.waits) == 1  # in which everything decided was committed
    assert len(world.tables["a"].visible) == 2


def test_old_undecided_record_does_not_hold_back_its_own_epoch() -> None:
    """A query that was down for longer than its sink keeps staged rows must be able to start."""
    world = World()
    with pytest.raises(Crash), crash_at("epoch.end"):
        Driver(world).start().prepare()
    world.clock.advance(30 * 24 * 3600)
    sink = RecordingSink(world.tables["a"], "a", pending_seconds=100)
    driver = Driver(world, sinks={"a": sink}).start().run_to(1)
    assert driver.waits == []
    world.check_exactly_once(1)


# --- at least once --------------------------------------------------------------------------------------------------

AT_LEAST_ONCE = CheckpointConfig(mode=CheckpointMode.AT_LEAST_ONCE)


def test_at_least_once_is_visible_before_the_decision() -> None:
    world = World("a", "b")
    driver = Driver(world, AT_LEAST_ONCE).start()
    driver.prepare()
    world.check_exactly_once(0)
    assert world.group == []  # positions wait for the decision nevertheless
    assert world.records()[0].committed_early
    driver.decide()
    driver.committer.advance()
    world.check_exactly_once(0)


def test_at_least_once_leaves_what_did_not_commit_early_to_the_committer() -> None:
    world = World()
    driver = Driver(world, AT_LEAST_ONCE).start()
    driver.sinks["a"].script(RuntimeError("unreachable"))
    driver.prepare()
    assert world.tables["a"].rows() == []
    driver.decide()
    driver.committer.advance()
    world.check_exactly_once(0)


def test_at_least_once_never_commits_an_epoch_before_an_earlier_one() -> None:
    """A target that knows its highest epoch would take the earlier one for a repetition: its rows would be lost."""
    world = World()
    driver = Driver(world, AT_LEAST_ONCE).start()
    driver.sinks["a"].script(RuntimeError("unreachable"), CommitOutcome.retry("still not"), CommitOutcome.retry("no"))
    driver.epoch()
    driver.epoch()
    assert world.tables["a"].rows() == []
    world.clock.advance(60)
    driver.run_to(3)
    assert driver.stop()
    world.check_exactly_once(3)


@pytest.mark.parametrize("point", failpoints.POINTS)
def test_at_least_once_loses_nothing_in_a_crash_at_any_point(point: str) -> None:
    world = World("a", "b")
    with pytest.raises(Crash), crash_at(point, 2):
        Driver(world, AT_LEAST_ONCE).start().run_to(3).stop()
    finish(world)


# --- guards ---------------------------------------------------------------------------------------------------------


def test_fenced_driver_does_not_begin_an_epoch() -> None:
    world = World()
    old = Driver(world).start().run_to(0)
    Driver(world)
    begun = len(world.tables["a"].calls)
    with pytest.raises(FencedError):
        old.prepare()
    assert len(world.tables["a"].calls) == begun


def test_fenced_driver_leaves_its_record_and_its_rows_to_the_newer_one() -> None:
    world = World()
    old = Driver(world, CheckpointConfig(tolerable_failures=3)).start()
    with doing_at("record.after", lambda: Driver(world) and None), pytest.raises(FencedError):
        old.prepare()
    assert len(world.records()) == 1
    assert world.tables["a"].aborted == []
    assert old.coordinator.in_progress == []
    finish(world)


def test_emptied_offset_log_is_noticed_before_rows_get_lost() -> None:
    """Spark would begin at epoch 0 again, far below what is committed: every row would count as a repetition."""
    world = World()
    assert Driver(world, LONG).start().run_to(3).stop()
    world.storage.delete("offsets")
    driver = Driver(world, LONG).start()
    with pytest.raises(CheckpointDirectoryError, match="epoch 0, which is decided already"):
        driver.prepare()


def test_emptied_commit_log_is_noticed_before_rows_get_lost() -> None:
    world = World()
    assert Driver(world).start().run_to(3).stop()
    world.storage.delete("offsets")
    world.storage.delete("commits")
    with pytest.raises(CheckpointDirectoryError, match=r"ends at epoch -1, but epoch 3 was decided"):
        Driver(world).start()


def test_old_copy_of_the_commit_log_is_noticed_by_the_records() -> None:
    world = World()
    Driver(world, LONG).start().run_to(3)
    world.storage.delete("commits/2")
    world.storage.delete("commits/3")
    with pytest.raises(CheckpointDirectoryError, match=r"ends at epoch 1, but epoch 2 was decided"):
        Driver(world).start()
