"""How states become Arrow tables: one row per key, nested lists laid out flat."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from lockstep.errors import CorruptRecordError, StateMigrationError
from lockstep.state.ddl import to_ddl
from lockstep.state.evolution import reconcile
from lockstep.state.key_identity import KeyType


def table_of(**columns: pa.Array) -> pa.StructArray:
    """The columns side by side."""
    return pa.StructArray.from_arrays(list(columns.values()), names=list(columns))


def has_column(table: pa.StructArray, name: str) -> bool:
    return bool(table.type.get_field_index(name) >= 0)


def column(table: pa.StructArray, name: str, declared: pa.DataType, where: str) -> pa.Array:
    """A stored column as the declared type, if that loses nothing."""
    index = table.type.get_field_index(name)
    if index < 0:
        raise CorruptRecordError(f"The {where} has no column {name!r}: it was not written by Lockstep, or is damaged.")
    array = table.field(index)
    if array.type == declared:
        return array
    convert = reconcile(array.type, declared, where)
    return array if convert is None else convert(array)


def key_column(table: pa.StructArray, key_type: KeyType, where: str) -> list[Any]:
    """The keys of a table. Keys never change their type: they would hash into other key groups."""
    index = table.type.get_field_index("key")
    if index < 0:
        raise CorruptRecordError(f"The {where} has no column 'key': it was not written by Lockstep, or is damaged.")
    array = table.field(index)
    if array.type != key_type.arrow:
        raise StateMigrationError(
            f"The {where} is stored under keys of type {to_ddl(array.type)}, but the operator's key is now "
            f"{to_ddl(key_type.arrow)}. Key the stream as before, or give the operator another uid to start without state."
        )
    return key_type.decode(array)


def stamps_of(table: pa.StructArray, where: str) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """When each row was last touched, if that is stored."""
    if not has_column(table, "stamp"):
        return None
    stamps: np.ndarray[Any, np.dtype[np.int64]] = column(table, "stamp", pa.int64(), where).to_numpy(
        zero_copy_only=False
    )
    return stamps


def nested(
    groups: Sequence[Iterable[Any]], lengths: Iterable[int], encode: Callable[[list[Any]], pa.Array]
) -> pa.ListArray:
    """One list per group."""
    offsets = pa.array([0, *accumulate(lengths)], pa.int32())
    return pa.ListArray.from_arrays(offsets, encode(list(chain.from_iterable(groups))))


def unnested(array: pa.ListArray, decode: Callable[[pa.Array], list[Any]]) -> list[list[Any]]:
    """What :func:`nested` was given."""
    values = decode(array.flatten())
    offsets = array.offsets.to_pylist()
    first = offsets[0] if offsets else 0
    return [values[start - first : end - first] for start, end in pairwise(offsets)]


def int64_array(values: list[int]) -> pa.Array:
    return pa.array(values, pa.int64())


def int64_list(array: pa.Array) -> list[int]:
    values: list[int] = array.to_numpy(zero_copy_only=False).tolist()
    return values
