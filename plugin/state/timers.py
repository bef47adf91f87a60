"""Timers of one key group in one time domain: registered once per key and time, fired in order."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any

from lockstep.errors import StateTypeError

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLI = timedelta(milliseconds=1)
_LARGEST = 2**63 - 1


class TimeDomain(Enum):
    """Which clock a timer follows."""

    EVENT_TIME = "event_time"  # the watermark
    PROCESSING_TIME = "processing_time"  # the time at which the epoch was planned


class Timers:
    """The timers of one domain.

    Due timers come in order of time; those of one time, in the order of ``rank`` of their keys. That order depends on
    nothing but the keys, so a re-run of an epoch fires the same timers in the same order.

    Nothing is sorted until something is due: a group with many timers, none due, pays for reading them only.
    """

    __slots__ = ("_earliest", "_heap", "_live", "_rank", "changed")

    def __init__(self, rank: Callable[[Any], Any], timers: Iterable[tuple[int, Hashable]] = ()) -> None:
        self._rank = rank
        self._live: dict[tuple[int, Hashable], None] = dict.fromkeys(timers)  # a set whose order every process repeats
        self._heap: list[tuple[int, Any, Hashable]] | None = None  # may also hold timers that are deleted since
        self._earliest = self.next()  # no timer is before it
        self.changed = False

    def __len__(self) -> int:
        return len(self._live)

    def register(self, key: Hashable, time: int) -> None:
        """Registering what is registered does nothing."""
        timer = (time, key)
        if timer in self._live:
            return
        self._live[timer] = None
        self.changed = True
        if self._earliest is None or time < self._earliest:
            self._earliest = time
        if self._heap is not None:
            heapq.heappush(self._heap, (time, self._rank(key), key))

    def delete(self, key: Hashable, time: int) -> None:
        """Deleting what is not registered does nothing."""
        timer = (time, key)
        if timer in self._live:
            del self._live[timer]
            self.changed = True

    def pop(self, limit: int) -> tuple[int, Any] | None:
        """Takes out the first timer whose time is ``limit`` or before: its time and key."""
        if self._earliest is None or self._earliest > limit:
            return None
        if self._heap is None:
            rank = self._rank
            self._heap = [(time, rank(key), key) for time, key in self._live]
            heapq.heapify(self._heap)
        heap, live = self._heap, self._live
        while heap and heap[0][0] <= limit:
            time, _, key = heapq.heappop(heap)
            if (time, key) in live:
                del live[(time, key)]
                self.changed = True
                self._earliest = heap[0][0] if heap else None
                return time, key
        self._earliest = heap[0][0] if heap else None
        return None

    def next(self) -> int | None:
        """The time of the first timer."""
        return min((time for time, _ in self._live), default=None)

    def of(self, key: Hashable) -> list[int]:
        """The times registered for ``key``, first to last."""
        return sorted(time for time, owner in self._live if owner == key)

    def keys(self) -> set[Hashable]:
        return {key for _, key in self._live}

    def entries(self) -> tuple[list[int], list[Any]]:
        """Times and keys, side by side."""
        return [time for time, _ in self._live], [key for _, key in self._live]


def to_millis(time: int | datetime) -> int:
    """A timer's time as milliseconds since 1970, from such a number or from a datetime with a time zone."""
    if type(time) is int:
        millis = time
    elif isinstance(time, datetime):
        if time.utcoffset() is None:
            raise StateTypeError(
                f"A timer can't be set for {time!r}: without a time zone it is no point in time. "
                "Add one, for example tzinfo=datetime.timezone.utc."
            )
        millis = (time - _EPOCH) // _MILLI
    elif isinstance(time, bool) or not hasattr(time, "__index__"):
        raise StateTypeError(
            f"A timer is set for milliseconds since 1970 (an int) or a datetime with a time zone, not for {time!r} "
            f"({type(time).__name__})."
        )
    else:
        millis = time.__index__()  # numpy's integers
    if not -_LARGEST <= millis <= _LARGEST:
        raise StateTypeError(f"A timer can't be set for {millis}: that is no time in milliseconds since 1970.")
    return millis
