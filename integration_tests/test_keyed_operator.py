"""Keyed operators on real Spark: state per key, acknowledged, readable, evolving; failures that explain themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lockstep
from integration_tests.keyed_bench import KeyedBench
from lockstep import BroadcastState, KeyedProcessFunction, ListState, MapState, UnionListState, ValueState
from lockstep.errors import ConfigurationError, OperatorError, StateMigrationError
from lockstep.sinks import DeltaSink

OUTPUT = "account string, total bigint"


class RunningTotal(KeyedProcessFunction):
    total = ValueState("bigint", default=0)

    def process_element(self, row: Any, ctx: Any) -> Iterator[tuple[str, int]]:
        new = self.total.value() + row.amount
        self.total.update(new)
        yield ctx.key, new


class RunningTotalBatch(KeyedProcessFunction):
    total = ValueState("bigint", default=0)

    def process_batch(self, batch: Any, ctx: Any) -> Iterator[Any]:
        running = []
        for account, amount in zip(batch["account"], batch["amount"], strict=True):
            with ctx.keyed(account):
                self.total.update(self.total.value() + int(amount))
                running.append(self.total.value())
        yield batch[["account"]].assign(total=running)


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> KeyedBench:
    return KeyedBench(spark, tmp_path)


def totals(bench: KeyedBench, function: KeyedProcessFunction | None = None, **options: Any) -> Any:
    given = {"uid": "totals", "output": OUTPUT, **options}
    return lockstep.key_by(bench.stream(), "account").process(function or RunningTotal(), **given)


@pytest.mark.parametrize("function", [RunningTotal(), RunningTotalBatch()], ids=["by element", "by batch"])
def test_state_lasts_from_epoch_to_epoch_and_across_restarts(bench: KeyedBench, function: KeyedProcessFunction) -> None:
    bench.add(("a", 1), ("b", 10), ("a", 2))
    bench.add(("a", 4))
    bench.run(totals(bench, function))
    assert bench.rows() == [("a", 1), ("a", 3), ("a", 7), ("b", 10)]
    bench.add(("b", 20), ("c", 5))
    bench.run(totals(bench, function))
    assert bench.rows() == [("a", 1), ("a", 3), ("a", 7), ("b", 10), ("b", 30), ("c", 5)]
    assert bench.state("totals", state="total") == [("a", 7), ("b", 30), ("c", 5)]


def test_checkpoint_names_the_state_of_every_operator_and_its_figures(bench: KeyedBench) -> None:
    bench.add(("a", 1), ("b", 10))
    bench.add(("a", 4))
    query = bench.run(totals(bench))
    reports = [checkpoint.reports["totals"] for checkpoint in query.completed_checkpoints]
    assert [report["state"] for report in reports] == [
        {"path": "state/0", "version": 1, "partitions": 2},
        {"path": "state/0", "version": 2, "partitions": 2},
    ]
    assert [(report["rows_in"], report["rows_out"], report["key_groups_written"]) for report in reports] == [
        (2, 2, 2),
        (1, 1, 1),
    ]
    assert all(report["state_bytes"] > 0 for report in reports)


def test_key_groups_are_spread_evenly_over_the_tasks(bench: KeyedBench) -> None:
    tasks = int(bench.spark.conf.get("spark.sql.shuffle.partitions") or "")
    bench.add(*[(f"account-{number}", 1) for number in range(1_000)])
    bench.run(totals(bench, max_parallelism=8 * tasks))
    stored = bench.spark.read.format("statestore").load(bench.checkpoint).groupBy("partition_id").count().collect()
    assert {(row["partition_id"], row["count"]) for row in stored} == {(task, 8) for task in range(tasks)}


def test_operator_works_with_sparks_own_sinks(bench: KeyedBench) -> None:
    bench.add(("a", 1), ("a", 2))
    seen: list[tuple[Any, ...]] = []
    query = (
        totals(bench)
        .writeStream.foreachBatch(lambda batch, epoch: seen.extend(tuple(row) for row in batch.collect()))
        .option("checkpointLocation", bench.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert seen == [("a", 1), ("a", 3)]
    assert bench.state("totals", state="total") == [("a", 3)], "readable without a record of ours"


def test_state_of_an_earlier_epoch_is_readable_while_the_query_runs(bench: KeyedBench) -> None:
    bench.add(("a", 1))
    query = bench.start(totals(bench))
    try:
        query.processAllAvailable()
        bench.add(("a", 2), ("b", 3))
        query.processAllAvailable()
        assert query.isActive
        assert bench.state("totals", state="total", epoch=0) == [("a", 1)]
        assert bench.state("totals", state="total") == [("a", 3), ("b", 3)]
        assert bench.state("totals") == [
            ("a", "total", "value", None, None, "3"),
            ("b", "total", "value", None, None, "3"),
        ]
        with pytest.raises(ConfigurationError, match="epoch 7 is not decided"):
            bench.state("totals", epoch=7)
        with pytest.raises(ConfigurationError, match=r"'sums' at epoch 1; there is: 'totals'"):
            bench.state("sums")
        with pytest.raises(ConfigurationError, match=r"nothing under the name 'sum'.*there is: total"):
            bench.state("totals", state="sum")
    finally:
        query.stop()


class Collections(KeyedProcessFunction):
    amounts = ListState("bigint")
    by_parity = MapState("string", "struct<count: bigint, last: decimal(10,2)>")

    def process_element(self, row: Any, ctx: Any) -> None:
        self.amounts.add(row.amount)
        parity = "even" if row.amount % 2 == 0 else "odd"
        before = self.by_parity.get(parity)
        self.by_parity.put(parity, {"count": 1 + (before.count if before else 0), "last": row.amount})


def test_lists_and_maps_are_read_as_rows_with_their_types(bench: KeyedBench) -> None:
    bench.add(("a", 1), ("a", 2), ("b", 3))
    bench.run(totals(bench, Collections(), uid="kept"))
    assert bench.state("kept", state="amounts") == [("a", 0, 1), ("a", 1, 2), ("b", 0, 3)]
    frame = lockstep.read_state(bench.spark, bench.checkpoint, "kept", state="by_parity")
    assert frame.schema.simpleString() == (
        "struct<account:string,map_key:string,value:struct<count:bigint,last:decimal(10,2)>>"
    )
    assert sorted(
        (row.account, row.map_key, row.value["count"], str(row.value["last"])) for row in frame.collect()
    ) == [
        ("a", "even", 1, "2.00"),
        ("a", "odd", 1, "1.00"),
        ("b", "odd", 1, "3.00"),
    ]


def test_key_columns_whose_names_have_a_meaning_are_told_apart(bench: KeyedBench) -> None:
    class Count(KeyedProcessFunction):
        count = ValueState("int", default=0)

        def process_element(self, row: Any, ctx: Any) -> Iterator[tuple[str, int]]:
            self.count.update(self.count.value() + 1)
            yield ctx.key, self.count.value()

    bench.add(("a", 1), ("a", 1))
    keyed = lockstep.key_by(bench.stream().selectExpr("account as state", "amount as `dot.ted`"), "state")
    bench.run(keyed.process(Count(), uid="counts", output="state string, n int"))
    assert bench.rows() == [("a", 1), ("a", 2)]
    frame = lockstep.read_state(bench.spark, bench.checkpoint, "counts")
    assert frame.columns == ["key_state", "state", "kind", "map_key", "position", "value"]
    assert bench.state("counts") == [("a", "count", "value", None, None, "2")]


def test_two_operators_and_state_of_sparks_own_are_refused_together(bench: KeyedBench) -> None:
    once = totals(bench).dropDuplicates(["account"])
    both = lockstep.key_by(once, "account").process(_Same(), uid="same", output=OUTPUT)
    with pytest.raises(
        ConfigurationError, match=r"two keyed operators can't have Spark's own stateful operator.*Deduplicate"
    ):
        bench.start(both)


def test_composite_keys_are_rows_and_read_back_as_columns(bench: KeyedBench) -> None:
    class Count(KeyedProcessFunction):
        count = ValueState("int", default=0)

        def process_element(self, row: Any, ctx: Any) -> Iterator[tuple[str, int, int]]:
            self.count.update(self.count.value() + 1)
            yield ctx.key.account, ctx.key.amount, self.count.value()

    bench.add(("a", 1), ("a", 1), ("a", 2))
    frame = lockstep.key_by(bench.stream(), "account", "amount").process(
        Count(), uid="counts", output="account string, amount bigint, n int"
    )
    bench.run(frame)
    assert bench.rows() == [("a", 1, 1), ("a", 1, 2), ("a", 2, 1)]
    assert bench.state("counts", state="count") == [("a", 1, 2), ("a", 2, 1)]


def test_reduce_and_aggregate_keep_what_a_key_adds_up_to(bench: KeyedBench) -> None:
    class Mean(lockstep.AggregateFunction):
        def create_accumulator(self) -> Any:
            return {"n": 0, "sum": 0}

        def add(self, value: Any, accumulator: Any) -> Any:
            return {"n": accumulator["n"] + 1, "sum": accumulator["sum"] + value.amount}

        def get_result(self, accumulator: Any) -> Any:
            return (accumulator["sum"] / accumulator["n"],)

    bench.add(("a", 1), ("a", 3), ("b", 5))
    keyed = lockstep.key_by(bench.stream().select("account", "amount"), "account")
    means = keyed.aggregate(
        Mean(), uid="means", accumulator="n bigint, sum bigint", output="account string, mean double", emit="epoch"
    )
    bench.run(means)
    assert bench.rows() == [("a", 2.0), ("b", 5.0)]


def test_largest_order_by_reduce(bench: KeyedBench) -> None:
    bench.add(("a", 1), ("a", 3), ("a", 2))
    keyed = lockstep.key_by(bench.stream().select("account", "amount"), "account")
    bench.run(keyed.reduce(lambda one, two: one if one.amount >= two.amount else two, uid="largest"))
    assert bench.rows() == [("a", 1), ("a", 3), ("a", 3)]


def test_two_operators_in_one_query_each_with_its_own_state(bench: KeyedBench) -> None:
    class Count(KeyedProcessFunction):
        seen = ValueState("bigint", default=0)

        def process_element(self, row: Any, ctx: Any) -> Iterator[tuple[str, int, int]]:
            self.seen.update(self.seen.value() + 1)
            yield ctx.key, row.total, self.seen.value()

    def both() -> Any:
        output = "account string, total bigint, seen bigint"
        return lockstep.key_by(totals(bench), "account").process(Count(), uid="counts", output=output)

    bench.add(("a", 1), ("b", 10))
    bench.add(("a", 4))
    query = bench.run(both())
    bench.add(("a", 5))
    bench.run(both())
    assert bench.rows() == [("a", 1, 1), ("a", 5, 2), ("a", 10, 3), ("b", 10, 1)]
    assert bench.state("totals", state="total") == [("a", 10), ("b", 10)]
    assert bench.state("counts", state="seen") == [("a", 3), ("b", 1)]
    assert {"totals", "counts"} <= set(query.completed_checkpoints[-1].reports)


def test_uids_that_clash_are_refused_before_any_data_moves(bench: KeyedBench) -> None:
    with pytest.raises(ConfigurationError, match="needs a uid"):
        totals(bench, uid=None)
    twice = lockstep.key_by(totals(bench), "account").process(_Same(), uid="totals", output=OUTPUT)
    with pytest.raises(ConfigurationError, match="two operators have the uid 'totals'"):
        bench.start(twice)
    with pytest.raises(ConfigurationError, match="uid 'lake' is the name of a keyed operator and of a sink"):
        bench.start(totals(bench, uid="lake"))
    assert not Path(bench.checkpoint).exists()


class _Same(KeyedProcessFunction):
    def process_element(self, row: Any, ctx: Any) -> Iterator[Any]:
        yield row


class Fails(RunningTotal):
    def __init__(self, how: str) -> None:
        self.how = how

    def process_element(self, row: Any, ctx: Any) -> Iterator[Any]:
        if row.amount == 13 and self.how == "raises":
            raise ValueError("unlucky number")
        yield from super().process_element(row, ctx)
        if row.amount == 13 and self.how == "wrong type":
            yield ctx.key, "thirteen"
        if row.amount == 13 and self.how == "too few columns":
            yield (ctx.key,)


def test_failing_function_is_told_with_uid_key_and_epoch_and_the_query_resumes_after_the_fix(bench: KeyedBench) -> None:
    bench.add(("a", 1), ("b", 2))
    bench.run(totals(bench))
    bench.add(("a", 13), ("b", 4))
    failures = {"raises": "ValueError: unlucky number", "wrong type": "'thirteen'", "too few columns": "total"}
    for how, says in failures.items():
        query = bench.start(totals(bench, Fails(how)))
        with pytest.raises(OperatorError) as told:
            query.awaitTermination(60)
        for part in ("'totals'", "epoch 1", "key 'a'", says):
            assert part in str(told.value), part
        assert "Traceback" not in str(told.value)
    assert bench.rows() == [("a", 1), ("b", 2)], "nothing of the failed epoch"
    assert bench.state("totals", state="total") == [("a", 1), ("b", 2)], "state of earlier epochs is intact"
    bench.run(totals(bench))
    assert bench.rows() == [("a", 1), ("a", 14), ("b", 2), ("b", 6)]
    assert bench.state("totals", state="total") == [("a", 14), ("b", 6)]


class V1(KeyedProcessFunction):
    last = ValueState("amount bigint")

    def process_element(self, row: Any, ctx: Any) -> Iterator[Any]:
        before = self.last.value()
        self.last.update({"amount": row.amount})
        yield ctx.key, before.amount if before else None


class V2(V1):
    last = ValueState("amount bigint, note string")

    def process_element(self, row: Any, ctx: Any) -> Iterator[Any]:
        before = self.last.value()
        self.last.update({"amount": row.amount, "note": "new" if before is None or before.note is None else "seen"})
        yield ctx.key, before.amount if before else None


class V3(V1):
    last = ValueState("amount string, note string")


def test_added_nullable_field_is_null_in_old_state_and_an_incompatible_type_is_refused(bench: KeyedBench) -> None:
    bench.add(("a", 1), ("b", 2))
    bench.run(totals(bench, V1()))
    bench.add(("a", 3))
    bench.run(totals(bench, V2()))
    assert sorted(bench.rows(), key=repr) == [("a", 1), ("a", None), ("b", None)]
    assert bench.state("totals", state="last") == [("a", (3, "new")), ("b", (2, None))]
    for function, names in ((V1(), ["note", "string"]), (V3(), ["amount", "bigint", "string"])):
        with pytest.raises(StateMigrationError) as refused:
            bench.start(totals(bench, function))
        for name in ["'totals'", "'last'", *names]:
            assert name in str(refused.value)


def test_other_key_and_other_number_of_key_groups_are_refused(bench: KeyedBench) -> None:
    bench.add(("a", 1))
    bench.run(totals(bench))
    with pytest.raises(StateMigrationError, match="max_parallelism is now 64"):
        bench.start(totals(bench, max_parallelism=64))
    other = lockstep.key_by(bench.stream(), "amount").process(
        _Same(), uid="totals", output="a string, b bigint, c timestamp"
    )
    with pytest.raises(StateMigrationError, match=r"stored by key \(account string\).*\(amount bigint\)"):
        bench.start(other)


def test_rocksdb_is_one_setting_and_fixed_by_the_first_start(bench: KeyedBench) -> None:
    rocksdb = lockstep.CheckpointConfig(state_backend=lockstep.StateBackend.ROCKSDB)
    bench.add(("a", 1))
    bench.run(totals(bench), rocksdb)
    bench.add(("a", 2))
    bench.run(totals(bench), rocksdb)
    assert bench.rows() == [("a", 1), ("a", 3)]
    assert bench.state("totals", state="total") == [("a", 3)]
    assert list(Path(bench.checkpoint, "state/0").glob("*/*.changelog"))
    assert "RocksDB" not in bench.spark.conf.get("spark.sql.streaming.stateStore.providerClass")
    with pytest.raises(StateMigrationError, match=r"kept by the state backend rocksdb.*now it would be hdfs"):
        bench.start(totals(bench))


class Limits(KeyedProcessFunction):
    limits = BroadcastState("string", "bigint")

    def process_broadcast_element(self, row: Any, ctx: Any) -> None:
        self.limits.put(row.account, row.amount)

    def process_element(self, row: Any, ctx: Any) -> Iterator[Any]:
        limit = self.limits.get("limit")
        if limit is not None and row.amount > limit:
            yield ctx.key, row.amount


def test_broadcast_rows_reach_every_key_group_before_the_elements_of_their_epoch(
    bench: KeyedBench, tmp_path: Path
) -> None:
    rules = KeyedBench(bench.spark, _made(tmp_path / "rules"))
    rules.add(("limit", 5))
    keyed = lockstep.key_by(bench.stream(), "account")
    frame = keyed.process(Limits(), uid="limits", output=OUTPUT, broadcast=rules.stream())
    bench.add(*[(f"account-{n}", n) for n in range(12)])
    bench.run(frame)
    assert bench.rows() == sorted((f"account-{n}", n) for n in range(6, 12))
    rules.add(("limit", 100))
    bench.add(("account-1", 99), ("new", 101))
    bench.run(frame)
    assert ("account-1", 99) not in bench.rows()
    assert ("new", 101) in bench.rows()
    assert len(bench.state("limits", state="limits")) == 32


def _made(path: Path) -> Path:
    path.mkdir()
    return path


class Witness(KeyedProcessFunction):
    """Every instance notes the accounts that it has seen; after a restart all know of all."""

    seen = UnionListState("string")

    def process_element(self, row: Any, ctx: Any) -> Iterator[Any]:
        if row.account not in self.seen.get():
            self.seen.add(row.account)
        yield ctx.key, len(self.seen.get())


def test_union_list_state_is_given_whole_to_everyone_after_a_restart_once(bench: KeyedBench) -> None:
    bench.add(("a", 1), ("b", 1), ("c", 1))
    bench.run(totals(bench, Witness()))
    assert bench.rows() == [("a", 1), ("b", 1), ("c", 1)], "three key groups, one account each"
    bench.add(("a", 1))
    query = bench.start(totals(bench, Witness()))
    try:
        query.processAllAvailable()
        assert bench.rows() == [("a", 1), ("a", 3), ("b", 1), ("c", 1)]
        bench.add(("d", 1))
        query.processAllAvailable()
    finally:
        query.stop()
    assert bench.rows() == [("a", 1), ("a", 3), ("b", 1), ("c", 1), ("d", 1)], "with the first epoch of the start alone"
    assert bench.state("totals", state="seen") == [(0, "a"), (0, "b"), (0, "c"), (0, "d")], (
        "not stored by those who read"
    )


def test_no_part_of_the_batch_may_be_left_out(bench: KeyedBench) -> None:
    class Lazy(DeltaSink):
        """Says that it reads everything, and doesn't."""

        def write(self, handle: Any, batch: Any) -> None:
            super().write(handle, batch.where("false").limit(1))

    bench.add(*[(f"account-{n}", n) for n in range(50)])
    query = (
        lockstep.checkpointed(totals(bench))
        .sink(Lazy(bench.table), uid="lake")
        .option("checkpointLocation", bench.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(lockstep.LockstepError, match="operator 'totals' has no state of this epoch in partition"):
        query.awaitTermination(60)
