"""Bad input gets its own error, with the remedy, before any data moves; nothing is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import lockstep
from integration_tests.sessions import drop_file, file_stream
from lockstep.errors import (
    CheckpointDirectoryError,
    ConfigurationError,
    CorruptRecordError,
    LockstepError,
    NewerFormatError,
    OrphanedSinkError,
    SchemaMismatchError,
)
from lockstep.sinks import CommitOutcome, DeltaSink, PreparedEpoch


class BrokenDeltaSink(DeltaSink):
    """Its target is out of reach in phase 2."""

    def commit_many(self, prepared: Any) -> CommitOutcome:
        return CommitOutcome.failed("the lake is on fire.")

    def commit(self, prepared: PreparedEpoch) -> CommitOutcome:
        return self.commit_many([prepared])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    drop_file(tmp_path / "input", 0, ['{"id": 1, "name": "a"}'])
    return tmp_path


@pytest.fixture
def stream(spark: SparkSession, place: Path) -> Any:
    return file_stream(spark, place / "input")


def writer(stream: Any, place: Path, **sinks: DeltaSink) -> lockstep.CheckpointedWriter:
    made = lockstep.checkpointed(stream).option("checkpointLocation", str(place / "checkpoint"))
    for uid, sink in (sinks or {"lake": DeltaSink(str(place / "table"))}).items():
        made.sink(sink, uid=uid)
    return made.trigger(availableNow=True)


def leave_a_prepared_epoch(stream: Any, place: Path) -> Path:
    """A pipeline that ended with a decided epoch which its sink could not commit. Returns the prepare record."""
    query = writer(stream, place, lake=BrokenDeltaSink(str(place / "table"))).start()
    with pytest.raises(LockstepError, match="on fire"):
        query.awaitTermination()
    (record,) = [f for f in (place / "checkpoint/lockstep/prepared").iterdir() if f.name[0].isdigit()]
    return record


def rows(place: Path) -> list[int]:
    return sorted(DeltaTable(place / "table").to_pyarrow_table()["id"].to_pylist())


def test_unknown_option(stream: Any) -> None:
    with pytest.raises(ConfigurationError, match="Did you mean checkpointLocation"):
        lockstep.checkpointed(stream).option("checkpointlocation", "/tmp/x")


def test_unknown_setting(stream: Any, place: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"Did you mean spark\.lockstep\.interval"):
        writer(stream, place).option("spark.lockstep.intervall", "1 s").start()


def test_no_checkpoint_location(stream: Any, place: Path) -> None:
    made = lockstep.checkpointed(stream).sink(DeltaSink(str(place / "table")), uid="lake")
    with pytest.raises(ConfigurationError, match="checkpointLocation"):
        made.start()


def test_no_sink(stream: Any, place: Path) -> None:
    with pytest.raises(ConfigurationError, match="no sink"):
        lockstep.checkpointed(stream).option("checkpointLocation", str(place / "checkpoint")).start()


def test_two_sinks_with_one_uid(stream: Any, place: Path) -> None:
    with pytest.raises(ConfigurationError, match="two sinks have the uid 'lake'"):
        writer(stream, place).sink(DeltaSink(str(place / "other")), uid="lake")


def test_one_sink_object_under_two_uids(stream: Any, place: Path) -> None:
    """It would have one application id in the table, and the second sink's rows would be taken for repetitions."""
    sink = DeltaSink(str(place / "table"))
    with pytest.raises(ConfigurationError, match="a sink object for each uid"):
        lockstep.checkpointed(stream).sink(sink, uid="one").sink(sink, uid="two")


def test_secret_in_a_misplaced_option_is_not_repeated(stream: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        lockstep.checkpointed(stream).option("kafka.sasl.jaas.config", 'password="hunter22"')
    assert "hunter22" not in str(refused.value)


def test_name_of_a_running_query_is_refused_before_it_is_fenced(stream: Any, place: Path) -> None:
    running = writer(stream, place).queryName("orders").trigger(processingTime="0 seconds").start()
    try:
        with pytest.raises(ConfigurationError, match="a query of this name is running"):
            writer(stream, place).queryName("orders").start()
        drop_file(place / "input", 1, ['{"id": 2, "name": "b"}'])
        running.processAllAvailable()
    finally:
        running.stop()
    assert rows(place) == [1, 2]


@pytest.mark.parametrize("uid", ["", "a b", "../x", "é", 7])
def test_unusable_uid(stream: Any, place: Path, uid: Any) -> None:
    with pytest.raises(ConfigurationError, match="uid="):
        lockstep.checkpointed(stream).sink(DeltaSink(str(place / "table")), uid=uid)


def test_something_that_is_no_sink(stream: Any) -> None:
    with pytest.raises(ConfigurationError, match="TwoPhaseCommitSink"):
        lockstep.checkpointed(stream).sink("delta", uid="lake")  # type: ignore[arg-type]


def test_continuous_trigger(stream: Any) -> None:
    with pytest.raises(ConfigurationError, match="continuous"):
        lockstep.checkpointed(stream).trigger(continuous="1 second")


def test_asynchronous_progress_tracking(stream: Any) -> None:
    with pytest.raises(ConfigurationError, match="asynchronous progress tracking"):
        lockstep.checkpointed(stream).option("asyncProgressTrackingEnabled", "true")


def test_batch_dataframe(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="readStream"):
        lockstep.checkpointed(spark.range(1))


def test_spark_connect_session(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    frame = type("DataFrame", (), {"sparkSession": remote})()
    with pytest.raises(ConfigurationError, match="Spark Connect"):
        lockstep.checkpointed(frame)  # type: ignore[arg-type]
    monkeypatch.setenv("SPARK_REMOTE", "sc://localhost")
    with pytest.raises(ConfigurationError, match="Spark Connect"):
        lockstep.configure(SparkSession.builder)


def test_transform_that_fails(stream: Any, place: Path) -> None:
    made = lockstep.checkpointed(stream).option("checkpointLocation", str(place / "checkpoint"))
    made.sink(DeltaSink(str(place / "table")), uid="lake", transform=lambda df: df.select("no_such_column"))
    with pytest.raises(ConfigurationError, match="sink 'lake': its transform failed"):
        made.start()


def test_directory_of_a_plain_spark_query(stream: Any, place: Path) -> None:
    query = stream.writeStream.format("noop").option("checkpointLocation", str(place / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    with pytest.raises(CheckpointDirectoryError, match="not started by Lockstep"):
        writer(stream, place).start()


def test_directory_of_another_query(stream: Any, place: Path) -> None:
    writer(stream, place).start().awaitTermination()
    with pytest.raises(CheckpointDirectoryError, match="another query"):
        writer(stream, place, other=DeltaSink(str(place / "other"))).start()
    with pytest.raises(CheckpointDirectoryError, match="sink 'lake' is Delta table"):
        writer(stream, place, lake=DeltaSink(str(place / "other"))).start()
    with pytest.raises(CheckpointDirectoryError, match="sources"):
        writer(stream.union(stream), place).start()
    assert not (place / "other").exists()


def test_directory_of_a_newer_format(stream: Any, place: Path) -> None:
    writer(stream, place).start().awaitTermination()
    lineage = place / "checkpoint/lockstep/lineage"
    lineage.write_text(lineage.read_text().replace('"format":1', '"format":99'))
    with pytest.raises(NewerFormatError, match="Upgrade spark-lockstep"):
        writer(stream, place).start()


def test_sink_removed_while_it_has_prepared_epochs(stream: Any, place: Path) -> None:
    both = {"lake": BrokenDeltaSink(str(place / "table")), "other": DeltaSink(str(place / "other"))}
    with pytest.raises(LockstepError, match="on fire"):
        writer(stream, place, **both).start().awaitTermination()
    with pytest.raises(OrphanedSinkError, match="sink 'lake' has prepared epoch 0"):
        writer(stream, place, other=DeltaSink(str(place / "other"))).start()
    both["lake"] = DeltaSink(str(place / "table"))
    writer(stream, place, **both).start().awaitTermination()  # the remedy works
    assert rows(place) == [1]


def test_prepared_epoch_is_committed_at_the_next_start(stream: Any, place: Path) -> None:
    leave_a_prepared_epoch(stream, place)
    assert rows(place) == []
    writer(stream, place).start().awaitTermination()
    assert rows(place) == [1]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_damaged_prepare_record(stream: Any, place: Path, damage: str) -> None:
    record = leave_a_prepared_epoch(stream, place)
    whole = record.read_bytes()
    damaged = {"truncated": whole[: len(whole) // 2], "flipped": whole.replace(b"part-", b"part_", 1), "empty": b""}[
        damage
    ]
    record.write_bytes(damaged)
    with pytest.raises(CorruptRecordError, match="backup"):
        writer(stream, place).start()
    assert record.read_bytes() == damaged, "evidence is left as it is"
    assert rows(place) == []
    record.write_bytes(whole)  # the remedy works: nothing was lost
    writer(stream, place).start().awaitTermination()
    assert rows(place) == [1]


def test_missing_prepare_record(stream: Any, place: Path) -> None:
    record = leave_a_prepared_epoch(stream, place)
    record.unlink()
    with pytest.raises(CheckpointDirectoryError, match="no prepare record"):
        writer(stream, place).start()


def test_table_that_cannot_take_the_rows(spark: SparkSession, stream: Any, place: Path) -> None:
    spark.sql(f"CREATE TABLE delta.`{place / 'table'}` (id DATE) USING delta")
    with pytest.raises(SchemaMismatchError, match="can't take the rows"):
        writer(stream, place).start()
    assert not (place / "checkpoint/offsets").exists(), "no data has moved"


def test_failed_start_does_not_fence_a_running_query(stream: Any, place: Path) -> None:
    """A mistake in a second start must not hurt the first."""
    running = writer(stream, place).trigger(processingTime="0 seconds").start()
    try:
        with pytest.raises(CheckpointDirectoryError):
            writer(stream, place, other=DeltaSink(str(place / "other"))).start()
        drop_file(place / "input", 1, ['{"id": 2, "name": "b"}'])
        running.processAllAvailable()
    finally:
        running.stop()
    assert rows(place) == [1, 2]
