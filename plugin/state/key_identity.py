"""What makes two keys the same key, and which of two comes first.

Keys are looked up in dicts, so values must be hashable and equal to themselves. All NaN are one key, as in Spark's
grouping, although no NaN equals another in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from lockstep.errors import ConfigurationError
from lockstep.state.codec import codec_of
from lockstep.state.ddl import to_ddl, unhashable_part

NAN = float("nan")  # a dict finds the very same object, equal or not


def require_hashable(arrow: pa.DataType, what: str) -> None:
    """Refuses a type whose values can't be keys."""
    part = unhashable_part(arrow)
    if part is not None:
        raise ConfigurationError(
            f"{what} can't be {to_ddl(arrow)}: an array or a map ({to_ddl(part)}) is no key. "
            "Use its text, or the fields that identify it."
        )


def canonical(arrow: pa.DataType) -> Callable[[Any], Any] | None:
    """What turns every NaN of a key into the one NaN; ``None`` for types that have none."""
    if pa.types.is_floating(arrow):
        return lambda value: value if value == value else NAN
    if pa.types.is_struct(arrow):
        parts = [(i, canonical(arrow.field(i).type)) for i in range(arrow.num_fields)]
        found = [(i, part) for i, part in parts if part is not None]
        if found:
            return lambda row: _replaced(row, found)
    return None


def _replaced(row: Any, parts: list[tuple[int, Callable[[Any], Any]]]) -> Any:
    if row is None:
        return None
    values = list(row)
    for i, part in parts:
        values[i] = part(values[i])
    return type(row)._make(values)


def rank_of(arrow: pa.DataType) -> Callable[[Any], Any]:
    """A function from keys of this type to something that Python can sort: NULL first, NaN last."""
    if pa.types.is_floating(arrow):
        return lambda value: (0,) if value is None else (1, value) if value == value else (2,)
    if pa.types.is_struct(arrow):
        parts = [rank_of(arrow.field(i).type) for i in range(arrow.num_fields)]
        return lambda row: (0,) if row is None else (1, *(rank(v) for rank, v in zip(parts, row, strict=True)))
    return lambda value: (0,) if value is None else (1, value)


class KeyType:
    """The keys of one operator, or of one map: how they are checked, stored, told apart and ordered."""

    __slots__ = ("_one_nan", "arrow", "check", "codec", "rank")

    def __init__(self, arrow: pa.DataType, what: str) -> None:
        require_hashable(arrow, what)
        self.arrow = arrow
        self.codec = codec_of(arrow)
        self.rank = rank_of(arrow)
        self._one_nan = one_nan = canonical(arrow)
        plain = self.codec.check
        self.check: Callable[[Any], Any] = plain if one_nan is None else lambda value: one_nan(plain(value))

    def decode(self, array: pa.Array) -> list[Any]:
        return self.canonical(self.codec.decode(array))

    def canonical(self, keys: list[Any]) -> list[Any]:
        """``keys``, in which every NaN is the one NaN."""
        return keys if self._one_nan is None else list(map(self._one_nan, keys))

    def encode(self, keys: Iterable[Any]) -> pa.Array:
        return self.codec.encode(list(keys))
