"""What is stored is read back as it was, to the last bit and of the same Python types; what can't be is refused."""

from __future__ import annotations

import ast
import enum
import math
from collections import OrderedDict, namedtuple
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lockstep.state.codec
from lockstep.errors import ConfigurationError
from lockstep.state.codec import Codec, codec_of
from lockstep.state.ddl import parse_value
from lockstep.state.row import Row, row_type
from unit_tests.state_types import SIMPLE, TYPES, UTC, fingerprint, values


def codec(ddl: str) -> Codec:
    return codec_of(parse_value(ddl))


def stored(ddl: str, value: Any) -> Any:
    """The value after a way through check, encode and decode."""
    it = codec(ddl)
    return it.decode(it.encode([it.check(value)]))[0]


class Colour(str, enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class TimeOfMine(datetime):
    pass


class DateOfMine(date):
    pass


class SparkRow(tuple[Any, ...]):
    """As pyspark's: a tuple that may have names, and an asDict that fails without."""

    def asDict(self) -> dict[str, Any]:  # noqa: N802
        return dict(zip(self.__fields__, self, strict=True))


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.DataType, list[Any]]:
    arrow = draw(TYPES)
    return arrow, draw(st.lists(values(arrow), max_size=5))


@settings(max_examples=400)
@given(columns())
def test_checked_values_are_read_back_exactly(column: tuple[pa.DataType, list[Any]]) -> None:
    arrow, given_values = column
    it = codec_of(arrow)
    checked = [it.check(value) for value in given_values]
    array = it.encode(checked)
    array.validate(full=True)
    assert array.type == arrow
    assert fingerprint(it.decode(array)) == fingerprint(checked)


@pytest.mark.parametrize("arrow", SIMPLE, ids=str)
@given(data=st.data())
def test_every_simple_type_is_read_back_exactly(arrow: pa.DataType, data: st.DataObject) -> None:
    it = codec_of(arrow)
    checked = [it.check(value) for value in data.draw(st.lists(values(arrow), max_size=4))]
    assert fingerprint(it.decode(it.encode(checked))) == fingerprint(checked)


@settings(max_examples=200)
@given(columns())
def test_normal_form_is_its_own_normal_form(column: tuple[pa.DataType, list[Any]]) -> None:
    arrow, given_values = column
    it = codec_of(arrow)
    for value in given_values:
        checked = it.check(value)
        assert fingerprint(it.check(checked)) == fingerprint(checked)


@settings(max_examples=200)
@given(columns(), st.data())
def test_slice_of_an_array_is_decoded_as_that_part(column: tuple[pa.DataType, list[Any]], data: st.DataObject) -> None:
    arrow, given_values = column
    it = codec_of(arrow)
    checked = [it.check(value) for value in given_values]
    start = data.draw(st.integers(0, len(checked)))
    length = data.draw(st.integers(0, len(checked) - start))
    part = it.encode(checked).slice(start, length)
    assert fingerprint(it.decode(part)) == fingerprint(checked[start : start + length])


@settings(max_examples=200)
@given(columns())
def test_conversion_in_bulk_stores_what_one_by_one_would(column: tuple[pa.DataType, list[Any]]) -> None:
    arrow, given_values = column
    it = codec_of(arrow)
    one_by_one = [it.check(value) for value in given_values]
    in_bulk = it.convert(given_values)
    in_bulk.validate(full=True)
    assert in_bulk.type == arrow
    assert fingerprint(it.decode(in_bulk)) == fingerprint(one_by_one)


@settings(max_examples=200)
@given(columns())
def test_copy_is_equal_and_shares_nothing_that_can_change(column: tuple[pa.DataType, list[Any]]) -> None:
    arrow, given_values = column
    it = codec_of(arrow)
    for value in map(it.check, given_values):
        duplicate = it.copy(value)
        assert fingerprint(duplicate) == fingerprint(value)
        assert not _changeable(duplicate) & _changeable(value)
        assert it.mutable or duplicate is value


def _changeable(value: Any) -> set[int]:
    found = {id(value)} if isinstance(value, (list, dict)) else set()
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return found.union(*map(_changeable, parts))


@pytest.mark.parametrize(
    "ddl, mutable", [("a int, b date", False), ("a int, b array<int>", True), ("map<int,int>", True)]
)
def test_codec_knows_whether_values_can_change(ddl: str, mutable: bool) -> None:
    assert codec(ddl).mutable is mutable


@pytest.mark.parametrize(
    "ddl, value, expected",
    [
        ("bigint", np.int16(5), 5),
        ("bigint", np.uint64(5), 5),
        ("tinyint", Level.HIGH, 3),
        ("boolean", np.True_, True),
        ("double", 3, 3.0),
        ("double", np.float64(1.5), 1.5),
        ("double", np.float32(0.1), float(np.float32(0.1))),
        ("double", np.int8(2), 2.0),
        ("float", 0.1, float(np.float32(0.1))),
        ("float", -math.inf, -math.inf),
        ("float", 7, 7.0),
        ("decimal(10,2)", 5, Decimal("5.00")),
        ("decimal(10,2)", np.int64(-5), Decimal("-5.00")),
        ("decimal(10,2)", Decimal("1.5000"), Decimal("1.50")),
        ("decimal(10,2)", Decimal("1E+3"), Decimal("1000.00")),
        ("decimal(10,2)", Decimal("-0"), Decimal("0.00")),
        ("decimal(38,0)", Decimal("9" * 38), Decimal("9" * 38)),
        ("decimal(38,38)", Decimal("-0." + "9" * 38), Decimal("-0." + "9" * 38)),
        ("decimal(38,30)", Decimal("1E-30"), Decimal("0." + "0" * 29 + "1")),
        ("string", Colour.RED, "red"),
        ("string", np.str_("x"), "x"),
        ("binary", bytearray(b"ab"), b"ab"),
        ("binary", memoryview(b"ab"), b"ab"),
        ("binary", np.bytes_(b"ab"), b"ab"),
        ("date", DateOfMine(2024, 2, 29), date(2024, 2, 29)),
        ("date", pd.NaT, None),
        ("timestamp", pd.NaT, None),
        ("timestamp_ntz", pd.NaT, None),
        ("timestamp", pd.Timestamp("2024-07-01 12:00:00.000001", tz="UTC"), datetime(2024, 7, 1, 12, 0, 0, 1, UTC)),
        ("timestamp", TimeOfMine(2024, 7, 1, tzinfo=UTC), datetime(2024, 7, 1, tzinfo=UTC)),
        ("timestamp", datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin")), datetime(2024, 7, 1, 10, tzinfo=UTC)),
        ("timestamp", datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("UTC")), datetime(2024, 7, 1, 12, tzinfo=UTC)),
        (
            "timestamp",
            datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
            datetime(2024, 10, 27, 1, 30, tzinfo=UTC),
        ),
        ("timestamp", datetime(2024, 1, 1, tzinfo=UTC, fold=1), datetime(2024, 1, 1, tzinfo=UTC)),
        ("timestamp_ntz", pd.Timestamp("2024-07-01 12:00"), datetime(2024, 7, 1, 12)),
        ("timestamp_ntz", datetime(2024, 1, 1, fold=1), datetime(2024, 1, 1)),
        ("array<int>", (1, None), [1, None]),
        ("array<int>", np.array([1, 2]), [1, 2]),
        ("array<array<double>>", np.array([[1, 2], [3, 4]]), [[1.0, 2.0], [3.0, 4.0]]),
        ("array<string>", np.array(["a", None], dtype=object), ["a", None]),
        ("map<string,int>", OrderedDict(b=1, a=np.int8(2)), {"b": 1, "a": 2}),
        ("map<struct<a: int>, int>", {(1,): 2}, {row_type(["a"])(1): 2}),
    ],
)
def test_other_forms_of_a_value_are_accepted_and_stored_in_the_normal_one(ddl: str, value: Any, expected: Any) -> None:
    assert fingerprint(codec(ddl).check(value)) == fingerprint(expected)
    assert fingerprint(stored(ddl, value)) == fingerprint(expected)


@pytest.mark.parametrize(
    "ddl, value, error, message",
    [
        ("bigint", True, TypeError, r"expected bigint.*got True \(bool\)"),
        ("bigint", 1.0, TypeError, r"expected bigint.*got 1.0 \(float\)"),
        ("bigint", "1", TypeError, r"expected bigint.*got '1' \(str\)"),
        ("bigint", 2**63, ValueError, "expected bigint: an int from -9223372036854775808 to 9223372036854775807"),
        ("bigint", np.uint64(2**63), ValueError, "expected bigint"),
        ("tinyint", -129, ValueError, "expected tinyint: an int from -128 to 127, got -129"),
        ("boolean", 1, TypeError, "expected boolean"),
        ("boolean", "true", TypeError, "expected boolean"),
        ("double", True, TypeError, "expected double"),
        ("double", "1.0", TypeError, "expected double"),
        ("double", Decimal(1), TypeError, "expected double"),
        ("double", 10**400, ValueError, "expected double"),
        ("float", 1e39, ValueError, "or use double"),
        ("decimal(4,2)", Decimal("1.234"), ValueError, r"expected decimal\(4,2\).*nothing is rounded silently"),
        ("decimal(4,2)", Decimal("100"), ValueError, "at most 2 digits before and 2 after the point"),
        ("decimal(4,2)", 100, ValueError, "at most 2 digits before"),
        ("decimal(4,2)", Decimal("NaN"), ValueError, "expected decimal"),
        ("decimal(4,2)", Decimal("sNaN"), ValueError, "expected decimal"),
        ("decimal(4,2)", Decimal("-Infinity"), ValueError, "expected decimal"),
        ("decimal(4,2)", 1.5, TypeError, "expected decimal"),
        ("decimal(4,2)", True, TypeError, "expected decimal"),
        ("string", b"x", TypeError, "expected string"),
        ("string", 1, TypeError, "expected string"),
        ("string", "\ud800", ValueError, "lone surrogates"),
        ("binary", "x", TypeError, "expected binary: bytes"),
        ("binary", [1], TypeError, "expected binary"),
        ("date", datetime(2024, 1, 1), TypeError, r"expected date.*\.date\(\)"),
        ("date", "2024-01-01", TypeError, "expected date"),
        ("timestamp", datetime(2024, 1, 1), ValueError, r"with a time zone.*replace\(tzinfo=timezone.utc\)"),
        ("timestamp", pd.Timestamp("2024-01-01"), ValueError, "with a time zone"),
        ("timestamp", date(2024, 1, 1), TypeError, "expected timestamp"),
        ("timestamp", 1700000000, TypeError, "expected timestamp"),
        ("timestamp", datetime.min.replace(tzinfo=timezone(timedelta(hours=1))), ValueError, "from year 1 to 9999"),
        ("timestamp", pd.Timestamp(1, unit="ns", tz="UTC"), ValueError, r"floor\('us'\)"),
        ("timestamp_ntz", datetime(2024, 1, 1, tzinfo=UTC), ValueError, r"without a time zone.*declare timestamp"),
        ("timestamp_ntz", pd.Timestamp(1, unit="ns"), ValueError, r"floor\('us'\)"),
        ("array<int>", "abc", TypeError, r"expected array<int>: a list"),
        ("array<int>", {1}, TypeError, "a list"),
        ("array<int>", np.array(1), TypeError, "a list"),
        ("array<int>", [1, 2, "x"], TypeError, r"element 2: expected int"),
        ("map<string,int>", [("a", 1)], TypeError, "a dict"),
        ("map<string,int>", {1: 1}, TypeError, "key 1: expected string"),
        ("map<string,int>", {"a": "x"}, TypeError, "value of key 'a': expected int"),
        ("map<string,int>", {None: 1}, ValueError, "without the key None"),
        ("map<float,int>", {0.1: 1, float(np.float32(0.1)): 2}, ValueError, "keys that still differ as float"),
        ("map<double,int>", {float("nan"): 1, float("nan"): 2}, ValueError, "keys that still differ as double"),
        ("a int, b string", {"a": 1, "c": 2}, ValueError, "There is no field c"),
        ("a int, b string", (1,), ValueError, "2 values"),
        ("a int, b string", (1, "x", 2), ValueError, "2 values"),
        ("a int, b string", [1, "x"], TypeError, "a Row, dict or tuple"),
        ("a int, b string", "ab", TypeError, "a Row, dict or tuple"),
        ("a int, b string NOT NULL", {"a": 1}, ValueError, "field b: expected string NOT NULL, got None"),
        ("a int, b string NOT NULL", (1, None), ValueError, "field b: expected string NOT NULL, got None"),
        (
            "a array<struct<b: tinyint>>",
            ([{"b": 1}, {"b": 300}],),
            ValueError,
            "field a: element 1: field b: expected tinyint",
        ),
    ],
)
def test_wrong_value_is_refused_and_named(ddl: str, value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"(?s){message}") as caught:
        codec(ddl).check(value)
    assert type(caught.value) is error
    with pytest.raises(error, match=f"(?s)^value 1: .*{message}"):
        codec(ddl).convert([None, value])


@given(TYPES)
def test_none_is_always_allowed(arrow: pa.DataType) -> None:
    it = codec_of(arrow)
    assert it.check(None) is None
    assert it.copy(None) is None
    assert it.decode(it.encode([None, None])) == [None, None]
    assert it.decode(it.encode([])) == []


def test_struct_takes_values_by_name_from_whatever_has_names() -> None:
    ddl = "a int, b string"
    expected = row_type(["a", "b"])._make((1, "x"))
    unordered = namedtuple("unordered", ["b", "a"])("x", 1)
    spark = SparkRow(("x", 1))
    spark.__fields__ = ["b", "a"]
    for value in ({"b": "x", "a": 1}, Row(b="x", a=1), Row(a=1, b="x"), unordered, spark, SparkRow((1, "x")), (1, "x")):
        assert fingerprint(codec(ddl).check(value)) == fingerprint(expected)
        assert fingerprint(codec(ddl).decode(codec(ddl).convert([value]))) == fingerprint([expected])
    assert codec(ddl).check({"b": "x"}) == (None, "x")


def test_nan_is_found_again_after_it_was_stored() -> None:
    for ddl in ("double", "float"):
        it = codec(ddl)
        before = it.check(np.float64("nan"))
        after = it.decode(it.encode([before, None, 1.5]))
        assert {after[0]: "found"}[before] == "found"
        assert after == [before, None, 1.5]
    assert stored("map<double,int>", {float("nan"): 1})[math.nan] == 1


def test_negative_zero_keeps_its_sign() -> None:
    for ddl in ("double", "float"):
        assert math.copysign(1, stored(ddl, -0.0)) == -1


def test_none_inside_a_struct_that_is_none_does_not_break_not_null() -> None:
    it = codec(
        "a int NOT NULL, b struct<c: map<string,date> NOT NULL, d: array<int> NOT NULL> NOT NULL, e timestamp NOT NULL"
    )
    array = it.encode([None, it.check({"a": 1, "b": ({}, []), "e": datetime(2024, 1, 1, tzinfo=UTC)})])
    array.validate(full=True)
    assert it.decode(array)[0] is None
    assert it.decode(array)[1].b == ({}, [])


def test_time_that_python_cannot_hold_is_refused_not_mangled() -> None:
    for arrow in (pa.timestamp("us"), pa.timestamp("us", tz="UTC")):
        with pytest.raises(ValueError, match="years 1 and 9999"):
            codec_of(arrow).decode(pa.array([2**61], pa.int64()).view(arrow))
    with pytest.raises(ValueError, match="years 1 and 9999"):
        codec_of(pa.date32()).decode(pa.array([2**30], pa.int32()).view(pa.date32()))


def test_long_values_are_cut_in_messages_and_broken_reprs_hide_nothing() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    with pytest.raises(TypeError, match=r"got a value that has no repr \(Broken\)"):
        codec("int").check(Broken())
    with pytest.raises(TypeError) as caught:
        codec("int").check("x" * 10_000)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "arrow",
    [
        pa.uint8(),
        pa.large_string(),
        pa.timestamp("ns"),
        pa.null(),
        pa.struct([]),
        pa.struct([("a", pa.int8()), ("a", pa.int8())]),
        pa.map_(pa.list_(pa.int8()), pa.int8()),
        pa.list_(pa.time64("us")),
    ],
    ids=str,
)
def test_arrow_type_that_has_no_python_value_is_refused(arrow: pa.DataType) -> None:
    with pytest.raises(ConfigurationError):
        codec_of(arrow)


def test_same_type_gives_the_same_codec() -> None:
    assert codec_of(parse_value("a int")) is codec_of(parse_value("a int"))
    assert codec_of(parse_value("a int")) is not codec_of(parse_value("a int NOT NULL"))


def test_core_imports_neither_spark_nor_pickle() -> None:
    imported = set()
    for file in Path(lockstep.state.codec.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(str(node.module).partition(".")[0])
    assert "pyarrow" in imported
    assert not imported & {"pyspark", "py4j", "pickle", "cloudpickle"}
