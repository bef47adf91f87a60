"""The sources of a streaming DataFrame, read from its plan, in the order of the lines of Spark's offset log.

Spark's MicroBatchExecution walks the analysed plan and writes one line for every leaf that is a stream, in that order.
A DataFrame that is used twice has two leaves: with ``union`` they are one source, written twice; with ``join`` they are
two sources. Either way there is one line per leaf, which is all that matters here.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lockstep.choices import choose
from lockstep.config import parse_duration
from lockstep.errors import ConfigurationError
from lockstep.sources import options as keys
from lockstep.sources.client_settings import ClientSettings
from lockstep.sources.offset_commit import DEFAULT_COMMIT_INTERVAL, OffsetCommitMode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

_STREAMS = ("StreamingRelationV2", "StreamingRelation", "StreamingExecutionRelation")
_KAFKA_PROVIDER = "org.apache.spark.sql.kafka010.KafkaSourceProvider"


@dataclass(frozen=True)
class StreamSource:
    """A source of the query. ``index`` is its number in a barrier's positions; ``description`` is for people."""

    index: int
    description: str


@dataclass(frozen=True)
class KafkaStream(StreamSource):
    """A Kafka source, with all that is needed to commit its positions to its consumer group."""

    bootstrap_servers: str
    topics: str
    group_id: str | None = None
    commit_mode: OffsetCommitMode = OffsetCommitMode.ON_CHECKPOINTS
    commit_interval: timedelta = DEFAULT_COMMIT_INTERVAL
    client_settings: ClientSettings = field(default_factory=lambda: ClientSettings({}))
    startup_problem: str | None = None  # why a first start must be refused
    fail_on_data_loss: bool = True  # Spark's option

    def reads(self, topic: str) -> bool:
        """Whether the subscription takes in ``topic``."""
        kind, _, what = self.topics.partition(" ")
        if what.startswith("like "):
            pattern = what.removeprefix("like ")
            try:
                return "&&" in pattern or re.search(pattern, topic) is not None
            except re.error:
                return True  # Java's syntax, not Python's: Spark judges it
        names = what.split(", ")
        return topic in names if kind == "topics" else any(name.rpartition("-")[0] == topic for name in names)

    @property
    def commits_offsets(self) -> bool:
        return self.group_id is not None and self.commit_mode is not OffsetCommitMode.DISABLED


def stream_sources(df: DataFrame) -> list[StreamSource]:
    """The sources of a streaming DataFrame. Runs nothing, and asks no broker."""
    frame: Any = df
    return sources_of_plan(frame._jdf.queryExecution().analyzed())


def sources_of_plan(analyzed: Any) -> list[StreamSource]:
    """The sources of an analysed plan of the JVM."""
    leaves = analyzed.collectLeaves()
    streams = [leaf for leaf in (leaves.apply(i) for i in range(leaves.size())) if _class_name(leaf) in _STREAMS]
    return [_source(index, leaf) for index, leaf in enumerate(streams)]


def kafka_stream(index: int, options: Mapping[str, str]) -> KafkaStream:
    """The Kafka source with these options, whatever the case of their keys."""
    lower = {key.lower(): value for key, value in options.items()}
    settings = keys.client_settings(lower)
    group_id = lower.get(keys.GROUP_ID) or lower.get(keys.SPARK_GROUP_ID)
    servers = settings.get("bootstrap.servers", "")
    topics = _topics(lower)
    try:
        interval = parse_duration(lower.get(keys.COMMIT_INTERVAL, "5 s"))
    except ValueError as error:
        raise ConfigurationError(f"{keys.COMMIT_INTERVAL}={lower[keys.COMMIT_INTERVAL]!r}: {error}") from error
    return KafkaStream(
        index=index,
        description=f"Kafka {topics} at {servers}",
        bootstrap_servers=servers,
        topics=topics,
        group_id=group_id,
        commit_mode=choose(OffsetCommitMode, lower.get(keys.COMMIT_MODE, "on_checkpoints"), keys.COMMIT_MODE),
        commit_interval=interval,
        client_settings=ClientSettings(settings),
        startup_problem=lower.get(keys.STARTUP_PROBLEM),
        fail_on_data_loss=lower.get("failondataloss", "true").strip().lower() != "false",
    )


def _source(index: int, relation: Any) -> StreamSource:
    kind = _class_name(relation)
    if kind == "StreamingRelationV2":
        provider = relation.source()
        if provider.isDefined() and provider.get().getClass().getName() == _KAFKA_PROVIDER:
            return kafka_stream(index, _java_map(relation.extraOptions().asCaseSensitiveMap()))
    elif kind == "StreamingRelation":
        source = relation.dataSource()
        if source.providingClass().getName() == _KAFKA_PROVIDER:
            return kafka_stream(index, _scala_map(source.options()))
    return StreamSource(index, str(relation.toString()))


def _topics(options: Mapping[str, str]) -> str:
    if "subscribe" in options:
        return "topics " + ", ".join(topic.strip() for topic in options["subscribe"].split(","))
    if "subscribepattern" in options:
        return f"topics like {options['subscribepattern']}"
    try:
        assigned = json.loads(options.get("assign", "{}"))
        return "partitions " + ", ".join(f"{topic}-{p}" for topic in sorted(assigned) for p in assigned[topic])
    except (ValueError, TypeError):
        return "partitions " + options["assign"]


def _class_name(java_object: Any) -> str:
    return str(java_object.getClass().getSimpleName())


def _java_map(java_map: Any) -> dict[str, str]:
    return {str(entry.getKey()): str(entry.getValue()) for entry in java_map.entrySet()}


def _scala_map(scala_map: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    iterator = scala_map.iterator()
    while iterator.hasNext():
        pair = iterator.next()
        found[str(pair._1())] = str(pair._2())
    return found
