"""The control stream: a second, mostly silent source of every query with a keyed operator.

Spark refuses a restart with another number of sources, so the stream is always there. It wakes every key group (a *tick*)
when a timer is due, and at each start; Spark's own group timeouts can't do that (an idle query would spin, and
``availableNow`` would never end). A tick is an offset like any other: Spark stores it before the epoch runs, so a
repeated epoch sees the same one.

An operator that needs no tick has a stream over an empty directory instead, which costs nothing and, as it never has an
offset, may become a ticking one later.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from lockstep.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FORMAT = "lockstep_control"
_MAILBOX = "mailbox"
_POSITION = "logOffset"  # the name that Spark's file source uses too: the two may follow each other in one directory


class Mailbox:
    """Tells the control stream, which Spark runs in a process of its own beside the driver, when to tick."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="lockstep-control-"))
        self._content: dict[str, Any] = {}
        self._lock = threading.Lock()
        weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)

    @property
    def path(self) -> str:
        return str(self._directory / _MAILBOX)

    @property
    def empty_directory(self) -> str:
        directory = self._directory / "empty"
        directory.mkdir(exist_ok=True)
        return directory.as_uri()

    def wake_at(self, milliseconds: int | None) -> None:
        """Tick when that time has come; ``None``: not at all."""
        self._write({"wake_at": milliseconds})

    def payload(self, data: bytes | None) -> None:
        """What the next start's first tick hands to every key group."""
        self._write({"payload": None if data is None else base64.b64encode(data).decode()})

    def _write(self, change: dict[str, Any]) -> None:
        with self._lock:
            content = {**self._content, **change}
            if content != self._content:
                fresh = f"{self.path}.new"
                Path(fresh).write_text(json.dumps(content))
                os.replace(fresh, self.path)
                self._content = content


def ticking_stream(spark: SparkSession, mailbox: Mailbox) -> DataFrame:
    """A stream of one column, ``payload``: one row for each tick."""
    _require_python(spark)
    spark.dataSource.register(ControlSource)
    return spark.readStream.format(_FORMAT).option(_MAILBOX, mailbox.path).load()


def silent_stream(spark: SparkSession, mailbox: Mailbox) -> DataFrame:
    """A stream of one column, ``payload``, that never has a row."""
    return spark.readStream.format("text").load(mailbox.empty_directory).selectExpr("cast(value as binary) as payload")


class ControlSource(DataSource):
    """Spark's data source behind :func:`ticking_stream`."""

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    def schema(self) -> str:
        return "payload binary"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return ControlReader(str(self.options[_MAILBOX]))


class _Tick(InputPartition):
    def __init__(self, payload: str | None) -> None:
        self.payload = payload


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
        return [_Tick(end.get("payload"))] if start != end else []

    def read(self, partition: InputPartition) -> Iterator[tuple[bytes | None]]:
        payload = getattr(partition, "payload", None)
        yield (None if payload is None else base64.b64decode(payload),)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is held for the epochs that are decided."""

    def stop(self) -> None:
        """Nothing is open."""

    def _read(self) -> dict[str, Any]:
        with contextlib.suppress(FileNotFoundError, ValueError):
            return dict(json.loads(Path(self._mailbox).read_text()))
        return {}


def _require_python(spark: Any) -> None:
    """Spark starts the control stream's process with the JVM's PYSPARK_PYTHON, whatever the session's settings say."""
    chosen = spark._jvm.java.lang.System.getenv("PYSPARK_PYTHON")
    if chosen is not None:
        return
    default = shutil.which("python3")
    if (
        default is None
        or os.path.realpath(default) != os.path.realpath(sys.executable)
        or sys.prefix != sys.base_prefix
    ):
        raise ConfigurationError(
            "timers need PYSPARK_PYTHON in the environment of the driver's JVM, and it is not set: Spark would run "
            f"{default}, not {sys.executable}. Make the session with lockstep.configure, or set PYSPARK_PYTHON="
            f"{sys.executable} before the driver starts."
        )
