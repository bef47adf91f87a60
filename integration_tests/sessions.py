"""The Spark session that integration tests share, and small tools around it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import lockstep
from lockstep.engine.versions import postgresql_package

THOROUGH = (
    os.environ.get("LOCKSTEP_THOROUGH", "") == "1"
)  # as ``make thorough`` sets it: everything, however long it takes
ONLY_THOROUGH = pytest.mark.skipif(not THOROUGH, reason="it takes long: make thorough runs it")
_EARLIER = 1_750_000_000


def shared_session(warehouse: Path) -> SparkSession:
    """One session for the whole run: starting a JVM is the slowest part of most tests."""
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("lockstep-tests")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")  # short-lived: compile little
        .config("spark.python.worker.faulthandler.enabled", "true")  # a worker that crashes says where
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .config("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")  # VACUUM lists with so many tasks
        .config("spark.sql.streaming.stateStore.maintenanceInterval", "2s")  # a rewind waits for it
        .config("spark.sql.warehouse.dir", str(warehouse))
        .config("spark.jars.packages", postgresql_package())  # for JdbcSink; lockstep.configure adds its own
    )
    spark = lockstep.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def contract_session() -> SparkSession:
    """For sink contracts: the session that the tests share, or one like it in the contract's other process."""
    return SparkSession.getActiveSession() or shared_session(Path(tempfile.mkdtemp(prefix="lockstep-warehouse-")))


def file_stream(spark: SparkSession, directory: Path, schema: str = "id long, name string") -> DataFrame:
    """A stream over JSON files in a directory: each file dropped there is a batch. For tests that need no Kafka."""
    directory.mkdir(parents=True, exist_ok=True)
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(directory))


def drop_file(directory: Path, number: int, rows: list[str]) -> None:
    """Add a batch of JSON rows, atomically."""
    directory.mkdir(parents=True, exist_ok=True)
    temporary = directory / f".{number}.tmp"
    temporary.write_text("\n".join(rows) + "\n")
    os.utime(temporary, (_EARLIER + number, _EARLIER + number))  # Spark takes files in the order of their times
    temporary.rename(directory / f"{number:05d}.json")


if __name__ == "__main__":  # fetches the jars
    with tempfile.TemporaryDirectory() as directory:
        shared_session(Path(directory)).stop()
