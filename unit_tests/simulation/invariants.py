"""What must be true after every step of a schedule, and at its end."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from lockstep.config import CheckpointConfig, CheckpointMode
from lockstep.protocol.checkpoint import CompletedCheckpoint
from lockstep.protocol.prepare_record import PrepareRecord
from lockstep.testing import staged_but_invisible
from unit_tests.simulation.story import thing
from unit_tests.simulation.world import World, rows_of

_FILES = re.compile(
    r"lockstep/(?:checkpoints/chk-(?P<metadata>\d+)/_metadata|prepared/(?P<record>\d+)\..*|tokens/(?P<token>\d+))"
)


class BrokenError(BaseException):
    """An invariant does not hold. No ``except Exception`` of the code under test may hide it."""


class Invariants:
    """Checks one world, step after step. ``alone``: only one driver is at work on it."""

    def __init__(self, world: World, config: CheckpointConfig, alone: bool = False) -> None:
        self._world = world
        self._mode = config.mode
        self._most_pending = config.max_pending_epochs
        self._alone = alone
        self._records: dict[str, PrepareRecord] = {}
        self._choices: dict[str, Mapping[int, str]] = {}  # by metadata file
        self._token = 0
        self._undecided: set[str] = set()  # records that stood in the directory, undecided, after the last step
        self.check()

    def check(self) -> None:
        """Raise :class:`BrokenError` unless everything holds now."""
        world, decided = self._world, self._world.decided()
        for uid, table in world.tables.items():
            if table.violations:
                raise BrokenError(f"sink {uid}: {table.violations[0]}")
            for number, one in enumerate(table.visible):
                if one.epoch != number or list(one.rows) != rows_of(number):
                    raise BrokenError(f"sink {uid} shows {list(one.rows)} where the rows of epoch {number} belong")
            if len(table.visible) - 1 > decided and self._mode is CheckpointMode.EXACTLY_ONCE:
                raise BrokenError(
                    f"sink {uid} shows epoch {len(table.visible) - 1}, and Spark has decided up to {decided}"
                )
        shown = min(len(table.visible) for table in world.tables.values()) - 1
        if world.group and world.group[-1] > shown:
            raise BrokenError(f"the consumer group is at epoch {world.group[-1]}, the slowest sink at {shown}")
        if decided - shown > self._most_pending:
            raise BrokenError(
                f"{decided - shown} decided epochs wait for their commit, not at most {self._most_pending}"
            )
        self._check_directory(decided, shown)

    def _check_directory(self, decided: int, shown: int) -> None:
        token, undecided = 0, set()
        chosen: dict[int, tuple[int, str]] = {}  # by epoch: the newest checkpoint that has chosen, and the attempt
        doubtful: set[int] = set()
        stored: dict[str, PrepareRecord] = {}
        records: dict[int, list[PrepareRecord]] = {}
        choices: dict[str, Mapping[int, str]] = {}
        for path, data in self._world.storage.files.items():
            kind, number = _kind(path)
            if kind == "record":
                stored[path] = _record(data)
                records.setdefault(number, []).append(stored[path])
                if number > decided:
                    undecided.add(path)
            elif kind == "token":
                token = max(token, number)
            elif kind == "metadata":
                attempts = _checkpoint(data).attempts
                doubtful.update(_checkpoint(data).doubtful)
                choices[path] = attempts
                if self._choices.get(path, attempts) != attempts:
                    raise BrokenError(f"checkpoint {number} has chosen other attempts than before")
                for epoch, attempt in attempts.items():
                    chosen[epoch] = max(chosen.get(epoch, (-1, "")), (number, attempt))
        if token < self._token:
            raise BrokenError(f"the highest fencing token went back from {self._token} to {token}")
        lost = [path for path in self._undecided - undecided if path not in self._world.storage.files]
        if lost:
            raise BrokenError(f"{thing(lost[0])} is gone, and was not decided: its driver may yet decide it")
        self._token, self._undecided, self._choices = token, undecided, choices
        if self._alone:
            for path in self._records.keys() - stored.keys():
                lost_one = self._records[path]
                if lost_one.epoch in chosen and lost_one.epoch not in doubtful and not lost_one.committed_early:
                    self._check_aborted(lost_one, chosen[lost_one.epoch][1])
            self._records = stored
        for epoch in range(shown + 1, decided + 1):
            _, attempt = chosen.get(epoch, (-1, None))
            self._check_committable(
                epoch, [r for r in records.get(epoch, ()) if attempt is None or attempt in r.attempt_ids]
            )

    def _check_aborted(self, record: PrepareRecord, chosen: str) -> None:
        """A record that has lost for certain is deleted after its rows."""
        for uid, handle in record.handles.items():
            if chosen not in record.attempt_ids and handle["staged"] in self._world.tables[uid].staged:
                raise BrokenError(f"{record.attempt.id} has lost and its record is gone, but not its rows in {uid}")

    def _check_committable(self, epoch: int, candidates: list[PrepareRecord]) -> None:
        """Whichever attempt the next driver takes, of those that it may take, its rows are there."""
        if not candidates:
            raise BrokenError(f"epoch {epoch} is decided and not visible everywhere, and its record is gone")
        for record in candidates:
            for uid, table in self._world.tables.items():
                if len(table.visible) <= epoch and record.handles[uid]["staged"] not in table.staged:
                    raise BrokenError(
                        f"epoch {epoch} may be committed as {record.attempt.id}, whose rows in {uid} are gone"
                    )

    def check_end(self, last: int) -> None:
        """After a driver has stopped cleanly: everything is visible, nothing waits."""
        self.check()
        for uid, table in self._world.tables.items():
            if len(table.visible) != last + 1:
                raise BrokenError(f"sink {uid} shows epochs up to {len(table.visible) - 1}, not up to {last}")
        if self._world.group[-1:] != [last]:
            raise BrokenError(f"the consumer group ended at {self._world.group[-1:]}, not at epoch {last}")

    def check_tidy(self) -> None:
        """After one more start: no records, and nothing staged."""
        left = [path for path in self._world.storage.files if _kind(path)[0] == "record"]
        if left:
            raise BrokenError(f"everything is committed, and {thing(left[0])} was not retired")
        staged = staged_but_invisible(self._world.tables.values())
        if staged:
            raise BrokenError(f"everything is committed, and {next(iter(staged))} is still staged")


@lru_cache(maxsize=65536)
def _kind(path: str) -> tuple[str, int]:
    found = _FILES.fullmatch(path)
    return (str(found.lastgroup), int(found[str(found.lastgroup)])) if found else ("", 0)


@lru_cache(maxsize=65536)
def _record(data: bytes) -> PrepareRecord:
    return PrepareRecord.decode(data, "the record")


@lru_cache(maxsize=65536)
def _checkpoint(data: bytes) -> CompletedCheckpoint:
    return CompletedCheckpoint.decode(data, "the metadata")
