"""Key groups whose bytes somebody has sealed anew: an error that says where, in bounded memory, and no code is run."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lockstep.errors import CorruptRecordError, LockstepError
from lockstep.operators.union import parts_for
from lockstep.state import KeyedProcessFunction, ListState, MapState, Ttl, ValueState
from lockstep.state.blob import pack, unpack
from lockstep.state.ddl import parse_columns
from lockstep.state.group import GroupInput, GroupRuntime
from lockstep.state.inspection import states_in
from lockstep.state.operator_spec import OperatorSpec
from lockstep.state.row import row_type
from lockstep.state.snapshot import glance, union_part
from unit_tests.damage import flipped

ROW = row_type(("k", "v"))._make
SPEC = OperatorSpec(
    "totals", parse_columns("k string"), parse_columns("k string, v bigint"), parse_columns("k string, v bigint")
)


class Everything(KeyedProcessFunction):
    total = ValueState("bigint", default=0)
    seen = ListState("string", ttl=Ttl(timedelta(hours=1)))
    counts = MapState("string", "struct<n: bigint, tags: array<string>>")

    def process_element(self, row: Any, ctx: Any) -> Any:
        self.total.update(self.total.value() + row.v)
        self.seen.add(row.k)
        self.counts.put(row.k, (row.v, ["a", None]))
        ctx.register_processing_time_timer(ctx.processing_time + 1)
        yield ctx.key, self.total.value()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.key, -1


RUNTIME = GroupRuntime(SPEC, Everything())


def given(*rows: tuple[Any, ...], now: int = 5) -> GroupInput:
    return GroupInput(5, 0, now, keys=[row[0] for row in rows], elements=[ROW(row) for row in rows])


BLOB = RUNTIME.run(None, given(("a", 1), ("bb", 2))).blob or b""
STREAM = BLOB[:-8]


def sealed(stream: bytes) -> bytes:
    return stream + b"LKST" + zlib.crc32(stream).to_bytes(4, "little")


def uses(blob: bytes) -> Iterator[Callable[[], object]]:
    """Everything that is ever done with stored bytes."""
    yield lambda: RUNTIME.run(blob, given(("a", 1), now=10_000))
    yield lambda: RUNTIME.run(blob, given())
    yield lambda: glance(blob, "there")
    yield lambda: union_part(blob, "there")
    yield lambda: [state.value.to_pylist() for state in states_in(blob, "there")]


def refusals(blob: bytes) -> int:
    """How many uses are refused; any error that is none of ours, and any crash, fails the test."""
    refused = 0
    for use in uses(blob):
        try:
            use()
        except LockstepError:
            refused += 1
    return refused


def test_flipped_bit_is_seen_by_everybody_who_looks_at_the_group() -> None:
    for damaged in flipped(BLOB, most=1_500):
        assert refusals(damaged) == 5


def test_flipped_bit_under_a_fresh_checksum_is_an_error_or_another_value_and_never_a_crash() -> None:
    """Offsets that point out of the bytes, lengths that are negative, names that are no UTF-8."""
    outcomes = [refusals(sealed(damaged)) for damaged in flipped(STREAM, most=2_500)]
    assert sum(map(bool, outcomes)) > 50


@pytest.mark.parametrize("size", [2**60, 2**40, 2**31 - 1, -1])
def test_huge_size_in_any_place_is_refused_and_nothing_of_that_size_is_allocated(size: int) -> None:
    before = pa.total_allocated_bytes()
    outcomes = []
    for place in range(0, len(STREAM) - 8, 8):
        stream = STREAM[:place] + size.to_bytes(8, "little", signed=True) + STREAM[place + 8 :]
        outcomes.append(refusals(sealed(stream)))
    assert sum(map(bool, outcomes)) > len(outcomes) // 4
    assert pa.total_allocated_bytes() - before < 2**20


def foreign(column: pa.Array, name: str = "value:total") -> bytes:
    """A group whose only table is this list column."""
    schema = pa.schema([pa.field(name, column.type)], {"lockstep.format": "1"})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([column], schema=schema))
    return sealed(sink.getvalue().to_pybytes())


ROWS = pa.array([[{"key": "a", "value": 1}]])


@pytest.mark.parametrize(
    "blob",
    [
        foreign(ROWS.slice(0, 0)),
        foreign(pa.concat_arrays([ROWS, ROWS])),
        foreign(pa.array([None], ROWS.type)),
        foreign(pa.array([[1, 2]])),
        foreign(pa.array(["text"])),
        foreign(pa.array([[{"value": 1}]])),
        foreign(pa.array([[{"key": "a"}]])),
        foreign(
            pa.array([[{"key": None, "time": None}]], pa.list_(pa.struct({"key": pa.string(), "time": pa.int64()}))),
            "timers:x",
        ),
        foreign(ROWS, "timers:processing_time"),
        pack({"keys": "many"}, {"value:total": ROWS.values}),
        pack({"next_processing": "soon"}, {"value:total": ROWS.values}),
    ],
    ids=range(11),
)
def test_group_that_is_whole_and_makes_no_sense_is_refused_by_some_reader(blob: bytes) -> None:
    assert refusals(blob) > 0


def test_two_tables_of_one_name_are_refused() -> None:
    batch = pa.RecordBatch.from_arrays([ROWS, ROWS], names=["value:total"] * 2, metadata={"lockstep.format": "1"})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(CorruptRecordError, match=r"there: .*a name of its own"):
        unpack(sealed(sink.getvalue().to_pybytes()), "there")


class Exploit:
    """What a pickle may do when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_type_that_brings_its_own_code_is_not_run(tmp_path: Path) -> None:
    """Arrow's Python extension types used to be unpickled by whoever opened a stream."""
    proof = tmp_path / "run"
    extension = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(Exploit(proof)),
    }
    schema = pa.schema([pa.field("value:total", ROWS.type, metadata=extension)], {"lockstep.format": "1"})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([ROWS], schema=schema))
    refusals(sealed(sink.getvalue().to_pybytes()))
    assert not proof.exists()
    pickle.loads(pickle.dumps(Exploit(proof)))
    assert proof.exists(), "the exploit works where it is loaded"


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[1]", b'{"x": ""}', b'{"1": 7}', b'{"1": "\xff"}', b'{"1": "&"}', b"[" * 99_999]
)
def test_union_lists_that_are_garbled_in_sparks_log_are_refused(payload: bytes) -> None:
    with pytest.raises(CorruptRecordError, match="union lists in Spark's offset log"):
        parts_for(0, payload)
