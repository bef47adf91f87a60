"""Where a Kafka source starts to read when its query has no checkpoint yet: Flink's startup modes, as Spark options.

Pure decisions: what the brokers hold and what the group committed is passed in. What a checkpoint restored always wins;
Spark looks at these options only at a query's very first start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from lockstep.errors import ConfigurationError, UnknownTopicError
from lockstep.protocol.barrier import TopicPartition

EARLIEST_OFFSET = -2  # how Spark writes "the first record there is" for one partition
LATEST_OFFSET = -1  # and "the next record to come"


class StartupMode(Enum):
    """Where to start reading, at a first start."""

    EARLIEST = "earliest"
    LATEST = "latest"
    GROUP_OFFSETS = "group_offsets"  # where the consumer group has committed; else by OffsetReset
    TIMESTAMP = "timestamp"  # the first record at or after a time; else latest
    SPECIFIC_OFFSETS = "specific_offsets"  # the named ones; else where the group has committed; else by OffsetReset


class OffsetReset(Enum):
    """Where a partition starts when its offset is asked for and there is none, or the broker doesn't hold it any more."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"  # refuse to start


@dataclass(frozen=True)
class Startup:
    """A startup mode with what it needs."""

    mode: StartupMode
    reset: OffsetReset = OffsetReset.EARLIEST
    timestamp_ms: int | None = None
    specific_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _only_with(StartupMode.TIMESTAMP, self.mode, "timestamp", self.timestamp_ms is not None)
        _only_with(StartupMode.SPECIFIC_OFFSETS, self.mode, "specific_offsets", bool(self.specific_offsets))
        if self.timestamp_ms is not None and self.timestamp_ms < 0:
            raise ConfigurationError(f"timestamp={self.timestamp_ms} is before 1970. Use milliseconds since 1970.")
        for partition, offset in self.specific_offsets.items():
            if offset < EARLIEST_OFFSET:
                raise ConfigurationError(
                    f"specific_offsets: {offset} for {_name(partition)} is no offset. "
                    "Use 0 or more, -1 for latest or -2 for earliest."
                )

    @property
    def reads_offsets(self) -> bool:
        """Whether :func:`resolve` needs to know the brokers' and the group's offsets."""
        return self.mode in (StartupMode.GROUP_OFFSETS, StartupMode.SPECIFIC_OFFSETS)


@dataclass(frozen=True)
class HeldOffsets:
    """What a broker holds of a partition: the first offset, and the one that the next record will get."""

    earliest: int
    latest: int

    def __contains__(self, offset: int) -> bool:
        return self.earliest <= offset <= self.latest


@dataclass(frozen=True)
class Resolution:
    """Spark's options for a startup. ``problem`` says why a first start must be refused; a restart is never refused."""

    options: Mapping[str, str]
    problem: str | None = None
    warnings: tuple[str, ...] = ()


def resolve(
    startup: Startup,
    held: Mapping[TopicPartition, HeldOffsets] | None = None,
    group_offsets: Mapping[TopicPartition, int] | None = None,
    group_id: str | None = None,
) -> Resolution:
    """Spark's options for ``startup``. ``held`` has an entry for every partition that the source reads.

    As in Kafka's own consumer, an offset that the broker doesn't hold (any more) counts as missing.
    """
    if startup.mode in (StartupMode.EARLIEST, StartupMode.LATEST):
        return Resolution({"startingOffsets": startup.mode.value})
    if startup.mode is StartupMode.TIMESTAMP:
        return Resolution(
            {"startingTimestamp": str(startup.timestamp_ms), "startingOffsetsByTimestampStrategy": "latest"}
        )
    return _resolve_offsets(startup, held or {}, group_offsets or {}, group_id)


def parse_specific_offsets(
    given: Mapping[tuple[str, int], int] | Mapping[str, Mapping[int, int]],
) -> dict[TopicPartition, int]:
    """``{(topic, partition): offset}`` or ``{topic: {partition: offset}}``."""
    offsets: dict[TopicPartition, int] = {}
    try:
        for key, value in given.items():
            if isinstance(key, str) and isinstance(value, Mapping):
                offsets.update({TopicPartition(key, int(p)): int(o) for p, o in value.items()})
            elif isinstance(key, tuple) and isinstance(value, int):
                offsets[TopicPartition(str(key[0]), int(key[1]))] = value
            else:
                raise TypeError(key)
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise ConfigurationError(
            "specific_offsets is not understood. Write {('orders', 0): 42} or {'orders': {0: 42}}."
        ) from error
    return offsets


def _resolve_offsets(
    startup: Startup,
    held: Mapping[TopicPartition, HeldOffsets],
    group_offsets: Mapping[TopicPartition, int],
    group_id: str | None,
) -> Resolution:
    unread = [_name(p) for p in sorted(startup.specific_offsets) if p not in held]
    if unread:
        raise UnknownTopicError(
            f"specific_offsets names {', '.join(unread)}, which the source does not read. "
            f"It reads: {_names(held)}. Correct the partition, or remove it."
        )
    starts: dict[TopicPartition, int | None] = {}
    warnings: list[str] = []
    for partition in sorted(held):
        starts[partition], warning = _start_of(partition, startup, held[partition], group_offsets)
        if warning:
            warnings.append(warning)
    missing = [partition for partition, offset in starts.items() if offset is None]
    if not missing:
        return Resolution({"startingOffsets": _offsets_json(starts)}, warnings=tuple(warnings))
    if startup.reset is OffsetReset.NONE:
        problem = _problem(group_id, missing, warnings)
        # Names no partition of the source, so that Spark refuses it at a first start, whoever started the query.
        return Resolution({"startingOffsets": json.dumps({problem: {"0": 0}})}, problem, tuple(warnings))
    if len(missing) == len(starts):  # the short form also holds for partitions created between now and the start
        return Resolution({"startingOffsets": startup.reset.value}, warnings=tuple(warnings))
    reset = EARLIEST_OFFSET if startup.reset is OffsetReset.EARLIEST else LATEST_OFFSET
    filled = {partition: reset if offset is None else offset for partition, offset in starts.items()}
    return Resolution({"startingOffsets": _offsets_json(filled)}, warnings=tuple(warnings))


def _start_of(
    partition: TopicPartition, startup: Startup, held: HeldOffsets, group_offsets: Mapping[TopicPartition, int]
) -> tuple[int | None, str | None]:
    """First offset to read, or ``None`` when it is up to the reset strategy; and what people should be told."""
    offset, whose = startup.specific_offsets.get(partition), "the specific offset"
    if offset is None:
        offset, whose = group_offsets.get(partition), "the group's offset"
    if offset is None or offset in (EARLIEST_OFFSET, LATEST_OFFSET) or offset in held:
        return offset, None
    return None, (
        f"{whose} {offset} of {_name(partition)} is outside of what the broker holds, {held.earliest} to {held.latest}"
    )


def _problem(group_id: str | None, missing: list[TopicPartition], warnings: list[str]) -> str:
    who = f"consumer group '{group_id}' has" if group_id else "no group_id is given and there are"
    why = f" ({'; '.join(warnings)})" if warnings else ""
    return (
        f"{who} no usable committed offsets for {_names(missing)}{why}, and offset_reset is 'none'. "
        "Commit offsets for the group, choose offset_reset='earliest' or 'latest', or another startup_mode."
    )


def _only_with(mode: StartupMode, actual: StartupMode, argument: str, given: bool) -> None:
    if mode is actual and not given:
        raise ConfigurationError(f"startup_mode='{mode.value}' needs the argument {argument}.")
    if mode is not actual and given:
        raise ConfigurationError(
            f"{argument} is given, but startup_mode is '{actual.value}'. "
            f"Use startup_mode='{mode.value}', or remove {argument}."
        )


def _offsets_json(offsets: Mapping[TopicPartition, int | None]) -> str:
    topics: dict[str, dict[str, int | None]] = {}
    for partition, offset in sorted(offsets.items()):
        topics.setdefault(partition.topic, {})[str(partition.partition)] = offset
    return json.dumps(topics, sort_keys=True)


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def _names(partitions: Mapping[TopicPartition, object] | list[TopicPartition], most: int = 10) -> str:
    names = [_name(partition) for partition in sorted(partitions)]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "nothing") + more
