"""The two-phase-commit contract between Lockstep and a sink.

Phase 1 happens inside Spark's micro-batch and makes the epoch's rows durable but invisible. Phase 2 happens after Spark
has recorded the batch in its commit log (the decision), possibly in another process, and makes them visible.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Handle = dict[str, Any]
"""What a sink needs, alone and in another process, to commit or abort an epoch: plain JSON (str, int, list, dict, …)."""


@dataclass(frozen=True)
class SinkContext:
    """What a sink is told once, when the query starts and before any data moves."""

    spark: SparkSession
    uid: str
    lineage: str  # the life of the checkpoint directory; part of every idempotence key
    schema: StructType  # of the rows that ``write`` will get
    output_mode: str
    query_name: str | None
    highest_epoch: Callable[[], int]  # that may have been committed by now; a target that has more is of another life
    staging: str = ""  # a directory for this sink alone, in the checkpoint directory and on its file system
    returning: bool = False  # an earlier start had opened this sink: what it left in its target must be there still
    token: Callable[[], int] = lambda: 0
    """This driver's fencing token, from the first ``begin`` on. Raises ``FencedError`` when a newer driver took over."""


@dataclass(frozen=True)
class Attempt:
    """One execution of one epoch by one driver. No two attempts share an ``id``, in any process."""

    epoch: int
    id: str
    lineage: str
    token: int


@dataclass(frozen=True)
class PreparedEpoch:
    """A handle that was made durable in a prepare record, with the attempt that it belongs to."""

    attempt: Attempt
    handle: Handle
    prepared_at_ms: int

    @property
    def epoch(self) -> int:
        return self.attempt.epoch


class CommitStatus(Enum):
    """How a call of ``commit`` ended."""

    DONE = "done"  # this call made the epoch visible
    ALREADY_DONE = "already done"  # an earlier call, perhaps of another process, had made it visible
    RETRY = "retry"  # a passing fault; nothing is known to be wrong with the epoch, call again later
    FAILED = "failed"  # calling again can't help; a person has to act


@dataclass(frozen=True)
class CommitOutcome:
    """Result of ``commit``. ``details`` (JSON) is kept in the checkpoint's metadata, e.g. the table's new version."""

    status: CommitStatus
    reason: str = ""
    by_attempt: str | None = None  # whose rows were there already, when some were and the sink knows
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def done(cls, **details: Any) -> CommitOutcome:
        return cls(CommitStatus.DONE, details=details)

    @classmethod
    def already_done(cls, by_attempt: str | None = None, **details: Any) -> CommitOutcome:
        return cls(CommitStatus.ALREADY_DONE, by_attempt=by_attempt, details=details)

    @classmethod
    def retry(cls, reason: str) -> CommitOutcome:
        return cls(CommitStatus.RETRY, reason)

    @classmethod
    def failed(cls, reason: str) -> CommitOutcome:
        return cls(CommitStatus.FAILED, reason)

    @property
    def committed(self) -> bool:
        return self.status in (CommitStatus.DONE, CommitStatus.ALREADY_DONE)


class TwoPhaseCommitSink(ABC):
    """A sink whose epochs become visible all at once, exactly once.

    Calls, in the driver process. ``open`` once per start. Then for every epoch, in epoch order, on the query's thread:
    ``begin`` → ``write`` → ``pre_commit``, or ``abort`` when any of them, or another sink, failed. Then, on the
    committer's thread while later epochs may already be written: ``refresh`` → ``commit``, in epoch order, again and
    again until it is done. ``close`` when the query ends; it is not called when the process dies.

    After a restart, in a new process: ``open`` → ``clean_up`` → ``recover_and_commit`` for every decided epoch that was
    not known to be committed, and ``recover_and_abort`` for attempts that lost.

    What a sink must promise:

    * nothing of an epoch is visible before ``commit``; after it, all of it is, at once;
    * ``commit`` and ``abort`` are idempotent: they may be called twice, much later, by another process;
    * once ``pre_commit`` has returned, the handle survives any crash: with it alone the epoch can be committed;
    * ``write`` reads all rows of the batch (state is committed in Spark's tasks as their iterators end).

    What is *not* promised to a sink: that ``commit`` follows ``pre_commit`` soon, or in the same process; that an epoch's
    first attempt is the one committed; that ``abort`` is called for everything that was begun (a crash may prevent it).

    In mode AT_LEAST_ONCE ``commit`` is called on the query's thread too, before the decision, perhaps while the
    committer's thread is committing an earlier epoch.

    Exceptions: in phase 1 any exception fails the attempt, and the epoch is run again. In ``commit`` an exception counts
    as ``RETRY``: raise freely when the outcome is not known. ``CheckpointDirectoryError`` counts as ``FAILED``: the handle
    makes no sense. Handles come back from disk; look at what one names before anything is moved or deleted on its account.
    """

    reads_whole_batch: bool = False
    """Whether ``write`` is sure to evaluate every row. If not, the batch is evaluated first, so that state is complete."""

    def describe(self) -> str:
        """Kind and target in a few words, without secrets: kept in the checkpoint directory and shown to people."""
        return type(self).__name__

    def open(self, context: SinkContext) -> None:
        """Check that the sink can take the rows, and prepare the target. Raise ``ConfigurationError`` if not."""

    @abstractmethod
    def begin(self, attempt: Attempt) -> Handle:
        """Start a transaction. Must not make anything visible. The handle must be enough for ``abort``."""

    @abstractmethod
    def write(self, handle: Handle, batch: DataFrame) -> None:
        """Stage all rows of ``batch``, durably and invisibly."""

    @abstractmethod
    def pre_commit(self, handle: Handle) -> Handle:
        """Finish phase 1 and return the final handle. From here on, ``commit`` must be possible after any crash.

        A key ``metrics`` (``{"rows": …, "bytes": …, "files": …}``) in the handle appears in the checkpoint history.
        """

    @abstractmethod
    def commit(self, prepared: PreparedEpoch) -> CommitOutcome:
        """Make the epoch visible, all at once. Called in epoch order, at least once for every decided epoch."""

    @abstractmethod
    def abort(self, attempt: Attempt, handle: Handle) -> None:
        """Remove what was staged. Called with the handle of ``begin`` or of ``pre_commit``; idempotent."""

    def commit_many(self, prepared: Sequence[PreparedEpoch]) -> CommitOutcome:
        """Commit several epochs, given in order. Override it where the target can take them in one transaction.

        The outcome stands for all of them; each epoch must still become visible all at once.
        """
        outcome = CommitOutcome.already_done()
        by_attempt = None
        for one in prepared:
            last = self.commit(one)
            if not last.committed:
                return last
            by_attempt = last.by_attempt or by_attempt
            if last.status is CommitStatus.DONE or outcome.status is not CommitStatus.DONE:
                outcome = last
        return replace(outcome, by_attempt=by_attempt)

    def refresh(self, prepared: PreparedEpoch) -> Handle | None:
        """Stage again when the target changed since staging (a schema change, say); ``None`` when nothing is to do.

        Called before ``commit``. A returned handle is made durable before it is used, under a new attempt; the old one
        is aborted after the commit.
        """
        return None

    def recover_and_commit(self, prepared: Sequence[PreparedEpoch]) -> CommitOutcome:
        """``commit_many`` for epochs found at start. They may have been committed already."""
        return self.commit_many(prepared)

    def recover_and_abort(self, attempt: Attempt, handle: Handle) -> None:
        """``abort`` for an attempt of an earlier process that lost. Called only after the epoch was decided."""
        self.abort(attempt, handle)

    def clean_up(self, is_stray: Callable[[str], bool]) -> None:
        """Remove what earlier drivers staged and nobody needs any more: called once per start, after ``open``.

        ``is_stray`` tells of an attempt id whether nobody will ever commit or abort it. That is also true of attempts
        that are committed: remove only what is staged, never what is visible. A sink that can list what is staged in its
        target asks for each; one whose target clears up by itself (a Delta table's VACUUM) need not.
        """

    def max_pending_seconds(self) -> float | None:
        """How long staged rows are safe before they are committed; ``None`` for any length of time."""
        return None

    def newest_epoch_of(self, lineage: str) -> int | None:
        """The newest epoch of another life of the query that is in the target; ``None`` when that can't be told.

        Asked after ``open``, when the query was restored from a savepoint: rows of later epochs will come again.
        """
        return None

    def close(self) -> None:
        """Release what ``open`` took. Not called when the process dies."""
