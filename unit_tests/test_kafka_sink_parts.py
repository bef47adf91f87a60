"""KafkaSink without a broker: its options, which columns make up a record, markers, handles."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import types as t

from lockstep.errors import CheckpointDirectoryError, ConfigurationError, CorruptRecordError
from lockstep.sinks import KafkaSink
from lockstep.sinks.kafka_markers import Marker, Markers, decode
from lockstep.sinks.kafka_rows import RecordColumns, find_columns, refusal
from lockstep.sinks.staging import checked_relative
from lockstep.sources.client_settings import ClientSettings

NOTHING = RecordColumns()


HEADERS = t.ArrayType(t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())]))
TYPES = {
    "string": t.StringType(),
    "binary": t.BinaryType(),
    "int": t.IntegerType(),
    "bigint": t.LongType(),
    "double": t.DoubleType(),
    "date": t.DateType(),
    "timestamp": t.TimestampType(),
    "ints": t.ArrayType(t.IntegerType()),
    "map": t.MapType(t.StringType(), t.StringType()),
    "headers": HEADERS,
}


def found(columns: str, given: RecordColumns = NOTHING, topic: str | None = "out") -> RecordColumns:
    fields = [t.StructField(name, TYPES[kind]) for name, kind in (one.split() for one in columns.split(", "))]
    return find_columns(t.StructType(fields), given, topic, "Kafka topic out")


# --- columns --------------------------------------------------------------------------------------------------------


def test_columns_with_the_names_of_sparks_kafka_sink_are_used() -> None:
    columns = "key string, value binary, headers headers, other int"
    assert found(columns) == RecordColumns(key="key", value="value", headers="headers")


def test_position_columns_of_a_kafka_source_are_not_taken_for_where_a_row_goes() -> None:
    columns = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
    assert found(columns) == RecordColumns(key="key", value="value")


def test_without_a_value_column_all_columns_are_the_value() -> None:
    assert found("account string, total bigint").value is None
    assert found("value double, id int", RecordColumns(value="*")).value is None


def test_topic_comes_from_a_column_when_none_is_fixed() -> None:
    assert found("topic string, value string", topic=None).topic == "topic"
    assert found("dest string, value string", RecordColumns(topic="dest"), None).topic == "dest"


@pytest.mark.parametrize(
    "columns, given, topic, said",
    [
        (
            "value string",
            RecordColumns(key="account"),
            "out",
            r"key='account' is no column of the rows, which have value",
        ),
        ("value string", RecordColumns(topic="dest"), None, r"topic_column='dest' is no column"),
        ("value string", NOTHING, None, r"give topic= .* or topic_column="),
        ("value double", NOTHING, "out", r"column 'value' is double.*to_json.*value='\*' for all columns as JSON"),
        ("v string, key ints", NOTHING, "out", r"column 'key' is array<int>.*rename it"),
        (
            "v string, p bigint",
            RecordColumns(partition="p"),
            "out",
            r"column 'p' is bigint, and the partition .* be int",
        ),
        ("v string, t date", RecordColumns(timestamp="t"), "out", r"column 't' is date.*timestamp"),
        ("v string, headers map", NOTHING, "out", r"array<struct<key: string, value: binary>>"),
    ],
)
def test_unusable_column_is_refused_with_option_value_and_remedy(
    columns: str, given: RecordColumns, topic: str | None, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        found(columns, given, topic)


def test_sentence_about_a_refused_row_is_found_in_sparks_error() -> None:
    error = Exception(
        "[USER_RAISED] lockstep refuses a header without a key (row 3 of partition 1 of the batch). SQLSTATE"
    )
    assert refusal(error) == "a header without a key (row 3 of partition 1 of the batch)."
    assert refusal(Exception("something else")) is None


# --- options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"topic": "a", "topic_column": "b"}, "not both"),
        ({"topic": "no spaces"}, "topic='no spaces' is no topic name"),
        ({"topic": "a", "marker_topic": "ä"}, "marker_topic='ä'"),
        ({"topic": "a", "parallelism": 0}, "parallelism=0"),
        ({"topic": "a", "parallelism": True}, "parallelism=True"),
        ({"topic": "a", "delivery": "twice"}, "delivery='twice' is not known"),
        ({"topic": "a", "delivery": "at_least_once", "timestamp": "t"}, "timestamp= needs delivery='exactly_once'"),
        ({"topic": "a", "options": {"acks": "1"}}, "producer settings start with 'kafka.'"),
        ({"topic": "a", "options": {"kafka.acks": "1"}}, "option kafka.acks is set by Lockstep"),
        ({"topic": "a", "options": {"kafka.transactional.id": "x"}}, "transactional_id_prefix"),
        ({"topic": "a", "options": {"kafka.transaction.timeout.ms": "1 min"}}, "is no whole number"),
    ],
)
def test_wrong_option_is_refused_at_once(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        KafkaSink("localhost:9092", **arguments)


def test_empty_address_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="bootstrap_servers is empty"):
        KafkaSink(" ", topic="a")


def test_description_has_neither_address_nor_secret() -> None:
    options = {"kafka.sasl.jaas.config": 'password="hunter22"'}
    assert KafkaSink("broker:9092", topic="totals", options=options).describe() == "Kafka topic totals"


# --- markers and handles --------------------------------------------------------------------------------------------


def markers() -> Markers:
    return Markers(None, ClientSettings({}), "markers", "life/feed", "lockstep-")  # type: ignore[arg-type]


def test_birth_and_progress_are_records_of_their_own() -> None:
    """Two first starts at once: the later birth record must not take back what the first has published meanwhile."""
    progress, _ = markers().progress(0, Marker(7, "7-1-a", 1))
    birth, _ = markers().birth()
    assert birth != progress


def test_marker_survives_its_text() -> None:
    marker = Marker(7, "7-1-a", 3)
    assert decode(markers().progress(0, marker)[1], "here") == marker


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"epoch": "x", "attempt": "a", "token": 1}', "\x00"])
def test_something_else_in_a_markers_place_is_an_error_that_says_where(text: str) -> None:
    with pytest.raises(CorruptRecordError, match="here holds something that is no marker"):
        decode(text, "here")


@pytest.mark.parametrize(
    "path", ["../x", "/etc/passwd", "a/../b", "file:/x", "a//b", "", ".hidden/x", "a/_b", None, 7, "a/b c"]
)
def test_handle_that_leads_out_of_the_staging_directory_is_refused(path: Any) -> None:
    with pytest.raises(CheckpointDirectoryError, match="no staged file"):
        checked_relative(path, "Kafka topic out")


def test_staged_file_is_taken_as_it_is() -> None:
    assert checked_relative("3-1-ab/part-00000-x.snappy.parquet", "sink") == "3-1-ab/part-00000-x.snappy.parquet"
