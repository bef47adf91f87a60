"""Spark's types and Arrow's, and the form in which a column of each travels to a worker and back."""

from __future__ import annotations

from enum import Enum

import pyarrow as pa
from pyspark.sql import types as T

from lockstep.errors import ConfigurationError

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
