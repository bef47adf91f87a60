"""Between the frames that an engine hands over and the rows that a function takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import pyarrow as pa

from lockstep.state.codec import codec_of
from lockstep.state.key_identity import KeyType
from lockstep.state.row import Row, row_type

_NULLABLE = {
    pa.bool_(): pd.BooleanDtype(),
    pa.int8(): pd.Int8Dtype(),
    pa.int16(): pd.Int16Dtype(),
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.float32(): pd.Float32Dtype(),
    pa.float64(): pd.Float64Dtype(),
}


def rows_of_frame(frame: Any, schema: pa.Schema) -> list[Row]:
    """The rows of a pandas frame or Arrow table with at least the columns of ``schema``."""
    return rows_of_columns([_column(frame, field) for field in schema], schema)


def rows_of_columns(columns: Sequence[pa.Array], schema: pa.Schema) -> list[Row]:
    """The rows of columns that have the types of ``schema``."""
    values = [codec_of(field.type).decode(array) for array, field in zip(columns, schema, strict=True)]
    return list(map(row_type(schema.names)._make, zip(*values, strict=True)))


def keys_of_frame(frame: Any, key: pa.Schema, key_type: KeyType) -> list[Any]:
    """The key of each row of a pandas frame or Arrow table."""
    arrays = [_column(frame, field) for field in key]
    if len(arrays) == 1:
        return key_type.decode(arrays[0])
    return key_type.decode(pa.StructArray.from_arrays(arrays, fields=list(key_type.arrow)))


def frame_of_rows(rows: Sequence[Row], schema: pa.Schema) -> Any:
    """Rows as a pandas frame."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [codec_of(field.type).encode(column) for field, column in zip(schema, columns, strict=True)]
    return pd.DataFrame({name: _pandas(array) for name, array in zip(schema.names, arrays, strict=True)})


def _pandas(array: pa.Array) -> Any:
    """numpy's numbers, or pandas' nullable ones where there are nulls: no number changes, and no null becomes NaN."""
    return array.to_pandas(types_mapper=_NULLABLE.get if array.null_count else None)


def plain_values(values: Any, arrow: pa.DataType) -> list[Any]:
    """A column of pandas, numpy or Arrow, or any iterable, as a list of Python values of type ``arrow``, yet unchecked.

    What pandas takes for null is ``None``; NaN stays what it is where the type has it.
    """
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return list(values.to_pylist())
    if not hasattr(values, "tolist"):
        return list(values)
    plain: list[Any] = values.tolist()
    if hasattr(values, "isna") and not (values.dtype == float and pa.types.is_floating(arrow)):
        absent = values.isna()
        if absent.any():
            return [None if missing else value for value, missing in zip(plain, absent.tolist(), strict=True)]
    return plain


def none_for_na(value: Any) -> Any:
    """``None`` for what pandas gives in its place, in a tuple too."""
    if isinstance(value, tuple):
        return tuple(map(none_for_na, value))
    return None if value is pd.NA or value is pd.NaT or value != value else value


def _column(frame: Any, field: pa.Field) -> pa.Array:
    if isinstance(frame, (pa.Table, pa.RecordBatch)):
        array = frame.column(field.name)
        if array.type != field.type:
            array = array.cast(field.type)
    else:
        array = pa.Array.from_pandas(frame[field.name], type=field.type)
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
