"""Between Python values and Arrow arrays, for the types without parts: numbers, text, bytes, dates, timestamps.

The law of every codec: after ``v = check(x)``, ``decode(encode([v])) == [v]``, with the same Python types. So what a
user's function reads in the next epoch, or after a restart, is what it would have read in this one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import partial
from struct import Struct
from typing import Any

import numpy as np
import pyarrow as pa

from lockstep.state.ddl import to_ddl

Check = Callable[[Any], Any]
Encode = Callable[[Sequence[Any]], pa.Array]
Decode = Callable[[pa.Array], list[Any]]

_NONE = type(None)
_UTC = timezone.utc
_FLOAT32 = Struct("<f")


def same(value: Any) -> Any:
    """The copy of what can't change."""
    return value


@dataclass(frozen=True, eq=False)
class Codec:
    """How values of one type are checked, copied and stored. Stateless, so shared by all who use the type.

    ``check`` gives the value in its one normal form, or raises a ``TypeError`` (wrong kind of value) or ``ValueError``
    (right kind, but out of range, or digits would be lost) that says what was expected and what was given. ``None`` is
    always allowed. ``encode`` is for checked values only; ``decode`` takes arrays of ``type``, sliced ones too.
    """

    type: pa.DataType
    check: Check
    encode: Encode
    decode: Decode
    blank: (
        Any  # some value that is not None: it stands where a NOT NULL field has no value, inside a struct that is None
    )
    copy: Callable[[Any], Any] = same
    mutable: bool = False  # whether a copy must be made before a value is handed out
    exact: frozenset[type] = frozenset()  # a column of these Python types needs no check of each value: see convert
    convert_exact: Encode | None = None  # encodes such a column, or raises; without it, encode does

    @property
    def ddl(self) -> str:
        return to_ddl(self.type)

    def convert(self, values: Sequence[Any]) -> pa.Array:
        """Check and encode a whole column; the error of a wrong value begins with its position."""
        if self.exact and self.exact.issuperset(map(type, values)):
            try:
                return (self.convert_exact or self.encode)(values)
            except (TypeError, ValueError, OverflowError):
                pass  # some value is wrong: found and named below
        return self.encode(check_each(self.check, values, "value {}"))


def check_each(check: Check, values: Sequence[Any], place: str) -> list[Any]:
    """All values checked; on an error, ``place`` (with the position filled in) says which one it was."""
    try:
        return [check(value) for value in values]
    except (TypeError, ValueError):
        for position, value in enumerate(values):
            try:
                check(value)
            except (TypeError, ValueError) as error:
                raise located(error, place.format(position)) from None
        raise


def located(error: TypeError | ValueError, place: str) -> TypeError | ValueError:
    """The error with the place in front: ``field tags: element 3: expected ...``."""
    kind = TypeError if isinstance(error, TypeError) else ValueError
    return kind(f"{place}: {error}")


def refused(expected: str, value: Any) -> str:
    """What was expected, and what was given instead."""
    try:
        shown = repr(value)
    except Exception:  # a user's own __repr__ must not hide the real mistake
        shown = "a value that has no repr"
    return f"expected {expected}, got {shown if len(shown) <= 100 else shown[:97] + '...'} ({type(value).__name__})"


def encoder(arrow: pa.DataType) -> Encode:
    """Values that Arrow itself knows how to read."""

    def encode(values: Sequence[Any]) -> pa.Array:
        array = pa.array(values, type=arrow)
        if isinstance(array, pa.ChunkedArray):  # Arrow's way to say that 32-bit offsets don't suffice
            raise ValueError(
                f"{len(values)} values of type {to_ddl(arrow)} take more than 2 GiB: more than one column holds"
            )
        return array

    return encode


def with_nulls(values: list[Any], array: pa.Array) -> list[Any]:
    """``values`` with ``None`` put where ``array`` is null."""
    if array.null_count:
        for position in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[position] = None
    return values


def boolean() -> Codec:
    def check(value: Any) -> Any:
        if value is True or value is False or value is None:
            return value
        if isinstance(value, np.bool_):
            return bool(value)
        raise TypeError(refused("boolean: True or False", value))

    return Codec(pa.bool_(), check, encoder(pa.bool_()), _decode_objects, False, exact=frozenset({bool, _NONE}))


def integer(arrow: pa.DataType) -> Codec:
    high = 2 ** (arrow.bit_width - 1) - 1
    low = -high - 1
    expected = f"{to_ddl(arrow)}: an int from {low} to {high}"

    def check(value: Any) -> Any:
        if type(value) is int:
            if low <= value <= high:
                return value
            raise ValueError(refused(expected, value))
        if value is None:
            return None
        if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
            return check(int(value))
        raise TypeError(refused(expected, value))

    def decode(array: pa.Array) -> list[Any]:
        if array.null_count:
            return with_nulls(array.fill_null(0).to_numpy().tolist(), array)
        values: list[Any] = array.to_numpy().tolist()
        return values

    return Codec(arrow, check, encoder(arrow), decode, 0, exact=frozenset({int, _NONE}))


def double() -> Codec:
    def check(value: Any) -> Any:
        if type(value) is float:
            return value if value == value else math.nan
        return value if value is None else check(_as_float(value, "double"))

    arrow = pa.float64()
    return Codec(arrow, check, encoder(arrow), _decode_floats, 0.0, exact=frozenset({float, _NONE}))


def single() -> Codec:
    pack, unpack = _FLOAT32.pack, _FLOAT32.unpack

    def check(value: Any) -> Any:
        if type(value) is float:
            try:
                rounded = unpack(pack(value))[0]
            except OverflowError:
                raise ValueError(refused("float: a number of at most 3.4e38, or use double", value)) from None
            return rounded if rounded == rounded else math.nan
        return value if value is None else check(_as_float(value, "float"))

    return Codec(pa.float32(), check, encoder(pa.float32()), _decode_floats, 0.0)


def decimal(arrow: pa.DataType) -> Codec:
    step = Decimal(1).scaleb(-arrow.scale)
    # Of a quantized value, the context refuses more digits than the precision and any digit that would be cut off.
    context = Context(prec=arrow.precision, traps=[InvalidOperation, Inexact])
    quantize = context.quantize
    zero = Decimal(0).quantize(step)
    name = to_ddl(arrow)
    whole = arrow.precision - arrow.scale
    expected = f"{name}: a Decimal with at most {whole} digits before and {arrow.scale} after the point"

    def check(value: Any) -> Any:
        if type(value) is Decimal:
            if not value:
                return zero  # without the sign that a Decimal's zero can have, and Arrow's can't
            if not value.is_finite():
                raise ValueError(refused(expected, value))
            try:
                return quantize(value, step)
            except (InvalidOperation, Inexact):
                raise ValueError(f"{refused(expected, value)}. Round it first: nothing is rounded silently") from None
        if value is None:
            return None
        if isinstance(value, Decimal):
            return check(Decimal(value))
        if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
            return check(Decimal(int(value)))
        raise TypeError(refused(expected, value))

    def decode(array: pa.Array) -> list[Any]:
        texts = array.cast(pa.string()).to_numpy(zero_copy_only=False).tolist()
        if array.null_count:
            return [None if text is None else Decimal(text) for text in texts]
        return list(map(Decimal, texts))

    return Codec(arrow, check, encoder(arrow), decode, zero)


def string() -> Codec:
    def check(value: Any) -> Any:
        if type(value) is str:
            if not value.isascii():
                try:
                    value.encode()
                except UnicodeEncodeError:
                    raise ValueError(
                        refused("string: text without lone surrogates, which UTF-8 lacks", value)
                    ) from None
            return value
        if value is None:
            return None
        if isinstance(value, str):
            return check(str.__str__(value))
        raise TypeError(refused("string", value))

    arrow = pa.string()
    return Codec(arrow, check, encoder(arrow), _decode_objects, "", exact=frozenset({str, _NONE}))


def binary() -> Codec:
    def check(value: Any) -> Any:
        if type(value) is bytes or value is None:
            return value
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        raise TypeError(refused("binary: bytes", value))

    arrow = pa.binary()
    return Codec(arrow, check, encoder(arrow), _decode_objects, b"", exact=frozenset({bytes, _NONE}))


def day() -> Codec:
    def check(value: Any) -> Any:
        if type(value) is date or value is None or _is_nat(value):
            return value if type(value) is date else None
        if isinstance(value, datetime):
            raise TypeError(f"{refused('date', value)}. Take its .date() in the time zone that is meant")
        if isinstance(value, date):
            return date(value.year, value.month, value.day)
        raise TypeError(refused("date: a datetime.date", value))

    epoch = date(1970, 1, 1)
    arrow = pa.date32()
    decode = partial(_decode_since, epoch, "m8[D]")
    return Codec(arrow, check, encoder(arrow), decode, epoch, exact=frozenset({date, _NONE}))


def instant(arrow: pa.DataType) -> Codec:
    def check(value: Any) -> Any:
        if type(value) is datetime and value.tzinfo is _UTC and not value.fold:
            return value
        if value is None or _is_nat(value):
            return None
        if not isinstance(value, datetime):
            raise TypeError(refused("timestamp: a datetime with a time zone", value))
        if value.utcoffset() is None:
            raise ValueError(
                f"{refused('timestamp: a datetime with a time zone', value)}. Which instant is meant is not known: "
                "add .replace(tzinfo=timezone.utc) if it is UTC, or declare timestamp_ntz"
            )
        try:
            return _plain(value).astimezone(_UTC).replace(fold=0)
        except OverflowError:
            raise ValueError(refused("timestamp: from year 1 to 9999 in UTC", value)) from None

    epoch = datetime(1970, 1, 1, tzinfo=_UTC)
    return Codec(arrow, check, partial(_encode_since, epoch, arrow), partial(_decode_since, epoch, "m8[us]"), epoch)


def wall_clock(arrow: pa.DataType) -> Codec:
    def check(value: Any) -> Any:
        if type(value) is datetime and value.tzinfo is None and not value.fold:
            return value
        if value is None or _is_nat(value):
            return None
        if not isinstance(value, datetime):
            raise TypeError(refused("timestamp_ntz: a datetime without a time zone", value))
        if value.tzinfo is not None:
            raise ValueError(
                f"{refused('timestamp_ntz: a datetime without a time zone', value)}. "
                "Remove it by .replace(tzinfo=None), or declare timestamp"
            )
        return _plain(value).replace(fold=0)

    epoch = datetime(1970, 1, 1)
    return Codec(arrow, check, partial(_encode_since, epoch, arrow), partial(_decode_since, epoch, "m8[us]"), epoch)


def _decode_objects(array: pa.Array) -> list[Any]:
    values: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
    return values


def _decode_floats(array: pa.Array) -> list[Any]:
    numbers = array.to_numpy(zero_copy_only=False)
    values: list[Any] = numbers.tolist()
    # All NaN are one object: then one can be found in a list or dict, before and after it was stored.
    for position in np.flatnonzero(np.isnan(numbers)).tolist():
        values[position] = math.nan
    return with_nulls(values, array)


def _encode_since(epoch: datetime, arrow: pa.DataType, values: Sequence[Any]) -> pa.Array:
    """As durations, which Arrow reads five times faster than datetimes."""
    durations = [None if value is None else value - epoch for value in values]
    return pa.array(durations, pa.duration("us")).view(arrow)


def _decode_since(epoch: Any, unit: str, array: pa.Array) -> list[Any]:
    try:
        distances = array.to_numpy(zero_copy_only=False).view(unit).tolist()
        if array.null_count:
            return [None if distance is None else epoch + distance for distance in distances]
        return [epoch + distance for distance in distances]
    except (OverflowError, TypeError):  # beyond what a date, or even a timedelta, can hold
        raise ValueError(f"a {to_ddl(array.type)} is not between the years 1 and 9999, which Python can hold") from None


def _as_float(value: Any, name: str) -> float:
    if isinstance(value, (float, int, np.floating, np.integer)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ValueError(refused(f"{name}: a number of at most 1.8e308", value)) from None
    raise TypeError(refused(f"{name}: a float", value))


def _plain(value: datetime) -> datetime:
    """Without what subclasses add, such as pandas' nanoseconds."""
    if getattr(value, "nanosecond", 0):
        raise ValueError(f"{refused('microseconds', value)}. Cut the nanoseconds off first, by .floor('us')")
    if type(value) is datetime:
        return value
    return datetime(
        value.year,
        value.month,
        value.day,
        value.hour,
        value.minute,
        value.second,
        value.microsecond,
        value.tzinfo,
        fold=value.fold,
    )


def _is_nat(value: Any) -> bool:
    """Whether it is pandas' missing time, which is a datetime to isinstance, and equal to nothing."""
    return isinstance(value, date) and value != value
