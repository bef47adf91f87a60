"""The plans that are played: every pause of one driver under another, and random ones from a seed."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator
from datetime import timedelta

from lockstep.config import CheckpointConfig, CheckpointMode
from unit_tests.simulation.exhaustive import Bounds
from unit_tests.simulation.life import Setting
from unit_tests.simulation.stage import Move, Plan, Stage
from unit_tests.simulation.steps import Fault, News, Outcome

HOUR = timedelta(hours=1)
EVERY_EPOCH = CheckpointConfig()
ONE_FOR_ALL = CheckpointConfig(interval=HOUR, min_pause=HOUR)
AT_LEAST_ONCE = CheckpointConfig(mode=CheckpointMode.AT_LEAST_ONCE)

_RAISES = (Fault.BEFORE, Fault.AFTER)

_TWO = Setting(sinks=("a", "b"))
_SHARED = Setting(last=2, config=ONE_FOR_ALL, in_one_transaction=True)
_EARLY = Setting(config=AT_LEAST_ONCE)
_CHANGING = Setting(sinks=("a", "b"), schema_changes=True)
_TOLERANT = Setting(config=CheckpointConfig(tolerable_failures=1))

BOUNDS = (  # what `make simulate` plays
    Bounds("any outcome, three crashes", Setting(), crashes=3, oddities=1),
    Bounds("two sinks, two crashes", _TWO, crashes=2, oddities=0),
    Bounds("two sinks, any outcome, a crash", _TWO, crashes=1, oddities=1),
    Bounds("three epochs, two crashes", Setting(last=2), crashes=2, oddities=0),
    Bounds("one checkpoint for three epochs, two crashes", _SHARED, crashes=2, oddities=0),
    Bounds("one checkpoint for three epochs, any outcome, a crash", _SHARED, crashes=1, oddities=1),
    Bounds("a storage fault, two crashes", Setting(), 2, 1, (News.ON_TIME, News.NEVER), (Outcome.DONE,), _RAISES),
    Bounds("two storage faults, one tolerated, a crash", _TOLERANT, 1, 2, (News.ON_TIME,), (Outcome.DONE,), _RAISES),
    Bounds("tables that change, two crashes", _CHANGING, crashes=2, oddities=0),
    Bounds("at least once, two crashes", _EARLY, crashes=2, oddities=0),
    Bounds("at least once, any outcome, a crash", _EARLY, crashes=1, oddities=1),
)
SHORT = (  # what the unit tests play of it
    Bounds("a storage fault", Setting(), 1, 1, (News.ON_TIME,), (Outcome.DONE,), _RAISES),
    Bounds("any outcome", Setting(), crashes=1, oddities=1, news=(News.ON_TIME, News.MID_EPOCH, News.NEVER)),
    Bounds("two sinks", _TWO, crashes=1, oddities=0),
    Bounds("two sinks, any outcome", _TWO, crashes=0, oddities=1),
    Bounds("one checkpoint for three epochs", _SHARED, crashes=1, oddities=0),
    Bounds("a tolerated fault", _TOLERANT, 0, 2, (News.ON_TIME,), (Outcome.DONE,), _RAISES),
    Bounds("tables that change", _CHANGING, 1, 0, (News.ON_TIME, News.NEXT_EPOCH)),
    Bounds("at least once", _EARLY, crashes=1, oddities=0),
    Bounds("at least once, any outcome", _EARLY, crashes=0, oddities=1),
    Bounds("three crashes", Setting(), crashes=3, oddities=0, news=(News.ON_TIME, News.NEXT_EPOCH)),
)

PAUSES = {
    "every epoch": (Setting(), ()),
    "two sinks": (Setting(sinks=("a", "b")), ()),
    "the table changes meanwhile": (Setting(), (Move.SCHEMA,)),
    "one checkpoint for all, the table changes": (Setting(config=ONE_FOR_ALL, in_one_transaction=True), (Move.SCHEMA,)),
    "at least once": (Setting(config=AT_LEAST_ONCE), ()),
    "at least once, attempts without names": (Setting(config=AT_LEAST_ONCE, names_attempts=False), ()),
}


def pauses(setting: Setting, meanwhile: tuple[Move, ...], stride: int = 1, first: int = 0) -> Iterator[Stage]:
    """Play every schedule of this kind: a driver is paused at any step, another one starts and is paused at any of its
    steps, the first goes on to its end, then the other one. With a ``stride``, every so many-th of them."""
    closed: set[Hashable] = set()
    pause, paused = 0, True
    while paused:
        resume, resumed = (first + pause) % stride, True
        while resumed:
            moves = ((pause, Move.NEW), *((0, move) for move in meanwhile), (resume, Move.SWITCH))
            stage = Stage(setting, Plan(moves), closed).play()
            paused, resumed = stage.moves_played > 0, stage.resumed
            resume += stride
            yield stage
            if not paused:
                return
        pause += 1


def late_writes(stride: int = 1) -> Iterator[Stage]:
    """A change of the storage seems to fail, its epoch is tried again, the change lands any time later, a crash follows."""
    setting = Setting(last=0, config=CheckpointConfig(tolerable_failures=1))
    closed: set[Hashable] = set()
    number = 0
    for fails in range(0, 40, 2):
        for lands in range(0, 36, 2):
            for crashes in range(0, 12, 3):
                number += 1
                if number % stride == 0:
                    moves = ((fails, Move.STORAGE_LATE), (lands, Move.LAND), (crashes, Move.CRASH))
                    yield Stage(setting, Plan(moves), closed).play()


_WEIGHTS = {
    Move.NEW: 5,
    Move.SWITCH: 8,
    Move.CRASH: 5,
    Move.NOTIFY: 3,
    Move.RUN_AHEAD: 3,
    Move.LAND: 3,
    Move.STORAGE_LATE: 3,
}


def random_setting(rng: random.Random) -> Setting:
    config = CheckpointConfig(
        interval=rng.choice([None, None, HOUR]),
        mode=rng.choice([CheckpointMode.EXACTLY_ONCE, CheckpointMode.EXACTLY_ONCE, CheckpointMode.AT_LEAST_ONCE]),
        timeout=timedelta(seconds=30),
        tolerable_failures=rng.choice([0, 1, 2]),
        retained=rng.choice([1, 2, 10]),
        max_concurrent=rng.choice([1, 2]),
        max_pending_epochs=rng.choice([1, 2, 20]),
    )
    return Setting(
        last=rng.randint(1, 5),
        sinks=rng.choice([("a",), ("a", "b")]),
        config=config,
        in_one_transaction=rng.random() < 0.5,
        names_attempts=rng.random() < 0.7,
    )


def random_plan(rng: random.Random) -> Plan:
    moves = rng.choices(list(Move), [_WEIGHTS.get(move, 1) for move in Move], k=rng.randint(1, 14))
    return Plan(
        tuple((rng.choice([rng.randint(0, 6), rng.randint(0, 60), rng.randint(0, 250)]), move) for move in moves)
    )


def from_seed(seed: int) -> Stage:
    """The schedule of a seed, not yet played: always the same."""
    rng = random.Random(seed)
    return Stage(random_setting(rng), random_plan(rng))
