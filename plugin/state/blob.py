"""The stored form of one key group: an Arrow IPC stream of one row, in which every table is a list, and a checksum.

Any Arrow reader can open it; the eight bytes of the checksum come after the stream's end, where readers stop. What was
cut short or damaged is refused, never guessed at: the checksum is looked at before Arrow sees a byte, and all that
points into the bytes is checked before anything is read through it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa

from lockstep.errors import CorruptRecordError, NewerFormatError

FORMAT = 1
_FORMAT_KEY = b"lockstep.format"
_MAGIC = b"LKST"
_TRAILER = len(_MAGIC) + 4


def pack(metadata: Mapping[str, str], tables: Mapping[str, pa.Array]) -> bytes:
    """The bytes that :func:`unpack` turns into the same metadata and tables, in the same order."""
    head = {key.encode(): value.encode() for key, value in metadata.items()}
    if _FORMAT_KEY in head:
        raise ValueError(f"{_FORMAT_KEY.decode()} is written by pack itself: give another key.")
    head[_FORMAT_KEY] = b"%d" % FORMAT
    columns = [pa.ListArray.from_arrays(pa.array([0, len(t)], pa.int32()), t) for t in tables.values()]
    batch = pa.RecordBatch.from_arrays(columns, names=list(tables), metadata=head)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    stream = sink.getvalue()
    return b"".join((stream, _MAGIC, zlib.crc32(stream).to_bytes(4, "little")))


def unpack(data: bytes, where: str) -> tuple[dict[str, str], dict[str, pa.Array]]:
    """Metadata and tables, which share the memory of ``data``. ``where`` is for the messages of errors."""
    stream = _stream(data, where)
    with readable(where), pa.ipc.open_stream(stream) as reader:
        metadata = _metadata(reader.schema, where)
        if not all(pa.types.is_list(kind) for kind in reader.schema.types):
            raise ValueError("it holds something else than tables")
        for kind in reader.schema.types:
            _names_in(kind)
        batch = reader.read_next_batch()
        batch.validate(full=True)  # a checksum says that nothing has changed, not that the writer was honest
        if batch.num_rows != bool(batch.columns) or len(set(batch.schema.names)) < batch.num_columns:
            raise ValueError("it is not one row of tables, each with a name of its own")
        for column in batch.columns:
            if column.null_count or column.offsets.to_pylist() != [0, len(column.values)]:
                raise ValueError("a table is not all of its rows")
        return metadata, {name: column.values for name, column in zip(batch.schema.names, batch.columns, strict=True)}


@contextmanager
def readable(where: str) -> Iterator[None]:
    """While stored state is taken apart: whatever is wrong with it becomes an error that says where and what to do."""
    try:
        yield
    except (pa.ArrowException, OSError, StopIteration, ValueError, TypeError, LookupError, AttributeError) as error:
        raise CorruptRecordError(f"{where}: the stored state can't be read: {error}. {_REMEDY}") from error
    except (MemoryError, OverflowError, RecursionError) as error:
        raise CorruptRecordError(f"{where}: the stored state claims to be larger than can be. {_REMEDY}") from error


def read_metadata(data: bytes, where: str) -> dict[str, str]:
    """The metadata alone, without reading the tables."""
    return _metadata(_schema(data, where), where)


def tables_schema(data: bytes, where: str = "a key group") -> dict[str, pa.DataType]:
    """The names of the tables and the types of their rows, without reading any."""
    schema = _schema(data, where)
    _metadata(schema, where)
    try:
        return {field.name: field.type.value_type for field in schema}
    except (AttributeError, ValueError) as error:
        raise CorruptRecordError(f"{where}: the stored state holds something else than tables. {_REMEDY}") from error


_REMEDY = (
    "It was left as it is. Restore the checkpoint directory from a backup, or start the query from a savepoint; "
    "a new checkpoint directory starts with empty state."
)


def _stream(data: bytes, where: str) -> pa.Buffer:
    if len(data) <= _TRAILER or data[-_TRAILER:-4] != _MAGIC:
        raise CorruptRecordError(
            f"{where}: the {len(data)} bytes stored are not a key group's state, or were cut short. {_REMEDY}"
        )
    stream = pa.py_buffer(data)[:-_TRAILER]
    if zlib.crc32(stream) != int.from_bytes(data[-4:], "little"):
        raise CorruptRecordError(f"{where}: the stored state fails its checksum: it is damaged. {_REMEDY}")
    return stream


def _schema(data: bytes, where: str) -> pa.Schema:
    stream = _stream(data, where)
    with readable(where):
        return pa.ipc.read_schema(stream)


def _names_in(kind: pa.DataType) -> list[str]:
    """The names of all fields, at every depth. One that is no UTF-8 raises here, and not where it is first printed."""
    fields = [kind.field(i) for i in range(kind.num_fields)]
    return [name for field in fields for name in (field.name, *_names_in(field.type))]


def _metadata(schema: pa.Schema, where: str) -> dict[str, str]:
    try:
        head = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
        stored_format = int(head.pop(_FORMAT_KEY.decode()))
    except (KeyError, ValueError) as error:
        raise CorruptRecordError(f"{where}: the stored state does not name its format. {_REMEDY}") from error
    if stored_format < 1:
        raise CorruptRecordError(f"{where}: the stored state does not name its format. {_REMEDY}")
    if stored_format > FORMAT:
        raise NewerFormatError(
            f"{where}: the stored state has format {stored_format}; this version reads up to {FORMAT}. "
            "Upgrade spark-lockstep to the version that wrote it, or newer."
        )
    return head
