"""The runs that the docs show: two sources and a count, one schedule as far as each algorithm allows it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from unit_tests.snapshots.algorithms import Aligned, ChandyLamport, Epoch, Tracking
from unit_tests.snapshots.diagram import Diagram
from unit_tests.snapshots.model import Graph, Move, Row, Run
from unit_tests.snapshots.svg import draw

A, B, COUNT = "source A", "source B", "count"

GRAPH = Graph(
    ((A, COUNT), (B, COUNT)),
    {
        A: tuple(Row(name, (COUNT,)) for name in ("a1", "a2", "a3")),
        COUNT: (),
        B: tuple(Row(name, (COUNT,)) for name in ("b1", "b2", "b3", "b4")),
    },
)
BARRIERS = {A: 2, B: 3}

MOVES: dict[str, Move] = {"A": A, "B": B, "A>": (A, COUNT), "B>": (B, COUNT)}
WITH_BARRIERS = (
    "A B A> A B> B A> "  # a1, b1 and a2 have arrived,
    "A B A> "  # then A's barrier;
    "A B> A> B B> "  # a3 can overtake B's barrier,
    "B> B A> B>"  # which comes now
)
WITHOUT = "A B A> A B> B A> B B> B> A B A> B>"


class Script:
    """Chooses the moves of a list in their order; one that is not possible in its turn goes to the end."""

    def __init__(self, moves: str) -> None:
        self._left = deque(MOVES[move] for move in moves.split())

    def __call__(self, possible: list[Move]) -> Move:
        for _ in range(len(self._left)):
            move = self._left.popleft()
            if move in possible:
                return move
            self._left.append(move)
        return possible[0]


@dataclass(frozen=True)
class Shown:
    title: str
    description: str
    run: Run
    sides: tuple[str, str] = ("in the snapshot", "not in it")  # of the cut


def shown() -> dict[str, Shown]:
    """By the name of its picture, each run that the docs show."""
    return {
        "chandy-lamport": Shown(
            "Chandy and Lamport: record at the first marker, and keep what is still in the channels",
            "Source A records and sends a marker. The count records when it comes. Rows b2 and b3 left source B before "
            "that recorded and reach the count after it did, so they are recorded with the channel.",
            Run(GRAPH, ChandyLamport(BARRIERS), Script(WITH_BARRIERS)),
        ),
        "aligned": Shown(
            "Flink, EXACTLY_ONCE: hold an input back until the other barrier has come",
            "The barrier of source A is at the count first. Row a3, which follows it, has to wait until the barrier of "
            "source B has come too and the count has recorded. No row crosses the cut.",
            Run(GRAPH, Aligned(BARRIERS), Script(WITH_BARRIERS)),
        ),
        "tracking": Shown(
            "Flink, AT_LEAST_ONCE: hold nothing back, and a row overtakes the cut",
            "The count does not wait. Row a3, which source A sends after its barrier, is in the state of the count when "
            "that is recorded, and source A sends it again after a recovery.",
            Run(GRAPH, Tracking(BARRIERS), Script(WITH_BARRIERS)),
        ),
        "epoch": Shown(
            "An epoch: the sources stop at their barriers, everything drains, then all is recorded",
            "The sources stop where the epoch ends. When the last row has arrived everything is recorded at once; the cut "
            "is a straight line that no row crosses.",
            Run(GRAPH, Epoch(BARRIERS), Script(WITHOUT)),
            ("epoch N", "epoch N + 1"),
        ),
    }


def pictures() -> dict[str, str]:
    return {f"{name}.svg": draw(Diagram(it.run), it.title, it.description, it.sides) for name, it in shown().items()}
