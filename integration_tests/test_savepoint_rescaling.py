"""A pipeline moves from directory to directory and from parallelism to parallelism, under load, and is killed on the way."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from integration_tests.crash_site import CrashSite, assert_same_rows_and_state, end, wait_until
from integration_tests.sessions import ONLY_THOROUGH

STEPS = ((4, None), (16, "restore.state.after"), (3, "restore.before"))  # partitions, where the restore is killed


@ONLY_THOROUGH
@pytest.mark.timeout(600)
def test_rescaling_by_savepoints_under_load_loses_and_repeats_nothing(crossing: CrashSite) -> None:
    site, origin = crossing, ""
    assert site.targets is not None
    site.produce(200)
    with site.producing(rows_per_second=30):
        for number, (partitions, point) in enumerate(STEPS):
            site.checkpoint = str(site.root / f"checkpoint-{number}")
            settings: dict[str, Any] = {"partitions": partitions, "options": {"restoreFrom": origin} if origin else {}}
            if point is not None:
                killed = site.start(failpoint=point, **settings)
                try:
                    assert killed.wait(timeout=120) == -signal.SIGKILL, site.tail()
                finally:
                    end(killed)
            origin = str(site.root / f"savepoint-{number}")
            _run_and_save(site, origin, settings)
            assert len(list(Path(site.checkpoint, "state", "0").glob("[0-9]*"))) == partitions
    site.run_to_end(partitions=3, rows_per_epoch=1000)
    for name, read in site.readers().items():
        assert sorted(read()) == site.expected_rows(), name
    assert_same_rows_and_state(site.targets, site.produced)


def _run_and_save(site: CrashSite, path: str, settings: dict[str, Any]) -> None:
    driver = site.start(**settings)
    try:
        wait_until(lambda: _ended(driver) or site.decided() >= 3, 180, "some epochs")
        saved = site.root / f"{Path(path).name}.saved"
        assert driver.stdin is not None
        driver.stdin.write(json.dumps({"savepoint": path, "saved": str(saved)}).encode() + b"\n")
        driver.stdin.flush()
        wait_until(lambda: saved.exists() or _ended(driver), 120, f"the savepoint; {site.tail()}")
        assert saved.exists(), site.tail()
    finally:
        end(driver)


def _ended(driver: subprocess.Popen[bytes]) -> bool:
    return driver.poll() is not None
