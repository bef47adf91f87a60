"""A driver to be killed, in a process of its own, with a failpoint.

Kafka → Delta; or, when its settings name more targets, Kafka → keyed state → Delta, Kafka, PostgreSQL and files.

Run by the crash tests as ``python driver.py '{"bootstrap_servers": …}'``. Rows carry their partition and offset, so that
an outside reader can tell exactly which are there.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import lockstep
from lockstep import KeyedProcessFunction, ValueState
from lockstep.engine.versions import postgresql_package
from lockstep.sinks import DeltaSink, FileSink, JdbcSink, KafkaSink
from lockstep.sources import KafkaSource
from lockstep.testing import failpoints

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # these JVMs live for seconds: compile little


TRANSACTION_TIMEOUT_MS = 4000
OUTPUT = "partition int, offset bigint, id bigint, account string, count bigint"


class Count(KeyedProcessFunction):
    """Numbers the rows of each account: a row that is lost or seen twice shows in the numbers after it."""

    seen = ValueState("bigint", default=0)

    def process_element(self, row: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        self.seen.update(self.seen.value() + 1)
        yield row.partition, row.offset, row.id, row.account, self.seen.value()


def build_session(name: str) -> SparkSession:
    builder = (
        SparkSession.builder.master("local[2]")
        .appName(name)
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", QUICK_START)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .config("spark.jars.packages", postgresql_package())
    )
    spark = lockstep.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def start_query(spark: SparkSession, settings: dict[str, Any]) -> lockstep.CheckpointedQuery:
    source = KafkaSource(
        settings["bootstrap_servers"],
        topics=[settings["topic"]],
        group_id=settings["group"],
        startup_mode="earliest",
        options={"maxOffsetsPerTrigger": str(settings.get("rows_per_epoch", 100))},
    )
    id = F.col("value").cast("string").cast("long")
    rows = source.load(spark).select(
        "partition", "offset", id.alias("id"), F.concat(F.lit("a"), (id % 7).cast("string")).alias("account")
    )
    if "out" in settings:
        writer = four_sinks(lockstep.key_by(rows, "account").process(Count(), uid="count", output=OUTPUT), settings)
    else:
        writer = lockstep.checkpointed(rows).sink(DeltaSink(settings["table"]), uid="lake")
    writer = writer.option("checkpointLocation", settings["checkpoint"])
    for key, value in settings.get("options", {}).items():
        writer = writer.option(key, value)
    trigger = {"availableNow": True} if settings.get("available_now") else {"processingTime": "100 milliseconds"}
    return writer.trigger(**trigger).start()


def four_sinks(rows: DataFrame, settings: dict[str, Any]) -> lockstep.CheckpointedWriter:
    feed = KafkaSink(
        settings["bootstrap_servers"],
        topic=settings["out"],
        key="account",
        options={"kafka.transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS)},
    )
    return (
        lockstep.checkpointed(rows)
        .sink(DeltaSink(settings["table"]), uid="lake")
        .sink(feed, uid="feed")
        .sink(JdbcSink(**settings["jdbc"]), uid="database")
        .sink(FileSink(settings["files"], "json", files_per_epoch=1), uid="files")
    )


def main(settings: dict[str, Any]) -> None:
    threading.Thread(target=_die_with_the_test, daemon=True).start()
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    point = settings.get("failpoint")
    if point:
        action = {"group": failpoints.kill_process_group, "python": _kill_python, "pause": _pause}[
            settings.get("action", "group")
        ]
        failpoints.at(point, action, settings.get("hit", 1))
    query = start_query(build_session("driver"), settings)
    Path(settings["started"]).touch()
    query.awaitTermination()


def _die_with_the_test() -> None:
    """The test holds the other end of stdin: when it is gone, so are we."""
    sys.stdin.read()
    failpoints.kill_process_group()


def _kill_python() -> None:
    """The JVM is left to find out by itself: until then it may still write its commit log."""
    os.kill(os.getpid(), signal.SIGKILL)


def _pause() -> None:
    """Stop Python and the JVM, as a long GC pause or a suspended machine would."""
    os.killpg(os.getpgid(0), signal.SIGSTOP)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
