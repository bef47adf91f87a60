"""Phase 2: every decided epoch is committed, once, in order, in every sink; then the group; then records are retired."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lockstep.config import CheckpointConfig
from lockstep.errors import CommitFailedError, CorruptRecordError, FencedError, MissingRecordError, OrphanedSinkError
from lockstep.protocol.barrier import CheckpointKind
from lockstep.protocol.checkpoint import CompletedCheckpoint
from lockstep.protocol.coordinator import CheckpointListener
from lockstep.protocol.prepare_record import choose
from lockstep.sinks.two_phase import CommitOutcome
from lockstep.testing import AfterEffect, RecordingSink, staged_but_invisible
from unit_tests.simulation import Crash, Driver, World, crash_at, rows_up_to

LONG = CheckpointConfig(interval=timedelta(hours=1), min_pause=timedelta(hours=1))
RETRY = CommitOutcome.retry("table locked")


def commits(world: World, uid: str = "a") -> list[int]:
    return [epoch for method, epoch, _ in world.tables[uid].calls if method == "commit"]


def finish(world: World, last: int) -> None:
    assert Driver(world).start().run_to(last).stop()
    world.check_exactly_once(last)
    assert world.records() == []


# --- completion and commit ------------------------------------------------------------------------------------------


def test_decided_epoch_is_committed_in_every_sink_then_in_the_group_then_retired() -> None:
    world = World("a", "b")
    Driver(world).start().epoch()
    world.check_exactly_once(0)
    assert world.group == [0]
    assert world.records() == []


def test_every_epoch_is_a_checkpoint_by_default() -> None:
    world = World()
    driver = Driver(world).start().run_to(4)
    assert [checkpoint.id for checkpoint in driver.store.all()] == [0, 1, 2, 3, 4]
    assert all(checkpoint.committed for checkpoint in driver.store.all())
    assert world.group == [0, 1, 2, 3, 4]


def test_metadata_is_stored_before_the_first_sink_commits() -> None:
    world = World()
    driver = Driver(world).start()
    driver.prepare()
    driver.decide()
    with pytest.raises(Crash), crash_at("sink.commit.before"):
        driver.committer.advance()
    (checkpoint,) = driver.store.stored()
    assert checkpoint.attempts == {0: world.records()[0].attempt.id}
    assert not checkpoint.committed
    assert world.tables["a"].rows() == []


def test_metadata_tells_what_each_sink_committed() -> None:
    world = World("a", "b")
    Driver(world).start().run_to(1)
    (_, checkpoint) = Driver(world).store.stored()
    assert checkpoint.committed_ms == world.clock.epoch_millis()
    assert {uid: details["version"] for uid, details in checkpoint.commits.items()} == {"a": 2, "b": 2}
    assert checkpoint.commits["a"]["attempt"] == checkpoint.attempts[1]
    assert checkpoint.doubtful == ()


def test_metadata_and_history_tell_where_the_time_went() -> None:
    world = World()

    class Slow(RecordingSink):
        def write(self, handle: Any, batch: Any) -> None:
            world.clock.advance(2)
            super().write(handle, batch)

        def commit(self, prepared: Any) -> CommitOutcome:
            world.clock.advance(5)
            return super().commit(prepared)

    driver = Driver(world, LONG, sinks={"a": Slow(world.tables["a"], "a")}).start().run_to(1)
    world.clock.advance(7)
    assert driver.stop()
    (checkpoint,) = driver.store.stored()
    assert checkpoint.phases == {
        "held_back": 0,
        "prepare": 4_000,  # both epochs
        "state": 0,
        "record": 0,
        "decision": 9_000,  # what the first one waited: there was no checkpoint before
        "commit": 10_000,
    }
    assert driver.coordinator.statistics.history()[0].phases == checkpoint.phases


def test_missed_notifications_are_made_up_for_by_the_next_one() -> None:
    """Nobody tells the committer anything for three epochs."""
    world = World()
    driver = Driver(world).start().run_to(3, advance=False)
    assert world.tables["a"].rows() == []
    driver.committer.advance()
    world.check_exactly_once(3)
    assert commits(world) == [0, 1, 2, 3]


def test_completion_is_noticed_at_the_start_of_the_next_epoch_without_any_notification() -> None:
    driver = Driver(World()).start().run_to(0, advance=False)
    driver.prepare()
    assert [checkpoint.id for checkpoint in driver.store.all()] == [0]


def test_listeners_hear_of_completion_and_then_of_the_commit() -> None:
    told: list[str] = []

    class Listener(CheckpointListener):
        def checkpoint_completed(self, checkpoint: CompletedCheckpoint) -> None:
            told.append(f"completed {checkpoint.id} {len(world.tables['a'].visible)}")

        def checkpoint_committed(self, checkpoint: CompletedCheckpoint) -> None:
            told.append(f"committed {checkpoint.id} {len(world.tables['a'].visible)}")

    world = World()
    Driver(world, listeners=(Listener(),)).start().run_to(1)
    assert told == ["completed 0 0", "committed 0 1", "completed 1 1", "committed 1 2"]


def test_nothing_decided_is_nothing_to_do() -> None:
    world = World()
    driver = Driver(world).start()
    assert driver.committer.advance() is True
    driver.prepare()
    assert driver.committer.advance(force=True) is True
    assert commits(world) == []
    assert driver.committer.awaits_decision() == 0


# --- an interval longer than an epoch -------------------------------------------------------------------------------


def test_interval_longer_than_an_epoch_commits_many_epochs_at_one_checkpoint() -> None:
    world = World()
    driver = Driver(world, LONG).start().run_to(3)
    assert world.tables["a"].rows() == []
    assert driver.committer.pending_epochs() == [0, 1, 2, 3]
    world.clock.advance(3600)
    driver.epoch()
    world.check_exactly_once(4)
    assert world.group == [4]
    assert sorted(driver.store.all()[0].attempts) == [0, 1, 2, 3, 4]
    assert world.records() == []


def test_sink_that_can_gets_all_epochs_of_a_checkpoint_in_one_call() -> None:
    world = World()
    sink = RecordingSink(world.tables["a"], "a", in_one_transaction=True)
    driver = Driver(world, LONG, sinks={"a": sink}).start().run_to(3)
    calls: list[list[int]] = []
    commit_many = sink.commit_many
    sink.commit_many = lambda prepared: calls.append([p.epoch for p in prepared]) or commit_many(prepared)  # type: ignore[method-assign,func-returns-value]
    assert driver.stop()
    assert calls == [[0, 1, 2, 3]]
    world.check_exactly_once(3)


def test_epochs_between_checkpoints_are_committed_also_when_the_stream_goes_idle() -> None:
    world = World()
    driver = Driver(world, LONG).start().run_to(2)
    world.clock.advance(3600)
    driver.committer.advance()  # no new epoch, only the timer
    world.check_exactly_once(2)
    assert driver.store.all()[0].kind is CheckpointKind.CHECKPOINT


def test_epochs_between_checkpoints_are_committed_at_stop() -> None:
    world = World()
    driver = Driver(world, LONG).start().run_to(2)
    assert driver.stop()
    world.check_exactly_once(2)
    assert driver.store.all()[0].kind is CheckpointKind.FORCED


def test_epochs_between_checkpoints_are_committed_at_the_next_start() -> None:
    world = World()
    Driver(world, LONG).start().run_to(2)
    Driver(world, LONG).start()
    world.check_exactly_once(2)


def test_stop_commits_what_is_decided_though_a_later_checkpoint_is_prepared_and_never_decided() -> None:
    world = World()
    driver = Driver(world, LONG).start().run_to(2)
    world.clock.advance(3600)
    driver.prepare()  # epoch 3 is a checkpoint; the query is stopped before Spark writes commits/3
    assert driver.stop()
    world.check_exactly_once(2)
    finish(world, 4)


# --- failing commits ------------------------------------------------------------------------------------------------


def test_retry_is_tried_again_after_growing_pauses_while_epochs_go_on() -> None:
    world = World()
    driver = Driver(world).start()
    driver.sinks["a"].script(*[RETRY] * 12)
    driver.epoch()
    pauses = []
    for _ in range(11):
        before = world.clock.monotonic()
        while len(commits(world)) == len(pauses) + 1:
            world.clock.advance(0.05)
            driver.committer.advance()
        pauses.append(round(world.clock.monotonic() - before, 2))
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10, 10], abs=0.06)
    assert driver.committer.last_problem == "sink 'a': table locked"
    world.clock.advance(10)
    driver.epoch()
    world.check_exactly_once(1)
    assert driver.committer.last_problem is None


def test_force_does_not_wait_for_the_backoff() -> None:
    world = World()
    driver = Driver(world).start()
    driver.sinks["a"].script(RETRY)
    driver.epoch()
    assert world.tables["a"].rows() == []
    assert driver.committer.advance(force=True)
    world.check_exactly_once(0)


@pytest.mark.parametrize(
    "step", [RuntimeError("unknown outcome"), AfterEffect(RuntimeError("unknown outcome"))], ids=["before", "after"]
)
def test_exception_in_commit_counts_as_retry_whether_or_not_it_took_effect(step: Exception | AfterEffect) -> None:
    world = World()
    driver = Driver(world).start()
    driver.sinks["a"].script(step)
    driver.epoch()
    assert world.group == []
    assert driver.committer.pending_epochs() == [0]
    world.clock.advance(1)
    driver.epoch()
    world.check_exactly_once(1)
    assert world.group == [1]


def test_sink_that_retries_holds_back_its_later_epochs_the_group_and_the_records() -> None:
    world = World("a", "b")
    driver = Driver(world).start()
    driver.sinks["a"].script(RETRY, RETRY, RETRY)
    for _ in range(3):
        driver.epoch()
        world.clock.advance(1)
    assert world.tables["a"].rows() == []
    assert world.tables["b"].rows() == rows_up_to(2)  # the other one goes on
    assert world.group == []
    assert len(world.records()) == 3
    driver.epoch()
    world.check_exactly_once(3)
    assert world.records() == []


def test_failed_commit_is_raised_after_every_sink_was_tried_and_the_epochs_stay_prepared() -> None:
    world = World("a", "b")
    driver = Driver(world).start()
    driver.sinks["a"].script(CommitOutcome.failed("the table is gone."))
    with pytest.raises(CommitFailedError, match=r"sink 'a' can't commit up to epoch 0: the table is gone\."):
        driver.epoch()
    assert world.tables["b"].rows() == rows_up_to(0)
    assert world.group == []
    assert len(world.records()) == 1
    finish(world, 2)


def test_of_several_failures_the_first_is_raised() -> None:
    world = World("a", "b")
    driver = Driver(world).start()
    for uid in ("a", "b"):
        driver.sinks[uid].script(CommitOutcome.failed(f"{uid} is broken"))
    with pytest.raises(CommitFailedError, match="a is broken"):
        driver.epoch()
    assert commits(world, "b") == [0]


def test_failed_epoch_holds_back_all_later_ones() -> None:
    world = World()
    driver = Driver(world).start().run_to(2, advance=False)
    driver.sinks["a"].script(None, CommitOutcome.failed("no"))
    with pytest.raises(CommitFailedError):
        driver.committer.advance()
    assert commits(world) == [0, 1]  # 2 was not tried
    finish(world, 3)


def test_fenced_driver_does_not_commit_and_does_not_retry() -> None:
    world = World()
    old = Driver(world).start().run_to(0, advance=False)
    Driver(world)
    with pytest.raises(FencedError):
        old.committer.advance()
    assert commits(world) == []


def test_group_offsets_wait_for_the_slowest_sink() -> None:
    world = World("a", "b")
    driver = Driver(world).start()
    driver.sinks["b"].script(RETRY)
    driver.epoch()
    assert world.group == []
    driver.committer.advance(force=True)
    assert world.group == [0]


@pytest.mark.parametrize("error", [OSError("disk"), RuntimeError("some Java error")])
def test_record_that_cannot_be_retired_harms_nobody(error: Exception) -> None:
    world = World()
    driver = Driver(world).start()
    driver.storage.fail("delete", path="lockstep/prepared", error=error)
    driver.run_to(1)
    assert [record.epoch for record in world.records()] == [0]
    finish(world, 2)


# --- recovery -------------------------------------------------------------------------------------------------------


def test_decided_epochs_of_an_earlier_driver_are_committed_at_start_through_recover_and_commit() -> None:
    world = World()
    Driver(world).start().run_to(2, advance=False)
    driver = Driver(world).start()
    world.check_exactly_once(2)
    assert [epoch for method, epoch, _ in world.tables["a"].calls if method == "recover_and_commit"] == [0, 1, 2]
    driver.run_to(4)
    assert [epoch for method, epoch, _ in world.tables["a"].calls if method == "recover_and_commit"] == [0, 1, 2]
    assert world.group[-1] == 4


def test_several_recovered_epochs_are_committed_together_once_the_first_is_known_to_be_new() -> None:
    world = World()
    Driver(world).start().run_to(4, advance=False)
    sink = RecordingSink(world.tables["a"], "a", in_one_transaction=True)
    calls: list[list[int]] = []
    commit_many = sink.commit_many
    sink.commit_many = lambda prepared: calls.append([p.epoch for p in prepared]) or commit_many(prepared)  # type: ignore[method-assign,func-returns-value]
    Driver(world, sinks={"a": sink}).start()
    assert calls == [[0], [1, 2, 3, 4]]
    world.check_exactly_once(4)


def test_epochs_that_were_committed_before_the_crash_are_not_committed_again() -> None:
    world = World()
    driver = Driver(world).start().run_to(2, advance=False)
    with pytest.raises(Crash), crash_at("offsets.before"):
        driver.committer.advance()
    world.check_exactly_once(2)
    finish(world, 3)


def test_undecided_epoch_is_left_alone_at_start() -> None:
    world = World()
    with pytest.raises(Crash), crash_at("epoch.end"):
        Driver(world).start().prepare()
    Driver(world).start()
    assert len(world.records()) == 1
    assert world.tables["a"].aborted == []
    finish(world, 1)
    assert len(world.tables["a"].aborted) == 1


def test_recovery_that_meets_a_passing_fault_goes_on_later() -> None:
    world = World()
    Driver(world).start().run_to(1, advance=False)
    driver = Driver(world)
    driver.sinks["a"].script(RETRY)
    driver.start()
    world.clock.advance(1)
    driver.run_to(2)
    world.check_exactly_once(2)


def test_missing_record_of_a_decided_epoch_is_an_error_and_nothing_later_is_committed() -> None:
    world = World()
    Driver(world).start().run_to(2, advance=False)
    world.storage.delete(world.records()[1].path)
    with pytest.raises(MissingRecordError, match=r"epoch 1 was decided .*no prepare record.*Restore lockstep/prepared"):
        Driver(world).start()
    assert world.tables["a"].rows() == []


def test_record_that_vanishes_while_the_query_runs_is_an_error_at_the_next_start_only() -> None:
    world = World()
    driver = Driver(world).start()
    driver.prepare()
    for record in world.records():
        world.storage.delete(record.path)
    driver.decide()
    driver.committer.advance()
    world.check_exactly_once(0)


@pytest.mark.parametrize("keep", [0, 30, 300])
def test_truncated_record_is_an_error_and_nothing_is_committed_or_deleted(keep: int) -> None:
    world = World()
    Driver(world).start().run_to(1, advance=False)
    path = world.records()[0].path
    world.storage.files[path] = world.storage.files[path][:keep]
    with pytest.raises(CorruptRecordError, match=path):
        Driver(world).start()
    assert world.tables["a"].rows() == []
    assert path in world.storage.files


def test_corrupt_metadata_is_an_error() -> None:
    world = World()
    Driver(world).start().run_to(1)
    path = "lockstep/checkpoints/chk-1/_metadata"
    world.storage.files[path] = world.storage.files[path].replace(b"committed", b"committee")
    with pytest.raises(CorruptRecordError, match="chk-1"):
        Driver(world)


def test_removed_sink_with_prepared_epochs_is_refused_until_they_are_committed() -> None:
    world = World("a", "b")
    Driver(world).start().run_to(1, advance=False)
    with pytest.raises(OrphanedSinkError, match=r"sink 'b' has prepared epoch 0.*uid='b'"):
        Driver(world, uids=("a",)).start()
    Driver(world).start()  # with it once more
    world.check_exactly_once(1)
    driver = Driver(world, uids=("a",)).start()
    driver.epoch()
    assert world.tables["a"].rows() == rows_up_to(2)
    assert world.tables["b"].rows() == rows_up_to(1)


def test_added_sink_gets_the_epochs_from_its_start_on() -> None:
    world = World("a")
    Driver(world).start().run_to(1, advance=False)
    new = RecordingSink(uid="new")
    sinks = {"a": RecordingSink(world.tables["a"], "a"), "new": new}
    Driver(world, sinks=sinks).start().run_to(3)
    world.check_exactly_once(3)
    assert new.table.rows() == rows_up_to(3)[6:]


def test_purged_commit_log_does_not_make_decided_epochs_look_undecided() -> None:
    world = World()
    config = CheckpointConfig(interval=timedelta(hours=1), min_pause=timedelta(hours=1), max_pending_epochs=50)
    Driver(world, config).start().run_to(30)
    world.spark.purge(retain=2)
    assert world.storage.list("commits") == ["29", "30"]
    finish(world, 31)


@pytest.mark.parametrize("point", ["retire.before", "retire.after", "offsets.after"])
def test_crash_while_records_are_retired_leaves_nothing_behind_after_the_next_start(point: str) -> None:
    world = World("a", "b")
    driver = Driver(world).start().run_to(1, advance=False)
    with pytest.raises(Crash), crash_at("epoch.end"):
        driver.prepare()
    driver = Driver(world).start()
    with pytest.raises(Crash), crash_at(point):
        driver.run_to(3)
    finish(world, 4)
    assert staged_but_invisible(world.tables.values()) == {}


# --- staged again ---------------------------------------------------------------------------------------------------


def test_epoch_is_staged_again_when_its_target_has_changed_and_the_old_rows_are_aborted_after_the_commit() -> None:
    world = World("a", "b")
    driver = Driver(world).start()
    driver.prepare()
    old = world.records()[0]
    world.tables["a"].schema = 2
    driver.decide()
    driver.committer.advance()
    world.check_exactly_once(0)
    (seen,) = world.tables["a"].visible
    assert seen.attempt != old.attempt.id
    assert world.tables["a"].aborted == [old.attempt.id]
    assert world.tables["b"].aborted == []
    assert world.records() == []


def test_new_attempt_is_recorded_before_it_is_committed() -> None:
    world = World()
    driver = Driver(world).start()
    driver.prepare()
    (old,) = world.records()
    world.tables["a"].schema = 2
    driver.decide()
    with pytest.raises(Crash), crash_at("sink.commit.before"):
        driver.committer.advance()
    assert world.tables["a"].rows() == []
    first, fresh = sorted(world.records(), key=lambda record: len(record.replaced))
    assert first == old
    assert fresh.origin == old.attempt.id
    assert fresh.handles["a"]["schema"] == 2
    assert [replaced.handle for replaced in fresh.replaced] == [old.handles["a"]]
    finish(world, 1)
    assert old.handles["a"]["staged"] in world.tables["a"].aborted


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("recovering", [False, True])
@pytest.mark.parametrize("changed", ["a", "ab"])
def test_crash_while_the_new_attempt_is_recorded_keeps_every_row_once(
    after: bool, recovering: bool, changed: str
) -> None:
    world = World("a", "b")
    driver = Driver(world).start().run_to(1, advance=False)
    for uid in changed:
        world.tables[uid].schema = 2
    if recovering:
        driver = Driver(world)
    driver.storage.fail("write", path="lockstep/prepared", after=after, error=Crash())
    with pytest.raises(Crash):
        driver.start() if recovering else driver.committer.advance()
    finish(world, 2)


@pytest.mark.parametrize("point", ["sink.commit.before", "sink.commit.after", "offsets.before", "retire.before"])
@pytest.mark.parametrize("recovering", [False, True])
def test_crash_after_staging_again_keeps_every_row_once_and_aborts_nothing_visible(
    point: str, recovering: bool
) -> None:
    world = World("a", "b")
    driver = Driver(world).start().run_to(1, advance=False)
    world.tables["a"].schema = 2
    if recovering:
        driver = Driver(world)
    with pytest.raises(Crash), crash_at(point):
        driver.start() if recovering else driver.committer.advance()
    world.tables["a"].schema = 3
    finish(world, 2)


def test_every_sink_may_stage_again_and_all_new_attempts_are_kept() -> None:
    world = World("a", "b")
    driver = Driver(world).start()
    driver.prepare()
    for table in world.tables.values():
        table.schema = 2
    driver.sinks["a"].script(RETRY)
    driver.decide()
    driver.committer.advance()
    record = choose(world.records())
    assert record is not None
    assert [record.handles[uid]["schema"] for uid in ("a", "b")] == [2, 2]
    assert len(record.replaced) == 2
    driver.committer.advance(force=True)
    world.check_exactly_once(0)
    assert staged_but_invisible(world.tables.values()) == {}


def test_target_that_changes_between_staging_again_and_the_commit_is_staged_once_more() -> None:
    world = World()
    driver = Driver(world).start()
    driver.prepare()
    world.tables["a"].schema = 2
    driver.sinks["a"].on("commit", lambda: setattr(world.tables["a"], "schema", 3))
    driver.decide()
    driver.committer.advance()
    assert world.tables["a"].rows() == []
    driver.committer.advance(force=True)
    world.check_exactly_once(0)
    assert staged_but_invisible(world.tables.values()) == {}


def test_sink_that_cannot_clean_up_a_lost_attempt_costs_only_space() -> None:
    world = World()
    driver = Driver(world).start()
    driver.prepare()
    world.tables["a"].schema = 2

    def fail() -> None:
        raise RuntimeError("permission denied")

    driver.sinks["a"].on("abort", fail)
    driver.decide()
    assert driver.committer.advance()
    world.check_exactly_once(0)
    assert len(staged_but_invisible(world.tables.values())) == 1
