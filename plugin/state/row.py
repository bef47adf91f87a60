"""A row: a tuple whose fields also have names, as Spark's Row, made cheaply by the hundred thousand.

``row.amount``, ``row["amount"]`` and ``row[0]`` are the same field. One class per list of names is made and kept;
attributes are read by the same C getters that a namedtuple has.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

_tuple_item = tuple.__getitem__
_OWN = frozenset({"asDict", "_fields", "_make", "_positions"})  # a field of this name is reached by ["..."] only


class Row(tuple[Any, ...]):
    """An immutable row, equal to the plain tuple of its values.

    A field whose name is no identifier, begins with two underscores, or is ``asDict``, ``_fields`` or ``_make`` is
    reached by ``row["name"]`` only. ``Row(a=1, b="x")`` makes one by hand.
    """

    __slots__ = ()
    _fields: ClassVar[tuple[str, ...]] = ()
    _positions: ClassVar[dict[str, int]] = {}
    _make: ClassVar[Callable[[Iterable[Any]], Row]]
    """Makes a row from its values, in order. The number of values is *not* checked: this is the inner loop's way."""

    def __new__(cls, *values: Any, **fields: Any) -> Row:
        if cls is Row:
            if values:
                raise TypeError("Row(...) takes its fields by name, as in Row(account='a', amount=1).")
            cls = row_type(tuple(fields))
            return tuple.__new__(cls, fields.values())
        if fields:
            unknown = [name for name in fields if name not in cls._positions]
            rest = cls._fields[len(values) :]
            if unknown or set(fields) != set(rest):
                raise TypeError(f"{_shown(cls)} takes exactly its fields, given were {[*values, *fields]}.")
            values = (*values, *(fields[name] for name in rest))
        if len(values) != len(cls._fields):
            raise TypeError(f"{_shown(cls)} has {len(cls._fields)} fields, given were {len(values)} values.")
        return tuple.__new__(cls, values)

    def __getitem__(self, item: Any) -> Any:
        if item.__class__ is not str:
            return _tuple_item(self, item)
        try:
            return _tuple_item(self, self._positions[item])
        except KeyError:
            raise KeyError(_no_field(self, item)) from None

    if not TYPE_CHECKING:  # for mypy, a row has any attribute: see below

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(_no_field(self, name))

    else:

        def __getattr__(self, name: str) -> Any: ...

    def asDict(self, recursive: bool = False) -> dict[str, Any]:  # noqa: N802 - the name Spark's users know
        """Names and values; with ``recursive`` also those of rows inside, in lists and dicts too."""
        if recursive:
            return {name: _plain(value) for name, value in zip(self._fields, self, strict=True)}
        return dict(zip(self._fields, self, strict=True))

    def __repr__(self) -> str:
        shown = (
            f"{name}={value!r}" if name.isidentifier() else f"`{name}`={value!r}"
            for name, value in zip(self._fields, self, strict=True)
        )
        return f"Row({', '.join(shown)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._fields, tuple(self))


def row_type(names: Sequence[str]) -> type[Row]:
    """The class of rows with these fields: the same class for the same names, whoever asks."""
    return _row_type(tuple(names))


@cache
def _row_type(names: tuple[str, ...]) -> type[Row]:
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"The fields of a row have names that are text, not {names}.")
    if len(set(names)) != len(names):
        raise ValueError(f"The fields of a row have different names, not {', '.join(names)}.")
    stand_ins = [f"f{i}" for i in range(len(names))]
    getters = namedtuple("Getters", stand_ins)  # type: ignore[misc]
    members: dict[str, Any] = {"__slots__": (), "_fields": names, "_positions": {n: i for i, n in enumerate(names)}}
    for name, stand_in in zip(names, stand_ins, strict=True):
        if name.isidentifier() and not name.startswith("__") and name not in _OWN:
            members[name] = getattr(getters, stand_in)
    made: type[Row] = type("Row", (Row,), members)
    made._make = staticmethod(partial(tuple.__new__, made))
    return made


def _restore(names: tuple[str, ...], values: tuple[Any, ...]) -> Row:
    return row_type(names)._make(values)


def _plain(value: Any) -> Any:
    if isinstance(value, Row):
        return value.asDict(recursive=True)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _shown(cls: type[Row]) -> str:
    return f"Row({', '.join(cls._fields)})"


def _no_field(row: Row, name: str) -> str:
    return f"there is no field {name!r} in {_shown(type(row))}"
