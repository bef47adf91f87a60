"""``lockstep.key_by(df, "account").process(fn, uid="totals", output="...")``: Flink's keyed streams, on Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lockstep.errors import ConfigurationError
from lockstep.operators.column_types import arrow_schema
from lockstep.operators.control_stream import silent_stream, ticking_stream
from lockstep.operators.operator import KeyedOperator
from lockstep.operators.placement import places
from lockstep.operators.task import BROADCAST, ELEMENT, HEAD, KINDS, PAYLOAD, TICK, KeyGroupTask
from lockstep.operators.wire import InputWire, OutputWire
from lockstep.protocol.failpoint import hook_of_workers
from lockstep.quoting import quoted
from lockstep.state.ddl import parse_columns, to_ddl
from lockstep.state.folding_state import AggregateFunction
from lockstep.state.function import KeyedProcessFunction, require_function
from lockstep.state.operator_spec import OperatorSpec, describe
from lockstep.uid import check_uid

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DEFAULT_MAX_PARALLELISM = 32
_DELAY = "spark.watermarkDelayMs"
_KAFKA_ORDER = ("topic", "partition", "offset")


def key_by(df: DataFrame, *columns: str) -> KeyedStream:
    """Partition a streaming DataFrame by key: everything that follows sees one key at a time.

    Examples
    --------
    >>> totals = lockstep.key_by(orders, "account").process(  # doctest: +SKIP
    ...     RunningTotal(), uid="totals", output="account string, total bigint"
    ... )
    """
    return KeyedStream(df, columns)


class KeyedStream:
    """A streaming DataFrame with a key. Made by :func:`key_by`."""

    def __init__(self, df: DataFrame, columns: Sequence[str]) -> None:
        if not df.isStreaming:
            raise ConfigurationError(
                "lockstep.key_by takes a streaming DataFrame; this one is a batch. Use readStream."
            )
        if not columns:
            raise ConfigurationError("key_by needs at least one column: lockstep.key_by(orders, 'account').")
        self._df = df
        self._input = arrow_schema(df.schema, "key_by")
        self._key = pa.schema([_key_field(self._input, column, df.columns) for column in columns])

    def process(
        self,
        function: KeyedProcessFunction,
        *,
        uid: str | None = None,
        output: str | None = None,
        broadcast: DataFrame | None = None,
        max_parallelism: int = DEFAULT_MAX_PARALLELISM,
        order_by: Sequence[str] | None = None,
    ) -> DataFrame:
        """Run ``function`` for every key: a streaming DataFrame for any sink, Lockstep's or Spark's.

        Parameters
        ----------
        function
            A :class:`~lockstep.KeyedProcessFunction`. It is copied to the workers; state lives in what it declares.
        uid
            Names the operator for ever: it ties stored state to the operator across restarts and code changes.
        output
            The rows that the function yields, as Spark DDL (``"account string, total bigint"``). May also be given
            as the function's attribute ``output``.
        broadcast
            A second stream, whose rows reach every key group (``process_broadcast_element``) before the epoch's elements.
        max_parallelism
            The number of key groups, as in Flink: the unit in which state is stored and moved, and the most tasks that can
            share the work. It can't be changed later. Each group that an epoch touches costs some milliseconds, and is
            rewritten as a whole: take as many as the cluster will ever have cores for this operator, and more than that
            only for much state of which an epoch touches little.
        order_by
            Columns by which the elements of an epoch are ordered. By default ``topic, partition, offset`` when the stream
            has them all; otherwise rows keep the order of the partition that they were read from.
        """
        uid = _checked_uid(uid)
        require_function(function, uid, broadcast is not None)
        output_text = output if output is not None else getattr(function, "output", None)
        if output_text is None:
            raise ConfigurationError(
                f"operator {uid!r}: say which rows it yields: process(..., output='account string, total bigint')."
            )
        if broadcast is not None and not broadcast.isStreaming:
            raise ConfigurationError(f"operator {uid!r}: broadcast takes a streaming DataFrame; this one is a batch.")
        spec = OperatorSpec(
            uid=uid,
            key=self._key,
            input=self._input,
            output=parse_columns(output_text),
            broadcast=None if broadcast is None else arrow_schema(broadcast.schema, f"operator {uid!r}, broadcast"),
            max_parallelism=max_parallelism,
        )
        operator = KeyedOperator(self._df.sparkSession, spec, describe(function, spec))
        task = KeyGroupTask(
            spec=spec,
            function=function,
            elements=InputWire(spec.input, "c"),
            broadcast=None if spec.broadcast is None else InputWire(spec.broadcast, "b"),
            output=OutputWire(spec.output),
            order=self._order(uid, order_by),
            reports=operator.reports,
            failpoints=hook_of_workers(),
        )
        return _apply(self._groups(operator, task, broadcast), operator, task)

    def reduce(
        self, function: Callable[[Any, Any], Any], *, uid: str | None = None, emit: str = "element", **options: Any
    ) -> DataFrame:
        """Combine the rows of a key, two at a time: ``function(reduced, row)`` returns a row like the stream's own.

        ``emit="element"`` gives the reduced row after every element, as Flink does; ``"epoch"`` one for each key and epoch.
        Other ``options`` are those of :meth:`process`.
        """
        from lockstep.state.simple import reducing

        return self.process(reducing(function, self._input, emit), uid=uid, output=_columns_ddl(self._input), **options)

    def aggregate(
        self,
        function: AggregateFunction,
        *,
        accumulator: str,
        output: str,
        uid: str | None = None,
        emit: str = "element",
        **options: Any,
    ) -> DataFrame:
        """Fold the rows of a key into an accumulator of type ``accumulator``; emits the key's columns and the result.

        ``output`` names the columns: those of the key first, then those of what ``get_result`` returns.
        """
        from lockstep.state.simple import aggregating

        return self.process(aggregating(function, accumulator, emit), uid=uid, output=output, **options)

    def _order(self, uid: str, given: Sequence[str] | None) -> tuple[int, ...]:
        names = self._input.names
        if given is None:
            return tuple(names.index(column) for column in _KAFKA_ORDER) if set(_KAFKA_ORDER) <= set(names) else ()
        for column in given:
            if column not in names:
                raise ConfigurationError(
                    f"operator {uid!r}: order_by={column!r} is no column; there are {', '.join(names)}."
                )
            if pa.types.is_nested(self._input.field(column).type):
                raise ConfigurationError(
                    f"operator {uid!r}: order_by={column!r} has a nested type, which has no order."
                )
        return tuple(names.index(column) for column in given)

    def _groups(self, operator: KeyedOperator, task: KeyGroupTask, broadcast: DataFrame | None) -> DataFrame:
        """Elements, broadcast rows and ticks as one stream, with its columns as they travel."""
        from pyspark.sql import functions as F

        spark = self._df.sparkSession
        groups = operator.spec.max_parallelism
        of_key = F.pmod(F.xxhash64(*[_column(name) for name in self._key.names]), F.lit(groups)).cast("int")
        of_key = places(of_key, groups)
        every = F.explode(F.transform(F.sequence(F.lit(0), F.lit(groups - 1)), lambda group: places(group, groups)))
        control = (ticking_stream if operator.needs_ticks else silent_stream)(spark, operator.mailbox)
        own, others = task.elements, [] if task.broadcast is None else task.broadcast.blanks()
        tail = [_event_time(self._df)] if _event_time_delay(self._df) is not None else []
        payload = [_column("payload")] if operator.has_union_state else []
        no_payload = [F.lit(None).cast("binary")] if operator.has_union_state else []
        rows = self._df.select(*_head(of_key, ELEMENT), *own.expressions(), *others, *tail, *no_payload)
        rows = rows.union(control.select(*_head(every, TICK), *own.blanks(), *others, *tail, *payload))
        if broadcast is not None and task.broadcast is not None:
            rules = task.broadcast.expressions()
            rows = rows.union(broadcast.select(*_head(every, BROADCAST), *own.blanks(), *rules, *tail, *no_payload))
        return rows.withColumnRenamed(rows.columns[-1], PAYLOAD) if payload else rows


def _apply(rows: DataFrame, operator: KeyedOperator, task: KeyGroupTask) -> DataFrame:
    from pyspark.sql.streaming.state import GroupStateTimeout

    def run(group: Any, frames: Any, state: Any) -> Iterator[Any]:
        return task.run(group, frames, state)

    run.__name__ = operator.name  # by which the operator is found in a plan
    result = rows.groupBy("group").applyInPandasWithState(
        run, task.output.spark_schema, "state binary", "append", GroupStateTimeout.NoTimeout
    )
    return task.output.rows(result)


def _head(group: Column, kind: int) -> list[Column]:
    """The key group's place, and in one number a row's kind and the partition it arrived in: few columns travel faster."""
    from pyspark.sql import functions as F

    return [group.alias("group"), (F.spark_partition_id() * F.lit(KINDS) + F.lit(kind)).alias(HEAD)]


def _event_time_delay(df: DataFrame) -> int | None:
    """Of the stream's watermark, if it has one."""
    return next((field.metadata[_DELAY] for field in df.schema.fields if _DELAY in field.metadata), None)


def _event_time(df: DataFrame) -> Column:
    """An empty column by which Spark knows that the rows have a watermark: the real one travels as a number."""
    from pyspark.sql import functions as F

    return F.lit(None).cast("timestamp").alias("event_time", metadata={_DELAY: _event_time_delay(df)})


def _column(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.col(quoted(name))


def _checked_uid(uid: str | None) -> str:
    if uid is None:
        raise ConfigurationError(
            "a keyed operator needs a uid: process(..., uid='totals'). It ties the stored state to the operator across "
            "restarts and code changes."
        )
    return check_uid(uid)


def _columns_ddl(schema: pa.Schema) -> str:
    return ", ".join(f"{quoted(field.name)} {to_ddl(field.type)}" for field in schema)


def _key_field(schema: pa.Schema, column: str, names: Sequence[str]) -> pa.Field:
    if not isinstance(column, str) or column not in names:
        raise ConfigurationError(f"key_by({column!r}): no such column. There are: {', '.join(names)}.")
    field = schema.field(column)
    if pa.types.is_nested(field.type) or pa.types.is_floating(field.type):
        raise ConfigurationError(
            f"key_by({column!r}): a column of type {field.type} can't be a key, as equal values may differ in their bytes. "
            "Cast it to string, decimal or a whole number."
        )
    return field
