"""State of a key group as a whole: lists, union lists after a restore, broadcast maps, raw bytes, ListCheckpointed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lockstep.errors import ConfigurationError, OperatorError, StateAccessError, StateTypeError
from lockstep.state import (
    BroadcastState,
    KeyedProcessFunction,
    ListCheckpointed,
    OperatorListState,
    RawOperatorState,
    UnionListState,
    ValueState,
)
from lockstep.state.ddl import parse_columns
from lockstep.state.group import GroupInput, GroupRuntime, union_part
from lockstep.state.operator_spec import OperatorSpec
from lockstep.state.row import row_type
from lockstep.testing import KeyedHarness

SPEC = OperatorSpec("op", parse_columns("k string"), parse_columns("k string, v bigint"), parse_columns("v string"))
ROW = row_type(("k", "v"))._make


class Script(KeyedProcessFunction):
    items = OperatorListState("array<bigint>")
    shared = UnionListState("bigint")
    rules = BroadcastState("string", "array<bigint>")
    raw = RawOperatorState()

    def __init__(self, *steps: Callable[[Any, Any], Any]) -> None:
        self.steps = steps

    def process_element(self, row: Any, ctx: Any) -> None:
        self.steps[row.step](self, ctx)

    def process_broadcast_element(self, row: Any, ctx: Any) -> None:
        self.steps[row.step](self, ctx)


def harness(*steps: Callable[[Any, Any], Any]) -> KeyedHarness:
    return KeyedHarness(Script(*steps), key="k", input="k string, step int", output="k string", broadcast="step int")


def test_list_belongs_to_the_group_and_not_to_a_key() -> None:
    h = harness(lambda s, c: s.items.add([c.epoch]))
    h.push(("a", 0))
    h.push(("b", 0))
    assert h.state("items") == [[0], [1]]
    assert h.keys() == []


def test_lists_are_copied_in_and_out() -> None:
    def write(s: Script, ctx: Any) -> None:
        given = [[1]]
        s.items.update(given)
        given[0].append(2)
        s.items.get()[0].append(3)
        s.items.get().append([4])
        s.items.add_all([[5], [6]])

    h = harness(write, lambda s, c: s.items.clear())
    h.push(("a", 0))
    assert h.state("items") == [[1], [5], [6]]
    h.push(("a", 1))
    assert h.blob is None


@pytest.mark.parametrize("wrong", [None, 1, ["x"]])
def test_wrong_element_is_refused_and_changes_nothing(wrong: Any) -> None:
    def write(s: Script, ctx: Any) -> None:
        s.items.add([1])
        for refused in (lambda: s.items.add_all([[2], wrong]), lambda: s.items.update([wrong])):
            with pytest.raises(StateTypeError, match=r"OperatorListState 'items' is declared as array<bigint>"):
                refused()

    h = harness(write)
    h.push(("a", 0))
    assert h.state("items") == [[1]]


def test_raw_bytes_of_the_group() -> None:
    h = harness(lambda s, c: s.raw.update((s.raw.value() or b"") + b"\x00"), lambda s, c: s.raw.update(None))
    h.push(("a", 0), ("b", 0))
    assert h.state("raw") == b"\x00\x00"
    h.push(("a", 1))
    assert h.blob is None


def test_broadcast_state_is_written_where_every_group_writes_it() -> None:
    def put(s: Script, ctx: Any) -> None:
        s.rules.put("r", [ctx.epoch])
        s.rules.put_all({"q": None})

    def read(s: Script, ctx: Any) -> None:
        assert s.rules.get("r") == [0]
        assert s.rules.get("q", "other") is None
        assert s.rules.get("z", "other") == "other"
        assert "q" in s.rules
        assert s.rules.keys() == list(s.rules) == ["r", "q"]
        s.rules.values()[0].append(1)
        assert s.rules.items() == [("r", [0]), ("q", None)]

    h = harness(put, read, lambda s, c: s.rules.remove("r"), lambda s, c: s.rules.clear())
    h.push_broadcast((0,))
    h.push(("a", 1))
    h.push_broadcast((2,))
    assert h.state("rules") == {"q": None}
    h.push_broadcast((3,))
    assert h.blob is None


def test_broadcast_rows_come_before_the_elements_of_their_epoch() -> None:
    seen = []
    h = harness(lambda s, c: seen.append("element"), lambda s, c: seen.append("rule"))
    with h.epoch():
        h.push(("a", 0))
        h.push_broadcast((1,))
    assert seen == ["rule", "element"]


@pytest.mark.parametrize(
    "write",
    [
        lambda s: s.rules.put("a", []),
        lambda s: s.rules.put_all({}),
        lambda s: s.rules.remove("a"),
        lambda s: s.rules.clear(),
    ],
)
def test_broadcast_state_is_read_only_elsewhere(write: Callable[[Any], Any]) -> None:
    def refused(s: Script, ctx: Any) -> None:
        assert s.rules.is_empty()
        with pytest.raises(StateAccessError, match=r"'rules' is read-only here.*process_broadcast_element"):
            write(s)

    h = harness(refused)
    h.push(("a", 0))
    assert h.blob is None


def test_broadcast_row_has_no_key_but_may_enter_one() -> None:
    class Reset(KeyedProcessFunction):
        total = ValueState("bigint", default=0)

        def process_element(self, row: Any, ctx: Any) -> None:
            self.total.update(5)

        def process_broadcast_element(self, row: Any, ctx: Any) -> Any:
            with pytest.raises(StateAccessError, match="no current key"):
                self.total.value()
            with ctx.keyed(row.k):
                self.total.clear()
                yield (ctx.key,)

    h = KeyedHarness(Reset(), key="k", input="k string", output="k string", broadcast="k string")
    h.push(("a",), ("b",))
    h.push_broadcast(("a",))
    assert (h.take_output(), h.keys()) == ([("a",)], ["b"])


class Members(KeyedProcessFunction):
    """Keeps of the restored lists what it says it wants."""

    shared = UnionListState("bigint")
    own = OperatorListState("bigint")

    def initialize_state(self, ctx: Any) -> None:
        self.restored = ctx.is_restored

    def process_element(self, row: Any, ctx: Any) -> Any:
        self.shared.add(row.v)
        self.own.add(row.v)
        return [(f"{self.restored} {self.shared.get()} {self.own.get()}",)]


def texts(output: Any) -> list[str]:
    return [text for batch in output.batches for text in batch.column(0).to_pylist()]


def test_after_a_restore_every_group_gets_the_union_of_all_lists_and_its_own_list() -> None:
    runtime = GroupRuntime(SPEC, Members())
    blobs = []
    for group in range(3):
        output = runtime.run(None, GroupInput(group, 0, 0, elements=[ROW(("k", group))]))
        assert texts(output) == [f"False [{group}] [{group}]"]
        blobs.append(output.blob)
    parts = [union_part(blob or b"") for blob in blobs]
    others = [parts[0], parts[2]]
    assert all(0 < len(part) < len(blob or b"") for part, blob in zip(parts, blobs, strict=True))
    restored = runtime.run(blobs[1], GroupInput(1, 1, 0, elements=[ROW(("k", 9))], union=others))
    assert texts(restored) == ["True [0, 2, 1, 9] [1, 9]"]
    new = runtime.run(None, GroupInput(7, 1, 0, elements=[ROW(("k", 9))], union=parts))
    assert texts(new) == ["True [0, 1, 2, 9] [9]"]  # a group that had no state of its own


def test_restored_lists_are_stored_only_when_the_function_writes_its_list() -> None:
    runtime = GroupRuntime(SPEC, Members())
    first = runtime.run(None, GroupInput(0, 0, 0, elements=[ROW(("k", 5))]))
    part = union_part(first.blob or b"")
    restored = runtime.run(None, GroupInput(1, 1, 0, union=[part]))
    assert restored.blob is None, "else every start would multiply the lists by the number of groups"
    own = runtime.run(None, GroupInput(1, 1, 0, elements=[ROW(("k", 6))]))
    again = runtime.run(own.blob, GroupInput(1, 2, 0, union=[part]))
    assert again.blob is None
    later = runtime.run(own.blob, GroupInput(1, 3, 0, elements=[ROW(("k", 7))]))
    assert texts(later) == ["True [6, 7] [6, 7]"]


def test_first_start_is_no_restore() -> None:
    output = GroupRuntime(SPEC, Members()).run(None, GroupInput(0, 0, 0, elements=[ROW(("k", 5))], union=[]))
    assert texts(output) == ["False [5] [5]"]


def test_group_without_union_lists_has_no_part() -> None:
    assert union_part(b"") == b""
    h = harness(lambda s, c: s.items.add([1]))
    h.push(("a", 0))
    assert union_part(h.blob or b"") == b""


class Buffer(ListCheckpointed, KeyedProcessFunction):
    checkpointed_type = "k string, v bigint"

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def process_element(self, row: Any, ctx: Any) -> Any:
        self.rows = [*self.rows, row]
        if len(self.rows) == 3:
            yield (str(sum(row.v for row in self.rows)),)
            self.rows = []

    def snapshot_state(self) -> list[Any]:  # type: ignore[override]
        return self.rows

    def restore_state(self, state: list[Any]) -> None:
        self.rows = state


def test_list_checkpointed_gets_back_what_it_handed_over() -> None:
    h = KeyedHarness(Buffer(), key="k", input="k string, v bigint", output="text string")
    for number in range(4):
        h.push(("a", number))
    assert h.take_output() == [("3",)]
    assert h.state("list_checkpointed") == [("a", 3)]
    h = h.restored(Buffer())
    h.push(("b", 10), ("c", 20))
    assert h.take_output() == [("33",)]
    assert h.blob is None


def test_list_checkpointed_is_stored_only_when_it_changed() -> None:
    class Same(Buffer):
        def process_element(self, row: Any, ctx: Any) -> Any:
            self.rows = [row] if row.v >= 0 else self.rows

    runtime = GroupRuntime(SPEC, Same())
    first = runtime.run(None, GroupInput(0, 0, 0, elements=[ROW(("k", 1))]))
    assert first.blob
    assert runtime.run(first.blob, GroupInput(0, 1, 0, elements=[ROW(("k", -1))])).blob is None
    assert runtime.run(first.blob, GroupInput(0, 1, 0, elements=[ROW(("k", 2))])).blob


def test_list_checkpointed_must_say_of_what_and_how() -> None:
    class NoType(Buffer):
        checkpointed_type = None  # type: ignore[assignment]

    class NoRestore(ListCheckpointed, KeyedProcessFunction):
        checkpointed_type = "bigint"

        def process_element(self, row: Any, ctx: Any) -> None: ...

        def snapshot_state(self) -> list[Any]:  # type: ignore[override]
            return []

    class NoSnapshot(KeyedProcessFunction, ListCheckpointed):  # type: ignore[misc]
        checkpointed_type = "bigint"

        def process_element(self, row: Any, ctx: Any) -> None: ...

        def restore_state(self, state: list[Any]) -> None: ...

    for function, problem in (
        (NoType(), "checkpointed_type = "),
        (NoRestore(), "must override restore_state"),
        (NoSnapshot(), "must override snapshot_state"),
    ):
        with pytest.raises(ConfigurationError, match=problem):
            GroupRuntime(SPEC, function)


def test_list_checkpointed_list_is_checked() -> None:
    class Wrong(Buffer):
        def snapshot_state(self) -> list[Any]:  # type: ignore[override]
            return [7]

    h = KeyedHarness(Wrong(), key="k", input="k string, v bigint", output="text string")
    with pytest.raises(OperatorError, match=r"in snapshot_state.*'list_checkpointed' is declared as struct<k: string"):
        h.push(("a", 1))
