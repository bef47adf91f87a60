"""The Kafka source on a real broker and a real Spark: Flink's startup modes, discovery, and errors that say what to do."""

from __future__ import annotations

import socket
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from integration_tests.native_sink import Run, commit, eventually, observed, produce
from lockstep.errors import BrokerUnreachableError, ConfigurationError, UnknownTopicError
from lockstep.protocol.barrier import TopicPartition, parse_offset_log
from lockstep.sources import KafkaSource, OffsetReset, StartupMode
from lockstep.sources.kafka_admin import KafkaAdmin
from lockstep.sources.plan import KafkaStream, stream_sources

if TYPE_CHECKING:
    from integration_tests.conftest import Broker, MakeTopic

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # sockets of pyspark's collect()
    pytest.mark.filterwarnings("ignore:.*socket.socket:pytest.PytestUnraisableExceptionWarning"),
]

AN_HOUR_AGO = int(time.time() - 3600) * 1000


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Run:
    return Run(spark, tmp_path)


@pytest.fixture(scope="module")
def ten(kafka: Broker, make_topic: MakeTopic) -> str:
    """Two partitions of five records, ``p0-0`` to ``p1-4``, written an hour ago, the second partition a second later."""
    topic = make_topic(2)
    for partition in range(2):
        for number in range(5):
            at = AN_HOUR_AGO + partition * 1000 + number
            produce(kafka.bootstrap_servers, topic, partition, f"p{partition}-{number}", timestamp=at)
    return topic


def of(partition: int, first: int, last: int = 4) -> set[str]:
    return {f"p{partition}-{number}" for number in range(first, last + 1)}


def test_earliest_reads_all_there_is(spark: SparkSession, kafka: Broker, ten: str, run: Run) -> None:
    assert run.to_the_end(KafkaSource(kafka.bootstrap_servers, ten).load(spark)) == of(0, 0) | of(1, 0)


def test_latest_reads_only_what_comes_after_the_first_start(
    spark: SparkSession, kafka: Broker, topic: str, run: Run
) -> None:
    servers = kafka.bootstrap_servers
    produce(servers, topic, 0, "old")
    source = KafkaSource(servers, topic, startup_mode=StartupMode.LATEST)
    query = run.start(source.load(spark), processingTime="100 milliseconds")
    try:
        eventually(lambda: (run.checkpoint / "sources" / "0" / "0").exists())
        produce(servers, topic, 0, "new")
        produce(servers, topic, 1, "new too")
        eventually(lambda: run.values() == {"new", "new too"})
    finally:
        query.stop()


def test_group_offsets_are_continued_from_and_fall_back_to_the_reset_strategy(
    spark: SparkSession, kafka: Broker, ten: str, group: str, run: Run
) -> None:
    commit(kafka.bootstrap_servers, group, ten, 3)
    source = KafkaSource(kafka.bootstrap_servers, ten, group_id=group)
    assert run.to_the_end(source.load(spark)) == of(0, 3) | of(1, 0)


def test_timestamp_starts_at_the_first_record_not_older_and_else_at_the_end(
    spark: SparkSession, kafka: Broker, ten: str, run: Run
) -> None:
    source = KafkaSource(kafka.bootstrap_servers, [ten], timestamp=AN_HOUR_AGO + 1002)
    assert run.to_the_end(source.load(spark)) == of(1, 2)


def test_specific_offsets_fall_back_to_the_group_then_to_the_reset_strategy(
    spark: SparkSession, kafka: Broker, ten: str, group: str, run: Run
) -> None:
    commit(kafka.bootstrap_servers, group, ten, 1, 2)
    source = KafkaSource(kafka.bootstrap_servers, ten, group_id=group, specific_offsets={ten: {0: 4}})
    assert run.to_the_end(source.load(spark)) == of(0, 4) | of(1, 2)


def test_restored_positions_win_over_the_startup_mode(
    spark: SparkSession, kafka: Broker, topic: str, group: str, run: Run
) -> None:
    servers = kafka.bootstrap_servers
    produce(servers, topic, 0, "a", "b")
    run.to_the_end(KafkaSource(servers, topic).load(spark))
    produce(servers, topic, 0, "c")
    commit(servers, group, topic, 0)
    missing = KafkaSource(servers, topic, group_id=f"{group}-none", offset_reset=OffsetReset.NONE)
    assert run.to_the_end(missing.load(spark)) == {"a", "b", "c"}, "nothing is refused at a restart"
    produce(servers, topic, 0, "d")
    for source in (
        KafkaSource(servers, topic, startup_mode="latest"),
        KafkaSource(servers, topic, group_id=group),
        KafkaSource(servers, topic, specific_offsets={(topic, 0): 0}),
    ):
        assert run.to_the_end(source.load(spark)) == {"a", "b", "c", "d"}


def test_first_start_is_refused_when_the_group_has_no_offsets_and_reset_is_none(
    spark: SparkSession, kafka: Broker, ten: str, group: str, run: Run
) -> None:
    fast = {"fetchOffset.retryIntervalMs": "10"}
    source = KafkaSource(kafka.bootstrap_servers, ten, group_id=group, offset_reset="none", options=fast)
    frame = source.load(spark)
    [stream] = stream_sources(frame)
    assert isinstance(stream, KafkaStream)
    assert group in (stream.startup_problem or "")
    with pytest.raises(StreamingQueryException, match=group):
        run.to_the_end(frame)
    commit(kafka.bootstrap_servers, group, ten, 5, 3)
    assert run.to_the_end(source.load(spark)) == of(1, 3)


def test_partition_found_later_starts_at_its_beginning(
    spark: SparkSession, kafka: Broker, make_topic: MakeTopic, run: Run
) -> None:
    servers, topic = kafka.bootstrap_servers, make_topic(1)
    produce(servers, topic, 0, "old")
    query = run.start(KafkaSource(servers, topic, startup_mode="latest").load(spark), processingTime="500 milliseconds")
    try:
        eventually(lambda: (run.checkpoint / "sources" / "0" / "0").exists())
        kafka.add_partitions(topic, 2)
        produce(servers, topic, 1, "first", "second")
        eventually(lambda: run.values() == {"first", "second"})
    finally:
        query.stop()


def test_pattern_stands_for_whole_names_and_partitions_for_themselves(
    spark: SparkSession, kafka: Broker, ten: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    servers = kafka.bootstrap_servers
    kafka.create_topic(f"{ten}-archive", 1)
    produce(servers, f"{ten}-archive", 0, "archived")
    whole = KafkaSource(servers, topic_pattern=ten[:-1] + ".").load(spark)
    assert Run(spark, tmp_path / "pattern").to_the_end(whole) == of(0, 0) | of(1, 0)
    one = KafkaSource(servers, partitions={ten: [1]}).load(spark)
    assert Run(spark, tmp_path / "partition").to_the_end(one) == of(1, 0)


def test_options_reach_spark_and_the_client(spark: SparkSession, kafka: Broker, ten: str, run: Run) -> None:
    options = {"includeHeaders": True, "maxOffsetsPerTrigger": 4, "kafka.client.rack": "r1"}
    frame = KafkaSource(kafka.bootstrap_servers, ten, options=options).load(spark)
    assert "headers" in frame.columns
    [stream] = stream_sources(frame)
    assert isinstance(stream, KafkaStream)
    assert stream.client_settings["client.rack"] == "r1"
    assert run.to_the_end(frame) == of(0, 0) | of(1, 0)
    assert len([name for name in (run.checkpoint / "commits").iterdir() if name.name.isdigit()]) >= 3


def test_record_that_cannot_be_deserialised_is_skipped_or_fails_the_query_by_choice(
    spark: SparkSession, kafka: Broker, topic: str, tmp_path: Path
) -> None:
    produce(kafka.bootstrap_servers, topic, 0, '{"n": "one"}', "no JSON", '{"n": "two"}')
    records = KafkaSource(kafka.bootstrap_servers, topic).load(spark)

    def parsed(mode: str) -> DataFrame:
        text = f"from_json(CAST(value AS STRING), 'n STRING', map('mode', '{mode}')).n AS value"
        return records.selectExpr(text).where("value IS NOT NULL")

    assert Run(spark, tmp_path / "skip").to_the_end(parsed("PERMISSIVE")) == {"one", "two"}
    with pytest.raises(StreamingQueryException, match="MALFORMED_RECORD"):
        Run(spark, tmp_path / "fail").to_the_end(parsed("FAILFAST"))


def test_unknown_topic_is_an_error_at_load_with_the_name_that_was_meant(
    spark: SparkSession, kafka: Broker, ten: str
) -> None:
    wrong = ten[:-1] + "_"
    with pytest.raises(UnknownTopicError, match=f"'{wrong}'.*Did you mean.*{ten}"):
        KafkaSource(kafka.bootstrap_servers, [ten, wrong]).load(spark)
    with pytest.raises(UnknownTopicError, match=f"{ten}-7"):
        KafkaSource(kafka.bootstrap_servers, partitions={ten: [0, 7]}).load(spark)
    with pytest.raises(UnknownTopicError, match="matches the pattern"):
        KafkaSource(kafka.bootstrap_servers, topic_pattern="no-such-.*").load(spark)
    with pytest.raises(ConfigurationError, match="regular expression"):
        KafkaSource(kafka.bootstrap_servers, topic_pattern="(").load(spark)
    with pytest.raises(UnknownTopicError, match=f"{ten}-9"):
        KafkaSource(kafka.bootstrap_servers, ten, specific_offsets={(ten, 9): 0}).load(spark)


def test_unreachable_broker_is_an_error_at_load_within_bounded_time(spark: SparkSession) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        options = {"kafka.default.api.timeout.ms": "2000"}
        started = time.monotonic()
        with pytest.raises(BrokerUnreachableError, match=address):
            KafkaSource(address, "orders", options=options).load(spark)
        assert time.monotonic() - started < 8


def test_unknown_mode_and_option_are_errors_before_anything_is_asked() -> None:
    with pytest.raises(ConfigurationError, match="group_offsets"):
        KafkaSource("nowhere:1", "orders", startup_mode="committed")
    with pytest.raises(ConfigurationError, match="includeHeaders"):
        KafkaSource("nowhere:1", "orders", options={"includeHeader": True})


def test_group_offsets_are_seen_and_set_as_other_clients_see_and_set_them(
    spark: SparkSession, kafka: Broker, ten: str, group: str
) -> None:
    servers = kafka.bootstrap_servers
    with KafkaAdmin(spark, {"bootstrap.servers": servers}) as admin:
        assert admin.group_offsets(group) == {}
        admin.commit_group_offsets(group, {TopicPartition(ten, 0): 3, TopicPartition(ten, 1): 4})
        assert observed(servers, group) == {TopicPartition(ten, 0): 3, TopicPartition(ten, 1): 4}
        commit(servers, group, ten, 1)
        assert admin.group_offsets(group) == {TopicPartition(ten, 0): 1, TopicPartition(ten, 1): 4}
        with pytest.raises(UnknownTopicError, match="no-such-topic"):
            admin.commit_group_offsets(group, {TopicPartition("no-such-topic", 0): 3})


def test_sources_are_in_the_order_of_the_offset_log(
    spark: SparkSession, kafka: Broker, ten: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    other = make_topic(1)
    produce(kafka.bootstrap_servers, other, 0, "x")
    a, b = (KafkaSource(kafka.bootstrap_servers, topic, group_id=topic).load(spark) for topic in (ten, other))
    rate = spark.readStream.format("rate").load()
    columns = "CAST(value AS STRING) AS value"
    union = (
        b.selectExpr(columns).union(rate.selectExpr(columns)).union(a.selectExpr(columns)).union(b.selectExpr(columns))
    )
    join = a.select("value").join(a.select("value"), "value").select("value")
    for name, frame, topics in (("union", union, [other, None, ten, other]), ("join", join, [ten, ten])):
        sources = stream_sources(frame)
        assert [getattr(source, "group_id", None) for source in sources] == topics
        checkpoint = tmp_path / name
        query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        assert query.trigger(availableNow=True).start().awaitTermination(60)
        barrier = parse_offset_log(0, (checkpoint / "offsets" / "0").read_text())
        assert len(barrier.positions) == len(sources)
        for source, topic in zip(sources, topics, strict=True):
            if topic is not None:
                assert {tp.topic for tp in barrier.kafka_offsets(source.index)} == {topic}
