"""Drivers on one checkpoint directory, in one thread, without Spark: what the protocol tests play with.

A ``World`` is what survives a crash: the directory, the tables, the consumer group, the clock. A ``Driver`` is one
process: the protocol's objects, put together as the engine does, and Spark's rules about which epoch runs next. Let a
driver die by raising :class:`Crash` from a failpoint, and make a new one on the same world.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from lockstep.config import CheckpointConfig
from lockstep.engine.spark_log import SparkLog
from lockstep.protocol.barrier import Barrier
from lockstep.protocol.committer import Committer
from lockstep.protocol.completed_store import CompletedCheckpointStore
from lockstep.protocol.coordinator import CheckpointCoordinator, CheckpointListener
from lockstep.protocol.epoch import BoundSink, EpochOperator, EpochRunner, Surroundings
from lockstep.protocol.failpoint import reach
from lockstep.protocol.fencing import FencingToken
from lockstep.protocol.lineage import Lineage, continue_or_begin
from lockstep.protocol.prepare_record import PrepareRecord, read_records
from lockstep.testing import ManualClock, MemoryStorage, MemoryTable, RecordingSink, SimulatedSparkLog, failpoints

ROWS = 3  # in every epoch


class Crash(BaseException):
    """The process is gone: no ``except Exception`` of the code under test may run, as with SIGKILL."""


def rows_of(epoch: int) -> list[int]:
    return list(range(epoch * ROWS, (epoch + 1) * ROWS))


def rows_up_to(epoch: int) -> list[int]:
    return list(range((epoch + 1) * ROWS))


def position(epoch: int) -> str:
    return f'{{"orders":{{"0":{(epoch + 1) * ROWS}}}}}'


class World:
    """What outlives every driver."""

    def __init__(self, *uids: str) -> None:
        self.storage = MemoryStorage()
        self.clock = ManualClock()
        self.spark = SimulatedSparkLog(self.storage)
        self.tables = {uid: MemoryTable() for uid in uids or ("a",)}
        self.group: list[int] = []  # epochs whose positions were committed to the consumer group
        self.late: list[tuple[str, str, bytes]] = []  # storage changes that seemed to fail and are still on their way
        self.lineages = itertools.count()

    def copy(self) -> World:
        """The same state, to go on from more than once."""
        other = World(*self.tables)
        other.storage.files.update(self.storage.files)
        for uid, table in self.tables.items():
            other.tables[uid].schema = table.schema
            other.tables[uid].visible.extend(table.visible)
            other.tables[uid].staged.update(table.staged)
            other.tables[uid].violations.extend(table.violations)
        other.group.extend(self.group)
        other.late.extend(self.late)
        other.clock = ManualClock(self.clock.epoch_millis())
        return other

    def state(self) -> Hashable:
        """Everything that a new driver can see; two worlds of equal state have the same future."""
        tables = [
            (
                table.schema,
                tuple((one.epoch, one.attempt, one.staged) for one in table.visible),
                frozenset(table.staged),
            )
            for table in self.tables.values()
        ]
        files = frozenset(self.storage.files.items())
        return (files, tuple(tables), tuple(self.group[-1:]), tuple(self.late), self.clock.epoch_millis())

    def land(self) -> None:
        """What seemed to have failed reaches the directory after all."""
        for operation, path, data in self.late:
            if operation == "write":
                self.storage.write(path, data)
            elif operation == "create":
                self.storage.create(path, data)
            else:
                self.storage.delete(path)
        self.late.clear()

    def decided(self) -> int:
        """Highest epoch that Spark has decided; -1 for none."""
        return max((int(path[8:]) for path in self.storage.files if path.startswith("commits/")), default=-1)

    def violations(self) -> list[str]:
        return [text for table in self.tables.values() for text in table.violations]

    def records(self) -> list[PrepareRecord]:
        lineage = Lineage.decode(self.storage.files["lockstep/lineage"], "lineage").id
        return read_records(self.storage, lineage)

    def check_exactly_once(self, last: int) -> None:
        """Every row up to the epoch once, in order, in every table; nothing was done to a sink that must not be."""
        assert self.violations() == []
        for uid, table in self.tables.items():
            assert table.rows() == rows_up_to(last), uid

    def check_nothing_wrong(self) -> None:
        """At any moment: what is visible is a beginning of the stream, and the group is not ahead of it."""
        assert self.violations() == []
        for table in self.tables.values():
            assert table.rows() == rows_up_to(len(table.visible) - 1)


class Group:
    """The consumer group: notes what is committed, and minds that it is never ahead of the tables."""

    def __init__(self, world: World, act: Callable[[str, str, Callable[[], None]], None] | None = None) -> None:
        self._world = world
        self._act = act
        self._snapshots: set[int] = set()

    def snapshot(self, barrier: Barrier) -> None:
        assert barrier.positions == (position(barrier.epoch),)
        self._snapshots.add(barrier.epoch)

    def checkpoint_complete(self, epoch: int) -> None:
        assert epoch in self._snapshots
        self._send(epoch)

    def restore(self, barrier: Barrier) -> None:
        """Commit what the last committed checkpoint says once more: a driver that was paused may have set it back."""
        self._snapshots = {epoch for epoch in self._snapshots if epoch > barrier.epoch}
        self._send(barrier.epoch)

    def tick(self) -> None:
        pass

    def _send(self, epoch: int) -> None:
        if self._act is None:
            self._commit(epoch)
        else:
            self._act("commits to the group the offsets of epoch", str(epoch), lambda: self._commit(epoch))

    def _commit(self, epoch: int) -> None:
        for uid, table in self._world.tables.items():
            if len(table.visible) <= epoch:
                table.violations.append(f"the group is at epoch {epoch}, sink {uid} at {len(table.visible) - 1}")
        self._world.group.append(epoch)


class Driver:
    """One process on the directory. ``start`` recovers; ``epoch`` is one micro-batch; ``stop`` commits all."""

    def __init__(
        self,
        world: World,
        config: CheckpointConfig | None = None,
        *,
        uids: tuple[str, ...] | None = None,
        listeners: tuple[CheckpointListener, ...] = (),
        materialise: Callable[[Any], Any] = nullcontext,
        sinks: dict[str, RecordingSink] | None = None,
        operators: Sequence[EpochOperator] = (),
        storage: MemoryStorage | None = None,
        act: Callable[[str, str, Callable[[], None]], None] | None = None,
    ) -> None:
        self.world = world
        ids = itertools.count()
        self.config = config or CheckpointConfig()
        self.storage = storage or world.storage.another()
        self.spark = SimulatedSparkLog(self.storage)
        self.log = SparkLog(self.storage)
        self.sinks = sinks or {uid: RecordingSink(world.tables[uid], uid) for uid in uids or tuple(world.tables)}
        now = Lineage(
            id=f"lineage-{next(world.lineages)}",
            created_ms=world.clock.epoch_millis(),
            sinks={uid: sink.describe() for uid, sink in self.sinks.items()},
            sources=("orders",),
        )
        self.lineage = continue_or_begin(self.storage, now)
        self.token = FencingToken.take(self.storage, "test")
        self.store = CompletedCheckpointStore(self.storage, self.config.retained)
        self.store.load(self.lineage.id)
        participants = frozenset({"source-0", *self.sinks, *(operator.uid for operator in operators)})
        self.coordinator = CheckpointCoordinator(
            self.config, self.lineage.id, participants, self.store, world.clock, random.Random(7), listeners
        )
        self.group = Group(world, act)
        self.committer = Committer(
            self.storage,
            self.log,
            self.store,
            self.coordinator,
            self.token,
            self.sinks,
            self.group,
            world.clock,
            lambda: f"r{next(ids)}",
        )
        self.waits: list[float] = []
        self.on_wait: Callable[[], None] = lambda: self.committer.advance(force=True) and None
        self.runner = EpochRunner(
            tuple(BoundSink(uid, sink) for uid, sink in self.sinks.items()),
            ("source-0",),
            tuple(operators),
            self.storage,
            self.log,
            self.coordinator,
            self.committer,
            self.token,
            self.config,
            world.clock,
            Surroundings(materialise=materialise, wait_for_commit=self._wait, new_id=lambda: f"w{next(ids)}"),
        )
        for participant in participants:
            self.coordinator.task_running(participant)
        self.next = -1

    def start(self) -> Driver:
        """Recover as the engine does, then let Spark look where to continue."""
        self.recover()
        self.launch()
        return self

    def recover(self) -> None:
        self.committer.recover()
        self.committer.advance(force=True)

    def launch(self) -> None:
        reach("spark.start")
        self.coordinator.start()
        self.next = self.spark.next_epoch()
        reach("spark.started")

    def prepare(self) -> int:
        """Plan and run the next epoch, up to where Spark decides it."""
        epoch = self.next
        self.spark.plan(epoch, position(epoch))
        self.runner.run(epoch, rows_of(epoch))
        return epoch

    def decide(self) -> None:
        """What Spark does when the batch function has returned."""
        self.spark.decide(self.next)
        self.next += 1
        reach("spark.decided")

    def epoch(self, advance: bool = True) -> None:
        """One whole micro-batch, and what the committer's thread does after it."""
        self.prepare()
        self.decide()
        if advance:
            self.committer.advance()

    def run_to(self, last: int, advance: bool = True) -> Driver:
        while self.next <= last:
            self.epoch(advance)
        return self

    def stop(self) -> bool:
        self.coordinator.suspend()
        try:
            return self.committer.advance(force=True)
        finally:
            self.coordinator.shutdown()

    def _wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.world.clock.advance(seconds)
        self.on_wait()


@contextmanager
def crash_at(point: str, hit: int = 1, error: type[BaseException] = Crash) -> Iterator[None]:
    """Raise ``error`` when ``point`` is reached for the ``hit``-th time."""

    def die() -> None:
        raise error(point)

    failpoints.at(point, die, hit)
    try:
        yield
    finally:
        failpoints.clear()


@contextmanager
def doing_at(point: str, action: Callable[[], None], hit: int = 1) -> Iterator[None]:
    """Do something else (let another driver run, say) when ``point`` is reached for the ``hit``-th time.

    Points that are reached meanwhile don't count.
    """

    def act() -> None:
        failpoints.clear()
        action()

    failpoints.at(point, act, hit)
    try:
        yield
    finally:
        failpoints.clear()
