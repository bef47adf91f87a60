"""The protocol under every schedule that fits, and under random ones: see unit_tests/simulation."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.config import CheckpointConfig, CheckpointMode
from lockstep.protocol.committer import Committer
from unit_tests.simulation.exhaustive import Bounds, Chapter, Enumeration, ScheduleError, play_chapters
from unit_tests.simulation.life import Setting
from unit_tests.simulation.plans import BOUNDS, HOUR, PAUSES, SHORT, from_seed, late_writes, pauses
from unit_tests.simulation.stage import Move, Plan, Stage
from unit_tests.simulation.steps import News

WHOLE = bool(os.environ.get("LOCKSTEP_WHOLE"))  # everything, as `make simulate` plays it, and not a slice
STRIDE = 1 if WHOLE else 40
SEEDS = 3000 if WHOLE else 300


# --- one driver after the other ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("bounds", BOUNDS if WHOLE else SHORT, ids=lambda bounds: bounds.name)
def test_every_row_is_visible_once_after_any_crashes_notifications_and_outcomes(bounds: Bounds) -> None:
    tally = Enumeration(bounds).play()
    assert tally.schedules >= tally.states > 10
    if bounds.crashes == 3:
        assert tally.schedules > 100_000


def test_crash_leaves_behind_what_the_copy_of_the_world_showed() -> None:
    """The enumeration goes on from copies. Here every first crash is a real one, raised in the protocol's code."""
    bounds = Bounds("one crash", Setting(sinks=("a", "b")), crashes=1, oddities=0)
    enumeration = Enumeration(bounds)
    scenes = enumeration.scenes(Chapter())
    assert len(scenes) > 30
    for scene in scenes:
        assert play_chapters(bounds, [Chapter(crash=scene.step)]).world.state() == scene.world.state()


def test_every_crash_point_is_counted_once() -> None:
    """One life without choices: as many schedules as it has steps to crash at, and one without a crash."""
    bounds = Bounds("one crash", Setting(last=0), crashes=1, oddities=0, news=(News.ON_TIME,))
    enumeration = Enumeration(bounds)
    points = sum(scene.points for scene in enumeration.scenes(Chapter()))
    assert enumeration.play().schedules == points + 1


# --- several at once --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAUSES)
def test_every_row_is_visible_once_wherever_a_driver_is_paused_and_resumed(name: str) -> None:
    setting, meanwhile = PAUSES[name]
    played = sum(1 for _ in pauses(setting, meanwhile, STRIDE))
    assert played * STRIDE > 3000


def test_every_row_is_visible_once_wherever_a_late_write_lands() -> None:
    assert sum(1 for _ in late_writes(1 if WHOLE else 7)) > 150


# --- random -----------------------------------------------------------------------------------------------------------


def test_random_schedules_keep_every_row_once() -> None:
    steps = [from_seed(seed).play().steps for seed in range(SEEDS)]
    assert min(steps) > 50
    assert len(set(steps)) > SEEDS / 4


CONFIGS = st.builds(
    CheckpointConfig,
    interval=st.sampled_from([None, HOUR]),
    mode=st.sampled_from(CheckpointMode),
    timeout=st.just(timedelta(seconds=30)),
    tolerable_failures=st.integers(0, 2),
    retained=st.integers(1, 3),
    max_concurrent=st.integers(1, 2),
    max_pending_epochs=st.sampled_from([20, 2, 1]),
)
SETTINGS = st.builds(
    Setting,
    last=st.integers(0, 5),
    sinks=st.sampled_from([("a",), ("a", "b")]),
    config=CONFIGS,
    in_one_transaction=st.booleans(),
    names_attempts=st.booleans(),
)
PLANS = st.lists(st.tuples(st.integers(0, 150), st.sampled_from(Move)), max_size=15).map(lambda m: Plan(tuple(m)))


@settings(max_examples=2000 if WHOLE else 150, derandomize=not WHOLE)
@given(setting=SETTINGS, plan=PLANS)
def test_any_plan_keeps_every_row_once(setting: Setting, plan: Plan) -> None:
    assert Stage(setting, plan).play().broken is None


# --- what it tells ----------------------------------------------------------------------------------------------------


def test_a_seed_tells_the_same_story_byte_for_byte() -> None:
    first, second = (from_seed(7).play().story() for _ in range(2))
    assert first == second
    assert first != from_seed(8).play().story()


def test_a_broken_schedule_is_told_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Committer, "_finish", lambda self, checkpoint, epochs: self._offsets.checkpoint_complete(9))
    bounds = Bounds("broken on purpose", Setting(last=0), crashes=1, oddities=0)
    with pytest.raises(ScheduleError) as caught:
        Enumeration(bounds).play()
    told = str(caught.value).splitlines()
    assert told[0] == "broken on purpose"
    assert told[1] == " 1. driver 1 creates the lineage"
    assert " 3. driver 1 creates Spark's plan of epoch 0" in told
    assert told[-1].strip().startswith("BROKEN:")


def test_a_broken_plan_is_told_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Committer, "_discard_losers", lambda self, committed, just_committed: None)
    with pytest.raises(ScheduleError, match=r"(?s)5: crash.* 1\. driver 1 .*BROKEN: .* was not retired"):
        Stage(Setting(last=0), Plan(((5, Move.CRASH),))).play()
