"""The barrier: the position in the input where an epoch ends.

Spark writes the end offsets of micro-batch N to ``offsets/N`` before it runs the batch, and runs a repeated batch with
the same offsets. So the barrier is the same for every operator and every attempt, and no row is ever "in flight" across
it: what Chandy and Lamport's markers find out, Spark lays down in advance.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from lockstep.errors import CorruptRecordError, NewerFormatError
from lockstep.protocol.fields import Fields, number_in_name, parse_json

_OFFSET_LOG_VERSION = 1
_LINE_END = re.compile(r"\r\n|\n|\r")
_NO_OFFSET = "-"  # what Spark writes for a source that has delivered nothing yet


class TopicPartition(NamedTuple):
    """One partition of a Kafka topic."""

    topic: str
    partition: int


class CheckpointKind(Enum):
    """What a barrier asks for: the ``options`` of Flink's CheckpointBarrier."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    FORCED = "forced"  # at a start or stop, or by hand: everything decided is to be committed now


@dataclass(frozen=True)
class Barrier:
    """Where epoch ``epoch`` ends, in every source of the query.

    ``positions`` has one entry per source, in the order of Spark's offset log: the source's own JSON, or ``None`` while
    it has delivered nothing. For Kafka the number stored for a partition is the *next* offset to read.
    """

    epoch: int
    timestamp_ms: int
    watermark_ms: int
    positions: tuple[str | None, ...]
    kind: CheckpointKind = CheckpointKind.CHECKPOINT

    def kafka_offsets(self, source: int) -> dict[TopicPartition, int]:
        """Next offset to read of every partition of Kafka source number ``source``."""
        text = self.positions[source] if source < len(self.positions) else None
        if text is None:
            return {}
        try:
            found = Fields(parse_json(text), "", "", "")
            partitions = [(topic, found.fields(topic)) for topic in found]
            return {_topic_partition(topic, name): of.count(name) for topic, of in partitions for name in of}
        except (ValueError, CorruptRecordError) as error:
            raise CorruptRecordError(
                f"epoch {self.epoch}: the position of source {source} is not a Kafka offset: {text[:200]!r}. Restore "
                f"offsets/{self.epoch} and the folder lockstep in the checkpoint directory from a backup."
            ) from error

    def to_json(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "timestamp_ms": self.timestamp_ms,
            "watermark_ms": self.watermark_ms,
            "positions": list(self.positions),
            "kind": self.kind.value,
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Barrier:
        """What ``to_json`` made, from a stored file."""
        kind = fields.text("kind")
        if kind not in {known.value for known in CheckpointKind}:
            raise fields.wrong("kind", kind, "the kind of a checkpoint")
        for index, position in enumerate(fields.json_list("positions")):
            if position is not None and (not isinstance(position, str) or _LINE_END.search(position)):
                raise fields.wrong(f"positions[{index}]", position, "one line of text, or null")
        return cls(
            epoch=fields.count("epoch"),
            timestamp_ms=fields.integer("timestamp_ms"),
            watermark_ms=fields.integer("watermark_ms"),
            positions=tuple(fields.json_list("positions")),
            kind=CheckpointKind(kind),
        )


def _topic_partition(topic: str, name: str) -> TopicPartition:
    partition = number_in_name(name)
    if partition is None:
        raise ValueError(f"{name[:80]!r} is no partition")
    return TopicPartition(topic, partition)


def parse_offset_log(epoch: int, data: bytes | str, directory: str = "the checkpoint directory") -> Barrier:
    """Read the barrier of ``epoch`` from Spark's ``offsets/N``."""
    where = f"Spark's offset log entry for epoch {epoch} in {directory}"
    remedy = f"Restore offsets/{epoch} from a backup."
    try:
        text = data if isinstance(data, str) else data.decode()
    except UnicodeDecodeError as error:
        raise CorruptRecordError(f"{where} is damaged: {error}. {remedy}") from error
    lines = _LINE_END.split(text.rstrip("\r\n"))  # as Spark splits; str.splitlines would also split inside of JSON
    if len(lines) < 2:
        raise CorruptRecordError(f"{where} is truncated: {len(lines)} lines. {remedy}")
    version = lines[0].strip()
    if version != f"v{_OFFSET_LOG_VERSION}":
        raise NewerFormatError(
            f"{where} has version {version[:80]!r}; this Lockstep reads v{_OFFSET_LOG_VERSION}. "
            "Upgrade spark-lockstep, or start the query with the Spark version that wrote the directory."
        )
    try:
        metadata = Fields(parse_json(lines[1]), where, "batch", remedy)
    except ValueError as error:
        raise CorruptRecordError(f"{where} can't be read ({error}). {remedy}") from error
    return Barrier(
        epoch=epoch,
        timestamp_ms=metadata.integer("batchTimestampMs") if "batchTimestampMs" in metadata else 0,
        watermark_ms=metadata.integer("batchWatermarkMs") if "batchWatermarkMs" in metadata else 0,
        positions=tuple(None if line == _NO_OFFSET else line for line in lines[2:]),
    )
