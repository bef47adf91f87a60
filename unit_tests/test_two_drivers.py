"""Two drivers on one checkpoint directory: a paused one that comes back, at every awkward moment."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest

from lockstep.config import CheckpointConfig, CheckpointMode
from lockstep.errors import CommitFailedError, FencedError, LockstepError
from lockstep.sinks.two_phase import CommitOutcome, PreparedEpoch
from lockstep.testing import MemoryStorage, RecordingSink
from unit_tests.simulation import Crash, Driver, World, crash_at, doing_at, rows_of

LONG = CheckpointConfig(interval=timedelta(hours=1), min_pause=timedelta(hours=1))
LATE = (LockstepError, RuntimeError)  # how a driver that lost may end: ours, or Spark's "concurrent update"


def finish(world: World, last: int) -> None:
    """A third driver takes over, runs to the end, and everything is there once."""
    driver = Driver(world).start().run_to(last)
    assert driver.stop()
    world.check_exactly_once(last)
    assert world.records() == []


def advance_quietly(driver: Driver) -> None:
    with suppress(*LATE):
        driver.committer.advance(force=True)


def test_old_driver_that_wakes_after_the_new_one_prepared_decides_its_attempt_and_one_is_committed() -> None:
    world = World()
    old = Driver(world).start().run_to(1)
    old.prepare()  # epoch 2; paused before Spark writes commits/2
    new = Driver(world).start()
    new.prepare()
    old.decide()
    with pytest.raises(FencedError):
        old.committer.advance()
    with pytest.raises(RuntimeError, match="Concurrent update"):
        new.decide()
    assert new.stop()
    world.check_exactly_once(2)
    chosen = world.tables["a"].visible[-1].attempt
    assert chosen.startswith("2-1-")  # the old driver's metadata was first
    assert [name for name in world.tables["a"].aborted if name != chosen] == world.tables["a"].aborted
    finish(world, 3)


def test_old_driver_that_wakes_before_the_new_one_prepared_decides_its_attempt_and_the_new_one_goes_on() -> None:
    world = World()
    old = Driver(world).start().run_to(1)
    old.prepare()
    new = Driver(world)
    new.recover()
    old.decide()  # after the new driver has looked, before its query starts
    new.launch()
    assert new.next == 3
    new.run_to(4)
    world.check_exactly_once(4)
    with pytest.raises(FencedError):
        old.committer.advance()
    finish(world, 5)


def test_record_written_after_the_new_driver_has_looked_is_never_decided() -> None:
    """The old driver is paused in the middle of a write; had it been let go on, nobody would commit its epoch."""
    world = World()
    old = Driver(world).start().run_to(1)
    new = Driver.__new__(Driver)

    def take_over() -> None:
        new.__init__(world)  # type: ignore[misc]
        new.recover()

    old.sinks["a"].on("write", take_over)
    with pytest.raises(FencedError):
        old.prepare()
    new.launch()
    assert new.next == 2
    new.run_to(4)
    assert new.stop()
    world.check_exactly_once(4)
    finish(world, 5)


def test_attempt_that_only_the_old_driver_knew_is_not_replaced_by_a_guess() -> None:
    """Both prepare; the old one decides and chooses its own attempt, whose record the new one has never read."""
    world = World()
    old = Driver(world).start().run_to(1)
    news: list[Driver] = []

    def take_over() -> None:
        news.append(Driver(world).start())
        news[0].prepare()

    old.sinks["a"].on("write", take_over)
    with suppress(FencedError):
        old.prepare()
        old.decide()
        old.committer.advance()
    new = news[0]
    with suppress(RuntimeError):
        new.decide()
    assert new.stop()
    world.check_exactly_once(2)
    finish(world, 3)


def test_attempts_that_lost_are_aborted_only_after_the_decision() -> None:
    world = World()
    old = Driver(world).start().run_to(1)
    old.prepare()
    new = Driver(world).start()
    new.prepare()
    new.committer.advance()
    assert world.tables["a"].aborted == []  # undecided: either may yet be the one
    new.decide()
    new.committer.advance()
    assert len(world.tables["a"].aborted) == 1
    assert world.tables["a"].aborted[0].startswith("2-1-")
    world.check_exactly_once(2)


def test_commit_in_flight_of_a_fenced_driver_lands_first_and_nothing_is_aborted() -> None:
    """The old driver is inside ``commit`` when the new one takes over, stages again, and loses the race."""
    world = World()
    old = Driver(world).start().run_to(1)
    old.prepare()
    old.decide()
    new = Driver.__new__(Driver)

    def take_over() -> None:
        world.tables["a"].schema = 2  # so that the new driver stages again, under an attempt of its own
        new.__init__(world)  # type: ignore[misc]
        new.sinks["a"].on("commit", land)

    def land() -> None:
        world.tables["a"].schema = 1
        old_prepared = old.committer._choose(2).prepared("a")
        assert old_prepared is not None
        assert old.sinks["a"]._commit([old_prepared]).committed
        world.tables["a"].schema = 2

    with doing_at("sink.commit.before", take_over), suppress(*LATE):
        old.committer.advance()
    aborted = list(world.tables["a"].aborted)
    new.start()
    assert world.tables["a"].visible[-1].attempt.startswith("2-1-")
    assert world.tables["a"].aborted == aborted
    world.check_exactly_once(2)
    finish(world, 3)


def test_commit_of_an_attempt_that_a_rival_staged_again_meanwhile_is_recognised_as_ours() -> None:
    """The new driver has read record and metadata; then the old one stages again, commits that, and dies."""
    world = World()
    old = Driver(world).start().run_to(1)
    old.prepare()
    old.decide()
    new = Driver.__new__(Driver)

    def take_over() -> None:
        new.__init__(world)  # type: ignore[misc]
        new.committer.recover()

    world.tables["a"].schema = 2
    old.sinks["a"].on("refresh", take_over)
    with suppress(Crash, *LATE), crash_at("offsets.before"):
        old.committer.advance()
    assert new.committer.advance(force=True)
    world.check_exactly_once(2)
    new.launch()
    new.run_to(3)
    finish(world, 4)


def test_attempt_of_a_copied_directory_in_the_target_is_an_error() -> None:
    world = World()
    driver = Driver(world).start().run_to(1)
    copy = World()
    copy.tables = world.tables
    copy.storage.files.update(world.storage.files)
    copy.lineages = world.lineages
    Driver(copy).start().run_to(2)  # same lineage, same target, another directory
    driver.prepare()
    driver.decide()
    with pytest.raises(CommitFailedError, match="copy of the directory"):
        driver.committer.advance()
    assert driver.committer.pending_epochs() == [2]


def test_attempt_of_a_copied_directory_is_an_error_also_among_several_epochs_that_are_recovered() -> None:
    world = World()
    driver = Driver(world, LONG).start().run_to(1)
    copy = World()
    copy.tables = world.tables
    copy.storage.files.update(world.storage.files)
    copy.lineages = world.lineages
    assert driver.committer.pending_epochs() == [0, 1]
    driver.run_to(3)
    other = Driver(copy).start().run_to(2)
    assert other.stop()
    with pytest.raises(CommitFailedError, match="copy of the directory"):
        Driver(world).start()


def test_foreign_attempt_is_no_error_for_a_fenced_driver_but_its_end() -> None:
    """Kafka's and Delta's fences may be the first to tell: look at the token before concluding anything."""
    world = World()
    old = Driver(world).start().run_to(0)
    old.prepare()
    old.decide()
    old.sinks["a"].on("commit", lambda: Driver(world).start().stop() and None)
    old.sinks["a"].script(CommitOutcome.already_done(by_attempt="retired long ago"))
    with pytest.raises(FencedError):
        old.committer.advance()
    world.check_exactly_once(1)


def test_what_an_overtaken_driver_misses_in_the_middle_of_its_commit_is_no_error_but_its_end() -> None:
    """The newer driver has committed the epoch and removed what was staged for it."""
    world = World()

    class Overtaken(RecordingSink):
        def commit(self, prepared: PreparedEpoch) -> CommitOutcome:
            Driver(world).start()
            return CommitOutcome.failed("a staged file can't be read")

    old = Driver(world, sinks={"a": Overtaken(world.tables["a"], "a")}).start()
    with pytest.raises(FencedError):
        old.run_to(0)
    finish(world, 1)


def test_choices_of_two_drivers_never_contradict_each_other() -> None:
    """With epochs between checkpoints, the late metadata of a fenced driver must not outweigh the newer driver's."""
    world = World()
    old = Driver(world, LONG).start()
    old.run_to(1)
    world.clock.advance(7200)
    old.prepare()  # epoch 2 is a checkpoint of the old driver; paused before it is decided
    new = Driver(world, LONG).start()
    new.run_to(3)  # decides epoch 2 by its own attempt
    with crash_at("offsets.before"), suppress(Crash):
        new.stop()  # committed up to epoch 3, not yet noted
    with suppress(FencedError):
        old.committer.advance(force=True)  # stores its own choice for epochs 0 to 2
    finish(world, 4)


def test_choice_that_a_fenced_driver_stores_for_a_committed_epoch_is_not_believed() -> None:
    """The metadata of the epoch was dropped by then, and a record of it lands late: its rows are visible, not lost ones."""
    world = World()
    old = Driver(world).start()
    old.prepare()
    paused = Driver(world)
    paused.committer.recover()  # knows the old driver's attempt alone
    new = Driver(world, CheckpointConfig(retained=1)).start()
    new.prepare()
    late = {record.path: record.encode() for record in world.records() if record.attempt.token == new.token.value}
    new.decide()
    new.committer.advance()
    new.run_to(2)
    with pytest.raises(FencedError):
        paused.committer.advance(force=True)
    assert "lockstep/checkpoints/chk-0/_metadata" in world.storage.files
    world.storage.files.update(late)
    finish(world, 3)
    assert "lockstep/checkpoints/chk-0/_metadata" not in world.storage.files


def test_early_committed_attempt_is_not_aborted_by_a_later_start() -> None:
    """AT_LEAST_ONCE: the first attempt is visible, the second was decided; a crash before the records are retired."""
    world = World()
    config = CheckpointConfig(mode=CheckpointMode.AT_LEAST_ONCE)
    first = Driver(world, config).start().run_to(1)
    with pytest.raises(Crash), crash_at("epoch.end"):
        first.prepare()
    assert len(world.tables["a"].visible) == 3
    second = Driver(world, config).start()
    with pytest.raises(Crash), crash_at("retire.before"):
        second.epoch()
    finish(world, 3)


@pytest.mark.parametrize("names_attempts", [True, False])
def test_nothing_is_aborted_while_it_is_not_sure_which_attempt_is_visible(names_attempts: bool) -> None:
    world = World()

    def driver() -> Driver:
        sink = RecordingSink(world.tables["a"], "a", names_attempts=names_attempts)
        return Driver(world, CheckpointConfig(mode=CheckpointMode.AT_LEAST_ONCE), sinks={"a": sink})

    with pytest.raises(Crash), crash_at("epoch.end"):
        driver().start().prepare()
    driver().start().run_to(0).stop()
    world.check_exactly_once(0)
    assert world.tables["a"].aborted == []


def test_rows_of_a_record_that_may_be_stored_are_not_aborted() -> None:
    """Three drivers: the record of the second seems not to be stored, but is, and the third has chosen it."""
    world = World()
    first = Driver(world).start().run_to(0)
    first.prepare()  # paused before commits/1
    second = Driver(world).start()
    third = Driver.__new__(Driver)

    def decide_and_take_over() -> None:
        first.decide()
        third.__init__(world)  # type: ignore[misc]
        third.committer.recover()  # chooses the attempt with the highest token: the second driver's

    second.storage.fail("write", path="lockstep/prepared", after=True)
    with doing_at("record.before", lambda: None):
        original = second.storage.delete

        def delete(path: str) -> None:
            decide_and_take_over()
            original(path)

        second.storage.delete = delete  # type: ignore[method-assign]
        with pytest.raises(LockstepError):
            second.prepare()
    if not hasattr(third, "committer"):
        decide_and_take_over()
    third.committer.advance(force=True)
    world.check_exactly_once(1)


def test_driver_never_runs_an_epoch_that_another_has_decided() -> None:
    world = World()
    old = Driver(world).start().run_to(1)
    old.prepare()
    new = Driver(world).start()
    assert new.next == 2
    old.decide()  # between the start of the new query and its first epoch
    with pytest.raises(LockstepError, match="decided already"):
        new.prepare()
    assert new.stop()
    world.check_exactly_once(2)


def test_many_takeovers_in_the_middle_of_an_epoch_keep_every_row_once() -> None:
    world = World()
    drivers = [Driver(world).start()]
    for epoch in range(1, 7):
        drivers[-1].run_to(epoch - 1)
        drivers[-1].prepare()
        if epoch % 2:
            drivers[-1].decide()
        drivers.append(Driver(world).start())
        for old in drivers[:-1]:
            advance_quietly(old)
    drivers[-1].run_to(6)
    assert drivers[-1].stop()
    world.check_exactly_once(6)
    assert rows_of(6) == list(world.tables["a"].visible[-1].rows)


def test_drivers_that_start_at_the_same_moment_have_tokens_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second starts while the first has looked for the highest token and not yet taken the next."""
    world = World()
    create = MemoryStorage.create
    others: list[Driver] = []

    def create_after_another(storage: MemoryStorage, path: str, data: bytes) -> bool:
        if path.startswith("lockstep/tokens/"):
            monkeypatch.undo()
            others.append(Driver(world))
        return create(storage, path, data)

    monkeypatch.setattr(MemoryStorage, "create", create_after_another)
    first = Driver(world)
    assert {first.token.value, others[0].token.value} == {1, 2}
    assert first.start().run_to(2).stop()
    with pytest.raises(FencedError):
        others[0].start().prepare()
    finish(world, 3)


def test_epoch_that_is_retired_while_a_new_driver_looks_around_does_not_keep_it_from_starting() -> None:
    """The old driver has looked at the token before the new one took its own, and is in the middle of its last commit."""
    world = World()
    old = Driver(world).start()
    old.prepare()
    old.decide()
    new = Driver(world)
    old.committer._token = replace(old.token, value=new.token.value)
    look = new.storage.list

    def look_while_the_old_one_commits(path: str) -> list[str]:
        found = look(path)
        if path == "lockstep/checkpoints":
            new.storage.list = look  # type: ignore[method-assign]
            assert old.committer.advance()
            assert world.records() == []
        return found

    new.storage.list = look_while_the_old_one_commits  # type: ignore[method-assign]
    new.start()
    world.check_exactly_once(0)
    new.run_to(2)
    finish(world, 3)
