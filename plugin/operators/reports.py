"""What the tasks of a keyed operator tell the driver, through a Spark accumulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.accumulators import AccumulatorParam

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext


@dataclass(frozen=True)
class GroupTimers:
    """When a key group has to be woken: milliseconds, or ``None`` when it has no such timer."""

    processing: int | None
    event: int | None


@dataclass
class EpochReport:
    """Figures of one epoch in one query. ``groups`` names every key group that was called."""

    epoch: int
    rows_in: int = 0
    rows_out: int = 0
    groups_written: int = 0
    bytes_written: int = 0
    watermark: int | None = None
    groups: dict[int, GroupTimers] = field(default_factory=dict)

    def add(self, other: EpochReport) -> None:
        self.rows_in += other.rows_in
        self.rows_out += other.rows_out
        self.groups_written += other.groups_written
        self.bytes_written += other.bytes_written
        self.watermark = other.watermark if self.watermark is None else self.watermark
        self.groups.update(other.groups)


Reports = dict[str, EpochReport]  # by query id


class _Sum(AccumulatorParam[Reports]):
    """Keeps the newest epoch of every query."""

    def __init__(self, changed: Callable[[Reports], None] | None = None) -> None:
        self._changed = changed

    def __getstate__(self) -> dict[str, Any]:
        return {"_changed": None}  # the callback stays on the driver

    def zero(self, value: Reports) -> Reports:
        return {}

    def addInPlace(self, value1: Reports, value2: Reports) -> Reports:
        for query, report in value2.items():
            known = value1.get(query)
            if known is None or known.epoch != report.epoch:
                value1[query] = report
            else:
                known.add(report)
        if self._changed is not None and value2:  # a task without any key group reports nothing, and changes nothing
            self._changed({query: value1[query] for query in value2})
        return value1


def accumulator(context: SparkContext, changed: Callable[[Reports], None]) -> Accumulator[Reports]:
    """``changed`` is called on the driver after each task, before its job ends, with all that its epoch has reported."""
    return context.accumulator({}, _Sum(changed))
