"""Stored state as tables that people and programs can read: one row for each value, list element, map entry or timer."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lockstep.state.blob import readable, unpack
from lockstep.state.collection_state import ListState, MapState
from lockstep.state.evolution import reconcile
from lockstep.state.operator_state import BroadcastState, OperatorListState, RawOperatorState, UnionListState

TIMERS = "timers"
_WITHOUT_KEY = {OperatorListState.kind, UnionListState.kind, RawOperatorState.kind, BroadcastState.kind}


@dataclass(frozen=True)
class StoredState:
    """One state of one key group. Columns without a meaning for its kind are ``None``."""

    name: str
    kind: str  # of timers: the time domain
    key: pa.Array | None
    map_key: pa.Array | None
    position: pa.Array | None
    value: pa.Array


def states_in(blob: bytes, where: str) -> Iterator[StoredState]:
    """Everything that a key group holds."""
    for title, table in unpack(blob, where)[1].items():
        kind, _, name = title.partition(":")
        with readable(where):
            state = _flat(kind, name, table)
        yield state


def empty_state(kind: str, name: str, rows: pa.DataType) -> StoredState:
    """The columns of a state whose stored rows have this type."""
    return _flat(kind, name, pa.array([], rows))


def as_declared(array: pa.Array, declared: pa.DataType, where: str) -> pa.Array:
    convert = None if array.type == declared else reconcile(array.type, declared, where)
    return array if convert is None else convert(array)


def shown(value: Any) -> str:
    """A value as JSON, for people."""
    return json.dumps(value, default=_plain, ensure_ascii=False)


def _flat(kind: str, name: str, table: pa.StructArray) -> StoredState:
    if kind == TIMERS:
        return StoredState(TIMERS, name, table.field("key"), None, None, table.field("time"))
    if kind == ListState.kind:
        values = table.field("values")
        return StoredState(name, kind, _repeated(table, values), None, _positions(values), values.flatten())
    if kind == MapState.kind:
        keys, values = table.field("keys"), table.field("values")
        return StoredState(name, kind, _repeated(table, values), keys.flatten(), None, values.flatten())
    if kind == BroadcastState.kind:
        return StoredState(name, kind, None, table.field("key"), None, table.field("value"))
    value = table.field("value")
    key = None if kind in _WITHOUT_KEY else table.field("key")
    position = (
        pa.array(range(len(value)), pa.int32()) if kind in (OperatorListState.kind, UnionListState.kind) else None
    )
    return StoredState(name, kind, key, None, position, value)


def _repeated(table: pa.StructArray, lists: pa.ListArray) -> pa.Array:
    return table.field("key").take(pc.list_parent_indices(lists))


def _positions(lists: pa.ListArray) -> pa.Array:
    return pa.array(
        [index for length in pc.list_value_length(lists).to_pylist() for index in range(length or 0)], pa.int32()
    )


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return "base64:" + base64.b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
