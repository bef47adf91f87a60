"""One value per key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from lockstep.errors import ConfigurationError, StateTypeError
from lockstep.state.codec import codec_of
from lockstep.state.ddl import parse_value
from lockstep.state.elements import plain_values
from lockstep.state.keyed_state import SingleValueState
from lockstep.state.ttl import Ttl


class ValueState(SingleValueState):
    """One value per key.

    Parameters
    ----------
    ddl
        The value's type in Spark's DDL, or a column list, which makes it a row: ``"bigint"``, ``"a bigint, b string"``.
    default
        What :meth:`value` gives for a key without a value. It is never stored.
    ttl
        How long a value lives. ``None``: until it is cleared.
    name
        Under which it is stored; the attribute's name unless given.
    """

    kind = "value"

    def __init__(self, ddl: str, default: Any = None, ttl: Ttl | None = None, name: str | None = None) -> None:
        arrow = parse_value(ddl)
        super().__init__({"value": arrow}, ttl, name)
        self._plain = True
        try:
            self.default = codec_of(arrow).check(default)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"default={default!r} of a ValueState of type {ddl!r}: {error}") from error

    def value(self) -> Any:
        """The current key's value, or the default. Changing a list or dict that it returns changes nothing stored."""
        if self._plain:
            return self._entries.get(self._context.key, self.default)
        value = self._read()
        return self._codec.copy(self.default) if value is None else value

    def update(self, value: Any) -> None:
        """Replaces the current key's value. ``None`` clears it."""
        if value is None:
            self.clear()
            return
        key = self._context.key
        try:
            self._entries[key] = self._check(value)
        except (TypeError, ValueError) as error:
            raise self.mismatch("value", value, error) from error
        self.changed = True
        if self._stamps is not None:
            self._stamps[key] = self._now

    def get_many(self, keys: Iterable[Any]) -> list[Any]:
        """The values of many keys, in their order: for ``process_batch``. A pandas or Arrow column may be given."""
        own = self._context.own_keys(keys)
        if self._plain:
            get, default = self._entries.get, self.default
            return [get(key, default) for key in own]
        values = []
        for key in own:
            value = self._entries.get(key)
            if value is not None and self._stamps is not None and self.ttl is not None and self.ttl.on_read:
                self._stamps[key] = self._now
                self.changed = True
            values.append(self._codec.copy(self.default if value is None else value))
        return values

    def update_many(self, keys: Iterable[Any], values: Iterable[Any]) -> None:
        """Replaces the values of many keys: for ``process_batch``. The last of several for one key stays.

        All are checked before one is changed.
        """
        own = self._context.own_keys(keys)
        given = plain_values(values, self.types["value"])
        if len(own) != len(given):
            raise StateTypeError(f"update_many of state {self.name!r} got {len(own)} keys and {len(given)} values.")
        check, new = self._check, []
        for value in given:
            try:
                new.append(check(value))
            except (TypeError, ValueError) as error:
                raise self.mismatch("value", value, error) from error
        for key, value in zip(own, new, strict=True):
            if value is None:
                if self._entries.pop(key, None) is not None and self._stamps is not None:
                    del self._stamps[key]
            else:
                self._entries[key] = value
                if self._stamps is not None:
                    self._stamps[key] = self._now
        self.changed = True


class RawKeyedState(SingleValueState):
    """Bytes per key, of which Lockstep knows nothing: they are stored and returned as they are."""

    kind = "raw"

    def __init__(self, ttl: Ttl | None = None, name: str | None = None) -> None:
        super().__init__({"value": pa.binary()}, ttl, name)

    def value(self) -> bytes | None:
        """The current key's bytes, or ``None``."""
        data: bytes | None = self._read()
        return data

    def update(self, value: bytes | None) -> None:
        """Replaces the current key's bytes. ``None`` clears them."""
        if value is None:
            self.clear()
        else:
            self._write(value, value)
