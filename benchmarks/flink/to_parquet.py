"""Flink SQL from Kafka to Parquet: what the throughput of Lockstep's DeltaSink is put beside.

One chain of source and sink per slot, no shuffle. A part file is written from one checkpoint to the next, and gets the name
under which readers see it when that checkpoint is complete.
"""

from __future__ import annotations

from benchmarks.flink.order import Order, create_table

COLUMNS = "id BIGINT, account STRING, amount BIGINT, `at` BIGINT, note STRING"
_NEVER_BETWEEN_CHECKPOINTS = {
    "sink.rolling-policy.file-size": "4GB",
    "sink.rolling-policy.rollover-interval": "1 h",
}


def run(order: Order) -> None:
    """Returns when the last row is visible, in files in the directory ``table``."""
    tables = order.environment({})
    tables.execute_sql(order.topic_table(COLUMNS, {"format": "json"}))
    files = {
        "connector": "filesystem",
        "path": order.path("table"),
        "format": "parquet",
        "parquet.compression": "SNAPPY",  # Spark's own
        **_NEVER_BETWEEN_CHECKPOINTS,
    }
    tables.execute_sql(create_table("files", COLUMNS, files))
    tables.execute_sql("INSERT INTO files SELECT * FROM `rows`").wait()
