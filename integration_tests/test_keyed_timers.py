"""Timers on real Spark: they fire without data, after a restart, with availableNow; once, in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lockstep
from integration_tests.keyed_bench import KeyedBench, wait_for
from lockstep import KeyedProcessFunction, ValueState
from lockstep.errors import StateMigrationError

OUTPUT = "account string, total bigint, why string"


class Alarm(KeyedProcessFunction):
    """A processing-time timer for each amount, that many milliseconds after its element."""

    total = ValueState("bigint", default=0)

    def process_element(self, row: Any, ctx: Any) -> None:
        self.total.update(self.total.value() + row.amount)
        ctx.register_processing_time_timer(ctx.processing_time + row.amount)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.key, self.total.value(), "alarm"


class Session(KeyedProcessFunction):
    """Closes a key's session when the watermark has passed ten seconds of silence."""

    count = ValueState("bigint", default=0)
    closes = ValueState("bigint")

    def process_element(self, row: Any, ctx: Any) -> None:
        self.count.update(self.count.value() + 1)
        at = int(row.at.timestamp() * 1000) + 10_000
        if self.closes.value() is not None:
            ctx.delete_event_time_timer(self.closes.value())
        self.closes.update(at)
        ctx.register_event_time_timer(at)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.key, self.count.value(), ctx.time_domain.name
        self.count.clear()
        self.closes.clear()


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> KeyedBench:
    return KeyedBench(spark, tmp_path)


def alarms(bench: KeyedBench) -> Any:
    return lockstep.key_by(bench.stream(), "account").process(Alarm(), uid="alarms", output=OUTPUT)


def sessions(bench: KeyedBench) -> Any:
    stream = bench.stream(watermark="1 second")
    return lockstep.key_by(stream, "account").process(Session(), uid="sessions", output=OUTPUT)


def test_due_timer_fires_without_new_data_and_an_idle_query_stays_idle(bench: KeyedBench) -> None:
    bench.add(("a", 1), ("b", 3_000))
    query = bench.start(alarms(bench))
    try:
        wait_for(lambda: len(bench.rows()) == 2, query, "both timers")
        assert bench.rows() == [("a", 1, "alarm"), ("b", 3_000, "alarm")]
        epochs = len(query.checkpoints)
        assert epochs <= 4, "no epoch without a due timer"
        query._query.processAllAvailable()
        assert len(query.checkpoints) == epochs
    finally:
        query.stop()
    assert bench.rows() == [("a", 1, "alarm"), ("b", 3_000, "alarm")]


def test_timer_that_came_due_while_stopped_fires_after_a_start_without_data_and_available_now_ends(
    bench: KeyedBench,
) -> None:
    bench.add(("a", 1), ("far", 3_600_000))
    bench.run(alarms(bench))  # the timers are registered in the only epoch
    assert [row[:2] for row in bench.state("alarms", state="timers")] == [
        ("a", "processing_time"),
        ("far", "processing_time"),
    ]
    bench.run(alarms(bench))
    assert bench.rows() == [("a", 1, "alarm")]
    bench.run(alarms(bench))
    assert bench.rows() == [("a", 1, "alarm")], "once"
    assert [row[0] for row in bench.state("alarms", state="timers")] == ["far"]


def test_event_time_timer_of_a_key_without_new_data_fires_when_others_move_the_watermark(bench: KeyedBench) -> None:
    bench.add(("a", 1, "2026-01-01T00:00:00Z"), ("b", 1, "2026-01-01T00:00:05Z"), ("a", 1, "2026-01-01T00:00:06Z"))
    query = bench.start(sessions(bench))
    try:
        query.processAllAvailable()
        assert bench.rows() == [], "the watermark has not passed any session"
        bench.add(("c", 1, "2026-01-01T00:01:00Z"))
        wait_for(lambda: len(bench.rows()) == 2, query, "the sessions of a and b")
        assert bench.rows() == [("a", 2, "EVENT_TIME"), ("b", 1, "EVENT_TIME")]
        assert [row[0] for row in bench.state("sessions", state="count")] == ["c"], "closed sessions leave no state"
    finally:
        query.stop()
    bench.run(sessions(bench))
    assert bench.rows() == [("a", 2, "EVENT_TIME"), ("b", 1, "EVENT_TIME")]


def test_event_time_timer_fires_when_rows_that_never_reach_the_operator_move_the_watermark(bench: KeyedBench) -> None:
    stream = bench.stream(watermark="1 second").where(
        "account <> 'dropped' or at is null"
    )  # Spark filters the rest earlier
    frame = lockstep.key_by(stream, "account").process(Session(), uid="sessions", output=OUTPUT)
    bench.add(("a", 1, "2026-01-01T00:00:00Z"))
    query = bench.start(frame)
    try:
        query.processAllAvailable()
        bench.add(("dropped", 1, "2026-01-01T00:01:00Z"))
        wait_for(lambda: len(bench.rows()) == 1, query, "the session of a")
        assert bench.rows() == [("a", 1, "EVENT_TIME")]
    finally:
        query.stop()


def test_operator_may_get_timers_later_in_the_same_directory(bench: KeyedBench) -> None:
    class Plain(Alarm):
        on_timer = KeyedProcessFunction.on_timer

        def process_element(self, row: Any, ctx: Any) -> None:
            self.total.update(self.total.value() + row.amount)

    def plain() -> Any:
        return lockstep.key_by(bench.stream(), "account").process(Plain(), uid="alarms", output=OUTPUT)

    bench.add(("a", 1))
    bench.run(plain())
    bench.add(("a", 2))
    bench.run(alarms(bench))
    bench.run(alarms(bench))
    assert bench.rows() == [("a", 3, "alarm")]
    with pytest.raises(StateMigrationError, match="Keep on_timer, even if it does nothing"):
        bench.start(plain())
