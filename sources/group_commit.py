"""Joins the Kafka sources of a query to the consumer groups that show their positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.sources.offset_commit import GroupSource, OffsetCommitMode
from lockstep.sources.plan import KafkaStream, StreamSource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from lockstep.protocol.barrier import TopicPartition


def group_sources(spark: SparkSession, streams: Sequence[StreamSource]) -> list[GroupSource]:
    """One entry for every consumer group of ``streams``. Connects to nothing yet.

    Sources without a group, and those in mode DISABLED, have none. Sources that share brokers and group share an entry;
    the first one's settings are used.
    """
    shared: dict[tuple[str, str | None, OffsetCommitMode], list[KafkaStream]] = {}
    for stream in streams:
        if isinstance(stream, KafkaStream) and stream.commits_offsets:
            shared.setdefault((stream.bootstrap_servers, stream.group_id, stream.commit_mode), []).append(stream)
    return [_group_source(spark, same) for same in shared.values()]


def _group_source(spark: SparkSession, streams: list[KafkaStream]) -> GroupSource:
    from lockstep.sources.kafka_admin import KafkaAdmin  # loads pyspark, which the command line can do without

    first = streams[0]
    group = first.group_id or ""
    admin = KafkaAdmin(spark, first.client_settings)

    def commit(offsets: Mapping[TopicPartition, int]) -> None:
        admin.commit_group_offsets(group, offsets)

    return GroupSource(
        name=f"consumer group '{group}' at {first.bootstrap_servers}",
        sources=tuple(stream.index for stream in streams),
        commit=commit,
        mode=first.commit_mode,
        commit_interval=first.commit_interval,
        close=admin.close,
    )
