"""Stateful operators are participants: no epoch is prepared without all of their state, and the checkpoint names it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from lockstep.config import CheckpointConfig
from lockstep.errors import CheckpointDeclinedError, CheckpointDirectoryError, StateMigrationError
from lockstep.protocol.lineage import Lineage, continue_or_begin, read_lineage
from lockstep.testing import MemoryStorage
from unit_tests.simulation import Driver, World


@dataclass
class Totals:
    """An operator whose state has a hole at some attempts."""

    uid: str = "totals"
    holes: int = 0
    calls: list[tuple[str, int]] = field(default_factory=list)

    def begin(self, epoch: int) -> None:
        self.calls.append(("begin", epoch))

    def acknowledge(self, epoch: int) -> dict[str, Any]:
        self.calls.append(("acknowledge", epoch))
        if self.holes:
            self.holes -= 1
            raise CheckpointDeclinedError(f"epoch {epoch}: a state partition is missing")
        return {"rows_in": 3, "state": {"path": "state/0", "version": epoch + 1, "partitions": 2}}


def test_operator_is_acknowledged_after_the_sinks_have_read_the_batch_and_before_the_record() -> None:
    world = World()
    operator = Totals()
    driver = Driver(world, operators=[operator]).start()
    driver.prepare()
    assert operator.calls == [("begin", 0), ("acknowledge", 0)]
    (record,) = world.records()
    assert record.reports["totals"]["state"] == {"path": "state/0", "version": 1, "partitions": 2}


def test_completed_checkpoint_names_the_operators_state() -> None:
    world = World()
    driver = Driver(world, operators=[Totals()]).start().run_to(2)
    assert driver.store.latest is not None
    assert driver.store.latest.reports["totals"] == {
        "rows_in": 3,
        "state": {"path": "state/0", "version": 3, "partitions": 2},
    }


def test_checkpoint_of_several_epochs_adds_up_figures_and_keeps_the_last_handle() -> None:
    world = World()
    config = CheckpointConfig(interval=timedelta(seconds=10))
    driver = Driver(world, config, operators=[Totals()]).start()
    driver.run_to(0)
    first = driver.store.latest
    driver.run_to(2)
    world.clock.advance(60)
    driver.run_to(3)
    latest = driver.store.latest
    assert latest is not None
    assert latest.id == 3
    epochs = 3 - (first.id if first else -1)
    assert latest.reports["totals"] == {
        "rows_in": 3 * epochs,
        "state": {"path": "state/0", "version": 4, "partitions": 2},
    }


def test_epoch_with_a_hole_in_its_state_is_not_prepared_and_leaves_nothing_staged() -> None:
    world = World()
    driver = Driver(world, operators=[Totals(holes=1)]).start()
    with pytest.raises(CheckpointDeclinedError, match="a state partition is missing"):
        driver.prepare()
    assert world.records() == []
    assert world.tables["a"].staged == {}
    assert [entry.status for entry in driver.coordinator.statistics.history()] == ["failed"]
    assert Driver(world, operators=[Totals()]).start().run_to(2).stop()
    world.check_exactly_once(2)


def test_tolerated_failure_of_an_operator_is_run_again_in_place() -> None:
    world = World()
    operator = Totals(holes=1)
    driver = Driver(world, CheckpointConfig(tolerable_failures=1), operators=[operator]).start().run_to(1)
    assert operator.calls[:4] == [("begin", 0), ("acknowledge", 0), ("begin", 0), ("acknowledge", 0)]
    assert driver.stop()
    world.check_exactly_once(1)


# --- the directory remembers ----------------------------------------------------------------------------------------


def described(uid: str = "totals", type_: str = "bigint", **changes: Any) -> Lineage:
    description: dict[str, Any] = {
        "uid": uid,
        "key": [{"name": "account", "type": "string"}],
        "max_parallelism": 128,
        "timers": False,
        "states": {"total": {"kind": "value", "types": {"value": type_}}},
        "ticks": True,
        "position": 0,
        "backend": "hdfs",
        "placed": True,
        **changes,
    }
    return Lineage("life-1", 17, {"lake": "Delta"}, ("Kafka",), operators={uid: description})


def test_directory_of_an_operator_that_the_query_lacks_is_refused() -> None:
    storage = MemoryStorage()
    continue_or_begin(storage, described())
    with pytest.raises(CheckpointDirectoryError, match="'totals', which this query lacks: it has 'sums'"):
        continue_or_begin(storage, described("sums"))


def test_same_operators_continue() -> None:
    storage = MemoryStorage()
    continue_or_begin(storage, described())
    assert continue_or_begin(storage, described()).operators == described().operators
    assert read_lineage(storage) == described()


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"key": [{"name": "account", "type": "bigint"}]}, ["account", "string", "bigint"]),
        ({"type_": "string"}, ["total", "bigint", "string"]),
        ({"max_parallelism": 64}, ["max_parallelism", "128", "64"]),
        ({"backend": "rocksdb"}, ["hdfs", "rocksdb"]),
        ({"ticks": False}, ["on_timer"]),
        ({"position": 1}, ["changed its place"]),
    ],
)
def test_what_stored_state_depends_on_is_refused_to_change(change: dict[str, Any], names: list[str]) -> None:
    storage = MemoryStorage()
    continue_or_begin(storage, described())
    with pytest.raises(StateMigrationError) as refused:
        continue_or_begin(storage, described(**change))
    for name in ["totals", *names]:
        assert name in str(refused.value)


def test_key_groups_placed_by_an_earlier_version_are_refused_and_not_forgotten() -> None:
    storage = MemoryStorage()
    continue_or_begin(storage, described(placed=False))
    with pytest.raises(StateMigrationError, match=r"'totals': its key groups in .* earlier Lockstep.*savepoint"):
        continue_or_begin(storage, described())
