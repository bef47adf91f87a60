"""One folded value per key: every added value is folded into it at once, so only the result is stored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from lockstep.errors import ConfigurationError
from lockstep.state.ddl import parse_value
from lockstep.state.keyed_state import SingleValueState
from lockstep.state.ttl import Ttl


class AggregateFunction(ABC):
    """Folds values into an accumulator and makes results of it.

    One instance serves all keys of an operator, so it must keep nothing in its own fields. The accumulator is stored;
    the values are not. ``add`` may change the accumulator that it is given and return it.
    """

    @abstractmethod
    def create_accumulator(self) -> Any:
        """The accumulator of a key before its first value."""

    @abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any:
        """The accumulator after ``value``."""

    @abstractmethod
    def get_result(self, accumulator: Any) -> Any:
        """What the accumulator stands for."""

    def merge(self, a: Any, b: Any) -> Any:
        """One accumulator for the values of both. Needed only where accumulators are merged."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to merge two accumulators.")


class ReducingState(SingleValueState):
    """One value per key, into which every added one is folded by ``reduce(current, added)``."""

    kind = "reducing"

    def __init__(
        self, ddl: str, reduce: Callable[[Any, Any], Any], ttl: Ttl | None = None, name: str | None = None
    ) -> None:
        super().__init__({"value": parse_value(ddl)}, ttl, name)
        if not callable(reduce):
            raise ConfigurationError(f"reduce={reduce!r} can't be called: give a function of two values.")
        self.reduce = reduce

    def add(self, value: Any) -> None:
        """Folds ``value`` in; the first value of a key is kept as it is."""
        if value is None:
            raise self.mismatch("value", None, "None can't be added")
        try:
            checked = self._check(value)
        except (TypeError, ValueError) as error:
            raise self.mismatch("value", value, error) from error
        current = self._entries.get(self._context.key)
        if current is None:
            self._write(checked, value)
            return
        reduced = self.reduce(self._codec.copy(current), checked)
        if reduced is None:
            raise self.mismatch("value", None, "reduce returned None")
        self._write(reduced, reduced)

    def get(self) -> Any:
        """The current key's value, or ``None`` before the first was added."""
        return self._read()


class AggregatingState(SingleValueState):
    """One accumulator per key, into which values of any type are folded by an :class:`AggregateFunction`.

    Parameters
    ----------
    accumulator_ddl
        The accumulator's type in Spark's DDL.
    function
        How values are folded.
    """

    kind = "aggregating"

    def __init__(
        self, accumulator_ddl: str, function: AggregateFunction, ttl: Ttl | None = None, name: str | None = None
    ) -> None:
        super().__init__({"value": parse_value(accumulator_ddl)}, ttl, name)
        if not isinstance(function, AggregateFunction):
            raise ConfigurationError(f"{function!r} is no AggregateFunction: give an instance of a subclass.")
        self.function = function

    def add(self, value: Any) -> None:
        """Folds ``value`` into the current key's accumulator."""
        accumulator = self._entries.get(self._context.key)
        given = self.function.create_accumulator() if accumulator is None else self._codec.copy(accumulator)
        new = self.function.add(value, given)
        if new is None:
            raise self.mismatch("value", None, f"{type(self.function).__name__}.add returned None")
        self._write(new, new)

    def get(self) -> Any:
        """The current key's result, or ``None`` before the first value was added."""
        accumulator = self._read()
        return None if accumulator is None else self.function.get_result(accumulator)
