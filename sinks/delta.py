"""Exactly-once to a Delta table."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from lockstep.errors import CheckpointDirectoryError, ConfigurationError, SchemaMismatchError
from lockstep.protocol.failpoint import reach
from lockstep.protocol.fields import Fields, parse_json
from lockstep.quoting import quoted
from lockstep.sinks.delta_checkpoints import TableCheckpoints
from lockstep.sinks.delta_log import DeltaTableLog, TableState
from lockstep.sinks.file_reader import hidden
from lockstep.sinks.handles import NEVER_IN_PATHS, handle_fields, metrics_of, staged_by
from lockstep.sinks.opening import refuse_all_but_append, refuse_old_copy
from lockstep.sinks.store_assignment import StoreAssignment
from lockstep.sinks.two_phase import (
    Attempt,
    CommitOutcome,
    CommitStatus,
    Handle,
    PreparedEpoch,
    SinkContext,
    TwoPhaseCommitSink,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)
_PHYSICAL = "delta.columnMapping.physicalName"
_DATA_FILE = re.compile(r"part-[0-9]+-[0-9A-Za-z._-]+\.parquet")
EPOCH_TAG = "lockstep.epoch"  # of a data file: by it, files of one epoch are told from those committed with them
_FORGETTING = "delta.setTransactionRetentionDuration"


class DeltaSink(TwoPhaseCommitSink):
    """Appends epochs to a Delta table; each becomes visible in one table version, once, after Spark has decided it.

    Phase 1 writes data files with Delta's own writer (constraints and generated columns honoured, statistics collected)
    and leaves the table's log alone, so readers see nothing. Phase 2 adds the files to the log together with an
    application transaction (lineage and uid → epoch), by which any later process knows what is committed. Epochs that
    piled up are committed in one table version.

    Other writers, OPTIMIZE and VACUUM may work on the table at the same time. When its schema, partitioning, constraints
    or protocol change between the two phases, the epoch is staged again from its own files and checked anew.

    Parameters
    ----------
    path, table
        Exactly one: the table's directory (any Hadoop file system), or its name in the catalog. It is created if missing.
    partition_by
        Columns to partition a new table by; for an existing one they must agree.
    merge_schema
        Add columns that the rows have and the table lacks. Otherwise such rows are refused.
    properties
        Table properties (``TBLPROPERTIES``) of a new table.
    """

    reads_whole_batch = True

    def __init__(
        self,
        path: str | None = None,
        *,
        table: str | None = None,
        partition_by: Sequence[str] = (),
        merge_schema: bool = False,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        if (path is None) == (table is None):
            raise ConfigurationError("DeltaSink takes either path= (a directory) or table= (a name in the catalog).")
        if isinstance(partition_by, str):
            partition_by = (partition_by,)
        self._path = str(path) if path is not None else None
        self._table = table
        self._partition_by = tuple(partition_by)
        self._merge_schema = merge_schema
        self._properties = dict(properties or {})
        self._staged: dict[str, tuple[TableState, list[str]]] = {}  # by attempt, between write and pre_commit
        self._checkpoints: TableCheckpoints | None = None

    def describe(self) -> str:
        return f"Delta table {self._table or self._path}"

    # --- start ------------------------------------------------------------------------------------------------------

    def open(self, context: SinkContext) -> None:
        refuse_all_but_append(context, self)
        self._context = context
        self._app_id = f"lockstep-{context.lineage}-{context.uid}"
        self._create_if_missing(context.schema)
        self._delta = DeltaTableLog(context.spark, self._location())
        self._checkpoints = TableCheckpoints(self._delta)
        self._add_new_columns()
        state = self._delta.latest().state
        if self._partition_by and self._partition_by != state.partition_columns:
            raise ConfigurationError(
                f"{self.describe()} is partitioned by {list(state.partition_columns)}, not by partition_by="
                f"{list(self._partition_by)}. Leave partition_by out, or use another table."
            )
        self._assignment(context.schema, state).check()
        self._refuse_forgetful_table()
        refuse_old_copy(context, self, self._delta.transaction_version(self._app_id))

    def _create_if_missing(self, schema: StructType) -> None:
        from delta.tables import DeltaTable

        spark = self._context.spark
        if self._path is not None:
            exists = DeltaTableLog(spark, self._path).exists()
        else:
            exists = spark.catalog.tableExists(str(self._table))
        if exists:
            return
        builder = DeltaTable.createIfNotExists(spark)
        builder = builder.location(self._path) if self._path is not None else builder.tableName(str(self._table))
        builder = builder.addColumns(_nullable(schema))
        if self._partition_by:
            builder = builder.partitionedBy(*self._partition_by)
        for key, value in self._properties.items():
            builder = builder.property(key, value)
        builder.execute()
        _log.info("created %s", self.describe())

    def _location(self) -> str:
        if self._path is not None:
            return self._path
        from delta.tables import DeltaTable

        detail = DeltaTable.forName(self._context.spark, str(self._table)).detail().first()
        if detail is None or detail["format"] != "delta":
            raise ConfigurationError(f"{self._table} is not a Delta table.")
        return str(detail["location"])

    def _add_new_columns(self) -> None:
        """A schema change is a commit of its own, before anything is staged under it."""
        context = self._context
        new = self._assignment(context.schema, self._delta.latest().state).new_columns()
        if new and self._merge_schema:
            columns = ", ".join(f"{quoted(name)} {context.schema[name].dataType.simpleString()}" for name in new)
            context.spark.sql(f"ALTER TABLE delta.{quoted(self._delta.path)} ADD COLUMNS ({columns})")
            _log.info("%s: added columns %s", self.describe(), ", ".join(new))

    def _refuse_forgetful_table(self) -> None:
        if _FORGETTING in self._delta.settings():
            raise ConfigurationError(
                f"{self.describe()} has the property {_FORGETTING}, after which Delta forgets which epochs are committed: "
                f"rows could be repeated. Remove it: ALTER TABLE ... UNSET TBLPROPERTIES ('{_FORGETTING}')."
            )

    # --- phase 1 ----------------------------------------------------------------------------------------------------

    def begin(self, attempt: Attempt) -> Handle:
        return {"attempt": attempt.id}

    def write(self, handle: Handle, batch: DataFrame) -> None:
        view = self._delta.known()
        assignment = self._assignment(batch.schema, view.state)
        assignment.check()
        self._staged[handle["attempt"]] = (view.state, self._delta.stage(assignment.apply(batch), view))

    def pre_commit(self, handle: Handle) -> Handle:
        state, actions = self._staged.pop(handle["attempt"])
        return self._handle(handle["attempt"], state, actions)

    def _handle(self, attempt_id: str, state: TableState, actions: list[str]) -> Handle:
        adds = [checked_add(action, self.describe()) for action in actions]
        rows = sum(int(json.loads(add.get("stats") or "{}").get("numRecords", 0)) for add in adds)
        return {
            "attempt": attempt_id,
            "path": self._delta.path,
            "table": state.to_json(),
            "actions": actions,
            "metrics": {"rows": rows, "bytes": sum(int(add["size"]) for add in adds), "files": len(adds)},
        }

    def abort(self, attempt: Attempt, handle: Handle) -> None:
        self._staged.pop(staged_by(handle_fields(handle, self.describe(), attempt.epoch), attempt.epoch), None)
        paths = [add["path"] for add in self._adds(handle, attempt.epoch)] if "actions" in handle else []
        if paths and not self._delta.referenced(paths):
            self._delta.delete_files(paths)

    # --- phase 2 ----------------------------------------------------------------------------------------------------

    def refresh(self, prepared: PreparedEpoch) -> Handle | None:
        staged = self._staged_under(prepared)
        if self._delta.known().state == staged:
            return None  # when that is behind, the commit itself finds out and asks to come back here
        view = self._delta.latest()
        if view.state == staged or self._delta.transaction_version(self._app_id) >= prepared.epoch:
            return None
        _log.warning("%s has changed since epoch %d was staged: staging it again", self.describe(), prepared.epoch)
        rows = _with_names_of_now(self._read_staged(prepared, staged), staged, view.state)
        assignment = self._assignment(rows.schema, view.state)
        try:
            assignment.check()
        except SchemaMismatchError as error:
            raise SchemaMismatchError(
                f"epoch {prepared.epoch} was staged before {self.describe()} was changed, and does not fit any more: {error}"
            ) from error
        fresh = self._handle(prepared.attempt.id, view.state, self._delta.stage(assignment.apply(rows), view))
        if fresh["metrics"]["rows"] != prepared.handle["metrics"]["rows"]:
            raise ValueError(
                f"epoch {prepared.epoch}: not as many rows were staged again as before: are files missing?"
            )
        return fresh

    def commit(self, prepared: PreparedEpoch) -> CommitOutcome:
        return self.commit_many([prepared])

    def commit_many(self, prepared: Sequence[PreparedEpoch]) -> CommitOutcome:
        """All epochs in one table version. Those that are in the table already are left out."""
        last = prepared[-1]
        transaction = self._delta.begin_commit()
        committed = transaction.transaction_version(self._app_id)
        todo = [one for one in prepared if one.epoch > committed]
        by_attempt = self._committed_attempt(committed) if len(todo) < len(prepared) else None
        if not todo:
            return CommitOutcome.already_done(by_attempt)
        state = transaction.state()
        if any(self._staged_under(one) != state for one in todo):
            return CommitOutcome.retry("the table has changed since the epoch was staged; it is staged again")
        named = [self._adds(one.handle, one.epoch) for one in todo]
        metrics = _sum([metrics_of(self._fields(one), len(found)) for one, found in zip(todo, named, strict=True)])
        adds = [add for found in named for add in found]
        tagged = [
            {**add, "tags": {**(add.get("tags") or {}), EPOCH_TAG: str(one.epoch)}}
            for one, found in zip(todo, named, strict=True)
            for add in found
        ]
        if not adds:
            return CommitOutcome(CommitStatus.DONE, by_attempt=by_attempt)  # empty epochs leave no trace in the table
        if wrong := self._delta.missing_files({add["path"]: int(add["size"]) for add in adds}):
            return CommitOutcome.failed(
                f"{len(wrong)} staged data files are gone or were changed (first: {wrong[0]}), probably removed by VACUUM "
                "with a retention shorter than the commit was delayed. Restore them from versioned storage or a backup."
            )
        reach("delta.commit.before")
        self._context.token()  # an overtaken driver is refused; one that is overtaken from here on, by Delta itself
        version = transaction.commit(
            [json.dumps({"add": add}) for add in tagged],  # what was looked at, however the handle spelled it
            app_id=self._app_id,
            version=last.epoch,
            now_ms=time.time_ns() // 1_000_000,
            metrics={
                "numAddedFiles": metrics["files"],
                "numRemovedFiles": 0,
                "numOutputRows": metrics["rows"],
                "numOutputBytes": metrics["bytes"],
            },
            query_id=self._context.lineage,
            user_metadata=json.dumps({"lockstep": {"epochs": [one.epoch for one in todo]}, "attempt": last.attempt.id}),
        )
        reach("delta.commit.after")
        if self._checkpoints is not None:
            self._checkpoints.after_commit()
        return CommitOutcome(
            CommitStatus.DONE,
            by_attempt=by_attempt,
            details={"version": version, "path": self._delta.location, **metrics},
        )

    def newest_epoch_of(self, lineage: str) -> int | None:
        return self._delta.transaction_version(f"lockstep-{lineage}-{self._context.uid}")

    def max_pending_seconds(self) -> float | None:
        return self._delta.tombstone_retention_seconds() / 2

    def close(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.close()

    # --- inside -----------------------------------------------------------------------------------------------------

    def _committed_attempt(self, epoch: int) -> str | None:
        """Which attempt of ``epoch`` is in the table, from the log."""
        try:
            told = parse_json(self._delta.committed_by(self._app_id, epoch) or "{}")
        except ValueError:
            return None  # somebody else's words
        attempt_id = told.get("attempt") if isinstance(told, dict) else None
        return attempt_id if isinstance(attempt_id, str) else None

    def _fields(self, prepared: PreparedEpoch) -> Fields:
        return handle_fields(prepared.handle, self.describe(), prepared.epoch)

    def _staged_under(self, prepared: PreparedEpoch) -> TableState:
        return TableState.from_fields(self._fields(prepared).fields("table"))

    def _adds(self, handle: Handle, epoch: int) -> list[dict[str, Any]]:
        """The files that a handle names: those of this table, and no others."""
        fields = handle_fields(handle, self.describe(), epoch)
        if fields.text("path") != self._delta.path:
            raise fields.refusal(
                f"its files were staged in {fields.text('path')!r}, and the table is {self._delta.path!r}."
            )
        return [checked_add(action, self.describe()) for action in fields.texts("actions")]

    def _assignment(self, rows: StructType, state: TableState) -> StoreAssignment:
        from pyspark.sql.types import StructType

        table = StructType.fromJson(json.loads(state.schema))
        return StoreAssignment(self._context.spark, rows, table, self.describe())

    def _read_staged(self, prepared: PreparedEpoch, state: TableState) -> DataFrame:
        """The rows of the staged files, with the schema under which they were staged."""
        from functools import reduce

        from pyspark.sql import DataFrame
        from pyspark.sql import functions as F
        from pyspark.sql.types import StructType

        adds_of_epoch = self._adds(prepared.handle, prepared.epoch)
        metrics_of(self._fields(prepared), len(adds_of_epoch))
        try:
            schema = StructType.fromJson(json.loads(state.schema))
        except Exception as error:  # whatever pyspark makes of a text that is no schema
            raise self._fields(prepared).wrong("table.schema", state.schema, "a schema of Spark's") from error
        physical = {f.name: f.metadata.get(_PHYSICAL, f.name) for f in schema.fields}
        stored = _as_in_files(StructType([f for f in schema.fields if f.name not in state.partition_columns]))
        groups: dict[str, list[dict[str, Any]]] = {}
        for add in adds_of_epoch:
            groups.setdefault(json.dumps(add["partitionValues"], sort_keys=True), []).append(add)
        spark = self._context.spark
        parts = []
        for adds in groups.values():
            frame = spark.read.schema(stored).parquet(*[self._delta.absolute(add["path"]) for add in adds])
            values = adds[0]["partitionValues"]
            parts.append(
                frame.select(
                    *[
                        F.lit(values[physical[f.name]]).cast(f.dataType).alias(f.name)
                        if f.name in state.partition_columns
                        else F.col(quoted(physical[f.name])).cast(_nullable(f.dataType)).alias(f.name)
                        for f in schema.fields
                        if "delta.generationExpression" not in f.metadata
                    ]
                )
            )
        return reduce(DataFrame.unionByName, parts) if parts else spark.createDataFrame([], schema)


def _as_in_files(data_type: Any) -> Any:
    """The type as parquet files have it: Delta's physical names, at every depth, and everything nullable."""
    from pyspark.sql.types import StructField

    def named(field: StructField) -> StructField:
        return StructField(field.metadata.get(_PHYSICAL, field.name), _as_in_files(field.dataType), True)

    return _rebuilt(data_type, named, _as_in_files)


def _nullable(data_type: Any) -> Any:
    """The type without NOT NULL, at every depth: what a sink creates or reads must take any row of the query."""
    from pyspark.sql.types import StructField

    def relaxed(field: StructField) -> StructField:
        return StructField(field.name, _nullable(field.dataType), True, field.metadata)

    return _rebuilt(data_type, relaxed, _nullable)


def _rebuilt(data_type: Any, field: Any, inner: Any) -> Any:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(data_type, StructType):
        return StructType([field(one) for one in data_type.fields])
    if isinstance(data_type, ArrayType):
        return ArrayType(inner(data_type.elementType), True)
    if isinstance(data_type, MapType):
        return MapType(inner(data_type.keyType), inner(data_type.valueType), True)
    return data_type


def _with_names_of_now(rows: DataFrame, staged: TableState, now: TableState) -> DataFrame:
    """Columns that were renamed since, under their new names; without those that were dropped.

    Only tables with column mapping allow either; there the physical name tells which column is which.
    """
    if "delta.columnMapping.mode" not in now.settings:
        return rows
    names = {f["metadata"].get(_PHYSICAL, f["name"]): f["name"] for f in json.loads(now.schema)["fields"]}
    physical = {f["name"]: f["metadata"].get(_PHYSICAL, f["name"]) for f in json.loads(staged.schema)["fields"]}
    gone = [name for name in rows.columns if physical[name] not in names]
    return rows.drop(*gone).withColumnsRenamed({name: names[p] for name, p in physical.items() if p in names})


def checked_add(action: str, target: str) -> dict[str, Any]:
    """The AddFile of a handle's action; anything else, or a path that is none of the table's data files, is refused."""
    remedy = "The prepare record was edited: restore lockstep/prepared in the checkpoint directory from a backup."
    try:
        parsed = Fields(parse_json(action), f"{target}: a handle", "file action", remedy)
    except ValueError as error:
        raise CheckpointDirectoryError(
            f"{target}: a handle holds something that is not a file action: {error}. {remedy}"
        ) from error
    if list(parsed) != ["add"]:
        raise parsed.refusal(f"it holds {', '.join(parsed)[:80]!r}; only files of the table may be added.")
    fields = parsed.fields("add")
    path = unquote(fields.text("path"))
    directories, _, name = path.rpartition("/")
    inside = all(piece and not hidden(piece) for piece in directories.split("/")) if directories else path == name
    if not inside or NEVER_IN_PATHS.search(path) or not _DATA_FILE.fullmatch(name):
        raise parsed.refusal(f"it adds {path[:200]!r}; only data files of the table may be added.")
    if "deletionVector" in fields and not fields.is_null("deletionVector"):
        raise parsed.refusal("it adds a deletion vector, which no file that was just staged has.")
    fields.count("size")
    if "tags" in fields and not fields.is_null("tags"):
        fields.text_values("tags")
    values = fields.json_object("partitionValues")
    if not all(value is None or isinstance(value, str) for value in values.values()):
        raise fields.wrong("partitionValues", values, "texts by column")
    return parsed.json_object("add")


def _sum(metrics: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return {name: sum(one[name] for one in metrics) for name in ("rows", "bytes", "files")}
