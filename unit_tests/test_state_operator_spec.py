"""What an operator stores is described, and what can't be continued is refused before anything is lost."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from lockstep.errors import ConfigurationError, StateMigrationError
from lockstep.state import (
    AggregatingState,
    BroadcastState,
    KeyedProcessFunction,
    ListState,
    MapState,
    ReducingState,
    Row,
    Ttl,
    ValueState,
)
from lockstep.state.ddl import parse_columns
from lockstep.state.declarations import State
from lockstep.state.group import GroupInput, GroupRuntime
from lockstep.state.operator_spec import OperatorSpec, describe, merged, refuse_incompatible
from lockstep.state.row import row_type
from unit_tests.state_model import Mean


def spec(key: str = "k string", groups: int = 128, uid: str = "totals") -> OperatorSpec:
    return OperatorSpec(
        uid, parse_columns(key), parse_columns(f"{key}, v bigint"), parse_columns("text string"), None, groups
    )


class Function(KeyedProcessFunction):
    """Writes ``v`` with ``write`` and emits what ``read`` gives, for whatever state it has."""

    def __init__(self, write: Any = None, read: Any = None, **states: State) -> None:
        self.write, self.read = write, read
        for name, state in states.items():
            setattr(self, name, state)

    def process_element(self, row: Any, ctx: Any) -> Any:
        if self.write is not None and row.v >= 0:
            self.write(self, row.v)
        return [] if self.read is None else [(repr(self.read(self)),)]


def described(function: KeyedProcessFunction, of: OperatorSpec | None = None) -> dict[str, Any]:
    """As it comes back from the checkpoint directory."""
    stored: dict[str, Any] = json.loads(json.dumps(describe(function, of or spec())))
    return stored


def run(
    function: KeyedProcessFunction, blob: bytes | None, v: int, of: OperatorSpec | None = None
) -> tuple[Any, list[str]]:
    given = GroupInput(2, 0, 0, keys=["a"], elements=[row_type(("k", "v"))._make(("a", v))])
    output = GroupRuntime(of or spec(), function).run(blob, given)
    texts = [text for batch in output.batches for text in batch.column(0).to_pylist()]
    return blob if output.blob is None else output.blob, texts


def test_description_says_what_is_stored() -> None:
    class Described(Function):
        rules = BroadcastState("string", "bigint")

        def on_timer(self, timestamp: int, ctx: Any) -> None: ...

    function = Described(total=ValueState("a bigint, b string NOT NULL", ttl=Ttl("1 s")), seen=MapState("date", "int"))
    assert described(function) == {
        "uid": "totals",
        "max_parallelism": 128,
        "key": [{"name": "k", "type": "string"}],
        "timers": True,
        "states": {
            "rules": {"kind": "broadcast", "types": {"key": "string", "value": "bigint"}},
            "seen": {"kind": "map", "types": {"key": "date", "value": "int"}},
            "total": {
                "kind": "value",
                "types": {"value": "struct<a: bigint, b: string NOT NULL>"},
                "ttl": {"millis": 1000, "update": "on_write"},
            },
        },
    }


def test_added_removed_and_widened_states_are_fine() -> None:
    old = described(Function(gone=ValueState("int"), total=ValueState("int"), items=ListState("a int")))
    new = described(
        Function(
            total=ValueState("bigint", ttl=Ttl("1 h")),
            items=ListState("b string, a bigint"),
            more=MapState("int", "int"),
        )
    )
    refuse_incompatible(old, new)
    refuse_incompatible(old, old)
    assert set(merged(old, new)["states"]) == {"gone", "total", "items", "more"}
    assert merged(old, new)["states"]["total"] == new["states"]["total"]
    with pytest.raises(StateMigrationError, match="'gone'"):  # it is still kept, and still of its type
        refuse_incompatible(merged(old, new), described(Function(gone=ValueState("string"))))


@pytest.mark.parametrize(
    "old, new, message",
    [
        (ValueState("bigint"), ValueState("int"), r"value of state 's' of operator 'totals'.*bigint.*int"),
        (ValueState("a bigint"), ValueState("b bigint"), "state 's' of operator 'totals'"),
        (ListState("string"), ListState("binary"), "state 's' of operator 'totals'.*string.*binary"),
        (MapState("int", "int"), MapState("string", "int"), "key of state 's' of operator 'totals'"),
        (
            ValueState("bigint"),
            ListState("bigint"),
            "State 's' of operator 'totals' is stored as value state.*list state",
        ),
        (ReducingState("bigint", max), ValueState("bigint"), "stored as reducing state"),
        (AggregatingState("a bigint", Mean()), AggregatingState("a string", Mean()), "state 's'.*a.*bigint.*string"),
    ],
)
def test_change_that_would_lose_values_is_refused_at_the_start_and_when_the_state_is_read(
    old: Any, new: Any, message: str
) -> None:
    with pytest.raises(StateMigrationError, match=message):
        refuse_incompatible(described(Function(s=old)), described(Function(s=new)))

    writes = {ValueState: "update", ListState: "add", ReducingState: "add", AggregatingState: "add"}

    def write(f: Any, v: int) -> None:
        kind = next(iter(old.types.values()))
        value: Any = (v,) if pa.types.is_struct(kind) else str(v) if pa.types.is_string(kind) else v
        if isinstance(old, MapState):
            f.s.put(v, v)
        elif isinstance(old, AggregatingState):
            f.s._write((v,), v)
        else:
            getattr(f.s, writes[type(old)])(value)

    blob, _ = run(Function(write, s=old), None, 1)
    with pytest.raises(StateMigrationError, match="'s' of operator 'totals'"):
        run(Function(s=new), blob, 1)


def test_key_and_number_of_groups_never_change() -> None:
    old = described(Function(), spec())
    with pytest.raises(
        StateMigrationError, match=r"'totals' is stored by key \(k string\), but the key is now \(k bigint\)"
    ):
        refuse_incompatible(old, described(Function(), spec("k bigint")))
    with pytest.raises(StateMigrationError, match=r"stored in 128 key groups.*now 64.*max_parallelism=128"):
        refuse_incompatible(old, described(Function(), spec(groups=64)))
    with pytest.raises(StateMigrationError, match="by key"):
        refuse_incompatible(described(Function(), spec("a int, b int")), described(Function(), spec("b int, a int")))
    refuse_incompatible(old, described(Function(), spec("renamed string")))


def test_other_key_type_is_refused_when_the_state_is_read() -> None:
    blob, _ = run(Function(lambda f, v: f.s.update(v), s=ValueState("bigint")), None, 1)
    with pytest.raises(StateMigrationError, match=r"stored under keys of type string.*now bigint"):
        run(Function(s=ValueState("bigint")), blob, 1, spec("k bigint"))


def test_stored_values_are_read_as_the_wider_type_and_stored_so_when_they_change() -> None:
    blob, _ = run(Function(lambda f, v: f.s.update((v,)), s=ValueState("a int")), None, 5)
    wider = Function(lambda f, v: f.s.update((v, "new")), lambda f: f.s.value(), s=ValueState("a bigint, b string"))
    same, texts = run(wider, blob, -1)
    assert texts == [repr(Row(a=5, b=None))]
    assert same == blob  # reading alone rewrites nothing
    newer, _ = run(wider, blob, 2**40)
    _, texts = run(wider, newer, -1)
    assert texts == [repr(Row(a=2**40, b="new"))]


@pytest.mark.parametrize(
    "make, write, read",
    [
        (lambda t: ListState(t), lambda f, v: f.s.add(v), lambda f: f.s.get()),
        (lambda t: MapState(t, t), lambda f, v: f.s.put(v, v), lambda f: f.s.items()),
        (lambda t: ReducingState(t, max), lambda f, v: f.s.add(v), lambda f: f.s.get()),
    ],
    ids=["list", "map", "reducing"],
)
def test_collections_widen_too(make: Any, write: Any, read: Any) -> None:
    blob, before = run(Function(write, read, s=make("int")), None, 5)
    blob, after = run(Function(write, read, s=make("bigint")), blob, -1)
    assert before == after
    blob, grown = run(Function(write, read, s=make("bigint")), blob, 2**40)
    assert str(2**40) in grown[0]


def test_state_that_is_no_longer_declared_is_carried_along_and_found_again() -> None:
    kept = lambda: ValueState("bigint")  # noqa: E731
    blob, _ = run(Function(lambda f, v: (f.kept.update(v), f.s.update(v)), kept=kept(), s=kept()), None, 5)
    without = Function(lambda f, v: f.s.update(v), s=kept())
    for v in (6, 7):
        blob, _ = run(without, blob, v)
    _, texts = run(Function(read=lambda f: (f.kept.value(), f.s.value()), kept=kept(), s=kept()), blob, -1)
    assert texts == ["(5, 7)"]
    blob, _ = run(Function(lambda f, v: f.s.clear(), s=kept()), blob, 1)
    assert blob  # not empty: there is still what is carried along


@pytest.mark.parametrize(
    "change, message",
    [
        ({"uid": ""}, "needs a uid"),
        ({"key": parse_columns("x string")}, "key column x of operator 'u' is not in its input: k"),
        ({"key": pa.schema([])}, "has no key columns"),
        ({"output": pa.schema([])}, "has no output columns"),
        ({"max_parallelism": 0}, "not between 1 and 32768"),
        ({"max_parallelism": 2**15 + 1}, "not between 1 and 32768"),
        ({"key": parse_columns("k array<int>")}, "can't be array<int>"),
    ],
)
def test_operator_that_can_not_be_is_refused(change: dict[str, Any], message: str) -> None:
    fine = {
        "uid": "u",
        "key": parse_columns("k string"),
        "input": parse_columns("k string"),
        "output": parse_columns("v int"),
    }
    OperatorSpec(**fine)
    with pytest.raises(ConfigurationError, match=message):
        OperatorSpec(**{**fine, **change})
