"""What DeltaSink promises, on real Delta tables, call by call as the committer makes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from deltalake import DeltaTable as OutsideReader
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lockstep.errors import CheckpointDirectoryError, ConfigurationError, SchemaMismatchError
from lockstep.sinks import Attempt, CommitStatus, DeltaSink, PreparedEpoch, SinkContext
from lockstep.testing import failpoints

LINEAGE = "6f0f3e1c-0000-4000-8000-000000000001"


class Harness:
    """Plays the coordinator for one sink."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.spark = spark
        self.path = path
        self.highest = 1000

    def open(
        self, rows: DataFrame, sink: DeltaSink | None = None, uid: str = "lake", mode: str = "append"
    ) -> DeltaSink:
        sink = sink or DeltaSink(self.path)
        sink.open(SinkContext(self.spark, uid, LINEAGE, rows.schema, mode, None, lambda: self.highest))
        return sink

    def stage(self, sink: DeltaSink, epoch: int, rows: DataFrame, attempt_id: str | None = None) -> PreparedEpoch:
        attempt = Attempt(epoch, attempt_id or f"{epoch}-1-a", LINEAGE, 1)
        handle = sink.begin(attempt)
        sink.write(handle, rows)
        handle = json.loads(json.dumps(sink.pre_commit(handle)))  # through the prepare record
        return PreparedEpoch(attempt, handle, 0)

    def commit(self, sink: DeltaSink, *prepared: PreparedEpoch) -> Any:
        """As the committer does: refresh, commit, and come back while the sink says RETRY."""
        for _ in range(3):
            fresh = []
            for one in prepared:
                handle = sink.refresh(one)
                fresh.append(one if handle is None else PreparedEpoch(one.attempt, handle, 0))
            outcome = sink.commit_many(fresh)
            if outcome.status is not CommitStatus.RETRY:
                return outcome
        return outcome

    def ids(self) -> list[int]:
        """What an outside reader sees."""
        return sorted(OutsideReader(self.path).to_pyarrow_table(columns=["id"])["id"].to_pylist())

    def replace_table(self, columns: str, *partition_by: str) -> None:
        """Somebody replaces the table by an empty one."""
        writer = self.spark.createDataFrame([], columns).write.format("delta").mode("overwrite")
        writer.option("overwriteSchema", "true").partitionBy(*partition_by).save(self.path)

    def sql(self, statement: str) -> DataFrame:
        return self.spark.sql(statement.replace("TABLE_", f"delta.`{self.path}`"))


@pytest.fixture
def harness(spark: SparkSession, tmp_path: Path) -> Harness:
    return Harness(spark, str(tmp_path / "table"))


@pytest.fixture
def rows(spark: SparkSession) -> Callable[..., DataFrame]:
    def make(first: int, last: int) -> DataFrame:
        return spark.range(first, last).select("id", F.concat(F.lit("n"), F.col("id")).alias("name"))

    return make


def test_staged_epoch_is_invisible_until_commit_and_then_whole(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1))
    prepared = harness.stage(sink, 0, rows(0, 10))
    assert harness.ids() == []
    assert list(Path(harness.path).glob("*.parquet")), "the rows are staged in the table's directory"
    assert harness.commit(sink, prepared).status is CommitStatus.DONE
    assert harness.ids() == list(range(10))


def test_commit_is_idempotent_also_from_another_process(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1))
    prepared = harness.stage(sink, 0, rows(0, 10))
    harness.commit(sink, prepared)
    again = harness.open(rows(0, 1))  # a sink that knows nothing but the handle
    outcome = harness.commit(again, prepared)
    assert outcome.status is CommitStatus.ALREADY_DONE
    assert outcome.by_attempt == prepared.attempt.id
    assert harness.ids() == list(range(10))


def test_several_epochs_become_one_table_version_and_done_ones_are_left_out(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1))
    first, second, third = (harness.stage(sink, n, rows(n * 10, n * 10 + 10)) for n in range(3))
    harness.commit(sink, first)
    before = OutsideReader(harness.path).version()
    outcome = harness.commit(sink, first, second, third)
    assert OutsideReader(harness.path).version() == before + 1
    assert outcome.details["rows"] == 20
    assert harness.ids() == list(range(30))


def test_commits_after_the_first_run_no_spark_job(harness: Harness, rows: Any) -> None:
    """Delta's own way to ask for an application transaction works out the whole table's state each time."""
    sink = harness.open(rows(0, 1))
    harness.commit(sink, harness.stage(sink, 0, rows(0, 10)))
    prepared = [harness.stage(sink, epoch, rows(10 * epoch, 10 * epoch + 10)) for epoch in (1, 2)]
    context = harness.spark.sparkContext
    context.setJobGroup("commits", "of two epochs")
    try:
        for one in prepared:
            assert harness.commit(sink, one).status is CommitStatus.DONE
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
    assert list(context.statusTracker().getJobIdsForGroup("commits")) == []
    assert harness.ids() == list(range(30))


def test_what_another_driver_has_committed_since_is_found_in_the_log(harness: Harness, rows: Any) -> None:
    old, new = harness.open(rows(0, 1)), harness.open(rows(0, 1))
    harness.commit(old, harness.stage(old, 0, rows(0, 10)))
    harness.sql("OPTIMIZE TABLE_")
    harness.commit(new, harness.stage(new, 1, rows(10, 20), "1-2-new"))
    outcome = harness.commit(old, harness.stage(old, 1, rows(10, 20), "1-1-old"))
    assert (outcome.status, outcome.by_attempt) == (CommitStatus.ALREADY_DONE, "1-2-new")
    assert harness.ids() == list(range(20))


def test_driver_that_is_overtaken_in_the_middle_of_its_commit_is_refused_by_delta(harness: Harness, rows: Any) -> None:
    old, new = harness.open(rows(0, 1)), harness.open(rows(0, 1))
    harness.commit(old, harness.stage(old, 0, rows(0, 10)))
    theirs, ours = harness.stage(old, 1, rows(10, 20), "1-1-old"), harness.stage(new, 1, rows(10, 20), "1-2-new")
    failpoints.at("delta.commit.before", lambda: failpoints.clear() or harness.commit(new, ours))
    try:
        with pytest.raises(Exception, match="ConcurrentTransactionException"):
            old.commit_many([theirs])
    finally:
        failpoints.clear()
    assert harness.ids() == list(range(20))


@pytest.mark.parametrize("properties, expected", [({}, []), ({"delta.checkpointInterval": "3"}, [2, 5, 8, 11])])
def test_table_checkpoints_are_written_beside_the_commits_and_as_often_as_the_table_says(
    harness: Harness, rows: Any, properties: dict[str, str], expected: list[int]
) -> None:
    """Delta by itself would write one with version 10, or with every version that can be divided by three."""
    sink = harness.open(rows(0, 1), DeltaSink(harness.path, properties=properties))
    for epoch in range(12):
        harness.commit(sink, harness.stage(sink, epoch, rows(epoch, epoch + 1)))
        sink.close()  # waits for it
    found = Path(harness.path, "_delta_log").glob("[0-9]*.checkpoint.*")
    assert sorted(int(file.name.partition(".")[0]) for file in found) == expected
    assert harness.ids() == list(range(12))


def test_empty_epoch_leaves_no_version_behind(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1))
    before = OutsideReader(harness.path).version()
    assert harness.commit(sink, harness.stage(sink, 0, rows(0, 0))).status is CommitStatus.DONE
    assert OutsideReader(harness.path).version() == before


def test_table_history_shows_metrics_and_epochs(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1))
    harness.commit(sink, harness.stage(sink, 0, rows(0, 10)))
    last = DeltaTable.forPath(harness.spark, harness.path).history(1).first()
    assert last is not None
    assert last["operation"] == "STREAMING UPDATE"
    assert last["operationMetrics"]["numOutputRows"] == "10"
    assert int(last["operationMetrics"]["numOutputBytes"]) > 0
    assert json.loads(last["userMetadata"])["lockstep"]["epochs"] == [0]


def test_abort_removes_staged_files_and_never_visible_ones(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1))
    kept, lost = harness.stage(sink, 0, rows(0, 10), "0-1-kept"), harness.stage(sink, 0, rows(0, 10), "0-1-lost")
    harness.commit(sink, kept)
    sink.abort(kept.attempt, kept.handle)  # would be a disaster
    sink.abort(lost.attempt, lost.handle)
    sink.abort(lost.attempt, lost.handle)
    assert harness.ids() == list(range(10))
    left = {f.name for f in Path(harness.path).glob("*.parquet")}
    assert left == {json.loads(a)["add"]["path"] for a in kept.handle["actions"]}


def test_new_table_gets_partitioning_and_properties(harness: Harness, rows: Any) -> None:
    given = rows(0, 4).withColumn("day", F.lit("2026-01-01").cast("date"))
    sink = DeltaSink(harness.path, partition_by=["day"], properties={"delta.appendOnly": "true"})
    harness.open(given, sink)
    harness.commit(sink, harness.stage(sink, 0, given))
    table = OutsideReader(harness.path)
    assert table.metadata().partition_columns == ["day"]
    assert table.metadata().configuration["delta.appendOnly"] == "true"
    assert harness.ids() == [0, 1, 2, 3]
    with pytest.raises(ConfigurationError, match="partition_by"):
        harness.open(given, DeltaSink(harness.path, partition_by=["name"]))


def test_catalog_table_is_created_and_filled(spark: SparkSession, rows: Any) -> None:
    spark.sql("DROP TABLE IF EXISTS orders_by_name")
    harness = Harness(spark, "")
    sink = harness.open(rows(0, 1), DeltaSink(table="orders_by_name"))
    harness.commit(sink, harness.stage(sink, 0, rows(0, 5)))
    assert spark.table("orders_by_name").count() == 5
    spark.sql("DROP TABLE orders_by_name")


def test_rows_are_cast_to_the_table_and_values_that_do_not_fit_fail_the_write(harness: Harness, rows: Any) -> None:
    harness.sql("CREATE TABLE TABLE_ (id INT, name VARCHAR(3)) USING delta")
    sink = harness.open(rows(0, 1))
    harness.commit(sink, harness.stage(sink, 0, rows(0, 10)))
    assert harness.ids() == list(range(10))
    assert harness.spark.read.format("delta").load(harness.path).schema["id"].dataType.simpleString() == "int"
    with pytest.raises(Exception, match="column id"):
        harness.stage(sink, 1, harness.spark.range(2**40, 2**40 + 1).select("id", F.lit("x").alias("name")))
    with pytest.raises(Exception, match="name takes 3 characters"):
        harness.stage(sink, 1, rows(1000, 1001))
    assert harness.ids() == list(range(10))


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("id BIGINT", "'name' is not in the table"),
        ("id BIGINT, name DATE", "'name' is string in the rows and date in the table"),
        ("id BIGINT, name STRING, must BIGINT NOT NULL", "'must' is NOT NULL"),
        ("id STRUCT<a: INT>, name STRING", "'id' is bigint in the rows and struct<a:int>"),
        ("id TIMESTAMP, name STRING", "'id' is bigint in the rows and timestamp"),
        ("id BIGINT, name ARRAY<VARCHAR(3)>", "CHAR or VARCHAR inside of array<varchar(3)>"),
    ],
)
def test_table_that_cannot_take_the_rows_is_refused_at_start(
    harness: Harness, rows: Any, table: str, problem: str
) -> None:
    harness.sql(f"CREATE TABLE TABLE_ ({table}) USING delta")
    with pytest.raises(SchemaMismatchError) as refused:
        harness.open(rows(0, 1))
    assert problem in str(refused.value)
    assert "cast" in str(refused.value)


def test_structs_go_by_the_names_of_their_fields(harness: Harness, rows: Any) -> None:
    place = rows(0, 3).select("id", F.struct(F.lit(1.5).alias("lon"), F.lit(2.5).alias("lat")).alias("place"))
    harness.sql("CREATE TABLE TABLE_ (id BIGINT, place STRUCT<lat: DOUBLE, lon: DOUBLE>) USING delta")
    with pytest.raises(SchemaMismatchError, match="'place' is struct<lon:double,lat:double> in the rows"):
        harness.open(place)


def test_values_inside_of_structs_and_arrays_are_widened(harness: Harness, rows: Any) -> None:
    deep = rows(0, 3).select("id", F.struct(F.lit(1).alias("n"), F.array(F.lit(2)).alias("a")).alias("s"))
    harness.sql("CREATE TABLE TABLE_ (id BIGINT, s STRUCT<n: BIGINT, a: ARRAY<BIGINT>>) USING delta")
    sink = harness.open(deep)
    harness.commit(sink, harness.stage(sink, 0, deep))
    assert OutsideReader(harness.path).to_pyarrow_table()["s"].to_pylist() == [{"n": 1, "a": [2]}] * 3


def test_columns_with_odd_names_and_not_null_literals_are_stored(harness: Harness, rows: Any) -> None:
    odd = rows(0, 2).select("id", F.lit(1).alias("a.b"), F.lit("x").alias("c`d"))
    properties = {"delta.columnMapping.mode": "name"}
    sink = harness.open(odd, DeltaSink(harness.path, properties=properties))
    harness.commit(sink, harness.stage(sink, 0, odd))
    seen = harness.spark.read.format("delta").load(harness.path)
    assert sorted(tuple(row) for row in seen.collect()) == [(0, 1, "x"), (1, 1, "x")]
    assert all(field.nullable for field in seen.schema.fields), "a literal must not make a NOT NULL column"


@pytest.mark.parametrize("table", ["(id BIGINT NOT NULL)", "(id BIGINT) PARTITIONED BY (id)"])
def test_new_columns_are_added_when_asked_for(harness: Harness, rows: Any, table: str) -> None:
    columns, _, partitioned = table.partition(" PARTITIONED")
    columns = columns if not partitioned else "(id BIGINT, other STRING)"
    harness.sql(f"CREATE TABLE TABLE_ {columns} USING delta{' PARTITIONED' + partitioned if partitioned else ''}")
    sink = harness.open(rows(0, 1), DeltaSink(harness.path, merge_schema=True))
    harness.commit(sink, harness.stage(sink, 0, rows(0, 2)))
    assert OutsideReader(harness.path).to_pyarrow_table()["name"].to_pylist() == ["n0", "n1"]


def test_identity_columns_are_refused(harness: Harness, rows: Any) -> None:
    from delta.tables import IdentityGenerator

    builder = (
        DeltaTable.create(harness.spark).location(harness.path).addColumn("id", "BIGINT").addColumn("name", "STRING")
    )
    builder.addColumn("n", "BIGINT", generatedByDefaultAs=IdentityGenerator()).execute()
    with pytest.raises(SchemaMismatchError, match="identity"):
        harness.open(rows(0, 1))


def test_generated_columns_and_constraints_are_honoured(harness: Harness, rows: Any) -> None:
    builder = DeltaTable.create(harness.spark).location(harness.path).addColumn("id", "BIGINT", nullable=False)
    builder.addColumn("name", "STRING").addColumn("double", "BIGINT", generatedAlwaysAs="id * 2").execute()
    harness.sql("ALTER TABLE TABLE_ ADD CONSTRAINT small CHECK (id < 100)")
    sink = harness.open(rows(0, 1))
    harness.commit(sink, harness.stage(sink, 0, rows(0, 3)))
    assert sorted(OutsideReader(harness.path).to_pyarrow_table()["double"].to_pylist()) == [0, 2, 4]
    with pytest.raises(Exception, match=r"(?i)constraint"):
        harness.stage(sink, 1, rows(99, 101))


def test_column_added_between_staging_and_commit_stages_the_epoch_again(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1))
    prepared = harness.stage(sink, 0, rows(0, 10))
    harness.sql("ALTER TABLE TABLE_ ADD COLUMNS (extra STRING)")
    assert harness.commit(sink, prepared).status is CommitStatus.DONE
    assert harness.ids() == list(range(10))
    assert harness.spark.read.format("delta").load(harness.path).where("name is null").count() == 0


def test_change_made_by_another_driver_is_found_at_commit(harness: Harness, rows: Any) -> None:
    """The sink's own JVM has not seen the change yet: the commit itself must notice."""
    from deltalake import Field
    from deltalake.schema import PrimitiveType

    sink = harness.open(rows(0, 1))
    prepared = harness.stage(sink, 0, rows(0, 10))
    OutsideReader(harness.path).alter.add_columns([Field("extra", PrimitiveType("string"))])
    assert sink.refresh(prepared) is None, "this test is about the look at commit time"
    assert sink.commit(prepared).status is CommitStatus.RETRY
    assert harness.commit(sink, prepared).status is CommitStatus.DONE
    assert harness.ids() == list(range(10))


def test_constraint_added_between_staging_and_commit_is_not_bypassed(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1))
    good, bad = harness.stage(sink, 0, rows(0, 10)), harness.stage(sink, 1, rows(100, 110))
    harness.sql("ALTER TABLE TABLE_ ADD CONSTRAINT small CHECK (id < 100)")
    assert harness.commit(sink, good).status is CommitStatus.DONE
    with pytest.raises(Exception, match=r"(?i)constraint"):
        harness.commit(sink, bad)
    assert harness.ids() == list(range(10))
    harness.sql("ALTER TABLE TABLE_ DROP CONSTRAINT small")  # a person mends the table: the epoch is not wedged
    assert harness.commit(sink, bad).status is CommitStatus.DONE
    assert harness.ids() == [*range(10), *range(100, 110)]


def test_type_that_no_longer_fits_is_an_error_that_says_so(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1))
    prepared = harness.stage(sink, 0, rows(0, 10))
    harness.replace_table("id DATE, name STRING")
    with pytest.raises(SchemaMismatchError, match="staged before"):
        harness.commit(sink, prepared)


@pytest.mark.parametrize("partitioned_before", [False, True])
def test_partitioning_changed_between_staging_and_commit_stages_again(
    harness: Harness, rows: Any, partitioned_before: bool
) -> None:
    given = rows(0, 10).withColumn(
        "part", F.when(F.col("id") > 7, None).otherwise(F.concat(F.lit("a b/"), F.col("id") % 3))
    )
    columns = "id BIGINT, name STRING, part STRING"
    harness.replace_table(columns, *(["part"] if partitioned_before else []))
    sink = harness.open(given)
    prepared = harness.stage(sink, 0, given)
    harness.replace_table(columns, *([] if partitioned_before else ["part"]))
    assert harness.commit(sink, prepared).status is CommitStatus.DONE
    seen = harness.spark.read.format("delta").load(harness.path)
    assert seen.exceptAll(given.select(seen.columns)).count() == 0
    assert seen.count() == 10


def test_column_mapping_enabled_between_staging_and_commit_stages_again(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1))
    prepared = harness.stage(sink, 0, rows(0, 10))
    harness.sql(
        "ALTER TABLE TABLE_ SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name', "
        "'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5')"
    )
    harness.sql("ALTER TABLE TABLE_ RENAME COLUMN name TO title")
    harness.sql("ALTER TABLE TABLE_ RENAME COLUMN title TO name")
    second = harness.stage(sink, 1, rows(10, 20))
    assert harness.commit(sink, prepared, second).status is CommitStatus.DONE
    assert harness.spark.read.format("delta").load(harness.path).where("name = concat('n', id)").count() == 20


def test_staged_again_on_a_table_with_column_mapping_keeps_nested_values(harness: Harness, rows: Any) -> None:
    deep = rows(0, 5).select(
        "id", "name", F.struct(F.col("id").alias("n"), F.array(F.struct(F.lit("x").alias("y"))).alias("a")).alias("s")
    )
    sink = harness.open(deep, DeltaSink(harness.path, properties={"delta.columnMapping.mode": "name"}))
    prepared = harness.stage(sink, 0, deep)
    harness.sql("ALTER TABLE TABLE_ ADD COLUMNS (extra STRING)")
    harness.sql("ALTER TABLE TABLE_ RENAME COLUMN name TO title")
    assert harness.commit(sink, prepared).status is CommitStatus.DONE
    seen = harness.spark.read.format("delta").load(harness.path).orderBy("id")
    assert [(row["title"], row["s"]["n"], row["s"]["a"][0]["y"]) for row in seen.collect()] == [
        (f"n{n}", n, "x") for n in range(5)
    ]


def test_column_dropped_between_staging_and_commit_is_left_out(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1), DeltaSink(harness.path, properties={"delta.columnMapping.mode": "name"}))
    prepared = harness.stage(sink, 0, rows(0, 5))
    harness.sql("ALTER TABLE TABLE_ DROP COLUMN name")
    assert harness.commit(sink, prepared).status is CommitStatus.DONE
    assert [tuple(r) for r in harness.spark.read.format("delta").load(harness.path).orderBy("id").collect()] == [
        (n,) for n in range(5)
    ]


def test_other_writers_and_optimize_are_tolerated(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1))
    harness.commit(sink, harness.stage(sink, 0, rows(0, 10)))
    prepared = harness.stage(sink, 1, rows(10, 20))
    rows(100, 110).write.format("delta").mode("append").save(harness.path)
    harness.sql("OPTIMIZE TABLE_")
    harness.sql("DELETE FROM TABLE_ WHERE id = 5")
    assert harness.commit(sink, prepared).status is CommitStatus.DONE
    assert harness.ids() == [n for n in [*range(20), *range(100, 110)] if n != 5]


def test_vacuum_with_the_usual_retention_spares_staged_files(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1))
    prepared = harness.stage(sink, 0, rows(0, 10))
    harness.sql("VACUUM TABLE_")
    assert harness.commit(sink, prepared).status is CommitStatus.DONE
    assert sink.max_pending_seconds() == 3.5 * 24 * 3600


def test_files_that_vacuum_removed_are_missed_before_the_commit(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1))
    prepared = harness.stage(sink, 0, rows(0, 10))
    harness.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        harness.sql("VACUUM TABLE_ RETAIN 0 HOURS")
    finally:
        harness.spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    outcome = harness.commit(sink, prepared)
    assert outcome.status is CommitStatus.FAILED
    assert "VACUUM" in outcome.reason
    assert harness.ids() == []


def test_two_sinks_on_one_table_do_not_share_their_transactions(harness: Harness, rows: Any) -> None:
    one, two = harness.open(rows(0, 1), uid="one"), harness.open(rows(0, 1), uid="two")
    harness.commit(one, harness.stage(one, 0, rows(0, 5)))
    assert harness.commit(two, harness.stage(two, 0, rows(5, 10))).status is CommitStatus.DONE
    assert harness.ids() == list(range(10))


def test_checkpoint_directory_older_than_the_table_is_refused(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1))
    harness.commit(sink, harness.stage(sink, 7, rows(0, 5)))
    harness.highest = 6
    with pytest.raises(CheckpointDirectoryError, match="old copy"):
        harness.open(rows(0, 1))


def test_table_that_forgets_transactions_is_refused(harness: Harness, rows: Any) -> None:
    properties = {"delta.setTransactionRetentionDuration": "interval 1 day"}
    with pytest.raises(ConfigurationError, match="UNSET TBLPROPERTIES"):
        harness.open(rows(0, 1), DeltaSink(harness.path, properties=properties))


@pytest.mark.parametrize("mode", ["complete", "update"])
def test_other_output_modes_are_refused(harness: Harness, rows: Any, mode: str) -> None:
    with pytest.raises(ConfigurationError, match="append"):
        harness.open(rows(0, 1), mode=mode)


@pytest.mark.parametrize(
    "action",
    [
        '{"add": {"path": "../../other/part-0.parquet", "size": 1, "partitionValues": {}}}',
        '{"add": {"path": "%2Fetc%2Fpasswd", "size": 1, "partitionValues": {}}}',
        '{"add": {"path": "file:/etc/part-0-x.parquet", "size": 1, "partitionValues": {}}}',
        '{"add": {"path": "_delta_log/00000000000000000000.json", "size": 1, "partitionValues": {}}}',
        '{"remove": {"path": "part-0.parquet"}}',
        '{"metaData": {"id": "x"}}',
        "not json",
    ],
)
def test_handle_that_names_anything_but_files_of_the_table_is_refused(harness: Harness, rows: Any, action: str) -> None:
    sink = harness.open(rows(0, 1))
    prepared = harness.stage(sink, 0, rows(0, 10))
    hostile = PreparedEpoch(prepared.attempt, {**prepared.handle, "actions": [action]}, 0)
    with pytest.raises(CheckpointDirectoryError):
        sink.commit(hostile)
    with pytest.raises(CheckpointDirectoryError):
        sink.abort(hostile.attempt, hostile.handle)
    assert harness.ids() == []


def test_staged_file_that_was_cut_short_is_missed_before_the_commit(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1))
    prepared = harness.stage(sink, 0, rows(0, 10))
    staged = Path(harness.path, json.loads(prepared.handle["actions"][0])["add"]["path"])
    whole = staged.read_bytes()
    staged.write_bytes(whole[:-1])
    outcome = sink.commit(prepared)
    assert (outcome.status, staged.name in outcome.reason) == (CommitStatus.FAILED, True)
    assert harness.ids() == []
    staged.write_bytes(whole)
    assert sink.commit(prepared).status is CommitStatus.DONE
    assert harness.ids() == list(range(10))


def test_sink_needs_exactly_one_of_path_and_table() -> None:
    with pytest.raises(ConfigurationError):
        DeltaSink()
    with pytest.raises(ConfigurationError):
        DeltaSink("/lake/a", table="a")
