"""What the keyed examples share: the command line, a session, JSON records from Kafka, and a query into a Delta table.

``kafka_to_delta.py`` has all of it in one file. Here it stands apart, so that each example shows its function.
"""

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import lockstep
from lockstep.sinks import DeltaSink
from lockstep.sources import KafkaSource


def parser(description: str, group: str) -> argparse.ArgumentParser:
    """The arguments that all examples take. ``description`` is the script's docstring."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", default="localhost:9092", help="default: %(default)s")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--table", required=True, help="directory of the Delta table; made if it is missing")
    parser.add_argument("--checkpoint", required=True, help="keep it: a restart continues from here")
    parser.add_argument("--group", default=group, help="consumer group that shows the progress; default: %(default)s")
    parser.add_argument("--rows-per-epoch", type=int, help="at most so many; default: all that are there")
    parser.add_argument("--available-now", action="store_true", help="take what is there now, and end")
    return parser


def session(name: str) -> SparkSession:
    """A session with the Kafka and Delta jars."""
    return lockstep.configure(SparkSession.builder.appName(name)).getOrCreate()


def read_json(spark: SparkSession, options: argparse.Namespace, topic: str, schema: str) -> DataFrame:
    """A topic's JSON records as a stream of rows. A record that is no JSON stops the query: nothing is skipped.

    With ``topic``, ``partition`` and ``offset`` kept, ``key_by`` hands over each epoch's rows in Kafka's order.
    """
    limit = {"maxOffsetsPerTrigger": options.rows_per_epoch} if options.rows_per_epoch else {}
    source = KafkaSource(options.bootstrap_servers, topics=[topic], group_id=options.group, options=limit)
    record = F.from_json(F.col("value").cast("string"), schema, {"mode": "FAILFAST"})
    return (
        source.load(spark)
        .select(record.alias("record"), "topic", "partition", "offset")
        .select("record.*", "topic", "partition", "offset")
    )


def run(rows: DataFrame, options: argparse.Namespace) -> None:
    """Write ``rows`` to the table, exactly once, until somebody presses Ctrl-C."""
    query = (
        lockstep.checkpointed(rows)
        .sink(DeltaSink(options.table), uid="table")
        .option("checkpointLocation", options.checkpoint)
        .trigger(**({"availableNow": True} if options.available_now else {"processingTime": "1 second"}))
        .start()
    )
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()  # commits everything that is decided, and the group's offsets, before it returns
