"""Deliberate mistakes in the protocol, each of which the simulation must notice: ``make mutants``.

A mutant is one small change of one file. It is made in a copy of the package, and the simulation's tests run on the copy.
A mutant that survives shows a hole in the simulation. Changes that only waste space, or that no schedule could tell from
the original, don't belong here.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas  # noqa: F401  the heavy imports, once for all the processes; but nothing of the package
import pyarrow  # noqa: F401
import pyspark.sql  # noqa: F401
import pytest
from rich.console import Console
from rich.markup import escape
from rich.table import Table

ROOT = Path(__file__).parents[1]
FOLDERS = {"plugin": "lockstep", "sinks": "lockstep/sinks", "sources": "lockstep/sources"}
TESTS = ("unit_tests/test_simulation.py", "unit_tests/test_two_drivers.py", "unit_tests/test_clean_up.py")
_PATIENCE = 300  # seconds for the tests of one mutant


@dataclass(frozen=True)
class Mutant:
    """``old`` stands exactly once in ``file``, and is replaced by ``new``."""

    name: str
    breaks: str  # the promise
    file: str  # in plugin/protocol
    old: str
    new: str


EPOCH, COMMITTER, RECORD = "epoch.py", "committer.py", "prepare_record.py"
STORE, FENCING, COORDINATOR = "completed_store.py", "fencing.py", "coordinator.py"

RETIRE = "        self._discard_losers(committed, just_committed=False)\n"
RECORDED = (
    "        recorded = {id for records in self._records.values() for record in records for id in record.attempt_ids}\n"
)
MUTANTS = (
    # --- phase 1 ------------------------------------------------------------------------------------------------------
    Mutant(
        "commit before the decision",
        "nothing is visible that Spark has not decided",
        EPOCH,
        "        if self._config.mode is CheckpointMode.AT_LEAST_ONCE:\n            self._commit_early(record)",
        "        self._commit_early(record)",
    ),
    Mutant(
        "no record",
        "a decided epoch has a record",
        EPOCH,
        "            self._storage.write(record.path, data)  # 5.\n",
        "",
    ),
    Mutant(
        "record that failed is taken for stored",
        "a failure before the record is stored makes Spark run the epoch again",
        EPOCH,
        "            self._storage.write(record.path, data)  # 5.\n",
        "            try:\n"
        "                self._storage.write(record.path, data)\n"
        "            except OSError:\n"
        "                pass\n",
    ),
    Mutant(
        "attempt id used again",
        "no two attempts share an id",
        EPOCH,
        'attempt_id = f"{barrier.epoch}-{self._token.value}-{self._engine.new_id()}"',
        'attempt_id = f"{barrier.epoch}-0-x"',
    ),
    Mutant(
        "no look at the token after the record",
        "a newer driver has read the record, or the epoch is not decided",
        EPOCH,
        '            reach("record.after")\n            self._token.check()\n',
        '            reach("record.after")\n',
    ),
    Mutant(
        "decided epoch is run again",
        "what is decided is committed from its record",
        EPOCH,
        "        self._refuse_decided(epoch)\n",
        "",
    ),
    Mutant(
        "rows of a record that may be stored are aborted",
        "what a stored record names is never aborted before the decision",
        EPOCH,
        "{} if may_be_stored else handles",
        "handles",
    ),
    Mutant(
        "failed attempt is not repeated",
        "nothing undecided returns normally",
        EPOCH,
        "                if failures == self._config.tolerable_failures:\n                    raise\n",
        "                if failures == self._config.tolerable_failures:\n                    break\n",
    ),
    Mutant(
        "no end to pending epochs",
        "an epoch is held back while max_pending_epochs wait for their commit",
        EPOCH,
        "        self._hold_back(epoch)\n",
        "",
    ),
    Mutant(
        "early commit out of order",
        "AT_LEAST_ONCE, too, makes epochs visible in order",
        EPOCH,
        "if prepared is None or visible_to < record.epoch - 1:",
        "if prepared is None:",
    ),
    # --- the record ---------------------------------------------------------------------------------------------------
    Mutant(
        "record named by epoch alone",
        "no driver can destroy another's record",
        RECORD,
        '{self.epoch:012d}.{self.attempt.token}.{self.attempt.id}"',
        '{self.epoch:012d}.0.x"',
    ),
    Mutant(
        "record named by epoch and token",
        "a late write can't destroy the record of the attempt made in its place",
        RECORD,
        '{self.epoch:012d}.{self.attempt.token}.{self.attempt.id}"',
        '{self.epoch:012d}.{self.attempt.token}.x"',
    ),
    Mutant(
        "another attempt takes the chosen one's place",
        "what a stored checkpoint has chosen is what is committed",
        RECORD,
        "chosen_attempt is None or chosen_attempt in r.attempt_ids",
        "True",
    ),
    Mutant(
        "what was staged first is taken, not what was staged again",
        "an epoch is not wedged by a change of its target",
        RECORD,
        "key=lambda record: (record.attempt.token, len(record.replaced))",
        "key=lambda record: (record.attempt.token, -len(record.replaced))",
    ),
    # --- recovery -----------------------------------------------------------------------------------------------------
    Mutant(
        "foreign records are not read at a start",
        "decided epochs of earlier drivers are committed",
        COMMITTER,
        "        self._read_foreign_records()  # before the store",
        "        # before the store",
    ),
    Mutant(
        "recovery takes up the records after the store",
        "an epoch retired in between is seen as committed",
        COMMITTER,
        "        self._store.drop_late()\n        decided",
        "        self._records.clear()\n        self._read_foreign_records()\n"
        "        self._store.drop_late()\n        decided",
    ),
    Mutant(
        "clean-up takes rows that have a record",
        "rows that a record names stay",
        COMMITTER,
        "if found is None or attempt_id in recorded:",
        "if found is None:",
    ),
    Mutant(
        "clean-up takes the rows of newer drivers",
        "rows of an epoch that is being prepared stay",
        COMMITTER,
        "return epoch <= chosen and token < self._token.value",
        "return token != self._token.value",
    ),
    Mutant(
        "clean-up before the choice is stored",
        "rows of a record that lands late stay while it can be chosen",
        COMMITTER,
        "        self._force_checkpoint(decided)\n        self._clean_up(recorded)\n",
        "        for sink in self._sinks.values():\n"
        "            sink.clean_up(lambda id: id not in recorded and int(id.split('-')[0]) <= decided)\n"
        "        self._force_checkpoint(decided)\n",
    ),
    Mutant(
        "late metadata is believed",
        "what a fenced driver stores late chooses nothing",
        STORE,
        "if c.id < committed and not c.committed]",
        "if False]",
    ),
    Mutant(
        "undecided records are dropped at a start",
        "a paused driver may still decide its attempt",
        COMMITTER,
        "        self._discard_losers(committed, just_committed=False)\n",
        "        self._discard_losers(max(committed, decided + 1), just_committed=False)\n",
    ),
    # --- completion ---------------------------------------------------------------------------------------------------
    Mutant(
        "undecided checkpoints complete",
        "only Spark's log decides",
        COORDINATOR,
        "if p.id <= decided and p.state is PendingState.PREPARED]",
        "if p.state is PendingState.PREPARED]",
    ),
    Mutant(
        "metadata is overwritten",
        "of two drivers the first choice counts for both",
        STORE,
        "        if not self._storage.create(_path(checkpoint.id), checkpoint.encode()):\n",
        "        self._storage.write(_path(checkpoint.id), checkpoint.encode())\n        if False:\n",
    ),
    Mutant(
        "own choice is kept though another was stored",
        "of two drivers the first choice counts for both",
        STORE,
        "            checkpoint = stored if stored is not None else checkpoint\n",
        "",
    ),
    Mutant(
        "the newest attempt is chosen afresh at commit",
        "what a stored checkpoint has chosen is what is committed",
        COMMITTER,
        "        chosen = self._store.chosen_attempt(epoch)\n        record = choose",
        "        chosen = None\n        record = choose",
    ),
    # --- commit -------------------------------------------------------------------------------------------------------
    Mutant(
        "no look at the token before a commit",
        "an overtaken driver does not commit",
        COMMITTER,
        "        self._token.check()\n        try:\n            mine = ",
        "        try:\n            mine = ",
    ),
    Mutant(
        "no look at the token before the end of a commit",
        "the group, the metadata and the records belong to the newest driver",
        COMMITTER,
        "        self._token.check()  # the group, the metadata and the records belong to the newest driver\n",
        "",
    ),
    Mutant(
        "retry is taken for done",
        "a commit that has to be repeated is repeated",
        COMMITTER,
        "            if outcome.status is CommitStatus.RETRY:\n",
        "            if False:\n",
    ),
    Mutant(
        "unknown is taken for done",
        "a commit whose outcome is unknown is repeated",
        COMMITTER,
        "            return CommitOutcome.retry(str(error) or repr(error))\n",
        "            return CommitOutcome.done()\n",
    ),
    Mutant(
        "an epoch is skipped",
        "every decided epoch is committed, in order",
        COMMITTER,
        "epochs = list(range(self._store.committed_epoch() + 1, checkpoint.id + 1))",
        "epochs = [checkpoint.id]",
    ),
    Mutant(
        "what an overtaken driver misses is an error",
        "an overtaken driver ends as overtaken, whatever it stumbles over",
        COMMITTER,
        "        if not outcome.committed:\n            self._token.check()",
        "        if not outcome.committed:\n            pass",
    ),
    Mutant(
        "clean-up spares what is left of committed epochs",
        "what was staged and lost is removed by the next start",
        COMMITTER,
        f"{RETIRE}{RECORDED}",
        f"{RECORDED}{RETIRE}",
    ),
    Mutant(
        "epochs in the wrong order",
        "every decided epoch is committed, in order",
        COMMITTER,
        "mine = [record for record in map(self._choose, epochs) if uid in record.handles]",
        "mine = [record for record in map(self._choose, epochs[::-1]) if uid in record.handles]",
    ),
    Mutant(
        "the first sink stands for all",
        "an epoch is visible in every sink before it counts as committed",
        COMMITTER,
        "        if waiting:\n            self._wait",
        "        if len(waiting) == len(self._sinks):\n            self._wait",
    ),
    Mutant(
        "offsets before sinks",
        "the consumer group is never ahead of a table",
        COMMITTER,
        "        failures: list[Exception] = []\n        waiting",
        "        self._offsets.checkpoint_complete(checkpoint.id)\n        failures: list[Exception] = []\n        waiting",
    ),
    Mutant(
        "new attempt is committed before it is recorded",
        "what is staged again is recorded before it is used",
        COMMITTER,
        "        self._storage.write(fresh.path, fresh.encode())\n",
        "",
    ),
    # --- retirement ---------------------------------------------------------------------------------------------------
    Mutant(
        "records are retired before the commit",
        "a decided, uncommitted epoch has its record",
        COMMITTER,
        "            mine = [self._refreshed(uid, sink, record) for record in mine]\n",
        "            mine = [self._refreshed(uid, sink, record) for record in mine]\n"
        "            for record in mine:\n"
        "                self._delete(record)\n",
    ),
    Mutant(
        "records are never retired",
        "the record of a committed epoch is deleted",
        COMMITTER,
        "            self._storage.delete(record.path)\n",
        "            pass\n",
    ),
    Mutant(
        "losers are not aborted",
        "what was staged and lost is removed",
        COMMITTER,
        "                self._sinks[uid].recover_and_abort(record.attempt, handle)\n",
        "                pass\n",
    ),
    Mutant(
        "the winner is aborted",
        "visible rows are never aborted",
        COMMITTER,
        "if winner is not None and h != winner.handles.get(uid)]",
        "if winner is not None]",
    ),
    Mutant(
        "doubt is forgotten",
        "nothing is aborted while it is not sure which attempt is visible",
        COMMITTER,
        "            self._doubtful.update(record.epoch for record in mine)\n",
        "            pass\n",
    ),
    Mutant(
        "committed is noted before the sinks",
        "a checkpoint counts as committed when every sink has it",
        COMMITTER,
        "        failures: list[Exception] = []\n        waiting",
        "        self._store.replace(replace(checkpoint, committed_ms=1))\n        failures: list[Exception] = []\n"
        "        waiting",
    ),
    # --- fencing ------------------------------------------------------------------------------------------------------
    Mutant(
        "tokens are shared",
        "every driver has a token of its own",
        FENCING,
        "            value += 1\n",
        "            break\n",
    ),
    Mutant(
        "the highest token is deleted",
        "tokens only rise",
        FENCING,
        "        for old in taken[:-1]:  # the highest must stay: the next taker counts from it\n",
        "        for old in [*taken, value]:\n",
    ),
)


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant. ``by`` is the invariant, or the test, that noticed it; empty when nothing did."""

    mutant: Mutant | None  # None: the package as it is
    by: str
    test: str
    seconds: float


@contextmanager
def copy_of_the_package() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="lockstep-mutant-") as directory:
        for source, target in FOLDERS.items():
            shutil.copytree(
                ROOT / source, Path(directory, target), ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
            )
        yield Path(directory)


def misplaced(mutants: tuple[Mutant, ...] = MUTANTS) -> list[Mutant]:
    """Mutants whose ``old`` text does not stand exactly once in its file: the list has to follow the code."""
    return [m for m in mutants if (ROOT / "plugin/protocol" / m.file).read_text().count(m.old) != 1]


def judge(mutant: Mutant | None) -> Verdict:
    """Run the simulation's tests, in a process of their own, on a copy of the package with the mutant in it."""
    began = time.monotonic()
    with copy_of_the_package() as package:
        if mutant is not None:
            path = package / "lockstep/protocol" / mutant.file
            path.write_text(path.read_text().replace(mutant.old, mutant.new))
        output = package / "output"
        process = multiprocessing.get_context("fork").Process(target=_run_tests, args=(package, output))
        process.start()
        process.join(_PATIENCE)
        stuck = process.exitcode is None
        if stuck:
            process.kill()
            process.join()
        text = output.read_text()
    seconds = time.monotonic() - began
    if stuck:
        return Verdict(mutant, f"it does not end within {_PATIENCE} s", "", seconds)
    test, by = _reason(text) if process.exitcode else ("", "")
    return Verdict(mutant, by, test, seconds)


def _run_tests(package: Path, output: Path) -> None:
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(ROOT)
    sys.path.insert(0, str(package))
    code = pytest.main([*TESTS, "-x", "-q", "-p", "no:cacheprovider"])
    where = Path(sys.modules["lockstep"].__file__ or "").parents[1]
    os._exit(int(code) if where == package else 99)


def _reason(output: str) -> tuple[str, str]:
    test = re.search(r"^FAILED \S+::(\w+)", output, re.MULTILINE)
    broken = re.search(r"BROKEN: (.*)", output) or re.search(r"^E +(.*)", output, re.MULTILINE)
    return (test[1] if test else "", broken[1].strip() if broken else output[-200:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="only mutants whose name contains one of these")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    arguments = parser.parse_args()
    screen = Console(width=None if sys.stdout.isatty() else 160)
    wanted = [m for m in MUTANTS if not arguments.names or any(name in m.name for name in arguments.names)]
    if lost := misplaced():
        for mutant in lost:
            screen.print(
                f"[red]{mutant.name}[/]: its text does not stand exactly once in plugin/protocol/{mutant.file}"
            )
        return 1
    sound = judge(None)
    if sound.by:
        screen.print(f"[red]The package as it is fails[/] {sound.test}: {sound.by}")
        return 1
    screen.print(f"The package as it is passes, in {sound.seconds:.0f} s.")
    table = Table("mutant", "breaks the promise that", "noticed as", "by test", "s", title=f"{len(wanted)} mutants")
    verdicts = []
    with ThreadPoolExecutor(arguments.workers) as pool:
        for mutant, verdict in zip(wanted, pool.map(judge, wanted), strict=True):
            verdicts.append(verdict)
            noticed = escape(verdict.by) if verdict.by else "[red]by nothing: it SURVIVES[/]"
            screen.print(f"{len(verdicts):>3}/{len(wanted)} {mutant.name}: {noticed}")
            table.add_row(mutant.name, mutant.breaks, noticed, verdict.test, f"{verdict.seconds:.0f}")
    screen.print(table)
    survivors = [verdict for verdict in verdicts if not verdict.by]
    screen.print(f"{len(verdicts) - len(survivors)} of {len(verdicts)} noticed.")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
