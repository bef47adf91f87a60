"""State is read as the types declared now only if no stored value is lost and none is invented."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.errors import CheckpointDirectoryError, StateMigrationError
from lockstep.state.codec import codec_of
from lockstep.state.ddl import parse_value
from lockstep.state.evolution import reconcile
from unit_tests.state_types import INTEGERS, SCALARS, TYPES, fingerprint, values

WHERE = "Operator 'totals', state 'total'"


@st.composite
def evolved(draw: st.DrawFn, arrow: pa.DataType) -> pa.DataType:
    """A type that values of ``arrow`` can be read as."""
    types = pa.types
    if types.is_integer(arrow):
        return draw(st.sampled_from([wider for wider in INTEGERS if wider.bit_width >= arrow.bit_width]))
    if types.is_float32(arrow):
        return draw(st.sampled_from([arrow, pa.float64()]))
    if types.is_decimal128(arrow):
        more = draw(st.integers(0, 38 - arrow.precision))
        return pa.decimal128(arrow.precision + more, arrow.scale + draw(st.integers(0, more)))
    if types.is_list(arrow):
        return pa.list_(draw(evolved(arrow.value_type)))
    if types.is_map(arrow):
        return pa.map_(draw(evolved(arrow.key_type)), draw(evolved(arrow.item_type)))
    if types.is_struct(arrow):
        fields = [arrow.field(i) for i in range(arrow.num_fields)]
        new = [pa.field(f.name, draw(evolved(f.type)), nullable=f.nullable or draw(st.booleans())) for f in fields]
        added = draw(st.lists(st.sampled_from(["new1", "new2"]), unique=True))
        return pa.struct(draw(st.permutations([*new, *(pa.field(name, draw(SCALARS)) for name in added)])))
    return arrow


@settings(max_examples=400)
@given(st.data())
def test_every_stored_value_is_kept_under_any_allowed_change(data: st.DataObject) -> None:
    stored = data.draw(TYPES)
    declared = data.draw(evolved(stored))
    old, new = codec_of(stored), codec_of(declared)
    checked = [old.check(value) for value in data.draw(st.lists(values(stored), max_size=4))]
    start = data.draw(st.integers(0, len(checked)))
    array = old.encode(checked).slice(start)

    convert = reconcile(stored, declared, WHERE)

    assert (convert is None) == (stored == declared)
    converted = array if convert is None else convert(array)
    converted.validate(full=True)
    assert converted.type == declared
    assert fingerprint(new.decode(converted)) == fingerprint([new.check(value) for value in checked[start:]])


@settings(max_examples=300)
@given(TYPES, TYPES)
def test_two_types_are_reconciled_or_refused_with_our_error(stored: pa.DataType, declared: pa.DataType) -> None:
    try:
        convert = reconcile(stored, declared, WHERE)
    except StateMigrationError as error:
        assert str(error).startswith(WHERE)  # noqa: PT017 - one of two outcomes
        assert stored != declared
    else:
        array = pa.nulls(3, stored)
        assert (array if convert is None else convert(array)).type == declared


@given(TYPES)
def test_same_type_needs_no_conversion(arrow: pa.DataType) -> None:
    assert reconcile(arrow, arrow, WHERE) is None


@pytest.mark.parametrize(
    "stored, declared, value, expected",
    [
        ("int", "bigint", 5, 5),
        ("float", "double", 0.5, 0.5),
        ("decimal(4,2)", "decimal(6,3)", "1.25", "1.250"),
        ("a int", "b string, a int", (1,), (None, 1)),
        ("a int NOT NULL", "a int", (1,), (1,)),
        ("a int, b string", "b string, a bigint", (1, "x"), ("x", 1)),
        ("array<struct<a: int>>", "array<struct<z: array<int>, a: bigint>>", [(1,), None], [(None, 1), None]),
        ("map<int,float>", "map<bigint,double>", {1: 0.5}, {1: 0.5}),
        ("s struct<a: int>", "s struct<a: int, m: map<string,int>>", ((1,),), ((1, None),)),
    ],
)
def test_allowed_change_keeps_the_value(stored: str, declared: str, value: Any, expected: Any) -> None:
    old, new = codec_of(parse_value(stored)), codec_of(parse_value(declared))
    if isinstance(value, str):
        value, expected = Decimal(value), Decimal(expected)
    convert = reconcile(old.type, new.type, WHERE)
    assert convert is not None
    assert new.decode(convert(old.encode([old.check(value), None]))) == [expected, None]


@pytest.mark.parametrize(
    "stored, declared, message",
    [
        ("bigint", "int", "the value is stored as bigint and declared as int. The declared type is narrower"),
        ("bigint", "string", "the value is stored as bigint and declared as string. Only a wider"),
        ("int", "double", "the value is stored as int and declared as double. Only a wider"),
        ("int", "decimal(10,0)", "the value is stored as int and declared as decimal(10,0). Only a wider"),
        ("double", "float", "narrower"),
        ("timestamp", "timestamp_ntz", "the value is stored as timestamp and declared as timestamp_ntz"),
        ("date", "timestamp", "the value is stored as date and declared as timestamp"),
        ("decimal(4,2)", "decimal(5,4)", "Digits before or after the point could be lost"),
        ("decimal(4,2)", "decimal(4,1)", "Digits before or after the point could be lost"),
        ("string", "a string", "the value is stored as string and declared as struct<a: string>"),
        ("array<int>", "map<int,int>", "the value is stored as array<int> and declared as map<int, int>"),
        ("a int, b int", "a int", "field b is stored as int and not declared. Its values would be lost"),
        ("a int", "A int", "field a is stored as int and not declared"),
        ("a int", "a int, b int NOT NULL", "field b is not stored and declared as int NOT NULL"),
        (
            "a int",
            "a int NOT NULL",
            "field a is stored as int and declared as int NOT NULL. What is stored may be None",
        ),
        (
            "i array<struct<a: int>>",
            "i array<struct<a: date>>",
            "field i.element.a is stored as int and declared as date",
        ),
        ("map<string,int>", "map<int,int>", "field key is stored as string and declared as int"),
        ("m map<int,struct<x:int>>", "m map<int,struct<y:int>>", "field m.value.x is stored as int and not declared"),
    ],
)
def test_change_that_could_lose_something_is_refused_by_name(stored: str, declared: str, message: str) -> None:
    with pytest.raises(StateMigrationError) as caught:
        reconcile(parse_value(stored), parse_value(declared), WHERE)
    text = str(caught.value)
    assert text.startswith(f"{WHERE}: ")
    assert message in text
    assert "declare a new one under another name" in text
    assert isinstance(caught.value, CheckpointDirectoryError)


def test_list_that_is_null_but_not_empty_underneath_hides_nothing_of_its_neighbours() -> None:
    offsets = pa.array([0, 1, 3, 4], pa.int32())
    array = pa.ListArray.from_arrays(offsets, pa.array([1, 2, 3, 4], pa.int32()), mask=pa.array([False, True, False]))
    convert = reconcile(array.type, pa.list_(pa.int64()), WHERE)
    assert convert is not None
    assert convert(array).to_pylist() == array.to_pylist() == [[1], None, [4]]
