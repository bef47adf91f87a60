"""Starts Spark for the subcommands that need it."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lockstep.broker.java import require_java
from lockstep.cli.terminal import console
from lockstep.errors import EnvironmentProblemError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextlib.contextmanager
def spark_session(name: str, jars: bool = False) -> Iterator[SparkSession]:
    """A small Spark session of our own; what it prints while it starts is shown only when it fails.

    ``jars``: with Delta and Kafka.
    """
    require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    from lockstep.engine.session import configure

    screen = console()
    with contextlib.ExitStack() as stack:
        if screen.is_terminal:
            stack.enter_context(screen.status("starting Spark"))
        with _quiet():
            builder = (
                SparkSession.builder.master("local[2]")
                .appName(name)
                .config("spark.driver.memory", "1g")
                .config("spark.ui.enabled", "false")
                .config("spark.ui.showConsoleProgress", "false")
                .config("spark.sql.shuffle.partitions", "2")
                .config("spark.log.level", "OFF")
            )
            spark = (configure(builder) if jars else builder).getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with tempfile.TemporaryFile() as kept:
        before = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except Exception as error:
            kept.seek(0)
            text = kept.read().decode(errors="replace")[-2000:]
            raise EnvironmentProblemError(f"Spark did not start: {error}\n{text}") from error
        finally:
            os.dup2(before, 2)
            os.close(before)
