"""What earlier drivers staged and never prepared is removed at start; nothing else is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lockstep.config import CheckpointConfig
from lockstep.errors import LockstepError
from lockstep.testing import RecordingSink, staged_but_invisible
from unit_tests.simulation import Crash, Driver, World, crash_at


class Cleaning(RecordingSink):
    """Remembers what it was told about the attempts that are staged."""

    strays: list[str]

    def clean_up(self, is_stray: Callable[[str], bool]) -> None:
        self.strays = [attempt for attempt in self.table.staged if is_stray(attempt)]
        for attempt in self.strays:
            del self.table.staged[attempt]


def start(world: World, config: CheckpointConfig | None = None) -> tuple[Driver, Cleaning]:
    sink = Cleaning(world.tables["a"], "a")
    return Driver(world, config, sinks={"a": sink}), sink


@pytest.mark.parametrize("point, stray", [("record.before", True), ("record.after", False)])
def test_rows_are_removed_when_their_driver_died_before_its_record_and_kept_after(point: str, stray: bool) -> None:
    """As soon as their epoch is decided by another attempt: before, the original of a copied directory may own them."""
    world = World()
    driver, _ = start(world)
    driver.start().run_to(1)
    with pytest.raises(Crash), crash_at(point):
        driver.prepare()
    (staged,) = staged_but_invisible(world.tables.values())
    again, sink = start(world)
    again.start()
    assert staged not in sink.strays
    with pytest.raises(Crash), crash_at("sink.commit.before"):
        again.run_to(3)
    last, sink = start(world)
    last.start()
    assert (staged in sink.strays) is stray
    last.run_to(3)
    world.check_exactly_once(3)


def test_rows_of_a_record_that_lands_late_are_kept_until_another_attempt_is_chosen() -> None:
    """The second driver's record seems not to be stored. The third finds the epoch decided by the first, cleans up, dies."""
    world = World()
    first, _ = start(world)
    first.start().prepare()  # paused before Spark's decision
    second, _ = start(world)
    second.start()
    late: list[tuple[str, bytes]] = []

    def fail(path: str, data: bytes) -> None:
        late.append((path, data))
        raise OSError("timed out")

    second.storage.write = fail  # type: ignore[method-assign]
    with pytest.raises(LockstepError):
        second.prepare()
    first.decide()
    third, _ = start(world)
    with pytest.raises(Crash), crash_at("metadata.before"):
        third.start()
    world.storage.write(*late[0])
    fourth, _ = start(world)
    assert fourth.start().run_to(1).stop()
    world.check_exactly_once(1)


def test_rows_of_an_overtaken_driver_are_removed_when_nobody_knows_any_more_what_was_chosen() -> None:
    """It was paused before its record; when it goes on, the checkpoint of the epoch is not among the retained ones."""
    world, retained = World(), CheckpointConfig(retained=1)
    first, _ = start(world, retained)
    first.start().run_to(1)
    late: list[tuple[str, bytes]] = []
    first.storage.write = lambda *record: late.append(record)  # type: ignore[method-assign]
    first.prepare()
    (staged,) = staged_but_invisible(world.tables.values())
    second, _ = start(world, retained)
    assert second.start().run_to(5).stop()
    world.storage.write(*late[0])
    third, sink = start(world, retained)
    third.start()
    assert staged in sink.strays
    assert world.records() == []
    world.check_exactly_once(5)


def test_rows_of_newer_drivers_and_of_unknown_names_are_left_alone() -> None:
    world = World()
    driver, sink = start(world)
    world.tables["a"].staged.update({"0-99-new": [1], "odd name": [2], "": [3], "0-x-y": [4]})
    driver.start()
    assert sink.strays == []


def test_sink_that_cannot_clean_up_does_not_hold_up_the_start(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    driver, sink = start(world)

    def fail(is_stray: Callable[[str], bool]) -> None:
        raise OSError("the directory can't be listed")

    sink.clean_up = fail  # type: ignore[method-assign]
    driver.start().run_to(0)
    world.check_exactly_once(0)
    assert "could not clean up" in caplog.text
