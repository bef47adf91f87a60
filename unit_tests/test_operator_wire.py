"""What travels between the JVM and a worker arrives as it was sent; Spark's half is tested on Spark."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta, timezone
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.operators.column_types import arrow_type, spark_type
from lockstep.operators.nested_text import text_of, value_of
from lockstep.operators.wire import InputWire, OutputWire
from lockstep.state.codec import codec_of
from unit_tests.state_types import TYPES, fingerprint, values


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_value_survives_as_text_whatever_its_type(data: st.DataObject) -> None:
    kind = data.draw(TYPES)
    codec = codec_of(kind)
    value = codec.check(data.draw(values(kind)))
    (listed,) = codec.encode([value]).to_pylist()
    arrived = value_of(json.loads(json.dumps(text_of(listed, kind))), kind)
    assert fingerprint(codec.check(arrived)) == fingerprint(value)


@given(TYPES)
@settings(max_examples=100, deadline=None)
def test_types_of_spark_and_arrow_stand_for_each_other(kind: pa.DataType) -> None:
    assert spark_type(arrow_type(spark_type(kind), "here")) == spark_type(kind)


def test_numbers_stay_numbers_beside_nulls() -> None:
    wire = InputWire(pa.schema({"n": pa.int64(), "x": pa.float64(), "s": pa.string()}), "c")
    travelled = pd.DataFrame({"c0": [2**53 + 1, 0], "c1": [float("nan"), 0.0], "c2": ["a", None], "cnulls0": [0, 0b11]})
    first, second = wire.rows(travelled)
    assert first[0] == 2**53 + 1
    assert first[1] != first[1], "a NaN is no null"
    assert second == (None, None, None)
    frame = wire.frame(travelled)
    assert frame["n"].tolist() == [2**53 + 1, pd.NA]


def test_more_columns_than_one_mask_has_bits() -> None:
    names = [f"n{i}" for i in range(130)]
    wire = InputWire(pa.schema({name: pa.int64() for name in names}), "c")
    assert len(wire.masks) == 3
    travelled = pd.DataFrame({name: [7] for name in wire.columns} | {mask: [0] for mask in wire.masks})
    travelled["cnulls2"] = [1 << (129 - 124)]
    (row,) = wire.rows(travelled)
    assert [index for index, value in enumerate(row) if value is None] == [129]


@pytest.mark.parametrize(
    "kind, number",
    [(pa.timestamp("us", tz="UTC"), 253402300800000000), (pa.date32(), 2932897), (pa.date32(), -719163)],
)
def test_time_that_python_does_not_have_is_refused_with_the_remedy(kind: pa.DataType, number: int) -> None:
    wire = InputWire(pa.schema({"at": kind}), "c")
    with pytest.raises(ValueError, match=r"outside of the years 1 to 9999.*cast the column"):
        wire.lists(pd.DataFrame({"c0": [number], "cnulls0": [0]}))


def test_first_and_last_times_of_python_travel() -> None:
    wire = InputWire(pa.schema({"at": pa.timestamp("us", tz="UTC"), "day": pa.date32()}), "c")
    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
    times = [datetime.min.replace(tzinfo=timezone.utc), datetime.max.replace(tzinfo=timezone.utc)]
    micros = [(time - epoch) // timedelta(microseconds=1) for time in times]
    days = [day.toordinal() - epoch.toordinal() for day in (date.min, date.max)]
    assert wire.lists(pd.DataFrame({"c0": micros, "c1": days, "cnulls0": [0, 0]})) == [times, [date.min, date.max]]


def test_output_travels_as_one_row_and_marks_its_nans() -> None:
    columns: list[Any] = [pa.array([1, None]), pa.array([float("nan"), None])]
    wire = OutputWire(pa.schema({"n": pa.int64(), "x": pa.float64()}))
    frame = wire.frame(columns)
    assert len(frame) == 1
    assert frame["o0"][0] == [1, None]
    assert frame["o2"][0] == [1, 0]
    assert [field.dataType.simpleString() for field in wire.spark_schema] == [
        "array<bigint>",
        "array<double>",
        "array<bigint>",
    ]
