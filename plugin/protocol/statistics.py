"""Counts, latest, history and summary of checkpoints: what Flink shows in its Checkpoints tab."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lockstep.protocol.checkpoint import CompletedCheckpoint, FailureReason, PendingCheckpoint

_HISTORY = 1000


@dataclass
class CheckpointEntry:
    """One line of the history."""

    id: int
    status: str  # in progress, completed, committed, failed
    kind: str
    triggered_ms: int
    expected: int
    acknowledged_ms: dict[str, int] = field(default_factory=dict)
    completed_ms: int | None = None
    committed_ms: int | None = None
    failure: FailureReason | None = None
    reports: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    phases: Mapping[str, int] = field(default_factory=dict)  # where the time of its epochs went, in milliseconds

    @property
    def duration_ms(self) -> int | None:
        """From the trigger to completion."""
        return None if self.completed_ms is None else self.completed_ms - self.triggered_ms

    def total(self, name: str) -> int:
        """Sum of a figure (``rows``, ``bytes``, …) over the participants."""
        return sum(int(report.get(name, 0)) for report in self.reports.values())


class CheckpointStatistics:
    """Figures of this run of the query, in memory."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.refusals: Counter[FailureReason] = Counter()
        self.failures: Counter[FailureReason] = Counter()
        self.late_ids: set[int] = set()
        self.latest_completed: CompletedCheckpoint | None = None
        self.latest_failed: CheckpointEntry | None = None
        self.latest_savepoint: CompletedCheckpoint | None = None
        self.latest_restored: CompletedCheckpoint | None = None
        self._history: deque[CheckpointEntry] = deque(maxlen=_HISTORY)

    def history(self) -> list[CheckpointEntry]:
        """Newest first."""
        return list(reversed(self._history))

    def summary(self) -> dict[str, dict[str, float]]:
        """Least, mean, median, 99th percentile and greatest of duration, rows and bytes of completed checkpoints."""
        done = [entry for entry in self._history if entry.completed_ms is not None]
        figures = {
            "duration_ms": [float(entry.duration_ms or 0) for entry in done],
            "rows": [float(entry.total("rows")) for entry in done],
            "bytes": [float(entry.total("bytes")) for entry in done],
        }
        return {name: _summarise(sorted(values)) for name, values in figures.items() if values}

    def refused(self, reason: FailureReason) -> None:
        self.refusals[reason] += 1

    def triggered(self, pending: PendingCheckpoint) -> None:
        self.counts["triggered"] += 1
        self.counts["in progress"] += 1
        kind = pending.barrier.kind.value
        self._history.append(
            CheckpointEntry(pending.id, "in progress", kind, pending.triggered_ms, len(pending.missing))
        )

    def acknowledged(self, pending: PendingCheckpoint, participant: str, now_ms: int) -> None:
        entry = self._entry(pending.id)
        if entry is not None:
            entry.acknowledged_ms[participant] = now_ms
            entry.reports = pending.reports

    def completed(self, checkpoint: CompletedCheckpoint) -> None:
        self.counts["completed"] += 1
        self.counts["in progress"] -= 1
        self.latest_completed = checkpoint
        if checkpoint.kind.value == "savepoint":
            self.latest_savepoint = checkpoint
        entry = self._entry(checkpoint.id)
        if entry is not None:
            entry.status, entry.completed_ms = "completed", checkpoint.completed_ms
            entry.reports, entry.phases = checkpoint.reports, checkpoint.phases

    def committed(self, checkpoint: CompletedCheckpoint) -> None:
        self.counts["committed"] += 1
        entry = self._entry(checkpoint.id)
        if entry is not None:
            entry.status, entry.committed_ms = "committed", checkpoint.committed_ms
            entry.phases = checkpoint.phases

    def failed(self, pending: PendingCheckpoint, reason: FailureReason) -> None:
        self.counts["failed"] += 1
        self.counts["in progress"] -= 1
        self.failures[reason] += 1
        entry = self._entry(pending.id)
        if entry is not None:
            entry.status, entry.failure = "failed", reason
            self.latest_failed = entry

    def late(self, checkpoint_id: int) -> None:
        self.late_ids.add(checkpoint_id)

    def restored(self, checkpoint: CompletedCheckpoint) -> None:
        self.counts["restored"] += 1
        self.latest_restored = checkpoint

    def _entry(self, checkpoint_id: int) -> CheckpointEntry | None:
        return next((entry for entry in reversed(self._history) if entry.id == checkpoint_id), None)


def _summarise(values: list[float]) -> dict[str, float]:
    last = len(values) - 1
    return {
        "min": values[0],
        "avg": sum(values) / len(values),
        "p50": values[round(last * 0.5)],
        "p99": values[round(last * 0.99)],
        "max": values[-1],
    }
