"""What a demo does: how many orders, how fast, in how many epochs, and when the pipeline is killed. Decisions only."""

from __future__ import annotations

import random
from dataclasses import dataclass

from lockstep.errors import ConfigurationError

_EPOCHS_PER_LIFE = 8  # at least so many epochs' worth of orders come between two kills
_LEAST_ROWS_PER_LIFE = 100
_EPOCHS_BEFORE_FIRST_KILL = (2, 5)
_EPOCHS_BEFORE_LATER_KILLS = (1, 3)  # soon after a restart, while the last crash is hardly digested
_KILL_DELAY_SECONDS = 1.0


@dataclass(frozen=True)
class DemoPlan:
    """The figures of a demo. A *life* is the time from a start of the pipeline to its kill; the last one ends well."""

    rows: int
    kills: int
    partitions: int
    rate: int  # orders a second
    seed: int

    def __post_init__(self) -> None:
        least = self.lives * _LEAST_ROWS_PER_LIFE
        if self.rows < least:
            raise ConfigurationError(
                f"--rows {self.rows} is too few for --kills {self.kills}: give at least {least}, so that every kill hits a "
                "pipeline at work."
            )

    @property
    def lives(self) -> int:
        return self.kills + 1

    @property
    def rows_per_epoch(self) -> int:
        """The most that one epoch reads."""
        return max(self.rows // (self.lives * _EPOCHS_PER_LIFE), self.partitions)

    def rows_until(self, life: int) -> int:
        """How many orders may be sent during lives 0 to ``life``: the rest is kept for the lives to come."""
        return self.rows * (life + 1) // self.lives


class KillSchedule:
    """Says when to kill: once a life has decided some epochs, at a random moment after."""

    def __init__(self, plan: DemoPlan) -> None:
        self._random = random.Random(plan.seed)
        self._left = plan.kills
        self._range = _EPOCHS_BEFORE_FIRST_KILL
        self._after_epoch = 0
        self._delay = 0.0
        self._moment: float | None = None

    def life_begins(self, decided: int) -> None:
        """``decided`` is the highest epoch that Spark had decided before this life."""
        self._after_epoch = decided + self._random.randint(*self._range)
        self._delay = self._random.uniform(0.0, _KILL_DELAY_SECONDS)
        self._range = _EPOCHS_BEFORE_LATER_KILLS
        self._moment = None

    def due(self, decided: int, now: float) -> bool:
        """Whether to kill now. Counts the kill when it says so."""
        if self._left == 0:
            return False
        if self._moment is None and decided >= self._after_epoch:
            self._moment = now + self._delay
        if self._moment is None or now < self._moment:
            return False
        self._left -= 1
        return True

    @property
    def done(self) -> bool:
        return self._left == 0
