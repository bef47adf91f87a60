"""The codec of any type, nested ones included: how values are checked, copied, and stored as Arrow arrays.

Arrays become lists, maps dicts, structs rows; each level is turned into columns by itself, so that the cost per value
is that of the scalar types inside.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from lockstep.errors import ConfigurationError
from lockstep.state import scalar_codec as scalar
from lockstep.state.ddl import to_ddl, unhashable_part
from lockstep.state.row import Row, row_type
from lockstep.state.scalar_codec import Codec, Encode, check_each, located, refused, with_nulls

__all__ = ["Codec", "codec_of"]

_call: Callable[[scalar.Check, Any], Any] = getattr(operator, "call", lambda check, value: check(value))  # C since 3.11
_item = tuple.__getitem__
_NONE = type(None)


@cache
def codec_of(arrow: pa.DataType) -> Codec:
    """The codec of a type: the same one for the same type."""
    types = pa.types
    if types.is_boolean(arrow):
        return scalar.boolean()
    if types.is_signed_integer(arrow):
        return scalar.integer(arrow)
    if types.is_float64(arrow):
        return scalar.double()
    if types.is_float32(arrow):
        return scalar.single()
    if types.is_decimal128(arrow) and 0 <= arrow.scale <= arrow.precision:
        return scalar.decimal(arrow)
    if types.is_string(arrow):
        return scalar.string()
    if types.is_binary(arrow):
        return scalar.binary()
    if types.is_date32(arrow):
        return scalar.day()
    if types.is_timestamp(arrow) and arrow.unit == "us":
        return scalar.wall_clock(arrow) if arrow.tz is None else scalar.instant(arrow)
    if types.is_list(arrow):
        return _array(arrow)
    if types.is_map(arrow):
        return _map(arrow)
    if types.is_struct(arrow) and arrow.num_fields:
        return _struct(arrow)
    raise ConfigurationError(
        f"The Arrow type {arrow} can't be stored as state or passed to a function. Cast the column to a type that "
        "has a DDL name first, such as bigint, string or timestamp."
    )


def _array(arrow: pa.DataType) -> Codec:
    element = codec_of(arrow.value_type)
    check_element = element.check
    expected = f"{to_ddl(arrow)}: a list"

    def check(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, (list, tuple)):
            if not isinstance(value, np.ndarray) or value.ndim == 0:
                raise TypeError(refused(expected, value))
            value = value.tolist()
        try:
            return [check_element(item) for item in value]
        except (TypeError, ValueError):
            return check_each(check_element, value, "element {}")

    def copy(value: Any) -> Any:
        if value is None:
            return None
        return [element.copy(item) for item in value] if element.mutable else value.copy()

    def encode(values: Sequence[Any], encode_elements: Encode = element.encode) -> pa.Array:
        flat: list[Any] = []
        offsets = _offsets(values, flat)
        return pa.ListArray.from_arrays(offsets, encode_elements(flat), type=arrow)

    def convert(values: Sequence[Any]) -> pa.Array:
        return encode(values, element.convert)

    def decode(array: pa.Array) -> list[Any]:
        if not len(array):
            return []
        first, bounds = _bounds(array)
        items = element.decode(array.values.slice(first, bounds[-1]))
        return with_nulls([items[start:end] for start, end in pairwise(bounds)], array)

    exact = frozenset({list, tuple, _NONE})
    return Codec(arrow, check, encode, decode, [], copy, mutable=True, exact=exact, convert_exact=convert)


def _map(arrow: pa.DataType) -> Codec:
    if unhashable_part(arrow.key_type) is not None:
        raise ConfigurationError(
            f"{to_ddl(arrow)}: a map's key can't be or contain an array or a map, as Python can't look one up in a dict."
        )
    key, item = codec_of(arrow.key_type), codec_of(arrow.item_type)
    check_key, check_item = key.check, item.check
    expected = f"{to_ddl(arrow)}: a dict"

    def check(value: Any) -> Any:
        if value is None:
            return None
        if type(value) is not dict and not isinstance(value, Mapping):
            raise TypeError(refused(expected, value))
        try:
            checked = {check_key(k): check_item(v) for k, v in value.items()}
        except (TypeError, ValueError):
            for k, v in value.items():
                _check_at(check_key, k, f"key {k!r}")
                _check_at(check_item, v, f"value of key {k!r}")
            raise
        if None in checked:
            raise ValueError(refused(f"{to_ddl(arrow)}: a dict without the key None", value))
        if len(checked) != len(value):
            raise ValueError(refused(f"{to_ddl(arrow)}: keys that still differ as {key.ddl}", value))
        return checked

    def copy(value: Any) -> Any:
        if value is None:
            return None
        return {k: item.copy(v) for k, v in value.items()} if item.mutable else value.copy()

    def encode(values: Sequence[Any]) -> pa.Array:
        keys: list[Any] = []
        offsets = _offsets(values, keys)
        items = [v for value in values if value is not None for v in value.values()]
        return pa.MapArray.from_arrays(offsets, key.encode(keys), item.encode(items), type=arrow)

    def decode(array: pa.Array) -> list[Any]:
        if not len(array):
            return []
        first, bounds = _bounds(array)
        entries = array.values.slice(first, bounds[-1])
        keys, items = key.decode(entries.field(0)), item.decode(entries.field(1))
        return with_nulls([dict(zip(keys[a:b], items[a:b], strict=True)) for a, b in pairwise(bounds)], array)

    return Codec(arrow, check, encode, decode, {}, copy, mutable=True)


def _struct(arrow: pa.DataType) -> Codec:
    fields = [arrow.field(i) for i in range(arrow.num_fields)]
    names = tuple(field.name for field in fields)
    if len(set(names)) != len(names):
        raise ConfigurationError(f"{to_ddl(arrow)}: two fields have the same name. Rename one.")
    parts = [codec_of(field.type) for field in fields]
    checks = [part.check for part in parts]
    copies = [part.copy for part in parts]
    required = [i for i, field in enumerate(fields) if not field.nullable]
    known = frozenset(names)
    kind = row_type(names)
    make = kind._make
    width = len(names)
    positional = frozenset({tuple, kind})
    blank = make(None if field.nullable else part.blank for field, part in zip(fields, parts, strict=True))
    expected = f"{to_ddl(arrow)}: a Row, dict or tuple"

    def check(value: Any) -> Any:
        if value is None:
            return None
        values = value if type(value) in positional else in_order(value)
        if len(values) != width:
            raise ValueError(refused(f"{to_ddl(arrow)}: {width} values", value))
        try:
            row = make([*map(_call, checks, values)])
        except (TypeError, ValueError):
            for name, check_part, part in zip(names, checks, values, strict=True):
                _check_at(check_part, part, f"field {name}")
            raise
        for position in required:
            if _item(row, position) is None:
                raise ValueError(
                    f"field {names[position]}: expected {to_ddl(fields[position].type)} NOT NULL, got None"
                )
        return row

    def in_order(value: Any) -> Sequence[Any]:
        """The values in the order of the type's fields: by name where the value has names, else by position."""
        if isinstance(value, Mapping):
            named: Mapping[Any, Any] = value
        elif isinstance(value, Row) or _is_foreign_row(value):
            named = value.asDict()
        elif hasattr(value, "_asdict"):
            named = value._asdict()
        elif isinstance(value, tuple):
            return value
        else:
            raise TypeError(refused(expected, value))
        if not known.issuperset(named):
            unknown = ", ".join(str(name) for name in named if name not in known)
            raise ValueError(f"{refused(expected, value)}. There is no field {unknown}")
        return [named.get(name) for name in names]

    def copy(value: Any) -> Any:
        return None if value is None else make([copy_of(part) for copy_of, part in zip(copies, value, strict=True)])

    def encode(values: Sequence[Any], encoders: Sequence[Encode] = [part.encode for part in parts]) -> pa.Array:
        absent = [value is None for value in values]
        mask = None
        if True in absent:
            mask = pa.array(absent, pa.bool_())
            values = [blank if value is None else value for value in values]
        columns = zip(*values, strict=True) if values else [()] * width
        arrays = [encode_part(column) for encode_part, column in zip(encoders, columns, strict=True)]
        if any(arrays[position].null_count for position in required):
            raise ValueError(f"{to_ddl(arrow)}: None in a field that is NOT NULL")
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)

    def convert(values: Sequence[Any]) -> pa.Array:
        return encode(values, [part.convert for part in parts])

    def decode(array: pa.Array) -> list[Any]:
        columns = [part.decode(array.field(i)) for i, part in enumerate(parts)]
        return with_nulls(list(map(make, zip(*columns, strict=True))), array)

    return Codec(
        arrow,
        check,
        encode,
        decode,
        blank,
        copy=copy if any(part.mutable for part in parts) else scalar.same,
        mutable=any(part.mutable for part in parts),
        exact=positional | {_NONE},
        convert_exact=convert,
    )


def _is_foreign_row(value: Any) -> bool:
    """Whether it is a row with names, such as Spark's, which may also be without: then it is a tuple."""
    return hasattr(value, "asDict") and (hasattr(value, "__fields__") or not isinstance(value, tuple))


def _offsets(values: Sequence[Any], flat: list[Any]) -> pa.Array:
    """Where each value's parts begin in ``flat``, which is filled with them; null where the value is ``None``."""
    offsets: list[int | None] = []
    for value in values:
        if value is None:
            offsets.append(None)
        else:
            offsets.append(len(flat))
            flat.extend(value)
    offsets.append(len(flat))
    return pa.array(offsets, pa.int32())


def _bounds(array: pa.Array) -> tuple[int, list[int]]:
    """The position of the first part of the first value, and from there on, where each value begins and the last ends."""
    offsets = array.offsets.to_numpy()
    first = int(offsets[0])
    return first, (offsets - first).tolist() if first else offsets.tolist()


def _check_at(check: scalar.Check, value: Any, place: str) -> None:
    try:
        check(value)
    except (TypeError, ValueError) as error:
        raise located(error, place) from None
