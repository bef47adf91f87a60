"""Pending and completed checkpoints, and what participants and the coordinator say to each other about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from lockstep.protocol.barrier import Barrier, CheckpointKind
from lockstep.protocol.envelope import seal, unseal_fields
from lockstep.protocol.fields import number_in_name

_KIND = "checkpoint"


class AckResult(Enum):
    """What became of an acknowledgement."""

    SUCCESS = "success"
    DUPLICATE = "duplicate"  # this participant had acknowledged before
    UNKNOWN = "unknown"  # this participant was not expected
    DISCARDED = "discarded"  # the checkpoint is gone


class FailureReason(Enum):
    """Why a checkpoint was refused or failed."""

    # refused before it was triggered, in the order in which these are checked
    COORDINATOR_SHUTDOWN = "the coordinator is shut down"
    PERIODIC_SCHEDULER_SHUTDOWN = "periodic checkpoints are suspended"
    ALREADY_QUEUED = "another request is queued already"
    TOO_MANY_CONCURRENT_CHECKPOINTS = "as many checkpoints as allowed are in progress"
    MINIMUM_TIME_BETWEEN_CHECKPOINTS = "the minimum pause since the last checkpoint is not over"
    NOT_ALL_REQUIRED_TASKS_RUNNING = "not every source, operator and sink is running"
    # failed after it was triggered
    DECLINED = "a participant declined"
    EXPIRED = "it was not prepared in time"
    SUBSUMED = "a newer checkpoint completed first and stands for it"
    EXCEPTION = "an error occurred"


class PendingState(Enum):
    """Life of a pending checkpoint. Once PREPARED, Spark may decide the epoch, so it can't be discarded any more."""

    WAITING = "waiting for acknowledgements"
    PREPARED = "prepared, waiting for Spark's decision"
    COMPLETED = "completed"
    DISCARDED = "discarded"


class PendingCheckpoint:
    """A triggered checkpoint that waits for its participants and then for Spark's decision."""

    def __init__(self, barrier: Barrier, expected: frozenset[str], triggered_ms: int, deadline: float) -> None:
        self.id = barrier.epoch
        self.barrier = barrier
        self.triggered_ms = triggered_ms
        self.deadline = deadline
        self.state = PendingState.WAITING
        self.failure: FailureReason | None = None
        self._missing = set(expected)
        self._reports: dict[str, Mapping[str, Any]] = {}

    @property
    def reports(self) -> Mapping[str, Mapping[str, Any]]:
        """What each participant said when it acknowledged."""
        return self._reports

    @property
    def missing(self) -> frozenset[str]:
        """Participants that have not acknowledged yet."""
        return frozenset(self._missing)

    @property
    def fully_acknowledged(self) -> bool:
        return not self._missing

    def acknowledge(self, participant: str, report: Mapping[str, Any]) -> AckResult:
        if self.state is PendingState.DISCARDED or self.state is PendingState.COMPLETED:
            return AckResult.DISCARDED
        if participant in self._reports:
            return AckResult.DUPLICATE
        if participant not in self._missing:
            return AckResult.UNKNOWN
        self._missing.remove(participant)
        self._reports[participant] = dict(report)
        return AckResult.SUCCESS

    def mark_prepared(self) -> None:
        """The prepare record is stored: from here on only Spark decides."""
        if self._missing:
            raise ValueError(f"checkpoint {self.id} is not acknowledged by {', '.join(sorted(self._missing))}")
        self._move(PendingState.WAITING, PendingState.PREPARED)

    def mark_completed(self) -> None:
        self._move(PendingState.PREPARED, PendingState.COMPLETED)

    def discard(self, reason: FailureReason) -> None:
        """Give it up. A prepared one only if its epoch rides along with a newer checkpoint, later or after a restart."""
        rides_along = reason in (FailureReason.SUBSUMED, FailureReason.COORDINATOR_SHUTDOWN)
        if self.state is PendingState.PREPARED and rides_along:
            self._move(PendingState.PREPARED, PendingState.DISCARDED)
        else:
            self._move(PendingState.WAITING, PendingState.DISCARDED)
        self.failure = reason

    def _move(self, source: PendingState, target: PendingState) -> None:
        if self.state is not source:
            raise ValueError(f"checkpoint {self.id} is {self.state.value}: it can't become {target.value}")
        self.state = target


@dataclass(frozen=True)
class CompletedCheckpoint:
    """A checkpoint whose epochs Spark has decided: they will be committed, whatever happens.

    ``attempts`` is the durable choice: for every epoch that the checkpoint commits, the one attempt to commit. It is
    stored before the first sink commits, so no other driver can ever choose differently. ``doubtful`` epochs were found
    in a sink's target already, and perhaps by another attempt: nothing that was staged for them may be aborted.
    """

    barrier: Barrier
    lineage: str
    attempts: Mapping[int, str]
    triggered_ms: int
    completed_ms: int
    reports: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    committed_ms: int | None = None
    commits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by sink uid: e.g. the table's version
    doubtful: tuple[int, ...] = ()
    phases: Mapping[str, int] = field(default_factory=dict)  # where the time of its epochs went, in milliseconds

    @property
    def id(self) -> int:
        return self.barrier.epoch

    @property
    def kind(self) -> CheckpointKind:
        return self.barrier.kind

    @property
    def committed(self) -> bool:
        return self.committed_ms is not None

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "lineage": self.lineage,
            "barrier": self.barrier.to_json(),
            "attempts": {str(epoch): attempt for epoch, attempt in self.attempts.items()},
            "triggered_ms": self.triggered_ms,
            "completed_ms": self.completed_ms,
            "committed_ms": self.committed_ms,
            "reports": {name: dict(report) for name, report in self.reports.items()},
            "commits": {uid: dict(details) for uid, details in self.commits.items()},
            "doubtful": list(self.doubtful),
            "phases": dict(self.phases),
        }

    def encode(self) -> bytes:
        return seal(_KIND, self.to_json())

    @classmethod
    def decode(cls, data: bytes, where: str) -> CompletedCheckpoint:
        fields = unseal_fields(_KIND, data, where)
        attempts = fields.fields("attempts")
        epochs = {name: number_in_name(name) for name in attempts}
        barrier = Barrier.from_fields(fields.fields("barrier"))
        chosen = {epoch: attempts.name(name) for name, epoch in epochs.items() if epoch is not None}
        doubtful = fields.json_list("doubtful")
        if len(chosen) < len(epochs) or any(epoch > barrier.epoch for epoch in chosen):
            raise fields.wrong("attempts", sorted(epochs), f"epochs up to {barrier.epoch}")
        if any(type(epoch) is not int for epoch in doubtful):
            raise fields.wrong("doubtful", doubtful, "a list of epochs")
        if fields.count("id") != barrier.epoch:
            raise fields.refusal(f"it is checkpoint {fields.count('id')}, and its barrier of epoch {barrier.epoch}.")
        return cls(
            barrier=barrier,
            lineage=fields.name("lineage"),
            attempts=chosen,
            triggered_ms=fields.integer("triggered_ms"),
            completed_ms=fields.integer("completed_ms"),
            committed_ms=None if fields.is_null("committed_ms") else fields.integer("committed_ms"),
            reports=fields.objects("reports"),
            commits=fields.objects("commits"),
            doubtful=tuple(doubtful),
            phases=fields.counts("phases") if "phases" in fields else {},
        )
