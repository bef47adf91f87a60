"""Savepoints: a query goes on elsewhere, with other parallelism, another state store, other code; once, whatever dies."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import lockstep
from integration_tests.keyed_bench import KeyedBench
from integration_tests.sessions import THOROUGH
from lockstep.cli.main import main
from lockstep.errors import CheckpointDirectoryError, ConfigurationError, StateMigrationError
from lockstep.protocol.savepoint import Savepoint
from lockstep.testing import failpoints

OUTPUT = "account string, total bigint"
PARTITIONS = "spark.sql.shuffle.partitions"
POINTS = tuple(point for point in failpoints.SAVEPOINT_POINTS if point.startswith("restore"))


class Total(lockstep.KeyedProcessFunction):
    total = lockstep.ValueState("bigint", default=0)

    def process_element(self, row: Any, ctx: Any) -> Iterator[tuple[str, int]]:
        self.total.update(self.total.value() + row.amount)
        yield ctx.key, self.total.value()


class Bench(KeyedBench):
    """A pipeline that moves from directory to directory."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        super().__init__(spark, root)
        self.moves = 0

    def totals(self, function: lockstep.KeyedProcessFunction | None = None, **options: Any) -> DataFrame:
        stream = lockstep.key_by(self.stream(), "account")
        return stream.process(function or Total(), uid="totals", output=OUTPUT, max_parallelism=16, **options)

    def savepoint(self, name: str = "savepoint") -> str:
        path = str(self.root / name)
        lockstep.create_savepoint(self.spark, self.checkpoint, path)
        return path

    def move(self) -> None:
        """From here on there is a new checkpoint directory."""
        self.moves += 1
        self.checkpoint = str(self.root / f"checkpoint-{self.moves}")

    def restore(self, path: str, frame: DataFrame, config: Any = None, **options: Any) -> lockstep.CheckpointedQuery:
        """Take what is there, from a savepoint on."""
        writer = lockstep.checkpointed(frame, config).sink(lockstep.sinks.DeltaSink(self.table), uid="lake")
        writer = writer.option("checkpointLocation", self.checkpoint).option("restoreFrom", path)
        query = writer.options(**options).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        return query


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Iterator[Bench]:
    before = spark.conf.get(PARTITIONS)
    yield Bench(spark, tmp_path)
    spark.conf.set(PARTITIONS, before)
    failpoints.clear()


def test_state_and_positions_move_to_any_number_of_partitions_and_any_state_store(bench: Bench) -> None:
    expected, path = [], ""
    accounts = [f"account-{n}" for n in range(20)]
    places = [(4, None), (7, lockstep.StateBackend.ROCKSDB), (3, lockstep.StateBackend.HDFS)]
    for step, (partitions, backend) in enumerate(places):
        bench.spark.conf.set(PARTITIONS, str(partitions))
        for _ in range(2):
            bench.add(*((account, 1) for account in accounts))
        expected += [(account, 2 * step + count) for account in accounts for count in (1, 2)]
        config = lockstep.CheckpointConfig(state_backend=backend)
        if step:
            bench.move()
            bench.restore(path, bench.totals(), config)
        else:
            bench.run(bench.totals(), config)
        path = bench.savepoint(f"savepoint-{step}")
        stores = list((Path(bench.checkpoint) / "state" / "0").glob("[0-9]*"))
        assert len(stores) == partitions
    assert bench.rows() == sorted(expected)
    assert bench.state("totals", state="total") == sorted((account, 6) for account in accounts)
    bench.add(("account-0", 1))
    bench.run(bench.totals(), lockstep.CheckpointConfig(state_backend=lockstep.StateBackend.HDFS))
    assert ("account-0", 7) in bench.rows()  # a restart without restoreFrom goes on as ever


@pytest.mark.parametrize("point", POINTS if THOROUGH else ("restore.after",))
def test_restore_that_is_interrupted_begins_again_or_continues_and_repeats_nothing(bench: Bench, point: str) -> None:
    bench.add(("a", 1), ("b", 2))
    bench.run(bench.totals())
    path = bench.savepoint()
    bench.add(("a", 10))
    bench.move()
    failpoints.at(point, _fail)
    with pytest.raises(RuntimeError, match="interrupted"):
        bench.restore(path, bench.totals())
    failpoints.clear()
    bench.restore(path, bench.totals())
    bench.restore(path, bench.totals())  # has a checkpoint of its own by now, which wins
    assert bench.rows() == [("a", 1), ("a", 11), ("b", 2)]
    assert not (Path(bench.checkpoint) / "lockstep" / "restoring").exists()


def _fail() -> None:
    raise RuntimeError("interrupted")


def test_savepoint_may_be_moved_and_the_query_deleted(bench: Bench, tmp_path: Path) -> None:
    bench.add(("a", 1))
    bench.run(bench.totals())
    path = bench.savepoint()
    shutil.move(path, tmp_path / "elsewhere")
    shutil.rmtree(bench.checkpoint)
    bench.add(("a", 1))
    bench.move()
    bench.restore(str(tmp_path / "elsewhere"), bench.totals())
    assert bench.rows() == [("a", 1), ("a", 2)]
    assert (tmp_path / "elsewhere" / "_metadata").exists()


def test_claimed_savepoint_is_removed_when_the_first_checkpoint_is_committed(bench: Bench) -> None:
    bench.add(("a", 1))
    bench.run(bench.totals())
    path = bench.savepoint()
    bench.move()
    bench.restore(path, bench.totals(), restoreMode="claim")
    assert Path(path, "_metadata").exists(), "nothing was committed since"
    bench.add(("a", 1))
    bench.restore(path, bench.totals())
    assert not Path(path).exists()
    assert bench.rows() == [("a", 1), ("a", 2)]


def test_retained_checkpoint_is_as_good_as_a_savepoint_and_repeated_rows_are_told(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        bench.add(("a", 1))
    bench.run(bench.totals())
    origin = f"{bench.checkpoint}/lockstep/checkpoints/chk-1"
    bench.move()
    bench.restore(origin, bench.totals())  # into the same table
    assert "rows up to epoch 2" in caplog.text
    assert "will be there twice" in caplog.text
    assert bench.rows() == [("a", 1), ("a", 2), ("a", 3), ("a", 3)]
    bench.move()
    bench.table += "-2"
    caplog.clear()
    bench.restore(origin, bench.totals())
    assert "twice" not in caplog.text
    assert bench.rows() == [("a", 3)]
    assert bench.state("totals", state="total") == [("a", 3)]


class Alarm(lockstep.KeyedProcessFunction):
    """Tells the watermark with every element, and an hour of event time after it that it is over."""

    def process_element(self, row: Any, ctx: Any) -> Iterator[tuple[str, int]]:
        ctx.register_event_time_timer(int(row.at.timestamp() * 1000) + 3_600_000)
        yield ctx.key, ctx.watermark

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[str, int]]:
        yield f"{ctx.key} is over", timestamp


def test_watermark_and_timers_come_along(bench: Bench) -> None:
    def alarms() -> DataFrame:
        stream = bench.stream(watermark="1 minute")
        return lockstep.key_by(stream, "account").process(Alarm(), uid="alarms", output=OUTPUT)

    noon = 1_750_075_200_000
    bench.add(("a", 1, "2025-06-16T12:00:00Z"))
    bench.run(alarms())
    path = bench.savepoint()
    bench.move()
    bench.add(("b", 1, "2025-06-16T14:00:00Z"))
    bench.restore(path, alarms())
    bench.add(("c", 1, "2025-06-16T14:00:01Z"))
    bench.run(alarms())
    assert bench.rows() == [
        ("a", 0),
        ("a is over", noon + 3_600_000),
        ("b", noon - 60_000),  # the watermark that the query had when it was saved
        ("c", noon + 2 * 3_600_000 - 60_000),
    ]


def test_directory_is_made_of_a_savepoint_without_the_code(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lockstep.cli.savepoint.spark_session", lambda *_: contextlib.nullcontext(bench.spark))
    bench.add(("a", 1))
    bench.run(bench.totals())
    path = str(bench.root / "savepoint")
    assert main(["savepoint", "create", bench.checkpoint, path]) == 0
    bench.add(("a", 1))
    bench.move()
    assert main(["savepoint", "restore", path, bench.checkpoint, "--partitions", "5"]) == 0
    assert "is ready" in capsys.readouterr().out
    assert main(["savepoint", "restore", path, bench.checkpoint]) == 2
    bench.run(bench.totals(), lockstep.CheckpointConfig(state_backend=lockstep.StateBackend.HDFS))
    assert bench.rows() == [("a", 1), ("a", 2)]
    assert len(list((Path(bench.checkpoint) / "state" / "0").glob("[0-9]*"))) == 5


class Narrow(lockstep.KeyedProcessFunction):
    """A row as state."""

    account = lockstep.ValueState("total bigint")

    def process_element(self, row: Any, ctx: Any) -> Iterator[tuple[str, int]]:
        before = self.account.value()
        total = (0 if before is None else before.total) + row.amount
        self.account.update((total,))
        yield ctx.key, total


class Wide(lockstep.KeyedProcessFunction):
    """The same row with a field more."""

    account = lockstep.ValueState("total bigint, seen bigint")

    def process_element(self, row: Any, ctx: Any) -> Iterator[tuple[str, int]]:
        before = self.account.value()
        total = (0 if before is None else before.total) + row.amount
        seen = (0 if before is None or before.seen is None else before.seen) + 1
        self.account.update((total, seen))
        yield ctx.key, total * 100 + seen


def test_state_may_gain_a_nullable_field(bench: Bench) -> None:
    bench.add(("a", 1))
    bench.run(bench.totals(Narrow()))
    path = bench.savepoint()
    bench.add(("a", 1), ("a", 1))
    bench.move()
    bench.restore(path, bench.totals(Wide()))
    assert bench.rows() == [("a", 1), ("a", 201), ("a", 302)]
    other = lockstep.key_by(bench.stream(), "account").process(Wide(), uid="totals", output=OUTPUT)
    bench.move()
    with pytest.raises(StateMigrationError, match="max_parallelism"):
        bench.restore(path, other)


class Richer(lockstep.KeyedProcessFunction):
    """The same state, and a state more."""

    total = lockstep.ValueState("bigint", default=0)
    seen = lockstep.ValueState("bigint", default=0)

    def process_element(self, row: Any, ctx: Any) -> Iterator[tuple[str, int]]:
        self.seen.update(self.seen.value() + 1)
        self.total.update(self.total.value() + row.amount)
        yield ctx.key, self.total.value() * 100 + self.seen.value()


def test_code_may_gain_a_state(bench: Bench) -> None:
    bench.add(("a", 1))
    bench.run(bench.totals())
    path = bench.savepoint()
    bench.add(("a", 1))
    bench.move()
    bench.restore(path, bench.totals(Richer()))
    assert bench.rows() == [("a", 1), ("a", 201)]


class Doubled(lockstep.KeyedProcessFunction):
    last = lockstep.ValueState("bigint", default=0)

    def process_element(self, row: Any, ctx: Any) -> Iterator[tuple[str, int]]:
        self.last.update(self.last.value() + 1)
        yield ctx.key, row.total * 1000 + self.last.value()


def _twice(frame: DataFrame) -> DataFrame:
    return lockstep.key_by(frame, "account").process(Doubled(), uid="doubled", output=OUTPUT, max_parallelism=8)


def test_operator_may_be_added_and_with_the_flag_be_dropped(bench: Bench) -> None:
    bench.add(("a", 1))
    bench.run(bench.totals())
    one = bench.savepoint("one")
    bench.add(("a", 1))
    bench.move()
    bench.restore(one, _twice(bench.totals()))
    assert bench.rows() == [("a", 1), ("a", 2001)]
    two = bench.savepoint("two")
    bench.add(("a", 1))
    bench.move()
    bench.restore(two, _twice(bench.totals()))  # both go on with their own state
    assert bench.rows()[-1] == ("a", 3002)
    bench.add(("a", 1))
    bench.move()
    with pytest.raises(CheckpointDirectoryError, match=r"'doubled', which this query lacks.*allowNonRestoredState"):
        bench.restore(two, bench.totals())
    assert not Path(bench.checkpoint).exists() or not list(Path(bench.checkpoint).iterdir())
    bench.restore(two, bench.totals(), allowNonRestoredState=True)
    assert bench.rows()[-2:] == [("a", 2001), ("a", 3002)] or ("a", 3) in bench.rows()


def _without_metadata(path: Path) -> None:
    (path / "_metadata").unlink()


def _cut_metadata(path: Path) -> None:
    data = (path / "_metadata").read_bytes()
    (path / "_metadata").write_bytes(data[:-20])


def _newer(path: Path) -> None:
    data = (path / "_metadata").read_bytes()
    (path / "_metadata").write_bytes(data.replace(b'"format":1', b'"format":99'))


def _foreign(path: Path) -> None:
    (path / "_metadata").write_text('{"some": "thing"}')


def _without_state(path: Path) -> None:
    shutil.rmtree(path / "state")


def _without_a_file(path: Path) -> None:
    sorted((path / "state" / "totals").glob("part-*"))[0].unlink()


def test_savepoint_that_is_not_whole_is_refused_and_nothing_is_written(bench: Bench) -> None:
    bench.add(*((f"account-{n}", 1) for n in range(40)))
    bench.run(bench.totals())
    whole = bench.savepoint()
    for harm in (_without_metadata, _cut_metadata, _newer, _foreign, _without_state, _without_a_file):
        harmed = Path(shutil.copytree(whole, bench.root / harm.__name__))
        harm(harmed)
        bench.move()
        with pytest.raises(CheckpointDirectoryError):
            bench.restore(str(harmed), bench.totals())
        assert not (Path(bench.checkpoint) / "lockstep" / "lineage").exists(), harm
        assert not (Path(bench.checkpoint) / "offsets").exists(), harm


def test_savepoint_says_what_it_holds_and_is_made_while_the_query_runs(bench: Bench) -> None:
    bench.add(("a", 1), ("b", 2))
    query = bench.start(bench.totals())
    query.processAllAvailable()
    made: Savepoint = query.savepoint(str(bench.root / "running"))
    assert query.isActive
    assert made.operators["totals"].contents.groups in (1, 2)
    assert made.sinks["lake"].details["version"] >= 1
    with pytest.raises(ConfigurationError, match="is a savepoint"):
        query.savepoint(str(bench.root / "running"))
    last = query.stop_with_savepoint(str(bench.root / "stopped"))
    assert last.lineage == made.lineage
    assert last.epoch >= made.epoch


def test_directory_that_is_deleted_on_cancellation_is_saved_before(bench: Bench) -> None:
    config = lockstep.CheckpointConfig(on_cancellation=lockstep.RetentionPolicy.DELETE_ON_CANCELLATION)
    bench.add(("a", 1))
    query = bench.start(bench.totals(), config)
    query.processAllAvailable()
    with pytest.raises(ConfigurationError, match="lies in the checkpoint directory"):
        query.savepoint(f"{bench.checkpoint}/savepoints/1")
    query.stop_with_savepoint(str(bench.root / "saved"))
    assert not (Path(bench.checkpoint) / "offsets").exists()
    bench.add(("a", 1))
    bench.move()
    bench.restore(str(bench.root / "saved"), bench.totals())
    assert bench.rows() == [("a", 1), ("a", 2)]


def test_interrupted_savepoint_is_none(bench: Bench) -> None:
    bench.add(("a", 1))
    bench.run(bench.totals())
    failpoints.at("savepoint.before", _fail)
    with pytest.raises(RuntimeError, match="interrupted"):
        bench.savepoint()
    failpoints.clear()
    bench.move()
    with pytest.raises(CheckpointDirectoryError, match="is not a savepoint: it has no _metadata"):
        bench.restore(str(bench.root / "savepoint"), bench.totals())


def test_epoch_that_is_not_committed_or_not_kept_is_refused(bench: Bench) -> None:
    bench.add(("a", 1))
    bench.run(bench.totals())
    with pytest.raises(
        ConfigurationError, match=r"epoch 7 .* is not committed in every sink; the last one that is is 0"
    ):
        lockstep.create_savepoint(bench.spark, bench.checkpoint, str(bench.root / "s"), epoch=7)
    with pytest.raises(CheckpointDirectoryError, match="not a checkpoint directory of Lockstep"):
        lockstep.create_savepoint(bench.spark, str(bench.root / "input"), str(bench.root / "s"))
