"""One driver after the other: every crash point, up to so many crashes, every notification, every outcome.

A driver's life is a list of answers: how it hears of each decision, what becomes of each commit, which change of the
storage fails. Lives are enumerated as a tree of answers. At every step of a life a crash is tried by going on from a
copy of the world as it is at that step, for a crash leaves nothing else behind; steps that leave the same world, with the
same crashes and faults to come, have the same future and are played once. So two numbers are counted: the schedules that
are covered (every distinct list of answers and crashes), and the lives that were really played.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from unit_tests.simulation.invariants import BrokenError, Invariants
from unit_tests.simulation.life import Life, Setting, quiet
from unit_tests.simulation.steps import STORAGE_VERBS, Actor, Fault, News, Outcome, watch_failpoints
from unit_tests.simulation.story import Line, tell
from unit_tests.simulation.world import Crash, World

T = TypeVar("T")


@dataclass(frozen=True)
class Bounds:
    """How far the enumeration goes."""

    name: str
    setting: Setting
    crashes: int = 3
    oddities: int = 1  # outcomes other than done and faults of the storage, together, in a whole schedule
    news: tuple[News, ...] = tuple(News)
    outcomes: tuple[Outcome, ...] = tuple(Outcome)
    faults: tuple[Fault, ...] = ()


@dataclass
class Tally:
    """What an enumeration has covered."""

    schedules: int = 0
    lives: int = 0
    states: int = 0
    steps: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.schedules + other.schedules,
            self.lives + other.lives,
            self.states + other.states,
            self.steps + other.steps,
        )


@dataclass(frozen=True)
class Chapter:
    """One life of a schedule: the answers it got, and the step at which it crashed, if it did."""

    answers: tuple[int, ...] = ()
    crash: int | None = None


class ScheduleError(AssertionError):
    """A schedule broke an invariant. Its message is the story."""


@dataclass
class Scene:
    """What a crash at some step leaves behind."""

    world: World
    oddities: int
    step: int
    points: int = 1  # steps in a row that leave the same


class _Player:
    """Directs one life by its answers."""

    def __init__(self, bounds: Bounds, world: World, chapter: Chapter, oddities: int, number: int, film: bool) -> None:
        self._bounds, self.world, self._chapter = bounds, world, chapter
        self._film = film
        self._invariants = Invariants(world, bounds.setting.config, alone=True)
        self._changed = True
        self._actor = Actor(number, self)
        self.oddities = self._allowed = oddities
        self.given: list[int] = []
        self.options: list[int] = []
        self.scenes: list[Scene] = []
        self.steps = 0
        self.lines: list[Line] = []
        self.ended: str | None = None
        self.crashed = self.stopped = False

    def play(self) -> None:
        life = Life(self._bounds.setting, self.world, self._actor)
        watch_failpoints(lambda: self._actor)
        try:
            self.ended = life.play()
        except Crash:
            self.crashed = True
            self.lines.append(Line(self._actor.number, "crashes"))
        if self.ended is not None:
            self.lines.append(Line(self._actor.number, f"ends: {self.ended}"))
            if self.oddities == self._allowed:
                raise BrokenError(f"driver {self._actor.number} failed, though nothing around it had")
        self.stopped = life.stopped

    # --- as the steps' director ---------------------------------------------------------------------------------------

    def before(self, actor: Actor, line: Line) -> Fault | None:
        self._step(line)
        if not self._bounds.faults or line.verb not in STORAGE_VERBS:
            return None
        return self._odd((None, *self._bounds.faults))

    def after(self, actor: Actor, line: Line) -> None:
        self._changed = True
        self._invariants.check()

    def look(self, actor: Actor, line: Line) -> None:
        if line.verb == "is at":
            self._step(line)

    def outcome(self, actor: Actor, line: Line) -> Outcome:
        return self._odd(self._bounds.outcomes)

    def news(self, actor: Actor, epoch: int) -> News:
        return self._bounds.news[self._answer(len(self._bounds.news))]

    def tell(self, line: Line) -> None:
        self.lines.append(line)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _odd(self, options: Sequence[T]) -> T:
        answer = self._answer(len(options) if self.oddities else 1)
        if answer:
            self.oddities -= 1
            self._changed = True
        return options[answer]

    def _answer(self, options: int) -> int:
        index = len(self.given)
        answer = self._chapter.answers[index] if index < len(self._chapter.answers) else 0
        self.given.append(answer)
        self.options.append(options)
        return answer

    def _step(self, line: Line) -> None:
        crashes = self.steps == self._chapter.crash
        if crashes or line.verb != "is at":
            self.lines.append(line)
        if crashes:
            self._actor.dead = True
            raise Crash
        if self._film and len(self.given) >= len(self._chapter.answers):  # what came before is another life's
            if self._changed or not self.scenes:
                self.scenes.append(Scene(self.world.copy(), self.oddities, self.steps))
            else:
                self.scenes[-1].points += 1
            self._changed = False
        self.steps += 1


class Enumeration:
    """Plays everything within the bounds."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.tally = Tally()
        self._known: dict[Hashable, int] = {}  # state, and what may still happen → schedules from there
        self._closed: set[Hashable] = set()

    def play(self) -> Tally:
        """Play, or raise :class:`ScheduleError` with the story of the first schedule that breaks an invariant."""
        with quiet():
            self.tally.schedules = self._from(
                self.bounds.setting.world(), self.bounds.crashes, self.bounds.oddities, ()
            )
        self.tally.states = len(self._known) + len(self._closed)
        return self.tally

    def scenes(self, chapter: Chapter) -> list[Scene]:
        """What a crash at each step of a first life leaves behind; steps in a row that leave the same are one scene."""
        with quiet():
            return self._life(self.bounds.setting.world(), (), chapter, self.bounds.oddities, film=True).scenes

    def _from(self, world: World, crashes: int, oddities: int, chapters: tuple[Chapter, ...]) -> int:
        """How many schedules go on from here; all of them are played or known to be like others."""
        key = (world.state(), crashes, oddities)
        if key in self._known:
            return self._known[key]
        schedules = 0
        todo: list[tuple[int, ...]] = [()]
        while todo:
            answers = todo.pop()
            player = self._life(world, chapters, Chapter(answers), oddities, film=crashes > 0)
            for index in range(len(answers), len(player.options)):
                todo += [(*player.given[:index], other) for other in range(1, player.options[index])]
            self._close(player.world, (*chapters, Chapter(tuple(player.given))), player.stopped)
            schedules += 1
            for scene in player.scenes:
                crash = Chapter(tuple(player.given), scene.step)
                schedules += scene.points * self._from(scene.world, crashes - 1, scene.oddities, (*chapters, crash))
        self._known[key] = schedules
        return schedules

    def _close(self, world: World, chapters: tuple[Chapter, ...], stopped: bool) -> None:
        """A driver without misfortunes brings it to an end, and one more start finds nothing left to do."""
        key = (world.state(), stopped)
        if key in self._closed:
            return
        self._closed.add(key)
        last, config = self.bounds.setting.last, self.bounds.setting.config
        try:
            if stopped:
                Invariants(world, config).check_end(last)
            for number in range(2):
                player = self._life(world, (*chapters, *[Chapter()] * number), Chapter(), 0, film=False)
                world, checks = player.world, Invariants(player.world, config)
                checks.check_end(last)
                if number > 0:
                    checks.check_tidy()
        except BrokenError as broken:
            raise self._story((*chapters, Chapter(), Chapter()), broken) from None

    def _life(self, world: World, before: tuple[Chapter, ...], chapter: Chapter, oddities: int, film: bool) -> _Player:
        player = _Player(self.bounds, world.copy(), chapter, oddities, len(before) + 1, film)
        self.tally.lives += 1
        try:
            player.play()
        except (BrokenError, Exception) as broken:
            raise self._story((*before, chapter), broken) from None
        self.tally.steps += player.steps
        return player

    def _story(self, chapters: tuple[Chapter, ...], broken: BaseException) -> ScheduleError:
        """Play the chapters once more, this time with real crashes, and tell what happens."""
        again = play_chapters(self.bounds, chapters)
        return ScheduleError(f"{self.bounds.name}\n{tell(again.lines, words(again.broken or broken))}")


@dataclass
class Replay:
    """A schedule that was played from its beginning."""

    world: World
    lines: list[Line] = field(default_factory=list)
    broken: BaseException | None = None


def play_chapters(bounds: Bounds, chapters: Sequence[Chapter]) -> Replay:
    """Play a schedule with real crashes, raised in the protocol's code."""
    replay, oddities = Replay(bounds.setting.world()), bounds.oddities
    with quiet():
        for number, chapter in enumerate(chapters, 1):
            player = _Player(bounds, replay.world.copy(), chapter, oddities, number, film=False)
            try:
                player.play()
            except (BrokenError, Exception) as broken:
                replay.broken = broken
            replay.lines += player.lines
            replay.world, oddities = player.world, player.oddities
            if replay.broken is not None:
                break
    return replay


def words(broken: BaseException) -> str:
    """What is broken, for the story's last line."""
    return str(broken) if isinstance(broken, BrokenError) else f"{type(broken).__name__}: {broken}"
