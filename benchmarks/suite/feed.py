"""Produces rows at a steady rate, in a process of its own: ``feed SERVERS TOPIC ROWS_PER_SECOND SECONDS``."""

from __future__ import annotations

import sys
import time

from confluent_kafka import Producer

from benchmarks.suite.ground import PARTITIONS, value

_STEP = 0.01


def main(servers: str, topic: str, rate: int, seconds: float) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 1})
    begun = time.monotonic()
    row = 0
    while (passed := time.monotonic() - begun) < seconds:
        while row < passed * rate:
            producer.produce(topic, value=value(row), partition=row % PARTITIONS)
            row += 1
        producer.poll(0)
        time.sleep(_STEP)
    if producer.flush(60):
        raise SystemExit("the broker did not take all rows")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
