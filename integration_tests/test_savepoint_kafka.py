"""Savepoints and rewind of a query that reads Kafka: offsets, new partitions and topics, consumer groups; without state."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

import lockstep
from integration_tests.conftest import Broker, MakeTopic
from integration_tests.crash_site import CrashSite, observe
from integration_tests.records import produce
from integration_tests.targets import read_rows
from integration_tests.test_kafka_to_delta import rows_of
from lockstep.errors import CheckpointDirectoryError, ConfigurationError
from lockstep.savepoint.rewind import plan_rewind, rewind
from lockstep.sinks import DeltaSink, FileSink
from lockstep.sources import KafkaSource


def run(spark: SparkSession, site: CrashSite, topics: list[str] | None = None, **options: Any) -> None:
    source = KafkaSource(
        site.bootstrap_servers,
        topics=topics or [site.topic],
        group_id=site.group,
        startup_mode="earliest",
        options={"maxOffsetsPerTrigger": "50"},
    )
    writer = lockstep.checkpointed(rows_of(source.load(spark))).sink(DeltaSink(site.table), uid="lake")
    writer = writer.sink(FileSink(str(site.root / "files"), "json"), uid="files")
    writer = writer.option("checkpointLocation", site.checkpoint).options(**options)
    assert writer.trigger(availableNow=True).start().awaitTermination(120)


def save(spark: SparkSession, site: CrashSite) -> str:
    path = str(site.root / "savepoint")
    lockstep.create_savepoint(spark, site.checkpoint, path)
    site.checkpoint = str(site.root / "restored")
    return path


def test_query_without_state_goes_on_and_new_partitions_are_read_from_their_beginning(
    spark: SparkSession, site: CrashSite, kafka: Broker
) -> None:
    site.produce(100)
    run(spark, site)
    path = save(spark, site)
    kafka.add_partitions(site.topic, 3)
    produce(site.bootstrap_servers, site.topic, *map(str, range(300)))  # into all three
    run(spark, site, restoreFrom=path)
    rows = read_rows(site.table)
    assert len(rows) == len(set(rows)) == 400
    assert {0, 1, 2} == {partition for partition, _ in rows}
    assert sum(observe(site).group_offsets().values()) == 400


def test_topic_may_be_added_and_others_are_refused(spark: SparkSession, site: CrashSite, make_topic: MakeTopic) -> None:
    site.produce(100)
    run(spark, site)
    path = save(spark, site)
    more = make_topic(2)
    produce(site.bootstrap_servers, more, "1", "2", "3")
    with pytest.raises(CheckpointDirectoryError, match="no source of this query goes on there"):
        run(spark, site, [more], restoreFrom=path)
    run(spark, site, [site.topic, more], restoreFrom=path)
    assert len(read_rows(site.table)) == 103


def test_rewind_takes_the_consumer_group_back_and_says_what_it_cannot_take_back(
    spark: SparkSession, site: CrashSite
) -> None:
    site.produce(200)
    run(spark, site)
    plan = plan_rewind(spark, site.checkpoint, 1)
    assert [group["offsets"][site.topic] for group in plan.groups.values()] == [{"0": 50, "1": 50}]
    assert plan.beyond_reach == (
        f"sink 'files' (json files in {site.root / 'files'}): rows of epochs 2 to 3 stay, and come again",
    )
    rewind(spark, plan)
    assert sum(observe(site).group_offsets().values()) == 100
    assert len(read_rows(site.table)) == 100
    run(spark, site)
    assert sorted(read_rows(site.table)) == site.expected_rows()
    assert sum(observe(site).group_offsets().values()) == 200


def test_rewind_is_refused_when_kafka_has_removed_the_records(spark: SparkSession, site: CrashSite) -> None:
    from kafka import KafkaAdminClient, TopicPartition

    site.produce(200)
    run(spark, site)
    admin = KafkaAdminClient(bootstrap_servers=site.bootstrap_servers)
    admin.delete_records({TopicPartition(site.topic, 0): 80})
    admin.close()
    with pytest.raises(ConfigurationError, match=r"records after epoch 1 are gone.*begins at offset 80.*later epoch"):
        plan_rewind(spark, site.checkpoint, 1)
    assert len(read_rows(site.table)) == 200
