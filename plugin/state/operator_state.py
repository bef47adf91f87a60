"""State of an operator's instance instead of a key. One instance is one key group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from lockstep.errors import StateAccessError
from lockstep.state.codec import Codec, codec_of
from lockstep.state.ddl import parse_type, parse_value
from lockstep.state.declarations import Binding, State
from lockstep.state.key_identity import KeyType, require_hashable
from lockstep.state.tables import column, table_of


class OperatorState(State):
    """Base of the states that belong to a key group as a whole; usable in every hook, with or without a current key."""

    keyed = False

    def _checked(self, role: str, value: Any, codec: Codec | KeyType) -> Any:
        try:
            return codec.check(value)
        except (TypeError, ValueError) as error:
            raise self.mismatch(role, value, error) from error


class OperatorListState(OperatorState):
    """A list per key group. Groups move between partitions as a whole, and their lists with them.

    That is Flink's split redistribution: every element is in one place, before and after a change of parallelism.
    """

    kind = "operator_list"

    def __init__(self, ddl: str, name: str | None = None) -> None:
        super().__init__({"value": parse_value(ddl)}, name)

    def get(self) -> list[Any]:
        """The elements: a copy."""
        return list(map(self._codec.copy, self._entries))

    def add(self, value: Any) -> None:
        """Appends one element."""
        self.add_all((value,))

    def add_all(self, values: Iterable[Any]) -> None:
        """Appends all elements. They are checked before one is added."""
        checked = [self._element(value) for value in values]
        if checked:
            self._entries.extend(checked)
            self.changed = True

    def update(self, values: Iterable[Any]) -> None:
        """Replaces all elements."""
        checked = [self._element(value) for value in values]
        if checked or self._entries:
            self._entries = checked
            self.changed = True

    def clear(self) -> None:
        """Forgets all elements."""
        self.update(())

    def __len__(self) -> int:
        return len(self._entries)

    def load(self, binding: Binding, table: pa.StructArray | None) -> None:
        self._codec = codec_of(self.types["value"])
        self._entries = [] if table is None else self.stored_values(table, binding.where)

    def stored_values(self, table: pa.StructArray, where: str) -> list[Any]:
        """The elements of a table that a state of this kind has written."""
        stored = column(table, "value", self.types["value"], f"state {self.name!r} of {where}")
        return codec_of(self.types["value"]).decode(stored)

    def dump(self) -> pa.StructArray:
        return table_of(value=self._codec.encode(self._entries))

    def _element(self, value: Any) -> Any:
        if value is None:
            raise self.mismatch("value", None, "None can't be an element")
        return self._checked("value", value, self._codec)


class UnionListState(OperatorListState):
    """A list per key group; in the first epoch after a start, every group gets the elements of all groups.

    What each group keeps of them is up to the function: write the list, and that is stored; otherwise the group's own
    elements stay as they are. In other epochs a group finds its own.
    """

    kind = "union_list"

    def restore(self, others: list[Any]) -> None:
        """Called by the runtime after a restore: the elements of all other groups come before the group's own.

        They are there to be read in this epoch. What is stored stays the group's own list until the function writes it.
        """
        self._own = self._entries
        self._entries = [*others, *self._entries]

    def dump(self) -> pa.StructArray:
        if not self.changed and "_own" in vars(self):
            return table_of(value=self._codec.encode(self._own))
        return super().dump()

    def __len__(self) -> int:
        return len(self._own) if not self.changed and "_own" in vars(self) else super().__len__()


class BroadcastState(OperatorState):
    """A map that is the same in every key group, since every group sees the same broadcast rows in the same order.

    Written in ``process_broadcast_element`` only: elements differ from group to group, and so would the map.
    """

    kind = "broadcast"

    def __init__(self, key_ddl: str, value_ddl: str, name: str | None = None) -> None:
        key = parse_type(key_ddl)
        require_hashable(key, "The key of a BroadcastState")
        super().__init__({"key": key, "value": parse_value(value_ddl)}, name)

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of ``key``, or ``default`` when it has none."""
        key = self._map_key(key)
        return self._codec.copy(self._entries[key]) if key in self._entries else default

    def put(self, key: Any, value: Any) -> None:
        """Sets the value of ``key``."""
        self.put_all(((key, value),))

    def put_all(self, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        """Sets the values of many keys. All are checked before one is set."""
        self._require_writable()
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        new = {self._map_key(key): self._checked("value", value, self._codec) for key, value in pairs}
        if new:
            self._entries.update(new)
            self.changed = True

    def remove(self, key: Any) -> None:
        """Forgets ``key``. Nothing happens when it has no value."""
        self._require_writable()
        key = self._map_key(key)
        if key in self._entries:
            del self._entries[key]
            self.changed = True

    def clear(self) -> None:
        """Forgets all keys."""
        self._require_writable()
        if self._entries:
            self._entries = {}
            self.changed = True

    def contains(self, key: Any) -> bool:
        """Whether ``key`` has a value, be it ``None``."""
        return self._map_key(key) in self._entries

    __contains__ = contains

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def keys(self) -> list[Any]:
        """The keys: a copy."""
        return list(self._entries)

    def values(self) -> list[Any]:
        """The values, in the order of the keys: a copy."""
        return list(map(self._codec.copy, self._entries.values()))

    def items(self) -> list[tuple[Any, Any]]:
        """The keys with their values: a copy."""
        return list(zip(self.keys(), self.values(), strict=True))

    def is_empty(self) -> bool:
        """Whether there are no entries."""
        return not self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def load(self, binding: Binding, table: pa.StructArray | None) -> None:
        self._codec = codec_of(self.types["value"])
        self._map_keys = KeyType(self.types["key"], "The key of a BroadcastState")
        self._entries = {}
        if table is not None:
            where = f"state {self.name!r} of {binding.where}"
            keys = self._map_keys.decode(column(table, "key", self.types["key"], where))
            values = self._codec.decode(column(table, "value", self.types["value"], where))
            self._entries = dict(zip(keys, values, strict=True))

    def dump(self) -> pa.StructArray:
        return table_of(
            key=self._map_keys.encode(self._entries), value=self._codec.encode(list(self._entries.values()))
        )

    def _map_key(self, key: Any) -> Any:
        if key is None:
            raise self.mismatch("key", None, "None can't be a key")
        return self._checked("key", key, self._map_keys)

    def _require_writable(self) -> None:
        if not self._context.broadcasting:
            raise StateAccessError(
                f"BroadcastState {self.name!r} is read-only here: each key group sees other elements, so its copies would "
                "differ. Write it in process_broadcast_element, which every group runs for every broadcast row."
            )


class RawOperatorState(OperatorState):
    """Bytes per key group, of which Lockstep knows nothing: they are stored and returned as they are."""

    kind = "raw_operator"

    def __init__(self, name: str | None = None) -> None:
        super().__init__({"value": pa.binary()}, name)

    def value(self) -> bytes | None:
        """The bytes, or ``None``."""
        return self._entries[0] if len(self._entries) else None

    def update(self, value: bytes | None) -> None:
        """Replaces the bytes. ``None`` clears them."""
        if value is None:
            self.clear()
            return
        self._entries[:] = [self._checked("value", value, self._codec)]
        self.changed = True

    def clear(self) -> None:
        """Forgets the bytes."""
        if len(self._entries):
            self._entries.clear()
            self.changed = True

    def __len__(self) -> int:
        return len(self._entries)

    def load(self, binding: Binding, table: pa.StructArray | None) -> None:
        self._codec = codec_of(self.types["value"])
        self._entries = []
        if table is not None:
            stored = column(table, "value", self.types["value"], f"state {self.name!r} of {binding.where}")
            self._entries = self._codec.decode(stored)

    def dump(self) -> pa.StructArray:
        return table_of(value=self._codec.encode(self._entries))
