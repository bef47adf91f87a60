"""State as it is declared: attributes of a function, on its class or set in its ``__init__``.

A declared state knows its type and name, and nothing else. The runtime puts a bound copy of it in its place, on a copy of
the function made for one key group and one epoch; only that copy can be read and written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, TypeVar

import pyarrow as pa

from lockstep.errors import ConfigurationError, StateAccessError, StateTypeError
from lockstep.state.codec import Codec
from lockstep.state.context import Context
from lockstep.state.ddl import to_ddl
from lockstep.state.key_identity import KeyType

S = TypeVar("S", bound="State")


@dataclass(frozen=True)
class Binding:
    """What a state is bound to: one run of one key group."""

    context: Context
    key_type: KeyType
    where: str  # for messages: the operator and its key group


class _Unbound:
    """Stands where a bound state has its entries and context: whatever is done with it raises."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def _refuse(self, *_: Any) -> NoReturn:
        raise StateAccessError(
            f"A {self._kind} is used outside of its operator. A declared state holds something only inside the hooks of "
            "its function: reach it there as an attribute of self."
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what copy and pickle look for
            raise AttributeError(name)
        self._refuse()

    __call__ = __len__ = __iter__ = __contains__ = __getitem__ = __setitem__ = _refuse


class State(ABC):
    """Base of all states. Declared once, bound by the runtime for each run, never used unbound."""

    kind: ClassVar[str]  # part of the stored format
    keyed: ClassVar[bool]

    name: str | None
    types: Mapping[str, pa.DataType]  # what is stored, by role
    changed: bool  # of a bound state: it must be stored again

    # No default on the class and no __getattr__: with either, CPython reads attributes at a third of the speed.
    _context: Context
    _entries: Any
    _codec: Codec
    _check: Callable[[Any], Any]
    _map_keys: KeyType

    def __init__(self, types: Mapping[str, pa.DataType], name: str | None) -> None:
        if name is not None and not name.isidentifier():
            raise ConfigurationError(f"{name!r} is no name for a state: use letters, digits and _.")
        self.types = dict(types)
        self.name = name
        self.changed = False
        unbound: Any = _Unbound(type(self).__name__)
        self._context = self._entries = self._codec = self._check = self._map_keys = unbound

    def bind(self: S, name: str, binding: Binding, table: pa.StructArray | None) -> S:
        """A copy that holds what ``table`` stores, for one run of one key group."""
        bound = copy(self)
        bound.name = name
        bound.changed = False
        bound._context = binding.context
        bound.load(binding, table)
        return bound

    @abstractmethod
    def load(self, binding: Binding, table: pa.StructArray | None) -> None:
        """Takes up the stored entries."""

    @abstractmethod
    def dump(self) -> pa.StructArray:
        """The entries as they are stored: what :meth:`load` takes."""

    @abstractmethod
    def __len__(self) -> int:
        """How many keys (keyed state) or entries (operator state) there are."""

    def __bool__(self) -> bool:
        return True  # having no entries does not make a state false

    def mismatch(self, role: str, value: Any, error: Exception | str) -> StateTypeError:
        return StateTypeError(
            f"{type(self).__name__} {self.name!r} is declared as {to_ddl(self.types[role])}, but its {role} was given "
            f"as {type(value).__name__}: {error}"
        )


def declared_states(function: object) -> dict[str, State]:
    """The states of a function by attribute, each with its name set. Attributes of the instance go before its class's."""
    found: dict[str, State] = {}
    for owner in (*reversed([vars(c) for c in type(function).__mro__]), getattr(function, "__dict__", {})):
        for attribute, value in owner.items():
            if isinstance(value, State):
                found[attribute] = value
            else:
                found.pop(attribute, None)  # hidden by something else
    named: dict[str, str] = {}
    for attribute, state in found.items():
        name = state.name or attribute
        if name in named:
            raise ConfigurationError(
                f"{type(function).__name__} declares two states named {name!r}: {named[name]} and {attribute}. "
                "Give one of them another name=."
            )
        named[name] = attribute
    return found
