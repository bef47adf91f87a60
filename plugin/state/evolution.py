"""Whether state that was stored with one type can be read as another one, and how.

Only changes that keep every stored value and invent none are made: a wider number, a field more (``None`` in what is
stored), a field that may now be ``None``, another order of fields. Everything else is refused, by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import pyarrow as pa

from lockstep.errors import StateMigrationError
from lockstep.state.ddl import to_ddl

Converter = Callable[[pa.Array], pa.Array]


def reconcile(stored: pa.DataType, declared: pa.DataType, where: str) -> Converter | None:
    """What turns arrays of the stored type into arrays of the declared one; ``None`` when there is nothing to do.

    Raises :class:`StateMigrationError` when a stored value could be lost or has no place: it names ``where`` (operator
    and state), the field, both types and the remedy.
    """
    return _Comparison(where).of(stored, declared, "")


class _Comparison:
    """One pass over two types; ``path`` names the part in the message: ``items.element.amount``."""

    def __init__(self, where: str) -> None:
        self._where = where

    def of(self, stored: pa.DataType, declared: pa.DataType, path: str) -> Converter | None:
        if stored == declared:
            return None
        if pa.types.is_struct(stored) and pa.types.is_struct(declared):
            return self._struct(stored, declared, path)
        if pa.types.is_list(stored) and pa.types.is_list(declared):
            return self._array(stored, declared, path)
        if pa.types.is_map(stored) and pa.types.is_map(declared):
            return self._map(stored, declared, path)
        if not _widens(stored, declared):
            self._refuse(
                path, f"stored as {to_ddl(stored)} and declared as {to_ddl(declared)}", _why_not(stored, declared)
            )
        return lambda array: array.cast(declared)

    def _struct(self, stored: pa.DataType, declared: pa.DataType, path: str) -> Converter:
        positions = {stored.field(i).name: i for i in range(stored.num_fields)}
        fields = [declared.field(i) for i in range(declared.num_fields)]
        removed = positions.keys() - {field.name for field in fields}
        for name in positions:
            if name in removed:
                gone = to_ddl(stored.field(positions[name]).type)
                self._refuse(_join(path, name), f"stored as {gone} and not declared", "Its values would be lost")
        plan: list[tuple[int | None, Converter | None]] = []
        for field in fields:
            part, position = _join(path, field.name), positions.get(field.name)
            if position is None:
                if not field.nullable:
                    change = f"not stored and declared as {to_ddl(field.type)} NOT NULL"
                    self._refuse(part, change, "It would be None in all that is stored: remove NOT NULL")
                plan.append((None, None))
                continue
            before = stored.field(position)
            if before.nullable and not field.nullable:
                change = f"stored as {to_ddl(before.type)} and declared as {to_ddl(field.type)} NOT NULL"
                self._refuse(part, change, "What is stored may be None: remove NOT NULL")
            plan.append((position, self.of(before.type, field.type, part)))

        def convert(array: pa.Array) -> pa.Array:
            columns = []
            for field, (position, converter) in zip(fields, plan, strict=True):
                if position is None:
                    columns.append(pa.nulls(len(array), field.type))
                else:
                    column = array.field(position)
                    columns.append(column if converter is None else converter(column))
            mask = array.is_null() if array.null_count else None
            return pa.StructArray.from_arrays(columns, fields=fields, mask=mask)

        return convert

    def _array(self, stored: pa.DataType, declared: pa.DataType, path: str) -> Converter | None:
        element = self.of(stored.value_type, declared.value_type, _join(path, "element"))
        if element is None:
            return None
        return lambda array: _with_parts(array, declared, element(array.values))

    def _map(self, stored: pa.DataType, declared: pa.DataType, path: str) -> Converter | None:
        # Every change that is let through keeps different keys different.
        key = self.of(stored.key_type, declared.key_type, _join(path, "key"))
        item = self.of(stored.item_type, declared.item_type, _join(path, "value"))
        if key is None and item is None:
            return None
        fields = [declared.key_field, declared.item_field]

        def convert(array: pa.Array) -> pa.Array:
            keys, items = array.values.field(0), array.values.field(1)
            columns = [keys if key is None else key(keys), items if item is None else item(items)]
            return _with_parts(array, declared, pa.StructArray.from_arrays(columns, fields=fields))

        return convert

    def _refuse(self, path: str, change: str, why: str) -> NoReturn:
        part = f"field {path}" if path else "the value"
        raise StateMigrationError(
            f"{self._where}: {part} is {change}. {why}. Or keep this state as it is stored and declare a new one under "
            "another name; the function can fill it from the old one."
        )


def _widens(stored: pa.DataType, declared: pa.DataType) -> bool:
    types = pa.types
    if types.is_signed_integer(stored) and types.is_signed_integer(declared):
        return bool(stored.bit_width < declared.bit_width)
    if types.is_decimal128(stored) and types.is_decimal128(declared):
        whole, whole_declared = stored.precision - stored.scale, declared.precision - declared.scale
        return bool(stored.scale <= declared.scale and whole <= whole_declared)
    return bool(types.is_float32(stored) and types.is_float64(declared))


def _why_not(stored: pa.DataType, declared: pa.DataType) -> str:
    if _widens(declared, stored):
        return "The declared type is narrower, and values could be lost: declare the wider one"
    if pa.types.is_decimal128(stored) and pa.types.is_decimal128(declared):
        return "Digits before or after the point could be lost: declare more of both"
    return "Only a wider integer or decimal, or a double for a float, takes stored values over: declare the stored type"


def _with_parts(array: pa.Array, declared: pa.DataType, parts: pa.Array) -> pa.Array:
    """The same lists or maps, with converted parts: bounds and nulls are taken over as they lie in memory."""
    return pa.Array.from_buffers(
        declared, len(array), array.buffers()[:2], array.null_count, array.offset, children=[parts]
    )


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
