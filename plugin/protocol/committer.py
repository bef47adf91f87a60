"""Phase 2: completes checkpoints that Spark has decided, and makes their epochs visible (steps 7 and 8).

Everything here runs off the query's critical path, on one thread at a time, and may be repeated by another process:
each step either changes nothing durable or can be done twice.
"""

from __future__ import annotations

import logging
import re
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol

from lockstep.errors import (
    CheckpointDirectoryError,
    CommitFailedError,
    FencedError,
    MissingRecordError,
    OrphanedSinkError,
)
from lockstep.protocol.barrier import Barrier, CheckpointKind
from lockstep.protocol.checkpoint import CompletedCheckpoint, PendingCheckpoint, PendingState
from lockstep.protocol.clock import Clock
from lockstep.protocol.completed_store import CompletedCheckpointStore
from lockstep.protocol.coordinator import CheckpointCoordinator, at
from lockstep.protocol.failpoint import reach
from lockstep.protocol.fencing import FencingToken
from lockstep.protocol.prepare_record import PrepareRecord, choose, read_records
from lockstep.protocol.storage import Storage
from lockstep.sinks.two_phase import CommitOutcome, CommitStatus, TwoPhaseCommitSink

_log = logging.getLogger(__name__)
_FIRST_BACKOFF = 0.1
_LONGEST_BACKOFF = 10.0


class DecisionLog(Protocol):
    """What Spark has planned and decided: :class:`lockstep.engine.spark_log.SparkLog`."""

    def decided(self) -> int: ...

    def is_decided(self, epoch: int) -> bool: ...

    def barrier(self, epoch: int) -> Barrier: ...


class GroupOffsets(Protocol):
    """Commits source positions to consumer groups: :class:`lockstep.sources.offset_commit.OffsetCommitter`."""

    def snapshot(self, barrier: Barrier) -> None: ...

    def checkpoint_complete(self, epoch: int) -> None: ...

    def restore(self, barrier: Barrier) -> None: ...

    def tick(self) -> None: ...


def refuse_removed_sinks(pending: Iterable[PrepareRecord], uids: Collection[str]) -> None:
    """Raise when an uncommitted epoch was prepared in a sink that is no longer part of the query."""
    for record in pending:
        for uid in record.handles:
            if uid not in uids:
                raise OrphanedSinkError(
                    f"sink {uid!r} has prepared epoch {record.epoch}, which is not committed, and is no longer part of the "
                    f"query. Start once more with .sink(..., uid={uid!r}) and stop cleanly; then remove it."
                )


class Committer:
    """Commits decided epochs, strictly in order, in every sink; then offsets; then retires the prepare records.

    The query's thread calls ``add`` and ``complete_decided``; the committer's thread calls ``advance``. A lock guards
    the coordinator and the pending epochs, and is never held while a sink commits.
    """

    def __init__(
        self,
        storage: Storage,
        log: DecisionLog,
        store: CompletedCheckpointStore,
        coordinator: CheckpointCoordinator,
        token: FencingToken,
        sinks: Mapping[str, TwoPhaseCommitSink],
        offsets: GroupOffsets,
        clock: Clock,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self._storage = storage
        self._log = log
        self._store = store
        self._coordinator = coordinator
        self._token = token
        self._sinks = sinks
        self._offsets = offsets
        self._clock = clock
        self._new_id = new_id
        self._lock = threading.RLock()
        self._records: dict[int, list[PrepareRecord]] = {}  # pending epochs: one record per attempt
        self._done: dict[str, int] = dict.fromkeys(sinks, -1)  # by sink: highest epoch committed in this run
        self._details: dict[str, Mapping[str, Any]] = {}
        self._phases: dict[
            int, tuple[Mapping[str, int], float]
        ] = {}  # where an epoch's time went, and when it was prepared
        self._doubtful: set[int] = set()  # pending epochs of which another attempt than the chosen may be visible
        self._decided = -1  # as far as is known here
        self._recovered_to = -1  # epochs up to this one were prepared by an earlier driver
        self._backoff = 0.0
        self._not_before = 0.0
        self.last_problem: str | None = None

    # --- start ------------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Take over what earlier drivers left: read the records, and force a checkpoint of all that is decided.

        Undecided records are kept: a paused driver may still decide its own attempt.
        """
        reach("recovery.before")
        self._read_foreign_records()  # before the store, so that an epoch retired in between is seen as committed
        self._store.load(self._coordinator.lineage)
        self._store.drop_late()
        decided = self._log.decided()
        committed = self._store.committed_epoch()
        self._done = dict.fromkeys(self._sinks, committed)
        self._recovered_to = max(self._records, default=-1)
        self._refuse_old_log(decided, committed)
        for epoch in range(committed + 1, decided + 1):
            self._choose(epoch)
        pending = [
            record for epoch, records in sorted(self._records.items()) if epoch > committed for record in records
        ]
        refuse_removed_sinks(pending, self._sinks.keys())
        latest = self._store.get(committed)
        self._coordinator.restored(self._store.latest)
        if latest is not None:
            self._offsets.restore(latest.barrier)
        self._discard_losers(committed, just_committed=False)
        recorded = {id for records in self._records.values() for record in records for id in record.attempt_ids}
        for epoch in sorted(self._records):
            self._offsets.snapshot(self._choose(epoch).barrier)
        if decided > committed:
            _log.info("recovering epochs %d to %d", committed + 1, decided)
        self._force_checkpoint(decided)
        self._clean_up(recorded)
        reach("recovery.after")

    def _clean_up(self, recorded: Collection[str]) -> None:
        """Let the sinks remove what was staged by an earlier driver that died, or will be refused, before its record.

        An earlier driver looks at the token after it has stored its record, and the records were read after this driver
        took its own: an attempt that is not among the ``recorded`` will never be decided, or belongs to an epoch that is
        committed everywhere. Its record may still land late, if storing it seemed to fail: so only epochs whose choice is
        stored are looked at. No later ones also because, of a copied directory, the original may be at work on them in the
        same target.
        """
        latest = self._store.latest
        chosen = -1 if latest is None else latest.id

        def is_stray(attempt_id: str) -> bool:
            found = re.match(r"(\d+)-(\d+)-", attempt_id)
            if found is None or attempt_id in recorded:
                return False
            epoch, token = int(found.group(1)), int(found.group(2))
            return epoch <= chosen and token < self._token.value

        for uid, sink in self._sinks.items():
            try:
                sink.clean_up(is_stray)
            except Exception as error:  # invisible rows are left behind: a cost, not a wrong result
                _log.warning("sink %r could not clean up after earlier drivers: %s", uid, error)

    def _refuse_old_log(self, decided: int, committed: int) -> None:
        """Spark would number its epochs below ours again, and they would be taken for repetitions."""
        known = max(committed, self._recovered_to - 1)  # an epoch is prepared only when the one before is decided
        if decided < known:
            raise CheckpointDirectoryError(
                f"Spark's commit log in {self._storage.describe()} ends at epoch {decided}, but epoch {known} was decided: "
                "'commits' was emptied, or is an old copy. Restore 'offsets' and 'commits' from a backup, or use a new "
                "checkpoint directory."
            )

    # --- called on the query's thread -------------------------------------------------------------------------------

    def guard(self) -> AbstractContextManager[object]:
        """Held while the coordinator is used."""
        return self._lock

    def add(self, record: PrepareRecord, pending: PendingCheckpoint | None, phases: Mapping[str, int]) -> None:
        """The record of a new epoch was stored, after ``phases`` (ms); ``pending`` is its checkpoint, if it is one."""
        with self._lock:
            self._phases[record.epoch] = (phases, self._clock.monotonic())
            self._records.setdefault(record.epoch, []).append(record)
            self._offsets.snapshot(record.barrier)
            if pending is not None and pending.state is PendingState.WAITING:  # else expired: it rides along later
                pending.mark_prepared()

    def complete_decided(self, epoch: int) -> None:
        """Step 7, when ``epoch`` starts: Spark should have decided everything before it."""
        with self._lock:
            self._complete(epoch - 1 if self._log.is_decided(epoch - 1) else self._log.decided())

    def pending_epochs(self) -> list[int]:
        """Epochs that are prepared and not committed."""
        with self._lock:
            committed = self._store.committed_epoch()
            return sorted(epoch for epoch in self._records if epoch > committed)

    def awaits_decision(self) -> int | None:
        """The lowest epoch that is prepared and, as far as is known, not decided."""
        with self._lock:
            return min((epoch for epoch in self._records if epoch > self._decided), default=None)

    def oldest_pending_ms(self, before: int) -> int | None:
        """When the oldest uncommitted epoch below ``before`` was prepared."""
        with self._lock:
            pending = [epoch for epoch in self.pending_epochs() if epoch < before]
            return min((r.prepared_at_ms for epoch in pending for r in self._records[epoch]), default=None)

    def committed_in(self, uid: str) -> int:
        """Up to this epoch the sink has committed everything, as far as is known in this run."""
        return self._done.get(uid, -1)

    # --- called on the committer's thread ---------------------------------------------------------------------------

    def advance(self, force: bool = False) -> bool:
        """Complete and commit what can be. ``True`` when nothing decided is left uncommitted.

        ``force`` takes a checkpoint of everything decided now (used when the query stops), without waiting for the
        interval or a backoff.
        """
        with self._lock:
            decided = self._log.decided()
            self._complete(decided)
            self._coordinator.expire()
            if force or self._coordinator.due():
                self._checkpoint_at_rest(decided, force)
            latest = self._store.latest
        if latest is not None and not latest.committed and (force or self._clock.monotonic() >= self._not_before):
            self._commit_up_to(latest)
        self._offsets.tick()
        with self._lock:
            committed = self._store.committed_epoch()
            return not any(committed < epoch <= decided for epoch in self._records)

    def refuse_if_overtaken(self) -> None:
        """Raise when a newer driver has taken over. Commits look by themselves; this is for a driver that makes none."""
        self._token.check()

    # --- step 7 -----------------------------------------------------------------------------------------------------

    def _complete(self, decided: int) -> None:
        """7. The checkpoint completes: metadata stored, older ones subsumed, listeners notified."""
        self._decided = max(self._decided, decided)
        completed = self._coordinator.complete(
            decided, self._chosen_attempts, self._summed_reports, self._summed_phases
        )
        if completed is not None:
            self._phases = {epoch: spent for epoch, spent in self._phases.items() if epoch > completed.id}
            reach("metadata.after")

    def _checkpoint_at_rest(self, decided: int, force: bool) -> None:
        """Checkpoint epochs that were decided without one, when no newer checkpoint is on its way to take them along."""
        if force and self._coordinator.suspended:
            self._coordinator.release()  # the query has ended: no newer one is on its way
        if self._coordinator.in_progress or self._uncovered(decided) is None:
            return
        if force:
            self._force_checkpoint(decided)
        else:
            self._checkpoint(decided, CheckpointKind.CHECKPOINT)

    def _force_checkpoint(self, decided: int) -> None:
        self._checkpoint(decided, CheckpointKind.FORCED)

    def _checkpoint(self, decided: int, kind: CheckpointKind) -> None:
        epoch = self._uncovered(decided)
        if epoch is None:
            return
        record = self._choose(epoch)
        pending = self._coordinator.trigger(at(record.barrier, kind))
        if not isinstance(pending, PendingCheckpoint):
            return
        for participant in self._coordinator.participants:  # all have acknowledged: the record is stored
            report = record.reports.get(participant, {})
            self._coordinator.acknowledge(self._coordinator.lineage, pending.id, participant, report)
        pending.mark_prepared()
        self._complete(decided)

    def _uncovered(self, decided: int) -> int | None:
        """Highest decided epoch that no completed checkpoint covers."""
        latest = self._store.latest
        covered = latest.id if latest else -1
        return max((epoch for epoch in self._records if covered < epoch <= decided), default=None)

    def _chosen_attempts(self, checkpoint_id: int) -> dict[int, str]:
        reach("metadata.before")
        epochs = range(self._store.committed_epoch() + 1, checkpoint_id + 1)
        return {epoch: self._choose(epoch).origin for epoch in epochs}

    def _summed_reports(self, checkpoint_id: int) -> dict[str, dict[str, Any]]:
        """What the participants reported, over all epochs since the checkpoint before: figures are added up."""
        latest = self._store.latest
        summed: dict[str, dict[str, Any]] = {}
        for epoch in range((latest.id if latest else self._store.committed_epoch()) + 1, checkpoint_id + 1):
            for participant, report in self._choose(epoch).reports.items():
                before = summed.setdefault(participant, {})
                for name, value in report.items():
                    known = before.get(name, 0)
                    before[name] = known + value if isinstance(value, int) and isinstance(known, int) else value
        return summed

    def _summed_phases(self, checkpoint_id: int) -> dict[str, int]:
        """Where the time of the checkpoint's epochs went, as far as they were prepared by this driver; in milliseconds."""
        summed: Counter[str] = Counter()
        for phases, prepared in [spent for epoch, spent in self._phases.items() if epoch <= checkpoint_id]:
            summed.update(phases)
            summed["decision"] = max(summed["decision"], round((self._clock.monotonic() - prepared) * 1000))
        return dict(summed)

    def _choose(self, epoch: int) -> PrepareRecord:
        """The attempt of a decided epoch to commit. Another driver's record may have to be looked for first."""
        chosen = self._store.chosen_attempt(epoch)
        record = choose(self._records.get(epoch, ()), chosen)
        if record is None:
            self._read_foreign_records()
            record = choose(self._records.get(epoch, ()), chosen)
        if record is None:
            self._token.check()  # a newer driver may have committed and retired it
            raise MissingRecordError(
                f"epoch {epoch} was decided by Spark but {self._storage.describe()} has no prepare record for it"
                f"{f' and its chosen attempt {chosen}' if chosen else ''}, so its rows can't be committed. Restore "
                "lockstep/prepared from a backup, or, if the rows may be lost, start over with a new checkpoint directory."
            )
        return record

    # --- step 8 -----------------------------------------------------------------------------------------------------

    def _commit_up_to(self, checkpoint: CompletedCheckpoint) -> None:
        """8. Commit every sink, in epoch order; then the offsets; then retire the records.

        Every sink is tried, then the first failure is raised. A passing fault (RETRY, or any exception) is tried again
        later; the epochs stay pending.
        """
        with self._lock:
            epochs = list(range(self._store.committed_epoch() + 1, checkpoint.id + 1))
        begun = self._clock.monotonic()
        failures: list[Exception] = []
        waiting: list[str] = []
        for uid, sink in self._sinks.items():
            outcome = self._commit_sink(uid, sink, [epoch for epoch in epochs if epoch > self._done[uid]])
            if outcome.status is CommitStatus.RETRY:
                waiting.append(f"sink {uid!r}: {outcome.reason}")
            elif outcome.status is CommitStatus.FAILED:
                failures.append(
                    CommitFailedError(
                        f"sink {uid!r} can't commit up to epoch {checkpoint.id}: {outcome.reason} "
                        "The epochs stay prepared; they are committed at the next start, once the cause is gone."
                    )
                )
            else:
                self._done[uid] = checkpoint.id
        if failures:
            raise failures[0]
        if waiting:
            self._wait(checkpoint.id, waiting)
            return
        self._finish(checkpoint, epochs, {"commit": round((self._clock.monotonic() - begun) * 1000)})

    def _commit_sink(self, uid: str, sink: TwoPhaseCommitSink, epochs: list[int]) -> CommitOutcome:
        with self._lock:
            mine = [record for record in map(self._choose, epochs) if uid in record.handles]
        outcome = CommitOutcome.already_done()
        while mine:
            # Some of what is recovered may be in the target: one by one, so that each outcome speaks of one epoch.
            alone = mine[0].epoch <= self._recovered_to and outcome.status is not CommitStatus.DONE
            now, mine = (mine[:1], mine[1:]) if alone else (mine, [])
            outcome = self._commit_together(uid, sink, now)
            if not outcome.committed:
                break
        return outcome

    def _commit_together(self, uid: str, sink: TwoPhaseCommitSink, mine: list[PrepareRecord]) -> CommitOutcome:
        self._token.check()
        try:
            mine = [self._refreshed(uid, sink, record) for record in mine]
            prepared = [one for record in mine if (one := record.prepared(uid)) is not None]
            reach("sink.commit.before")
            method = sink.recover_and_commit if mine[0].epoch <= self._recovered_to else sink.commit_many
            outcome = method(prepared)
            reach("sink.commit.after")
        except FencedError:
            raise
        except CheckpointDirectoryError as error:  # what the sink was given makes no sense: no retry can change that
            self._token.check()
            return CommitOutcome.failed(str(error))
        except Exception as error:
            self._token.check()  # a fenced driver's errors are not worth a retry
            _log.warning("epoch %d: sink %r did not commit: %s", mine[-1].epoch, uid, error, exc_info=True)
            return CommitOutcome.retry(str(error) or repr(error))
        if not outcome.committed:
            self._token.check()  # what it misses, a newer driver may have committed and removed
        if outcome.committed and not self._is_ours(outcome.by_attempt):
            return CommitOutcome.failed(
                f"attempt {outcome.by_attempt} of epoch {mine[-1].epoch} is in the target, and it is none of this "
                "checkpoint directory's: a copy of the directory is in use elsewhere. Stop that query."
            )
        if outcome.status is CommitStatus.ALREADY_DONE and outcome.by_attempt != mine[-1].attempt.id:
            self._doubtful.update(record.epoch for record in mine)
        if outcome.committed:
            self._details[uid] = {**outcome.details, "attempt": outcome.by_attempt or mine[-1].attempt.id}
        return outcome

    def _refreshed(self, uid: str, sink: TwoPhaseCommitSink, record: PrepareRecord) -> PrepareRecord:
        """The record, after the sink staged its rows again if its target has changed since.

        The new record stands beside the old one and is found by the attempt that it replaces: the choice of attempts is not
        touched, so drivers can't overwrite each other's.
        """
        prepared = record.prepared(uid)
        handle = None if prepared is None else sink.refresh(prepared)
        if handle is None:
            return record
        token = self._token.value
        fresh = record.with_handle(uid, handle, f"{record.epoch}-{token}-{self._new_id()}", token)
        _log.info("epoch %d: sink %r staged again as attempt %s", record.epoch, uid, fresh.attempt.id)
        reach("refresh.before")
        self._storage.write(fresh.path, fresh.encode())
        reach("refresh.after")
        with self._lock:
            self._records[record.epoch].append(fresh)
        self._token.check()  # staging takes its time
        return fresh

    def _is_ours(self, attempt_id: str | None) -> bool:
        """Whether an attempt belongs to this directory. Another driver of it may have committed first: that is fine."""
        if attempt_id is None:
            return True
        with self._lock:
            known = [record for records in self._records.values() for record in records]
        if any(attempt_id in record.attempt_ids for record in known):
            return True
        self._token.check()  # a fenced driver can't know what the newer ones have done since
        if any(attempt_id in r.attempt_ids for r in read_records(self._storage, self._coordinator.lineage)):
            return True
        for checkpoint in self._store.stored():
            committed = [details.get("attempt") for details in checkpoint.commits.values()]
            if attempt_id in (*checkpoint.attempts.values(), *committed):
                return True
        return False

    def _finish(self, checkpoint: CompletedCheckpoint, epochs: list[int], phases: Mapping[str, int]) -> None:
        self._token.check()  # the group, the metadata and the records belong to the newest driver
        reach("offsets.before")
        self._offsets.checkpoint_complete(checkpoint.id)
        reach("offsets.after")
        now = self._clock.epoch_millis()
        with self._lock:
            for one in self._store.all():
                if one.id <= checkpoint.id and not one.committed:
                    doubtful = tuple(sorted(self._doubtful & one.attempts.keys()))
                    committed = replace(
                        one,
                        committed_ms=now,
                        commits=dict(self._details),
                        doubtful=doubtful,
                        phases={**one.phases, **phases},
                    )
                    self._store.replace(committed)
                    self._coordinator.committed(committed)
            reach("retire.before")
            self._discard_losers(checkpoint.id, just_committed=True)
            self._doubtful.clear()
            self._backoff = 0.0
            self.last_problem = None
        reach("retire.after")
        _log.debug("checkpoint %d committed epochs %s", checkpoint.id, epochs)

    def _discard_losers(self, committed: int, just_committed: bool) -> None:
        """Retire the records of committed epochs, and abort what was staged for them and not committed.

        Only what is certain not to be visible is aborted: when another attempt than the chosen one may be in a target, or
        the choice is not known any more, the staged rows are left where they are, invisible.
        """
        for epoch in [e for e in self._records if e <= committed]:
            chosen = self._store.certain_attempt(epoch)
            winner = choose(self._records[epoch], chosen) if just_committed else None
            aborted: list[tuple[str, dict[str, Any]]] = []  # a record and the one that replaced it name the same rows
            for record in self._records[epoch]:
                staged = [*record.handles.items(), *((old.uid, old.handle) for old in record.replaced)]
                if chosen is None or record.committed_early:
                    staged = []
                elif chosen in record.attempt_ids:  # the chosen one, before or after it was staged again
                    staged = [(uid, h) for uid, h in staged if winner is not None and h != winner.handles.get(uid)]
                for uid, handle in staged:
                    if (uid, handle) not in aborted:
                        aborted.append((uid, handle))
                        self._abort(uid, record, handle)
                self._delete(record)
            del self._records[epoch]

    def _delete(self, record: PrepareRecord) -> None:
        try:
            self._storage.delete(record.path)
        except Exception as error:  # the record of a committed epoch harms nobody; the next start drops it
            _log.warning("epoch %d: a prepare record could not be retired: %s", record.epoch, error)

    def _abort(self, uid: str, record: PrepareRecord, handle: dict[str, Any]) -> None:
        try:
            if uid in self._sinks:
                reach("sink.abort.before")
                self._sinks[uid].recover_and_abort(record.attempt, handle)
                reach("sink.abort.after")
        except Exception as error:  # staged rows are left behind, invisible: a cost, not a wrong result
            _log.warning("epoch %d: a lost attempt of sink %r was not cleaned up: %s", record.epoch, uid, error)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _read_foreign_records(self) -> None:
        for record in read_records(self._storage, self._coordinator.lineage):
            known = self._records.setdefault(record.epoch, [])
            if all(record.path != other.path for other in known):
                known.append(record)

    def _wait(self, checkpoint_id: int, problems: list[str]) -> None:
        self._backoff = min(max(self._backoff * 2, _FIRST_BACKOFF), _LONGEST_BACKOFF)
        self._not_before = self._clock.monotonic() + self._backoff
        self.last_problem = "; ".join(problems)
        _log.warning("checkpoint %d: commit tried again in %.1f s: %s", checkpoint_id, self._backoff, self.last_problem)
