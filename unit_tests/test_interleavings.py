"""Two drivers, every interleaving of this kind: the old one is paused at any point, the new one runs to any point, then
the old one wakes and goes on as far as it can, then the new one; a third picks up what is left.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from lockstep.config import CheckpointConfig, CheckpointMode
from lockstep.errors import CheckpointDirectoryError, FencedError
from lockstep.testing import failpoints
from unit_tests.simulation import Driver, World

LAST = 1
STRIDE = int(os.environ.get("LOCKSTEP_STRIDE", "8"))  # 1 plays every schedule: minutes instead of a second
ALLOWED = (FencedError, CheckpointDirectoryError, RuntimeError)  # how a driver that lost may end
CONFIGS = {
    "every epoch": CheckpointConfig(),
    "one checkpoint for all": CheckpointConfig(interval=timedelta(hours=1), min_pause=timedelta(hours=1)),
    "at least once": CheckpointConfig(mode=CheckpointMode.AT_LEAST_ONCE),
}


class Paced:
    """A driver in a thread of its own, that runs only when told to, from failpoint to failpoint."""

    def __init__(self, body: Callable[[], None]) -> None:
        self._body = body
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._left = 0
        self.ended = False
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def run_for(self, points: int) -> Paced:
        """Let it pass so many failpoints (or end), then pause it again."""
        if not self.ended and points:
            self._left = points
            self._go.release()
            self._paused.acquire()
        return self

    def reached(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._paused.release()
            self._go.acquire()

    def _run(self) -> None:
        self._go.acquire()
        try:
            self._body()
        except BaseException as error:
            self.error = error
        finally:
            self.ended = True
            self._paused.release()


def interleave(config: CheckpointConfig, old_points: int, new_points: int, schema_changes: bool) -> tuple[bool, bool]:
    """Play one schedule and check it; whether the old and the new driver ended before they were paused."""
    world = World()

    def drive() -> None:
        Driver(world, config).start().run_to(LAST).stop()

    paced = [Paced(drive), Paced(drive)]
    threads = {one.thread: one for one in paced}
    failpoints.watch(lambda point: threads[threading.current_thread()].reached())
    try:
        old_ended = paced[0].run_for(old_points).ended
        if schema_changes:
            world.tables["a"].schema += 1
        new_ended = paced[1].run_for(new_points).ended
        paced[0].run_for(10**9)
        paced[1].run_for(10**9)
    finally:
        failpoints.clear()
    for one in paced:
        assert one.ended
        assert one.error is None or isinstance(one.error, ALLOWED), (old_points, new_points, one.error)
    assert Driver(world).start().run_to(LAST).stop(), (old_points, new_points)
    assert world.violations() == [], (old_points, new_points)
    world.check_exactly_once(LAST)
    assert Driver(world).start().stop()
    assert world.records() == []
    return old_ended, new_ended


@pytest.mark.parametrize(
    "config, schema_changes",
    [("every epoch", False), ("every epoch", True), ("one checkpoint for all", True), ("at least once", False)],
)
def test_every_row_is_visible_once_however_two_drivers_interleave(config: str, schema_changes: bool) -> None:
    schedules, old_points, old_ended = 0, 0, False
    while not old_ended:
        old_points, new_ended = old_points + 1, False
        new_points = old_points % STRIDE - STRIDE
        while not new_ended:
            new_points += STRIDE
            old_ended, new_ended = interleave(CONFIGS[config], old_points, new_points, schema_changes)
            schedules += 1
    assert schedules * STRIDE > 500
