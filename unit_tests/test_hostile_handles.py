"""Whatever a prepare record says, no sink touches anything but what it has staged itself for that very epoch."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest

from lockstep.engine.local_storage import LocalStorage
from lockstep.errors import CheckpointDirectoryError, CommitFailedError, CorruptRecordError
from lockstep.sinks import CommitOutcome, CommitStatus, FileSink, KafkaSink, PreparedEpoch
from lockstep.sinks.delta import DeltaSink, checked_add
from lockstep.sinks.delta_log import TableState
from lockstep.sinks.file_reader import FileDirectory
from lockstep.sinks.jdbc import JdbcSink
from lockstep.sinks.kafka import _Prepared
from lockstep.sinks.postgres_sql import stage_name, stage_prefix, staged_attempt
from lockstep.sinks.two_phase import Attempt
from lockstep.testing import RecordingSink
from unit_tests.damage import ODD_VALUES, odd_contents
from unit_tests.simulation import Driver, World

ATTEMPT = Attempt(4, "4-1-abc", "life", 1)
ELSEWHERE = [
    "../../etc/passwd",
    "../escape/part-00000-x.parquet",
    "/etc/passwd",
    "/etc/part-00000-x.parquet",
    "file:/etc/part-00000-x.parquet",
    "file:///etc/part-00000-x.parquet",
    "s3a://bucket/part-00000-x.parquet",
    "a/../../part-00000-x.parquet",
    "a//part-00000-x.parquet",
    "./part-00000-x.parquet",
    "_delta_log/part-00000-x.parquet",
    "_lockstep/part-00000-x.parquet",
    ".hidden/part-00000-x.parquet",
    "a/\x00/part-00000-x.parquet",
    "a/part-00000-x.parquet\n",
    "",
    ".",
    "..",
    "/",
]


def prepared(handle: Any, attempt: Attempt = ATTEMPT) -> PreparedEpoch:
    return PreparedEpoch(attempt, handle, 0)


# --- FileSink, on a real disk -----------------------------------------------------------------------------------------


class LocalDirectory(FileDirectory):
    """The target on this disk, without a JVM."""

    def __init__(self, root: Path) -> None:
        self.location = str(root)
        self.root = root

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def size(self, path: str) -> int | None:
        return (self.root / path).stat().st_size if self.exists(path) else None

    def move(self, source: str, target: str) -> bool:
        (self.root / target).parent.mkdir(parents=True, exist_ok=True)
        (self.root / source).rename(self.root / target)
        return True


class Files:
    """A target directory in which one epoch is staged, with something precious beside it."""

    def __init__(self, root: Path) -> None:
        self.root = root / "target"
        self.sink = FileSink(str(self.root))
        self.sink._context = SimpleNamespace(token=lambda: 1, uid="lake")  # type: ignore[assignment]
        self.sink._writer = "life.lake"
        self.sink._own = "_lockstep/life.lake"
        self.sink._directory = LocalDirectory(self.root)
        self.sink._local = self.root
        self.sink._storage = LocalStorage(self.root / self.sink._own)
        staged = self.root / self.sink._own / "staged" / ATTEMPT.id
        staged.mkdir(parents=True)
        (staged / "part-00000-x.parquet").write_bytes(b"rows")
        self.precious = [root / "secret", self.root / "others.parquet", root / "escape/part-00000-x.parquet"]
        for file in self.precious:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"precious")
        self.final = f"part-00000.life.lake.{ATTEMPT.id}.parquet"

    def handle(self, **changes: Any) -> dict[str, Any]:
        file = {"staged": "part-00000-x.parquet", "final": self.final, "bytes": 4}
        metrics = {"rows": 1, "bytes": 4, "files": 1}
        return {"attempt": ATTEMPT.id, "files": [file], "metrics": metrics, **changes}

    def listing(self) -> dict[str, bytes]:
        return {str(file): file.read_bytes() for file in self.root.parent.rglob("*") if file.is_file()}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_files_of_an_honest_handle_are_moved(files: Files) -> None:
    assert files.sink.commit(prepared(files.handle())).status is CommitStatus.DONE
    assert (files.root / files.final).read_bytes() == b"rows"
    assert files.sink.commit(prepared(files.handle())) == CommitOutcome.already_done(ATTEMPT.id)


@pytest.mark.parametrize("field", ["staged", "final"])
def test_file_sink_moves_nothing_from_or_to_elsewhere(files: Files, field: str) -> None:
    before = files.listing()
    for path in ELSEWHERE:
        file = {"staged": "part-00000-x.parquet", "final": files.final, "bytes": 4, field: path}
        for hostile in (path, f"{path}/{files.final}"):
            with pytest.raises(CorruptRecordError, match=r"would move.*restore lockstep/prepared"):
                files.sink.commit(prepared(files.handle(files=[{**file, field: hostile}])))
    assert files.listing() == before


def test_file_sink_refuses_a_handle_with_any_field_of_another_type(files: Files) -> None:
    before = files.listing()
    refused = 0
    for name, handle in odd_contents(files.handle()):
        if name in ("metrics.rows = 0", "metrics.bytes = 0"):
            continue  # only figures
        try:
            outcome = files.sink.commit(prepared(handle))
            assert outcome.status is CommitStatus.FAILED, name  # there is no such file, or it is not as large
        except CorruptRecordError:
            refused += 1
        assert files.listing() == before, name
    assert refused > 150


@pytest.mark.parametrize(
    "attempt_id", ["../../..", "..", "../committed", "5-1-abc", "4-1-abc/../..", "", None, 7, "4-1-a b"]
)
def test_file_sink_aborts_and_commits_only_attempts_of_the_epoch(files: Files, attempt_id: Any) -> None:
    before = files.listing()
    for use in (
        lambda: files.sink.abort(ATTEMPT, {"attempt": attempt_id}),
        lambda: files.sink.commit(prepared(files.handle(attempt=attempt_id))),
    ):
        with pytest.raises(CorruptRecordError, match="attempt"):
            use()
    assert files.listing() == before


def test_file_sink_cleans_up_nothing_but_attempts(files: Files) -> None:
    staged = files.root / files.sink._own / "staged"
    (staged / "notes").mkdir()
    (staged / "4-1-link").symlink_to(files.root.parent)
    files.sink.clean_up(lambda attempt_id: True)
    assert sorted(file.name for file in staged.iterdir()) == ["notes"]
    assert all(file.read_bytes() == b"precious" for file in files.precious), (
        "a link is removed, and not what it leads to"
    )


@pytest.mark.parametrize("content", [b"", b"row", b"rowss"])
def test_file_sink_publishes_no_file_that_was_cut_or_changed_after_it_was_staged(files: Files, content: bytes) -> None:
    (files.root / files.sink._own / "staged" / ATTEMPT.id / "part-00000-x.parquet").write_bytes(content)
    outcome = files.sink.commit(prepared(files.handle()))
    assert outcome.status is CommitStatus.FAILED
    assert f"has {len(content)} bytes and was staged with 4" in outcome.reason
    assert not (files.root / files.final).exists()


def test_file_sink_commits_its_own_rows_when_another_sink_of_the_epoch_has_staged_again(files: Files) -> None:
    """Then the record has a new attempt, and this sink's files still bear the old one."""
    again = Attempt(4, "4-2-def", "life", 2)
    assert files.sink.commit(prepared(files.handle(), again)).status is CommitStatus.DONE
    assert (files.root / files.final).read_bytes() == b"rows"
    assert not (files.root / files.sink._own / "staged" / ATTEMPT.id).exists()


MARKERS = [b"", b"{", b"\xff", b"[" * 99_999, b'{"attempt": ["4-1-abc"]}', b'{"attempt": {}}', b"[]", b"null"]


@pytest.mark.parametrize("content", MARKERS)
def test_marker_file_counts_by_its_name_whatever_it_holds(files: Files, content: bytes) -> None:
    files.sink._storage.write("committed/000000000004", content)
    before = files.root / files.final
    assert files.sink.commit(prepared(files.handle())) == CommitOutcome.already_done(None)
    assert not before.exists()


@pytest.mark.parametrize("content", MARKERS)
def test_damaged_birth_file_is_refused_by_name(files: Files, content: bytes) -> None:
    files.sink._storage.write("birth", content)
    with pytest.raises(CorruptRecordError, match=r"_lockstep/life\.lake/birth is damaged.*Restore it from a backup"):
        files.sink._refuse_other_layout()


# --- DeltaSink --------------------------------------------------------------------------------------------------------

ADD = {"path": "day=1/part-00000-x.c000.snappy.parquet", "partitionValues": {"day": "1"}, "size": 7, "dataChange": True}


def action(**changes: Any) -> str:
    return json.dumps({"add": {**ADD, **changes}})


def test_data_file_of_the_table_is_added_as_it_is() -> None:
    assert checked_add(action(), "table") == ADD
    for path in ("part-00000-2f-c000.snappy.parquet", "_p=1/part-0-x.parquet", "p=a%2520b/part-0-x.parquet"):
        assert checked_add(action(path=path), "table")["path"] == path


@pytest.mark.parametrize("path", [*ELSEWHERE, "notes.txt", "a/README.parquet", "part-0-x.parquet/.."])
def test_delta_sink_adds_and_deletes_nothing_elsewhere(path: str) -> None:
    for spelled in (path, quote(path, safe=""), quote(path, safe="").replace("%", "%")):
        with pytest.raises(CheckpointDirectoryError, match=r"^table: .*restore lockstep/prepared"):
            checked_add(action(path=spelled), "table")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        '"add"',
        "[" * 99_999,
        '{"remove": {"path": "part-0-x.parquet"}}',
        '{"add": 7}',
        json.dumps({"add": ADD, "metaData": {}}),
        json.dumps({"add": ADD})[:-1] + ', "add": {"path": "/etc/passwd"}}',
        '{"add": {"path": "part-0-x.parquet", "path": "/etc/passwd", "size": 7, "partitionValues": {}}}',
        action(deletionVector={"storageType": "p", "pathOrInlineDv": "file:///etc/passwd"}),
        action(size=-1),
        action(size="7"),
        action(partitionValues={"day": 1}),
        action(partitionValues=None),
    ],
    ids=range(15),
)
def test_anything_but_one_plain_file_is_no_action_of_a_handle(text: str) -> None:
    with pytest.raises(CheckpointDirectoryError, match=r"^table: .*restore lockstep/prepared"):
        checked_add(text, "table")


TABLE = TableState("id", "{}", ("day",), {"delta.columnMapping.mode": "name"}, "{}")


class Log:
    """A table's log that notes what is asked of it."""

    path = location = "/lake/orders"

    def __init__(self) -> None:
        self.touched: list[Any] = []

    def known(self) -> Any:
        return SimpleNamespace(state=TABLE)

    def begin_commit(self) -> Any:
        return SimpleNamespace(transaction_version=lambda app: -1, state=lambda: TABLE, commit=self._note)

    def missing_files(self, sizes: Any) -> list[str]:
        return []

    def referenced(self, paths: Any) -> bool:
        return False

    def delete_files(self, paths: Any) -> None:
        self.touched.append(paths)

    def _note(self, actions: Any, **_: Any) -> int:
        self.touched.append(actions)
        return 1


def delta() -> tuple[DeltaSink, Log]:
    sink, log = DeltaSink(Log.path), Log()
    sink._delta, sink._app_id = log, "app"  # type: ignore[assignment]
    sink._context = SimpleNamespace(token=lambda: 1, lineage="life")  # type: ignore[assignment]
    return sink, log


DELTA_HANDLE = {
    "attempt": ATTEMPT.id,
    "path": Log.path,
    "table": TABLE.to_json(),
    "actions": [action()],
    "metrics": {"rows": 1, "bytes": 7, "files": 1},
}


def test_delta_sink_refuses_a_handle_with_any_field_of_another_type() -> None:
    sink, log = delta()
    assert sink.commit(prepared(DELTA_HANDLE)).status is CommitStatus.DONE
    assert [json.loads(one) for one in log.touched.pop()] == [{"add": {**ADD, "tags": {"lockstep.epoch": "4"}}}]
    refused = 0
    for name, handle in odd_contents(DELTA_HANDLE):
        try:
            outcome = sink.commit(prepared(handle))
        except CheckpointDirectoryError:
            refused += 1
            assert log.touched == [], name
        else:  # other figures, an attempt that is not needed here, or a table that has changed since
            assert outcome.status is CommitStatus.RETRY or name.startswith(
                ("metrics.rows = 0", "metrics.bytes = 0", "attempt", "without attempt")
            ), name
            log.touched.clear()
    assert refused > 150
    for change in ({"path": "/lake/other"}, {"path": "/lake/orders/../other"}, {"attempt": "5-1-x"}, {"attempt": None}):
        with pytest.raises(CheckpointDirectoryError):
            sink.abort(ATTEMPT, {**DELTA_HANDLE, **change})
    assert log.touched == []


# --- KafkaSink --------------------------------------------------------------------------------------------------------

KAFKA_HANDLE = {
    "attempt": ATTEMPT.id,
    "topic": "out",
    "topics": ["out"],
    "lanes": [[{"path": f"{ATTEMPT.id}/part-00000-x.parquet", "bytes": 7, "rows": 1}]],
    "metrics": {"rows": 1, "bytes": 7, "files": 1},
}


def test_kafka_sink_publishes_to_its_own_topic_what_the_attempt_has_staged() -> None:
    read = _Prepared.read(prepared(KAFKA_HANDLE), "out", "Kafka topic out")
    assert (read.epoch, read.staged_by, [len(lane) for lane in read.lanes]) == (4, ATTEMPT.id, [1])
    other_files = [*(f"{ATTEMPT.id}/{path}" for path in ELSEWHERE), *ELSEWHERE]
    other_files += ["5-1-x/part-0-x.parquet", "4-1-abcd/part-0.parquet"]
    hostile: list[dict[str, Any]] = [
        *({"lanes": [[{"path": path, "bytes": 7, "rows": 1}]]} for path in other_files),
        {"topic": "payments"},
        {"topic": None},
        {"topics": ["../x"]},
        {"lanes": KAFKA_HANDLE["lanes"] * 65},  # type: ignore[operator]
        {"lanes": [[]]},
        {"attempt": "../../.."},
        {"attempt": "5-1-abc"},
    ]
    for change in hostile:
        with pytest.raises(CheckpointDirectoryError, match="Kafka topic out: "):
            _Prepared.read(prepared({**KAFKA_HANDLE, **change}), "out", "Kafka topic out")


def test_kafka_sink_refuses_a_handle_with_any_field_of_another_type() -> None:
    refused = 0
    for name, handle in odd_contents(KAFKA_HANDLE):
        try:
            _Prepared.read(prepared(handle), "out", "Kafka topic out")
        except CheckpointDirectoryError:
            refused += 1
        else:
            free = ("metrics.rows = 0", "metrics.bytes = 0", "topics = []", "without topics.0", "topics.0 = ")
            assert name.startswith((*free, "lanes.0.0.bytes", "without lanes.0.0.bytes", "lanes.0.0.rows = 0")), name
    assert refused > 100


def test_kafka_sink_deletes_only_what_an_attempt_of_the_epoch_has_staged() -> None:
    sink = KafkaSink("nowhere:1", "out")
    deleted: list[str] = []
    sink._staging = SimpleNamespace(delete=deleted.append)  # type: ignore[assignment]
    for attempt_id in ("..", "../..", "5-1-abc", "4-1-abc/..", None, 7):
        with pytest.raises(CheckpointDirectoryError, match="attempt"):
            sink.abort(ATTEMPT, {"attempt": attempt_id})
    sink.abort(ATTEMPT, {"attempt": ATTEMPT.id})
    assert deleted == [ATTEMPT.id]


# --- JdbcSink ---------------------------------------------------------------------------------------------------------


class Database:
    """Notes the statements of all transactions."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def transaction(self) -> Any:
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute(self, statement: str, *_: Any) -> None:
        self.statements.append(statement)

    def query(self, statement: str, *_: Any) -> list[tuple[str, ...]]:
        return [("3", "3-1-x", "1")]


STAGE = stage_name("life", "shop", ATTEMPT.id)
JDBC_HANDLE = {
    "attempt": ATTEMPT.id,
    "stage": STAGE,
    "columns": ["id", 'odd"; DROP TABLE x; --'],
    "empty": False,
    "metrics": {"rows": 1, "bytes": 7, "files": 0},
}


def jdbc() -> tuple[JdbcSink, Database]:
    sink, database = JdbcSink("jdbc:postgresql://h/shop", "orders"), Database()
    sink._context = SimpleNamespace(token=lambda: 1, lineage="life", uid="shop")  # type: ignore[assignment]
    sink._staging = sink._committing = database  # type: ignore[assignment]
    return sink, database


def test_jdbc_sink_touches_no_table_but_the_one_that_the_attempt_has_staged() -> None:
    sink, database = jdbc()
    assert sink.commit(prepared(JDBC_HANDLE)).status is CommitStatus.DONE
    assert any(f'FROM "public"."{STAGE}"' in statement for statement in database.statements)
    database.statements.clear()
    names = ["orders", "lockstep_epochs", stage_prefix("life", "shop"), stage_name("life", "shop", "5-1-x")]
    for stage in (*names, f"{STAGE}x", f'{STAGE}"; DROP', *ODD_VALUES):
        for use in (
            lambda stage=stage: sink.commit(prepared({**JDBC_HANDLE, "stage": stage})),
            lambda stage=stage: sink.abort(ATTEMPT, {**JDBC_HANDLE, "stage": stage}),
        ):
            with pytest.raises(CheckpointDirectoryError, match="no staging table"):
                use()
    assert not [statement for statement in database.statements if "TABLE" in statement or "INSERT" in statement]


def test_jdbc_sink_refuses_a_handle_with_any_field_of_another_type() -> None:
    sink, database = jdbc()
    refused = 0
    for name, handle in odd_contents(JDBC_HANDLE):
        database.statements.clear()
        try:
            sink.commit(prepared(handle))
        except CheckpointDirectoryError:
            refused += 1
            assert not [s for s in database.statements if "TABLE" in s or "INSERT" in s], name
        else:
            free = ("metrics.bytes = 0", "columns = []", "columns.", "without columns.")
            assert handle == JDBC_HANDLE or name.startswith(free), name
    assert refused > 80


@pytest.mark.parametrize(
    "comment", [None, "", "{", "[" * 99_999, "[]", '{"lockstep": 7}', '{"lockstep": {"lineage": "life"}}']
)
def test_staging_table_with_a_foreign_comment_is_nobodys(comment: str | None) -> None:
    assert staged_attempt(comment, "life", "shop") is None


# --- the committer ----------------------------------------------------------------------------------------------------


class Refusing(RecordingSink):
    """Finds that what it is given makes no sense."""

    def commit_many(self, prepared: Any) -> CommitOutcome:
        raise CorruptRecordError("the handle names /etc/passwd.")


def test_handle_that_makes_no_sense_fails_the_query_at_once_and_is_not_tried_again_for_ever() -> None:
    world = World("a")
    driver = Driver(world, sinks={"a": Refusing(world.tables["a"], "a")}).start()
    driver.prepare()
    driver.decide()
    with pytest.raises(CommitFailedError, match=r"sink 'a' can't commit up to epoch 0: the handle names /etc/passwd\."):
        driver.committer.advance()
    assert Driver(world).start().run_to(2).stop(), "once the cause is gone"
    world.check_exactly_once(2)
