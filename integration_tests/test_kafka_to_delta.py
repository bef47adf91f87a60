"""The whole path in one process: Kafka source, checkpoints, Delta sink, group offsets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import lockstep
from integration_tests.conftest import Broker, MakeTopic
from integration_tests.crash_site import CrashSite, assert_exactly_once, observe
from integration_tests.targets import read_rows
from lockstep.errors import CheckpointDirectoryError, MissingGroupOffsetsError
from lockstep.sinks import DeltaSink
from lockstep.sources import KafkaSource


def rows_of(stream: DataFrame) -> DataFrame:
    return stream.select("partition", "offset", F.col("value").cast("string").cast("long").alias("id"))


def source(site: CrashSite, **arguments: Any) -> KafkaSource:
    options = {"maxOffsetsPerTrigger": "50"}
    return KafkaSource(site.bootstrap_servers, topics=[site.topic], group_id=site.group, options=options, **arguments)


def run(site: CrashSite, stream: DataFrame) -> lockstep.CheckpointedQuery:
    writer = lockstep.checkpointed(rows_of(stream)).sink(DeltaSink(site.table), uid="lake")
    query = writer.option("checkpointLocation", site.checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def test_epochs_become_visible_after_the_decision_all_at_once_and_before_their_offsets(
    spark: SparkSession, site: CrashSite
) -> None:
    """A reader that looks all the time, through delta-rs, kafka-python and Spark's raw log files."""
    with observe(site) as observer:
        for _ in range(4):
            site.produce(150)
            run(site, source(site, startup_mode="earliest").load(spark))
            assert sum(observer.group_offsets().values()) == site.produced, "the drain includes the group's offsets"
    assert_exactly_once(site, observer)
    assert len(observer.partial_views["the Delta table"]) >= 4, "the observer must have seen the table grow"


def test_plain_kafka_stream_commits_offsets_to_the_group_in_its_option(spark: SparkSession, site: CrashSite) -> None:
    site.produce(100)
    stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", site.bootstrap_servers)
    stream = stream.option("subscribe", site.topic).option("startingOffsets", "earliest")
    query = run(site, stream.option("lockstep.group.id", site.group).load())
    assert query.offset_metrics["commits_succeeded"] > 0
    assert_exactly_once(site, observe(site))


def test_missing_group_is_an_error_at_a_first_start_and_what_was_restored_wins_later(
    spark: SparkSession, site: CrashSite
) -> None:
    site.produce(100)
    strict = {"startup_mode": "group_offsets", "offset_reset": "none"}
    with pytest.raises(MissingGroupOffsetsError, match=site.group):
        run(site, source(site, **strict).load(spark))
    assert not Path(site.checkpoint, "offsets").exists(), "no data has moved"
    run(site, source(site, startup_mode="earliest", commit_mode="disabled").load(spark))
    site.produce(100)
    run(site, source(site, **strict).load(spark))  # the group is still missing, and does not matter
    assert sorted(read_rows(site.table)) == site.expected_rows()


def test_directory_of_a_query_on_other_topics_is_refused(
    spark: SparkSession, site: CrashSite, kafka: Broker, make_topic: MakeTopic
) -> None:
    site.produce(10)
    run(site, source(site, startup_mode="earliest").load(spark))
    other = KafkaSource(kafka.bootstrap_servers, topics=[make_topic(2)], startup_mode="earliest").load(spark)
    with pytest.raises(CheckpointDirectoryError, match="another query"):
        run(site, other)


def test_rows_produced_while_offsets_cannot_be_committed_are_not_held_back(
    spark: SparkSession, site: CrashSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Committed offsets are for people and tools: a failure is a warning and a number."""
    from lockstep.sources.kafka_admin import KafkaAdmin

    def refuse(*_: Any) -> None:
        raise OSError("no coordinator today")

    site.produce(100)
    with monkeypatch.context() as broken:
        broken.setattr(KafkaAdmin, "commit_group_offsets", refuse)
        broken.setattr("lockstep.engine.pipeline._FLUSH_SECONDS", 0.5)
        query = run(site, source(site, startup_mode="earliest").load(spark))
    assert query.offset_metrics["commits_failed"] > 0
    assert query.offset_metrics["commits_succeeded"] == 0
    assert sorted(read_rows(site.table)) == site.expected_rows()
    run(site, source(site, startup_mode="earliest").load(spark))  # nothing new: the last positions are committed again
    assert_exactly_once(site, observe(site))
