"""``.reduce`` and ``.aggregate``: what they emit, after every element or once for each key and epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lockstep.errors import ConfigurationError, OperatorError
from lockstep.state import AggregateFunction, KeyedProcessFunction, Row
from lockstep.state.ddl import parse_columns
from lockstep.state.simple import aggregating, reducing
from lockstep.testing import KeyedHarness

INPUT = "k string, v bigint"


class Mean(AggregateFunction):
    def create_accumulator(self) -> Any:
        return {"total": 0, "n": 0}

    def add(self, value: Any, accumulator: Any) -> Any:
        total, n = accumulator["total"], accumulator["n"]
        return {"total": total + value.v, "n": n + 1}

    def get_result(self, accumulator: Any) -> Any:
        return accumulator.total / accumulator.n


def added(a: Row, b: Row) -> Any:
    return a.k, a.v + b.v


def push_two_epochs(function: KeyedProcessFunction, output: str, key: Any = "k") -> list[list[tuple[Any, ...]]]:
    h = KeyedHarness(function, key=key, input=INPUT, output=output)
    emitted = []
    for rows in ([("b", 1), ("a", 5), ("b", 2)], [("b", 3), (None, 9)]):
        h.push(*rows)
        emitted.append([tuple(row) for row in h.take_output()])
    return emitted


def test_reduce_emits_after_every_element() -> None:
    assert push_two_epochs(reducing(added, parse_columns(INPUT)), INPUT) == [
        [("b", 1), ("a", 5), ("b", 3)],
        [("b", 6), (None, 9)],
    ]


def test_reduce_emits_once_for_each_touched_key_and_epoch() -> None:
    assert push_two_epochs(reducing(added, parse_columns(INPUT), "epoch"), INPUT) == [
        [("b", 3), ("a", 5)],
        [("b", 6), (None, 9)],
    ]


def test_aggregate_emits_the_key_and_the_result() -> None:
    assert push_two_epochs(aggregating(Mean(), "total bigint, n bigint"), "k string, mean double") == [
        [("b", 1.0), ("a", 5.0), ("b", 1.5)],
        [("b", 2.0), (None, 9.0)],
    ]
    assert push_two_epochs(aggregating(Mean(), "total bigint, n bigint", "epoch"), "k string, mean double") == [
        [("b", 1.5), ("a", 5.0)],
        [("b", 2.0), (None, 9.0)],
    ]


@pytest.mark.parametrize("result", [lambda a: (a.total, a.n), lambda a: Row(total=a.total, n=a.n)])
def test_result_of_several_columns_follows_all_key_columns(result: Callable[[Any], Any]) -> None:
    class Both(Mean):
        def get_result(self, accumulator: Any) -> Any:
            return result(accumulator)

    function = aggregating(Both(), "total bigint, n bigint", "epoch")
    output = "k string, v bigint, total bigint, n bigint"
    assert push_two_epochs(function, output, key=["k", "v"]) == [
        [("b", 1, 1, 1), ("a", 5, 5, 1), ("b", 2, 2, 1)],
        [("b", 3, 3, 1), (None, 9, 9, 1)],
    ]


def test_result_that_is_a_dict_is_refused_with_the_remedy() -> None:
    class Named(Mean):
        def get_result(self, accumulator: Any) -> Any:
            return {"mean": 1.0}

    with pytest.raises(OperatorError, match=r"get_result returned a dict.*Return a tuple or Row"):
        push_two_epochs(aggregating(Named(), "total bigint, n bigint"), "k string, mean double")


def test_unknown_emit_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="element, epoch"):
        reducing(added, parse_columns(INPUT), "sometimes")
