"""Keyed and operator state, timers, and the function that uses them: Flink's KeyedProcessFunction, in Python.

Nothing here knows Spark. An engine hands :class:`lockstep.state.group.GroupRuntime` the stored bytes of a key group and
the epoch's elements, and gets rows and bytes back.
"""

from lockstep.state.collection_state import ListState, MapState
from lockstep.state.context import Context, OpenContext
from lockstep.state.folding_state import AggregateFunction, AggregatingState, ReducingState
from lockstep.state.function import KeyedProcessFunction, ListCheckpointed
from lockstep.state.operator_state import BroadcastState, OperatorListState, RawOperatorState, UnionListState
from lockstep.state.row import Row
from lockstep.state.timers import TimeDomain
from lockstep.state.ttl import Ttl, TtlUpdate
from lockstep.state.value_state import RawKeyedState, ValueState

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "BroadcastState",
    "Context",
    "KeyedProcessFunction",
    "ListCheckpointed",
    "ListState",
    "MapState",
    "OpenContext",
    "OperatorListState",
    "RawKeyedState",
    "RawOperatorState",
    "ReducingState",
    "Row",
    "TimeDomain",
    "Ttl",
    "TtlUpdate",
    "UnionListState",
    "ValueState",
]
