"""JdbcSink keeps the contract of sinks, with inserts and with upserts. Read with psql."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from pyspark.sql import SparkSession

from integration_tests.postgres import PostgresServer
from integration_tests.sessions import ONLY_THOROUGH, contract_session
from lockstep.sinks import JdbcSink
from lockstep.testing import SinkContract


@pytest.mark.usefixtures("spark")
class TestJdbcSinkThatInserts(SinkContract):
    server: ClassVar[PostgresServer]
    mode: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def _server(self, postgres: PostgresServer) -> None:
        type(self).server = postgres

    # It costs a JVM, and CI has shown it for Delta and Kafka.
    test_epochs_of_a_killed_process_are_committed_by_another = ONLY_THOROUGH(
        SinkContract.test_epochs_of_a_killed_process_are_committed_by_another
    )

    def session(self) -> SparkSession:
        return contract_session()

    def new_target(self) -> dict[str, str]:
        server = self.server
        table = f"contract_{uuid.uuid4().hex[:8]}"
        server.execute(f"CREATE TABLE {table} (id bigint PRIMARY KEY, epoch bigint, text text)")
        return {"url": server.url, "table": table, "user": server.user, "password": server.password}

    def make_sink(self, target: Any) -> JdbcSink:
        return JdbcSink(**target, **self.mode)

    def read(self, target: Any) -> Sequence[int]:
        return [int(row[0]) for row in self.server.query(f"SELECT id FROM {target['table']}")]


@ONLY_THOROUGH
class TestJdbcSinkThatUpserts(TestJdbcSinkThatInserts):
    mode: ClassVar[dict[str, Any]] = {"mode": "upsert", "key": ["id"]}
    test_epochs_of_a_killed_process_are_committed_by_another = None  # costs a JVM; the class above shows it
