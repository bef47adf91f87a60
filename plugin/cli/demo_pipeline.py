"""The pipeline of a demo, in a process of its own: it is killed, started again, and at last told to stop.

Run as ``python -m lockstep.cli.demo_pipeline JSON``. It ends by itself, having committed everything, when its standard
input is closed: when the demo says so, and also when the demo is gone.
"""

from __future__ import annotations

import json
import logging
import select
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lockstep import CheckpointedQuery

GROUP = "demo"
_SCHEMA = "order_id long, account string, amount double, ts timestamp"
_POLL_SECONDS = 0.3
_SHORT_LIVES = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"  # saves a third of a start's processor time


@dataclass(frozen=True)
class PipelineJob:
    """What the pipeline is told on its command line."""

    bootstrap_servers: str
    topic: str
    directory: str
    rows_per_epoch: int

    @property
    def table(self) -> Path:
        return Path(self.directory, "table")

    @property
    def checkpoint(self) -> Path:
        return Path(self.directory, "checkpoint")

    @property
    def temporary(self) -> Path:
        """For all that a killed JVM leaves behind."""
        return Path(self.directory, "tmp")

    def encode(self) -> str:
        return json.dumps(asdict(self))


def session(job: PipelineJob) -> SparkSession:
    from pyspark.sql import SparkSession

    import lockstep

    builder = (
        SparkSession.builder.appName("lockstep-demo")
        .master("local[2]")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .config("spark.local.dir", str(job.temporary))
        .config("spark.sql.warehouse.dir", str(job.temporary / "warehouse"))
        .config("spark.driver.extraJavaOptions", f'{_SHORT_LIVES} "-Djava.io.tmpdir={job.temporary}"')
    )
    spark = lockstep.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def start(spark: SparkSession, job: PipelineJob) -> CheckpointedQuery:
    """Kafka to Delta, exactly once. This is all that a pipeline needs."""
    from pyspark.sql import functions as F

    import lockstep
    from lockstep.sinks import DeltaSink
    from lockstep.sources import KafkaSource

    source = KafkaSource(
        job.bootstrap_servers,
        topics=[job.topic],
        group_id=GROUP,
        options={"maxOffsetsPerTrigger": str(job.rows_per_epoch)},
    )
    orders = source.load(spark).select(F.from_json(F.col("value").cast("string"), _SCHEMA).alias("order"))
    return (
        lockstep.checkpointed(orders.select("order.*"))
        .sink(DeltaSink(str(job.table)), uid="lake")
        .option("checkpointLocation", str(job.checkpoint))
        .trigger(processingTime="500 milliseconds")
        .queryName("demo")
        .start()
    )


def told_to_stop() -> bool:
    readable, _, _ = select.select([sys.stdin], [], [], 0)
    return bool(readable)


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    job = PipelineJob(**json.loads(sys.argv[1]))
    spark = session(job)
    query = start(spark, job)
    while not told_to_stop():
        query.awaitTermination(_POLL_SECONDS)  # raises what ended the query, if something did
    query.stop()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
