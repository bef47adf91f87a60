"""Processes joined by first-in-first-out channels, run one move at a time: what snapshot algorithms are played on.

A row carries the way that it takes, so the end does not depend on the order of moves. What does is the snapshot.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf

Channel = tuple[str, str]  # sender, receiver
Move = str | Channel  # a process goes on with its own input, or a channel delivers
Schedule = Callable[[list[Move]], Move]  # chooses among the moves that are possible


@dataclass(frozen=True)
class Row:
    """A row in a channel or in a state; ``way`` names the processes that it has still to visit."""

    name: str
    way: tuple[str, ...]


@dataclass(frozen=True)
class Barrier:
    """Chandy and Lamport's marker, Flink's barrier."""


@dataclass
class Message:
    """What went through a channel, and at which moves it was sent and received: a run's history is a list of these."""

    channel: Channel
    content: Row | Barrier
    sent: int
    received: float = inf


@dataclass
class State:
    position: int = 0  # how much of its own input the process has sent
    seen: Counter[Row] = field(default_factory=Counter)

    def copy(self) -> State:
        return State(self.position, self.seen.copy())


@dataclass
class Snapshot:
    states: dict[str, State] = field(default_factory=dict)
    channels: dict[Channel, list[Row]] = field(default_factory=dict)  # those that are not empty


@dataclass(frozen=True)
class Graph:
    channels: tuple[Channel, ...]
    rows: Mapping[str, tuple[Row, ...]]  # of every process, the input of its own; it can be read again

    def inputs(self, process: str) -> list[Channel]:
        return [channel for channel in self.channels if channel[1] == process]

    def outputs(self, process: str) -> list[Channel]:
        return [channel for channel in self.channels if channel[0] == process]

    def outcome(self) -> dict[str, State]:
        """Where every run ends that nothing disturbs, computed without running."""
        states = {process: State(len(rows)) for process, rows in self.rows.items()}
        for row in (row for rows in self.rows.values() for row in rows):
            for visit, process in enumerate(row.way):
                states[process].seen[Row(row.name, row.way[visit:])] += 1
        return states


class Algorithm:
    """How a snapshot is taken; this one takes none.

    ``barriers`` says which processes start it, and after how many rows of their own. A run calls ``begin`` once for each
    of them, unless the process is recorded by then, and the others whenever what they are named for happens.
    """

    def __init__(self, barriers: Mapping[str, int]) -> None:
        self.barriers = barriers

    def is_due(self, run: Run, process: str) -> bool:
        return process not in run.cut and run.states[process].position == self.barriers.get(process)

    def may_go_on(self, run: Run, process: str) -> bool:
        return True

    def may_deliver(self, run: Run, channel: Channel) -> bool:
        return True

    def begin(self, run: Run, process: str) -> None: ...

    def on_barrier(self, run: Run, channel: Channel) -> None: ...

    def on_row(self, run: Run, channel: Channel, row: Row) -> None: ...

    def on_rest(self, run: Run) -> None:
        """Nothing can move."""


class Run:
    """One life of a graph: from its beginning or from a snapshot, until nothing moves."""

    def __init__(self, graph: Graph, algorithm: Algorithm, choose: Schedule, start: Snapshot | None = None) -> None:
        start = start or Snapshot({process: State() for process in graph.rows})
        self.graph, self.algorithm = graph, algorithm
        self.states = {process: state.copy() for process, state in start.states.items()}
        self.history: list[Message] = []
        self.queues: dict[Channel, deque[Message]] = {channel: deque() for channel in graph.channels}
        self.moves = 0
        self.cut: dict[str, int] = {}  # process → the move at which its state was recorded
        self.held: dict[Move, int] = {}  # what the algorithm did not allow → since which move
        self.snapshot = Snapshot()
        for channel, rows in start.channels.items():
            for row in rows:
                self.send(channel, row)
        while possible := self._possible():
            self.moves += 1
            move = choose(possible)
            if isinstance(move, str):
                self._go_on(move)
            else:
                self._deliver(move)

    def send(self, channel: Channel, content: Row | Barrier) -> None:
        message = Message(channel, content, sent=self.moves)
        self.history.append(message)
        self.queues[channel].append(message)

    def record(self, process: str) -> None:
        self.cut[process] = self.moves
        self.snapshot.states[process] = self.states[process].copy()

    def _possible(self) -> list[Move]:
        moves = self._moves()
        if not moves:
            self.moves += 1
            self.algorithm.on_rest(self)
            moves = self._moves()
        return moves

    def _moves(self) -> list[Move]:
        possible: list[Move] = []
        for process, rows in self.graph.rows.items():
            if not self.algorithm.may_go_on(self, process):
                self.held.setdefault(process, self.moves)
            elif self.states[process].position < len(rows) or self.algorithm.is_due(self, process):
                possible.append(process)
        for channel, queue in self.queues.items():
            if not self.algorithm.may_deliver(self, channel):
                self.held.setdefault(channel, self.moves)
            elif queue:
                possible.append(channel)
        return possible

    def _go_on(self, process: str) -> None:
        if self.algorithm.is_due(self, process):
            self.algorithm.begin(self, process)
            return
        state = self.states[process]
        row = self.graph.rows[process][state.position]
        state.position += 1
        self.send((process, row.way[0]), row)

    def _deliver(self, channel: Channel) -> None:
        message = self.queues[channel].popleft()
        message.received = self.moves
        if isinstance(message.content, Barrier):
            self.algorithm.on_barrier(self, channel)
            return
        row, process = message.content, channel[1]
        self.algorithm.on_row(self, channel, row)
        self.states[process].seen[row] += 1
        if rest := row.way[1:]:
            self.send((process, rest[0]), Row(row.name, rest))

    # What the history says about the cut, whatever the algorithm believes.

    def orphans(self) -> list[Message]:
        """Rows that were received before the cut and sent after it: with one of these a cut is not consistent."""
        return [
            message
            for message in self.history
            if isinstance(message.content, Row) and self._sent_after(message) and not self._received_after(message)
        ]

    def in_flight(self) -> dict[Channel, list[Row]]:
        """Rows that were sent before the cut and received after it, by channel."""
        found: dict[Channel, list[Row]] = {}
        for message in self.history:
            row = message.content
            if isinstance(row, Row) and not self._sent_after(message) and self._received_after(message):
                found.setdefault(message.channel, []).append(row)
        return found

    def _sent_after(self, message: Message) -> bool:
        return message.sent > self.cut[message.channel[0]]

    def _received_after(self, message: Message) -> bool:
        return message.received > self.cut[message.channel[1]]


def recover(graph: Graph, snapshot: Snapshot, choose: Schedule) -> dict[str, State]:
    """Where a run ends that begins at the snapshot: sources are read again from their positions, nothing else is kept."""
    return Run(graph, Algorithm({}), choose, start=snapshot).states


def surplus(graph: Graph, states: Mapping[str, State]) -> dict[str, Counter[Row]]:
    """Of each process, the rows that it counted more often than it should have."""
    outcome = graph.outcome()
    return {process: state.seen - outcome[process].seen for process, state in states.items()}
