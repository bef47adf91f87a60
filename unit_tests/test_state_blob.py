"""A key group's bytes are read back as they were written, or refused: damage is never guessed at."""

from __future__ import annotations

import zlib

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.errors import CorruptRecordError, NewerFormatError
from lockstep.state.blob import FORMAT, pack, read_metadata, tables_schema, unpack
from lockstep.state.codec import codec_of
from unit_tests.state_types import TYPES, fingerprint, values

TOTALS = pa.StructArray.from_arrays([pa.array(["a", "b"]), pa.array([1, None])], names=["key", "value"])
METADATA = {"next_processing": "17", "zoo": "é"}
TABLES = {"totals": TOTALS, "empty": pa.array([], pa.date32()), "raw": pa.array([b"x", None])}
PACKED = pack(METADATA, TABLES)
CONTENT = unpack(PACKED, "there")


def _stream(metadata: dict[str, str] | None, column: pa.Array) -> bytes:
    """Bytes with a right checksum, whatever they hold."""
    batch = pa.RecordBatch.from_arrays([column], names=["c"], metadata=metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return _sealed(sink.getvalue().to_pybytes())


def _sealed(data: bytes) -> bytes:
    return data + b"LKST" + zlib.crc32(data).to_bytes(4, "little")


def _content_or_error(data: bytes) -> object:
    try:
        return unpack(data, "there")
    except (CorruptRecordError, NewerFormatError):
        return None


def test_metadata_and_tables_are_read_back_in_order() -> None:
    metadata, tables = CONTENT
    assert metadata == METADATA
    assert list(tables) == ["totals", "empty", "raw"]
    assert all(tables[name].equals(table) and tables[name].type == table.type for name, table in TABLES.items())
    assert [type(table) for table in tables.values()] == [type(table) for table in TABLES.values()]


def test_nothing_is_something_too() -> None:
    assert unpack(pack({}, {}), "there") == ({}, {})
    assert tables_schema(pack({}, {})) == {}


@settings(max_examples=150)
@given(st.data(), st.lists(TYPES, max_size=3))
def test_tables_of_any_type_are_read_back_exactly(data: st.DataObject, types: list[pa.DataType]) -> None:
    tables, expected = {}, {}
    for i, arrow in enumerate(types):
        codec = codec_of(arrow)
        checked = [codec.check(value) for value in data.draw(st.lists(values(arrow), max_size=4))]
        start = data.draw(st.integers(0, len(checked)))
        tables[f"t{i}"] = codec.encode(checked).slice(start)
        expected[f"t{i}"] = fingerprint(checked[start:])
    packed = pack({}, tables)
    read = unpack(packed, "there")[1]
    assert {name: fingerprint(codec_of(table.type).decode(table)) for name, table in read.items()} == expected
    assert [table.type for table in read.values()] == types
    assert tables_schema(packed) == {f"t{i}": arrow for i, arrow in enumerate(types)}


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_may_come_in_any_form(kind: type) -> None:
    assert unpack(kind(PACKED), "there") == CONTENT
    assert read_metadata(kind(PACKED), "there") == METADATA


def test_same_content_gives_the_same_bytes() -> None:
    assert pack(METADATA, TABLES) == PACKED


def test_head_is_read_without_the_tables() -> None:
    assert read_metadata(PACKED, "there") == METADATA
    assert tables_schema(PACKED, "there") == {name: table.type for name, table in TABLES.items()}


def test_any_arrow_reader_can_open_it() -> None:
    table = pa.ipc.open_stream(PACKED).read_all()
    assert table.num_rows == 1
    assert table.column("totals").to_pylist() == [[{"key": "a", "value": 1}, {"key": "b", "value": None}]]
    assert table.schema.metadata[b"lockstep.format"] == str(FORMAT).encode()


def test_truncation_at_any_byte_is_noticed() -> None:
    for length in range(len(PACKED)):
        assert _content_or_error(PACKED[:length]) is None


def test_any_damaged_byte_is_noticed() -> None:
    for index in range(len(PACKED)):
        damaged = bytearray(PACKED)
        damaged[index] ^= 1 << (index % 8)
        assert _content_or_error(bytes(damaged)) is None


def test_damaged_head_is_noticed_or_reads_as_something_but_never_crashes() -> None:
    for index in range(len(PACKED)):
        damaged = bytearray(PACKED)
        damaged[index] ^= 0xFF
        for read in (read_metadata, tables_schema):
            try:
                assert isinstance(read(bytes(damaged), "there"), dict)
            except (CorruptRecordError, NewerFormatError) as error:
                assert "there" in str(error)  # noqa: PT017 - one of two outcomes


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused(data: bytes) -> None:
    for foreign in (data, _sealed(data)):
        for read in (unpack, read_metadata, tables_schema):
            with pytest.raises(CorruptRecordError, match=r"^there: .*Restore the checkpoint directory"):
                read(foreign, "there")


def test_newer_format_is_refused_before_anything_is_made_of_it() -> None:
    newer = _stream({"lockstep.format": str(FORMAT + 1)}, pa.array([1]))
    for read in (unpack, read_metadata, tables_schema):
        with pytest.raises(NewerFormatError, match=f"there: .* format {FORMAT + 1}.*Upgrade"):
            read(newer, "there")


@pytest.mark.parametrize("metadata", [None, {"other": "1"}, {"lockstep.format": "new"}])
def test_arrow_stream_of_someone_else_is_refused(metadata: dict[str, str] | None) -> None:
    with pytest.raises(CorruptRecordError, match="does not name its format"):
        unpack(_stream(metadata, pa.array([[1]])), "there")


def test_columns_that_are_no_tables_are_refused() -> None:
    flat = _stream({"lockstep.format": "1"}, pa.array([1]))
    for read in (unpack, tables_schema):
        with pytest.raises(CorruptRecordError, match="there"):
            read(flat, "there")


def test_key_of_the_format_is_reserved() -> None:
    with pytest.raises(ValueError, match="another key"):
        pack({"lockstep.format": "7"}, {})
