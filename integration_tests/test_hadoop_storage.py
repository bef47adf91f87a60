"""HadoopStorage keeps the same contract as the local one (here on a ``file:`` URL, through Hadoop)."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lockstep.engine.hadoop_storage import HadoopStorage
from lockstep.engine.local_storage import LocalStorage
from lockstep.engine.storage import open_storage
from lockstep.protocol.fencing import FencingToken
from lockstep.protocol.storage import Storage
from unit_tests.storage_contract import StorageContract


class TestHadoopStorage(StorageContract):
    # On file: URLs Hadoop's rename is neither exclusive nor atomic (a file and its checksum are two renames), so Lockstep
    # uses LocalStorage there; the two promises that rest on it can't be tried without another file system.
    threads = 1
    test_reader_sees_the_old_or_the_new_content_and_never_a_part = None  # type: ignore[assignment]

    @pytest.fixture
    def storage(self, spark: SparkSession, tmp_path: Path) -> Storage:
        return HadoopStorage(spark, f"file://{tmp_path}/checkpoint")


def test_tokens_rise_on_a_hadoop_file_system(spark: SparkSession, tmp_path: Path) -> None:
    storage = HadoopStorage(spark, f"file://{tmp_path}/checkpoint")
    assert [FencingToken.take(storage, "test").value for _ in range(3)] == [1, 2, 3]


def test_local_paths_are_opened_directly(spark: SparkSession, tmp_path: Path) -> None:
    assert isinstance(open_storage(spark, str(tmp_path)), LocalStorage)
    assert isinstance(open_storage(spark, f"file://{tmp_path}"), LocalStorage)
    with_space = open_storage(spark, f"{tmp_path}/a b")
    with_space.write("x", b"1")
    assert (tmp_path / "a b" / "x").read_bytes() == b"1"
