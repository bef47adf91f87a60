"""Flink's checkpointing for Spark Structured Streaming: sources, state and sinks move in lockstep.

One epoch, one barrier, one commit. Start with :func:`configure` and :func:`checkpointed`.
"""

from lockstep.config import CheckpointConfig, CheckpointMode, RetentionPolicy
from lockstep.engine.query import CheckpointedQuery
from lockstep.engine.session import configure
from lockstep.engine.writer import CheckpointedWriter, checkpointed
from lockstep.errors import LockstepError
from lockstep.protocol.checkpoint import CompletedCheckpoint
from lockstep.protocol.coordinator import CheckpointListener

__all__ = [
    "CheckpointConfig",
    "CheckpointListener",
    "CheckpointMode",
    "CheckpointedQuery",
    "CheckpointedWriter",
    "CompletedCheckpoint",
    "LockstepError",
    "RetentionPolicy",
    "checkpointed",
    "configure",
]
