"""Lockstep beside Apache Flink, on the same topics: Kafka to a table, and a running sum in Python.

Both engines keep their JVM from round to round, so both are warm after the first. While one works, the other is idle.
Where the two cannot be timed alike, the doubt is decided for Flink.
"""

from __future__ import annotations

from benchmarks.suite import delta_works, state_works, timeline
from benchmarks.suite.contenders import LOCKSTEP
from benchmarks.suite.flink_session import VERSION, FlinkSession
from benchmarks.suite.ground import Ground, place
from benchmarks.suite.timeline import Moment
from benchmarks.suite.work import Figures, Work

FLINK = "Flink SQL to Parquet"
PYFLINK = "PyFlink DataStream"
ELEMENT, BATCH = "process_element, hdfs", "process_batch, hdfs"


def throughput(rows: int, rows_per_epoch: int, checkpoint_seconds: float = 5.0) -> Work:
    """Rows per second from Kafka until they are visible: DeltaSink beside Flink SQL's Parquet files, both exactly-once.

    Lockstep's clock starts at the end of Spark's first epoch, as in the other works. Flink's starts when the files of a
    checkpoint have become visible that has as many rows, at least: its job runs by then, its code is compiled, and the
    rows that it has read since that checkpoint's barrier cost it nothing. Both clocks stop when the last row is visible.
    Flink writes no table's log, just files.
    """
    ours, session = delta_works.throughput("throughput_flink", rows, rows_per_epoch), FlinkSession()

    def run(ground: Ground, contender: str) -> Figures:
        if contender == LOCKSTEP.name:
            return ours.run(ground, contender)
        topic = ground.topic(rows)
        with place() as directory:
            begun = session.run("to_parquet", ground.broker.bootstrap_servers, topic, directory, checkpoint_seconds)
            moments = timeline.of_files(directory / "table", together=checkpoint_seconds / 2)
        seen = _all_of(moments, rows)
        first, *later = [moment for moment in seen if moment.rows >= rows_per_epoch]
        if not later:
            raise SystemExit(f"{FLINK}: {rows:,} rows are too few for two checkpoints, {checkpoint_seconds:g} s apart")
        seconds = later[-1].at - first.at
        return {
            "rows_per_s": (rows - first.rows) / seconds,
            "epoch_s": seconds / len(later),
            "first_s": seen[0].at - begun,
        }

    title = f"beside Flink {VERSION}, a checkpoint every {checkpoint_seconds:g} s: {ours.title}"
    return Work(ours.key, title, (LOCKSTEP.name, FLINK), run, ours.headline, ready=session.ready, around=session)


def state(rows: int, rows_per_epoch: int, keys: int = 10_000, checkpoint_seconds: float = 5.0) -> Work:
    """Rows per second of a running sum in Python, in the second half of the rows: every key has its state by then.

    Lockstep's time is that of whole epochs, their commits included. Flink's ends with the last row, before the checkpoint
    that covers it; the checkpoints in between count.
    """
    ours, session = state_works.operators(rows, rows_per_epoch, keys), FlinkSession()

    def run(ground: Ground, contender: str) -> Figures:
        if contender != PYFLINK:
            return {"rows_per_s": ours.run(ground, contender)["rows_per_s"]}
        topic = state_works.accounts(ground, rows, keys)
        with place() as directory:
            session.run("running_sum", ground.broker.bootstrap_servers, topic, directory, checkpoint_seconds)
            seen = _all_of(timeline.of_marks(directory / "marks"), rows)
        half = next(moment for moment in seen if moment.rows >= rows / 2)
        return {"rows_per_s": (rows - half.rows) / (seen[-1].at - half.at)}

    title = f"beside PyFlink {VERSION}: {ours.title}"
    contenders = (ELEMENT, BATCH, PYFLINK)
    return Work("state_flink", title, contenders, run, ours.headline, ready=session.ready, around=session)


def _all_of(moments: list[Moment], rows: int) -> list[Moment]:
    if not moments or moments[-1].rows != rows:
        raise SystemExit(f"Flink: {moments[-1].rows if moments else 0:,} of {rows:,} rows came out")
    return moments
