"""One thing that is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.suite.ground import Ground

Figures = dict[str, float]


@dataclass(frozen=True)
class Work:
    """``run`` measures one contender once.

    Contenders take turns, round after round, on one machine, and a figure is compared with those of the same rounds
    alone. ``key`` names the work in build/bench.json.
    """

    key: str
    title: str
    contenders: tuple[str, ...]
    run: Callable[[Ground, str], Figures]
    headline: str  # the figure that is shown first, and plotted
    lower_is_better: bool = False
