"""The ways to get a topic into a table, each as its users would write it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import lockstep
from benchmarks.suite import timeline
from benchmarks.suite.ground import SCHEMA
from benchmarks.suite.timeline import Moment
from lockstep.sinks import DeltaSink
from lockstep.sources import KafkaSource


@dataclass(frozen=True)
class Run:
    """What one run of a contender gets."""

    spark: SparkSession
    servers: str
    topic: str
    place: Path
    rows_per_epoch: int | None = None  # None: as many as there are
    until_empty: bool = True  # or until it is stopped

    @property
    def table(self) -> Path:
        return self.place / "table"

    @property
    def checkpoint(self) -> str:
        return str(self.place / "checkpoint")

    @property
    def limits(self) -> dict[str, str]:
        return {} if self.rows_per_epoch is None else {"maxOffsetsPerTrigger": str(self.rows_per_epoch)}

    def begin(self, writer: Any) -> Any:
        writer = writer.option("checkpointLocation", self.checkpoint)
        return (writer.trigger(availableNow=True) if self.until_empty else writer).start()


def parsed(records: DataFrame) -> DataFrame:
    return records.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("order")).select("order.*")


def with_kafka_source(run: Run) -> DataFrame:
    """Read with KafkaSource and its client settings."""
    source = KafkaSource(run.servers, topics=run.topic, startup_mode="earliest", options=run.limits)
    return parsed(source.load(run.spark))


def with_spark_source(run: Run) -> DataFrame:
    """Read with Spark's source as it comes."""
    reader = run.spark.readStream.format("kafka").option("kafka.bootstrap.servers", run.servers)
    options = {"subscribe": run.topic, "startingOffsets": "earliest", **run.limits}
    return parsed(reader.options(**options).load())


def start_lockstep(run: Run) -> Any:
    sink = DeltaSink(str(run.table))
    return run.begin(lockstep.checkpointed(with_kafka_source(run)).sink(sink, uid="table"))


def start_delta(run: Run) -> Any:
    return run.begin(with_spark_source(run).writeStream.format("delta").option("path", str(run.table)))


def start_tuned_delta(run: Run) -> Any:
    run.spark.sql(
        f"CREATE TABLE delta.`{run.table}` ({SCHEMA}) USING delta TBLPROPERTIES ('delta.checkpointInterval'='100')"
    )
    return run.begin(with_kafka_source(run).writeStream.format("delta").option("path", str(run.table)))


def start_by_hand(run: Run) -> Any:
    """What people write for exactly-once with foreachBatch, as Delta's documentation shows."""
    table = str(run.table)

    def write(batch: DataFrame, epoch: int) -> None:
        writer = batch.write.format("delta").mode("append")
        writer.option("txnAppId", table).option("txnVersion", epoch).save(table)

    return run.begin(with_spark_source(run).writeStream.foreachBatch(write))


def start_parquet(run: Run) -> Any:
    return run.begin(with_kafka_source(run).writeStream.format("parquet").option("path", str(run.table)))


def start_noop(run: Run) -> Any:
    return run.begin(with_kafka_source(run).writeStream.format("noop"))


@dataclass(frozen=True)
class Contender:
    """A name, how it is started, and how to see from outside what it has made visible."""

    name: str
    start: Callable[[Run], Any]
    visible: Callable[[Run, Sequence[Any]], list[Moment]] = lambda run, _: timeline.of_delta(run.table)
    settings: Mapping[str, str] = field(default_factory=dict)


LOCKSTEP = Contender("Lockstep", start_lockstep)
DELTA = Contender("Spark's Delta sink", start_delta)
TUNED_DELTA = Contender(
    "Spark's Delta sink, tuned",
    start_tuned_delta,
    settings={"spark.databricks.delta.snapshotPartitions": "2", "spark.sql.shuffle.partitions": "2"},
)
BY_HAND = Contender("foreachBatch with txnVersion", start_by_hand)
PARQUET = Contender("plain parquet", start_parquet, lambda run, _: timeline.of_parquet(run.table))
NOOP = Contender("noop", start_noop, lambda _, progress: timeline.of_progress(progress))
ALL = (LOCKSTEP, DELTA, TUNED_DELTA, BY_HAND, PARQUET, NOOP)
