"""The SQL text and the addresses of JdbcSink, without a server."""

from __future__ import annotations

import pytest
from pyspark.sql import types as t

from lockstep.errors import ConfigurationError
from lockstep.sinks import postgres_sql as sql
from lockstep.sinks.postgres_address import PostgresAddress
from lockstep.sinks.postgres_sql import TableName

TARGET, STAGE = TableName("public", "orders"), TableName("public", "stage")


@pytest.mark.parametrize(
    ("text", "schema", "name"),
    [
        ("orders", "public", "orders"),
        ("Sales.Orders", "sales", "orders"),
        ('sales."Order Lines"', "sales", "Order Lines"),
        ('"a.b"."c""d"', "a.b", 'c"d'),
        ("größe", "public", "größe"),
    ],
)
def test_table_names_are_read_as_postgres_reads_them(text: str, schema: str, name: str) -> None:
    table = TableName.parse(text, "public")
    assert (table.schema, table.name) == (schema, name)
    assert TableName.parse(str(table), "elsewhere") == table


@pytest.mark.parametrize(
    "text", ["", "a b", "a.b.c", "a.", ".a", '"a', 'a"b"', '""', "a;b", "1a", "a-b", "x" * 64, '"' + "ü" * 32 + '"']
)
def test_what_is_no_table_name_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="table="):
        TableName.parse(text, "public")


def test_names_and_texts_cannot_leave_their_quotes() -> None:
    assert sql.quoted('a"; DROP TABLE b; --') == '"a""; DROP TABLE b; --"'
    assert sql.literal("it's") == "'it''s'"


def test_staging_names_of_long_attempt_ids_fit_and_stay_apart() -> None:
    ids = [f"{10**15}-{10**6}-{tail}" for tail in ("a" * 32, "b" * 32)]
    names = {sql.stage_name("lineage", "uid", one) for one in ids}
    assert len(names) == 2
    assert all(len(name) <= 63 and name.startswith(sql.stage_prefix("lineage", "uid")) for name in names)
    assert sql.stage_prefix("lineage", "uid") != sql.stage_prefix("lineage", "other")


def test_attempt_is_read_from_the_comments_of_this_sink_alone() -> None:
    comment = sql.stage_comment("lineage", "uid", "1-2-a")
    assert sql.staged_attempt(comment, "lineage", "uid") == "1-2-a"
    for other in (None, "", "hello", "[]", "{}", sql.stage_comment("lineage", "other", "1-2-a")):
        assert sql.staged_attempt(other, "lineage", "uid") is None


def test_insert_keeps_the_order_of_the_rows() -> None:
    assert sql.insert(TARGET, STAGE, ["id", 'a"b']) == (
        'INSERT INTO "public"."orders" ("id", "a""b") SELECT "id", "__lockstep_0" FROM "public"."stage" '
        'ORDER BY "__lockstep_row"'
    )


def test_upsert_takes_the_last_row_of_each_key() -> None:
    assert sql.upsert(TARGET, STAGE, ["name", "id"], ["id"]) == (
        'INSERT INTO "public"."orders" ("name", "id") SELECT DISTINCT ON ("id") "name", "id" FROM "public"."stage" '
        'ORDER BY "id", "__lockstep_row" DESC ON CONFLICT ("id") DO UPDATE SET "name" = EXCLUDED."name"'
    )
    assert sql.upsert(TARGET, STAGE, ["id"], ["id"]).endswith("DO NOTHING")


def test_staging_table_has_the_rows_columns_only() -> None:
    statements = sql.create_stage(
        TARGET, STAGE, columns=["id", 'x"'], table_columns=["id", "other", 'x"'], key=["id"], comment="it's"
    )
    assert statements == [
        'CREATE TABLE "public"."stage" (LIKE "public"."orders" INCLUDING CONSTRAINTS)',
        'ALTER TABLE "public"."stage" DROP COLUMN "other", ALTER COLUMN "id" SET NOT NULL, '
        'ADD COLUMN "__lockstep_row" bigint PRIMARY KEY',
        'ALTER TABLE "public"."stage" RENAME COLUMN "x""" TO "__lockstep_0"',
        "COMMENT ON TABLE \"public\".\"stage\" IS 'it''s'",
    ]


def test_staged_names_never_meet_a_column() -> None:
    assert sql.staged_names(['a"', "__lockstep_0", 'b"']) == ["__lockstep_1", "__lockstep_0", "__lockstep_2"]


@pytest.mark.parametrize(
    ("spark", "postgres"),
    [
        (t.DecimalType(38, 18), "numeric(38,18)"),
        (t.TimestampType(), "timestamp with time zone"),
        (t.ArrayType(t.DecimalType(10, 2)), "numeric(10,2)[]"),
        (t.VarcharType(3), "varchar(3)"),
        (t.StructType([]), None),
        (t.MapType(t.StringType(), t.StringType()), None),
        (t.ArrayType(t.ArrayType(t.LongType())), None),
        (t.ArrayType(t.StructType([])), None),
        (t.NullType(), None),
        (t.DayTimeIntervalType(), None),
    ],
)
def test_types_that_hold_every_value(spark: t.DataType, postgres: str | None) -> None:
    assert sql.column_type(spark) == postgres


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("jdbc:postgresql://db.example.com:5433/shop?user=u&password=p", "db.example.com:5433/shop"),
        ("jdbc:postgresql://a,b:5433/shop", "a:5432,b:5433/shop"),
        ("jdbc:postgresql://u:p@h/shop", "h:5432/shop"),
        ("jdbc:postgresql:shop", "localhost:5432/shop"),
        ("jdbc:postgresql://[::1]:5433/shop", "[::1]:5433/shop"),
    ],
)
def test_place_is_told_without_secrets(url: str, place: str) -> None:
    assert PostgresAddress.parse(url, None, None, None).place == place


def test_secrets_are_blackened_and_not_shown_by_repr() -> None:
    url = "jdbc:postgresql://h/shop?user=ann&password=p%40ss&sslmode=require"
    address = PostgresAddress.parse(url, None, None, {"sslpassword": "k3y"})
    text = 'user "ann" with p@ss or p%40ss and k3y can\'t connect annually; sslmode require'
    assert address.redacted(text) == 'user "***" with *** or *** and *** can\'t connect annually; sslmode require'
    assert "p@ss" not in repr(address)
    assert "?" not in address.url


def test_arguments_win_over_options_and_those_over_the_url() -> None:
    address = PostgresAddress.parse(
        "jdbc:postgresql://h/shop?user=a&batchsize=1&currentSchema=sales,public", "b", None, {"batchSize": "2"}
    )
    assert address.properties["user"] == "b"
    assert address.properties["batchSize"] == "2"
    assert address.properties["stringtype"] == "unspecified"
    assert address.default_schema == "sales"


def test_task_that_is_run_twice_collides_with_itself() -> None:
    """Spark may run a task again whose rows are in the table already: its row numbers are, too."""
    statements = sql.create_stage(
        TableName("public", "t"), TableName("public", "s"), columns=["id"], table_columns=["id"], comment="c"
    )
    assert any(f'ADD COLUMN "{sql.ROW}" bigint PRIMARY KEY' in statement for statement in statements)
