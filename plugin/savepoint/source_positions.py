"""Which positions of a savepoint the sources of a new query go on from. Pure decisions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lockstep.errors import CheckpointDirectoryError
from lockstep.protocol.savepoint import Savepoint
from lockstep.sources.plan import KafkaStream, StreamSource

_CONTROL = ("lockstep-control-", "lockstep_control")  # how Spark describes a control stream, silent or ticking


@dataclass(frozen=True)
class Carried:
    """Where each source of the new query goes on; ``None``: as at a first start. ``logs``: new number → saved number."""

    positions: tuple[str | None, ...]
    logs: Mapping[int, int]
    remarks: tuple[str, ...] = ()


def is_control(description: str) -> bool:
    """Whether a source is an operator's control stream, which begins anew with every directory."""
    return any(mark in description for mark in _CONTROL)


def is_kafka(description: str) -> bool:
    return description.startswith("Kafka ")


def carry_over(saved: Savepoint, sources: Sequence[StreamSource], allow_missing: bool) -> Carried:
    """Kafka sources are matched by the topics that they read, all others by their description, in order.

    A topic that no source reads any more is left behind with a remark; one that is new begins at its beginning, as does
    every new partition. A saved source that no source of the query goes on from would lose its place: that is refused
    unless ``allow_missing``.
    """
    left = {i: text for i, text in enumerate(saved.sources) if not is_control(text)}
    positions: list[str | None] = [None] * len(sources)
    logs: dict[int, int] = {}
    remarks: list[str] = []
    for source in sources:
        found = _counterpart(saved, left, source)
        if found is None:
            continue
        del left[found]
        position = saved.barrier.positions[found] if found < len(saved.barrier.positions) else None
        if isinstance(source, KafkaStream) and position is not None:
            position, gone = _still_read(json.loads(position), source)
            remarks += [f"{source.description} does not read topic {topic!r} any more" for topic in gone]
        elif position is not None:
            logs[source.index] = found
        positions[source.index] = position
    lost = [text for i, text in left.items() if i < len(saved.barrier.positions) and saved.barrier.positions[i]]
    if lost and not allow_missing:
        raise CheckpointDirectoryError(
            f"the savepoint holds the position of {'; '.join(lost)}, and no source of this query goes on there. It has: "
            f"{'; '.join(s.description for s in sources if not is_control(s.description)) or 'none'}. Read the same topics, "
            "or set allowNonRestoredState=true to go on without that position."
        )
    remarks += [f"the position of {text} is left behind" for text in lost]
    return Carried(tuple(positions), logs, tuple(remarks))


def unchanged(saved: Savepoint) -> Carried:
    """Every source goes on as it was; control streams begin anew."""
    positions = tuple(
        None if is_control(text) else position
        for text, position in zip(saved.sources, saved.barrier.positions, strict=False)
    )
    logs = {i: i for i, text in enumerate(saved.sources) if not (is_control(text) or is_kafka(text))}
    return Carried(positions, logs)


def _counterpart(saved: Savepoint, left: Mapping[int, str], source: StreamSource) -> int | None:
    if not isinstance(source, KafkaStream):
        return next((i for i, text in left.items() if text == source.description), None)
    common = {
        i: sum(source.reads(topic) for topic in {tp.topic for tp in saved.barrier.kafka_offsets(i)})
        for i, text in left.items()
        if is_kafka(text)
    }
    best = max(common, key=lambda i: (common[i], -i), default=None)
    return best if best is not None and common[best] else None


def _still_read(offsets: Mapping[str, Mapping[str, int]], source: KafkaStream) -> tuple[str | None, list[str]]:
    kept = {topic: dict(partitions) for topic, partitions in offsets.items() if source.reads(topic)}
    return json.dumps(kept) if kept else None, sorted(offsets.keys() - kept.keys())
