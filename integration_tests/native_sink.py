"""Queries with Spark's own parquet sink, records in chosen partitions, and group offsets as another client sees them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from kafka import KafkaAdminClient, KafkaConsumer, OffsetAndMetadata
from kafka import TopicPartition as ObservedPartition
from kafka.errors import CoordinatorNotAvailableError
from pyspark.sql import DataFrame, SparkSession

from lockstep.protocol.barrier import TopicPartition


class Run:
    """A query with Spark's own parquet sink, which can be started again and again on its checkpoint directory."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.checkpoint = directory / "checkpoint"
        self._spark = spark
        self._out = str(directory / "out")

    def start(self, frame: DataFrame, **trigger: Any) -> Any:
        rows = frame.selectExpr("CAST(value AS STRING) AS value")
        writer = rows.writeStream.format("parquet").option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**trigger or {"availableNow": True}).start(self._out)

    def to_the_end(self, frame: DataFrame) -> set[str]:
        """Run until all there is has been read; the values written so far, by all runs."""
        assert self.start(frame).awaitTermination(60)
        return self.values()

    def values(self) -> set[str]:
        found = [row.value for row in self._spark.read.schema("value STRING").parquet(self._out).collect()]
        assert len(found) == len(set(found)), "a value was read twice"
        return set(found)


def produce(servers: str, topic: str, partition: int, *values: str, timestamp: int = 0) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for value in values:
        producer.produce(topic, value.encode(), partition=partition, timestamp=timestamp)
    assert producer.flush(30) == 0


def observed(servers: str, group: str) -> dict[TopicPartition, int]:
    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        offsets = admin.list_group_offsets(group)[group]
        return {TopicPartition(tp.topic, tp.partition): meta.offset for tp, meta in offsets.items() if meta.offset >= 0}
    except CoordinatorNotAvailableError:
        return {}  # the broker makes its offsets topic when the first group is asked for
    finally:
        admin.close()


def commit(servers: str, group: str, topic: str, *offsets: int) -> None:
    consumer = KafkaConsumer(bootstrap_servers=servers, group_id=group, enable_auto_commit=False)
    try:
        partitions = [ObservedPartition(topic, number) for number in range(len(offsets))]
        consumer.assign(partitions)
        wanted = zip(partitions, offsets, strict=True)
        consumer.commit({tp: OffsetAndMetadata(offset, "", -1) for tp, offset in wanted})
    finally:
        consumer.close()


def eventually(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)
