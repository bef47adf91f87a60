"""Topic to topic: KafkaSink beside Spark's own Kafka sink."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame

import lockstep
from benchmarks.suite import timeline
from benchmarks.suite.ground import PARTITIONS, Ground, place
from benchmarks.suite.work import Figures, Work
from lockstep.sinks import KafkaSink
from lockstep.sources import KafkaSource

SPARK = "Spark's Kafka sink, at least once"
EXACTLY_ONCE = "KafkaSink, exactly once"
_numbers = itertools.count()

Start = Callable[[DataFrame, str, str, str], Any]


def _spark_sink(rows: DataFrame, servers: str, topic: str, checkpoint: str) -> Any:
    writer = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", topic)
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def _kafka_sink(**arguments: Any) -> Start:
    def start(rows: DataFrame, servers: str, topic: str, checkpoint: str) -> Any:
        sink = KafkaSink(servers, topic=topic, **arguments)
        writer = lockstep.checkpointed(rows).sink(sink, uid="feed").option("checkpointLocation", checkpoint)
        return writer.trigger(availableNow=True).start()

    return start


CONTENDERS: dict[str, Start] = {
    SPARK: _spark_sink,
    EXACTLY_ONCE: _kafka_sink(),
    "KafkaSink, exactly once, parallelism=2": _kafka_sink(parallelism=2),
    "KafkaSink, at least once": _kafka_sink(delivery="at_least_once"),
}


def kafka_sink(rows: int, rows_per_epoch: int) -> Work:
    """From the end of Spark's first epoch until a read-committed reader can read the last row: phase 2 included."""

    def run(ground: Ground, contender: str) -> Figures:
        servers = ground.broker.bootstrap_servers
        target = f"out-{next(_numbers)}"
        ground.broker.create_topic(target, PARTITIONS)
        options = {"maxOffsetsPerTrigger": str(rows_per_epoch)}
        source = KafkaSource(servers, topics=ground.topic(rows), startup_mode="earliest", options=options)
        with place() as directory, _Visible(servers, target) as visible:
            begun = time.time()
            records = source.load(ground.spark).select("key", "value")
            query = CONTENDERS[contender](records, servers, target, str(directory))
            query.awaitTermination()
            visible.wait_for(rows)
        first, *_ = timeline.of_progress(query.recentProgress)
        seconds = visible.reached(rows) - first.at
        return {"rows_per_s": (rows - first.rows) / seconds, "first_s": visible.reached(first.rows) - begun}

    title = f"topic to topic, {rows:,} rows in epochs of {rows_per_epoch:,}"
    return Work("kafka_sink", title, tuple(CONTENDERS), run, "rows_per_s")


class _Visible(threading.Thread):
    """Looks ten times a second how many rows a read-committed reader could read.

    The last stable offsets tell, without reading. A transaction adds one control record to each partition, at most.
    """

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(daemon=True)
        settings = {"bootstrap.servers": servers, "group.id": "bench", "isolation.level": "read_committed"}
        self._consumer = Consumer(settings)
        self._topic = topic
        self._looks: list[tuple[float, int]] = []
        self._ended = threading.Event()

    def __enter__(self) -> _Visible:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()
        self._consumer.close()

    def run(self) -> None:
        partitions = [TopicPartition(self._topic, number) for number in range(PARTITIONS)]
        while not self._ended.wait(0.1):
            ends = [self._consumer.get_watermark_offsets(partition, timeout=10)[1] for partition in partitions]
            self._looks.append((time.time(), sum(ends)))

    def wait_for(self, rows: int) -> None:
        deadline = time.monotonic() + 120
        while not self._looks or self._looks[-1][1] < rows:
            if time.monotonic() > deadline:
                raise SystemExit(f"only {self._looks[-1:]} of {rows} rows became visible")
            time.sleep(0.05)

    def reached(self, rows: int) -> float:
        return next(at for at, seen in self._looks if seen >= rows)
