"""What a function is told about where it is: the key, the times, the key group, and its timers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from lockstep.errors import StateAccessError, StateTypeError
from lockstep.state.elements import none_for_na, plain_values
from lockstep.state.key_identity import KeyType
from lockstep.state.timers import TimeDomain, Timers, to_millis


@dataclass(frozen=True)
class OpenContext:
    """What ``open`` is told: nothing of a key, a group or an epoch, since it serves many of them."""

    uid: str
    max_parallelism: int


class Context:
    """Handed to every hook of a function; valid until the hook returns.

    Attributes
    ----------
    key
        The current key: a scalar for one key column, a :class:`Row` for several. Only in ``process_element`` and
        ``on_timer``, and inside ``with ctx.keyed(key)``; elsewhere reading it raises :class:`StateAccessError`.
    key_group
        The key group that the function works on, ``0 <= key_group < max_parallelism``.
    uid
        The operator's uid.
    epoch
        The epoch's id. A re-run of an epoch has the same.
    processing_time
        Milliseconds since 1970 at which the epoch was planned. It stands still during the epoch, and a re-run has the same.
    watermark
        Milliseconds since 1970, or ``None`` when the query has no watermark. It stands still during the epoch.
    is_restored
        Whether there was stored state of this key group.
    max_parallelism
        The number of key groups.
    """

    __slots__ = (
        "_domain",
        "_event_timers",
        "_key_type",
        "_processing_timers",
        "_takes_timers",
        "_unknown",
        "broadcasting",
        "epoch",
        "is_restored",
        "key",
        "key_group",
        "max_parallelism",
        "processing_time",
        "uid",
        "watermark",
    )
    key: Any

    def __init__(
        self,
        *,
        uid: str,
        max_parallelism: int,
        key_group: int,
        epoch: int,
        processing_time: int,
        watermark: int | None,
        is_restored: bool,
        key_type: KeyType,
        timers: dict[TimeDomain, Timers],
        takes_timers: bool,
        unknown: Callable[[Collection[Any]], list[Any]],
    ) -> None:
        self.uid = uid
        self.max_parallelism = max_parallelism
        self.key_group = key_group
        self.epoch = epoch
        self.processing_time = processing_time
        self.watermark = watermark
        self.is_restored = is_restored
        self.broadcasting = False  # set by the runtime: broadcast state may be written
        self._domain: TimeDomain | None = None
        self._key_type = key_type
        self._event_timers = timers[TimeDomain.EVENT_TIME]
        self._processing_timers = timers[TimeDomain.PROCESSING_TIME]
        self._takes_timers = takes_timers
        self._unknown = unknown
        self.leave_keys()

    @property
    def time_domain(self) -> TimeDomain:
        """In ``on_timer``: which clock the timer follows."""
        if self._domain is None:
            raise StateAccessError("ctx.time_domain is known in on_timer only: elsewhere no timer has fired.")
        return self._domain

    @contextmanager
    def keyed(self, key: Any) -> Iterator[None]:
        """Makes ``key`` the current key inside the ``with``: for ``process_batch`` and hooks without a key of their own.

        The key must be one of this key group: of an element of this epoch, or one that has state or timers here. Any
        other is refused, since its state would be stored where nobody looks for it.
        """
        (checked,) = self.own_keys([key])
        before = [self.key] if self.has_key else []
        self.enter_keys()
        self.key = checked
        try:
            yield
        finally:
            if before:
                self.key = before[0]
            else:
                self.leave_keys()

    key_scope = keyed

    @property
    def has_key(self) -> bool:
        """Whether there is a current key."""
        return type(self) is Context

    def enter_keys(self) -> None:
        """Called by the runtime before it sets ``key``."""
        self.__class__ = Context

    def leave_keys(self) -> None:
        """Called by the runtime: from here on there is no current key."""
        self.__class__ = _KeylessContext

    def own_keys(self, keys: Any) -> list[Any]:
        """``keys`` as they are stored, each checked to be one of this key group.

        For several key columns, a frame of these columns is taken as well as rows or tuples.
        """
        if hasattr(keys, "itertuples"):  # a pandas frame of the key columns
            keys = self._keys_of_frame(keys)
        own = [self._checked_key(given) for given in plain_values(keys, self._key_type.arrow)]
        for key in self._unknown(own):
            raise StateAccessError(
                f"The key {key!r} has neither an element in epoch {self.epoch} nor state in key group "
                f"{self.key_group}, so it may belong to another group. Use keys of the batch only."
            )
        return own

    def _checked_key(self, given: Any) -> Any:
        check = self._key_type.check
        try:
            return check(given)
        except (TypeError, ValueError) as error:
            try:
                return check(none_for_na(given))
            except (TypeError, ValueError):
                raise StateTypeError(f"{given!r} is no key of operator {self.uid!r}: {error}") from error

    def _keys_of_frame(self, frame: Any) -> Any:
        columns = [frame[name] for name in frame]
        if not pa.types.is_struct(self._key_type.arrow):
            return columns[0] if len(columns) == 1 else frame.itertuples(index=False, name=None)
        parts = zip(columns, self._key_type.arrow, strict=True)
        return zip(*(plain_values(column, part.type) for column, part in parts), strict=True)

    def register_processing_time_timer(self, time: int | datetime) -> None:
        """``on_timer`` is called for the current key in the first epoch planned at ``time`` or later.

        Registered once, however often it is asked for. A time that is past fires at the end of this epoch.
        """
        self._require_on_timer()
        self._processing_timers.register(self.key, to_millis(time))

    def register_event_time_timer(self, time: int | datetime) -> None:
        """``on_timer`` is called for the current key in the first epoch whose watermark is ``time`` or later.

        Registered once, however often it is asked for. A time at or below the watermark fires at the end of this epoch.
        """
        self._require_on_timer()
        if self.watermark is None:
            raise StateAccessError(
                f"Operator {self.uid!r} has no watermark, so an event-time timer would never fire. Call "
                'withWatermark("<event time column>", "<delay>") on the stream before key_by, or register a '
                "processing-time timer."
            )
        self._event_timers.register(self.key, to_millis(time))

    def delete_processing_time_timer(self, time: int | datetime) -> None:
        """Nothing happens when the current key has no such timer."""
        self._processing_timers.delete(self.key, to_millis(time))

    def delete_event_time_timer(self, time: int | datetime) -> None:
        """Nothing happens when the current key has no such timer."""
        self._event_timers.delete(self.key, to_millis(time))

    def _require_on_timer(self) -> None:
        if not self._takes_timers:
            raise StateAccessError(
                f"The function of operator {self.uid!r} registers a timer but has no on_timer to take it. Override "
                "on_timer(self, timestamp, ctx)."
            )


class _KeylessContext(Context):
    """The same context while there is no current key: being of another class, it costs the inner loop nothing."""

    __slots__ = ()

    @property
    def key(self) -> Any:
        raise StateAccessError(
            "There is no current key here: keyed state and timers belong to one key. Use them in process_element "
            "or on_timer, or inside `with ctx.keyed(key):`."
        )
