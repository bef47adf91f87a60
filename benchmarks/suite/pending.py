"""A driver that dies with decided epochs pending: ``pending SERVERS TOPIC DIRECTORY ROWS_PER_EPOCH COUNT``.

The first epoch is committed, so that the table is there; the following ones wait for a checkpoint that never comes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import lockstep
from benchmarks.suite.contenders import Run, with_kafka_source
from benchmarks.suite.ground import session
from lockstep.sinks import DeltaSink


def main(servers: str, topic: str, directory: str, rows_per_epoch: int, count: int) -> None:
    spark = session("2g")
    run = Run(spark, servers, topic, Path(directory), rows_per_epoch, until_empty=False)
    config = lockstep.CheckpointConfig(interval=timedelta(hours=1), max_pending_epochs=50)
    writer = lockstep.checkpointed(with_kafka_source(run), config).sink(DeltaSink(str(run.table)), uid="table")
    query = run.begin(writer)
    while not query.pending_epochs:
        time.sleep(0.01)
    query.checkpoint()
    while len(query.pending_epochs) < count + 1:  # the newest may not be decided yet
        time.sleep(0.001)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    if os.getpgid(0) != os.getpid():  # in a group of its own, which dies with its JVM
        ended = subprocess.run(
            [sys.executable, "-m", "benchmarks.suite.pending", *sys.argv[1:]], start_new_session=True
        )
        raise SystemExit(0 if ended.returncode == -signal.SIGKILL else "the driver was to die by SIGKILL")
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
