"""One contender in a driver of its own: ``alone SERVERS TOPIC ROWS_PER_EPOCH NAME``. Prints what it cost, as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from benchmarks.suite.contenders import ALL, Run
from benchmarks.suite.ground import place, session, settings

_TICKS = os.sysconf("SC_CLK_TCK")


def main(servers: str, topic: str, rows_per_epoch: int, name: str) -> None:
    contender = next(one for one in ALL if one.name == name)
    begun = time.monotonic()
    spark = session("2g")
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
    with place() as directory, settings(spark, contender.settings):
        contender.start(Run(spark, servers, topic, directory, rows_per_epoch)).awaitTermination()
    processes = ("self", str(jvm))
    figures = {
        "seconds": time.monotonic() - begun,
        "cpu_s": sum(map(_cpu, processes)),
        "peak_mb": sum(map(_peak, processes)),
    }
    sys.stdout.write(json.dumps(figures))


def _cpu(process: str) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _peak(process: str) -> float:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) / 1024


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
