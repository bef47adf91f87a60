"""Spark's commit log, and nothing of ours, says what is decided."""

from __future__ import annotations

import pytest

from lockstep.engine.spark_log import SparkLog
from lockstep.errors import CheckpointDirectoryError, CorruptRecordError
from lockstep.testing import MemoryStorage, SimulatedSparkLog


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def spark(storage: MemoryStorage) -> SimulatedSparkLog:
    return SimulatedSparkLog(storage)


def test_nothing_is_planned_or_decided_in_a_new_directory(storage: MemoryStorage) -> None:
    log = SparkLog(storage)
    assert (log.planned(), log.decided(), log.is_decided(0), log.is_decided(-1)) == (-1, -1, False, True)


def test_epoch_is_decided_when_its_commit_log_entry_is_there(storage: MemoryStorage, spark: SimulatedSparkLog) -> None:
    log = SparkLog(storage)
    spark.plan(0, "5")
    assert log.planned() == 0
    assert not log.is_decided(0)
    spark.decide(0)
    assert log.is_decided(0)
    assert log.decided() == 0
    assert not log.is_decided(1)


def test_epoch_stays_decided_when_its_file_is_purged(storage: MemoryStorage, spark: SimulatedSparkLog) -> None:
    for epoch in range(12):
        spark.plan(epoch, "5")
        spark.decide(epoch)
    spark.purge(retain=2)
    assert storage.list("commits") == ["10", "11"]
    log = SparkLog(storage)
    assert log.decided() == 11
    assert log.is_decided(3)


def test_numbers_are_compared_as_numbers(storage: MemoryStorage, spark: SimulatedSparkLog) -> None:
    for epoch in (8, 9, 10):
        spark.decide(epoch)
    assert SparkLog(storage).decided() == 10


def test_sparks_temporary_and_hidden_files_are_ignored(storage: MemoryStorage, spark: SimulatedSparkLog) -> None:
    spark.decide(3)
    for name in (".4.crc", ".5.0f3a.tmp", "metadata"):
        storage.write(f"commits/{name}", b"")
    assert SparkLog(storage).decided() == 3


def test_barrier_is_that_of_the_planned_epoch(storage: MemoryStorage, spark: SimulatedSparkLog) -> None:
    spark.plan(4, '{"orders":{"0":9}}', None, timestamp_ms=77)
    spark.plan(4, '{"orders":{"0":10}}')  # a repeated epoch keeps its barrier
    barrier = SparkLog(storage).barrier(4)
    assert (barrier.epoch, barrier.timestamp_ms, barrier.positions) == (4, 77, ('{"orders":{"0":9}}', None))


def test_missing_barrier_of_a_running_epoch_is_an_error(storage: MemoryStorage) -> None:
    with pytest.raises(CheckpointDirectoryError, match="offsets/4 is missing"):
        SparkLog(storage).barrier(4)


def test_damaged_barrier_is_an_error(storage: MemoryStorage) -> None:
    storage.write("offsets/4", b"v1")
    with pytest.raises(CorruptRecordError, match="truncated"):
        SparkLog(storage).barrier(4)


def test_simulated_spark_runs_an_undecided_epoch_again(spark: SimulatedSparkLog) -> None:
    assert spark.next_epoch() == 0
    spark.plan(0, "5")
    assert spark.next_epoch() == 0
    spark.decide(0)
    assert spark.next_epoch() == 1
    with pytest.raises(RuntimeError, match="Concurrent update"):
        spark.decide(0)
