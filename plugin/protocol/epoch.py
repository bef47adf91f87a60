"""Phase 1: runs one epoch up to the point where Spark may decide it (steps 1 to 6)."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from lockstep.config import CheckpointConfig, CheckpointMode
from lockstep.errors import (
    CheckpointDeclinedError,
    CheckpointDirectoryError,
    CheckpointError,
    CheckpointExpiredError,
    CommitStalledError,
    FencedError,
    LockstepError,
)
from lockstep.protocol.barrier import Barrier
from lockstep.protocol.checkpoint import AckResult, FailureReason, PendingCheckpoint
from lockstep.protocol.clock import Clock
from lockstep.protocol.committer import Committer, DecisionLog
from lockstep.protocol.coordinator import CheckpointCoordinator
from lockstep.protocol.failpoint import reach
from lockstep.protocol.fencing import FencingToken
from lockstep.protocol.prepare_record import PrepareRecord
from lockstep.protocol.storage import Storage
from lockstep.sinks.two_phase import Attempt, Handle, TwoPhaseCommitSink

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BoundSink:
    """A sink as the user attached it to the query."""

    uid: str
    sink: TwoPhaseCommitSink
    transform: Callable[[Any], Any] | None = None


class EpochOperator(Protocol):
    """A stateful operator of the query, as the protocol sees it: Spark runs it while the sinks read the batch."""

    @property
    def uid(self) -> str: ...

    def begin(self, epoch: int) -> None:
        """An attempt of the epoch begins."""

    def acknowledge(self, epoch: int) -> dict[str, Any]:
        """The handle of the state at the epoch's end, and figures; raises when that state is not all stored."""


@dataclass(frozen=True)
class Surroundings:
    """What the runner needs from the engine around it."""

    materialise: Callable[[Any], AbstractContextManager[Any]] = nullcontext
    """Makes sure that the batch is evaluated once and completely, whatever the sinks read of it."""
    deadline: Callable[[float], AbstractContextManager[None]] = lambda seconds: nullcontext()
    """Cancels the engine's work when the time is over, so that a stuck write raises."""
    wait_for_commit: Callable[[float], None] = lambda seconds: None
    """Asks for a checkpoint of all that is decided, and waits at most so long for the committer to make progress."""
    explain: Callable[[Exception], LockstepError | None] = lambda error: None
    """What the engine's error means, when it comes from a user's operator."""
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex


class EpochRunner:
    """Runs epochs, one at a time, on the query's thread."""

    def __init__(
        self,
        sinks: tuple[BoundSink, ...],
        sources: tuple[str, ...],
        operators: tuple[EpochOperator, ...],
        storage: Storage,
        log: DecisionLog,
        coordinator: CheckpointCoordinator,
        committer: Committer,
        token: FencingToken,
        config: CheckpointConfig,
        clock: Clock,
        surroundings: Surroundings,
    ) -> None:
        self._sinks = sinks
        self._sources = sources
        self._operators = operators
        self._storage = storage
        self._log = log
        self._coordinator = coordinator
        self._committer = committer
        self._token = token
        self._config = config
        self._clock = clock
        self._engine = surroundings
        self._early: dict[str, int] = {}  # AT_LEAST_ONCE, by sink: up to here committed before the decision

    def run(self, epoch: int, batch: Any) -> None:
        """Prepare the epoch in every sink and return, which lets Spark decide it; or raise, which makes Spark run it again.

        1. Spark has written ``offsets/N``: read the barrier.
        2. Complete every earlier epoch that Spark has decided; hold this one back while too many wait for their commit.
        3. Open a pending checkpoint, if one is due.
        4. Each sink: begin, write, pre_commit. Then each operator: the state that this has made is all stored.
        5. Store the prepare record. Until here any failure raises; nothing undecided returns normally. Then look at the
           token: a newer driver has either read the record, or is seen here and the epoch is not decided.
        6. Return: Spark writes ``commits/N``. That is the decision.
        """
        reach("epoch.start")
        self._refuse_decided(epoch)
        barrier = self._log.barrier(epoch)  # 1.
        reach("source.barrier.after")
        self._committer.complete_decided(epoch)  # 2.
        begun = self._clock.monotonic()
        self._hold_back(epoch)
        held_back = self._clock.monotonic() - begun
        self._token.check()
        for failures in range(self._config.tolerable_failures + 1):
            try:
                self._attempt(barrier, batch, held_back)
                break
            except CheckpointError as error:
                if failures == self._config.tolerable_failures:
                    raise
                _log.warning("epoch %d: attempt %d failed and is repeated: %s", epoch, failures + 1, error)
        reach("epoch.end")  # 6.

    def _refuse_decided(self, epoch: int) -> None:
        """What is decided is committed from its record; rows of another run of the epoch would never be."""
        if self._log.is_decided(epoch):
            self._token.check()  # a newer driver may have decided it
            raise CheckpointDirectoryError(
                f"Spark runs epoch {epoch}, which is decided already. Either another driver on the checkpoint directory has "
                "decided it: start again. Or the directory 'offsets' was emptied: restore it from a backup, or use a new "
                "checkpoint directory."
            )

    def _attempt(self, barrier: Barrier, batch: Any, held_back: float) -> None:
        attempt_id = f"{barrier.epoch}-{self._token.value}-{self._engine.new_id()}"
        attempt = Attempt(barrier.epoch, attempt_id, self._coordinator.lineage, self._token.value)
        pending = self._trigger(barrier)  # 3.
        handles: dict[str, Handle] = {}
        may_be_stored = False
        failing = "source"
        started = self._clock.monotonic()
        try:
            reports = self._acknowledge_sources(barrier, pending)
            for operator in self._operators:
                operator.begin(barrier.epoch)
                reach("operator.begin.after")
            with self._engine.deadline(self._config.timeout.total_seconds()), self._engine.materialise(batch) as rows:
                for bound in self._sinks:  # 4.
                    failing = f"sink {bound.uid!r}"
                    reports[bound.uid] = self._prepare(bound, attempt, rows, handles)
                    self._acknowledge(pending, bound.uid, reports[bound.uid])
                prepared = self._clock.monotonic()
                for operator in self._operators:
                    failing = f"operator {operator.uid!r}"
                    reports[operator.uid] = operator.acknowledge(barrier.epoch)
                    self._acknowledge(pending, operator.uid, reports[operator.uid])
                    reach("operator.acknowledge.after")
            acknowledged = self._clock.monotonic()
            failing = "the coordinator"
            self._refuse_if_late(barrier.epoch, started)
            record = PrepareRecord(
                attempt=attempt,
                barrier=barrier,
                prepared_at_ms=self._clock.epoch_millis(),
                handles=handles,
                committed_early=self._config.mode is CheckpointMode.AT_LEAST_ONCE,
                reports=reports,
            )
            reach("record.before")
            data = record.encode()
            may_be_stored = True
            self._storage.write(record.path, data)  # 5.
            reach("record.after")
            self._token.check()
        except Exception as error:
            failure = self._failed(attempt, pending, {} if may_be_stored else handles, failing, started, error)
            raise failure from (None if failure is error else error)
        seconds = {
            "held_back": held_back,
            "prepare": prepared - started,
            "state": acknowledged - prepared,
            "record": self._clock.monotonic() - acknowledged,
        }
        self._committer.add(record, pending, {phase: round(spent * 1000) for phase, spent in seconds.items()})
        if self._config.mode is CheckpointMode.AT_LEAST_ONCE:
            self._commit_early(record)

    def _trigger(self, barrier: Barrier) -> PendingCheckpoint | None:
        if not self._coordinator.due():
            return None
        with self._committer.guard():
            result = self._coordinator.trigger(barrier)
        return result if isinstance(result, PendingCheckpoint) else None

    def _acknowledge_sources(self, barrier: Barrier, pending: PendingCheckpoint | None) -> dict[str, dict[str, Any]]:
        reports: dict[str, dict[str, Any]] = {}
        for index, source in enumerate(self._sources):
            reports[source] = {"position": barrier.positions[index] if index < len(barrier.positions) else None}
            self._acknowledge(pending, source, reports[source])
        return reports

    def _acknowledge(self, pending: PendingCheckpoint | None, participant: str, report: dict[str, Any]) -> None:
        if pending is None:
            return
        with self._committer.guard():
            result = self._coordinator.acknowledge(self._coordinator.lineage, pending.id, participant, report)
        if result in (AckResult.DISCARDED, AckResult.UNKNOWN):
            failure = pending.failure or FailureReason.EXCEPTION
            kind = CheckpointExpiredError if failure is FailureReason.EXPIRED else CheckpointDeclinedError
            raise kind(
                f"epoch {pending.id}: the checkpoint was given up before {participant} was ready: {failure.value}."
            )

    def _prepare(self, bound: BoundSink, attempt: Attempt, rows: Any, handles: dict[str, Handle]) -> dict[str, Any]:
        begun = self._clock.monotonic()
        handles[bound.uid] = bound.sink.begin(attempt)
        reach("sink.begin.after")
        bound.sink.write(handles[bound.uid], bound.transform(rows) if bound.transform else rows)
        reach("sink.write.after")
        written = self._clock.monotonic()
        handles[bound.uid] = bound.sink.pre_commit(handles[bound.uid])
        reach("sink.pre_commit.after")
        metrics = handles[bound.uid].get("metrics", {})
        times = {
            "write_ms": round((written - begun) * 1000),
            "pre_commit_ms": round((self._clock.monotonic() - written) * 1000),
        }
        return {**metrics, **times}

    def _refuse_if_late(self, epoch: int, started: float) -> None:
        seconds = self._clock.monotonic() - started
        if seconds > self._config.timeout.total_seconds():
            raise CheckpointExpiredError(
                f"epoch {epoch} took {seconds:.1f} s to prepare, longer than CheckpointConfig.timeout="
                f"{self._config.timeout.total_seconds():g} s. Raise the timeout, or make epochs smaller "
                "(maxOffsetsPerTrigger)."
            )

    def _failed(
        self,
        attempt: Attempt,
        pending: PendingCheckpoint | None,
        handles: dict[str, Handle],
        failing: str,
        started: float,
        error: Exception,
    ) -> LockstepError:
        """Abort what is staged under ``handles``, discard the checkpoint, and say what happened.

        What a stored record names must never be aborted: another driver may have chosen it. It is left to the next start.
        """
        late = self._clock.monotonic() - started > self._config.timeout.total_seconds()
        if pending is not None:
            reason = FailureReason.EXPIRED if late else FailureReason.DECLINED
            with self._committer.guard():
                self._coordinator.decline(attempt.lineage, pending.id, failing, reason)
        for bound in self._sinks:
            if bound.uid in handles:
                self._abort(bound, attempt, handles[bound.uid])
        if isinstance(error, (CheckpointError, FencedError)):
            return error
        if (explained := self._engine.explain(error)) is not None:
            return explained
        if late:
            return CheckpointExpiredError(
                f"epoch {attempt.epoch}: {failing} was cancelled after CheckpointConfig.timeout="
                f"{self._config.timeout.total_seconds():g} s: {error}"
            )
        return CheckpointDeclinedError(
            f"epoch {attempt.epoch}: {failing} failed before the epoch was prepared: {error} "
            "Nothing of the epoch is visible; it is run again."
        )

    def _abort(self, bound: BoundSink, attempt: Attempt, handle: Handle) -> None:
        reach("sink.abort.before")
        try:
            bound.sink.abort(attempt, handle)
            reach("sink.abort.after")
        except Exception as error:
            _log.warning("epoch %d: sink %r could not abort, rows are left staged: %s", attempt.epoch, bound.uid, error)

    def _commit_early(self, record: PrepareRecord) -> None:
        """AT_LEAST_ONCE: visible before the decision. What does not succeed now is left to the committer.

        Only when everything before is visible: a sink takes an epoch below its highest for a repetition.
        """
        for bound in self._sinks:
            prepared = record.prepared(bound.uid)
            visible_to = max(self._early.get(bound.uid, -1), self._committer.committed_in(bound.uid))
            if prepared is None or visible_to < record.epoch - 1:
                continue
            try:
                if bound.sink.commit_many([prepared]).committed:
                    self._early[bound.uid] = record.epoch
            except Exception as error:
                _log.warning("epoch %d: sink %r did not commit early: %s", record.epoch, bound.uid, error)

    def _hold_back(self, epoch: int) -> None:
        """Wait while ``max_pending_epochs`` earlier epochs are uncommitted; give up after the timeout."""
        waited_since = self._clock.monotonic()
        limit = self._config.timeout.total_seconds()
        while True:
            pending = [earlier for earlier in self._committer.pending_epochs() if earlier < epoch]
            if len(pending) < self._config.max_pending_epochs and not self._too_old(epoch):
                return
            problem = self._committer.last_problem or "no commit has finished"
            if self._clock.monotonic() - waited_since > limit:
                raise CommitStalledError(
                    f"epoch {epoch} was held back for {limit:g} s: {len(pending)} epochs wait for their commit ({problem}). "
                    "They stay prepared and are committed at the next start, once the sink works again."
                )
            self._engine.wait_for_commit(1.0)

    def _too_old(self, epoch: int) -> bool:
        """Whether rows staged before near the age at which their sink can't keep them safe (Delta's VACUUM)."""
        oldest = self._committer.oldest_pending_ms(epoch)
        limits = [limit for bound in self._sinks if (limit := bound.sink.max_pending_seconds()) is not None]
        return oldest is not None and bool(limits) and self._clock.epoch_millis() - oldest > min(limits) * 1000
