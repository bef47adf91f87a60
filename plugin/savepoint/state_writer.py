"""State as data: savepoints made and changed by Spark jobs, as with Flink's State Processor API.

Reading is :func:`lockstep.read_state`, which takes a savepoint as well as a checkpoint directory.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstep.engine.storage import open_storage
from lockstep.errors import CheckpointDirectoryError, ConfigurationError
from lockstep.operators.column_types import arrow_schema
from lockstep.operators.keyed_stream import DEFAULT_MAX_PARALLELISM
from lockstep.operators.wire import InputWire
from lockstep.protocol.barrier import Barrier, CheckpointKind
from lockstep.protocol.savepoint import METADATA, SOURCES, STATE, SavedOperator, Savepoint
from lockstep.quoting import quoted
from lockstep.savepoint.create import refuse_used
from lockstep.savepoint.groups import SCHEMA, write_groups
from lockstep.savepoint.origin import Origin, open_origin
from lockstep.state.function import KeyedProcessFunction, require_function
from lockstep.state.group import GroupInput, GroupRuntime
from lockstep.state.operator_spec import OperatorSpec, describe, merged, refuse_incompatible
from lockstep.uid import check_uid

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

_UNUSED_OUTPUT = "nothing int"


@dataclass(frozen=True)
class _Change:
    """Rows that a function is to see, on top of what is stored, or instead of it."""

    spec: OperatorSpec
    function: KeyedProcessFunction
    rows: DataFrame
    anew: bool


class SavepointWriter:
    """Makes a savepoint from nothing, or from another one with some operators changed.

    The rows of a batch DataFrame are given, key by key, to a function of yours that declares the states to write: the
    same code that a query would run, and any kind of state and timer. What it yields is dropped.

    Examples
    --------
    >>> class Load(lockstep.KeyedProcessFunction):  # doctest: +SKIP
    ...     total = lockstep.ValueState("bigint", default=0)
    ...
    ...     def process_element(self, row, ctx):
    ...         self.total.update(row.total)
    >>> lockstep.SavepointWriter.new(spark).with_operator(  # doctest: +SKIP
    ...     "totals", spark.read.table("totals"), key=["account"], function=Load()
    ... ).write("/savepoints/bootstrap")
    """

    def __init__(self, spark: SparkSession, origin: Origin | None) -> None:
        self._spark = spark
        self._origin = origin
        self._changes: dict[str, _Change] = {}
        self._removed: set[str] = set()

    @classmethod
    def new(cls, spark: SparkSession) -> SavepointWriter:
        """Without positions: a query that is restored from it begins to read as at a first start."""
        return cls(spark, None)

    @classmethod
    def from_existing(cls, spark: SparkSession, path: str) -> SavepointWriter:
        """What is not changed is copied. ``path``: a savepoint, or a retained checkpoint."""
        return cls(spark, open_origin(spark, path))

    def with_operator(
        self,
        uid: str,
        rows: DataFrame,
        *,
        key: Sequence[str],
        function: KeyedProcessFunction,
        max_parallelism: int | None = None,
        replace: bool = False,
    ) -> SavepointWriter:
        """Let ``function`` see ``rows``, on top of the operator's state; with ``replace`` it starts from none.

        ``max_parallelism`` is that of the operator in the query: the stored one, or 32 for a new operator.
        """
        check_uid(uid)
        if rows.isStreaming:
            raise ConfigurationError(f"operator {uid!r}: a savepoint is made of a batch; this DataFrame is a stream.")
        if uid in self._changes or uid in self._removed:
            raise ConfigurationError(f"operator {uid!r} is changed twice. Union the rows, and change it once.")
        require_function(function, uid, False)
        columns = arrow_schema(rows.schema, f"operator {uid!r}")
        unknown = [name for name in key if name not in columns.names]
        if unknown or not key:
            raise ConfigurationError(
                f"operator {uid!r}: key={list(key)!r} are no columns; there are {', '.join(columns.names)}."
            )
        stored = self._stored(uid)
        groups = max_parallelism or (int(stored["max_parallelism"]) if stored else DEFAULT_MAX_PARALLELISM)
        spec = OperatorSpec(
            uid=uid,
            key=_schema([columns.field(name) for name in key]),
            input=columns,
            output=_schema_of(_UNUSED_OUTPUT),
            max_parallelism=groups,
        )
        if stored is not None and not replace:
            refuse_incompatible(stored, describe(function, spec))
        self._changes[uid] = _Change(spec, function, rows, replace or stored is None)
        return self

    def remove_operator(self, uid: str) -> SavepointWriter:
        """Leave its state out."""
        if self._stored(uid) is None:
            there = [] if self._origin is None else sorted(self._origin.record.operators)
            raise ConfigurationError(f"there is no operator {uid!r}; there is: {', '.join(there) or 'none'}.")
        self._removed.add(uid)
        return self

    def write(self, path: str) -> Savepoint:
        """Write the new savepoint, which appears all at once. ``path`` must be new or empty."""
        target = open_storage(self._spark, path)
        refuse_used(target)
        operators: dict[str, SavedOperator] = {}
        before = {} if self._origin is None else self._origin.record.operators
        for uid in [*before, *(uid for uid in self._changes if uid not in before)]:
            if uid in self._removed:
                continue
            frame, description = self._state(uid)
            contents = write_groups(frame, f"{path.rstrip('/')}/{STATE}/{uid}")
            operators[uid] = SavedOperator(description, contents)
        if self._origin is not None:
            _copy_logs(self._origin, target)
        record = self._record(operators)
        if not target.create(METADATA, record.encode()):
            raise CheckpointDirectoryError(f"{target.describe()} was made a savepoint by somebody else meanwhile.")
        return record

    def _stored(self, uid: str) -> Mapping[str, Any] | None:
        saved = None if self._origin is None else self._origin.record.operators.get(uid)
        return None if saved is None else saved.description

    def _state(self, uid: str) -> tuple[DataFrame, Mapping[str, Any]]:
        stored = self._stored(uid)
        change = self._changes.get(uid)
        if change is None:
            if self._origin is None or stored is None:
                raise ValueError(uid)
            return self._origin.groups(uid), stored
        now = time.time_ns() // 1_000_000  # one for all groups: by it, state with a TTL grows old
        watermark = 0 if self._origin is None else self._origin.record.watermark_ms
        described = describe(change.function, change.spec)
        facts = {"backend": "savepoint", "position": 0, "ticks": described["timers"]}
        facts |= {name: stored[name] for name in facts if stored is not None}
        if change.anew or stored is None or self._origin is None:
            groups = self._spark.createDataFrame([], SCHEMA)
            return _applied(groups, change, now, watermark), {**described, **facts}
        groups = self._origin.groups(uid)
        return _applied(groups, change, now, watermark), {**merged(stored, described), **facts}

    def _record(self, operators: dict[str, SavedOperator]) -> Savepoint:
        now = time.time_ns() // 1_000_000
        if self._origin is None:
            nowhere = Barrier(0, now, 0, (), CheckpointKind.SAVEPOINT)
            return Savepoint(str(uuid.uuid4()), str(uuid.uuid4()), nowhere, 0, now, operators=operators)
        from dataclasses import replace

        return replace(self._origin.record, id=str(uuid.uuid4()), created_ms=now, operators=operators)


def _applied(groups: DataFrame, change: _Change, now: int, watermark: int) -> DataFrame:
    """The key groups after the function has seen the rows. No timer fires: that is left to the query."""
    from pyspark.sql import functions as F

    spec = change.spec
    wire = InputWire(spec.input, "c")
    of_key = F.pmod(F.xxhash64(*[F.col(quoted(name)) for name in spec.key.names]), F.lit(spec.max_parallelism))
    rows = change.rows.select(of_key.cast("int").alias("group"), *wire.expressions())
    run = _runner(spec, change.function, wire, now, watermark)
    return groups.groupBy("group").cogroup(rows.groupBy("group")).applyInPandas(run, SCHEMA)


def _runner(
    spec: OperatorSpec, function: KeyedProcessFunction, wire: InputWire, now: int, watermark: int
) -> Callable[[tuple[Any, ...], pd.DataFrame, pd.DataFrame], pd.DataFrame]:
    def run(group: tuple[Any, ...], stored: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        runtime = GroupRuntime(spec, function)
        runtime.open()
        blob = bytes(stored["state"].iloc[0]) if len(stored) else None
        elements = wire.rows(rows)
        given = GroupInput(
            key_group=int(group[0]),
            epoch=0,
            processing_time=now,
            watermark=watermark,
            elements=elements,
            in_query=False,
        )
        result = runtime.run(blob, given) if elements else None
        runtime.close()
        left = blob if result is None or result.blob is None else result.blob
        return pd.DataFrame({"group": [int(group[0])], "state": [left]} if left else {"group": [], "state": []})

    return run


def _copy_logs(origin: Origin, target: Any) -> None:
    logs = origin.source_logs()
    for index in range(len(origin.record.sources)):
        for name in logs.list(f"{SOURCES}/{index}"):
            data = None if name.startswith(".") else logs.read(f"{SOURCES}/{index}/{name}")
            if data is not None:
                target.write(f"{SOURCES}/{index}/{name}", data)


def _schema(fields: Sequence[Any]) -> Any:
    import pyarrow as pa

    return pa.schema(fields)


def _schema_of(ddl: str) -> Any:
    from lockstep.state.ddl import parse_columns

    return parse_columns(ddl)
