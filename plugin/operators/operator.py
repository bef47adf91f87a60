"""A keyed operator on the driver: found in a query's plan, told by its tasks, acknowledged at every epoch."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lockstep.operators.control_stream import Mailbox
from lockstep.operators.reports import EpochReport, GroupTimers, Reports, accumulator
from lockstep.state.operator_spec import OperatorSpec
from lockstep.state.operator_state import UnionListState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WATERMARK_SETTLES_MS = 1000
_NODE = "FlatMapGroupsInPandasWithState"
_known: dict[str, KeyedOperator] = {}


class KeyedOperator:
    """One call of ``process``. ``name`` is the name of its function in Spark's plans, unique in this process."""

    def __init__(self, spark: SparkSession, spec: OperatorSpec, description: Mapping[str, Any]) -> None:
        self.spec = spec
        self.uid = spec.uid
        self.description = {**description, "ticks": _needs_ticks(description)}
        self.name = f"lockstep_{uuid.uuid4().hex[:12]}"
        self.mailbox = Mailbox()
        self.reports = accumulator(spark.sparkContext, self._reported)
        self._spark = spark
        self._lock = threading.Lock()
        self._timers: dict[str, dict[int, GroupTimers]] = {}
        _known[self.name] = self

    @property
    def has_union_state(self) -> bool:
        return _has_union_state(self.description)

    @property
    def needs_ticks(self) -> bool:
        return bool(self.description["ticks"])

    def report(self, query: str, epoch: int) -> EpochReport:
        """What the tasks of this epoch reported; all zero when none was called."""
        found = self.reports.value.get(query)
        return found if found is not None and found.epoch == epoch else EpochReport(epoch)

    def forget(self, query: str, epoch: int) -> None:
        """The epoch is run again: its figures start from zero."""
        found = self.reports.value.get(query)
        if found is not None and found.epoch == epoch:
            del self.reports.value[query]

    def _reported(self, reports: Reports) -> None:
        with self._lock:
            for query, report in reports.items():
                self._timers.setdefault(query, {}).update(report.groups)
            if len(self._timers) > 1:  # several queries were made of one DataFrame
                active = {query.id for query in self._spark.streams.active}
                self._timers = {query: timers for query, timers in self._timers.items() if query in active}
            self.mailbox.wake_at(_wake_at(list(reports.values()), self._timers))


def find_operators(plan: Any) -> list[tuple[KeyedOperator, Any]]:
    """The keyed operators in a plan of the JVM, logical or physical, each with its node, from the sinks upwards."""
    found = []
    if _NODE in plan.getClass().getSimpleName():
        operator = _known.get(plan.functionExpr().name())
        if operator is not None:
            found.append((operator, plan))
    children = plan.children()
    for index in range(children.size()):
        found += find_operators(children.apply(index))
    return found


def _has_union_state(description: Mapping[str, Any]) -> bool:
    return any(state["kind"] == UnionListState.kind for state in description["states"].values())


def _needs_ticks(description: Mapping[str, Any]) -> bool:
    return bool(description["timers"]) or _has_union_state(description)


def _wake_at(reports: list[EpochReport], timers: Mapping[str, Mapping[int, GroupTimers]]) -> int | None:
    """When the next tick is due: at the first processing-time timer, or when the watermark may have passed an event's.

    A watermark that rows have moved is seen by the *next* epoch; when none comes by itself, a tick makes one.
    """
    groups = [group for query in timers.values() for group in query.values()]
    times = [group.processing for group in groups if group.processing is not None]
    events = [group.event for group in groups if group.event is not None]
    if events:
        now = time.time_ns() // 1_000_000
        watermark = max((report.watermark for report in reports if report.watermark is not None), default=None)
        if watermark is not None and min(events) <= watermark:
            times.append(now)
        elif any(report.rows_in for report in reports):
            times.append(now + _WATERMARK_SETTLES_MS)
    return min(times, default=None)
