"""Savepoints: how long it takes to make one and to restore from it, by the number of keys; and what the query notices."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import lockstep
from benchmarks.suite import timeline
from benchmarks.suite.ground import Ground, place
from benchmarks.suite.state_works import OUTPUT, RunningTotalBatch, accounts
from benchmarks.suite.work import Figures, Work
from lockstep.sinks import DeltaSink
from lockstep.sources import KafkaSource

_WATCHED = 5.0  # seconds


def savepoints(most: int) -> Work:
    """Made while the query runs, restored into twice as many partitions."""
    contenders = {f"{keys:,} keys": keys for keys in (10_000, 100_000, 1_000_000) if keys <= most}

    def run(ground: Ground, contender: str) -> Figures:
        keys = contenders[contender]
        with place() as directory, ground.settings({"spark.sql.shuffle.partitions": "4"}):
            return _run(ground, directory, accounts(ground, keys, keys), keys)

    return Work("savepoint", "a savepoint of a running query", tuple(contenders), run, "create_s", lower_is_better=True)


def _run(ground: Ground, directory: Path, topic: str, keys: int) -> Figures:
    savepoint = directory / "savepoint"
    query = _start(ground, _totals(ground, topic), directory, "before", {}, processingTime="200 milliseconds")
    query.processAllAvailable()
    with _load(ground, topic, keys):
        time.sleep(_WATCHED)
        before = _longest_epoch(query, _WATCHED)
        begun = time.time()
        made = query.savepoint(str(savepoint))
        created = time.time() - begun
        time.sleep(1)  # for the epoch that was under way
        during = _longest_epoch(query, created + 1)
    query.stop()
    begun = time.time()
    with ground.settings({"spark.sql.shuffle.partitions": "8"}):
        options = {"restoreFrom": str(savepoint)}
        restored = _start(ground, _totals(ground, topic), directory, "after", options, availableNow=True)
    started = time.time() - begun
    restored.awaitTermination()
    stored = lockstep.read_state(ground.spark, str(directory / "after"), "totals", state="total").count()
    if stored != keys:
        raise SystemExit(f"{stored:,} of {keys:,} keys were restored")
    return {
        "create_s": created,
        "restore_s": started,
        "state_mb": made.state_bytes / 1e6,
        "longest_before_s": before,
        "longest_during_s": during,
    }


def _totals(ground: Ground, topic: str) -> DataFrame:
    source = KafkaSource(ground.broker.bootstrap_servers, topics=topic, startup_mode="earliest")
    orders = source.load(ground.spark).select(
        F.col("key").cast("string").alias("account"), F.col("value").cast("string").cast("bigint").alias("amount")
    )
    return lockstep.key_by(orders, "account").process(RunningTotalBatch(), uid="totals", output=OUTPUT)


def _start(
    ground: Ground, frame: DataFrame, directory: Path, name: str, options: dict[str, str], **trigger: Any
) -> lockstep.CheckpointedQuery:
    writer = lockstep.checkpointed(frame).sink(DeltaSink(str(directory / f"table-{name}")), uid="table")
    writer = writer.option("checkpointLocation", str(directory / name)).options(**options)
    return writer.trigger(**trigger).start()


@contextmanager
def _load(ground: Ground, topic: str, keys: int) -> Iterator[None]:
    """Some rows a second, meanwhile."""
    stop = threading.Event()
    producer = Producer({"bootstrap.servers": ground.broker.bootstrap_servers, "linger.ms": 5})

    def keep_going() -> None:
        for row in itertools.count():
            producer.produce(topic, key=f"account-{row % keys}", value="0")
            if stop.wait(0.01):
                return

    thread = threading.Thread(target=keep_going, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        producer.flush(60)


def _longest_epoch(query: lockstep.CheckpointedQuery, seconds: float) -> float:
    """Of those that began in the last so many seconds."""
    since = time.time() - seconds
    moments = [(timeline.began(one), one.durationMs["triggerExecution"] / 1000) for one in query.recentProgress]
    return max((took for at, took in moments if at >= since), default=0.0)
