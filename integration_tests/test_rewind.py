"""Rewind: positions, state and Delta tables go back together; a replay with mended code is as if nothing had happened."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import lockstep
from integration_tests.keyed_bench import KeyedBench
from integration_tests.sessions import ONLY_THOROUGH, THOROUGH
from integration_tests.test_savepoints import OUTPUT, Total
from lockstep.engine import state_stores
from lockstep.errors import CheckpointDirectoryError, ConfigurationError
from lockstep.savepoint.rewind import plan_rewind, rewind, unfinished_rewind
from lockstep.testing import failpoints

POINTS = tuple(point for point in failpoints.SAVEPOINT_POINTS if point != "savepoint.before")


class Wrong(lockstep.KeyedProcessFunction):
    """A bug: it adds one too many."""

    total = lockstep.ValueState("bigint", default=0)

    def process_element(self, row: Any, ctx: Any) -> Iterator[tuple[str, int]]:
        self.total.update(self.total.value() + row.amount + 1)
        yield ctx.key, self.total.value()


class Bench(KeyedBench):
    def run_with(self, function: lockstep.KeyedProcessFunction, config: lockstep.CheckpointConfig | None = None) -> Any:
        stream = lockstep.key_by(self.stream(), "account")
        frame = stream.process(function, uid="totals", output=OUTPUT, max_parallelism=16)
        return self.run(frame, config)

    def back_to(self, epoch: int, **options: Any) -> None:
        rewind(self.spark, plan_rewind(self.spark, self.checkpoint, epoch), **options)


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Iterator[Bench]:
    yield Bench(spark, tmp_path)
    failpoints.clear()


def _add(bench: Bench, epochs: int) -> None:
    for number in range(epochs):
        bench.add(("a", number), ("b", 1))


def _right(epochs: int) -> list[tuple[str, int]]:
    a = [sum(range(number + 1)) for number in range(epochs)]
    return sorted([("a", total) for total in a] + [("b", number + 1) for number in range(epochs)])


@pytest.mark.parametrize("backend", lockstep.StateBackend if THOROUGH else [lockstep.StateBackend.ROCKSDB])
def test_replay_with_mended_code_gives_what_a_run_without_the_bug_gives(
    bench: Bench, backend: lockstep.StateBackend
) -> None:
    config = lockstep.CheckpointConfig(state_backend=backend)
    _add(bench, 3)
    bench.run_with(Total(), config)
    for number in range(3, 13):
        bench.add(("a", number), ("b", 1))
    bench.run_with(Wrong(), config)
    assert bench.rows() != _right(13)
    bench.back_to(2)
    assert bench.rows() == _right(3)
    assert bench.state("totals", state="total") == [("a", 3), ("b", 3)]
    bench.run_with(Total(), config)
    assert bench.rows() == _right(13)
    bench.add(("a", 13), ("b", 1))
    bench.run_with(Total(), config)
    assert bench.rows() == _right(14)


@ONLY_THOROUGH
def test_epochs_that_share_a_table_version_are_told_apart(bench: Bench) -> None:
    config = lockstep.CheckpointConfig.from_settings({"spark.lockstep.interval": "1 h"})  # all in one commit
    _add(bench, 5)
    bench.run_with(Wrong(), config)
    assert DeltaTable(bench.table).version() == 1
    bench.back_to(1)
    assert len(bench.rows()) == 4
    bench.run_with(Total())
    assert len(bench.rows()) == 10


@pytest.mark.parametrize("point", POINTS if THOROUGH else ("restore.offsets.after",))
def test_interrupted_rewind_is_finished_by_the_next_and_no_query_starts_meanwhile(bench: Bench, point: str) -> None:
    _add(bench, 3)
    bench.run_with(Total())
    failpoints.at(point, _fail)
    with pytest.raises(RuntimeError, match="interrupted"):
        bench.back_to(0)
    failpoints.clear()
    with pytest.raises(CheckpointDirectoryError, match="a rewind was interrupted"):
        bench.run_with(Total())
    plan = unfinished_rewind(bench.spark, bench.checkpoint)
    assert plan is not None
    rewind(bench.spark, plan)
    assert bench.rows() == _right(1)
    bench.run_with(Total())
    assert bench.rows() == _right(3)


def _fail() -> None:
    raise RuntimeError("interrupted")


@ONLY_THOROUGH
def test_plan_that_is_not_the_one_under_way_or_is_out_of_date_is_refused(bench: Bench) -> None:
    _add(bench, 3)
    bench.run_with(Total())
    to_zero, to_one = (plan_rewind(bench.spark, bench.checkpoint, epoch) for epoch in (0, 1))
    failpoints.at("rewind.planned", _fail)
    with pytest.raises(RuntimeError, match="interrupted"):
        rewind(bench.spark, to_zero)
    failpoints.clear()
    with pytest.raises(ConfigurationError, match="another rewind, to epoch 0, was interrupted"):
        rewind(bench.spark, to_one)
    with pytest.raises(CheckpointDirectoryError, match="a rewind was interrupted"):
        plan_rewind(bench.spark, bench.checkpoint, 1)
    with pytest.raises(CheckpointDirectoryError, match="a rewind was interrupted"):
        lockstep.create_savepoint(bench.spark, bench.checkpoint, str(bench.root / "savepoint"))
    rewind(bench.spark, to_zero)
    with pytest.raises(ConfigurationError, match="have changed since the rewind was planned"):
        rewind(bench.spark, to_one)
    assert bench.rows() == _right(1)


def test_table_that_is_not_there_or_is_another_is_refused(bench: Bench) -> None:
    _add(bench, 2)
    bench.run_with(Total())
    table = Path(bench.table)
    table.rename(bench.root / "moved")
    with pytest.raises(ConfigurationError, match="there is no Delta table at"):
        bench.back_to(0)
    write_deltalake(str(table), DeltaTable(str(bench.root / "moved")).to_pyarrow_table())
    with pytest.raises(ConfigurationError, match="it is another table"):
        bench.back_to(0)


def test_rewind_waits_for_state_stores_that_outlive_their_query(bench: Bench) -> None:
    _add(bench, 2)
    bench.run_with(Total())
    word = Path(bench.checkpoint) / state_stores.PATH
    assert int(word.read_text()) > Path(bench.checkpoint, "commits/1").stat().st_mtime * 1000
    until = 0.0
    reached: dict[str, float] = {}

    def look(point: str) -> None:
        nonlocal until
        reached[point] = time.time()
        if point == "rewind.table.after":
            until = time.time() + 12
            word.write_text(str(int(until * 1000)))

    failpoints.watch(look)
    bench.back_to(0)
    assert reached["restore.state.after"] > until > 0


def test_new_lineage_takes_nothing_for_state_that_spark_wrote_late(bench: Bench) -> None:
    stray = Path(bench.checkpoint) / "state/0/0/9.zip"
    stray.parent.mkdir(parents=True)
    stray.write_text("of another life")
    _add(bench, 1)
    bench.run_with(Total())
    assert bench.rows() == _right(1)
    assert not stray.exists()


def test_commits_of_others_are_undone_only_when_asked(bench: Bench) -> None:
    _add(bench, 2)
    bench.run_with(Total())
    foreign = DeltaTable(bench.table).to_pyarrow_table().slice(0, 1)
    write_deltalake(bench.table, foreign, mode="append")
    version = DeltaTable(bench.table).version()
    with pytest.raises(ConfigurationError, match=rf"others have changed the tables .* version {version} \(WRITE\)"):
        bench.back_to(0)
    assert DeltaTable(bench.table).version() == version
    bench.back_to(0, undo_others=True)
    assert bench.rows() == _right(1)


@ONLY_THOROUGH
def test_compaction_of_the_table_is_no_obstacle(bench: Bench) -> None:
    _add(bench, 4)
    bench.run_with(Total())
    DeltaTable(bench.table).optimize.compact()
    bench.back_to(1)
    assert bench.rows() == _right(2)


def test_table_whose_files_are_gone_is_refused(bench: Bench) -> None:
    _add(bench, 3)
    bench.run_with(Total())
    table = DeltaTable(bench.table)
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    rows = bench.rows()
    with pytest.raises(ConfigurationError, match=r"data files of version \d+ are gone.*VACUUM"):
        bench.back_to(0)
    assert bench.rows() == rows
    assert not (Path(bench.checkpoint) / "lockstep" / "rewind").exists()


def test_epochs_that_are_not_there_are_refused(bench: Bench) -> None:
    _add(bench, 2)
    bench.run_with(Total())
    with pytest.raises(ConfigurationError, match="is at epoch 1: there is nothing to take back"):
        bench.back_to(1)
    with pytest.raises(ConfigurationError, match=r"epoch 9 .* is not committed"):
        bench.back_to(9)
    (Path(bench.checkpoint) / "offsets" / "0").unlink()
    with pytest.raises(ConfigurationError, match="Spark does not keep epoch 0"):
        bench.back_to(0)
