"""The functions behind ``.reduce(...)`` and ``.aggregate(...)``: a keyed fold without a class of one's own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import pyarrow as pa

from lockstep.choices import choose
from lockstep.errors import StateTypeError
from lockstep.state.context import Context
from lockstep.state.ddl import to_ddl
from lockstep.state.folding_state import AggregateFunction, AggregatingState, ReducingState
from lockstep.state.function import KeyedProcessFunction, Rows
from lockstep.state.row import Row


class Emit(Enum):
    """When a fold hands on its result."""

    ELEMENT = "element"  # after every element, as Flink does
    EPOCH = "epoch"  # at the end of each epoch, for each key that had elements, in the order of their first ones


def reducing(
    function: Callable[[Any, Any], Any], schema: pa.Schema, emit: Emit | str = Emit.ELEMENT
) -> KeyedProcessFunction:
    """Folds the rows of a key by ``function(reduced, row)``, which gives a row like them. Emits the reduced row."""
    return _Reducing(function, schema, choose(Emit, emit, "emit"))


def aggregating(function: AggregateFunction, accumulator: str, emit: Emit | str = Emit.ELEMENT) -> KeyedProcessFunction:
    """Folds the rows of a key into an accumulator of the DDL type ``accumulator``.

    Emits the key's columns, then the result: one column, or as many as the tuple or :class:`Row` that it is has values.
    """
    return _Aggregating(function, accumulator, choose(Emit, emit, "emit"))


class _Folding(KeyedProcessFunction):
    def __init__(self, emit: Emit) -> None:
        self._each_element = emit is Emit.ELEMENT
        self._touched: dict[Any, None] = {}

    def initialize_state(self, ctx: Context) -> None:
        self._touched = {}  # of this group and epoch

    def process_element(self, row: Row, ctx: Context) -> Rows:
        self.add(row)
        if self._each_element:
            return (self.result(ctx.key),)
        self._touched[ctx.key] = None
        return None

    def prepare_snapshot(self, ctx: Context) -> Iterator[Any]:
        for key in self._touched:
            with ctx.keyed(key):
                yield self.result(key)

    @abstractmethod
    def add(self, row: Row) -> None:
        """Folds a row in."""

    @abstractmethod
    def result(self, key: Any) -> Any:
        """The row to emit."""


class _Reducing(_Folding):
    def __init__(self, function: Callable[[Any, Any], Any], schema: pa.Schema, emit: Emit) -> None:
        super().__init__(emit)
        self.reduced = ReducingState(to_ddl(pa.struct(list(schema))), function)

    def add(self, row: Row) -> None:
        self.reduced.add(row)

    def result(self, key: Any) -> Any:
        return self.reduced.get()


class _Aggregating(_Folding):
    def __init__(self, function: AggregateFunction, accumulator: str, emit: Emit) -> None:
        super().__init__(emit)
        self.accumulator = AggregatingState(accumulator, function)

    def add(self, row: Row) -> None:
        self.accumulator.add(row)

    def result(self, key: Any) -> Any:
        result = self.accumulator.get()
        if isinstance(result, dict):
            raise StateTypeError(
                f"get_result returned a dict, {result!r}: its values have no place among the output's columns. Return a "
                "tuple or Row of the columns that follow the key's, or one value."
            )
        columns = result if isinstance(result, tuple) else (result,)
        return (*key, *columns) if isinstance(key, Row) else (key, *columns)
