"""Strategies for the types that state can have and the values of each, and what it means that two values are the same."""

from __future__ import annotations

import struct
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

UTC = timezone.utc
INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
SIMPLE = [
    pa.bool_(),
    *INTEGERS,
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us", tz="UTC"),
    pa.timestamp("us"),
]
DECIMALS = st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: pa.decimal128(p, s)))
SCALARS = st.sampled_from(SIMPLE) | DECIMALS
NAMES = st.text("abz_09", min_size=1, max_size=3) | st.text("aé `'<\"", min_size=1, max_size=3)


@st.composite
def structs(draw: st.DrawFn, parts: st.SearchStrategy[pa.DataType]) -> pa.DataType:
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique_by=str.lower))
    return pa.struct([pa.field(name, draw(parts), nullable=draw(st.booleans())) for name in names])


KEYS = SCALARS | structs(SCALARS)
TYPES = st.recursive(
    SCALARS,
    lambda parts: parts.map(pa.list_) | st.builds(pa.map_, KEYS, parts) | structs(parts),
    max_leaves=6,
)

_ZONES = st.sampled_from([UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-5, minutes=-30, seconds=-7))])
_EXTREME_TIMES = [datetime.min, datetime.max, datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(1582, 10, 10)]


def values(arrow: pa.DataType, nullable: bool = True) -> st.SearchStrategy[Any]:
    """Values that ``check`` accepts, not always in normal form."""
    found = _values(arrow)
    return st.none() | found if nullable else found


def _values(arrow: pa.DataType) -> st.SearchStrategy[Any]:
    types = pa.types
    if types.is_boolean(arrow):
        return st.booleans()
    if types.is_integer(arrow):
        high = 2 ** (arrow.bit_width - 1) - 1
        return st.integers(-high - 1, high) | st.sampled_from([-high - 1, high])
    if types.is_float32(arrow):
        return st.floats(width=32) | st.floats(-1e30, 1e30) | st.just(-0.0)
    if types.is_float64(arrow):
        return st.floats() | st.integers(-(2**60), 2**60) | st.just(-0.0)
    if types.is_decimal128(arrow):
        most = 10**arrow.precision - 1
        return st.integers(-most, most).map(lambda digits: Decimal(f"{digits}E-{arrow.scale}"))
    if types.is_string(arrow):
        return st.text(max_size=6) | st.sampled_from(["", "\x00", "\U0001f600", "é"])
    if types.is_binary(arrow):
        return st.binary(max_size=6) | st.binary(max_size=3).map(bytearray)
    if types.is_date32(arrow):
        return st.dates() | st.sampled_from([date.min, date.max])
    if types.is_timestamp(arrow) and arrow.tz is None:
        return st.datetimes() | st.sampled_from(_EXTREME_TIMES)
    if types.is_timestamp(arrow):
        inside = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29), timezones=_ZONES)
        return inside | st.sampled_from(_EXTREME_TIMES).map(lambda time: time.replace(tzinfo=UTC))
    if types.is_list(arrow):
        return st.lists(values(arrow.value_type), max_size=3)
    if types.is_map(arrow):
        return _maps(arrow)
    parts = {arrow.field(i).name: arrow.field(i) for i in range(arrow.num_fields)}
    named = {name: values(field.type, field.nullable) for name, field in parts.items()}
    required = {name: named[name] for name, field in parts.items() if not field.nullable}
    optional = {name: named[name] for name, field in parts.items() if field.nullable}
    return st.tuples(*named.values()) | st.fixed_dictionaries(required, optional=optional)


def _maps(arrow: pa.DataType) -> st.SearchStrategy[Any]:
    key = arrow.key_type
    if pa.types.is_struct(key):  # a dict can't be a key: tuples can
        parts = [key.field(i) for i in range(key.num_fields)]
        keys: st.SearchStrategy[Any] = st.tuples(*(_hashable(f.type, f.nullable) for f in parts))
    else:
        keys = _hashable(key, nullable=False)
    return st.dictionaries(keys, values(arrow.item_type), max_size=3)


def _hashable(arrow: pa.DataType, nullable: bool) -> st.SearchStrategy[Any]:
    if pa.types.is_binary(arrow):
        found: st.SearchStrategy[Any] = st.binary(max_size=3)
    elif pa.types.is_floating(arrow):
        found = st.floats(-100, 100, width=32)  # NaN and keys that become one by rounding have tests of their own
    else:
        found = _values(arrow)
    return st.none() | found if nullable else found


def fingerprint(value: Any) -> Any:
    """Equal for two values only if they are the same to the last bit and of the same Python types, all the way down."""
    kind = type(value)
    if kind is float:
        return kind, struct.pack("<d", value)
    if kind is Decimal:
        return kind, value.as_tuple()
    if kind is datetime:
        return kind, value.replace(tzinfo=None), value.tzinfo, value.fold
    if kind is dict:
        return kind, [(fingerprint(k), fingerprint(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return kind, [fingerprint(each) for each in value]
    return kind, value
