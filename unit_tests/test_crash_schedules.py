"""Every crash, and every pair of crashes, of a four-epoch stream: nothing is lost, nothing comes twice."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest

from lockstep.config import CheckpointConfig
from lockstep.testing import failpoints, staged_but_invisible
from unit_tests.simulation import Crash, Driver, World

LAST = 3  # epochs 0 to 3
EVERY_EPOCH = CheckpointConfig()
AT_STOP = CheckpointConfig(interval=timedelta(hours=1), min_pause=timedelta(hours=1))


class _CrashAfter:
    """Counts failpoints, and raises at the given one."""

    def __init__(self, hits: int) -> None:
        self.left = hits

    def __call__(self, point: str) -> None:
        self.left -= 1
        if self.left == 0:
            raise Crash(point)


def _run(world: World, config: CheckpointConfig, hits: int) -> bool:
    """Run a driver to the end; whether it got there before the ``hits``-th failpoint."""
    failpoints.watch(_CrashAfter(hits))
    try:
        driver = Driver(world, config).start().run_to(LAST)
        assert driver.stop()
        return True
    except Crash:
        return False
    finally:
        failpoints.clear()


def _check_end(world: World) -> None:
    world.check_exactly_once(LAST)
    assert world.group[-1] == LAST
    Driver(world).start().stop()  # what a crash left behind is gone after one more start
    world.check_exactly_once(LAST)
    assert world.records() == []


@pytest.mark.parametrize("config", [EVERY_EPOCH, AT_STOP], ids=["every epoch", "one checkpoint for all"])
def test_every_row_is_visible_once_after_a_crash_at_any_point(config: CheckpointConfig) -> None:
    for hits in itertools.count(1):
        world = World("a", "b")
        if _run(world, config, hits):
            break
        world.check_nothing_wrong()
        assert _run(world, config, 10**9)
        _check_end(world)
        assert staged_but_invisible(world.tables.values()).keys() <= _staged_without_record(world)
    assert hits > 50


def _staged_without_record(world: World) -> set[str]:
    """A crash before the prepare record leaves rows that nobody knows of, invisible: at most one attempt."""
    seen = {one.staged for table in world.tables.values() for one in table.visible}
    left = {name for table in world.tables.values() for name in table.staged if name not in seen}
    assert len(left) <= 1
    return left


@pytest.mark.parametrize("config", [EVERY_EPOCH, AT_STOP], ids=["every epoch", "one checkpoint for all"])
def test_every_row_is_visible_once_after_any_two_crashes(config: CheckpointConfig) -> None:
    once, twice = set(), set()  # crashes that leave the same behind need one look
    for first in itertools.count(1):
        crashed = World()
        if _run(crashed, config, first):
            break
        if crashed.state() in once:
            continue
        once.add(crashed.state())
        for second in itertools.count(1):
            world = crashed.copy()
            if _run(world, config, second):
                break
            if world.state() in twice:
                continue
            twice.add(world.state())
            world.check_nothing_wrong()
            assert _run(world, config, 10**9)
            world.check_exactly_once(LAST)
            assert world.group[-1] == LAST
    assert len(twice) > 200
