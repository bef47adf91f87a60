"""Keyed state: Lockstep beside an idiomatic per-key applyInPandasWithState, in one run on one machine.

    make bench-state                      # 2,000,000 rows, medians of 3 rounds; about a quarter of an hour on two cores
    make bench-state ARGS=--quick         # a short one, to see that it runs

A running sum per account. Every contender reads the same topic, in the same epochs, and writes to Spark's ``noop`` sink;
rounds are interleaved. The first epoch of a query (Python workers start, plans are compiled) is reported apart.
Writes build/bench-state.json and, with --docs, the table in docs/benchmarks-state.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import lockstep
from lockstep.broker import EmbeddedBroker

ROOT = Path(__file__).parent.parent
OUTPUT = "account string, total bigint"
screen = Console(stderr=True)


def idiomatic(orders: DataFrame) -> DataFrame:
    """What Spark's manual shows: one group per key, vectorised inside."""

    def running_total(key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        total = state.get[0] if state.exists else 0
        for frame in frames:
            running = frame["amount"].cumsum() + total
            total = int(running.iloc[-1])
            yield pd.DataFrame({"account": key[0], "total": running})
        state.update((total,))

    return orders.groupBy("account").applyInPandasWithState(
        running_total, OUTPUT, "total bigint", "append", GroupStateTimeout.NoTimeout
    )


class RunningTotal(lockstep.KeyedProcessFunction):
    """Element by element."""

    total = lockstep.ValueState("bigint", default=0)

    def process_element(self, row: Any, ctx: Any) -> Iterator[tuple[str, int]]:
        new = self.total.value() + row.amount
        self.total.update(new)
        yield row.account, new


class RunningTotalBatch(lockstep.KeyedProcessFunction):
    """A key group at a time."""

    total = lockstep.ValueState("bigint", default=0)

    def process_batch(self, batch: Any, ctx: Any) -> Iterator[pd.DataFrame]:
        codes, accounts = pd.factorize(batch["account"])
        accounts = accounts.tolist()
        amounts = batch["amount"]
        before = pd.Series(self.total.get_many(accounts)).to_numpy()
        running = amounts.groupby(codes).cumsum() + before[codes]
        after = before + amounts.groupby(codes).sum().to_numpy()
        self.total.update_many(accounts, after.tolist())
        yield pd.DataFrame({"account": batch["account"], "total": running})


def process_element(orders: DataFrame) -> DataFrame:
    return lockstep.key_by(orders, "account").process(RunningTotal(), uid="totals", output=OUTPUT)


def process_batch(orders: DataFrame) -> DataFrame:
    return lockstep.key_by(orders, "account").process(RunningTotalBatch(), uid="totals", output=OUTPUT)


CONTENDERS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "idiomatic": idiomatic,
    "process_element": process_element,
    "process_batch": process_batch,
}


@dataclass(frozen=True)
class Work:
    name: str
    topic: str
    rows: int
    keys: int
    rows_per_epoch: int


@dataclass(frozen=True)
class Round:
    work: str
    contender: str
    backend: str
    round: int
    first_epoch_s: float
    warm_epochs: int
    warm_s: float
    rows_per_s: float


def main() -> int:
    options = _options()
    rows, epoch = (400_000, 100_000) if options.quick else (2_000_000, 200_000)
    many = (100_000, 50_000) if options.quick else (400_000, 200_000)  # a second epoch takes the idiomatic one minutes
    works = [
        Work("10,000 keys", "few-keys", rows, 10_000, epoch),
        Work("100,000 keys", "many-keys", many[0], 100_000, many[1]),
    ]
    works = works if options.rounds_many else works[:1]
    backends = options.backend.split(",")
    rounds: list[Round] = []
    with EmbeddedBroker() as broker, _progress() as progress:
        for work in works:
            broker.create_topic(work.topic, 4)
            _fill(broker.bootstrap_servers, work, progress)
        spark = _session(options.driver_memory)
        runs = options.rounds + min(options.rounds, options.rounds_many)
        bar = progress.add_task("rounds", total=runs * len(CONTENDERS) * len(backends))
        for number in range(options.rounds):
            for work in works[: 1 if number >= options.rounds_many else None]:
                for backend in backends:
                    for name, build in CONTENDERS.items():
                        progress.update(bar, description=f"{work.name}, {backend}: {name}")
                        rounds.append(_run(spark, broker.bootstrap_servers, work, backend, name, build, number))
                        progress.advance(bar)
        spark.stop()
    result = _result(works, backends, rounds)
    Path(ROOT, "build").mkdir(exist_ok=True)
    Path(ROOT, "build", "bench-state.json").write_text(json.dumps(result, indent=2) + "\n")
    screen.print(_table(result))
    if options.docs:
        _write_docs(result)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rows, for a look")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--rounds-many", type=int, default=1, help="rounds with 100,000 keys; default: %(default)s")
    parser.add_argument("--backend", default="hdfs", help="hdfs, rocksdb or both with a comma; default: %(default)s")
    parser.add_argument("--driver-memory", default="6g", help="default: %(default)s")
    parser.add_argument("--docs", action="store_true", help="write the table into docs/benchmarks-state.md")
    return parser.parse_args()


def _session(memory: str) -> SparkSession:
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("bench-state")
        .config("spark.driver.memory", memory)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "4")
    )
    spark = lockstep.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _fill(servers: str, work: Work, progress: Progress) -> None:
    producer = Producer(
        {"bootstrap.servers": servers, "linger.ms": 50, "batch.size": 1_000_000, "compression.type": "lz4"}
    )
    bar = progress.add_task(f"{work.rows:,} rows, {work.name}", total=work.rows)
    for row in range(work.rows):
        account = (row * 7919) % work.keys
        producer.produce(work.topic, key=f"account-{account}", value=str(row % 1000))
        if row % 10_000 == 0:
            producer.flush(60)
            progress.update(bar, completed=row)
    if producer.flush(60):
        raise SystemExit("the broker did not take all rows")
    progress.update(bar, completed=work.rows)


def _run(
    spark: SparkSession,
    servers: str,
    work: Work,
    backend: str,
    name: str,
    build: Callable[[DataFrame], DataFrame],
    number: int,
) -> Round:
    directory = Path(tempfile.mkdtemp(prefix="bench-state-"))
    orders = (
        lockstep.sources.KafkaSource(
            servers, topics=[work.topic], startup_mode="earliest", options={"maxOffsetsPerTrigger": work.rows_per_epoch}
        )
        .load(spark)
        .select(
            F.col("key").cast("string").alias("account"), F.col("value").cast("string").cast("bigint").alias("amount")
        )
    )
    with lockstep.engine.state_backend.settings_at_start(spark, lockstep.StateBackend(backend), 1):
        query = (
            build(orders)
            .writeStream.format("noop")
            .option("checkpointLocation", str(directory))
            .trigger(availableNow=True)
            .start()
        )
    query.awaitTermination()
    epochs = [progress for progress in query.recentProgress if progress["numInputRows"]]
    counted = sum(progress["sink"]["numOutputRows"] for progress in epochs)
    if counted != work.rows:
        raise SystemExit(f"{name}: {counted:,} of {work.rows:,} rows came out")
    seconds = [progress["durationMs"]["triggerExecution"] / 1000 for progress in epochs]
    warm = seconds[1:]
    rows = sum(progress["numInputRows"] for progress in epochs[1:])
    shutil.rmtree(directory, ignore_errors=True)
    time.sleep(1)
    return Round(work.name, name, backend, number, seconds[0], len(warm), sum(warm), rows / sum(warm))


def _result(works: list[Work], backends: list[str], rounds: list[Round]) -> dict[str, Any]:
    medians: dict[str, dict[str, dict[str, float]]] = {}
    ratios = {}
    for work in works:
        for backend in backends:
            label = f"{work.name}, {backend}"
            by_name = {
                name: [r for r in rounds if (r.work, r.backend, r.contender) == (work.name, backend, name)]
                for name in CONTENDERS
            }
            medians[label] = {
                name: {
                    "rows_per_s": statistics.median(r.rows_per_s for r in found),
                    "slowest": min(r.rows_per_s for r in found),
                    "fastest": max(r.rows_per_s for r in found),
                    "epoch_s": statistics.median(r.warm_s / r.warm_epochs for r in found),
                    "first_epoch_s": statistics.median(r.first_epoch_s for r in found),
                }
                for name, found in by_name.items()
            }
            base = medians[label]["idiomatic"]["rows_per_s"]
            ratios[label] = {name: figures["rows_per_s"] / base for name, figures in medians[label].items()}
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "machine": platform.machine()}
    return {
        "machine": machine,
        "works": [asdict(work) for work in works],
        "medians": medians,
        "ratios": ratios,
        "rounds": [asdict(r) for r in rounds],
    }


def _table(result: dict[str, Any]) -> Table:
    table = Table("keys, backend", "operator", "rows/s", "slowest to fastest", "epoch", "first epoch", "× idiomatic")
    for label, contenders in result["medians"].items():
        for name, f in contenders.items():
            table.add_row(*_cells(label, name, f, result["ratios"][label][name]))
    return table


def _cells(label: str, name: str, figures: dict[str, float], ratio: float) -> list[str]:
    return [
        label,
        name,
        f"{figures['rows_per_s']:,.0f}",
        f"{figures['slowest']:,.0f} to {figures['fastest']:,.0f}",
        f"{figures['epoch_s']:.2f} s",
        f"{figures['first_epoch_s']:.1f} s",
        f"{ratio:.1f}",
    ]


def _write_docs(result: dict[str, Any]) -> None:
    page = Path(ROOT, "docs", "benchmarks-state.md")
    head, _, _ = page.read_text().partition("<!-- table -->")
    lines = [
        "| keys, backend | operator | rows/s | slowest to fastest | epoch | first epoch | × idiomatic |",
        "|---|---|---|---|---|---|---|",
    ]
    for label, contenders in result["medians"].items():
        for name, f in contenders.items():
            lines.append("| " + " | ".join(_cells(label, name, f, result["ratios"][label][name])) + " |")
    page.write_text(head + "<!-- table -->\n" + "\n".join(lines) + "\n")


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,}/{task.total:,}"),
        TimeElapsedColumn(),
        console=screen,
    )


if __name__ == "__main__":
    sys.exit(main())
