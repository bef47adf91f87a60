"""Runs a demo: orders flow, the pipeline is killed and started again, and at the end every row is counted."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from lockstep.broker import EmbeddedBroker
from lockstep.cli.demo_check import VisibleRows, compare, group_offsets, offsets_match, table_rows, topic_ends
from lockstep.cli.demo_driver import PipelineDriver
from lockstep.cli.demo_orders import TOPIC, OrderStream, make_orders
from lockstep.cli.demo_pipeline import GROUP, PipelineJob
from lockstep.cli.demo_plan import DemoPlan, KillSchedule
from lockstep.cli.demo_report import DemoReport
from lockstep.cli.demo_screen import DemoScreen
from lockstep.engine.local_storage import LocalStorage
from lockstep.engine.spark_log import SparkLog
from lockstep.protocol.lineage import read_lineage
from lockstep.protocol.prepare_record import read_records

_POLL_SECONDS = 0.05
_COUNT_SECONDS = 0.5  # between two looks at the table
_FIRST_EPOCH_SECONDS = 600.0  # Spark may have to fetch its jars
_STALL_SECONDS = 180.0


def run_demo(plan: DemoPlan, directory: Path, screen: DemoScreen) -> DemoReport:
    """Everything that it starts has ended when this returns or raises."""
    with ExitStack() as stack:
        screen.now("starting Kafka (its jars are fetched at the first use on a machine)")
        broker = stack.enter_context(EmbeddedBroker())
        broker.create_topic(TOPIC, plan.partitions)
        screen.say(
            "broker", f"Kafka answers at {broker.bootstrap_servers}; topic {TOPIC}, {plan.partitions} partitions"
        )
        job = PipelineJob(broker.bootstrap_servers, TOPIC, str(directory), plan.rows_per_epoch)
        orders = make_orders(plan)
        stream = OrderStream(broker.bootstrap_servers, plan, orders)
        stack.callback(stream.close)
        driver = PipelineDriver(job)
        stack.callback(driver.kill)
        stream.start()
        run = DemoRun(plan, job, stream, driver, screen)
        epochs = run.to_the_end()
        screen.now("counting, with delta-rs and kafka-python")
        ends = topic_ends(broker.bootstrap_servers, TOPIC)
        committed = group_offsets(broker.bootstrap_servers, TOPIC, GROUP)
        return DemoReport(
            rows_in=sum(ends.values()),
            comparison=compare(orders, table_rows(job.table)),
            offsets_match=offsets_match(committed, ends),
            kills=run.kills,
            restarts=run.life,
            epochs=epochs,
            seconds=screen.seconds,
            seed=plan.seed,
        )


class DemoRun:
    """The lives and deaths of one pipeline."""

    def __init__(
        self, plan: DemoPlan, job: PipelineJob, stream: OrderStream, driver: PipelineDriver, screen: DemoScreen
    ) -> None:
        self._plan = plan
        self._stream = stream
        self._driver = driver
        self._screen = screen
        self._storage = LocalStorage(job.checkpoint)
        self._log = SparkLog(self._storage)
        self._table = VisibleRows(job.table)
        self._visible = 0
        self._next_count = 0.0
        self.life = -1  # the first is number 0
        self.kills = 0
        self._before_life = -1  # highest epoch decided when this life began
        self._at_work = False
        self._progress: tuple[int, int] = (-1, -1)
        self._progressed = time.monotonic()

    def to_the_end(self) -> int:
        """Kill, start again, stop when Spark has decided every order; returns the number of epochs."""
        schedule = KillSchedule(self._plan)
        self._begin_life(schedule)
        while not (schedule.done and self._everything_decided()):
            decided = self._look()
            if schedule.due(decided, time.monotonic()):
                self._kill()
                self._begin_life(schedule)
            time.sleep(_POLL_SECONDS)
        # Decided is not yet visible: it is stop() that must bring the rest into the table before it returns.
        behind = self._plan.rows - self._count()
        self._screen.now("stopping the pipeline, which commits what is decided")
        self._driver.stop()
        self._count()
        what = f"the last {behind:,} rows became visible" if behind > 0 else "everything was visible already"
        self._screen.say("stop", f"clean; {what}", "green")
        return self._log.decided() + 1

    def _begin_life(self, schedule: KillSchedule) -> None:
        self.life += 1
        self._at_work = False
        self._before_life = self._log.decided()
        schedule.life_begins(self._before_life)
        self._stream.allow(self._plan.rows_until(self.life))
        pid = self._driver.start()
        self._life_began = self._progressed = time.monotonic()
        first = " (at the first use on a machine it fetches its jars)" if self.life == 0 else ""
        self._screen.now(f"Spark is starting, orders keep coming{first}")
        if self.life == 0:
            self._screen.say("start", f"the pipeline, as process {pid}")

    def _look(self) -> int:
        """Show where things are, and raise when something is wrong. Returns the highest decided epoch."""
        self._stream.check()
        self._driver.check()
        decided = self._log.decided()
        if decided > self._before_life:
            if not self._at_work:
                self._at_work = True
                again = "again " if self.life else ""
                self._screen.say("at work", f"{again}after {time.monotonic() - self._life_began:.1f} s", "green")
            self._screen.now(f"epoch {decided} decided")
        if time.monotonic() >= self._next_count:
            self._count()
        self._refuse_stall((decided, self._visible))
        return decided

    def _refuse_stall(self, progress: tuple[int, int]) -> None:
        now = time.monotonic()
        if progress != self._progress:
            self._progress, self._progressed = progress, now
        patience = _STALL_SECONDS if progress[0] >= 0 else _FIRST_EPOCH_SECONDS
        if now - self._progressed > patience:
            raise self._driver.stalled(patience)

    def _count(self) -> int:
        self._visible = self._table.count()
        self._screen.rows(self._stream.acknowledged, self._visible)
        self._next_count = time.monotonic() + _COUNT_SECONDS
        return self._visible

    def _everything_decided(self) -> bool:
        decided = self._log.decided()
        if decided < 0 or not self._stream.done:
            return False
        return sum(self._log.barrier(decided).kafka_offsets(0).values()) >= self._plan.rows

    def _kill(self) -> None:
        self._driver.kill()
        self.kills += 1
        self._screen.say(f"kill {self.kills}", self._post_mortem(), "bold red")

    def _post_mortem(self) -> str:
        """Where in the protocol the kill has hit."""
        decided, planned = self._log.decided(), self._log.planned()
        lineage = read_lineage(self._storage)
        prepared = [record.epoch for record in read_records(self._storage, lineage.id)] if lineage else []
        uncommitted = sorted({epoch for epoch in prepared if epoch <= decided})
        where = [f"epoch {decided} decided"]
        if planned in prepared and planned > decided:
            where.append(f"{planned} only prepared")
        elif planned > decided:
            where.append(f"{planned} half written")
        if uncommitted:
            first, last = uncommitted[0], uncommitted[-1]
            where.append(f"{first} to {last} not yet visible" if first < last else f"{first} not yet visible")
        return ", ".join(where)
