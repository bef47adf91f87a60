"""How rows travel between the JVM and a worker, exactly: no null becomes NaN, no instant depends on a time zone.

pandas, through which Spark hands rows to Python, has no null for numbers and no instants without a time zone. So numbers
travel filled, with their nulls in a bit mask; timestamps and dates travel as numbers; nested values travel as JSON whose
leaves are text. Everything else (strings, bytes, decimals) travels as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from lockstep.operators.column_types import Form, form_of, spark_type
from lockstep.operators.nested_text import EPOCH, EPOCH_DAY, from_text, text_of, text_schema, to_text, value_of
from lockstep.quoting import quoted
from lockstep.state.row import row_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_BITS = 62  # of a bigint that are used as a mask
_FIRST_MICROS = (datetime.min.replace(tzinfo=timezone.utc) - EPOCH) // timedelta(microseconds=1)
_LAST_MICROS = (datetime.max.replace(tzinfo=timezone.utc) - EPOCH) // timedelta(microseconds=1)


@dataclass(frozen=True)
class InputWire:
    """From the JVM to a worker. ``prefix`` keeps the columns of two streams apart in one union."""

    schema: pa.Schema
    prefix: str

    @property
    def columns(self) -> list[str]:
        return [f"{self.prefix}{index}" for index in range(len(self.schema))]

    @property
    def masks(self) -> list[str]:
        return [f"{self.prefix}nulls{index}" for index in range(-(-len(self._masked()) // _BITS))]

    def expressions(self) -> list[Column]:
        """The stream's columns, as they travel."""
        from pyspark.sql import functions as F

        masked = self._masked()
        given = [F.col(quoted(name)) for name in self.schema.names]
        sent = [
            _outgoing(given[index], kind).alias(name)
            for index, (name, kind) in enumerate(zip(self.columns, self.schema.types, strict=True))
        ]
        for number, name in enumerate(self.masks):
            mask = F.lit(0).cast("bigint")
            for bit, index in enumerate(masked[number * _BITS : (number + 1) * _BITS]):
                mask = mask.bitwiseOR(F.when(given[index].isNull(), F.lit(1 << bit)).otherwise(F.lit(0)).cast("bigint"))
            sent.append(mask.alias(name))
        return sent

    def blanks(self) -> list[Column]:
        """What rows of another stream hold in these columns; numbers stay numbers."""
        from pyspark.sql import functions as F

        def blank(kind: pa.DataType) -> Column:
            form = form_of(kind)
            if form is Form.TEXT:
                return F.lit(None).cast("string")
            if form is Form.PLAIN:
                return F.lit(None).cast(spark_type(kind))
            return F.lit(0).cast(_filled_type(kind))

        filled = [blank(kind).alias(name) for name, kind in zip(self.columns, self.schema.types, strict=True)]
        return filled + [F.lit(0).cast("bigint").alias(mask) for mask in self.masks]

    def lists(self, frame: pd.DataFrame, chosen: Sequence[int] | None = None) -> list[list[Any]]:
        """The rows, as one list of Python values for each column, or for the ``chosen`` ones."""
        nulls, names = self._nulls(frame), self.columns
        return [
            _with_nulls(_python_values(frame[names[index]], self.schema.types[index]), nulls.get(index))
            for index in (range(len(names)) if chosen is None else chosen)
        ]

    def rows(self, frame: pd.DataFrame) -> list[Any]:
        make = row_type(tuple(self.schema.names))._make
        return [make(values) for values in zip(*self.lists(frame), strict=True)]

    def frame(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows as pandas has them: numbers as numpy's (pandas' nullable ones where there are nulls), instants in UTC."""
        nulls = self._nulls(frame)
        series = {}
        for index, (wire_name, name) in enumerate(zip(self.columns, self.schema.names, strict=True)):
            series[name] = _pandas_values(frame[wire_name], self.schema.types[index], nulls.get(index))
        return pd.DataFrame(series, index=pd.RangeIndex(len(frame)))

    def _masked(self) -> list[int]:
        forms = [form_of(kind) for kind in self.schema.types]
        return [index for index, form in enumerate(forms) if form in (Form.NUMBER, Form.MICROS, Form.DAYS)]

    def _nulls(self, frame: pd.DataFrame) -> dict[int, np.ndarray[Any, Any]]:
        """Column number → where it is null; nothing for columns without nulls."""
        masked = self._masked()
        found = {}
        for number, name in enumerate(self.masks):
            mask = frame[name].to_numpy()
            seen = int(np.bitwise_or.reduce(mask)) if len(mask) else 0
            for bit, index in enumerate(masked[number * _BITS : (number + 1) * _BITS]):
                if seen & (1 << bit):
                    found[index] = (mask & (1 << bit)) != 0
        return found


@dataclass(frozen=True)
class OutputWire:
    """From a worker to the JVM.

    All rows of a call travel as one, with a list in every column. Spark's serializer pads each batch of rows with as many
    empty states, cell by cell, which costs more than the rows themselves.
    """

    schema: pa.Schema

    @property
    def spark_schema(self) -> T.StructType:
        kinds = [_wire_spark_type(kind) for kind in self.schema.types]
        if self._floats():
            kinds.append(T.LongType())
        return T.StructType([T.StructField(f"o{i}", T.ArrayType(kind)) for i, kind in enumerate(kinds)])

    def rows(self, packed: DataFrame) -> DataFrame:
        """The operator's rows, from what travelled."""
        from pyspark.sql import functions as F

        rows = packed.select(F.explode(F.arrays_zip(*packed.columns)).alias("row")).select("row.*")
        return rows.select(*self._expressions())

    def _expressions(self) -> list[Column]:
        from pyspark.sql import functions as F

        sent = []
        floats = self._floats()
        nan = F.col(f"o{len(self.schema)}")
        for index, field in enumerate(self.schema):
            column = _incoming(F.col(f"o{index}"), field.type)
            if index in floats[:_BITS]:
                flag = nan.bitwiseAND(F.lit(1 << floats.index(index)))
                column = F.when(flag != 0, F.lit(float("nan")).cast(spark_type(field.type))).otherwise(column)
            sent.append(column.alias(field.name))
        return sent

    def frame(self, columns: Sequence[pa.Array]) -> pd.DataFrame:
        """The frame that Spark's serializer takes. A NaN that is no null is marked: pandas makes no difference."""
        cells = [_listed(_wire_array(column)) for column in columns]
        floats = self._floats()[:_BITS]
        if floats:
            nan = np.zeros(len(columns[0]), dtype=np.int64)
            for bit, index in enumerate(floats):
                flags = pc.fill_null(pc.is_nan(columns[index]), False)
                nan |= np.where(flags.to_numpy(zero_copy_only=False), np.int64(1 << bit), np.int64(0))
            cells.append(nan.tolist())
        return pd.DataFrame({f"o{i}": [cell] for i, cell in enumerate(cells)})

    def _floats(self) -> list[int]:
        return [index for index, kind in enumerate(self.schema.types) if pa.types.is_floating(kind)]


def _filled_type(kind: pa.DataType) -> T.DataType:
    form = form_of(kind)
    if form is Form.MICROS:
        return T.LongType()
    return T.IntegerType() if form is Form.DAYS else spark_type(kind)


def _outgoing(column: Column, kind: pa.DataType) -> Column:
    from pyspark.sql import functions as F

    form = form_of(kind)
    if form is Form.TEXT:
        text = to_text(column, kind)
        return F.to_json(text) if pa.types.is_nested(kind) else text
    if form is Form.PLAIN:
        return column
    if form is Form.MICROS:
        column = F.unix_micros(column)
    elif form is Form.DAYS:
        column = F.unix_date(column)
    return F.coalesce(column, F.lit(0).cast(_filled_type(kind)))


def _incoming(column: Column, kind: pa.DataType) -> Column:
    from pyspark.sql import functions as F

    form = form_of(kind)
    if form is Form.MICROS:
        return F.timestamp_micros(column)
    if form is Form.DAYS:
        return F.date_from_unix_date(column)
    if form is Form.TEXT:
        parsed = F.from_json(column, text_schema(kind).simpleString()) if pa.types.is_nested(kind) else column
        return from_text(parsed, kind)
    return column


def _wire_spark_type(kind: pa.DataType) -> T.DataType:
    form = form_of(kind)
    return T.StringType() if form is Form.TEXT else _filled_type(kind)


def _wire_array(column: pa.Array) -> pa.Array:
    form = form_of(column.type)
    if form is Form.MICROS:
        return column.cast(pa.int64())
    if form is Form.DAYS:
        return column.cast(pa.int32())
    if form is Form.TEXT:
        texts = [None if value is None else text_of(value, column.type) for value in column.to_pylist()]
        if pa.types.is_nested(column.type):
            texts = [None if text is None else json.dumps(text) for text in texts]
        return pa.array(texts, pa.string())
    return column


def _listed(array: pa.Array) -> list[Any]:
    if form_of(array.type) is Form.NUMBER and not array.null_count:
        return list(array.to_numpy(zero_copy_only=False).tolist())
    if pa.types.is_string(array.type):
        return list(array.to_numpy(zero_copy_only=False))
    return list(array.to_pylist())


def _python_values(series: pd.Series[Any], kind: pa.DataType) -> list[Any]:
    form = form_of(kind)
    if form is Form.NUMBER:
        return list(series.to_numpy().tolist())
    if form is Form.MICROS:
        _require_range(series, _FIRST_MICROS, _LAST_MICROS)
        naive = series.to_numpy().astype("datetime64[us]").tolist()
        return [moment.replace(tzinfo=timezone.utc) for moment in naive]
    if form is Form.DAYS:
        _require_range(series, 1 - EPOCH_DAY, date.max.toordinal() - EPOCH_DAY)
        return list(series.to_numpy().astype("datetime64[D]").tolist())
    values = series.tolist()
    if form is Form.PLAIN:
        return values
    load: Callable[[str], Any] = json.loads if pa.types.is_nested(kind) else str
    return [None if text is None else value_of(load(text), kind) for text in values]


def _require_range(series: pd.Series[Any], first: int, last: int) -> None:
    if len(series) and not (first <= series.min() and series.max() <= last):
        raise ValueError(
            "a date or timestamp lies outside of the years 1 to 9999 (in UTC), which is all that Python has. Replace it "
            "before key_by, or cast the column to string or bigint"
        )


def _with_nulls(values: list[Any], nulls: np.ndarray[Any, Any] | None) -> list[Any]:
    if nulls is not None:
        for index in np.flatnonzero(nulls).tolist():
            values[index] = None
    return values


def _pandas_values(series: pd.Series[Any], kind: pa.DataType, nulls: np.ndarray[Any, Any] | None) -> Any:
    form = form_of(kind)
    if form is Form.NUMBER:
        values = series.to_numpy()
        if nulls is None:
            return values
        extension = pd.array(values, dtype=_nullable_dtype(kind))
        extension[nulls] = pd.NA
        return extension
    if form is Form.MICROS:
        instants = pd.Series(series.to_numpy().astype("datetime64[us]")).dt.tz_localize("UTC")
        return instants if nulls is None else instants.mask(nulls)
    if form is Form.PLAIN:
        return pd.Series(series.to_numpy(), dtype=object)
    return pd.Series(_with_nulls(_python_values(series, kind), nulls), dtype=object)


def _nullable_dtype(kind: pa.DataType) -> Any:
    if pa.types.is_boolean(kind):
        return "boolean"
    return str(kind).capitalize() if pa.types.is_integer(kind) else {32: "Float32", 64: "Float64"}[kind.bit_width]
