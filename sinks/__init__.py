"""Where rows go: the two-phase-commit contract, and the sinks that keep it."""

from lockstep.sinks.delta import DeltaSink
from lockstep.sinks.two_phase import (
    Attempt,
    CommitOutcome,
    CommitStatus,
    Handle,
    PreparedEpoch,
    SinkContext,
    TwoPhaseCommitSink,
)

__all__ = [
    "Attempt",
    "CommitOutcome",
    "CommitStatus",
    "DeltaSink",
    "Handle",
    "PreparedEpoch",
    "SinkContext",
    "TwoPhaseCommitSink",
]
