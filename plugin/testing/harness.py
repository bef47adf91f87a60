"""Test a KeyedProcessFunction without Spark: push rows, move the clocks, look at rows, state and timers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pyarrow as pa

from lockstep.config import parse_duration
from lockstep.errors import ConfigurationError
from lockstep.state.blob import pack, unpack
from lockstep.state.codec import codec_of
from lockstep.state.collection_state import MapState
from lockstep.state.ddl import parse_columns
from lockstep.state.declarations import State
from lockstep.state.elements import rows_of_columns
from lockstep.state.function import KeyedProcessFunction
from lockstep.state.group import GroupInput, GroupRun, GroupRuntime
from lockstep.state.keyed_state import KeyedState
from lockstep.state.operator_spec import OperatorSpec, describe, refuse_incompatible
from lockstep.state.operator_state import BroadcastState
from lockstep.state.row import Row
from lockstep.state.timers import TimeDomain


class KeyedHarness:
    """Runs a function as an operator would, with all its keys in one key group.

    Every push, and every move of a clock, is an epoch of its own; ``with harness.epoch():`` makes one of several. At the
    end of each epoch the state really becomes bytes, and the next epoch really reads them, so what a test sees is what
    is there after a restart. An epoch that fails leaves the state as it was before.

    Parameters
    ----------
    function
        What is tested.
    key
        The key column, or several.
    input, output, broadcast
        The columns of elements, of emitted rows and of broadcast rows, as DDL.
    processing_time, watermark
        Where the clocks start, in milliseconds since 1970. Without a watermark there are no event-time timers.

    Examples
    --------
    >>> harness = KeyedHarness(RunningTotal(), key="account", input="account string, amount bigint",
    ...                        output="account string, total bigint")  # doctest: +SKIP
    >>> harness.push(("a", 1), ("b", 5), ("a", 2))  # doctest: +SKIP
    >>> harness.take_output()  # doctest: +SKIP
    [Row(account='a', total=1), Row(account='b', total=5), Row(account='a', total=3)]
    """

    def __init__(
        self,
        function: KeyedProcessFunction,
        *,
        key: str | Sequence[str],
        input: str,
        output: str,
        broadcast: str | None = None,
        uid: str = "test",
        processing_time: int = 0,
        watermark: int | None = None,
    ) -> None:
        columns = parse_columns(input)
        names = [key] if isinstance(key, str) else list(key)
        for name in names:
            if name not in columns.names:
                raise ConfigurationError(f"key={name!r} is no column of the input: {', '.join(columns.names)}.")
        self._spec = OperatorSpec(
            uid=uid,
            key=pa.schema([columns.field(name) for name in names]),
            input=columns,
            output=parse_columns(output),
            broadcast=None if broadcast is None else parse_columns(broadcast),
            max_parallelism=1,
        )
        self.output: list[Row] = []
        self.processing_time = processing_time
        self.watermark = watermark
        self.blob: bytes | None = None  # the key group's stored state
        self.next_epoch = 0
        self._pushed: list[Row] = []
        self._broadcast: list[Row] = []
        self._in_epoch = False
        self._start(function)

    def push(self, *rows: Any) -> None:
        """Elements, each a tuple, dict or Row of the input's columns."""
        self._pushed += self._checked(rows, self._spec.input)
        self._run_unless_open()

    def push_broadcast(self, *rows: Any) -> None:
        """Rows of the broadcast stream. In one epoch they come before its elements."""
        if self._spec.broadcast is None:
            raise ConfigurationError('The harness has no broadcast stream: give its columns, broadcast="...".')
        self._broadcast += self._checked(rows, self._spec.broadcast)
        self._run_unless_open()

    def advance_processing_time(self, by: int | timedelta | str) -> None:
        """Moves the clock on by milliseconds, a timedelta, or text such as ``"1 h"``. Due timers fire."""
        duration = parse_duration(by) if isinstance(by, str) else by
        self.processing_time += duration if isinstance(duration, int) else duration // timedelta(milliseconds=1)
        self._run_unless_open()

    def advance_watermark(self, to: int) -> None:
        """Moves the watermark to a time in milliseconds since 1970. Due timers fire. A watermark never goes back."""
        if self.watermark is not None and to < self.watermark:
            raise ConfigurationError(f"The watermark is at {self.watermark} and can't go back to {to}.")
        self.watermark = to
        self._run_unless_open()

    @contextmanager
    def epoch(self) -> Iterator[None]:
        """What is pushed inside belongs to one epoch, which runs at the end, at the times that the clocks then show."""
        if self._in_epoch:
            raise ConfigurationError("An epoch is open already: epochs come one after the other.")
        self._in_epoch = True
        try:
            yield
        except BaseException:
            self._pushed, self._broadcast = [], []
            raise
        finally:
            self._in_epoch = False
        self.end_epoch()

    def end_epoch(self) -> None:
        """Runs an epoch with what was pushed; with nothing pushed, only due timers fire."""
        pushed, self._pushed = self._pushed, []
        broadcast, self._broadcast = self._broadcast, []
        given = GroupInput(
            key_group=0,
            epoch=self.next_epoch,
            processing_time=self.processing_time,
            watermark=self.watermark,
            elements=pushed,
            broadcast=broadcast,
        )
        result = self._runtime.run(self.blob, given)
        self.next_epoch += 1
        if result.blob is not None:
            self.blob = result.blob or None
        for batch in result.batches:
            self.output += rows_of_columns(batch.columns, self._spec.output)

    def take_output(self) -> list[Row]:
        """What was emitted since it was last taken."""
        taken, self.output = self.output, []
        return taken

    def state(self, name: str, key: Any = None) -> Any:
        """What a state holds, for a key if it is keyed: a value, a list, a dict, or the result of a fold."""
        run = self._loaded()
        state = run.states.get(name)
        if state is None:
            raise ConfigurationError(f"There is no state {name!r}; there are {', '.join(run.states) or 'none'}.")
        if isinstance(state, KeyedState):
            run.context.enter_keys()
            run.context.key = self._runtime.key_type.check(key)
        return _content(state)

    def keys(self) -> list[Any]:
        """The keys that have state or timers, in order."""
        return sorted(self._loaded().keys(), key=self._runtime.key_type.rank)

    def timers(self, key: Any) -> list[tuple[TimeDomain, int]]:
        """The timers of a key: their domains and times, those of event time first."""
        timers = self._loaded().timers
        checked = self._runtime.key_type.check(key)
        return [(domain, time) for domain in TimeDomain for time in timers[domain].of(checked)]

    def snapshot(self) -> bytes:
        """All that is stored, with the clocks."""
        about = {
            "epoch": self.next_epoch,
            "processing_time": self.processing_time,
            "watermark": self.watermark,
            "description": describe(self._runtime.function, self._spec),
        }
        return pack({"harness": json.dumps(about)}, {"state": pa.array([self.blob], pa.binary())})

    def restored(self, function: KeyedProcessFunction, snapshot: bytes | None = None) -> KeyedHarness:
        """Another harness of the same columns, with this or another function, that continues from a snapshot.

        Without one, from where this harness is now. Refused like a real restart when the function's state does not fit.
        """
        metadata, tables = unpack(self.snapshot() if snapshot is None else snapshot, "a snapshot of a harness")
        about = json.loads(metadata["harness"])
        refuse_incompatible(about["description"], describe(function, self._spec))
        other = KeyedHarness.__new__(KeyedHarness)
        other._spec = self._spec
        other.output, other._pushed, other._broadcast, other._in_epoch = [], [], [], False
        other.processing_time, other.watermark = about["processing_time"], about["watermark"]
        other.next_epoch = about["epoch"]
        (other.blob,) = tables["state"].to_pylist()
        other._start(function)
        return other

    def close(self) -> None:
        """Closes the function, as the end of a query does."""
        self._runtime.close()

    def _start(self, function: KeyedProcessFunction) -> None:
        self._runtime = GroupRuntime(self._spec, function)
        self._runtime.open()

    def _run_unless_open(self) -> None:
        if not self._in_epoch:
            self.end_epoch()

    def _loaded(self) -> GroupRun:
        return self._runtime.load(self.blob, GroupInput(0, self.next_epoch, self.processing_time, self.watermark))

    @staticmethod
    def _checked(rows: Sequence[Any], schema: pa.Schema) -> list[Row]:
        check = codec_of(pa.struct(list(schema))).check
        return [check(row) for row in rows]


def _content(state: State) -> Any:
    if isinstance(state, (MapState, BroadcastState)):
        return dict(state.items())
    reader = getattr(state, "value", None) or getattr(state, "get")  # noqa: B009 - every other state has one of them
    return reader()
