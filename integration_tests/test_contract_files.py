"""FileSink keeps the contract of sinks: through its reader with many files, and for any reader with one per epoch."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from integration_tests.sessions import ONLY_THOROUGH, contract_session
from lockstep.sinks import FileSink, committed_files, read_files
from lockstep.testing import SinkContract


@pytest.mark.usefixtures("spark")
class TestFileSinkWithManyFiles(SinkContract):
    # It costs a JVM, and CI has shown it for Delta and Kafka.
    test_epochs_of_a_killed_process_are_committed_by_another = ONLY_THOROUGH(
        SinkContract.test_epochs_of_a_killed_process_are_committed_by_another
    )

    def session(self) -> SparkSession:
        return contract_session()

    def new_target(self) -> str:
        return tempfile.mkdtemp(prefix="lockstep-contract-") + "/files"

    def make_sink(self, target: Any) -> FileSink:
        return FileSink(target, "json", partition_by=["epoch"])

    def read(self, target: Any) -> Sequence[int]:
        if not committed_files(self.session(), target):
            return []
        rows = read_files(self.session(), target, "json", schema="id long, epoch long, text string").select("id")
        return [row.id for row in rows.collect()]


@ONLY_THOROUGH
class TestFileSinkWithOneFileAnEpoch(TestFileSinkWithManyFiles):
    """Plain readers see whole epochs, too. Read with Arrow, which knows nothing of markers."""

    test_epochs_of_a_killed_process_are_committed_by_another = None  # costs a JVM; the class above shows it

    def make_sink(self, target: Any) -> FileSink:
        return FileSink(target, files_per_epoch=1)

    def read(self, target: Any) -> Sequence[int]:
        files = list(Path(target).glob("*.parquet"))
        return [one for file in files for one in pq.read_table(file, columns=["id"])["id"].to_pylist()]
