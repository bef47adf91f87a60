"""The stored form of a key group: one table per state, one per time domain, and what must be known without reading them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from lockstep.errors import StateMigrationError
from lockstep.state.blob import pack, read_metadata, readable, unpack
from lockstep.state.declarations import State
from lockstep.state.key_identity import KeyType
from lockstep.state.operator_spec import kind_changed
from lockstep.state.operator_state import UnionListState
from lockstep.state.tables import column, int64_array, int64_list, key_column, table_of
from lockstep.state.timers import TimeDomain, Timers

_TIMERS = "timers"
_NEXT = {TimeDomain.PROCESSING_TIME: "next_processing", TimeDomain.EVENT_TIME: "next_event"}
_KEYS = "keys"
UID = "uid"
KEY_NAMES = "key"
GROUPS = "groups"


@dataclass(frozen=True)
class Glance:
    """What a stored group says of itself without being decoded."""

    next_processing: int | None = None
    next_event: int | None = None
    keys: int = 0

    def due(self, processing_time: int, watermark: int | None) -> bool:
        """Whether a timer is due."""
        if self.next_processing is not None and self.next_processing <= processing_time:
            return True
        return self.next_event is not None and watermark is not None and self.next_event <= watermark


@dataclass
class StoredGroup:
    """The tables of a stored group, by kind and name."""

    states: dict[tuple[str, str], pa.StructArray] = field(default_factory=dict)
    timers: dict[TimeDomain, pa.StructArray] = field(default_factory=dict)
    uid: str | None = None  # of the operator that wrote it
    groups: str | None = None  # its max_parallelism

    @classmethod
    def decode(cls, blob: bytes, where: str) -> StoredGroup:
        metadata, tables = unpack(blob, where)
        stored = cls(uid=metadata.get(UID), groups=metadata.get(GROUPS))
        with readable(where):
            for title, table in tables.items():
                kind, _, name = title.partition(":")
                if not pa.types.is_struct(table.type):
                    raise ValueError(f"the table {title!r} has no columns")
                if kind == _TIMERS:
                    stored.timers[TimeDomain(name)] = table
                else:
                    stored.states[kind, name] = table
        return stored

    def take(self, name: str, state: State, where: str) -> pa.StructArray | None:
        """Takes out the table of a declared state. What is never taken is carried along."""
        for kind, other in self.states:
            if other == name and kind != state.kind:
                raise StateMigrationError(kind_changed(name, where, kind, state.kind))
        return self.states.pop((state.kind, name), None)

    def load_timers(self, key_type: KeyType, where: str) -> dict[TimeDomain, Timers]:
        loaded = {}
        for domain in TimeDomain:
            table = self.timers.get(domain)
            if table is None:
                loaded[domain] = Timers(key_type.rank)
            else:
                place = f"table of timers of {where}"
                times = int64_list(column(table, "time", pa.int64(), place))
                loaded[domain] = Timers(key_type.rank, zip(times, key_column(table, key_type, place), strict=True))
        return loaded


def encode_group(
    states: Mapping[str, State],
    timers: Mapping[TimeDomain, Timers],
    carried: Mapping[tuple[str, str], pa.StructArray],
    key_type: KeyType,
    keys: int,
    owner: Mapping[str, str],
) -> bytes:
    """The group as it is stored; empty when there is nothing to store."""
    tables = {f"{state.kind}:{name}": state.dump() for name, state in states.items() if len(state)}
    tables.update({f"{kind}:{name}": table for (kind, name), table in carried.items()})
    metadata = {_KEYS: str(keys), **owner}
    for domain, each in timers.items():
        if len(each):
            times, owners = each.entries()
            tables[f"{_TIMERS}:{domain.value}"] = table_of(key=key_type.encode(owners), time=int64_array(times))
            metadata[_NEXT[domain]] = str(each.next())
    return pack(metadata, tables) if tables else b""


def glance(blob: bytes | None, where: str = "a key group") -> Glance:
    """What a stored group says of itself."""
    if not blob:
        return Glance()
    metadata = read_metadata(blob, where)
    with readable(where):
        first = {domain: int(metadata[name]) for domain, name in _NEXT.items() if name in metadata}
        keys = int(metadata.get(_KEYS, 0))
    return Glance(first.get(TimeDomain.PROCESSING_TIME), first.get(TimeDomain.EVENT_TIME), keys)


def peek(blob: bytes | None) -> tuple[int | None, int | None]:
    """The first processing-time and the first event-time timer of a stored group, without decoding it."""
    seen = glance(blob)
    return seen.next_processing, seen.next_event


def union_part(blob: bytes, where: str = "a key group") -> bytes:
    """Of a stored group, only what every group gets after a restore: its union lists. Empty when it has none."""
    if not blob:
        return b""
    own = f"{UnionListState.kind}:"
    tables = {title: table for title, table in unpack(blob, where)[1].items() if title.startswith(own)}
    return pack({}, tables) if tables else b""
