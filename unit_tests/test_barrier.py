"""The barrier is what Spark's offset log says, or an error that names the file."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import CorruptRecordError, NewerFormatError
from lockstep.protocol.barrier import Barrier, CheckpointKind, TopicPartition, parse_offset_log
from lockstep.protocol.fields import Fields

# As Spark 4.0 writes it, of a query with two sources, the second of which has delivered nothing.
OFFSETS = (
    "v1\n"
    '{"batchWatermarkMs":1000,"batchTimestampMs":1731650000000,"conf":{"spark.sql.shuffle.partitions":"2"},'
    '"sourceMetadataInfo":{}}\n'
    '{"orders":{"1":7,"0":42}}\n'
    "-"
)


def test_barrier_is_read_from_sparks_offset_log() -> None:
    barrier = parse_offset_log(5, OFFSETS)
    assert barrier.epoch == 5
    assert barrier.timestamp_ms == 1731650000000
    assert barrier.watermark_ms == 1000
    assert barrier.positions == ('{"orders":{"1":7,"0":42}}', None)
    assert barrier.kind is CheckpointKind.CHECKPOINT


def test_kafka_positions_are_the_next_offsets_to_read() -> None:
    barrier = parse_offset_log(5, OFFSETS)
    assert barrier.kafka_offsets(0) == {TopicPartition("orders", 0): 42, TopicPartition("orders", 1): 7}


def test_source_that_has_delivered_nothing_has_no_positions() -> None:
    barrier = parse_offset_log(5, OFFSETS)
    assert barrier.kafka_offsets(1) == {}
    assert barrier.kafka_offsets(2) == {}


def test_barrier_survives_being_stored() -> None:
    barrier = Barrier(3, 17, 4, ("x", None), CheckpointKind.SAVEPOINT)
    assert Barrier.from_fields(Fields(json.loads(json.dumps(barrier.to_json())), "there", "barrier", "")) == barrier


@pytest.mark.parametrize("strange", ["\u2028", "\x0b", "\x0c", "\x1c", "\x85"])
def test_only_the_line_ends_that_spark_knows_end_a_line(strange: str) -> None:
    """Otherwise the positions of all later sources would be shifted."""
    position = json.dumps({"path": f"a{strange}b"}, ensure_ascii=False).replace("\\u000b", strange)
    barrier = parse_offset_log(0, f"v1\n{{}}\n{position}\n7")
    assert barrier.positions == (position, "7")


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_line_end_at_the_end_is_no_source(end: str) -> None:
    assert parse_offset_log(0, f"v1\n{{}}\n5{end}").positions == ("5",)


@pytest.mark.parametrize("metadata", ["", "nonsense", "[]", '{"batchTimestampMs":null}', '{"batchTimestampMs":1e999}'])
def test_damaged_offset_log_is_an_error_with_a_remedy(metadata: str) -> None:
    with pytest.raises(CorruptRecordError, match=r"epoch 9.*Restore offsets/9 from a backup"):
        parse_offset_log(9, f"v1\n{metadata}" if metadata else "v1")


def test_offset_log_of_a_newer_spark_is_refused() -> None:
    with pytest.raises(NewerFormatError, match=r"'v2'.*Upgrade"):
        parse_offset_log(0, "v2\n{}\n5")


@pytest.mark.parametrize("position", ["5", '{"orders":5}', '{"orders":{"x":1}}', '{"orders":{"0":null}}', "{", "[1]"])
def test_position_of_another_kind_of_source_is_no_kafka_offset(position: str) -> None:
    with pytest.raises(CorruptRecordError, match="not a Kafka offset"):
        Barrier(1, 0, 0, (position,)).kafka_offsets(0)


@given(st.text(alphabet='v1{}[]":,-\n\r09e.Nax\u2028\x0c', max_size=60))
def test_any_text_is_a_barrier_or_one_of_our_errors(text: str) -> None:
    for candidate in (text, f"v1\n{text}", f"v1\n{{}}\n{text}"):
        try:
            parse_offset_log(1, candidate).kafka_offsets(0)
        except (CorruptRecordError, NewerFormatError):
            pass
