"""A driver killed with SIGKILL before and after each durable step loses and repeats nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from integration_tests.crash_site import CrashSite, end, wait_until
from integration_tests.observer import Observer, read_rows
from lockstep.testing.failpoints import POINTS

if TYPE_CHECKING:
    from integration_tests.conftest import Broker, MakeTopic

PHASE_1 = POINTS[: POINTS.index("epoch.end") + 1]  # before the decision
PHASE_2 = POINTS[POINTS.index("epoch.end") + 1 :]  # after it


@pytest.fixture
def site(tmp_path: Path, kafka: Broker, make_topic: MakeTopic) -> CrashSite:
    return CrashSite(tmp_path, kafka.bootstrap_servers, make_topic(2))


def observe(site: CrashSite) -> Observer:
    return Observer(site.bootstrap_servers, site.topic, site.group, site.table, site.checkpoint)


def assert_exactly_once(site: CrashSite, observer: Observer) -> None:
    assert not observer.violations, observer.violations[:5]
    assert sorted(read_rows(site.table)) == site.expected_rows()
    assert sum(observer.group_offsets().values()) == site.produced
    assert not [f for f in Path(site.checkpoint, "lockstep", "prepared").glob("*") if f.name[0].isdigit()]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("points", [PHASE_1, PHASE_2], ids=["phase 1", "phase 2"])
def test_nothing_is_lost_or_repeated_when_the_driver_dies_at_every_step(
    site: CrashSite, points: tuple[str, ...]
) -> None:
    """One directory, one kill per point: every start recovers from the kill before it, under load."""
    site.produce(300)
    with observe(site) as observer:
        with site.producing(rows_per_second=30):
            for number, point in enumerate(points):
                driver = site.start(failpoint=point, hit=2 + number % 2)
                try:
                    assert driver.wait(timeout=120) == -signal.SIGKILL, f"{point}: {site.tail()}"
                finally:
                    end(driver)
                assert not observer.violations, f"{point}: {observer.violations[:5]}"
        site.run_to_end(rows_per_epoch=1000)
    assert_exactly_once(site, observer)
    assert observer.looks > 20
    assert len(observer.partial_views) > 5, "the observer must have seen the table grow"
    assert len(observer.offset_moves) > 3, "the observer must have seen the group move"


@pytest.mark.timeout(300)
def test_decision_that_a_dying_jvm_writes_after_python_is_gone_is_honoured(site: CrashSite) -> None:
    """Only Python is killed, right before it returns or just after: the JVM may or may not decide the epoch."""
    site.produce(1500)
    with observe(site) as observer:
        for point in ("epoch.end", "record.after"):
            driver = site.start(failpoint=point, hit=3, action="python")
            assert driver.wait(timeout=120) == -signal.SIGKILL, site.tail()
            end(driver)
        site.run_to_end()
    assert_exactly_once(site, observer)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", ["epoch.end", "sink.commit.before"])
def test_paused_driver_that_was_overtaken_commits_nothing_more(site: CrashSite, point: str) -> None:
    """The old driver stops (SIGSTOP) between two steps, a new one takes over, then the old one wakes."""
    site.produce(500)
    with observe(site) as observer:
        old = site.start(failpoint=point, hit=2, action="pause")
        try:
            wait_until(lambda: _is_stopped(old.pid), 120, f"the driver pauses at {point}; {site.log}")
            site.produce(300)
            site.run_to_end()
            overtaken = site.log
            os.killpg(old.pid, signal.SIGCONT)
            assert old.wait(timeout=120) != 0, "the overtaken driver must fail, not go on"
        finally:
            end(old)
        assert overtaken.exists()
        site.run_to_end()
    assert_exactly_once(site, observer)


def _is_stopped(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "T"
