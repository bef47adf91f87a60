"""State as data: savepoints read as DataFrames, changed, and made from nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lockstep
from integration_tests.test_savepoints import Bench, Total
from lockstep.errors import ConfigurationError, StateMigrationError


class Load(lockstep.KeyedProcessFunction):
    """Takes a total as it is."""

    total = lockstep.ValueState("bigint", default=0)

    def process_element(self, row: Any, ctx: Any) -> Iterator[Any]:
        self.total.update(row.total)
        return iter(())


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Bench:
    return Bench(spark, tmp_path)


def test_state_of_a_job_begins_with_a_batch_table(bench: Bench, tmp_path: Path) -> None:
    table = bench.spark.createDataFrame([(f"account-{n}", n) for n in range(100)], "account string, total bigint")
    writer = lockstep.SavepointWriter.new(bench.spark)
    made = writer.with_operator("totals", table, key=["account"], function=Load(), max_parallelism=16).write(
        str(tmp_path / "made")
    )
    assert made.operators["totals"].contents.groups == 16
    bench.add(("account-7", 1), ("new", 5))
    bench.restore(str(tmp_path / "made"), bench.totals())
    assert bench.rows() == [("account-7", 8), ("new", 5)]


def test_poisoned_key_is_mended_and_everything_else_stays(bench: Bench, tmp_path: Path) -> None:
    bench.add(("a", 1), ("b", 2), ("poisoned", 666))
    bench.run(bench.totals())
    path = bench.savepoint()
    before = lockstep.read_state(bench.spark, path, "totals", state="total")
    assert sorted(map(tuple, before.collect())) == [("a", 1), ("b", 2), ("poisoned", 666)]
    mended = before.where("account = 'poisoned'").selectExpr("account", "0L as total")
    writer = lockstep.SavepointWriter.from_existing(bench.spark, path)
    writer.with_operator("totals", mended, key=["account"], function=Load()).write(str(tmp_path / "mended"))
    bench.add(("a", 1), ("poisoned", 1))
    bench.move()
    bench.restore(str(tmp_path / "mended"), bench.totals())
    assert bench.rows()[-2:] == [("poisoned", 1), ("poisoned", 666)]
    assert ("a", 2) in bench.rows()  # read on from where the savepoint was


class Fading(lockstep.KeyedProcessFunction):
    """State that lives for an hour, and a timer that is past."""

    total = lockstep.ValueState("bigint", default=0, ttl=lockstep.Ttl(timedelta(hours=1)))

    def process_element(self, row: Any, ctx: Any) -> Iterator[tuple[str, int]]:
        self.total.update(self.total.value() + row.total)
        ctx.register_processing_time_timer(ctx.processing_time - 1)
        yield ctx.key, self.total.value()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[str, int]]:
        yield f"{ctx.key} rang", self.total.value()


def test_state_with_a_ttl_begins_its_life_now_and_timers_are_left_to_the_query(bench: Bench, tmp_path: Path) -> None:
    table = bench.spark.createDataFrame([("a", 7)], "account string, total bigint")
    writer = lockstep.SavepointWriter.new(bench.spark)
    writer.with_operator("totals", table, key=["account"], function=Fading()).write(str(tmp_path / "made"))
    bench.add(("b", 1))
    stream = bench.stream().selectExpr("account", "amount as total")
    query = lockstep.key_by(stream, "account").process(Fading(), uid="totals", output="account string, total bigint")
    bench.restore(str(tmp_path / "made"), query)
    assert bench.rows() == [("a rang", 7), ("b", 1), ("b rang", 1)]


def test_state_is_replaced_or_removed_as_a_whole(bench: Bench, tmp_path: Path) -> None:
    bench.add(("a", 1), ("b", 2))
    bench.run(bench.totals())
    path = bench.savepoint()
    only = bench.spark.createDataFrame([("c", 3)], "account string, total bigint")
    writer = lockstep.SavepointWriter.from_existing(bench.spark, path)
    replaced = str(tmp_path / "replaced")
    writer.with_operator("totals", only, key=["account"], function=Load(), replace=True).write(replaced)
    assert [tuple(row) for row in lockstep.read_state(bench.spark, replaced, "totals", state="total").collect()] == [
        ("c", 3)
    ]
    writer = lockstep.SavepointWriter.from_existing(bench.spark, path)
    assert writer.remove_operator("totals").write(str(tmp_path / "removed")).operators == {}


def test_changes_that_make_no_sense_are_refused_before_anything_is_written(bench: Bench, tmp_path: Path) -> None:
    bench.add(("a", 1))
    bench.run(bench.totals())
    path = bench.savepoint()
    rows = bench.spark.createDataFrame([("a", 1)], "account string, total bigint")
    writer = lockstep.SavepointWriter.from_existing(bench.spark, path)
    with pytest.raises(ConfigurationError, match="there is no operator 'other'; there is: totals"):
        writer.remove_operator("other")
    with pytest.raises(ConfigurationError, match=r"key=\['nothing'\] are no columns"):
        writer.with_operator("totals", rows, key=["nothing"], function=Load())
    with pytest.raises(StateMigrationError, match="max_parallelism"):
        writer.with_operator("totals", rows, key=["account"], function=Load(), max_parallelism=32)
    with pytest.raises(ConfigurationError, match="this DataFrame is a stream"):
        writer.with_operator("totals", bench.stream(), key=["account"], function=Total())
    with pytest.raises(ConfigurationError, match="is a savepoint"):
        writer.write(path)
