"""The only place that talks to Delta's internals: stage data files, commit them later, look at the table.

The calls used here have the same signatures in Delta 4.0 to 4.4. Everything goes through py4j into the driver's JVM;
rows never do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from lockstep.engine.jvm import jvm_of
from lockstep.errors import ConfigurationError
from lockstep.protocol.fields import Fields

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ENTRIES_TO_READ = 100
_HUGE = 32 * 1024 * 1024  # bytes of an entry: it would go through py4j as one text
_BEYOND = 2**62  # any epoch
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_SNAPSHOT_PARTITIONS = "spark.databricks.delta.snapshotPartitions"
_TELL_OF_FAILED_CHECKPOINTS = "spark.databricks.delta.checkpoint.exceptionThrowing.enabled"
_RELEVANT_SETTINGS = ("delta.constraints.", "delta.columnMapping.", "delta.invariants")


@dataclass(frozen=True)
class TableState:
    """What staged files depend on. Two equal states take the same files."""

    table_id: str
    schema: str  # Spark's JSON, with Delta's column metadata (generated columns, column mapping, identity)
    partition_columns: tuple[str, ...]
    settings: Mapping[str, str]
    protocol: str

    def to_json(self) -> dict[str, Any]:
        return {
            "table_id": self.table_id,
            "schema": self.schema,
            "partition_columns": list(self.partition_columns),
            "settings": dict(self.settings),
            "protocol": self.protocol,
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> TableState:
        """What ``to_json`` made, from a handle."""
        return cls(
            table_id=fields.text("table_id"),
            schema=fields.text("schema"),
            partition_columns=tuple(fields.texts("partition_columns")),
            settings=fields.text_values("settings"),
            protocol=fields.text("protocol"),
        )


class TableView:
    """One version of the table."""

    def __init__(self, snapshot: Any) -> None:
        self.snapshot = snapshot

    @cached_property
    def state(self) -> TableState:
        return _state(self.snapshot)


@dataclass(frozen=True)
class _Seen:
    """At ``version`` of the table, ``epoch`` is the highest that ``app_id`` has committed."""

    table_id: str
    version: int
    app_id: str
    epoch: int


class DeltaTableLog:
    """The transaction log of the Delta table at ``path``."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self.jvm = jvm_of(spark)
        self.path = path
        self.seen: _Seen | None = None

    @property
    def location(self) -> str:
        """The table's place, with its file system."""
        return str(self._log.dataPath().toString())

    @property
    def _delta(self) -> Any:
        return self.jvm.org.apache.spark.sql.delta

    @property
    def _log(self) -> Any:
        # cached by Delta itself; asking each time survives a table that was dropped and created again
        return self._delta.DeltaLog.forTable(self._spark._jsparkSession, self.path)

    def exists(self) -> bool:
        return bool(self._log.tableExists())

    def settings(self) -> dict[str, str]:
        """The table's properties."""
        return _settings(self._log.unsafeVolatileSnapshot().metadata())

    def latest(self) -> TableView:
        """The table as it is now."""
        return TableView(self._updated())

    def known(self) -> TableView:
        """The table as this driver last saw it. Costs nothing; may be behind: then the commit finds out."""
        return TableView(self._log.unsafeVolatileSnapshot())

    def transaction_version(self, app_id: str) -> int:
        """Highest epoch that ``app_id`` has committed; -1 for none."""
        return int(self._log.startTransaction().txnVersion(app_id))

    def tombstone_retention_seconds(self) -> float:
        """How old a file that the table does not refer to must be before VACUUM may remove it."""
        metadata = self._log.unsafeVolatileSnapshot().metadata()
        return float(self._delta.DeltaLog.tombstoneRetentionMillis(metadata)) / 1000

    def stage(self, rows: DataFrame, view: TableView) -> list[str]:
        """Write data files with Delta's own writer, and nothing to the log. Returns the file actions as JSON.

        The files are made for ``view``, the one that the rows were fitted to.
        """
        option = self.jvm.scala.Option
        transaction = self._log.startTransaction(option.empty(), option.apply(view.snapshot))
        actions = transaction.writeFiles(rows._jdf)
        return [actions.apply(i).json() for i in range(actions.size())]

    def begin_commit(self) -> DeltaCommit:
        """Start the transaction that commits staged files, on the newest version of the table."""
        self._use_own_session()
        return DeltaCommit(self, self._spark, self._log.startTransaction())

    def epoch_at(self, table_id: str, version: int, app_id: str) -> int | None:
        """Highest epoch of ``app_id`` at a version, from what was seen before and the entries since; ``None``: not known.

        Delta would work out the whole table's state to tell: a Spark job for each commit, of fifty tasks.
        """
        seen = self.seen
        if seen is None or (seen.table_id, seen.app_id) != (table_id, app_id):
            return None
        if not seen.version <= version <= seen.version + _ENTRIES_TO_READ:
            return None
        epoch = seen.epoch
        for entry in range(seen.version + 1, version + 1):
            lines = self._entry(entry)
            if lines is None:
                return None
            transactions = [json.loads(line).get("txn") or {} for line in lines if '"txn"' in line]
            epoch = max([epoch, *(txn["version"] for txn in transactions if txn.get("appId") == app_id)])
        return epoch

    def versions(self) -> tuple[int, int]:
        """The table's version and that of its newest checkpoint (or -1), as this driver last saw them."""
        snapshot = self._log.unsafeVolatileSnapshot()
        return int(snapshot.version()), int(snapshot.checkpointProvider().version())

    def checkpoint_interval(self) -> int | None:
        """After how many versions the table wants a checkpoint, if it says so itself."""
        return int(text) if (text := self.settings().get("delta.checkpointInterval")) else None

    def write_checkpoint(self) -> None:
        """Write a checkpoint of the table's newest version, and let Delta clean up its log."""
        self._use_own_session()
        self._log.checkpoint()

    def committed_by(self, app_id: str, version: int) -> str | None:
        """The user metadata of the commit that set ``app_id`` to ``version``, from the log's newest entries."""
        newest = int(self._updated().version())
        for table_version in range(newest, max(-1, newest - 1000), -1):
            lines = self._entry(table_version)
            if lines is None:
                return None
            actions = [json.loads(line) for line in lines]
            if any((a.get("txn") or {}).get("appId") == app_id and a["txn"]["version"] >= version for a in actions):
                return next((a["commitInfo"].get("userMetadata") for a in actions if "commitInfo" in a), None)
        return None

    # --- rewind ----------------------------------------------------------------------------------------------------

    def newest_version(self) -> int:
        return int(self._updated().version())

    def actions(self, version: int) -> list[dict[str, Any]] | None:
        """What one entry of the log holds; ``None`` when it is gone."""
        lines = self._entry(version)
        return None if lines is None else [json.loads(line) for line in lines]

    def missing_at(self, version: int) -> list[str]:
        """Data files of an older version that are not there any more."""
        files = self._spark.read.format("delta").option("versionAsOf", version).load(self.path).inputFiles()
        path, uri = self.jvm.org.apache.hadoop.fs.Path, self.jvm.java.net.URI
        return [file for file in files if not self._file_system.exists(path(uri(file)))]

    def restore(self, version: int, user_metadata: str) -> None:
        """Delta's RESTORE."""
        from delta.tables import DeltaTable

        with self._commit_message(user_metadata):
            DeltaTable.forPath(self._spark, self.path).restoreToVersion(version)

    def remove(self, adds: Sequence[str], user_metadata: str) -> None:
        """Take files that the table has out of it, in one commit."""
        delta = self.jvm.org.apache.spark.sql.delta
        now = self.jvm.java.lang.System.currentTimeMillis()
        removed = self.jvm.java.util.ArrayList()
        for add in adds:
            removed.add(delta.actions.Action.fromJson(add).removeWithTimestamp(now, True))
        with self._commit_message(user_metadata):
            transaction = self._log.startTransaction()
            transaction.filterFiles()
            transaction.commit(self.jvm.PythonUtils.toSeq(removed), self._manual())

    def seal(self, app_id: str, user_metadata: str) -> None:
        """Set an application transaction beyond all epochs: who still commits by it is refused."""
        delta = self.jvm.org.apache.spark.sql.delta
        some = self.jvm.scala.Option.apply
        actions = self.jvm.java.util.ArrayList()
        actions.add(delta.actions.SetTransaction(app_id, _BEYOND, some(self.jvm.java.lang.System.currentTimeMillis())))
        with self._commit_message(user_metadata):
            self._log.startTransaction().commit(self.jvm.PythonUtils.toSeq(actions), self._manual())

    def _manual(self) -> Any:
        return getattr(getattr(self._delta, "DeltaOperations$ManualUpdate$"), "MODULE$")

    def rewound(self, rewind_id: str, after: int) -> set[str]:
        """Which steps of a rewind are in the log, after a version."""
        found: set[str] = set()
        for version in range(after + 1, self.newest_version() + 1):
            actions = self.actions(version)
            if actions is None:
                raise ConfigurationError(f"{self.path}: entry {version} of the table's log can't be read.")
            for action in actions:
                text = (action.get("commitInfo") or {}).get("userMetadata") or ""
                if rewind_id in text:
                    found.add(json.loads(text)["lockstep"]["step"])
        return found

    @contextmanager
    def _commit_message(self, user_metadata: str) -> Iterator[None]:
        before = self._spark.conf.get(_USER_METADATA, None)
        self._spark.conf.set(_USER_METADATA, user_metadata)
        try:
            yield
        finally:
            if before is None:
                self._spark.conf.unset(_USER_METADATA)
            else:
                self._spark.conf.set(_USER_METADATA, before)

    # --- files ------------------------------------------------------------------------------------------------------

    def missing_files(self, sizes: Mapping[str, int]) -> list[str]:
        """Which of the staged files (paths as in the log, and their bytes) are not there as they were staged."""
        return [path for path, size in sizes.items() if self._size(path) != size]

    def referenced(self, paths: Sequence[str]) -> bool:
        """Whether the table refers, or until lately referred, to any of these files. Runs a small Spark job."""
        from pyspark.sql import DataFrame
        from pyspark.sql import functions as F

        snapshot = self._updated()
        for files in (snapshot.allFiles(), snapshot.tombstones()):
            if not DataFrame(files.toDF(), self._spark).where(F.col("path").isin(list(paths))).isEmpty():
                return True
        return False

    def delete_files(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._file_system.delete(self._absolute(path), False)

    def absolute(self, path: str) -> str:
        """Address of a data file, given its path as in the log."""
        return str(self._absolute(path).toString())

    def _size(self, path: str) -> int | None:
        place = self._absolute(path)
        return int(self._file_system.getFileStatus(place).getLen()) if self._file_system.exists(place) else None

    def _absolute(self, path: str) -> Any:
        return self.jvm.org.apache.hadoop.fs.Path(self._log.dataPath(), unquote(path))

    @cached_property
    def _file_system(self) -> Any:
        return self._log.dataPath().getFileSystem(self._log.newDeltaHadoopConf())

    def _updated(self) -> Any:
        option = self.jvm.scala.Option
        return self._log.update(False, option.empty(), option.empty())

    def _use_own_session(self) -> None:
        """Let this thread work on the log in a session like the user's, with settings of its own."""
        self.jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(self._own_session)

    @cached_property
    def _own_session(self) -> Any:
        session = self._spark._jsparkSession.cloneSession()
        if not session.conf().contains(_SNAPSHOT_PARTITIONS):  # fifty by default: too many for few cores
            tasks = 2 * self._spark.sparkContext.defaultParallelism
            session.conf().set(_SNAPSHOT_PARTITIONS, str(min(50, max(2, tasks))))
        session.conf().set(_TELL_OF_FAILED_CHECKPOINTS, "true")
        return session

    def _entry(self, version: int) -> list[str] | None:
        """The actions of one version, as JSON; ``None`` when its entry is not in its place in the log, or is huge."""
        text = self._read_text(f"{self._log.logPath().toString()}/{version:020d}.json")
        return None if text is None else [line for line in text.split("\n") if line]

    def _read_text(self, path: str) -> str | None:
        hadoop_path = self.jvm.org.apache.hadoop.fs.Path(path)
        if not self._file_system.exists(hadoop_path) or self._file_system.getFileStatus(hadoop_path).getLen() > _HUGE:
            return None
        stream = self._file_system.open(hadoop_path)
        try:
            return str(self.jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()


class DeltaCommit:
    """One transaction on the newest version of the table."""

    def __init__(self, table: DeltaTableLog, spark: SparkSession, transaction: Any) -> None:
        self._table = table
        self._spark = spark
        self._jvm = table.jvm
        self._transaction = transaction

    def state(self) -> TableState:
        return _state(self._transaction.snapshot())

    def transaction_version(self, app_id: str) -> int:
        """Highest epoch of ``app_id``. Reading it *here* makes Delta refuse this commit if another one sets it first."""
        snapshot = self._transaction.snapshot()
        table_id, version = str(snapshot.metadata().id()), int(snapshot.version())
        epoch = self._table.epoch_at(table_id, version, app_id)
        if epoch is None:
            epoch = int(self._transaction.txnVersion(app_id))
        else:
            self._transaction.readTxn().addOne(app_id)  # the rest of what txnVersion does
        self._table.seen = _Seen(table_id, version, app_id, epoch)
        return epoch

    def commit(
        self,
        actions: Sequence[str],
        app_id: str,
        version: int,
        now_ms: int,
        metrics: Mapping[str, int],
        query_id: str,
        user_metadata: str,
    ) -> int:
        """Add the files and set the application transaction, atomically. Returns the table's new version."""
        delta = self._jvm.org.apache.spark.sql.delta
        some = self._jvm.scala.Option.apply
        everything = self._jvm.java.util.ArrayList()
        for action in actions:
            everything.add(delta.actions.Action.fromJson(action))
        everything.add(delta.actions.SetTransaction(app_id, version, some(now_ms)))
        operation = getattr(delta, "DeltaOperations$StreamingUpdate")(
            self._jvm.org.apache.spark.sql.streaming.OutputMode.Append(), query_id, version, some(user_metadata)
        )
        self._register(metrics)
        self._transaction.postCommitHooks().subtractOne(_static(delta.hooks, "CheckpointHook$"))
        committed = int(self._transaction.commit(self._jvm.PythonUtils.toSeq(everything), operation))
        table_id = str(self._transaction.snapshot().metadata().id())
        self._table.seen = _Seen(table_id, committed, app_id, version)
        return committed

    def _register(self, metrics: Mapping[str, int]) -> None:
        context = self._spark.sparkContext._jsc.sc()
        registered = self._jvm.java.util.HashMap()
        for name, value in metrics.items():
            metric = self._jvm.org.apache.spark.sql.execution.metric.SQLMetrics.createMetric(context, name)
            metric.set(value)
            registered[name] = metric
        self._transaction.registerSQLMetrics(self._spark._jsparkSession, self._jvm.PythonUtils.toScalaMap(registered))


def _static(package: Any, name: str) -> Any:
    """The one instance of a Scala object."""
    return getattr(getattr(package, name), "MODULE$")


def _settings(metadata: Any) -> dict[str, str]:
    return dict(json.loads(metadata.json())["metaData"].get("configuration") or {})


def _state(snapshot: Any) -> TableState:
    metadata = json.loads(snapshot.metadata().json())["metaData"]
    settings = metadata.get("configuration") or {}
    return TableState(
        table_id=metadata["id"],
        schema=metadata["schemaString"],
        partition_columns=tuple(metadata["partitionColumns"]),
        settings={key: value for key, value in settings.items() if key.startswith(_RELEVANT_SETTINGS)},
        protocol=snapshot.protocol().json(),
    )
