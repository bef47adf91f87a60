"""A savepoint as it is stored: all that a query needs to go on from an epoch, in another directory, on another cluster.

``PATH/_metadata`` is this record; it is written last, so a savepoint that was not finished has none and is never taken
for one. ``PATH/state/UID/`` holds the key groups of each operator as Parquet files of two columns, ``group`` and ``state``;
``PATH/sources/I/`` the logs of sources that Spark numbers by itself (files). It may be moved as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lockstep.errors import CheckpointDirectoryError
from lockstep.protocol.barrier import Barrier
from lockstep.protocol.envelope import seal, unseal_fields
from lockstep.protocol.fields import Fields
from lockstep.protocol.lineage import check_operator
from lockstep.protocol.storage import Storage

METADATA = "_metadata"
STATE = "state"
SOURCES = "sources"
_KIND = "savepoint"


@dataclass(frozen=True)
class Contents:
    """How many key groups an operator has, of how many bytes, and the sum of their checksums: a lost file is noticed."""

    groups: int
    bytes: int
    checksum: int


@dataclass(frozen=True)
class SavedOperator:
    """The state of one operator: what it looks like, as in the lineage, and how much there is."""

    description: Mapping[str, Any]
    contents: Contents


@dataclass(frozen=True)
class SavedSink:
    """Where a sink stood: ``details`` are those of its last commit, e.g. the table's version."""

    description: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Savepoint:
    """Everything of ``barrier.epoch`` of a lineage. ``watermark_ms`` is the one that the next epoch would have had."""

    id: str
    lineage: str
    barrier: Barrier
    watermark_ms: int
    created_ms: int
    sources: tuple[str, ...] = ()  # descriptions, in the order of the barrier's positions
    sinks: Mapping[str, SavedSink] = field(default_factory=dict)
    operators: Mapping[str, SavedOperator] = field(default_factory=dict)
    query_name: str | None = None

    @property
    def epoch(self) -> int:
        return self.barrier.epoch

    @property
    def state_bytes(self) -> int:
        """Of all operators' state."""
        return sum(operator.contents.bytes for operator in self.operators.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "lineage": self.lineage,
            "barrier": self.barrier.to_json(),
            "watermark_ms": self.watermark_ms,
            "created_ms": self.created_ms,
            "query_name": self.query_name,
            "sources": list(self.sources),
            "sinks": {
                uid: {"description": sink.description, "details": dict(sink.details)}
                for uid, sink in self.sinks.items()
            },
            "operators": {
                uid: {"description": dict(operator.description), "contents": vars(operator.contents)}
                for uid, operator in self.operators.items()
            },
        }

    def encode(self) -> bytes:
        return seal(_KIND, self.to_json())

    @classmethod
    def decode(cls, data: bytes, where: str) -> Savepoint:
        fields = unseal_fields(_KIND, data, where)
        sinks, operators = fields.fields("sinks"), fields.fields("operators")
        return cls(
            id=fields.name("id"),
            lineage=fields.name("lineage"),
            barrier=Barrier.from_fields(fields.fields("barrier")),
            watermark_ms=fields.integer("watermark_ms"),
            created_ms=fields.integer("created_ms"),
            query_name=None if fields.is_null("query_name") else fields.text("query_name"),
            sources=tuple(fields.texts("sources")),
            sinks={uid: _sink(sinks.fields(uid)) for uid in sinks},
            operators={uid: _operator(operators, uid) for uid in operators},
        )


def read_savepoint(storage: Storage) -> Savepoint:
    """The savepoint in a directory, or an error that says what is there instead."""
    where = f"{storage.describe()}/{METADATA}"
    data = storage.read(METADATA)
    if data is not None:
        return Savepoint.decode(data, where)
    there = [name for name in storage.list("") if not name.startswith(".")]
    if not there:
        raise CheckpointDirectoryError(f"there is no savepoint at {storage.describe()}: nothing is there.")
    if "lockstep" in there or "offsets" in there:
        raise CheckpointDirectoryError(
            f"{storage.describe()} is a checkpoint directory, not a savepoint. Make one of it with 'lockstep savepoint "
            f"create', or name one of its checkpoints: {storage.describe()}/lockstep/checkpoints/chk-N."
        )
    raise CheckpointDirectoryError(
        f"{storage.describe()} is not a savepoint: it has no {METADATA}. If its making was interrupted, remove what is "
        "there and make it again."
    )


def _sink(fields: Fields) -> SavedSink:
    return SavedSink(fields.text("description"), fields.json_object("details"))


def _operator(operators: Fields, uid: str) -> SavedOperator:
    fields = operators.fields(uid)
    description, contents = fields.fields("description"), fields.fields("contents")
    check_operator(description)
    if description.text("uid") != uid:
        raise description.wrong("uid", description.text("uid"), f"the operator's own, {uid!r}")
    return SavedOperator(
        fields.json_object("description"),
        Contents(contents.count("groups"), contents.count("bytes"), contents.count("checksum")),
    )
