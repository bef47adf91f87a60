"""The lineage: one life of a checkpoint directory, and what the query looked like when it last started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lockstep.errors import CheckpointDirectoryError, ConfigurationError, StateMigrationError
from lockstep.protocol.envelope import seal, unseal_fields
from lockstep.protocol.fields import Fields
from lockstep.protocol.storage import Storage
from lockstep.state.ddl import parse_type
from lockstep.state.operator_spec import merged, refuse_incompatible

_DIRECTORY = "lockstep"
PATH = f"{_DIRECTORY}/lineage"
_KIND = "lineage"
PLACED = "placed"  # of an operator: its key groups are spread over Spark's tasks by their number


@dataclass(frozen=True)
class Lineage:
    """A UUID that is part of every sink's idempotence key, so that two lives are never taken for one another."""

    id: str
    created_ms: int
    sinks: Mapping[str, str] = field(default_factory=dict)  # uid → description
    sources: tuple[str, ...] = ()
    config: Mapping[str, object] = field(default_factory=dict)
    query_name: str | None = None
    operators: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # uid → what its state looks like
    groups: Mapping[str, str] = field(default_factory=dict)  # number of a Kafka source → its consumer group
    restored: Mapping[str, Any] | None = None  # the savepoint that it began with: path, id, epoch, lineage, claim

    def encode(self) -> bytes:
        return seal(
            _KIND,
            {
                "id": self.id,
                "created_ms": self.created_ms,
                "sinks": dict(self.sinks),
                "sources": list(self.sources),
                "config": dict(self.config),
                "query_name": self.query_name,
                "operators": {uid: dict(description) for uid, description in self.operators.items()},
                **({"groups": dict(self.groups)} if self.groups else {}),
                **({} if self.restored is None else {"restored": dict(self.restored)}),
            },
        )

    @classmethod
    def decode(cls, data: bytes, where: str) -> Lineage:
        fields = unseal_fields(_KIND, data, where)
        if "operators" in fields:
            operators = fields.fields("operators")
            for uid in operators:
                check_operator(operators.fields(uid))
        return cls(
            id=fields.name("id"),
            created_ms=fields.integer("created_ms"),
            sinks=fields.text_values("sinks"),
            sources=tuple(fields.texts("sources")),
            config=fields.json_object("config"),
            query_name=None if fields.is_null("query_name") else fields.text("query_name"),
            operators=fields.objects("operators") if "operators" in fields else {},
            groups=fields.text_values("groups") if "groups" in fields else {},
            restored=_restored(fields) if "restored" in fields else None,
        )


def _restored(fields: Fields) -> dict[str, Any]:
    inner = fields.fields("restored")
    inner.text("path")
    inner.name("savepoint")
    inner.name("lineage")
    inner.count("epoch")
    inner.flag("claim")
    if "rewound" in inner:
        inner.flag("rewound")
    return fields.json_object("restored")


def check_operator(fields: Fields) -> None:
    """What is stored of an operator is compared, merged and shown, and must be what :func:`describe` made."""
    fields.name("uid")  # becomes part of paths
    fields.text("backend")
    for name in ("max_parallelism", "position"):
        fields.count(name)
    for name in ("timers", "ticks"):
        fields.flag(name)
    if PLACED in fields:
        fields.flag(PLACED)
    for part in fields.list_of_fields("key"):
        part.text("name")
        _check_type(part, "type")
    states = fields.fields("states")
    for name in states:
        state = states.fields(name)
        state.text("kind")
        types = state.fields("types")
        for role in types:
            _check_type(types, role)
        if "ttl" in state:
            ttl = state.fields("ttl")
            ttl.count("millis")
            ttl.text("update")


def require_placed(operator: Mapping[str, Any], where: str) -> None:
    """Before there were releases, key groups were elsewhere: they would not be found."""
    if not operator.get(PLACED):
        raise StateMigrationError(
            f"operator {operator['uid']!r}: its key groups in {where} are where an earlier Lockstep has put them. "
            "Take a savepoint with that version, and start from it in a new directory."
        )


def _check_type(fields: Fields, name: str) -> None:
    try:
        parse_type(fields.text(name))
    except ConfigurationError as error:
        raise fields.refusal(f"{name} is no type: {error}") from error


def read_lineage(storage: Storage) -> Lineage | None:
    """The lineage of the directory, or ``None`` when Lockstep has not used it."""
    data = storage.read(PATH)
    return None if data is None else Lineage.decode(data, f"{storage.describe()}/{PATH}")


def continue_or_begin(storage: Storage, now: Lineage) -> Lineage:
    """Continue the directory's lineage with the query as it looks ``now``, or begin a new one.

    Raises :class:`CheckpointDirectoryError` when the directory belongs to another query.
    """
    # Before the lineage is read, as another first start may be under way: it stores its lineage before all else.
    used = bool(storage.list("offsets"))
    ours = sorted(name for name in storage.list(_DIRECTORY) if not name.startswith("."))
    stored = read_lineage(storage)
    if stored is None:
        if ours:
            where = f"{storage.describe()}/{PATH}"
            raise CheckpointDirectoryError(
                f"{where} is gone, though Lockstep has used the directory: {_DIRECTORY} holds {', '.join(ours)}. Without it "
                "nobody knows what the sinks have committed. Restore it from a backup, or use a new checkpoint directory."
            )
        if used:
            raise CheckpointDirectoryError(
                f"{storage.describe()} is the checkpoint directory of a Spark query that was not started by Lockstep. "
                "Use a new directory; to continue where that query stopped, give the source its offsets "
                "(startup_mode=SPECIFIC_OFFSETS)."
            )
        if storage.create(PATH, now.encode()):
            return now
        stored = read_lineage(storage)
        if stored is None:
            raise CheckpointDirectoryError(
                f"{storage.describe()}/{PATH} appeared and vanished while the query started."
            )
    _refuse_another_query(storage, stored, now)
    operators = {
        uid: merged(stored.operators[uid], new) if uid in stored.operators else new
        for uid, new in now.operators.items()
    }
    return replace(now, id=stored.id, created_ms=stored.created_ms, operators=operators, restored=stored.restored)


def remember(storage: Storage, lineage: Lineage) -> None:
    """Store how the query looks now, once the start can't be refused any more."""
    if read_lineage(storage) != lineage:
        storage.write(PATH, lineage.encode())


def _refuse_another_query(storage: Storage, stored: Lineage, now: Lineage) -> None:
    _refuse_other_operators(storage, stored, now)
    if len(stored.sources) != len(now.sources):
        raise CheckpointDirectoryError(
            f"{storage.describe()} belongs to a query with {len(stored.sources)} sources ({', '.join(stored.sources)}); "
            f"this one has {len(now.sources)} ({', '.join(now.sources)}). Use another checkpoint directory."
        )
    for uid in stored.sinks.keys() & now.sinks.keys():
        if stored.sinks[uid] != now.sinks[uid]:
            raise CheckpointDirectoryError(
                f"{storage.describe()} belongs to a query whose sink {uid!r} is {stored.sinks[uid]}; now it is "
                f"{now.sinks[uid]}. Use another checkpoint directory, or give the new sink a uid of its own."
            )
    if stored.sinks and not stored.sinks.keys() & now.sinks.keys():
        raise CheckpointDirectoryError(
            f"{storage.describe()} belongs to another query: it has the sinks {', '.join(sorted(stored.sinks))}, this one "
            f"{', '.join(sorted(now.sinks))}. Use another checkpoint directory, or keep at least one sink's uid."
        )


def _refuse_other_operators(storage: Storage, stored: Lineage, now: Lineage) -> None:
    """State belongs to the operator with its uid, and must be readable by it."""
    lost = sorted(stored.operators.keys() - now.operators.keys())
    if lost:
        raise CheckpointDirectoryError(
            f"{storage.describe()} holds the state of the operator {', '.join(map(repr, lost))}, which this query lacks: it "
            f"has {', '.join(map(repr, sorted(now.operators))) or 'none'}. Keep the operator and its uid, or use another "
            "checkpoint directory."
        )
    for uid, before in stored.operators.items():
        refuse_incompatible(before, now.operators[uid])
        require_placed(before, storage.describe())
        if before["position"] != now.operators[uid]["position"]:
            raise StateMigrationError(
                f"operator {uid!r} has changed its place among the query's operators. Spark tells their state in "
                f"{storage.describe()} apart by their order alone: put them back, or use another checkpoint directory."
            )
        if before["ticks"] and not now.operators[uid]["ticks"]:
            raise StateMigrationError(
                f"operator {uid!r} had timers or union state in {storage.describe()}, and now has neither: Spark can't go "
                "on without its ticks. Keep on_timer, even if it does nothing any more, or use another checkpoint directory."
            )
        if before["backend"] != now.operators[uid]["backend"]:
            raise StateMigrationError(
                f"operator {uid!r}: its state in {storage.describe()} is kept by the state backend {before['backend']}, and "
                f"now it would be {now.operators[uid]['backend']}. Spark can't change that in a directory: set "
                f"state_backend back, or use another checkpoint directory."
            )
