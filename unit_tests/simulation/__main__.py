"""Plays the whole simulation, or one seed: ``make simulate``, ``make simulate ARGS="--seed 7"``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from unit_tests.simulation.exhaustive import Enumeration, ScheduleError, Tally
from unit_tests.simulation.plans import BOUNDS, PAUSES, from_seed, late_writes, pauses

_PARTS = 8  # of every enumeration of pauses
_CHUNK = 250  # seeds
_PART_NAMES = ("crashes", "pauses", "late", "random")


@dataclass(frozen=True)
class Item:
    """A piece of work for one process, counted under ``kind``."""

    kind: str
    play: Callable[[], Tally]


def _crashes(index: int) -> Tally:
    return Enumeration(BOUNDS[index]).play()


def _pauses(name: str, part: int) -> Tally:
    tally = Tally()
    for stage in pauses(*PAUSES[name], stride=_PARTS, first=part):
        tally += Tally(schedules=int(stage.resumed), lives=stage.lives, steps=stage.steps)
    return tally


def _late() -> Tally:
    return sum((Tally(1, stage.lives, 0, stage.steps) for stage in late_writes()), Tally())


def _random(seeds: range) -> Tally:
    stages = (from_seed(seed).play() for seed in seeds)
    return sum((Tally(1, stage.lives, 0, stage.steps) for stage in stages), Tally())


def _items(parts: Sequence[str], first: int, runs: int) -> list[Item]:
    crashes = [Item(f"crashes: {bounds.name}", partial(_crashes, index)) for index, bounds in enumerate(BOUNDS)]
    paused = [Item(f"pauses: {name}", partial(_pauses, name, part)) for name in PAUSES for part in range(_PARTS)]
    chunks = [range(seed, min(seed + _CHUNK, first + runs)) for seed in range(first, first + runs, _CHUNK)]
    seeds = [Item(f"random: seeds {first} to {first + runs - 1}", partial(_random, chunk)) for chunk in chunks]
    items = {"crashes": crashes, "pauses": paused, "late": [Item("late writes", _late)], "random": seeds}
    return [item for part in parts for item in items[part]]


def _play_all(screen: Console, items: list[Item], workers: int) -> int:
    tallies: dict[str, Tally] = {}
    bars = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    began = time.monotonic()
    with Progress(*bars, console=screen) as progress, ProcessPoolExecutor(workers) as pool:
        task = progress.add_task("simulating", total=len(items))
        pending = {pool.submit(item.play): item for item in items}
        for done in as_completed(pending):
            item = pending[done]
            try:
                tallies[item.kind] = tallies.get(item.kind, Tally()) + done.result()
            except ScheduleError as broken:
                pool.shutdown(cancel_futures=True)
                screen.print(f"[red]{item.kind}[/]")
                screen.print(str(broken), markup=False, highlight=False, soft_wrap=True)
                return 1
            progress.advance(task)
            progress.update(task, description=f"{sum(t.schedules for t in tallies.values()):,} schedules")
    table = Table("", *(f"{name}" for name in ("schedules covered", "drivers played", "distinct states", "steps")))
    for column in table.columns[1:]:
        column.justify = "right"
    for kind in dict.fromkeys(item.kind for item in items):
        table.add_row(kind, *_figures(tallies[kind]))
    table.add_section()
    table.add_row("all", *_figures(sum(tallies.values(), Tally())))
    screen.print(table)
    screen.print(f"Every invariant held after every step. {time.monotonic() - began:.0f} s, {workers} processes.")
    return 0


def _figures(tally: Tally) -> list[str]:
    return [f"{number:,}" if number else "" for number in (tally.schedules, tally.lives, tally.states, tally.steps)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m unit_tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this random schedule alone, and tell its story")
    parser.add_argument(
        "--runs", type=int, help="with --seed: so many, from this one on; alone: how many random schedules"
    )
    parser.add_argument("--only", choices=_PART_NAMES, action="append", help="play this part (may be repeated)")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    arguments = parser.parse_args()
    screen = Console(width=None if sys.stdout.isatty() else 140)
    if arguments.seed is not None and arguments.runs is None:
        try:
            print(from_seed(arguments.seed).play().story())  # noqa: T201
        except ScheduleError as broken:
            print(broken)  # noqa: T201
            return 1
        return 0
    parts = arguments.only or (_PART_NAMES if arguments.seed is None else ("random",))
    return _play_all(screen, _items(parts, arguments.seed or 0, arguments.runs or 10_000), arguments.workers)


if __name__ == "__main__":
    sys.exit(main())
