"""Kafka to Delta: throughput, latency, several sinks, recovery, and what a driver of its own costs."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import lockstep
from benchmarks.suite import timeline
from benchmarks.suite.contenders import (
    ALL,
    BY_HAND,
    DELTA,
    LOCKSTEP,
    PARQUET,
    TUNED_DELTA,
    Contender,
    Run,
    with_kafka_source,
)
from benchmarks.suite.ground import PARTITIONS, Ground, place, settings
from benchmarks.suite.work import Figures, Work
from lockstep.sinks import DeltaSink

ROOT = Path(__file__).parent.parent.parent
PENDING = (0, 1, 10, 40)


def throughput(key: str, rows: int, rows_per_epoch: int, headline: str = "rows_per_s") -> Work:
    """Rows per second and seconds per epoch, from the end of Spark's first epoch until the last row is visible."""
    named = {one.name: one for one in ALL}

    def run(ground: Ground, contender: str) -> Figures:
        topic = ground.topic(rows)
        with place() as directory:
            this = Run(ground.spark, ground.broker.bootstrap_servers, topic, directory, rows_per_epoch)
            return _until_empty(named[contender], this, rows)

    title = f"{rows:,} rows in epochs of {rows_per_epoch:,}"
    return Work(key, title, tuple(named), run, headline)


def _until_empty(contender: Contender, run: Run, rows: int) -> Figures:
    begun = time.time()
    with settings(run.spark, contender.settings):
        query = contender.start(run)
        query.awaitTermination()
    moments = contender.visible(run, query.recentProgress)
    if not moments or moments[-1].rows != rows:
        raise SystemExit(f"{contender.name}: {moments[-1].rows if moments else 0} of {rows} rows became visible")
    first, *later = timeline.of_progress(query.recentProgress)  # the first one is for compilers and caches
    seconds = moments[-1].at - first.at
    return {
        "rows_per_s": (rows - first.rows) / seconds,
        "epoch_s": seconds / len(later),
        "first_s": moments[0].at - begun,
    }


def latency(seconds: int, rate: int = 1000) -> Work:
    """Time from produce to visible, of rows that come at a steady rate; the first third is for warming up."""
    contenders = (LOCKSTEP, DELTA, TUNED_DELTA, BY_HAND, PARQUET)
    named = {one.name: one for one in contenders}

    def run(ground: Ground, contender: str) -> Figures:
        servers = ground.broker.bootstrap_servers
        topic = f"steady-{time.time_ns()}"
        ground.broker.create_topic(topic, PARTITIONS)
        with place() as directory, settings(ground.spark, named[contender].settings):
            this = Run(ground.spark, servers, topic, directory, until_empty=False)
            query = named[contender].start(this)
            begun = time.time()
            _python("feed", servers, topic, rate, seconds)
            query.processAllAvailable()
            query.stop()
            moments = named[contender].visible(this, query.recentProgress)
            seen = sorted(timeline.latencies(moments, begun + seconds / 3))
        cuts = statistics.quantiles(seen, n=100)
        epochs = [one.durationMs["triggerExecution"] for one in query.recentProgress if one.numInputRows]
        return {"p50_s": cuts[49], "p99_s": cuts[98], "epoch_s": statistics.median(epochs) / 1000, "rows": len(seen)}

    return Work("latency", f"{rate:,} rows/s for {seconds} s", tuple(named), run, "p50_s", lower_is_better=True)


def several_sinks(rows: int, rows_per_epoch: int) -> Work:
    """One query into one, two and four Delta tables, beside what people write by hand for it."""
    starts = {LOCKSTEP.name: _lockstep_to, BY_HAND.name: _by_hand_to}
    contenders = {f"{how}, {n} table{'s' * (n > 1)}": (how, n) for n in (1, 2, 4) for how in starts}

    def run(ground: Ground, contender: str) -> Figures:
        how, number = contenders[contender]
        topic = ground.topic(rows)
        with place() as directory:
            tables = [directory / f"table-{n}" for n in range(number)]
            to_all = Contender(
                contender,
                lambda run: starts[how](run, tables),
                lambda *_: timeline.of_delta(tables[-1]),  # they are committed in turn
            )
            this = Run(ground.spark, ground.broker.bootstrap_servers, topic, directory, rows_per_epoch)
            return _until_empty(to_all, this, rows)

    title = f"1, 2 and 4 tables, {rows:,} rows in epochs of {rows_per_epoch:,}"
    return Work("sinks", title, tuple(contenders), run, "rows_per_s")


def _lockstep_to(run: Run, tables: list[Path]) -> Any:
    writer = lockstep.checkpointed(with_kafka_source(run))
    for number, table in enumerate(tables):
        writer = writer.sink(DeltaSink(str(table)), uid=f"table-{number}")
    return run.begin(writer)


def _by_hand_to(run: Run, tables: list[Path]) -> Any:
    def write(batch: Any, epoch: int) -> None:
        if len(tables) > 1:
            batch.persist()
        for table in tables:
            writer = batch.write.format("delta").mode("append")
            writer.option("txnAppId", str(table)).option("txnVersion", epoch).save(str(table))
        batch.unpersist()

    return run.begin(with_kafka_source(run).writeStream.foreachBatch(write))


def recovery(rows_per_epoch: int) -> Work:
    """How long ``start`` takes after a driver was killed that had prepared and decided so many epochs."""
    rows = rows_per_epoch * (max(PENDING) + 2)
    contenders = {f"{count} pending": count for count in PENDING}

    def run(ground: Ground, contender: str) -> Figures:
        count, topic, servers = contenders[contender], ground.topic(rows), ground.broker.bootstrap_servers
        with place() as directory:
            before = Run(ground.spark, servers, topic, directory, rows_per_epoch, until_empty=False)
            _python("pending", servers, topic, directory, rows_per_epoch, count)
            seen = sum(moment.rows for moment in timeline.of_delta(before.table)[-1:])
            begun = time.time()
            query = LOCKSTEP.start(replace(before, until_empty=True))
            started = time.time() - begun
            recovered = timeline.of_delta(before.table)[-1].rows if count else seen
            query.awaitTermination()
            if timeline.of_delta(before.table)[-1].rows != rows:
                raise SystemExit(f"recovery with {contender}: rows are missing, or there are too many")
        return {"start_s": started, "rows_recovered": recovered - seen}

    title = f"start after SIGKILL, epochs of {rows_per_epoch:,} rows"
    return Work("recovery", title, tuple(contenders), run, "start_s", lower_is_better=True)


def alone(rows: int, rows_per_epoch: int) -> Work:
    """CPU and peak memory of a driver that runs one contender and nothing else, start of the JVM included."""

    def run(ground: Ground, contender: str) -> Figures:
        told = _python("alone", ground.broker.bootstrap_servers, ground.topic(rows), rows_per_epoch, contender)
        return dict(json.loads(told.splitlines()[-1]))

    title = f"a driver of its own, {rows:,} rows in epochs of {rows_per_epoch:,}"
    return Work("alone", title, tuple(one.name for one in ALL), run, "cpu_s", lower_is_better=True)


def _python(module: str, *arguments: object) -> str:
    """Run a module of this package in a process of its own."""
    command = [sys.executable, "-m", f"benchmarks.suite.{module}", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
