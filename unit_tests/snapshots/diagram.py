"""Where everything of a run goes in a space-time diagram: a line per process, time to the right, rows as arrows."""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot

from unit_tests.snapshots.model import Barrier, Message, Row, Run, recover, surplus

LEFT, STEP, TOP, GAP = 80, 43, 126, 112


@dataclass(frozen=True)
class Point:
    x: float
    y: float

    def towards(self, other: Point, distance: float) -> Point:
        share = distance / hypot(other.x - self.x, other.y - self.y)
        return Point(self.x + (other.x - self.x) * share, self.y + (other.y - self.y) * share)


@dataclass(frozen=True)
class Arrow:
    """From sent to received; ``kind`` is ``before`` or ``after`` the barrier, ``kept``, ``twice`` or ``barrier``."""

    kind: str
    start: Point
    end: Point


@dataclass(frozen=True)
class Dot:
    """A row where it is sent by its source, or received."""

    kind: str
    at: Point
    name: str


class Diagram:
    def __init__(self, run: Run) -> None:
        self.run = run
        self.processes = list(run.graph.rows)
        self.repeated = surplus(run.graph, recover(run.graph, run.snapshot, lambda moves: moves[0]))
        self._after = {
            row.name
            for process, rows in run.graph.rows.items()
            for row in rows[run.snapshot.states[process].position :]
        }
        self.arrows: list[Arrow] = []
        self.dots: dict[Point, Dot] = {}
        self.waiting: list[Point] = []  # where a barrier comes to a process that does not record at once
        for message in run.history:
            self._place(message)
        self.records = [self.point(process, run.cut[process]) for process in self.processes]
        self.holds = [self._hold(held if isinstance(held, str) else held[1], since) for held, since in run.held.items()]
        self.bottom = self.point(self.processes[-1], 0).y

    def point(self, process: str, move: float) -> Point:
        return Point(LEFT + STEP * move, TOP + GAP * self.processes.index(process))

    def _hold(self, process: str, since: int) -> tuple[Point, Point]:
        return self.point(process, since), self.point(process, self.run.cut[process])

    def _place(self, message: Message) -> None:
        start, end = self.point(message.channel[0], message.sent), self.point(message.channel[1], message.received)
        if isinstance(message.content, Barrier):
            self.arrows.append(Arrow("barrier", start, end))
            if self.run.cut[message.channel[1]] != message.received:
                self.waiting.append(end)
            return
        row = message.content
        before = "after" if row.name in self._after else "before"
        if any(row.name == other.name for rows in self.repeated.values() for other in rows):
            kind = "twice"
        elif row in self.run.snapshot.channels.get(message.channel, []):
            kind = "kept"
        else:
            kind = before
        self.arrows.append(Arrow(kind, start, end))
        self.dots.setdefault(start, Dot(before if kind == "kept" else kind, start, row.name))
        self.dots[end] = Dot(kind, end, row.name)

    def snapshot_in_words(self) -> str:
        words = []
        for process in self.processes:
            state = self.run.snapshot.states[process]
            source = bool(self.run.graph.rows[process])
            words.append(f"{process} after {number(state.position)}" if source else f"{process} {names(state.seen)}")
        kept = [
            f"{names(rows)} from {sender} to {receiver}"
            for (sender, receiver), rows in self.run.snapshot.channels.items()
        ]
        return f"Snapshot: {', '.join(words)}; in channels: {', '.join(kept) or 'nothing'}."

    def recovery_in_words(self) -> str:
        twice = [f"{process} has {names(rows)} twice" for process, rows in self.repeated.items() if rows]
        return f"After a recovery from it: {', '.join(twice) or 'every row is counted once'}."


def number(rows: int) -> str:
    return f"{rows} row" if rows == 1 else f"{rows} rows"


def names(rows: list[Row] | dict[Row, int]) -> str:
    return " ".join(sorted(row.name for row in rows)) or "nothing"
