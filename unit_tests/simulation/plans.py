"""The plans that are played: every pause of one driver under another, and random ones from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta

from lockstep.config import CheckpointConfig, CheckpointMode
from unit_tests.simulation.life import Setting
from unit_tests.simulation.stage import Move, Plan, Stage

HOUR = timedelta(hours=1)
EVERY_EPOCH = CheckpointConfig()
ONE_FOR_ALL = CheckpointConfig(interval=HOUR, min_pause=HOUR)
AT_LEAST_ONCE = CheckpointConfig(mode=CheckpointMode.AT_LEAST_ONCE)

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
    pause, paused = 0, True
    while paused:
        resume, resumed = (first + pause) % stride, True
        while resumed:
            moves = ((pause, Move.NEW), *((0, move) for move in meanwhile), (resume, Move.SWITCH))
            stage = Stage(setting, Plan(moves)).play()
            paused, resumed = stage.moves_played > 0, stage.moves_played == len(moves)
            resume += stride
            yield stage
            if not paused:
                return
        pause += 1


_WEIGHTS = {Move.NEW: 5, Move.SWITCH: 8, Move.CRASH: 5, Move.NOTIFY: 3, Move.RUN_AHEAD: 3, Move.LAND: 3, Move.STORAGE_LATE: 3}


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
    return Plan(tuple((rng.choice([rng.randint(0, 6), rng.randint(0, 60), rng.randint(0, 250)]), move) for move in moves))


def from_seed(seed: int) -> Stage:
    """The schedule of a seed, not yet played: always the same."""
    rng = random.Random(seed)
    return Stage(random_setting(rng), random_plan(rng))
