"""A driver killed with SIGKILL at each step after the decision loses and repeats nothing; ``make crash`` takes all steps."""

from __future__ import annotations

import pytest

from integration_tests.crash_site import ALL_POINTS, CrashSite, die_at_each
from lockstep.testing.failpoints import POINTS


@pytest.mark.timeout(600)
def test_nothing_is_lost_or_repeated_when_the_driver_dies_at_each_step_after_the_decision(site: CrashSite) -> None:
    points = POINTS[POINTS.index("epoch.end") + 1 :]
    die_at_each(site, points if ALL_POINTS else points[1::2])
