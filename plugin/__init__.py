"""Flink's checkpointing for Spark Structured Streaming: sources, state and sinks move in lockstep.

One epoch, one barrier, one commit. Start with :func:`configure`, :func:`key_by` and :func:`checkpointed`.
"""

from lockstep.config import CheckpointConfig, CheckpointMode, RetentionPolicy, StateBackend
from lockstep.engine.query import CheckpointedQuery
from lockstep.engine.session import configure
from lockstep.engine.writer import CheckpointedWriter, checkpointed
from lockstep.errors import LockstepError
from lockstep.operators.keyed_stream import KeyedStream, key_by
from lockstep.operators.state_reader import read_state
from lockstep.protocol.checkpoint import CompletedCheckpoint
from lockstep.protocol.coordinator import CheckpointListener
from lockstep.protocol.savepoint import Savepoint
from lockstep.savepoint.create import create_savepoint
from lockstep.savepoint.rewind import plan_rewind, rewind, unfinished_rewind
from lockstep.savepoint.state_writer import SavepointWriter
from lockstep.state import (
    AggregateFunction,
    AggregatingState,
    BroadcastState,
    KeyedProcessFunction,
    ListCheckpointed,
    ListState,
    MapState,
    OperatorListState,
    RawKeyedState,
    RawOperatorState,
    ReducingState,
    Row,
    TimeDomain,
    Ttl,
    TtlUpdate,
    UnionListState,
    ValueState,
)

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "BroadcastState",
    "CheckpointConfig",
    "CheckpointListener",
    "CheckpointMode",
    "CheckpointedQuery",
    "CheckpointedWriter",
    "CompletedCheckpoint",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListCheckpointed",
    "ListState",
    "LockstepError",
    "MapState",
    "OperatorListState",
    "RawKeyedState",
    "RawOperatorState",
    "ReducingState",
    "RetentionPolicy",
    "Row",
    "Savepoint",
    "SavepointWriter",
    "StateBackend",
    "TimeDomain",
    "Ttl",
    "TtlUpdate",
    "UnionListState",
    "ValueState",
    "checkpointed",
    "configure",
    "create_savepoint",
    "key_by",
    "plan_rewind",
    "read_state",
    "rewind",
    "unfinished_rewind",
]
