"""What all keyed states share: the current key's entry, and its time to live."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from lockstep.errors import ConfigurationError
from lockstep.state.codec import codec_of
from lockstep.state.declarations import Binding, State
from lockstep.state.tables import column, int64_array, key_column, stamps_of, table_of
from lockstep.state.ttl import Ttl


class KeyedState(State):
    """One entry per key; every method works on the entry of the current key.

    The processing time stands still during an epoch, so entries expire when they are loaded and at no other time: what
    is in memory is alive.
    """

    keyed = True
    ttl: Ttl | None

    # _entries: by key; no entry is empty
    _stamps: dict[Any, Any] | None  # by key: when it was last touched; None without ttl
    _now: int

    def __init__(self, types: Mapping[str, pa.DataType], ttl: Ttl | None, name: str | None) -> None:
        super().__init__(types, name)
        if ttl is not None and not isinstance(ttl, Ttl):
            raise ConfigurationError(f'ttl={ttl!r} is no Ttl: write for example ttl=Ttl("1 h").')
        self.ttl = ttl

    def __len__(self) -> int:
        return len(self._entries)

    def keys_with_entries(self) -> Mapping[Any, Any]:
        """The keys that have an entry, to look them up."""
        entries: dict[Any, Any] = self._entries
        return entries

    def clear(self) -> None:
        """Forgets the entry of the current key."""
        if self._entries.pop(self._context.key, None) is not None:
            self.changed = True
            if self._stamps is not None:
                del self._stamps[self._context.key]


class SingleValueState(KeyedState):
    """A keyed state whose entry is one value: the base of value, reducing, aggregating and raw state."""

    _plain: bool  # reading an entry needs neither a copy nor a new time stamp
    _table: pa.StructArray | None  # as it was stored, while it still says the same

    def load(self, binding: Binding, table: pa.StructArray | None) -> None:
        self._codec = codec = codec_of(self.types["value"])
        self._check = codec.check  # gives a value that the caller can't change later
        self._key_type = binding.key_type
        self._now = binding.context.processing_time
        self._plain = not codec.mutable and not (self.ttl and self.ttl.on_read)
        self._table = None
        self._entries = {}
        self._stamps = None if self.ttl is None else {}
        if table is None:
            return
        where = f"state {self.name!r} of {binding.where}"
        stamps = None
        if self.ttl is not None:
            stamps = stamps_of(table, where)
            if stamps is None:
                self.changed = True  # stored before it had a ttl: it counts as written now
            else:
                alive = stamps > self._now - self.ttl.millis
                if not alive.all():
                    table, stamps = table.filter(pa.array(alive)), stamps[alive]
                    self.changed = True
        values = column(table, "value", self.types["value"], where)
        keys = key_column(table, binding.key_type, where)
        self._entries = dict(zip(keys, codec.decode(values), strict=True))
        if self._stamps is not None:
            self._stamps = dict(zip(keys, [self._now] * len(keys) if stamps is None else stamps.tolist(), strict=True))
        if values.type == table.type.field("value").type:
            self._table = table

    def dump(self) -> pa.StructArray:
        if self._table is not None and not self.changed:
            return self._table
        columns = {
            "key": self._key_type.encode(self._entries),
            "value": self._codec.encode(list(self._entries.values())),
        }
        if self._stamps is not None:
            stamps = self._stamps
            columns["stamp"] = int64_array([stamps[key] for key in self._entries])
        return table_of(**columns)

    def _read(self) -> Any:
        """The current key's value as the caller may have it, or ``None``."""
        key = self._context.key
        value = self._entries.get(key)
        if self._plain or value is None:
            return value
        if self._stamps is not None and self.ttl is not None and self.ttl.on_read:
            self._stamps[key] = self._now
            self.changed = True
        return self._codec.copy(value)

    def _write(self, value: Any, given: Any) -> None:
        """Keeps ``value`` for the current key; ``given`` is what the user handed over, for the message."""
        key = self._context.key
        try:
            self._entries[key] = self._check(value)
        except (TypeError, ValueError) as error:
            raise self.mismatch("value", given, error) from error
        self.changed = True
        if self._stamps is not None:
            self._stamps[key] = self._now
