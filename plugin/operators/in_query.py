"""A keyed operator in a running Lockstep query: acknowledges every epoch with a handle of its stored state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockstep.errors import CheckpointDeclinedError
from lockstep.operators.operator import KeyedOperator, find_operators
from lockstep.operators.plan import class_name, nodes_of
from lockstep.protocol.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUERY_ID = "sql.streaming.queryId"
_STORES = "numStateStoreInstances"  # Spark's count of the state partitions that tasks have committed


class OperatorInQuery:
    """Used on the query's thread, inside of the batch function."""

    def __init__(self, operator: KeyedOperator, spark: SparkSession, storage: Storage) -> None:
        self._operator = operator
        self._spark: Any = spark
        self._storage = storage

    @property
    def uid(self) -> str:
        return self._operator.uid

    def begin(self, epoch: int) -> None:
        query = self._query_id()
        self._operator.forget(query, epoch)
        self._operator.forget_others(query)

    def acknowledge(self, epoch: int) -> dict[str, Any]:
        query = self._query_id()
        execution = self._spark._jsparkSession.streams().get(query).streamingQuery().lastExecution()
        node = next(node for operator, node in find_operators(execution.executedPlan()) if operator is self._operator)
        info = node.getStateInfo()
        path, version = f"state/{info.operatorId()}", int(info.storeVersion()) + 1
        stores = int(node.metrics().apply(_STORES).value())
        if stores != info.numPartitions():  # some were evaluated twice, or not at all: only the files can tell
            self._require_files(path, version, int(info.numPartitions()), epoch)
        moved_to = _next_watermark(execution.executedPlan())
        if moved_to is not None:
            self._operator.watermark_moved(query, moved_to)
        report = self._operator.report(query, epoch)
        return {
            "rows_in": report.rows_in,
            "rows_out": report.rows_out,
            "key_groups_written": report.groups_written,
            "state_bytes": report.bytes_written,
            "state": {"path": path, "version": version, "partitions": int(info.numPartitions())},
        }

    def _require_files(self, path: str, version: int, partitions: int, epoch: int) -> None:
        missing = [
            partition
            for partition in range(partitions)
            if not any(_version_of(name) == version for name in self._storage.list(f"{path}/{partition}"))
        ]
        if missing:
            raise CheckpointDeclinedError(
                f"epoch {epoch}: operator {self.uid!r} has no state of this epoch in partition "
                f"{', '.join(map(str, missing[:10]))} of {partitions}: a sink has read only a part of the batch. A sink "
                "whose write() may skip rows must have reads_whole_batch = False."
            )

    def _query_id(self) -> str:
        return str(self._spark.sparkContext.getLocalProperty(_QUERY_ID))


def _next_watermark(plan: Any) -> int | None:
    """How far the epoch's rows move the watermark at most; ``None`` when it had none with an event time."""
    watermarks = [node for node in nodes_of(plan) if class_name(node) == "EventTimeWatermarkExec"]
    seen = [(node.eventTimeStats().value(), int(node.delayMs())) for node in watermarks]
    return max((int(stats.max()) - delay for stats, delay in seen if stats.count() > 0), default=None)


def _version_of(name: str) -> int | None:
    """``17.delta``, ``17.changelog``, ``17_<id>.zip`` → 17."""
    number = name.split(".")[0].split("_")[0]
    return int(number) if number.isdigit() else None
