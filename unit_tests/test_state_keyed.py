"""Keyed state: what each type gives back, what it refuses, and that nobody can change it from outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from lockstep.errors import OperatorError, StateAccessError, StateTypeError
from lockstep.state import (
    AggregateFunction,
    AggregatingState,
    KeyedProcessFunction,
    ListState,
    MapState,
    RawKeyedState,
    ReducingState,
    Row,
    Ttl,
    ValueState,
)
from lockstep.testing import KeyedHarness


class Joined(AggregateFunction):
    def create_accumulator(self) -> list[str]:
        return []

    def add(self, value: str, accumulator: list[str]) -> list[str]:
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: list[str]) -> str:
        text = "".join(accumulator)
        accumulator.clear()  # what it is given is a copy
        return text


class Script(KeyedProcessFunction):
    """Runs what the test wants, with the state and the context."""

    value = ValueState("bigint", default=0)
    row = ValueState("a bigint NOT NULL, tags array<string>")
    nothing = ValueState("array<bigint>", default=[1])
    items = ListState("array<bigint>")
    entries = MapState("string", "array<bigint>")
    numbers = MapState("double", "bigint")
    largest = ReducingState("bigint", max)
    longest = ReducingState("array<bigint>", lambda a, b: a if len(a) >= len(b) else b)
    joined = AggregatingState("array<string>", Joined())
    raw = RawKeyedState()

    def __init__(self, *steps: Callable[[Any, Any], Any]) -> None:
        self.steps = steps

    def process_element(self, row: Any, ctx: Any) -> None:
        self.steps[row.step](self, ctx)


def run(*steps: Callable[[Any, Any], Any]) -> KeyedHarness:
    """Each step is an epoch, for the key "a"."""
    h = KeyedHarness(Script(*steps), key="k", input="k string, step int", output="k string")
    for number in range(len(steps)):
        h.push(("a", number))
    return h


def test_default_is_given_and_never_stored() -> None:
    def step(s: Script, ctx: Any) -> None:
        assert s.value.value() == 0

    assert run(step).blob is None


def test_none_clears_a_value() -> None:
    assert run(lambda s, c: s.value.update(5), lambda s, c: s.value.update(None)).blob is None


def test_value_given_out_can_be_changed_without_changing_what_is_stored() -> None:
    def write(s: Script, ctx: Any) -> None:
        tags, given = ["x"], [[1]]
        s.row.update({"a": 1, "tags": tags})
        s.items.update(given)
        s.entries.put("k", given[0])
        s.longest.add(given[0])
        tags.append("later")
        given[0].append(9)
        given.append([8])

    def disturb(s: Script, ctx: Any) -> None:
        s.nothing.value().append(2)
        s.row.value().tags.append("y")
        s.items.get()[0].append(2)
        s.items.get().append([3])
        s.entries.get("k").append(2)
        s.entries.values()[0].append(2)
        s.entries.items()[0][1].append(2)
        s.longest.get().append(2)

    def check(s: Script, ctx: Any) -> None:
        assert s.nothing.value() == [1]
        assert s.row.value() == Row(a=1, tags=["x"])
        assert s.items.get() == [[1]]
        assert s.entries.items() == [("k", [1])]
        assert s.longest.get() == [1]

    both = run(lambda s, c: (write(s, c), disturb(s, c), check(s, c)))
    assert both.state("row", "a") == Row(a=1, tags=["x"])
    assert run(write, disturb, check).state("items", "a") == [[1]]


def test_map_keeps_the_order_of_first_puts() -> None:
    def first(s: Script, ctx: Any) -> None:
        s.entries.put_all([("c", [1]), ("a", None)])
        s.entries.put("b", [])

    def second(s: Script, ctx: Any) -> None:
        s.entries.put("c", [2])
        assert s.entries.keys() == ["c", "a", "b"]
        assert s.entries.values() == [[2], None, []]
        assert "a" in s.entries
        assert s.entries.get("a", "other") is None  # there, and None
        assert s.entries.get("z", "other") == "other"
        s.entries.remove("c")
        s.entries.put("c", [3])
        assert s.entries.keys() == ["a", "b", "c"]
        s.entries.remove("zzz")

    h = run(first, second)
    assert list(h.state("entries", "a").items()) == [("a", None), ("b", []), ("c", [3])]


def test_all_nan_are_one_key_of_a_map() -> None:
    def put(s: Script, ctx: Any) -> None:
        s.numbers.put(float("nan"), (s.numbers.get(float("nan")) or 0) + 1)

    assert list(run(put, put, lambda s, c: (put(s, c), put(s, c))).state("numbers", "a").values()) == [4]


def test_map_without_entries_is_empty_and_takes_no_room() -> None:
    def empty(s: Script, ctx: Any) -> None:
        assert not s.entries.is_empty()
        s.entries.remove("k")
        assert s.entries.is_empty()
        assert s.entries.items() == []

    assert run(lambda s, c: s.entries.put("k", None), empty).blob is None


def test_list_without_elements_takes_no_room() -> None:
    assert run(lambda s, c: s.items.add([1]), lambda s, c: s.items.update([])).blob is None
    assert run(lambda s, c: s.items.add_all([])).blob is None


def test_folds_keep_only_their_result() -> None:
    def add(s: Script, ctx: Any) -> None:
        assert s.joined.get() == ("xy" if ctx.epoch else None)
        for number in (3, 7, 5):
            s.largest.add(number)
        s.joined.add("x")
        s.joined.add("y")

    h = run(add, lambda s, c: add(s, c))
    assert (h.state("largest", "a"), h.state("joined", "a")) == (7, "xyxy")


def test_raw_bytes_are_returned_as_they_are() -> None:
    h = run(lambda s, c: s.raw.update(b""), lambda s, c: s.raw.update(bytes(s.raw.value() + b"\x00\xff")))
    assert h.state("raw", "a") == b"\x00\xff"


def test_keys_do_not_see_each_other() -> None:
    class PerKey(KeyedProcessFunction):
        items = ListState("bigint")
        entries = MapState("bigint", "bigint")

        def process_element(self, row: Any, ctx: Any) -> None:
            self.items.add(row.v)
            self.entries.put(row.v, row.v)
            if row.v == 0:
                self.items.clear()
                self.entries.clear()

    h = KeyedHarness(PerKey(), key="k", input="k string, v bigint", output="k string")
    h.push(("a", 1), ("b", 2), ("a", 3), (None, 4), ("c", 5), ("c", 0))
    assert [h.state("items", key) for key in ("a", "b", None, "c")] == [[1, 3], [2], [4], []]
    assert [h.state("entries", key) for key in ("a", "b", None, "c")] == [{1: 1, 3: 3}, {2: 2}, {4: 4}, {}]
    assert h.keys() == [None, "a", "b"]


WRONG: list[tuple[Callable[[Script], Any], str]] = [
    (lambda s: s.value.update("x"), "ValueState 'value' is declared as bigint.*str"),
    (lambda s: s.value.update(1.0), "ValueState 'value' is declared as bigint.*float"),
    (lambda s: s.value.update(2**63), "ValueState 'value' is declared as bigint.*int"),
    (lambda s: s.value.update(True), "ValueState 'value' is declared as bigint.*bool"),
    (lambda s: s.row.update((None, [])), "ValueState 'row'.*NOT NULL"),
    (lambda s: s.row.update({"b": 1}), "ValueState 'row'.*no field b"),
    (lambda s: s.items.add(None), "ListState 'items'.*None can't be an element"),
    (lambda s: s.items.add_all([[1], ["x"]]), r"ListState 'items' is declared as array<bigint>.*list"),
    (lambda s: s.items.update([[1], 5]), "ListState 'items'"),
    (lambda s: s.entries.put(1, []), "MapState 'entries' is declared as string, but its key was given as int"),
    (lambda s: s.entries.put([1], []), "MapState 'entries' is declared as string, but its key was given as list"),
    (lambda s: s.entries.put("a", 1), "MapState 'entries' is declared as array<bigint>, but its value"),
    (lambda s: s.entries.put(None, []), "MapState 'entries'.*None can't be a key"),
    (lambda s: s.entries.get(3), "MapState 'entries'.*key"),
    (lambda s: s.entries.put_all({"ok": [1], "bad": 1}), "MapState 'entries'"),
    (lambda s: s.largest.add("x"), "ReducingState 'largest' is declared as bigint"),
    (lambda s: s.largest.add(None), "ReducingState 'largest'.*None can't be added"),
    (lambda s: s.joined.add(3), r"AggregatingState 'joined' is declared as array<string>"),
    (lambda s: s.raw.update("text"), "RawKeyedState 'raw' is declared as binary"),
]


@pytest.mark.parametrize("wrong, message", WRONG, ids=[message[:40] for _, message in WRONG])
def test_value_of_another_type_is_refused_at_the_call_and_changes_nothing(
    wrong: Callable[[Script], Any], message: str
) -> None:
    def write(s: Script, ctx: Any) -> None:
        s.items.add([1])
        s.entries.put("k", [1])
        s.largest.add(1)
        s.joined.add("x")

    def refused(s: Script, ctx: Any) -> None:
        with pytest.raises(StateTypeError, match=message):
            wrong(s)

    h = run(write, refused)
    assert (h.state("items", "a"), h.state("entries", "a")) == ([[1]], {"k": [1]})
    assert (h.state("largest", "a"), h.state("joined", "a"), h.state("value", "a")) == (1, "x", 0)


def test_reduce_and_add_that_return_none_are_refused() -> None:
    class Forgetful(KeyedProcessFunction):
        folded = ReducingState("bigint", lambda a, b: None)

        def process_element(self, row: Any, ctx: Any) -> None:
            self.folded.add(row.v)

    h = KeyedHarness(Forgetful(), key="k", input="k string, v bigint", output="k string")
    h.push(("a", 1))
    with pytest.raises(OperatorError, match="reduce returned None"):
        h.push(("a", 2))


def test_merge_is_needed_only_where_it_is_used() -> None:
    with pytest.raises(NotImplementedError, match="Joined does not say how to merge"):
        Joined().merge([], [])


class Batch(KeyedProcessFunction):
    total = ValueState("bigint", default=0)
    tags = ValueState("array<string>", default=[], ttl=Ttl("10 ms", "on_read_and_write"))

    def __init__(self, step: Callable[[Any, Any, Any], Any]) -> None:
        self.step = step

    def process_batch(self, batch: Any, ctx: Any) -> Any:
        return self.step(self, batch, ctx)


def batch(step: Callable[[Any, Any, Any], Any], key: Any = "k", columns: str = "k string, v bigint") -> KeyedHarness:
    return KeyedHarness(Batch(step), key=key, input=columns, output="k string, total bigint")


@pytest.mark.parametrize(
    "convert",
    [list, tuple, iter, lambda c: c, lambda c: c.to_numpy(), lambda c: pa.array(c), lambda c: c.to_frame(), pd.Index],
    ids=["list", "tuple", "iterator", "series", "numpy", "arrow", "frame", "index"],
)
def test_many_keys_are_taken_from_whatever_holds_them(convert: Callable[[Any], Any]) -> None:
    def step(s: Batch, frame: Any, ctx: Any) -> None:
        assert s.total.get_many(convert(frame.k)) == [0] * len(frame)
        s.total.update_many(convert(frame.k), frame.v)

    h = batch(step)
    h.push(("a", 1), ("b", 2), ("a", 3))
    assert (h.state("total", "a"), h.state("total", "b")) == (3, 2)


def test_null_keys_of_a_batch_are_null() -> None:
    def step(s: Batch, frame: Any, ctx: Any) -> None:
        s.total.update_many(frame.k, frame.v)

    h = batch(step, columns="k bigint, v bigint")
    h.push((1, 1), (None, 2))
    assert (h.state("total", 1), h.state("total", None), h.keys()) == (1, 2, [None, 1])


def test_several_key_columns_are_taken_as_a_frame_rows_or_tuples() -> None:
    def step(s: Batch, frame: Any, ctx: Any) -> None:
        s.total.update_many(frame[["k", "j"]], frame.v)
        assert s.total.get_many(list(zip(frame.k, frame.j, strict=True))) == frame.v.tolist()
        assert s.total.get_many([Row(k="a", j=1)]) == [1]

    h = batch(step, key=["k", "j"], columns="k string, j bigint, v bigint")
    h.push(("a", 1, 1), ("a", None, 2))
    assert h.state("total", ("a", None)) == 2


def test_none_among_many_values_clears_and_all_are_checked_first() -> None:
    def step(s: Batch, frame: Any, ctx: Any) -> None:
        s.total.update_many(frame.k, frame.v)
        with pytest.raises(StateTypeError, match="declared as bigint"):
            s.total.update_many(["a", "b"], [7, "x"])
        with pytest.raises(StateTypeError, match="2 keys and 1 values"):
            s.total.update_many(["a", "b"], [7])
        s.total.update_many(["b"], [None])

    h = batch(step)
    h.push(("a", 1), ("b", 2))
    assert (h.state("total", "a"), h.keys()) == (1, ["a"])


def test_many_values_with_ttl_are_copied_and_kept_young() -> None:
    def step(s: Batch, frame: Any, ctx: Any) -> None:
        (tags,) = s.tags.get_many(["a"])
        tags.append("lost")
        if ctx.epoch == 0:
            s.tags.update_many(["a"], [["x"]])

    h = batch(step)
    for _ in range(3):
        h.push(("a", 1))
        h.advance_processing_time(9)
    assert h.state("tags", "a") == ["x"]
    h.advance_processing_time(1)
    assert h.state("tags", "a") == []


def test_key_of_another_group_is_refused() -> None:
    def step(s: Batch, frame: Any, ctx: Any) -> None:
        for use in (lambda: s.total.get_many(["z"]), lambda: ctx.keyed("z").__enter__()):
            with pytest.raises(StateAccessError, match="may belong to another group"):
                use()
        with pytest.raises(StateTypeError, match="7 is no key of operator 'test'"):
            s.total.get_many([7])
        s.total.update_many(["a"], [1])

    h = batch(step)
    h.push(("a", 1))
    assert h.keys() == ["a"]


def test_key_with_state_may_be_used_in_any_epoch() -> None:
    def step(s: Batch, frame: Any, ctx: Any) -> Any:
        if ctx.epoch == 0:
            s.total.update_many(frame.k, frame.v)
        else:
            with ctx.keyed("a"):
                return [(ctx.key, s.total.value())]
        return None

    h = batch(step)
    h.push(("a", np.int64(4)))
    h.push(("b", 0))
    assert h.take_output() == [("a", 4)]


def test_scopes_nest_and_end() -> None:
    def step(s: Batch, frame: Any, ctx: Any) -> None:
        with ctx.keyed("a"):
            with ctx.key_scope("b"):
                s.total.update(2)
            s.total.update(1)
        with pytest.raises(StateAccessError, match="no current key"):
            s.total.value()

    h = batch(step)
    h.push(("a", 0), ("b", 0))
    assert (h.state("total", "a"), h.state("total", "b")) == (1, 2)
