"""KafkaSink beside Spark's own Kafka sink, in one run on one machine.

    make bench-kafka                      # 2,000,000 rows, medians of 3 rounds; a few minutes on two cores
    make bench-kafka ARGS=--quick         # a short one, to see that it runs

Every contender reads the same topic in the same epochs and writes key and value to a new topic; rounds are interleaved, in
changing order, after one round that warms the JVM up. Time is from the moment when the first epoch's rows can be read by a
read-committed reader until the last row can: for Lockstep that includes phase 2. Writes build/bench-kafka.json and, with
--docs, the table in docs/benchmarks-kafka-sink.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import lockstep
from lockstep.broker import EmbeddedBroker
from lockstep.sinks import KafkaSink
from lockstep.sources import KafkaSource

ROOT = Path(__file__).parent.parent
PARTITIONS = 4
SPARK = "Spark's Kafka sink, at least once"
EXACTLY_ONCE = "KafkaSink, exactly once"
PARALLEL = "KafkaSink, exactly once, parallelism=2"
AT_LEAST_ONCE = "KafkaSink, at least once"
screen = Console(stderr=True)

Start = Callable[[DataFrame, str, str, str], Any]


def spark_sink(rows: DataFrame, servers: str, topic: str, checkpoint: str) -> Any:
    writer = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", topic)
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def kafka_sink(**arguments: Any) -> Start:
    def start(rows: DataFrame, servers: str, topic: str, checkpoint: str) -> Any:
        sink = KafkaSink(servers, topic=topic, **arguments)
        writer = lockstep.checkpointed(rows).sink(sink, uid="feed").option("checkpointLocation", checkpoint)
        return writer.trigger(availableNow=True).start()

    return start


CONTENDERS: dict[str, Start] = {
    SPARK: spark_sink,
    EXACTLY_ONCE: kafka_sink(),
    PARALLEL: kafka_sink(parallelism=2),
    AT_LEAST_ONCE: kafka_sink(delivery="at_least_once"),
}


@dataclass(frozen=True)
class Round:
    contender: str
    round: int
    first_epoch_s: float
    rows: int  # after the first epoch
    seconds: float
    rows_per_s: float


def main() -> int:
    options = _options()
    rows, per_epoch = (300_000, 100_000) if options.quick else (2_000_000, options.rows_per_epoch)
    rounds: list[Round] = []
    with EmbeddedBroker(heap="1g") as broker, _progress() as progress:
        broker.create_topic("in", PARTITIONS)
        _fill(broker.bootstrap_servers, rows, progress)
        spark = _session(options.driver_memory)
        bar = progress.add_task("rounds", total=(options.rounds + 1) * len(CONTENDERS))
        for number in range(options.rounds + 1):  # the first is for the JVM's compiler, and is reported apart
            names = list(CONTENDERS)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                progress.update(bar, description=name if number else f"{name} (warm-up)")
                rounds.append(_run(spark, broker, name, number, rows, per_epoch))
                progress.advance(bar)
        spark.stop()
    result = _result(rounds, rows, per_epoch)
    Path(ROOT, "build").mkdir(exist_ok=True)
    Path(ROOT, "build", "bench-kafka.json").write_text(json.dumps(result, indent=2) + "\n")
    screen.print(_table(result))
    if options.docs:
        _write_docs(result)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rows, for a look")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--rows-per-epoch", type=int, default=200_000, help="default: %(default)s")
    parser.add_argument("--driver-memory", default="4g", help="default: %(default)s")
    parser.add_argument("--docs", action="store_true", help="write the table into docs/benchmarks-kafka-sink.md")
    return parser.parse_args()


def _session(memory: str) -> SparkSession:
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("bench-kafka")
        .config("spark.driver.memory", memory)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    spark = lockstep.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _fill(servers: str, rows: int, progress: Progress) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 50, "batch.size": 1_000_000})
    bar = progress.add_task(f"{rows:,} rows", total=rows)
    for row in range(rows):
        value = json.dumps({"id": row, "account": f"account-{row % 10_000}", "amount": row % 1000, "note": "x" * 40})
        producer.produce("in", key=f"account-{row % 10_000}", value=value)
        if row % 10_000 == 0:
            producer.flush(60)
            progress.update(bar, completed=row)
    if producer.flush(60):
        raise SystemExit("the broker did not take all rows")
    progress.update(bar, completed=rows)


def _run(spark: SparkSession, broker: EmbeddedBroker, name: str, number: int, rows: int, per_epoch: int) -> Round:
    topic = f"out-{list(CONTENDERS).index(name)}-{number}"
    broker.create_topic(topic, PARTITIONS)
    servers = broker.bootstrap_servers
    source = KafkaSource(
        servers, topics="in", startup_mode="earliest", options={"maxOffsetsPerTrigger": str(per_epoch)}
    )
    stream = source.load(spark).select("key", "value")
    place = tempfile.mkdtemp(prefix="lockstep-bench-")
    visible = _Visible(servers, topic)
    try:
        visible.start()
        started = time.monotonic()
        query = CONTENDERS[name](stream, servers, topic, place)
        query.awaitTermination()
        visible.wait_for(rows)
        first = visible.reached(per_epoch)
        seconds = visible.reached(rows) - first
    finally:
        visible.stop()
        shutil.rmtree(place, ignore_errors=True)
    warm = rows - per_epoch
    return Round(name, number, round(first - started, 2), warm, round(seconds, 2), round(warm / seconds))


class _Visible(threading.Thread):
    """Looks ten times a second how many rows a read-committed reader could read.

    The last stable offsets tell, without reading. A transaction adds one control record to each partition, at most.
    """

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._consumer = Consumer(
            {"bootstrap.servers": servers, "group.id": "bench", "isolation.level": "read_committed"}
        )
        self._topic = topic
        self._looks: list[tuple[float, int]] = []
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.1):
            ends = [
                self._consumer.get_watermark_offsets(TopicPartition(self._topic, n), timeout=10)[1]
                for n in range(PARTITIONS)
            ]
            self._looks.append((time.monotonic(), sum(ends)))

    def wait_for(self, rows: int) -> None:
        deadline = time.monotonic() + 120
        while not self._looks or self._looks[-1][1] < rows:
            if time.monotonic() > deadline:
                raise SystemExit(f"only {self._looks[-1:]} of {rows} rows became visible")
            time.sleep(0.05)

    def reached(self, rows: int) -> float:
        return next(at for at, seen in self._looks if seen >= rows)

    def stop(self) -> None:
        self._ended.set()
        self.join()
        self._consumer.close()


def _result(rounds: list[Round], rows: int, per_epoch: int) -> dict[str, Any]:
    figures = {}
    for name in CONTENDERS:
        mine = [one for one in rounds if one.contender == name and one.round > 0]
        speeds = [one.rows_per_s for one in mine]
        figures[name] = {
            "rows_per_s": round(statistics.median(speeds)),
            "slowest": min(speeds),
            "fastest": max(speeds),
            "first_epoch_s": statistics.median(one.first_epoch_s for one in mine),
        }
    spark = figures[SPARK]["rows_per_s"]
    ratios = {name: round(figure["rows_per_s"] / spark, 2) for name, figure in figures.items()}
    return {
        "rows": rows,
        "rows_per_epoch": per_epoch,
        "warm_up": [asdict(one) for one in rounds if one.round == 0],
        "rounds": [asdict(one) for one in rounds if one.round > 0],
        "figures": figures,
        "ratios": {**ratios, "kafka_sink_vs_spark": ratios[EXACTLY_ONCE]},
    }


def _lines(result: dict[str, Any]) -> list[list[str]]:
    return [
        [
            name,
            f"{figure['rows_per_s']:,}",
            f"{figure['slowest']:,} to {figure['fastest']:,}",
            f"{figure['first_epoch_s']:.1f} s",
            f"{result['ratios'][name]:.2f}",
        ]
        for name, figure in result["figures"].items()
    ]


_HEADERS = ["sink", "rows/s", "slowest to fastest", "first epoch", "× Spark's"]


def _table(result: dict[str, Any]) -> Table:
    table = Table(title=f"{result['rows']:,} rows in epochs of {result['rows_per_epoch']:,}")
    for header in _HEADERS:
        table.add_column(header, justify="left" if header == "sink" else "right")
    for line in _lines(result):
        table.add_row(*line)
    return table


def _write_docs(result: dict[str, Any]) -> None:
    path = ROOT / "docs" / "benchmarks-kafka-sink.md"
    before = path.read_text().partition("<!-- table -->")[0]
    lines = [_HEADERS, ["---"] * len(_HEADERS), *_lines(result)]
    path.write_text(before + "<!-- table -->\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n")


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f}"), TimeElapsedColumn())
    return Progress(*columns, console=screen)


if __name__ == "__main__":
    raise SystemExit(main())
