"""Kafka to a Delta table, exactly once: the smallest pipeline to start from.

    lockstep broker --port 9092 --topic orders:3        # in another terminal, if you have no Kafka
    python examples/kafka_to_delta.py --topic orders --table /tmp/lake/orders --checkpoint /tmp/checkpoints/orders

Kill it whenever you like and start it again: no row is lost, and none comes twice.
"""

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import lockstep
from lockstep.sinks import DeltaSink
from lockstep.sources import KafkaSource

parser = argparse.ArgumentParser(description="Kafka to a Delta table, exactly once.")
parser.add_argument("--bootstrap-servers", default="localhost:9092", help="default: %(default)s")
parser.add_argument("--topic", required=True)
parser.add_argument("--table", required=True, help="directory of the Delta table; made if it is missing")
parser.add_argument("--checkpoint", required=True, help="keep it: a restart continues from here")
parser.add_argument("--group", default="kafka-to-delta", help="consumer group that shows the progress to lag tools")
parser.add_argument("--available-now", action="store_true", help="take what is there now, and end")
options = parser.parse_args()

# Adds the Kafka and Delta jars to the session; everything else on the builder is yours.
spark = lockstep.configure(SparkSession.builder.appName("kafka-to-delta")).getOrCreate()

# An ordinary streaming DataFrame. The first start begins at the group's offsets, or else at the oldest record.
records = KafkaSource(options.bootstrap_servers, topics=[options.topic], group_id=options.group).load(spark)

# Any Spark transformation goes here, such as from_json on the value.
rows = records.select(
    F.col("key").cast("string"), F.col("value").cast("string"), "topic", "partition", "offset", "timestamp"
)

query = (
    lockstep.checkpointed(rows)  # instead of rows.writeStream
    .sink(DeltaSink(options.table), uid="table")  # the uid names the sink across restarts: never change it
    .option("checkpointLocation", options.checkpoint)
    .trigger(**({"availableNow": True} if options.available_now else {"processingTime": "1 second"}))
    .start()
)
try:
    query.awaitTermination()
except KeyboardInterrupt:
    query.stop()  # commits everything that is decided, and the group's offsets, before it returns
