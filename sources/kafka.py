"""The Kafka source: Spark's own, started as Flink's consumer would start, with its positions committed to a group."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from lockstep.choices import choose
from lockstep.config import parse_duration
from lockstep.errors import ConfigurationError, UnknownTopicError
from lockstep.protocol.barrier import TopicPartition
from lockstep.sources import options as keys
from lockstep.sources.client_settings import ClientSettings
from lockstep.sources.offset_commit import DEFAULT_COMMIT_INTERVAL, OffsetCommitMode
from lockstep.sources.startup import (
    OffsetReset,
    Resolution,
    Startup,
    StartupMode,
    parse_specific_offsets,
    resolve,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lockstep.sources.kafka_admin import KafkaAdmin

logger = logging.getLogger(__name__)

CLIENT_DEFAULTS = {
    "kafka.max.poll.records": "10000",
    "kafka.max.partition.fetch.bytes": str(16 * 1024 * 1024),
    "kafka.fetch.max.bytes": str(64 * 1024 * 1024),
    "kafka.fetch.max.wait.ms": "10",
}
"""The first three are for throughput. The last is for latency: a broker without more records keeps a fetch waiting, by
default for 500 ms, and a small epoch of Spark runs into that wait once (with ``fetch.min.bytes`` of 1 MB: twice). Spark
fetches only what it knows to be there, so a short wait doesn't make idle consumers busy."""


class KafkaSource:
    """Reads Kafka topics as a streaming DataFrame.

    The columns are those of Spark's Kafka source: ``key``, ``value``, ``topic``, ``partition``, ``offset``,
    ``timestamp``, ``timestampType``, and ``headers`` on request.

    Where reading starts is asked only at a query's first start; what the checkpoint restored always wins. Partitions
    that are added while the query runs are found, and start at their beginning.

    Values arrive as bytes, so what happens to a record that can't be deserialised is up to the function that decodes
    it: ``from_json`` in mode ``PERMISSIVE`` gives nulls, which can be filtered (skip); mode ``FAILFAST`` fails the query.

    Parameters
    ----------
    bootstrap_servers
        One or more ``host:port``, as a string with commas or a list.
    topics, topic_pattern, partitions
        What to read; give exactly one. A topic or a list of topics; a Java regular expression for whole topic names (new
        topics that match are found while running); or ``{topic: [partition, …]}``.
    group_id
        The consumer group that shows how far the query is. Without it, nothing is committed to Kafka. Spark's own
        consumers don't join it. Give every query its own.
    startup_mode
        A :class:`StartupMode` or its name. By default GROUP_OFFSETS when there is a ``group_id`` (as in Flink),
        otherwise EARLIEST; TIMESTAMP or SPECIFIC_OFFSETS when ``timestamp`` or ``specific_offsets`` is given.
    offset_reset
        Where a partition starts when the group has no offset for it, or one that the broker doesn't hold any more:
        EARLIEST (default), LATEST, or NONE, which refuses a first start.
    timestamp
        For TIMESTAMP: a datetime with a time zone, or milliseconds since 1970. A partition without a record at or after
        it starts at its end.
    specific_offsets
        For SPECIFIC_OFFSETS: ``{(topic, partition): offset}`` or ``{topic: {partition: offset}}``, the next offset to
        read. Partitions not named start at the group's offset, or else by ``offset_reset``.
    commit_mode
        An :class:`OffsetCommitMode` or its name: ON_CHECKPOINTS (default), PERIODIC or DISABLED.
    commit_interval
        For PERIODIC: a timedelta, or text such as ``"5 s"``.
    options
        Any client setting of Kafka with the prefix ``kafka.`` (e.g. ``kafka.security.protocol``), and Spark's options for
        reading Kafka (``maxOffsetsPerTrigger``, ``minPartitions``, ``failOnDataLoss``, ``includeHeaders``, …).

    Examples
    --------
    >>> orders = KafkaSource("localhost:9092", topics=["orders"], group_id="orders-etl").load(spark)  # doctest: +SKIP
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        topics: str | Sequence[str] | None = None,
        *,
        topic_pattern: str | None = None,
        partitions: Mapping[str, Iterable[int]] | None = None,
        group_id: str | None = None,
        startup_mode: StartupMode | str | None = None,
        offset_reset: OffsetReset | str = OffsetReset.EARLIEST,
        timestamp: datetime | int | None = None,
        specific_offsets: Mapping[tuple[str, int], int] | Mapping[str, Mapping[int, int]] | None = None,
        commit_mode: OffsetCommitMode | str = OffsetCommitMode.ON_CHECKPOINTS,
        commit_interval: timedelta | str = DEFAULT_COMMIT_INTERVAL,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._servers = _servers(bootstrap_servers)
        self._topics = [topics] if isinstance(topics, str) else list(topics or [])
        self._pattern = topic_pattern
        self._assigned = _assigned(partitions)
        given = [name for name, value in self._subscriptions().items() if value]
        if len(given) != 1:
            raise ConfigurationError(
                f"KafkaSource needs exactly one of topics, topic_pattern and partitions; given: {given or 'none'}."
            )
        if group_id is not None and not group_id.strip():
            raise ConfigurationError("group_id is empty. Name a consumer group, or leave it out.")
        self._group_id = group_id
        mode = _startup_mode(startup_mode, group_id, timestamp, specific_offsets)
        if mode is StartupMode.GROUP_OFFSETS and group_id is None:
            raise ConfigurationError("startup_mode='group_offsets' needs the argument group_id.")
        self._startup = Startup(
            mode,
            choose(OffsetReset, offset_reset, "offset_reset"),
            _timestamp_ms(timestamp),
            parse_specific_offsets(specific_offsets or {}),
        )
        self._commit_mode = choose(OffsetCommitMode, commit_mode, "commit_mode")
        self._commit_interval = _interval(commit_interval)
        self._options = {**CLIENT_DEFAULTS, **keys.check_options(options or {})}

    def load(self, spark: SparkSession) -> DataFrame:
        """A streaming DataFrame of the records.

        Asks the brokers, so a wrong address or topic is an error here and not minutes later; every question is bounded,
        by 15 seconds unless ``kafka.default.api.timeout.ms`` says otherwise.
        """
        from lockstep.sources.kafka_admin import KafkaAdmin

        with KafkaAdmin(spark, self._client_settings()) as admin:
            partitions = self._partitions(admin)
            resolution = self._resolve(admin, partitions)
        for warning in resolution.warnings:
            logger.warning("%s; at a first start it starts at offset_reset=%s", warning, self._startup.reset.value)
        return spark.readStream.format("kafka").options(**self._reader_options(resolution)).load()

    def __repr__(self) -> str:
        what = next(f"{name}={value!r}" for name, value in self._subscriptions().items() if value)
        return (
            f"KafkaSource({self._servers!r}, {what}, group_id={self._group_id!r}, "
            f"startup_mode={self._startup.mode.value!r}, settings={self._client_settings()!r})"
        )

    def _subscriptions(self) -> dict[str, Any]:
        return {"topics": self._topics, "topic_pattern": self._pattern, "partitions": self._assigned}

    def _client_settings(self) -> ClientSettings:
        return ClientSettings({"bootstrap.servers": self._servers, **keys.client_settings(self._options)})

    def _partitions(self, admin: KafkaAdmin) -> list[TopicPartition]:
        if self._pattern:
            topics = admin.matching_topics(self._pattern)
            if not topics:
                raise UnknownTopicError(
                    f"No topic on {self._servers} matches the pattern {self._pattern!r}, which stands for whole names. "
                    f"There are: {', '.join(admin.topics()[:20]) or 'none'}."
                )
            return admin.partitions(topics)
        if self._topics:
            return admin.partitions(self._topics)
        found = set(admin.partitions({partition.topic for partition in self._assigned}))
        missing = [f"{topic}-{partition}" for topic, partition in self._assigned if (topic, partition) not in found]
        if missing:
            raise UnknownTopicError(
                f"Partition {', '.join(missing)} does not exist on {self._servers}. "
                "Partitions are numbered from 0; correct the number, or add partitions to the topic."
            )
        return self._assigned

    def _resolve(self, admin: KafkaAdmin, partitions: list[TopicPartition]) -> Resolution:
        if not self._startup.reads_offsets:
            return resolve(self._startup)
        # The group first: read the other way round, a group that moves meanwhile might seem to be ahead of the broker.
        group_offsets = admin.group_offsets(self._group_id) if self._group_id else {}
        return resolve(self._startup, admin.held_offsets(partitions), group_offsets, self._group_id)

    def _reader_options(self, resolution: Resolution) -> dict[str, str]:
        options = {
            **self._options,
            **resolution.options,
            "kafka.bootstrap.servers": self._servers,
            keys.COMMIT_MODE: self._commit_mode.value,
            keys.COMMIT_INTERVAL: f"{self._commit_interval.total_seconds() * 1000:g} ms",
        }
        if self._topics:
            options["subscribe"] = ",".join(self._topics)
        elif self._pattern:
            options["subscribePattern"] = f"^(?:{self._pattern})$"  # Spark looks for it anywhere in the name
        else:
            options["assign"] = _assign_json(self._assigned)
        if self._group_id:
            options[keys.GROUP_ID] = self._group_id
        if resolution.problem:
            options[keys.STARTUP_PROBLEM] = resolution.problem
        return options


def _servers(given: str | Sequence[str]) -> str:
    servers = [one.strip() for one in (given.split(",") if isinstance(given, str) else given) if one.strip()]
    if not servers:
        raise ConfigurationError("bootstrap_servers is empty. Name at least one broker, such as 'localhost:9092'.")
    for server in servers:
        if not server.rpartition(":")[2].isdigit() or ":" not in server:
            raise ConfigurationError(f"bootstrap_servers: {server!r} is not of the form host:port.")
    return ",".join(servers)


def _assigned(given: Mapping[str, Iterable[int]] | None) -> list[TopicPartition]:
    try:
        return sorted({TopicPartition(str(t), int(p)) for t, numbers in (given or {}).items() for p in numbers})
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError("partitions is not understood. Write {'orders': [0, 1]}.") from error


def _assign_json(partitions: list[TopicPartition]) -> str:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return json.dumps(topics)


def _startup_mode(given: StartupMode | str | None, group_id: object, timestamp: object, offsets: object) -> StartupMode:
    if given is not None:
        return choose(StartupMode, given, "startup_mode")
    if timestamp is not None:
        return StartupMode.TIMESTAMP
    if offsets:
        return StartupMode.SPECIFIC_OFFSETS
    return StartupMode.GROUP_OFFSETS if group_id is not None else StartupMode.EARLIEST


def _timestamp_ms(given: datetime | int | None) -> int | None:
    if not isinstance(given, datetime):
        return given
    if given.tzinfo is None:
        raise ConfigurationError(f"timestamp={given} has no time zone. Add one, e.g. tzinfo=timezone.utc.")
    return int(given.timestamp() * 1000)


def _interval(given: timedelta | str) -> timedelta:
    try:
        interval = given if isinstance(given, timedelta) else parse_duration(given)
    except ValueError as error:
        raise ConfigurationError(f"commit_interval={given!r}: {error}") from error
    if interval <= timedelta(0):
        raise ConfigurationError(f"commit_interval={given} must be more than zero.")
    return interval
