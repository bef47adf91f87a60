"""A keyed operator on the driver: found in a query's plan, told by its tasks, acknowledged at every epoch."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lockstep.operators.control_stream import Mailbox
from lockstep.operators.plan import class_name, nodes_of
from lockstep.operators.reports import EpochReport, GroupTimers, Reports, accumulator
from lockstep.protocol.lineage import PLACED
from lockstep.state.operator_spec import OperatorSpec
from lockstep.state.operator_state import UnionListState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_WATERMARK_SETTLES_MS = 1000
_NODE = "FlatMapGroupsInPandasWithState"
_known: dict[str, KeyedOperator] = {}


class KeyedOperator:
    """One call of ``process``. ``name`` is the name of its function in Spark's plans, unique in this process."""

    def __init__(self, spark: SparkSession, spec: OperatorSpec, description: Mapping[str, Any]) -> None:
        self.spec = spec
        self.uid = spec.uid
        self.description = {**description, "ticks": _needs_ticks(description), PLACED: True}
        self.name = f"lockstep_{uuid.uuid4().hex[:12]}"
        self.mailbox = Mailbox()
        self.reports = accumulator(spark.sparkContext, self._reported)
        self._spark = spark
        self._lock = threading.Lock()
        self._timers: dict[str, dict[int, GroupTimers]] = {}  # by query: several may be made of one DataFrame
        self._wake_at: dict[str, int | None] = {}
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

    def watermark_moved(self, query: str, watermark: int) -> None:
        """The next epoch will have this watermark, whether or not rows of this one have reached the operator."""
        with self._lock:
            events = [timers.event for timers in self._timers.get(query, {}).values() if timers.event is not None]
            if events and min(events) <= watermark:
                self._wake(query, _now())

    def forget_others(self, query: str) -> None:
        """Queries that have ended wake nobody."""
        active = {other.id for other in self._spark.streams.active} | {query}
        with self._lock:
            self._timers = {other: timers for other, timers in self._timers.items() if other in active}
            self._wake_at = {other: at for other, at in self._wake_at.items() if other in active}

    def _reported(self, reports: Reports) -> None:
        """Runs while Spark waits: it must be short, and must not fail."""
        try:
            with self._lock:
                for query, report in reports.items():
                    timers = self._timers.setdefault(query, {})
                    timers.update(report.groups)
                    self._wake(query, _wake_at(report, timers))
        except Exception:
            _log.exception("operator %r: its timers may fire late", self.uid)

    def _wake(self, query: str, at: int | None) -> None:
        self._wake_at[query] = at
        self.mailbox.wake_at(min((at for at in self._wake_at.values() if at is not None), default=None))


def find_operators(plan: Any) -> list[tuple[KeyedOperator, Any]]:
    """The keyed operators in a plan of the JVM, logical or physical, each with its node, from the sinks upwards."""
    stateful = [node for node in nodes_of(plan) if _NODE in class_name(node)]
    found = [(_known.get(node.functionExpr().name()), node) for node in stateful]
    return [(operator, node) for operator, node in found if operator is not None]


def _has_union_state(description: Mapping[str, Any]) -> bool:
    return any(state["kind"] == UnionListState.kind for state in description["states"].values())


def _needs_ticks(description: Mapping[str, Any]) -> bool:
    return bool(description["timers"]) or _has_union_state(description)


def _wake_at(report: EpochReport, timers: Mapping[int, GroupTimers]) -> int | None:
    """When a query's next tick is due: at its first processing-time timer, or when its watermark may have passed an event's.

    A watermark that rows have moved is seen by the *next* epoch; when none comes by itself, a tick makes one.
    """
    times = [group.processing for group in timers.values() if group.processing is not None]
    events = [group.event for group in timers.values() if group.event is not None]
    if events:
        if report.watermark is not None and min(events) <= report.watermark:
            times.append(_now())
        elif report.rows_in:
            times.append(_now() + _WATERMARK_SETTLES_MS)
    return min(times, default=None)


def _now() -> int:
    return time.time_ns() // 1_000_000
