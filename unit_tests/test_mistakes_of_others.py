"""Mistakes that other systems made, each kept from being made here.

More of them stand where they belong: an undecided epoch of a paused driver, two attempts of one epoch, a commit in
flight (``test_two_drivers.py``); purged commit files, a target that changes between staging and commit
(``test_committer.py``); staged rows that grow too old, a batch that is read in part (``test_epoch.py``).
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import pytest

from lockstep.config import CheckpointConfig
from lockstep.errors import LockstepError
from lockstep.sinks.two_phase import CommitOutcome
from lockstep.testing import MemoryTable, RecordingSink, failpoints
from unit_tests.simulation import Crash, Driver, World, crash_at, rows_up_to

LONG = CheckpointConfig(interval=timedelta(hours=1), min_pause=timedelta(hours=1))


def test_epochs_of_a_new_life_are_not_skipped_as_done_though_their_ids_are_lower() -> None:
    """Iceberg #10892, Delta's txnAppId: after a restore, ids at or below the last committed one counted as done."""
    before = World()
    assert Driver(before).start().run_to(5).stop()
    after = World()  # a new checkpoint directory for the same table
    after.tables = before.tables
    after.lineages = before.lineages
    table = after.tables["a"]
    first_life = len(table.visible)
    assert Driver(after).start().run_to(2).stop()
    assert [one.epoch for one in table.visible[first_life:]] == [0, 1, 2]
    assert len({one.owner for one in table.visible}) == 2
    assert table.violations == []


def test_restarted_query_is_the_same_writer_to_its_sinks() -> None:
    """Iceberg #16008: a new job id defeated the check for repetitions."""
    world = World()
    driver = Driver(world).start().run_to(0, advance=False)
    with pytest.raises(Crash), crash_at("sink.commit.after"):
        driver.committer.advance()
    for _ in range(3):
        Driver(world).start()
    assert len({one.owner for one in world.tables["a"].visible}) == 1
    world.check_exactly_once(0)


def test_commit_that_lands_after_the_new_driver_has_committed_changes_nothing() -> None:
    """Iceberg #14425: a commit in flight landed after "already committed?" was asked."""
    world = World()
    old = Driver(world).start().run_to(0, advance=False)
    old.sinks["a"].on("commit", lambda: Driver(world).start() and None)  # the old driver has looked, and is paused
    with suppress(LockstepError):
        old.committer.advance()
    world.check_exactly_once(0)


def test_epochs_of_one_checkpoint_that_were_not_reached_by_the_crash_are_committed() -> None:
    """Iceberg #14090: several commits shared one checkpoint id, and recovery skipped the rest."""
    for reached in range(5):
        world = World()
        driver = Driver(world, LONG).start().run_to(3)
        hits = iter(range(reached))

        def die(driver: Driver = driver, hits: object = hits) -> None:
            if next(hits, None) is None:  # type: ignore[call-overload]
                raise Crash
            driver.sinks["a"].on("commit", die)

        driver.sinks["a"].on("commit", die)
        with suppress(Crash):
            driver.stop()
        assert len(world.tables["a"].visible) == min(reached, 4)
        assert Driver(world).start().stop()
        world.check_exactly_once(3)


def test_rows_of_a_failed_attempt_are_in_no_later_epoch() -> None:
    """Iceberg #11008: the data of a failed checkpoint was squashed into the next one."""
    world = World()
    driver = Driver(world, CheckpointConfig(tolerable_failures=1)).start()
    driver.epoch()
    with crash_at("record.before", error=RuntimeError):
        driver.epoch()
    driver.run_to(3)
    world.check_exactly_once(3)
    assert [len(one.rows) for one in world.tables["a"].visible] == [3, 3, 3, 3]


def test_late_epoch_is_never_overtaken_so_it_is_not_taken_for_a_repetition() -> None:
    """Delta connectors #467: committables that came late were skipped by their transaction version."""
    world = World()
    driver = Driver(world).start()
    driver.sinks["a"].script(CommitOutcome.retry("slow"))
    for _ in range(4):
        driver.epoch()
        world.clock.advance(0.06)  # the second and third look fall into the pause
    world.clock.advance(1)
    driver.committer.advance()
    world.check_exactly_once(3)
    assert [one.epoch for one in world.tables["a"].visible] == [0, 1, 2, 3]


def test_zombie_does_not_commit_beside_the_new_driver() -> None:
    """Iceberg Kafka Connect #17551: a zombie coordinator went on committing."""
    world = World()
    zombie = Driver(world).start().run_to(0)
    driver = Driver(world).start()
    for epoch in range(1, 5):
        driver.run_to(epoch)
        for attempt in (lambda: zombie.epoch(), lambda: zombie.committer.advance(force=True), lambda: zombie.stop()):
            with suppress(LockstepError, RuntimeError):
                attempt()
    world.check_exactly_once(4)
    assert {one.attempt.split("-")[1] for one in world.tables["a"].visible[1:]} == {"2"}


def test_batch_that_runs_again_after_a_crash_is_visible_once() -> None:
    """Every foreachBatch sink: the batch runs again when the crash falls between its write and Spark's commit log."""
    world = World()
    for _ in range(5):
        with pytest.raises(Crash), crash_at("epoch.end"):
            Driver(world).start().prepare()
    assert Driver(world).start().run_to(1).stop()
    world.check_exactly_once(1)
    assert len(world.tables["a"].aborted) == 5


def test_what_is_stored_does_not_grow_with_the_number_of_epochs() -> None:
    """kafka-delta-ingest #227: incremental handles grew without bound."""
    world = World("a", "b")
    driver = Driver(world, CheckpointConfig(retained=3)).start()
    sizes = []
    for epoch in range(60):
        driver.epoch()
        ours = {path: data for path, data in world.storage.files.items() if path.startswith("lockstep/")}
        sizes.append((len(ours), sum(map(len, ours.values())) - 20 * len(str(epoch))))
    assert sizes[-1][0] == sizes[10][0]
    assert sizes[-1][1] <= sizes[10][1] + 100
    assert driver.committer._records == {}


def test_handles_of_an_epoch_do_not_grow_however_often_it_is_tried() -> None:
    world = World()
    for _ in range(4):
        with pytest.raises(Crash), crash_at("epoch.end"):
            Driver(world).start().prepare()
    sizes = {len(record.encode()) for record in world.records()}
    assert len(world.records()) == 4
    assert len(sizes) == 1


def test_two_sinks_on_one_table_are_two_writers() -> None:
    """Two sinks on one table that share an application id take each other's epochs for their own."""
    world = World("a", "b")
    shared = MemoryTable()
    world.tables = {"a": shared}
    sinks = {uid: RecordingSink(shared, uid) for uid in ("a", "b")}
    driver = Driver(world, sinks=sinks).start().run_to(2)
    assert driver.stop()
    assert shared.violations == []
    assert sorted(shared.rows()) == sorted(rows_up_to(2) * 2)


def test_failpoints_cost_nothing_and_do_nothing_unless_a_test_sets_them() -> None:
    failpoints.clear()
    world = World()
    Driver(world).start().epoch()
    world.check_exactly_once(0)
    with pytest.raises(ValueError, match=r"unknown failpoint 'nowhere': use one of epoch\.start"):
        failpoints.at("nowhere", lambda: None)
