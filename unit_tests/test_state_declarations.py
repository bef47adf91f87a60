"""State as it is declared: names, types, and that nothing works before it is bound to a run."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from lockstep.errors import ConfigurationError, OperatorError, StateAccessError
from lockstep.state import (
    AggregatingState,
    BroadcastState,
    KeyedProcessFunction,
    ListState,
    MapState,
    OperatorListState,
    RawKeyedState,
    RawOperatorState,
    ReducingState,
    UnionListState,
    ValueState,
)
from lockstep.state.declarations import State, declared_states
from lockstep.state.function import states_of
from lockstep.testing import KeyedHarness
from unit_tests.state_model import Mean

MAKERS: dict[type[State], Callable[[], Any]] = {
    ValueState: lambda: ValueState("bigint", default=3),
    ListState: lambda: ListState("bigint"),
    MapState: lambda: MapState("bigint", "bigint"),
    ReducingState: lambda: ReducingState("bigint", max),
    AggregatingState: lambda: AggregatingState("total bigint, n bigint", Mean()),
    RawKeyedState: RawKeyedState,
    OperatorListState: lambda: OperatorListState("bigint"),
    UnionListState: lambda: UnionListState("bigint"),
    BroadcastState: lambda: BroadcastState("bigint", "bigint"),
    RawOperatorState: RawOperatorState,
}
CALLS: dict[type[State], list[tuple[Any, ...]]] = {
    ValueState: [("value",), ("update", 1), ("update", None), ("clear",), ("get_many", [1]), ("update_many", [1], [1])],
    ListState: [("get",), ("add", 1), ("add_all", [1]), ("update", [1]), ("clear",)],
    MapState: [
        *[("get", 1), ("put", 1, 1), ("put_all", {1: 1}), ("remove", 1), ("contains", 1), ("keys",), ("values",)],
        *[("items",), ("is_empty",), ("clear",)],
    ],
    ReducingState: [("add", 1), ("get",), ("clear",)],
    AggregatingState: [("add", 1), ("get",), ("clear",)],
    RawKeyedState: [("value",), ("update", b""), ("clear",)],
    OperatorListState: [("get",), ("add", 1), ("add_all", [1]), ("update", [1]), ("clear",)],
    UnionListState: [("get",), ("add", 1), ("add_all", [1]), ("update", [1]), ("clear",)],
    BroadcastState: [
        *[("get", 1), ("put", 1, 1), ("put_all", {1: 1}), ("remove", 1), ("contains", 1), ("keys",), ("values",)],
        *[("items",), ("is_empty",), ("clear",)],
    ],
    RawOperatorState: [("value",), ("update", b""), ("clear",)],
}
EVERY_CALL = [(kind, call) for kind, calls in CALLS.items() for call in calls]


@pytest.mark.parametrize("kind, call", EVERY_CALL, ids=[f"{kind.__name__}.{call[0]}" for kind, call in EVERY_CALL])
def test_unbound_state_says_that_it_is(kind: type[State], call: tuple[Any, ...]) -> None:
    with pytest.raises(StateAccessError, match=f"{kind.__name__} is used outside of its operator"):
        getattr(MAKERS[kind](), call[0])(*call[1:])


@pytest.mark.parametrize("kind", [kind for kind in MAKERS if kind.keyed])
def test_keyed_state_without_a_current_key_says_so(kind: type[State]) -> None:
    for call in CALLS[kind]:
        if call[0].endswith("_many"):
            continue  # they name their keys

        class Keyless(KeyedProcessFunction):
            state = MAKERS[kind]()

            def process_element(self, row: Any, ctx: Any) -> None: ...

            def initialize_state(self, ctx: Any) -> None:
                getattr(self.state, call[0])(*call[1:])  # noqa: B023

        with pytest.raises(OperatorError, match="There is no current key here") as failure:
            KeyedHarness(Keyless(), key="k", input="k string", output="k string").push(("a",))
        assert "in initialize_state" in str(failure.value)


@pytest.mark.parametrize("kind", list(MAKERS))
def test_declared_state_travels_to_the_workers(kind: type[State]) -> None:
    declared = MAKERS[kind]()
    if kind is ReducingState or kind is AggregatingState:
        declared.name = "fold"
    copy = pickle.loads(pickle.dumps(declared))
    assert (type(copy), copy.types, copy.name) == (kind, declared.types, declared.name)
    with pytest.raises(StateAccessError, match="outside of its operator"):
        copy.clear()


class Base(KeyedProcessFunction):
    first = ValueState("bigint")
    hidden = ValueState("bigint")

    def process_element(self, row: Any, ctx: Any) -> None: ...


class Derived(Base):
    hidden = None  # type: ignore[assignment]
    second = ListState("string", name="other")

    def __init__(self) -> None:
        self.third = MapState("string", "bigint")
        self.first = ValueState("string")


def test_states_of_class_bases_and_instance_are_found_by_name() -> None:
    found = states_of(Derived())
    assert {name: (attribute, type(state)) for name, (attribute, state) in found.items()} == {
        "first": ("first", ValueState),
        "other": ("second", ListState),
        "third": ("third", MapState),
    }
    assert str(found["first"][1].types["value"]) == "string"  # the instance's goes before the class's


def test_two_states_of_one_name_are_refused() -> None:
    class Twice(Base):
        again = ValueState("bigint", name="first")

    with pytest.raises(ConfigurationError, match="two states named 'first': first and again"):
        declared_states(Twice())


@pytest.mark.parametrize("name", ["", "a b", "1", "a:b", "a-b"])
def test_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="no name for a state"):
        ValueState("bigint", name=name)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ValueState("bigint", default="x"),
        lambda: ValueState("bigintt"),
        lambda: ListState(7),
        lambda: MapState("array<bigint>", "bigint"),
        lambda: BroadcastState("map<string, string>", "bigint"),
        lambda: ReducingState("bigint", None),
        lambda: AggregatingState("bigint", Mean),
    ],
)
def test_wrong_declaration_is_refused_where_it_stands(make: Callable[[], Any]) -> None:
    with pytest.raises(ConfigurationError):
        make()
