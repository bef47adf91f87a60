"""What snapshots promise, on random graphs and schedules: Chandy and Lamport's, Flink's two, and an epoch's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit_tests.snapshots.algorithms import Aligned, ChandyLamport, Epoch, Tracking
from unit_tests.snapshots.model import Algorithm, Channel, Graph, Row, Run, Snapshot, State, recover, surplus

T = TypeVar("T")
Barriers = dict[str, int]
SEEDS = st.integers(0, 2**32 - 1)
NAMES = "ABCDEF"


def some_of(draw: st.DrawFn, items: Sequence[T]) -> list[T]:
    chosen = draw(st.integers(0, 2 ** len(items) - 1))
    return [item for bit, item in enumerate(items) if chosen >> bit & 1]


def rows_of(draw: st.DrawFn, process: str, channels: list[Channel]) -> tuple[Row, ...]:
    """Up to four rows that start at ``process``, each on a way of its own through the channels."""
    rows = []
    for number, seed in enumerate(draw(st.lists(st.integers(0, 99), max_size=4)), start=1):
        walk, here = Random(seed), process
        way: list[str] = []
        targets = [receiver for sender, receiver in channels if sender == here]
        while targets and len(way) < len(NAMES):
            here = walk.choice(targets)
            way.append(here)
            targets = [receiver for sender, receiver in channels if sender == here and walk.random() < 0.9]
        if way:
            rows.append(Row(f"{process.lower()}{number}", tuple(way)))
    return tuple(rows)


@st.composite
def pipelines(draw: st.DrawFn, most_inputs: int = 5) -> tuple[Graph, Barriers]:
    """A graph without cycles, rows at its sources, and in each source the position of the barrier."""
    names = NAMES[: draw(st.integers(2, 6))]
    channels = []
    for index, name in enumerate(names[1:], start=1):
        channels += [(sender, name) for sender in some_of(draw, names[:index])[:most_inputs]]
    sources = [name for name in names if all(receiver != name for _, receiver in channels)]
    rows = {name: rows_of(draw, name, channels) if name in sources else () for name in names}
    return Graph(tuple(channels), rows), {source: draw(st.integers(0, len(rows[source]))) for source in sources}


@st.composite
def networks(draw: st.DrawFn) -> tuple[Graph, Barriers]:
    """Any graph, also with cycles; every process may send rows of its own, and enough of them start the snapshot."""
    names = NAMES[: draw(st.integers(1, 5))]
    pairs = [(sender, receiver) for sender in names for receiver in names]
    channels = some_of(draw, pairs)
    graph = Graph(tuple(channels), {name: rows_of(draw, name, channels) for name in names})
    barriers: Barriers = {}
    reached: set[str] = set()
    for name in draw(st.permutations(names)):
        if name not in reached:
            barriers[name] = draw(st.integers(0, len(graph.rows[name])))
            reached |= reachable(graph, name)
    return graph, barriers


def reachable(graph: Graph, process: str) -> set[str]:
    found, waiting = {process}, [process]
    while waiting:
        new = {receiver for _, receiver in graph.outputs(waiting.pop())} - found
        found |= new
        waiting += new
    return found


def play(graph: Graph, algorithm: Algorithm, seed: int) -> Run:
    return Run(graph, algorithm, Random(seed).choice)


def restored(graph: Graph, snapshot: Snapshot, seed: int) -> dict[str, State]:
    return recover(graph, snapshot, Random(seed).choice)


def rows_by_place(graph: Graph, snapshot: Snapshot) -> Counter[str]:
    """The rows that a snapshot has in front of its processes, in its channels, and at the end of their way."""
    found: Counter[str] = Counter()
    for process, state in snapshot.states.items():
        found.update(row.name for row in graph.rows[process][state.position :])
        found.update(row.name for row in state.seen.elements() if len(row.way) == 1)
    found.update(row.name for rows in snapshot.channels.values() for row in rows)
    return found


def sent_again(graph: Graph, snapshot: Snapshot) -> dict[str, Counter[Row]]:
    """Of each process, the rows in its recorded state that lie after the recorded positions of the sources."""
    ahead = {row.name for process, rows in graph.rows.items() for row in rows[snapshot.states[process].position :]}
    return {
        process: Counter({row: times for row, times in state.seen.items() if row.name in ahead})
        for process, state in snapshot.states.items()
    }


@given(networks(), SEEDS)
def test_every_run_ends_where_the_rows_say_whether_or_not_a_snapshot_is_taken(
    network: tuple[Graph, Barriers], seed: int
) -> None:
    graph, barriers = network
    assert play(graph, Algorithm({}), seed).states == graph.outcome()
    assert play(graph, ChandyLamport(barriers), seed).states == graph.outcome()


@pytest.mark.parametrize("algorithm", [Aligned, Tracking, Epoch])
@given(pipelines(), SEEDS)
def test_every_run_of_a_pipeline_goes_on_to_its_end(
    algorithm: type[Algorithm], pipeline: tuple[Graph, Barriers], seed: int
) -> None:
    graph, barriers = pipeline
    run = play(graph, algorithm(barriers), seed)
    assert run.states == graph.outcome()
    assert run.cut.keys() == graph.rows.keys()


@given(networks(), SEEDS)
def test_chandy_lamport_cuts_consistently_and_records_what_the_channels_hold_on_any_graph(
    network: tuple[Graph, Barriers], seed: int
) -> None:
    graph, barriers = network
    run = play(graph, ChandyLamport(barriers), seed)
    assert run.snapshot.states.keys() == graph.rows.keys()
    assert run.orphans() == []
    assert run.snapshot.channels == run.in_flight()


@given(networks(), SEEDS)
def test_chandy_lamport_has_every_row_in_exactly_one_place(network: tuple[Graph, Barriers], seed: int) -> None:
    graph, barriers = network
    snapshot = play(graph, ChandyLamport(barriers), seed).snapshot
    assert rows_by_place(graph, snapshot) == Counter(row.name for rows in graph.rows.values() for row in rows)


@given(networks(), SEEDS, SEEDS)
def test_restored_chandy_lamport_snapshot_ends_as_if_nothing_had_failed(
    network: tuple[Graph, Barriers], seed: int, again: int
) -> None:
    graph, barriers = network
    assert restored(graph, play(graph, ChandyLamport(barriers), seed).snapshot, again) == graph.outcome()


@given(pipelines(), SEEDS)
def test_aligned_barriers_cut_consistently_with_all_channels_empty(pipeline: tuple[Graph, Barriers], seed: int) -> None:
    graph, barriers = pipeline
    run = play(graph, Aligned(barriers), seed)
    assert run.orphans() == []
    assert run.in_flight() == {}


@given(pipelines(), SEEDS, SEEDS)
def test_cut_of_an_epoch_is_the_aligned_snapshot_whatever_the_schedules(
    pipeline: tuple[Graph, Barriers], seed: int, other: int
) -> None:
    graph, barriers = pipeline
    epoch = play(graph, Epoch(barriers), seed)
    assert epoch.snapshot == play(graph, Aligned(barriers), other).snapshot
    assert {source: epoch.snapshot.states[source].position for source in barriers} == barriers
    assert epoch.orphans() == []
    assert epoch.in_flight() == {}


@pytest.mark.parametrize("algorithm", [Aligned, Epoch])
@given(pipelines(), SEEDS, SEEDS)
def test_restored_aligned_snapshot_and_epoch_end_as_if_nothing_had_failed(
    algorithm: type[Algorithm], pipeline: tuple[Graph, Barriers], seed: int, again: int
) -> None:
    graph, barriers = pipeline
    assert restored(graph, play(graph, algorithm(barriers), seed).snapshot, again) == graph.outcome()


@given(pipelines(), SEEDS, SEEDS)
def test_tracking_barriers_lose_nothing_and_repeat_what_the_state_was_ahead_of_the_sources(
    pipeline: tuple[Graph, Barriers], seed: int, again: int
) -> None:
    graph, barriers = pipeline
    run = play(graph, Tracking(barriers), seed)
    states, outcome = restored(graph, run.snapshot, again), graph.outcome()
    for process, state in states.items():
        assert state.seen >= outcome[process].seen
    twice = surplus(graph, states)
    assert twice == sent_again(graph, run.snapshot)
    assert any(twice.values()) == bool(run.orphans())


def test_tracking_barriers_count_a_row_twice_in_some_schedule_and_aligned_ones_in_none() -> None:
    """Two inputs: the first row after A's barrier overtakes B's barrier."""
    row = Row("a1", ("C",))
    graph = Graph((("A", "C"), ("B", "C")), {"A": (row,), "B": (), "C": ()})
    twice = dict.fromkeys((Tracking, Aligned), 0)
    for algorithm in twice:
        for seed in range(50):
            snapshot = play(graph, algorithm({"A": 0, "B": 0}), seed).snapshot
            twice[algorithm] += restored(graph, snapshot, seed)["C"].seen[row] == 2
    assert twice[Tracking] > 0
    assert twice[Aligned] == 0


@given(pipelines(most_inputs=1), SEEDS, SEEDS)
def test_tracking_barriers_are_aligned_ones_where_no_process_has_two_inputs(
    pipeline: tuple[Graph, Barriers], seed: int, other: int
) -> None:
    graph, barriers = pipeline
    assert play(graph, Tracking(barriers), seed).snapshot == play(graph, Aligned(barriers), other).snapshot


def test_on_a_cycle_barriers_wait_for_themselves_and_chandy_lamport_does_not() -> None:
    graph = Graph((("A", "B"), ("B", "C"), ("C", "B")), {"A": (Row("a1", ("B", "C", "B")),), "B": (), "C": ()})
    assert play(graph, Aligned({"A": 0}), 1).cut.keys() == {"A"}
    assert play(graph, ChandyLamport({"A": 0}), 1).cut.keys() == {"A", "B", "C"}
