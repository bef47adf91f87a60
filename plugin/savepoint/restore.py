"""Begins a lineage from a savepoint: positions, state by uid, watermark and timers, in a new checkpoint directory.

1. Everything that can be checked is checked: nothing is written before.
2. A mark is left in the new directory. Whoever finds it without a lineage beside it begins again.
3. The savepoint's key groups are copied into the directory: from here on the savepoint is not needed.
4. Spark's own files are written: an epoch 0 that has read up to the barrier and left the saved state.
5. Checkpoint 0 is stored: complete, and committed, since it brings no rows.
6. The lineage is stored. **From here on the query is restored**; a start continues it, whatever ``restoreFrom`` says.
7. The mark and the copies are removed.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lockstep.engine.state_backend import settings_at_start
from lockstep.engine.storage import open_storage
from lockstep.errors import CheckpointDirectoryError, ConfigurationError
from lockstep.protocol.barrier import Barrier, CheckpointKind
from lockstep.protocol.checkpoint import CompletedCheckpoint
from lockstep.protocol.completed_store import CompletedCheckpointStore
from lockstep.protocol.coordinator import CheckpointListener
from lockstep.protocol.failpoint import reach
from lockstep.protocol.fencing import FencingToken
from lockstep.protocol.lineage import PATH as LINEAGE
from lockstep.protocol.lineage import Lineage, read_lineage
from lockstep.protocol.savepoint import METADATA, SOURCES, Savepoint, read_savepoint
from lockstep.protocol.storage import Storage
from lockstep.savepoint.disposal import dispose
from lockstep.savepoint.groups import SCHEMA, require_contents, write_groups
from lockstep.savepoint.origin import Origin, is_checkpoint, open_origin
from lockstep.savepoint.source_positions import Carried, carry_over
from lockstep.savepoint.spark_directory import WORKSHOP, NewDirectory, Start
from lockstep.savepoint.unfinished import refuse_unfinished_rewind
from lockstep.sources.plan import KafkaStream, StreamSource
from lockstep.state.operator_spec import merged, refuse_incompatible

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lockstep.config import StateBackend

_log = logging.getLogger(__name__)
MARK = f"{WORKSHOP}/mark"
SPARKS_OWN = ("offsets", "commits", "state", "sources", "metadata", ".metadata.crc")
_STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"


class RestoreMode:
    """Who owns the savepoint afterwards, as in Flink."""

    CLAIM = "claim"  # the query: it is removed when the first checkpoint after the restore is committed
    NO_CLAIM = "no_claim"  # whoever made it: it is left alone


@dataclass(frozen=True)
class RestoreRequest:
    """What a user asks for with ``restoreFrom`` and its companions."""

    path: str
    claim: bool = False
    allow_missing: bool = False  # Flink's allowNonRestoredState
    rewound: bool = False  # the tables were taken back too

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> RestoreRequest | None:
        given = [key for key in (MODE, ALLOW) if key in options]
        if FROM not in options:
            if given:
                raise ConfigurationError(f"option {given[0]} needs the option {FROM}: say which savepoint.")
            return None
        mode = options.get(MODE, RestoreMode.NO_CLAIM)
        if mode.lower() not in (RestoreMode.CLAIM, RestoreMode.NO_CLAIM):
            raise ConfigurationError(f"option {MODE}={mode!r}: use claim or no_claim.")
        allow = options.get(ALLOW, "false").lower()
        if allow not in ("true", "false"):
            raise ConfigurationError(f"option {ALLOW}={options[ALLOW]!r}: use true or false.")
        return cls(options[FROM], mode.lower() == RestoreMode.CLAIM, allow == "true")


FROM, MODE, ALLOW = "restoreFrom", "restoreMode", "allowNonRestoredState"
OPTIONS = (FROM, MODE, ALLOW)


@dataclass(frozen=True)
class NewQuery:
    """The query that is to be restored, as far as it matters here."""

    spark: SparkSession
    storage: Storage
    location: str
    lineage: Lineage  # as it will be stored
    sources: Sequence[StreamSource]
    backend: StateBackend | None


def restore(query: NewQuery, request: RestoreRequest) -> bool:
    """Restore ``query`` if its directory is new. ``False`` when it has a lineage: then it continues where it was."""
    if read_lineage(query.storage) is not None:
        _log.info("%s has a checkpoint, which wins over restoreFrom", query.storage.describe())
        return False
    refuse_used(query.storage)
    origin = open_origin(query.spark, request.path)  # 1.
    return install(query, origin, _check(query, origin.record, request), request)


def install(query: NewQuery, origin: Origin, carried: Carried, request: RestoreRequest) -> bool:
    """Steps 2 to 7. ``False`` when another driver has restored the directory meanwhile."""
    refuse_unmovable(query)
    token = _begin(query.storage, request)  # 2.
    if token is None:
        return False
    workshop = f"{WORKSHOP}/{token.value}"
    groups = _copy_state(query, origin, workshop)  # 3.
    token.check()
    _copy_logs(query.storage, origin, carried)
    reach("restore.copied")
    barrier = _barrier(origin.record, carried)
    start = Start(carried.positions, barrier.timestamp_ms, barrier.watermark_ms)
    with settings_at_start(query.spark, query.backend, 1):  # 4.
        directory = NewDirectory(query.spark, query.storage, query.location, workshop, token.check)
        directory.write(start, groups)
    token.check()
    _store_checkpoint(query, origin.record, request, barrier)  # 5.
    reach("restore.before")
    token.check()
    lineage = _lineage(query.lineage, origin.record, request)
    if not query.storage.create(LINEAGE, lineage.encode()):  # 6.
        raise CheckpointDirectoryError(f"{query.storage.describe()} was taken by another query while it was restored.")
    reach("restore.after")
    query.storage.delete(WORKSHOP)  # 7.
    for remark in carried.remarks:
        _log.warning("restored from %s: %s", request.path, remark)
    _log.info("restored from %s: epoch %d of lineage %s", request.path, origin.record.epoch, origin.record.lineage)
    return True


def refuse_unmovable(query: NewQuery) -> None:
    """What the new query's settings can't have."""
    if query.lineage.operators and str(query.spark.conf.get(_STATE_FORMAT, "1")) == "2":
        raise ConfigurationError(
            f"{_STATE_FORMAT}=2: state that was written elsewhere can't be put into this format. Set it to 1."
        )


def refuse_interrupted(storage: Storage, restoring: bool) -> None:
    """A directory that is half of something is not a query's; what only has to be tidied up is."""
    refuse_unfinished_rewind(storage)
    if not storage.exists(MARK):
        return
    if read_lineage(storage) is not None:  # interrupted between steps 6 and 7
        storage.delete(WORKSHOP)
    elif not restoring:
        raise CheckpointDirectoryError(
            f"{storage.describe()}: a restore from a savepoint was interrupted. Start with {FROM} again; or use a new "
            "checkpoint directory."
        )


def refuse_used(storage: Storage) -> None:
    """A restore that was interrupted may begin again; anything else in the directory is somebody's."""
    there = [name for name in storage.list("") if not name.startswith(".")]
    if there and not storage.exists(MARK):
        raise CheckpointDirectoryError(
            f"{storage.describe()} is not empty ({', '.join(sorted(there)[:5])}), and a savepoint is restored into a new "
            "checkpoint directory. Give another checkpointLocation."
        )


def _check(query: NewQuery, saved: Savepoint, request: RestoreRequest) -> Carried:
    new = query.lineage.operators
    dropped = sorted(saved.operators.keys() - new.keys())
    if dropped and not request.allow_missing:
        raise CheckpointDirectoryError(
            f"the savepoint {request.path} has state of operator {', '.join(map(repr, dropped))}, which this query lacks "
            f"(it has {', '.join(map(repr, sorted(new))) or 'none'}). Keep its uid, or set "
            f"{ALLOW}=true to drop that state."
        )
    for uid in saved.operators.keys() & new.keys():
        refuse_incompatible(saved.operators[uid].description, new[uid])
    carried = carry_over(saved, query.sources, request.allow_missing)
    for source in query.sources:
        if isinstance(source, KafkaStream) and carried.positions[source.index] is None and source.startup_problem:
            raise ConfigurationError(f"{source.description} is not in the savepoint, and {source.startup_problem}")
    return carried


def _begin(storage: Storage, request: RestoreRequest) -> FencingToken | None:
    """Of two drivers that restore into one directory, the later begins again, and the earlier is refused."""
    first = storage.create(MARK, json.dumps({"from": request.path}).encode())
    token = FencingToken.take(storage, f"restore {socket.gethostname()}:{os.getpid()}")
    if read_lineage(storage) is not None:  # another driver was faster
        storage.delete(MARK)
        return None
    if not first:
        _log.warning("%s: an earlier restore was interrupted; it begins again", storage.describe())
        empty(storage)
        for name in storage.list(WORKSHOP):
            if name != "mark":
                storage.delete(f"{WORKSHOP}/{name}")
    reach("restore.marked")
    return token


def empty(storage: Storage) -> None:
    """Remove what belongs to a query; tokens stay, and what is at work here."""
    for name in storage.list(""):
        if name in SPARKS_OWN:
            storage.delete(name)
    for name in storage.list("lockstep"):
        if name not in ("restoring", "rewind", "tokens"):
            storage.delete(f"lockstep/{name}")


def _copy_state(query: NewQuery, origin: Origin, workshop: str) -> dict[int, str]:
    """The key groups of every operator of the query, by Spark's number; none for those that are new."""
    copies: dict[int, str] = {}
    for uid, description in query.lineage.operators.items():
        place = f"{query.location.rstrip('/')}/{workshop}/groups-{uid}"
        saved = origin.record.operators.get(uid)
        frame = query.spark.createDataFrame([], SCHEMA) if saved is None else origin.groups(uid)
        found = write_groups(frame, place)
        if saved is not None and saved.contents.groups:
            require_contents(found, saved.contents, uid, place)
        copies[int(description["position"])] = place
    return copies


def _copy_logs(storage: Storage, origin: Origin, carried: Carried) -> None:
    logs = origin.source_logs()
    for new, old in carried.logs.items():
        for name in logs.list(f"{SOURCES}/{old}"):
            data = None if name.startswith(".") else logs.read(f"{SOURCES}/{old}/{name}")
            if data is not None:
                storage.write(f"{SOURCES}/{new}/{name}", data)


def _barrier(saved: Savepoint, carried: Carried) -> Barrier:
    """Where the new query stands before it has read anything: its epoch 0."""
    return Barrier(0, saved.barrier.timestamp_ms, saved.watermark_ms, carried.positions, CheckpointKind.SAVEPOINT)


def _store_checkpoint(query: NewQuery, saved: Savepoint, request: RestoreRequest, barrier: Barrier) -> None:
    store = CompletedCheckpointStore(query.storage, retained=1)
    told: dict[str, Any] = {"savepoint": saved.id, "lineage": saved.lineage, "epoch": saved.epoch, "path": request.path}
    stored = store.add(
        CompletedCheckpoint(
            barrier=barrier,
            lineage=query.lineage.id,
            attempts={},
            triggered_ms=query.lineage.created_ms,
            completed_ms=query.lineage.created_ms,
            committed_ms=query.lineage.created_ms,
            reports={"restored": told},
        )
    )
    if stored.lineage != query.lineage.id:
        raise CheckpointDirectoryError(f"{query.storage.describe()} was taken by another query while it was restored.")


def _lineage(new: Lineage, saved: Savepoint, request: RestoreRequest) -> Lineage:
    operators = {
        uid: merged(saved.operators[uid].description, description) if uid in saved.operators else description
        for uid, description in new.operators.items()
    }
    restored: dict[str, Any] = {
        "savepoint": saved.id,
        "path": request.path,
        "epoch": saved.epoch,
        "lineage": saved.lineage,
    }
    if request.rewound:
        restored["rewound"] = True
    return replace(new, operators=operators, restored={**restored, "claim": request.claim})


class _Claim(CheckpointListener):
    """Removes the savepoint that a query was restored from, once it can't be needed any more."""

    def __init__(self, spark: SparkSession, restored: Mapping[str, Any]) -> None:
        self._spark, self._restored = spark, restored
        self._done = False

    def checkpoint_committed(self, checkpoint: CompletedCheckpoint) -> None:
        if self._done or checkpoint.id == 0:
            return
        self._done = True
        storage = open_storage(self._spark, self._restored["path"])
        if storage.exists(METADATA) and read_savepoint(storage).id == self._restored["savepoint"]:
            dispose(storage)
            _log.info("the claimed savepoint %s was removed", storage.describe())


def claims(spark: SparkSession, lineage: Lineage) -> list[CheckpointListener]:
    """Who is to be told of commits on behalf of a claimed savepoint."""
    restored = lineage.restored
    if restored is None or not restored["claim"] or is_checkpoint(restored["path"]):
        return []
    return [_Claim(spark, restored)]
