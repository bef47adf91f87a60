"""Every type that Spark has for rows reaches a function, its state and the output exactly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import lockstep
from lockstep import KeyedProcessFunction, ValueState
from lockstep.errors import ConfigurationError

ZONE = "spark.sql.session.timeZone"
COLUMNS = {
    "id": "bigint",
    "bool": "boolean",
    "byte": "tinyint",
    "short": "smallint",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "decimal": "decimal(38,10)",
    "string": "string",
    "binary": "binary",
    "date": "date",
    "instant": "timestamp",
    "wall": "timestamp_ntz",
    "a list": "array<int>",
    "dot.ted": "map<string,timestamp>",
    "back`tick": "struct<count:bigint,inner:array<struct<x:double,y:decimal(5,2)>>>",
}
VALUES = """
 (1, true, 127Y, 32767S, 2147483647, 9223372036854775807, float('0.1'), double('0.1'),
  1234567890123456789012345678.0123456789,
  'köln', X'00FF', DATE'9999-12-31', TIMESTAMP'2025-10-26 00:30:00.123456Z', TIMESTAMP_NTZ'2025-10-26 02:30:00.000001',
  array(1, null, 3), map('a', TIMESTAMP'2025-10-26 01:30:00Z', 'b', null),
  named_struct('count', 9007199254740993L, 'inner', array(named_struct('x', double('NaN'), 'y', 1.50), null))),
 (2, false, -128Y, -32768S, -2147483648, -9223372036854775808, float('NaN'), double('NaN'), -0.0000000001,
  '', X'', DATE'0001-01-01', TIMESTAMP'2025-10-26 01:30:00Z', TIMESTAMP_NTZ'0001-01-01 00:00:00',
  array(), map(), named_struct('count', null, 'inner', null)),
 (3, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null),
 (4, true, 0Y, 0S, 0, 9007199254740993, float('-Infinity'), double('-0.0'), 0, 'a\\\\n"b', X'22', DATE'1969-12-31',
  TIMESTAMP'1969-12-31 23:59:59.999999Z', TIMESTAMP_NTZ'9999-12-31 23:59:59.999999',
  array(null), map('', TIMESTAMP'1960-01-01 00:00:00.000001Z'), named_struct('count', 0L, 'inner', array()))
"""


def ddl() -> str:
    return ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind in COLUMNS.items())


class Echo(KeyedProcessFunction):
    """Gives back each row as it came, and with it what was kept of the one before."""

    kept = ValueState(ddl())

    def process_element(self, row: Any, ctx: Any) -> Iterator[Any]:
        before = self.kept.value()
        self.kept.update(row)
        yield row
        if before is not None:
            yield before


class EchoBatch(KeyedProcessFunction):
    def process_batch(self, batch: Any, ctx: Any) -> Iterator[Any]:
        yield batch


@pytest.fixture
def berlin(spark: SparkSession) -> Iterator[SparkSession]:
    """A time zone in which one hour of these rows comes twice."""
    before = spark.conf.get(ZONE)
    spark.conf.set(ZONE, "Europe/Berlin")
    yield spark
    spark.conf.set(ZONE, before)


def source(spark: SparkSession, directory: Path) -> DataFrame:
    """The rows twice, in two files: two epochs."""
    names = ", ".join(f"`{name.replace('`', '``')}`" for name in COLUMNS)
    casts = [f"cast(`{n.replace('`', '``')}` as {k}) as `{n.replace('`', '``')}`" for n, k in COLUMNS.items()]
    rows = spark.sql(f"select {', '.join(casts)} from values {VALUES} as t({names})").coalesce(1)
    for _ in range(2):
        rows.write.mode("append").parquet(str(directory))
    return rows


def echoed(spark: SparkSession, directory: Path, function: KeyedProcessFunction, schema: Any) -> list[Any]:
    seen: list[Any] = []
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(directory / "input"))
    frame = lockstep.key_by(stream, "id").process(function, uid="echo", output=ddl())
    assert frame.schema.simpleString() == schema.simpleString()
    query = (
        frame.writeStream.foreachBatch(lambda batch, epoch: seen.extend(batch.collect()))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return seen


def test_rows_state_and_output_are_exact(berlin: SparkSession, tmp_path: Path) -> None:
    rows = source(berlin, tmp_path / "input")
    expected = rows.collect()
    seen = echoed(berlin, tmp_path, Echo(), rows.schema)
    assert len(seen) == 3 * len(expected), "each row, each row again, and each as it was kept"
    for row in expected:
        assert [repr(other) for other in seen if other.id == row.id] == [repr(row)] * 3
    kept = lockstep.read_state(berlin, str(tmp_path / "checkpoint"), "echo", state="kept")
    assert sorted(map(repr, kept.select("value.*").collect())) == sorted(map(repr, expected))


def test_batches_carry_nulls_and_instants_too(berlin: SparkSession, tmp_path: Path) -> None:
    rows = source(berlin, tmp_path / "input")
    seen = echoed(berlin, tmp_path, EchoBatch(), rows.schema)
    expected = [repr(row) for row in rows.collect()]
    assert sorted(map(repr, seen)) == sorted(expected * 2)


def test_type_that_can_not_travel_is_refused_by_column(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("value", "interval 1 day as `gap`")
    with pytest.raises(ConfigurationError, match=r"column 'gap': type interval day .*Cast it"):
        lockstep.key_by(stream, "value")


def test_key_that_may_differ_in_its_bytes_is_refused(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("cast(value as double) as value")
    with pytest.raises(ConfigurationError, match=r"key_by\('value'\).*Cast it to string"):
        lockstep.key_by(stream, "value")
    with pytest.raises(ConfigurationError, match=r"key_by\('account'\): no such column. There are: value"):
        lockstep.key_by(stream, "account")
