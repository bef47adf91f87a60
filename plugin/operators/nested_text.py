"""Nested values as text: JSON whose leaves are strings, so that neither side has to guess a type.

Each of the two ways has a part in the JVM, as column expressions, and one in Python.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as T

from lockstep.operators.column_types import spark_type
from lockstep.state.row import row_type

if TYPE_CHECKING:
    from pyspark.sql import Column

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
EPOCH_DAY = date(1970, 1, 1).toordinal()


def to_text(column: Column, kind: pa.DataType) -> Column:
    """A value whose leaves are text; structs have numbered fields, maps are lists of entries."""
    from pyspark.sql import functions as F

    if pa.types.is_struct(kind):
        fields = [to_text(column.getField(field.name), field.type).alias(f"f{i}") for i, field in enumerate(kind)]
        return F.when(column.isNotNull(), F.struct(*fields))
    if pa.types.is_map(kind):
        return F.transform(
            F.map_entries(column),
            lambda entry: F.struct(
                to_text(entry["key"], kind.key_type).alias("f0"), to_text(entry["value"], kind.item_type).alias("f1")
            ),
        )
    if pa.types.is_list(kind):
        return F.transform(column, lambda item: to_text(item, kind.value_type))
    if pa.types.is_binary(kind):
        return F.hex(column)
    if pa.types.is_date(kind):
        return F.unix_date(column).cast("string")
    if pa.types.is_timestamp(kind) and kind.tz:
        return F.unix_micros(column).cast("string")
    if pa.types.is_float32(kind):
        return column.cast("double").cast("string")
    return column.cast("string")


def from_text(column: Column, kind: pa.DataType) -> Column:
    from pyspark.sql import functions as F

    if pa.types.is_struct(kind):
        fields = [from_text(column.getField(f"f{i}"), field.type).alias(field.name) for i, field in enumerate(kind)]
        return F.when(column.isNotNull(), F.struct(*fields))
    if pa.types.is_map(kind):
        return F.map_from_entries(
            F.transform(
                column,
                lambda entry: F.struct(
                    from_text(entry["f0"], kind.key_type).alias("key"),
                    from_text(entry["f1"], kind.item_type).alias("value"),
                ),
            )
        )
    if pa.types.is_list(kind):
        return F.transform(column, lambda item: from_text(item, kind.value_type))
    if pa.types.is_binary(kind):
        return F.unhex(column)
    if pa.types.is_date(kind):
        return F.date_from_unix_date(column.cast("int"))
    if pa.types.is_timestamp(kind) and kind.tz:
        return F.timestamp_micros(column.cast("bigint"))
    return column.cast(spark_type(kind))


def text_schema(kind: pa.DataType) -> T.DataType:
    if pa.types.is_struct(kind):
        return T.StructType([T.StructField(f"f{i}", text_schema(field.type)) for i, field in enumerate(kind)])
    if pa.types.is_map(kind):
        entry = [T.StructField("f0", text_schema(kind.key_type)), T.StructField("f1", text_schema(kind.item_type))]
        return T.ArrayType(T.StructType(entry))
    if pa.types.is_list(kind):
        return T.ArrayType(text_schema(kind.value_type))
    return T.StringType()


def text_of(value: Any, kind: pa.DataType) -> Any:
    """The counterpart of :func:`to_text`, for values of ``pa.Array.to_pylist``."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {f"f{i}": text_of(value[field.name], field.type) for i, field in enumerate(kind)}
    if pa.types.is_map(kind):
        return [{"f0": text_of(k, kind.key_type), "f1": text_of(v, kind.item_type)} for k, v in value]
    if pa.types.is_list(kind):
        return [text_of(item, kind.value_type) for item in value]
    if pa.types.is_binary(kind):
        return value.hex()
    if pa.types.is_boolean(kind):
        return "true" if value else "false"
    if pa.types.is_date(kind):
        return str(value.toordinal() - EPOCH_DAY)
    if pa.types.is_timestamp(kind):
        return str(_micros(value)) if kind.tz else value.isoformat(sep=" ")
    return str(value)


def _micros(value: datetime) -> int:
    return (value - EPOCH) // timedelta(microseconds=1)


def value_of(text: Any, kind: pa.DataType) -> Any:
    """A value from its text: what :func:`to_text` made of it."""
    if text is None:
        return None
    if pa.types.is_struct(kind):
        make = row_type(tuple(field.name for field in kind))._make
        return make(value_of(text.get(f"f{i}"), field.type) for i, field in enumerate(kind))
    if pa.types.is_map(kind):
        entries = [(value_of(e.get("f0"), kind.key_type), value_of(e.get("f1"), kind.item_type)) for e in text]
        return dict(entries)
    if pa.types.is_list(kind):
        return [value_of(item, kind.value_type) for item in text]
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
        return date.fromordinal(int(text) + EPOCH_DAY)
    if pa.types.is_timestamp(kind):
        return EPOCH + timedelta(microseconds=int(text)) if kind.tz else _naive(text)
    return text


def _naive(text: str) -> datetime:
    whole, _, fraction = text.partition(".")
    return datetime.fromisoformat(whole).replace(microsecond=int(fraction.ljust(6, "0")[:6] or 0))
