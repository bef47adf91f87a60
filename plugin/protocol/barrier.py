"""The barrier: the position in the input where an epoch ends.

Spark writes the end offsets of micro-batch N to ``offsets/N`` before it runs the batch, and runs a repeated batch with
the same offsets. So the barrier is the same for every operator and every attempt, and no row is ever "in flight" across
it: what Chandy and Lamport's markers find out, Spark lays down in advance.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from lockstep.errors import CorruptRecordError, NewerFormatError

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
            topics = json.loads(text)
            return {
                TopicPartition(topic, int(partition)): int(offset)
                for topic, partitions in topics.items()
                for partition, offset in partitions.items()
            }
        except (ValueError, AttributeError, TypeError, OverflowError) as error:
            raise CorruptRecordError(
                f"epoch {self.epoch}: the position of source {source} is not a Kafka offset: {text[:200]!r}"
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
    def from_json(cls, data: Mapping[str, Any]) -> Barrier:
        return cls(
            epoch=int(data["epoch"]),
            timestamp_ms=int(data["timestamp_ms"]),
            watermark_ms=int(data["watermark_ms"]),
            positions=tuple(None if p is None else str(p) for p in data["positions"]),
            kind=CheckpointKind(data["kind"]),
        )


def parse_offset_log(epoch: int, text: str) -> Barrier:
    """Read the barrier of ``epoch`` from the text of Spark's ``offsets/N``."""
    lines = _LINE_END.split(text.rstrip("\r\n"))  # as Spark splits; str.splitlines would also split inside of JSON
    where = f"Spark's offset log entry for epoch {epoch}"
    if len(lines) < 2:
        raise CorruptRecordError(f"{where} is truncated: {len(lines)} lines. Restore offsets/{epoch} from a backup.")
    version = lines[0].strip()
    if version != f"v{_OFFSET_LOG_VERSION}":
        raise NewerFormatError(
            f"{where} has version {version!r}; this Lockstep reads v{_OFFSET_LOG_VERSION}. "
            "Upgrade spark-lockstep, or start the query with the Spark version that wrote the directory."
        )
    try:
        metadata = json.loads(lines[1])
        return Barrier(
            epoch=epoch,
            timestamp_ms=int(metadata.get("batchTimestampMs", 0)),
            watermark_ms=int(metadata.get("batchWatermarkMs", 0)),
            positions=tuple(None if line == _NO_OFFSET else line for line in lines[2:]),
        )
    except (ValueError, AttributeError, TypeError, OverflowError) as error:
        raise CorruptRecordError(f"{where} can't be read ({error}). Restore offsets/{epoch} from a backup.") from error
