"""A driver to be killed: Kafka → Delta, in a process of its own, with a failpoint.

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
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import lockstep
from lockstep.sinks import DeltaSink
from lockstep.sources import KafkaSource
from lockstep.testing import failpoints

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # these JVMs live for seconds: compile little


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
    rows = source.load(spark).select(
        F.col("partition"), F.col("offset"), F.col("value").cast("string").cast("long").alias("id")
    )
    writer = (
        lockstep.checkpointed(rows)
        .sink(DeltaSink(settings["table"]), uid="lake")
        .option("checkpointLocation", settings["checkpoint"])
    )
    for key, value in settings.get("options", {}).items():
        writer = writer.option(key, value)
    trigger = {"availableNow": True} if settings.get("available_now") else {"processingTime": "100 milliseconds"}
    return writer.trigger(**trigger).start()


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
