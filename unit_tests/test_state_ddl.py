"""A type is read as Spark reads it, or refused with the place and the reason."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import ConfigurationError
from lockstep.state.ddl import MAX_DEPTH, parse_columns, parse_type, parse_value, to_ddl
from unit_tests.state_types import TYPES

INSTANT = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    "ddl, arrow",
    [
        ("boolean", pa.bool_()),
        ("tinyint", pa.int8()),
        ("byte", pa.int8()),
        ("smallint", pa.int16()),
        ("short", pa.int16()),
        ("int", pa.int32()),
        ("integer", pa.int32()),
        ("bigint", pa.int64()),
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("real", pa.float32()),
        ("double", pa.float64()),
        ("decimal", pa.decimal128(10, 0)),
        ("dec(7)", pa.decimal128(7, 0)),
        ("numeric(38, 38)", pa.decimal128(38, 38)),
        ("string", pa.string()),
        ("char(3)", pa.string()),
        ("VarChar( 20 )", pa.string()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp", INSTANT),
        ("timestamp_ltz", INSTANT),
        ("TIMESTAMP_NTZ", pa.timestamp("us")),
        ("array<array<int>>", pa.list_(pa.list_(pa.int32()))),
        ("MAP<string,bigint>", pa.map_(pa.string(), pa.int64())),
        (
            " struct < a : int , `b c` string NOT NULL COMMENT 'it\\'s, >' , d : map<int,array<date>> > ",
            pa.struct(
                [
                    ("a", pa.int32()),
                    pa.field("b c", pa.string(), nullable=False),
                    ("d", pa.map_(pa.int32(), pa.list_(pa.date32()))),
                ]
            ),
        ),
    ],
)
def test_type_is_read_as_spark_reads_it(ddl: str, arrow: pa.DataType) -> None:
    assert parse_type(ddl) == arrow
    assert parse_value(ddl) == arrow


@given(TYPES)
def test_ddl_of_any_type_is_read_back_as_that_type(arrow: pa.DataType) -> None:
    assert parse_type(to_ddl(arrow)) == arrow
    assert parse_value(to_ddl(arrow)) == arrow
    assert parse_columns(f"a: {to_ddl(arrow)} NOT NULL, b {to_ddl(arrow)}") == pa.schema(
        [pa.field("a", arrow, nullable=False), pa.field("b", arrow)]
    )


def test_columns_keep_names_order_and_not_null() -> None:
    schema = parse_columns("account string NOT NULL COMMENT \"the 'key'\", Amount: decimal(12,2), `not` date, 2x int")
    assert schema.names == ["account", "Amount", "not", "2x"]
    assert [field.nullable for field in schema] == [False, True, True, True]
    assert schema.field("Amount").type == pa.decimal128(12, 2)


@pytest.mark.parametrize("ddl", ["a bigint, b string", "a: bigint, b: string", "`a` bigint,b string"])
def test_column_list_as_value_is_a_struct(ddl: str) -> None:
    assert parse_value(ddl) == pa.struct([("a", pa.int64()), ("b", pa.string())])


def test_column_may_be_named_like_a_type() -> None:
    assert parse_value("date date") == pa.struct([("date", pa.date32())])
    assert parse_value("array array<int>, map: int").field(1).name == "map"


def test_back_quote_in_a_name_is_written_twice() -> None:
    schema = parse_columns("`a``b` int")
    assert schema.names == ["a`b"]
    assert to_ddl(pa.struct(list(schema))) == "struct<`a``b`: int>"


@pytest.mark.parametrize("ddl", ["a int, a int", "a int, A string", "`x y` int, b int, `X Y` int"])
def test_same_name_twice_is_refused_whatever_its_case(ddl: str) -> None:
    with pytest.raises(ConfigurationError, match="twice"):
        parse_columns(ddl)
    with pytest.raises(ConfigurationError, match="twice"):
        parse_type(f"struct<{ddl}>")


@pytest.mark.parametrize(
    "ddl, position, reason",
    [
        ("", 1, "the text ends where a type is expected"),
        ("bigintt", 1, "'bigintt' is not a type. Allowed: boolean, tinyint"),
        ("interval", 1, "'interval' is no type that state can hold. Allowed"),
        ("a bigint, v variant", 13, "'variant' is no type that state can hold"),
        ("decimal(39,2)", 1, "1 <= p <= 38"),
        ("decimal(2,3)", 1, "0 <= s <= p"),
        ("decimal(0)", 1, "1 <= p <= 38"),
        ("decimal(a)", 9, "whole number"),
        ("decimal(10,-1)", 12, "'-' can't be read"),
        ("char", 5, 'the text ends where "(" is expected'),
        ("varchar(0)", 1, "length of at least 1"),
        ("array<int", 10, 'the text ends where ">" is expected'),
        ("map<string>", 11, '">" where "," is expected'),
        ("map<array<int>, int>", 5, "a map's key can't be or contain"),
        ("map<struct<a: map<int,int>>, int>", 5, "a map's key can't be or contain"),
        ("struct<>", 8, "at least one field"),
        ("struct<a int,>", 14, "where a name is expected"),
        ("a int, 7 int", 8, "where a name is expected"),
        ("a int not nul", 11, "where NULL is expected"),
        ("a int comment x", 15, "a quoted comment is expected"),
        ("a int default 1", 7, "allowed are"),
        ("bigint>", 7, "the type ends here"),
        ("a-b int", 2, "back-quotes"),
        ("`a int", 1, "back-quotes"),
    ],
)
def test_mistake_is_refused_with_its_position_and_what_is_allowed(ddl: str, position: int, reason: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_value(ddl)
    message = str(caught.value)
    assert repr(ddl) in message
    assert f"at character {position}:" in message
    assert reason in message


@given(st.text() | st.text("a`<>(),: 1'arystuc", max_size=20))
def test_any_text_is_read_or_refused_with_our_error(ddl: str) -> None:
    try:
        arrow = parse_value(ddl)
    except ConfigurationError as error:
        assert "can't be read at character" in str(error)  # noqa: PT017 - one of two outcomes
    else:
        assert parse_type(to_ddl(arrow)) == arrow


def test_nesting_is_bounded() -> None:
    assert to_ddl(parse_type("array<" * MAX_DEPTH + "int" + ">" * MAX_DEPTH)).count("array") == MAX_DEPTH
    with pytest.raises(ConfigurationError, match="nested deeper"):
        parse_type("array<" * 100_000 + "int" + ">" * 100_000)


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="given as DDL text"):
        parse_type(pa.int64())


def test_arrow_type_without_ddl_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="uint8 has no DDL type"):
        to_ddl(pa.list_(pa.uint8()))
