"""Whatever a Kafka topic holds or has lost: every record that is there arrives once, and what is not there is said."""

from __future__ import annotations

import itertools
import logging
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import lockstep
from integration_tests.conftest import Broker, MakeTopic
from integration_tests.native_sink import eventually, observed
from integration_tests.targets import read_records, read_rows
from lockstep.errors import DataLossError
from lockstep.protocol.barrier import TopicPartition
from lockstep.sinks import DeltaSink, KafkaSink
from lockstep.sources import KafkaSource

Record = tuple[bytes | None, bytes | None]
COMPACTION = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "100",
    "delete.retention.ms": "100",
}


class Pipe:
    """A topic of one partition that a query copies to a Delta table, and can be started again and again."""

    def __init__(self, spark: SparkSession, servers: str, topic: str, place: Path) -> None:
        self.spark, self.servers, self.topic = spark, servers, topic
        self.table = str(place / "table")
        self.checkpoint = str(place / "checkpoint")
        self.group = f"group-{uuid.uuid4().hex[:8]}"
        self.admin = AdminClient({"bootstrap.servers": servers})

    def produce(self, *records: Record | str, partition: int = 0, producer: Producer | None = None) -> None:
        sender = producer or Producer({"bootstrap.servers": self.servers, "message.max.bytes": 2_000_000})
        for record in records:
            key, value = (None, record.encode()) if isinstance(record, str) else record
            sender.produce(self.topic, value, key, partition=partition)
        assert sender.flush(30) == 0

    def frame(self, **options: Any) -> DataFrame:
        source = KafkaSource(self.servers, self.topic, group_id=self.group, startup_mode="earliest", options=options)
        return source.load(self.spark).select("key", "value", "partition", "offset")

    def writer(self, frame: DataFrame) -> lockstep.CheckpointedWriter:
        made = lockstep.checkpointed(frame).sink(DeltaSink(self.table), uid="lake")
        return made.option("checkpointLocation", self.checkpoint).trigger(availableNow=True)

    def run(self, **options: Any) -> None:
        assert self.writer(self.frame(**options)).start().awaitTermination(60)

    def offsets(self) -> list[int]:
        rows = read_rows(self.table)
        assert len(rows) == len(set(rows)), "a record was committed twice"
        return sorted(offset for _, offset in rows)

    def values(self) -> list[bytes | None]:
        rows = DeltaTable(self.table).to_pyarrow_table(columns=["offset", "value"]).to_pylist()
        return [row["value"] for row in sorted(rows, key=lambda row: row["offset"])]

    def group_offset(self) -> int:
        return observed(self.servers, self.group)[TopicPartition(self.topic, 0)]

    def remove_before(self, offset: int) -> None:
        for future in self.admin.delete_records([Position(self.topic, 0, offset)]).values():
            future.result()


@pytest.fixture
def pipe(spark: SparkSession, kafka: Broker, make_topic: MakeTopic, tmp_path: Path) -> Pipe:
    return Pipe(spark, kafka.bootstrap_servers, make_topic(1), tmp_path)


@pytest.fixture(scope="module", autouse=True)
def compacted(kafka: Broker, make_topic: MakeTopic) -> str:
    """A topic that the broker compacts while the other tests run: of key k only the newest record stays."""
    topic = make_topic(1, COMPACTION)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(40):
        producer.produce(topic, f"{number}".encode(), b"k" if number % 4 else b"other-%d" % number)
        if number % 10 == 9:
            assert producer.flush(30) == 0
            time.sleep(0.15)  # so that the broker begins a new segment: only closed ones are compacted
    return topic


def test_null_keys_and_values_tombstones_and_megabytes_arrive_as_they_are(pipe: Pipe, make_topic: MakeTopic) -> None:
    """In a table, and in another topic."""
    out = make_topic(1)
    records: list[Record] = [
        (None, None),
        (b"k", None),
        (None, b"v"),
        (b"", b""),
        (b"\xff\xfe", b"\x00\x80"),
        (b"k", b"x" * 1_000_000),
        (b"k", None),
    ]
    pipe.produce(*records)
    writer = pipe.writer(pipe.frame()).sink(
        KafkaSink(pipe.servers, out), uid="feed", transform=lambda frame: frame.select("key", "value")
    )
    assert writer.start().awaitTermination(60)
    assert pipe.values() == [value for _, value in records]
    assert [(record.key, record.value) for record in read_records(pipe.servers, out)] == records
    assert pipe.group_offset() == len(records)


def test_bad_json_becomes_null_columns_and_no_record_is_lost(pipe: Pipe) -> None:
    good = '{"id": 7, "name": "x"}'
    bad = [
        "",
        "{",
        "null",
        "[]",
        '"text"',
        "[" * 5_000,
        "9" * 5_000,
        '{"id": "seven"}',
        '{"id": 1e999}',
        "\x00",
        good + "}",
    ]
    pipe.produce(good, *bad, (None, b"\xff\xfe{"), (b"k", None), good)
    parsed = F.from_json(F.col("value").cast("string"), "id long, name string")
    frame = pipe.frame().withColumn("order", parsed).select("partition", "offset", "order.id", "order.name")
    assert pipe.writer(frame).start().awaitTermination(60)
    assert pipe.offsets() == list(range(len(bad) + 4))
    rows = {row["offset"]: row["id"] for row in DeltaTable(pipe.table).to_pyarrow_table().to_pylist()}
    assert (rows[0], rows[len(rows) - 1]) == (7, 7)
    assert rows[1] is None


def test_aborted_and_open_transactions_are_never_seen_and_their_gaps_do_no_harm(pipe: Pipe) -> None:
    def transactional() -> Producer:
        producer = Producer({"bootstrap.servers": pipe.servers, "transactional.id": f"t-{uuid.uuid4().hex[:8]}"})
        producer.init_transactions(30)
        producer.begin_transaction()
        return producer

    committed = {"kafka.isolation.level": "read_committed"}
    for value, end in (("a", "commit_transaction"), ("lost", "abort_transaction"), ("b", "commit_transaction")):
        producer = transactional()
        pipe.produce(value, f"{value}2", producer=producer)
        getattr(producer, end)()
    still_open = transactional()
    pipe.produce("c", producer=still_open)
    pipe.produce("plain, behind the open one")
    pipe.run(**committed)
    assert pipe.values() == [b"a", b"a2", b"b", b"b2"]
    last_stable = pipe.group_offset()
    still_open.commit_transaction()
    pipe.run(**committed)
    assert pipe.values() == [b"a", b"a2", b"b", b"b2", b"c", b"plain, behind the open one"]
    assert pipe.group_offset() > last_stable == 9


def test_partition_added_while_the_query_runs_is_read_from_its_beginning(pipe: Pipe, kafka: Broker) -> None:
    pipe.produce("old")
    fast = {"kafka.metadata.max.age.ms": "500"}
    query = pipe.writer(pipe.frame(**fast)).trigger(processingTime="200 milliseconds").start()
    try:
        eventually(lambda: read_rows(pipe.table) == [(0, 0)])
        kafka.add_partitions(pipe.topic, 2)
        eventually(lambda: len(pipe.admin.list_topics(pipe.topic).topics[pipe.topic].partitions) == 2)
        pipe.produce("first", "second", partition=1)
        eventually(lambda: sorted(read_rows(pipe.table)) == [(0, 0), (1, 0), (1, 1)])
    finally:
        query.stop()
    positions = observed(pipe.servers, pipe.group)
    assert positions == {TopicPartition(pipe.topic, 0): 1, TopicPartition(pipe.topic, 1): 2}


def test_records_that_retention_has_removed_are_an_error_or_a_declared_loss_by_choice(
    pipe: Pipe, caplog: pytest.LogCaptureFixture
) -> None:
    pipe.produce(*(f"{n}" for n in range(5)))
    pipe.run()
    pipe.produce(*(f"{n}" for n in range(5, 20)))
    pipe.remove_before(15)
    with pytest.raises(
        DataLossError, match=rf"{pipe.topic}-0 begins at offset 15, and offsets 5 to 14 .*failOnDataLoss"
    ):
        pipe.run()
    assert pipe.offsets() == [0, 1, 2, 3, 4]
    assert pipe.group_offset() == 5
    with caplog.at_level(logging.WARNING):
        pipe.run(failOnDataLoss=False)
    assert f"{pipe.topic}-0 begins at offset 15, and offsets 5 to 14" in caplog.text
    assert pipe.offsets() == [0, 1, 2, 3, 4, 15, 16, 17, 18, 19]
    assert pipe.group_offset() == 20


def test_topic_that_was_deleted_and_created_again_is_an_error_or_a_declared_loss_by_choice(
    pipe: Pipe, kafka: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    pipe.produce(*(f"{n}" for n in range(10)))
    pipe.run()
    for future in pipe.admin.delete_topics([pipe.topic]).values():
        future.result()
    eventually(lambda: pipe.topic not in pipe.admin.list_topics().topics)
    kafka.create_topic(pipe.topic, 1)
    pipe.produce("new 0", "new 1", "new 2")
    with pytest.raises(DataLossError, match=rf"{pipe.topic}-0 ends at offset 3, and offset 10 .*created again"):
        pipe.run()
    assert len(pipe.values()) == 10
    with caplog.at_level(logging.WARNING):
        pipe.run(failOnDataLoss=False)
    assert f"{pipe.topic}-0 ends at offset 3" in caplog.text
    pipe.produce("new 3", "new 4")
    pipe.run(failOnDataLoss=False)
    rows = read_rows(pipe.table)
    assert [rows.count((0, n)) for n in (3, 4)] == [2, 2], "each once of the old topic, and once of the new"
    assert pipe.group_offset() == 5


def _remaining(servers: str, topic: str) -> list[int]:
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": f"look-{uuid.uuid4().hex}", "enable.partition.eof": True}
    )
    consumer.assign([Position(topic, 0, 0)])
    try:
        polled: Iterator[Any] = (consumer.poll(10) for _ in itertools.count())
        return [message.offset() for message in itertools.takewhile(_is_record, polled)]
    finally:
        consumer.close()


def _is_record(message: Any) -> bool:
    return message is not None and message.error() is None


def test_compacted_topic_with_gaps_is_read_to_its_end_every_record_once(
    spark: SparkSession, kafka: Broker, compacted: str, tmp_path: Path
) -> None:
    servers = kafka.bootstrap_servers
    eventually(lambda: len(_remaining(servers, compacted)) < 25, seconds=60)
    pipe = Pipe(spark, servers, compacted, tmp_path)
    pipe.run(maxOffsetsPerTrigger=7)
    assert {0, 4, 8} < set(pipe.offsets()) <= set(range(40))
    assert len(pipe.offsets()) < 25
    assert pipe.group_offset() == 40
    pipe.produce((b"other-0", b"again"))
    pipe.run()
    assert pipe.offsets()[-1] == 40
