"""The control stream's source, which Spark runs in Python processes of its own beside the driver.

Spark starts such a process for each of its questions. It gets the classes below by value, so that it doesn't import
Lockstep with all that belongs to it: seconds on a busy machine, for a few lines. They use nothing but pyspark and the
standard library.
"""

from __future__ import annotations

import base64
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

FORMAT = "lockstep_control"
MAILBOX = "mailbox"
_POSITION = "logOffset"  # the name that Spark's file source uses too: the two may follow each other in one directory


class ControlSource(DataSource):
    """What Spark asks for the stream."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return "payload binary"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return ControlReader(str(self.options[MAILBOX]))


class ControlReader(DataSourceStreamReader):
    """Runs in a Python process of Spark's own beside the driver, for as long as the query runs."""

    def __init__(self, mailbox: str) -> None:
        self._mailbox = mailbox
        self._latest: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:
        return {_POSITION: 0}

    def latestOffset(self) -> dict[str, Any]:
        """The last tick's time; a new one at the start, and when the mailbox says that a timer is due."""
        content = self._read()
        now = time.time_ns() // 1_000_000
        if self._latest is None:
            self._latest = {_POSITION: now}
            if content.get("payload"):
                self._latest["payload"] = content["payload"]
        else:
            wake_at = content.get("wake_at")
            if wake_at is not None and wake_at <= now:
                self._latest = {_POSITION: max(now, self._latest[_POSITION] + 1)}
        return self._latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(end.get("payload"))] if start != end else []

    def read(self, partition: InputPartition) -> Iterator[tuple[bytes | None]]:
        payload = partition.value
        yield (None if payload is None else base64.b64decode(payload),)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is held for the epochs that are decided."""

    def stop(self) -> None:
        """Nothing is open."""

    def _read(self) -> dict[str, Any]:
        with contextlib.suppress(FileNotFoundError, ValueError):
            return dict(json.loads(Path(self._mailbox).read_text()))
        return {}


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
