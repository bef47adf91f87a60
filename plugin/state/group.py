"""Runs a function for one key group and one epoch: stored bytes and elements in, rows and stored bytes out."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from lockstep.errors import LockstepError, StateMigrationError
from lockstep.state.blob import readable
from lockstep.state.context import Context, OpenContext
from lockstep.state.declarations import Binding, State
from lockstep.state.elements import frame_of_rows, keys_of_frame, rows_of_frame
from lockstep.state.failure import operator_error, shown
from lockstep.state.function import (
    LIST_CHECKPOINTED,
    KeyedProcessFunction,
    list_checkpointed,
    overrides,
    require_function,
    states_of,
)
from lockstep.state.keyed_state import KeyedState
from lockstep.state.operator_spec import OperatorSpec
from lockstep.state.operator_state import OperatorListState, UnionListState
from lockstep.state.output import DroppedOutput, Output, OutputMismatchError
from lockstep.state.row import Row, row_type
from lockstep.state.snapshot import GROUPS, KEY_NAMES, UID, StoredGroup, encode_group, glance, peek, union_part
from lockstep.state.timers import TimeDomain

__all__ = ["GroupInput", "GroupOutput", "GroupRun", "GroupRuntime", "peek", "union_part"]

CHUNK = (
    4_096  # elements whose rows are kept as Python objects: few enough that the garbage collector is not busy with them
)
MOST_FIRINGS = 1_000_000  # of timers, in one run


@dataclass(frozen=True)
class GroupInput:
    """What one key group gets in one epoch.

    Elements come as ``elements`` (rows of the operator's input) with their ``keys`` side by side, or as ``frame``: a pandas
    frame or Arrow table that has the input's columns, from which the keys are taken unless they are given.
    A key is a scalar for one key column and a tuple or :class:`Row` for several.

    ``union`` is given in the first epoch after a start: of every other group, in the order of their numbers, what
    :func:`union_part` made of its bytes.
    """

    key_group: int
    epoch: int
    processing_time: int
    watermark: int | None = None
    keys: Sequence[Any] | None = None
    elements: Sequence[Row] = ()
    frame: Any = None
    broadcast: Sequence[Row] = ()
    union: Sequence[bytes] | None = None
    in_query: bool = True  # else state is made outside of one: no timer fires, and what is emitted is dropped

    @property
    def has_work(self) -> bool:
        """Whether there is anything but time."""
        return bool(
            len(self.elements)
            or len(self.broadcast)
            or self.union is not None
            or (self.frame is not None and len(self.frame))
        )


@dataclass(frozen=True)
class GroupOutput:
    """What one key group gives in one epoch."""

    batches: list[pa.RecordBatch] = field(default_factory=list)  # of the operator's output schema, in order of emission
    blob: bytes | None = None  # to store; None: what is stored stays; empty: nothing is left, remove what is stored
    size: int = 0  # of what is stored from now on
    next_processing: int | None = None  # the group's first timers
    next_event: int | None = None
    keys: int = 0  # that have state or timers

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)


class GroupRuntime:
    """Runs one operator's function; made once per process, used for all its key groups, one after the other."""

    def __init__(self, spec: OperatorSpec, function: KeyedProcessFunction) -> None:
        require_function(function, spec.uid, spec.broadcast is not None)
        self.spec = spec
        self.function = function
        self.states = states_of(function)
        self.key_type = spec.key_type()
        self.owner = {UID: spec.uid, KEY_NAMES: json.dumps(spec.key.names), GROUPS: str(spec.max_parallelism)}
        self.by_batch = overrides(function, "process_batch")
        self.takes_timers = overrides(function, "on_timer")

    def open(self) -> None:
        """Before the first run."""
        try:
            self.function.open(OpenContext(self.spec.uid, self.spec.max_parallelism))
        except Exception as error:
            raise operator_error(self.spec.uid, "open", error) from error

    def close(self) -> None:
        """After the last run."""
        try:
            self.function.close()
        except Exception as error:
            raise operator_error(self.spec.uid, "close", error) from error

    def run(self, blob: bytes | None, given: GroupInput) -> GroupOutput:
        """One epoch of one key group. The same arguments give the same result.

        When there is nothing to do but to find that no timer is due, nothing is decoded and no hook is called.
        """
        if not given.has_work:
            seen = glance(blob, f"operator {self.spec.uid!r}, key group {given.key_group}")
            if not seen.due(given.processing_time, given.watermark):
                size = len(blob) if blob else 0
                return GroupOutput([], None, size, seen.next_processing, seen.next_event, seen.keys)
        return self.load(blob, given).execute()

    def load(self, blob: bytes | None, given: GroupInput) -> GroupRun:
        """The group with its state, before any hook has run."""
        return GroupRun(self, blob or None, given)


class GroupRun:
    """One run: a copy of the function with bound states, timers, and a context."""

    def __init__(self, runtime: GroupRuntime, blob: bytes | None, given: GroupInput) -> None:
        self.runtime = runtime
        self.given = given
        self._size = len(blob) if blob else 0
        self._hook = "initialize_state"
        self._fired = 0
        self._epoch_keys: set[Any] | None = None
        self.output = Output(runtime.spec.output) if given.in_query else DroppedOutput(runtime.spec.output)
        where = f"operator {runtime.spec.uid!r}, key group {given.key_group}"
        stored = StoredGroup() if blob is None else StoredGroup.decode(blob, where)
        if stored.groups not in (None, str(runtime.spec.max_parallelism)):
            raise StateMigrationError(
                f"The state of {where} is one of {stored.groups} key groups, but max_parallelism is now "
                f"{runtime.spec.max_parallelism}: keys would be looked for in other groups. Set it back."
            )
        if stored.uid not in (None, runtime.spec.uid):
            raise StateMigrationError(
                f"The state found for {where} was written by operator {stored.uid!r}: the query's operators have changed "
                "places, or one was added or removed. Spark tells them apart by their order alone: put them back."
            )
        with readable(where):
            self.timers = stored.load_timers(runtime.key_type, where)
        self.context = Context(
            uid=runtime.spec.uid,
            max_parallelism=runtime.spec.max_parallelism,
            key_group=given.key_group,
            epoch=given.epoch,
            processing_time=given.processing_time,
            watermark=given.watermark,
            is_restored=blob is not None or bool(given.union),
            key_type=runtime.key_type,
            timers=self.timers,
            takes_timers=runtime.takes_timers,
            unknown=self._unknown,
        )
        binding = Binding(self.context, runtime.key_type, where)
        self.function = copy(runtime.function)
        self.states: dict[str, State] = {}
        for name, (attribute, state) in runtime.states.items():
            with readable(f"{where}, state {name!r}"):
                bound = state.bind(name, binding, stored.take(name, state, where))
            self.states[name] = bound
            if name != LIST_CHECKPOINTED:
                setattr(self.function, attribute, bound)
        self._carried = stored.states
        if given.union is not None:
            self._restore_union(given.union, where)

    def execute(self) -> GroupOutput:
        """All hooks, in the order that :class:`KeyedProcessFunction` promises; the group is loaded already (step 1)."""
        try:
            self._initialize()  # 2.
            self._broadcast()  # 3.
            self._fire_due_timers()  # 4.
            self._process()  # 5.
            self._fire_due_timers()  # 6.
            self._snapshot()  # 7.
        except OutputMismatchError as error:
            raise self._failed(error) from None
        except Exception as error:
            raise self._failed(error) from error
        return self._store()  # 8.

    def _initialize(self) -> None:
        self.function.initialize_state(self.context)
        mixed_in = list_checkpointed(self.function)
        if mixed_in is not None and self.context.is_restored:
            self._hook = "restore_state"
            mixed_in.restore_state(self._list_state().get())

    def _broadcast(self) -> None:
        self._hook = "process_broadcast_element"
        self.context.broadcasting = True
        for row in self.given.broadcast:
            self._emit(self.function.process_broadcast_element(row, self.context))
        self.context.broadcasting = False
        self.output.flush()

    def _fire_due_timers(self) -> None:
        if not self.given.in_query:
            return
        self._hook = "on_timer"
        context, on_timer, rows = self.context, self.function.on_timer, self.output.rows
        event, processing = self.timers[TimeDomain.EVENT_TIME], self.timers[TimeDomain.PROCESSING_TIME]
        now, watermark = context.processing_time, context.watermark
        keys: list[Any] = []
        ends: list[int] = []
        context.enter_keys()
        most = MOST_FIRINGS + len(event) + len(processing)  # a long outage may leave many that are due
        while True:
            timer, context._domain = None, TimeDomain.EVENT_TIME
            if watermark is not None:
                timer = event.pop(watermark)
            if timer is None:
                timer, context._domain = processing.pop(now), TimeDomain.PROCESSING_TIME
            if timer is None:
                break
            self._fired += 1
            time, context.key = timer
            if self._fired > most:
                raise LockstepError(
                    f"more than {most:,} timers fired in one epoch: on_timer registers timers that are due at once. "
                    "Register the next one after ctx.processing_time or ctx.watermark"
                )
            emitted = on_timer(time, context)
            if emitted is not None:
                rows.extend(emitted)
            keys.append(context.key)
            ends.append(len(rows))
        context._domain = None
        context.leave_keys()
        self._flush(keys, ends)

    def _process(self) -> None:
        if self.runtime.by_batch:
            self._process_batch()
        else:
            self._process_elements()

    def _process_batch(self) -> None:
        given = self.given
        frame = given.frame
        if frame is None and len(given.elements):
            frame = frame_of_rows(given.elements, self.runtime.spec.input)
        if frame is None or not len(frame):
            return
        if isinstance(frame, (pa.Table, pa.RecordBatch)):
            frame = frame.to_pandas()
        self._hook = "process_batch"
        emitted = self.function.process_batch(frame, self.context)
        if emitted is not None:
            self.output.add(emitted)
        self.output.flush()

    def _process_elements(self) -> None:
        self._hook = "process_element"
        keys, elements = self._keys(), self.given.elements
        if self.given.frame is not None:
            elements = rows_of_frame(self.given.frame, self.runtime.spec.input)
        if not len(elements):
            return
        if len(keys) != len(elements):
            raise LockstepError(f"{len(keys)} keys were given for {len(elements)} elements")
        context, process, rows = self.context, self.function.process_element, self.output.rows
        for start in range(0, len(keys), CHUNK):
            chunk = keys[start : start + CHUNK]
            ends: list[int] = []
            extend, note = rows.extend, ends.append
            context.enter_keys()
            for key, row in zip(
                chunk, elements[start : start + CHUNK], strict=True
            ):  # the inner loop: only what must be
                context.key = key
                emitted = process(row, context)
                if emitted is not None:
                    extend(emitted)
                note(len(rows))
            context.leave_keys()
            self._flush(chunk, ends)

    def _snapshot(self) -> None:
        self._hook = "prepare_snapshot"
        self._emit(self.function.prepare_snapshot(self.context))
        self.output.flush()
        self._hook = "snapshot_state"
        mixed_in = list_checkpointed(self.function)
        if mixed_in is None:
            self.function.snapshot_state(self.context)
            return
        state = self._list_state()
        before = repr(state.get())  # unlike ==, repr tells 0.0 from -0.0
        state.update(mixed_in.snapshot_state())
        state.changed = repr(state.get()) != before

    def _store(self) -> GroupOutput:
        keys = len(self.keys())
        processing, event = (self.timers[d] for d in (TimeDomain.PROCESSING_TIME, TimeDomain.EVENT_TIME))
        blob = None
        if any(state.changed for state in self.states.values()) or processing.changed or event.changed:
            blob = encode_group(
                self.states, self.timers, self._carried, self.runtime.key_type, keys, self.runtime.owner
            )
            if not blob and not self._size:
                blob = None  # nothing was stored, and nothing is to be
        size = self._size if blob is None else len(blob)
        return GroupOutput(self.output.batches, blob, size, processing.next(), event.next(), keys)

    def keys(self) -> set[Any]:
        """The keys that have state or timers."""
        found: set[Any] = set()
        for state in self.states.values():
            if isinstance(state, KeyedState):
                found.update(state.keys_with_entries())
        return found.union(*(timers.keys() for timers in self.timers.values()))

    def _keys(self) -> list[Any]:
        """The key of each element."""
        runtime, given = self.runtime, self.given
        if given.keys is None:
            if given.frame is not None:
                return keys_of_frame(given.frame, runtime.spec.key, runtime.key_type)
            positions = [runtime.spec.input.get_field_index(name) for name in runtime.spec.key.names]
            keys: list[Any] = [tuple(tuple.__getitem__(row, i) for i in positions) for row in given.elements]
            if len(positions) == 1:
                keys = [key[0] for key in keys]
        else:
            keys = list(given.keys)
        if len(runtime.spec.key) > 1:
            kind = row_type(runtime.spec.key.names)
            keys = [key if type(key) is kind else kind._make(key) for key in keys]
        return runtime.key_type.canonical(keys)

    def _unknown(self, keys: Collection[Any]) -> list[Any]:
        """Those that may belong to another group: they have no element in this epoch, no state and no timer."""
        if self._epoch_keys is None:
            self._epoch_keys = set(self._keys())
        if self._epoch_keys.issuperset(keys):
            return []
        keyed = [state.keys_with_entries() for state in self.states.values() if isinstance(state, KeyedState)]
        known = (self._epoch_keys, *keyed)
        left = [key for key in keys if not any(key in those for those in known)]
        return [key for key in left if not any(timers.of(key) for timers in self.timers.values())]

    def _emit(self, emitted: Any) -> None:
        if emitted is not None:
            self.output.rows.extend(emitted)

    def _flush(self, keys: Sequence[Any], ends: list[int]) -> None:
        """Checks the gathered rows; ``ends`` says how many there were after each key, to name the key of a bad row."""
        try:
            self.output.flush()
        except OutputMismatchError as error:
            if error.position is not None:
                self.context.enter_keys()
                self.context.key = keys[bisect_right(ends, error.position)]
            raise

    def _list_state(self) -> OperatorListState:
        state = self.states[LIST_CHECKPOINTED]
        if not isinstance(state, OperatorListState):
            raise TypeError(f"{LIST_CHECKPOINTED} is {state!r}")
        return state

    def _restore_union(self, parts: Sequence[bytes], where: str) -> None:
        groups = [StoredGroup.decode(part, where) for part in parts if part]
        for name, state in self.states.items():
            if isinstance(state, UnionListState):
                tables = [group.take(name, state, where) for group in groups]
                with readable(f"{where}, state {name!r}"):
                    state.restore(
                        [v for table in tables if table is not None for v in state.stored_values(table, where)]
                    )

    def _failed(self, error: Exception) -> LockstepError:
        of_key = f" for key {shown(self.context.key)}" if self.context.has_key else ""
        where = f"epoch {self.given.epoch}, key group {self.given.key_group}, in {self._hook}{of_key}"
        return operator_error(self.runtime.spec.uid, where, error)
