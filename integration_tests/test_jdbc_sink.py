"""What JdbcSink promises, on a real PostgreSQL server, call by call as the committer makes them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import lockstep
from integration_tests.postgres import PostgresServer
from integration_tests.sessions import drop_file, file_stream
from lockstep.engine.versions import postgresql_package
from lockstep.errors import (
    CheckpointDirectoryError,
    ConfigurationError,
    EnvironmentProblemError,
    FencedError,
    LockstepError,
    SchemaMismatchError,
)
from lockstep.protocol import failpoint
from lockstep.sinks.jdbc import JdbcSink
from lockstep.sinks.postgres_address import PostgresAddress
from lockstep.sinks.postgres_session import PostgresSession, SqlError
from lockstep.sinks.two_phase import Attempt, CommitStatus, PreparedEpoch, SinkContext

_numbers = itertools.count(1)


class Harness:
    """Plays the coordinator for one sink on one table."""

    def __init__(self, spark: SparkSession, server: PostgresServer) -> None:
        number = next(_numbers)
        self.spark = spark
        self.server = server
        self.table = f"orders_{number}"
        self.lineage = f"6f0f3e1c-0000-4000-8000-{number:012d}"
        self.highest = 1000
        self.token = 1
        self.opened: list[JdbcSink] = []
        self._others = set(self._all_stages())  # other tests kill drivers on this server

    def sink(self, table: str | None = None, **options: Any) -> JdbcSink:
        login: dict[str, Any] = {"user": self.server.user, "password": self.server.password}
        return JdbcSink(options.pop("url", self.server.url), table or self.table, **{**login, **options})

    def open(
        self,
        rows: DataFrame,
        sink: JdbcSink | None = None,
        *,
        returning: bool = False,
        mode: str = "append",
        uid: str = "shop",
    ) -> JdbcSink:
        sink = sink or self.sink()
        context = SinkContext(
            self.spark,
            uid,
            self.lineage,
            rows.schema,
            mode,
            None,
            lambda: self.highest,
            returning=returning,
            token=lambda: self.token,
        )
        sink.open(context)
        self.opened.append(sink)
        return sink

    def stage(self, sink: JdbcSink, epoch: int, rows: DataFrame, attempt_id: str | None = None) -> PreparedEpoch:
        attempt = Attempt(epoch, attempt_id or f"{epoch}-1-{epoch:032x}", self.lineage, 1)
        handle = sink.begin(attempt)
        sink.write(handle, rows)
        return PreparedEpoch(attempt, json.loads(json.dumps(sink.pre_commit(handle))), 0)  # through the prepare record

    def ids(self) -> list[int]:
        """What an outside reader sees."""
        return [int(row[0]) for row in self.server.query(f"SELECT id FROM {self.table} ORDER BY id")]

    def stages(self) -> list[str]:
        return sorted(set(self._all_stages()) - self._others)

    def _all_stages(self) -> list[str]:
        found = self.server.query("SELECT relname FROM pg_class WHERE relname LIKE 'lockstep_stage%' AND relkind = 'r'")
        return [row[0] for row in found]


@pytest.fixture
def harness(spark: SparkSession, postgres: PostgresServer) -> Iterator[Harness]:
    harness = Harness(spark, postgres)
    yield harness
    for sink in harness.opened:
        sink.close()
    for stage in harness.stages():
        postgres.execute(f'DROP TABLE "{stage}"')


@pytest.fixture
def rows(spark: SparkSession) -> Callable[..., DataFrame]:
    def make(first: int, last: int) -> DataFrame:
        return spark.range(first, last, 1, 2).select("id", F.concat(F.lit("n"), F.col("id")).alias("name"))

    return make


def test_staged_epoch_is_invisible_until_commit_and_then_there_once(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1))
    prepared = harness.stage(sink, 0, rows(0, 10))
    assert harness.ids() == []
    assert prepared.handle["metrics"]["rows"] == 10
    assert prepared.handle["metrics"]["bytes"] > 0
    assert sink.commit(prepared).status is CommitStatus.DONE
    assert harness.ids() == list(range(10))
    again = sink.commit(prepared)
    assert again.status is CommitStatus.ALREADY_DONE
    assert again.by_attempt == prepared.attempt.id
    assert harness.ids() == list(range(10))
    assert harness.stages() == []


def test_query_fills_the_table_once_across_a_restart(harness: Harness, tmp_path: Path) -> None:
    stream = file_stream(harness.spark, tmp_path / "input")
    for number in range(4):
        drop_file(tmp_path / "input", number, [f'{{"id": {number}, "name": "n{number}"}}'])
        if number % 2 == 0:
            continue  # two epochs in each run
        writer = lockstep.checkpointed(stream).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.sink(harness.sink(), uid="shop").trigger(availableNow=True).start()
        query.awaitTermination()
        assert harness.ids() == list(range(number + 1))
    assert harness.stages() == []
    assert not [
        path
        for path in (tmp_path / "checkpoint").rglob("*")
        if path.is_file() and harness.server.password.encode() in path.read_bytes()
    ]


def test_another_process_commits_with_the_handle_alone(harness: Harness, rows: Any) -> None:
    prepared = harness.stage(harness.open(rows(0, 1)), 0, rows(0, 10))
    other = harness.open(rows(0, 1), returning=True)
    assert other.commit(prepared).status is CommitStatus.DONE
    assert harness.ids() == list(range(10))


def test_epochs_commit_together_in_order_and_done_ones_are_left_out(harness: Harness, rows: Any) -> None:
    harness.server.execute(f"CREATE TABLE {harness.table} (n bigserial, id bigint, name text)")
    sink = harness.open(rows(0, 1))
    prepared = [harness.stage(sink, n, rows(first, first + 2)) for n, first in enumerate((20, 10, 0))]
    assert sink.commit(prepared[0]).status is CommitStatus.DONE
    outcome = sink.commit_many(prepared)
    assert outcome.status is CommitStatus.DONE
    assert outcome.details["rows"] == 4
    assert outcome.by_attempt == prepared[0].attempt.id
    found = harness.server.query(f"SELECT id FROM {harness.table} ORDER BY n")
    assert [int(row[0]) for row in found] == [20, 21, 10, 11, 0, 1]


def test_empty_epoch_leaves_no_trace(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1))
    empty = harness.stage(sink, 0, rows(0, 0))
    assert harness.stages() == []
    assert sink.commit(empty).status is CommitStatus.DONE
    marked = harness.server.query(f"SELECT epoch FROM lockstep_epochs WHERE lineage = '{harness.lineage}'")
    assert marked == [("-1",)]
    full = harness.stage(sink, 2, rows(0, 3))
    assert sink.commit_many([harness.stage(sink, 1, rows(0, 0)), full]).status is CommitStatus.DONE
    assert harness.ids() == [0, 1, 2]


def test_upsert_keeps_the_last_row_of_a_key_within_and_across_epochs(harness: Harness) -> None:
    def rows(*pairs: tuple[int, str | None]) -> DataFrame:
        return harness.spark.createDataFrame(list(pairs), "id long, name string").coalesce(1)

    sink = harness.open(rows((1, "a")), harness.sink(mode="upsert", key=["id"]), mode="update")
    first = harness.stage(sink, 0, rows((1, "a"), (2, "b"), (1, "c")))
    second = harness.stage(sink, 1, rows((2, None), (3, "x"), (3, "y")))
    assert sink.commit_many([first, second]).status is CommitStatus.DONE
    found = harness.server.query(f"SELECT id, name FROM {harness.table} ORDER BY id")
    assert found == [("1", "c"), ("2", ""), ("3", "y")]
    with pytest.raises(LockstepError, match="null value"):
        harness.stage(sink, 2, harness.spark.createDataFrame([(None, "k")], "id long, name string"))


def test_upsert_of_keys_alone_and_with_several_key_columns(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1), harness.sink(mode="upsert", key=("name", "id")))
    for epoch in (0, 1):
        assert sink.commit(harness.stage(sink, epoch, rows(0, 3))).status is CommitStatus.DONE
    assert harness.ids() == [0, 1, 2]


def test_upsert_without_unique_index_on_the_key_is_refused_with_the_remedy(harness: Harness, rows: Any) -> None:
    harness.server.execute(f"CREATE TABLE {harness.table} (id bigint, name text, UNIQUE (id, name))")
    with pytest.raises(ConfigurationError) as refused:
        harness.open(rows(0, 1), harness.sink(mode="upsert", key="id"))
    harness.server.execute(str(refused.value).partition("Create it: ")[2])
    harness.open(rows(0, 1), harness.sink(mode="upsert", key="id"))


@pytest.mark.parametrize("constraint", ["CHECK (id < 100)", "NOT NULL"])
def test_broken_constraint_fails_before_the_decision(harness: Harness, rows: Any, constraint: str) -> None:
    harness.server.execute(f"CREATE TABLE {harness.table} (id bigint {constraint}, name text)")
    sink = harness.open(rows(0, 1))
    bad = rows(0, 3).withColumn("id", F.when(F.col("id") < 2, F.col("id")) if constraint == "NOT NULL" else F.lit(100))
    with pytest.raises(LockstepError, match=r"violates .* constraint"):
        harness.stage(sink, 0, bad)


def test_unique_violation_fails_the_commit_whole_until_the_row_is_removed(harness: Harness, rows: Any) -> None:
    harness.server.execute(f"CREATE TABLE {harness.table} (id bigint PRIMARY KEY, name text)")
    harness.server.execute(f"INSERT INTO {harness.table} VALUES (5, 'theirs')")
    sink = harness.open(rows(0, 1))
    prepared = harness.stage(sink, 0, rows(0, 10))
    outcome = sink.commit(prepared)
    assert outcome.status is CommitStatus.FAILED
    assert "duplicate key" in outcome.reason
    assert "mode='upsert'" in outcome.reason
    assert harness.ids() == [5]
    harness.server.execute(f"DELETE FROM {harness.table}")
    assert sink.commit(prepared).status is CommitStatus.DONE
    assert harness.ids() == list(range(10))


def test_deferred_constraint_fails_the_commit_and_does_not_retry_for_ever(harness: Harness, rows: Any) -> None:
    unique = "UNIQUE (id) DEFERRABLE INITIALLY DEFERRED"
    harness.server.execute(f"CREATE TABLE {harness.table} (id bigint, name text, {unique})")
    harness.server.execute(f"INSERT INTO {harness.table} VALUES (5, 'theirs')")
    sink = harness.open(rows(0, 1))
    assert sink.commit(harness.stage(sink, 0, rows(0, 10))).status is CommitStatus.FAILED
    assert harness.ids() == [5]


def test_column_dropped_after_staging_fails_the_commit_by_name(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1))
    prepared = harness.stage(sink, 0, rows(0, 2))
    harness.server.execute(f"ALTER TABLE {harness.table} DROP COLUMN name")
    outcome = sink.commit(prepared)
    assert outcome.status is CommitStatus.FAILED
    assert '"name"' in outcome.reason
    harness.server.execute(f"ALTER TABLE {harness.table} ADD COLUMN name text")
    assert sink.commit(prepared).status is CommitStatus.DONE


def test_lost_staging_table_fails_the_commit_by_name(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1))
    prepared = harness.stage(sink, 0, rows(0, 2))
    harness.server.execute(f"DROP TABLE {prepared.handle['stage']}")
    outcome = sink.commit(prepared)
    assert outcome.status is CommitStatus.FAILED
    assert f"were in table {prepared.handle['stage']}" in outcome.reason


def test_driver_that_was_paused_inside_of_its_transaction_holds_up_nobody_for_ever(
    harness: Harness, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps the marker's lock. The next driver gets a passing fault, and the server ends the pause within a minute."""
    monkeypatch.setattr("lockstep.sinks.jdbc._DO_NOT_WAIT", "SET LOCAL lock_timeout = '500ms'")
    sink = harness.open(rows(0, 0))
    prepared = harness.stage(sink, 0, rows(0, 5))
    paused = PostgresSession(harness.spark, harness.sink()._address)
    with paused.transaction() as transaction:
        transaction.query(f"SELECT epoch FROM lockstep_epochs WHERE lineage = '{harness.lineage}' FOR UPDATE")
        assert transaction.query("SHOW idle_in_transaction_session_timeout") == [("1min",)]
        with pytest.raises(SqlError, match="lock timeout"):
            sink.commit(prepared)
        assert harness.ids() == []
    paused.close()
    assert sink.commit(prepared).status is CommitStatus.DONE
    assert harness.ids() == [0, 1, 2, 3, 4]


def test_upsert_that_the_role_may_not_do_is_refused_at_start(harness: Harness, rows: Any) -> None:
    server = harness.server
    server.execute(f"CREATE TABLE {harness.table} (id bigint PRIMARY KEY, name text)")
    server.execute("DROP ROLE IF EXISTS clerk")
    server.execute(f"CREATE ROLE clerk LOGIN PASSWORD 'pen'; GRANT SELECT, INSERT ON {harness.table} TO clerk")
    server.execute("GRANT ALL ON SCHEMA public TO clerk")
    try:
        upsert = harness.sink(mode="upsert", key="id", user="clerk", password="pen")
        with pytest.raises(ConfigurationError, match="permission denied"):
            harness.open(rows(0, 0), upsert)
    finally:
        server.execute("DROP OWNED BY clerk; DROP ROLE clerk")


def test_driver_with_a_lower_token_than_the_marker_is_fenced(harness: Harness, rows: Any) -> None:
    old = harness.open(rows(0, 1))
    prepared = harness.stage(old, 1, rows(0, 10))
    newer = harness.open(rows(0, 1), returning=True)
    harness.token = 2
    newer.commit(harness.stage(newer, 0, rows(100, 101)))
    harness.token = 1
    with pytest.raises(FencedError, match="driver 2"):
        old.commit(prepared)
    assert harness.ids() == [100]


def test_marker_row_that_vanished_stops_the_start_and_the_commit(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1))
    prepared = harness.stage(sink, 0, rows(0, 10))
    harness.server.execute(f"DELETE FROM lockstep_epochs WHERE lineage = '{harness.lineage}'")
    assert sink.commit(prepared).status is CommitStatus.FAILED
    with pytest.raises(CheckpointDirectoryError, match="could be repeated"):
        harness.open(rows(0, 1), returning=True)
    assert harness.ids() == []


def test_checkpoint_directory_older_than_the_table_is_refused(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1))
    sink.commit(harness.stage(sink, 7, rows(0, 2)))
    harness.highest = 6
    with pytest.raises(CheckpointDirectoryError, match="old copy"):
        harness.open(rows(0, 1), returning=True)


@pytest.mark.parametrize("moment", ["before COMMIT", "after COMMIT"])
def test_commit_whose_server_stopped_is_made_once_after_its_return(harness: Harness, rows: Any, moment: str) -> None:
    sink = harness.open(rows(0, 1))
    prepared = harness.stage(sink, 0, rows(0, 10))
    if moment == "after COMMIT":
        sink.commit(prepared)
        harness.server.stop_server()
    else:
        failpoint.install(lambda point: harness.server.stop_server() if point == "jdbc.commit.before" else None)
    try:
        with pytest.raises(LockstepError):
            sink.commit(prepared)
    finally:
        failpoint.install(None)
        harness.server.start_server()
    expected = CommitStatus.DONE if moment == "before COMMIT" else CommitStatus.ALREADY_DONE
    assert sink.commit(prepared).status is expected
    assert harness.ids() == list(range(10))
    assert (
        sink.commit(harness.stage(sink, 1, rows(10, 12))).status is CommitStatus.DONE
    )  # phase 1 found its way back too


def test_clean_up_drops_strays_of_this_sink_only(harness: Harness, rows: Any) -> None:
    sink, other = harness.open(rows(0, 1)), harness.open(rows(0, 1), uid="other")
    kept = harness.stage(sink, 123456, rows(0, 2), f"123456-78-{'a' * 32}")
    stray = harness.stage(sink, 123456, rows(0, 2), f"123456-77-{'b' * 32}")
    foreign = harness.stage(other, 123456, rows(0, 2), f"123456-77-{'c' * 32}")
    asked: list[str] = []

    def is_stray(attempt_id: str) -> bool:
        asked.append(attempt_id)
        return attempt_id != kept.attempt.id

    sink.clean_up(is_stray)
    assert sorted(asked) == sorted([kept.attempt.id, stray.attempt.id])
    assert harness.stages() == sorted([kept.handle["stage"], foreign.handle["stage"]])
    assert sink.commit(kept).status is CommitStatus.DONE


def test_abort_is_idempotent_and_touches_staging_tables_only(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1))
    begun = Attempt(0, "0-1-begun", harness.lineage, 1)
    sink.abort(begun, sink.begin(begun))
    lost = harness.stage(sink, 0, rows(0, 2))
    for _ in range(2):
        sink.abort(lost.attempt, lost.handle)
    assert harness.stages() == []
    for hostile in (harness.table, "lockstep_epochs", "lockstep_stage_", 7):
        with pytest.raises(CheckpointDirectoryError, match="no staging table"):
            sink.abort(lost.attempt, {**lost.handle, "stage": hostile})
        with pytest.raises(CheckpointDirectoryError, match="no staging table"):
            sink.commit(PreparedEpoch(lost.attempt, {**lost.handle, "stage": hostile}, 0))
    assert harness.ids() == []


def test_task_that_runs_twice_collides_instead_of_doubling_rows(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1))
    prepared = harness.stage(sink, 0, rows(0, 2))
    stage = prepared.handle["stage"]
    with pytest.raises(RuntimeError, match="duplicate key"):
        harness.server.execute(f"INSERT INTO {stage} SELECT * FROM {stage}")


def test_values_of_every_type_come_back_as_they_were(harness: Harness) -> None:
    schema = (
        "id long, yes boolean, small short, tiny byte, n int, f float, d double, price decimal(38,18), day date, "
        "at timestamp, local timestamp_ntz, raw binary, tags array<string>, counts array<bigint>, name string"
    )
    moment = datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=timezone.utc)
    plain = datetime(1999, 12, 31, 23, 59, 59, 999999)
    price = Decimal("12345678901234567890.123456789012345678")
    full = (
        1,
        True,
        2,
        3,
        4,
        1.5,
        0.1,
        price,
        date(1, 1, 1),
        moment,
        plain,
        b"\x00\xff",
        ["a,b", '"'],
        [1, None],
        "ü'\\",
    )
    nothing = (2, *[None] * 14)
    rows = harness.spark.createDataFrame([full, nothing], schema)
    sink = harness.open(rows)
    assert sink.commit(harness.stage(sink, 0, rows)).status is CommitStatus.DONE
    found = harness.server.query(f"SELECT * FROM {harness.table} ORDER BY id")
    assert found[0] == (
        *("1", "t", "2", "3", "4", "1.5", "0.1", str(price), "0001-01-01", "2026-03-29 01:30:00.123456+00"),
        *("1999-12-31 23:59:59.999999", r"\x00ff", r'{"a,b","\""}', "{1,NULL}", "ü'\\"),
    )
    assert found[1] == ("2", *[""] * 14)


def test_text_goes_into_uuid_jsonb_and_enum_columns_and_other_columns_keep_their_defaults(harness: Harness) -> None:
    table = harness.table
    harness.server.execute(f"CREATE TYPE mood_{table} AS ENUM ('fine', 'bad')")
    harness.server.execute(
        f"CREATE TABLE {table} (n bigint GENERATED ALWAYS AS IDENTITY, id uuid, body jsonb, mood mood_{table}, "
        "seen timestamptz NOT NULL DEFAULT now(), twice int GENERATED ALWAYS AS (small * 2) STORED, small int, "
        "CHECK (small < 10 OR seen IS NULL))"
    )
    uuid = "6f0f3e1c-0000-4000-8000-000000000001"
    schema = "id string, body string, mood string, small long"
    rows = harness.spark.createDataFrame([(uuid, '{"a": 1}', "fine", 4)], schema)
    sink = harness.open(rows)
    nothing = harness.spark.createDataFrame([(None, None, None, 5)], schema)
    for epoch, one in enumerate((rows, nothing)):
        assert sink.commit(harness.stage(sink, epoch, one)).status is CommitStatus.DONE
    found = harness.server.query(f"SELECT n, id, body->'a', mood, twice, seen <= now() FROM {table} ORDER BY n")
    assert found == [("1", uuid, "1", "fine", "8", "t"), ("2", "", "", "", "10", "t")]
    with pytest.raises(LockstepError, match="invalid input"):
        harness.stage(sink, 2, harness.spark.createDataFrame([("no uuid", "{}", "fine", 4)], schema))


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("id bigint", "column 'name' of the rows is not in the table. Drop it, or add"),
        ('id bigint, "Name" text', "The table has 'Name'"),
        ("id bigint, name text, must int NOT NULL", "column 'must' is NOT NULL"),
        ("id date, name text", 'column "id" is of type date'),
        ("id bigint GENERATED ALWAYS AS IDENTITY, name text", "column 'id' is always generated"),
    ],
)
def test_table_that_cannot_take_the_rows_is_refused_at_start(
    harness: Harness, rows: Any, table: str, problem: str
) -> None:
    harness.server.execute(f"CREATE TABLE {harness.table} ({table})")
    with pytest.raises(SchemaMismatchError) as refused:
        harness.open(rows(0, 1))
    assert problem in str(refused.value)


def test_what_postgres_has_no_type_for_is_refused_with_advice(harness: Harness, rows: Any) -> None:
    for column in (F.struct(F.lit(1)), F.create_map(F.lit("a"), F.lit(1)), F.array(F.array(F.lit(1)))):
        with pytest.raises(SchemaMismatchError, match="to_json"):
            harness.open(rows(0, 1).withColumn("deep", column))


def test_missing_table_is_not_created_when_not_wanted(harness: Harness, rows: Any) -> None:
    with pytest.raises(ConfigurationError, match="CREATE TABLE"):
        harness.open(rows(0, 1), harness.sink(create=False))
    with pytest.raises(ConfigurationError, match="CREATE SCHEMA"):
        harness.open(rows(0, 1), harness.sink("nowhere.orders"))


@pytest.mark.parametrize("mode", ["insert", "upsert"])
def test_hostile_names_are_names_and_nothing_else(harness: Harness, mode: str) -> None:
    harness.server.execute('CREATE SCHEMA IF NOT EXISTS "Sales; DROP"')
    odd = ['we"ird', "Two Words", "id", "ID?", "a.b", "it's", "`t`", "${x}", "\\", "__lockstep_0"]
    rows = harness.spark.createDataFrame([tuple(range(10)), tuple(range(10, 20))], odd)
    table = f'"Sales; DROP"."or""ders \'{mode}\' ?"'
    key = ['we"ird', "Two Words"] if mode == "upsert" else ()
    sink = harness.open(rows, harness.sink(table, mode=mode, key=key))
    assert sink.commit(harness.stage(sink, 0, rows)).status is CommitStatus.DONE
    found = harness.server.query(f'SELECT "we""ird", "Two Words", id, "__lockstep_0" FROM {table} ORDER BY 1')
    assert found == [("0", "1", "2", "9"), ("10", "11", "12", "19")]
    assert harness.server.query('SELECT DISTINCT uid FROM "Sales; DROP".lockstep_epochs') == [("shop",)]


def test_secrets_are_in_no_description_handle_or_error(harness: Harness, rows: Any) -> None:
    server = harness.server
    url = f"{server.url}?user={server.user}&password={server.password}&options=-c%20geqo=off"
    sink = harness.open(rows(0, 1), harness.sink(url=url, user=None, password=None))
    assert sink.describe() == f"PostgreSQL table public.{harness.table} of database shop"
    texts = [sink.describe(), json.dumps(harness.stage(sink, 0, rows(0, 2)).handle)]
    wrong = [
        ({"password": "wr0ng-secret"}, ConfigurationError, "password="),
        ({"password": None}, ConfigurationError, "password="),
        ({"user": "nobody_here", "password": "wr0ng-secret"}, ConfigurationError, "user="),
        ({"url": server.url.replace("/shop", "/nowhere")}, ConfigurationError, "Create the database"),
        ({"url": f"jdbc:postgresql://127.0.0.1:1/shop?password={server.password}"}, EnvironmentProblemError, "port"),
    ]
    for options, kind, remedy in wrong:
        with pytest.raises(kind, match=remedy) as refused:
            harness.open(rows(0, 1), harness.sink(**options))
        texts.append(str(refused.value))
    role = f"reader_{harness.table}"
    server.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'wr0ng-secret'")
    with pytest.raises(ConfigurationError, match="GRANT") as refused:
        harness.open(rows(0, 1), harness.sink(user=role, password="wr0ng-secret"))
    for text in [*texts, str(refused.value)]:
        for secret in (server.password, server.user, "wr0ng-secret", "nobody_here", role, "geqo"):
            assert secret not in text


def test_error_of_a_task_shows_no_secret_and_the_servers_words(harness: Harness, rows: Any) -> None:
    server = harness.server
    sink = harness.open(rows(0, 1))
    handle = sink.begin(Attempt(0, "0-1-a", harness.lineage, 1))
    server.execute(f"ALTER ROLE {server.user} PASSWORD 'another'")  # the sink's own connection is open already
    try:
        with pytest.raises(LockstepError, match="authentication failed") as failed:
            sink.write(handle, rows(0, 2))
    finally:
        password, server.password = server.password, "another"
        server.execute(f"ALTER ROLE {server.user} PASSWORD '{password}'")
        server.password = password
    assert server.user not in str(failed.value)
    assert failed.value.__cause__ is None
    assert failed.value.__suppress_context__


def test_missing_jdbc_driver_is_named_with_its_package(harness: Harness) -> None:
    class Bare:
        _jvm = harness.spark._jvm.not_on_the_class_path  # type: ignore[union-attr]

    session = PostgresSession(Bare(), PostgresAddress.parse(harness.server.url, None, None, None))  # type: ignore[arg-type]
    with pytest.raises(EnvironmentProblemError, match=postgresql_package()), session.transaction():
        pass


def test_drivers_that_start_at_once_make_one_table_and_one_marker(harness: Harness, rows: Any) -> None:
    harness.server.execute(f"CREATE SCHEMA fresh_{harness.table}")
    schema = rows(0, 1).schema

    def start(uid: int) -> None:
        sink = harness.sink(f"fresh_{harness.table}.orders")
        sink.open(SinkContext(harness.spark, f"{uid % 2}", harness.lineage, schema, "append", None, lambda: 0))
        sink.close()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(start, range(6)))
    assert harness.server.query(f"SELECT uid FROM fresh_{harness.table}.lockstep_epochs ORDER BY uid") == [
        ("0",),
        ("1",),
    ]


def test_errors_of_the_query_itself_pass_unchanged(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1))
    with pytest.raises(Exception, match="the query's own") as failed:
        harness.stage(sink, 0, rows(0, 2).withColumn("name", F.raise_error(F.lit("the query's own"))))
    assert not isinstance(failed.value, LockstepError)


@pytest.mark.parametrize(
    ("mode", "output_mode"), [("insert", "update"), ("insert", "complete"), ("upsert", "complete")]
)
def test_other_output_modes_are_refused(harness: Harness, rows: Any, mode: str, output_mode: str) -> None:
    with pytest.raises(ConfigurationError, match="append"):
        harness.open(rows(0, 1), harness.sink(mode=mode, key="id" if mode == "upsert" else ()), mode=output_mode)


@pytest.mark.parametrize(
    ("url", "options", "problem"),
    [
        ("jdbc:mysql://h/db", {}, "only jdbc:postgresql: is supported"),
        ("jdbc:postgresql://h/db", {"mode": "merge"}, "'insert' or 'upsert'"),
        ("jdbc:postgresql://h/db", {"mode": "upsert"}, "needs key="),
        ("jdbc:postgresql://h/db", {"key": "id"}, "takes no key="),
        ("jdbc:postgresql://h/db", {"options": {"dbtable": "x"}}, "must not hold dbtable"),
    ],
)
def test_wrong_arguments_are_refused_at_once(url: str, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        JdbcSink(url, "orders", **options)
