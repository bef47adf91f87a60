"""All examples in one driver process, to be killed: the ``main`` of each script, in a thread of its own.

Run by the tests as ``python -m integration_tests.example_driver '{"commands": {"bank": ["--topic", …]}, …}'`` with the
examples on PYTHONPATH, where Spark's workers find them too. One JVM serves them all, since starting one takes longest.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import lockstep
from integration_tests.driver import QUICK_START
from lockstep.testing import failpoints

_queries: list[lockstep.CheckpointedQuery] = []


def build_session(settings: dict[str, str]) -> SparkSession:
    """The session that each example's own ``getOrCreate`` then gets."""
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("examples")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.extraJavaOptions", f"{QUICK_START} -XX:ReservedCodeCacheSize=128m")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.databricks.delta.snapshotPartitions", "2")
    )
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = lockstep.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class Script(threading.Thread):
    """One example, run as from a command line."""

    def __init__(self, name: str, arguments: list[str]) -> None:
        super().__init__(name=name, daemon=True)
        self._arguments = arguments
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            importlib.import_module(self.name).main(self._arguments)
        except BaseException as error:
            logging.exception("%s failed", self.name)
            self.failure = error


def main(settings: dict[str, Any]) -> None:
    threading.Thread(target=_die_with_the_test, daemon=True).start()
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    _remember_queries()
    spark = build_session(settings.get("session", {}))
    scripts = [Script(name, arguments) for name, arguments in settings["commands"].items()]
    for script in scripts:
        script.start()
    stopped = False
    while any(script.is_alive() for script in scripts) and not any(script.failure for script in scripts):
        if not stopped and Path(settings["stop"]).exists():
            stopped = True
            for query in _queries:
                query.stop()  # what Ctrl-C does in a script
        time.sleep(0.2)
    failed = [script.name for script in scripts if script.failure]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
    if "audit" in settings:
        _audit(spark, settings["commands"]["bank"], Path(settings["audit"]))


def _audit(spark: SparkSession, arguments: list[str], found: Path) -> None:
    """What the bank's own audit sees, for the test to compare with what it reads itself."""
    bank = importlib.import_module("bank")
    options = bank.parse([*arguments, "--audit"])
    cuts = bank.audit(spark, options)
    assert bank.show(cuts, options.opening), "the books do not balance"
    found.write_text(json.dumps({cut.epoch: cut.state for cut in cuts}))


def _remember_queries() -> None:
    start = lockstep.CheckpointedWriter.start

    def remembered(writer: lockstep.CheckpointedWriter) -> lockstep.CheckpointedQuery:
        query = start(writer)
        _queries.append(query)
        return query

    lockstep.CheckpointedWriter.start = remembered  # type: ignore[method-assign]


def _die_with_the_test() -> None:
    """The test holds the other end of stdin: when it is gone, so are we."""
    sys.stdin.read()
    failpoints.kill_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
