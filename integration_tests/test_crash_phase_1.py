"""A driver killed with SIGKILL at each step before the decision loses and repeats nothing.

Here at some of them; ``make thorough`` takes all.
"""

from __future__ import annotations

import pytest

from integration_tests.crash_site import CrashSite, die_at_each
from integration_tests.sessions import THOROUGH
from lockstep.testing.failpoints import POINTS


@pytest.mark.timeout(600)
def test_nothing_is_lost_or_repeated_when_the_driver_dies_at_each_step_before_the_decision(site: CrashSite) -> None:
    points = POINTS[: POINTS.index("epoch.end") + 1]
    die_at_each(site, points if THOROUGH else points[1::3])
