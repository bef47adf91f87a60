"""A conformance suite for sinks: subclass :class:`SinkContract`, say how to make and read yours, run pytest.

The suite plays coordinator and committer: it calls the sink as a query would, kills processes, pauses drivers, reads all
the time, and looks at what a reader sees. It needs Spark, and whatever your sink writes to: use the real thing.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.errors import CheckpointDirectoryError, FencedError
from lockstep.sinks.two_phase import (
    Attempt,
    CommitOutcome,
    CommitStatus,
    PreparedEpoch,
    SinkContext,
    TwoPhaseCommitSink,
)
from lockstep.testing.temporary import environment_with_temporary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PER_EPOCH = 1_000_000  # ids of epoch n start at n times this
_RETRY_SECONDS = 60.0
_CHILD_SECONDS = 180.0


class SinkContract:
    """What every sink must promise, as tests.

    Subclass it in a test module under a name that pytest collects (``TestMySink``), and give three methods:

    * ``new_target`` makes a place that nobody has used and returns its address as plain JSON;
    * ``make_sink`` makes a sink for a target. It is called in other processes too, without fixtures: everything that it
      needs must be in the target;
    * ``read`` returns the column ``id`` of every row that a reader sees now, in the reader's order. Read with a client that
      knows nothing of your sink, and only what is committed.

    The rows have the columns ``id long, epoch long, text string``.

    Where a sink deliberately promises less, say so with the class attributes below; each should be in its docs, too.
    """

    whole_epochs = True
    """A reader sees an epoch whole or not at all."""
    in_order = False
    """The reader's order is the order of the epochs, and within one, of its rows."""
    knows_old_copies = True
    """``open`` refuses a checkpoint directory that is older than the target."""
    huge_rows = 50_000
    """Rows of the huge epoch."""

    def new_target(self) -> Any:
        raise NotImplementedError("SinkContract.new_target: make an empty place for rows, return its address")

    def make_sink(self, target: Any) -> TwoPhaseCommitSink:
        raise NotImplementedError("SinkContract.make_sink: return a new sink that writes to the target")

    def read(self, target: Any) -> Sequence[int]:
        raise NotImplementedError("SinkContract.read: return the ids of all rows that a reader sees now")

    def session(self) -> SparkSession:
        """The session to run in: the one that is there, or a small local one. Called in other processes too."""
        from pyspark.sql import SparkSession

        import lockstep

        builder = SparkSession.builder.master("local[2]").appName("sink-contract")
        for key, value in {
            "spark.driver.memory": "1g",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "2",
        }.items():
            builder = builder.config(key, value)
        return lockstep.configure(builder).getOrCreate()

    # --- visibility -------------------------------------------------------------------------------------------------

    def test_nothing_of_an_epoch_is_visible_before_its_commit_and_all_of_it_after(self, tmp_path: Path) -> None:
        with self._life(tmp_path) as life:
            driver = life.driver()
            prepared = driver.prepare(0, 10)
            assert life.read() == [], "rows are visible before commit"
            driver.commit(prepared)
            life.assert_visible({0: 10})

    def test_later_epochs_stay_invisible_while_earlier_ones_are_committed(self, tmp_path: Path) -> None:
        with self._life(tmp_path) as life:
            driver = life.driver()
            prepared = [driver.prepare(epoch, 5) for epoch in range(3)]
            for epoch, one in enumerate(prepared):
                driver.commit(one)
                life.assert_visible(dict.fromkeys(range(epoch + 1), 5))

    def test_epochs_that_piled_up_are_committed_together(self, tmp_path: Path) -> None:
        with self._life(tmp_path) as life:
            driver = life.driver()
            driver.commit(*[driver.prepare(epoch, 5) for epoch in range(4)])
            life.assert_visible(dict.fromkeys(range(4), 5))

    def test_empty_epochs_are_committed_and_show_nothing(self, tmp_path: Path) -> None:
        with self._life(tmp_path) as life:
            driver = life.driver()
            for epoch, count in enumerate([0, 3, 0, 0]):
                prepared = driver.prepare(epoch, count)
                driver.commit(prepared)
                driver.commit(prepared)
            life.assert_visible({1: 3})

    def test_huge_epoch_is_visible_whole(self, tmp_path: Path) -> None:
        with self._life(tmp_path) as life:
            driver = life.driver()
            driver.commit(driver.prepare(0, self.huge_rows))
            life.assert_visible({0: self.huge_rows})

    def test_concurrent_reader_sees_no_row_twice_and_no_torn_epoch(self, tmp_path: Path) -> None:
        with self._life(tmp_path) as life, life.watched() as looks:
            driver = life.driver()
            for epoch in range(6):
                driver.commit(driver.prepare(epoch, 500))
        assert looks[-1] == 3000, f"the reader's last look saw {looks[-1]} of 3000 rows"
        assert len(looks) > 2, "the reader must have looked while epochs were committed"

    # --- idempotence ------------------------------------------------------------------------------------------------

    def test_commit_twice_by_the_same_and_by_another_driver_changes_nothing(self, tmp_path: Path) -> None:
        with self._life(tmp_path) as life:
            driver = life.driver()
            first, second = driver.prepare(0, 10), driver.prepare(1, 10)
            driver.commit(first, second)
            for outcome in (driver.commit(first), life.driver().commit(first)):
                assert outcome.status is CommitStatus.ALREADY_DONE, f"a second commit says {outcome}"
            life.driver().commit(first, second)
            life.assert_visible({0: 10, 1: 10})

    def test_abort_is_idempotent_and_leaves_nothing(self, tmp_path: Path) -> None:
        with self._life(tmp_path) as life:
            driver = life.driver()
            begun = driver.attempt(0)
            handle = driver.sink.begin(begun)
            driver.sink.abort(begun, handle)
            driver.sink.abort(begun, handle)
            prepared = driver.prepare(0, 10)
            for _ in range(2):
                driver.sink.abort(prepared.attempt, prepared.handle)
            assert life.read() == []
            driver.commit(driver.prepare(0, 7))
            life.assert_visible({0: 7})

    # --- attempts ---------------------------------------------------------------------------------------------------

    def test_rows_of_a_failed_attempt_are_in_no_later_one(self, tmp_path: Path) -> None:
        with self._life(tmp_path) as life:
            driver = life.driver()
            attempt = driver.attempt(0)
            handle = driver.sink.begin(attempt)
            failed = False
            try:
                driver.sink.write(handle, life.rows(0, 1000, poison=900))
                driver.sink.pre_commit(handle)
            except Exception:
                failed = True
            assert failed, "a row that can't be computed must fail the write"
            driver.sink.abort(attempt, handle)
            driver.commit(driver.prepare(0, 10))
            life.assert_visible({0: 10})

    def test_attempt_that_lost_is_aborted_after_the_new_one_was_committed(self, tmp_path: Path) -> None:
        with self._life(tmp_path) as life:
            old = life.driver()
            lost = old.prepare(0, 10)
            new = life.driver()
            won = new.prepare(0, 12)
            new.commit(won)
            for _ in range(2):
                new.sink.recover_and_abort(lost.attempt, lost.handle)
            life.assert_visible({0: 12})

    def test_clean_up_after_a_dead_driver_keeps_what_is_prepared(self, tmp_path: Path) -> None:
        with self._life(tmp_path) as life:
            old = life.driver()
            kept, stray = old.prepare(0, 10), old.prepare(1, 10)
            new = life.driver()
            new.sink.clean_up(lambda attempt_id: attempt_id == stray.attempt.id)
            new.commit(kept)
            new.commit(new.prepare(1, 4))
            life.assert_visible({0: 10, 1: 4})

    def test_clean_up_removes_nothing_that_is_visible(self, tmp_path: Path) -> None:
        """Attempts of committed epochs may be asked for, and are strays too: what is left of them is not needed."""
        with self._life(tmp_path) as life:
            old = life.driver()
            old.commit(old.prepare(0, 10), old.prepare(1, 10))
            new = life.driver()
            new.sink.clean_up(lambda attempt_id: True)
            life.assert_visible({0: 10, 1: 10})
            new.commit(new.prepare(2, 5))
            life.assert_visible({0: 10, 1: 10, 2: 5})

    # --- recovery ---------------------------------------------------------------------------------------------------

    def test_epochs_of_a_killed_process_are_committed_by_another(self, tmp_path: Path) -> None:
        """A process prepares epochs, commits the first, and is killed while it commits the others, sooner or later."""
        with self._life(tmp_path) as life:
            prepared = self._prepare_in_a_process_that_is_killed(life, tmp_path)
            life.tokens, life.highest = 1, len(prepared) - 1
            driver = life.driver()
            for one in prepared:  # those that are recovered come one by one: each outcome speaks of one epoch
                driver.commit(one)
            expected = dict.fromkeys(range(len(prepared)), 1000)
            life.assert_visible(expected)
            driver.commit(driver.prepare(len(prepared), 10))
            life.assert_visible({**expected, len(prepared): 10})

    def _prepare_in_a_process_that_is_killed(self, life: Life, tmp_path: Path) -> list[PreparedEpoch]:
        told = tmp_path / "prepared.json"
        settings = {
            "file": sys.modules[type(self).__module__].__file__,
            "class": type(self).__qualname__,
            "target": life.target,
            "lineage": life.lineage,
            "staging": life.staging,
            "tell": str(told),
        }
        with (tmp_path / "child.log").open("wb") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "lockstep.testing.contract_process", json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={
                    **environment_with_temporary(tmp_path / "temporary"),
                    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                },
            )
        try:
            deadline = time.monotonic() + _CHILD_SECONDS
            while not told.exists():
                tail = (tmp_path / "child.log").read_text(errors="replace")[-3000:]
                assert child.poll() is None, f"the other process failed:\n{tail}"
                assert time.monotonic() < deadline, f"the other process is stuck:\n{tail}"
                time.sleep(0.01)
            time.sleep(random.uniform(0.0, 0.4))  # it is committing: any moment must do
        finally:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            if child.stdin is not None:
                child.stdin.close()
            shutil.rmtree(tmp_path / "temporary", ignore_errors=True)
        return [
            PreparedEpoch(Attempt(one["epoch"], one["id"], life.lineage, 1), one["handle"], 0)
            for one in json.loads(told.read_text())
        ]

    # --- fencing ----------------------------------------------------------------------------------------------------

    def test_driver_that_was_overtaken_commits_nothing(self, tmp_path: Path) -> None:
        with self._life(tmp_path) as life:
            old = life.driver()
            first, paused = old.prepare(0, 10), old.prepare(1, 10)
            old.commit(first)
            new = life.driver()
            refused = ""
            try:
                outcome = old.sink.commit_many([paused])
            except FencedError as error:
                refused = str(error)
            assert refused, f"a driver whose token is out of date must raise FencedError, and got {outcome}"
            life.assert_visible({0: 10})
            new.commit(paused)
            new.commit(new.prepare(2, 10))
            life.assert_visible({0: 10, 1: 10, 2: 10})

    def test_two_drivers_that_commit_the_same_epoch_at_once_make_it_visible_once(self, tmp_path: Path) -> None:
        """The token was looked at, then the driver was paused: the target itself must stop it."""
        with self._life(tmp_path) as life:
            old = life.driver(never_fenced=True)
            new = life.driver()
            for epoch in range(3):
                prepared = new.prepare(epoch, 10)
                threads = [threading.Thread(target=one.race, args=(prepared,)) for one in (old, new)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                new.commit(prepared)
                life.assert_visible(dict.fromkeys(range(epoch + 1), 10))

    # --- lives ------------------------------------------------------------------------------------------------------

    def test_epochs_of_a_new_life_are_not_taken_for_repetitions(self, tmp_path: Path) -> None:
        with self._life(tmp_path) as life:
            driver = life.driver()
            driver.commit(*[driver.prepare(epoch, 5) for epoch in range(3)])
            with self._life(tmp_path / "new", life.target) as other:
                again = other.driver()
                again.commit(again.prepare(0, 8, first=_PER_EPOCH // 2))
            counts = Counter(life.read())
            assert sorted(counts) == sorted(
                [*(e * _PER_EPOCH + n for e in range(3) for n in range(5)), *range(500_000, 500_008)]
            ), "epoch 0 of a new checkpoint directory is missing, or took something else along"
            assert set(counts.values()) == {1}

    def test_two_sinks_on_one_target_do_not_mistake_each_other(self, tmp_path: Path) -> None:
        with self._life(tmp_path) as life:
            one, other = life.driver(uid="one"), life.driver(uid="other", overtake=False)
            one.commit(one.prepare(0, 5))
            one.commit(one.prepare(1, 5))
            other.commit(other.prepare(0, 5, first=_PER_EPOCH // 2))
            expected = [*range(5), *range(_PER_EPOCH, _PER_EPOCH + 5), *range(500_000, 500_005)]
            assert sorted(life.read()) == sorted(expected), "one sink's epochs were taken for the other's"

    def test_checkpoint_directory_that_is_older_than_the_target_is_refused(self, tmp_path: Path) -> None:
        if not self.knows_old_copies:
            import pytest

            pytest.skip("the sink does not promise it: knows_old_copies is False")
        with self._life(tmp_path) as life:
            driver = life.driver()
            driver.commit(*[driver.prepare(epoch, 2) for epoch in range(3)])
            life.highest = 0
            refused = False
            try:
                life.driver(highest=0)
            except CheckpointDirectoryError:
                refused = True
            assert refused, "open must refuse: the target has epochs that the checkpoint directory does not know"

    @contextmanager
    def _life(self, directory: Path, target: Any = None) -> Iterator[Life]:
        directory.mkdir(parents=True, exist_ok=True)
        life = Life(self, self.new_target() if target is None else target, f"file:{directory / 'staging'}")
        try:
            yield life
        finally:
            life.close()


class Life:
    """One life of a checkpoint directory: its drivers, one after the other, and what a reader sees of it."""

    def __init__(self, contract: SinkContract, target: Any, staging: str, lineage: str | None = None) -> None:
        self.contract = contract
        self.target = json.loads(json.dumps(target))
        self.lineage = lineage or str(uuid.uuid4())
        self.staging = staging
        self.tokens = 0
        self.highest = -1
        self._drivers: list[Driver] = []
        self._known: set[str] = set()

    def driver(
        self,
        uid: str = "contract",
        *,
        overtake: bool = True,
        never_fenced: bool = False,
        highest: int | None = None,
    ) -> Driver:
        """Start a driver; from now on the earlier ones are fenced, unless told otherwise."""
        self.tokens += overtake or not self.tokens
        driver = Driver(self, self.contract.make_sink(self.target), self.tokens, never_fenced)
        driver.open(uid, returning=uid in self._known, highest=highest)
        self._known.add(uid)
        self._drivers.append(driver)
        return driver

    def rows(self, epoch: int, count: int, *, first: int = 0, poison: int | None = None) -> DataFrame:
        """Rows of an epoch, on two partitions. Computing the row with number ``poison`` fails."""
        from pyspark.sql import functions as F

        start = epoch * _PER_EPOCH + first
        frame = self.contract.session().range(start, start + count, numPartitions=2)
        text = F.concat(F.lit("row "), F.col("id"))
        if poison is not None:
            text = F.when(F.col("id") == start + poison, F.raise_error(F.lit("poisoned"))).otherwise(text)
        return frame.select("id", F.lit(epoch).cast("long").alias("epoch"), text.alias("text"))

    def read(self) -> list[int]:
        return [int(one) for one in self.contract.read(self.target)]

    def assert_visible(self, rows: dict[int, int]) -> None:
        """Exactly so many rows of each epoch, the first ones, are visible, each once."""
        seen = self.read()
        expected = [epoch * _PER_EPOCH + n for epoch, count in sorted(rows.items()) for n in range(count)]
        counts = Counter(seen)
        missing = [one for one in expected if one not in counts]
        repeated = [one for one, count in counts.items() if count > 1]
        surplus = sorted(counts.keys() - set(expected))
        assert not missing, f"{len(missing)} rows are missing, first {missing[0]}"
        assert not repeated, f"{len(repeated)} rows are there more than once, first {repeated[0]}"
        assert not surplus, f"{len(surplus)} rows should not be visible, first {surplus[0]}"
        if self.contract.in_order:
            assert seen == sorted(seen), "the rows are not in order"

    @contextmanager
    def watched(self) -> Iterator[list[int]]:
        """Read all the time meanwhile. Yields the numbers of rows seen; raises at the end if a promise was broken."""
        looks: list[int] = []
        broken: list[str] = []
        stop = threading.Event()

        def watch() -> None:
            try:
                while not stop.is_set():
                    looks.append(self._look(broken))
            except Exception as error:
                broken.append(f"the reader failed: {error!r}")

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield looks
        finally:
            stop.set()
            thread.join()
        looks.append(self._look(broken))
        assert not broken, broken[0]
        assert looks == sorted(looks), f"rows vanished: {looks}"

    def _look(self, broken: list[str]) -> int:
        seen = Counter(self.read())
        if repeated := [one for one, count in seen.items() if count > 1]:
            broken.append(f"{len(repeated)} rows are there more than once, first {repeated[0]}")
        if self.contract.whole_epochs:
            for epoch, count in Counter(one // _PER_EPOCH for one in seen).items():
                if count != 500:
                    broken.append(f"epoch {epoch} is torn: {count} of 500 rows are visible")
        return sum(seen.values())

    def close(self) -> None:
        for driver in self._drivers:
            driver.sink.close()


class Driver:
    """One driver of a life, as a sink sees it."""

    def __init__(self, life: Life, sink: TwoPhaseCommitSink, token: int, never_fenced: bool = False) -> None:
        self.life = life
        self.sink = sink
        self.token = token
        self._never_fenced = never_fenced

    def open(self, uid: str, *, returning: bool, highest: int | None = None) -> None:
        self.sink.open(
            SinkContext(
                spark=self.life.contract.session(),
                uid=uid,
                lineage=self.life.lineage,
                schema=self.life.rows(0, 0).schema,
                output_mode="append",
                query_name="sink-contract",
                highest_epoch=lambda: self.life.highest if highest is None else highest,
                staging=f"{self.life.staging}/{self.life.lineage}/{uid}",
                returning=returning,
                token=self._checked_token,
            )
        )

    def _checked_token(self) -> int:
        if self.life.tokens > self.token and not self._never_fenced:
            raise FencedError(f"driver {self.token} was overtaken by driver {self.life.tokens}")
        return self.token

    def attempt(self, epoch: int) -> Attempt:
        return Attempt(epoch, f"{epoch}-{self.token}-{uuid.uuid4().hex}", self.life.lineage, self.token)

    def prepare(self, epoch: int, count: int, *, first: int = 0) -> PreparedEpoch:
        """Phase 1. The handle goes through JSON, as it does in a prepare record."""
        attempt = self.attempt(epoch)
        handle = self.sink.begin(attempt)
        self.sink.write(handle, self.life.rows(epoch, count, first=first))
        handle = json.loads(json.dumps(self.sink.pre_commit(handle)))
        self.life.highest = max(self.life.highest, epoch)
        return PreparedEpoch(attempt, handle, time.time_ns() // 1_000_000)

    def commit(self, *prepared: PreparedEpoch) -> CommitOutcome:
        """Phase 2, as the committer does it: again and again while the sink says RETRY or raises."""
        deadline = time.monotonic() + _RETRY_SECONDS
        while True:
            outcome = self.try_commit(*prepared)
            if outcome.status is not CommitStatus.RETRY:
                assert outcome.committed, f"commit says {outcome.status.value}: {outcome.reason}"
                return outcome
            assert time.monotonic() < deadline, f"no commit within {_RETRY_SECONDS} s: {outcome.reason}"
            time.sleep(0.1)

    def race(self, prepared: PreparedEpoch) -> None:
        """Commit if the target lets this driver."""
        with suppress(FencedError):
            self.try_commit(prepared)

    def try_commit(self, *prepared: PreparedEpoch) -> CommitOutcome:
        try:
            fresh = []
            for one in prepared:
                handle = self.sink.refresh(one)
                if handle is not None:  # staged again: under a new attempt
                    one = PreparedEpoch(self.attempt(one.epoch), handle, one.prepared_at_ms)
                fresh.append(one)
            commit: Callable[..., CommitOutcome] = (
                self.sink.recover_and_commit if fresh[0].attempt.token < self.token else (self.sink.commit_many)
            )
            return commit(fresh)
        except FencedError:
            raise
        except Exception as error:
            return CommitOutcome.retry(repr(error))
