"""Keyed state: a running sum per account, beside an idiomatic applyInPandasWithState, and over more and more keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
from confluent_kafka import Producer
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import lockstep
from benchmarks.suite.ground import PARTITIONS, Ground, place
from benchmarks.suite.work import Figures, Work
from lockstep.engine.state_backend import settings_at_start
from lockstep.sources import KafkaSource

OUTPUT = "account string, total bigint"
BACKENDS = ("hdfs", "rocksdb")
_SHUFFLE_PARTITIONS = "4"


def idiomatic(orders: DataFrame) -> DataFrame:
    """What Spark's manual shows: one group per key, vectorised inside."""

    def running_total(key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        total = state.get[0] if state.exists else 0
        for frame in frames:
            running = frame["amount"].cumsum() + total
            total = int(running.iloc[-1])
            yield pd.DataFrame({"account": key[0], "total": running})
        state.update((total,))

    return orders.groupBy("account").applyInPandasWithState(
        running_total, OUTPUT, "total bigint", "append", GroupStateTimeout.NoTimeout
    )


class RunningTotal(lockstep.KeyedProcessFunction):
    """Element by element."""

    total = lockstep.ValueState("bigint", default=0)

    def process_element(self, row: Any, ctx: Any) -> Iterator[tuple[str, int]]:
        new = self.total.value() + row.amount
        self.total.update(new)
        yield row.account, new


class RunningTotalBatch(lockstep.KeyedProcessFunction):
    """A key group at a time."""

    total = lockstep.ValueState("bigint", default=0)

    def process_batch(self, batch: Any, ctx: Any) -> Iterator[pd.DataFrame]:
        codes, accounts = pd.factorize(batch["account"])
        accounts = accounts.tolist()
        amounts = batch["amount"]
        before = pd.Series(self.total.get_many(accounts)).to_numpy()
        running = amounts.groupby(codes).cumsum() + before[codes]
        after = before + amounts.groupby(codes).sum().to_numpy()
        self.total.update_many(accounts, after.tolist())
        yield pd.DataFrame({"account": batch["account"], "total": running})


def _process(function: type[lockstep.KeyedProcessFunction]) -> Callable[[DataFrame], DataFrame]:
    return lambda orders: lockstep.key_by(orders, "account").process(function(), uid="totals", output=OUTPUT)


OPERATORS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "idiomatic": idiomatic,
    "process_element": _process(RunningTotal),
    "process_batch": _process(RunningTotalBatch),
}


def operators(rows: int, rows_per_epoch: int, keys: int = 10_000) -> Work:
    """All three ways with the same keys, on both state stores."""
    contenders = {f"{name}, {backend}": (name, backend, keys) for backend in BACKENDS for name in OPERATORS}
    title = f"running sum, {keys:,} keys, {rows:,} rows in epochs of {rows_per_epoch:,}"
    return _work("state", title, contenders, rows, rows_per_epoch)


def growth(rows: int, rows_per_epoch: int, most: int = 1_000_000) -> Work:
    """Lockstep's two ways with a thousand keys, ten thousand, and so on."""
    sizes = [10**power for power in range(3, 7) if 10**power <= most]
    contenders = {
        f"{name}, {backend}, {keys:,} keys": (name, backend, keys)
        for name in ("process_element", "process_batch")
        for backend in BACKENDS
        for keys in sizes
    }
    title = f"running sum over more and more keys, {rows:,} rows in epochs of {rows_per_epoch:,}"
    return _work("state_growth", title, contenders, rows, rows_per_epoch)


def _work(key: str, title: str, contenders: dict[str, tuple[str, str, int]], rows: int, rows_per_epoch: int) -> Work:
    def run(ground: Ground, contender: str) -> Figures:
        name, backend, keys = contenders[contender]
        topic = accounts(ground, rows, keys)
        with place() as directory:
            return _run(ground, topic, str(directory), OPERATORS[name], backend, rows, rows_per_epoch)

    return Work(key, title, tuple(contenders), run, "rows_per_s")


def accounts(ground: Ground, rows: int, keys: int) -> str:
    """A topic with so many accounts as keys, and amounts as values."""

    def fill(name: str) -> None:
        servers = ground.broker.bootstrap_servers
        producer = Producer({"bootstrap.servers": servers, "linger.ms": 50, "compression.type": "lz4"})
        for row in range(rows):  # 7919 is prime: neighbours in time are not neighbours in key
            producer.produce(
                name, key=f"account-{row * 7919 % keys}", value=str(row % 1000), partition=row % PARTITIONS
            )
            if row % 10_000 == 0:
                producer.flush(60)
        if producer.flush(60):
            raise SystemExit("the broker did not take all rows")

    return ground.topic_of(f"accounts-{keys}-{rows}", fill)


def _run(
    ground: Ground,
    topic: str,
    checkpoint: str,
    operator: Callable[[DataFrame], DataFrame],
    backend: str,
    rows: int,
    rows_per_epoch: int,
) -> Figures:
    """Figures of the second half of the epochs: by then every key has its state, and the workers are warm."""
    options = {"maxOffsetsPerTrigger": str(rows_per_epoch)}
    records = KafkaSource(ground.broker.bootstrap_servers, topics=topic, startup_mode="earliest", options=options)
    orders = records.load(ground.spark).select(
        F.col("key").cast("string").alias("account"), F.col("value").cast("string").cast("bigint").alias("amount")
    )
    with (
        ground.settings({"spark.sql.shuffle.partitions": _SHUFFLE_PARTITIONS}),
        settings_at_start(ground.spark, lockstep.StateBackend(backend), 1),
    ):
        writer = operator(orders).writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    epochs = [one for one in query.recentProgress if one["numInputRows"]]
    counted = sum(one["sink"]["numOutputRows"] for one in epochs)
    if counted != rows:
        raise SystemExit(f"{topic}: {counted:,} of {rows:,} rows came out")
    seconds = [one["durationMs"]["triggerExecution"] / 1000 for one in epochs]
    warm = len(epochs) // 2
    return {
        "rows_per_s": sum(one["numInputRows"] for one in epochs[warm:]) / sum(seconds[warm:]),
        "epoch_s": sum(seconds[warm:]) / len(seconds[warm:]),
        "first_s": seconds[0],
    }
