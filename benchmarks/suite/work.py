"""One thing that is measured."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from benchmarks.suite.ground import Ground

Figures = dict[str, float]


@dataclass(frozen=True)
class Work:
    """``run`` measures one contender once.

    Contenders take turns, round after round, on one machine, and a figure is compared with those of the same rounds
    alone. ``key`` names the work in build/bench.json. Before anything is started, ``ready`` is asked: it ends the program,
    with the remedy, when something that the work needs is not there. ``around`` is entered before the first run and left
    after the last.
    """

    key: str
    title: str
    contenders: tuple[str, ...]
    run: Callable[[Ground, str], Figures]
    headline: str  # the figure that is shown first, and plotted
    lower_is_better: bool = False
    ready: Callable[[], None] = lambda: None
    around: AbstractContextManager[object] = field(default_factory=nullcontext)
