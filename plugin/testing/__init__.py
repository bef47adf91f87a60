"""Test your own sinks, and whole pipelines, against crashes: everything the protocol needs, in memory, and failpoints."""

from lockstep.testing import failpoints
from lockstep.testing.memory import (
    AfterEffect,
    ContractViolationError,
    ManualClock,
    MemoryStorage,
    MemoryTable,
    RecordingSink,
    SimulatedSparkLog,
    VisibleEpoch,
    staged_but_invisible,
)

__all__ = [
    "AfterEffect",
    "ContractViolationError",
    "ManualClock",
    "MemoryStorage",
    "MemoryTable",
    "RecordingSink",
    "SimulatedSparkLog",
    "VisibleEpoch",
    "failpoints",
    "staged_but_invisible",
]
