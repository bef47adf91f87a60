"""Puts the protocol together for one query: storage, lineage, token, coordinator, committer, epoch runner."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lockstep.config import CheckpointConfig
from lockstep.engine.commit_thread import CommitThread
from lockstep.engine.spark_log import SparkLog
from lockstep.engine.state_backend import effective_backend
from lockstep.engine.state_stores import note_end
from lockstep.errors import (
    CheckpointDirectoryError,
    ConfigurationError,
    LockstepError,
    MissingGroupOffsetsError,
)
from lockstep.operators.failure import operator_failure
from lockstep.operators.in_query import OperatorInQuery
from lockstep.operators.operator import KeyedOperator, find_operators
from lockstep.operators.plan import class_name, nodes_of
from lockstep.operators.state_reader import find_groups
from lockstep.operators.union import payload_of
from lockstep.protocol.clock import SystemClock
from lockstep.protocol.committer import Committer, refuse_removed_sinks
from lockstep.protocol.completed_store import CompletedCheckpointStore
from lockstep.protocol.coordinator import CheckpointCoordinator, CheckpointListener
from lockstep.protocol.epoch import BoundSink, EpochRunner, Surroundings
from lockstep.protocol.fencing import FencingToken
from lockstep.protocol.lineage import Lineage, continue_or_begin, read_lineage, remember
from lockstep.protocol.prepare_record import read_records
from lockstep.protocol.savepoint import Savepoint
from lockstep.protocol.storage import Storage
from lockstep.savepoint.create import create_savepoint
from lockstep.savepoint.restore import NewQuery, RestoreRequest, claims, refuse_interrupted, restore
from lockstep.sinks.two_phase import SinkContext
from lockstep.sources.data_loss import refuse_lost_records
from lockstep.sources.group_commit import group_sources
from lockstep.sources.offset_commit import OffsetCommitter
from lockstep.sources.plan import KafkaStream, StreamSource, stream_sources

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)
_FLUSH_SECONDS = 10.0
_STATEFUL = ("Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "FlatMapGroupsWithState", "TransformWithState")


class Pipeline:
    """Everything of a query that is not Spark's. Made by ``start``; the query handle owns it."""

    def __init__(
        self,
        frame: DataFrame,
        sinks: Sequence[BoundSink],
        storage: Storage,
        config: CheckpointConfig,
        output_mode: str,
        query_name: str | None,
        listeners: tuple[CheckpointListener, ...],
        restore_from: RestoreRequest | None = None,
    ) -> None:
        """Check everything that can be checked before data moves, then take over the directory."""
        self.config = config
        self.storage = storage
        self.failure: BaseException | None = None
        self._spark = frame.sparkSession
        self._sinks = tuple(sinks)
        self._in_batch = threading.Lock()
        self._batch_thread: int | None = None
        clock = SystemClock()
        self._log = log = SparkLog(storage)
        self._sources = sources = stream_sources(frame)
        source_names = tuple(f"source-{source.index}" for source in sources)
        self.operators = _operators(frame, {*source_names, *(bound.uid for bound in sinks)})
        now = Lineage(
            id=str(uuid.uuid4()),
            created_ms=clock.epoch_millis(),
            sinks={bound.uid: bound.sink.describe() for bound in sinks},
            sources=tuple(source.description for source in sources),
            config=config.to_json(),
            query_name=query_name,
            operators=self._described_operators(),
            groups={
                str(source.index): source.group_id or ""
                for source in sources
                if isinstance(source, KafkaStream) and source.commits_offsets
            },
        )
        refuse_interrupted(storage, restoring=restore_from is not None)
        if restore_from is not None:
            restore(
                NewQuery(self._spark, storage, _with_scheme(storage.describe()), now, sources, config.state_backend),
                restore_from,
            )
        _refuse_unready_sources(sources, log)
        returning = _sinks_of_earlier_starts(storage, log)
        self.lineage = continue_or_begin(storage, now)
        self.store = CompletedCheckpointStore(storage, config.retained)
        try:
            self._open_sinks(frame, output_mode, query_name, log, returning)
        except BaseException:
            for bound in sinks:
                with contextlib.suppress(Exception):
                    bound.sink.close()
            raise
        self._warn_of_repeated_rows()
        self.token = FencingToken.take(storage, f"{socket.gethostname()}:{os.getpid()}")  # fences earlier drivers
        refuse_interrupted(storage, restoring=False)  # again: who has begun a rewind before sees this token
        if getattr(read_lineage(storage), "id", None) != self.lineage.id:
            raise CheckpointDirectoryError(
                f"{storage.describe()} was taken back to an earlier epoch while the query started. Start it again."
            )
        if self.lineage.id == now.id and log.planned() < 0:
            storage.delete("state")  # a new lineage: whatever Spark wrote here late is of another one
        remember(storage, self.lineage)
        self._restore_union_state(log)
        listeners = (*listeners, *claims(self._spark, self.lineage))
        participants = frozenset({*source_names, *(bound.uid for bound in sinks), *self.operators})
        self.coordinator = CheckpointCoordinator(
            config, self.lineage.id, participants, self.store, clock, random.Random(), listeners
        )
        self.offsets = OffsetCommitter(group_sources(self._spark, sources), clock)
        self.committer = Committer(
            storage,
            log,
            self.store,
            self.coordinator,
            self.token,
            {bound.uid: bound.sink for bound in sinks},
            self.offsets,
            clock,
        )
        self.thread = CommitThread(self.committer, log, self._commit_failed)
        self._runner = EpochRunner(
            self._sinks,
            source_names,
            tuple(OperatorInQuery(operator, self._spark, storage) for operator in self.operators.values()),
            storage,
            log,
            self.coordinator,
            self.committer,
            self.token,
            config,
            clock,
            Surroundings(self._materialise, self._deadline, self.thread.wait_for_progress, explain=operator_failure),
        )
        self._stop_query: Callable[[], None] = lambda: None
        for participant in participants:
            self.coordinator.task_running(participant)

    def start(self, stop_query: Callable[[], None]) -> None:
        """The Spark query has started: begin periodic checkpoints and phase 2."""
        self._stop_query = stop_query
        self.coordinator.start()
        self.thread.start()

    def recover(self) -> None:
        """Commit every decided epoch of earlier drivers; what a passing fault prevents is left to the thread.

        Then look whether Kafka still has what comes next.
        """
        self.committer.recover()
        self.committer.advance(force=True)
        decided = self._log.decided()
        if decided >= 0 and self.storage.exists(f"offsets/{decided}"):
            refuse_lost_records(self._spark, self._sources, self._log.barrier(decided))

    def run_epoch(self, batch: DataFrame, epoch: int) -> None:
        """The batch function that Spark calls."""
        with self._in_batch:
            self._batch_thread = threading.get_ident()
            try:
                if self.thread.failure is not None:
                    raise self.thread.failure
                self._runner.run(epoch, batch)
            except BaseException as error:
                if not self.thread.stopping:
                    self.failure = self.thread.failure or self.failure or error  # what came first explains the rest
                raise
            finally:
                self._batch_thread = None
        self.thread.wake()

    def finish(self, seconds: float) -> None:
        """The query has ended: commit everything decided, and the group offsets; then let go of everything."""
        try:
            with self._in_batch:  # Spark may have gone on without waiting for an interrupted batch function
                self.coordinator.suspend()
            self.thread.drain(seconds)
            if not self.offsets.flush(_FLUSH_SECONDS):
                _log.warning("the last group offsets are not committed; they will be after the next start")
        finally:
            if self.operators:
                with contextlib.suppress(Exception):  # a full disk must not hide why the query ended
                    note_end(self._spark, self.storage)
            self.coordinator.shutdown()
            self.close()

    def close(self) -> None:
        """Let go of everything that is open."""
        self.offsets.close()
        for bound in self._sinks:
            with contextlib.suppress(Exception):
                bound.sink.close()

    def refuse_own_threads(self, call: str) -> None:
        """A listener or sink that waits for the query would wait for itself."""
        if self._batch_thread == threading.get_ident() or self.thread.is_current():
            raise LockstepError(
                f"{call} was called on a thread of the query itself, by a listener or a sink: it would wait "
                "for itself. Call it on another thread."
            )

    def create_savepoint(self, path: str) -> Savepoint:
        return create_savepoint(self._spark, _with_scheme(self.storage.describe()), path)

    def delete_directory(self) -> None:
        """DELETE_ON_CANCELLATION: the next start begins a new lineage."""
        for name in sorted(self.storage.list(""), key=lambda name: name == "lockstep"):  # ours last: a crash is seen
            self.storage.delete(name)

    def _described_operators(self) -> dict[str, dict[str, Any]]:
        backend = effective_backend(self._spark, self.config.state_backend)
        return {
            uid: {**operator.description, "backend": backend, "position": position}
            for position, (uid, operator) in enumerate(self.operators.items())
        }

    def _restore_union_state(self, log: SparkLog) -> None:
        """Every key group is to get the union lists of all, with the first tick of this start."""
        decided = log.decided()
        for operator in self.operators.values():
            if operator.has_union_state:
                blobs = []
                if decided >= 0:
                    groups = find_groups(self._spark, self.storage.describe(), operator.uid, decided)
                    blobs = [(row.group, bytes(row.state)) for row in groups.frame.collect()]
                operator.mailbox.payload(payload_of(operator.uid, blobs))

    def _open_sinks(
        self, frame: DataFrame, output_mode: str, query_name: str | None, log: SparkLog, returning: Collection[str]
    ) -> None:
        empty = self._spark.createDataFrame([], frame.schema)
        records = read_records(self.storage, self.lineage.id)
        self.store.load(self.lineage.id)  # a first look; recover() reads again, once earlier drivers are fenced
        pending = [record for record in records if record.epoch > self.store.committed_epoch()]
        refuse_removed_sinks(pending, {bound.uid for bound in self._sinks})
        early = max((record.epoch for record in records if record.committed_early), default=-1)
        for bound in self._sinks:
            try:
                schema = bound.transform(empty).schema if bound.transform else empty.schema
            except Exception as error:
                raise ConfigurationError(
                    f"sink {bound.uid!r}: its transform failed on an empty batch: {error}"
                ) from error
            bound.sink.open(
                SinkContext(
                    spark=self._spark,
                    uid=bound.uid,
                    lineage=self.lineage.id,
                    schema=schema,
                    output_mode=output_mode,
                    query_name=query_name,
                    highest_epoch=lambda: max(log.decided(), early),
                    staging=f"{_with_scheme(self.storage.describe())}/lockstep/staging/{bound.uid}",
                    returning=bound.uid in returning,
                    token=self._checked_token,
                )
            )

    def _warn_of_repeated_rows(self) -> None:
        """A query that was restored from an older savepoint writes again what its former life has written since."""
        restored = self.lineage.restored
        if restored is None or restored.get("rewound") or self._log.planned() > 0:
            return
        for bound in self._sinks:
            newest = bound.sink.newest_epoch_of(restored["lineage"])
            if newest is not None and newest > restored["epoch"]:
                _log.warning(
                    "sink %r: %s has rows up to epoch %d of the query that the savepoint is of, and the savepoint is of "
                    "epoch %d: rows of the epochs in between will be there twice. To take the table back too, use "
                    "'lockstep rewind' on the former directory; or write to another table.",
                    bound.uid,
                    bound.sink.describe(),
                    newest,
                    restored["epoch"],
                )

    def _checked_token(self) -> int:
        self.token.check()
        return self.token.value

    def _commit_failed(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self._stop_query()

    @contextlib.contextmanager
    def _materialise(self, batch: DataFrame) -> Iterator[DataFrame]:
        """Evaluate the batch once, and completely, when several sinks or a selective one would not."""
        if len(self._sinks) == 1 and self._sinks[0].sink.reads_whole_batch and self._sinks[0].transform is None:
            yield batch
            return
        batch.persist()
        try:
            batch.count()
            yield batch
        finally:
            batch.unpersist()

    @contextlib.contextmanager
    def _deadline(self, seconds: float) -> Iterator[None]:
        """Cancel the batch's Spark jobs when the time is over, so that a stuck write raises."""
        context = self._spark.sparkContext
        group = context.getLocalProperty("spark.jobGroup.id")
        timer = threading.Timer(seconds, lambda: context.cancelJobGroup(group) if group else None)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _with_scheme(location: str) -> str:
    return f"file:{location}" if location.startswith("/") else location


def _sinks_of_earlier_starts(storage: Storage, log: SparkLog) -> Collection[str]:
    """Those that were opened for sure: Spark plans its first epoch after all of them."""
    stored = read_lineage(storage)
    if stored is None:
        return ()
    first = 0 if stored.restored is None else 1  # epoch 0 of a restored query was planned before its sinks were opened
    return stored.sinks.keys() if log.planned() >= first else ()


def _operators(frame: Any, taken: set[str]) -> dict[str, KeyedOperator]:
    found: dict[str, KeyedOperator] = {}
    for operator, _ in find_operators(frame._jdf.queryExecution().analyzed()):
        if operator.uid in found and found[operator.uid] is not operator:
            raise ConfigurationError(
                f"two operators have the uid {operator.uid!r}. Give each its own: it names the state."
            )
        if operator.uid in found:
            raise ConfigurationError(
                f"operator {operator.uid!r} is in the query twice (its DataFrame is used twice, as in a self-join): it "
                "would have two states of one name. Call process once for each, with a uid of its own."
            )
        if operator.uid in taken:
            raise ConfigurationError(
                f"uid {operator.uid!r} is the name of a keyed operator and of a sink or source. Give each its own."
            )
        found[operator.uid] = operator
    if len(found) > 1:
        _refuse_other_state(frame._jdf.queryExecution().analyzed())
    return found


def _refuse_other_state(plan: Any) -> None:
    """Two keyed operators need Spark's check of unsupported operations turned off: what it would refuse is refused here."""
    for node in nodes_of(plan):
        name, children = class_name(node), node.children()
        joins_streams = name == "Join" and all(children.apply(side).isStreaming() for side in range(children.size()))
        if node.isStreaming() and (name in _STATEFUL or joins_streams):
            raise ConfigurationError(
                f"a query with two keyed operators can't have Spark's own stateful operator beside them: {name}. Do its "
                "work in one of the functions, or split the query in two."
            )


def _refuse_unready_sources(sources: Sequence[StreamSource], log: SparkLog) -> None:
    """What the checkpoint restored always wins; only a first start needs starting offsets."""
    planned = log.planned()
    for source in sources:
        if not isinstance(source, KafkaStream):
            continue
        if planned < 0:
            if source.startup_problem:
                raise MissingGroupOffsetsError(source.startup_problem)
            continue
        before = {partition.topic for partition in log.barrier(planned).kafka_offsets(source.index)}
        if before and not any(source.reads(topic) for topic in before):
            raise CheckpointDirectoryError(
                f"the checkpoint directory belongs to another query: it holds offsets of {', '.join(sorted(before))}, and "
                f"this query reads {source.topics}. Use another checkpoint directory."
            )
