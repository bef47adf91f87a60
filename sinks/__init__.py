"""Where rows go: the two-phase-commit contract, and the sinks that keep it."""

from lockstep.sinks.delta import DeltaSink
from lockstep.sinks.file_reader import committed_files, read_files
from lockstep.sinks.files import FileSink
from lockstep.sinks.jdbc import JdbcSink
from lockstep.sinks.kafka import DeliveryGuarantee, KafkaSink
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
    "DeliveryGuarantee",
    "DeltaSink",
    "FileSink",
    "Handle",
    "JdbcSink",
    "KafkaSink",
    "PreparedEpoch",
    "SinkContext",
    "TwoPhaseCommitSink",
    "committed_files",
    "read_files",
]
