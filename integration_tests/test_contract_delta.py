"""DeltaSink keeps the contract of sinks. Read with delta-rs."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import SparkSession

from integration_tests.sessions import contract_session
from lockstep.sinks import DeltaSink
from lockstep.testing import SinkContract


@pytest.mark.usefixtures("spark")
class TestDeltaSink(SinkContract):
    def session(self) -> SparkSession:
        return contract_session()

    def new_target(self) -> str:
        return tempfile.mkdtemp(prefix="lockstep-contract-") + "/table"

    def make_sink(self, target: Any) -> DeltaSink:
        return DeltaSink(target)

    def read(self, target: Any) -> Sequence[int]:
        try:
            table = DeltaTable(target).to_pyarrow_table(columns=["id"])
        except TableNotFoundError:
            return []
        return list(table["id"].to_pylist())
