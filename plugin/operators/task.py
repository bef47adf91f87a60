"""The function that Spark calls, in a Python worker, for every key group that an epoch touches."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from pyspark import TaskContext
from pyspark.errors import PySparkRuntimeError

from lockstep.operators.archives import read_archives_only_when_changed
from lockstep.operators.placement import group_at
from lockstep.operators.reports import EpochReport, GroupTimers
from lockstep.operators.union import parts_for
from lockstep.operators.wire import InputWire, OutputWire
from lockstep.protocol import failpoint
from lockstep.state.failure import operator_error
from lockstep.state.function import KeyedProcessFunction
from lockstep.state.group import GroupInput, GroupRuntime
from lockstep.state.operator_spec import OperatorSpec
from lockstep.state.row import row_type

if TYPE_CHECKING:
    from pyspark import Accumulator

ELEMENT, BROADCAST, TICK = 0, 1, 2
KINDS = 4
HEAD = "head"  # of a row: number of the partition that it arrived in * KINDS + what it is
PAYLOAD = "payload"
_QUERY_ID = "sql.streaming.queryId"
_EPOCH = "streaming.sql.batchId"
_MOST_ROWS = 50_000  # that travel as one


@dataclass
class KeyGroupTask:
    """Sent to the workers with the plan; one copy for each task, so one function object for each task."""

    spec: OperatorSpec
    function: KeyedProcessFunction
    elements: InputWire
    broadcast: InputWire | None
    output: OutputWire
    order: tuple[int, ...]
    reports: Accumulator[dict[str, EpochReport]]
    failpoints: failpoint.Hook | None = None  # of tests
    _runtime: GroupRuntime | None = None

    def run(self, place: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        """One key group of one epoch: its state is replaced only when its rows have all been processed."""
        runtime = self._opened()
        group = group_at(int(place[0]))
        frame = _whole(frames)
        task = TaskContext.get()
        query, epoch = _property(task, _QUERY_ID, ""), int(_property(task, _EPOCH, "-1"))
        kinds = frame[HEAD].to_numpy() % KINDS
        elements = _chosen(frame, kinds, ELEMENT)
        blob = bytes(state.get[0]) if state.exists else None
        try:
            given = self._input(group, epoch, elements, frame, kinds, state, runtime.by_batch)
        except Exception as error:
            where = f"epoch {epoch}, key group {group}, before its rows reached the function"
            raise operator_error(self.spec.uid, where, error) from error
        result = runtime.run(blob, given)
        failpoint.reach("operator.state.before")
        if result.blob is not None:
            if result.blob:
                state.update((result.blob,))
            elif state.exists:
                state.remove()
        failpoint.reach("operator.state.after")
        report = EpochReport(
            epoch=epoch,
            rows_in=len(elements),
            rows_out=result.rows,
            groups_written=0 if result.blob is None else 1,
            bytes_written=len(result.blob or b""),
            watermark=given.watermark,
            groups={group: GroupTimers(result.next_processing, result.next_event)},
        )
        self.reports.add({query: report})
        if result.rows:
            for batch in result.batches:
                for start in range(0, batch.num_rows, _MOST_ROWS):
                    yield self.output.frame(batch.slice(start, _MOST_ROWS).columns)

    def _input(
        self,
        group: int,
        epoch: int,
        elements: pd.DataFrame,
        frame: pd.DataFrame,
        kinds: Any,
        state: Any,
        by_batch: bool,
    ) -> GroupInput:
        elements = _in_order(elements, [*(self.elements.columns[index] for index in self.order), HEAD])
        positions = [self.spec.input.names.index(name) for name in self.spec.key.names]
        columns = None if by_batch else self.elements.lists(elements)
        of_key = self.elements.lists(elements, positions) if columns is None else [columns[i] for i in positions]
        make = row_type(tuple(self.spec.input.names))._make
        broadcast: list[Any] = []
        union = None
        if len(elements) != len(frame):
            if PAYLOAD in frame.columns:
                payloads = frame.loc[kinds == TICK, PAYLOAD]
                union = next((parts_for(group, bytes(one)) for one in payloads if one is not None), None)
            if self.broadcast is not None:
                broadcast = self.broadcast.rows(_in_order(_chosen(frame, kinds, BROADCAST), [HEAD]))
        return GroupInput(
            key_group=group,
            epoch=epoch,
            processing_time=state.getCurrentProcessingTimeMs(),
            watermark=_watermark(state),
            keys=self._keys(of_key),
            elements=() if columns is None else list(map(make, zip(*columns, strict=True))),
            frame=self.elements.frame(elements) if columns is None else None,
            broadcast=broadcast,
            union=union,
        )

    def _keys(self, columns: list[list[Any]]) -> list[Any]:
        if len(columns) == 1:
            return columns[0]
        return list(map(row_type(tuple(self.spec.key.names))._make, zip(*columns, strict=True)))

    def _opened(self) -> GroupRuntime:
        if self._runtime is None:
            failpoint.install(self.failpoints)
            # Spark's serializer pads what it sends with empty rows; pandas warns of that, and no user could mend it.
            warnings.filterwarnings("ignore", "The behavior of DataFrame concatenation", FutureWarning)
            read_archives_only_when_changed()
            self._runtime = GroupRuntime(self.spec, self.function)
            self._runtime.open()
            weakref.finalize(self, self._runtime.close)  # when Spark lets go of the task
        return self._runtime


def _whole(frames: Iterator[pd.DataFrame]) -> pd.DataFrame:
    parts = list(frames)
    return parts[0] if len(parts) == 1 else pd.concat(parts, ignore_index=True)


def _chosen(frame: pd.DataFrame, kinds: Any, kind: int) -> pd.DataFrame:
    chosen = kinds == kind
    return frame if chosen.all() else frame[chosen]


def _in_order(frame: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Sorted by ``columns``, and as they came where those are equal: a shuffle brings its blocks in any order."""
    if len(frame) < 2:
        return frame
    ranks = [frame[column].to_numpy() for column in columns]
    ranks = [pd.factorize(rank, sort=True)[0] if rank.dtype == object else rank for rank in ranks]
    ranks = [rank for rank in ranks if rank[0] != rank[-1] or (rank != rank[0]).any()]  # most have one partition alone
    if not ranks or (len(ranks) == 1 and (ranks[0][:-1] <= ranks[0][1:]).all()):
        return frame
    return frame.iloc[np.lexsort(ranks[::-1])]


def _property(task: TaskContext | None, name: str, default: str) -> str:
    value = None if task is None else task.getLocalProperty(name)
    return default if value is None else value


def _watermark(state: Any) -> int | None:
    try:
        return int(state.getCurrentWatermarkMs())
    except PySparkRuntimeError:  # the stream has no watermark
        return None
