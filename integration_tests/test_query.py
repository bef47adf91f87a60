"""The writer and the query handle on real Spark and Delta, fed by files: no broker needed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import lockstep
from integration_tests.sessions import drop_file, file_stream
from lockstep import CheckpointConfig, CheckpointListener, CheckpointMode, CompletedCheckpoint, RetentionPolicy
from lockstep.errors import CheckpointDeclinedError
from lockstep.sinks import Attempt, CommitOutcome, DeltaSink, Handle, PreparedEpoch, TwoPhaseCommitSink


class Bench:
    """An input directory, a table and a checkpoint directory."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.input = root / "input"
        self.table = str(root / "table")
        self.checkpoint = str(root / "checkpoint")
        self.files = 0
        self.stream = file_stream(spark, self.input)

    def add(self, *ids: int) -> None:
        drop_file(self.input, self.files, [f'{{"id": {n}, "name": "n{n}"}}' for n in ids])
        self.files += 1

    def writer(self, config: CheckpointConfig | None = None) -> lockstep.CheckpointedWriter:
        writer = lockstep.checkpointed(self.stream, config).option("checkpointLocation", self.checkpoint)
        return writer.sink(DeltaSink(self.table), uid="lake")

    def ids(self) -> list[int]:
        return sorted(DeltaTable(self.table).to_pyarrow_table(columns=["id"])["id"].to_pylist())

    def versions(self) -> int:
        return DeltaTable(self.table).version()


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Bench:
    return Bench(spark, tmp_path)


def test_everything_is_visible_when_available_now_returns(bench: Bench) -> None:
    for n in range(3):
        bench.add(n)
    query = bench.writer().trigger(availableNow=True).start()
    query.awaitTermination()
    assert bench.ids() == [0, 1, 2]
    assert not query.isActive
    assert query.exception() is None
    assert query.pending_epochs == []
    assert [entry.status for entry in query.checkpoints] == ["committed"] * 3
    assert query.completed_checkpoints[-1].commits["lake"]["version"] == bench.versions()
    assert query.statistics.summary()["rows"]["max"] == 1


def test_everything_is_visible_when_is_active_turns_false(bench: Bench) -> None:
    bench.add(1, 2)
    query = bench.writer().trigger(availableNow=True).start()
    deadline = time.monotonic() + 60
    while query.isActive and time.monotonic() < deadline:
        time.sleep(0.05)
    assert bench.ids() == [1, 2]


def test_query_continues_after_a_stop_and_ids_rise_across_restarts(bench: Bench) -> None:
    bench.add(0)
    query = bench.writer().queryName("orders").trigger(processingTime="0 seconds").start()
    query.processAllAvailable()
    assert bench.ids() == [0]
    assert query.name == "orders"
    query.stop()
    query.stop()
    bench.add(1)
    again = bench.writer().trigger(availableNow=True).start()
    assert again.awaitTermination(60) is True
    assert bench.ids() == [0, 1]
    assert [checkpoint.id for checkpoint in again.completed_checkpoints] == [0, 1]
    assert again.statistics.counts["restored"] == 1


def test_interval_commits_many_epochs_at_one_checkpoint_and_stop_drains(bench: Bench) -> None:
    for n in range(4):
        bench.add(n)
    query = bench.writer(CheckpointConfig(interval=_hours(1))).trigger(availableNow=True).start()
    query.awaitTermination()
    assert bench.ids() == [0, 1, 2, 3]
    (checkpoint,) = query.completed_checkpoints
    assert sorted(checkpoint.attempts) == [0, 1, 2, 3]
    assert bench.versions() == 1, "four epochs, one table version"


def test_idle_stream_is_checkpointed_when_the_interval_is_over(bench: Bench) -> None:
    bench.add(0)
    query = bench.writer(CheckpointConfig(interval=_hours(0.8 / 3600))).trigger(processingTime="0 seconds").start()
    try:
        deadline = time.monotonic() + 60
        while bench.ids() != [0]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        query.stop()


def test_settings_can_come_from_the_session_and_from_options(bench: Bench) -> None:
    bench.add(0)
    bench.spark.conf.set("spark.lockstep.retained", "7")
    try:
        writer = bench.writer().option("spark.lockstep.mode", "at_least_once").trigger(availableNow=True)
        query = writer.start()
        query.awaitTermination()
    finally:
        bench.spark.conf.unset("spark.lockstep.retained")
    assert query._pipeline.config.retained == 7
    assert query._pipeline.config.mode is CheckpointMode.AT_LEAST_ONCE
    assert bench.ids() == [0]


def test_delete_on_cancellation_removes_the_checkpoint_directory_after_the_drain(bench: Bench) -> None:
    bench.add(0)
    config = CheckpointConfig(on_cancellation=RetentionPolicy.DELETE_ON_CANCELLATION)
    query = bench.writer(config).trigger(processingTime="0 seconds").start()
    query.processAllAvailable()
    query.stop()
    assert bench.ids() == [0]
    assert list(Path(bench.checkpoint).iterdir()) == []


def test_listeners_hear_of_completion_then_commit(bench: Bench) -> None:
    heard: list[tuple[str, int]] = []

    class Listener(CheckpointListener):
        def checkpoint_completed(self, checkpoint: CompletedCheckpoint) -> None:
            heard.append(("completed", checkpoint.id))
            raise RuntimeError("a listener's failure must not matter")

        def checkpoint_committed(self, checkpoint: CompletedCheckpoint) -> None:
            heard.append(("committed", len(bench.ids())))

    bench.add(0)
    bench.writer().listener(Listener()).trigger(availableNow=True).start().awaitTermination()
    assert heard == [("completed", 0), ("committed", 1)]


class DirectorySink(TwoPhaseCommitSink):
    """The sink of the documentation: a directory of files, visible by rename."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.fail_writes = 0

    def begin(self, attempt: Attempt) -> Handle:
        return {"staged": str(self.path / f"_{attempt.id}"), "final": str(self.path / f"epoch-{attempt.epoch}")}

    def write(self, handle: Handle, batch: Any) -> None:
        if self.fail_writes:
            self.fail_writes -= 1
            raise OSError("disk on fire")
        batch.limit(1).write.json(handle["staged"])  # reads only a part, on purpose

    def pre_commit(self, handle: Handle) -> Handle:
        return handle

    def commit(self, prepared: PreparedEpoch) -> CommitOutcome:
        final = Path(prepared.handle["final"])
        if final.exists():
            return CommitOutcome.already_done()
        Path(prepared.handle["staged"]).rename(final)
        return CommitOutcome.done()

    def abort(self, attempt: Attempt, handle: Handle) -> None:
        import shutil

        shutil.rmtree(handle["staged"], ignore_errors=True)


def test_two_sinks_see_one_evaluation_and_transforms_apply_to_one(bench: Bench, tmp_path: Path) -> None:
    stream = bench.stream.withColumn("dice", F.rand())
    bench.add(1, 2, 3, 4)
    writer = lockstep.checkpointed(stream).option("checkpointLocation", bench.checkpoint)
    writer.sink(DeltaSink(bench.table), uid="all")
    writer.sink(DeltaSink(bench.table + "-even"), uid="even", transform=lambda df: df.where("id % 2 = 0"))
    writer.trigger(availableNow=True).start().awaitTermination()
    everything = _dice(bench.table)
    even = _dice(bench.table + "-even")
    assert sorted(everything) == [1, 2, 3, 4]
    assert even == {n: everything[n] for n in (2, 4)}


def test_sink_that_reads_a_part_leaves_no_holes_in_state(bench: Bench, tmp_path: Path) -> None:
    """Deduplication state is committed in Spark's tasks: a sink's limit(1) must not stop them."""
    unique = bench.stream.dropDuplicates(["id"])
    target = tmp_path / "files"
    target.mkdir()
    for n in range(3):
        bench.add(n, n + 10, n + 20, n + 30)
        writer = lockstep.checkpointed(unique).option("checkpointLocation", bench.checkpoint)
        writer.sink(DirectorySink(str(target)), uid="files").trigger(availableNow=True).start().awaitTermination()
    assert sorted(p.name for p in target.iterdir()) == ["epoch-0", "epoch-1", "epoch-2"]


def test_failed_attempt_is_repeated_when_tolerated_and_fails_the_query_otherwise(bench: Bench, tmp_path: Path) -> None:
    target = tmp_path / "files"
    target.mkdir()
    bench.add(1)
    sink = DirectorySink(str(target))

    def run(tolerable: int) -> Any:
        config = CheckpointConfig(tolerable_failures=tolerable)
        writer = lockstep.checkpointed(bench.stream, config).option("checkpointLocation", bench.checkpoint)
        return writer.sink(sink, uid="files").trigger(availableNow=True).start()

    sink.fail_writes = 2
    with pytest.raises(CheckpointDeclinedError, match=r"sink 'files'.*disk on fire"):
        run(tolerable=0).awaitTermination()
    assert list(target.iterdir()) == []
    query = run(tolerable=1)
    query.awaitTermination()
    assert query.statistics.counts["failed"] == 1
    assert [p.name for p in target.iterdir()] == ["epoch-0"]


def test_listener_that_waits_for_the_query_gets_an_error_instead_of_a_deadlock(bench: Bench) -> None:
    errors: list[Exception] = []

    class Stopper(CheckpointListener):
        def checkpoint_completed(self, checkpoint: CompletedCheckpoint) -> None:
            for call in (query.stop, query.checkpoint):
                try:
                    call()
                except Exception as error:
                    errors.append(error)

    bench.add(0)
    query = bench.writer().listener(Stopper()).trigger(processingTime="0 seconds").start()
    query.processAllAvailable()
    query.stop()
    assert [type(error) for error in errors] == [lockstep.LockstepError] * 2
    assert "would wait for itself" in str(errors[0])
    assert bench.ids() == [0]


def test_handle_that_nobody_kept_is_still_drained_at_exit(bench: Bench) -> None:
    import gc

    from lockstep.engine import query as module

    bench.add(0)
    run_id = bench.writer().trigger(availableNow=True).start().runId
    gc.collect()
    assert run_id in {query.runId for query in module._open}
    for query in bench.spark.streams.active:
        query.awaitTermination()
    module._drain_at_exit()
    assert bench.ids() == [0]
    assert run_id not in {query.runId for query in module._open}


def _hours(hours: float) -> Any:
    from datetime import timedelta

    return timedelta(hours=hours)


def _dice(table: str) -> dict[int, float]:
    data = DeltaTable(table).to_pyarrow_table()
    return dict(zip(data["id"].to_pylist(), data["dice"].to_pylist(), strict=True))
