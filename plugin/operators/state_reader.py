"""Reads the stored state of an operator, of any epoch that Spark still keeps, also while the query runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as T

from lockstep.engine.spark_log import SparkLog
from lockstep.engine.storage import open_storage
from lockstep.errors import CheckpointDirectoryError, ConfigurationError, StateMigrationError
from lockstep.operators.column_types import spark_type
from lockstep.operators.placement import groups_at
from lockstep.protocol.lineage import read_lineage, require_placed
from lockstep.protocol.savepoint import METADATA, STATE, read_savepoint
from lockstep.protocol.storage import Storage
from lockstep.state.blob import read_metadata, readable, tables_schema
from lockstep.state.ddl import parse_type, to_ddl
from lockstep.state.evolution import reconcile
from lockstep.state.inspection import TIMERS, StoredState, as_declared, empty_state, shown, states_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TEXTS = [
    pa.field("state", pa.string()),
    pa.field("kind", pa.string()),
    pa.field("map_key", pa.string()),
    pa.field("position", pa.int32()),
    pa.field("value", pa.string()),
]


_OWN = {field.name for field in _TEXTS}


def column_name(key: str) -> str:
    """How a key column is called in what :func:`read_state` returns: by its name, unless that has a meaning there."""
    return f"key_{key}" if key.lower() in _OWN else key


def read_state(
    spark: SparkSession, directory: str, uid: str, state: str | None = None, epoch: int | None = None
) -> DataFrame:
    """The state of the keyed operator ``uid`` at the end of an epoch, as a DataFrame.

    Parameters
    ----------
    directory
        The query's checkpoint directory; the query may be running. Or a savepoint.
    state
        The name of one state: the DataFrame has the key's columns and ``value`` with its own type (and ``position`` for
        lists, ``map_key`` for maps and broadcast state); ``"timers"`` gives the timers. Without it, all states
        and timers: the key's columns, ``state``, ``kind``, ``map_key``, ``position`` and ``value``, of which ``map_key``
        and ``value`` are JSON. A key column with one of these names is called ``key_<name>``.
    epoch
        By default the last that Spark has decided. Spark keeps the last 100
        (``spark.sql.streaming.minBatchesToRetain``).

    Examples
    --------
    >>> lockstep.read_state(spark, "/checkpoints/orders", uid="totals", state="total").show()  # doctest: +SKIP
    """
    found = find_groups(spark, directory, uid, epoch)
    keys = found.key_fields()
    if state is None:
        return _decoded(found.frame, pa.schema([*keys, *_TEXTS]), len(keys), _as_text)
    kind, name, table = found.table_type(state)
    sample = empty_state(kind, name, table)
    fields = list(keys) if sample.key is not None else []
    if state == TIMERS:
        fields.append(pa.field("kind", pa.string()))
    if sample.map_key is not None:
        fields.append(pa.field("map_key", sample.map_key.type))
    if sample.position is not None:
        fields.append(pa.field("position", pa.int32()))
    schema = pa.schema([*fields, pa.field("value", sample.value.type)])
    own_keys = len(keys) if sample.key is not None else 0
    return _decoded(
        found.frame, schema, own_keys, lambda given, target: _as_typed(given, target) if given.name == state else None
    )


@dataclass(frozen=True)
class StoredGroups:
    """The key groups of an operator at one epoch: ``frame`` has their number and bytes."""

    uid: str
    epoch: int
    frame: DataFrame
    key_names: tuple[str, ...]
    tables: dict[str, pa.DataType]  # kind:name → the type of its rows

    def key_fields(self) -> list[pa.Field]:
        kinds = [kind.field("key").type for title, kind in self.tables.items() if _is_keyed(title, kind)]
        if not kinds:
            return [pa.field(column_name(name), pa.string()) for name in self.key_names]
        if len(self.key_names) == 1:
            kinds[0] = pa.struct([pa.field(self.key_names[0], kinds[0])])
        return [pa.field(column_name(field.name), field.type) for field in kinds[0]]

    def table_type(self, state: str) -> tuple[str, str, pa.DataType]:
        names = set()
        for title, table in self.tables.items():
            kind, _, name = title.partition(":")
            names.add(TIMERS if kind == TIMERS else name)
            if state == (TIMERS if kind == TIMERS else name):
                return kind, name, table
        raise ConfigurationError(
            f"operator {self.uid!r} has stored nothing under the name {state!r} at epoch {self.epoch}; there is: "
            f"{', '.join(sorted(names)) or 'nothing'}."
        )


def find_groups(spark: SparkSession, directory: str, uid: str, epoch: int | None = None) -> StoredGroups:
    """The stored key groups of an operator. Looks into the bytes, so it needs no knowledge of the query's code."""
    storage = open_storage(spark, directory)
    if storage.exists(METADATA):
        return _saved_groups(spark, directory, storage, uid, epoch)
    wanted = _epoch(storage, epoch)
    lineage = read_lineage(storage)
    known = {} if lineage is None else lineage.operators
    if uid in known:
        require_placed(known[uid], storage.describe())
    others: set[str] = set()
    for number in sorted(int(name) for name in storage.list("state") if name.isdigit()):
        frame = _groups(spark, directory, number, wanted)
        if frame is None:
            continue
        catalog = _catalog(frame)
        if any(entry[0] == uid for entry in catalog):
            names = [part["name"] for part in known[uid]["key"]] if uid in known else json.loads(catalog[0][1])
            return StoredGroups(uid, wanted, frame, tuple(names), _tables(uid, catalog))
        others |= {entry[0] for entry in catalog}
    if uid in known:  # it has stored nothing yet
        empty = spark.createDataFrame([], "group int, state binary")
        return StoredGroups(uid, wanted, empty, tuple(part["name"] for part in known[uid]["key"]), {})
    names = sorted(others | set(known))
    raise ConfigurationError(
        f"{storage.describe()} has no keyed operator with uid {uid!r} at epoch {wanted}; there is: "
        f"{', '.join(map(repr, names)) or 'none'}."
    )


def _saved_groups(spark: SparkSession, directory: str, storage: Storage, uid: str, epoch: int | None) -> StoredGroups:
    saved = read_savepoint(storage)
    if epoch is not None and epoch != saved.epoch:
        raise ConfigurationError(f"{storage.describe()} is a savepoint of epoch {saved.epoch}, not of {epoch}.")
    if uid not in saved.operators:
        raise ConfigurationError(
            f"{storage.describe()} has no operator with uid {uid!r}; there is: "
            f"{', '.join(map(repr, sorted(saved.operators))) or 'none'}."
        )
    frame = spark.read.schema("group int, state binary").parquet(f"{directory.rstrip('/')}/{STATE}/{uid}")
    names = tuple(part["name"] for part in saved.operators[uid].description["key"])
    return StoredGroups(uid, saved.epoch, frame, names, _tables(uid, _catalog(frame)))


def _epoch(storage: Storage, given: int | None) -> int:
    decided = SparkLog(storage).decided()
    if decided < 0:
        raise CheckpointDirectoryError(
            f"{storage.describe()} has no decided epoch yet, so there is no state to read. Is it the checkpoint directory?"
        )
    if given is not None and not 0 <= given <= decided:
        raise ConfigurationError(f"epoch {given} is not decided: the last one in {storage.describe()} is {decided}.")
    return decided if given is None else given


def _groups(spark: SparkSession, directory: str, operator: int, epoch: int) -> DataFrame | None:
    """The key groups in one of the query's state stores, or ``None`` when it belongs to an operator of Spark's own."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    try:
        reader = spark.read.format("statestore").option("operatorId", operator).option("batchId", epoch)
        frame = reader.load(directory)
        fields = {field.name: field.dataType for field in frame.schema.fields}
        if fields["value"].simpleString() != "struct<groupState:struct<state:binary>>":
            return None
        group, state = groups_at(F.col("key.group")), F.col("value.groupState.state")
        return frame.select(group.alias("group"), state.alias("state"))
    except PySparkException as error:
        raise CheckpointDirectoryError(
            f"the state of epoch {epoch} in {directory} can't be read: {str(error).splitlines()[0]} Spark keeps the state "
            "of the last spark.sql.streaming.minBatchesToRetain epochs; leave out the epoch to read the newest."
        ) from error


def _catalog(frame: DataFrame) -> list[tuple[str, str, str, str]]:
    """The distinct (uid, key's names, kind:name, type) of all tables."""

    def describe(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows: set[tuple[str, str, str, str]] = set()
            for blob in batch.column("state").to_pylist():
                metadata = read_metadata(blob, "a key group")
                tables = tables_schema(blob).items()
                with readable("a key group"):
                    rows |= {(metadata["uid"], metadata["key"], title, to_ddl(kind)) for title, kind in tables}
            columns = list(zip(*sorted(rows), strict=True)) or [()] * 4
            yield pa.RecordBatch.from_arrays(
                [pa.array(c, pa.string()) for c in columns], names=["uid", "key", "title", "type"]
            )

    found = frame.mapInArrow(describe, "uid string, key string, title string, type string").distinct().collect()
    return [(row.uid, row.key, row.title, row.type) for row in found]


def _tables(uid: str, catalog: Sequence[tuple[str, str, str, str]]) -> dict[str, pa.DataType]:
    """Of every table the newest type: the one that all others can be read as. Whether it has a TTL makes no difference."""
    newest: dict[str, pa.DataType] = {}
    for _, _, title, ddl in catalog:
        kind = pa.struct([field for field in parse_type(ddl) if field.name not in ("stamp", "stamps")])
        if title not in newest or _reads_as(newest[title], kind, uid):
            newest[title] = kind
    return newest


def _reads_as(stored: pa.DataType, declared: pa.DataType, uid: str) -> bool:
    try:
        reconcile(stored, declared, f"operator {uid!r}")
    except StateMigrationError:
        return False
    return True


def _is_keyed(title: str, kind: pa.DataType) -> bool:
    state, _, name = title.partition(":")
    return empty_state(state, name, kind).key is not None


def _decoded(
    frame: DataFrame,
    schema: pa.Schema,
    keys: int,
    columns_of: Callable[[StoredState, pa.Schema], dict[str, pa.Array] | None],
) -> DataFrame:
    """The first ``keys`` columns are those of the key; ``columns_of`` gives the others."""
    fields = list(schema)

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for group, blob in zip(batch.column("group").to_pylist(), batch.column("state").to_pylist(), strict=True):
                for state in states_in(blob, f"key group {group}"):
                    columns = columns_of(state, schema)
                    if columns is None or not len(state.value):
                        continue
                    arrays = [*_keys(state, fields[:keys]), *(columns[field.name] for field in fields[keys:])]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return frame.mapInArrow(
        decode, T.StructType([T.StructField(field.name, spark_type(field.type)) for field in schema])
    )


def _keys(state: StoredState, fields: Sequence[pa.Field]) -> list[pa.Array]:
    """The key's columns; null where a state has no key."""
    if state.key is None:
        return [pa.nulls(len(state.value), field.type) for field in fields]
    return [state.key] if len(fields) == 1 else state.key.flatten()


def _as_text(state: StoredState, schema: pa.Schema) -> dict[str, pa.Array]:
    rows = len(state.value)
    return {
        "state": pa.array([state.name] * rows),
        "kind": pa.array([state.kind] * rows),
        "map_key": pa.nulls(rows, pa.string()) if state.map_key is None else _texts(state.map_key),
        "position": pa.nulls(rows, pa.int32()) if state.position is None else state.position,
        "value": _texts(state.value),
    }


def _as_typed(state: StoredState, schema: pa.Schema) -> dict[str, pa.Array]:
    given: dict[str, Any] = {"map_key": state.map_key, "position": state.position, "value": state.value}
    if state.name == TIMERS:
        given["kind"] = pa.array([state.kind] * len(state.value), pa.string())
    return {
        name: as_declared(array, schema.field(name).type, f"state {state.name!r}")
        for name, array in given.items()
        if name in schema.names and array is not None
    }


def _texts(array: pa.Array) -> pa.Array:
    return pa.array([shown(value) for value in array.to_pylist()], pa.string())
