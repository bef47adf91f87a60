"""Whatever is done in whatever order, over epochs and restarts: state and timers are what plain Python says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.state import KeyedProcessFunction, Row, TimeDomain, ValueState
from lockstep.state.ddl import parse_columns
from lockstep.state.elements import rows_of_columns
from lockstep.state.group import GroupInput, GroupOutput, GroupRuntime, peek
from lockstep.state.operator_spec import OperatorSpec
from lockstep.state.row import row_type
from unit_tests.state_model import BROADCAST, INPUT, OUTPUT, TTLS, Everything, Model

KEYS = st.sampled_from(["a", "b", "c", "ä€", "", None])
SMALL = st.integers(-1, 1)
TEXT = st.sampled_from(["x", "y", "", "\x00"])
DOUBLES = st.sampled_from([0.0, -0.0, 1.5, 1e300])
INTS = st.one_of(SMALL, st.sampled_from([2**63 - 1, -(2**63)]))
TIMES = st.sampled_from([-1, 0, 5, 7, 10, 14, 20, 21, 35, 36, 70])  # few, so that keys meet at the same time
SPEC = OperatorSpec(
    uid="everything",
    key=parse_columns("k string"),
    input=parse_columns(INPUT),
    output=parse_columns(OUTPUT),
    broadcast=parse_columns(BROADCAST),
)
ELEMENT, RULE = row_type(("k", "op")), row_type(("op",))


def operation(target: str, *methods: tuple[Any, ...]) -> st.SearchStrategy[tuple[Any, ...]]:
    """One of the methods with drawn arguments, on the state ``target``."""
    drawn = st.one_of(
        *(st.tuples(*(a if isinstance(a, st.SearchStrategy) else st.just(a) for a in m)) for m in methods)
    )
    return drawn.map(lambda call: (target, *call))


LIST = st.lists(DOUBLES, max_size=3)
KEYED: dict[str, Callable[[str], st.SearchStrategy[Any]]] = {
    "value": lambda suffix: operation(f"value{suffix}", ("value",), ("update", INTS), ("update", None), ("clear",)),
    "nested": lambda suffix: operation(
        f"nested{suffix}", ("value",), ("update", st.tuples(SMALL | st.none(), st.lists(TEXT, max_size=2))), ("clear",)
    ),
    "list": lambda suffix: operation(
        f"list{suffix}", ("get",), ("add", DOUBLES), ("add_all", LIST), ("update", LIST), ("clear",)
    ),
    "map": lambda suffix: operation(
        f"map{suffix}",
        ("get", SMALL),
        ("get", SMALL, "none"),
        ("put", SMALL, TEXT | st.none()),
        ("put_all", st.dictionaries(SMALL, TEXT, max_size=3)),
        ("remove", SMALL),
        ("contains", SMALL),
        ("keys",),
        ("values",),
        ("items",),
        ("is_empty",),
        ("clear",),
    ),
    "map of lists": lambda suffix: operation(
        f"lists{suffix}", ("get", TEXT), ("put", TEXT, st.lists(SMALL, max_size=2)), ("remove", TEXT), ("items",)
    ),
    "reducing": lambda suffix: operation(f"sum{suffix}", ("get",), ("add", SMALL), ("clear",)),
    "aggregating": lambda suffix: operation(f"mean{suffix}", ("get",), ("add", SMALL), ("clear",)),
    "raw": lambda suffix: operation(f"raw{suffix}", ("value",), ("update", st.binary(max_size=3)), ("clear",)),
}
KINDS = {
    **{f"{kind}{suffix}": make(suffix) for kind, make in KEYED.items() for suffix in TTLS},
    "operator list": operation(
        "operators", ("get",), ("add", INTS), ("add_all", st.lists(SMALL, max_size=2)), ("clear",)
    ),
    "union list": operation(
        "union", ("get",), ("add", st.lists(TEXT, max_size=2)), ("update", st.just([["z"], []])), ("clear",)
    ),
    "raw operator": operation("raw_operator", ("value",), ("update", st.binary(max_size=3)), ("clear",)),
    "broadcast": operation("rules", ("get", TEXT), ("contains", TEXT), ("items",)),
}
PROCESSING_TIMERS = operation(
    "timers", ("register_processing_time_timer", TIMES), ("delete_processing_time_timer", TIMES)
)
EVENT_TIMERS = operation("timers", ("register_event_time_timer", TIMES), ("delete_event_time_timer", TIMES))
RULES = st.one_of(st.tuples(st.just("put"), TEXT, SMALL), st.tuples(st.just("remove"), TEXT), st.just(("clear",)))


@dataclass
class Epoch:
    """What happens between two snapshots, and what happens to the process before."""

    elapsed: int
    elements: list[tuple[Any, tuple[Any, ...]]] = field(default_factory=list)
    broadcast: list[tuple[Any, ...]] = field(default_factory=list)
    restart: bool = False  # a new process
    failed_first: bool = False  # the epoch runs twice
    restored_union: bool = False  # a restore hands over the union lists


def epochs(
    operations: st.SearchStrategy[Any], rules: bool = False, keys: st.SearchStrategy[Any] = KEYS
) -> st.SearchStrategy[list[Epoch]]:
    elements = st.tuples(keys, operations)
    return st.lists(
        st.builds(
            Epoch,
            elapsed=st.sampled_from([0, 0, 1, 5, 10, 19, 20, 21, 60]),
            elements=st.lists(elements, max_size=12) | st.lists(elements, max_size=1),
            broadcast=st.lists(RULES, max_size=2) if rules else st.just([]),
            restart=st.booleans(),
            failed_first=st.booleans(),
            restored_union=st.booleans(),
        ),
        min_size=1,
        max_size=8,
    )


class Lockstep:
    """Runs schedules and keeps nothing but bytes from one epoch to the next."""

    def __init__(self, spec: OperatorSpec = SPEC, function: type[KeyedProcessFunction] = Everything) -> None:
        self.spec, self.function = spec, function
        self.blob: bytes | None = None
        self.restart()

    def restart(self) -> None:
        self.runtime = GroupRuntime(self.spec, self.function())
        self.runtime.open()

    def run(self, given: GroupInput, failed_first: bool = False) -> tuple[list[Any], GroupOutput]:
        output = self.runtime.run(self.blob, given)
        if failed_first:  # the attempt's result is lost; the next one starts from the same bytes
            again = self.runtime.run(self.blob, given)
            assert again.batches == output.batches
            assert again == output
        if output.blob is not None:
            self.blob = output.blob or None
        rows = [row for b in output.batches for row in rows_of_columns(b.columns, self.spec.output)]
        return [tuple(row) for row in rows], output


@pytest.mark.parametrize("kind", list(KINDS))
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_each_state_is_what_the_model_says(kind: str, data: st.DataObject) -> None:
    """Few keys and one state, so that much happens to each entry."""
    schedule = data.draw(epochs(KINDS[kind], kind == "broadcast", st.sampled_from(["a", None])))
    compare(schedule, with_watermark=False)


@settings(max_examples=80, deadline=None)
@given(schedule=epochs(PROCESSING_TIMERS | EVENT_TIMERS, keys=st.sampled_from(["b", "a", None])))
def test_timers_are_what_the_model_says(schedule: list[Epoch]) -> None:
    compare(schedule, with_watermark=True)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(schedule=epochs(st.one_of(*KINDS.values(), PROCESSING_TIMERS, EVENT_TIMERS), rules=True))
def test_states_and_timers_together_are_what_the_model_says(schedule: list[Epoch]) -> None:
    compare(schedule, with_watermark=True)


def compare(schedule: list[Epoch], with_watermark: bool) -> None:
    """Runs both; after every epoch, what was emitted and all that is stored must be the same."""
    real, model = Lockstep(), Model()
    now = 0
    for number, epoch in enumerate(schedule):
        now += epoch.elapsed
        model.now = now
        model.watermark = max(now - 15, 0) if with_watermark else None
        if epoch.restart:
            real.restart()
        given_now = GroupInput(
            key_group=3,
            epoch=number,
            processing_time=now,
            watermark=model.watermark,
            keys=[key for key, _ in epoch.elements],
            elements=[ELEMENT._make((key, repr(op))) for key, op in epoch.elements],
            broadcast=[RULE._make((repr(rule),)) for rule in epoch.broadcast],
            union=[] if epoch.restored_union else None,  # the group is the only one
        )
        stored = real.blob
        due = any(
            first is not None and limit is not None and first <= limit
            for first, limit in zip(peek(stored), (now, model.watermark), strict=True)
        )
        expected = model.epoch(epoch.broadcast, epoch.elements)
        rows, output = real.run(given_now, epoch.failed_first)

        assert rows == expected
        assert (output.next_processing, output.next_event) == tuple(
            model.next(domain) for domain in (TimeDomain.PROCESSING_TIME, TimeDomain.EVENT_TIME)
        )
        assert peek(real.blob) == (output.next_processing, output.next_event)
        assert output.size == len(real.blob or b"")
        if given_now.has_work or due:
            assert output.keys == len(model.keys())
            assert (real.blob is None) == model.is_empty()
        else:
            assert output.blob is None
        assert_same_contents(real, model, given_now)


def assert_same_contents(real: Lockstep, model: Model, now: GroupInput) -> None:
    """Reads everything that is stored, as the next epoch would."""
    run = real.runtime.load(real.blob, GroupInput(3, now.epoch + 1, now.processing_time, now.watermark))
    for name in ("operators", "union"):
        assert run.states[name].get() == getattr(model, name)  # type: ignore[attr-defined]
    assert run.states["raw_operator"].value() == model.raw_operator  # type: ignore[attr-defined]
    assert list(run.states["rules"].items()) == list(model.rules.items())  # type: ignore[attr-defined]
    keyed = [name for name, state in run.states.items() if state.keyed]
    run.context.enter_keys()
    for key in {*model.keys(), "a"}:
        run.context.key = key
        for name in keyed:
            state: Any = run.states[name]
            stored = (
                dict(state.items())
                if hasattr(state, "items")
                else state.value()
                if hasattr(state, "value")
                else state.get()
            )
            assert repr(stored) == repr(model.contents(name, key)), name
        for domain, timers in run.timers.items():
            assert timers.of(key) == sorted(time for time, owner in model.timers[domain] if owner == key)


class Counting(KeyedProcessFunction):
    seen = ValueState("bigint", default=0)

    def process_element(self, row: Row, ctx: Any) -> Any:
        self.seen.update(self.seen.value() + 1)
        return [(repr(ctx.key), self.seen.value())]


COLUMNS = {
    "bigint": st.integers(-(2**63), 2**63 - 1) | st.none(),
    "double": st.sampled_from([float("nan"), 0.0, -0.0, 1.5, float("inf"), None]),
    "boolean": st.booleans() | st.none(),
    "binary": st.binary(max_size=3) | st.none(),
    "date": st.dates() | st.none(),
    "decimal(10,2)": st.decimals(-1000, 1000, places=2) | st.none(),
}


@settings(max_examples=150, deadline=None)
@given(data=st.data(), types=st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=3))
def test_same_keys_meet_and_different_ones_do_not_whatever_their_type(data: st.DataObject, types: list[str]) -> None:
    columns = ", ".join(f"k{i} {ddl}" for i, ddl in enumerate(types))
    spec = OperatorSpec(
        "keys", parse_columns(columns), parse_columns(columns), parse_columns("key string, seen bigint")
    )
    pool = data.draw(st.lists(st.tuples(*(COLUMNS[ddl] for ddl in types)), min_size=1, max_size=4))
    batches = data.draw(st.lists(st.lists(st.sampled_from(pool), max_size=6), min_size=1, max_size=4))
    real, seen = Lockstep(spec, Counting), dict[str, int]()
    make = row_type(spec.input.names)._make
    for number, rows in enumerate(batches):
        # as an engine would, which decodes each value anew: no NaN is the same object as another
        elements = [make(float(str(v)) if isinstance(v, float) else v for v in row) for row in rows]
        emitted, output = real.run(GroupInput(0, number, 0, elements=elements), failed_first=True)
        for row, (_, count) in zip(rows, emitted, strict=True):
            name = repr([0.0 if v == 0 and isinstance(v, float) else v for v in row])
            seen[name] = seen.get(name, 0) + 1
            assert count == seen[name]
        assert output.keys == len(seen)


class ByElement(KeyedProcessFunction):
    total = ValueState("bigint", default=0)

    def process_element(self, row: Row, ctx: Any) -> Any:
        self.total.update(self.total.value() + row.v)


class ByBatch(ByElement):
    def process_batch(self, batch: Any, ctx: Any) -> None:
        sums = batch.groupby("k", dropna=False).v.sum()
        self.total.update_many(sums.index, sums + self.total.get_many(sums.index))


class ByScope(ByElement):
    def process_batch(self, batch: Any, ctx: Any) -> None:
        for key, value in zip(batch.k, batch.v.tolist(), strict=True):
            with ctx.keyed(key):
                self.total.update(self.total.value() + value)


@settings(max_examples=60, deadline=None)
@given(
    batches=st.lists(
        st.lists(st.tuples(st.sampled_from(["a", "b", "ä", None]), st.integers(-9, 9)), max_size=8), max_size=4
    )
)
def test_a_batch_leaves_the_state_that_its_elements_leave_one_by_one(batches: list[list[tuple[Any, int]]]) -> None:
    spec = OperatorSpec(
        "sums", parse_columns("k string"), parse_columns("k string, v bigint"), parse_columns("k string")
    )
    make = row_type(("k", "v"))._make
    finals = []
    for function in (ByElement, ByBatch, ByScope):
        real = Lockstep(spec, function)
        for number, rows in enumerate(batches):
            real.run(GroupInput(0, number, 0, elements=[make(row) for row in rows]), failed_first=True)
        run = real.runtime.load(real.blob, GroupInput(0, 9, 0))
        finals.append(dict(run.states["total"].keys_with_entries()))  # type: ignore[attr-defined]
    assert finals[0] == finals[1] == finals[2]
