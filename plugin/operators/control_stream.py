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
import json
import os
import shutil
import sys
import tempfile
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.errors import ConfigurationError
from lockstep.operators.control_source import FORMAT, MAILBOX, ControlSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Mailbox:
    """Tells the control stream, which Spark runs in a process of its own beside the driver, when to tick."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="lockstep-control-"))
        self._content: dict[str, Any] = {}
        self._lock = threading.Lock()
        weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)

    @property
    def path(self) -> str:
        return str(self._directory / MAILBOX)

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
    return spark.readStream.format(FORMAT).option(MAILBOX, mailbox.path).load()


def silent_stream(spark: SparkSession, mailbox: Mailbox) -> DataFrame:
    """A stream of one column, ``payload``, that never has a row."""
    return spark.readStream.format("text").load(mailbox.empty_directory).selectExpr("cast(value as binary) as payload")


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
