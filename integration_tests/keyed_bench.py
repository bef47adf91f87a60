"""A keyed operator between files and a Delta table: each file dropped is an epoch. No broker needed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

import lockstep
from integration_tests.sessions import drop_file, file_stream
from lockstep.sinks import DeltaSink

SCHEMA = "account string, amount long, at timestamp"


class KeyedBench:
    """An input directory, a table and a checkpoint directory, which outlive their queries."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        self.table = str(root / "table")
        self.checkpoint = str(root / "checkpoint")
        self.files = 0
        (root / "input").mkdir()

    def stream(self, watermark: str | None = None) -> DataFrame:
        rows = file_stream(self.spark, self.root / "input", SCHEMA)
        return rows if watermark is None else rows.withWatermark("at", watermark)

    def add(self, *rows: tuple[str, int] | tuple[str, int, str]) -> None:
        """One epoch: (account, amount) or (account, amount, time)."""
        named = [dict(zip(("account", "amount", "at"), row, strict=False)) for row in rows]
        drop_file(self.root / "input", self.files, [json.dumps(row) for row in named])
        self.files += 1

    def start(
        self, frame: DataFrame, config: lockstep.CheckpointConfig | None = None, **trigger: Any
    ) -> lockstep.CheckpointedQuery:
        return (
            lockstep.checkpointed(frame, config)
            .sink(DeltaSink(self.table), uid="lake")
            .option("checkpointLocation", self.checkpoint)
            .trigger(**(trigger or {"processingTime": "100 milliseconds"}))
            .start()
        )

    def run(self, frame: DataFrame, config: lockstep.CheckpointConfig | None = None) -> lockstep.CheckpointedQuery:
        """Take what is there, and end."""
        query = self.start(frame, config, availableNow=True)
        assert query.awaitTermination(120), "availableNow must end"
        return query

    def rows(self) -> list[tuple[Any, ...]]:
        table = DeltaTable(self.table).to_pyarrow_table()
        return sorted((tuple(row.values()) for row in table.to_pylist()), key=_nulls_last)

    def state(self, uid: str, **options: Any) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in lockstep.read_state(self.spark, self.checkpoint, uid, **options).collect())


def wait_for(condition: Callable[[], bool], query: lockstep.CheckpointedQuery, what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert query.exception() is None, query.exception()
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.1)


def _nulls_last(row: tuple[Any, ...]) -> list[tuple[bool, Any]]:
    return [(value is None, value) for value in row]
