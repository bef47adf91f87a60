"""A checkpoint directory, a clock, a sink and Spark's logs in memory, to test sinks and the protocol without a JVM.

All of them outlive a "crash": make new protocol objects on the same ones, and it is a restart.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from lockstep.protocol.storage import no_such_file
from lockstep.sinks.two_phase import Attempt, CommitOutcome, Handle, PreparedEpoch, TwoPhaseCommitSink

Operation = Literal["write", "create", "delete"]


class MemoryStorage:
    """A :class:`~lockstep.protocol.storage.Storage` in a dict, whose changes can be made to fail.

    ``another()`` is the same directory seen by another process: it shares the files, not the injected failures.
    """

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files = {} if files is None else files
        self._lock = threading.Lock()
        self._faults: list[_Fault] = []

    def another(self) -> MemoryStorage:
        copy = MemoryStorage(self.files)
        copy._lock = self._lock
        return copy

    def fail(
        self,
        operation: Operation,
        nth: int = 1,
        *,
        after: bool = False,
        path: str = "",
        error: BaseException | None = None,
    ) -> None:
        """Let the ``nth`` such call from now on raise, before or ``after`` it has taken effect: ``OSError``, or ``error``.

        Only calls whose path contains ``path`` count.
        """
        problem = f"injected: {operation} failed {'after' if after else 'before'} it took effect"
        self._faults.append(_Fault(operation, nth, after, path, error or OSError(problem)))

    def describe(self) -> str:
        return "memory:/checkpoint"

    def read(self, path: str) -> bytes | None:
        found = self.files.get(_clean(path))
        if found is None and _below(self.files, path):
            raise no_such_file(f"{self.describe()}/{path}", None)
        return found

    def write(self, path: str, data: bytes) -> None:
        with _Failing(self._faults, "write", path), self._lock:
            self.files[_clean(path)] = bytes(data)

    def create(self, path: str, data: bytes) -> bool:
        with _Failing(self._faults, "create", path), self._lock:
            if _clean(path) in self.files:
                return False
            self.files[_clean(path)] = bytes(data)
            return True

    def exists(self, path: str) -> bool:
        return _clean(path) in self.files or bool(_below(self.files, path))

    def list(self, path: str) -> list[str]:
        prefix = _prefix(path)
        return sorted({file[len(prefix) :].split("/")[0] for file in _below(self.files, path)})

    def delete(self, path: str) -> None:
        with _Failing(self._faults, "delete", path), self._lock:
            for file in [_clean(path), *_below(self.files, path)]:
                self.files.pop(file, None)


def _clean(path: str) -> str:
    return path.strip("/")


def _prefix(path: str) -> str:
    return f"{_clean(path)}/" if _clean(path) else ""


def _below(files: Iterable[str], path: str) -> list[str]:
    prefix = _prefix(path)
    return [file for file in tuple(files) if file.startswith(prefix)]


@dataclass
class _Fault:
    operation: Operation
    nth: int
    after: bool
    path: str
    error: BaseException


class _Failing:
    """Raises what was injected for one call: on entry, or on leaving."""

    def __init__(self, faults: list[_Fault], operation: Operation, path: str) -> None:
        self._faults, self._operation, self._path = faults, operation, path
        self._due: _Fault | None = None

    def __enter__(self) -> None:
        for fault in [f for f in self._faults if f.operation == self._operation and f.path in self._path]:
            fault.nth -= 1
            if fault.nth == 0:
                self._faults.remove(fault)
                self._due = fault
        if self._due is not None and not self._due.after:
            raise self._due.error

    def __exit__(self, *exc_info: object) -> None:
        if self._due is not None and self._due.after:
            raise self._due.error


class ManualClock:
    """A :class:`~lockstep.protocol.clock.Clock` that moves only when told to."""

    def __init__(self, millis: int = 1_700_000_000_000) -> None:
        self._millis = millis
        self._seconds = 1000.0

    def epoch_millis(self) -> int:
        return self._millis

    def monotonic(self) -> float:
        return self._seconds

    def advance(self, seconds: float) -> None:
        self._seconds += seconds
        self._millis += round(seconds * 1000)


class SimulatedSparkLog:
    """Writes ``offsets/N`` and ``commits/N`` as Spark 4 does, by Spark's rules."""

    def __init__(self, storage: MemoryStorage) -> None:
        self._storage = storage

    def next_epoch(self) -> int:
        """The epoch that a starting query runs: the last planned one again unless it is decided, else the next."""
        planned, decided = self._highest("offsets"), self._highest("commits")
        return planned + 1 if planned <= decided else planned

    def plan(self, epoch: int, *positions: str | None, timestamp_ms: int = 1_700_000_000_000) -> None:
        """Lay down the barrier of an epoch. A repeated epoch keeps the one it has."""
        metadata = {
            "batchWatermarkMs": 0,
            "batchTimestampMs": timestamp_ms,
            "conf": {"spark.sql.shuffle.partitions": "200"},
        }
        lines = ["v1", json.dumps(metadata, separators=(",", ":")), *("-" if p is None else p for p in positions)]
        self._storage.create(f"offsets/{epoch}", "\n".join(lines).encode())

    def decide(self, epoch: int) -> None:
        """Write the commit log entry; raises, as Spark does, when another query has written it."""
        if not self._storage.create(f"commits/{epoch}", b'v1\n{"nextBatchWatermarkMs":0}'):
            raise RuntimeError(f"Concurrent update to the log. Multiple streaming jobs detected for {epoch}.")

    def purge(self, retain: int) -> None:
        """Drop all but the newest ``retain`` entries (``spark.sql.streaming.minBatchesToRetain``)."""
        for directory in ("offsets", "commits"):
            for epoch in sorted(int(name) for name in self._storage.list(directory))[:-retain]:
                self._storage.delete(f"{directory}/{epoch}")

    def _highest(self, directory: str) -> int:
        return max((int(name) for name in self._storage.list(directory)), default=-1)


@dataclass(frozen=True)
class VisibleEpoch:
    """An epoch that readers of a :class:`MemoryTable` see."""

    owner: str  # lineage and uid
    epoch: int
    attempt: str
    staged: str
    rows: tuple[Any, ...]


@dataclass
class MemoryTable:
    """The target of :class:`RecordingSink`: what readers see, and what is staged. Several sinks may share one.

    Like a Delta table it remembers the highest epoch of every writer, and takes nothing at or below it. Change
    ``schema`` to make epochs that were staged before be staged again.
    """

    schema: int = 1
    visible: list[VisibleEpoch] = field(default_factory=list)
    staged: dict[str, list[Any]] = field(default_factory=dict)
    aborted: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    calls: list[tuple[str, int, str]] = field(default_factory=list)  # method, epoch, attempt

    def rows(self) -> list[Any]:
        """All visible rows, in the order in which they became visible."""
        return [row for one in self.visible for row in one.rows]

    def find(self, owner: str, epoch: int) -> VisibleEpoch | None:
        return next((one for one in self.visible if (one.owner, one.epoch) == (owner, epoch)), None)

    def highest(self, owner: str) -> VisibleEpoch | None:
        return max((one for one in self.visible if one.owner == owner), key=lambda one: one.epoch, default=None)


class ContractViolationError(AssertionError):
    """The protocol did to a sink what it must never do."""


@dataclass(frozen=True)
class AfterEffect:
    """Step of a script: the commit takes effect, and then its caller gets ``error``."""

    error: Exception


Step = CommitOutcome | Exception | AfterEffect | None


class RecordingSink(TwoPhaseCommitSink):
    """A sink in memory that checks how it is used. A violation is raised, and kept in ``table.violations``.

    ``script(...)`` says what the next commits do: ``None`` works, a ``CommitOutcome`` is returned or an exception raised
    without effect, :class:`AfterEffect` takes effect and then raises. ``on(method, hook)`` calls ``hook`` once, before
    the next such call takes effect: the place to let another driver run.

    Parameters
    ----------
    in_one_transaction
        Commit several epochs together, as DeltaSink does, instead of one by one.
    names_attempts
        Whether ``ALREADY_DONE`` tells whose rows are there.
    """

    reads_whole_batch = True

    def __init__(
        self,
        table: MemoryTable | None = None,
        uid: str = "sink",
        *,
        in_one_transaction: bool = False,
        names_attempts: bool = True,
        pending_seconds: float | None = None,
    ) -> None:
        self.table = MemoryTable() if table is None else table
        self._uid = uid
        self._together = in_one_transaction
        self._names_attempts = names_attempts
        self._pending_seconds = pending_seconds
        self._open: dict[str, str] = {}  # attempt → where it is in phase 1
        self._script: deque[Step] = deque()
        self._hooks: dict[str, Callable[[], None]] = {}

    def script(self, *steps: Step) -> None:
        self._script.extend(steps)

    def on(self, method: str, hook: Callable[[], None]) -> None:
        self._hooks[method] = hook

    def describe(self) -> str:
        return f"memory table of {self._uid}"

    def max_pending_seconds(self) -> float | None:
        return self._pending_seconds

    # --- phase 1 ----------------------------------------------------------------------------------------------------

    def begin(self, attempt: Attempt) -> Handle:
        self._called("begin", attempt)
        self._require(attempt.id not in self._open, f"attempt {attempt.id} was begun twice")
        self._open[attempt.id] = "begun"
        return {"staged": attempt.id}

    def write(self, handle: Handle, batch: Any) -> None:
        self._hook("write")
        self._require(self._open.get(handle["staged"]) == "begun", f"{handle['staged']}: write without begin")
        self._open[handle["staged"]] = "written"
        self.table.staged[handle["staged"]] = list(batch)

    def pre_commit(self, handle: Handle) -> Handle:
        self._hook("pre_commit")
        self._require(self._open.get(handle["staged"]) == "written", f"{handle['staged']}: pre_commit without write")
        self._open[handle["staged"]] = "prepared"
        rows = len(self.table.staged[handle["staged"]])
        return {**handle, "schema": self.table.schema, "metrics": {"rows": rows, "bytes": rows * 8}}

    def abort(self, attempt: Attempt, handle: Handle) -> None:
        self._called("abort", attempt)
        seen = next((one for one in self.table.visible if one.staged == handle["staged"]), None)
        self._require(seen is None, f"epoch {attempt.epoch}: visible rows of {handle['staged']} were aborted")
        if self.table.staged.pop(handle["staged"], None) is not None:
            self.table.aborted.append(handle["staged"])

    # --- phase 2 ----------------------------------------------------------------------------------------------------

    def refresh(self, prepared: PreparedEpoch) -> Handle | None:
        self._called("refresh", prepared.attempt)
        highest = self.table.highest(self._owner(prepared))
        if prepared.handle["schema"] == self.table.schema or (highest and highest.epoch >= prepared.epoch):
            return None
        again = f"{prepared.handle['staged']}+{self.table.schema}"
        while again in self.table.staged:
            again += "'"
        self.table.staged[again] = list(self.table.staged[prepared.handle["staged"]])
        return {**prepared.handle, "staged": again, "schema": self.table.schema}

    def commit(self, prepared: PreparedEpoch) -> CommitOutcome:
        self._called("commit", prepared.attempt)
        return self._scripted([prepared])

    def commit_many(self, prepared: Sequence[PreparedEpoch]) -> CommitOutcome:
        epochs = [one.epoch for one in prepared]
        self._require(bool(epochs) and epochs == sorted(set(epochs)), f"epochs out of order: {epochs}")
        if not self._together:
            return super().commit_many(prepared)
        for one in prepared:
            self._called("commit", one.attempt)
        return self._scripted(prepared)

    def recover_and_commit(self, prepared: Sequence[PreparedEpoch]) -> CommitOutcome:
        for one in prepared:
            self._called("recover_and_commit", one.attempt)
        return super().recover_and_commit(prepared)

    def recover_and_abort(self, attempt: Attempt, handle: Handle) -> None:
        self._called("recover_and_abort", attempt)
        super().recover_and_abort(attempt, handle)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _scripted(self, prepared: Sequence[PreparedEpoch]) -> CommitOutcome:
        step = self._script.popleft() if self._script else None
        if isinstance(step, Exception):
            raise step
        if isinstance(step, CommitOutcome):
            return step
        outcome = self._commit(prepared)
        if step is not None:
            raise step.error
        return outcome

    def _commit(self, prepared: Sequence[PreparedEpoch]) -> CommitOutcome:
        owner, last = self._owner(prepared[-1]), self.table.highest(self._owner(prepared[-1]))
        for one in prepared:
            if last is not None and one.epoch < last.epoch and self.table.find(owner, one.epoch) is None:
                self._require(False, f"epoch {one.epoch} comes after epoch {last.epoch}, and is lost")
        todo = [one for one in prepared if last is None or one.epoch > last.epoch]
        if not todo:
            by = self.table.find(owner, prepared[-1].epoch) if self._names_attempts else None
            return CommitOutcome.already_done(by_attempt=by.attempt if by else None)
        if any(one.handle["schema"] != self.table.schema for one in todo):
            return CommitOutcome.retry("the table has changed")
        for one in todo:
            self._require(json.loads(json.dumps(one.handle)) == one.handle, f"epoch {one.epoch}: handle isn't JSON")
            name = str(one.handle["staged"])
            self._require(name in self.table.staged, f"epoch {one.epoch}: {name} isn't staged (any more)")
            rows = tuple(self.table.staged[name])
            self.table.visible.append(VisibleEpoch(owner, one.epoch, one.attempt.id, name, rows))
        return CommitOutcome.done(version=len(self.table.visible))

    def _owner(self, prepared: PreparedEpoch) -> str:
        return f"{prepared.attempt.lineage}/{self._uid}"

    def _called(self, method: str, attempt: Attempt) -> None:
        self._hook(method)
        self.table.calls.append((method, attempt.epoch, attempt.id))

    def _hook(self, method: str) -> None:
        hook = self._hooks.pop(method, None)
        if hook is not None:
            hook()

    def _require(self, kept: bool, promise: str) -> None:
        if not kept:
            self.table.violations.append(promise)
            raise ContractViolationError(promise)


def staged_but_invisible(tables: Iterable[MemoryTable]) -> Mapping[str, list[Any]]:
    """What is staged in the tables and not visible: after a clean stop, nothing should be."""
    seen = {one.staged for table in tables for one in table.visible}
    return {name: rows for table in tables for name, rows in table.staged.items() if name not in seen}
