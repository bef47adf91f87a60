"""What FileSink promises, on real files, call by call as the committer makes them; and once through a query."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import lockstep
from integration_tests.sessions import drop_file, file_stream
from lockstep.errors import CheckpointDirectoryError, ConfigurationError, FencedError
from lockstep.sinks import Attempt, CommitStatus, PreparedEpoch, SinkContext
from lockstep.sinks.file_reader import DataFileName, committed_files, read_files, whole_epochs
from lockstep.sinks.files import FileSink
from lockstep.testing import failpoints

LINEAGE = "6f0f3e1c-0000-4000-8000-000000000001"
SCHEMA = "id long, name string"
FORMATS = ["parquet", "json", "csv"]


class Crash(BaseException):
    """The driver dies: no handler may catch it."""


class Harness:
    """Plays the coordinator for one sink."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        self.path = str(root)
        self.highest = 1000
        self.token: Callable[[], int] = lambda: 1

    def open(
        self, rows: DataFrame, sink: FileSink | None = None, uid: str = "lake", mode: str = "append", back: bool = False
    ) -> FileSink:
        sink = sink or FileSink(self.path)
        sink.open(
            SinkContext(
                self.spark,
                uid,
                LINEAGE,
                rows.schema,
                mode,
                None,
                lambda: self.highest,
                returning=back,
                token=lambda: self.token(),
            )
        )
        return sink

    def stage(self, sink: FileSink, epoch: int, rows: DataFrame, last: str = "a" * 32) -> PreparedEpoch:
        attempt = Attempt(epoch, f"{epoch}-1-{last}", LINEAGE, 1)
        handle = sink.begin(attempt)
        sink.write(handle, rows)
        return PreparedEpoch(attempt, json.loads(json.dumps(sink.pre_commit(handle))), 0)  # through the prepare record

    def own(self, uid: str = "lake") -> Path:
        return self.root / "_lockstep" / f"{LINEAGE}.{uid}"

    def markers(self) -> list[int]:
        return sorted(int(file.name) for file in (self.own() / "committed").iterdir())

    def visible(self) -> list[Path]:
        """What any reader sees that passes over names with '_' or '.' in front."""
        files = [file.relative_to(self.root) for file in self.root.rglob("*") if file.is_file()]
        return [file for file in files if not any(piece.startswith((".", "_")) for piece in file.parts)]

    def plain(self, format: str = "parquet") -> list[int]:
        return _ids(self.spark.read.schema(SCHEMA).format(format).load(self.path))

    def whole(self, format: str = "parquet") -> list[int]:
        return _ids(read_files(self.spark, self.path, format, SCHEMA))


@pytest.fixture
def harness(spark: SparkSession, tmp_path: Path) -> Harness:
    return Harness(spark, tmp_path / "lake")


@pytest.fixture
def rows(spark: SparkSession) -> Callable[..., DataFrame]:
    def make(first: int, last: int) -> DataFrame:
        return spark.range(first, last, 1, 2).select("id", F.concat(F.lit("n"), F.col("id")).alias("name"))

    return make


@pytest.fixture(autouse=True)
def _no_failpoints() -> Iterator[None]:
    yield
    failpoints.clear()


def _ids(frame: DataFrame) -> list[int]:
    return sorted(row["id"] for row in frame.select("id").collect())


def _crash_after(moves: int, error: type[BaseException] = Crash) -> None:
    left = [moves]

    def hook(point: str) -> None:
        if point == "files.move.after":
            left[0] -= 1
            if left[0] == 0:
                raise error("after a file was moved")

    failpoints.watch(hook)


@pytest.mark.parametrize("format", FORMATS)
def test_staged_epoch_is_invisible_until_commit_and_then_there_once(harness: Harness, rows: Any, format: str) -> None:
    sink = harness.open(rows(0, 1), FileSink(harness.path, format))
    prepared = harness.stage(sink, 0, rows(0, 10))
    assert prepared.handle["metrics"]["rows"] == 10
    assert prepared.handle["metrics"]["files"] == 2
    assert harness.plain(format) == harness.whole(format) == []
    assert sink.commit(prepared).status is CommitStatus.DONE
    assert harness.plain(format) == harness.whole(format) == list(range(10))

    other = harness.open(rows(0, 1), FileSink(harness.path, format), back=True)  # knows nothing but the handle
    outcome = other.commit(prepared)
    assert outcome.status is CommitStatus.ALREADY_DONE
    assert outcome.by_attempt == prepared.attempt.id
    assert harness.plain(format) == list(range(10))
    assert not list((harness.own() / "staged").iterdir())


def test_orc_and_writer_options_reach_the_files(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1), FileSink(harness.path, "csv", options={"header": "true", "compression": "gzip"}))
    sink.commit(harness.stage(sink, 0, rows(0, 4)))
    assert all(file.name.endswith(".csv.gz") for file in harness.visible())
    assert read_files(harness.spark, harness.path, "csv", header=True).columns == ["id", "name"]
    other = Harness(harness.spark, harness.root.parent / "orc")
    sink = other.open(rows(0, 1), FileSink(other.path, "orc"))
    sink.commit(other.stage(sink, 0, rows(0, 4)))
    assert other.plain("orc") == other.whole("orc") == [0, 1, 2, 3]


@pytest.mark.parametrize("format", FORMATS)
def test_hostile_partition_values_come_back_as_they_were(harness: Harness, rows: Any, format: str) -> None:
    values = ["a b/c=%d", "{x}*[y]?", "../up", "ü:\\'\"#", "x._COPYING_", None]
    place = F.element_at(F.array(*[F.lit(value) for value in values]), (F.col("id") % 6 + 1).cast("int"))
    given = rows(0, 10).withColumn("p q", place)
    harness = Harness(harness.spark, harness.root.parent / "a lake {1}%20")
    sink = harness.open(given, FileSink(harness.path, format, partition_by=["p q"]))
    prepared = harness.stage(sink, 0, given)
    assert harness.visible() == []
    assert sink.commit(prepared).status is CommitStatus.DONE
    seen = read_files(harness.spark, harness.path, format, SCHEMA + ", `p q` string")
    assert sorted((row["id"], row["p q"]) for row in seen.collect()) == [(n, values[n % 6]) for n in range(10)]
    assert (
        len(harness.visible()) == len({file.name for file in harness.visible()}) == prepared.handle["metrics"]["files"]
    )


def test_half_moved_epoch_is_hidden_from_read_files_and_finished_by_the_next_commit(
    harness: Harness, rows: Any
) -> None:
    sink = harness.open(rows(0, 1))
    sink.commit(harness.stage(sink, 0, rows(0, 10)))
    prepared = harness.stage(sink, 1, rows(10, 20))
    _crash_after(1)
    with pytest.raises(Crash):
        sink.commit(prepared)
    failpoints.clear()
    assert len(harness.visible()) == 3
    assert harness.whole() == list(range(10))
    assert harness.plain() == list(range(15)), "a plain reader sees one file of two"

    again = harness.open(rows(0, 1), back=True)
    assert again.recover_and_commit([prepared]).status is CommitStatus.DONE
    assert harness.whole() == harness.plain() == list(range(20))


def test_crash_between_the_last_file_and_the_marker_repeats_nothing(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1))
    prepared = harness.stage(sink, 0, rows(0, 10))
    _crash_after(2)
    with pytest.raises(Crash):
        sink.commit(prepared)
    failpoints.clear()
    assert harness.whole() == []
    assert harness.open(rows(0, 1), back=True).commit(prepared).status is CommitStatus.DONE
    assert harness.whole() == harness.plain() == list(range(10))


def test_staged_file_that_was_copied_but_not_removed_is_not_moved_again(harness: Harness, rows: Any) -> None:
    """As a rename on an object store leaves it when the driver dies within."""
    sink = harness.open(rows(0, 1))
    prepared = harness.stage(sink, 0, rows(0, 10))
    first = prepared.handle["files"][0]
    staged = harness.own() / "staged" / prepared.attempt.id / first["staged"]
    (harness.root / first["final"]).write_bytes(staged.read_bytes())
    assert sink.commit(prepared).status is CommitStatus.DONE
    assert harness.whole() == harness.plain() == list(range(10))
    assert not staged.exists()


def test_file_systems_without_a_local_path_keep_the_same_promises(
    harness: Harness, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.engine.storage.local_path", lambda location: None)  # everything goes through Hadoop
    with pytest.raises(CheckpointDirectoryError, match="uid of its own"):
        harness.open(rows(0, 1), back=True)
    sink = harness.open(rows(0, 1))
    first, second = harness.stage(sink, 0, rows(0, 10)), harness.stage(sink, 1, rows(10, 20))
    stray = harness.stage(sink, 1, rows(10, 20), "b" * 32)
    assert sink.commit(first).status is CommitStatus.DONE
    _crash_after(1)
    with pytest.raises(Crash):
        sink.commit(second)
    failpoints.clear()
    assert harness.whole() == list(range(10))
    again = harness.open(rows(0, 1), back=True)
    again.clean_up(lambda attempt_id: attempt_id == stray.attempt.id)
    assert again.commit_many([first, second]).status is CommitStatus.DONE
    assert again.commit(second).by_attempt == second.attempt.id
    assert harness.whole() == harness.plain() == list(range(20))
    assert not list((harness.own() / "staged").iterdir())


def test_missing_staged_file_fails_the_commit_and_moves_nothing(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1))
    prepared = harness.stage(sink, 0, rows(0, 10))
    name = prepared.handle["files"][1]["staged"]
    (harness.own() / "staged" / prepared.attempt.id / name).unlink()
    outcome = sink.commit(prepared)
    assert outcome.status is CommitStatus.FAILED
    assert name in outcome.reason
    assert "Restore" in outcome.reason
    assert harness.visible() == []


def test_late_marker_of_a_paused_driver_does_no_harm(harness: Harness, rows: Any) -> None:
    paused, current = harness.open(rows(0, 1)), harness.open(rows(0, 1))
    epochs = [harness.stage(paused, n, rows(n * 10, n * 10 + 10)) for n in range(4)]
    calls: list[int] = []

    def token() -> int:
        calls.append(1)
        if len(calls) == 2:  # the last look before the marker: the driver sleeps here, and another does everything
            assert current.commit_many(epochs).status is CommitStatus.DONE
            assert harness.markers() == [2, 3]
        return 1

    harness.token = token
    paused.commit(epochs[0])
    assert max(harness.markers()) == 3
    assert harness.whole() == harness.plain() == list(range(40))
    (harness.own() / "committed" / f"{0:012d}").write_text("{}")  # the same, had it died right after
    assert harness.whole() == list(range(40))
    for one in epochs:
        assert harness.open(rows(0, 1), back=True).commit(one).status is CommitStatus.ALREADY_DONE
    assert harness.plain() == list(range(40))


def test_fenced_driver_moves_nothing_and_creates_no_marker(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1))
    prepared = harness.stage(sink, 0, rows(0, 10))

    def fenced() -> int:
        raise FencedError("a newer driver took over")

    harness.token = fenced
    with pytest.raises(FencedError):
        sink.commit(prepared)
    assert harness.visible() == []

    def taken_over_while_files_are_moved() -> int:
        harness.token = fenced
        return 1

    harness.token = taken_over_while_files_are_moved
    with pytest.raises(FencedError):
        sink.commit(prepared)
    assert len(harness.visible()) == 2
    assert not (harness.own() / "committed").exists()
    assert harness.whole() == []


def test_files_are_on_disk_before_the_epoch_is_prepared_and_moves_before_the_marker(
    harness: Harness, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = rows(0, 2).withColumn("day", F.lit("d"))
    sink = harness.open(given, FileSink(harness.path, partition_by=["day"]))
    synced: list[Path] = []
    monkeypatch.setattr("lockstep.sinks.disk._sync", synced.append)
    prepared = harness.stage(sink, 0, given)
    staged = harness.own() / "staged" / prepared.attempt.id
    data = [staged / file["staged"] for file in prepared.handle["files"]]
    checksums = [file.with_name(f".{file.name}.crc") for file in data]
    assert {*data, *checksums, staged / "day=d", staged, staged.parent, harness.own()} <= set(synced)

    def last_look() -> int:
        if synced:
            assert {harness.root / "day=d", harness.root} <= set(synced)
            assert not (harness.own() / "committed").exists()
        return 1

    synced.clear()
    harness.token = last_look
    assert sink.commit(prepared).status is CommitStatus.DONE
    assert synced


@pytest.mark.parametrize("format", FORMATS)
def test_empty_epoch_leaves_no_file(harness: Harness, rows: Any, format: str) -> None:
    sink = harness.open(rows(0, 1), FileSink(harness.path, format, options={"header": "true"}))
    for prepared in (harness.stage(sink, 0, rows(0, 0)), harness.stage(sink, 1, rows(0, 9).where("false"))):
        assert prepared.handle["metrics"] == {"rows": 0, "bytes": 0, "files": 0}
        assert sink.commit(prepared).status is CommitStatus.DONE
    assert harness.visible() == []
    assert not list((harness.own() / "staged").iterdir())
    with pytest.raises(ConfigurationError, match="schema="):
        read_files(harness.spark, harness.path, format)


def test_rows_are_counted_in_the_files_when_spark_does_not_tell(
    harness: Harness, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.sinks.files._observed_rows", lambda observation: None)
    sink = harness.open(rows(0, 1), FileSink(harness.path, "csv", options={"header": "true"}))
    assert harness.stage(sink, 0, rows(0, 10)).handle["metrics"]["rows"] == 10
    assert harness.stage(sink, 1, rows(0, 0)).handle["files"] == []


def test_one_file_per_epoch_shows_plain_readers_whole_epochs(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1), FileSink(harness.path, files_per_epoch=1))
    prepared = harness.stage(sink, 0, rows(0, 10))
    assert prepared.handle["metrics"]["rows"] == 10
    sink.commit(prepared)
    assert len(harness.visible()) == 1
    assert harness.plain() == list(range(10))


@pytest.mark.parametrize(
    "change",
    [
        {"staged": "../../../../elsewhere/part-0.parquet"},
        {"staged": "/etc/passwd"},
        {"staged": "s3a://bucket/part-0.parquet"},
        {"final": "../FINAL"},
        {"final": "/tmp/FINAL"},
        {"final": "file:///tmp/FINAL"},
        {"final": "_lockstep/FINAL"},
        {"final": "somebody-elses.parquet"},
        {"final": None},
    ],
)
def test_handle_that_leads_out_of_the_directory_is_refused(harness: Harness, rows: Any, change: Any) -> None:
    sink = harness.open(rows(0, 1))
    attempt = Attempt(0, f"0-1-{'a' * 32}", LINEAGE, 1)
    good = f"part-00000.{LINEAGE}.lake.{attempt.id}.parquet"
    change = {key: value and value.replace("FINAL", good) for key, value in change.items()}
    file = {"staged": "part-0.parquet", "final": good, "bytes": 1, **change}
    with pytest.raises(CheckpointDirectoryError):
        sink.commit(PreparedEpoch(attempt, {"attempt": attempt.id, "files": [file]}, 0))
    with pytest.raises(CheckpointDirectoryError):
        sink.commit(PreparedEpoch(attempt, {"attempt": attempt.id}, 0))
    with pytest.raises(CheckpointDirectoryError):
        sink.abort(attempt, {"attempt": "../committed"})


def test_abort_and_clean_up_remove_staged_files_and_never_visible_ones(harness: Harness, rows: Any) -> None:
    sink = harness.open(rows(0, 1))
    kept, lost = harness.stage(sink, 0, rows(0, 10)), harness.stage(sink, 0, rows(0, 10), "b" * 32)
    stray, pending = harness.stage(sink, 1, rows(10, 20), "c" * 32), harness.stage(sink, 1, rows(10, 20), "d" * 32)
    sink.commit(kept)
    sink.abort(kept.attempt, kept.handle)  # would be a disaster
    for _ in range(2):
        sink.abort(lost.attempt, lost.handle)
    sink.abort(Attempt(9, "9-1-e", LINEAGE, 1), {"attempt": "9-1-e"})  # begun, nothing written
    (harness.own() / "staged" / "notes").mkdir()
    sink.clean_up(lambda attempt_id: attempt_id != pending.attempt.id)
    assert {file.name for file in (harness.own() / "staged").iterdir()} == {pending.attempt.id, "notes"}
    assert stray.attempt.id != pending.attempt.id
    assert harness.plain() == list(range(10))
    assert sink.commit(pending).status is CommitStatus.DONE
    assert harness.plain() == list(range(20))


def test_target_that_was_emptied_or_is_of_another_life_is_refused(harness: Harness, rows: Any) -> None:
    with pytest.raises(CheckpointDirectoryError, match="uid of its own"):
        harness.open(rows(0, 1), back=True)
    assert not harness.root.exists(), "a refused start leaves nothing behind that would let the next one pass"
    sink = harness.open(rows(0, 1))
    harness.open(rows(0, 1), back=True)
    sink.commit(harness.stage(sink, 7, rows(0, 4)))
    harness.highest = 6
    with pytest.raises(CheckpointDirectoryError, match="old copy"):
        harness.open(rows(0, 1))


def test_sinks_with_different_uids_share_a_directory(harness: Harness, rows: Any) -> None:
    one, two = harness.open(rows(0, 1), uid="a.b"), harness.open(rows(0, 1), uid="a.b.1-1-c")
    first, second = harness.stage(one, 0, rows(0, 5)), harness.stage(two, 0, rows(5, 10))
    rows(100, 102).write.mode("append").parquet(harness.path)  # somebody else's files are shown as they are
    one.commit(first)
    _crash_after(1)
    with pytest.raises(Crash):
        two.commit(second)
    failpoints.clear()
    assert harness.whole() == [0, 1, 2, 3, 4, 100, 101]
    two.commit(second)
    assert harness.whole() == harness.plain() == [*range(10), 100, 101]
    assert len(committed_files(harness.spark, harness.path)) == len(harness.visible()) == 6


def test_names_are_read_back_whatever_the_uid_holds() -> None:
    attempt = f"12-3-{'0a' * 16}"
    for uid in ("lake", "a.b", "a-b_c", "1-2-3", f"x.{attempt}", f"x.{attempt}.parquet"):
        for suffix in ("", ".snappy.parquet", ".json.gz"):
            name = f"day=1/part-00007.{LINEAGE}.{uid}.{attempt}{suffix}"
            assert DataFileName.parse(name) == DataFileName(f"{LINEAGE}.{uid}", attempt, 12)
    assert DataFileName.parse("part-00000-6f0f3e1c-0000-4000-8000-000000000001-c000.snappy.parquet") is None


def test_files_whose_markers_were_not_copied_along_are_left_out_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert whole_epochs({}, [f"part-00000.{LINEAGE}.lake.1-1-a.parquet", "other.parquet"]) == ["other.parquet"]
    assert "copied in part" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"format": "avro"}, "format='avro' is not known. Use one of: parquet, json, csv, orc"),
        ({"files_per_epoch": 0}, "files_per_epoch=0"),
        ({"options": {"Path": "/elsewhere"}}, "path="),
        ({"partition_by": "day"}, r"\['day'\]; the rows have: id, name, tags, _x"),
        ({"partition_by": ["id", "name", "tags", "_x"]}, "all columns"),
        ({"partition_by": ["id", "id"]}, "twice"),
        ({"partition_by": ["tags"]}, "not plain"),
        ({"partition_by": ["_x"]}, "pass over"),
        ({"format": "csv"}, "to_json"),
    ],
)
def test_what_cannot_work_is_refused_at_start(harness: Harness, rows: Any, arguments: Any, problem: str) -> None:
    given = rows(0, 1).withColumn("tags", F.array("id")).withColumn("_x", F.col("id"))
    with pytest.raises(ConfigurationError, match=problem):
        harness.open(given, FileSink(harness.path, **arguments))
    assert not harness.root.exists()


def test_other_output_modes_and_a_changed_layout_are_refused(harness: Harness, rows: Any) -> None:
    with pytest.raises(ConfigurationError, match="append"):
        harness.open(rows(0, 1), mode="update")
    assert harness.open(rows(0, 1)).describe() == f"parquet files in {harness.path}"
    with pytest.raises(ConfigurationError, match="format='parquet' and partition_by="):
        harness.open(rows(0, 1), FileSink(harness.path, "json"))
    with pytest.raises(ConfigurationError, match="partition_by"):
        harness.open(rows(0, 1), FileSink(harness.path, partition_by=["name"]))


def test_query_writes_every_epoch_once_across_restarts_also_from_the_middle_of_a_commit(
    harness: Harness, tmp_path: Path
) -> None:
    stream = file_stream(harness.spark, tmp_path / "input")
    for n in range(2):
        drop_file(tmp_path / "input", n, [f'{{"id": {n * 2 + i}, "name": "n"}}' for i in range(2)])

    def run() -> Any:
        writer = lockstep.checkpointed(stream).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer = writer.sink(FileSink(harness.path, "json", partition_by=["name"]), uid="lake")
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    query = run()
    assert harness.plain("json") == harness.whole("json") == [0, 1, 2, 3]
    assert [entry.status for entry in query.checkpoints] == ["committed"] * 2
    assert query.statistics.summary()["rows"]["max"] == 2
    drop_file(tmp_path / "input", 2, ['{"id": 4, "name": "a b/c"}', '{"id": 5, "name": "m"}'])
    _crash_after(1, FencedError)  # what ends phase 2 in this process, where it is
    with pytest.raises(FencedError):
        run()
    failpoints.clear()
    assert harness.whole("json") == [0, 1, 2, 3]
    run()
    assert harness.whole("json") == harness.plain("json") == list(range(6))
    assert len(list((tmp_path / "lake" / "_lockstep").iterdir())) == 1
