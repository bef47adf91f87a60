"""Flink in a process that stays, so that its JVM is as warm in the later rounds as Spark's is.

Reads one order per line from standard input, as JSON with the name of the ``job``, and answers each with a line: when the
job was submitted, or what went wrong. Ends when standard input does, in the middle of a job too, and its JVM with it.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import traceback

from benchmarks.flink import running_sum, to_parquet
from benchmarks.flink.order import Order

JOBS = {"to_parquet": to_parquet.run, "running_sum": running_sum.run}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is printed, by Java and by workers too, goes where errors go
    orders: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    while True:
        order = json.loads(orders.get())
        answers.write(json.dumps(_answer(order.pop("job"), Order(**order))) + "\n")


def _answer(job: str, order: Order) -> dict[str, object]:
    begun = time.time()
    try:
        JOBS[job](order)
    except Exception as error:
        traceback.print_exc()
        return {"failed": str(error).strip().partition("\n")[0]}
    return {"begun": begun}


def _listen(orders: queue.Queue[str]) -> None:
    for line in sys.stdin:
        orders.put(line)
    os._exit(0)  # Flink's JVM reads from us, and ends too


if __name__ == "__main__":
    main()
