"""Which task a key group runs in: group after group, task after task, whatever the number of tasks.

Spark sends a row to the task that the hash of its grouping column says. Hashed by their numbers, 32 key groups on 32
tasks would leave 14 tasks idle and give three groups to one: the epoch would wait for that. The hash of a whole number
can be undone, so a group goes under the number whose hash is the group's own: group 5 of any is in task 5 modulo their
number. (Should a Spark ever hash differently, tasks would be as unequal as without this; nothing else would change.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

_MASK = 0xFFFFFFFF
_SEED = 42  # of Spark's hash, which is Murmur3 for 32 bits
_FIRST, _SECOND, _THIRD, _FOURTH = 0xCC9E2D51, 0x1B873593, 0x85EBCA6B, 0xC2B2AE35
_ADDED, _LENGTH = 0xE6546B64, 4


def place_of(group: int) -> int:
    """The number under which Spark knows the group: its hash is ``group``."""
    hashed = group & _MASK
    hashed ^= hashed >> 16
    hashed = _divided(hashed, _FOURTH)
    hashed ^= (hashed >> 13) ^ (hashed >> 26)
    hashed = _divided(hashed, _THIRD)
    hashed ^= hashed >> 16
    hashed ^= _LENGTH
    hashed = _divided((hashed - _ADDED) & _MASK, 5)
    mixed = _rotated(hashed, 19) ^ _SEED
    return _signed(_divided(_rotated(_divided(mixed, _SECOND), 17), _FIRST))


def group_at(place: int) -> int:
    """The group that Spark knows under this number: its hash."""
    mixed = _rotated((place * _FIRST) & _MASK, 15) * _SECOND & _MASK
    hashed = (_rotated(mixed ^ _SEED, 13) * 5 + _ADDED) & _MASK
    hashed ^= _LENGTH
    hashed ^= hashed >> 16
    hashed = hashed * _THIRD & _MASK
    hashed ^= hashed >> 13
    hashed = hashed * _FOURTH & _MASK
    return _signed(hashed ^ (hashed >> 16))


def places(group: Column, groups: int) -> Column:
    """The places of a column of group numbers, of which there are so many."""
    from pyspark.sql import functions as F

    known = ", ".join(str(place_of(number)) for number in range(groups))
    return F.get(F.expr(f"cast(array({known}) as array<int>)"), group)


def groups_at(place: Column) -> Column:
    """The group numbers of a column of places."""
    from pyspark.sql import functions as F

    return F.hash(place)


def _divided(number: int, factor: int) -> int:
    """Undoes a multiplication by an odd ``factor``, modulo 2³²."""
    return number * pow(factor, -1, 1 << 32) & _MASK


def _rotated(number: int, bits: int) -> int:
    return ((number << bits) | (number >> (32 - bits))) & _MASK


def _signed(number: int) -> int:
    return number - (1 << 32) if number >> 31 else number
