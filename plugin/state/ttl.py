"""How long state lives: an entry that is older than its time to live is never returned."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum

from lockstep.choices import choose
from lockstep.config import parse_duration
from lockstep.errors import ConfigurationError


class TtlUpdate(Enum):
    """What makes an entry young again."""

    ON_WRITE = "on_write"
    ON_READ_AND_WRITE = "on_read_and_write"


class Ttl:
    """Time to live of a state's entries: of a value, of one element of a list, of one entry of a map.

    Time is the processing time of the epoch, which a re-run of the epoch repeats; inside one epoch it stands still. An
    entry expires at the first epoch whose time is ``duration`` or more after the entry was last written (or read, with
    ``TtlUpdate.ON_READ_AND_WRITE``). From then on it is never returned (Flink's NeverReturnExpired), and it is dropped
    from storage when its key group is next touched.

    An entry stored before its state had a ttl counts as written in the first epoch in which the state has one.

    Parameters
    ----------
    duration
        A ``timedelta`` or text such as ``"1 h"``, at least one millisecond.
    update
        See :class:`TtlUpdate`.
    """

    __slots__ = ("millis", "update")

    def __init__(self, duration: timedelta | str, update: TtlUpdate | str = TtlUpdate.ON_WRITE) -> None:
        if isinstance(duration, str):
            try:
                duration = parse_duration(duration)
            except ValueError as error:
                raise ConfigurationError(f"Ttl({duration!r}): {error}.") from error
        if not isinstance(duration, timedelta):
            raise ConfigurationError(f"Ttl({duration!r}): give a timedelta, or text such as '1 h'.")
        self.millis = duration // timedelta(milliseconds=1)
        if self.millis < 1:
            raise ConfigurationError(f"Ttl({duration}): the least time to live is one millisecond.")
        self.update = choose(TtlUpdate, update, "update")

    @property
    def on_read(self) -> bool:
        return self.update is TtlUpdate.ON_READ_AND_WRITE

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ttl) and (self.millis, self.update) == (other.millis, other.update)

    def __hash__(self) -> int:
        return hash((self.millis, self.update))

    def __repr__(self) -> str:
        return f"Ttl({timedelta(milliseconds=self.millis)!r}, {self.update})"
