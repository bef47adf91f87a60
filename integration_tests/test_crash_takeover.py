"""Drivers that die by halves, or come back: exactly one attempt of each epoch is committed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from integration_tests.crash_site import CrashSite, assert_exactly_once, end, observe, wait_until
from integration_tests.sessions import ONLY_THOROUGH, THOROUGH


@pytest.mark.timeout(300)
def test_decision_that_a_dying_jvm_writes_after_python_is_gone_is_honoured(site: CrashSite) -> None:
    """Only Python is killed, right before it returns or just after: the JVM may or may not decide the epoch."""
    site.produce(1500)
    with observe(site) as observer:
        for point in ("epoch.end", "record.after") if THOROUGH else ("epoch.end",):
            driver = site.start(failpoint=point, hit=3, action="python")
            assert driver.wait(timeout=120) == -signal.SIGKILL, site.tail()
            end(driver)
        site.run_to_end()
    assert_exactly_once(site, observer)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "sinks, point",
    [pytest.param("one", "epoch.end", marks=ONLY_THOROUGH), ("four", "sink.commit.before")],
)
def test_paused_driver_that_was_overtaken_commits_nothing_more(
    request: pytest.FixtureRequest, sinks: str, point: str
) -> None:
    """The old driver stops (SIGSTOP) between two steps, a new one takes over, then the old one wakes."""
    site: CrashSite = request.getfixturevalue("site" if sinks == "one" else "crossing")
    site.produce(500)
    with observe(site) as observer:
        old = site.start(failpoint=point, hit=2, action="pause")
        try:
            wait_until(lambda: _is_stopped(old.pid), 120, f"the driver pauses at {point}; {site.log}")
            log = site.log
            site.produce(300)
            site.run_to_end()
            before = {name: sorted(read()) for name, read in site.readers().items()}
            os.killpg(old.pid, signal.SIGCONT)
            assert old.wait(timeout=120) != 0, "the overtaken driver must fail, not go on"
            reason = "CONCURRENT_STREAM_LOG_UPDATE" if sinks == "one" else "was overtaken by driver"  # Spark's, or ours
            assert reason in log.read_text(errors="replace"), "it must say why"
        finally:
            end(old)
        assert before == {name: sorted(read()) for name, read in site.readers().items()}, "it has committed something"
    assert_exactly_once(site, observer)


def _is_stopped(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "T"
