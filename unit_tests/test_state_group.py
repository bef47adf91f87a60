"""One run of one key group: the order of hooks, what is stored, what is emitted, and how failures are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from lockstep.errors import (
    ConfigurationError,
    CorruptRecordError,
    OperatorError,
    StateAccessError,
    StateMigrationError,
)
from lockstep.state import KeyedProcessFunction, OpenContext, Row, ValueState
from lockstep.state.ddl import parse_columns
from lockstep.state.group import GroupInput, GroupOutput, GroupRuntime, peek
from lockstep.state.operator_spec import OperatorSpec
from lockstep.state.row import row_type

SPEC = OperatorSpec(
    "totals", parse_columns("k string"), parse_columns("k string, v bigint"), parse_columns("k string, v bigint")
)
ROW = row_type(("k", "v"))._make


class Total(KeyedProcessFunction):
    total = ValueState("bigint", default=0)

    def process_element(self, row: Any, ctx: Any) -> Any:
        self.total.update(self.total.value() + row.v)
        yield ctx.key, self.total.value()


def given(*rows: tuple[Any, ...], epoch: int = 0, now: int = 0, **options: Any) -> GroupInput:
    return GroupInput(5, epoch, now, keys=[row[0] for row in rows], elements=[ROW(row) for row in rows], **options)


def rows(output: GroupOutput) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in output.batches for row in batch.to_pylist()]


def test_running_total_over_epochs() -> None:
    runtime = GroupRuntime(SPEC, Total())
    first = runtime.run(None, given(("a", 1), ("b", 5), ("a", 2)))
    second = runtime.run(first.blob, given(("a", 4)))
    assert rows(first) == [("a", 1), ("b", 5), ("a", 3)]
    assert rows(second) == [("a", 7)]
    assert (first.keys, first.size, first.rows) == (2, len(first.blob or b""), 3)
    assert all(batch.schema == SPEC.output for batch in first.batches)


def test_large_group_is_emitted_in_order_and_whole() -> None:
    runtime = GroupRuntime(SPEC, Total())
    output = runtime.run(None, given(*((f"k{i % 7}", 1) for i in range(10_000))))
    assert rows(output) == [(f"k{i % 7}", i // 7 + 1) for i in range(10_000)]


def test_hooks_run_in_the_promised_order() -> None:
    calls: list[str] = []

    class Noting(KeyedProcessFunction):
        def open(self, ctx: OpenContext) -> None:
            calls.append(f"open {ctx.uid} {ctx.max_parallelism}")

        def close(self) -> None:
            calls.append("close")

        def initialize_state(self, ctx: Any) -> None:
            calls.append(f"initialize {ctx.is_restored}")

        def process_broadcast_element(self, row: Any, ctx: Any) -> Any:
            calls.append("broadcast")
            return [("broadcast", None)]

        def process_element(self, row: Any, ctx: Any) -> Any:
            calls.append(f"element {ctx.key}")
            ctx.register_processing_time_timer(row.v)
            return [("element", None)]

        def on_timer(self, timestamp: int, ctx: Any) -> Any:
            calls.append(f"timer {timestamp}")
            if timestamp == 1:
                ctx.register_processing_time_timer(2)
            return [("timer", timestamp)]

        def prepare_snapshot(self, ctx: Any) -> Any:
            calls.append("prepare")
            return [("prepare", None)]

        def snapshot_state(self, ctx: Any) -> None:
            calls.append("snapshot")

    runtime = GroupRuntime(SPEC, Noting())
    runtime.open()
    first = runtime.run(None, given(("a", 1)))
    rule = row_type(("x",))._make((1,))
    second = runtime.run(first.blob, given(("a", 4), now=5, broadcast=[rule]))
    runtime.close()
    assert calls == [
        "open totals 32",
        *["initialize False", "element a", "prepare", "snapshot"],
        *["initialize True", "broadcast", "timer 1", "timer 2", "element a", "timer 4", "prepare", "snapshot"],
        "close",
    ]
    assert [name for name, _ in rows(second)] == ["broadcast", "timer", "timer", "element", "timer", "prepare"]


def test_context_tells_where_the_function_is() -> None:
    class Telling(KeyedProcessFunction):
        def process_element(self, row: Any, ctx: Any) -> None:
            assert (ctx.uid, ctx.key_group, ctx.max_parallelism) == ("totals", 5, 32)
            assert (ctx.epoch, ctx.processing_time, ctx.watermark) == (9, 77, 66)
            assert (ctx.is_restored, ctx.key) == (False, "a")
            ctx.register_processing_time_timer(100)

        def on_timer(self, timestamp: int, ctx: Any) -> None: ...

    output = GroupRuntime(SPEC, Telling()).run(None, given(("a", 1), epoch=9, now=77, watermark=66))
    assert (output.next_processing, output.next_event) == (100, None)


def test_several_key_columns_make_a_row() -> None:
    spec = OperatorSpec("two", SPEC.input, SPEC.input, parse_columns("k string, v bigint, n bigint"))

    class Two(KeyedProcessFunction):
        seen = ValueState("bigint", default=0)

        def process_element(self, row: Any, ctx: Any) -> Any:
            assert isinstance(ctx.key, Row)
            assert (ctx.key.k, ctx.key.v) == ctx.key == row
            self.seen.update(self.seen.value() + 1)
            return [(*ctx.key, self.seen.value())]

    runtime = GroupRuntime(spec, Two())
    elements = [ROW(("a", 1)), ROW(("a", 2)), ROW(("a", 1)), ROW((None, 1))]
    plain = runtime.run(None, GroupInput(0, 0, 0, keys=[tuple(e) for e in elements], elements=elements))
    again = runtime.run(plain.blob, GroupInput(0, 1, 0, elements=elements))  # the keys are taken from the elements
    assert rows(plain) == [("a", 1, 1), ("a", 2, 1), ("a", 1, 2), (None, 1, 1)]
    assert rows(again) == [("a", 1, 3), ("a", 2, 2), ("a", 1, 4), (None, 1, 2)]


@pytest.mark.parametrize("kind", ["pandas", "arrow"])
def test_elements_may_come_as_a_frame(kind: str) -> None:
    frame: Any = pd.DataFrame({"v": [1, 2, 3], "more": 0, "k": ["a", None, "a"]})
    frame = pa.Table.from_pandas(frame) if kind == "arrow" else frame
    output = GroupRuntime(SPEC, Total()).run(None, GroupInput(0, 0, 0, frame=frame))
    assert rows(output) == [("a", 1), (None, 2), ("a", 4)]


def test_fields_of_one_group_are_not_seen_by_another_nor_by_the_next_epoch() -> None:
    class Leaky(KeyedProcessFunction):
        seen = 0

        def open(self, ctx: OpenContext) -> None:
            self.connection = object()

        def process_element(self, row: Any, ctx: Any) -> Any:
            assert self.connection is connections.setdefault("it", self.connection)
            self.seen += 1
            return [(ctx.key, self.seen)]

    connections: dict[str, Any] = {}
    runtime = GroupRuntime(SPEC, Leaky())
    runtime.open()
    outputs = [runtime.run(None, given(("a", 1), ("b", 1))) for _ in range(3)]
    assert [rows(output) for output in outputs] == [[("a", 1), ("b", 2)]] * 3


# -- what is stored ------------------------------------------------------------------------------------------------------


def test_same_state_and_input_give_the_same_bytes() -> None:
    blob = GroupRuntime(SPEC, Total()).run(None, given(("a", 1), ("b", 2))).blob
    outputs = [GroupRuntime(SPEC, Total()).run(blob, given(("c", 1), ("a", 2))) for _ in range(2)]
    assert outputs[0] == outputs[1]


def test_unchanged_state_is_not_stored_again() -> None:
    class Reading(Total):
        def process_element(self, row: Any, ctx: Any) -> Any:
            return [(ctx.key, self.total.value())]

    blob = GroupRuntime(SPEC, Total()).run(None, given(("a", 1))).blob
    output = GroupRuntime(SPEC, Reading()).run(blob, given(("a", 0), ("b", 0)))
    assert rows(output) == [("a", 1), ("b", 0)]
    assert (output.blob, output.size, output.keys) == (None, len(blob or b""), 1)


def test_group_with_nothing_left_is_to_be_removed() -> None:
    class Clearing(Total):
        def process_element(self, row: Any, ctx: Any) -> None:
            self.total.clear()

    blob = GroupRuntime(SPEC, Total()).run(None, given(("a", 1))).blob
    cleared = GroupRuntime(SPEC, Clearing()).run(blob, given(("a", 0)))
    assert (cleared.blob, cleared.size, cleared.keys) == (b"", 0, 0)
    assert GroupRuntime(SPEC, Clearing()).run(None, given(("a", 0))).blob is None
    assert rows(GroupRuntime(SPEC, Total()).run(b"", given(("a", 1)))) == [("a", 1)]  # empty is as good as none


def test_group_that_wrote_and_cleared_in_its_first_epoch_has_nothing_to_store_or_remove() -> None:
    class Passing(Total):
        def process_element(self, row: Any, ctx: Any) -> None:
            self.total.update(row.v)
            self.total.clear()

    output = GroupRuntime(SPEC, Passing()).run(None, given(("a", 1)))
    assert (output.blob, output.size, output.keys) == (None, 0, 0)


class Alarm(KeyedProcessFunction):
    calls: list[str]

    def __init__(self) -> None:
        self.calls = []

    def initialize_state(self, ctx: Any) -> None:
        self.calls.append("initialize")

    def process_element(self, row: Any, ctx: Any) -> None:
        ctx.register_processing_time_timer(row.v)
        ctx.register_event_time_timer(row.v + 1)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.key, timestamp


def test_tick_without_due_timers_costs_nothing() -> None:
    function = Alarm()
    runtime = GroupRuntime(SPEC, function)
    blob = runtime.run(None, given(("a", 50), ("b", 40), watermark=0)).blob
    assert peek(blob) == (40, 41)
    function.calls.clear()
    idle = runtime.run(blob, given(now=39, watermark=40))
    assert idle == GroupOutput([], None, len(blob or b""), 40, 41, 2)
    assert function.calls == []
    assert rows(runtime.run(blob, given(now=39, watermark=41))) == [("b", 41)]
    assert rows(runtime.run(blob, given(now=40, watermark=40))) == [("b", 40)]
    assert runtime.run(None, given()) == GroupOutput()


def test_event_timers_wait_while_there_is_no_watermark() -> None:
    runtime = GroupRuntime(SPEC, Alarm())
    blob = runtime.run(None, given(("a", 50), watermark=0)).blob
    late = runtime.run(blob, given(now=99))
    assert (rows(late), late.next_event) == ([("a", 50)], 51)


def test_damaged_state_is_told_by_operator_and_group() -> None:
    blob = GroupRuntime(SPEC, Total()).run(None, given(("a", 1))).blob or b""
    with pytest.raises(CorruptRecordError, match="'totals', key group 5"):
        GroupRuntime(SPEC, Total()).run(blob[:-9], given(("a", 1)))


# -- what is emitted -----------------------------------------------------------------------------------------------------


class Emitting(KeyedProcessFunction):
    def __init__(self, emit: Callable[[Any, Any], Any]) -> None:
        self.emit = emit

    def process_element(self, row: Any, ctx: Any) -> Any:
        return self.emit(row, ctx)


class EmittingBatch(KeyedProcessFunction):
    def __init__(self, emit: Callable[[Any], Any]) -> None:
        self.emit = emit

    def process_batch(self, batch: Any, ctx: Any) -> Any:
        return self.emit(batch)


@pytest.mark.parametrize(
    "emitted",
    [
        [("a", 1)],
        (("a", 1),),
        iter([("a", 1)]),
        [{"v": 1, "k": "a"}],
        [Row(k="a", v=1)],
        [Row(v=1, k="a")],
        [Row(x="a", y=1)],
    ],
)
def test_row_is_a_tuple_a_dict_or_a_row(emitted: Any) -> None:
    output = GroupRuntime(SPEC, Emitting(lambda row, ctx: emitted)).run(None, given(("a", 1)))
    assert rows(output) == [("a", 1)]


def test_column_missing_in_a_dict_is_told() -> None:
    runtime = GroupRuntime(SPEC, Emitting(lambda row, ctx: [{"k": "a"}, ("b", 2)]))
    with pytest.raises(
        OperatorError, match=r"for key 'a'.*\{'k': 'a'\} is no row of the output: it has no v; give None"
    ):
        runtime.run(None, given(("a", 1)))


def test_row_of_pyspark_is_taken_by_name() -> None:
    from pyspark.sql import Row as SparkRow

    output = GroupRuntime(SPEC, Emitting(lambda row, ctx: [SparkRow(v=7, k="a")])).run(None, given(("a", 1)))
    assert rows(output) == [("a", 7)]


def test_state_of_another_number_of_key_groups_is_refused_wherever_it_is_read() -> None:
    blob = GroupRuntime(SPEC, Total()).run(None, given(("a", 1))).blob
    other = GroupRuntime(replace(SPEC, max_parallelism=SPEC.max_parallelism * 2), Total())
    with pytest.raises(StateMigrationError, match="max_parallelism is now"):
        other.run(blob, given(("a", 1)))


@pytest.mark.parametrize(
    "frame, problem",
    [
        ({"k": ["a"], "v": pa.array(["12"])}, "string"),
        ({"k": pa.array([1]), "v": pa.array([12])}, "int64"),
    ],
)
def test_column_of_a_frame_is_never_read_out_of_another_kind_of_value(frame: Any, problem: str) -> None:
    class Batch(KeyedProcessFunction):
        def process_batch(self, batch: Any, ctx: Any) -> Any:
            return [pa.table(frame)]

    with pytest.raises(OperatorError, match=problem):
        GroupRuntime(SPEC, Batch()).run(None, given(("a", 1)))


@pytest.mark.parametrize(
    "emitted, problem",
    [
        (("a", 1), "a row is a tuple, a dict or a Row, not str.*yield each row, or return"),
        (Row(k="a", v=1), "a row is a tuple, a dict or a Row, not str"),
        ("text", "not str"),
        ({"k": "a"}, "not str"),
        (5, "TypeError: 'int' object is not iterable.*yield each row, or return"),
        ([5], "not int"),
        ([("a",)], r"has 1 values, but the output has 2 columns: k: string, v: bigint"),
        ([("a", 1, 2)], "has 3 values"),
        ([("a", "x")], "the column v of row .'a', 'x'. does not fit: expected bigint"),
        ([(1, 1)], "the column k of row"),
        ([("a", 2**63)], "the column v of row"),
        ([{"k": "a", "w": 1}], "has no column w"),
    ],
)
def test_row_that_does_not_fit_is_told_with_its_key(emitted: Any, problem: str) -> None:
    function = Emitting(lambda row, ctx: emitted if row.k == "bad" else [(row.k, 1)])
    with pytest.raises(OperatorError, match=problem) as failure:
        GroupRuntime(SPEC, function).run(None, given(("a", 1), ("b", 1), ("bad", 1), ("c", 1)))
    assert "Operator 'totals' failed in epoch 0, key group 5, in process_element for key 'bad'" in str(failure.value)


def test_null_in_a_not_null_column_is_told() -> None:
    spec = OperatorSpec("strict", SPEC.key, SPEC.input, parse_columns("k string NOT NULL, v bigint"))
    with pytest.raises(OperatorError, match=r"the column k of row.*NOT NULL") as failure:
        GroupRuntime(spec, Emitting(lambda row, ctx: [(row.k, 1)])).run(None, given(("a", 1), (None, 1)))
    assert "for key None" in str(failure.value)


def test_row_of_a_timer_that_does_not_fit_is_told_with_its_key() -> None:
    class Wrong(Alarm):
        def on_timer(self, timestamp: int, ctx: Any) -> Any:
            return [(ctx.key, "x" if ctx.key == "b" else 1)]

    with pytest.raises(OperatorError, match="in on_timer for key 'b'"):
        GroupRuntime(SPEC, Wrong()).run(None, given(("a", 1), ("b", 1), ("c", 1), now=2, watermark=0))


def frames(batch: pd.DataFrame) -> Any:
    yield "first", 0
    yield batch
    yield pa.Table.from_pandas(batch[["v", "k"]])
    yield from [("between", 1), ("these", 2)]
    yield pa.RecordBatch.from_pandas(batch)
    yield batch[batch.v > 100]


def test_batch_emits_rows_frames_and_tables_in_order() -> None:
    output = GroupRuntime(SPEC, EmittingBatch(frames)).run(None, given(("a", 1), ("b", 2)))
    both = [("a", 1), ("b", 2)]
    assert rows(output) == [("first", 0), *both, *both, ("between", 1), ("these", 2), *both]


@pytest.mark.parametrize("convert", [lambda frame: frame, pa.Table.from_pandas])
def test_batch_may_return_one_frame(convert: Callable[[Any], Any]) -> None:
    assert rows(GroupRuntime(SPEC, EmittingBatch(convert)).run(None, given(("a", 1)))) == [("a", 1)]


@pytest.mark.parametrize(
    "change, problem",
    [
        (
            lambda frame: frame.rename(columns={"v": "w"}),
            r"columns k, w does not fit the output \(k: string, v: bigint\)",
        ),
        (lambda frame: frame.assign(x=1), "columns k, v, x does not fit"),
        (lambda frame: frame.assign(v="text"), "the column v of a frame can't become bigint"),
        (lambda frame: frame.assign(v=1.5), "the column v of a frame can't become bigint"),
    ],
)
def test_frame_that_does_not_fit_is_told(change: Callable[[Any], Any], problem: str) -> None:
    with pytest.raises(OperatorError, match=problem) as failure:
        GroupRuntime(SPEC, EmittingBatch(lambda batch: [change(batch)])).run(None, given(("a", 1)))
    assert "in process_batch:" in str(failure.value)


def test_batch_is_not_called_without_elements() -> None:
    class Batch(Alarm):
        def process_batch(self, batch: Any, ctx: Any) -> Any:
            assert len(batch)
            with ctx.keyed("a"):
                ctx.register_processing_time_timer(5)

    runtime = GroupRuntime(SPEC, Batch())
    blob = runtime.run(None, given(("a", 1))).blob
    assert rows(runtime.run(blob, given(now=5))) == [("a", 5)]


# -- failures ------------------------------------------------------------------------------------------------------------


def test_failure_names_operator_epoch_key_hook_and_line_and_keeps_the_cause() -> None:
    class Failing(Total):
        def process_element(self, row: Any, ctx: Any) -> Any:
            yield ctx.key, 10 // row.v

    with pytest.raises(OperatorError) as failure:
        GroupRuntime(SPEC, Failing()).run(None, given(("a", 1), ("b", 0), ("c", 1), epoch=12))
    message = str(failure.value)
    assert message.startswith("Operator 'totals' failed in epoch 12, key group 5, in process_element for key 'b', at ")
    assert "ZeroDivisionError: integer division or modulo by zero" in message
    assert f"{__file__}:" in message
    assert "start the query again" in message
    assert isinstance(failure.value.__cause__, ZeroDivisionError)


def test_line_in_a_message_is_the_users_own_even_if_a_library_failed() -> None:
    def emit(row: Any, ctx: Any) -> Any:
        return pd.DataFrame({"a": [1]})["b"]

    with pytest.raises(OperatorError, match=rf"at {__file__}:{emit.__code__.co_firstlineno + 1}: KeyError: 'b'"):
        GroupRuntime(SPEC, Emitting(emit)).run(None, given(("a", 1)))


def test_long_key_is_cut_in_a_message() -> None:
    with pytest.raises(OperatorError) as failure:
        GroupRuntime(SPEC, Emitting(lambda row, ctx: 1 / 0)).run(None, given(("x" * 1_000, 1)))
    assert "xxx..., at" in str(failure.value)
    assert len(str(failure.value)) < 700


@pytest.mark.parametrize("hook", ["initialize_state", "prepare_snapshot", "snapshot_state"])
def test_failure_in_a_hook_without_a_key_names_none(hook: str) -> None:
    class Failing(Total): ...

    def fail(self: Any, ctx: Any) -> None:
        raise ValueError("no")

    setattr(Failing, hook, fail)
    with pytest.raises(OperatorError, match=f"key group 5, in {hook}, at .*ValueError: no"):
        GroupRuntime(SPEC, Failing()).run(None, given(("a", 1)))


@pytest.mark.parametrize("hook", ["open", "close"])
def test_failure_to_open_or_close_names_the_operator(hook: str) -> None:
    class Failing(Total): ...

    def fail(self: Any, *_: Any) -> None:
        raise OSError("no route")

    setattr(Failing, hook, fail)
    with pytest.raises(OperatorError, match=f"Operator 'totals' failed in {hook}, at .*OSError: no route"):
        getattr(GroupRuntime(SPEC, Failing()), hook)()


def test_stored_timer_of_a_function_that_no_longer_takes_any_is_told() -> None:
    blob = GroupRuntime(SPEC, Alarm()).run(None, given(("a", 5), watermark=0)).blob
    with pytest.raises(OperatorError, match=r"in on_timer for key 'a'.*a stored timer is due"):
        GroupRuntime(SPEC, Total()).run(blob, given(now=5))


def test_interrupt_is_not_taken_for_a_failure() -> None:
    def interrupt(row: Any, ctx: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        GroupRuntime(SPEC, Emitting(interrupt)).run(None, given(("a", 1)))


def test_keys_that_do_not_match_the_elements_are_refused() -> None:
    with pytest.raises(OperatorError, match="1 keys were given for 2 elements"):
        GroupRuntime(SPEC, Total()).run(None, GroupInput(0, 0, 0, keys=["a"], elements=[ROW(("a", 1)), ROW(("b", 1))]))


def test_function_without_a_way_to_take_elements_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="overrides neither process_element nor process_batch"):
        GroupRuntime(SPEC, KeyedProcessFunction())


def test_function_without_broadcast_hook_is_refused_where_there_is_a_broadcast_stream() -> None:
    spec = OperatorSpec("b", SPEC.key, SPEC.input, SPEC.output, broadcast=parse_columns("x bigint"))
    with pytest.raises(ConfigurationError, match="does not override process_broadcast_element"):
        GroupRuntime(spec, Total())


@pytest.mark.parametrize("wrong, hint", [(Total, "put"), (len, "is no KeyedProcessFunction")])
def test_what_is_no_function_is_refused(wrong: Any, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=hint):
        GroupRuntime(SPEC, wrong)


def test_hook_set_on_the_instance_counts() -> None:
    function = KeyedProcessFunction()
    function.process_element = lambda row, ctx: [(ctx.key, 1)]  # type: ignore[method-assign]
    assert rows(GroupRuntime(SPEC, function).run(None, given(("a", 1)))) == [("a", 1)]


def test_state_kept_beyond_its_run_changes_nothing() -> None:
    kept: list[Any] = []

    class Keeping(Total):
        def process_element(self, row: Any, ctx: Any) -> Any:
            kept.append(self.total)
            return super().process_element(row, ctx)

    runtime = GroupRuntime(SPEC, Keeping())
    blob = runtime.run(None, given(("a", 1))).blob
    with pytest.raises(StateAccessError, match="no current key"):
        kept[0].update(99)
    assert rows(runtime.run(blob, given(("a", 1)))) == [("a", 2)]
