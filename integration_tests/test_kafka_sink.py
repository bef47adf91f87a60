"""What KafkaSink promises beyond the contract of all sinks, on real brokers, call by call as the committer makes them."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)
from kafka import KafkaConsumer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import lockstep
from integration_tests.conftest import Broker, MakeTopic
from integration_tests.sessions import drop_file, file_stream
from integration_tests.targets import read_committed, read_records
from lockstep.broker import EmbeddedBroker
from lockstep.broker.embedded import free_ports
from lockstep.errors import CheckpointDirectoryError, ConfigurationError, UnknownTopicError
from lockstep.sinks import Attempt, CommitOutcome, CommitStatus, KafkaSink, PreparedEpoch, SinkContext
from lockstep.testing import failpoints

LINEAGE = "6f0f3e1c-0000-4000-8000-000000000002"


class Harness:
    """Plays the coordinator for one sink."""

    def __init__(self, spark: SparkSession, staging: Path, servers: str) -> None:
        self.spark = spark
        self.servers = servers
        self.staging = staging
        self.uid = f"feed-{uuid.uuid4().hex[:8]}"
        self.sinks: list[KafkaSink] = []

    def open(self, rows: DataFrame, *, returning: bool = False, highest: int = 1000, **arguments: Any) -> KafkaSink:
        sink = KafkaSink(arguments.pop("servers", self.servers), **arguments)
        staging = f"file:{self.staging}"
        sink.open(
            SinkContext(
                self.spark,
                self.uid,
                LINEAGE,
                rows.schema,
                "append",
                None,
                lambda: highest,
                staging,
                returning,
                lambda: 1,
            )
        )
        self.sinks.append(sink)
        return sink

    def stage(self, sink: KafkaSink, epoch: int, rows: DataFrame) -> PreparedEpoch:
        attempt = Attempt(epoch, f"{epoch}-1-{uuid.uuid4().hex}", LINEAGE, 1)
        handle = sink.begin(attempt)
        sink.write(handle, rows)
        return PreparedEpoch(attempt, json.loads(json.dumps(sink.pre_commit(handle))), 0)

    def commit(self, sink: KafkaSink, prepared: PreparedEpoch, seconds: float = 60) -> list[CommitOutcome]:
        """As the committer does: come back while the sink says RETRY. Returns all outcomes."""
        deadline = time.monotonic() + seconds
        outcomes = [sink.commit(prepared)]
        while outcomes[-1].status is CommitStatus.RETRY:
            assert time.monotonic() < deadline, outcomes[-1].reason
            time.sleep(0.2)
            outcomes.append(sink.commit(prepared))
        return outcomes

    def rows(self, *values: str) -> DataFrame:
        return self.spark.createDataFrame(
            [(f"k{n}", value) for n, value in enumerate(values)], "key string, value string"
        )

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()


@pytest.fixture
def make_harness(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[[str], Harness]]:
    made: list[Harness] = []

    def make(servers: str) -> Harness:
        made.append(Harness(spark, tmp_path / "staging", servers))
        return made[-1]

    yield make
    for harness in made:
        harness.close()


@pytest.fixture
def harness(make_harness: Callable[[str], Harness], kafka: Broker) -> Harness:
    return make_harness(kafka.bootstrap_servers)


@pytest.fixture(scope="module")
def strict_broker() -> Iterator[EmbeddedBroker]:
    """A broker that forgets idle producers and ends late transactions within seconds, instead of days and minutes."""
    properties = {
        "transactional.id.expiration.ms": "2000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "300",
    }
    with EmbeddedBroker(properties=properties) as broker:
        yield broker


def set_limit(servers: str, topic: str, limit: int) -> None:
    entry = ConfigEntry("max.message.bytes", str(limit), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": servers})  # must live until the answer is there
    admin.incremental_alter_configs([resource])[resource].result()


# --- records --------------------------------------------------------------------------------------------------------


def test_every_part_of_a_record_comes_from_its_column(harness: Harness, make_topic: MakeTopic) -> None:
    topic, now = make_topic(3), int(time.time() * 1000)
    rows = harness.spark.range(1).select(
        F.lit(7).cast("long").alias("account"),
        F.lit(b"\x00\xff").alias("body"),
        F.lit(2).alias("place"),
        F.timestamp_millis(F.lit(now)).alias("at"),
        F.array(F.struct(F.lit("trace").alias("key"), F.lit(b"t1").alias("value"))).alias("headers"),
    )
    sink = harness.open(rows, topic=topic, key="account", value="body", partition="place", timestamp="at")
    harness.commit(sink, harness.stage(sink, 0, rows))
    (record,) = read_records(harness.servers, topic)
    assert (record.key, record.value, record.partition, record.timestamp) == (b"7", b"\x00\xff", 2, now)
    assert record.headers == [("trace", b"t1")]


def test_rows_without_a_value_column_are_published_as_json_and_nulls_as_nulls(
    harness: Harness, make_topic: MakeTopic
) -> None:
    topic = make_topic(1)
    rows = harness.spark.createDataFrame([("a", 1), ("b", None)], "account string, total int")
    sink = harness.open(rows, topic=topic, key="account")
    harness.commit(sink, harness.stage(sink, 0, rows))
    assert [(r.key, json.loads(r.value)) for r in read_records(harness.servers, topic)] == [
        (b"a", {"account": "a", "total": 1}),
        (b"b", {"account": "b"}),
    ]
    tombstones = harness.spark.createDataFrame([("a", None)], "key string, value string")
    other = harness.open(tombstones, topic=topic)
    harness.commit(other, harness.stage(other, 1, tombstones))
    assert [(r.key, r.value) for r in read_records(harness.servers, topic)][2:] == [(b"a", None)]


def test_topic_column_sends_each_row_to_its_topic_and_unknown_ones_are_refused_before_the_decision(
    harness: Harness, make_topic: MakeTopic
) -> None:
    first, second = make_topic(1), make_topic(2)
    rows = harness.spark.createDataFrame(
        [(first, "one", 0), (second, "two", 1)], "dest string, value string, place int"
    )
    sink = harness.open(rows, topic_column="dest", partition="place")
    harness.commit(sink, harness.stage(sink, 0, rows))
    assert [r.value for r in read_records(harness.servers, first)] == [b"one"]
    assert [(r.value, r.partition) for r in read_records(harness.servers, second)] == [(b"two", 1)]
    for dest, place, error, said in (
        (f"{second}x", 0, UnknownTopicError, f"Did you mean .*{second}"),
        (second, 5, lockstep.LockstepError, "can't take partition 5, and the topic has 2"),
        (None, 0, Exception, "a row without a topic"),
    ):
        bad = harness.spark.createDataFrame([(dest, "x", place)], "dest string, value string, place int")
        with pytest.raises(error, match=said):
            harness.stage(sink, 1, bad)


@pytest.mark.parametrize(
    "column, said",
    [
        ("repeat('x', 2000000) as value", r"a record of 2000\d\d\d bytes; the limit is \d+.*row 0 of partition"),
        ("'x' as value, 9 as place", r"partition 9, and the topic has 1 \(row 0 of partition"),
        ("'x' as value, cast(-5 as bigint) as at", r"the timestamp -5 \(row 0 of partition"),
        ("'x' as value, timestampadd(DAY, 2, now()) as at", r"message.timestamp.after.max.ms forbids it \(row 0"),
        (
            "'x' as value, array(named_struct('key', cast(null as string), 'value', cast('v' as binary))) as headers",
            "a header without a key",
        ),
    ],
)
def test_row_that_kafka_would_never_take_fails_the_epoch_before_the_decision_with_its_position(
    harness: Harness, make_topic: MakeTopic, column: str, said: str
) -> None:
    topic = make_topic(1)
    rows = harness.spark.sql(f"SELECT {column}")
    given = {"partition": "place"} if "place" in column else {"timestamp": "at"} if "as at" in column else {}
    sink = harness.open(rows, topic=topic, **given)
    with pytest.raises(lockstep.LockstepError, match=said):
        harness.stage(sink, 0, rows)
    assert read_committed(harness.servers, topic) == []


def test_compacted_topic_takes_no_row_without_a_key(harness: Harness, make_topic: MakeTopic) -> None:
    topic = make_topic(1, {"cleanup.policy": "compact"})
    with pytest.raises(ConfigurationError, match=r"is compacted, so its records need keys. Name a column with key="):
        harness.open(harness.rows("a").select("value"), topic=topic)
    rows = harness.spark.sql("SELECT cast(null as string) AS key, 'a' AS value")
    sink = harness.open(rows, topic=topic)
    with pytest.raises(lockstep.LockstepError, match="a row without a key: the topic is compacted"):
        harness.stage(sink, 0, rows)
    by_column = harness.open(rows.withColumn("topic", F.lit(topic)))
    with pytest.raises(lockstep.LockstepError, match=f"topic {topic} can't take 1 rows without a key"):
        harness.stage(by_column, 0, rows.withColumn("topic", F.lit(topic)))


def test_compressed_record_above_the_clients_limit_fails_before_the_decision(
    harness: Harness, make_topic: MakeTopic
) -> None:
    """The producer compares before it compresses."""
    rows = harness.rows("x" * 2_000_000)
    sink = harness.open(rows, topic=make_topic(1), options={"kafka.compression.type": "zstd"})
    with pytest.raises(lockstep.LockstepError, match="a record of 2000"):
        harness.stage(sink, 0, rows)


def test_record_that_became_too_large_names_its_row_and_is_published_once_the_limit_is_raised(
    harness: Harness, make_topic: MakeTopic
) -> None:
    topic = make_topic(1)
    rows = harness.rows("small", "x" * 5000)
    sink = harness.open(rows, topic=topic, options={"kafka.max.block.ms": "5000"})
    prepared = harness.stage(sink, 0, rows.coalesce(1))
    set_limit(harness.servers, topic, 1000)
    outcome = harness.commit(sink, prepared)[-1]
    assert outcome.status is CommitStatus.FAILED
    assert "row 1 of staged file" in outcome.reason
    assert "max.message.bytes" in outcome.reason
    assert read_committed(harness.servers, topic) == []
    set_limit(harness.servers, topic, 100_000)
    assert harness.commit(sink, prepared)[-1].status is CommitStatus.DONE
    set_limit(harness.servers, topic, 1000)  # with a producer that knows the old limit, and splits batches for ever
    late = harness.stage(sink, 1, harness.rows(*["y" * 600] * 3).coalesce(1))
    assert harness.commit(sink, late)[-1].status is CommitStatus.DONE
    assert read_committed(harness.servers, topic) == [b"small", b"x" * 5000, *[b"y" * 600] * 3]


# --- transactions ---------------------------------------------------------------------------------------------------


def test_no_transaction_is_open_between_epochs(harness: Harness, make_topic: MakeTopic) -> None:
    """Flink keeps one open, which holds back every reader of the topic: FLIP-319, FLIP-572."""
    topic = make_topic(1)
    rows = harness.rows("a")
    sink = harness.open(rows, topic=topic)
    for epoch in range(2):
        prepared = harness.stage(sink, epoch, rows)
        assert _last_stable_offset(harness.servers, topic) == _end(harness.servers, topic), "staged, not published"
        harness.commit(sink, prepared)
        assert _last_stable_offset(harness.servers, topic) == _end(harness.servers, topic)


def test_empty_epoch_opens_no_transaction(harness: Harness, make_topic: MakeTopic) -> None:
    """An empty transaction fails to commit in Flink: PR 22126."""
    topic = make_topic(1)
    rows = harness.rows("a")
    sink = harness.open(rows, topic=topic)
    before = _end(harness.servers, f"lockstep-markers-{harness.uid}")
    assert harness.commit(sink, harness.stage(sink, 0, rows.limit(0)))[-1].status is CommitStatus.DONE
    assert _end(harness.servers, topic) == 0
    assert _end(harness.servers, f"lockstep-markers-{harness.uid}") == before


def test_expired_producer_id_is_replaced(make_harness: Callable[[str], Harness], strict_broker: EmbeddedBroker) -> None:
    """An expired mapping restarts Flink's job for ever: Kafka connector PR 225."""
    harness = make_harness(strict_broker.bootstrap_servers)
    strict_broker.create_topic("expired", 1)
    sink = harness.open(harness.rows("a"), topic="expired")
    harness.commit(sink, harness.stage(sink, 0, harness.rows("a")))
    prepared = harness.stage(sink, 1, harness.rows("b"))
    _wait_until_forgotten(strict_broker.bootstrap_servers, f"lockstep-{LINEAGE}-{harness.uid}-0")
    outcomes = harness.commit(sink, prepared)
    assert outcomes[-1].status is CommitStatus.DONE
    assert read_committed(harness.servers, "expired") == [b"a", b"b"]


def test_transaction_that_takes_too_long_is_published_by_the_next_try(
    make_harness: Callable[[str], Harness], strict_broker: EmbeddedBroker
) -> None:
    """The broker ends it and fences the producer, which looks like another driver, and is none."""
    harness = make_harness(strict_broker.bootstrap_servers)
    strict_broker.create_topic("late", 1)
    sink = harness.open(harness.rows("a"), topic="late", options={"kafka.transaction.timeout.ms": "1000"})
    late: list[str] = []

    def sleep_once(point: str) -> None:
        if point == "kafka.commit.before" and not late:
            late.append(point)
            time.sleep(3)

    failpoints.watch(sleep_once)
    try:
        outcomes = harness.commit(sink, harness.stage(sink, 0, harness.rows("a")))
    finally:
        failpoints.clear()
    assert [outcome.status for outcome in outcomes] == [CommitStatus.RETRY, CommitStatus.DONE]
    assert "raise kafka.transaction.timeout.ms=1000" in outcomes[0].reason
    assert read_committed(harness.servers, "late") == [b"a"]


def test_commit_whose_answer_was_lost_is_not_repeated(harness: Harness, make_topic: MakeTopic) -> None:
    """A librdkafka producer can't resume a transaction after a crash (Arroyo PR 218): here the marker tells."""
    topic = make_topic(1)
    sink = harness.open(harness.rows("a"), topic=topic)
    prepared = harness.stage(sink, 0, harness.rows("a"))

    def lose_the_answer(point: str) -> None:
        if point == "kafka.commit.after":
            raise ConnectionError("the answer is lost")

    failpoints.watch(lose_the_answer)
    try:
        with pytest.raises(ConnectionError):
            sink.commit(prepared)
    finally:
        failpoints.clear()
    assert harness.commit(sink, prepared)[-1] == CommitOutcome.already_done(prepared.attempt.id)
    assert read_committed(harness.servers, topic) == [b"a"]


def test_broker_that_is_killed_and_comes_back_loses_and_repeats_nothing(
    make_harness: Callable[[str], Harness], tmp_path: Path
) -> None:
    with EmbeddedBroker(data_dir=tmp_path / "broker") as broker:
        harness = make_harness(broker.bootstrap_servers)
        broker.create_topic("restarted", 1)
        quick = {"kafka.max.block.ms": "3000", "kafka.delivery.timeout.ms": "3000", "kafka.request.timeout.ms": "1000"}
        sink = harness.open(harness.rows("a"), topic="restarted", options={**quick, "kafka.linger.ms": "0"})
        harness.commit(sink, harness.stage(sink, 0, harness.rows("a")))
        prepared = harness.stage(sink, 1, harness.rows("b"))

        def kill(point: str) -> None:
            if point == "kafka.commit.before":
                failpoints.clear()
                broker.kill()

        failpoints.watch(kill)
        first = sink.commit(prepared)
        assert first.status is CommitStatus.RETRY, "the broker is down"
        broker.start()
        harness.commit(sink, prepared)
        assert read_committed(broker.bootstrap_servers, "restarted") == [b"a", b"b"]
        harness.close()


# --- markers --------------------------------------------------------------------------------------------------------


def test_marker_topic_is_compacted_and_one_that_is_not_is_refused(harness: Harness, make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    sink = harness.open(harness.rows("a"), topic=topic)
    harness.commit(sink, harness.stage(sink, 0, harness.rows("a")))
    keys = [r.key.decode() for r in read_records(harness.servers, f"lockstep-markers-{harness.uid}")]
    assert keys == [f"{LINEAGE}/{harness.uid}", f"{LINEAGE}/{harness.uid}/0"]
    for forgetful in (make_topic(1), make_topic(2, {"cleanup.policy": "compact"})):
        with pytest.raises(ConfigurationError, match="markers need one partition that is compacted"):
            harness.open(harness.rows("a"), topic=topic, marker_topic=forgetful)


def test_other_transactional_id_prefix_is_refused_since_it_would_not_stop_the_driver_before(
    harness: Harness, make_topic: MakeTopic
) -> None:
    topic = make_topic(1)
    harness.open(harness.rows("a"), topic=topic)
    with pytest.raises(ConfigurationError, match="this sink began with 'lockstep-'"):
        harness.open(harness.rows("a"), topic=topic, returning=True, transactional_id_prefix="other-")


def test_staged_file_that_is_gone_is_a_failure_with_its_remedy(harness: Harness, make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    sink = harness.open(harness.rows("a"), topic=topic)
    prepared = harness.stage(sink, 0, harness.rows("a"))
    for file in harness.staging.glob("*/part-*"):
        file.unlink()
    outcome = sink.commit(prepared)
    assert outcome.status is CommitStatus.FAILED
    assert "Restore it from a backup" in outcome.reason
    assert _last_stable_offset(harness.servers, topic) == _end(harness.servers, topic), "no transaction is left open"


def test_markers_that_are_gone_are_an_error_and_not_taken_for_nothing_published(
    harness: Harness, make_topic: MakeTopic
) -> None:
    topic = make_topic(1)
    with pytest.raises(CheckpointDirectoryError, match="was deleted, or this is another cluster"):
        harness.open(harness.rows("a"), topic=topic, returning=True)


def test_markers_are_read_behind_a_transaction_that_somebody_else_has_open(
    harness: Harness, make_topic: MakeTopic
) -> None:
    """The last stable offset hides what was committed after it: taken for the end, an epoch would be published twice."""
    from confluent_kafka import Producer

    topic = make_topic(1)
    sink = harness.open(harness.rows("a"), topic=topic)
    other = Producer({"bootstrap.servers": harness.servers, "transactional.id": f"other-{harness.uid}"})
    other.init_transactions()
    other.begin_transaction()
    other.produce(f"lockstep-markers-{harness.uid}", key="other", value="open")
    other.flush()
    prepared = harness.stage(sink, 0, harness.rows("a"))
    assert sink.commit(prepared).status is CommitStatus.RETRY, "it can't be told what is published"
    other.abort_transaction()
    harness.commit(sink, prepared)
    other.begin_transaction()
    other.produce(f"lockstep-markers-{harness.uid}", key="other", value="open")
    other.flush()
    harness.commit(sink, harness.stage(sink, 1, harness.rows("b")))  # hidden behind the open one
    again = harness.open(harness.rows("a"), topic=topic, returning=True)
    other.abort_transaction()
    assert again.commit(prepared).status is CommitStatus.ALREADY_DONE
    assert read_committed(harness.servers, topic) == [b"a", b"b"]


# --- access ---------------------------------------------------------------------------------------------------------


def test_each_missing_acl_is_named_before_data_moves(make_harness: Callable[[str], Harness]) -> None:
    with _guarded_broker() as (broker, guarded):
        harness = make_harness(guarded)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        broker.create_topic("secure", 1)
        login = (
            'org.apache.kafka.common.security.plain.PlainLoginModule required username="writer" password="hunter22";'
        )
        options = {
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": login,
        }
        markers = f"lockstep-markers-{harness.uid}"

        def refused(said: str) -> None:
            with pytest.raises(ConfigurationError, match=said) as caught:
                harness.open(harness.rows("a"), topic="secure", options=options)
            assert "hunter22" not in str(caught.value)

        refused(r"Not authorized for topic secure .*DESCRIBE and WRITE on TOPIC secure")
        _allow(admin, ResourceType.TOPIC, "secure", AclOperation.DESCRIBE)
        refused(r"Not authorized to write to secure")
        _allow(admin, ResourceType.TOPIC, "secure", AclOperation.WRITE)
        refused(rf"marker topic '{markers}' is missing and can't be created")
        broker.create_topic(markers, 1, {"cleanup.policy": "compact"})
        _allow(admin, ResourceType.TOPIC, markers, AclOperation.DESCRIBE)
        refused(rf"Not authorized for the marker topic '{markers}'.*READ and WRITE")
        _allow(admin, ResourceType.TOPIC, markers, AclOperation.READ)
        _allow(admin, ResourceType.TOPIC, markers, AclOperation.WRITE)
        refused(r"DESCRIBE and WRITE on the TRANSACTIONAL_ID prefix")
        _allow(admin, ResourceType.TRANSACTIONAL_ID, "lockstep-", AclOperation.WRITE, ResourcePatternType.PREFIXED)
        sink = harness.open(harness.rows("a"), topic="secure", options=options)
        prepared = harness.stage(sink, 0, harness.rows("a"))
        assert harness.commit(sink, prepared)[-1].status is CommitStatus.DONE
        assert read_committed(broker.bootstrap_servers, "secure") == [b"a"]
        assert "hunter22" not in f"{sink.describe()} {prepared.handle}"
        harness.close()


def test_producer_setting_that_kafka_refuses_is_named_before_data_moves(
    harness: Harness, make_topic: MakeTopic
) -> None:
    with pytest.raises(ConfigurationError, match=r"delivery\.timeout\.ms should be equal to or larger than"):
        harness.open(harness.rows("a"), topic=make_topic(1), options={"kafka.delivery.timeout.ms": "1000"})


def test_missing_topic_and_unreachable_broker_are_errors_before_data_moves(
    harness: Harness, make_topic: MakeTopic
) -> None:
    topic = make_topic(1)
    with pytest.raises(UnknownTopicError, match=f"Did you mean .*{topic}"):
        harness.open(harness.rows("a"), topic=f"{topic}x")
    with pytest.raises(lockstep.LockstepError, match="No Kafka broker answered"):
        harness.open(
            harness.rows("a"),
            servers="127.0.0.1:1",
            topic=topic,
            options={"kafka.default.api.timeout.ms": "1000", "kafka.request.timeout.ms": "500"},
        )


# --- in a query -----------------------------------------------------------------------------------------------------


def test_other_delivery_guarantee_is_another_sink(
    spark: SparkSession, kafka: Broker, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """What one has prepared, the other could not commit."""
    topic = make_topic(1)
    drop_file(tmp_path / "in", 0, ['{"id": 0, "name": "n"}'])
    stream = file_stream(spark, tmp_path / "in")

    def start(delivery: str) -> lockstep.CheckpointedQuery:
        sink = KafkaSink(kafka.bootstrap_servers, topic=topic, delivery=delivery)
        writer = lockstep.checkpointed(stream).sink(sink, uid=f"feed-{topic}")
        return writer.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True).start()

    start("exactly_once").awaitTermination(60)
    with pytest.raises(CheckpointDirectoryError, match="give the new sink a uid of its own"):
        start("at_least_once")


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_query_publishes_every_row_across_a_restart(
    spark: SparkSession, kafka: Broker, make_topic: MakeTopic, tmp_path: Path, delivery: str
) -> None:
    topic, inbox = make_topic(1), tmp_path / "in"
    stream = file_stream(spark, inbox)
    for number in range(2):
        drop_file(inbox, number, [f'{{"id": {number}, "name": "n{number}"}}'])
        sink = KafkaSink(kafka.bootstrap_servers, topic=topic, key="name", delivery=delivery)
        writer = lockstep.checkpointed(stream).sink(sink, uid=f"feed-{topic}")
        query = writer.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True).start()
        query.awaitTermination(60)
    assert [json.loads(value)["id"] for value in read_committed(kafka.bootstrap_servers, topic)] == [0, 1]
    assert list((tmp_path / "cp" / "lockstep" / "staging").glob("*/*")) == [], "staged files are gone"


def _last_stable_offset(servers: str, topic: str) -> int:
    return _end(servers, topic, "read_committed")


def _end(servers: str, topic: str, isolation: str = "read_uncommitted") -> int:
    consumer = KafkaConsumer(bootstrap_servers=servers, isolation_level=isolation)
    partition = TopicPartition(topic, 0)
    end = consumer.end_offsets([partition])[partition]
    consumer.close()
    return int(end)


def _wait_until_forgotten(servers: str, transactional_id: str) -> None:
    from kafka import KafkaAdminClient
    from kafka.errors import TransactionalIdNotFoundError

    admin = KafkaAdminClient(bootstrap_servers=servers)
    deadline = time.monotonic() + 30
    try:
        while time.monotonic() < deadline:
            try:
                admin.describe_transactions([transactional_id])
            except TransactionalIdNotFoundError:
                return
            time.sleep(0.2)
    finally:
        admin.close()
    pytest.fail("the broker must forget the transactional id")


def _allow(
    admin: AdminClient,
    kind: ResourceType,
    name: str,
    operation: AclOperation,
    pattern: ResourcePatternType = ResourcePatternType.LITERAL,
) -> None:
    acl = AclBinding(kind, name, pattern, "User:writer", "*", operation, AclPermissionType.ALLOW)
    for future in admin.create_acls([acl]).values():
        future.result()


@contextmanager
def _guarded_broker() -> Iterator[tuple[EmbeddedBroker, str]]:
    """A broker with ACLs on a second listener, where clients log in; on the first everything is allowed."""
    port, controller, guarded = free_ports(3)
    at = "127.0.0.1"
    properties = {
        "listeners": f"PLAINTEXT://{at}:{port},SASL://{at}:{guarded},CONTROLLER://{at}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{at}:{port},SASL://{at}:{guarded}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            'username="admin" password="admin" user_writer="hunter22";'
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with EmbeddedBroker(port=port, controller_port=controller, properties=properties) as broker:
        yield broker, f"{at}:{guarded}"
