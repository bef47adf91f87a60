"""A list or a map per key. Time to live is counted for each element or entry on its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from lockstep.state.codec import codec_of
from lockstep.state.ddl import parse_type, parse_value
from lockstep.state.declarations import Binding
from lockstep.state.key_identity import KeyType, require_hashable
from lockstep.state.keyed_state import KeyedState
from lockstep.state.tables import column, has_column, int64_array, int64_list, key_column, nested, table_of, unnested
from lockstep.state.ttl import Ttl


class CollectionState(KeyedState):
    """A keyed state whose entry is a collection that is never empty: a key without elements has no entry."""

    _refreshes: bool  # reading makes what was read young again
    _table: pa.StructArray | None  # as it was stored, while it still says the same

    def load(self, binding: Binding, table: pa.StructArray | None) -> None:
        self._codec = codec_of(self.types["value"])
        self._key_type = binding.key_type
        self._now = binding.context.processing_time
        self._refreshes = self.ttl is not None and self.ttl.on_read
        self._table = None
        self._entries = {}
        self._stamps = None if self.ttl is None else {}
        if table is None:
            return
        where = f"state {self.name!r} of {binding.where}"
        declared = pa.list_(self.types["value"])
        stored = column(table, "values", declared, where)
        values = unnested(stored, self._codec.decode)
        keys = key_column(table, binding.key_type, where)
        if self.ttl is None:
            stamps = None
        elif has_column(table, "stamps"):
            stamps = unnested(column(table, "stamps", pa.list_(pa.int64()), where), int64_list)
        else:  # stored before it had a ttl: it counts as written now
            stamps = [[self._now] * len(each) for each in values]
            self.changed = True
        self._fill(table, keys, values, stamps, where)
        if self.ttl is not None and self._stamps is not None:
            self._expire(self._stamps, self._now - self.ttl.millis)
        if stored.type == table.type.field("values").type:
            self._table = table

    def dump(self) -> pa.StructArray:
        if self._table is not None and not self.changed:
            return self._table
        entries = list(self._entries.values())
        lengths = list(map(len, entries))
        columns = {"key": self._key_type.encode(self._entries), **self._columns(entries, lengths)}
        if self._stamps is not None:
            stamps = self._stamps
            columns["stamps"] = nested([self._stamp_list(stamps[key]) for key in self._entries], lengths, int64_array)
        return table_of(**columns)

    def _fill(
        self,
        table: pa.StructArray,
        keys: list[Any],
        values: list[list[Any]],
        stamps: list[list[int]] | None,
        where: str,
    ) -> None:
        raise NotImplementedError

    def _expire(self, stamps: dict[Any, Any], limit: int) -> None:
        """Drops what was last touched at ``limit`` or before."""
        raise NotImplementedError

    def _columns(self, entries: list[Any], lengths: list[int]) -> dict[str, pa.Array]:
        raise NotImplementedError

    def _stamp_list(self, stamps: Any) -> Iterable[int]:
        raise NotImplementedError

    def _checked(self, value: Any) -> Any:
        try:
            return self._codec.check(value)
        except (TypeError, ValueError) as error:
            raise self.mismatch("value", value, error) from error


class ListState(CollectionState):
    """A list per key, in the order in which elements were added. ``None`` is no element."""

    kind = "list"

    def __init__(self, ddl: str, ttl: Ttl | None = None, name: str | None = None) -> None:
        super().__init__({"value": parse_value(ddl)}, ttl, name)

    def get(self) -> list[Any]:
        """The current key's elements: a copy, empty when there are none."""
        key = self._context.key
        values = self._entries.get(key)
        if values is None:
            return []
        if self._refreshes and self._stamps is not None:
            self._stamps[key] = [self._now] * len(values)
            self.changed = True
        return list(map(self._codec.copy, values)) if self._codec.mutable else values.copy()

    def add(self, value: Any) -> None:
        """Appends one element."""
        checked = self._element(value)
        key = self._context.key
        present = self._entries.get(key)
        if present is None:
            self._entries[key] = [checked]
        else:
            present.append(checked)
        if self._stamps is not None:
            self._stamps.setdefault(key, []).append(self._now)
        self.changed = True

    def add_all(self, values: Iterable[Any]) -> None:
        """Appends all elements. They are checked before one is added."""
        checked = [self._element(value) for value in values]
        key = self._context.key
        if not checked:
            return
        present = self._entries.get(key)
        if present is None:
            self._entries[key] = checked
        else:
            present.extend(checked)
        if self._stamps is not None:
            self._stamps.setdefault(key, []).extend([self._now] * len(checked))
        self.changed = True

    def update(self, values: Iterable[Any]) -> None:
        """Replaces the current key's elements. An empty list clears them."""
        checked = [self._element(value) for value in values]
        self.clear()
        if checked:
            self._entries[self._context.key] = checked
            if self._stamps is not None:
                self._stamps[self._context.key] = [self._now] * len(checked)
            self.changed = True

    def _element(self, value: Any) -> Any:
        if value is None:
            raise self.mismatch("value", None, "None can't be an element")
        return self._checked(value)

    def _fill(
        self,
        table: pa.StructArray,
        keys: list[Any],
        values: list[list[Any]],
        stamps: list[list[int]] | None,
        where: str,
    ) -> None:
        self._entries = dict(zip(keys, values, strict=True))
        if stamps is not None:
            self._stamps = dict(zip(keys, stamps, strict=True))

    def _expire(self, stamps: dict[Any, Any], limit: int) -> None:
        for key, own in list(stamps.items()):
            if min(own) > limit:
                continue
            self.changed = True
            alive = [i for i, stamp in enumerate(own) if stamp > limit]
            if alive:
                values = self._entries[key]
                self._entries[key], stamps[key] = [values[i] for i in alive], [own[i] for i in alive]
            else:
                del self._entries[key], stamps[key]

    def _columns(self, entries: list[Any], lengths: list[int]) -> dict[str, pa.Array]:
        return {"values": nested(entries, lengths, self._codec.encode)}

    def _stamp_list(self, stamps: Any) -> Iterable[int]:
        own: list[int] = stamps
        return own


class MapState(CollectionState):
    """A map per key, in the order in which its own keys were first put. A map's key is never ``None``; a value may be."""

    kind = "map"

    def __init__(self, key_ddl: str, value_ddl: str, ttl: Ttl | None = None, name: str | None = None) -> None:
        key = parse_type(key_ddl)
        require_hashable(key, "The key of a MapState")
        super().__init__({"key": key, "value": parse_value(value_ddl)}, ttl, name)

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of ``key``, or ``default`` when it has none."""
        entries, key = self._entries.get(self._context.key), self._map_key(key)
        if entries is None or key not in entries:
            return default
        self._refresh(key)
        value = entries[key]
        return self._codec.copy(value) if self._codec.mutable else value

    def put(self, key: Any, value: Any) -> None:
        """Sets the value of ``key``."""
        key, value = self._map_key(key), self._checked(value)
        owner = self._context.key
        entries = self._entries.get(owner)
        if entries is None:
            self._entries[owner] = {key: value}
        else:
            entries[key] = value
        if self._stamps is not None:
            self._stamps.setdefault(owner, {})[key] = self._now
        self.changed = True

    def put_all(self, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        """Sets the values of many keys. All are checked before one is set."""
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        new = {self._map_key(key): self._checked(value) for key, value in pairs}
        owner = self._context.key
        if not new:
            return
        self._entries.setdefault(owner, {}).update(new)
        if self._stamps is not None:
            self._stamps.setdefault(owner, {}).update(dict.fromkeys(new, self._now))
        self.changed = True

    def remove(self, key: Any) -> None:
        """Forgets ``key``. Nothing happens when it has no value."""
        owner, key = self._context.key, self._map_key(key)
        entries = self._entries.get(owner)
        if entries is None or key not in entries:
            return
        del entries[key]
        if self._stamps is not None:
            del self._stamps[owner][key]
        self.changed = True
        if not entries:
            del self._entries[owner]
            if self._stamps is not None:
                del self._stamps[owner]

    def contains(self, key: Any) -> bool:
        """Whether ``key`` has a value, be it ``None``."""
        entries, key = self._entries.get(self._context.key), self._map_key(key)
        if entries is None or key not in entries:
            return False
        self._refresh(key)
        return True

    __contains__ = contains

    def keys(self) -> list[Any]:
        """The map's keys: a copy."""
        return [key for key, _ in self.items()]

    def values(self) -> list[Any]:
        """The map's values, in the order of its keys: a copy."""
        return [value for _, value in self.items()]

    def items(self) -> list[tuple[Any, Any]]:
        """The map's keys with their values: a copy."""
        owner = self._context.key
        entries = self._entries.get(owner)
        if entries is None:
            return []
        if self._refreshes and self._stamps is not None:
            self._stamps[owner] = dict.fromkeys(entries, self._now)
            self.changed = True
        if self._codec.mutable:
            return [(key, self._codec.copy(value)) for key, value in entries.items()]
        return list(entries.items())

    def is_empty(self) -> bool:
        """Whether the map of the current key has no entries."""
        return self._context.key not in self._entries

    def load(self, binding: Binding, table: pa.StructArray | None) -> None:
        self._map_keys = KeyType(self.types["key"], "The key of a MapState")
        super().load(binding, table)

    def _map_key(self, key: Any) -> Any:
        if key is None:
            raise self.mismatch("key", None, "None can't be a key")
        try:
            return self._map_keys.check(key)
        except (TypeError, ValueError) as error:
            raise self.mismatch("key", key, error) from error

    def _refresh(self, key: Any) -> None:
        if self._refreshes and self._stamps is not None:
            self._stamps[self._context.key][key] = self._now
            self.changed = True

    def _fill(
        self,
        table: pa.StructArray,
        keys: list[Any],
        values: list[list[Any]],
        stamps: list[list[int]] | None,
        where: str,
    ) -> None:
        own = unnested(column(table, "keys", pa.list_(self.types["key"]), where), self._map_keys.decode)
        self._entries = {k: dict(zip(mk, v, strict=True)) for k, mk, v in zip(keys, own, values, strict=True)}
        if stamps is not None:
            self._stamps = {k: dict(zip(mk, s, strict=True)) for k, mk, s in zip(keys, own, stamps, strict=True)}

    def _expire(self, stamps: dict[Any, Any], limit: int) -> None:
        for key, own in list(stamps.items()):
            if min(own.values()) > limit:
                continue
            self.changed = True
            for expired in [k for k, stamp in own.items() if stamp <= limit]:
                del own[expired], self._entries[key][expired]
            if not own:
                del self._entries[key], stamps[key]

    def _columns(self, entries: list[Any], lengths: list[int]) -> dict[str, pa.Array]:
        return {
            "keys": nested(entries, lengths, self._map_keys.encode),
            "values": nested([each.values() for each in entries], lengths, self._codec.encode),
        }

    def _stamp_list(self, stamps: Any) -> Iterable[int]:
        own: dict[Any, int] = stamps
        return own.values()
