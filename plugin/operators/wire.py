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
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from lockstep.errors import ConfigurationError
from lockstep.state.row import row_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_BITS = 62  # of a bigint that are used as a mask
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_FIRST_MICROS = (datetime.min.replace(tzinfo=timezone.utc) - _EPOCH) // timedelta(microseconds=1)
_LAST_MICROS = (datetime.max.replace(tzinfo=timezone.utc) - _EPOCH) // timedelta(microseconds=1)
_ATOMS: list[tuple[type[T.DataType], pa.DataType]] = [
    (T.BooleanType, pa.bool_()),
    (T.ByteType, pa.int8()),
    (T.ShortType, pa.int16()),
    (T.IntegerType, pa.int32()),
    (T.LongType, pa.int64()),
    (T.FloatType, pa.float32()),
    (T.DoubleType, pa.float64()),
    (T.StringType, pa.string()),
    (T.BinaryType, pa.binary()),
    (T.DateType, pa.date32()),
    (T.TimestampType, pa.timestamp("us", tz="UTC")),
    (T.TimestampNTZType, pa.timestamp("us")),
]


class Form(Enum):
    """The form in which a column travels."""

    NUMBER = "number"
    MICROS = "micros"  # an instant
    DAYS = "days"  # a date
    PLAIN = "plain"  # strings, bytes, decimals
    TEXT = "text"  # nested values as JSON


def form_of(kind: pa.DataType) -> Form:
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return Form.NUMBER
    if pa.types.is_timestamp(kind):
        return Form.MICROS if kind.tz else Form.TEXT
    if pa.types.is_date(kind):
        return Form.DAYS
    return Form.TEXT if pa.types.is_nested(kind) else Form.PLAIN


def arrow_schema(schema: T.StructType, what: str) -> pa.Schema:
    """The Arrow schema of a DataFrame; ``what`` is named when a type can't be carried."""
    return pa.schema([pa.field(f.name, arrow_type(f.dataType, f"{what}, column {f.name!r}")) for f in schema.fields])


def arrow_type(kind: T.DataType, where: str) -> pa.DataType:
    if isinstance(kind, T.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, T.ArrayType):
        return pa.list_(arrow_type(kind.elementType, where))
    if isinstance(kind, T.MapType):
        return pa.map_(arrow_type(kind.keyType, where), arrow_type(kind.valueType, where))
    if isinstance(kind, T.StructType):
        return pa.struct([pa.field(f.name, arrow_type(f.dataType, where)) for f in kind.fields])
    for spark, arrow in _ATOMS:
        if isinstance(kind, spark):
            return arrow
    raise ConfigurationError(
        f"{where}: type {kind.simpleString()} can't be handed to a keyed operator. Cast it, or leave it out with select."
    )


def spark_type(kind: pa.DataType) -> T.DataType:
    if pa.types.is_decimal(kind):
        return T.DecimalType(kind.precision, kind.scale)
    if pa.types.is_map(kind):
        return T.MapType(spark_type(kind.key_type), spark_type(kind.item_type))
    if pa.types.is_list(kind):
        return T.ArrayType(spark_type(kind.value_type))
    if pa.types.is_struct(kind):
        return T.StructType([T.StructField(field.name, spark_type(field.type)) for field in kind])
    return next(spark() for spark, arrow in _ATOMS if arrow.equals(kind))


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
        given = [F.col(_quoted(name)) for name in self.schema.names]
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

    def lists(self, frame: pd.DataFrame) -> list[list[Any]]:
        """The rows, as one list of Python values for each column."""
        nulls = self._nulls(frame)
        return [
            _with_nulls(_python_values(frame[name], kind), nulls.get(index))
            for index, (name, kind) in enumerate(zip(self.columns, self.schema.types, strict=True))
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


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _filled_type(kind: pa.DataType) -> T.DataType:
    form = form_of(kind)
    if form is Form.MICROS:
        return T.LongType()
    return T.IntegerType() if form is Form.DAYS else spark_type(kind)


def _outgoing(column: Column, kind: pa.DataType) -> Column:
    from pyspark.sql import functions as F

    form = form_of(kind)
    if form is Form.TEXT:
        text = _to_text(column, kind)
        return F.to_json(text) if pa.types.is_nested(kind) else text
    if form is Form.PLAIN:
        return column
    if form is Form.MICROS:
        column = F.unix_micros(column)
    elif form is Form.DAYS:
        column = F.unix_date(column)
    return F.coalesce(column, F.lit(0).cast(_filled_type(kind)))


def _to_text(column: Column, kind: pa.DataType) -> Column:
    """A value whose leaves are text; structs have numbered fields, maps are lists of entries."""
    from pyspark.sql import functions as F

    if pa.types.is_struct(kind):
        fields = [_to_text(column.getField(field.name), field.type).alias(f"f{i}") for i, field in enumerate(kind)]
        return F.when(column.isNotNull(), F.struct(*fields))
    if pa.types.is_map(kind):
        return F.transform(
            F.map_entries(column),
            lambda entry: F.struct(
                _to_text(entry["key"], kind.key_type).alias("f0"), _to_text(entry["value"], kind.item_type).alias("f1")
            ),
        )
    if pa.types.is_list(kind):
        return F.transform(column, lambda item: _to_text(item, kind.value_type))
    if pa.types.is_binary(kind):
        return F.hex(column)
    if pa.types.is_date(kind):
        return F.unix_date(column).cast("string")
    if pa.types.is_timestamp(kind) and kind.tz:
        return F.unix_micros(column).cast("string")
    if pa.types.is_float32(kind):
        return column.cast("double").cast("string")
    return column.cast("string")


def _incoming(column: Column, kind: pa.DataType) -> Column:
    from pyspark.sql import functions as F

    form = form_of(kind)
    if form is Form.MICROS:
        return F.timestamp_micros(column)
    if form is Form.DAYS:
        return F.date_from_unix_date(column)
    if form is Form.TEXT:
        parsed = F.from_json(column, _text_schema(kind).simpleString()) if pa.types.is_nested(kind) else column
        return _from_text(parsed, kind)
    return column


def _from_text(column: Column, kind: pa.DataType) -> Column:
    from pyspark.sql import functions as F

    if pa.types.is_struct(kind):
        fields = [_from_text(column.getField(f"f{i}"), field.type).alias(field.name) for i, field in enumerate(kind)]
        return F.when(column.isNotNull(), F.struct(*fields))
    if pa.types.is_map(kind):
        return F.map_from_entries(
            F.transform(
                column,
                lambda entry: F.struct(
                    _from_text(entry["f0"], kind.key_type).alias("key"),
                    _from_text(entry["f1"], kind.item_type).alias("value"),
                ),
            )
        )
    if pa.types.is_list(kind):
        return F.transform(column, lambda item: _from_text(item, kind.value_type))
    if pa.types.is_binary(kind):
        return F.unhex(column)
    if pa.types.is_date(kind):
        return F.date_from_unix_date(column.cast("int"))
    if pa.types.is_timestamp(kind) and kind.tz:
        return F.timestamp_micros(column.cast("bigint"))
    return column.cast(spark_type(kind))


def _text_schema(kind: pa.DataType) -> T.DataType:
    if pa.types.is_struct(kind):
        return T.StructType([T.StructField(f"f{i}", _text_schema(field.type)) for i, field in enumerate(kind)])
    if pa.types.is_map(kind):
        entry = [T.StructField("f0", _text_schema(kind.key_type)), T.StructField("f1", _text_schema(kind.item_type))]
        return T.ArrayType(T.StructType(entry))
    if pa.types.is_list(kind):
        return T.ArrayType(_text_schema(kind.value_type))
    return T.StringType()


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
        texts = [None if value is None else _text_of(value, column.type) for value in column.to_pylist()]
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


def _text_of(value: Any, kind: pa.DataType) -> Any:
    """The counterpart of :func:`_to_text`, for values of ``pa.Array.to_pylist``."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {f"f{i}": _text_of(value[field.name], field.type) for i, field in enumerate(kind)}
    if pa.types.is_map(kind):
        return [{"f0": _text_of(k, kind.key_type), "f1": _text_of(v, kind.item_type)} for k, v in value]
    if pa.types.is_list(kind):
        return [_text_of(item, kind.value_type) for item in value]
    if pa.types.is_binary(kind):
        return value.hex()
    if pa.types.is_boolean(kind):
        return "true" if value else "false"
    if pa.types.is_date(kind):
        return str(value.toordinal() - _EPOCH_DAY)
    if pa.types.is_timestamp(kind):
        return str(_micros(value)) if kind.tz else value.isoformat(sep=" ")
    return str(value)


def _micros(value: datetime) -> int:
    return (value - _EPOCH) // timedelta(microseconds=1)


def _value_of(text: Any, kind: pa.DataType) -> Any:
    """A value from its text: what :func:`_to_text` made of it."""
    if text is None:
        return None
    if pa.types.is_struct(kind):
        make = row_type(tuple(field.name for field in kind))._make
        return make(_value_of(text.get(f"f{i}"), field.type) for i, field in enumerate(kind))
    if pa.types.is_map(kind):
        entries = [(_value_of(e.get("f0"), kind.key_type), _value_of(e.get("f1"), kind.item_type)) for e in text]
        return dict(entries)
    if pa.types.is_list(kind):
        return [_value_of(item, kind.value_type) for item in text]
    if pa.types.is_binary(kind):
        return bytes.fromhex(text)
    if pa.types.is_boolean(kind):
        return text == "true"
    if pa.types.is_integer(kind):
        return int(text)
    if pa.types.is_floating(kind):
        return float(text)
    if pa.types.is_decimal(kind):
        return Decimal(text)
    if pa.types.is_date(kind):
        return date.fromordinal(int(text) + _EPOCH_DAY)
    if pa.types.is_timestamp(kind):
        return _EPOCH + timedelta(microseconds=int(text)) if kind.tz else _naive(text)
    return text


def _naive(text: str) -> datetime:
    whole, _, fraction = text.partition(".")
    return datetime.fromisoformat(whole).replace(microsecond=int(fraction.ljust(6, "0")[:6] or 0))


def _python_values(series: pd.Series[Any], kind: pa.DataType) -> list[Any]:
    form = form_of(kind)
    if form is Form.NUMBER:
        return list(series.to_numpy().tolist())
    if form is Form.MICROS:
        _require_range(series, _FIRST_MICROS, _LAST_MICROS)
        naive = series.to_numpy().astype("datetime64[us]").tolist()
        return [moment.replace(tzinfo=timezone.utc) for moment in naive]
    if form is Form.DAYS:
        _require_range(series, 1 - _EPOCH_DAY, date.max.toordinal() - _EPOCH_DAY)
        return list(series.to_numpy().astype("datetime64[D]").tolist())
    values = series.tolist()
    if form is Form.PLAIN:
        return values
    load: Callable[[str], Any] = json.loads if pa.types.is_nested(kind) else str
    return [None if text is None else _value_of(load(text), kind) for text in values]


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
    return pd.Series(_with_nulls(_python_values(series, kind), nulls), dtype=object)


def _nullable_dtype(kind: pa.DataType) -> Any:
    if pa.types.is_boolean(kind):
        return "boolean"
    return str(kind).capitalize() if pa.types.is_integer(kind) else {32: "Float32", 64: "Float64"}[kind.bit_width]
