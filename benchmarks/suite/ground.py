"""The ground on which all contenders run: one broker, one Spark session, topics with rows."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Producer
from pyspark.sql import SparkSession
from rich.progress import Progress

import lockstep
from lockstep.broker import EmbeddedBroker
from lockstep.engine.state_backend import settings

PARTITIONS = 4
ACCOUNTS = 10_000
SCHEMA = "id bigint, account string, amount bigint, at bigint, note string"  # at: when it was produced, in microseconds
_NOTE = "x" * 40


@dataclass
class Ground:
    """What works are given."""

    broker: EmbeddedBroker
    spark: SparkSession
    progress: Progress

    _filled: set[str] = field(default_factory=set)

    def topic(self, rows: int) -> str:
        """A topic with so many orders."""
        return self.topic_of(
            f"orders-{rows}", lambda name: fill(self.broker.bootstrap_servers, name, rows, self.progress)
        )

    def topic_of(self, name: str, fill: Callable[[str], None]) -> str:
        """A topic that is filled when it is first asked for; works share it."""
        if name not in self._filled:
            self.broker.create_topic(name, PARTITIONS)
            fill(name)
            self._filled.add(name)
        return name

    def settings(self, wanted: Mapping[str, str]) -> AbstractContextManager[None]:
        """Settings of the session for the length of one run."""
        return settings(self.spark, wanted)


def session(memory: str, name: str = "bench") -> SparkSession:
    """The same for all contenders; what one of them tunes is set for its own runs alone."""
    builder = (
        SparkSession.builder.master("local[2]")
        .appName(name)
        .config("spark.driver.memory", memory)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.streaming.numRecentProgressUpdates", "10000")  # the floors are timed by them
    )
    spark = lockstep.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def value(row: int) -> bytes:
    """One order, as its producer writes it."""
    order = {
        "id": row,
        "account": f"account-{row % ACCOUNTS}",
        "amount": row % 1000,
        "at": time.time_ns() // 1000,
        "note": _NOTE,
    }
    return json.dumps(order).encode()


def fill(servers: str, topic: str, rows: int, progress: Progress) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 50, "batch.size": 1_000_000})
    bar = progress.add_task(f"{rows:,} rows", total=rows)
    for row in range(rows):
        producer.produce(topic, key=f"account-{row % ACCOUNTS}", value=value(row), partition=row % PARTITIONS)
        if row % 10_000 == 0:
            producer.flush(60)
            progress.update(bar, completed=row)
    if producer.flush(60):
        raise SystemExit("the broker did not take all rows")
    progress.remove_task(bar)


@contextmanager
def place() -> Iterator[Path]:
    """A directory for one run's table and checkpoint."""
    path = Path(tempfile.mkdtemp(prefix="lockstep-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
