"""A driver to be killed, in a process of its own, with a failpoint.

Kafka → Delta; or, when its settings name more targets, Kafka → keyed state → Delta, Kafka and perhaps PostgreSQL and files.

Run by the crash tests as ``python driver.py '{"bootstrap_servers": …}'``. Rows carry their partition and offset, so that
an outside reader can tell exactly which are there. Lines on its standard input are commands: ``{"failpoint": …, "hit": …,
"action": …}`` sets one, ``{"stop": true}`` stops the query, ``{"savepoint": path, "saved": file}`` does so with a savepoint,
``{"measure": path}`` writes down what the driver uses; at the end of the input the driver dies.
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
_saving = threading.Lock()
OUTPUT = "partition int, offset bigint, id bigint, account string, count bigint"


class Count(KeyedProcessFunction):
    """Numbers the rows of each account: a row that is lost or seen twice shows in the numbers after it."""

    seen = ValueState("bigint", default=0)

    def process_element(self, row: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        self.seen.update(self.seen.value() + 1)
        yield row.partition, row.offset, row.id, row.account, self.seen.value()


def build_session(settings: dict[str, Any]) -> SparkSession:
    builder = (
        SparkSession.builder.master(settings.get("master", "local[2]"))
        .appName("driver")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", QUICK_START)
        .config("spark.executor.memory", "1g")  # of a local cluster
        .config("spark.executor.extraJavaOptions", QUICK_START)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.ui.retainedExecutions", "20")  # also without the UI: 1,000 plans of about 150 kB otherwise
        .config("spark.ui.retainedJobs", "50")
        .config("spark.ui.retainedStages", "100")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(settings.get("partitions", 2)))
        .config("spark.databricks.delta.snapshotPartitions", "2")
    )
    if "jdbc" in settings:
        builder = builder.config("spark.jars.packages", postgresql_package())
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
        writer = many_sinks(lockstep.key_by(rows, "account").process(Count(), uid="count", output=OUTPUT), settings)
    else:
        writer = lockstep.checkpointed(rows).sink(DeltaSink(settings["table"]), uid="lake")
    writer = writer.option("checkpointLocation", settings["checkpoint"])
    for key, value in settings.get("options", {}).items():
        writer = writer.option(key, value)
    trigger = {"availableNow": True} if settings.get("available_now") else {"processingTime": "100 milliseconds"}
    return writer.trigger(**trigger).start()


def many_sinks(rows: DataFrame, settings: dict[str, Any]) -> lockstep.CheckpointedWriter:
    feed = KafkaSink(
        settings["bootstrap_servers"],
        topic=settings["out"],
        key="account",
        options={"kafka.transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS)},
    )
    lake = DeltaSink(settings["table"], properties=settings.get("table_properties"))
    writer = lockstep.checkpointed(rows).sink(lake, uid="lake").sink(feed, uid="feed")
    if "jdbc" in settings:
        writer = writer.sink(JdbcSink(**settings["jdbc"]), uid="database")
    if "files" in settings:
        writer = writer.sink(FileSink(settings["files"], "json", files_per_epoch=1), uid="files")
    return writer


def main(settings: dict[str, Any]) -> None:
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    queries: list[lockstep.CheckpointedQuery] = []
    threading.Thread(target=_obey, args=(queries,), daemon=True).start()
    if "failpoint" in settings:
        _set_failpoint(settings)
    if "workers" in settings:
        failpoints.kill_workers_through(settings["workers"])
    queries.append(start_query(build_session(settings), settings))
    Path(settings["started"]).touch()
    queries[0].awaitTermination()
    with _saving:  # the savepoint is made after the query's end
        return


def _obey(queries: list[lockstep.CheckpointedQuery]) -> None:
    """The test holds the other end of stdin: when it is gone, so are we."""
    for line in sys.stdin:
        command = json.loads(line)
        if "failpoint" in command:
            _set_failpoint(command)
        elif "measure" in command and queries:
            _measure(Path(command["measure"]))
        elif command.get("savepoint") and queries:
            with _saving:
                queries[0].stop_with_savepoint(command["savepoint"])
                Path(command["saved"]).touch()
        elif command.get("stop") and queries:
            queries[0].stop()
    failpoints.kill_process_group()


def _set_failpoint(settings: dict[str, Any]) -> None:
    actions = {"group": failpoints.kill_process_group, "python": _kill_python, "pause": _pause}
    failpoints.at(settings["failpoint"], actions[settings.get("action", "group")], settings.get("hit", 1))


def _measure(into: Path) -> None:
    """Bytes that are in use in the JVM's heap after a collection, and in this process; and open files of both."""
    spark = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    runtime = spark._jvm.java.lang.Runtime.getRuntime()
    runtime.gc()
    heap = runtime.totalMemory() - runtime.freeMemory()
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    files = {name: len(os.listdir(f"/proc/{pid}/fd")) for name, pid in (("python", "self"), ("jvm", jvm))}
    partial = into.with_suffix(".partial")
    partial.write_text(json.dumps({"heap": heap, "python": resident, "files": files}))
    partial.rename(into)


def _kill_python() -> None:
    """The JVM is left to find out by itself: until then it may still write its commit log."""
    os.kill(os.getpid(), signal.SIGKILL)


def _pause() -> None:
    """Stop Python and the JVM, as a long GC pause or a suspended machine would."""
    os.killpg(os.getpgid(0), signal.SIGSTOP)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
