"""Everything that a driver does and others can see, as steps: the places where it may crash, pause, or meet a fault.

A driver under simulation is an :class:`Actor`. Its storage and its sinks pass every access through it; the actor asks the
director what happens there. A step that changes something has two sides: a crash at it leaves nothing of it behind, a
crash at the next one leaves all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Protocol, TypeVar

from lockstep.protocol import failpoint
from lockstep.sinks.two_phase import Attempt, CommitOutcome, Handle, PreparedEpoch
from lockstep.testing import ContractViolationError, MemoryStorage, MemoryTable, RecordingSink
from unit_tests.simulation.invariants import BrokenError
from unit_tests.simulation.story import Line
from unit_tests.simulation.world import Crash, World

T = TypeVar("T")
STORAGE_VERBS = ("stores", "creates", "deletes")


class Fault(Enum):
    """What goes wrong with a change of the storage, or with phase 1 of a sink."""

    BEFORE = "fails, without effect"
    AFTER = "fails, though it has taken effect"
    LATE = "fails, and takes effect later"  # storage alone


class Outcome(Enum):
    """What becomes of a sink's commit."""

    DONE = "done"
    ALREADY_DONE = "already done, by an earlier call that nobody heard back from"
    RETRY = "not now, retry"
    UNKNOWN_BEFORE = "unknown, and it had no effect"
    UNKNOWN_AFTER = "unknown, and it took effect"


class News(Enum):
    """How a driver's committer hears that Spark has decided an epoch."""

    ON_TIME = "at once"
    TWICE = "twice"
    MID_EPOCH = "while the next epoch is written"
    NEXT_EPOCH = "with the next epoch"
    NEVER = "never: the next start finds it"


class Director(Protocol):
    """Decides what happens at every step."""

    def before(self, actor: Actor, line: Line) -> Fault | None:
        """The step is about to take effect. Raise :class:`Crash` to kill the driver here."""

    def after(self, actor: Actor, line: Line) -> None:
        """The step has taken effect: look whether all is well."""

    def look(self, actor: Actor, line: Line) -> None:
        """The driver reads, or is at a failpoint."""

    def outcome(self, actor: Actor, line: Line) -> Outcome:
        """What becomes of this commit."""

    def news(self, actor: Actor, epoch: int) -> News:
        """How the committer hears of this decision."""

    def tell(self, line: Line) -> None:
        """Something else that the story should have."""


class Actor:
    """One driver, as the director sees it."""

    def __init__(self, number: int, director: Director) -> None:
        self.number = number
        self.dead = False
        self.commits = 0  # of a sink or of the group, since it last looked at the tokens
        self.newest = 0  # the highest token there was when it stored its last record
        self._director = director

    def act(self, verb: str, about: str, effect: Callable[[], T], late: Callable[[], None] | None = None) -> T:
        """A step that changes something."""
        self._breathe()
        line = Line(self.number, verb, about)
        fault = self._director.before(self, line)
        if fault is not None:
            self._director.tell(Line(0, f"  that {fault.value}"))
        if fault is Fault.LATE and late is not None:
            late()
        if fault in (Fault.BEFORE, Fault.LATE):
            raise OSError(f"simulated: {line} {fault.value}")
        try:
            result = effect()
        except ContractViolationError:
            self._director.after(self, line)
            raise
        self._director.after(self, line)
        if fault is Fault.AFTER:
            raise OSError(f"simulated: {line} {fault.value}")
        return result

    def look(self, verb: str, about: str) -> None:
        """A step that changes nothing."""
        self._breathe()
        self._director.look(self, Line(self.number, verb, about))

    def commits_again(self) -> None:
        """A commit is next: since the last one it must have looked whether a newer driver has taken over."""
        if self.commits:
            raise BrokenError(f"driver {self.number} commits twice without a look at the fencing tokens")
        self.commits += 1

    def outcome(self, uid: str, epochs: Sequence[int]) -> Outcome:
        line = Line(self.number, f"asks sink {uid} to commit epoch", ", ".join(map(str, epochs)))
        outcome = self._director.outcome(self, line)
        if outcome is not Outcome.DONE:
            self._director.tell(Line(0, f"  the outcome is {outcome.value}"))
        return outcome

    def news(self, epoch: int) -> News:
        news = self._director.news(self, epoch)
        if news is not News.ON_TIME:
            self._director.tell(Line(self.number, f"hears of the decision on epoch {epoch} {news.value}"))
        return news

    def _breathe(self) -> None:
        if self.dead:
            raise Crash  # clean-up code of a process that is gone


class SteppedStorage(MemoryStorage):
    """One driver's view of the checkpoint directory."""

    def __init__(self, world: World, actor: Actor) -> None:
        super().__init__(world.storage.files)
        self._world, self._actor = world, actor

    def read(self, path: str) -> bytes | None:
        self._actor.look("reads", path)
        return super().read(path)

    def exists(self, path: str) -> bool:
        self._actor.look("looks for", path)
        return super().exists(path)

    def list(self, path: str) -> list[str]:
        self._actor.look("reads", path)
        if path == "lockstep/tokens":
            self._actor.commits = 0
        return super().list(path)

    def write(self, path: str, data: bytes) -> None:
        self._change("stores", "write", path, data, lambda: MemoryStorage.write(self, path, data))
        if path.startswith("lockstep/prepared/"):
            self._actor.newest = max(int(token) for token in MemoryStorage.list(self, "lockstep/tokens"))

    def create(self, path: str, data: bytes) -> bool:
        return self._change("creates", "create", path, data, lambda: MemoryStorage.create(self, path, data))

    def delete(self, path: str) -> None:
        self._change("deletes", "delete", path, b"", lambda: MemoryStorage.delete(self, path))

    def _change(self, verb: str, operation: str, path: str, data: bytes, effect: Callable[[], T]) -> T:
        return self._actor.act(verb, path, effect, late=lambda: self._world.late.append((operation, path, data)))


class SteppedSink(RecordingSink):
    """One driver's sink."""

    def __init__(self, table: MemoryTable, uid: str, actor: Actor, looks: bool, **options: bool) -> None:
        super().__init__(table, uid, **options)
        self._actor = actor
        self._looks = looks  # at the tokens before every commit; early commits do so once for all sinks

    def begin(self, attempt: Attempt) -> Handle:
        return self._actor.act(
            f"begins in sink {self._uid} attempt", attempt.id, lambda: RecordingSink.begin(self, attempt)
        )

    def write(self, handle: Handle, batch: Any) -> None:
        self._actor.act(
            f"writes in sink {self._uid} attempt", handle["staged"], lambda: RecordingSink.write(self, handle, batch)
        )

    def pre_commit(self, handle: Handle) -> Handle:
        return self._actor.act(
            f"pre-commits in sink {self._uid} attempt", handle["staged"], lambda: RecordingSink.pre_commit(self, handle)
        )

    def abort(self, attempt: Attempt, handle: Handle) -> None:
        verb = f"aborts in sink {self._uid}"
        self._actor.act(verb, handle["staged"], lambda: RecordingSink.abort(self, attempt, handle))

    def refresh(self, prepared: PreparedEpoch) -> Handle | None:
        verb = f"looks in sink {self._uid} whether to stage again attempt"
        return self._actor.act(verb, prepared.attempt.id, lambda: RecordingSink.refresh(self, prepared))

    def clean_up(self, is_stray: Callable[[str], bool]) -> None:
        seen = {one.staged for one in self.table.visible}
        for name in [name for name in self.table.staged if name not in seen]:
            if is_stray(name.partition("+")[0]):  # what was staged again is named after what it replaced
                self._actor.act(f"cleans up in sink {self._uid}", name, lambda name=name: self._drop(name))

    def _drop(self, name: str) -> None:
        self.table.staged.pop(name, None)

    def commit_many(self, prepared: Sequence[PreparedEpoch]) -> CommitOutcome:
        if self._looks:
            self._actor.commits_again()
        return super().commit_many(prepared)

    def _scripted(self, prepared: Sequence[PreparedEpoch]) -> CommitOutcome:
        outcome = self._actor.outcome(self._uid, [one.epoch for one in prepared])
        if outcome is Outcome.RETRY:
            return CommitOutcome.retry("simulated: the target is busy")
        if outcome is Outcome.UNKNOWN_BEFORE:
            raise OSError("simulated: the commit had no effect")
        about = ", ".join(one.handle["staged"] for one in prepared)
        result = self._actor.act(f"commits in sink {self._uid}", about, lambda: self._commit(prepared))
        if outcome is Outcome.UNKNOWN_AFTER:
            raise OSError("simulated: the commit took effect")
        return self._commit(prepared) if outcome is Outcome.ALREADY_DONE else result


def watch_failpoints(current: Callable[[], Actor | None]) -> None:
    """Let the protocol's failpoints be steps of the current actor."""

    def reached(point: str) -> None:
        actor = current()
        if actor is not None:
            actor.look("is at", point)

    failpoint.install(reached)
