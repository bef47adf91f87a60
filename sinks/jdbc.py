"""Exactly-once to a PostgreSQL table."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lockstep.errors import (
    CheckpointDirectoryError,
    ConfigurationError,
    EnvironmentProblemError,
    FencedError,
    SchemaMismatchError,
)
from lockstep.protocol.failpoint import reach
from lockstep.sinks import postgres_sql as sql
from lockstep.sinks.handles import handle_fields, metrics_of, staged_by
from lockstep.sinks.opening import refuse_old_copy
from lockstep.sinks.postgres_address import PostgresAddress
from lockstep.sinks.postgres_session import DRIVER, PostgresSession, SqlError, Transaction, redacted_errors
from lockstep.sinks.postgres_sql import TableName
from lockstep.sinks.postgres_target import PostgresTarget, columns_of, row_columns
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

_log = logging.getLogger(__name__)

_ONE_AT_A_TIME = (
    "SELECT pg_advisory_xact_lock(hashtext('lockstep.open'))::text"  # CREATE IF NOT EXISTS alone can collide
)
_CHECK_NOW = (
    "SET CONSTRAINTS ALL IMMEDIATE"  # a deferred one would be checked by COMMIT, where its failure says too little
)
_DO_NOT_WAIT = "SET LOCAL lock_timeout = '10s'"  # the next try, or the next start, comes back
_SIZE = "SELECT pg_total_relation_size(CAST(? AS regclass))"
_STAGES = (
    "SELECT c.relname, obj_description(c.oid, 'pg_class') FROM pg_catalog.pg_class c "
    "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
    "WHERE n.nspname = ? AND left(c.relname, length(?)) = ? AND c.relkind = 'r'"
)
_MODES = {"insert": ("append",), "upsert": ("append", "update")}


class JdbcSink(TwoPhaseCommitSink):
    """Fills a PostgreSQL table; each epoch becomes visible in one transaction, once, after Spark has decided it.

    Phase 1: Spark's JDBC writer puts the rows into a staging table of the epoch's own, beside the target and with its
    types, NOT NULLs and CHECKs: rows that break them fail before the decision. Phase 2, in one transaction of the
    database: the marker row of this sink (table ``lockstep_epochs``) is locked, the staged rows are moved to the target,
    and the marker gets the epoch. By the marker any later process knows what is committed, and a driver that was overtaken
    is stopped. Epochs that piled up are committed in one transaction.

    What only the whole target can tell (UNIQUE, FOREIGN KEY, triggers) shows in phase 2: the commit then fails, nothing is
    visible, and the epoch is committed at the next start once a person has removed the conflict.

    The PostgreSQL JDBC driver must be in ``spark.jars.packages``. The role needs CREATE on the target's schema, and SELECT,
    INSERT and (for upserts) UPDATE on the target.

    Parameters
    ----------
    url
        ``jdbc:postgresql://host:port/database``. What its query part holds is kept secret.
    table
        ``name`` or ``schema.name``, read as PostgreSQL reads it: put double quotes around parts with capitals or spaces.
        Without a schema: the first of ``currentSchema``, or ``public``.
    user, password
        Login. Never in logs, errors or the checkpoint directory.
    mode
        ``"insert"``, or ``"upsert"``: a row replaces the one with the same key; the last row of an epoch wins.
    key
        Columns that identify a row, for ``"upsert"`` alone. The table needs a unique index on exactly these.
    options
        Connection properties of the driver, and options of Spark's JDBC writer (``batchsize``, ``numPartitions``).
    create
        Create the table if it is missing.
    """

    reads_whole_batch = True

    def __init__(
        self,
        url: str,
        table: str,
        *,
        user: str | None = None,
        password: str | None = None,
        mode: str = "insert",
        key: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        create: bool = True,
    ) -> None:
        if mode not in _MODES:
            raise ConfigurationError(f"JdbcSink(mode={mode!r}): use 'insert' or 'upsert'.")
        self._key = (key,) if isinstance(key, str) else tuple(key)
        if (mode == "upsert") != bool(self._key):
            raise ConfigurationError(
                "JdbcSink(mode='upsert') needs key=, the columns that identify a row."
                if mode == "upsert"
                else "JdbcSink(mode='insert') takes no key=: rows are not compared. Leave it out, or use mode='upsert'."
            )
        self._mode = mode
        self._address = PostgresAddress.parse(url, user, password, options)
        self._table = TableName.parse(table, self._address.default_schema)
        self._marker = self._table.sibling(sql.MARKER)
        self._create = create

    def describe(self) -> str:
        # Without the host: a database may move. That it is another one shows in the marker.
        return f"PostgreSQL table {self._table} of database {self._address.database}"

    # --- start ------------------------------------------------------------------------------------------------------

    def open(self, context: SinkContext) -> None:
        if context.output_mode not in _MODES[self._mode]:
            raise ConfigurationError(
                f"{self.describe()}: output mode {context.output_mode!r} is not supported with mode={self._mode!r}. "
                f"Use outputMode('append'){'' if self._mode == 'upsert' else ', or update with mode=upsert'}."
            )
        rows = row_columns(context.schema, self._key, self.describe())
        self._context = context
        self._columns = [name for name, _ in rows]
        self._prefix = sql.stage_prefix(context.lineage, context.uid)
        self._staging = PostgresSession(context.spark, self._address)
        self._committing = PostgresSession(context.spark, self._address)  # on a thread of its own
        target = PostgresTarget(self._table, rows, self._key, self.describe())
        with self._explained(), self._staging.transaction() as transaction:
            transaction.execute(_DO_NOT_WAIT)
            transaction.query(_ONE_AT_A_TIME)
            target.find_or_create(transaction, create=self._create)
            transaction.execute(sql.create_marker(self._marker))
            self._check_marker(transaction)

    def _check_marker(self, transaction: Transaction) -> None:
        mine = (self._context.lineage, self._context.uid)
        if not self._context.returning:
            transaction.execute(sql.add_marker_row(self._marker), *mine)
        marked = transaction.query(sql.read_marker(self._marker, lock=False), *mine)
        if not marked:
            raise CheckpointDirectoryError(
                f"{self.describe()}: {self._marker} has no row of this query's sink {self._context.uid!r}, though it was "
                "opened before. The table was emptied, or this is another database: rows could be repeated. Restore the "
                "row, or start with a new checkpoint directory."
            )
        refuse_old_copy(self._context, self, int(marked[0][0] or 0))

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """What can be wrong with a database that was never reached before, and what to do about it."""
        try:
            yield
        except SqlError as error:
            schema = sql.quoted(self._table.schema)
            if error.state.startswith("28") or error.state == "08004":
                remedy = "Check user=, password= and the server's pg_hba.conf."
            elif error.state == "3D000":
                remedy = "Create the database, or correct its name in url=."
            elif error.state == "3F000":
                remedy = f"Create the schema: CREATE SCHEMA {schema}; or correct table=."
            elif error.state == "42501":
                remedy = f"Grant the role what it lacks, such as GRANT CREATE, USAGE ON SCHEMA {schema}, and ownership."
            elif error.state == "55P03":
                raise EnvironmentProblemError(
                    f"{self.describe()}: a lock was not free within 10 s: {error} Another driver is starting, or was paused "
                    "while it did. Try again."
                ) from error
            elif error.state[:2] in ("08", "53", "57"):
                raise EnvironmentProblemError(
                    f"{self.describe()}: the server can't be used: {error} Start it, or check host, port and firewall."
                ) from error
            else:
                raise
            raise ConfigurationError(f"{self.describe()}: {error} {remedy}") from error

    # --- phase 1 ----------------------------------------------------------------------------------------------------

    def begin(self, attempt: Attempt) -> Handle:
        stage = sql.stage_name(self._context.lineage, self._context.uid, attempt.id)
        return {"attempt": attempt.id, "stage": stage, "columns": self._columns}

    def write(self, handle: Handle, batch: DataFrame) -> None:
        from pyspark.sql import functions as F

        if batch.columns != handle["columns"]:
            raise SchemaMismatchError(
                f"{self.describe()}: the batch has the columns {batch.columns}, not {handle['columns']}."
            )
        stage = self._own_stage(handle)
        with self._staging.transaction() as transaction:
            table = columns_of(transaction, self._table)
            for statement in sql.create_stage(
                self._table,
                stage,
                columns=self._columns,
                table_columns=[column.name for column in table],
                key=self._key,
                comment=self._comment(handle),
            ):
                transaction.execute(statement)
        rows = batch.toDF(*sql.staged_names(self._columns)).withColumn(sql.ROW, F.monotonically_increasing_id())
        writer = rows.write.format("jdbc").mode("append").options(**self._address.properties)
        try:
            with redacted_errors(self._address):
                writer.options(url=self._address.url, driver=DRIVER, dbtable=stage.sql).save()
        except SqlError as error:
            raise SqlError(f"{self.describe()} does not take the rows: {error}", error.state) from None

    def pre_commit(self, handle: Handle) -> Handle:
        stage = self._own_stage(handle)
        with self._staging.transaction() as transaction:
            rows = int(transaction.query(f"SELECT count(*) FROM {stage.sql}")[0][0] or 0)
            size = int(transaction.query(_SIZE, stage.sql)[0][0] or 0) if rows else 0
            # Something to write, so that this commit waits for the disk, and with it for those of Spark's tasks before it.
            transaction.execute(sql.comment_on(stage, self._comment(handle)) if rows else sql.drop_stage(stage))
        return {**handle, "empty": rows == 0, "metrics": {"rows": rows, "bytes": size, "files": 0}}

    def abort(self, attempt: Attempt, handle: Handle) -> None:
        with self._staging.transaction() as transaction:
            transaction.execute(_DO_NOT_WAIT)
            transaction.execute(sql.drop_stage(self._stage(handle, attempt.epoch)))

    def clean_up(self, is_stray: Callable[[str], bool]) -> None:
        with self._staging.transaction() as transaction:
            transaction.execute(_DO_NOT_WAIT)
            for name, comment in transaction.query(_STAGES, self._table.schema, self._prefix, self._prefix):
                attempt_id = sql.staged_attempt(comment, self._context.lineage, self._context.uid)
                if name is not None and attempt_id is not None and is_stray(attempt_id):
                    transaction.execute(sql.drop_stage(self._table.sibling(name)))
                    _log.info("%s: dropped what attempt %s had staged", self.describe(), attempt_id)

    # --- phase 2 ----------------------------------------------------------------------------------------------------

    def commit(self, prepared: PreparedEpoch) -> CommitOutcome:
        return self.commit_many([prepared])

    def commit_many(self, prepared: Sequence[PreparedEpoch]) -> CommitOutcome:
        """All epochs in one transaction of the database. Those that are in the table already are left out.

        1. Lock the marker row: from here on no other driver commits for this sink.
        2. Look whether this driver may still commit.
        3. Move the rows of each epoch above the marker, in order, and drop its staging table.
        4. Advance the marker, and commit.
        """
        rows: dict[int, int] = {}
        for one in prepared:
            self._stage(one.handle, one.epoch)
            fields = handle_fields(one.handle, self.describe(), one.epoch)
            fields.texts("columns")
            rows[one.epoch] = metrics_of(fields, 0)["rows"]
            if fields.flag("empty") == bool(rows[one.epoch]):
                raise fields.refusal("it speaks of rows, and of an empty epoch.")
        moving: PreparedEpoch | None = None
        mine = (self._context.lineage, self._context.uid)
        try:
            with self._committing.transaction() as transaction:
                transaction.execute(_DO_NOT_WAIT)  # for a driver that was paused in the middle of this
                marked = transaction.query(sql.read_marker(self._marker, lock=True), *mine)  # 1.
                if not marked:
                    return CommitOutcome.failed(
                        f"{self._marker} has no row of sink {self._context.uid!r} any more, so nobody knows which epochs "
                        f"{self.describe()} has. Restore the row (epoch, attempt, token) and start again."
                    )
                committed, by_attempt = int(marked[0][0] or 0), marked[0][1] or None
                token = self._token(int(marked[0][2] or 0))  # 2.
                todo = [one for one in prepared if one.epoch > committed]
                if not todo:
                    return CommitOutcome.already_done(by_attempt)
                by_attempt = by_attempt if len(todo) < len(prepared) else None
                full = [one for one in todo if rows[one.epoch]]
                if not full:
                    return CommitOutcome(CommitStatus.DONE, by_attempt=by_attempt)  # empty epochs leave no trace
                for moving in full:  # 3.
                    stage = self._stage(moving.handle, moving.epoch)
                    transaction.execute(self._move(stage, moving.handle["columns"]))
                    transaction.execute(_CHECK_NOW)
                    transaction.execute(sql.drop_stage(stage))
                moving = None
                transaction.execute(sql.advance_marker(self._marker), todo[-1].epoch, todo[-1].attempt.id, token, *mine)
                reach("jdbc.commit.before")  # 4.
        except SqlError as error:
            reason = None if moving is None else self._reason(error, moving)
            if reason is None:
                raise  # a passing fault, or the outcome is not known: the marker will tell
            return CommitOutcome.failed(reason)
        reach("jdbc.commit.after")
        moved = sum(rows[one.epoch] for one in full)
        return CommitOutcome(CommitStatus.DONE, by_attempt=by_attempt, details={"rows": moved})

    def _token(self, marked: int) -> int:
        mine = self._context.token()  # raises when a newer driver is known by the checkpoint directory
        if marked > mine:
            raise FencedError(
                f"{self.describe()}: driver {marked} has committed already, and this is driver {mine}: it was overtaken and "
                "must not commit any more. Only one query may run on a checkpoint directory; stop this one."
            )
        return mine

    def _move(self, stage: TableName, columns: Sequence[str]) -> str:
        if self._mode == "upsert":
            return sql.upsert(self._table, stage, columns, self._key)
        return sql.insert(self._table, stage, columns)

    def _reason(self, error: SqlError, one: PreparedEpoch) -> str | None:
        """Why calling again can't help, and what a person has to do; ``None`` if it may help."""
        stage, kind = str(one.handle["stage"]), error.state[:2]
        if error.state == "42P01" and stage in str(error):
            remedy = f"The staged rows were in table {stage}, which somebody dropped: restore it from a backup."
        elif kind == "23":
            remedy = "Remove the conflicting rows or the constraint" + (
                ", or use mode='upsert'." if self._mode == "insert" else "."
            )
            if "no partition of relation" in str(error):
                remedy = "Create the partition."
        elif kind in ("22", "42") or error.state == "P0001":
            remedy = "The table has changed since the epoch was staged: give it back what the rows need."
        else:
            return None
        return (
            f"epoch {one.epoch} can't be moved to {self.describe()}: {error} {remedy} Nothing of it is visible; it stays "
            "prepared and is committed at the next start."
        )

    def close(self) -> None:
        for session in (self._staging, self._committing):
            session.close()

    # --- inside -----------------------------------------------------------------------------------------------------

    def _stage(self, handle: Handle, epoch: int) -> TableName:
        """The staging table of a handle. Handles come from disk: no other table is touched for them."""
        fields = handle_fields(handle, self.describe(), epoch)
        own = sql.stage_name(self._context.lineage, self._context.uid, staged_by(fields, epoch))
        name: Any = handle.get("stage")
        if name != own:
            raise CheckpointDirectoryError(
                f"{self.describe()}: a handle of epoch {epoch} names the table {name!r}, which is no staging table of sink "
                f"{self._context.uid!r} for it. The checkpoint directory was edited, or belongs to another query: restore "
                "lockstep/prepared from a backup."
            )
        return self._table.sibling(own)

    def _own_stage(self, handle: Handle) -> TableName:
        """The staging table of a handle that ``begin`` has just made."""
        return self._table.sibling(str(handle["stage"]))

    def _comment(self, handle: Handle) -> str:
        return sql.stage_comment(self._context.lineage, self._context.uid, handle["attempt"])
