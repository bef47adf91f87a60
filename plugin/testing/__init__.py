"""Test your own sinks, functions and whole pipelines, against crashes too: in memory, with failpoints, without Spark."""

from lockstep.testing import failpoints
from lockstep.testing.contract import SinkContract
from lockstep.testing.harness import KeyedHarness
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
    "KeyedHarness",
    "ManualClock",
    "MemoryStorage",
    "MemoryTable",
    "RecordingSink",
    "SimulatedSparkLog",
    "SinkContract",
    "VisibleEpoch",
    "failpoints",
    "staged_but_invisible",
]
