"""Several drivers at once on one world, moved by a plan: paused at any step, resumed at any later one, killed, disturbed.

Every driver has a thread, and exactly one of them runs at any time, so that a plan always plays the same. A plan is a list
of moves, each after so many steps since the one before. When it is used up, the drivers that are paused go on, the one
that paused last first; then whatever is still on its way to the storage lands; then a driver without misfortunes
brings the stream to its end.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum

from unit_tests.simulation.exhaustive import ScheduleError, words
from unit_tests.simulation.invariants import BrokenError, Invariants
from unit_tests.simulation.life import Life, Setting, quiet
from unit_tests.simulation.steps import STORAGE_VERBS, Actor, Fault, News, Outcome, watch_failpoints
from unit_tests.simulation.story import Line, tell
from unit_tests.simulation.world import Crash

_MOST_DRIVERS = 8  # a plan that kills or overtakes more than these is played as far as they go


class Move(Enum):
    """What a plan can do, at a step of the driver that runs."""

    NEW = "new driver"  # the one that runs is paused, and another starts on the directory
    SWITCH = "switch"  # the one that runs is paused, and the one that has waited longest goes on
    CRASH = "crash"
    NOTIFY = "notify"  # the committer's thread gets a turn in the middle of an epoch
    RUN_AHEAD = "run ahead"  # the query's thread runs an epoch in the middle of a commit
    SILENCE = "silence"  # no notification any more
    STORAGE_BEFORE = "storage fails before"
    STORAGE_AFTER = "storage fails after"
    STORAGE_LATE = "storage fails, lands late"
    LAND = "land"  # what is late lands now
    SINK_FAILS = "sink fails"  # in phase 1
    ALREADY_DONE = "commit already done"
    RETRY = "commit retry"
    UNKNOWN_BEFORE = "commit fails before"
    UNKNOWN_AFTER = "commit fails after"
    SCHEMA = "schema changes"
    TIME = "an hour passes"


_FAULTS = {
    Move.STORAGE_BEFORE: Fault.BEFORE,
    Move.STORAGE_AFTER: Fault.AFTER,
    Move.STORAGE_LATE: Fault.LATE,
}
_OUTCOMES = {
    Move.ALREADY_DONE: Outcome.ALREADY_DONE,
    Move.RETRY: Outcome.RETRY,
    Move.UNKNOWN_BEFORE: Outcome.UNKNOWN_BEFORE,
    Move.UNKNOWN_AFTER: Outcome.UNKNOWN_AFTER,
}


@dataclass(frozen=True)
class Plan:
    """Moves, each with the number of steps to let pass before it."""

    moves: tuple[tuple[int, Move], ...] = ()

    def __str__(self) -> str:
        return ", ".join(f"{steps}: {move.value}" for steps, move in self.moves) or "nothing happens"


class _Player:
    """One driver, in a thread of its own."""

    def __init__(self, stage: Stage, number: int) -> None:
        self.actor = Actor(number, stage)
        self.life = Life(stage.setting, stage.world, self.actor)
        self.go = threading.Semaphore(0)
        self.ended = False
        self.silent = False
        self.faults: list[Fault] = []
        self.sink_fails = False
        self.outcomes: list[Outcome] = []
        self.thread = threading.Thread(target=self._run, args=(stage,), daemon=True)
        self.thread.start()

    def _run(self, stage: Stage) -> None:
        self.go.acquire()
        end = "stops"
        try:
            reason = self.life.play()
            end = end if reason is None else f"ends: {reason}"
        except Crash:
            end = "crashes"
        except BaseException as broken:
            stage.broken = stage.broken or broken
        stage.tell(Line(self.actor.number, end))
        self.ended = True
        stage.ended(self)


class Stage:
    """Plays one plan. ``closed`` remembers, between plans of one setting, what was brought to an end before."""

    def __init__(self, setting: Setting, plan: Plan, closed: set[Hashable] | None = None) -> None:
        self.setting, self.plan = setting, plan
        self._closed = set() if closed is None else closed
        self.world = setting.world()
        self.lines: list[Line] = []
        self.broken: BaseException | None = None
        self.steps = 0
        self.moves_played = 0
        self._invariants = Invariants(self.world, setting.config)
        self._moves = list(plan.moves)
        self._wait = self._moves[0][0] if self._moves else -1
        self._players: list[_Player] = []
        self._paused: list[_Player] = []  # the one that has waited longest first
        self._on: _Player | None = None
        self._main = threading.Semaphore(0)
        self._dismissing = False

    def play(self) -> Stage:
        """Play the plan to its end and check it; :class:`ScheduleError` tells the story when something is broken."""
        with quiet():
            watch_failpoints(lambda: None if self._on is None else self._on.actor)
            try:
                self._run_new()
                while self._moves and not self.broken and len(self._players) < _MOST_DRIVERS and not self._finished():
                    self._run_new()
                if self.broken is None:
                    self._close()
            except BrokenError as broken:
                self.broken = broken
            finally:
                self._dismiss()
        if self.broken is not None:
            raise ScheduleError(self.story()) from None
        return self

    @property
    def lives(self) -> int:
        """Drivers that were played."""
        return len(self._players)

    @property
    def resumed(self) -> bool:
        """Whether every move of the plan was played."""
        return self.moves_played == len(self.plan.moves)

    def story(self) -> str:
        """The setting, the plan, and every step, in words."""
        end = "" if self.broken is None else words(self.broken)
        return f"{self.setting}\n{self.plan}\n{tell(self.lines, end)}"

    def _finished(self) -> bool:
        return all(len(table.visible) > self.setting.last for table in self.world.tables.values())

    def _close(self) -> None:
        self._moves, self._wait = [], -1
        self.world.land()
        if self.world.state() in self._closed:
            return
        self._closed.add(self.world.state())
        for number in range(2):
            self._run_new()
            if self.broken is not None:
                return
            if not self._players[-1].life.stopped:
                raise BrokenError("a driver that nothing disturbed did not get to a clean stop")
            self._invariants.check_end(self.setting.last)
            if number > 0:
                self._invariants.check_tidy()

    # --- who runs -----------------------------------------------------------------------------------------------------

    def _run_new(self) -> None:
        """Start a driver and wait until no driver runs any more."""
        self._new().go.release()
        self._main.acquire()

    def _new(self) -> _Player:
        player = _Player(self, len(self._players) + 1)
        self._players.append(player)
        self._on = player
        return player

    def ended(self, player: _Player) -> None:
        """Called in the thread of a driver that is at its end: the one that paused last goes on."""
        if self._dismissing:
            return
        if self._paused and self.broken is None:
            self._on = self._paused.pop()
            self.tell(Line(self._on.actor.number, "goes on"))
            self._on.go.release()
        else:
            self._on = None
            self._main.release()

    def _dismiss(self) -> None:
        """End the threads of drivers that will not go on."""
        self._dismissing = True
        for player in self._paused:
            player.actor.dead = True
            player.go.release()
            player.thread.join()

    def _hand_over(self, to: _Player) -> None:
        assert self._on is not None
        me = next(
            player for player in self._players if player is not to and player.thread is threading.current_thread()
        )
        self._paused.append(me)
        self._on = to
        to.go.release()
        me.go.acquire()
        if me.actor.dead:
            raise Crash

    # --- as the steps' director ---------------------------------------------------------------------------------------

    def before(self, actor: Actor, line: Line) -> Fault | None:
        self._step(line)
        self.tell(line)
        player = self._players[actor.number - 1]
        if line.verb in STORAGE_VERBS:
            return player.faults.pop(0) if player.faults else None
        if player.sink_fails and line.verb.startswith(("begins", "writes", "pre-commits")):
            player.sink_fails = False
            return Fault.AFTER
        return None

    def after(self, actor: Actor, line: Line) -> None:
        if self.broken is None:
            self._invariants.check()

    def look(self, actor: Actor, line: Line) -> None:
        self._step(line)

    def outcome(self, actor: Actor, line: Line) -> Outcome:
        player = self._players[actor.number - 1]
        return player.outcomes.pop(0) if player.outcomes else Outcome.DONE

    def news(self, actor: Actor, epoch: int) -> News:
        return News.NEVER if self._players[actor.number - 1].silent else News.ON_TIME

    def tell(self, line: Line) -> None:
        self.lines.append(line)

    def _step(self, line: Line) -> None:
        self.steps += 1
        while self._wait == 0:
            (_, move), self._moves = self._moves[0], self._moves[1:]
            self._wait = self._moves[0][0] if self._moves else -1
            self.moves_played += 1
            self._do(move, line)
        self._wait -= 1

    def _do(self, move: Move, line: Line) -> None:
        assert self._on is not None
        player = self._on
        if move is Move.CRASH:
            self.tell(Line(0, f"  (about to: {line})"))
            player.actor.dead = True
            raise Crash
        if move is Move.NEW and len(self._players) < _MOST_DRIVERS:
            self.tell(Line(0, f"driver {player.actor.number} is paused, about to: {line}"))
            self._hand_over(self._new())
        elif move is Move.SWITCH and self._paused:
            other = self._paused.pop(0)
            self.tell(
                Line(
                    0, f"driver {player.actor.number} is paused, about to: {line}; driver {other.actor.number} goes on"
                )
            )
            self._hand_over(other)
        elif move is Move.NOTIFY:
            self.tell(Line(player.actor.number, "lets its committer look"))
            player.life.notify()
        elif move is Move.RUN_AHEAD:
            player.life.run_ahead()
        elif move is Move.SILENCE:
            player.silent = True
        elif move in _FAULTS:
            player.faults.append(_FAULTS[move])
        elif move is Move.SINK_FAILS:
            player.sink_fails = True
        elif move in _OUTCOMES:
            player.outcomes.append(_OUTCOMES[move])
        else:
            self._disturb_world(move)

    def _disturb_world(self, move: Move) -> None:
        if move is Move.LAND and self.world.late:
            self.tell(Line(0, f"what was late lands: {', '.join(path for _, path, _ in self.world.late)}"))
            self.world.land()
            self._invariants.check()
        elif move is Move.SCHEMA:
            self.tell(Line(0, "the schema of every table changes"))
            for table in self.world.tables.values():
                table.schema += 1
        elif move is Move.TIME:
            self.world.clock.advance(3600)
